//! The workspace: memory that plans share, since they run one after the other. It is as large as the
//! largest plan that is still alive needs.

use std::collections::BTreeMap;

use wgrad_graph::{Error, ErrorKind, Plan, Result};

use crate::faults::lock;
use crate::gpu::Core;
use crate::pages;

/// Where a plan's values lie in the workspace: buffers by number, each with an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Buffer and offset of each slot.
    pub(crate) slots: Vec<(usize, u64)>,
    /// Buffer and offset of the scratch memory.
    pub(crate) scratch: (usize, u64),
    /// Bytes needed of each buffer.
    pub(crate) needs: Vec<u64>,
}

/// A part of the workspace for a part of the plan.
#[derive(Copy, Clone)]
struct Item {
    bytes: u64,
    born: u32,
    dies: u32,
}

/// Places the plan's slots, and `scratch_bytes` that all steps share, in buffers of at most
/// `most_bytes`. The upload block lies at the start of buffer 0. One buffer takes the plan's own
/// offsets; if it is too small, slots that live at one time are placed side by side, largest first.
pub(crate) fn place(plan: &Plan, scratch_bytes: u64, align: u64, most_bytes: u64) -> Result<Places> {
    let plain = (plan.workspace_bytes as u64).next_multiple_of(align);
    if plain + scratch_bytes <= most_bytes {
        return Ok(Places {
            slots: plan.slots.iter().map(|s| (0, s.offset_bytes as u64)).collect(),
            scratch: (0, plain),
            needs: if plain + scratch_bytes == 0 { Vec::new() } else { vec![plain + scratch_bytes] },
        });
    }
    // Uploads and scratch live as long as the plan.
    let mut items: Vec<Item> =
        plan.slots.iter().map(|s| Item { bytes: s.bytes as u64, born: s.born, dies: s.dies }).collect();
    items.push(Item { bytes: scratch_bytes, born: 0, dies: u32::MAX });
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(items[*i].bytes));
    // What each buffer holds, with its offset.
    let uploads = Item { bytes: plan.upload_bytes as u64, born: 0, dies: u32::MAX };
    let mut buffers: Vec<Vec<(u64, Item)>> = vec![vec![(0, uploads)]];
    let mut places = vec![(0, 0); items.len()];
    for i in order {
        let item = items[i];
        if item.bytes > most_bytes {
            return Err(Error::new(
                ErrorKind::Limit,
                "prepare",
                format!(
                    "a value of {} bytes is over the device's limit of {most_bytes} a buffer",
                    item.bytes
                ),
            ));
        }
        let fit = |placed: &[(u64, Item)]| {
            let mut taken: Vec<(u64, u64)> = placed
                .iter()
                .filter(|(_, other)| other.born <= item.dies && item.born <= other.dies)
                .map(|(start, other)| (*start, start + other.bytes))
                .collect();
            taken.sort_unstable();
            let mut at = 0;
            for (start, end) in taken {
                if at + item.bytes <= start {
                    break;
                }
                at = at.max(end.next_multiple_of(align));
            }
            (at + item.bytes <= most_bytes).then_some(at)
        };
        let found = buffers.iter().enumerate().find_map(|(n, placed)| fit(placed).map(|at| (n, at)));
        let (n, at) = found.unwrap_or_else(|| {
            buffers.push(Vec::new());
            (buffers.len() - 1, 0)
        });
        buffers[n].push((at, item));
        places[i] = (n, at);
    }
    let end = |placed: &Vec<(u64, Item)>| placed.iter().map(|(at, i)| at + i.bytes).max().unwrap_or(0);
    let needs: Vec<u64> = buffers.iter().map(|b| end(b).next_multiple_of(align)).collect();
    if needs[0] > most_bytes {
        return Err(Error::new(
            ErrorKind::Limit,
            "prepare",
            format!("uploads of {} bytes are over the device's limit of {most_bytes}", plan.upload_bytes),
        ));
    }
    let scratch = places.pop().unwrap_or_default();
    Ok(Places { slots: places, scratch, needs })
}

/// The workspace's buffers, and what each living plan needs of them.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    buffers: Vec<Option<(u64, wgpu::Buffer)>>,
    needs: BTreeMap<u64, Vec<u64>>,
}

impl Workspace {
    /// Buffers that exist.
    pub(crate) fn buffers(&self) -> usize {
        self.buffers.iter().flatten().count()
    }

    /// Bytes of those.
    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.iter().flatten().map(|(_, b)| b.size()).sum()
    }

    /// The buffers with their numbers.
    pub(crate) fn all(&self) -> Vec<Option<(u64, wgpu::Buffer)>> {
        self.buffers.clone()
    }

    fn need(&self, n: usize) -> u64 {
        self.needs.values().filter_map(|needs| needs.get(n)).copied().max().unwrap_or(0)
    }
}

/// Makes the workspace large enough for plan `serial`.
pub(crate) fn reserve(core: &Core, serial: u64, needs: &[u64]) -> Result<()> {
    let mut work = lock(&core.work);
    for (n, need) in needs.iter().enumerate() {
        if work.buffers.len() <= n {
            work.buffers.push(None);
        }
        if work.buffers[n].as_ref().is_none_or(|(_, b)| b.size() < *need) && *need > 0 {
            let old = work.buffers[n].take();
            if let Some((number, _)) = &old {
                lock(&core.binds).evict(&[*number]);
            }
            let keep = old.as_ref().map(|(_, b)| b.size());
            // The old one goes first: memory must not hold both.
            drop(old);
            match pages::create(core, "prepare", *need) {
                Ok(buffer) => work.buffers[n] = Some((core.number(), buffer)),
                Err(error) => {
                    if let Some(bytes) = keep {
                        work.buffers[n] =
                            pages::create(core, "prepare", bytes).ok().map(|b| (core.number(), b));
                    }
                    return Err(error);
                }
            }
        }
    }
    work.needs.insert(serial, needs.to_vec());
    drop(work);
    pages::note_peak(core);
    Ok(())
}

/// Forgets plan `serial`. A buffer of which less than half is needed is replaced by a smaller one.
pub(crate) fn release(core: &Core, serial: u64) {
    let mut work = lock(&core.work);
    work.needs.remove(&serial);
    for n in 0..work.buffers.len() {
        let need = work.need(n);
        let Some((number, buffer)) = &work.buffers[n] else { continue };
        if need * 2 > buffer.size() || core.faults.is_lost() {
            continue;
        }
        let number = *number;
        let smaller = match need {
            0 => None,
            _ => match pages::create(core, "prepare", need) {
                Ok(buffer) => Some((core.number(), buffer)),
                Err(_) => continue,
            },
        };
        work.buffers[n] = smaller;
        lock(&core.binds).evict(&[number]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use wgrad_graph::{Graph, Slot};

    fn plan(upload_bytes: usize, slots: &[(usize, usize, u32, u32)]) -> Plan {
        Plan {
            graph: Arc::new(Graph::default()),
            leaves: Vec::new(),
            scalars: Vec::new(),
            steps: Vec::new(),
            slots: slots
                .iter()
                .map(|&(offset_bytes, bytes, born, dies)| Slot { offset_bytes, bytes, born, dies })
                .collect(),
            outputs: Vec::new(),
            upload_bytes,
            workspace_bytes: slots.iter().map(|s| s.0 + s.1).max().unwrap_or(0).max(upload_bytes),
            notes: Vec::new(),
        }
    }

    #[test]
    fn one_buffer_keeps_the_plans_offsets() {
        let places = place(&plan(256, &[(256, 512, 0, 1), (768, 256, 1, 2)]), 300, 256, 4096).unwrap();
        assert_eq!(places.slots, [(0, 256), (0, 768)]);
        assert_eq!((places.scratch, places.needs), ((0, 1024), vec![1324]));
        assert!(place(&plan(0, &[]), 0, 256, 4096).unwrap().needs.is_empty());
    }

    #[test]
    fn a_plan_over_the_limit_is_spread_without_overlap() {
        let slots: Vec<_> = (0..12).map(|i| (256 + i * 512, 512, i as u32, i as u32 + 3)).collect();
        let plan = plan(256, &slots);
        let places = place(&plan, 256, 256, 1536).unwrap();
        assert!(places.needs.len() > 1 && places.needs.iter().all(|n| *n <= 1536), "{places:?}");
        let mut held: Vec<((usize, u64), u64, u32, u32)> = plan
            .slots
            .iter()
            .zip(&places.slots)
            .map(|(s, at)| (*at, s.bytes as u64, s.born, s.dies))
            .collect();
        held.push((places.scratch, 256, 0, u32::MAX));
        held.push(((0, 0), 256, 0, u32::MAX));
        for (i, a) in held.iter().enumerate() {
            assert!(a.0.1 + a.1 <= places.needs[a.0.0]);
            for b in &held[..i] {
                let apart = a.0.0 != b.0.0 || a.0.1 + a.1 <= b.0.1 || b.0.1 + b.1 <= a.0.1;
                assert!(apart || a.3 < b.2 || b.3 < a.2, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_value_over_the_limit_is_an_error() {
        let error = place(&plan(0, &[(0, 4096, 0, 1)]), 0, 256, 2048).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("4096"));
        assert!(place(&plan(4096, &[(4096, 256, 0, 0)]), 0, 256, 2048).is_err());
    }
}
