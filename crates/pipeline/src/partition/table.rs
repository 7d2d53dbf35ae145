//! A partition judged stage by stage, and printed.

use std::fmt::Write;
use std::ops::Range;

use wgrad_graph::Result;

use super::search::{Place, Search};
use super::{Partition, Problem};
use crate::schedule::Wiring;

/// One stage of a partition: what it costs and needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The stage.
    pub stage: usize,
    /// The device's name.
    pub device: String,
    /// Its layers.
    pub layers: Range<usize>,
    /// Whether it computes its forward pass again.
    pub recompute: bool,
    /// The time of F, I and W for one micro-batch.
    pub time: f64,
    /// The time of the handover to the next stage.
    pub transfer: f64,
    /// The time with handovers, as the problem counts them.
    pub cost: f64,
    /// Bytes that it needs; for an interleaved schedule those of all stages of its device.
    pub memory: u64,
    /// Bytes that its device has.
    pub available: u64,
}

/// Bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes == u64::MAX {
        return "unlimited".into();
    }
    if bytes < 10_240 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

impl Problem {
    /// Every stage of a partition judged: of one that was solved for, or one made by hand.
    ///
    /// # Errors
    /// `Argument` for a partition of other layers or devices.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{DeviceSpec, Layer, Partition, Problem};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let layers = [1.0, 2.0, 3.0].map(|cost| Layer::new("layer", cost)).to_vec();
    /// let problem = Problem::new(layers, vec![DeviceSpec::new("gpu", 2.0), DeviceSpec::new("cpu", 1.0)]);
    /// let rows = problem.rows(&Partition::new(3, &[2])?)?;
    /// assert_eq!((rows[0].cost, rows[1].cost), (1.5, 3.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rows(&self, partition: &Partition) -> Result<Vec<Row>> {
        self.check_partition(partition)?;
        let stages = partition.stages();
        let count = stages.len() / self.family.chunks();
        let search = Search::new(self, count);
        let mut rows = Vec::new();
        for (stage, layers) in stages.iter().enumerate() {
            let device = partition.device(stage);
            let before = stage.checked_sub(1).map(|s| partition.device(s));
            let after = partition.devices().get(stage + 1).copied();
            let place = Place { position: stage % count, count, device, before, after };
            let recompute = partition.recomputes()[stage];
            let judged = search.stage(place, layers.start, layers.end, recompute);
            rows.push(Row {
                stage,
                device: self.devices[device].name.clone(),
                layers: layers.clone(),
                recompute,
                time: judged.time,
                transfer: after.map_or(0.0, |to| self.crossing(layers.end, device, to)),
                cost: judged.cost,
                memory: judged.memory,
                available: self.devices[device].memory,
            });
        }
        if self.family.chunks() > 1 {
            let memory = self.chunk_memory(partition, &self.family.make(count, self.micro_batches)?)?;
            for row in &mut rows {
                row.memory = memory[row.stage % count];
            }
        }
        Ok(rows)
    }

    /// The partition as a table: stage, device, layers, time, handover, cost, memory.
    ///
    /// # Errors
    /// As [`Problem::rows`].
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{DeviceSpec, Layer, Problem};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let layers = [1.0, 2.0, 3.0].map(|cost| Layer::new("layer", cost)).to_vec();
    /// let problem = Problem::new(layers, vec![DeviceSpec::new("gpu", 2.0), DeviceSpec::new("cpu", 1.0)]);
    /// let table = problem.table(&problem.solve()?)?;
    /// assert!(table.lines().nth(1).is_some_and(|line| line.contains("gpu")));
    /// # Ok(())
    /// # }
    /// ```
    pub fn table(&self, partition: &Partition) -> Result<String> {
        let rows = self.rows(partition)?;
        let head = ["stage", "device", "layers", "time", "handover", "cost", "memory", "of", ""];
        let mut cells: Vec<[String; 9]> = vec![head.map(String::from)];
        for row in &rows {
            let Range { start, end } = row.layers;
            let (first, last) = (&self.layers[start].name, &self.layers[end - 1].name);
            let named =
                if end - start == 1 || first == last { first.clone() } else { format!("{first}..{last}") };
            let fits = row.memory <= row.available;
            let notes = [(row.recompute, "recomputes"), (!fits, "does not fit")];
            let notes: Vec<&str> = notes.iter().filter(|n| n.0).map(|n| n.1).collect();
            cells.push([
                row.stage.to_string(),
                row.device.clone(),
                format!("{start}..{end} {named}").trim_end().to_owned(),
                format!("{:.6}", row.time),
                format!("{:.6}", row.transfer),
                format!("{:.6}", row.cost),
                bytes(row.memory),
                bytes(row.available),
                notes.join(", "),
            ]);
        }
        let width: Vec<usize> =
            (0..9).map(|c| cells.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &cells {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let width = width[c];
                // Words to the left, numbers to the right.
                let _ = if matches!(c, 1 | 2 | 8) {
                    write!(line, "{cell:<width$}  ")
                } else {
                    write!(line, "{cell:>width$}  ")
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        Ok(text)
    }

    /// The bytes of each device under an interleaved schedule, by going through its lists.
    pub(super) fn chunk_memory(&self, partition: &Partition, schedule: &crate::Schedule) -> Result<Vec<u64>> {
        let mut costs = self.costs(partition)?;
        costs.wiring = Wiring::edges(self.slots);
        Ok(schedule.memory(&costs))
    }
}
