//! Convolutions, pooling, contractions by formula, attention: what is made of many operations.

use wgrad::{Attention, Conv, ConvTranspose, DType, Pool, Result, Shape, Tensor};

use super::{INEXACT, Program, V};

/// Contractions: the axes of the value, of a second operand, of the result.
const FORMULAS: [(usize, &str, &str, &str); 11] = [
    (1, "i", "j", "ji"),
    (1, "i", "i", ""),
    (2, "ij", "jk", "ki"),
    (2, "ij", "ij", "j"),
    (2, "ij", "ik", "jk"),
    (2, "ij", "j", "i"),
    (3, "bij", "bjk", "bik"),
    (3, "bij", "bij", "b"),
    (3, "bij", "kj", "kib"),
    (3, "bij", "jb", "ij"),
    (4, "abij", "bj", "ai"),
];

/// What the sum in one result of a convolution runs over.
struct Taps {
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
}

impl Program<'_> {
    fn taps(&mut self, sizes: &[usize], padded: bool) -> Taps {
        let mut all =
            Taps { kernel: Vec::new(), stride: Vec::new(), padding: Vec::new(), dilation: Vec::new() };
        for size in sizes {
            let padding = if padded { self.dice.below(3) } else { 0 };
            let dilation = self.dice.pick(&[1, 1, 2]);
            let most = (size + 2 * padding - 1) / dilation + 1;
            all.kernel.push(1 + self.dice.below(most.min(3)));
            all.stride.push(self.dice.pick(&[1, 1, 2, 3]));
            all.padding.push(padding);
            all.dilation.push(dilation);
        }
        all
    }

    /// Convolutions over one or two axes, forwards and transposed.
    pub(super) fn convolved(&mut self) -> Result<()> {
        let x = self.float()?;
        let (rank, n) = (x.t.rank(), x.t.shape().elems());
        if n == 0 || n > 3000 || rank > 4 {
            return Ok(());
        }
        let t = match rank {
            0 | 1 => x.t.try_reshape([1, 1, n])?,
            2 => x.t.try_unsqueeze(0)?,
            _ => x.t,
        };
        let from = t.shape();
        let (channels, axes) = (from[1], &from.dims()[2..]);
        let transposed = self.dice.one_in(4);
        let groups = if channels % 2 == 0 && self.dice.one_in(3) { 2 } else { 1 };
        let taps = self.taps(axes, !transposed);
        let each = 1 + self.dice.below(3);
        let sides = if transposed { [channels, each] } else { [each * groups, channels / groups] };
        let w = self.input(DType::F32, Shape::new(&[&sides, &taps.kernel[..]].concat()), x.exact())?;
        let bias = if self.dice.one_in(2) {
            Some(self.input(DType::F32, [each * groups].into(), x.exact())?.t)
        } else {
            None
        };
        self.leaves.extend([Some(w.t), bias].into_iter().flatten());
        let y = match (axes.len(), transposed) {
            (1, false) => t.try_conv1d(w.t, bias, plain(&taps, groups))?,
            (1, true) => t.try_conv_transpose1d(w.t, bias, turned(&taps, groups))?,
            (_, false) => t.try_conv2d(w.t, bias, plain(&taps, groups))?,
            (_, true) => t.try_conv_transpose2d(w.t, bias, turned(&taps, groups))?,
        };
        self.log.push(format!("conv {from} {} {transposed} -> {}", w.t.shape(), y.shape()));
        let count = (channels / groups * taps.kernel.iter().product::<usize>()) as f64;
        let digits = if x.exact() { x.digits + 2 } else { INEXACT };
        self.push(y, count * 2.0 * x.size + 2.0, digits)
    }

    /// Means and maxima of windows. Elements that meet under a maximum stay apart.
    pub(super) fn pooled(&mut self) -> Result<()> {
        let x = self.float()?;
        let from = x.t.shape();
        let rank = from.rank();
        if rank == 0 || rank > 6 || from.elems() == 0 || from.elems() > 3000 {
            return Ok(());
        }
        let axes: Vec<usize> = (rank - if rank > 1 { 1 + self.dice.below(2) } else { 1 }..rank).collect();
        let kind = self.dice.below(5);
        let largest = kind < 3;
        let x = if largest { self.apart(x, &axes)? } else { x };
        let taps = self.taps(&from.dims()[rank - axes.len()..], false);
        let padding: Vec<usize> = taps.kernel.iter().map(|k| self.dice.below(k / 2 + 1)).collect();
        let how = Pool {
            stride: taps.stride[..].into(),
            padding: padding[..].into(),
            dilation: taps.dilation[..].into(),
            ceil_mode: false,
            count_include_pad: self.dice.one_in(2),
            ..Pool::new(&taps.kernel[..])
        };
        let size: Vec<usize> = from.dims()[rank - axes.len()..].iter().map(|n| n.div_ceil(2)).collect();
        let y = match kind {
            0 => x.t.try_max_pool(how)?,
            1 => x.t.try_max_pool_with_indices(how)?.0,
            2 => x.t.try_adaptive_max_pool(&size[..])?,
            3 => x.t.try_avg_pool(how)?,
            _ => x.t.try_adaptive_avg_pool(&size[..])?,
        };
        self.log.push(format!("pool {kind} {from} -> {}", y.shape()));
        self.push(y, x.size, if largest { x.digits } else { INEXACT })
    }

    /// The value; one that is not exact is moved so that its elements along `axes` keep a random order.
    pub(super) fn apart(&mut self, x: V, axes: &[usize]) -> Result<V> {
        if x.exact() {
            return Ok(x);
        }
        let from = x.t.shape();
        let mut dims = vec![1; from.rank()];
        axes.iter().for_each(|a| dims[*a] = from[*a]);
        let n: usize = dims.iter().product();
        let mut places: Vec<f32> = (0..n).map(|i| i as f32 / 16.0).collect();
        for i in (1..n).rev() {
            places.swap(i, self.dice.below(i + 1));
        }
        let places = self.pass.input(wgrad::HostTensor::new(Shape::new(&dims), &places)?)?;
        let t = x.t.try_tanh()?.try_mul(0.025)?.try_add(places)?;
        Ok(V { t, size: n as f64 / 16.0 + 0.1, digits: INEXACT })
    }

    /// Sums of products by formula.
    pub(super) fn contracted(&mut self) -> Result<()> {
        let x = self.float()?;
        let from = x.t.shape();
        let fit: Vec<_> = FORMULAS.iter().filter(|f| f.0 == from.rank()).collect();
        if fit.is_empty() || from.elems() == 0 || from.elems() > 3000 {
            return Ok(());
        }
        let (_, of, with, to) = *fit[self.dice.below(fit.len())];
        let k = 1 + self.dice.below(4);
        let size = |c: char| of.find(c).map_or(k, |at| from[at]);
        let dims: Vec<usize> = with.chars().map(size).collect();
        let w = self.input(DType::F32, Shape::new(&dims), x.exact())?;
        self.leaves.push(w.t);
        let formula = format!("{of},{with}->{to}");
        let y = Tensor::try_einsum(&formula, &[x.t, w.t])?;
        self.log.push(format!("einsum {formula} {from}"));
        let summed: usize = of.chars().filter(|c| !to.contains(*c)).map(size).product();
        self.push(y, summed as f64 * x.size * 2.0, if x.exact() { x.digits + 2 } else { INEXACT })
    }

    /// Attention of the value's rows to new ones.
    pub(super) fn attended(&mut self) -> Result<()> {
        let x = self.float()?;
        let from = x.t.shape();
        let rank = from.rank();
        if !(2..=4).contains(&rank) || from.elems() == 0 || from.elems() > 3000 || from[rank - 1] > 33 {
            return Ok(());
        }
        let (seen, wide) = (1 + self.dice.below(6), 1 + self.dice.below(5));
        let beside = |a: usize, b: usize| Shape::new(&[&from.dims()[..rank - 2], &[a, b]].concat());
        let k = self.input(DType::F32, beside(seen, from[rank - 1]), false)?;
        let v = self.input(DType::F32, beside(seen, wide), false)?;
        self.leaves.extend([k.t, v.t]);
        let causal = self.dice.one_in(2);
        let mask = if self.dice.one_in(3) {
            let dtype = self.dice.pick(&[DType::Bool, DType::F32]);
            Some(self.input(dtype, [from[rank - 2], seen].into(), true)?.t)
        } else {
            None
        };
        let options = Attention { causal, mask, ..Attention::default() };
        let y = x.t.try_scaled_dot_product_attention(k.t, v.t, options)?;
        self.log.push(format!("attention {from} {seen} causal {causal} mask {}", mask.is_some()));
        self.push(y, 2.0, INEXACT)
    }
}

fn whole<const N: usize>(x: &[usize]) -> [usize; N] {
    x.try_into().expect("one number an axis")
}

fn plain<const N: usize>(taps: &Taps, groups: usize) -> Conv<N> {
    let padding = whole::<N>(&taps.padding).into();
    Conv { stride: whole(&taps.stride), padding, dilation: whole(&taps.dilation), groups }
}

fn turned<const N: usize>(taps: &Taps, groups: usize) -> ConvTranspose<N> {
    let (stride, dilation) = (whole(&taps.stride), whole(&taps.dilation));
    ConvTranspose { stride, dilation, groups, ..ConvTranspose::default() }
}
