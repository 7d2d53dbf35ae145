//! What the threads of one step share: the first error, where all meet, and when waiting ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wgrad_graph::{Error, ErrorKind, Result, bail};

use super::lane::Lane;
use crate::parallel::Collective;

/// How long a single wait lasts that has to notice when the step has failed.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// The state of a step, shared by its threads.
pub(crate) struct Control {
    /// When the step began; times count from here.
    begun: Instant,
    /// How long a wait may last while no thread finishes an action.
    patience: Duration,
    /// Actions that all threads have finished.
    progress: AtomicU64,
    /// How many threads meet.
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Closed when the step fails.
    lanes: Vec<Arc<Lane>>,
    teams: Vec<Arc<dyn Collective>>,
}

#[derive(Default)]
struct State {
    error: Option<Error>,
    /// Threads that have come to the meeting that is next, and meetings that are over.
    there: usize,
    meetings: usize,
}

impl Control {
    pub(crate) fn new(threads: usize, patience: Duration, lanes: Vec<Arc<Lane>>) -> Self {
        let (begun, progress) = (Instant::now(), AtomicU64::new(0));
        let (state, changed, teams) = (Mutex::default(), Condvar::new(), Vec::new());
        Self { begun, patience, progress, threads, state, changed, lanes, teams }
    }

    /// The same, which closes these collectives too when the step fails.
    pub(crate) fn closing(mut self, teams: Vec<Arc<dyn Collective>>) -> Self {
        self.teams = teams;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds since the step began.
    pub(super) fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begun).as_secs_f64()
    }

    /// When a wait that begins now ends.
    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// A thread has finished an action.
    pub(super) fn advance(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits by `wait`, which takes a deadline, and again as long as other threads get on meanwhile: who waits
    /// long for many actions of others is not stuck.
    pub(crate) fn patiently<T>(&self, mut wait: impl FnMut(Instant) -> Result<T>) -> Result<T> {
        loop {
            let before = self.progress.load(Ordering::Acquire);
            match wait(self.deadline()) {
                Err(error)
                    if error.kind() == ErrorKind::Timeout
                        && self.progress.load(Ordering::Acquire) != before => {}
                result => return result,
            }
        }
    }

    /// As [`Control::patiently`], where `wait` takes how long it may last and ends by nothing but that: it is asked for short
    /// whiles, between which a failure of the step is noticed.
    pub(crate) fn watchfully<T>(&self, wait: impl Fn(Duration) -> Result<T>) -> Result<T> {
        self.patiently(|deadline| {
            loop {
                self.alive()?;
                let left = deadline.saturating_duration_since(Instant::now());
                match wait(left.min(SLICE)) {
                    Err(error) if error.kind() == ErrorKind::Timeout && Instant::now() < deadline => {}
                    result => return result,
                }
            }
        })
    }

    /// Ends the step: the first error is kept, and every wait ends.
    pub(crate) fn fail(&self, error: Error) {
        self.lock().error.get_or_insert(error);
        self.changed.notify_all();
        self.lanes.iter().for_each(|lane| lane.close());
        self.teams.iter().for_each(|team| team.close());
    }

    /// An error once the step has failed.
    pub(super) fn alive(&self) -> Result<()> {
        if self.lock().error.is_some() {
            bail!(User, "pipeline", "the step has failed elsewhere");
        }
        Ok(())
    }

    /// Waits for all threads.
    pub(super) fn meet(&self) -> Result<()> {
        let mut state = self.lock();
        let this = state.meetings;
        state.there += 1;
        if state.there == self.threads {
            (state.there, state.meetings) = (0, this + 1);
            self.changed.notify_all();
        }
        self.wait(
            state,
            |s| (s.meetings > this).then_some(()),
            |s| format!("{} of {} devices to come to the update", self.threads - s.there, self.threads),
        )
    }

    /// Waits until `ready` gives something; it is asked again after [`Control::nudge`].
    pub(super) fn until<T>(&self, what: &str, ready: impl Fn() -> Option<T>) -> Result<T> {
        self.wait(self.lock(), |_| ready(), |_| what.to_owned())
    }

    /// Makes those who wait look again.
    pub(super) fn nudge(&self) {
        // With the lock, so that nobody falls asleep between looking and waiting.
        let _state = self.lock();
        self.changed.notify_all();
    }

    fn wait<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        ready: impl Fn(&State) -> Option<T>,
        what: impl Fn(&State) -> String,
    ) -> Result<T> {
        let mut deadline = self.deadline();
        let mut before = self.progress.load(Ordering::Acquire);
        loop {
            if let Some(value) = ready(&state) {
                return Ok(value);
            }
            if state.error.is_some() {
                bail!(User, "pipeline", "the step has failed elsewhere");
            }
            let now = Instant::now();
            let progress = self.progress.load(Ordering::Acquire);
            if now >= deadline && progress != before {
                (deadline, before) = (self.deadline(), progress);
            }
            if now >= deadline {
                let waited = self.patience.as_secs_f64();
                bail!(Timeout, "pipeline", "waited {waited:.1} s for {}", what(&state));
            }
            let left = self.changed.wait_timeout(state, deadline - now);
            state = left.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How the step ended.
    pub(super) fn outcome(&self) -> Result<()> {
        self.lock().error.clone().map_or(Ok(()), Err)
    }
}
