//! How tensors get from stage to stage: bytes on the host, in rings of slots.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wgrad_graph::{HostTensor, Result, bail};

use crate::schedule::Message;

/// What a transport carries: a message's tensors, with the times of its way. Their bytes may lie in memory that the
/// giving device has lent: it goes back when the parcel is dropped.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Which message it is.
    pub message: Message,
    /// The number of the step.
    pub step: u64,
    /// What it carries: the outputs of the giving stage that the other takes, or their gradients, in the order in which
    /// that one names them. Shapes travel with them, so micro-batches may differ in theirs.
    pub tensors: Vec<HostTensor>,
    /// When it was given to the transport.
    pub sent: Instant,
    /// When it lay in the receiver's slot; the transport sets it.
    pub arrived: Instant,
}

/// The way over one edge in one direction, in the order of sending. What crosses processes or machines can
/// take the place of [`Ring`] without a change to schedules or runner.
pub trait Transport: Send + Sync {
    /// Gives a parcel to the transport, waiting for a free slot.
    ///
    /// # Errors
    /// `Timeout` after `deadline`, and the parcel is not sent then, since it is sent again where others get on
    /// meanwhile; `User` once it is closed.
    fn send(&self, parcel: Parcel, deadline: Instant) -> Result<()>;

    /// Takes the next parcel, which has to be `message`. It is asked again and again, each time for a short while.
    ///
    /// # Errors
    /// `Timeout` after `deadline`; `Data` when another message comes first; `User` once it is closed.
    fn recv(&self, message: Message, deadline: Instant) -> Result<Parcel>;

    /// Ends every wait, now and later: the step has failed.
    fn close(&self);
}

/// The bounded ring between two threads of a process.
///
/// With 0 slots a send waits until the receiver has taken the parcel.
pub struct Ring {
    slots: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Parcel>,
    sent: usize,
    taken: usize,
    closed: bool,
}

impl Ring {
    /// A ring with so many slots.
    pub fn new(slots: usize) -> Self {
        Self { slots, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`; what for is told when the deadline passes.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        deadline: Instant,
        what: impl fmt::Display,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        let begun = Instant::now();
        loop {
            if state.closed {
                bail!(User, "transport", "closed, since the step has failed elsewhere");
            }
            if ready(&state) {
                return Ok(state);
            }
            let now = Instant::now();
            if now >= deadline {
                let waited = (now - begun).as_secs_f64();
                bail!(Timeout, "transport", "waited {waited:.1} s for {what}");
            }
            let left = self.changed.wait_timeout(state, deadline - now);
            state = left.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for Ring {
    fn send(&self, mut parcel: Parcel, deadline: Instant) -> Result<()> {
        let room = self.slots.max(1);
        let what = format!("a free slot for {:?}", parcel.message);
        let mut state = self.wait(self.lock(), deadline, &what, |s| s.queue.len() < room)?;
        parcel.arrived = Instant::now();
        state.queue.push_back(parcel);
        state.sent += 1;
        self.changed.notify_all();
        if self.slots == 0 {
            let own = state.sent;
            let met = self.wait(state, deadline, "the receiver to take the parcel", |s| s.taken >= own);
            if let Err(error) = met {
                // Who sends again after this sends it once.
                let mut state = self.lock();
                if state.taken < own && state.queue.pop_back().is_some() {
                    state.sent -= 1;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn recv(&self, message: Message, deadline: Instant) -> Result<Parcel> {
        let what = format!("{message:?} to arrive");
        let mut state = self.wait(self.lock(), deadline, what, |s| !s.queue.is_empty())?;
        let first = state.queue[0].message;
        if first != message {
            bail!(Data, "transport", "{first:?} came where {message:?} was due");
        }
        let parcel = state.queue.pop_front().expect("it is not empty");
        state.taken += 1;
        self.changed.notify_all();
        Ok(parcel)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "Ring({} of {} slots, {} sent)", state.queue.len(), self.slots, state.sent)
    }
}

/// The way between two stages of one thread: what is sent lies there until it is taken, by message. Nobody
/// waits, since the other end is the same thread.
#[derive(Debug, Default)]
pub struct Loopback(Mutex<Vec<Parcel>>);

impl Transport for Loopback {
    fn send(&self, mut parcel: Parcel, _: Instant) -> Result<()> {
        parcel.arrived = Instant::now();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(parcel);
        Ok(())
    }

    fn recv(&self, message: Message, _: Instant) -> Result<Parcel> {
        let mut parcels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match parcels.iter().position(|p| p.message == message) {
            Some(place) => Ok(parcels.swap_remove(place)),
            None => bail!(Data, "transport", "{message:?} was not sent before it is taken"),
        }
    }

    fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use wgrad_graph::ErrorKind;

    use super::*;
    use crate::Payload;

    fn message(micro_batch: usize) -> Message {
        Message { payload: Payload::Activation, from: 0, to: 1, micro_batch }
    }

    fn parcel(micro_batch: usize) -> Parcel {
        let (tensor, now) = (HostTensor::new([1], &[micro_batch as f32]).unwrap(), Instant::now());
        Parcel { message: message(micro_batch), step: 0, tensors: vec![tensor], sent: now, arrived: now }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    #[test]
    fn a_ring_keeps_the_order_and_holds_no_more_than_its_slots() {
        let ring = Ring::new(2);
        ring.send(parcel(0), soon()).unwrap();
        ring.send(parcel(1), soon()).unwrap();
        let full = ring.send(parcel(2), soon()).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Timeout, "{full}");
        assert_eq!(ring.recv(message(1), soon()).unwrap_err().kind(), ErrorKind::Data);
        assert_eq!(ring.recv(message(0), soon()).unwrap().tensors[0].to_vec::<f32>(), [0.0]);
        ring.recv(message(1), soon()).unwrap();
        assert_eq!(ring.recv(message(2), soon()).unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[test]
    fn without_slots_both_ends_meet() {
        let ring = Ring::new(0);
        assert_eq!(ring.send(parcel(0), soon()).unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(ring.recv(message(0), soon()).unwrap_err().kind(), ErrorKind::Timeout, "it was not sent");
        thread::scope(|s| {
            let far = Instant::now() + Duration::from_secs(20);
            let sender = s.spawn(|| ring.send(parcel(0), Instant::now() + Duration::from_secs(20)));
            ring.recv(message(0), far).unwrap();
            sender.join().unwrap().unwrap();
        });
    }

    #[test]
    fn closing_ends_every_wait() {
        let ring = Ring::new(1);
        thread::scope(|s| {
            let waiting = s.spawn(|| ring.recv(message(0), Instant::now() + Duration::from_secs(60)));
            thread::sleep(Duration::from_millis(20));
            ring.close();
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::User);
        });
        assert!(ring.send(parcel(0), soon()).is_err(), "it stays closed");
    }

    #[test]
    fn loopback_gives_what_was_sent_by_message() {
        let way = Loopback::default();
        way.send(parcel(0), soon()).unwrap();
        way.send(parcel(1), soon()).unwrap();
        assert_eq!(way.recv(message(1), soon()).unwrap().tensors[0].to_vec::<f32>(), [1.0]);
        way.recv(message(0), soon()).unwrap();
        assert_eq!(way.recv(message(0), soon()).unwrap_err().kind(), ErrorKind::Data);
    }
}
