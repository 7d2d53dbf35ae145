//! The recorder: totals of stages and kernels, and the newest events.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgrad_graph::{Phase, Plan, Ran, Stage, Watch};

use crate::clock::now_ns;
use crate::names::PhaseMix;

/// Newest events kept of the host, and of the device.
const EVENTS: usize = 50_000;
/// Plans whose kernels have rows of their own.
const PLANS: usize = 512;

/// Time and how often.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Total {
    pub(crate) ns: u64,
    pub(crate) count: u64,
}

impl Total {
    fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.count += 1;
    }
}

/// What was run of one plan.
pub(crate) struct PlanRuns {
    pub(crate) plan: Arc<Plan>,
    /// Of each of the plan's steps.
    pub(crate) phases: Arc<[PhaseMix]>,
    /// By the steps that ran as one.
    pub(crate) runs: BTreeMap<Arc<[u32]>, Total>,
    used: u64,
}

/// A stage as it was.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HostEvent {
    pub(crate) stage: Stage,
    pub(crate) phase: Phase,
    pub(crate) thread: u32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// A kernel as it ran: its plan's key.
#[derive(Clone, Debug)]
pub(crate) struct DeviceEvent {
    pub(crate) plan: usize,
    pub(crate) ran: Ran,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// Since when it has been on.
    pub(crate) since_ns: Option<u64>,
    /// How long it was on before that.
    pub(crate) before_ns: u64,
    pub(crate) steps: u64,
    /// By stage; in the last column what belongs to no phase by itself.
    pub(crate) totals: BTreeMap<Stage, [Total; 4]>,
    pub(crate) up: (u64, u64),
    pub(crate) down: (u64, u64),
    pub(crate) submissions: u64,
    pub(crate) plans: HashMap<usize, PlanRuns>,
    /// What ran of plans that have no rows any more.
    pub(crate) others: Total,
    pub(crate) others_by_phase: [f64; 3],
    uses: u64,
    pub(crate) host: VecDeque<HostEvent>,
    pub(crate) device: VecDeque<DeviceEvent>,
    pub(crate) dropped: u64,
    pub(crate) busy_ns: u64,
    pub(crate) gap_ns: u64,
    last_end_ns: u64,
    pub(crate) threads: BTreeMap<u32, String>,
}

/// Where the steps of one context spend their time. Recording costs two looks at the clock and a lock a
/// stage.
pub struct Profile {
    device: String,
    inner: Mutex<Inner>,
}

thread_local! {
    static STACK: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    static THREAD: u32 = {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
    static PHASE: Cell<Phase> = const { Cell::new(Phase::Forward) };
}

/// A stage that this thread is in.
struct Frame {
    stage: Stage,
    start_ns: u64,
    /// Since when the time is its own.
    last_ns: u64,
    own_ns: u64,
    /// Stages entered inside that are counted as part of it.
    within: u32,
}

/// The phase that this thread is in.
pub fn phase() -> Phase {
    PHASE.get()
}

/// A phase that lasts until this is dropped.
#[must_use = "the phase ends when this is dropped"]
#[derive(Debug)]
pub struct InPhase {
    before: Phase,
}

impl InPhase {
    /// Enters `phase` on this thread.
    pub fn enter(phase: Phase) -> InPhase {
        InPhase { before: PHASE.replace(phase) }
    }
}

impl Drop for InPhase {
    fn drop(&mut self) {
        PHASE.set(self.before);
    }
}

impl Profile {
    /// A profile of a device with this name; off.
    pub fn new(device: impl Into<String>) -> Profile {
        Profile { device: device.into(), inner: Mutex::default() }
    }

    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts or stops the clock.
    pub fn switch(&self, on: bool) {
        let mut inner = self.inner();
        match (on, inner.since_ns) {
            (true, None) => {
                inner.since_ns = Some(now_ns());
                // Idle time of the device while nobody looked is no gap.
                inner.last_end_ns = 0;
            }
            (false, Some(since)) => {
                inner.before_ns += now_ns() - since;
                inner.since_ns = None;
            }
            _ => {}
        }
    }

    /// Forgets everything; on stays on.
    pub fn reset(&self) {
        let mut inner = self.inner();
        let since_ns = inner.since_ns.map(|_| now_ns());
        *inner = Inner { since_ns, ..Inner::default() };
    }

    /// Counts a step.
    pub fn step(&self) {
        self.inner().steps += 1;
    }

    /// Counts copies from host to device.
    pub fn uploaded(&self, crossings: u64, bytes: u64) {
        let mut inner = self.inner();
        inner.up = (inner.up.0 + crossings, inner.up.1 + bytes);
    }

    /// Counts copies from device to host.
    pub fn downloaded(&self, crossings: u64, bytes: u64) {
        let mut inner = self.inner();
        inner.down = (inner.down.0 + crossings, inner.down.1 + bytes);
    }

    /// Counts a submission of `plan`, whose steps belong to `phases`.
    pub fn submitted(&self, plan: &Arc<Plan>, phases: &Arc<[PhaseMix]>) {
        let mut inner = self.inner();
        inner.submissions += 1;
        inner.uses += 1;
        let used = inner.uses;
        let key = Arc::as_ptr(plan) as usize;
        let runs = inner.plans.entry(key).or_insert_with(|| PlanRuns {
            plan: Arc::clone(plan),
            phases: Arc::clone(phases),
            runs: BTreeMap::new(),
            used,
        });
        runs.used = used;
        if inner.plans.len() > PLANS {
            inner.forget_oldest();
        }
    }
}

impl Inner {
    /// Merges the plan that was not used for longest into the row of others.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.plans.iter().min_by_key(|(_, p)| p.used).map(|(k, _)| *k) else { return };
        let Some(gone) = self.plans.remove(&oldest) else { return };
        for (steps, total) in &gone.runs {
            self.others.ns += total.ns;
            self.others.count += total.count;
            let PhaseMix(mix) = phase_of(&gone.phases, steps);
            (0..3).for_each(|phase| self.others_by_phase[phase] += mix[phase] * total.ns as f64);
        }
        self.device.retain(|event| event.plan != oldest);
    }
}

/// The phases of a run: those of its first step.
pub(crate) fn phase_of(phases: &[PhaseMix], steps: &[u32]) -> PhaseMix {
    steps.first().and_then(|step| phases.get(*step as usize).copied()).unwrap_or_default()
}

/// Keeps the newest.
fn keep<T>(events: &mut VecDeque<T>, dropped: &mut u64, event: T) {
    if events.len() >= EVENTS {
        events.pop_front();
        *dropped += 1;
    }
    events.push_back(event);
}

impl Watch for Profile {
    fn enter(&self, stage: Stage) {
        STACK.with_borrow_mut(|stack| {
            if let Some(top) = stack.last_mut() {
                // An operation made of others is one recording, and so is what a gradient records.
                if stage == Stage::Record && matches!(top.stage, Stage::Record | Stage::Differentiate) {
                    top.within += 1;
                    return;
                }
            }
            let now = now_ns();
            if let Some(top) = stack.last_mut() {
                top.own_ns += now - top.last_ns;
            }
            stack.push(Frame { stage, start_ns: now, last_ns: now, own_ns: 0, within: 0 });
        });
    }

    fn leave(&self) {
        let ended = STACK.with_borrow_mut(|stack| {
            let top = stack.last_mut()?;
            if top.within > 0 {
                top.within -= 1;
                return None;
            }
            let now = now_ns();
            top.own_ns += now - top.last_ns;
            let ended = stack.pop();
            if let Some(parent) = stack.last_mut() {
                parent.last_ns = now;
            }
            ended.map(|frame| (frame, now))
        });
        let Some((frame, end_ns)) = ended else { return };
        let (phase, thread) = (phase(), THREAD.with(|t| *t));
        let column = match frame.stage {
            Stage::Record | Stage::Differentiate => phase as usize,
            _ => 3,
        };
        let mut inner = self.inner();
        let inner = &mut *inner;
        if inner.since_ns.is_none_or(|since| frame.start_ns < since) {
            return;
        }
        inner.totals.entry(frame.stage).or_default()[column].add(frame.own_ns);
        let name = || std::thread::current().name().unwrap_or("thread").to_owned();
        inner.threads.entry(thread).or_insert_with(name);
        let event = HostEvent { stage: frame.stage, phase, thread, start_ns: frame.start_ns, end_ns };
        keep(&mut inner.host, &mut inner.dropped, event);
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn ran(&self, plan: &Arc<Plan>, runs: &[Ran]) {
        let key = Arc::as_ptr(plan) as usize;
        let mut inner = self.inner();
        let inner = &mut *inner;
        let (Some(since), Some(first), Some(last)) = (inner.since_ns, runs.first(), runs.last()) else {
            return;
        };
        let Some(of) = inner.plans.get_mut(&key) else { return };
        if first.start_ns < since {
            return;
        }
        for ran in runs {
            let ns = ran.end_ns.saturating_sub(ran.start_ns);
            match of.runs.get_mut(&ran.steps) {
                Some(total) => total.add(ns),
                None => of.runs.entry(Arc::clone(&ran.steps)).or_default().add(ns),
            }
            inner.busy_ns += ns;
            keep(&mut inner.device, &mut inner.dropped, DeviceEvent { plan: key, ran: ran.clone() });
        }
        if inner.last_end_ns > 0 {
            inner.gap_ns += first.start_ns.saturating_sub(inner.last_end_ns);
        }
        inner.last_end_ns = inner.last_end_ns.max(last.end_ns);
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Profile({}, {} steps)", self.device, self.inner().steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_without_those_inside() {
        let profile = Profile::new("test");
        profile.switch(true);
        let nap = || std::thread::sleep(std::time::Duration::from_millis(5));
        profile.enter(Stage::Plan);
        nap();
        profile.enter(Stage::Fuse);
        nap();
        nap();
        profile.leave();
        profile.leave();
        let inner = profile.inner();
        let ns = |stage: Stage| inner.totals[&stage][3].ns as f64 / 1e6;
        assert!(ns(Stage::Fuse) >= 10.0 && ns(Stage::Plan) >= 5.0, "{} {}", ns(Stage::Fuse), ns(Stage::Plan));
        let event = |stage| inner.host.iter().find(|e| e.stage == stage).map(|e| (e.start_ns, e.end_ns));
        let (outer, within) = (event(Stage::Plan).unwrap(), event(Stage::Fuse).unwrap());
        assert!(outer.0 <= within.0 && within.1 <= outer.1);
        let both = (outer.1 - outer.0) as f64 / 1e6;
        assert!((ns(Stage::Plan) + ns(Stage::Fuse) - both).abs() < 0.1);
    }

    #[test]
    fn what_a_gradient_records_is_differentiation() {
        let profile = Profile::new("test");
        profile.switch(true);
        let backward = InPhase::enter(Phase::Backward);
        profile.enter(Stage::Differentiate);
        profile.enter(Stage::Record);
        profile.enter(Stage::Record);
        profile.leave();
        profile.leave();
        profile.leave();
        drop(backward);
        assert_eq!(phase(), Phase::Forward);
        let inner = profile.inner();
        assert_eq!(inner.totals.keys().collect::<Vec<_>>(), [&Stage::Differentiate]);
        assert_eq!(inner.totals[&Stage::Differentiate][Phase::Backward as usize].count, 1);
    }

    #[test]
    fn what_began_before_it_was_on_does_not_count() {
        let profile = Profile::new("test");
        profile.enter(Stage::Wait);
        profile.switch(true);
        profile.leave();
        assert!(profile.inner().totals.is_empty());
        profile.enter(Stage::Wait);
        profile.leave();
        assert_eq!(profile.inner().totals[&Stage::Wait][3].count, 1);
        profile.reset();
        assert!(profile.inner().totals.is_empty() && profile.inner().since_ns.is_some());
    }

    #[test]
    fn events_and_totals_do_not_grow() {
        let profile = Profile::new("test");
        profile.switch(true);
        for _ in 0..2 * EVENTS {
            profile.enter(Stage::Submit);
            profile.leave();
        }
        let inner = profile.inner();
        assert_eq!((inner.host.len(), inner.dropped), (EVENTS, EVENTS as u64));
        assert_eq!(inner.totals[&Stage::Submit][3].count, 2 * EVENTS as u64);
    }
}
