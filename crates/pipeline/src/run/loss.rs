//! Losses of micro-batches that add up to the loss of the batch.

use std::fmt;
use std::sync::Arc;

use wgrad_autograd::{Pass, Tensor};
use wgrad_graph::{HostTensor, Result};

type Record = dyn Fn(Tensor, Tensor) -> Result<Tensor> + Send + Sync;
type Count = dyn Fn(&HostTensor) -> f64 + Send + Sync;

/// The loss of the last stage's output and the targets, as a mean over the elements that count in the whole
/// batch. The share of every micro-batch is divided by their number in all micro-batches before it is
/// differentiated, so uneven micro-batches and masks that differ weigh what they weigh in the unsplit batch.
///
/// # Example
/// ```
/// use wgrad_pipeline::Loss;
/// // Class -1 is padding: only the others count.
/// let loss = Loss::mean(|y, t| y.try_cross_entropy(t))
///     .counted(|targets| targets.to_vec::<i32>().iter().filter(|t| **t >= 0).count() as f64);
/// ```
#[derive(Clone)]
pub struct Loss {
    record: Arc<Record>,
    count: Arc<Count>,
    mean: bool,
}

impl Loss {
    /// `f` gives the mean over the elements of a micro-batch that count: all rows, unless
    /// [`Loss::counted`] says otherwise.
    pub fn mean(f: impl Fn(Tensor, Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { record: Arc::new(f), count: Arc::new(rows), mean: true }
    }

    /// `f` gives the sum over the elements of a micro-batch that count.
    pub fn sum(f: impl Fn(Tensor, Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { mean: false, ..Self::mean(f) }
    }

    /// The same, where `count` tells from the targets of a micro-batch how many elements count.
    #[must_use]
    pub fn counted(mut self, count: impl Fn(&HostTensor) -> f64 + Send + Sync + 'static) -> Self {
        self.count = Arc::new(count);
        self
    }

    pub(crate) fn count(&self, targets: &HostTensor) -> f64 {
        (self.count)(targets)
    }

    /// The share of a micro-batch with `own` of `all` elements.
    pub(super) fn share(&self, pass: &Pass, y: Tensor, t: &HostTensor, own: f64, all: f64) -> Result<Tensor> {
        let value = (self.record)(y, pass.input(t)?)?;
        let factor = if self.mean { own / all } else { 1.0 / all };
        // One micro-batch is the batch: its mean stays as it is.
        if factor == 1.0 { Ok(value) } else { value.try_mul(factor) }
    }
}

fn rows(targets: &HostTensor) -> f64 {
    targets.shape().dims().first().copied().unwrap_or(1) as f64
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mean { "Loss(mean)" } else { "Loss(sum)" })
    }
}
