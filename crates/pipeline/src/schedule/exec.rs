//! Runs lists as devices would: each its own in order, waiting for messages and for free slots.
//!
//! Every list is walked as far as it gets, over and over, until nothing moves. Lists and channels are
//! deterministic, so the times do not depend on the order of walking, and lists that stand still at the
//! end would stand still on real devices.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{Action, Kind, Message, Payload, Schedule};

/// Which messages share one ring of slots.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Channels {
    /// Each edge and direction has its own first-in first-out ring: the links of this crate.
    Edges,
    /// All that goes from one device to another shares one first-in first-out ring, as on a socket.
    Pairs,
    /// As `Pairs`, but a receive picks its message by tag, as in MPI.
    Tagged,
}

/// The rings between devices: which messages share one, and how many slots each has.
///
/// With 0 slots a send waits until the receiver takes the message.
///
/// # Example
/// ```
/// use wgrad_pipeline::Wiring;
/// let wiring = Wiring::edges(2).with(0, 3, 5);
/// assert_eq!(wiring.slots(0, 3), 5);
/// assert_eq!(wiring.slots(0, 1), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Which messages share one ring.
    pub channels: Channels,
    slots: usize,
    special: BTreeMap<(usize, usize), usize>,
}

impl Wiring {
    /// A ring of `slots` for each edge and direction.
    pub fn edges(slots: usize) -> Self {
        Self::new(Channels::Edges, slots)
    }

    /// Rings of `slots` for such channels.
    pub fn new(channels: Channels, slots: usize) -> Self {
        Self { channels, slots, special: BTreeMap::new() }
    }

    /// As many slots as it takes: nobody waits for one.
    pub fn unlimited() -> Self {
        Self::edges(usize::MAX)
    }

    /// Another number of slots from `from` to `to`: stages for [`Channels::Edges`], else devices.
    #[must_use]
    pub fn with(mut self, from: usize, to: usize, slots: usize) -> Self {
        self.special.insert((from, to), slots);
        self
    }

    /// The number of slots from `from` to `to`.
    pub fn slots(&self, from: usize, to: usize) -> usize {
        self.special.get(&(from, to)).copied().unwrap_or(self.slots)
    }

    /// The ring of a message.
    pub(super) fn channel(&self, schedule: &Schedule, message: Message) -> (Option<Payload>, usize, usize) {
        let Message { payload, from, to, .. } = message;
        match self.channels {
            // A message's direction says its payload, since edges lead to later stages.
            Channels::Edges => (Some(payload), from, to),
            _ => (None, schedule.devices()[from], schedule.devices()[to]),
        }
    }
}

/// One action with its time.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Span {
    /// The device that does it.
    pub device: usize,
    /// What it does.
    pub action: Action,
    /// When it starts.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// One handover with its times.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Passage {
    /// What crosses.
    pub message: Message,
    /// When the sender gives it to the link.
    pub sent: f64,
    /// When it lies in the receiver's slot.
    pub arrived: f64,
    /// When the receiver takes it.
    pub taken: f64,
}

/// How long things take.
pub(super) struct Times<'a> {
    /// The seconds of an action on its device.
    pub(super) action: &'a dyn Fn(Action) -> f64,
    /// The seconds that a message occupies its link, and those until it arrives after that.
    pub(super) message: &'a dyn Fn(Message) -> (f64, f64),
}

#[derive(Default)]
struct Ring {
    sent: usize,
    taken: Vec<f64>,
    waiting: VecDeque<Passage>,
}

/// A run of all lists.
pub(super) struct Run<'a> {
    schedule: &'a Schedule,
    wiring: &'a Wiring,
    times: Times<'a>,
    next: Vec<usize>,
    now: Vec<f64>,
    rings: HashMap<(Option<Payload>, usize, usize), Ring>,
    free: HashMap<(usize, usize), f64>,
    pub(super) spans: Vec<Span>,
    pub(super) passages: Vec<Passage>,
}

impl<'a> Run<'a> {
    /// Runs `schedule`, whose lists hold all sends and receives, as far as it gets.
    pub(super) fn new(schedule: &'a Schedule, wiring: &'a Wiring, times: Times<'a>) -> Self {
        let devices = schedule.lists().len();
        let mut run = Self {
            schedule,
            wiring,
            times,
            next: vec![0; devices],
            now: vec![0.0; devices],
            rings: HashMap::new(),
            free: HashMap::new(),
            spans: Vec::new(),
            passages: Vec::new(),
        };
        let mut moved = true;
        while moved {
            moved = false;
            for device in 0..devices {
                while run.step(device) {
                    moved = true;
                }
            }
        }
        run
    }

    /// The action that `device` stands at.
    pub(super) fn at(&self, device: usize) -> Option<Action> {
        self.schedule.lists()[device].get(self.next[device]).copied()
    }

    /// How far `device` came in its list.
    pub(super) fn index(&self, device: usize) -> usize {
        self.next[device]
    }

    /// Runs the next action of `device` if it can run.
    fn step(&mut self, device: usize) -> bool {
        let Some(action) = self.at(device) else { return false };
        let start = self.now[device];
        let end = if let Some(message) = action.sends() {
            self.send(device, message)
        } else if let Some(message) = action.receives() {
            self.receive(device, message)
        } else if action.kind == Kind::Update {
            self.barrier().map(|all| all.max(start) + (self.times.action)(action))
        } else {
            Some(start + (self.times.action)(action))
        };
        let Some(end) = end else { return false };
        let start = if action.kind == Kind::Update { end - (self.times.action)(action) } else { start };
        self.spans.push(Span { device, action, start, end });
        self.now[device] = end;
        self.next[device] += 1;
        true
    }

    /// When every device has come to its updates.
    fn barrier(&self) -> Option<f64> {
        let mut latest = 0.0_f64;
        for device in 0..self.now.len() {
            let done = &self.schedule.lists()[device][..self.next[device]];
            let first = done.iter().position(|a| a.kind == Kind::Update);
            let there = self.at(device).is_none_or(|a| a.kind == Kind::Update);
            latest = latest.max(match first {
                // It has passed the barrier, so its own first update began when all were there.
                Some(_) => {
                    self.spans.iter().find(|s| s.device == device && s.action.kind == Kind::Update)?.start
                }
                None if there => self.now[device],
                None => return None,
            });
        }
        Some(latest)
    }

    fn send(&mut self, device: usize, message: Message) -> Option<f64> {
        let key = self.wiring.channel(self.schedule, message);
        let slots = self.wiring.slots(key.1, key.2);
        let to = self.schedule.devices()[message.to];
        let awaited = self.at(to).and_then(Action::receives) == Some(message);
        let ring = self.rings.entry(key).or_default();
        let queued = ring.sent - ring.taken.len();
        let now = self.now[device];
        let given = if queued < slots {
            // The slot was freed by the receive `slots` messages ago.
            if ring.sent >= slots { now.max(ring.taken[ring.sent - slots]) } else { now }
        } else if awaited {
            // The receiver takes it at once, so it needs no slot.
            now.max(self.now[to])
        } else {
            return None;
        };
        let (occupied, latency) = (self.times.message)(message);
        let free = self.free.entry((device, to)).or_insert(0.0);
        let leaves = given.max(*free);
        *free = leaves + occupied;
        let arrived = leaves + occupied + latency;
        ring.sent += 1;
        ring.waiting.push_back(Passage { message, sent: given, arrived, taken: arrived });
        Some(given)
    }

    fn receive(&mut self, device: usize, message: Message) -> Option<f64> {
        let key = self.wiring.channel(self.schedule, message);
        let ring = self.rings.get_mut(&key)?;
        let place = match self.wiring.channels {
            Channels::Tagged => ring.waiting.iter().position(|p| p.message == message)?,
            _ => (ring.waiting.front()?.message == message).then_some(0)?,
        };
        let mut passage = ring.waiting.remove(place)?;
        passage.taken = self.now[device].max(passage.arrived);
        ring.taken.push(passage.taken);
        self.passages.push(passage);
        Some(passage.taken)
    }

    /// The message that lies first in the ring of `message`, if it is another one.
    pub(super) fn in_the_way(&self, message: Message) -> Option<Message> {
        let ring = self.rings.get(&self.wiring.channel(self.schedule, message))?;
        let first = ring.waiting.front()?.message;
        (first != message && self.wiring.channels != Channels::Tagged).then_some(first)
    }
}
