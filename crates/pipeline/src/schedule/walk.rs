//! The part of the proof that looks at one list at a time: everything once, nothing before what it needs.

use std::collections::HashSet;

use wgrad_graph::{Result, bail};

use super::{Action, Kind, Message, Payload, Schedule};

const OP: &str = "Schedule::check";

/// Checks that every list holds what it must, each once, and after what it needs on the same device.
pub(super) fn walk(schedule: &Schedule) -> Result<()> {
    let explicit = schedule.is_lowered();
    let mut done: HashSet<Action> = HashSet::new();
    for (device, list) in schedule.lists().iter().enumerate() {
        for (index, &action) in list.iter().enumerate() {
            let place = || format!("device {device}, action {index} ({})", schedule.label(action));
            if done.contains(&action) {
                bail!(Argument, OP, "{}: it stands there twice", place());
            }
            if let Some(why) = missing(schedule, explicit, &done, action) {
                bail!(Argument, OP, "{}: {why}", place());
            }
            done.insert(action);
        }
    }
    complete(schedule, explicit, &done)
}

/// Why `action` cannot run after `done`, as far as its own device knows.
fn missing(schedule: &Schedule, explicit: bool, done: &HashSet<Action>, action: Action) -> Option<String> {
    let Action { kind, stage, micro_batch: m } = action;
    let has = |kind, stage| done.contains(&Action::new(kind, stage, m));
    let back = |stage| has(Kind::Backward, stage) || has(Kind::BackwardInput, stage);
    let name = |kind| schedule.label(Action::new(kind, stage, m));
    match kind {
        Kind::Forward => inputs(schedule, explicit, done, action, true),
        Kind::Backward | Kind::BackwardInput => {
            if !has(Kind::Forward, stage) {
                return Some(format!("{} has not run before it", name(Kind::Forward)));
            }
            if back(stage) {
                return Some("the gradient of these inputs was already computed".into());
            }
            inputs(schedule, explicit, done, action, false)
        }
        Kind::BackwardWeight => (!has(Kind::BackwardInput, stage))
            .then(|| format!("{} has not run before it", name(Kind::BackwardInput))),
        Kind::SendActivation { .. } | Kind::SendGradient { .. } => {
            let message = action.sends()?;
            if let Some(why) = stray(schedule, message) {
                return Some(why);
            }
            let made =
                if message.payload == Payload::Activation { has(Kind::Forward, stage) } else { back(stage) };
            (!made).then(|| "what it sends has not been computed before it".into())
        }
        Kind::RecvActivation { .. } | Kind::RecvGradient { .. } => stray(schedule, action.receives()?),
        Kind::Reduce | Kind::Update => {
            if m != 0 {
                return Some("it belongs to the whole step; its micro-batch must be 0".into());
            }
            let early = (0..schedule.micro_batches()).find(|&m| {
                let has = |kind| done.contains(&Action::new(kind, stage, m));
                !has(Kind::Backward) && !has(Kind::BackwardWeight)
            });
            early.map(|m| format!("the gradients of micro-batch {m} are not complete before it"))
        }
    }
}

/// The first input of a forward or backward pass that is not there.
fn inputs(
    schedule: &Schedule,
    explicit: bool,
    done: &HashSet<Action>,
    action: Action,
    forward: bool,
) -> Option<String> {
    let Action { stage, micro_batch: m, .. } = action;
    for (other, edge) in schedule.needs(stage, forward) {
        let has = |kind| done.contains(&Action::new(kind, other, m));
        if !schedule.crosses(edge) {
            let made =
                if forward { has(Kind::Forward) } else { has(Kind::Backward) || has(Kind::BackwardInput) };
            if !made {
                return Some(format!("stage {other} has not run for micro-batch {m} before it"));
            }
        } else if explicit {
            let payload = if forward { Payload::Activation } else { Payload::Gradient };
            let recv = Message { payload, from: other, to: stage, micro_batch: m }.recv();
            if !done.contains(&recv) {
                return Some(format!("{} does not stand before it", schedule.label(recv)));
            }
        }
    }
    None
}

/// Why no such message may cross.
fn stray(schedule: &Schedule, message: Message) -> Option<String> {
    let (from, to) = message.edge();
    let Some(edge) = schedule.edges().iter().find(|e| (e.from, e.to) == (from, to)) else {
        return Some(format!("there is no edge {from}>{to}"));
    };
    if !schedule.crosses(edge) {
        return Some(format!("stages {from} and {to} are on one device; nothing crosses"));
    }
    (message.payload == Payload::Gradient && !edge.gradient)
        .then(|| format!("no gradient comes back over the edge {from}-{to}"))
}

/// Checks that nothing is missing at the end.
fn complete(schedule: &Schedule, explicit: bool, done: &HashSet<Action>) -> Result<()> {
    let training = schedule.is_training();
    for stage in 0..schedule.stages() {
        for m in 0..schedule.micro_batches() {
            let has = |kind| done.contains(&Action::new(kind, stage, m));
            let device = schedule.devices()[stage];
            if !has(Kind::Forward) {
                bail!(
                    Argument,
                    OP,
                    "device {device}: the forward pass of stage {stage}, micro-batch {m} is missing"
                );
            }
            let whole = has(Kind::Backward) || has(Kind::BackwardInput) && has(Kind::BackwardWeight);
            if training && !whole {
                bail!(
                    Argument,
                    OP,
                    "device {device}: the backward pass (B, or I and W) of stage {stage}, micro-batch {m} is missing"
                );
            }
        }
    }
    if explicit {
        for message in schedule.messages() {
            for action in [message.send(), message.recv()] {
                if !done.contains(&action) {
                    let label = schedule.label(action);
                    bail!(Argument, OP, "device {}: {label} is missing", schedule.devices()[action.stage]);
                }
            }
        }
    }
    Ok(())
}
