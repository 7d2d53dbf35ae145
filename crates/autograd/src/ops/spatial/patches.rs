//! Windows as columns of a matrix, and back: what PyTorch calls `unfold` and `fold`.

use wgrad_graph::{MAX_RANK, Op, Steps};

use super::span::{Sides, Sizes};
use crate::ops::{Windows, permute, reshape, shape, slice};
use crate::{Result, Tensor};

/// How the windows of [`Tensor::im2col`] lie: `Patches::new([3, 3])`, or
/// `Patches { padding: 1.into(), ..Patches::new([3, 3]) }`. The kernel's length is the number of spatial
/// axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patches {
    /// Elements of a window.
    pub kernel: Sizes,
    /// Distance between windows; not given: 1.
    pub stride: Sizes,
    /// Zeros before and after each axis; not given: 0.
    pub padding: Sizes,
    /// Distance between the elements of a window; not given: 1.
    pub dilation: Sizes,
}

/// The windows along one axis of the padded input.
struct Axis {
    windows: Windows,
    padding: usize,
    /// Size with padding.
    len: usize,
    count: usize,
}

impl Patches {
    /// Windows of `kernel` elements at each place.
    pub fn new(kernel: impl Into<Sizes>) -> Patches {
        Patches { kernel: kernel.into(), ..Patches::default() }
    }

    #[track_caller]
    fn axes(&self, op: &str, x: Tensor, sides: &[usize]) -> Result<Vec<Axis>> {
        let n = sides.len();
        let (zeros, ones) = (Sides::from_elem(0, n), Sides::from_elem(1, n));
        let kernel = self.kernel.of(op, "kernel", n, &ones)?;
        let stride = self.stride.of(op, "stride", n, &ones)?;
        let padding = self.padding.of(op, "padding", n, &zeros)?;
        let dilation = self.dilation.of(op, "dilation", n, &ones)?;
        let mut all = Vec::new();
        for i in 0..n {
            let windows = Windows { size: kernel[i], step: stride[i], dilation: dilation[i] };
            let len = sides[i] + 2 * padding[i];
            if kernel[i] == 0 || stride[i] == 0 || dilation[i] == 0 {
                let (k, s, d) = (kernel[i], stride[i], dilation[i]);
                refuse!([x] Argument, op, "kernel {k}, stride {s}, dilation {d}: none may be 0");
            }
            if windows.span() > len {
                let span = windows.span();
                refuse!([x] Shape, op, "a window spans {span} elements, padded axis {i} of {sides:?} has {len}");
            }
            all.push(Axis { windows, padding: padding[i], len, count: windows.count(op, len)? });
        }
        Ok(all)
    }
}

/// `[.., O.., K..]` as `[.., K.., O..]` and back.
#[track_caller]
fn turned(x: Tensor, axes: usize) -> Result<Tensor> {
    let rank = x.try_out()?.shape.rank();
    let first = rank - 2 * axes;
    let order: Vec<usize> = (0..first).chain(first + axes..rank).chain(first..first + axes).collect();
    permute(x, &order)
}

#[track_caller]
fn im2col(x: Tensor, how: &Patches) -> Result<Tensor> {
    const OP: &str = "im2col";
    let from = x.try_out()?.shape;
    let n = how.kernel.len();
    if !(1..=3).contains(&n) || !(n + 1..=n + 2).contains(&from.rank()) {
        refuse!([x] Shape, OP, "{from} has to be [N, C, ..] or [C, ..] with the kernel's {n} axes, 1 to 3");
    }
    let first = from.rank() - n;
    let axes = how.axes(OP, x, &from.dims()[first..])?;
    let (mut lo, mut wide) = ([0; MAX_RANK], from);
    for (i, axis) in axes.iter().enumerate() {
        lo[first + i] = axis.padding as u32;
        wide = wide.with(first + i, axis.len);
    }
    let mut y = if wide == from { x } else { Tensor::record(Op::Pad { lo }, &[x], Some(wide), None)? };
    for (i, axis) in axes.iter().enumerate() {
        y = y.try_windows((first + i) as i32, axis.windows)?;
    }
    let rows: usize = from[first - 1] * axes.iter().map(|a| a.windows.size).product::<usize>();
    let columns: usize = axes.iter().map(|a| a.count).product();
    reshape(turned(y, n)?, shape(OP, &[&from.dims()[..first - 1], &[rows, columns]].concat())?)
}

#[track_caller]
fn col2im(x: Tensor, size: &Sizes, how: &Patches) -> Result<Tensor> {
    const OP: &str = "col2im";
    let from = x.try_out()?.shape;
    let n = how.kernel.len();
    if !(1..=3).contains(&n) || !(2..=3).contains(&from.rank()) {
        refuse!([x] Shape, OP, "{from} has to be [N, rows, windows] or [rows, windows], with 1 to 3 kernel axes");
    }
    let size = size.of(OP, "size", n, &[])?;
    let axes = how.axes(OP, x, &size)?;
    let window: usize = axes.iter().map(|a| a.windows.size).product();
    let columns: usize = axes.iter().map(|a| a.count).product();
    let (lead, own) = from.dims().split_at(from.rank() - 2);
    if !own[0].is_multiple_of(window) || own[1] != columns {
        let rule = format!("{columns} windows of {window} elements in {size:?}");
        refuse!([x] Shape, OP, "{from} does not hold channels of {rule}");
    }
    let channels = [lead, &[own[0] / window]].concat();
    let mut dims = channels.clone();
    dims.extend(axes.iter().map(|a| a.windows.size));
    dims.extend(axes.iter().map(|a| a.count));
    let mut y = turned(reshape(x, shape(OP, &dims)?)?, n)?;
    for (i, axis) in axes.iter().enumerate().rev() {
        y = y.try_overlap_add((channels.len() + i) as i32, axis.windows, axis.len)?;
    }
    let (mut steps, mut to) = (Steps::ALL, y.try_out()?.shape);
    for (i, axis) in axes.iter().enumerate() {
        steps.start[channels.len() + i] = axis.padding as i64;
        to = to.with(channels.len() + i, size[i]);
    }
    slice(y, if to.elems() == 0 { Steps::ALL } else { steps }, to)
}

methods! { impl Tensor, Self;
    /// The windows of images as columns: PyTorch's `nn.functional.unfold`. A view but for its reshape.
    ///
    /// Shape: `[N, C, ..] -> [N, C * kernel, windows]`, without batch too. Gradient: [`Tensor::col2im`].
    /// Errors: a window longer than the padded axis, a size of 0.
    im2col try_im2col(self, how: Patches) -> Tensor { im2col(self, &how) }

    /// What undoes [`Tensor::im2col`] for images of the sizes `size`, elements that lie in several windows
    /// added: PyTorch's `nn.functional.fold`. Gradient: [`Tensor::im2col`].
    col2im try_col2im(self, size: impl Into<Sizes>, how: Patches) -> Tensor { col2im(self, &size.into(), &how) }
}
