//! Figures as a table, as JSON and as a chart.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use wgrad::{Caps, Error, ErrorKind, Result};

/// The figures of a workload.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) median_ms: f64,
    pub(crate) least_ms: f64,
    pub(crate) most_ms: f64,
    /// By the device's clock.
    pub(crate) device_ms: Option<f64>,
    /// Speed in `unit`, by the shorter of the median and the device's time.
    pub(crate) amount: f64,
    pub(crate) unit: &'static str,
    /// The peak that it is compared with.
    pub(crate) kind: &'static str,
    /// Largest difference to the oracle, relative to the largest number.
    pub(crate) error: f64,
}

impl Row {
    pub(crate) const HEAD: &str = "ms a run                                                 median        min        max     device        speed           error";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device_ms.map_or("-".to_owned(), |ms| format!("{ms:.4}"));
        write!(
            f,
            "{:<52} {:>10.4} {:>10.4} {:>10.4} {device:>10} {:>12.2} {:<8} {:.1e}",
            self.name, self.median_ms, self.least_ms, self.most_ms, self.amount, self.unit, self.error
        )
    }
}

/// The figures of a run.
#[derive(Serialize)]
pub(crate) struct Record {
    device: String,
    driver: String,
    pub(crate) rows: Vec<Row>,
    /// Names of workloads, and why they failed.
    pub(crate) failed: Vec<(String, String)>,
}

impl Record {
    pub(crate) fn new(caps: &Caps) -> Record {
        Record {
            device: caps.name.clone(),
            driver: caps.driver.clone(),
            rows: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// The best speed of a kind.
    fn peak(&self, kind: &str) -> f64 {
        self.rows.iter().filter(|row| row.kind == kind).map(|row| row.amount).fold(0.0, f64::max)
    }

    /// The device's peaks as measured, and each workload's share of its own.
    pub(crate) fn peaks(&self) -> String {
        let mut text = String::from("\nshare of the measured peak\n");
        for kind in ["copy", "matmul f32", "matmul f16"] {
            let peak = self.peak(kind);
            for row in self.rows.iter().filter(|row| row.kind == kind) {
                let share = row.amount / peak;
                let bar = "#".repeat((40.0 * share).round() as usize);
                text +=
                    &format!("{:<52} {:>5.1} % of {peak:.1} {} {bar}\n", row.name, 100.0 * share, row.unit);
            }
        }
        text
    }

    /// Writes what was asked for.
    ///
    /// # Errors
    /// `Data` where a file cannot be written.
    pub(crate) fn write(&self, json: Option<&Path>, svg: Option<&Path>) -> Result<()> {
        let failed = |path: &Path, e: std::io::Error| {
            Error::new(ErrorKind::Data, "record", format!("{}: {e}", path.display())).because(e)
        };
        if let Some(path) = json {
            let text = serde_json::to_string_pretty(self).expect("numbers and texts are JSON");
            std::fs::write(path, text + "\n").map_err(|e| failed(path, e))?;
        }
        if let Some(path) = svg {
            std::fs::write(path, self.chart()).map_err(|e| failed(path, e))?;
        }
        Ok(())
    }

    /// The shares of the peaks as bars.
    fn chart(&self) -> String {
        let (line, left, wide) = (18, 380, 400.0);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n",
            line * (self.rows.len() + 2)
        );
        text += &format!(
            "<text x=\"8\" y=\"14\">{}: share of the measured peak</text>\n",
            self.device.replace(['<', '&'], " ")
        );
        for (i, row) in self.rows.iter().enumerate() {
            let (y, share) = (line * (i + 1), row.amount / self.peak(row.kind));
            text += &format!(
                "<text x=\"8\" y=\"{}\">{}</text><rect x=\"{left}\" y=\"{y}\" width=\"{:.1}\" height=\"13\" fill=\"#4878a8\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{:.2} {}</text>\n",
                y + 12,
                row.name,
                wide * share,
                f64::from(left) + wide * share + 6.0,
                y + 12,
                row.amount,
                row.unit
            );
        }
        text + "</svg>\n"
    }
}
