//! A backend around a backend: it counts calls and device work, and fails a chosen call.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wgrad::{Context, ContextOptions, HostTensor, Param, Pass, Result, Tensor};
use wgrad_graph::{
    Args, Backend, BufferId, Bytes, Caps, Error, ErrorKind, Kind, Memory, Pending, Plan, Prepared, Ticket,
};

/// A call of the backend.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc,
    Prepare,
    Submit,
    Wait,
    Write,
    Read,
    /// The end of a read.
    Fetch,
}

/// `after` more calls succeed, the next one fails.
struct Fault {
    call: Call,
    after: usize,
    kind: ErrorKind,
}

#[derive(Default)]
struct Inside {
    faults: Vec<Fault>,
    lost: bool,
    work: f64,
    products: usize,
    calls: Vec<Call>,
}

/// The backend that counts and fails.
pub(crate) struct Tap {
    inner: Arc<dyn Backend>,
    inside: Arc<Mutex<Inside>>,
    /// How long each submission takes at least.
    delay: Duration,
}

impl Tap {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Tap> {
        Tap::slowed(inner, Duration::ZERO)
    }

    /// A device each of whose submissions takes this long.
    pub(crate) fn slowed(inner: Arc<dyn Backend>, delay: Duration) -> Arc<Tap> {
        Arc::new(Tap { inner, inside: Arc::default(), delay })
    }

    pub(crate) fn context(self: &Arc<Tap>) -> Context {
        self.context_with(ContextOptions::default())
    }

    pub(crate) fn context_with(self: &Arc<Tap>, options: ContextOptions) -> Context {
        Context::with(Arc::clone(self) as Arc<dyn Backend>, options).unwrap()
    }

    /// Lets the next call of this kind fail. After a loss every call fails.
    pub(crate) fn fail(&self, call: Call, kind: ErrorKind) {
        self.fail_after(call, 0, kind);
    }

    /// As [`Tap::fail`], once `after` more calls of this kind have succeeded.
    pub(crate) fn fail_after(&self, call: Call, after: usize, kind: ErrorKind) {
        self.inside.lock().unwrap().faults.push(Fault { call, after, kind });
    }

    /// Device work submitted since this was last asked: bytes moved and operations, by the plans.
    pub(crate) fn take_work(&self) -> f64 {
        std::mem::take(&mut self.inside.lock().unwrap().work)
    }

    /// Matrix products submitted since this was last asked.
    pub(crate) fn take_products(&self) -> usize {
        std::mem::take(&mut self.inside.lock().unwrap().products)
    }

    /// How often this was called.
    pub(crate) fn count(&self, call: Call) -> usize {
        self.inside.lock().unwrap().calls.iter().filter(|c| **c == call).count()
    }

    fn meet(&self, call: Call) -> Result<()> {
        meet(&self.inside, call)
    }
}

fn meet(inside: &Mutex<Inside>, call: Call) -> Result<()> {
    let mut inside = inside.lock().unwrap();
    inside.calls.push(call);
    let failure = |kind| Error::new(kind, "device", format!("{call:?} was made to fail"));
    if inside.lost {
        return Err(failure(ErrorKind::Lost));
    }
    let Some(at) = inside.faults.iter().position(|f| f.call == call) else { return Ok(()) };
    if inside.faults[at].after > 0 {
        inside.faults[at].after -= 1;
        return Ok(());
    }
    let fault = inside.faults.remove(at);
    inside.lost = fault.kind == ErrorKind::Lost;
    Err(failure(fault.kind))
}

struct Counted {
    inner: Arc<dyn Prepared>,
    work: f64,
    products: usize,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Prepared for Counted {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes read and written and arithmetic operations.
fn work(plan: &Plan) -> f64 {
    let bytes = |val| plan.graph.out(val).shape.elems() as f64 * 4.0;
    plan.steps
        .iter()
        .map(|step| {
            let group = &step.group;
            let points: f64 = group.dims.iter().map(|n| *n as f64).product();
            let each =
                if matches!(group.kind, Kind::MatMul { .. }) { 2.0 } else { group.body.exprs.len() as f64 };
            let moved: f64 = group.operands.iter().map(|v| bytes(*v)).sum();
            let stored: f64 = group.stores.iter().map(|s| bytes(s.val)).sum();
            points * each + moved + stored
        })
        .sum()
}

struct Failing {
    inner: Box<dyn Pending>,
    inside: Arc<Mutex<Inside>>,
}

impl Pending for Failing {
    fn ready(&mut self) -> bool {
        self.inner.ready()
    }

    fn wait(&mut self, timeout: Duration) -> Result<Vec<Bytes>> {
        meet(&self.inside, Call::Fetch)?;
        self.inner.wait(timeout)
    }
}

impl Backend for Tap {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        self.meet(Call::Prepare)?;
        let products = plan.steps.iter().filter(|s| matches!(s.group.kind, Kind::MatMul { .. })).count();
        Ok(Arc::new(Counted { inner: self.inner.prepare(plan)?, work: work(plan), products }))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        self.meet(Call::Alloc)?;
        self.inner.alloc(bytes)
    }

    fn free(&self, buffer: BufferId) {
        self.inner.free(buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        self.meet(Call::Submit)?;
        let counted = prepared.as_any().downcast_ref::<Counted>().unwrap();
        {
            let mut inside = self.inside.lock().unwrap();
            (inside.work, inside.products) = (inside.work + counted.work, inside.products + counted.products);
        }
        std::thread::sleep(self.delay);
        self.inner.submit(&counted.inner, args)
    }

    fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.meet(Call::Wait)?;
        self.inner.wait(ticket, timeout)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.meet(Call::Write)?;
        self.inner.write(buffer, bytes)
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        self.meet(Call::Read)?;
        Ok(Box::new(Failing { inner: self.inner.read(ranges)?, inside: Arc::clone(&self.inside) }))
    }

    fn memory(&self) -> Memory {
        self.inner.memory()
    }
}

/// A host tensor of f32.
pub(crate) fn host(shape: &[usize], elems: &[f32]) -> HostTensor {
    HostTensor::new(shape, elems).unwrap()
}

/// A host tensor of `shape` whose elements differ; `turn` tells tensors apart.
pub(crate) fn fill(shape: &[usize], turn: f32) -> HostTensor {
    let count = shape.iter().product::<usize>();
    let elems: Vec<f32> = (0..count).map(|i| ((i as f32 + turn) * 0.618_034).fract() - 0.45).collect();
    host(shape, &elems)
}

/// The elements of a host tensor, as they are.
pub(crate) fn bits(x: &HostTensor) -> Vec<u64> {
    x.to_vec::<f64>().into_iter().map(f64::to_bits).collect()
}

/// A network of two layers with no two sizes alike.
pub(crate) struct Net {
    pub(crate) w1: Param,
    pub(crate) b1: Param,
    pub(crate) w2: Param,
    pub(crate) b2: Param,
}

/// Rows of a batch.
pub(crate) const BATCH: usize = 7;

impl Net {
    pub(crate) fn new(ctx: &Context) -> Net {
        Net::sized(ctx, [6, 5, 4])
    }

    pub(crate) fn sized(ctx: &Context, [a, b, c]: [usize; 3]) -> Net {
        let param = |name: &str, shape: &[usize], turn| Param::new(ctx, name, fill(shape, turn)).unwrap();
        Net {
            w1: param("w1", &[a, b], 0.1),
            b1: param("b1", &[b], 0.2),
            w2: param("w2", &[b, c], 0.3),
            b2: param("b2", &[c], 0.4),
        }
    }

    pub(crate) fn params(&self) -> [&Param; 4] {
        [&self.w1, &self.b1, &self.w2, &self.b2]
    }

    /// The hidden layer's values and the output.
    pub(crate) fn forward(&self, x: Tensor) -> [Tensor; 3] {
        let z = x.matmul(self.w1.t()) + self.b1.t();
        let h = z.tanh();
        [z, h, h.matmul(self.w2.t()) + self.b2.t()]
    }

    pub(crate) fn loss(&self, p: &Pass, turn: f32) -> Result<Tensor> {
        let (a, c) = (self.w1.shape()[0], self.b2.shape()[0]);
        let y = self.forward(p.input(fill(&[BATCH, a], turn))?)[2];
        Ok(y.mse(p.input(fill(&[BATCH, c], turn + 0.5))?))
    }

    /// The bits of all weights.
    pub(crate) fn bits(&self) -> Vec<Vec<u64>> {
        self.params().iter().map(|p| bits(&p.read().unwrap())).collect()
    }
}

/// The text of an error that must come, and its kind.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T>, kind: ErrorKind) -> String {
    match result {
        Ok(_) => panic!("no error came"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            error.to_string()
        }
    }
}
