//! A device whose values live on the host: every submission uploads what it reads and downloads what it writes,
//! by the same staging memory as any other.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wgrad::{Backend, Caps, Result, bail};
use wgrad_graph::{Args, BufferId, Bytes, LeafArg, Memory, Pending, Plan, Prepared, Stage, Ticket};

/// How long one submission may take.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct RoundTrip {
    inner: Arc<dyn Backend>,
    host: Mutex<HashMap<BufferId, Vec<u8>>>,
}

impl RoundTrip {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<RoundTrip> {
        Arc::new(RoundTrip { inner, host: Mutex::default() })
    }

    fn host(&self) -> MutexGuard<'_, HashMap<BufferId, Vec<u8>>> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are on the host already.
struct Here(Vec<Vec<u8>>);

impl Pending for Here {
    fn ready(&mut self) -> bool {
        true
    }

    fn wait(&mut self, _: Duration) -> Result<Vec<Bytes>> {
        Ok(self.0.drain(..).map(Bytes::from).collect())
    }
}

/// A prepared plan and the bytes of its outputs.
#[derive(Debug)]
struct Ready {
    inner: Arc<dyn Prepared>,
    output_bytes: Vec<usize>,
}

impl Prepared for Ready {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for RoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoundTrip")
    }
}

impl Backend for RoundTrip {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        let caps = self.caps();
        let bytes = |i| {
            let out = plan.output(i);
            out.shape.elems() * caps.storage(out.dtype).bytes()
        };
        let output_bytes = (0..plan.outputs.len()).map(bytes).collect();
        Ok(Arc::new(Ready { inner: self.inner.prepare(plan)?, output_bytes }))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        self.inner.alloc(bytes)
    }

    fn free(&self, buffer: BufferId) {
        self.host().remove(&buffer);
        self.inner.free(buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        let Some(ready) = prepared.as_any().downcast_ref::<Ready>() else {
            bail!(Argument, "submit", "the plan was prepared by another device");
        };
        {
            let _upload = args.stage(Stage::Upload);
            let host = self.host();
            for leaf in args.leaves {
                if let LeafArg::Buffer(id) = leaf
                    && let Some(bytes) = host.get(id)
                {
                    self.inner.write(*id, bytes)?;
                }
            }
        }
        let ticket = self.inner.submit(&ready.inner, args)?;
        {
            let _wait = args.stage(Stage::Wait);
            self.inner.wait(ticket, LONG)?;
        }
        let _download = args.stage(Stage::Download);
        let ranges: Vec<_> = args.outputs.iter().copied().zip(ready.output_bytes.iter().copied()).collect();
        let bytes = self.inner.read(&ranges)?.wait(LONG)?;
        self.host().extend(args.outputs.iter().copied().zip(bytes.iter().map(|b| b.to_vec())));
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.inner.wait(ticket, timeout)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.host().insert(buffer, bytes.to_vec());
        Ok(())
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        let host = self.host();
        let of = |(id, bytes): &(BufferId, usize)| {
            let all = host.get(id).map(Vec::as_slice).unwrap_or_default();
            all.get(..*bytes).unwrap_or(all).to_vec()
        };
        Ok(Box::new(Here(ranges.iter().map(of).collect())))
    }

    fn memory(&self) -> Memory {
        self.inner.memory()
    }

    fn has_clock(&self) -> bool {
        self.inner.has_clock()
    }
}
