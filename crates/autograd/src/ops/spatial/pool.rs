//! Pooling: the largest, the mean or the norm of windows over the last axes.

use wgrad_graph::{Axes, DType, HostTensor, Op, Reduce, Shape};

use super::span::{
    Sides, Sizes, Span, Spans, all_covering, all_windows, coords, covered, covering, element, indices,
    is_padded, lead, numbers, padded, plane, window, with_spatial,
};
use crate::ops::{expand, host, reshape, shape};
use crate::{Result, Tensor, custom_gradient};

/// Windows of at most so many elements are taken element by element in one pointwise kernel.
const UNROLLED: usize = 16;
/// As [`UNROLLED`], where the place of the largest is sought: a kernel holds 64 expressions.
const SOUGHT: usize = 9;
/// As [`SOUGHT`], where each element is first told from padding.
const SOUGHT_PADDED: usize = 4;

/// How pooling windows lie on the last axes, one size a spatial axis: `Pool::new([2, 2])`, or
/// `Pool { stride: 2.into(), padding: 1.into(), ..Pool::new([3, 3]) }`. The kernel's length is the number
/// of spatial axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Elements of a window.
    pub kernel: Sizes,
    /// Distance between windows; not given: the kernel.
    pub stride: Sizes,
    /// Elements before and after each axis, which never win a maximum and count as 0 in a mean; at most
    /// half of a window. Not given: 0.
    pub padding: Sizes,
    /// Distance between the elements of a window; not given: 1.
    pub dilation: Sizes,
    /// Whether a last window that begins inside the padded input but ends beyond it counts.
    pub ceil_mode: bool,
    /// Whether a mean divides by the window's elements in the padding too.
    pub count_include_pad: bool,
    /// What a mean divides by, in place of the number of elements.
    pub divisor: Option<usize>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool {
            kernel: Sizes::default(),
            stride: Sizes::default(),
            padding: Sizes::default(),
            dilation: Sizes::default(),
            ceil_mode: false,
            count_include_pad: true,
            divisor: None,
        }
    }
}

impl Pool {
    /// Windows of `kernel` elements side by side.
    pub fn new(kernel: impl Into<Sizes>) -> Pool {
        Pool { kernel: kernel.into(), ..Pool::default() }
    }

    /// The windows on the last axes of `x`.
    #[track_caller]
    fn spans(&self, op: &str, x: Tensor) -> Result<Spans> {
        let from = x.try_out()?.shape;
        let axes = self.kernel.len();
        if !(1..=3).contains(&axes) || axes > from.rank() {
            refuse!([x] Argument, op, "a kernel of {axes} axes on {from}; it has to have 1 to 3");
        }
        let (zeros, ones) = (Sides::from_elem(0, axes), Sides::from_elem(1, axes));
        let kernel = self.kernel.of(op, "kernel", axes, &ones)?;
        let stride = self.stride.of(op, "stride", axes, &kernel)?;
        let padding = self.padding.of(op, "padding", axes, &zeros)?;
        let dilation = self.dilation.of(op, "dilation", axes, &ones)?;
        let mut spans = Spans::new();
        for i in 0..axes {
            let len = from[from.rank() - axes + i];
            let (k, s, p, d) = (kernel[i], stride[i], padding[i], dilation[i]);
            if k == 0 || s == 0 || d == 0 {
                refuse!([x] Argument, op, "kernel {k}, stride {s}, dilation {d}: none may be 0");
            }
            let reach = (k - 1).saturating_mul(d).saturating_add(1);
            if p > reach / 2 {
                refuse!([x] Argument, op, "padding {p} is more than half of a window, which spans {reach}");
            }
            if reach > len + 2 * p {
                let wide = len + 2 * p;
                refuse!([x] Shape, op, "a window spans {reach} elements, padded axis {i} of {from} has {wide}");
            }
            let room = len + 2 * p - reach;
            let mut count = if self.ceil_mode { room.div_ceil(s) } else { room / s } + 1;
            // The last window has to begin before the padding behind the input.
            if self.ceil_mode && (count - 1) * s >= len + p {
                count -= 1;
            }
            let span = Span { len, kernel: k, stride: s, padding: p, dilation: d, count };
            if let Some(o) = (0..count).find(|o| span.inside(*o, 0, len as i64) == 0) {
                refuse!([x] Shape, op, "window {o} of axis {i} of {from} holds padding alone");
            }
            spans.push(span);
        }
        Ok(spans)
    }
}

impl From<&[usize]> for Pool {
    fn from(kernel: &[usize]) -> Pool {
        Pool::new(kernel)
    }
}

impl<const N: usize> From<[usize; N]> for Pool {
    fn from(kernel: [usize; N]) -> Pool {
        Pool::new(kernel)
    }
}

/// The shape of a result: the leading axes of `from`, then a number of windows an axis.
#[track_caller]
fn result(op: &str, from: Shape, spans: &[Span]) -> Result<Shape> {
    let counts: Sides = spans.iter().map(|s| s.count).collect();
    with_spatial(op, from, spans.len(), &counts)
}

fn kernels(spans: &[Span]) -> Sides {
    spans.iter().map(|s| s.kernel).collect()
}

/// The last `count` axes of a tensor of rank `rank`.
fn last(rank: usize, count: usize) -> Axes {
    (rank - count..rank).collect()
}

/// The sum of `x` over its last `count` axes, which are gone.
#[track_caller]
pub(crate) fn sum_last(x: Tensor, count: usize) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let sum = Op::Reduce { kind: Reduce::Sum, axes: last(from.rank(), count) };
    reshape(Tensor::record(sum, &[x], None, None)?, Shape::new(&from.dims()[..from.rank() - count]))
}

/// For each element the sum of `value` over the windows that may hold it. `value` is called with
/// what leads from windows to elements: window by window where those are few, then they are added in
/// one pointwise kernel, else for all on new last axes.
#[track_caller]
fn sum_covering(
    op: &str,
    spans: &[Span],
    value: impl Fn(&dyn Fn(Tensor) -> Result<Tensor>, Option<&[usize]>) -> Result<Tensor>,
) -> Result<Tensor> {
    let covers: Sides = spans.iter().map(Span::cover).collect();
    if covers.iter().product::<usize>() > SUMMED {
        let all = value(&|g| all_covering(op, g, spans), None)?;
        return sum_last(all, spans.len());
    }
    let mut total: Option<Tensor> = None;
    for back in coords(&covers) {
        // The farthest window first, as a reduction takes them.
        let j: Sides = covers.iter().zip(&back).map(|(cover, back)| cover - 1 - back).collect();
        let one = value(&|g| covering(op, g, spans, &j), Some(&back))?;
        total = Some(match total {
            Some(sum) => sum.try_add(one)?,
            None => one,
        });
    }
    Ok(total.expect("an element may lie in a window"))
}

/// Windows whose values for an element are added in one pointwise kernel; more are a reduction.
const SUMMED: usize = 4;

/// The largest element of each window.
#[track_caller]
fn largest(op: &str, x: Tensor, spans: &[Span]) -> Result<Tensor> {
    let wide = padded(op, x, spans, Some(lowest(x)?))?;
    if window(spans) <= UNROLLED {
        let mut best: Option<Tensor> = None;
        for at in coords(&kernels(spans)) {
            let one = element(wide, spans, &at)?;
            best = Some(match best {
                Some(best) => best.try_maximum(one)?,
                None => one,
            });
        }
        return Ok(best.expect("a window has elements"));
    }
    let all = all_windows(wide, spans)?;
    let rank = all.try_out()?.shape.rank();
    let axes: Vec<i32> = (0..spans.len()).map(|i| (rank - spans.len() + i) as i32).collect();
    all.try_max(&axes[..])
}

/// What never wins a maximum.
#[track_caller]
fn lowest(x: Tensor) -> Result<f64> {
    Ok(match x.try_out()?.dtype {
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        DType::U32 | DType::U8 => 0.0,
        DType::Bool => refuse!([x] DType, "max_pool", "bool has no largest element; cast first"),
        _ => f64::NEG_INFINITY,
    })
}

/// For each window the number (i32, row-major in the plane) of its first largest element; `y` is that
/// element. NaN counts as largest.
#[track_caller]
fn place_of_largest(op: &str, x: Tensor, y: Tensor, spans: &[Span]) -> Result<Tensor> {
    let wide = padded(op, x, spans, Some(lowest(x)?))?;
    let dims: Sides = spans.iter().map(|s| s.len).collect();
    let counts: Sides = spans.iter().map(|s| s.count).collect();
    let strides: Sides = (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect();
    let padded = is_padded(spans);
    let float = x.try_out()?.dtype.is_float();
    let to = y.try_out()?.shape;
    // The number of each window's element 0, which may lie outside.
    let (mut first, mut offset) = (None::<Tensor>, 0i64);
    for ((o, s), step) in indices(x, &counts)?.into_iter().zip(spans).zip(&strides) {
        let part = o.try_mul((s.stride * step) as i32)?;
        first = Some(match first {
            Some(first) => first.try_add(part)?,
            None => part,
        });
        offset -= (s.padding * step) as i64;
    }
    let first = first.expect("there is a spatial axis").try_add(offset as i32)?;
    let away = |at: &[usize]| -> i32 {
        at.iter().zip(spans).zip(&strides).map(|((k, s), step)| k * s.dilation * step).sum::<usize>() as i32
    };
    let kernel = kernels(spans);
    let all: Vec<Sides> = coords(&kernel).collect();
    let from_first = if all.len() <= if padded { SOUGHT_PADDED } else { SOUGHT } {
        let mut found = expand(x.number(f64::from(away(&all[all.len() - 1])), DType::I32)?, to)?;
        for at in all[..all.len() - 1].iter().rev() {
            let one = element(wide, spans, at)?;
            let mut hit = one.try_eq(y)?;
            if float {
                hit = hit.try_or(one.try_is_nan()?)?;
            }
            found = hit.try_select(x.number(f64::from(away(at)), DType::I32)?, found)?;
        }
        found
    } else {
        let wide = all_windows(lead(op, wide, spans.len(), 1)?, spans)?;
        let from = wide.try_out()?.shape;
        let flat = with_spatial(op, from, spans.len(), &[all.len()])?;
        let k = reshape(reshape(wide, flat)?.try_argmax(-1)?, to)?;
        let mut total = None::<Tensor>;
        for (i, (s, step)) in spans.iter().zip(&strides).enumerate() {
            let inner: usize = kernel[i + 1..].iter().product();
            let mut own = if inner == 1 { k } else { k.try_div(inner as i32)? };
            if i > 0 {
                own = own.try_rem(kernel[i] as i32)?;
            }
            let part = own.try_mul((s.dilation * step) as i32)?;
            total = Some(match total {
                Some(total) => total.try_add(part)?,
                None => part,
            });
        }
        total.expect("there is a spatial axis")
    };
    let found = expand(first, to)?.try_add(from_first)?;
    if !padded {
        return Ok(found);
    }
    // Where nothing is above the padding, the first element inside is meant.
    let mut inside = None::<Tensor>;
    for ((o, s), step) in indices(x, &counts)?.into_iter().zip(spans).zip(&strides) {
        let at = o.try_mul(s.stride as i32)?.try_sub(s.padding as i32)?;
        let at = if s.dilation == 1 {
            at.try_maximum(0)?
        } else {
            let d = s.dilation as i32;
            let short = at.try_neg()?.try_maximum(0)?.try_add(d - 1)?.try_div(d)?;
            at.try_add(short.try_mul(d)?)?
        };
        let part = at.try_mul(*step as i32)?;
        inside = Some(match inside {
            Some(inside) => inside.try_add(part)?,
            None => part,
        });
    }
    let nothing = y.try_eq(expand(y.number(lowest(x)?, y.try_out()?.dtype)?, to)?)?;
    nothing.try_select(expand(inside.expect("there is a spatial axis"), to)?, found)
}

/// The element of the plane that `idx` names for each window.
#[track_caller]
fn taken(op: &str, x: Tensor, idx: Tensor, spans: &[Span]) -> Result<Tensor> {
    let (from, to) = (x.try_out()?.shape, idx.try_out()?.shape);
    let take = |x: &[Tensor]| {
        let axes = spans.len();
        let outer: usize = from.dims()[..from.rank() - axes].iter().product();
        let windows = to.elems().checked_div(outer).unwrap_or(0);
        let flat = reshape(x[0], shape(op, &[outer, plane(spans)])?)?;
        let at = reshape(idx, shape(op, &[outer, windows])?)?;
        reshape(flat.try_gather(1, at)?, to)
    };
    let (name, own) = (op.to_owned(), Spans::from_slice(spans));
    custom_gradient(&[x], take, move |g| Ok(vec![Some(placed(&name, g.dout(0), idx, &own, from)?)]))
}

/// What undoes [`taken`]: for each element the sum of `g` over the windows whose `idx` names it.
#[track_caller]
fn placed(op: &str, g: Tensor, idx: Tensor, spans: &[Span], to: Shape) -> Result<Tensor> {
    let place = |g: &[Tensor]| {
        let dims: Sides = spans.iter().map(|s| s.len).collect();
        let own = numbers(g[0], &dims)?;
        let all = reshape(own, shape(op, &[&dims[..], &vec![1; dims.len()]].concat())?)?;
        let sum = sum_covering(op, spans, |cover, one| {
            let own = if one.is_some() { own } else { all };
            cover(idx)?.try_eq(own)?.try_select(cover(g[0])?, 0.0)
        })?;
        reshape(sum, to)
    };
    let (name, own) = (op.to_owned(), Spans::from_slice(spans));
    custom_gradient(&[g], place, move |g| Ok(vec![Some(taken(&name, g.dout(0), idx, &own)?)]))
}

/// The largest element of each window, and on demand its place.
#[track_caller]
fn max_pool(op: &'static str, x: Tensor, how: &Pool) -> Result<(Tensor, Spans)> {
    let spans = how.spans(op, x)?;
    let from = x.try_out()?.shape;
    let (to, own) = (result(op, from, &spans)?, spans.clone());
    let y = |x: &[Tensor]| reshape(largest(op, lead(op, x[0], own.len(), 2)?, &own)?, to);
    if !x.try_out()?.dtype.is_float() {
        return Ok((y(&[x])?, spans));
    }
    let kept = spans.clone();
    let y = custom_gradient(&[x], y, move |g| {
        let idx = place_of_largest(op, g.input(0), g.out(0), &kept)?;
        Ok(vec![Some(placed(op, g.dout(0), idx, &kept, from)?)])
    })?;
    Ok((y, spans))
}

/// The sum of each window, padding as 0.
#[track_caller]
fn window_sum(op: &'static str, x: Tensor, spans: &[Span]) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let to = result(op, from, spans)?;
    let sum = |x: &[Tensor]| {
        let wide = padded(op, lead(op, x[0], spans.len(), 2)?, spans, None)?;
        if window(spans) > UNROLLED {
            return reshape(sum_last(all_windows(wide, spans)?, spans.len())?, to);
        }
        let mut total: Option<Tensor> = None;
        for at in coords(&kernels(spans)) {
            let one = element(wide, spans, &at)?;
            total = Some(match total {
                Some(sum) => sum.try_add(one)?,
                None => one,
            });
        }
        reshape(total.expect("a window has elements"), to)
    };
    let own = Spans::from_slice(spans);
    custom_gradient(&[x], sum, move |g| Ok(vec![Some(window_spread(op, g.dout(0), &own, from)?)]))
}

/// What undoes [`window_sum`]: for each element the sum of `g` over the windows that hold it.
#[track_caller]
fn window_spread(op: &'static str, g: Tensor, spans: &[Span], to: Shape) -> Result<Tensor> {
    let spread = |g: &[Tensor]| {
        let on = covered(op, g[0], spans)?;
        let sum = sum_covering(op, spans, |cover, one| {
            let part = cover(g[0])?;
            let Some(mut on) = on else { return Ok(part) };
            for k in one.into_iter().flatten().rev() {
                // An axis on which every window holds the element has size 1 there.
                let size = on.try_out()?.shape.dims().last().copied().unwrap_or(1);
                on = on.try_select_index(-1, if size == 1 { 0 } else { *k as i32 })?;
            }
            on.try_select(part, 0.0)
        })?;
        reshape(sum, to)
    };
    let own = Spans::from_slice(spans);
    custom_gradient(&[g], spread, move |g| Ok(vec![Some(window_sum(op, g.dout(0), &own)?)]))
}

/// `x` divided by the number of elements that count in each window.
#[track_caller]
fn averaged(x: Tensor, spans: &[Span], how: &Pool) -> Result<Tensor> {
    if let Some(divisor) = how.divisor {
        return x.try_div(divisor as f64);
    }
    // Of each axis: which elements count, and how many a window has of them at least.
    let mut divisor: Option<Tensor> = None;
    let mut number = 1.0;
    for (axis, s) in spans.iter().enumerate() {
        let (lo, hi) = match how.count_include_pad {
            true => (-(s.padding as i64), (s.len + s.padding) as i64),
            false => (0, s.len as i64),
        };
        let counts: Vec<usize> = (0..s.count).map(|o| s.inside(o, lo, hi)).collect();
        if counts.iter().all(|c| *c == counts[0]) {
            number *= counts.first().copied().unwrap_or(1) as f64;
            continue;
        }
        let mut dims = vec![1; spans.len()];
        dims[axis] = s.count;
        let counts: Vec<f64> = counts.iter().map(|c| *c as f64).collect();
        let own = host(x, HostTensor::new(Shape::new(&dims), &counts)?.cast(x.try_out()?.dtype))?;
        divisor = Some(match divisor {
            Some(others) => others.try_mul(own)?,
            None => own,
        });
    }
    let y = if number == 1.0 { x } else { x.try_div(number)? };
    match divisor {
        Some(divisor) => y.try_div(divisor),
        None => Ok(y),
    }
}

#[track_caller]
fn avg_pool(op: &'static str, x: Tensor, how: &Pool) -> Result<Tensor> {
    let out = x.try_out()?;
    if how.divisor == Some(0) {
        refuse!([x] Argument, op, "divisor 0");
    }
    if !out.dtype.is_float() {
        refuse!([x] DType, op, "needs floats, got {}", out.dtype);
    }
    let spans = how.spans(op, x)?;
    averaged(window_sum(op, x, &spans)?, &spans, how)
}

methods! { impl Tensor, Self;
    /// The largest element of each window on the last axes: `x.max_pool([2, 2])`, or with [`Pool`].
    ///
    /// Shape: `[.., n] -> [.., (n + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1]` on each
    /// spatial axis, rounded up with `ceil_mode`. Gradient: to the first largest element of a window, so
    /// that gradients of overlapping windows add. Numerics: NaN in a window gives NaN; padding never wins.
    /// Errors: a window longer than the padded axis, padding of more than half a window, a size of 0.
    ///
    /// ```
    /// # use wgrad::prelude::*;
    /// # use wgrad::Pool;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::named("cpu")?)?;
    /// ctx.pass(|p| {
    ///     let x = p.arange(0..16).cast(DType::F32).reshape([1, 1, 4, 4]);
    ///     assert_eq!(x.max_pool([2, 2]).to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    ///     let how = Pool { stride: 1.into(), dilation: 3.into(), ..Pool::new([2, 2]) };
    ///     assert_eq!(x.max_pool(how).to_vec::<f32>()?, [15.0]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    max_pool try_max_pool(self, how: impl Into<Pool>) -> Tensor { Ok(max_pool("max_pool", self, &how.into())?.0) }

    /// As [`Tensor::max_pool`], and for each window the place (i32) of its first largest element:
    /// its row-major number in the spatial axes of `x`. The places have no gradient.
    max_pool_with_indices try_max_pool_with_indices(self, how: impl Into<Pool>) -> (Tensor, Tensor) {
        let op = "max_pool_with_indices";
        let (y, spans) = max_pool(op, self, &how.into())?;
        let idx = place_of_largest(op, self, y, &spans)?;
        Ok((y, idx))
    }

    /// The mean of each window on the last axes; what [`Tensor::max_pool`] says of shapes and errors holds.
    /// By default padding counts as zeros (`count_include_pad`); elements beyond the padding, which
    /// `ceil_mode` reaches, never count. Gradient: `g / count` to each element.
    avg_pool try_avg_pool(self, how: impl Into<Pool>) -> Tensor { avg_pool("avg_pool", self, &how.into()) }

    /// `(sum of x^p)^(1/p)` over each window on the last axes, `p` above 0.
    ///
    /// As in PyTorch, a window that `ceil_mode` cuts is scaled to the size of a whole one. Gradient: 0
    /// where the sum is 0. Errors: as [`Tensor::avg_pool`]; padding.
    lp_pool try_lp_pool(self, p: f64, how: impl Into<Pool>) -> Tensor {
        let how = Pool { count_include_pad: true, divisor: None, ..how.into() };
        if !(p > 0.0 && p.is_finite()) {
            refuse!([self] Argument, "lp_pool", "p = {p} has to be above 0 and finite");
        }
        let spans = how.spans("lp_pool", self)?;
        if spans.iter().any(|s| s.padding > 0) {
            refuse!([self] Argument, "lp_pool", "takes no padding; pad first");
        }
        let power = if p == 1.0 { self } else if p == 2.0 { self.try_square()? } else { self.try_pow(p)? };
        let mut sum = window_sum("lp_pool", power, &spans)?;
        if how.ceil_mode {
            sum = averaged(sum, &spans, &how)?.try_mul(window(&spans) as f64)?;
        }
        // Negative sums, which odd powers of negative numbers give, count as 0.
        let above = sum.try_gt(0.0)?;
        let safe = above.try_select(sum, 1.0)?;
        let root = if p == 2.0 { safe.try_sqrt()? } else { safe.try_pow(1.0 / p)? };
        above.try_select(root, sum.try_relu()?)
    }
}
