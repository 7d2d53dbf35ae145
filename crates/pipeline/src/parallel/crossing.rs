//! Where the devices that share a layer meet inside a stage, forward and backward.
//!
//! A stage of a shard is recorded in pieces: what comes before a meeting is computed and summed on the host, and
//! the sum is an input of what comes after. The backward pass is recorded from the last piece to the first, once
//! the forward pass is whole.

use std::cell::RefCell;
use std::rc::Rc;

use wgrad_autograd::{Pass, Tensor, vjp_found};
use wgrad_graph::{HostTensor, Result, Shape, bail};
use wgrad_nn::ParamSet;

use super::Calls;

/// How a value goes from one piece to the next.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Meeting {
    /// Every rank goes on with the same value; its gradients are summed.
    Copy,
    /// The values of all ranks are summed; every rank has the whole gradient.
    Sum,
    /// The last axis is put together from all ranks' parts; each has the gradient of its own.
    Gather { start: usize, len: usize, all: usize },
}

/// A value before and after a meeting.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Crossing {
    meeting: Meeting,
    from: Tensor,
    to: Tensor,
}

/// What is recorded on this thread.
#[derive(Clone)]
enum Frame {
    /// To see shapes alone: nobody else is there.
    Trial,
    /// The stage of a rank.
    Rank(Rc<Tape>),
}

struct Tape {
    pass: Pass,
    calls: Calls,
    learns: bool,
    /// What gradients may be asked of: inputs and parameters.
    leaves: Vec<Tensor>,
    crossings: RefCell<Vec<Crossing>>,
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// Takes the last frame off when dropped, also on unwind.
struct Entered;

impl Entered {
    fn enter(frame: Frame) -> Self {
        FRAMES.with_borrow_mut(|frames| frames.push(frame));
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A thread that ends takes its list along.
        let _left = FRAMES.try_with(|frames| frames.borrow_mut().pop());
    }
}

/// Records `f` for its shapes: meetings give what they are given.
pub(crate) fn trial<T>(f: impl FnOnce() -> T) -> T {
    let _entered = Entered::enter(Frame::Trial);
    f()
}

/// Records the forward pass `f` of a rank's stage: its outputs, and the meetings on the way. `learns` are the parameters,
/// where a backward pass follows.
pub(crate) fn crossed(
    pass: Pass,
    calls: Calls,
    inputs: &[Tensor],
    learns: Option<&ParamSet>,
    f: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<(Pass, Vec<Tensor>, Vec<Crossing>)> {
    let mut leaves = Vec::new();
    if let Some(params) = learns {
        for input in inputs {
            if input.try_out()?.dtype.is_float() {
                leaves.push(*input);
            }
        }
        leaves.extend(params.iter().map(|p| p.t()));
    }
    let tape = Tape { pass, calls, learns: learns.is_some(), leaves, crossings: RefCell::default() };
    let tape = Rc::new(tape);
    let outputs = {
        let _entered = Entered::enter(Frame::Rank(Rc::clone(&tape)));
        tape.pass.within(f)?
    };
    match Rc::try_unwrap(tape) {
        Ok(tape) => Ok((tape.pass, outputs, tape.crossings.into_inner())),
        Err(_) => bail!(Argument, "shard", "the pass of a stage is held beyond its forward pass"),
    }
}

/// Takes a value over a meeting of all ranks.
///
/// # Errors
/// `Argument` outside the stages of a mesh; what the device and the other ranks meet.
pub(super) fn cross(meeting: Meeting, from: Tensor) -> Result<Tensor> {
    let tape = match FRAMES.with_borrow(|frames| frames.last().cloned()) {
        Some(Frame::Rank(tape)) => tape,
        Some(Frame::Trial) => return alone(meeting, from),
        None => {
            bail!(Argument, "shard", "a layer that is shared by devices works in the stages of a mesh only")
        }
    };
    let to = match meeting {
        Meeting::Copy => from.try_detach()?,
        Meeting::Sum | Meeting::Gather { .. } => {
            tape.compute(from)?;
            let out = from.try_out()?;
            let mut values = from.read()?.to_vec::<f32>();
            let value = match meeting {
                Meeting::Gather { all, .. } => gathered(&tape.calls.all_gather(&values, out.shape)?, all)?,
                _ => {
                    tape.calls.all_reduce(&mut values, out.shape)?;
                    HostTensor::new(out.shape, &values)?
                }
            };
            tape.pass.input(value.cast(out.dtype))?
        }
    };
    tape.crossings.borrow_mut().push(Crossing { meeting, from, to });
    Ok(to)
}

/// A value of the right shape.
fn alone(meeting: Meeting, from: Tensor) -> Result<Tensor> {
    match meeting {
        Meeting::Copy | Meeting::Sum => Ok(from),
        Meeting::Gather { all, .. } => {
            let shape = from.try_out()?.shape;
            let lead = &shape.dims()[..shape.rank() - 1];
            from.try_narrow(-1, 0, 1)?.try_expand([lead, &[all]].concat().as_slice())
        }
    }
}

/// Parts of the last axis side by side.
fn gathered(parts: &[(Shape, Vec<f32>)], all: usize) -> Result<HostTensor> {
    let first = parts[0].0;
    let Some((last, lead)) = first.dims().split_last() else {
        bail!(Shape, "shard", "a number has no parts")
    };
    let fits = |(shape, _): &(Shape, Vec<f32>)| shape.dims().split_last().is_some_and(|(_, l)| l == lead);
    let widths: Vec<usize> = parts.iter().filter(|p| fits(p)).map(|(s, _)| s[s.rank() - 1]).collect();
    if widths.len() != parts.len() || widths.iter().sum::<usize>() != all {
        let shapes: Vec<String> = parts.iter().map(|(s, _)| s.to_string()).collect();
        bail!(Shape, "shard", "{} do not make {all} columns (rank 0 has {last})", shapes.join(", "));
    }
    let mut values = Vec::new();
    for row in 0..lead.iter().product() {
        for ((_, part), width) in parts.iter().zip(&widths) {
            values.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    HostTensor::new(Shape::new(&[lead, &[all]].concat()), &values)
}

impl Tape {
    /// Computes a value, and keeps what its gradients will need and what is dear to compute again.
    fn compute(&self, value: Tensor) -> Result<()> {
        let mut later = Vec::new();
        if self.learns {
            // Only to see what they need: the true gradients are recorded when the forward pass is whole.
            let wanted: Vec<Tensor> =
                self.leaves.iter().copied().chain(self.crossings.borrow().iter().map(|c| c.to)).collect();
            later = vjp_found(&[value], &[value], &wanted)?;
        }
        self.pass.compute_for(&[value], &later.into_iter().flatten().collect::<Vec<_>>())
    }
}

/// The backward pass of a rank's stage.
pub(crate) struct Backward {
    /// The gradients asked for.
    pub(crate) found: Vec<Option<Tensor>>,
    /// Gradients that are summed over ranks, in the order in which they can be computed, each with the input that
    /// stands for the sum.
    pub(crate) copied: Vec<(Tensor, Tensor)>,
}

impl Backward {
    /// Records the gradients of `wanted`, from the last meeting to the first.
    pub(crate) fn record(
        pass: &Pass,
        outputs: &[Tensor],
        cotangents: &[Tensor],
        wanted: &[Tensor],
        crossings: &[Crossing],
    ) -> Result<Self> {
        // Gradients end at what came out of a meeting, and begin anew at what went in.
        let all: Vec<Tensor> = wanted.iter().copied().chain(crossings.iter().map(|c| c.to)).collect();
        let mut found = vjp_found(outputs, cotangents, &all)?;
        let mut copied = Vec::new();
        for (i, crossing) in crossings.iter().enumerate().rev() {
            let Some(arrived) = found[wanted.len() + i] else { continue };
            let mut summed = None;
            let cotangent = match crossing.meeting {
                Meeting::Sum => arrived,
                Meeting::Gather { start, len, .. } => arrived.try_narrow(-1, start, len)?,
                Meeting::Copy => {
                    let out = arrived.try_out()?;
                    let zeros = HostTensor::new(out.shape, &vec![0f32; out.shape.elems()])?.cast(out.dtype);
                    let place = pass.input(zeros)?;
                    summed = Some((arrived, place));
                    place
                }
            };
            // What came out of later meetings cannot depend on it.
            let more = vjp_found(&[crossing.from], &[cotangent], &all[..wanted.len() + i])?;
            // Nobody asks for the gradient of data.
            copied.extend(summed.filter(|_| more.iter().any(Option::is_some)));
            for (sum, more) in found.iter_mut().zip(more) {
                *sum = match (*sum, more) {
                    (Some(sum), Some(more)) => Some(sum.try_add(more)?),
                    (sum, more) => sum.or(more),
                };
            }
        }
        found.truncate(wanted.len());
        Ok(Self { found, copied })
    }
}
