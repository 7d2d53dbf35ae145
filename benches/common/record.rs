//! Figures as a table, as JSON, as a chart, and as a file of the record.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Where, when and on what figures were taken.
#[derive(Clone, Debug, Serialize)]
pub struct Stamp {
    /// Name of the benchmark.
    pub bench: String,
    /// Day and minute, UTC.
    pub date: String,
    /// The commit, with a `+` where the tree held changes; `WGRAD_COMMIT` where there is no git.
    pub commit: String,
    /// The adapter's name.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Fast paths that were switched off, or refused when the device opened.
    pub off: String,
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `2026-01-31 23:59` of seconds since 1970.
pub(crate) fn date(seconds: u64) -> String {
    // Days are counted from a first of March, so that leap days come last (Hinnant, "chrono-compatible
    // low-level date algorithms").
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}

impl Stamp {
    /// Now, here.
    pub fn now(bench: &str, device: &str, driver: &str, off: String) -> Stamp {
        let commit = std::env::var("WGRAD_COMMIT").ok().or_else(|| {
            let dirty = git(&["status", "--porcelain", "-uno"]).is_some_and(|s| !s.is_empty());
            Some(git(&["rev-parse", "--short=12", "HEAD"])? + if dirty { "+" } else { "" })
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Stamp {
            bench: bench.to_owned(),
            date: date(now),
            commit: commit.unwrap_or_else(|| "unknown".to_owned()),
            device: device.to_owned(),
            driver: driver.to_owned(),
            off,
        }
    }

    /// Day, commit and driver.
    fn said(&self) -> String {
        let driver = if self.driver.is_empty() { String::new() } else { format!(", {}", self.driver) };
        format!("{} UTC, commit {}{driver}", self.date, self.commit)
    }

    /// A file name of letters, digits and dashes that sorts by bench and day.
    fn file(&self) -> String {
        let text = format!("{} {} {}", self.bench, self.date, self.device);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
    }
}

/// The figures of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Milliseconds of a run by the host's clock: median, least, most.
    pub host_ms: [f64; 3],
    /// By the device's clock.
    pub device_ms: Option<f64>,
    /// Speed in `unit`, by the shorter of the median and the device's time.
    pub amount: f64,
    /// What the speed is counted in.
    pub unit: &'static str,
    /// The peak that it is a share of.
    pub of: &'static str,
    /// The share; no number where that peak was not measured.
    pub share: Option<f64>,
    /// Largest difference to the oracle, relative to the largest number.
    pub error: f64,
    /// Other figures by name.
    pub more: BTreeMap<&'static str, f64>,
}

/// Eighths of a block from empty to full.
const EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A bar of `width` characters.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * width as f64).round() as usize;
    (0..width).map(|i| EIGHTHS[eighths.saturating_sub(8 * i).min(8)]).collect()
}

/// Four digits that matter.
fn short(x: f64) -> String {
    match x {
        _ if x >= 1000.0 => format!("{x:.0}"),
        _ if x >= 100.0 => format!("{x:.1}"),
        _ if x >= 10.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// A speed as text, and its unit: slow products in GFLOP/s.
fn speed(amount: f64, unit: &str) -> (String, &str) {
    match unit {
        "TFLOP/s" if amount < 1.0 => (short(1000.0 * amount), "GFLOP/s"),
        unit => (short(amount), unit),
    }
}

impl Line {
    /// The table's head.
    pub const HEAD: &str = "\
workload                                                  median       min       max    device         speed       of peak               error
                                                              ms        ms        ms        ms";
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device_ms.map_or("-".to_owned(), short);
        let [median, least, most] = self.host_ms.map(short);
        let share = self.share.map_or("      -".to_owned(), |share| format!("{:>5.1} %", 100.0 * share));
        let bar = bar(self.share.unwrap_or(0.0), 10);
        let (amount, unit) = speed(self.amount, self.unit);
        write!(
            f,
            "{:<54} {median:>9} {least:>9} {most:>9} {device:>9} {amount:>9} {unit:<7} {share} {bar} {:>8.1e}",
            self.name, self.error
        )
    }
}

/// How time grows with one size.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// What is swept and over what.
    pub name: String,
    /// Sizes.
    pub sizes: Vec<f64>,
    /// Milliseconds at each.
    pub ms: Vec<f64>,
    /// Exponent of the power law through all points.
    pub exponent: f64,
    /// That between the last two points.
    pub last: f64,
    /// Milliseconds that a unit of size adds, by least squares.
    pub per_unit_ms: f64,
    /// Milliseconds at size 0 of the same line.
    pub at_zero_ms: f64,
}

/// Slope and value at 0 of the line through the points by least squares.
fn line_through(x: &[f64], y: &[f64]) -> [f64; 2] {
    let n = x.len() as f64;
    let [mean_x, mean_y] = [x, y].map(|v| v.iter().sum::<f64>() / n);
    let over: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let under: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
    let slope = over / under;
    [slope, mean_y - slope * mean_x]
}

impl Sweep {
    /// The fits of what was measured.
    pub fn of(name: impl Into<String>, sizes: &[f64], ms: &[f64]) -> Sweep {
        let [x, y] = [sizes, ms].map(|v| v.iter().map(|v| v.ln()).collect::<Vec<_>>());
        let [per_unit_ms, at_zero_ms] = line_through(sizes, ms);
        let tail = x.len().saturating_sub(2);
        Sweep {
            name: name.into(),
            sizes: sizes.to_vec(),
            ms: ms.to_vec(),
            exponent: line_through(&x, &y)[0],
            last: line_through(&x[tail..], &y[tail..])[0],
            per_unit_ms,
            at_zero_ms,
        }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |v: &[f64]| v.iter().map(|v| format!("{:>10}", short(*v))).collect::<String>();
        let sizes: String = self.sizes.iter().map(|n| format!("{n:>10}")).collect();
        writeln!(f, "{}\n  size {sizes}\n  ms   {}", self.name, row(&self.ms))?;
        write!(
            f,
            "  time ~ size^{:.2} over all, size^{:.2} between the last two; {:.4} ms + {:.3e} ms a unit",
            self.exponent, self.last, self.at_zero_ms, self.per_unit_ms
        )
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Where and when.
    #[serde(flatten)]
    pub stamp: Stamp,
    /// The device's peaks as measured first: `copy` in GB/s, products in TFLOP/s.
    pub peaks: BTreeMap<&'static str, f64>,
    /// The workloads.
    pub lines: Vec<Line>,
    /// How times grow.
    pub sweeps: Vec<Sweep>,
    /// Names of workloads, and why they failed.
    pub failed: Vec<(String, String)>,
}

impl Record {
    /// Nothing yet.
    pub fn new(stamp: Stamp, peaks: BTreeMap<&'static str, f64>) -> Record {
        Record { stamp, peaks, lines: Vec::new(), sweeps: Vec::new(), failed: Vec::new() }
    }

    /// The device and its peaks.
    pub fn head(&self) -> String {
        let Stamp { date, commit, device, driver, off, .. } = &self.stamp;
        let driver = if driver.is_empty() { String::new() } else { format!(", {driver}") };
        let mut text = format!("{device}{driver}\n{date} UTC, commit {commit}");
        if !off.is_empty() {
            text += &format!(", without {off}");
        }
        for (what, peak) in &self.peaks {
            let (amount, unit) = speed(*peak, if *what == "copy" { "GB/s" } else { "TFLOP/s" });
            text += &format!("\n  peak of {what:<10} {amount:>8} {unit}");
        }
        text
    }

    /// Writes what was asked for: JSON, chart, and both into `benches/record/`.
    ///
    /// # Errors
    /// Where a file cannot be written: its path and why.
    pub fn write(&self, json: Option<&Path>, svg: Option<&Path>, record: bool) -> Result<(), String> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        let text = serde_json::to_string_pretty(self).expect("numbers and texts are JSON") + "\n";
        if record {
            let at = ["benches/record", "record"].into_iter().map(PathBuf::from).find(|p| p.is_dir());
            let stem = at.ok_or("there is no folder benches/record")?.join(self.stamp.file());
            write(&stem.with_extension("json"), text.clone())?;
            write(&stem.with_extension("svg"), self.chart())?;
        }
        json.map_or(Ok(()), |path| write(path, text))?;
        svg.map_or(Ok(()), |path| write(path, self.chart()))
    }

    /// Shares of the peaks as bars.
    pub fn chart(&self) -> String {
        const LINE: usize = 20;
        const COLORS: [(&str, &str); 3] =
            [("copy", "#3f7f93"), ("matmul f32", "#b5651d"), ("matmul f16", "#7b4f9d")];
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
        let (left, wide, top) = (370, 400.0, 64);
        let height = top + LINE * self.lines.len() + 12;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"960\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"12\" y=\"22\" font-size=\"15\">{}: share of the measured peak</text>\n\
             <text x=\"12\" y=\"42\" fill=\"#555\">{}</text>\n",
            escaped(&self.stamp.device),
            escaped(&self.stamp.said()),
        );
        for (i, (of, color)) in COLORS.iter().enumerate() {
            let x = 560 + 130 * i;
            text += &format!(
                "<rect x=\"{x}\" y=\"31\" width=\"12\" height=\"12\" fill=\"{color}\"/>\
                 <text x=\"{}\" y=\"42\" fill=\"#333\">of {of}</text>\n",
                x + 17
            );
        }
        for quarter in 0..=4 {
            let x = f64::from(left) + wide * 0.25 * f64::from(quarter);
            text += &format!(
                "<line x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{}\" stroke=\"#ddd\"/>\
                 <text x=\"{x}\" y=\"{}\" fill=\"#888\" text-anchor=\"middle\">{} %</text>\n",
                height - 12,
                top - 4,
                25 * quarter
            );
        }
        for (i, line) in self.lines.iter().enumerate() {
            let (y, share) = (top + LINE * i, line.share.unwrap_or(0.0));
            let color = COLORS.iter().find(|(of, _)| *of == line.of).map_or("#666", |(_, color)| color);
            let width = wide * share.min(1.1);
            let (amount, unit) = speed(line.amount, line.unit);
            text += &format!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{left}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" fill=\"{color}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#333\">{amount} {unit}, {:.0} %</text>\n",
                left - 8,
                y + 14,
                escaped(&line.name),
                y + 3,
                f64::from(left) + width + 6.0,
                y + 14,
                100.0 * share
            );
        }
        text + "</svg>\n"
    }
}
