//! What a group of ranks does together.

use std::time::Instant;

use wgrad_graph::{HostTensor, Result, Shape};

/// One rank's end of a group that works on tensors together, on the host. All ranks make the same calls in the
/// same order; each call is numbered, and its number, kind and shape are compared between ranks. What crosses
/// processes or machines can take the place of [`Team`](super::Team) without a change to layers or trainers.
///
/// Every wait ends at its deadline with `Timeout`; the same call made again goes on waiting. After [`close`] all
/// waits, now and later, end with `User`.
///
/// [`close`]: Collective::close
pub trait Collective: Send + Sync {
    /// The number of this rank in the group.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// The sum over all ranks in the place of `values`, added in the order of ranks: the same bits on all.
    ///
    /// # Errors
    /// `Data` where two ranks make different calls, naming both; `Timeout`; `User` once it is closed.
    fn all_reduce(&self, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()>;

    /// The sums over all ranks of several tensors of floats, added in f32 in the order of ranks: the same bits on all. The
    /// tensors may lie in memory that a device has lent, and be large: who can does not copy them. By default one
    /// [`Collective::all_reduce`] of all of them side by side.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn sum(&self, own: &[HostTensor], deadline: Instant) -> Result<Vec<HostTensor>> {
        let mut values: Vec<f32> = own.iter().flat_map(|x| x.to_vec::<f32>()).collect();
        let shape = Shape::from([values.len()]);
        self.all_reduce(&mut values, shape, deadline)?;
        let mut rest = &values[..];
        let part = |x: &HostTensor| {
            let (own, after) = rest.split_at(x.shape().elems());
            rest = after;
            Ok(HostTensor::new(x.shape(), own)?.cast(x.dtype()))
        };
        own.iter().map(part).collect()
    }

    /// What every rank has, in the order of ranks. Shapes may differ in their sizes, not in the number of axes.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn all_gather(&self, own: &[f32], shape: Shape, deadline: Instant) -> Result<Vec<(Shape, Vec<f32>)>>;

    /// What rank `root` has in the place of `values`.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`]; `Argument` for a root that is no rank.
    fn broadcast(&self, root: usize, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()>;

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn barrier(&self, deadline: Instant) -> Result<()>;

    /// Ends every wait, now and later, on all ranks.
    fn close(&self);
}
