//! A run drawn over time, as text and as a picture; predicted and measured ones alike.

use std::fmt::Write;

use super::{Action, Kind, Message, Passage, Schedule, Simulation, Span};

/// The actions of a run over time: of a [`Simulation`], or measured by whoever ran the schedule.
///
/// # Example
/// ```
/// use wgrad_pipeline::{Costs, schedule};
/// # fn main() -> wgrad_graph::Result<()> {
/// let run = schedule::gpipe(2, 2)?.simulate(&Costs::ticks(2))?;
/// let text = "D0|F0|F1|. |. |. |B0|- |B1|- |\nD1|. |F0|F1|B0|- |B1|- |. |. |\n";
/// assert_eq!(run.timeline().text(1.0), text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// What it shows.
    pub title: String,
    /// The name of each device.
    pub devices: Vec<String>,
    pub(super) entries: Vec<Entry>,
    pub(super) passages: Vec<(usize, usize, Passage)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) span: Span,
    pub(super) label: String,
}

impl Simulation {
    /// The run over time.
    pub fn timeline(&self) -> Timeline {
        let device_of = |m: Message| {
            let find = |stage| self.spans.iter().find(|s| s.action.stage == stage).map_or(0, |s| s.device);
            (find(m.from), find(m.to))
        };
        let entries = self.spans.iter().zip(&self.labels);
        let passages = self.passages.iter().map(|&p| {
            let (from, to) = device_of(p.message);
            (from, to, p)
        });
        Timeline {
            title: format!(
                "{}: {} in all, bubble {:.1} %",
                self.name,
                short(self.makespan),
                100.0 * self.bubble()
            ),
            devices: (0..self.devices.len()).map(|d| format!("D{d}")).collect(),
            entries: entries.map(|(&span, label)| Entry { span, label: label.clone() }).collect(),
            passages: passages.collect(),
        }
    }
}

impl Timeline {
    /// A measured run of `schedule`; sends and receives are left out.
    pub fn measured(schedule: &Schedule, spans: &[Span], passages: &[Passage]) -> Timeline {
        let shown = |a: Action| a.sends().is_none() && a.receives().is_none();
        let entry = |&span: &Span| Entry { span, label: schedule.label(span.action) };
        let ends = |&p: &Passage| (schedule.devices()[p.message.from], schedule.devices()[p.message.to], p);
        Timeline {
            title: format!("{}, measured", schedule.name()),
            devices: (0..schedule.lists().len()).map(|d| format!("D{d}")).collect(),
            entries: spans.iter().filter(|s| shown(s.action)).map(entry).collect(),
            passages: passages.iter().map(ends).collect(),
        }
    }

    /// The time of the last end.
    pub fn end(&self) -> f64 {
        self.entries.iter().map(|e| e.span.end).fold(0.0, f64::max)
    }

    /// One line a device, one column for `tick` of time: an action's name where it starts, `-` while it
    /// goes on, `.` where the device waits. What takes less than half a tick is left out.
    pub fn text(&self, tick: f64) -> String {
        let column = |t: f64| (t / tick).round() as usize;
        let columns = column(self.end());
        let shown = || self.entries.iter().filter(|e| column(e.span.end) > column(e.span.start));
        let width = shown().map(|e| e.label.len()).max().unwrap_or(1);
        let names = self.devices.iter().map(String::len).max().unwrap_or(0);
        let mut text = String::new();
        for (device, name) in self.devices.iter().enumerate() {
            let mut cells = vec!["."; columns];
            for entry in shown().filter(|e| e.span.device == device) {
                let (start, end) = (column(entry.span.start), column(entry.span.end));
                cells[start..end].fill("-");
                cells[start] = &entry.label;
            }
            let _ = write!(text, "{name:<names$}|");
            for cell in cells {
                let _ = write!(text, "{cell:^width$}|");
            }
            text.push('\n');
        }
        text
    }

    /// [`Timeline::text`] with the tick that fits: the shortest computing action where all times are
    /// multiples of it, or else half of that, but 120 columns at most.
    pub fn to_text(&self) -> String {
        let compute = || self.entries.iter().filter(|e| e.span.action.is_compute());
        let lengths = compute().map(|e| e.span.end - e.span.start).filter(|&t| t > 0.0);
        let shortest = lengths.fold(f64::INFINITY, f64::min);
        let whole = |t: f64| (t / shortest - (t / shortest).round()).abs() < 0.02;
        let even = compute().all(|e| whole(e.span.start) && whole(e.span.end));
        let tick = if even { shortest } else { (shortest / 2.0).max(self.end() / 120.0) };
        if tick.is_finite() && tick > 0.0 { self.text(tick) } else { String::new() }
    }
}

/// A number with six decimals at most.
fn short(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The colour of an action's kind in pictures.
pub(super) fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Forward => "#3b6fb6",
        Kind::Backward => "#c2571a",
        Kind::BackwardInput => "#d98a2b",
        Kind::BackwardWeight => "#3f8f5b",
        _ => "#7a6a9b",
    }
}
