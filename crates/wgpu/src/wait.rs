//! Waiting with a deadline: short slices, so that a lost or hung device is noticed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wgrad_graph::{Error, ErrorKind, Result, Ticket};

use crate::faults::{lock, text};
use crate::gpu::Core;

/// How the panic of a wait begins that another thread has overtaken.
const OVERTAKEN: &str = "If the queue is empty, the current submission index";
/// Longest single wait in the driver.
const SLICE: Duration = Duration::from_millis(500);
/// Without progress for this long, an empty submission asks the driver whether the device is there.
const PROBE: Duration = Duration::from_secs(5);

/// Which tickets have ended, and the driver's indices of those that have not.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    done: AtomicU64,
    flights: Mutex<VecDeque<(u64, wgpu::SubmissionIndex)>>,
}

impl Clock {
    /// Notes that `ticket` was submitted.
    pub(crate) fn start(&self, ticket: u64, index: wgpu::SubmissionIndex) {
        lock(&self.flights).push_back((ticket, index));
    }

    /// Notes that `ticket` and all before it have ended.
    pub(crate) fn end(&self, ticket: u64) {
        self.done.fetch_max(ticket, Ordering::AcqRel);
        let mut flights = lock(&self.flights);
        while flights.front().is_some_and(|(t, _)| *t <= ticket) {
            flights.pop_front();
        }
    }

    /// Whether `ticket` has ended.
    pub(crate) fn ended(&self, ticket: u64) -> bool {
        self.done.load(Ordering::Acquire) >= ticket
    }

    fn index(&self, ticket: u64) -> Option<wgpu::SubmissionIndex> {
        lock(&self.flights).iter().find(|(t, _)| *t == ticket).map(|(_, index)| index.clone())
    }
}

impl Core {
    /// Lets the driver note what has ended, without waiting.
    pub(crate) fn poll_now(&self) {
        self.poll(wgpu::PollType::Poll);
    }

    /// Polls; whether the wait asked for was satisfied. The driver layer panics when it finds the
    /// device lost while it waits; that becomes the lost flag. It also panics where a wait ran out of time
    /// just before another thread saw the queue empty ([`OVERTAKEN`]); then that thread has done the work.
    fn poll(&self, what: wgpu::PollType) -> bool {
        if self.faults.is_lost() {
            return false;
        }
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(what))) {
            Ok(Ok(status)) => status.wait_finished(),
            Ok(Err(_)) => false,
            Err(panic) => {
                let why = text(&*panic);
                if why.starts_with(OVERTAKEN) {
                    tracing::debug!(why, "a wait was overtaken by another thread");
                } else {
                    self.faults.lose(&why);
                }
                false
            }
        }
    }

    /// Waits until `ready`, driving `ticket` to its end.
    pub(crate) fn wait_until(
        &self,
        op: &str,
        ticket: u64,
        timeout: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        let mut probed = start;
        loop {
            if ready() {
                return Ok(());
            }
            if self.faults.is_lost() {
                return Err(self.faults.lost_error(op));
            }
            let left = timeout.saturating_sub(start.elapsed());
            match self.clock.index(ticket) {
                Some(index) => {
                    let timeout = Some(left.min(SLICE));
                    if self.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout }) {
                        self.clock.end(ticket);
                    }
                }
                // It has ended, but another thread is still about to run its callbacks.
                None if self.clock.ended(ticket) => {
                    self.poll_now();
                    std::thread::yield_now();
                }
                None => {
                    return Err(Error::new(
                        ErrorKind::Argument,
                        op,
                        format!("ticket {ticket} was never submitted"),
                    ));
                }
            }
            if ready() {
                return Ok(());
            }
            if left.is_zero() {
                let message = format!("submission {ticket} has not ended after {timeout:?}");
                return Err(Error::new(ErrorKind::Timeout, op, message));
            }
            if probed.elapsed() > PROBE {
                probed = Instant::now();
                let probe = catch_unwind(AssertUnwindSafe(|| self.queue.submit([])));
                if let Err(panic) = probe {
                    self.faults.lose(&text(&*panic));
                }
            }
        }
    }

    /// Waits until `ticket` and its error flag have arrived; the flag, once.
    pub(crate) fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        let Ticket(ticket) = ticket;
        let settled = || self.clock.ended(ticket) && self.checks.settled(ticket);
        self.wait_until("wait", ticket, timeout, settled)?;
        self.faults.check("wait")?;
        self.checks.take(ticket).map_or(Ok(()), Err)
    }

    /// Waits until the queue is empty; whether it is.
    pub(crate) fn idle(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        while !self.faults.is_lost() {
            let left = timeout.saturating_sub(start.elapsed());
            let slice = wgpu::PollType::Wait { submission_index: None, timeout: Some(left.min(SLICE)) };
            if self.poll(slice) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
        false
    }
}
