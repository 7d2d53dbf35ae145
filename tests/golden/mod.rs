//! Values, gradients and second derivatives from PyTorch, against the f64 oracle: it is checked by
//! something that was not written here. `generate.py` writes the file and says what is in it.
//!
//! For each case of the file a closure does the same with our methods. Where we differ on purpose the
//! case is not in the file, and `docs/numerics.md` says why.

mod conv;
mod dtypes;
mod elementwise;
mod linalg;
mod losses;
mod movement;
mod neural;
mod norms;
mod reductions;
mod spatial;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use libtest_mimic::Trial;
use safetensors::{Dtype, SafeTensors};
use wgrad::{Context, DType, HostTensor, Outputs, Pass, Result, Tensor, vjp};

use crate::devices::oracle;

/// Error accepted of f64 arithmetic, relative to `max(1, |value|)`.
const TOLERANCE: f64 = 1e-9;

type Record = Box<dyn Fn(&Pass, &[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// What our methods do for a case of the file.
struct Golden {
    name: String,
    f: Record,
    tolerance: f64,
}

/// The closure of the case `name`.
fn golden<O: Outputs>(
    name: impl Into<String>,
    f: impl Fn(&Pass, &[Tensor]) -> O + Send + Sync + 'static,
) -> Golden {
    Golden { name: name.into(), f: Box::new(move |p, x| f(p, x).outputs()), tolerance: TOLERANCE }
}

/// A function of one operand.
fn one<O: Outputs + 'static>(name: &str, f: fn(Tensor) -> O) -> Golden {
    golden(name, move |_, x| f(x[0]))
}

/// A function of two operands.
fn two<O: Outputs + 'static>(name: &str, f: fn(Tensor, Tensor) -> O) -> Golden {
    golden(name, move |_, x| f(x[0], x[1]))
}

impl Golden {
    /// With another tolerance.
    fn tolerance(self, tolerance: f64) -> Golden {
        Golden { tolerance, ..self }
    }
}

fn cases() -> Vec<Golden> {
    let mut all = Vec::new();
    all.extend(elementwise::cases());
    all.extend(reductions::cases());
    all.extend(movement::cases());
    all.extend(linalg::cases());
    all.extend(neural::cases());
    all.extend(conv::cases());
    all.extend(norms::cases());
    all.extend(losses::cases());
    all.extend(spatial::cases());
    all.extend(dtypes::cases());
    all
}

/// The tensors of the file by their name.
fn file() -> &'static BTreeMap<String, HostTensor> {
    static FILE: OnceLock<BTreeMap<String, HostTensor>> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut bytes = Vec::new();
        let packed: &[u8] = include_bytes!("pytorch.safetensors.gz");
        GzDecoder::new(packed).read_to_end(&mut bytes).expect("the file is gzip");
        let tensors = SafeTensors::deserialize(&bytes).expect("the file is safetensors");
        let host = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let dtype = match view.dtype() {
                Dtype::F64 => DType::F64,
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                Dtype::I32 => DType::I32,
                Dtype::U8 => DType::U8,
                Dtype::BOOL => DType::Bool,
                other => panic!("{name} has dtype {other:?}"),
            };
            let host = HostTensor::from_bytes(view.shape(), dtype, view.data()).expect("a whole tensor");
            (name, host)
        };
        tensors.iter().map(|(name, view)| host((name.to_owned(), view))).collect()
    })
}

/// Tensors `NAME/<letter>0`, `NAME/<letter>1` .. by their number; not every number need be there.
fn numbered(name: &str, letter: char) -> BTreeMap<usize, &'static HostTensor> {
    let of = |i: usize| file().get(&format!("{name}/{letter}{i}")).map(|t| (i, t));
    (0..8).filter_map(of).collect()
}

/// The first element at which `got` is not `want`, in words.
fn difference(got: &[f64], want: &[f64], tolerance: f64) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} elements, not {}", got.len(), want.len()));
    }
    got.iter().zip(want).enumerate().find_map(|(i, (a, b))| {
        let same = a.is_nan() && b.is_nan()
            || a == b
            || b.is_finite() && (a - b).abs() <= tolerance * b.abs().max(1.0);
        (!same).then(|| format!("element {i} is {a}, not {b}"))
    })
}

/// Compares tensors with what the file has under a letter.
fn compare(case: &Golden, letter: char, got: &BTreeMap<usize, Tensor>) -> Result<()> {
    for (i, want) in numbered(&case.name, letter) {
        let what = format!("{} {letter}{i}", case.name);
        let y = got.get(&i).unwrap_or_else(|| panic!("{what} is missing"));
        assert_eq!(y.shape(), want.shape(), "{what}");
        let same = if want.dtype() == DType::I32 { y.dtype().is_int() } else { y.dtype() == want.dtype() };
        assert!(same, "{what} has dtype {}, not {}", y.dtype(), want.dtype());
        let (got, want) = (y.to_vec::<f64>()?, want.to_vec::<f64>());
        if let Some(d) = difference(&got, &want, case.tolerance) {
            panic!("{what}: {d}\n got {got:?}\nwant {want:?}");
        }
    }
    Ok(())
}

/// The gradient by the operands in `by` of the sum of products of `outputs` with the weights under
/// `letter`.
fn gradient(
    p: &Pass,
    name: &str,
    letter: char,
    outputs: &BTreeMap<usize, Tensor>,
    by: &BTreeMap<usize, Tensor>,
) -> Result<BTreeMap<usize, Tensor>> {
    let (mut ys, mut weights) = (Vec::new(), Vec::new());
    for (i, w) in numbered(name, letter) {
        ys.push(outputs[&i]);
        weights.push(p.input(w)?);
    }
    let xs: Vec<Tensor> = by.values().copied().collect();
    Ok(by.keys().copied().zip(vjp(&ys, &weights, &xs)?).collect())
}

fn check(ctx: &Context, case: &Golden) -> Result<()> {
    ctx.pass(|p| {
        let mut x = Vec::new();
        for data in numbered(&case.name, 'x').values() {
            x.push(p.input(*data)?);
        }
        let y: BTreeMap<usize, Tensor> = (case.f)(p, &x)?.into_iter().enumerate().collect();
        let count = numbered(&case.name, 'y').len();
        assert_eq!(y.len(), count, "{}: number of outputs", case.name);
        compare(case, 'y', &y)?;
        let by: BTreeMap<usize, Tensor> = numbered(&case.name, 'g').keys().map(|i| (*i, x[*i])).collect();
        if by.is_empty() {
            return Ok(());
        }
        let g = gradient(p, &case.name, 'w', &y, &by)?;
        compare(case, 'g', &g)?;
        if !numbered(&case.name, 'h').is_empty() {
            compare(case, 'h', &gradient(p, &case.name, 'v', &g, &by)?)?;
        }
        Ok(())
    })
}

/// Each case of the file has one closure, each closure a case, and there are many.
fn names_match(all: &[Golden]) {
    let have: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(have.len(), all.len(), "two closures have one name");
    let name = |key: &'static String| key.rsplit_once('/').expect("NAME/xN").0;
    let want: BTreeSet<&str> = file().keys().map(name).collect();
    let missing: Vec<_> = want.difference(&have).collect();
    assert!(missing.is_empty(), "cases without a closure: {missing:?}");
    let unknown: Vec<_> = have.difference(&want).collect();
    assert!(unknown.is_empty(), "closures without a case, run generate.py: {unknown:?}");
    assert!(have.len() >= 830, "{} cases", have.len());
}

/// The trials: one a case, on the oracle.
pub(crate) fn trials() -> Vec<Trial> {
    let all: &'static [Golden] = Vec::leak(cases());
    let mut trials = vec![crate::trial("golden::names_match".to_owned(), move || names_match(all))];
    for case in all {
        let name = format!("golden::{}", case.name.replace(' ', "_"));
        trials.push(crate::trial(name, move || {
            check(&oracle(), case).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        }));
    }
    trials
}
