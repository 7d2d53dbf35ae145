//! Stages: the parts of a model, each on a context of its own, with the contracts between them.

use std::fmt;
use std::path::Path;

use wgrad_autograd::{Context, Param, Tensor};
use wgrad_graph::{DType, Error, ErrorKind, HostTensor, Out, Result, Shape, bail};
use wgrad_nn::{Mode, ParamSet, load_tensors, save_tensors};

use super::batch::with_rows;
use super::block::Cast;
use super::error::{guarded, placed};
use super::tie::Tie;
use super::{Block, Model};
use crate::Partition;
use crate::parallel;
use crate::schedule::Edge;

/// Rows of the batch with which a stage is tried when it is built. Two, since one broadcasts.
const PROBE: usize = 2;

/// What crosses an edge: the shape of a row, the dtype, and whether a gradient comes back.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Sizes of the axes after the first, which is the rows.
    pub shape: Shape,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether a gradient comes back.
    pub gradient: bool,
}

impl Contract {
    /// Rows of this shape and dtype, with a gradient where the dtype is of floats.
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> Self {
        Self { shape: shape.into(), dtype, gradient: dtype.is_float() }
    }

    /// Rows without a gradient: labels, masks, and whatever is not learnt through.
    pub fn data(shape: impl Into<Shape>, dtype: DType) -> Self {
        Self { gradient: false, ..Self::new(shape, dtype) }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gradient = if self.gradient { "with" } else { "without" };
        write!(f, "rows of {} {} {gradient} gradient", self.dtype, self.shape)
    }
}

/// Where an input of a stage comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The output of an earlier stage, not only of the one before; the first where it gives several.
    Stage(usize),
    /// An output of an earlier stage by its number; `Output(s, 0)` is `Stage(s)`.
    Output(usize, usize),
    /// An input of the batch, by its number.
    Batch(usize),
}

type Build<'a> = dyn FnOnce(&Context) -> Result<Box<dyn Block>> + 'a;
type SetWeights<'a> = dyn FnOnce(&ParamSet) -> Result<()> + 'a;

/// The description of a stage: where it is, what it takes, how it is built, and how its weights are set
/// after they are allocated.
pub struct StageSpec<'a> {
    name: String,
    context: Context,
    takes: Vec<(Source, Contract)>,
    gives: Vec<Contract>,
    recompute: bool,
    build: Box<Build<'a>>,
    set_weights: Option<Box<SetWeights<'a>>>,
}

impl<'a> StageSpec<'a> {
    /// A stage on `context` that is built by `build`. Several stages may be on one device, each with a context
    /// of its own.
    pub fn new<B: Block + 'static>(
        name: impl Into<String>,
        context: &Context,
        build: impl FnOnce(&Context) -> Result<B> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            context: context.clone(),
            takes: Vec::new(),
            gives: Vec::new(),
            recompute: false,
            build: Box::new(|ctx| Ok(Box::new(build(ctx)?))),
            set_weights: None,
        }
    }

    /// The same with one more input. Without any, a stage takes all that the stage before it gives; the first
    /// stage has to name what it takes of the batch.
    #[must_use]
    pub fn takes(mut self, source: Source, contract: Contract) -> Self {
        self.takes.push((source, contract));
        self
    }

    /// The same, which gives this, or building it fails. Without gradient the stages before learn nothing
    /// through it. Of a stage with several outputs it is said for each, in their order, or for none.
    #[must_use]
    pub fn gives(mut self, contract: Contract) -> Self {
        self.gives.push(contract);
        self
    }

    /// The same, which keeps its inputs alone of a forward pass that it will learn from, and runs it again before
    /// the backward pass, or does not. Random numbers are the same both times.
    #[must_use]
    pub fn recompute(mut self, again: bool) -> Self {
        self.recompute = again;
        self
    }

    /// The same, whose forward pass runs in a scope of [`autocast`](wgrad_autograd::autocast): products of 16 bits,
    /// parameters of f32. What it gives may be of `dtype` then, which its messages are too.
    #[must_use]
    pub fn autocast(mut self, dtype: impl Into<Option<DType>>) -> Self {
        let (build, dtype) = (self.build, dtype.into());
        self.build = Box::new(move |ctx| Ok(Box::new(Cast { inner: build(ctx)?, dtype })));
        self
    }

    /// The same, whose weights are set by `f` once all stages are allocated.
    #[must_use]
    pub fn set_weights(mut self, f: impl FnOnce(&ParamSet) -> Result<()> + 'a) -> Self {
        self.set_weights = Some(Box::new(f));
        self
    }
}

/// A stage that is built.
pub(crate) struct Stage {
    pub(super) name: String,
    pub(crate) context: Context,
    pub(super) takes: Vec<(Source, Contract)>,
    pub(super) gives: Vec<Contract>,
    /// Whether the forward pass is run again before the backward pass.
    pub(super) recompute: bool,
    pub(crate) block: Box<dyn Block>,
    pub(crate) params: ParamSet,
}

impl Stage {
    /// The stage in messages.
    pub(crate) fn label(&self, index: usize) -> String {
        format!("stage {index} (`{}` on {})", self.name, self.context.caps().name)
    }

    /// How messages tell an output from the stage's others.
    fn nth(&self, output: usize) -> String {
        if self.gives.len() > 1 { format!(" as output {output}") } else { String::new() }
    }
}

/// A model that is cut into stages, built once: each on a context of its own, its weights there to stay.
///
/// ```
/// use wgrad::pipeline::{Contract, Model, Stages, partition};
/// use wgrad::prelude::*;
/// # fn main() -> wgrad::Result<()> {
/// let rng = Rng::seed(1);
/// let model = Model::new()
///     .layer("fc1", move |ctx| Linear::new(ctx, "fc1", 3, 5, rng))
///     .layer("relu", |_| Ok(Activation::Relu))
///     .layer("fc2", move |ctx| Linear::new(ctx, "fc2", 5, 2, rng));
/// let contexts = [Context::new(&Device::cpu())?, Context::new(&Device::oracle())?];
/// let cut = partition::at_names(&model.names(), &["fc2"])?;
/// let stages = Stages::cut(&model, &cut, &contexts, Contract::new([3], DType::F32))?;
/// let x = HostTensor::new([4, 3], &[0.5f32; 12])?;
/// let (y, report) = stages.forward(&x, 2)?;
/// assert_eq!(y.shape().dims(), [4, 2]);
/// assert_eq!(report.handovers.len(), 2);      // two micro-batches over one boundary
/// # Ok(()) }
/// ```
pub struct Stages {
    pub(crate) stages: Vec<Stage>,
    edges: Vec<Edge>,
    pub(super) ties: Vec<Tie>,
    pub(crate) mode: Mode,
    /// The dtype in which f32 goes to other devices, if not as it is.
    pub(super) handover: Option<DType>,
}

impl Stages {
    /// Builds the stages in order, checks that each takes what the ones before give, and then sets their
    /// weights.
    ///
    /// # Errors
    /// `Shape` or `DType` naming both stages where they do not fit; what building meets, with the stage; `Argument`
    /// for a source that is no earlier stage, an output that nobody takes (but the first of the last stage, which is the
    /// model's), or a parameter of another context.
    pub fn build(specs: Vec<StageSpec<'_>>) -> Result<Self> {
        let op = "Stages::build";
        if specs.is_empty() {
            bail!(Argument, op, "there are no stages");
        }
        let mut stages: Vec<Stage> = Vec::new();
        let mut setters = Vec::new();
        for spec in specs {
            let index = stages.len();
            let StageSpec { name, context, mut takes, gives, recompute, build, set_weights } = spec;
            if takes.is_empty() {
                let Some(before) = stages.last() else {
                    bail!(Argument, op, "stage 0 (`{name}`) does not say what it takes of the batch");
                };
                let source = |o| if o == 0 { Source::Stage(index - 1) } else { Source::Output(index - 1, o) };
                takes.extend(before.gives.iter().enumerate().map(|(o, gives)| (source(o), *gives)));
            }
            let place = format!("stage {index} (`{name}` on {})", context.caps().name);
            let block = guarded(|| build(&context)).map_err(|e| placed(&place, e))?;
            let params = block.params();
            if let Some(param) = params.iter().find(|p| *p.context() != context) {
                bail!(Device, op, "{place}: parameter `{}` is on another context", param.name());
            }
            let mut stage = Stage { name, context, takes, gives: Vec::new(), recompute, block, params };
            check_inputs(&stages, &stage, index)?;
            stage.gives = probe(&stages, &stage, index)?;
            check_outputs(&mut stage, index, &gives)?;
            stages.push(stage);
            setters.push(set_weights);
        }
        let edges = edges_of(&stages);
        let built = Self { stages, edges, ties: Vec::new(), mode: Mode::Train, handover: None };
        for (s, stage) in built.stages.iter().enumerate() {
            let last = s + 1 == built.len();
            let idle = |o: &usize| !(last && *o == 0) && built.takers(s, *o).is_empty();
            if let Some(o) = (0..stage.gives.len()).find(idle) {
                let rule = if last { "; of the last stage the first output alone is used" } else { "" };
                bail!(Argument, op, "nobody takes what {} gives{}{rule}", stage.label(s), stage.nth(o));
            }
        }
        for (s, set) in setters.into_iter().enumerate() {
            let (Some(set), stage) = (set, &built.stages[s]) else { continue };
            guarded(|| set(&stage.params))
                .map_err(|e| placed(&format!("weights of {}", stage.label(s)), e))?;
        }
        Ok(built)
    }

    /// Builds the stages of a sequential model that is cut by `partition`: at indices, by name, by a layout
    /// string, or as [`Problem::solve`](crate::Problem::solve) found best, with the stages that recompute. One
    /// context a stage; `input` is what the batch gives to the first.
    ///
    /// # Errors
    /// As [`Stages::build`]; `Argument` for another number of contexts than stages, or of layers.
    pub fn cut(model: &Model, partition: &Partition, contexts: &[Context], input: Contract) -> Result<Self> {
        let names = model.names();
        let ranges = partition.stages();
        let layers = ranges.last().map_or(0, |r| r.end);
        if ranges.len() != contexts.len() || layers != names.len() {
            bail!(
                Argument,
                "Stages::cut",
                "{} stages of {layers} layers, for {} contexts and {} layers",
                ranges.len(),
                contexts.len(),
                names.len()
            );
        }
        let spec = |(range, context): (&std::ops::Range<usize>, &Context)| {
            let name = match &names[range.clone()] {
                [only] => (*only).to_owned(),
                [first, .., last] => format!("{first}..{last}"),
                [] => unreachable!("a partition leaves no stage empty"),
            };
            let range = range.clone();
            StageSpec::new(name, context, move |ctx| model.build(ctx, range))
        };
        let specs = ranges
            .iter()
            .zip(contexts)
            .map(spec)
            .enumerate()
            .map(|(s, spec)| (s, spec.recompute(partition.recomputes()[s])))
            .map(|(s, spec)| if s == 0 { spec.takes(Source::Batch(0), input) } else { spec });
        Self::build(specs.collect())
    }

    /// The number of stages.
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// Whether there is no stage; there always is.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The edges between stages, for [`Schedule::with_edges`](crate::Schedule::with_edges).
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The name of a stage.
    pub fn name(&self, stage: usize) -> &str {
        &self.stages[stage].name
    }

    /// The context of a stage.
    pub fn context(&self, stage: usize) -> &Context {
        &self.stages[stage].context
    }

    /// The parameters of a stage.
    pub fn params(&self, stage: usize) -> &ParamSet {
        &self.stages[stage].params
    }

    /// The same stages, of which these run their forward pass again before the backward pass instead of keeping
    /// what it computed; see [`StageSpec::recompute`].
    ///
    /// # Errors
    /// `Argument` for another number of flags than stages.
    pub fn recomputing(mut self, again: &[bool]) -> Result<Self> {
        if again.len() != self.len() {
            let (flags, stages) = (again.len(), self.len());
            bail!(Argument, "Stages::recomputing", "{flags} flags for {stages} stages");
        }
        self.stages.iter_mut().zip(again).for_each(|(stage, again)| stage.recompute = *again);
        Ok(self)
    }

    /// Whether a stage runs its forward pass again before the backward pass.
    pub fn recomputes(&self, stage: usize) -> bool {
        self.stages[stage].recompute
    }

    /// Sets whether the stages learn or are used.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.stages.iter_mut().for_each(|s| s.block.set_mode(mode));
    }

    /// Sets the seed of random numbers, the same for all stages, so that they do not depend on the cut.
    pub fn set_seed(&self, seed: u64) {
        self.stages.iter().for_each(|s| s.context.set_seed(seed));
    }

    /// The values of all parameters and running statistics by name, stage by stage: a state that does not depend on
    /// the cut. Of tied parameters only the first is there.
    ///
    /// # Errors
    /// What the devices meet; `Data` for two values of one name.
    pub fn weights(&self) -> Result<Vec<(String, HostTensor)>> {
        let states = self.states();
        self.read_all(&self.entries(&states), |s, error| Err(placed(&self.stages[s].label(s), error)))
    }

    /// Sets parameters and running statistics by name, whatever the cut was when they were read, on all stages or on
    /// none; others stay as they are.
    ///
    /// # Errors
    /// `Data` for a name that nothing has or several values have; `Shape` or `DType` for a value that does not fit;
    /// what the devices meet.
    pub fn set_weights(&self, weights: &[(String, HostTensor)]) -> Result<()> {
        let states = self.states();
        self.set_all("Stages::set_weights", &self.entries(&states), weights, true)
    }

    /// Writes all parameters and running statistics to a safetensors file by name, whole or not at all.
    ///
    /// # Errors
    /// As [`save_tensors`]; what the devices meet.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save_tensors(path.as_ref(), &self.weights()?)
    }

    /// Sets parameters and running statistics from a safetensors file by name, whatever the cut was when it was written.
    ///
    /// # Errors
    /// As [`load_tensors`] and [`Stages::set_weights`].
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        self.set_weights(&load_tensors(path.as_ref())?)
    }

    pub(crate) fn param(&self, stage: usize, index: usize) -> &Param {
        self.stages[stage].params.iter().nth(index).expect("the index comes from this list")
    }

    /// The stage and index of every parameter with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<(usize, usize)> {
        let of = |(s, stage): (usize, &Stage)| {
            let at = stage.params.iter().enumerate().filter(|(_, p)| p.name() == name);
            at.map(|(i, _)| (s, i)).collect::<Vec<_>>()
        };
        self.stages.iter().enumerate().flat_map(of).collect()
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.stages.iter().enumerate().map(|(s, stage)| stage.label(s))).finish()
    }
}

/// One line a stage: what it takes and gives, where it is, how many weights it has.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (s, stage) in self.stages.iter().enumerate() {
            let takes = |(source, contract): &(Source, Contract)| format!("{contract} ({source:?})");
            let takes: Vec<String> = stage.takes.iter().map(takes).collect();
            let gives: Vec<String> = stage.gives.iter().map(Contract::to_string).collect();
            let (label, weights) = (stage.label(s), stage.params.elems());
            let again = if stage.recompute { "; computes its forward pass again" } else { "" };
            writeln!(
                f,
                "{label}: {weights} weights; takes {}; gives {}{again}",
                takes.join(", "),
                gives.join(", ")
            )?;
        }
        Ok(())
    }
}

fn edges_of(stages: &[Stage]) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for (to, stage) in stages.iter().enumerate() {
        for (source, contract) in &stage.takes {
            let Some((from, output)) = source.output() else { continue };
            let gradient = contract.gradient && stages[from].gives[output].gradient;
            // All that one stage takes of another goes together.
            match edges.iter_mut().find(|e| (e.from, e.to) == (from, to)) {
                Some(edge) => edge.gradient |= gradient,
                None => edges.push(Edge { from, to, gradient }),
            }
        }
    }
    edges.sort();
    edges
}

/// Checks what a stage takes against what the earlier ones give.
fn check_inputs(before: &[Stage], stage: &Stage, index: usize) -> Result<()> {
    let op = "Stages::build";
    for (i, (source, takes)) in stage.takes.iter().enumerate() {
        let Some((from, output)) = source.output() else { continue };
        let Some(giver) = before.get(from) else {
            bail!(
                Argument,
                op,
                "{} takes the output of stage {from}, which is no earlier one",
                stage.label(index)
            );
        };
        let (to, nth) = (stage.label(index), giver.nth(output));
        let from = giver.label(from);
        let Some(gives) = giver.gives.get(output) else {
            let count = giver.gives.len();
            bail!(Argument, op, "{to} takes output {output} of {from}, which gives {count}, counted from 0");
        };
        if stage.takes[..i].iter().any(|(s, _)| s.output() == source.output()) {
            bail!(Argument, op, "{to} takes what {from} gives{nth} twice");
        }
        let fits = gives.shape == takes.shape && gives.dtype == takes.dtype;
        if !fits || takes.gradient && !gives.gradient && trains(giver) {
            let kind = match (gives.shape == takes.shape, gives.dtype == takes.dtype) {
                (false, _) => ErrorKind::Shape,
                (_, false) => ErrorKind::DType,
                _ => ErrorKind::Gradient,
            };
            return Err(Error::new(kind, op, format!("{to} takes {takes}; {from} gives {gives}{nth}")));
        }
    }
    Ok(())
}

/// Whether a gradient that comes back to the stage has somewhere to go.
fn trains(stage: &Stage) -> bool {
    !stage.params.is_empty() || stage.takes.iter().any(|(s, c)| s.output().is_some() && c.gradient)
}

/// Records the stage for a few rows, without computing anything: what it gives.
fn probe(before: &[Stage], stage: &Stage, index: usize) -> Result<Vec<Contract>> {
    let op = "Stages::build";
    let pass = stage.context.begin()?;
    let zeros = |(_, takes): &(Source, Contract)| {
        let shape = with_rows(PROBE, takes.shape);
        let zeros = HostTensor::new(shape, &vec![0f32; shape.elems()])?.cast(takes.dtype);
        pass.input(zeros)
    };
    let inputs: Vec<Tensor> = stage.takes.iter().map(zeros).collect::<Result<_>>()?;
    let recorded = guarded(|| {
        let outputs = parallel::trial(|| stage.block.forward_all(&inputs))?;
        outputs.iter().map(|y| y.try_out()).collect::<Result<Vec<Out>>>()
    });
    let outs = recorded.map_err(|error| {
        let from = |(source, contract): &(Source, Contract)| match *source {
            Source::Batch(i) => format!("{contract} of input {i} of the batch"),
            Source::Stage(s) => format!("{contract} of {}", before[s].label(s)),
            Source::Output(s, o) => format!("{contract} of output {o} of {}", before[s].label(s)),
        };
        let from: Vec<String> = stage.takes.iter().map(from).collect();
        placed(&format!("{}, which takes {}", stage.label(index), from.join(" and ")), error)
    })?;
    if outs.is_empty() {
        bail!(Argument, op, "{} gives nothing", stage.label(index));
    }
    let mut gives = Vec::new();
    for (o, Out { shape, dtype }) in outs.iter().enumerate() {
        if shape.dims().first() != Some(&PROBE) {
            let nth = if outs.len() > 1 { format!(" as output {o}") } else { String::new() };
            let label = stage.label(index);
            bail!(
                Shape,
                op,
                "{label} gives {shape}{nth} for {PROBE} rows; its first axis has to be the rows"
            );
        }
        let gradient = dtype.is_float() && trains(stage);
        gives.push(Contract { gradient, ..Contract::new(Shape::new(&shape.dims()[1..]), *dtype) });
    }
    Ok(gives)
}

/// Checks what a stage gives against what it should give, if anybody said so.
fn check_outputs(stage: &mut Stage, index: usize, promised: &[Contract]) -> Result<()> {
    let op = "Stages::build";
    let (should, does) = (promised.len(), stage.gives.len());
    if should != 0 && should != does {
        bail!(Argument, op, "{} should give {should} outputs; it gives {does}", stage.label(index));
    }
    for (o, promised) in promised.iter().enumerate() {
        let gives = stage.gives[o];
        let fits = (promised.shape, promised.dtype) == (gives.shape, gives.dtype);
        if !fits || promised.gradient && !gives.dtype.is_float() {
            let kind = if promised.shape == gives.shape { ErrorKind::DType } else { ErrorKind::Shape };
            let (label, nth) = (stage.label(index), stage.nth(o));
            let detail = format!("{label} should give {promised}{nth}; it gives {gives}");
            return Err(Error::new(kind, op, detail));
        }
        stage.gives[o].gradient &= promised.gradient;
    }
    Ok(())
}
