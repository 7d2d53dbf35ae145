//! Gradients of replicas, summed in buckets while the rest of the last backward pass is computed.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use wgrad_autograd::{Param, Pass, Tensor};
use wgrad_graph::{Error, ErrorKind, HostTensor, Out, Result, Shape};

use super::Calls;
use crate::run::{guarded, panicked};

/// Buckets that may be computed before an earlier one is read.
const AHEAD: usize = 2;

/// Some gradients side by side: the parameters' numbers and shapes, and the values.
struct Bucket {
    members: Vec<(usize, Out)>,
    values: Tensor,
}

/// The sums over replicas by the numbers of the parameters.
type Sums = Vec<(usize, HostTensor)>;

/// A thread that reads buckets of gradients as they are computed, and sums each over the replicas.
pub(crate) struct Reducer {
    /// The parameters in each bucket: as a backward pass completes them, the last first.
    plan: Vec<Vec<usize>>,
    buckets: Option<Sender<Bucket>>,
    read: Receiver<()>,
    thread: Option<JoinHandle<Result<Sums>>>,
}

impl Reducer {
    /// One for the gradients of `params`, in buckets of so many bytes or more.
    pub(super) fn new(calls: Calls, params: &[Param], bytes: usize) -> Result<Self> {
        let (buckets, taken) = channel::<Bucket>();
        let (tell, read) = channel();
        let work = move || {
            let (mut sums, mut values) = (Sums::new(), Vec::new());
            for bucket in taken {
                values.clear();
                values.extend(bucket.values.read()?.to_vec::<f32>());
                // Whoever made it may be gone, by an error that is told elsewhere.
                let _gone = tell.send(());
                let len = values.len();
                calls.all_reduce(&mut values, Shape::from([len]))?;
                let mut rest = &values[..];
                for (param, out) in bucket.members {
                    let (own, after) = rest.split_at(out.shape.elems());
                    sums.push((param, HostTensor::new(out.shape, own)?.cast(out.dtype)));
                    rest = after;
                }
            }
            Ok(sums)
        };
        let spawned = std::thread::Builder::new().name("gradients".to_owned()).spawn(|| guarded(work));
        let thread =
            spawned.map_err(|e| Error::new(ErrorKind::Limit, "pipeline", format!("no thread: {e}")))?;
        Ok(Self { plan: plan(params, bytes), buckets: Some(buckets), read, thread: Some(thread) })
    }

    /// Computes the gradients bucket by bucket and hands them over. Returns when all are read; they are summed
    /// meanwhile and afterwards.
    pub(crate) fn reduce(&mut self, pass: &Pass, gradients: &[Option<Tensor>]) -> Result<()> {
        let mut flat = Vec::new();
        for bucket in &self.plan {
            let (mut members, mut parts) = (Vec::new(), Vec::new());
            for &i in bucket {
                let Some(g) = gradients[i] else { continue };
                let out = g.try_out()?;
                members.push((i, out));
                parts.push(pass.within(|| g.try_reshape(&[out.shape.elems() as i64][..]))?);
            }
            let values = match parts[..] {
                [] => continue,
                [one] => one,
                _ => pass.within(|| Tensor::try_cat(&parts, 0))?,
            };
            flat.push(Bucket { members, values });
        }
        let count = flat.len();
        let all: Vec<Tensor> = flat.iter().map(|b| b.values).collect();
        for (i, bucket) in flat.into_iter().enumerate() {
            // Reading takes its turn: a device that computes while it takes a submission has no other time for it.
            if i >= AHEAD && self.read.recv().is_err() {
                return self.join().map(|_| ());
            }
            pass.compute_for(&[bucket.values], &all[i + 1..])?;
            if self.buckets.as_ref().is_none_or(|b| b.send(bucket).is_err()) {
                return self.join().map(|_| ());
            }
        }
        self.buckets = None;
        for _ in 0..count.min(AHEAD) {
            if self.read.recv().is_err() {
                return self.join().map(|_| ());
            }
        }
        Ok(())
    }

    /// The sums over all replicas, once they are there.
    pub(crate) fn finish(mut self) -> Result<Sums> {
        self.join()
    }

    fn join(&mut self) -> Result<Sums> {
        self.buckets = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(done)) => done,
            Some(Err(payload)) => Err(panicked(&*payload)),
            None => Err(Error::new(ErrorKind::User, "pipeline", "the gradients were not summed")),
        }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // The step has failed by now, and the collective is closed.
        let _ended = self.join();
    }
}

/// Parameters in buckets of one dtype, the last first.
fn plan(params: &[Param], bytes: usize) -> Vec<Vec<usize>> {
    let (mut plan, mut bucket, mut full) = (Vec::new(), Vec::new(), 0);
    for (i, param) in params.iter().enumerate().rev() {
        let other = bucket.last().is_some_and(|last: &usize| params[*last].dtype() != param.dtype());
        if full >= bytes || other {
            plan.push(std::mem::take(&mut bucket));
            full = 0;
        }
        bucket.push(i);
        full += param.shape().elems() * param.dtype().bytes();
    }
    plan.extend((!bucket.is_empty()).then_some(bucket));
    plan
}
