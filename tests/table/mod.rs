//! One table of operations, and what is proven of each of them.
//!
//! An area lists its cases in a file of this folder. For every case the harness compares the values and
//! the gradients on every device with the f64 oracle, fused and unfused, with operands that are
//! contiguous, transposed, sliced, reversed or expanded, and checks gradients (and, where the case says
//! so, second derivatives) on the oracle by central differences in the middle of a graph.
//!
//! By default each case runs plainly and in two of the other ways, picked by its name, so that every
//! layout and both modes are met often; `WGRAD_TEST=full` runs all ways.

mod attention;
mod case;
mod conv;
mod functions;
mod grads;
mod index;
mod layout;
mod linalg;
mod losses;
mod movement;
mod norms;
mod reductions;
mod rows;
mod scan;
mod solve;
mod sort;
mod spatial;

use libtest_mimic::Trial;
use wgrad::{Context, ContextOptions, DType, Pass, Result, Tensor, grad};

#[allow(unused_imports, reason = "areas take what they need")]
pub(crate) use case::{Case, Grad, Operand, bools, case, float, floats_of, host, ints, ints_of, spread};
use layout::Layout;

use crate::Subject;
use crate::devices::oracle_with;

/// Every case of every area.
pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(conv::cases());
    all.extend(movement::cases());
    all.extend(index::cases());
    all.extend(linalg::cases());
    all.extend(attention::cases());
    all.extend(losses::cases());
    all.extend(norms::cases());
    all.extend(rows::cases());
    all.extend(functions::cases());
    all.extend(reductions::cases());
    all.extend(scan::cases());
    all.extend(sort::cases());
    all.extend(solve::cases());
    all.extend(spatial::cases());
    all
}

/// Whether everything is asked for.
pub(crate) fn full() -> bool {
    std::env::var("WGRAD_TEST").is_ok_and(|v| v == "full")
}

/// One way to run a case.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Way {
    layout: Layout,
    /// Whether the case stands between exact elementwise operations, with which it may fuse.
    inner: bool,
    fuse: bool,
}

impl Way {
    const PLAIN: Way = Way { layout: Layout::Contiguous, inner: false, fuse: true };

    /// The ways for a case: all, or the plain one and a few picked by the case's name.
    fn of(case: &Case, slow: bool) -> Vec<Way> {
        let mut all = Vec::new();
        for layout in Layout::ALL {
            for inner in [false, true] {
                for fuse in [true, false] {
                    all.push(Way { layout, inner, fuse });
                }
            }
        }
        all.retain(|w| *w != Way::PLAIN);
        if !full() {
            let hash = case.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
            let count = if slow { 1 } else { 2 };
            let at = |i: u64| {
                (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) as usize + 7 * i as usize)
                    % all.len()
            };
            all = (0..count).map(|i| all[at(i)]).collect();
        }
        all.insert(0, Way::PLAIN);
        all
    }

    /// The ways for a case with its floats in 16 bits: all, or one for each dtype.
    fn of_halves(case: &Case, slow: bool) -> Vec<(Way, DType)> {
        let ways = Way::of(case, slow);
        if full() {
            return ways.into_iter().flat_map(|w| [(w, DType::F16), (w, DType::BF16)]).collect();
        }
        let (first, last) = (ways[1], ways[ways.len() - 1]);
        match slow {
            true if case.name.len().is_multiple_of(2) => vec![(first, DType::F16)],
            true => vec![(first, DType::BF16)],
            false => vec![(first, DType::F16), (last, DType::BF16)],
        }
    }
}

/// What a case gives: its value, and the gradient of `sum(value * weights)` by each float operand.
struct Outcome {
    dtype: DType,
    dims: Vec<usize>,
    value: Vec<f64>,
    grads: Vec<Vec<f64>>,
}

/// Numbers without symmetry, as many as `y` has.
pub(crate) fn weights(p: &Pass, y: Tensor) -> Result<Tensor> {
    let shape = y.shape();
    let elems = spread(shape.elems(), -1.0, 1.5, 0.77);
    p.input(host(shape.dims(), &elems, y.dtype()))
}

fn outcome(ctx: &Context, case: &Case, way: Way, dtype: DType) -> Result<Outcome> {
    ctx.pass(|p| {
        let leaves = way.layout.operands(p, case, dtype, way.inner)?;
        let x: Vec<Tensor> = leaves.iter().map(|l| l.seen).collect();
        let y = (case.f)(p, &x);
        let value = if way.inner && y.dtype().is_float() { y * 2.0 } else { y };
        let mut grads = Vec::new();
        if case.grad != Grad::None && y.dtype().is_float() {
            let wanted: Vec<Tensor> = leaves.iter().filter(|l| l.float).map(|l| l.seen).collect();
            let loss = (value * weights(p, value)?).sum_all();
            for g in grad(loss, &wanted)? {
                grads.push(g.to_vec::<f64>()?);
            }
        }
        Ok(Outcome {
            dtype: value.dtype(),
            dims: value.shape().dims().to_vec(),
            value: value.to_vec()?,
            grads,
        })
    })
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
        (!same).then(|| format!("element {i} of {} is {a}, not {b}", got.len()))
    })
}

fn agrees(on: &Subject, case: &Case) {
    if case.large && on.is_slow() {
        return;
    }
    let fused = on.context();
    let unfused = on.context_with(ContextOptions::default().fuse(false));
    let oracle = oracle_with(ContextOptions::default().fuse(false));
    for way in Way::of(case, on.is_slow()) {
        let told = |e| panic!("{} {way:?}: {e}", case.name);
        // The oracle sees the same numbers, laid out plainly and alone.
        let plain = Way { inner: way.inner, fuse: false, layout: way.layout.plain() };
        let want = outcome(&oracle, case, plain, DType::F32).unwrap_or_else(told);
        let ctx = if way.fuse { &fused } else { &unfused };
        let got = outcome(ctx, case, way, DType::F32).unwrap_or_else(told);
        assert_eq!((got.dtype, &got.dims), (want.dtype, &want.dims), "{} {way:?}", case.name);
        if let Some(d) = difference(&got.value, &want.value, case.tolerance) {
            panic!("{} {way:?}: {d}\n got {:?}\nwant {:?}", case.name, got.value, want.value);
        }
        for (i, (g, w)) in got.grads.iter().zip(&want.grads).enumerate() {
            if let Some(d) = difference(g, w, 10.0 * case.tolerance.max(1e-6)) {
                panic!("{} {way:?}: gradient of float operand {i}: {d}\n got {g:?}\nwant {w:?}", case.name);
            }
        }
    }
}

/// The case with its floats in 16 bits, against the oracle on the same rounded numbers. Both round after each
/// operation, so they differ where they fall to different sides of a tie, by units of the last place.
fn agrees_in_halves(on: &Subject, case: &Case) {
    if case.large && on.is_slow() {
        return;
    }
    let fused = on.context();
    let unfused = on.context_with(ContextOptions::default().fuse(false));
    let oracle = oracle_with(ContextOptions::default().fuse(false));
    for (way, dtype) in Way::of_halves(case, on.is_slow()) {
        let told = |e| panic!("{} {way:?} {dtype}: {e}", case.name);
        let plain = Way { inner: way.inner, fuse: false, layout: way.layout.plain() };
        let want = outcome(&oracle, case, plain, dtype).unwrap_or_else(told);
        let ctx = if way.fuse { &fused } else { &unfused };
        let got = outcome(ctx, case, way, dtype).unwrap_or_else(told);
        assert_eq!((got.dtype, &got.dims), (want.dtype, &want.dims), "{} {way:?} {dtype}", case.name);
        let tolerance = case.tolerance + 4.0 * dtype.epsilon();
        if let Some(d) = difference(&got.value, &want.value, tolerance) {
            panic!("{} {way:?} {dtype}: {d}\n got {:?}\nwant {:?}", case.name, got.value, want.value);
        }
        for (i, (g, w)) in got.grads.iter().zip(&want.grads).enumerate() {
            // Gradients pass through more roundings, and are compared on the scale of the largest.
            let scale = w.iter().filter(|w| w.is_finite()).fold(1.0f64, |m, w| m.max(w.abs()));
            if let Some(d) = difference(g, w, 4.0 * tolerance * scale) {
                panic!(
                    "{} {way:?} {dtype}: gradient of float operand {i}: {d}\n got {g:?}\nwant {w:?}",
                    case.name
                );
            }
        }
    }
}

/// The trials: each case on each device, each gradient by differences.
pub(crate) fn trials(subjects: &'static [Subject]) -> Vec<Trial> {
    let mut trials = Vec::new();
    let all: &'static [Case] = Vec::leak(cases());
    for case in all {
        for subject in subjects {
            let name = format!("table::{}::{}", case.name.replace(' ', "_"), subject.tag());
            trials.push(crate::trial(name, move || agrees(subject, case)));
            if case.operands.iter().any(Operand::is_float) {
                let name = format!("table::{}::halves::{}", case.name.replace(' ', "_"), subject.tag());
                trials.push(crate::trial(name, move || agrees_in_halves(subject, case)));
            }
        }
        if case.grad != Grad::None {
            let name = format!("table::{}::gradient", case.name.replace(' ', "_"));
            trials.push(crate::trial(name, move || grads::check(case)));
        }
    }
    trials.push(crate::trial("table::names_are_unique".to_owned(), move || {
        let mut names: Vec<_> = all.iter().map(|c| &c.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|w| w[0] == w[1]);
        assert_eq!(twice, None);
    }));
    trials
}
