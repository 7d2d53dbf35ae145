//! Whether a workload's results are right.

use wgrad::prelude::*;
use wgrad::{DeviceKind, Kept, Result, bail};
use wgrad_benches::{Want, by_hand, gathered};

use crate::work::{Cost, Input, Operands, Work};

/// More operations than this are compared with the CPU executor in f32, which is checked against the oracle by
/// the tests.
const MOST_FLOPS: f64 = 4e9;
/// As many rows are looked at as the oracle computes in about so many operations and elements on each thread.
const FLOPS: f64 = 2.5e8;
const ELEMS: usize = 1 << 16;

/// Rows that are looked at where rows tell for all: the first, the last, and between them at even distances.
fn some(work: &Work, rows: usize) -> Vec<i32> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let elems: usize = work.inputs.iter().filter(|i| i.by_rows).map(|i| i.data.elems()).sum();
    let by_elems = threads * ELEMS / (elems / rows).max(1);
    let count = match work.cost {
        Cost::Flops(flops) => by_elems.min((threads as f64 * FLOPS * rows as f64 / flops) as usize),
        Cost::Bytes(_) => by_elems,
    };
    let count = count.max(3).min(rows);
    (0..count).map(|i| (i * (rows - 1) / (count - 1).max(1)) as i32).collect()
}

/// The largest difference to the truth, relative to the largest number.
///
/// # Errors
/// `Data` where it is over the workload's tolerance; what the devices meet.
pub(crate) fn run(ctx: &Context, work: &Work, operands: &Operands) -> Result<f64> {
    let row = work.row();
    let elems: Vec<Vec<f32>> = match work.cost {
        Cost::Bytes(_) => operands.host.iter().map(floats).collect(),
        Cost::Flops(_) => Vec::new(),
    };
    let by_hand = if elems.is_empty() { None } else { by_hand(&row.op, &row.inputs, &elems) };
    let most = match by_hand {
        Some(want) => whole(ctx, work, operands, &want)?,
        None => by_rows(ctx, work, operands)?,
    };
    if most > work.tolerance {
        bail!(Data, "check", "differs from the truth by {most:.1e} of its largest number; nothing is timed");
    }
    Ok(most)
}

/// The elements of an operand.
fn floats(x: &HostTensor) -> Vec<f32> {
    gathered(x.shape().elems(), |from, out: &mut [f32]| part(x, from, out))
}

fn part<T: wgrad::Element>(x: &HostTensor, from: usize, out: &mut [T]) {
    let (size, n) = (x.dtype().bytes(), out.len());
    let bytes = x.bytes()[from * size..][..n * size].to_vec();
    let part = HostTensor::from_bytes([n], x.dtype(), bytes).expect("as many bytes as elements");
    out.copy_from_slice(&part.to_vec::<T>());
}

/// All elements of all results.
fn whole(ctx: &Context, work: &Work, operands: &Operands, want: &[Want]) -> Result<f64> {
    let got = ctx.pass(|p| {
        let results = operands.run(p, work)?;
        // The last copy's: all before it have run too.
        results[results.len() - want.len()..].iter().map(Tensor::read).collect::<Result<Vec<_>>>()
    })?;
    let mut most = 0f64;
    for (got, want) in got.iter().zip(want) {
        if got.shape().elems() != want.elems {
            bail!(Data, "check", "{} has not the {} elements that it should have", got.shape(), want.elems);
        }
        most = most.max(want.off(|from, out| part(got, from, out)));
    }
    Ok(most)
}

/// Some rows, or all where rows do not tell, beside the oracle's.
fn by_rows(ctx: &Context, work: &Work, operands: &Operands) -> Result<f64> {
    let by_rows = work.is_by_rows();
    let all = work.inputs.iter().find(|i| i.by_rows).map_or(1, |i| i.data.dims[0]);
    let rows = some(work, all);
    let share = if by_rows { rows.len() as f64 / all as f64 } else { 1.0 };
    let heavy = matches!(work.cost, Cost::Flops(flops) if flops * share > MOST_FLOPS);
    // The CPU executor is not compared with itself.
    let heavy = heavy && ctx.caps().kind != DeviceKind::Cpu;
    let truth = Context::new(&if heavy { Device::cpu() } else { Device::oracle() })?;
    let picked = HostTensor::new([rows.len()], &rows)?;
    let place = |(x, input): (&HostTensor, &Input)| -> Result<Kept> {
        let x = match input.by_rows {
            true => rows_of(x, &rows)?,
            false => x.clone(),
        };
        Kept::new(&truth, x)
    };
    let kept = operands.host.iter().zip(&work.inputs).map(place).collect::<Result<Vec<_>>>()?;
    let want = truth.pass(|_| {
        let x: Vec<Tensor> = kept.iter().map(Kept::t).collect();
        (work.run)(&x)?.iter().map(Tensor::read).collect::<Result<Vec<_>>>()
    })?;
    let got = ctx.pass(|p| {
        let results = operands.run(p, work)?;
        let idx = p.input(&picked)?;
        let pick = |y: &Tensor| if by_rows { y.try_index_select(0, idx)?.read() } else { y.read() };
        results[results.len() - want.len()..].iter().map(pick).collect::<Result<Vec<_>>>()
    })?;
    let mut most = 0f64;
    for (got, want) in got.iter().zip(&want) {
        let truth = Want::known(want.to_vec::<f64>());
        most = most.max(truth.off(|from, out| part(got, from, out)));
    }
    Ok(most)
}

fn rows_of(x: &HostTensor, rows: &[i32]) -> Result<HostTensor> {
    let dims = x.shape().dims().to_vec();
    let row = x.bytes().len() / dims[0];
    let bytes: Vec<u8> = rows.iter().flat_map(|r| &x.bytes()[*r as usize * row..][..row]).copied().collect();
    HostTensor::from_bytes(&*[&[rows.len()], &dims[1..]].concat(), x.dtype(), bytes)
}
