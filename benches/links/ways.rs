//! The ways that are measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use wgrad::{ErrorKind, HostTensor, Result, bail};

use super::end::End;

/// How long one transfer may take.
const LONG: Duration = Duration::from_secs(60);
/// Reads that are under way at once, and values that wait to be placed.
const AHEAD: usize = 2;

/// 10^9 bytes a second in each direction, `None` where there is only one.
pub(crate) type Rates = (f64, Option<f64>);

#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Way {
    /// From A's device to the host.
    Down,
    /// From the host to A's device.
    Up,
    /// Both on A at once.
    DownAndUp,
    /// From A's device to B's.
    Over,
    /// That and from B's to A's at once.
    OverAndBack,
}

impl Way {
    pub(crate) const ALL: [Way; 5] = [Way::Down, Way::Up, Way::DownAndUp, Way::Over, Way::OverAndBack];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Down => "device to host",
            Way::Up => "host to device",
            Way::DownAndUp => "down and up at once",
            Way::Over => "A to B",
            Way::OverAndBack => "A to B and B to A",
        }
    }

    /// Whether the host copies anything on it.
    pub(crate) fn copies(self) -> bool {
        self != Way::Down
    }

    /// Moves a tensor and compares all its bytes.
    pub(crate) fn check(self, [a, b]: &[End; 2]) -> Result<()> {
        let same = |got: &HostTensor, want: &HostTensor| {
            if got != want {
                bail!(Data, "links", "{}: what arrived is not what was sent; nothing is timed", self.name());
            }
            Ok(())
        };
        let over = |from: &End, to: &End| {
            let read = from.kept.t().read_later()?.wait(LONG)?;
            same(&read, &from.host)?;
            let placed = to.ctx.put(&read)?;
            drop(read);
            same(&to.ctx.pass(|p| p.input(&placed)?.read())?, &from.host)
        };
        match self {
            Way::Down => same(&a.kept.t().read_later()?.wait(LONG)?, &a.host),
            Way::Up | Way::DownAndUp => {
                let placed = a.ctx.put(&a.host)?;
                same(&a.ctx.pass(|p| p.input(&placed)?.read())?, &a.host)
            }
            Way::Over => over(a, b),
            Way::OverAndBack => over(a, b).and_then(|()| over(b, a)),
        }
    }

    /// The rates of both directions, and each end's products a second meanwhile.
    pub(crate) fn measure(self, ends: &[End; 2], time: Duration, busy: bool) -> Result<(Rates, [f64; 2])> {
        let [a, b] = ends;
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let computing: Vec<_> =
                ends.iter().filter(|_| busy).map(|end| scope.spawn(|| end.compute_until(done))).collect();
            let first = scope.spawn(move || match self {
                Way::Down | Way::DownAndUp => down(a, time),
                Way::Up => up(a, time),
                Way::Over | Way::OverAndBack => over(a, b, time),
            });
            let second = match self {
                Way::DownAndUp => Some(scope.spawn(move || up(a, time))),
                Way::OverAndBack => Some(scope.spawn(move || over(b, a, time))),
                _ => None,
            };
            let failed = || wgrad::Error::new(ErrorKind::User, "links", "a thread panicked");
            let first = first.join().map_err(|_| failed());
            let second = second.map(|thread| thread.join().map_err(|_| failed()));
            done.store(true, Ordering::Release);
            let mut counts = [0.0; 2];
            for (count, thread) in counts.iter_mut().zip(computing) {
                *count = thread.join().map_err(|_| failed())??;
            }
            Ok(((first??, second.transpose()?.transpose()?), counts))
        })
    }
}

/// Runs `turn` for the time, once before it is timed; bytes of the tensor a second, in 10^9.
fn rate(bytes: usize, time: Duration, mut turn: impl FnMut() -> Result<()>) -> Result<f64> {
    turn()?;
    let (begun, mut count) = (Instant::now(), 0u32);
    while count < 3 || begun.elapsed() < time {
        turn()?;
        count += 1;
    }
    Ok(f64::from(count) * bytes as f64 / 1e9 / begun.elapsed().as_secs_f64())
}

fn down(end: &End, time: Duration) -> Result<f64> {
    let mut next = end.kept.t().read_later()?;
    rate(end.host.bytes().len(), time, || {
        let reading = std::mem::replace(&mut next, end.kept.t().read_later()?);
        reading.wait(LONG).map(|_| ())
    })
}

fn up(end: &End, time: Duration) -> Result<f64> {
    let mut count = 0;
    rate(end.host.bytes().len(), time, || {
        let placed = end.ctx.put(&end.host)?;
        count += 1;
        // Now and then, so that no more is counted than the device has taken.
        if count % 4 == 0 { end.settle(&placed) } else { Ok(()) }
    })
}

/// As a pipeline does it: one thread reads, one places.
fn over(from: &End, to: &End, time: Duration) -> Result<f64> {
    let (send, receive) = sync_channel::<HostTensor>(AHEAD);
    std::thread::scope(|scope| {
        let reads = scope.spawn(move || -> Result<()> {
            let mut coming = std::collections::VecDeque::new();
            loop {
                while coming.len() < AHEAD {
                    coming.push_back(from.kept.t().read_later()?);
                }
                let Some(reading) = coming.pop_front() else { return Ok(()) };
                // The other end has what it wanted.
                if send.send(reading.wait(LONG)?).is_err() {
                    return Ok(());
                }
            }
        });
        let mut count = 0;
        let rate = rate(from.host.bytes().len(), time, || {
            let Ok(host) = receive.recv() else { bail!(User, "links", "the reading thread has ended") };
            let placed = to.ctx.put(&host)?;
            drop(host);
            count += 1;
            if count % 4 == 0 { to.settle(&placed) } else { Ok(()) }
        });
        drop(receive);
        match reads.join() {
            Ok(Err(error)) => Err(error),
            _ => rate,
        }
    })
}
