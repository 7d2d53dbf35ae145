//! Attention on units, tried against the definition computed on the host.

use std::sync::Arc;

use wgrad_graph::{
    Args, Attend, Backend, Caps, DType, Fast, Graph, LeafArg, LeafKind, Node, Op, Options, Out, Prepared,
    Result, Root, Shape, Val, bail, plan,
};

use super::{LONG, f16_bits, first, noise, unwritten};
use crate::beside::beside;
use crate::gpu::Gpu;
use crate::launch::{Lowered, On};
use crate::prepare;

/// Largest error of a result of halves, relative to its largest number: eight roundings of weights to halves.
const CLOSE: f64 = 4e-3;

/// The same of f32: exponents of scores of up to 60, in 24 bits.
const CLOSE_SPLIT: f64 = 4e-5;

/// The logarithm of a row that sees nothing.
const NOTHING: f64 = f32::MAX as f64;

/// An attention to try, and its gradients.
pub(crate) struct Heads {
    /// Heads of queries and of keys, queries, keys, features of keys and of values.
    pub(crate) sizes: [usize; 6],
    pub(crate) causal: bool,
    /// Whether a mask is added, of infinities too: one query sees nothing.
    pub(crate) masked: bool,
    /// How operands lie in memory: f16, or f32.
    pub(crate) dtype: DType,
}

/// Operands and results, in f64.
struct Truth {
    /// Queries, keys, values, and the result's gradient.
    ins: [Vec<f64>; 4],
    /// The result, and logarithms of the rows' totals.
    made: [Vec<f64>; 2],
    /// Sums of result times gradient.
    delta: Vec<f64>,
    /// By queries, keys and values.
    grads: [Vec<f64>; 3],
}

/// What is wrong with attention on units.
pub(super) fn fault(gpu: &Gpu, path: Fast) -> Result<Option<String>> {
    let split = path == Fast::SplitAttention;
    let dtype = if split { DType::F32 } else { DType::F16 };
    // Shared heads of keys, edges on both sides, more features than one kernel has room for both gradients of.
    let plain = Heads { sizes: [2, 1, 150, 133, 64, 64], causal: true, masked: false, dtype };
    let sizes = if split { [2, 2, 70, 99, 96, 84] } else { [2, 2, 70, 99, 128, 100] };
    let masked = Heads { sizes, causal: false, masked: true, dtype };
    let wrong = |heads: &Heads| {
        // Tiles that follow would only be compiled: nothing here is left to them.
        let units_alone = |lowered: &mut Lowered| lowered.launches.retain(|l| l.on != On::Marked);
        let wrong = heads.off_as(gpu, gpu.caps(), true, units_alone)?;
        Ok(wrong.map(|what| format!("{what}, sizes {:?}", heads.sizes)))
    };
    first(beside(&[plain, masked], wrong))
}

impl Heads {
    /// The first result that is off, and where, by launches for a device with these limits that `edit` changes; gradients
    /// only if `backward`.
    pub(crate) fn off_as(
        &self,
        gpu: &Gpu,
        caps: &Caps,
        backward: bool,
        edit: impl Fn(&mut Lowered) + Sync,
    ) -> Result<Option<String>> {
        let run = |op, ins: &[Operand]| run(gpu, caps, &edit, op, ins);
        let truth = self.by_hand();
        let [h, g, l, s, d, e] = self.sizes;
        let attend = Attend { causal: self.causal, masked: self.masked, scaled: true };
        let float = |x: &[f64]| x.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect::<Vec<u8>>();
        let half = |i: usize| match self.dtype {
            DType::F16 => truth.ins[i].iter().flat_map(|x| f16_bits(*x).to_ne_bytes()).collect(),
            _ => float(&truth.ins[i]),
        };
        let close = if self.dtype == DType::F16 { CLOSE } else { CLOSE_SPLIT };
        let mut ins = vec![
            ([1, h, l, d].to_vec(), self.dtype, half(0)),
            ([1, g, s, d].to_vec(), self.dtype, half(1)),
            ([1, g, s, e].to_vec(), self.dtype, half(2)),
        ];
        if self.masked {
            let mask: Vec<f64> = (0..h * l * s).map(|i| self.mask(i / s % l, i % s)).collect();
            ins.push(([1, h, l, s].to_vec(), DType::F32, float(&mask)));
        }
        let forward = ins.len();
        ins.push(([1, h, l, e].to_vec(), DType::F32, float(&truth.ins[3])));
        ins.push(([1, h, l].to_vec(), DType::F32, float(&truth.made[1])));
        ins.push(([1, h, l].to_vec(), DType::F32, float(&truth.delta)));
        let both = [(Op::Attention(attend), &ins[..forward]), (Op::AttentionGrad(attend), &ins[..])];
        let made = beside(&both[..1 + usize::from(backward)], |(op, ins)| run(*op, ins));
        let made: Vec<Vec<f32>> = made.into_iter().collect::<Result<Vec<_>>>()?.concat();
        let names = ["result", "logarithms", "gradient of queries", "of keys", "of values"];
        let all = made.iter().zip(truth.made.iter().chain(&truth.grads));
        let mut first = None;
        for (name, (got, want)) in names.into_iter().zip(all) {
            if got.len() != want.len() {
                bail!(Kernel, "attention", "{} numbers in place of {}: {name}", got.len(), want.len());
            }
            // Rows that see nothing have the largest number as their logarithm.
            let most = want.iter().filter(|x| **x < NOTHING).fold(0f64, |m, x| m.max(x.abs()));
            let off = |i: usize| {
                if want[i] == NOTHING {
                    return if f64::from(got[i]) == NOTHING { 0.0 } else { f64::INFINITY };
                }
                let off = (f64::from(got[i]) - want[i]).abs() / most;
                if off.is_nan() { f64::INFINITY } else { off }
            };
            let worst = (0..got.len()).max_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or(0);
            if off(worst) > close && first.is_none() {
                first = Some(format!("{name}: {:e} for {:e} at {worst}", got[worst], want[worst]));
            }
        }
        Ok(first)
    }

    /// What is added to a score.
    fn mask(&self, i: usize, j: usize) -> f64 {
        if i == self.sizes[2] / 2 || (7 * i + j).is_multiple_of(5) {
            f64::NEG_INFINITY
        } else {
            (j % 16) as f64 / 8.0 - 1.0
        }
    }

    fn by_hand(&self) -> Truth {
        let [h, g, l, s, d, e] = self.sizes;
        // Multiples of 1/8 that f16 holds, or numbers that f32 alone does. Later keys are larger, so that rows' tops rise;
        // later queries have larger gradients.
        let split = self.dtype == DType::F32;
        let low = |x: u32| if split { f64::from(x >> 8) / f64::from(1 << 27) } else { 0.0 };
        let number = |x: u32| f64::from(x % 33) / 8.0 - 2.0 + low(x);
        let fill = |n: usize, seed: u32| noise(n, seed).map(number).collect::<Vec<f64>>();
        let mut ins = [fill(h * l * d, 11), fill(g * s * d, 12), fill(g * s * e, 13), fill(h * l * e, 14)];
        for (i, x) in ins[1].iter_mut().enumerate() {
            *x *= (1 + i / d % s / 32) as f64;
        }
        for (i, x) in ins[3].iter_mut().enumerate() {
            *x *= f64::from((i / e % l / 20) as i32 - 3).exp2();
        }
        if split {
            ins.iter_mut().flatten().for_each(|x| *x = f64::from(*x as f32));
        }
        let [q, k, v, dy] = &ins;
        let mut made = [vec![0.0; h * l * e], vec![0.0; h * l]];
        let mut grads = [vec![0.0; h * l * d], vec![0.0; g * s * d], vec![0.0; g * s * e]];
        let mut delta = vec![0.0; h * l];
        let scale = 1.0 / (d as f64).sqrt();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        for (row, i) in (0..h * l).map(|row| (row, row % l)) {
            let of = row / l / (h / g);
            let keys = if self.causal { s.min(i + 1) } else { s };
            let (q, dy) = (&q[row * d..][..d], &dy[row * e..][..e]);
            let at = |j: usize| of * s + j;
            let added = |j: usize| if self.masked { self.mask(i, j) } else { 0.0 };
            let score = |j: usize| scale * dot(q, &k[at(j) * d..][..d]) + added(j);
            let scores: Vec<f64> = (0..keys).map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
            if top == f64::NEG_INFINITY {
                made[1][row] = NOTHING;
                continue;
            }
            let total: f64 = scores.iter().map(|x| (x - top).exp()).sum();
            made[1][row] = top + total.ln();
            let y = &mut made[0][row * e..][..e];
            for (j, score) in scores.iter().enumerate() {
                let p = (score - top).exp() / total;
                for c in 0..e {
                    y[c] += p * v[at(j) * e + c];
                    grads[2][at(j) * e + c] += p * dy[c];
                }
            }
            delta[row] = dot(y, dy);
            for (j, score) in scores.iter().enumerate() {
                let p = (score - top).exp() / total;
                let slope = p * (dot(dy, &v[at(j) * e..][..e]) - delta[row]) * scale;
                for c in 0..d {
                    grads[0][row * d + c] += slope * k[at(j) * d + c];
                    grads[1][at(j) * d + c] += slope * q[c];
                }
            }
        }
        Truth { ins, made, delta, grads }
    }
}

/// Shape, dtype and bytes.
type Operand = (Vec<usize>, DType, Vec<u8>);

/// All results of an operation, each as f32.
fn run(
    gpu: &Gpu,
    caps: &Caps,
    edit: &impl Fn(&mut Lowered),
    op: Op,
    ins: &[Operand],
) -> Result<Vec<Vec<f32>>> {
    let mut graph = Graph::default();
    let (mut vals, mut leaves, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    for (dims, dtype, bytes) in ins {
        let out = Out { shape: Shape::from(&dims[..]), dtype: *dtype };
        let (inputs, after) = (Vec::new().into(), Vec::new().into());
        let node =
            graph.push(Node { op: Op::Input, inputs, outs: [out].into(), after, segment: 0, at: None });
        vals.push(Val::of(node));
        leaves.push((node, LeafKind::Buffer));
        let mut bytes = bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let buffer = gpu.alloc(bytes.len())?;
        gpu.write(buffer, &bytes)?;
        buffers.push(buffer);
    }
    let y = graph.add(op, &vals, None, None)?;
    let outs: Vec<Out> = graph.node(y.node).outs.to_vec();
    let roots: Vec<Root> =
        (0..outs.len()).map(|out| Root { val: Val { out: out as _, ..y }, into: None }).collect();
    let options = Options { fuse: true, keep: false };
    let plan = Arc::new(plan(&Arc::new(graph), &roots, &leaves, &options, caps)?);
    let mut lowered = prepare::lower(caps, &plan)?;
    lowered.iter_mut().for_each(edit);
    let ready: Arc<dyn Prepared> = Arc::new(prepare::prepare(gpu.core(), &plan, lowered)?);
    let leaves: Vec<LeafArg<'_>> = buffers.iter().map(|buffer| LeafArg::Buffer(*buffer)).collect();
    let mut made = Vec::new();
    for out in &outs {
        let bytes = out.shape.elems() * 4;
        made.push((unwritten(gpu, bytes)?, bytes));
    }
    let outputs: Vec<_> = made.iter().map(|(buffer, _)| *buffer).collect();
    gpu.submit(&ready, Args { leaves: &leaves, scalars: &[], outputs: &outputs, watch: None })?;
    let read = gpu.read(&made)?.wait(LONG)?;
    buffers.into_iter().chain(outputs).for_each(|buffer| gpu.free(buffer));
    Ok(read.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
}
