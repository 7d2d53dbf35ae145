//! The report for a terminal.

use std::fmt::{self, Write};

use crate::report::Report;

/// Kernels that are printed; the others are one line.
const TOP: usize = 15;

/// Bytes in the unit that reads best.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} KB", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}

/// The last parts of a path, which say enough.
pub(crate) fn short(line: &str) -> &str {
    let cut = line.char_indices().rev().filter(|(_, c)| *c == '/').nth(1);
    cut.map_or(line, |(at, _)| &line[at + 1..])
}

/// What to do to get a profile.
pub(crate) const HINT: &str = "nothing was profiled: call `context.profile(true)`, run some steps, then ask \
                               for the report";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps == 0 && self.stages.is_empty() {
            return writeln!(f, "{HINT}");
        }
        let steps = self.steps.max(1) as f64;
        let ms = |ns: u64| ns as f64 / 1e6 / steps;
        let share = |ns: u64| 100.0 * ns as f64 / self.total_ns.max(1) as f64;
        writeln!(
            f,
            "{}: {} steps, {:.3} ms a step, {:.2} submissions a step",
            self.device,
            self.steps,
            self.step_ms(),
            self.submissions as f64 / steps
        )?;
        writeln!(
            f,
            "\n{:<14} {:>10} {:>7} {:>9} {:>10} {:>12}  in ggmlR",
            "host stage", "ms a step", "share", "a step", "crossings", "bytes a step"
        )?;
        for line in &self.stages {
            let (mut count, mut moved) = (String::new(), String::new());
            if line.crossings.count > 0 {
                let _ = write!(count, "{:.2}", line.crossings.count as f64 / steps);
                moved = bytes((line.crossings.bytes as f64 / steps) as u64);
            }
            writeln!(
                f,
                "{:<14} {:>10.4} {:>6.1}% {:>9.1} {count:>10} {moved:>12}  {}",
                line.stage,
                ms(line.ns),
                share(line.ns),
                line.count as f64 / steps,
                line.original
            )?;
        }
        writeln!(
            f,
            "{:<14} {:>10.4} {:>6.1}%  (the program's own time)",
            "unattributed",
            ms(self.unattributed_ns),
            share(self.unattributed_ns)
        )?;
        writeln!(f, "\n{:<14} {:>10} {:>10} {:>9}", "phase", "host ms", "device ms", "kernels")?;
        for line in &self.phases {
            writeln!(
                f,
                "{:<14} {:>10.4} {:>10.4} {:>9.1}",
                line.phase,
                ms(line.host_ns),
                ms(line.device_ns),
                line.kernels / steps
            )?;
        }
        writeln!(
            f,
            "\ntransfer share {:.1}%: a resident step is at most {:.2} times as fast\n\
             launch share   {:.1}%: a step launched for nothing is at most {:.2} times as fast",
            100.0 * self.transfer_share(),
            self.residency_ceiling(),
            100.0 * self.launch_share(),
            self.launch_ceiling()
        )?;
        self.kernels_table(f, steps)
    }
}

impl Report {
    fn kernels_table(&self, f: &mut fmt::Formatter<'_>, steps: f64) -> fmt::Result {
        if !self.timed {
            return writeln!(f, "\n{} has no clock for kernels: times are the host's", self.device);
        }
        let ms = |ns: u64| ns as f64 / 1e6 / steps;
        writeln!(
            f,
            "device: busy {:.4} ms a step ({:.1}% of the time), idle between submissions {:.4} ms\n",
            ms(self.busy_ns),
            100.0 * self.busy_ns as f64 / self.total_ns.max(1) as f64,
            ms(self.gap_ns)
        )?;
        writeln!(
            f,
            "{:>9} {:>6} {:>7} {:>9} {:>8} {:>9}  {:<16} kernel",
            "ms a step", "share", "a step", "us each", "GB/s", "GFLOP/s", "phase"
        )?;
        for k in self.kernels.iter().take(TOP) {
            let each = k.ns as f64 / 1e3 / k.count.max(1) as f64;
            let lines: Vec<&str> = k.lines.iter().map(|l| short(l)).collect();
            let at = if lines.is_empty() { String::new() } else { format!("  at {}", lines.join(", ")) };
            writeln!(
                f,
                "{:>9.4} {:>5.1}% {:>7.1} {each:>9.2} {:>8.1} {:>9.1}  {:<16} {} {:?}{at}",
                ms(k.ns),
                100.0 * k.share,
                k.count as f64 / steps,
                k.gb_s(),
                k.gflop_s(),
                k.phase,
                k.what,
                k.dims
            )?;
        }
        if let Some(rest) = self.kernels.get(TOP..).filter(|rest| !rest.is_empty()) {
            let ns: u64 = rest.iter().map(|k| k.ns).sum();
            let part: f64 = rest.iter().map(|k| k.share).sum();
            writeln!(f, "{:>9.4} {:>5.1}% {:>7} others", ms(ns), 100.0 * part, rest.len())?;
        }
        Ok(())
    }
}
