//! What crosses from device to device, beside the stages' threads.
//!
//! Each edge and direction is a [`Lane`] with two threads. One waits until a value has reached the host and gives
//! it to the [`Transport`]; the other takes it there and brings it to the next device ahead of its use. A stage's
//! thread leaves at one end what it made and goes on, and takes at the other end what lies on its device
//! already.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wgrad_autograd::{Placed, Reading, Reserved};
use wgrad_graph::{ErrorKind, HostTensor, Result, bail};

use super::control::{Control, SLICE};
use super::error::{guarded, placed};
use super::report::worst;
use super::transport::{Parcel, Ring, Transport};
use super::worker::Job;
use crate::schedule::{Message, Schedule, Wiring};

/// A bounded queue from one thread to another.
struct Queue<T> {
    room: usize,
    state: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn new(room: usize) -> Self {
        Self { room, state: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`, to `deadline` if there is one.
    fn wait(
        &self,
        deadline: Option<Instant>,
        what: impl Fn() -> String,
        ready: impl Fn(&VecDeque<T>) -> bool,
    ) -> Result<MutexGuard<'_, (VecDeque<T>, bool)>> {
        let (begun, mut state) = (Instant::now(), self.lock());
        loop {
            if state.1 {
                bail!(User, "pipeline", "the step has failed elsewhere");
            }
            if ready(&state.0) {
                return Ok(state);
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let now = Instant::now();
                    if now >= deadline {
                        bail!(
                            Timeout,
                            "pipeline",
                            "waited {:.1} s for {}",
                            (now - begun).as_secs_f64(),
                            what()
                        );
                    }
                    self.changed.wait_timeout(state, deadline - now).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Waits for room; only the thread that waits pushes.
    fn await_room(&self, deadline: Option<Instant>, what: impl Fn() -> String) -> Result<()> {
        self.wait(deadline, what, |items| items.len() < self.room).map(|_| ())
    }

    fn push(&self, item: T) {
        self.lock().0.push_back(item);
        self.changed.notify_all();
    }

    fn pop(&self, deadline: Option<Instant>, what: impl Fn() -> String) -> Result<T> {
        let mut state = self.wait(deadline, what, |items| !items.is_empty())?;
        let item = state.0.pop_front().expect("it was just found");
        self.changed.notify_all();
        Ok(item)
    }

    /// Ends every wait, and drops what lies here.
    fn close(&self) {
        let mut state = self.lock();
        state.1 = true;
        let dropped = std::mem::take(&mut state.0);
        drop(state);
        drop(dropped);
        self.changed.notify_all();
    }
}

/// What a stage made for another: on the host, or on the way there.
#[derive(Clone, Debug)]
pub(super) enum Made {
    Here(HostTensor),
    /// With the error that rounding made, where it was rounded.
    Coming(Reading, Option<Reading>),
}

impl Made {
    /// The value, waited for; and when its copy could begin, if it had to be copied.
    pub(super) fn get(&self, control: &Control) -> Result<(HostTensor, Option<Instant>)> {
        match self {
            Made::Here(data) => Ok((data.clone(), None)),
            Made::Coming(reading, _) => Ok((Made::fetch(reading, control)?, reading.begun())),
        }
    }

    /// The error that rounding made.
    fn error(&self, control: &Control) -> Result<Option<f64>> {
        let Made::Coming(_, Some(error)) = self else { return Ok(None) };
        Ok(Made::fetch(error, control)?.to_vec::<f64>().first().copied())
    }

    fn fetch(reading: &Reading, control: &Control) -> Result<HostTensor> {
        control.watchfully(|timeout| reading.wait(timeout))
    }
}

/// A message that a stage has made.
struct Outgoing {
    message: Message,
    made: Vec<Made>,
    at: Instant,
}

/// A message that lies on the device of the stage that takes it.
pub(super) struct Incoming {
    pub(super) data: Vec<Placed>,
    pub(super) bytes: u64,
    pub(super) sent: Instant,
    pub(super) arrived: Instant,
}

/// How a message went on its way, as the giving side saw it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Gave {
    pub(super) message: Message,
    /// When the stage's thread let go of it.
    pub(super) given: Instant,
    /// When its way began: what was computed before it had ended.
    pub(super) begun: Instant,
    /// When it was on the host.
    pub(super) read: Instant,
    /// The largest error that rounding made.
    pub(super) error: Option<f64>,
}

/// The way from one stage to another on another device.
pub(crate) struct Lane {
    from: usize,
    to: usize,
    /// What crosses, in the order in which it is taken.
    messages: Vec<Message>,
    transport: Arc<dyn Transport>,
    outgoing: Queue<Outgoing>,
    incoming: Queue<Incoming>,
    /// Memory on the taking device for the messages that may come ahead, in their order. The stage's thread sets it
    /// aside, at the same places of its list whenever messages come: so what the device holds does not depend on time.
    slots: Queue<Slot>,
    room: usize,
    /// For how many messages memory was set aside.
    set_aside: AtomicUsize,
}

/// Memory for the tensors of a message.
type Slot = Vec<Reserved>;

impl Lane {
    /// The lanes of a schedule; `make` makes their transports, if anybody does.
    pub(super) fn all(
        schedule: &Schedule,
        wiring: &Wiring,
        make: Option<&super::MakeTransport>,
    ) -> Vec<Arc<Lane>> {
        let mut lanes: Vec<Lane> = Vec::new();
        let taken = schedule.lists().iter().flatten().filter_map(|action| action.receives());
        for message in taken {
            let (from, to) = (message.from, message.to);
            if let Some(lane) = lanes.iter_mut().find(|lane| (lane.from, lane.to) == (from, to)) {
                lane.messages.push(message);
                continue;
            }
            let slots = wiring.slots(from, to);
            let transport = match make {
                Some(make) => make(from, to, slots),
                None => Arc::new(Ring::new(slots)),
            };
            let room = slots.max(1);
            let (outgoing, incoming, slots) = (Queue::new(room), Queue::new(room), Queue::new(room));
            let (messages, set_aside) = (vec![message], AtomicUsize::new(0));
            lanes.push(Lane { from, to, messages, transport, outgoing, incoming, slots, room, set_aside });
        }
        lanes.into_iter().map(Arc::new).collect()
    }

    pub(super) fn is_of(&self, message: Message) -> bool {
        (self.from, self.to) == (message.from, message.to)
    }

    /// Leaves what a stage made, waiting for a free slot.
    pub(super) fn give(&self, message: Message, made: Vec<Made>, control: &Control) -> Result<()> {
        let what = || format!("a free slot for {message:?}");
        control.patiently(|deadline| self.outgoing.await_room(Some(deadline), what))?;
        self.outgoing.push(Outgoing { message, made, at: Instant::now() });
        Ok(())
    }

    /// Takes what lies on the device, waiting for it; its place is for another message then.
    pub(super) fn take(&self, message: Message, job: &Job<'_>) -> Result<Incoming> {
        let what = || format!("{message:?} to arrive");
        let taken = job.control.patiently(|deadline| self.incoming.pop(Some(deadline), what))?;
        self.set_aside(1, job)?;
        Ok(taken)
    }

    /// Sets memory aside for the first messages, before anything is computed for which they are.
    pub(super) fn open(&self, job: &Job<'_>) -> Result<()> {
        let place = |e| placed(&job.edge_at(self.to, self.messages[0]), e);
        guarded(|| self.set_aside(self.room, job)).map_err(place)
    }

    /// Sets memory aside for so many messages more, as many as there are.
    fn set_aside(&self, count: usize, job: &Job<'_>) -> Result<()> {
        for _ in 0..count {
            let Some(&message) = self.messages.get(self.set_aside.load(Ordering::Relaxed)) else { break };
            let context = job.stages.context(self.to);
            let slot = job.outs_of(message).into_iter().map(|out| context.reserve(out.shape, out.dtype));
            self.slots.push(slot.collect::<Result<Slot>>()?);
            self.set_aside.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn leads_to(&self, stage: usize) -> bool {
        self.to == stage
    }

    /// Ends every wait: the step has failed.
    pub(super) fn close(&self) {
        self.transport.close();
        self.outgoing.close();
        self.incoming.close();
        self.slots.close();
    }

    /// The giving side, to its end. An error ends the step.
    pub(super) fn give_all(&self, job: &Job<'_>) -> Vec<Gave> {
        let mut gave = Vec::new();
        for _ in &self.messages {
            // Nobody comes when the step has failed; whoever failed has said why.
            let Ok(next) = self.outgoing.pop(None, String::new) else { break };
            let message = next.message;
            match guarded(|| self.carry(next, job)) {
                Ok(done) => gave.push(done),
                Err(error) => {
                    job.control.fail(placed(&job.edge_at(self.from, message), error));
                    break;
                }
            }
        }
        gave
    }

    fn carry(&self, next: Outgoing, job: &Job<'_>) -> Result<Gave> {
        let Outgoing { message, made, at: given } = next;
        let (mut tensors, mut begun, mut error) = (Vec::new(), None, None);
        for made in &made {
            let (tensor, at) = made.get(&job.control)?;
            tensors.push(tensor);
            // Copies follow each other: the way of all begins with the first.
            begun = begun.or(at);
        }
        let read = Instant::now();
        for made in &made {
            error = worst(error, made.error(&job.control)?);
        }
        drop(made);
        let parcel = Parcel { message, step: job.step, tensors, sent: read, arrived: read };
        job.control.patiently(|deadline| self.transport.send(parcel.clone(), deadline))?;
        job.control.advance();
        let begun = begun.map_or(given, |begun: Instant| begun.max(given));
        Ok(Gave { message, given, begun, read, error })
    }

    /// The taking side, to its end. An error ends the step.
    pub(super) fn take_all(&self, job: &Job<'_>) {
        for &message in &self.messages {
            let Ok(slot) = self.slots.pop(None, String::new) else { return };
            match guarded(|| self.bring(message, slot, job)) {
                Ok(incoming) => self.incoming.push(incoming),
                Err(error) => return job.control.fail(placed(&job.edge_at(self.to, message), error)),
            }
            job.control.advance();
        }
    }

    fn bring(&self, message: Message, slot: Slot, job: &Job<'_>) -> Result<Incoming> {
        let parcel = loop {
            job.control.alive()?;
            // How long is too long, the stage that waits for it says.
            match self.transport.recv(message, Instant::now() + SLICE) {
                Err(error) if error.kind() == ErrorKind::Timeout => {}
                result => break result?,
            }
        };
        if (parcel.message, parcel.step) != (message, job.step) {
            let (got, of, step) = (parcel.message, parcel.step, job.step);
            bail!(Data, "pipeline", "{got:?} of step {of} came where {message:?} of step {step} was due");
        }
        let bytes = parcel.tensors.iter().map(|x| x.bytes().len() as u64).sum();
        let context = job.stages.context(self.to);
        let mut slot = slot.into_iter();
        let place = |x: &HostTensor| match slot.next() {
            Some(place) if (place.shape(), place.dtype()) == (x.shape(), x.dtype()) => place.fill(x),
            // Micro-batches of other shapes than the contract's find what memory they find.
            _ => context.put(x),
        };
        let data = parcel.tensors.iter().map(place).collect::<Result<_>>()?;
        Ok(Incoming { data, bytes, sent: parcel.sent, arrived: Instant::now() })
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_queue_is_bounded_and_ends_when_closed() {
        let queue: Queue<u32> = Queue::new(1);
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        queue.await_room(soon(), String::new).unwrap();
        queue.push(1);
        let full = queue.await_room(soon(), || "room".to_owned()).unwrap_err();
        assert!(full.kind() == ErrorKind::Timeout && full.to_string().contains("s for room"), "{full}");
        assert_eq!(queue.pop(soon(), String::new).unwrap(), 1);
        assert_eq!(queue.pop(soon(), String::new).unwrap_err().kind(), ErrorKind::Timeout);
        thread::scope(|scope| {
            let waits = scope.spawn(|| queue.pop(None, String::new));
            thread::sleep(Duration::from_millis(20));
            queue.close();
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::User);
        });
        assert!(queue.await_room(None, String::new).is_err(), "it stays closed");
    }
}
