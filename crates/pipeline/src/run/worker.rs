//! One thread: a device's list, action by action.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wgrad_autograd::{Deferred, Given, Pass, Placed, Reading, Tensor, vjp_found};
use wgrad_graph::{HostTensor, Out, Result, bail};
use wgrad_nn::{Statistics, gather_statistics};

use super::batch::Part;
use super::control::Control;
use super::error::{guarded, placed};
use super::lane::{Incoming, Lane, Made};
use super::narrow::{Sending, Sent};
use super::report::Handover;
use super::scale::{seed, unscaled};
use super::stages::{Contract, Source, Stage, Stages};
use super::stash::{Open, Sums};
use super::tie::Exchange;
use super::train::Teaching;
use super::transport::{Loopback, Parcel, Transport};
use crate::parallel::{Backward, Crossing, Peers, Reducer, crossed};
use crate::schedule::{Action, Kind, Message, Passage, Payload, Schedule, Span};

/// The squares of the norms of each stage's gradients, line after line.
pub(crate) type Squares = Arc<Mutex<Vec<Vec<f64>>>>;

/// What all threads of a step see.
pub(crate) struct Job<'a> {
    pub(super) stages: &'a Stages,
    /// The schedule with all sends and receives.
    pub(super) schedule: &'a Schedule,
    /// The number of the attempt, by which messages of an earlier one are told apart.
    pub(super) step: u64,
    /// The number of the step, from which random numbers follow: an attempt that failed does not count.
    pub(super) number: u64,
    pub(super) parts: Vec<Part>,
    /// What the loss is multiplied by before it is differentiated.
    pub(super) scale: Option<f64>,
    /// Elements of the loss of each micro-batch, and their sum.
    pub(super) counts: (Vec<f64>, f64),
    pub(super) teaching: Option<&'a Teaching>,
    pub(super) control: Arc<Control>,
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) exchange: Exchange,
    pub(super) squares: Squares,
    /// What the line has with the others of its mesh; nothing where a pipeline runs alone.
    pub(crate) peers: Option<Peers>,
    /// Wait for the device after each action, so that the times are those of the device.
    pub(super) timed: bool,
}

/// What a thread did.
#[derive(Default)]
pub(crate) struct Log {
    pub(super) spans: Vec<Span>,
    pub(super) handovers: Vec<Handover>,
    /// The last stage's outputs, in a pass that does not learn.
    pub(super) outputs: Vec<(usize, Reading)>,
    /// The shares of the loss, by micro-batch: on their way, and read.
    pub(super) coming: Vec<(usize, Deferred<f64>)>,
    pub(crate) losses: Vec<(usize, f64)>,
    /// The most micro-batches whose pass was open, or was to be run again, at once.
    pub(super) stash: usize,
    /// Handovers between stages of this thread.
    pub(super) local: usize,
    /// For each stage the bytes of its context before the first F, and the most that one F left there.
    pub(super) bytes: HashMap<usize, (u64, u64)>,
    /// For each stage that computes its forward pass again the most bytes that one such pass left.
    pub(super) again: HashMap<usize, u64>,
    /// The norm of all gradients before they are clipped, and whether the step was applied.
    pub(crate) norm: Option<f64>,
    pub(crate) applied: bool,
}

/// A thread that walks the list of `device`.
pub(super) struct Worker<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) device: usize,
    open: HashMap<(usize, usize), Open>,
    /// The inputs of micro-batches whose forward pass is run again.
    again: HashMap<(usize, usize), Vec<Given>>,
    /// What has arrived and was not used, and what was made and was not sent.
    inbox: HashMap<Message, Vec<Placed>>,
    outbox: HashMap<Message, Vec<Made>>,
    own: Loopback,
    zeros: Vec<HostTensor>,
    /// Who sums the gradients of a stage over replicas, from its last W to its R.
    pub(super) reducers: HashMap<usize, Reducer>,
    /// The sums of this thread's stages.
    pub(super) sums: HashMap<usize, MutexGuard<'a, Sums>>,
    pub(super) log: Log,
}

impl<'a> Worker<'a> {
    pub(super) fn new(job: &'a Job<'a>, device: usize) -> Self {
        let mut sums = HashMap::new();
        if let Some(teaching) = job.teaching {
            for stage in job.schedule.stages_of(device) {
                let mut own = teaching.sums[stage].lock().unwrap_or_else(PoisonError::into_inner);
                own.begin();
                sums.insert(stage, own);
            }
        }
        let (open, again, inbox, outbox, own, zeros) = Default::default();
        let (reducers, log) = Default::default();
        Self { job, device, open, again, inbox, outbox, own, zeros, reducers, sums, log }
    }

    /// Walks the list to its end.
    pub(super) fn walk(&mut self) -> Result<()> {
        let list = &self.job.schedule.lists()[self.device];
        for stage in self.job.schedule.stages_of(self.device) {
            let mut lanes = self.job.lanes.iter().filter(|lane| lane.leads_to(stage));
            lanes.try_for_each(|lane| lane.open(self.job))?;
        }
        for (place, &action) in list.iter().enumerate() {
            self.job.control.alive()?;
            if action.kind == Kind::Update {
                let rest = &list[place..];
                if rest.iter().any(|a| a.kind != Kind::Update) {
                    bail!(Argument, "pipeline", "device {}: updates stand at the end of a list", self.device);
                }
                // From when all threads are there: waiting for them is no work.
                let begun = self.update(rest)?;
                // Updates of one thread are done together; each stands for its share of the time.
                let (start, end) = (self.now(begun), self.now(Instant::now()));
                let share = (end - start) / rest.len() as f64;
                for (i, &action) in rest.iter().enumerate() {
                    let start = start + share * i as f64;
                    self.log.spans.push(Span { device: self.device, action, start, end: start + share });
                }
                return Ok(());
            }
            let begun = Instant::now();
            let done = guarded(|| self.act(action));
            done.map_err(|e| placed(&self.place(action), e))?;
            let (start, end) = (self.now(begun), self.now(Instant::now()));
            self.log.spans.push(Span { device: self.device, action, start, end });
            self.job.control.advance();
        }
        Ok(())
    }

    fn now(&self, at: Instant) -> f64 {
        self.job.control.seconds(at)
    }

    /// Where an error was met.
    pub(super) fn place(&self, action: Action) -> String {
        let Action { stage, micro_batch, .. } = action;
        let (stage, label) = (self.job.stages.stages[stage].label(stage), self.job.schedule.label(action));
        let line = self.job.peers.as_ref().map(Peers::place).unwrap_or_default();
        format!("{line}{stage}, micro-batch {micro_batch}, action {label}")
    }

    fn act(&mut self, action: Action) -> Result<()> {
        let Action { kind, stage, micro_batch: m } = action;
        match kind {
            Kind::Forward => self.forward(stage, m)?,
            Kind::Backward => {
                self.backward(stage, m)?;
                self.weights(stage, m)?;
            }
            Kind::BackwardInput => self.backward(stage, m)?,
            Kind::BackwardWeight => self.weights(stage, m)?,
            Kind::SendActivation { .. } | Kind::SendGradient { .. } => {
                return self.send(action.sends().expect("it sends"));
            }
            Kind::RecvActivation { .. } | Kind::RecvGradient { .. } => {
                return self.receive(action.receives().expect("it receives"));
            }
            Kind::Reduce => self.reduce(stage)?,
            Kind::Update => unreachable!("handled by the caller"),
        }
        if self.job.timed { self.stage(stage).context.sync() } else { Ok(()) }
    }

    pub(super) fn stage(&self, stage: usize) -> &'a Stage {
        &self.job.stages.stages[stage]
    }

    fn forward(&mut self, s: usize, m: usize) -> Result<()> {
        let (job, stage) = (self.job, self.stage(s));
        let before = stage.context.stats().live_bytes as u64;
        let inputs = self.inputs(s, m)?;
        let consumers: Vec<usize> = self.consumers(s, false);
        if job.teaching.is_none() {
            let Recorded { pass, outputs, .. } = self.record(s, m, &inputs, false)?;
            if consumers.is_empty() {
                self.log.outputs.push((m, outputs[0].read_later()?));
                return Ok(());
            }
            let sending = self.sendings(&pass, &outputs, s)?;
            return self.hand_on(s, m, &consumers, &pass, &sending);
        }
        let left = if stage.recompute {
            if !consumers.is_empty() {
                // The pass is dropped: B commits what its own forward pass sets, once.
                let Recorded { pass, outputs, .. } = self.record(s, m, &inputs, false)?;
                let sending = self.sendings(&pass, &outputs, s)?;
                self.hand_on(s, m, &consumers, &pass, &sending)?;
            }
            let bytes = inputs.iter().map(|x| x.bytes() as u64).sum();
            self.again.insert((s, m), inputs);
            bytes
        } else {
            let (open, sending) = self.open(s, m, &inputs)?;
            self.hand_on(s, m, &consumers, &open.pass, &sending)?;
            self.open.insert((s, m), open);
            (stage.context.stats().live_bytes as u64).saturating_sub(before)
        };
        self.log.stash = self.log.stash.max(self.open.len() + self.again.len());
        let (_, most) = self.log.bytes.entry(s).or_insert((before, 0));
        *most = left.max(*most);
        Ok(())
    }

    /// The inputs of a micro-batch.
    fn inputs(&mut self, s: usize, m: usize) -> Result<Vec<Given>> {
        let (job, stage) = (self.job, self.stage(s));
        let own = |(source, _): &(Source, _)| match *source {
            Source::Batch(i) => Some(Given::from(&job.parts[m].inputs[i])),
            Source::Stage(_) | Source::Output(..) => None,
        };
        let mut inputs: Vec<Option<Given>> = stage.takes.iter().map(own).collect();
        for edge in job.stages.edges().iter().filter(|e| e.to == s) {
            let bundle = job.stages.bundle(edge.from, s);
            let message = Message { payload: Payload::Activation, from: edge.from, to: s, micro_batch: m };
            for ((i, _), x) in bundle.iter().zip(self.taken(message, bundle.len())?) {
                inputs[*i] = Some(x);
            }
        }
        Ok(inputs.into_iter().map(|x| x.expect("what a stage takes is on an edge")).collect())
    }

    /// A pass with the forward pass of a micro-batch recorded.
    fn record(&self, s: usize, m: usize, inputs: &[Given], learns: bool) -> Result<Recorded> {
        let (job, stage) = (self.job, self.stage(s));
        let pass = stage.context.begin()?;
        pass.place(job.number, job.parts[m].start)?;
        let input = |(x, (source, contract)): (&Given, &(Source, Contract))| {
            let leaf = pass.input(x.clone())?;
            let narrowed = source.output().is_some() && x.dtype() != contract.dtype;
            if narrowed { leaf.try_cast(contract.dtype) } else { Ok(leaf) }
        };
        let inputs = inputs.iter().zip(&stage.takes).map(input).collect::<Result<Vec<Tensor>>>()?;
        let forward = || {
            let (outputs, built) = (stage.block.forward_all(&inputs)?, stage.gives.len());
            if outputs.len() != built {
                bail!(
                    Data,
                    "pipeline",
                    "it gives {} outputs; it gave {built} when it was built",
                    outputs.len()
                );
            }
            Ok(outputs)
        };
        let calls = job.peers.as_ref().and_then(|p| p.calls(s, &job.control));
        let (recorded, statistics) = gather_statistics(|| match calls {
            None => pass.within(forward).map(|outputs| (pass, outputs, Vec::new())),
            Some(calls) => crossed(pass, calls, &inputs, learns.then_some(&stage.params), forward),
        });
        let (pass, outputs, crossings) = recorded?;
        let sets = pass.updates()?;
        if sets > 0 && job.parts.len() > 1 {
            bail!(
                Argument,
                "pipeline",
                "the forward pass sets {sets} kept values, which the next micro-batch would start from: it can learn from \
                 one micro-batch a step, or hand them over as `Statistics`"
            );
        }
        Ok(Recorded { pass, inputs, outputs, crossings, statistics })
    }

    /// A micro-batch's pass with both ways recorded, and with the forward pass, the loss and what the backward pass
    /// cannot cheaply compute again computed by one submission.
    fn open(&mut self, s: usize, m: usize, inputs: &[Given]) -> Result<(Open, Vec<Sending>)> {
        let job = self.job;
        let Recorded { pass, inputs, outputs, crossings, statistics } = self.record(s, m, inputs, true)?;
        let mut loss = None;
        if s + 1 == job.stages.len()
            && let Some(teaching) = job.teaching
        {
            let Some(targets) = &job.parts[m].targets else {
                bail!(Argument, "pipeline", "the batch has no targets")
            };
            let (own, all) = (job.counts.0[m], job.counts.1);
            loss = Some(pass.within(|| teaching.loss.share(&pass, outputs[0], targets, own, all))?);
        }
        let mut open = self.record_backward(s, pass, &inputs, (&outputs, loss), &crossings)?;
        open.statistics = statistics;
        let sending = match self.consumers(s, false).is_empty() {
            true => Vec::new(),
            false => self.sendings(&open.pass, &outputs, s)?,
        };
        let known = open.statistics.iter().flat_map(|s| s.summary.values.iter().copied());
        let sent = sending.iter().flat_map(Sending::tensors);
        let now: Vec<Tensor> = loss.into_iter().chain(sent).chain(known).collect();
        let copied = open.copied.iter().map(|(d, _)| *d);
        let later: Vec<Tensor> =
            copied.chain(open.going_back()).chain(open.weights.iter().flatten().copied()).collect();
        open.pass.compute_for(&now, &later)?;
        Ok((open, sending))
    }

    /// The forward pass of a micro-batch once more, from its inputs, as it was: with the same random numbers, and with
    /// the submission that a stage makes which does not recompute.
    fn open_again(&mut self, s: usize, inputs: &[Given], m: usize) -> Result<Open> {
        let context = &self.stage(s).context;
        let before = context.stats().live_bytes as u64;
        let (open, _) = self.open(s, m, inputs)?;
        let made = (context.stats().live_bytes as u64).saturating_sub(before);
        let most = self.log.again.entry(s).or_default();
        *most = made.max(*most);
        Ok(open)
    }

    fn hand_on(
        &mut self,
        s: usize,
        m: usize,
        consumers: &[usize],
        pass: &Pass,
        sending: &[Sending],
    ) -> Result<()> {
        let all: Vec<Tensor> = sending.iter().flat_map(Sending::tensors).collect();
        if all.len() > 1 {
            // What is read alone is computed when it is read.
            pass.compute(&all)?;
        }
        let sent: Vec<Sent> = sending.iter().map(Sending::read).collect::<Result<_>>()?;
        for &to in consumers {
            let message = Message { payload: Payload::Activation, from: s, to, micro_batch: m };
            let (local, bundle) = (self.is_local(message), self.job.stages.bundle(s, to));
            let made = bundle.iter().map(|(_, output)| sent[*output].made(local)).collect::<Result<_>>()?;
            self.give(message, made)?;
        }
        Ok(())
    }

    /// Records the gradients of inputs and parameters, with inputs in the place of gradients that will come.
    fn record_backward(
        &mut self,
        s: usize,
        pass: Pass,
        inputs: &[Tensor],
        (given, loss): (&[Tensor], Option<Tensor>),
        crossings: &[Crossing],
    ) -> Result<Open> {
        let (mut outputs, mut cotangents, mut coming) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(loss) = loss {
            outputs.push(loss);
            cotangents.push(seed(&pass, loss, self.job.scale)?);
        }
        // As an undivided backward pass meets them: the last consumer first. Those of one value are summed in this order.
        for from in self.consumers(s, true).into_iter().rev() {
            let mut places = Vec::new();
            for (_, output) in self.job.stages.bundle_back(s, from) {
                let out = given[output].try_out()?;
                let narrow = self.narrowed(from, s, out.dtype);
                let place = pass.input(self.zeros(Out { dtype: narrow.unwrap_or(out.dtype), ..out })?)?;
                places.push(place);
                outputs.push(given[output]);
                cotangents.push(if narrow.is_some() { place.try_cast(out.dtype)? } else { place });
            }
            coming.push((from, places));
        }
        let givers = self.givers(s);
        let params = &self.sums[&s].params;
        let Backward { found, copied } = pass.within(|| -> Result<Backward> {
            let back = givers.iter().flat_map(|(_, bundle)| bundle).map(|(i, _)| inputs[*i]);
            let wanted = back.chain(params.iter().map(|p| p.t()));
            let wanted: Vec<Tensor> = wanted.collect();
            if outputs.is_empty() || wanted.is_empty() {
                return Ok(Backward { found: vec![None; wanted.len()], copied: Vec::new() });
            }
            if !crossings.is_empty() {
                return Backward::record(&pass, &outputs, &cotangents, &wanted, crossings);
            }
            Ok(Backward { found: vjp_found(&outputs, &cotangents, &wanted)?, copied: Vec::new() })
        })?;
        let mut found = found.into_iter();
        let mut back = Vec::new();
        for (to, bundle) in givers {
            let sending = |((i, _), dx): (&(usize, usize), Option<Tensor>)| {
                let out = inputs[*i].try_out()?;
                let sending = dx.map(|dx| self.sending(&pass, dx, s, &[to])).transpose()?;
                let dtype = self.narrowed(s, to, out.dtype).unwrap_or(out.dtype);
                Ok((Out { dtype, ..out }, sending))
            };
            back.push((to, bundle.iter().zip(found.by_ref()).map(sending).collect::<Result<_>>()?));
        }
        let mut weights: Vec<Option<Tensor>> = found.collect();
        if let Some(scale) = self.job.scale {
            weights = pass.within(|| unscaled(&pass, weights, scale))?;
        }
        Ok(Open { pass, loss, coming, back, copied, weights, statistics: Vec::new() })
    }

    /// Zeros on the host, shared by all who ask for the same.
    fn zeros(&mut self, out: Out) -> Result<HostTensor> {
        if let Some(zeros) = self.zeros.iter().find(|z| (z.shape(), z.dtype()) == (out.shape, out.dtype)) {
            return Ok(zeros.clone());
        }
        let zeros = HostTensor::new(out.shape, &vec![0f32; out.shape.elems()])?.cast(out.dtype);
        self.zeros.push(zeros.clone());
        Ok(zeros)
    }

    /// Puts the gradients that have come in their places; computes those of the inputs and hands them on.
    fn backward(&mut self, s: usize, m: usize) -> Result<()> {
        let open = match (self.open.remove(&(s, m)), self.again.remove(&(s, m))) {
            (Some(open), _) => open,
            (None, Some(inputs)) => self.open_again(s, &inputs, m)?,
            (None, None) => bail!(Argument, "pipeline", "F has not run"),
        };
        for (from, places) in &open.coming {
            let message = Message { payload: Payload::Gradient, from: *from, to: s, micro_batch: m };
            for (place, data) in places.iter().zip(self.taken(message, places.len())?) {
                open.pass.replace(*place, data)?;
            }
        }
        let now: Vec<Tensor> = open.going_back().collect();
        if let Some(calls) = self.job.peers.as_ref().and_then(|p| p.calls(s, &self.job.control)) {
            let weights = open.weights.iter().flatten();
            let later: Vec<Tensor> = now.iter().chain(weights).copied().collect();
            calls.sum_copied(&open.pass, &open.copied, &later)?;
        }
        if !now.is_empty() {
            let later: Vec<Tensor> = open.weights.iter().flatten().copied().collect();
            open.pass.compute_for(&now, &later)?;
        }
        for (to, gradients) in &open.back {
            let message = Message { payload: Payload::Gradient, from: s, to: *to, micro_batch: m };
            let mut made = Vec::new();
            for (out, dx) in gradients {
                made.push(match dx {
                    Some(dx) => dx.read()?.made(self.is_local(message))?,
                    None => Made::Here(self.zeros(*out)?),
                });
            }
            self.give(message, made)?;
        }
        self.open.insert((s, m), open);
        Ok(())
    }

    /// Adds the gradients of parameters to their sums, and ends the micro-batch's pass.
    fn weights(&mut self, s: usize, m: usize) -> Result<()> {
        let Some(open) = self.open.remove(&(s, m)) else { bail!(Argument, "pipeline", "I has not run") };
        let sums = self.sums.get_mut(&s).expect("a thread has the sums of its stages");
        let last = self.job.schedule.lists()[self.device]
            .iter()
            .rev()
            .find(|a| a.stage == s && matches!(a.kind, Kind::Backward | Kind::BackwardWeight));
        let ends = last.is_some_and(|a| a.micro_batch == m);
        let peers = self.job.peers.as_ref().filter(|_| ends);
        match peers.and_then(|p| p.reducer(s, &sums.params, &self.job.control)) {
            None => open.pass.within(|| sums.add(&open.weights))?,
            // Other replicas' gradients are added on the way.
            Some(reducer) => {
                let whole = open.pass.within(|| sums.whole(&open.weights))?;
                let reducer = self.reducers.entry(s).or_insert(reducer?);
                reducer.reduce(&open.pass, &whole, &sums.kept)?;
            }
        }
        let context = &self.job.stages.stages[s].context;
        open.pass.within(|| sums.merge(context, &open.statistics))?;
        if let Some(loss) = open.loss {
            self.log.coming.push((m, loss.deferred()));
        }
        open.pass.end()
    }

    fn is_local(&self, message: Message) -> bool {
        let devices = self.job.schedule.devices();
        devices[message.from] == devices[message.to]
    }

    /// Keeps what was made until it is sent; hands it over at once within the thread.
    fn give(&mut self, message: Message, made: Vec<Made>) -> Result<()> {
        if !self.is_local(message) {
            self.outbox.insert(message, made);
            return Ok(());
        }
        let tensor = |made: &Made| Ok(made.get(&self.job.control)?.0);
        let (tensors, now) = (made.iter().map(tensor).collect::<Result<_>>()?, Instant::now());
        self.log.local += 1;
        let parcel = Parcel { message, step: self.job.step, tensors, sent: now, arrived: now };
        self.own.send(parcel, now)
    }

    /// The values that a message carried.
    fn taken(&mut self, message: Message, count: usize) -> Result<Vec<Given>> {
        let values: Vec<Given> = if self.is_local(message) {
            let parcel = self.own.recv(message, Instant::now())?;
            parcel.tensors.into_iter().map(Given::from).collect()
        } else {
            match self.inbox.remove(&message) {
                Some(placed) => placed.into_iter().map(Given::from).collect(),
                None => bail!(Data, "pipeline", "{message:?} was not taken before it is used"),
            }
        };
        if values.len() != count {
            bail!(Data, "pipeline", "{message:?} carried {} tensors; {count} were due", values.len());
        }
        Ok(values)
    }

    fn lane(&self, message: Message) -> Result<&'a Lane> {
        match self.job.lanes.iter().find(|lane| lane.is_of(message)) {
            Some(lane) => Ok(lane),
            None => bail!(Data, "pipeline", "no lane carries {message:?}"),
        }
    }

    fn send(&mut self, message: Message) -> Result<()> {
        let Some(made) = self.outbox.remove(&message) else {
            bail!(Data, "pipeline", "{message:?} was not made before it is sent");
        };
        self.lane(message)?.give(message, made, &self.job.control)
    }

    fn receive(&mut self, message: Message) -> Result<()> {
        let Incoming { data, bytes, sent, arrived } = self.lane(message)?.take(message, self.job)?;
        // When it was sent is told by the other end, if that is in this process.
        let (sent, arrived, taken) = (self.now(sent), self.now(arrived), self.now(Instant::now()));
        let passage = Passage { message, sent, arrived, taken };
        self.log.handovers.push(Handover { passage, bytes, begun: sent, read: sent, error: None });
        self.inbox.insert(message, data);
        Ok(())
    }
}

impl Job<'_> {
    /// Where on an edge an error was met, at the end of this stage.
    pub(super) fn edge_at(&self, stage: usize, message: Message) -> String {
        let Message { from, to, micro_batch, .. } = message;
        let action = if stage == from { message.send() } else { message.recv() };
        let (stage, action) = (self.stages.stages[stage].label(stage), self.schedule.label(action));
        format!("{stage}, micro-batch {micro_batch}, action {action}, edge from stage {from} to stage {to}")
    }
}

/// A forward pass that is recorded.
struct Recorded {
    pass: Pass,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Where devices that share a layer met.
    crossings: Vec<Crossing>,
    statistics: Vec<Statistics>,
}
