//! The picture of a timeline.

use super::Timeline;
use super::timeline::colour;

const LEFT: f64 = 72.0;
const WIDE: f64 = 1040.0;
const ROW: f64 = 30.0;
const TOP: f64 = 34.0;

/// A round step that divides `end` into about ten.
fn axis_step(end: f64) -> f64 {
    let rough = end / 10.0;
    let power = 10.0_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * power).find(|&s| s >= rough).unwrap_or(rough)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Timeline {
    /// The run as an SVG picture: a row a device, a box an action (blue F, orange B or I, green W, violet
    /// R and U), a thin line a handover.
    ///
    /// # Example
    /// ```
    /// use wgrad_pipeline::{Costs, schedule};
    /// # fn main() -> wgrad_graph::Result<()> {
    /// let run = schedule::gpipe(2, 2)?.simulate(&Costs::ticks(2))?;
    /// assert!(run.timeline().svg().starts_with("<svg"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn svg(&self) -> String {
        let end = if self.end() > 0.0 { self.end() } else { 1.0 };
        let x = |t: f64| LEFT + t / end * WIDE;
        let y = |device: usize| TOP + ROW * device as f64;
        let (width, bottom) = (LEFT + WIDE + 12.0, y(self.devices.len()));
        let height = bottom + 26.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"8\" y=\"18\" font-size=\"13\">{}</text>\n",
            escape(&self.title)
        );
        let mut line = |text: String| {
            svg.push_str(&text);
            svg.push('\n');
        };
        let step = axis_step(end);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        for i in 0..=(end / step + 1e-9) as usize {
            let t = i as f64 * step;
            let at = x(t);
            line(format!("<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#dddddd\"/>"));
            line(format!(
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{t:.decimals$}</text>",
                bottom + 15.0
            ));
        }
        for (device, name) in self.devices.iter().enumerate() {
            line(format!("<text x=\"8\" y=\"{:.1}\">{}</text>", y(device) + 19.0, escape(name)));
        }
        for (from, to, passage) in &self.passages {
            // A line leaves a row at the side where the other row is.
            let edge = |own: usize, other: usize| y(own) + if own < other { ROW - 4.0 } else { 4.0 };
            line(format!(
                "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#999999\" stroke-width=\"0.7\"/>",
                x(passage.sent),
                edge(*from, *to),
                x(passage.arrived),
                edge(*to, *from)
            ));
        }
        for entry in &self.entries {
            let (left, right) = (x(entry.span.start), x(entry.span.end));
            if right - left < 0.05 {
                continue;
            }
            let (wide, top) = (right - left, y(entry.span.device) + 4.0);
            line(format!(
                "<rect x=\"{left:.2}\" y=\"{top:.1}\" width=\"{wide:.2}\" height=\"{:.1}\" fill=\"{}\" \
                 stroke=\"#ffffff\" stroke-width=\"0.6\"><title>{} {:.6}..{:.6}</title></rect>",
                ROW - 8.0,
                colour(entry.span.action.kind),
                escape(&entry.label),
                entry.span.start,
                entry.span.end
            ));
            if wide > 7.0 * entry.label.len() as f64 {
                line(format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#ffffff\">{}</text>",
                    f64::midpoint(left, right),
                    top + 15.0,
                    escape(&entry.label)
                ));
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}
