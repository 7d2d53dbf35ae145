//! Rows: printed, judged, written.

use std::time::Duration;

use serde::Serialize;
use wgrad::pipeline::{Payload, Problem, Timeline};
use wgrad::{Result, bail};

use super::Args;
use super::model::Gpt;
use super::replicas::{Replicated, Sums};
use super::staged::{Counts, DeviceMemory, Plan, Staged, rate};
use super::whole::Whole;

/// The most that a loss may differ from that of one context.
const TOLERANCE: f64 = 1e-4;

/// A run on one context.
#[derive(Serialize)]
struct WholeRow {
    micro_batches: usize,
    ms: f64,
    tokens_per_s: f64,
    peak_bytes: usize,
    planned_bytes: usize,
    losses: Vec<f64>,
}

/// A run over several contexts.
#[derive(Serialize, Default)]
pub(crate) struct Row {
    schedule: String,
    micro_batches: usize,
    cuts: Vec<usize>,
    /// Why it did not run, or ran wrong.
    failed: Option<String>,
    losses: Vec<f64>,
    /// The largest relative difference of a loss from one context.
    loss_difference: f64,
    ms: f64,
    tokens_per_s: f64,
    /// Throughput against one context at its own best.
    ratio: f64,
    timed_ms: f64,
    predicted_ms: f64,
    bubble: f64,
    predicted_bubble: f64,
    handovers: [usize; 2],
    handover_bytes: u64,
    /// Forward and back, bytes a second.
    handover_rates: [f64; 2],
    memory: Vec<DeviceMemory>,
    counts: Vec<Counts>,
    /// Of a run with replicas, which has neither handovers nor predictions.
    sums: Option<Sums>,
    #[serde(skip)]
    timelines: Vec<Timeline>,
    #[serde(skip)]
    profiles: Vec<String>,
}

/// All rows.
#[derive(Serialize)]
pub(crate) struct Table {
    devices: Vec<String>,
    sizes: String,
    batch: usize,
    tokens: usize,
    whole: Vec<WholeRow>,
    rows: Vec<Row>,
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// The largest relative difference.
fn difference(losses: &[f64], want: &[f64]) -> f64 {
    let off = |(a, b): (&f64, &f64)| {
        let off = (a - b).abs() / b.abs();
        if off.is_finite() { off } else { f64::INFINITY }
    };
    losses.iter().zip(want).map(off).fold(0.0, f64::max)
}

impl Row {
    pub(crate) fn new(name: &str, plan: &Plan, staged: &Staged, table: &Table) -> Row {
        let name = match name == plan.schedule.name() {
            true => name.to_owned(),
            false => format!("{name}: {}", plan.schedule.name()),
        };
        let micro_batches = plan.schedule.micro_batches();
        let want = table.losses(micro_batches);
        let loss_difference = difference(&staged.losses, want);
        let tokens_per_s = table.tokens as f64 / staged.seconds;
        let wrong = loss_difference > TOLERANCE;
        let report = &staged.timed;
        let due = plan.schedule.edges().len() * micro_batches - report.local / 2;
        let handovers = [staged.last.activations(), staged.last.gradients()];
        let failed = if wrong {
            Some(format!("losses differ by {loss_difference:.1e}"))
        } else if handovers != [due, due] {
            Some(format!("{handovers:?} handovers; {due} each way are due"))
        } else {
            None
        };
        let payloads = [Payload::Activation, Payload::Gradient];
        Row {
            schedule: name,
            micro_batches,
            cuts: plan.partition.cuts().to_vec(),
            failed,
            losses: staged.losses.clone(),
            loss_difference,
            ms: 1e3 * staged.seconds,
            tokens_per_s,
            ratio: table.ratio(tokens_per_s),
            timed_ms: 1e3 * report.seconds(),
            predicted_ms: 1e3 * staged.predicted.makespan,
            bubble: report.bubble(),
            predicted_bubble: staged.predicted.bubble(),
            handovers,
            handover_bytes: staged.last.bytes(),
            handover_rates: payloads.map(|p| rate(&staged.last, p)),
            memory: staged.memory.clone(),
            counts: staged.counts.clone(),
            sums: None,
            timelines: vec![staged.predicted.timeline(), report.timeline()],
            profiles: staged.profiles.clone(),
        }
    }

    /// Of a run with replicas.
    pub(crate) fn replicated(run: Replicated, table: &Table) -> Row {
        let micro_batches = run.schedule.micro_batches();
        let loss_difference = difference(&run.losses, table.losses(micro_batches));
        let failed = if loss_difference > TOLERANCE {
            Some(format!("losses differ by {loss_difference:.1e}"))
        } else {
            run.apart.map(|what| format!("other bits than the first replica: {what}"))
        };
        let tokens_per_s = table.tokens as f64 / run.seconds;
        Row {
            schedule: format!("{} replicas", run.memory.len()),
            micro_batches,
            failed,
            losses: run.losses,
            loss_difference,
            ms: 1e3 * run.seconds,
            tokens_per_s,
            ratio: table.ratio(tokens_per_s),
            memory: run.memory,
            counts: run.counts,
            sums: Some(run.sums),
            timelines: run.timelines,
            profiles: run.profiles,
            ..Row::default()
        }
    }

    pub(crate) fn failed(name: &str, micro_batches: usize, why: String) -> Row {
        Row { schedule: name.to_owned(), micro_batches, failed: Some(why), ..Row::default() }
    }

    /// What a context holds.
    fn place(&self) -> &'static str {
        if self.sums.is_some() { "replica" } else { "stage" }
    }

    fn print(&self, took: Duration) {
        let Row { schedule, micro_batches: m, cuts, failed, .. } = self;
        let verdict = if failed.is_some() { "FAILED" } else { "ok" };
        let cut = if self.sums.is_some() { String::new() } else { format!(" cut {cuts:?}") };
        println!("  {schedule} M {m}{cut}: {verdict}  ({:.1} s in all)", took.as_secs_f64());
        if let Some(why) = failed {
            println!("    {why}");
        }
        if self.losses.is_empty() {
            return;
        }
        let Row { loss_difference, ms, tokens_per_s, ratio, timed_ms, predicted_ms, .. } = self;
        println!(
            "    {ms:.2} ms a step, {tokens_per_s:.0} tokens/s, {ratio:.3} of one context's best so far; losses within {loss_difference:.1e}"
        );
        if let Some(Sums { count, bytes, under_way, beside, waited_ms, rate }) = self.sums {
            println!(
                "    gradients: {:.1} MiB a step in {count} sums, {:.2} GB/s; under way {:.1} % of the step, beside computing {:.1} %; waited for {waited_ms:.2} ms",
                mib(bytes as f64),
                rate / 1e9,
                100.0 * under_way,
                100.0 * beside
            );
        } else {
            let (predicted, measured) = (100.0 * self.predicted_bubble, 100.0 * self.bubble);
            println!(
                "    actions waited for: {timed_ms:.2} ms, predicted {predicted_ms:.2}; bubble {measured:.1} %, predicted {predicted:.1} %"
            );
            let ([f, b], [rf, rb]) = (self.handovers, self.handover_rates.map(|r| r / 1e9));
            println!(
                "    handovers {f} forward {b} back, {:.1} MiB; {rf:.2} and {rb:.2} GB/s",
                mib(self.handover_bytes as f64)
            );
        }
        for (d, memory) in self.memory.iter().enumerate() {
            let DeviceMemory { measured_bytes, planned_bytes, resident_bytes, stash_bytes, in_flight } =
                *memory;
            println!(
                "    D{d} peak {:.1} MiB, by plans {:.1} ({:+.2} %): resident {:.1}, stash of {in_flight} {:.1}",
                mib(measured_bytes as f64),
                mib(planned_bytes as f64),
                100.0 * (measured_bytes as f64 / planned_bytes as f64 - 1.0),
                mib(resident_bytes as f64),
                mib(stash_bytes as f64),
            );
        }
        for (s, c) in self.counts.iter().enumerate() {
            let place = self.place();
            println!(
                "    {place} {s}: {} plans made after the second step; a step: {} reused, {} submissions, {} recomputed",
                c.plans_made, c.plans_reused, c.submissions, c.recomputed
            );
        }
    }
}

impl Table {
    pub(crate) fn new(args: &Args) -> Table {
        Table {
            devices: args.devices.clone(),
            sizes: args.gpt().sizes(),
            batch: args.batch,
            tokens: args.batch * args.tokens,
            whole: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The losses of one context with these micro-batches, or with any.
    pub(crate) fn losses(&self, micro_batches: usize) -> &[f64] {
        let same = self.whole.iter().find(|w| w.micro_batches == micro_batches);
        same.or(self.whole.first()).map_or(&[], |w| &w.losses)
    }

    /// So many tokens a second against one context at its best.
    fn ratio(&self, tokens_per_s: f64) -> f64 {
        let best = self.whole.iter().map(|w| w.tokens_per_s).max_by(f64::total_cmp);
        best.map_or(0.0, |best| tokens_per_s / best)
    }

    /// Prints and keeps a run on one context.
    pub(crate) fn whole(&mut self, whole: Whole, took: Duration) {
        let Whole { micro_batches, losses, seconds, peak_bytes, planned_bytes } = whole;
        let tokens_per_s = self.tokens as f64 / seconds;
        let (first, last) = (losses.first().unwrap_or(&f64::NAN), losses.last().unwrap_or(&f64::NAN));
        println!(
            "  M {micro_batches:<3} {:>9.2} ms a step, {tokens_per_s:>9.0} tokens/s, peak {:.1} MiB, by plans {:.1}; loss {first:.4} to {last:.4}  ({:.1} s in all)",
            1e3 * seconds,
            mib(peak_bytes as f64),
            mib(planned_bytes as f64),
            took.as_secs_f64(),
        );
        let ms = 1e3 * seconds;
        self.whole.push(WholeRow { micro_batches, ms, tokens_per_s, peak_bytes, planned_bytes, losses });
    }

    /// Prints and keeps a run over several.
    pub(crate) fn row(&mut self, args: &Args, row: Row, took: Duration) -> Result<()> {
        row.print(took);
        if args.timelines {
            for timeline in &row.timelines {
                print!("    {}\n{}", timeline.title, timeline.to_text());
            }
        }
        for (s, profile) in row.profiles.iter().enumerate() {
            let place = row.place();
            println!("    {place} {s}, the host's time:\n{profile}");
        }
        if let (Some(path), Some(timeline)) = (&args.svg, row.timelines.last())
            && let Err(error) = std::fs::write(path, timeline.svg())
        {
            bail!(Data, "pipeline", "--svg {}: {error}", path.display());
        }
        self.rows.push(row);
        Ok(())
    }

    /// Whether nothing failed.
    pub(crate) fn right(&self) -> bool {
        !self.whole.is_empty() && self.rows.iter().all(|r| r.failed.is_none())
    }

    /// The peak of one context with so many micro-batches.
    pub(crate) fn peak(&self, micro_batches: usize) -> Option<usize> {
        self.whole.iter().find(|w| w.micro_batches == micro_batches).map(|w| w.peak_bytes)
    }

    /// Prints the short table and writes the rows as JSON.
    pub(crate) fn write(&mut self, args: &Args) -> Result<()> {
        // One context's best may have come after a row.
        let ratios: Vec<f64> = self.rows.iter().map(|r| self.ratio(r.tokens_per_s)).collect();
        self.rows.iter_mut().zip(ratios).for_each(|(row, ratio)| row.ratio = ratio);
        println!(
            "\n| schedule | M | cut | ms | ratio | bubble predicted, measured | GB/s forward, back | peak MiB (by plans) | losses |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for w in &self.whole {
            println!(
                "| one context | {} | – | {:.2} | | | | {:.0} ({:.0}) | |",
                w.micro_batches,
                w.ms,
                mib(w.peak_bytes as f64),
                mib(w.planned_bytes as f64)
            );
        }
        for r in &self.rows {
            let peak = |m: &DeviceMemory| {
                format!("{:.0} ({:.0})", mib(m.measured_bytes as f64), mib(m.planned_bytes as f64))
            };
            let peaks: Vec<String> = r.memory.iter().map(peak).collect();
            let losses = if r.failed.is_some() { "FAILED" } else { "ok" };
            let (cut, bubble, rates) = match &r.sums {
                Some(sums) => ("–".to_owned(), String::new(), format!("sums {:.2}", sums.rate / 1e9)),
                None => (
                    format!("{:?}", r.cuts),
                    format!("{:.1} %, {:.1} %", 100.0 * r.predicted_bubble, 100.0 * r.bubble),
                    format!("{:.2}, {:.2}", r.handover_rates[0] / 1e9, r.handover_rates[1] / 1e9),
                ),
            };
            println!(
                "| {} | {} | {cut} | {:.2} | {:.3} | {bubble} | {rates} | {} | {losses} {:.1e} |",
                r.schedule,
                r.micro_batches,
                r.ms,
                r.ratio,
                peaks.join(", "),
                r.loss_difference
            );
        }
        let Some(path) = &args.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        match std::fs::write(path, text) {
            Ok(()) => Ok(()),
            Err(error) => bail!(Data, "pipeline", "--json {}: {error}", path.display()),
        }
    }
}

/// The measured costs of the three kinds of layers, and of a handover.
pub(crate) fn print_costs(problem: &Problem, gpt: Gpt) {
    println!("  layers in ms, F I W, for a micro-batch (of {} in a step):", problem.micro_batches);
    for (d, device) in problem.devices.iter().enumerate() {
        for i in [0, 1, gpt.layers + 1] {
            let [f, w, v] = problem.times(d, i).map(|t| 1e3 * t);
            let layer = &problem.layers[i];
            let (stash, output) = (mib(layer.stash as f64), mib(layer.output as f64));
            println!(
                "    D{d} {} {:<10} {f:>8.3} {w:>8.3} {v:>8.3}  stash {stash:.2} MiB, output {output:.2} MiB",
                device.name, layer.name
            );
        }
    }
    for ((a, b), link) in problem.links.special() {
        println!("    D{a} to D{b}, one after the other: {:.2} GB/s", link.bandwidth / 1e9);
    }
}
