//! Convolutions. Three products of matrices over views serve every rank, stride, dilation and group,
//! and are each other's gradients: the output from operand and weight, the operand's part from output
//! and weight, the weight's part from operand and output. All are linear in both operands, so no order
//! of derivative needs more. Windows are index functions: nothing as large as them is stored.

use wgrad_graph::Shape;

use super::channels_last::{self, narrow, wide};
use super::windows::{Place, scattered, windows_over};
use super::{cast, expand, permute, reshape, shape};
use crate::{Result, Tensor, custom_gradient};

/// Zeros around the operand of a convolution.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Padding<const N: usize> {
    /// None.
    #[default]
    Valid,
    /// As many as keep the sizes, the odd one behind; for stride 1.
    Same,
    /// So many on both sides of each axis.
    Both([usize; N]),
    /// So many before and behind each axis.
    Each([(usize, usize); N]),
}

impl<const N: usize> From<[usize; N]> for Padding<N> {
    fn from(both: [usize; N]) -> Padding<N> {
        Padding::Both(both)
    }
}

/// How a convolution over `N` axes goes: `Conv { stride: [2; 2], padding: [1; 2].into(), ..Default::default() }`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Conv<const N: usize> {
    /// Distance between windows.
    pub stride: [usize; N],
    /// Zeros around the operand.
    pub padding: Padding<N>,
    /// Distance between the elements of a window.
    pub dilation: [usize; N],
    /// Parts of the channels that do not see each other.
    pub groups: usize,
}

impl<const N: usize> Default for Conv<N> {
    fn default() -> Conv<N> {
        Conv { stride: [1; N], padding: Padding::Valid, dilation: [1; N], groups: 1 }
    }
}

/// How a transposed convolution over `N` axes goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConvTranspose<const N: usize> {
    /// Distance between the places of neighbours.
    pub stride: [usize; N],
    /// Elements that are cut off on both sides of each axis.
    pub padding: [usize; N],
    /// Elements that are added behind each axis.
    pub output_padding: [usize; N],
    /// Distance between the elements of a window.
    pub dilation: [usize; N],
    /// Parts of the channels that do not see each other.
    pub groups: usize,
}

impl<const N: usize> Default for ConvTranspose<N> {
    fn default() -> ConvTranspose<N> {
        ConvTranspose { stride: [1; N], padding: [0; N], output_padding: [0; N], dilation: [1; N], groups: 1 }
    }
}

/// One axis of a convolution: element `i` of the output sees elements `i * stride + k * dilation - lo`
/// of the operand.
#[derive(Copy, Clone, Debug)]
struct Axis {
    /// Sizes of operand, kernel and output.
    len: usize,
    kernel: usize,
    count: usize,
    stride: usize,
    dilation: usize,
    lo: usize,
}

impl Axis {
    /// Elements of the padded operand that windows see, up to the last of them.
    fn extent(&self) -> usize {
        (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
    }

    /// Elements of the operand of one output in turn that share windows over the output, where they can.
    fn phases(&self) -> usize {
        if self.dilation == 1 { self.stride } else { 1 }
    }
}

/// A convolution: operand `[batch, groups * c, len..]`, weight `[groups * m, c, kernel..]`, output
/// `[batch, groups * m, count..]`.
#[derive(Clone, Debug)]
struct Spec {
    axes: Vec<Axis>,
    groups: usize,
}

pub(super) const OP: &str = "conv";

/// Output sizes up to which the whole batch is one product.
const SMALL: usize = 32;

/// `[n, c, count.., kernel..]` as `[groups, c / groups * kernels, n * counts]`.
#[track_caller]
fn columns(x: Tensor, groups: usize) -> Result<Tensor> {
    let from = x.try_out()?.shape;
    let axes = (from.rank() - 2) / 2;
    let (counts, kernels) = (2..2 + axes, 2 + axes..2 + 2 * axes);
    let order: Vec<usize> =
        std::iter::once(1).chain(kernels.clone()).chain([0]).chain(counts.clone()).collect();
    let size = |range: std::ops::Range<usize>| from.dims()[range].iter().product::<usize>();
    let to = [groups, from[1] / groups * size(kernels), from[0] * size(counts)];
    reshape(permute(x, &order)?, shape(OP, &to)?)
}

/// The product of windows over `x` `[n, groups * c, ..]`, with zeros around, with `w` `[groups, m, c, kernel..]`:
/// `[n, groups * m, count..]`.
#[track_caller]
fn product(
    x: Tensor,
    widths: &[(isize, isize)],
    w: Tensor,
    step: &[usize],
    dilation: &[usize],
) -> Result<Tensor> {
    let weight = w.try_out()?.shape;
    let axes = weight.rank() - 3;
    let (groups, m) = (weight[0], weight[1]);
    if channels_last::suits([x, w], Some(m), groups, &weight.dims()[3..], step, widths)? {
        return channels_last::product(x, widths, w, step, dilation);
    }
    let (x, w) = (wide(x.try_pad(widths, 0.0)?)?, wide(w)?);
    let depth: usize = weight.dims()[2..].iter().product();
    let seen = windows_over(x, 2, &weight.dims()[3..], step, dilation)?;
    let from = seen.try_out()?.shape;
    let (n, counts) = (from[0], &from.dims()[2..2 + axes]);
    let count: usize = counts.iter().product();
    let to = shape(OP, &[&[n, groups * m], counts].concat())?;
    let w = reshape(w, shape(OP, &[groups, m, depth])?)?;
    if n > 1 && count < SMALL {
        // Few columns each: the whole batch beside each other.
        let y = w.try_matmul(columns(seen, groups)?)?;
        let y = reshape(y, shape(OP, &[groups, m, n, count])?)?;
        return reshape(permute(y, &[2, 0, 1, 3])?, to);
    }
    let order: Vec<usize> = [0, 1].into_iter().chain(2 + axes..2 + 2 * axes).chain(2..2 + axes).collect();
    let seen = reshape(permute(seen, &order)?, shape(OP, &[n, groups, depth, count])?)?;
    reshape(w.try_matmul(seen)?, to)
}

impl Spec {
    fn each(&self, f: impl Fn(&Axis) -> usize) -> Vec<usize> {
        self.axes.iter().map(f).collect()
    }

    /// Zeros before and behind an operand, as far as windows see.
    fn widths(&self) -> Vec<(isize, isize)> {
        let mut widths = vec![(0, 0); 2];
        for a in &self.axes {
            widths.push((a.lo as isize, a.extent() as isize - a.lo as isize - a.len as isize));
        }
        widths
    }

    /// `w` as `[groups, m, c, kernel..]`.
    #[track_caller]
    fn grouped(&self, w: Tensor) -> Result<Tensor> {
        let from = w.try_out()?.shape;
        let dims = [&[self.groups, from[0] / self.groups], &from.dims()[1..]].concat();
        reshape(w, shape(OP, &dims)?)
    }

    #[track_caller]
    fn forward(&self, x: Tensor, w: Tensor) -> Result<Tensor> {
        let (x, w) = (narrow(x)?, self.grouped(narrow(w)?)?);
        product(x, &self.widths(), w, &self.each(|a| a.stride), &self.each(|a| a.dilation))
    }

    /// The weight's part of the output `g` of operand `x`.
    #[track_caller]
    fn weight(&self, x: Tensor, g: Tensor) -> Result<Tensor> {
        let (x, g) = (narrow(x)?, narrow(g)?);
        let (from, out) = (x.try_out()?.shape, g.try_out()?.shape);
        let (kernel, widths) = (self.each(|a| a.kernel), self.widths());
        let (stride, dilation) = (self.each(|a| a.stride), self.each(|a| a.dilation));
        let (groups, m) = (self.groups, out[1] / self.groups);
        if channels_last::suits([x, g], None, groups, &kernel, &stride, &widths)? {
            return channels_last::weight(x, &widths, g, &kernel, &stride, &dilation);
        }
        let (x, g) = (wide(x.try_pad(&widths, 0.0)?)?, wide(g)?);
        let seen = windows_over(x, 2, &kernel, &stride, &dilation)?;
        let count: usize = out.dims()[2..].iter().product();
        let g = permute(reshape(g, shape(OP, &[out[0], groups, m, count])?)?, &[1, 2, 0, 3])?;
        let g = reshape(g, shape(OP, &[groups, m, out[0] * count])?)?;
        let dw = g.try_matmul(columns(seen, groups)?.try_t()?)?;
        reshape(dw, shape(OP, &[&[out[1], from[1] / groups], &kernel[..]].concat())?)
    }

    /// Whether the phases of the operand's part are products of their own: where one product of all would multiply
    /// half as much again, by zeros in kernels that the stride does not divide and by places beyond the operand's
    /// ends, and each phase has rows enough.
    fn parted(&self, c: usize) -> bool {
        let all: usize = self.axes.iter().map(Axis::phases).product();
        let whole = self.axes.iter().all(|a| a.phases() == a.stride && a.len % a.stride == 0);
        let (mut joint, mut exact) = (1, 1);
        for a in &self.axes {
            let s = a.stride;
            joint *= a.kernel.next_multiple_of(s) * ((a.lo + a.len - 1) / s - a.lo / s + 1) * s;
            exact *= a.kernel * a.len;
        }
        whole && (2..=4).contains(&all) && c >= 16 && 2 * joint >= 3 * exact
    }

    /// [`Spec::operand`], under a grouped weight, by a product for each phase, of the elements of the kernel that it
    /// sees alone; element `j` of each lies beside those of the others.
    #[track_caller]
    fn operand_by_phases(&self, g: Tensor, w: Tensor) -> Result<Tensor> {
        let (n, c, rank) = (g.try_out()?.shape[0], w.try_out()?.shape[2], self.axes.len());
        let w = permute(w, &[&[0, 2, 1], &(3..3 + rank).collect::<Vec<_>>()[..]].concat())?;
        let counts = self.each(|a| a.len / a.stride);
        let strides = self.each(|a| a.stride);
        let mut parts: Vec<Option<Tensor>> = Vec::new();
        for at in 0..strides.iter().product() {
            let (mut rest, mut own, mut widths, mut seen) = (at, w, vec![(0, 0); 2], true);
            for (i, a) in self.axes.iter().enumerate() {
                let (s, inner) = (a.stride, strides[i + 1..].iter().product::<usize>());
                let place = rest / inner + a.lo;
                rest %= inner;
                let (first, phase) = (place / s, place % s);
                seen &= phase < a.kernel;
                if !seen {
                    break;
                }
                own = own.try_slice_step(3 + i as i32, phase..a.kernel, s as i32)?;
                let reach = ((a.kernel - phase).div_ceil(s) - 1) * a.dilation;
                let before = reach as isize - first as isize;
                widths.push((before, (counts[i] + reach) as isize - before - a.count as isize));
            }
            if seen {
                let own = own.try_flip(&(3..3 + rank as i32).collect::<Vec<_>>()[..])?;
                let y = product(g, &widths, own, &vec![1; rank], &self.each(|a| a.dilation))?;
                parts.push(Some(y));
            } else {
                parts.push(None);
            }
        }
        // A phase that no element of the kernel meets: stride beyond kernel.
        let zeros = parts.iter().flatten().next().expect("the kernel has an element").try_zeros_like()?;
        let parts: Vec<Tensor> = parts.into_iter().map(|part| part.unwrap_or(zeros)).collect();
        let y = Tensor::try_stack(&parts, 2)?;
        let dims: Vec<usize> =
            std::iter::once(n * self.groups * c).chain(strides).chain(counts.clone()).collect();
        let order: Vec<usize> =
            std::iter::once(0).chain((0..rank).flat_map(|i| [1 + rank + i, 1 + i])).collect();
        let y = permute(reshape(y, shape(OP, &dims)?)?, &order)?;
        reshape(y, shape(OP, &[&[n, self.groups * c], &self.each(|a| a.len)[..]].concat())?)
    }

    /// The operand's part of the output `g` under weight `w`. With stride `s`, elements `q * s + p` of the
    /// operand see elements `q - r` of the output by elements `r * s + p` of the kernel: the phases `p` are
    /// rows of one product over windows of the output, and no product with a zero between is computed.
    #[track_caller]
    fn operand(&self, g: Tensor, w: Tensor) -> Result<Tensor> {
        let (g, mut w) = (narrow(g)?, self.grouped(narrow(w)?)?);
        let (n, c) = (g.try_out()?.shape[0], w.try_out()?.shape[2]);
        // Of stored values laid out for it, one product is the faster however many zeros it multiplies.
        let strides = self.each(|a| a.stride);
        let together = channels_last::suits([g, w], Some(c), self.groups, &strides, &[], &[])?;
        if self.parted(c) && !together {
            return self.operand_by_phases(g, w);
        }
        let places: Vec<Place> = (self.axes.iter())
            .map(|a| match a.phases() < a.stride {
                // Stride and dilation: zeros between the elements of the output instead.
                true => Place { lo: 0, step: a.stride, len: (a.count - 1) * a.stride + 1 },
                false => Place { lo: 0, step: 1, len: a.count },
            })
            .collect();
        let g = scattered(OP, g, 2, &places)?;
        w = permute(w, &[&[0, 2, 1], &(3..3 + self.axes.len()).collect::<Vec<_>>()[..]].concat())?;
        let (mut widths, mut rows, mut parts) = (vec![(0, 0); 2], c, Vec::new());
        for (i, (a, place)) in self.axes.iter().zip(&places).enumerate() {
            let (s, axis) = (a.phases(), 3 + i);
            let taps = a.kernel.div_ceil(s);
            let (first, last) = (a.lo / s, (a.lo + a.len - 1) / s);
            let reach = (taps - 1) * a.dilation;
            let before = reach as isize - first as isize;
            let extent = (last - first + 1 + reach) as isize;
            widths.push((before, extent - before - place.len as isize));
            if s > 1 {
                let mut ends = vec![(0, 0); 3 + self.axes.len()];
                ends[axis].1 = (taps * s - a.kernel) as isize;
                w = w.try_pad(&ends, 0.0)?.try_unflatten(axis as i32, [taps, s])?;
                w = w.try_movedim(axis as i32 + 1, 2)?;
                rows *= s;
                let mut dims = w.try_out()?.shape.dims().to_vec();
                dims.remove(2);
                dims[1] = rows;
                w = reshape(w, shape(OP, &dims)?)?;
            }
            parts.push((s, last - first + 1, a.lo - first * s));
        }
        let w = w.try_flip(&(3..3 + self.axes.len() as i32).collect::<Vec<_>>()[..])?;
        let ones = vec![1; self.axes.len()];
        let y = product(g, &widths, w, &ones, &self.each(|a| a.dilation))?;
        // [n * groups * c, phases.., places..]: phases to the places of their axes.
        let dims: Vec<usize> = std::iter::once(n * self.groups * c)
            .chain(parts.iter().map(|p| p.0))
            .chain(parts.iter().map(|p| p.1))
            .collect();
        let order: Vec<usize> =
            std::iter::once(0).chain((0..parts.len()).flat_map(|i| [1 + parts.len() + i, 1 + i])).collect();
        let y = permute(reshape(y, shape(OP, &dims)?)?, &order)?;
        let whole: Vec<usize> =
            [n, self.groups * c].into_iter().chain(parts.iter().map(|p| p.0 * p.1)).collect();
        let mut y = reshape(y, shape(OP, &whole)?)?;
        for (i, (part, a)) in parts.iter().zip(&self.axes).enumerate() {
            y = y.try_narrow(2 + i as i32, part.2, a.len)?;
        }
        Ok(y)
    }
}

/// The output of `x` under `w`.
#[track_caller]
fn output(x: Tensor, w: Tensor, spec: &Spec) -> Result<Tensor> {
    let rule = spec.clone();
    custom_gradient(
        &[x, w],
        |x| spec.forward(x[0], x[1]),
        move |g| {
            let (x, w, g) = (g.input(0), g.input(1), g.dout(0));
            Ok(vec![Some(operand(g, w, &rule)?), Some(weight(x, g, &rule)?)])
        },
    )
}

/// What of `x` made the output `g` under `w`.
#[track_caller]
fn operand(g: Tensor, w: Tensor, spec: &Spec) -> Result<Tensor> {
    let rule = spec.clone();
    custom_gradient(
        &[g, w],
        |x| spec.operand(x[0], x[1]),
        move |x| {
            let (g, w, v) = (x.input(0), x.input(1), x.dout(0));
            Ok(vec![Some(output(v, w, &rule)?), Some(weight(v, g, &rule)?)])
        },
    )
}

/// What of the weight made the output `g` of `x`.
#[track_caller]
fn weight(x: Tensor, g: Tensor, spec: &Spec) -> Result<Tensor> {
    let rule = spec.clone();
    custom_gradient(
        &[x, g],
        |x| spec.weight(x[0], x[1]),
        move |x| {
            let (x, g, v) = (x.input(0), x.input(1), x.dout(0));
            Ok(vec![Some(operand(g, v, &rule)?), Some(output(x, v, &rule)?)])
        },
    )
}

/// Operand and weight in one float dtype, the operand with a batch; whether that was added.
#[track_caller]
fn operands<const N: usize>(op: &str, x: Tensor, w: Tensor) -> Result<([Tensor; 2], bool)> {
    let (from, weight) = (x.try_out()?, w.try_out()?);
    let rank = from.shape.rank();
    if weight.shape.rank() != N + 2 || !(N + 1..=N + 2).contains(&rank) {
        let (a, b) = (from.shape, weight.shape);
        refuse!([x, w] Shape, op, "operand {a} and weight {b}: needs ranks {} and {}", N + 2, N + 2);
    }
    let dtype = from.dtype.promote(weight.dtype);
    if !dtype.is_float() {
        refuse!([x, w] DType, op, "is not defined on {dtype}; cast to a float");
    }
    let alone = rank == N + 1;
    let x = if alone { x.try_unsqueeze(0)? } else { x };
    Ok(([cast(x, dtype)?, cast(w, dtype)?], alone))
}

/// Refuses sizes of 0 among what has to be above it.
#[track_caller]
fn above_0(op: &str, x: &[Tensor], all: &[(&str, &[usize])]) -> Result<()> {
    for (what, sizes) in all {
        if sizes.contains(&0) {
            return Err(super::mistake(
                wgrad_graph::ErrorKind::Argument,
                op,
                format!("{what} {sizes:?} has to be above 0"),
                x,
            ));
        }
    }
    Ok(())
}

/// `y + bias` along the channels, and without the batch that was added.
#[track_caller]
fn finish(op: &str, y: Tensor, bias: Option<Tensor>, alone: bool) -> Result<Tensor> {
    let out = y.try_out()?;
    let y = match bias {
        None => y,
        Some(bias) => {
            let b = bias.try_out()?.shape;
            if b != Shape::from([out.shape[1]]) {
                refuse!([y, bias] Shape, op, "a bias of {b} for {} channels", out.shape[1]);
            }
            let mut dims = vec![1; out.shape.rank()];
            dims[1] = b[0];
            y.try_add(expand(reshape(cast(bias, out.dtype)?, Shape::new(&dims))?, out.shape)?)?
        }
    };
    if alone { y.try_squeeze(0) } else { Ok(y) }
}

#[track_caller]
fn conv<const N: usize>(
    op: &str,
    x: Tensor,
    w: Tensor,
    bias: Option<Tensor>,
    how: Conv<N>,
) -> Result<Tensor> {
    let ([x, w], alone) = operands::<N>(op, x, w)?;
    let (from, weight) = (x.try_out()?.shape, w.try_out()?.shape);
    let groups = how.groups;
    above_0(
        op,
        &[x, w],
        &[
            ("stride", &how.stride),
            ("dilation", &how.dilation),
            ("groups", &[groups]),
            ("kernel", &weight.dims()[2..]),
        ],
    )?;
    if from[1] != weight[1] * groups || weight[0] % groups != 0 {
        refuse!(
            [x, w] Shape,
            op,
            "operand {from} and weight {weight} in {groups} groups: needs [batch, groups * c, ..] and \
             [groups * m, c, ..]"
        );
    }
    let mut axes = Vec::with_capacity(N);
    for i in 0..N {
        let (len, kernel, stride, dilation) = (from[2 + i], weight[2 + i], how.stride[i], how.dilation[i]);
        let span = (kernel - 1).saturating_mul(dilation).saturating_add(1);
        let (lo, hi) = match how.padding {
            Padding::Valid => (0, 0),
            Padding::Same if stride > 1 => {
                refuse!([x, w] Argument, op, "padding Same needs stride 1, not {stride}");
            }
            Padding::Same => ((span - 1) / 2, span - 1 - (span - 1) / 2),
            Padding::Both(both) => (both[i], both[i]),
            Padding::Each(each) => each[i],
        };
        let whole = len.saturating_add(lo).saturating_add(hi);
        if len == 0 || span > whole || whole > u32::MAX as usize {
            refuse!([x, w] Shape, op, "a kernel of {span} elements on axis {} of {whole} with padding", 2 + i);
        }
        axes.push(Axis { len, kernel, count: (whole - span) / stride + 1, stride, dilation, lo });
    }
    finish(op, output(x, w, &Spec { axes, groups })?, bias, alone)
}

#[track_caller]
fn conv_transpose<const N: usize>(
    op: &str,
    x: Tensor,
    w: Tensor,
    bias: Option<Tensor>,
    how: ConvTranspose<N>,
) -> Result<Tensor> {
    let ([x, w], alone) = operands::<N>(op, x, w)?;
    let (from, weight) = (x.try_out()?.shape, w.try_out()?.shape);
    let groups = how.groups;
    above_0(
        op,
        &[x, w],
        &[
            ("stride", &how.stride),
            ("dilation", &how.dilation),
            ("groups", &[groups]),
            ("kernel", &weight.dims()[2..]),
            ("size", &from.dims()[2..]),
        ],
    )?;
    if from[1] != weight[0] || weight[0] % groups != 0 {
        refuse!(
            [x, w] Shape,
            op,
            "operand {from} and weight {weight} in {groups} groups: needs [batch, groups * c, ..] and \
             [groups * c, m, ..]"
        );
    }
    let mut axes = Vec::with_capacity(N);
    for i in 0..N {
        let (count, kernel, stride, dilation) = (from[2 + i], weight[2 + i], how.stride[i], how.dilation[i]);
        let whole = (count - 1)
            .saturating_mul(stride)
            .saturating_add((kernel - 1).saturating_mul(dilation))
            .saturating_add(how.output_padding[i].saturating_add(1));
        let cut = how.padding[i].saturating_mul(2);
        if whole <= cut || whole > u32::MAX as usize {
            refuse!([x, w] Shape, op, "padding cuts {cut} elements of {whole} on axis {}", 2 + i);
        }
        axes.push(Axis { len: whole - cut, kernel, count, stride, dilation, lo: how.padding[i] });
    }
    finish(op, operand(x, w, &Spec { axes, groups })?, bias, alone)
}

methods! { impl Tensor, Self;
    /// Convolution over one axis: `y[n, m, i] = bias[m] + sum over c, k of w[m, c, k] * x[n, c, i * stride +
    /// k * dilation - padding]`, zeros outside. The kernel is not turned around.
    ///
    /// Shape: `[N, C, L]` (or `[C, L]`), weight `[M, C / groups, K]`, bias `[M]`; result `[N, M, count]`.
    /// Gradient: convolutions again, of any order.
    /// Numerics: a product of matrices; padding counts as 0, so it gives NaN with an infinite weight.
    /// Errors: channels that do not fit, a kernel longer than the padded axis.
    conv1d try_conv1d(self, w: Tensor, bias: Option<Tensor>, how: Conv<1>) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv1d(w, bias, how));
        in_f32!(self, try_conv1d(w, bias, how));
        conv("conv1d", self, w, bias, how)
    }

    /// Convolution over two axes, as [`Tensor::conv1d`].
    ///
    /// Shape: `[N, C, H, W]` (or `[C, H, W]`), weight `[M, C / groups, KH, KW]`, bias `[M]`.
    conv2d try_conv2d(self, w: Tensor, bias: Option<Tensor>, how: Conv<2>) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv2d(w, bias, how));
        in_f32!(self, try_conv2d(w, bias, how));
        conv("conv2d", self, w, bias, how)
    }

    /// Convolution over three axes, as [`Tensor::conv1d`].
    ///
    /// Shape: `[N, C, D, H, W]` (or `[C, D, H, W]`), weight `[M, C / groups, KD, KH, KW]`, bias `[M]`.
    conv3d try_conv3d(self, w: Tensor, bias: Option<Tensor>, how: Conv<3>) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv3d(w, bias, how));
        in_f32!(self, try_conv3d(w, bias, how));
        conv("conv3d", self, w, bias, how)
    }

    /// Transposed convolution over one axis: `y[n, m, i * stride + k * dilation - padding] += w[c, m, k] *
    /// x[n, c, i]` over zeros and bias; the gradient of [`Tensor::conv1d`] by its operand.
    ///
    /// Shape: `[N, C, L]` (or `[C, L]`), weight `[C, M / groups, K]`, bias `[M]`; result `[N, M, (L - 1) *
    /// stride - 2 * padding + (K - 1) * dilation + output_padding + 1]`.
    /// Gradient: convolutions again, of any order.
    conv_transpose1d try_conv_transpose1d(
        self, w: Tensor, bias: Option<Tensor>, how: ConvTranspose<1>
    ) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv_transpose1d(w, bias, how));
        in_f32!(self, try_conv_transpose1d(w, bias, how));
        conv_transpose("conv_transpose1d", self, w, bias, how)
    }

    /// Transposed convolution over two axes, as [`Tensor::conv_transpose1d`].
    ///
    /// Shape: `[N, C, H, W]` (or `[C, H, W]`), weight `[C, M / groups, KH, KW]`, bias `[M]`.
    conv_transpose2d try_conv_transpose2d(
        self, w: Tensor, bias: Option<Tensor>, how: ConvTranspose<2>
    ) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv_transpose2d(w, bias, how));
        in_f32!(self, try_conv_transpose2d(w, bias, how));
        conv_transpose("conv_transpose2d", self, w, bias, how)
    }

    /// Transposed convolution over three axes, as [`Tensor::conv_transpose1d`].
    ///
    /// Shape: `[N, C, D, H, W]` (or `[C, D, H, W]`), weight `[C, M / groups, KD, KH, KW]`, bias `[M]`.
    conv_transpose3d try_conv_transpose3d(
        self, w: Tensor, bias: Option<Tensor>, how: ConvTranspose<3>
    ) -> Tensor {
        in_halves!([self, w], |x, w| x.try_conv_transpose3d(w, bias, how));
        in_f32!(self, try_conv_transpose3d(w, bias, how));
        conv_transpose("conv_transpose3d", self, w, bias, how)
    }
}
