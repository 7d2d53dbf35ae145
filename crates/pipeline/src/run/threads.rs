//! The threads of a step: one for each device, two for each lane. None is left when it ends.

use std::collections::{HashMap, HashSet};
use std::thread::{Scope, ScopedJoinHandle};

use wgrad_graph::{Error, ErrorKind, Result, bail};

use super::error::guarded;
use super::lane::Gave;
use super::worker::{Job, Log, Worker};
use crate::schedule::{Message, Schedule};

/// Runs `f` on a named thread of the scope; without one the step fails.
fn spawned<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    job: &Job<'_>,
    name: String,
    f: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    let text = format!("no thread for {name}");
    let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, f);
    let failed = |e| job.control.fail(Error::new(ErrorKind::Limit, "pipeline", format!("{text}: {e}")));
    spawned.map_err(failed).ok()
}

/// The threads of one line: of its devices, and of the ends of its lanes. None where one could not be made.
type Threads<'scope> = (Made<'scope, Option<Log>>, Made<'scope, Vec<Gave>>, Made<'scope, ()>);
type Made<'scope, T> = Vec<Option<ScopedJoinHandle<'scope, T>>>;

/// Runs all lists of all lines, which share their control, a thread each, and their lanes beside; what each device's
/// thread did.
pub(crate) fn run(jobs: &[Job<'_>]) -> Result<Vec<Vec<Log>>> {
    let walk = |job: &Job<'_>, device: usize| {
        let mut worker =
            guarded(|| Ok(Worker::new(job, device))).map_err(|error| job.control.fail(error)).ok()?;
        // The others stop before the worker ends, which waits for its own helpers.
        guarded(|| worker.walk()).map_err(|error| job.control.fail(error)).ok()?;
        Some(std::mem::take(&mut worker.log))
    };
    let lines: Vec<(Vec<Option<Log>>, Vec<Gave>)> = std::thread::scope(|scope| {
        let mut lines = Vec::new();
        for job in jobs {
            let (mut givers, mut takers) = (Vec::new(), Vec::new());
            for lane in &job.lanes {
                let name = |side: &str| format!("pipeline {lane:?} {side}");
                givers.push(spawned(scope, job, name("gives"), || lane.give_all(job)));
                takers.push(spawned(scope, job, name("takes"), || lane.take_all(job)));
            }
            let devices = 0..job.schedule.lists().len();
            let name = |device| format!("pipeline device {device}");
            let threads: Vec<_> =
                devices.map(|d| spawned(scope, job, name(d), move || walk(job, d))).collect();
            lines.push((threads, givers, takers));
        }
        // Joined one by one: the scope alone does not wait until a thread is gone.
        let joined = |(threads, givers, takers): Threads<'_>| {
            let logs = threads.into_iter().map(|t| t.and_then(|t| t.join().ok().flatten())).collect();
            let gave = givers.into_iter().flatten().flat_map(|t| t.join().unwrap_or_default()).collect();
            takers.into_iter().flatten().for_each(|t| drop(t.join()));
            (logs, gave)
        };
        lines.into_iter().map(joined).collect()
    });
    for job in jobs {
        let Err(error) = job.control.outcome() else { continue };
        // What is under way ends before the next step begins, and its failures are told by now.
        for stage in jobs.iter().flat_map(|job| &job.stages.stages) {
            let _told = stage.context.sync();
        }
        return Err(error);
    }
    let whole = |(job, (logs, gave)): (&Job<'_>, (Vec<Option<Log>>, Vec<Gave>))| {
        let mut logs: Vec<Log> = logs.into_iter().flatten().collect();
        let gave: HashMap<Message, Gave> = gave.into_iter().map(|gave| (gave.message, gave)).collect();
        for handover in logs.iter_mut().flat_map(|log| &mut log.handovers) {
            let Some(gave) = gave.get(&handover.passage.message) else { continue };
            let seconds = |at| job.control.seconds(at);
            handover.passage.sent = seconds(gave.given);
            (handover.begun, handover.read) = (seconds(gave.begun), seconds(gave.read));
            handover.error = gave.error;
        }
        once(job.schedule, &logs)?;
        Ok(logs)
    };
    jobs.iter().zip(lines).map(whole).collect()
}

/// Every message of the schedule crossed exactly once, and nothing else did.
fn once(schedule: &Schedule, logs: &[Log]) -> Result<()> {
    let due = schedule.messages();
    let crossed: Vec<Message> = logs.iter().flat_map(|l| &l.handovers).map(|h| h.passage.message).collect();
    let distinct: HashSet<Message> = crossed.iter().copied().collect();
    if crossed.len() != due.len() || distinct.len() != due.len() || !due.iter().all(|m| distinct.contains(m))
    {
        bail!(
            Data,
            "pipeline",
            "{} handovers of {} messages; {} are due",
            crossed.len(),
            distinct.len(),
            due.len()
        );
    }
    Ok(())
}
