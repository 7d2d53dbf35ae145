//! Sampling at places that tensors name.

use smallvec::SmallVec;
use wgrad_graph::{Axes, DType, Op, Reduce, Shape};

use super::span::Sides;
use crate::ops::{cast, expand, iota, reshape, shape};
use crate::{Result, Tensor};

/// How [`Tensor::grid_sample`] computes a value from the elements around a place.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Sample {
    /// Between the two nearest elements on each axis.
    #[default]
    Linear,
    /// The nearest element; half way the even one. The grid has no gradient.
    Nearest,
    /// By cubic convolution of the four nearest on each of two axes, with `a = -0.75`.
    Cubic,
}

/// What lies beyond the edges.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Beyond {
    /// Zeros.
    #[default]
    Zeros,
    /// The element at the edge.
    Border,
    /// The elements in reverse, and so on.
    Reflection,
}

/// Options of [`Tensor::grid_sample`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct GridSample {
    /// How a value is computed from its neighbours.
    pub mode: Sample,
    /// What lies beyond the edges.
    pub beyond: Beyond,
    /// Whether -1 and 1 are the middles of the outermost elements, rather than their outer edges.
    pub align_corners: bool,
}

/// One element of an axis for each place: its index, whether it is inside, and its weight.
struct Tap {
    at: Tensor,
    inside: Tensor,
    weight: Option<Tensor>,
}

impl GridSample {
    /// The place in elements for coordinates from -1 to 1.
    #[track_caller]
    fn place(&self, at: Tensor, len: usize) -> Result<Tensor> {
        let half = at.try_add(1.0)?.try_mul(0.5)?;
        if self.align_corners {
            half.try_mul(len as f64 - 1.0)
        } else {
            half.try_mul(len as f64)?.try_sub(0.5)
        }
    }

    /// The place that is read for one beyond the edges.
    #[track_caller]
    fn bounded(&self, at: Tensor, len: usize) -> Result<Tensor> {
        let last = len as f64 - 1.0;
        match self.beyond {
            Beyond::Zeros => Ok(at),
            Beyond::Border => at.try_clamp(0.0, last),
            Beyond::Reflection => {
                let (lo, span) = if self.align_corners { (0.0, last) } else { (-0.5, len as f64) };
                if span == 0.0 {
                    return at.try_mul(0.0);
                }
                let away = at.try_sub(lo)?.try_abs()?;
                let turns = away.try_div(span)?.try_floor()?;
                let rest = away.try_sub(turns.try_mul(span)?)?;
                let even = turns.try_rem(2.0)?.try_eq(0.0)?;
                let there = even.try_select(rest.try_add(lo)?, rest.try_neg()?.try_add(span + lo)?)?;
                there.try_clamp(0.0, last)
            }
        }
    }

    /// The elements of an axis of `len` that are read for the coordinates `at`, on axis 1 (`[N, P]`
    /// becomes `[N, taps, P]`).
    #[track_caller]
    fn taps(&self, at: Tensor, len: usize) -> Result<Tap> {
        let at = self.place(at, len)?.try_unsqueeze(1)?;
        let count = match self.mode {
            Sample::Nearest => 1,
            Sample::Linear => 2,
            Sample::Cubic => 4,
        };
        let dtype = at.try_out()?.dtype;
        let step = iota(at, Shape::from([1, count, 1]), 1, dtype)?;
        let (mut element, weight) = match self.mode {
            Sample::Nearest => (self.bounded(at, len)?.try_round()?, None),
            Sample::Linear => {
                let at = self.bounded(at, len)?;
                let first = at.try_floor()?;
                let rest = at.try_sub(first)?;
                let weight = step.try_eq(0.0)?.try_select(rest.try_neg()?.try_add(1.0)?, rest)?;
                (first.try_add(step)?, Some(weight))
            }
            Sample::Cubic => {
                let first = at.try_floor()?;
                let rest = at.try_sub(first)?;
                let away = step.try_sub(1.0)?;
                let weight = cubic(rest.try_sub(away)?.try_abs()?)?;
                (self.bounded(first.try_add(away)?, len)?, Some(weight))
            }
        };
        if self.mode == Sample::Cubic && self.beyond == Beyond::Reflection {
            // The reflection of a whole number is one, but for rounding.
            element = element.try_round()?;
        }
        let inside = element.try_ge(0.0)?.try_and(element.try_le(len as f64 - 1.0)?)?;
        let at = cast(inside.try_select(element, 0.0)?, DType::I32)?;
        Ok(Tap { at, inside, weight })
    }
}

/// The weight of an element `x` (0 to 2) away from a place (Keys 1981, `a = -0.75`).
#[track_caller]
fn cubic(x: Tensor) -> Result<Tensor> {
    const A: f64 = -0.75;
    let near = x.try_mul(A + 2.0)?.try_sub(A + 3.0)?.try_mul(x)?.try_mul(x)?.try_add(1.0)?;
    let far = x.try_mul(A)?.try_sub(5.0 * A)?.try_mul(x)?.try_add(8.0 * A)?.try_mul(x)?.try_sub(4.0 * A)?;
    x.try_le(1.0)?.try_select(near, far)
}

#[track_caller]
fn grid_sample(x: Tensor, grid: Tensor, how: GridSample) -> Result<Tensor> {
    const OP: &str = "grid_sample";
    let (out, at) = (x.try_out()?, grid.try_out()?);
    let (from, places) = (out.shape, at.shape);
    let axes = from.rank().saturating_sub(2);
    let fits = (1..=3).contains(&axes)
        && places.rank() == from.rank()
        && places[0] == from[0]
        && places[axes + 1] == axes;
    if !fits {
        let rule = "the grid has to be [N, .., axes] for [N, C, ..] with 1 to 3 spatial axes";
        refuse!([x, grid] Shape, OP, "{places} does not sample {from}: {rule}");
    }
    if !out.dtype.is_float() || at.dtype != out.dtype {
        refuse!([x, grid] DType, OP, "needs floats of one dtype, got {} and {}", out.dtype, at.dtype);
    }
    if how.mode == Sample::Cubic && axes != 2 {
        refuse!([x, grid] Argument, OP, "cubic is for two spatial axes, {from} has {axes}");
    }
    let sides = Sides::from_slice(&from.dims()[2..]);
    if sides.contains(&0) {
        refuse!([x, grid] Shape, OP, "{from}: no spatial axis may be empty");
    }
    let (batch, channels) = (from[0], from[1]);
    let points: usize = places.dims()[1..=axes].iter().product();
    let coordinates = reshape(grid, Shape::from([batch, points, axes]))?;
    // The grid names the last axis first.
    let mut taps: SmallVec<[Tap; 3]> = SmallVec::new();
    for (i, len) in sides.iter().enumerate() {
        taps.push(how.taps(coordinates.try_select_index(2, (axes - 1 - i) as i32)?, *len)?);
    }
    let counts: Sides = match how.mode {
        Sample::Nearest => SmallVec::from_elem(1, axes),
        Sample::Linear => SmallVec::from_elem(2, axes),
        Sample::Cubic => SmallVec::from_elem(4, axes),
    };
    let all: usize = counts.iter().product();
    // Taps of all axes together: `[N, taps.., P]`, then `[N, all, P]`; the number in the plane, -1 where
    // one axis is outside.
    let mut number: Option<Tensor> = None;
    let (mut inside, mut weight): (Option<Tensor>, Option<Tensor>) = (None, None);
    for (i, tap) in taps.iter().enumerate() {
        let mut dims = vec![1; axes + 2];
        (dims[0], dims[1 + i], dims[axes + 1]) = (batch, counts[i], points);
        let own = shape(OP, &dims)?;
        let step: usize = sides[i + 1..].iter().product();
        let part = reshape(tap.at.try_mul(step as i32)?, own)?;
        number = Some(match number {
            Some(number) => number.try_add(part)?,
            None => part,
        });
        let part = reshape(tap.inside, own)?;
        inside = Some(match inside {
            Some(inside) => inside.try_and(part)?,
            None => part,
        });
        if let Some(part) = tap.weight {
            let part = reshape(part, own)?;
            weight = Some(match weight {
                Some(weight) => weight.try_mul(part)?,
                None => part,
            });
        }
    }
    let number = number.expect("there is a spatial axis");
    let number = inside.expect("there is a spatial axis").try_select(number, -1)?;
    let number = reshape(number, shape(OP, &[batch, 1, all, points])?)?;
    let flat = reshape(x, shape(OP, &[batch, channels, sides.iter().product()])?)?;
    let idx = reshape(number.try_maximum(0)?, shape(OP, &[batch, 1, all * points])?)?;
    let read = flat.try_gather(2, expand(idx, shape(OP, &[batch, channels, all * points])?)?)?;
    let read = reshape(read, shape(OP, &[batch, channels, all, points])?)?;
    let read = match weight {
        Some(weight) => read.try_mul(reshape(weight, shape(OP, &[batch, 1, all, points])?)?)?,
        None => read,
    };
    let parts = number.try_ge(0)?.try_select(read, 0.0)?;
    let sum = Op::Reduce { kind: Reduce::Sum, axes: Axes::NONE.with(2) };
    let y = Tensor::record(sum, &[parts], None, None)?;
    reshape(y, shape(OP, &[&[batch, channels], &places.dims()[1..=axes]].concat())?)
}

/// Where the middles of `len` elements lie between -1 and 1.
#[track_caller]
fn middles(beside: Tensor, len: usize, align_corners: bool, dtype: DType) -> Result<Tensor> {
    let at = iota(beside, Shape::from([len]), 0, dtype)?;
    match (align_corners, len) {
        (true, 1) => at.try_mul(0.0),
        (true, _) => at.try_mul(2.0 / (len - 1) as f64)?.try_sub(1.0),
        (false, _) => at.try_mul(2.0)?.try_add(1.0)?.try_div(len as f64)?.try_sub(1.0),
    }
}

#[track_caller]
fn affine_grid(theta: Tensor, size: &[usize], align_corners: bool) -> Result<Tensor> {
    const OP: &str = "affine_grid";
    let out = theta.try_out()?;
    let axes = size.len();
    if !(1..=3).contains(&axes) || out.shape.rank() != 3 || out.shape.dims()[1..] != [axes, axes + 1] {
        let rule = "has to be [N, axes, axes + 1]";
        refuse!([theta] Shape, OP, "{} {rule} for the {axes} sizes {size:?}, 1 to 3 of them", out.shape);
    }
    if !out.dtype.is_float() {
        refuse!([theta] DType, OP, "needs floats, got {}", out.dtype);
    }
    let batch = out.shape[0];
    let mut dims = vec![1; axes + 2];
    (dims[0], dims[axes + 1]) = (batch, axes);
    let own = shape(OP, &dims)?;
    let column = |j: usize| reshape(theta.try_select_index(2, j as i32)?, own);
    let mut y = column(axes)?;
    for (i, len) in size.iter().enumerate() {
        let mut dims = vec![1; axes + 2];
        dims[1 + i] = *len;
        let at = reshape(middles(theta, *len, align_corners, out.dtype)?, shape(OP, &dims)?)?;
        y = y.try_add(at.try_mul(column(axes - 1 - i)?)?)?;
    }
    Ok(y)
}

methods! { impl Tensor, Self;
    /// Values of `x` at the places of `grid`, whose coordinates run from -1 to 1 over each axis; the last
    /// axis of `x` comes first in a place.
    ///
    /// Shape: `x [N, C, H, W]`, `grid [N, h, w, 2]`, result `[N, C, h, w]`; likewise with one or three
    /// spatial axes. Gradient: to `x` added where it was read, in the order of neighbours and places; to
    /// `grid` by the slope between neighbours, 0 beyond the edges unless those are reflected, 0 with
    /// [`Sample::Nearest`]. Numerics: memory grows with `x`, the grid and the result alone; gradients of `x`
    /// take the result's once for each neighbour. Errors: other shapes; cubic with other than two axes.
    ///
    /// ```
    /// # use wgrad::prelude::*;
    /// # use wgrad::GridSample;
    /// # fn main() -> wgrad::Result<()> {
    /// let ctx = Context::new(&Device::named("cpu")?)?;
    /// ctx.pass(|p| {
    ///     let x = p.input(HostTensor::new([1, 1, 2, 2], &[0.0f32, 1.0, 2.0, 3.0])?)?;
    ///     let middle = p.zeros([1, 1, 1, 2]);
    ///     assert_eq!(x.grid_sample(middle, GridSample::default()).to_vec::<f32>()?, [1.5]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    grid_sample try_grid_sample(self, grid: Tensor, how: GridSample) -> Tensor { grid_sample(self, grid, how) }

    /// The grid of [`Tensor::grid_sample`] for affine maps: place `(x, y, 1)` of the result is
    /// `theta (x, y, 1)` of the input.
    ///
    /// Shape: `theta [N, 2, 3]` and the sizes `[H, W]` give `[N, H, W, 2]`; `[N, 3, 4]` and `[D, H, W]`
    /// give `[N, D, H, W, 3]`. `align_corners` as in [`GridSample`].
    affine_grid try_affine_grid(self, size: &[usize], align_corners: bool) -> Tensor {
        affine_grid(self, size, align_corners)
    }
}
