//! Mixed precision: which methods compute with 16-bit operands, and which keep f32, while a scope is open.
//! `docs/dtypes.md` has the table, which a test compares with what every method does.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use smallvec::SmallVec;
use wgrad_graph::{DType, Op, Result, Shape};

use crate::custom_gradient::ruled;
use crate::pass::{self, OpenPass, Pass};
use crate::record::{self, Recorded};
use crate::state::{Pool, ValueKey};
use crate::table;
use crate::tensor::Tensor;

/// What a method does in a scope.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Policy {
    /// Floats among the factors are rounded to the scope's dtype, and so is the result; sums are f32.
    Half,
    /// Halves are computed in f32, and the result stays f32.
    Full,
    /// As outside: the widest of the operands.
    Operands,
}

/// The policy of a method; as PyTorch's `autocast` on CUDA has it, with the means, spreads and functions of which
/// PyTorch has none among those in f32.
fn policy(method: &str) -> Policy {
    match method {
        "matmul" | "mm" | "bmm" | "mv" | "addmm" | "linear" | "einsum" => Policy::Half,
        "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            Policy::Half
        }
        "scaled_dot_product_attention" => Policy::Half,
        // Functions that leave the range or the precision of halves.
        "exp" | "exp2" | "expm1" | "log" | "log2" | "log10" | "log1p" | "recip" | "rsqrt" | "pow" | "tan"
        | "asin" | "acos" | "sinh" | "cosh" | "acosh" | "atanh" | "softplus" | "softplus_by"
        | "logaddexp" | "xlogy" => Policy::Full,
        "softmax" | "log_softmax" | "logsumexp" | "logsumexp_keepdim" | "gumbel_softmax" => Policy::Full,
        "sum" | "sum_keepdim" | "sum_all" | "sum_to" | "mean" | "mean_keepdim" | "mean_all" | "prod"
        | "prod_keepdim" | "nansum" | "nanmean" | "var" | "var_keepdim" | "var_mean" | "std"
        | "std_keepdim" | "norm" | "norm_keepdim" | "trace" => Policy::Full,
        "cumsum" | "cumprod" | "logcumsumexp" => Policy::Full,
        "normalize"
        | "standardize"
        | "layer_norm"
        | "rms_norm"
        | "group_norm"
        | "instance_norm"
        | "batch_norm"
        | "batch_norm_train"
        | "local_response_norm" => Policy::Full,
        "cosine_similarity" | "pairwise_distance" | "pairwise_distance_with" | "cdist" => Policy::Full,
        _ => match method.strip_suffix("_with").unwrap_or(method) {
            "cross_entropy" | "nll" | "bce" | "bce_with_logits" | "ctc" | "mse" | "l1" | "smooth_l1"
            | "huber" | "kl_div" | "poisson_nll" | "gaussian_nll" | "hinge" | "hinge_embedding"
            | "soft_margin" | "margin_ranking" | "cosine_embedding" | "triplet_margin" | "multi_margin" => {
                Policy::Full
            }
            _ => Policy::Operands,
        },
    }
}

/// What the method that runs on this thread does with halves.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Mode {
    /// No method runs.
    Free,
    Half(DType),
    Full,
    /// A method of many names, of which it has not said yet which it is.
    Unnamed(DType),
    /// Scopes are not looked at.
    Paused,
}

/// An open scope: the dtype of its products in a pass, or none.
type Entry = (OpenPass, Option<DType>);

thread_local! {
    static SCOPES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    static MODE: Cell<Mode> = const { Cell::new(Mode::Free) };
}

/// Ends the newest scope of its pass when dropped, also on unwind.
struct Scope {
    entry: Entry,
    /// What has no operand of a pass is recorded where the scope is.
    _inside: pass::Scope,
}

impl Scope {
    fn enter(entry: Entry) -> Scope {
        SCOPES.with_borrow_mut(|scopes| scopes.push(entry));
        Scope { entry, _inside: pass::inside(entry.0) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // A thread that ends takes its list along; then there is nothing to leave.
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            if let Some(at) = scopes.iter().rposition(|entry| *entry == self.entry) {
                scopes.remove(at);
            }
        });
    }
}

/// Puts the mode back when dropped.
pub(crate) struct Turn(Option<Mode>);

impl Turn {
    fn to(mode: Mode) -> Turn {
        Turn(Some(MODE.replace(mode)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            MODE.set(before);
        }
    }
}

/// Whose method it is: where scopes are looked up.
pub(crate) trait Owner {
    /// The pass in which the method records, as far as its owner tells.
    fn place(&self) -> Option<OpenPass>;
}

impl Owner for Tensor {
    fn place(&self) -> Option<OpenPass> {
        self.pass().or_else(|| pass::open_passes(self.context).pop())
    }
}

impl Owner for &Pass {
    fn place(&self) -> Option<OpenPass> {
        None
    }
}

/// A method begins: the outermost decides for all that it is made of.
pub(crate) fn method(name: &str, owner: &impl Owner) -> Turn {
    let none = SCOPES.with_borrow(Vec::is_empty);
    if none || MODE.get() != Mode::Free {
        return Turn(None);
    }
    let place = owner.place();
    let scope = SCOPES.with_borrow(|scopes| scopes.iter().rfind(|(pass, _)| Some(*pass) == place).copied());
    let Some((_, Some(dtype))) = scope else { return Turn::to(Mode::Paused) };
    Turn::to(if matches!(name, "unary" | "binary") { Mode::Unnamed(dtype) } else { mode(name, dtype) })
}

fn mode(name: &str, dtype: DType) -> Mode {
    match policy(name) {
        Policy::Half => Mode::Half(dtype),
        Policy::Full => Mode::Full,
        Policy::Operands => Mode::Paused,
    }
}

/// The method of many names that runs is `name`.
pub(crate) fn decide(name: &str) {
    if let Mode::Unnamed(dtype) = MODE.get() {
        MODE.set(mode(name, dtype));
    }
}

/// What follows is recorded as if no scope were open.
pub(crate) fn pause() -> Turn {
    Turn::to(Mode::Paused)
}

/// Whether what is computed of halves stays f32 in the method that runs.
pub(crate) fn stays_wide() -> bool {
    MODE.get() == Mode::Full
}

/// The dtype to which the method that runs rounds these factors and its result; none where one is f64, or none
/// is of floats.
pub(crate) fn half(factors: &[Tensor]) -> Result<Option<DType>> {
    let Mode::Half(half) = MODE.get() else { return Ok(None) };
    let mut any = false;
    for x in factors {
        let dtype = x.try_out()?.dtype;
        if dtype == DType::F64 {
            return Ok(None);
        }
        any |= dtype.is_float();
    }
    Ok(any.then_some(half))
}

/// The movements between a version of an owned value and this one, which is it or a view of it.
type Views = SmallVec<[(Op, Shape); 2]>;

/// The version of an owned value of which `key` is a view, and how it is seen, the outermost view first.
fn weight(pool: &Pool, mut key: ValueKey) -> Option<(ValueKey, Views)> {
    let mut views = Views::new();
    loop {
        let value = pool.values[key];
        let node = &pool.nodes[value.node as usize];
        match node.inputs.as_slice() {
            _ if value.version.is_some() => return Some((key, views)),
            [from] if node.op.is_movement() && node.grad && node.rule.is_none() && !value.stop => {
                views.push((node.op, pool.out(key).out.shape));
                key = *from;
            }
            _ => return None,
        }
    }
}

/// `x` rounded to `half`, as f32, in which a product computes. A parameter is rounded once a pass, and its
/// gradient is not: it is that of the f32 weights, summed in f32. Other values lie in memory as halves, and so do
/// their gradients.
#[track_caller]
pub(crate) fn rounded(x: Tensor, half: DType, pass: OpenPass) -> Result<Tensor> {
    let at = Location::caller();
    let dtype = x.try_out()?.dtype;
    let record = |op, x, to, dtype| record::operation(Some(pass), Recorded { op, x: &[x], to, dtype }, at);
    let cast = |x, to| record(Op::Cast, x, None, Some(to));
    let narrow = |x: Tensor| cast(if dtype == half { x } else { cast(x, half)? }, DType::F32);
    let found = {
        let mut state = table::lock(pass.context)?;
        let key = record::enter(&mut state, pass, &[x])?[0];
        let pool = record::current(&mut state, pass)?;
        let whole = if dtype == DType::F32 { weight(pool, key) } else { None };
        whole.map(|(whole, views)| {
            let shared = (whole, half, pass::is_no_grad(pass));
            (shared, views, pool.rounded.get(&shared).copied(), pool.nodes.len())
        })
    };
    let Some((shared, views, known, start)) = found else { return narrow(x) };
    let mut y = match known {
        Some(key) => Tensor::of_pass(pass, key, at),
        None => {
            let w = Tensor::of_pass(pass, shared.0, at);
            let y = ruled(&[w], |w| narrow(w[0]), true, Box::new(|g| Ok(vec![Some(g.dout(0))])))?;
            let mut state = table::lock(pass.context)?;
            let pool = record::current(&mut state, pass)?;
            // It serves the whole pass, also where it was first needed by what is computed again.
            pool.nodes[start..].iter_mut().for_each(|node| node.shared = true);
            pool.tape.mark(start as u32);
            pool.rounded.insert(shared, y.value_key());
            y
        }
    };
    for (view, shape) in views.into_iter().rev() {
        y = record(view, y, Some(shape), None)?;
    }
    Ok(y)
}

/// The dtype of a scope: a half, or none for f32.
#[track_caller]
fn wanted(dtype: Option<DType>) -> Option<DType> {
    match dtype {
        None | Some(DType::F32) => None,
        Some(half) if half.is_half() => Some(half),
        Some(other) => panic!("autocast: products are computed in f16, bf16 or f32, not {other}"),
    }
}

impl Pass {
    /// Runs `f` with mixed precision: what this thread records in this pass meanwhile computes its products (matrix
    /// products, convolutions, attention) of operands rounded to `dtype` (f16 or bf16), with sums in f32; reductions,
    /// normalisations, losses and functions such as `exp` keep f32; the rest follows its operands. `None` or f32
    /// switches it off inside. The table is in `docs/dtypes.md`.
    ///
    /// # Gradient
    /// Products of gradients are of the same 16-bit values, wherever `backward` is called; gradients of f32 parameters
    /// are f32, and not rounded on the way.
    ///
    /// ```
    /// use wgrad::prelude::*;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::cpu())?;
    /// let layer = Linear::new(&ctx, "fc", 3, 2, Rng::seed(1))?;
    /// ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([1, 3], &[0.1f32, 0.2, 0.3])?)?;
    ///     let y = p.autocast(DType::BF16, || layer.forward(x));
    ///     assert_eq!(y.dtype(), DType::BF16);
    ///     let grads = y.mse(p.zeros([1, 2])).backward()?;
    ///     assert_eq!(grads.get(&layer.weight).expect("it learns").dtype(), DType::F32);
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// For another dtype.
    #[track_caller]
    pub fn autocast<T>(&self, dtype: impl Into<Option<DType>>, f: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter((self.id(), wanted(dtype.into())));
        f()
    }
}

/// `f(x)` in a scope of [`Pass::autocast`] in the pass of `x`, for code that has no pass at hand: a layer, a stage.
///
/// # Errors
/// What `f` returns; `Stale` when `x` has ended or no pass is open.
///
/// # Panics
/// As [`Pass::autocast`].
#[track_caller]
pub fn autocast<T>(
    x: Tensor,
    dtype: impl Into<Option<DType>>,
    f: impl FnOnce(Tensor) -> Result<T>,
) -> Result<T> {
    let pass = record::pass_of(&[x], Location::caller())?;
    let _scope = Scope::enter((pass, wanted(dtype.into())));
    f(x)
}
