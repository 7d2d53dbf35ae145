//! Gradients of replicas, summed in buckets while the rest of the last backward pass is computed.
//!
//! Each bucket goes through three hands: the stage's thread submits what computes it and begins to read it; a thread
//! waits for it and sums it over the replicas; another brings the sums to the device. Memory for those is set aside
//! before the first, so that what the device holds does not depend on which hand is faster.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use wgrad_autograd::{Kept, Param, Pass, Placed, Readings, Reserved, Tensor};
use wgrad_graph::{Error, ErrorKind, HostTensor, Result};

use super::Calls;
use crate::run::{guarded, panicked};

/// Buckets that may wait on the host until they are summed.
const AHEAD: usize = 4;

/// Some gradients on their way to the host, each with the number of its parameter and the memory for its sum.
struct Bucket {
    members: Vec<(usize, Reserved)>,
    readings: Readings,
}

/// Sums on the host.
type Summed = Vec<((usize, Reserved), HostTensor)>;
/// Sums on the device, by the numbers of the parameters.
type Sums = Vec<(usize, Placed)>;

/// The threads that sum buckets of gradients over the replicas, and bring the sums back.
pub(crate) struct Reducer {
    /// The parameters in each bucket: as a backward pass completes them, the last first.
    plan: Vec<Vec<usize>>,
    buckets: Option<SyncSender<Bucket>>,
    sums: Option<JoinHandle<Result<()>>>,
    brings: Option<JoinHandle<Result<Sums>>>,
}

impl Reducer {
    /// One for the gradients of `params`, in buckets of so many bytes or more.
    pub(super) fn new(calls: Calls, params: &[Param], bytes: usize) -> Result<Self> {
        let (buckets, computed) = sync_channel::<Bucket>(AHEAD);
        let (give, summed) = channel::<Summed>();
        let sums = spawned("gradients are summed", move || sum_all(&calls, &computed, &give))?;
        let brings = spawned("sums of gradients come back", move || bring_all(&summed))?;
        Ok(Self { plan: plan(params, bytes), buckets: Some(buckets), sums: Some(sums), brings: Some(brings) })
    }

    /// Computes the gradients bucket by bucket and hands them over; `kept` will have the sums. Returns when all are
    /// submitted; they are read, summed and brought back meanwhile and afterwards.
    pub(crate) fn reduce(&mut self, pass: &Pass, gradients: &[Option<Tensor>], kept: &[Kept]) -> Result<()> {
        let mut waiting = Vec::new();
        for bucket in &self.plan {
            let (mut members, mut values) = (Vec::new(), Vec::new());
            for &i in bucket {
                let Some(g) = gradients[i] else { continue };
                members.push((i, kept[i].reserve()?));
                values.push(g);
            }
            if !values.is_empty() {
                waiting.push((members, values));
            }
        }
        let all: Vec<Vec<Tensor>> = waiting.iter().map(|(_, values)| values.clone()).collect();
        for (i, (members, values)) in waiting.into_iter().enumerate() {
            pass.compute_for(&values, &all[i + 1..].concat())?;
            let readings = Tensor::read_all_later(&values)?;
            if self.buckets.as_ref().is_none_or(|b| b.send(Bucket { members, readings }).is_err()) {
                return self.join().map(|_| ());
            }
        }
        self.buckets = None;
        Ok(())
    }

    /// The sums over all replicas, once they are there.
    pub(crate) fn finish(mut self) -> Result<Sums> {
        self.join()
    }

    fn join(&mut self) -> Result<Sums> {
        self.buckets = None;
        let summed = self.sums.take().map(ended);
        let brought = self.brings.take().map(ended);
        match (summed, brought) {
            (Some(summed), Some(brought)) => {
                // The first to stop makes the other one stop.
                let brought = brought?;
                summed.map(|()| brought)
            }
            _ => Err(Error::new(ErrorKind::User, "pipeline", "the gradients were not summed")),
        }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // The step has failed by now, and the collective is closed.
        let _ended = self.join();
    }
}

fn spawned<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(|| guarded(work));
    spawned.map_err(|e| Error::new(ErrorKind::Limit, "pipeline", format!("no thread: {e}")))
}

fn ended<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|payload| Err(panicked(&*payload)))
}

/// Sums buckets as they arrive on the host.
fn sum_all(calls: &Calls, computed: &Receiver<Bucket>, give: &Sender<Summed>) -> Result<()> {
    for Bucket { members, readings } in computed {
        let own = calls.control.watchfully(|timeout| readings.wait(timeout))?;
        drop(readings);
        let sums = calls.sum(&own)?;
        drop(own);
        if give.send(members.into_iter().zip(sums).collect()).is_err() {
            // The other thread has ended by an error, and tells it.
            return Ok(());
        }
    }
    Ok(())
}

/// Brings sums to the device.
fn bring_all(summed: &Receiver<Summed>) -> Result<Sums> {
    let mut sums = Sums::new();
    for bucket in summed {
        for ((i, reserved), sum) in bucket {
            sums.push((i, reserved.fill(&sum)?));
        }
    }
    Ok(sums)
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
