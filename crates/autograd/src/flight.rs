//! Submissions in flight: how they end, whom their failures concern, and what room is left for more.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use wgrad_graph::{BufferId, Bytes, Error, ErrorKind, Pending, Plan, Result, Stage, Ticket, bail};

use crate::profiling;
use crate::state::State;
use crate::table::{self, ContextId};

/// Submissions that failed on the device: those after one ticket, up to another.
pub(crate) struct Failure {
    after: Ticket,
    pub(crate) upto: Ticket,
    pub(crate) error: Error,
}

impl Failure {
    pub(crate) fn covers(&self, ticket: Ticket) -> bool {
        self.after < ticket && ticket <= self.upto
    }
}

/// Waits, without holding the context's lock, for every submission up to `upto`, each on its own, so
/// that a failure is blamed on the submission that met it. The first failure.
pub(crate) fn settle(context: ContextId, upto: Ticket) -> Result<()> {
    let mut first = Ok(());
    loop {
        let (backend, ticket, deadline, _wait) = {
            let state = table::lock(context)?;
            let Some(ticket) = state.flight.front().copied().filter(|t| *t <= upto) else { return first };
            let wait = state.profiling.stage(Stage::Wait);
            (Arc::clone(&state.backend), ticket, state.config.deadline, wait)
        };
        let result = backend.wait(ticket, deadline);
        table::lock(context)?.ended(ticket, &result);
        first = first.and(result);
    }
}

/// As [`settle`], for no longer than `timeout`. Failures are noted where they belong; running out of time is
/// none.
pub(crate) fn settle_for(context: ContextId, upto: Ticket, timeout: Duration) -> Result<()> {
    let end = Instant::now() + timeout;
    loop {
        let (backend, ticket, _wait) = {
            let state = table::lock(context)?;
            let Some(ticket) = state.flight.front().copied().filter(|t| *t <= upto) else { return Ok(()) };
            let wait = state.profiling.stage(Stage::Wait);
            (Arc::clone(&state.backend), ticket, wait)
        };
        match backend.wait(ticket, end.saturating_duration_since(Instant::now())) {
            Err(error) if error.kind() == ErrorKind::Timeout => return Err(error),
            result => table::lock(context)?.ended(ticket, &result),
        }
    }
}

/// Waits, without holding the context's lock, until few enough submissions are in flight. A failure is kept for
/// the next pass and for the values that it concerns.
pub(crate) fn throttle(context: ContextId) {
    loop {
        let Ok(state) = table::lock(context) else { return };
        if state.flight.len() <= state.config.in_flight {
            return;
        }
        let (backend, oldest, deadline) =
            (Arc::clone(&state.backend), state.flight[0], state.config.deadline);
        let _wait = state.profiling.stage(Stage::Wait);
        drop(state);
        let result = backend.wait(oldest, deadline);
        if let Ok(mut state) = table::lock(context) {
            state.ended(oldest, &result);
        }
    }
}

/// A read that is under way.
pub(crate) struct Fetch {
    pub(crate) pending: Box<dyn Pending>,
    /// The newest submission before it.
    pub(crate) after: Ticket,
    deadline: Duration,
}

impl Fetch {
    /// The bytes, waited for without holding the context's lock. Whether the submissions that made them
    /// have failed is known then, and for the caller to ask.
    pub(crate) fn finish(mut self, context: ContextId) -> Result<Vec<Bytes>> {
        // Failures are noted where they belong; the bytes of other submissions are good.
        let _noted = settle(context, self.after);
        let _download = profiling::stage(context, Stage::Download);
        self.pending.wait(self.deadline).inspect_err(|error| {
            if let Ok(mut state) = table::lock(context) {
                state.note(error);
            }
        })
    }
}

/// What is still free of a context's budget.
pub(crate) struct Room {
    live_bytes: usize,
    budget_bytes: Option<usize>,
    workspace_bytes: usize,
}

impl Room {
    pub(crate) fn take(&self, bytes: usize) -> Result<()> {
        let (live, Some(budget)) = (self.live_bytes, self.budget_bytes) else { return Ok(()) };
        if live + bytes > budget {
            bail!(
                OutOfMemory,
                "budget",
                "{live} bytes are used and {bytes} more are asked for; the budget is {budget} bytes"
            );
        }
        Ok(())
    }

    /// Bytes that exist while `plan` runs, its workspace and new results among them.
    pub(crate) fn peak_with(&self, plan: &Plan) -> usize {
        let held = self.live_bytes.saturating_sub(self.workspace_bytes);
        held + plan.fresh_bytes() + plan.workspace_bytes.max(self.workspace_bytes)
    }

    /// Whether there is room for the outputs of a plan and for its workspace, none of which exists yet.
    pub(crate) fn take_plan(&self, plan: &Plan) -> Result<()> {
        self.take(plan.fresh_bytes() + plan.workspace_bytes.saturating_sub(self.workspace_bytes))
    }
}

impl State {
    /// What is free; with `count`, also what exists where no budget asks for it.
    pub(crate) fn room(&self, count: bool) -> Room {
        let budget_bytes = self.config.budget_bytes;
        let count = count || budget_bytes.is_some();
        let live_bytes = if count { self.backend.memory().live_bytes } else { 0 };
        Room { live_bytes, budget_bytes, workspace_bytes: self.workspace_bytes }
    }

    /// Starts to fetch the first bytes of buffers.
    pub(crate) fn read(&mut self, ranges: &[(BufferId, usize)]) -> Result<Fetch> {
        self.alive()?;
        let _download = self.profiling.stage(Stage::Download);
        self.profiling.tell(|p| p.downloaded(1, ranges.iter().map(|(_, bytes)| *bytes as u64).sum()));
        let pending = self.backend.read(ranges).inspect_err(|error| self.note(error))?;
        Ok(Fetch { pending, after: self.newest, deadline: self.config.deadline })
    }

    /// Notes how the submissions up to `upto` ended on a device that has done what it returns from.
    pub(crate) fn settle(&mut self, upto: Ticket) {
        while let Some(ticket) = self.flight.front().copied().filter(|t| *t <= upto) {
            let result = self.backend.wait(ticket, self.config.deadline);
            self.ended(ticket, &result);
        }
    }

    /// Notes how the oldest submission that was not known about ended.
    pub(crate) fn ended(&mut self, ticket: Ticket, result: &Result<()>) {
        match result {
            Ok(()) => self.verified = self.verified.max(ticket),
            Err(error) => self.fail(ticket, error),
        }
        self.flight.retain(|t| *t > self.verified);
    }

    /// Notes that the submissions after the last verified one, up to `upto`, have failed.
    pub(crate) fn fail(&mut self, upto: Ticket, error: &Error) {
        self.note(error);
        let upto = if error.is_lost() { self.newest } else { upto };
        if upto <= self.verified {
            return;
        }
        let failure = Failure { after: self.verified, upto, error: error.clone() };
        self.deferred.iter().filter_map(Weak::upgrade).for_each(|cell| cell.meet(&failure));
        self.meet(&failure);
        self.failures.push(failure);
        self.untold.get_or_insert_with(|| (upto, error.clone()));
        self.verified = upto;
    }

    /// Remembers the loss of the device.
    pub(crate) fn note(&mut self, error: &Error) {
        if error.is_lost() {
            self.lost.get_or_insert_with(|| error.clone());
        }
    }

    /// An error once the device is gone.
    pub(crate) fn alive(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The error of a submission that is known to have failed, for a caller who hears of it now.
    pub(crate) fn tell(&mut self, ticket: Ticket) -> Result<()> {
        let Some(failure) = self.failures.iter().find(|f| f.covers(ticket)) else { return Ok(()) };
        let (upto, error) = (failure.upto, failure.error.clone());
        self.heard(upto);
        Err(error)
    }

    /// Somebody hears of the failure up to `upto`.
    pub(crate) fn heard(&mut self, upto: Ticket) {
        self.untold.take_if(|(untold, _)| *untold == upto);
    }

    /// The error of a submission that is known to have failed.
    pub(crate) fn failed(&self, ticket: Ticket) -> Option<&Error> {
        self.failures.iter().find(|f| f.covers(ticket)).map(|f| &f.error)
    }
}
