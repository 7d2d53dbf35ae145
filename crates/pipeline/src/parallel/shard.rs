//! How layers are split over the devices of a group.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use wgrad_autograd::{Context, Param, ParamId};
use wgrad_graph::{HostTensor, Result, Shape, bail};

/// The share of `count` things (rows, heads, rows of a batch) that each rank has, in proportion to `weights`.
///
/// # Errors
/// `Argument` for a weight that is not positive, or where a rank would have nothing.
///
/// # Example
/// ```
/// use wgrad_pipeline::parallel::split;
/// # fn main() -> wgrad_graph::Result<()> {
/// assert_eq!(split(7, &[1.0, 1.0], "rows")?, [0..4, 4..7]);
/// assert_eq!(split(8, &[3.0, 1.0], "rows")?, [0..6, 6..8]);
/// assert!(split(1, &[1.0, 1.0], "heads").is_err());
/// # Ok(())
/// # }
/// ```
pub fn split(count: usize, weights: &[f64], what: &str) -> Result<Vec<Range<usize>>> {
    if let Some(weight) = weights.iter().find(|w| !(**w > 0.0 && w.is_finite())) {
        bail!(Argument, "split", "a device has the weight {weight}; weights are positive");
    }
    let (all, mut sum, mut start) = (weights.iter().sum::<f64>(), 0.0, 0);
    let mut ranges = Vec::new();
    for (rank, weight) in weights.iter().enumerate() {
        sum += weight;
        let end = if rank + 1 == weights.len() { count } else { (count as f64 * sum / all).round() as usize };
        if end <= start {
            bail!(
                Argument,
                "split",
                "{count} {what} over devices of weights {weights:?} leave none for rank {rank}"
            );
        }
        ranges.push(start..end);
        start = end;
    }
    Ok(ranges)
}

/// Which part of an undivided parameter a rank has: ranges of an axis, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    axis: usize,
    full: Shape,
    ranges: Vec<Range<usize>>,
}

impl Split {
    /// Lines along the axis: their bytes, and how many stand before each place of it.
    fn lines(&self, dtype: wgrad_graph::DType) -> (usize, usize) {
        let dims = self.full.dims();
        let before = dims[..self.axis].iter().product();
        let after: usize = dims[self.axis + 1..].iter().product();
        (before, after * dtype.bytes())
    }

    /// The part of an undivided value.
    pub(crate) fn part(&self, full: &HostTensor) -> Result<HostTensor> {
        if full.shape() != self.full {
            bail!(Shape, "shard", "an undivided value of {} where {} is due", full.shape(), self.full);
        }
        let (before, line) = self.lines(full.dtype());
        let all = self.full[self.axis];
        let mut bytes = Vec::new();
        for i in 0..before {
            for range in &self.ranges {
                bytes.extend_from_slice(
                    &full.bytes()[(i * all + range.start) * line..(i * all + range.end) * line],
                );
            }
        }
        let mut dims = self.full.dims().to_vec();
        dims[self.axis] = self.ranges.iter().map(Range::len).sum();
        HostTensor::from_bytes(Shape::new(&dims), full.dtype(), bytes)
    }

    /// Puts a part into the bytes of the undivided value.
    pub(crate) fn put(&self, part: &HostTensor, full: &mut Vec<u8>) {
        let (before, line) = self.lines(part.dtype());
        let all = self.full[self.axis];
        full.resize(self.full.elems() * part.dtype().bytes(), 0);
        let mut from = 0;
        for i in 0..before {
            for range in &self.ranges {
                let to = (i * all + range.start) * line..(i * all + range.end) * line;
                let len = to.len();
                full[to].copy_from_slice(&part.bytes()[from..from + len]);
                from += len;
            }
        }
    }

    pub(crate) fn full(&self) -> Shape {
        self.full
    }
}

/// A rank's place among the devices that share layers, for the layers that it builds: which part of each
/// parameter is its own.
///
/// The devices of a group compute the same function of the same inputs: what is not split (normalisations,
/// residual sums, the loss) they all compute. Inside a split layer each has its part.
#[derive(Clone)]
pub struct Shard {
    rank: usize,
    weights: Arc<[f64]>,
    splits: Arc<Mutex<HashMap<ParamId, Split>>>,
}

impl Shard {
    pub(crate) fn new(rank: usize, weights: Arc<[f64]>) -> Self {
        Self { rank, weights, splits: Arc::default() }
    }

    /// The only rank of a group: layers that are whole.
    pub fn whole() -> Self {
        Self::new(0, Arc::new([1.0]))
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks share the layers.
    pub fn size(&self) -> usize {
        self.weights.len()
    }

    /// This rank's part of `count` rows, columns or heads, as [`split`] gives it.
    ///
    /// # Errors
    /// As [`split`].
    pub fn part(&self, count: usize, what: &str) -> Result<Range<usize>> {
        Ok(split(count, &self.weights, what)?.swap_remove(self.rank))
    }

    /// The part `ranges` along `axis` of an undivided parameter, as a parameter of the same name: what is read
    /// from it and written to it as a whole does not depend on the number of ranks.
    ///
    /// # Errors
    /// `Argument` for ranges beyond the axis; what the device meets.
    pub fn param(
        &self,
        ctx: &Context,
        name: &str,
        full: &HostTensor,
        axis: usize,
        ranges: &[Range<usize>],
    ) -> Result<Param> {
        let shape = full.shape();
        if axis >= shape.rank() || ranges.iter().any(|r| r.start > r.end || r.end > shape[axis]) {
            bail!(Argument, "shard", "`{name}`: ranges {ranges:?} of axis {axis} of {shape}");
        }
        let split = Split { axis, full: shape, ranges: ranges.to_vec() };
        let param = Param::new(ctx, name, split.part(full)?)?;
        if self.size() > 1 {
            self.splits.lock().unwrap_or_else(PoisonError::into_inner).insert(param.id(), split);
        }
        Ok(param)
    }

    /// The split of a parameter; nothing for one that all ranks have whole.
    pub(crate) fn split_of(&self, param: &Param) -> Option<Split> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner).get(&param.id()).cloned()
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard(rank {} of {})", self.rank, self.size())
    }
}
