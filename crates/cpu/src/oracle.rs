//! The f64 oracle: interprets a plan's graph node by node, plainly, with every float stored as f64.
//! All other executors are checked against it.

mod attention;
mod eval;
mod matrix;
mod value;
mod whole;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use wgrad_graph::{
    Args, Backend, BufferId, Caps, DeviceKind, LeafArg, Memory, NodeId, Off, Op, Pending, Plan, Prepared,
    Result, Stage, Ticket, Val, bail,
};

use crate::memory::{ALIGN, Device, Ready};
use value::Value;

/// The reference device: floats of every dtype are f64, sums are pairwise trees fixed by shape,
/// nothing is fused, and every operation is the plain reading of its definition.
#[derive(Debug)]
pub struct Oracle {
    caps: Caps,
    device: Arc<Device>,
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle::new()
    }
}

impl Oracle {
    /// An oracle with memory of its own.
    pub fn new() -> Oracle {
        let caps = Caps {
            name: "f64 oracle".to_owned(),
            driver: String::new(),
            kind: DeviceKind::Oracle,
            max_buffers: 64,
            max_value_bytes: isize::MAX as usize,
            align_bytes: ALIGN,
            immediate_bytes: 1 << 16,
            max_invocations: 1024,
            max_workgroups: 65_535,
            shared_bytes: 1 << 15,
            subgroup: 1,
            f64: true,
            wide: true,
            native_half: false,
            long_words: false,
            long_products: false,
            // By definitions alone.
            off: Off::WITHOUT_UNITS,
            half_factors: false,
            cooperative: false,
        };
        Oracle { caps, device: Device::new(None) }
    }
}

/// A plan and the nodes that its outputs need.
#[derive(Debug)]
struct Interpreted {
    plan: Arc<Plan>,
    needed: Vec<bool>,
    /// The last node that reads each node's values.
    last_use: Vec<NodeId>,
}

impl Prepared for Interpreted {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Interpreted {
    fn new(plan: &Arc<Plan>) -> Interpreted {
        let nodes = plan.graph.nodes();
        let mut needed = vec![false; nodes.len()];
        let mut last_use: Vec<NodeId> = (0..nodes.len() as NodeId).collect();
        for output in &plan.outputs {
            needed[output.val.node as usize] = true;
            last_use[output.val.node as usize] = NodeId::MAX;
        }
        for (id, node) in nodes.iter().enumerate().rev() {
            if needed[id] {
                for v in &node.inputs {
                    needed[v.node as usize] = true;
                    let last = &mut last_use[v.node as usize];
                    *last = (*last).max(id as NodeId);
                }
            }
        }
        Interpreted { plan: Arc::clone(plan), needed, last_use }
    }
}

impl Backend for Oracle {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<dyn Prepared>> {
        Ok(Arc::new(Interpreted::new(plan)))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferId> {
        self.device.lock().alloc(bytes)
    }

    fn free(&self, buffer: BufferId) {
        self.device.lock().free(buffer);
    }

    fn submit(&self, prepared: &Arc<dyn Prepared>, args: Args<'_>) -> Result<Ticket> {
        let Some(ready) = prepared.as_any().downcast_ref::<Interpreted>() else {
            bail!(Argument, "submit", "the plan was prepared by another device");
        };
        let _compute = args.stage(Stage::Compute);
        let plan = &ready.plan;
        check_arity(plan, &args)?;
        let mut state = self.device.lock();
        let mut values: HashMap<Val, Arc<Value>> = HashMap::new();
        for (leaf, arg) in plan.leaves.iter().zip(args.leaves) {
            let val = Val::of(leaf.node);
            let bytes = match arg {
                LeafArg::Buffer(buffer) => state.bytes(*buffer)?,
                LeafArg::Host(bytes) => bytes,
            };
            values.insert(val, Arc::new(Value::from_bytes(plan.graph.out(val), bytes)?));
        }
        for (node, x) in plan.scalars.iter().zip(args.scalars) {
            let val = Val::of(*node);
            values.insert(val, Arc::new(Value::scalar(plan.graph.out(val), *x)));
        }
        for buffer in args.outputs {
            state.bytes(*buffer)?;
        }
        check_starts(plan, &ready.needed, &values)?;

        let mut error = None;
        let mut ran = 0;
        for (id, node) in plan.graph.nodes().iter().enumerate() {
            if !ready.needed[id] || matches!(node.op, Op::Input | Op::Scalar) {
                continue;
            }
            let mut ins = Vec::with_capacity(node.inputs.len());
            for v in &node.inputs {
                match values.get(v) {
                    Some(x) => ins.push(Arc::clone(x)),
                    None => {
                        bail!(Argument, node.op.name(), "operand {v:?} of node %{id} is no leaf of the plan")
                    }
                }
            }
            let outs = eval::node(&plan.graph, node, &ins, &mut error);
            ran += 1;
            for (out, value) in outs.into_iter().enumerate() {
                values.insert(Val { node: id as NodeId, out: out as u32 }, Arc::new(value));
            }
            for v in &node.inputs {
                if ready.last_use[v.node as usize] == id as NodeId {
                    values.remove(v);
                }
            }
        }

        let mut staged = Vec::with_capacity(plan.outputs.len());
        for output in &plan.outputs {
            match values.get(&output.val) {
                Some(value) => staged.push(value.to_bytes()),
                None => bail!(Argument, "submit", "output {:?} is no value of the plan", output.val),
            }
        }
        let before = (state.counters.uploads, state.counters.upload_bytes);
        for (buffer, bytes) in args.outputs.iter().zip(&staged) {
            state.write(*buffer, bytes)?;
        }
        (state.counters.uploads, state.counters.upload_bytes) = before;
        count_uploads(&mut state.counters, &args);
        state.counters.dispatches += ran;
        Ok(self.device.submitted(&mut state, error))
    }

    fn wait(&self, ticket: Ticket, _timeout: Duration) -> Result<()> {
        self.device.ended(ticket.0)
    }

    fn write(&self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.device.lock().write(buffer, bytes)
    }

    fn read(&self, ranges: &[(BufferId, usize)]) -> Result<Box<dyn Pending>> {
        let mut state = self.device.lock();
        let bytes = state.read(ranges)?;
        Ok(Box::new(Ready { device: Arc::clone(&self.device), ticket: state.last_ticket(), bytes }))
    }

    fn memory(&self) -> Memory {
        self.device.lock().counters
    }
}

/// Host bytes cross once for a submission, however many leaves they are.
pub(crate) fn count_uploads(counters: &mut Memory, args: &Args<'_>) {
    let host = |leaf: &LeafArg<'_>| match leaf {
        LeafArg::Host(bytes) => Some(bytes.len() as u64),
        LeafArg::Buffer(_) => None,
    };
    if args.leaves.iter().any(|leaf| host(leaf).is_some()) {
        counters.uploads += 1;
        counters.upload_bytes += args.leaves.iter().filter_map(host).sum::<u64>();
    }
}

pub(crate) fn check_arity(plan: &Plan, args: &Args<'_>) -> Result<()> {
    let given = (args.leaves.len(), args.scalars.len(), args.outputs.len());
    let wanted = (plan.leaves.len(), plan.scalars.len(), plan.outputs.len());
    if given != wanted {
        bail!(
            Argument,
            "submit",
            "the plan takes {wanted:?} leaves, scalars and outputs, {given:?} were given"
        );
    }
    Ok(())
}

/// Starts that scalars give are checked before anything runs.
fn check_starts(plan: &Plan, needed: &[bool], values: &HashMap<Val, Arc<Value>>) -> Result<()> {
    for (node, _) in plan.graph.nodes().iter().zip(needed).filter(|(_, needed)| **needed) {
        let (axis, whole, part, start) = match node.op {
            Op::SliceAt { axis } => (axis, node.inputs[0], node.outs[0], node.inputs[1]),
            Op::SliceAssignAt { axis } => {
                (axis, node.inputs[0], plan.graph.out(node.inputs[1]), node.inputs[2])
            }
            _ => continue,
        };
        let (axis, whole) = (usize::from(axis), plan.graph.out(whole));
        let max = whole.shape[axis] - part.shape[axis];
        if let Some(start) = values.get(&start).map(|v| v.int(0))
            && !(0..=max as i64).contains(&start)
        {
            let error = wgrad_graph::Error::new(
                wgrad_graph::ErrorKind::Argument,
                node.op.name(),
                format!("start {start} on axis {axis} is over {max}"),
            );
            return Err(match node.at {
                Some(at) => error.at(at),
                None => error,
            });
        }
    }
    Ok(())
}
