//! Batches bound: parts that lie in the same driver buffers are one dispatch, with a table of their places.

use smallvec::SmallVec;
use wgrad_graph::Result;

use crate::binds::Binds;
use crate::emit;
use crate::encode::{Given, bind, group};
use crate::faults::lock;
use crate::gpu::Core;
use crate::lists::{Bound, Which};
use crate::prepare::{Batch, Ready};

/// Tables that a batch keeps: of a loop that alternates between places, each.
const MOST_TABLES: usize = 8;

/// A batch in as few dispatches as there are sets of driver buffers in which its parts lie.
pub(crate) fn bind_batch(
    core: &Core,
    binds: &mut Binds,
    given: &Given,
    work: &[Option<(u64, wgpu::Buffer)>],
    ready: &Ready,
    number: usize,
    bound: &mut Vec<Bound>,
) -> Result<()> {
    let batch = &ready.batches[number];
    // For each set of buffers: its parts, each with its places.
    let mut sets: Vec<(SmallVec<[u64; 6]>, Parts<'_>)> = Vec::new();
    for (p, (part, _)) in batch.parts.iter().enumerate() {
        let places = part.iter().map(|(source, bytes)| given.find(work, &core.flag, *source, *bytes));
        let places: Found<'_> = places.collect::<Result<_>>()?;
        let numbers: SmallVec<[u64; 6]> = places.iter().map(|f| f.0).collect();
        match sets.iter_mut().find(|(n, _)| *n == numbers) {
            Some((_, parts)) => parts.push((p, places)),
            None => sets.push((numbers, vec![(p, places)])),
        }
    }
    for (_, parts) in &sets {
        match bind_parts(core, binds, batch, parts)? {
            Some(whole) => bound.push(Bound { run: Which::Batch(number as u32), ..whole }),
            None => {
                for (p, _) in parts {
                    bound.push(bind(core, binds, given, work, ready, batch.runs.start + p)?);
                }
            }
        }
    }
    Ok(())
}

/// Buffer number, buffer and offset of each binding of a part.
type Found<'a> = SmallVec<[(u64, &'a wgpu::Buffer, u64); 6]>;

/// Numbers of parts with their places.
type Parts<'a> = Vec<(usize, Found<'a>)>;

/// Parts of a batch that lie in the same buffers as one dispatch; `None` where that does not pay, or
/// where they lie too far apart to be bound together.
fn bind_parts(
    core: &Core,
    binds: &mut Binds,
    batch: &Batch,
    parts: &[(usize, Found<'_>)],
) -> Result<Option<Bound>> {
    if parts.len() < 2 {
        return Ok(None);
    }
    let count = batch.whole.binds.len();
    let row = (1 + count).next_multiple_of(4);
    let mut ranges: SmallVec<[(u64, u64, u64); 6]> = SmallVec::new();
    let mut buffers: SmallVec<[&wgpu::Buffer; 6]> = SmallVec::new();
    let mut table = vec![u32::MAX; row * batch.parts.len()];
    for b in 0..count {
        let (number, buffer, _) = parts[0].1[b];
        let base = parts.iter().map(|(_, f)| f[b].2).min().unwrap_or(0);
        let end = parts.iter().map(|(p, f)| f[b].2 + batch.parts[*p].0[b].1).max().unwrap_or(0);
        if end - base > core.caps.max_value_bytes as u64 {
            return Ok(None);
        }
        for (r, (_, f)) in parts.iter().enumerate() {
            table[r * row + 1 + b] = ((f[b].2 - base) / u64::from(batch.unit_bytes[b])) as u32;
        }
        ranges.push((number, base, (end - base).next_multiple_of(16).min(buffer.size() - base)));
        buffers.push(buffer);
    }
    let mut total = 0;
    for (r, (p, _)) in parts.iter().enumerate() {
        total += batch.parts[*p].1;
        table[r * row] = total;
    }
    let mut tables = lock(&batch.tables);
    let uniform = match tables.iter().find(|(words, _)| *words == table) {
        Some((_, uniform)) => uniform.clone(),
        None => {
            let uniform = core.kernels.uniform_group(&core.device, bytemuck::cast_slice(&table));
            if tables.len() >= MOST_TABLES {
                tables.remove(0);
            }
            tables.push((table, uniform.clone()));
            uniform
        }
    };
    let group = group(core, binds, &batch.whole, ranges, &buffers);
    let grid = emit::fold(u64::from(total.div_ceil(batch.workgroup)), &core.caps)?;
    Ok(Some(Bound { run: Which::Batch(0), group, uniform: Some(uniform), total: Some((total, grid)) }))
}
