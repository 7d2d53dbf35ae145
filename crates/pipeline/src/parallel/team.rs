//! The collective between the threads of one process.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Result, Shape, bail};

use super::Collective;
use super::add::Adder;

/// What a rank asks for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Op {
    AllReduce,
    /// Of what is not copied.
    AllReduceLent,
    AllGather,
    Broadcast {
        root: usize,
    },
    Barrier,
}

/// A call, as it is compared between ranks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Call {
    number: u64,
    op: Op,
    shape: Shape,
}

impl Call {
    /// Whether two ranks that make these calls do one thing together.
    fn fits(&self, other: &Call) -> bool {
        let shapes = match self.op {
            Op::AllGather => self.shape.rank() == other.shape.rank(),
            _ => self.shape == other.shape,
        };
        shapes && (self.number, self.op) == (other.number, other.op)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { number, op, shape } = self;
        write!(f, "call {number}, {op:?} of {shape}")
    }
}

/// How far a rank's call has got: a call that ran out of time goes on from here.
#[derive(Default)]
struct Progress {
    /// The number of the next call.
    number: u64,
    call: Option<(Call, Phase)>,
}

/// A meeting that a rank has come to.
#[derive(Copy, Clone)]
enum Phase {
    /// All have posted what they have.
    Posted(u64),
    /// All have made their part of it.
    Made(u64),
}

#[derive(Default)]
struct Meeting {
    /// The calls of the ranks that are there.
    there: Vec<Option<Call>>,
    /// Meetings that are over.
    over: u64,
    closed: Option<Error>,
}

/// What a rank has given.
#[derive(Default)]
struct Post {
    shape: Option<Shape>,
    values: Vec<f32>,
    /// What is not copied.
    lent: Vec<HostTensor>,
}

#[derive(Default)]
struct Made {
    values: Vec<f32>,
    shapes: Vec<Shape>,
    /// What all ranks have lent.
    lent: Vec<Vec<HostTensor>>,
}

/// What a rank gives in a call.
#[derive(Copy, Clone)]
enum Gift<'a> {
    Copied(&'a [f32]),
    Lent(&'a [HostTensor]),
}

impl Gift<'_> {
    fn elems(self) -> usize {
        match self {
            Gift::Copied(values) => values.len(),
            Gift::Lent(all) => all.iter().map(|x| x.shape().elems()).sum(),
        }
    }
}

/// What the ranks share.
struct Room {
    meeting: Mutex<Meeting>,
    changed: Condvar,
    /// What each rank has given.
    posts: Vec<RwLock<Post>>,
    /// What each rank has made of them: its share of the sum, or all that it takes. Only changed once all ranks
    /// have come to the next call.
    made: Vec<RwLock<Made>>,
    adder: Adder,
}

/// The [`Collective`] between threads of one process: each rank adds up its share of the elements in the order of
/// ranks, and then all take the whole. Buffers are used again.
///
/// ```
/// use std::time::{Duration, Instant};
/// use wgrad_graph::Shape;
/// use wgrad_pipeline::{Collective, Team};
/// let deadline = Instant::now() + Duration::from_secs(10);
/// let sums: Vec<f32> = std::thread::scope(|s| {
///     let threads: Vec<_> = Team::of(3)
///         .into_iter()
///         .map(|team| {
///             s.spawn(move || {
///                 let mut values = [team.rank() as f32 + 1.0];
///                 team.all_reduce(&mut values, Shape::from([1]), deadline).map(|()| values[0])
///             })
///         })
///         .collect();
///     threads.into_iter().map(|t| t.join().expect("no panic").expect("no error")).collect()
/// });
/// assert_eq!(sums, [6.0; 3]);
/// ```
pub struct Team {
    rank: usize,
    room: Arc<Room>,
    progress: Mutex<Progress>,
}

impl Team {
    /// The ends of a group of `size` ranks, in their order.
    pub fn of(size: usize) -> Vec<Team> {
        let meeting = Meeting { there: vec![None; size], ..Default::default() };
        let room = Arc::new(Room {
            meeting: Mutex::new(meeting),
            changed: Condvar::new(),
            posts: (0..size).map(|_| RwLock::default()).collect(),
            made: (0..size).map(|_| RwLock::default()).collect(),
            adder: Adder::among(size),
        });
        let team = |rank| Team { rank, room: Arc::clone(&room), progress: Mutex::default() };
        (0..size).map(team).collect()
    }

    /// Runs a call from where it is: posts `gift`, lets `make` work on what all have posted, and waits until all
    /// have done so. What they made stays until this rank makes its next call.
    fn call(
        &self,
        (op, shape): (Op, Shape),
        gift: Gift<'_>,
        deadline: Instant,
        make: impl FnOnce(&mut Made, &[RwLock<Post>]),
    ) -> Result<()> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let call = Call { number: progress.number, op, shape };
        match &progress.call {
            Some((before, _)) if *before != call => {
                bail!(Argument, "collective", "rank {}: {call} while {before} goes on", self.rank)
            }
            Some(_) => {}
            None => {
                if gift.elems() != shape.elems() {
                    bail!(Shape, "collective", "{} values are not of shape {shape}", gift.elems());
                }
                let mut post = self.room.posts[self.rank].write().unwrap_or_else(PoisonError::into_inner);
                post.shape = Some(shape);
                post.values.clear();
                match gift {
                    Gift::Copied(values) => post.values.extend_from_slice(values),
                    Gift::Lent(all) => post.lent.extend_from_slice(all),
                }
                drop(post);
                progress.call = Some((call, Phase::Posted(self.room.come(self.rank, call))));
            }
        }
        if let Some((_, Phase::Posted(meeting))) = progress.call {
            self.room.wait(self.rank, meeting, call, deadline)?;
            let mut made = self.room.made[self.rank].write().unwrap_or_else(PoisonError::into_inner);
            made.values.clear();
            made.shapes.clear();
            make(&mut made, &self.room.posts);
            drop(made);
            progress.call = Some((call, Phase::Made(self.room.come(self.rank, call))));
        }
        if let Some((_, Phase::Made(meeting))) = progress.call {
            self.room.wait(self.rank, meeting, call, deadline)?;
        }
        // Whoever lent it gets it back when the others have done with it.
        self.room.posts[self.rank].write().unwrap_or_else(PoisonError::into_inner).lent.clear();
        *progress = Progress { number: call.number + 1, call: None };
        Ok(())
    }

    fn made(&self, rank: usize) -> RwLockReadGuard<'_, Made> {
        self.room.made[rank].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The elements that a rank sums.
    fn share(&self, rank: usize, len: usize) -> Range<usize> {
        let at = |rank: usize| len * rank / self.size();
        at(rank)..at(rank + 1)
    }
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank comes to the next meeting; the last one to come compares the calls. The meeting's number.
    fn come(&self, rank: usize, call: Call) -> u64 {
        let mut meeting = self.lock();
        let this = meeting.over;
        if meeting.closed.is_some() {
            return this;
        }
        meeting.there[rank] = Some(call);
        if let Some(calls) = meeting.there.iter().copied().collect::<Option<Vec<Call>>>() {
            if let Some(other) = calls.iter().position(|c| !c.fits(&calls[0])) {
                let text = format!("rank 0 makes {}; rank {other} makes {}", calls[0], calls[other]);
                meeting.closed.get_or_insert(Error::new(ErrorKind::Data, "collective", text));
            } else {
                meeting.over += 1;
            }
            meeting.there.fill(None);
            self.changed.notify_all();
        }
        this
    }

    /// Waits until a meeting is over.
    fn wait(&self, rank: usize, this: u64, call: Call, deadline: Instant) -> Result<()> {
        let begun = Instant::now();
        let mut meeting = self.lock();
        loop {
            if meeting.over > this {
                return Ok(());
            }
            if let Some(error) = &meeting.closed {
                return Err(error.clone());
            }
            let now = Instant::now();
            if now >= deadline {
                let missing: Vec<usize> =
                    (0..meeting.there.len()).filter(|r| meeting.there[*r].is_none()).collect();
                let waited = (now - begun).as_secs_f64();
                bail!(
                    Timeout,
                    "collective",
                    "rank {rank} waited {waited:.1} s for ranks {missing:?} in {call}"
                );
            }
            let left = self.changed.wait_timeout(meeting, deadline - now);
            meeting = left.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Collective for Team {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.room.posts.len()
    }

    fn all_reduce(&self, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        let own = self.share(self.rank, shape.elems());
        self.call((Op::AllReduce, shape), Gift::Copied(values), deadline, |made, posts| {
            for (rank, post) in posts.iter().enumerate() {
                let post = post.read().unwrap_or_else(PoisonError::into_inner);
                let part = &post.values[own.clone()];
                match rank {
                    0 => made.values.extend_from_slice(part),
                    _ => made.values.iter_mut().zip(part).for_each(|(sum, x)| *sum += x),
                }
            }
        })?;
        for rank in 0..self.size() {
            values[self.share(rank, shape.elems())].copy_from_slice(&self.made(rank).values);
        }
        Ok(())
    }

    /// Each rank adds up all elements for itself, by several threads, from where they lie.
    fn sum(&self, own: &[HostTensor], deadline: Instant) -> Result<Vec<HostTensor>> {
        let floats: Vec<HostTensor> = own.iter().map(|x| x.cast(DType::F32)).collect();
        let gift = Gift::Lent(&floats);
        self.call((Op::AllReduceLent, Shape::from([gift.elems()])), gift, deadline, |made, posts| {
            let lent = |post: &RwLock<Post>| post.read().unwrap_or_else(PoisonError::into_inner).lent.clone();
            made.lent = posts.iter().map(lent).collect();
        })?;
        let mut made = self.room.made[self.rank].write().unwrap_or_else(PoisonError::into_inner);
        let lent = std::mem::take(&mut made.lent);
        drop(made);
        let sums = self.room.adder.sums(&lent)?;
        Ok(sums.into_iter().zip(own).map(|(sum, own)| sum.cast(own.dtype())).collect())
    }

    fn all_gather(&self, own: &[f32], shape: Shape, deadline: Instant) -> Result<Vec<(Shape, Vec<f32>)>> {
        self.call((Op::AllGather, shape), Gift::Copied(own), deadline, |made, posts| {
            for post in posts {
                let post = post.read().unwrap_or_else(PoisonError::into_inner);
                made.values.extend_from_slice(&post.values);
                made.shapes.extend(post.shape);
            }
        })?;
        let (made, mut start) = (self.made(self.rank), 0);
        let part = |shape: &Shape| {
            start += shape.elems();
            (*shape, made.values[start - shape.elems()..start].to_vec())
        };
        Ok(made.shapes.iter().map(part).collect())
    }

    fn broadcast(&self, root: usize, values: &mut [f32], shape: Shape, deadline: Instant) -> Result<()> {
        if root >= self.size() {
            bail!(Argument, "collective", "rank {root} of {}", self.size());
        }
        self.call((Op::Broadcast { root }, shape), Gift::Copied(values), deadline, |made, posts| {
            let post = posts[root].read().unwrap_or_else(PoisonError::into_inner);
            made.values.extend_from_slice(&post.values);
        })?;
        values.copy_from_slice(&self.made(self.rank).values);
        Ok(())
    }

    fn barrier(&self, deadline: Instant) -> Result<()> {
        self.call((Op::Barrier, Shape::from([0])), Gift::Copied(&[]), deadline, |_, _| ())
    }

    fn close(&self) {
        let closed = Error::new(ErrorKind::User, "collective", "closed, since the step has failed elsewhere");
        self.room.lock().closed.get_or_insert(closed);
        self.room.changed.notify_all();
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team(rank {} of {})", self.rank, self.size())
    }
}
