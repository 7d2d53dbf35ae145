//! Resizing: each axis by a sparse map of its own.

use std::sync::Arc;

use smallvec::SmallVec;

use super::resample::{Taps, means, resample};
use super::span::{Sides, Sizes};
use crate::{Result, Tensor};

/// How resizing computes a value from its neighbours.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Resize {
    /// The element at or before the place: `o * n / to`, in integers.
    #[default]
    Nearest,
    /// The element whose middle is nearest to that of the result: `(o + 1/2) * n / to`, in integers.
    NearestExact,
    /// Between the two nearest on each axis: linear, bilinear, trilinear.
    Linear,
    /// By cubic convolution of the four nearest on each axis, with `a = -0.75`.
    Cubic,
    /// The mean of what a result covers: [`Tensor::adaptive_avg_pool`].
    Area,
}

/// For each axis the size of the result, and the factor where it counts.
type Resized = SmallVec<[(usize, Option<f64>); 3]>;

/// What [`Tensor::interpolate`] makes: `Interpolate::to([7, 9])`, `Interpolate::by(2.0)`, or
/// `Interpolate { mode: Resize::Linear, ..Interpolate::by([2.0, 1.5]) }`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interpolate {
    /// Sizes of the result's spatial axes. Either these or `scale` are given.
    pub size: Sizes,
    /// Factors by which spatial axes grow, one for all or one each; sizes are rounded down.
    pub scale: SmallVec<[f64; 3]>,
    /// How values are computed.
    pub mode: Resize,
    /// Whether the middles of the outermost elements are kept in place, rather than their outer edges
    /// (linear and cubic).
    pub align_corners: bool,
    /// Whether distances follow from the rounded sizes rather than from `scale` itself.
    pub recompute_scale: bool,
}

impl Interpolate {
    /// To these sizes.
    pub fn to(size: impl Into<Sizes>) -> Interpolate {
        Interpolate { size: size.into(), ..Interpolate::default() }
    }

    /// By these factors.
    pub fn by(scale: impl Into<Scale>) -> Interpolate {
        Interpolate { scale: scale.into().0, ..Interpolate::default() }
    }

    /// For each axis of `from`: the size of the result, and the factor where it counts.
    #[track_caller]
    fn sides(&self, op: &str, x: Tensor, from: &[usize]) -> Result<Resized> {
        let axes = from.len();
        if (self.size.len() == 0) == self.scale.is_empty() {
            refuse!([x] Argument, op, "needs either sizes or factors");
        }
        let sides: Resized = if self.scale.is_empty() {
            self.size.of(op, "size", axes, &[])?.into_iter().map(|size| (size, None)).collect()
        } else {
            let scale = match self.scale[..] {
                [one] => SmallVec::from_elem(one, axes),
                _ => self.scale.clone(),
            };
            if scale.len() != axes || scale.iter().any(|s| !(*s > 0.0 && s.is_finite())) {
                let given = &self.scale[..];
                refuse!([x] Argument, op, "factors {given:?} for {axes} axes; one above 0 for all, or one each");
            }
            let side = |(s, n): (&f64, &usize)| {
                ((*n as f64 * s).floor() as usize, (!self.recompute_scale).then_some(*s))
            };
            scale.iter().zip(from).map(side).collect()
        };
        if from.contains(&0) || sides.iter().any(|side| side.0 == 0) {
            let to: Sides = sides.iter().map(|side| side.0).collect();
            refuse!([x] Shape, op, "from {from:?} to {to:?}: no spatial axis may be empty");
        }
        Ok(sides)
    }
}

/// Factors by which axes grow.
#[derive(Clone, Debug)]
pub struct Scale(SmallVec<[f64; 3]>);

impl From<f64> for Scale {
    fn from(scale: f64) -> Scale {
        Scale(SmallVec::from_slice(&[scale]))
    }
}

impl<const N: usize> From<[f64; N]> for Scale {
    fn from(scale: [f64; N]) -> Scale {
        Scale(SmallVec::from_slice(&scale))
    }
}

/// How an axis of `from` elements becomes one of `to`; `scale` is the factor where it is not `to / from`.
#[derive(Copy, Clone)]
struct Axis {
    from: usize,
    to: usize,
    scale: Option<f64>,
    align_corners: bool,
}

impl Axis {
    /// Where the middle of output `o` lies between the middles of elements: a whole number and the rest.
    /// Exact in integers, unless a factor is given.
    fn place(&self, o: usize) -> (i64, f64) {
        let parts =
            |above: i64, below: i64| (above.div_euclid(below), above.rem_euclid(below) as f64 / below as f64);
        let (n, m, o) = (self.from as i64, self.to as i64, o as i64);
        match self.scale {
            _ if self.align_corners && m == 1 => (0, 0.0),
            _ if self.align_corners => parts(o * (n - 1), m - 1),
            None => parts((2 * o + 1) * n - m, 2 * m),
            Some(scale) => {
                let at = (o as f64 + 0.5) / scale - 0.5;
                (at.floor() as i64, at - at.floor())
            }
        }
    }

    fn nearest(&self, o: usize, exact: bool) -> usize {
        let at = match (self.scale, exact) {
            (None, false) => o * self.from / self.to,
            (None, true) => (2 * o + 1) * self.from / (2 * self.to),
            (Some(scale), false) => (o as f64 / scale).floor() as usize,
            (Some(scale), true) => ((o as f64 + 0.5) / scale).floor() as usize,
        };
        at.min(self.from - 1)
    }

    fn taps(&self, mode: Resize) -> Taps {
        let last = self.from as i64 - 1;
        let near = |at: i64| at.clamp(0, last) as usize;
        match mode {
            Resize::Nearest => Taps::new(self.from, self.to, |o| [(self.nearest(o, false), 1.0)]),
            Resize::NearestExact => Taps::new(self.from, self.to, |o| [(self.nearest(o, true), 1.0)]),
            Resize::Linear => Taps::new(self.from, self.to, |o| {
                let (at, rest) = self.place(o);
                [(near(at), 1.0 - rest), (near(at + 1), rest)]
            }),
            Resize::Cubic => Taps::new(self.from, self.to, |o| {
                let (at, rest) = self.place(o);
                let weights = cubic(rest);
                [-1, 0, 1, 2].map(|i| (near(at + i), weights[(i + 1) as usize]))
            }),
            Resize::Area => means(self.from, self.to),
        }
    }
}

/// Weights of the elements at -1, 0, 1 and 2 for the place `t` between 0 and 1 (Keys 1981, `a = -0.75`).
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

#[track_caller]
fn interpolate(x: Tensor, how: &Interpolate) -> Result<Tensor> {
    const OP: &str = "interpolate";
    let out = x.try_out()?;
    let rank = out.shape.rank();
    if !(3..=5).contains(&rank) {
        refuse!([x] Shape, OP, "{} has to be [batch, channels, ..] with 1 to 3 spatial axes", out.shape);
    }
    let copies = matches!(how.mode, Resize::Nearest | Resize::NearestExact);
    if how.align_corners && !matches!(how.mode, Resize::Linear | Resize::Cubic) {
        refuse!([x] Argument, OP, "align_corners is for linear and cubic, not for {:?}", how.mode);
    }
    if !copies && !out.dtype.is_float() {
        refuse!([x] DType, OP, "{:?} needs floats, got {}", how.mode, out.dtype);
    }
    let from = &out.shape.dims()[2..];
    let sides = how.sides(OP, x, from)?;
    if how.mode == Resize::Area {
        let to: Sides = sides.iter().map(|side| side.0).collect();
        return x.try_adaptive_avg_pool(&to[..]);
    }
    let axis = |i: usize| {
        let (to, scale) = sides[i];
        Axis { from: from[i], to, scale, align_corners: how.align_corners }
    };
    // Axes that shrink come first: what lies between is small.
    let mut order: Vec<usize> = (0..from.len()).collect();
    order.sort_by(|a, b| (sides[*a].0 * from[*b]).cmp(&(sides[*b].0 * from[*a])));
    let mut y = x;
    for i in order {
        y = resample(OP, y, 2 + i, &Arc::new(axis(i).taps(how.mode)))?;
    }
    Ok(y)
}

methods! { impl Tensor, Self;
    /// Resized on its spatial axes, all but batch and channels: `x.interpolate(Interpolate::by(2.0))`.
    ///
    /// Shape: `[N, C, ..]` with one to three spatial axes. Gradient: the transposed map, which sums in a
    /// fixed order. Numerics: places are exact in integers unless a factor is given; an element of weight
    /// 0 is not read, so that it may be infinite or NaN. Errors: an empty axis, sizes and factors both or
    /// neither, `align_corners` with a mode that has no such thing.
    ///
    /// ```
    /// # use wgrad::prelude::*;
    /// # use wgrad::{Interpolate, Resize};
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::named("cpu")?)?;
    /// ctx.pass(|p| {
    ///     let x = p.arange(0..3).cast(DType::F32).reshape([1, 1, 3]);
    ///     assert_eq!(x.interpolate(Interpolate::by(2.0)).to_vec::<f32>()?, [0., 0., 1., 1., 2., 2.]);
    ///     let how = Interpolate { mode: Resize::Linear, align_corners: true, ..Interpolate::to([5]) };
    ///     assert_eq!(x.interpolate(how).to_vec::<f32>()?, [0., 0.5, 1., 1.5, 2.]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    interpolate try_interpolate(self, how: Interpolate) -> Tensor { interpolate(self, &how) }
}
