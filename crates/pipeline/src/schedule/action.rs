//! The alphabet of schedules: actions, the edges between stages, and the messages that cross them.

/// What a device does in one action.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The forward pass of a stage for one micro-batch (F).
    Forward,
    /// The whole backward pass of a stage for one micro-batch (B): `BackwardInput`, then `BackwardWeight`.
    Backward,
    /// The gradients of a stage's inputs (I), which the stages before it wait for.
    BackwardInput,
    /// The gradients of a stage's parameters (W), which nobody waits for.
    BackwardWeight,
    /// Hands the stage's output to stage `to`.
    SendActivation {
        /// The stage that takes it.
        to: usize,
    },
    /// Takes an input of the stage from stage `from`.
    RecvActivation {
        /// The stage that made it.
        from: usize,
    },
    /// Hands the gradient of an input back to stage `to`, which made that input.
    SendGradient {
        /// The stage that takes it.
        to: usize,
    },
    /// Takes the gradient of the stage's output from stage `from`, which used that output.
    RecvGradient {
        /// The stage that made it.
        from: usize,
    },
    /// Sums the stage's gradients with those of its replicas and tied copies. Its micro-batch is 0.
    Reduce,
    /// The optimizer's step of the stage, after every stage of the pipeline has all its gradients. Its
    /// micro-batch is 0.
    Update,
}

/// One entry of a device's list: what to do, for which stage, for which micro-batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// What is done.
    pub kind: Kind,
    /// The stage that does it.
    pub stage: usize,
    /// The micro-batch that it is done for.
    pub micro_batch: usize,
}

impl Action {
    /// The action `kind` of `stage` for `micro_batch`.
    pub const fn new(kind: Kind, stage: usize, micro_batch: usize) -> Self {
        Self { kind, stage, micro_batch }
    }

    /// Whether it computes (F, B, I or W).
    pub const fn is_compute(self) -> bool {
        matches!(self.kind, Kind::Forward | Kind::Backward | Kind::BackwardInput | Kind::BackwardWeight)
    }

    /// The message that it sends, if it sends.
    pub const fn sends(self) -> Option<Message> {
        let (payload, to) = match self.kind {
            Kind::SendActivation { to } => (Payload::Activation, to),
            Kind::SendGradient { to } => (Payload::Gradient, to),
            _ => return None,
        };
        Some(Message { payload, from: self.stage, to, micro_batch: self.micro_batch })
    }

    /// The message that it takes, if it takes one.
    pub const fn receives(self) -> Option<Message> {
        let (payload, from) = match self.kind {
            Kind::RecvActivation { from } => (Payload::Activation, from),
            Kind::RecvGradient { from } => (Payload::Gradient, from),
            _ => return None,
        };
        Some(Message { payload, from, to: self.stage, micro_batch: self.micro_batch })
    }
}

/// A dependency between stages: `to` takes an output of `from` as input. Edges may skip stages.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The stage that makes the value.
    pub from: usize,
    /// The stage that uses it; a later one.
    pub to: usize,
    /// Whether a gradient comes back. It does not for labels, masks and other data.
    pub gradient: bool,
}

impl Edge {
    /// An edge that a gradient comes back over.
    pub const fn new(from: usize, to: usize) -> Self {
        Self { from, to, gradient: true }
    }

    /// An edge for data without gradient.
    pub const fn data(from: usize, to: usize) -> Self {
        Self { from, to, gradient: false }
    }
}

/// The two kinds of tensors that cross a boundary.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// A stage's output, on its way forward.
    Activation,
    /// The gradient of a stage's input, on its way back.
    Gradient,
}

impl Payload {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Payload::Activation => "activation",
            Payload::Gradient => "gradient",
        }
    }
}

/// What crosses between two devices, each exactly once a step: the key that counters and tags use.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// What it is.
    pub payload: Payload,
    /// The stage that sends it.
    pub from: usize,
    /// The stage that takes it.
    pub to: usize,
    /// The micro-batch that it belongs to.
    pub micro_batch: usize,
}

impl Message {
    /// The edge's ends in forward direction.
    pub const fn edge(self) -> (usize, usize) {
        match self.payload {
            Payload::Activation => (self.from, self.to),
            Payload::Gradient => (self.to, self.from),
        }
    }

    /// The action that sends it.
    pub const fn send(self) -> Action {
        let kind = match self.payload {
            Payload::Activation => Kind::SendActivation { to: self.to },
            Payload::Gradient => Kind::SendGradient { to: self.to },
        };
        Action::new(kind, self.from, self.micro_batch)
    }

    /// The action that takes it.
    pub const fn recv(self) -> Action {
        let kind = match self.payload {
            Payload::Activation => Kind::RecvActivation { from: self.from },
            Payload::Gradient => Kind::RecvGradient { from: self.from },
        };
        Action::new(kind, self.to, self.micro_batch)
    }
}
