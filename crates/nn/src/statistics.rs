//! Statistics of batches that layers follow: taken at once, or gathered over the parts of a batch and taken
//! together.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use wgrad_autograd::{Kept, Tensor};
use wgrad_graph::Result;

/// What a layer knows of a batch, or of a part of one.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many values (or items) a channel has, by which summaries of parts weigh.
    pub count: f64,
    /// The numbers, of a kind that the layer chooses.
    pub values: Vec<Tensor>,
}

/// State that follows the batches a layer learns from: running statistics.
pub trait Follow: Send + Sync {
    /// The values that follow. The first one tells one layer's state from another's.
    fn state(&self) -> Vec<Arc<Kept>>;

    /// The summary of two parts together.
    ///
    /// # Errors
    /// What recording meets.
    fn merge(&self, a: &Summary, b: &Summary) -> Result<Summary>;

    /// Records the next values of the state after a batch.
    ///
    /// # Errors
    /// What recording meets.
    fn follow(&self, batch: &Summary) -> Result<()>;
}

/// The summary of a batch and the state that follows it.
#[derive(Clone)]
pub struct Statistics {
    /// The state.
    pub running: Arc<dyn Follow>,
    /// The batch.
    pub summary: Summary,
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.running.state().iter().map(|k| k.name().to_owned()).collect();
        write!(f, "Statistics({names:?}, {:?})", self.summary)
    }
}

thread_local! {
    /// Where statistics go instead of being followed at once, innermost last.
    static GATHERED: RefCell<Vec<Vec<Statistics>>> = const { RefCell::new(Vec::new()) };
}

/// Takes the innermost list off, also on unwind.
struct Gathering;

impl Drop for Gathering {
    fn drop(&mut self) {
        GATHERED.with_borrow_mut(|lists| drop(lists.pop()));
    }
}

/// Runs `f`; the statistics that layers make of their batches in it are not followed but given back, in the order
/// in which the layers ran. So a batch that is worked on in parts is followed once, when all parts were seen:
/// [`Follow::merge`] them, then [`Follow::follow`] the whole.
///
/// ```
/// use wgrad::nn::{BatchNorm, gather_statistics};
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let ctx = Context::new(&Device::cpu())?;
/// let norm = BatchNorm::new(&ctx, "norm", 1)?;
/// ctx.pass(|p| {
///     let part = |data: [f32; 2]| p.input(HostTensor::new([2, 1], &data)?);
///     let parts = [part([1.0, 3.0])?, part([5.0, 7.0])?];
///     let [a, b] = parts.map(|x| gather_statistics(|| norm.forward(x)).1.remove(0));
///     a.running.follow(&a.running.merge(&a.summary, &b.summary)?)
/// })?;
/// assert!((norm.running_mean.read()?.to_vec::<f32>()[0] - 0.4).abs() < 1e-6);   // a tenth of the mean, 4
/// # Ok(()) }
/// ```
pub fn gather_statistics<T>(f: impl FnOnce() -> T) -> (T, Vec<Statistics>) {
    GATHERED.with_borrow_mut(|lists| lists.push(Vec::new()));
    let gathering = Gathering;
    let value = f();
    std::mem::forget(gathering);
    (value, GATHERED.with_borrow_mut(Vec::pop).unwrap_or_default())
}

/// Whether somebody gathers statistics on this thread.
pub(crate) fn are_gathered() -> bool {
    GATHERED.with_borrow(|lists| !lists.is_empty())
}

impl Statistics {
    /// Hands them to the innermost [`gather_statistics`] of this thread, or has them followed at once where there is
    /// none: what a layer of one's own does with its statistics in its forward pass.
    ///
    /// # Errors
    /// As [`Follow::follow`].
    pub fn hand_over(self) -> Result<()> {
        let left = GATHERED.with_borrow_mut(|lists| match lists.last_mut() {
            Some(list) => {
                list.push(self);
                None
            }
            None => Some(self),
        });
        left.map_or(Ok(()), |own| own.running.follow(&own.summary))
    }
}

/// Running mean and variance by channel. A summary has the mean and the unbiased variance.
pub(crate) struct Moving {
    pub(crate) mean: Arc<Kept>,
    pub(crate) var: Arc<Kept>,
    /// The part of the new values that comes from a batch.
    pub(crate) momentum: f64,
    /// Whether the variance is that of all values together; else the mean of the items' variances.
    pub(crate) pooled: bool,
}

impl Follow for Moving {
    fn state(&self) -> Vec<Arc<Kept>> {
        vec![Arc::clone(&self.mean), Arc::clone(&self.var)]
    }

    fn merge(&self, a: &Summary, b: &Summary) -> Result<Summary> {
        let count = a.count + b.count;
        let share = b.count / count;
        let [(mean, var), (mean_b, var_b)] = [a, b].map(|s| (s.values[0], s.values[1]));
        let away = mean_b.try_sub(mean)?;
        let all = mean.try_add(away.try_mul(share)?)?;
        // From the parts' variances and how far their means lie apart: no difference of large squares.
        let var = match self.pooled {
            true => {
                let inside = var.try_mul((a.count - 1.0) / (count - 1.0))?;
                let inside = inside.try_add(var_b.try_mul((b.count - 1.0) / (count - 1.0))?)?;
                inside.try_add(away.try_square()?.try_mul(a.count * share / (count - 1.0))?)?
            }
            false => var.try_add(var_b.try_sub(var)?.try_mul(share)?)?,
        };
        Ok(Summary { count, values: vec![all, var] })
    }

    fn follow(&self, batch: &Summary) -> Result<()> {
        for (kept, new) in [&self.mean, &self.var].into_iter().zip(&batch.values) {
            let old = kept.t().try_mul(1.0 - self.momentum)?;
            kept.try_set(old.try_add(new.try_mul(self.momentum)?)?)?;
        }
        Ok(())
    }
}
