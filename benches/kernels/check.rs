//! Whether a workload's results are right.

use wgrad::prelude::*;
use wgrad::{Kept, Result, bail};

use crate::work::{Cost, Operands, Work};

/// More operations than this are compared with the CPU executor in f32, which is checked against the oracle by
/// the tests.
const MOST_FLOPS: f64 = 4e9;

/// Rows that are looked at where rows tell for all.
fn some(rows: usize) -> Vec<i32> {
    let mut some = vec![0, rows as i32 / 2, rows as i32 - 1];
    some.dedup();
    some
}

/// The largest difference to the oracle, relative to the largest number.
///
/// # Errors
/// `Data` where it is over the workload's tolerance; what the devices meet.
pub(crate) fn run(ctx: &Context, work: &Work, operands: &Operands) -> Result<f64> {
    let by_rows = work.is_by_rows();
    let all = work.inputs.iter().find(|i| i.by_rows).map_or(1, |i| i.data.dims[0]);
    let rows = some(all);
    let share = if by_rows { rows.len() as f64 / all as f64 } else { 1.0 };
    let heavy = matches!(work.cost, Cost::Flops(flops) if flops * share > MOST_FLOPS);
    let truth = Context::new(&if heavy { Device::cpu() } else { Device::oracle() })?;
    let picked = HostTensor::new([rows.len()], &rows)?;
    let place = |(x, input): (&HostTensor, &crate::work::Input)| -> Result<Kept> {
        let x = match input.by_rows {
            true => rows_of(x, &rows)?,
            false => x.clone(),
        };
        Kept::new(&truth, x)
    };
    let kept = operands.host.iter().zip(&work.inputs).map(place).collect::<Result<Vec<_>>>()?;
    let want = truth.pass(|_| {
        let x: Vec<Tensor> = kept.iter().map(Kept::t).collect();
        (work.run)(&x)?.iter().map(|y| y.read()).collect::<Result<Vec<_>>>()
    })?;
    let got = ctx.pass(|p| {
        let results = operands.run(p, work)?;
        let idx = p.input(&picked)?;
        let pick = |y: &Tensor| if by_rows { y.try_index_select(0, idx)?.read() } else { y.read() };
        // The last copy's: all before it have run too.
        results[results.len() - want.len()..].iter().map(pick).collect::<Result<Vec<_>>>()
    })?;
    let mut most = 0f64;
    for (got, want) in got.iter().zip(&want) {
        let (got, want) = (got.to_vec::<f64>(), want.to_vec::<f64>());
        let scale = want.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
        for (got, want) in got.iter().zip(&want) {
            let off = (got - want).abs() / scale;
            most = if off.is_nan() { f64::INFINITY } else { most.max(off) };
        }
    }
    if most > work.tolerance {
        bail!(Data, "check", "differs from the oracle by {most:.1e} of its largest number; nothing is timed");
    }
    Ok(most)
}

fn rows_of(x: &HostTensor, rows: &[i32]) -> Result<HostTensor> {
    let dims = x.shape().dims().to_vec();
    let row = x.bytes().len() / dims[0];
    let bytes: Vec<u8> = rows.iter().flat_map(|r| &x.bytes()[*r as usize * row..][..row]).copied().collect();
    HostTensor::from_bytes(&*[&[rows.len()], &dims[1..]].concat(), x.dtype(), bytes)
}
