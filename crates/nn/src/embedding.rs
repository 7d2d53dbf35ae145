//! Tables of rows, and rotary positions.

use std::sync::Arc;

use wgrad_autograd::{Context, Kept, Pairing, Param, Start, Tensor};
use wgrad_graph::{Element, HostTensor, Result};

use crate::{Init, Mode, Module, ParamSet, Rng};

/// Row `idx` of a table that is learned.
///
/// Shape: integers of any shape `I` give `I ++ [width]`; the table is `[rows, width]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, width]`, called `NAME.weight`.
    pub weight: Param,
    /// The row that stays as it is: no gradient flows to it.
    pub padding: Option<i32>,
}

impl Embedding {
    /// A table of standard normal rows, from the stream of `rng` at `NAME.weight`.
    ///
    /// # Errors
    /// What the device meets when the table is written.
    pub fn new(ctx: &Context, name: &str, rows: usize, width: usize, rng: Rng) -> Result<Embedding> {
        Embedding::with(ctx, name, rows, width, rng, Init::Normal(1.0), None)
    }

    /// A table drawn from `init`; the row `padding`, if any, is zeros and does not learn.
    ///
    /// # Errors
    /// `Argument` when there is no such row; what the device meets when the table is written.
    pub fn with(
        ctx: &Context,
        name: &str,
        rows: usize,
        width: usize,
        rng: Rng,
        init: Init,
        padding: Option<i32>,
    ) -> Result<Embedding> {
        let named = format!("{name}.weight");
        let mut table = init.draw(rng.at(&named), [rows, width], rows, width);
        if let Some(row) = padding {
            let Some(start) = usize::try_from(row).ok().filter(|row| *row < rows) else {
                wgrad_graph::bail!(Argument, "embedding", "padding row {row} of a table of {rows}");
            };
            let mut elems = table.to_vec::<f32>();
            elems[start * width..(start + 1) * width].fill(0.0);
            table = HostTensor::new([rows, width], &elems)?;
        }
        Ok(Embedding { weight: Param::new(ctx, &named, table)?, padding })
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, idx: Tensor) -> Tensor {
        match self.padding {
            Some(row) => self.weight.t().embedding_padded(idx, row),
            None => self.weight.t().embedding(idx),
        }
    }

    fn params(&self) -> ParamSet {
        [self.weight.clone()].into_iter().collect()
    }

    fn set_mode(&mut self, _: Mode) {}
}

/// Rotary positions: tables of cosines and sines of `position * base^(-2 i / width)`, and the turn by them.
///
/// Numerics: the tables are computed in f64 and rounded once, so far positions are as exact as near ones.
#[derive(Clone, Debug)]
pub struct Rope {
    cos: Arc<Kept>,
    sin: Arc<Kept>,
    /// Which features are turned together.
    pub pairing: Pairing,
}

impl Rope {
    /// Tables for positions below `positions` and heads of `width` features, of which each two are turned;
    /// `base` is mostly 10000.
    ///
    /// # Errors
    /// `Argument` when `width` is odd; what the device meets when the tables are written.
    pub fn new(ctx: &Context, positions: usize, width: usize, base: f64, pairing: Pairing) -> Result<Rope> {
        if !width.is_multiple_of(2) {
            wgrad_graph::bail!(Argument, "rope", "{width} features are no pairs");
        }
        let table = |f: fn(f64) -> f64| {
            let at = |i: usize| {
                let (position, pair) = (i / (width / 2), i % (width / 2));
                f32::from_f64(f(position as f64 * base.powf(-2.0 * pair as f64 / width as f64)))
            };
            let elems: Vec<f32> = (0..positions * width / 2).map(at).collect();
            Kept::named(ctx, "rope", HostTensor::new([positions, width / 2], &elems)?).map(Arc::new)
        };
        Ok(Rope { cos: table(f64::cos)?, sin: table(f64::sin)?, pairing })
    }

    /// `x` turned by its positions, of which the first is `start`: a number, or a `Scalar` that is read at
    /// submission.
    ///
    /// Shape: `[.., T, D]`, `D` at least the tables' width.
    ///
    /// # Panics
    /// When the tables do not reach so far or do not fit.
    #[track_caller]
    pub fn turn(&self, x: Tensor, start: impl Start + Clone) -> Tensor {
        let shape = x.shape();
        let steps = shape[shape.rank() - 2];
        let (cos, sin) = (self.cos.t(), self.sin.t());
        x.rope(cos.slice_at(0, start.clone(), steps), sin.slice_at(0, start, steps), self.pairing)
    }
}
