//! The report as one page that needs no network: bars and a time line as SVG.

use std::fmt::Write;

use crate::report::{Report, TimelineEvent};
use crate::text::{HINT, bytes, short};

/// Width of the drawings, px.
const WIDTH: f64 = 1040.0;
/// Steps on the time line.
const STEPS: u64 = 3;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1d2430; --soft: #667; --line: #d5d9e0; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ee; --soft: #9aa3b2; --line: #3a4150; --back: #14171d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 1080px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.soft, small { color: var(--soft); margin: .2rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; } td.name, th.name { text-align: left; white-space: normal; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
dl { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1rem 0; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
";

/// The colour of a stage or phase.
fn colour(name: &str) -> &'static str {
    match name {
        "record" => "#4e79a7",
        "differentiate" => "#76b7b2",
        "fuse" => "#9c755f",
        "plan" => "#bab0ac",
        "compile" => "#b07aa1",
        "allocate" => "#edc948",
        "upload" => "#e15759",
        "encode" => "#59a14f",
        "submit" => "#8cd17d",
        "compute" | "forward" => "#499894",
        "wait" => "#d4a6c8",
        "download" => "#f28e2b",
        "backward" => "#d37295",
        "update" => "#d7b5a6",
        _ => "#79706e",
    }
}

/// Text safe inside of HTML.
fn safe(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Report {
    /// The report as a page.
    pub fn html(&self) -> String {
        let mut page = String::new();
        let title = format!("Profile: {}", safe(&self.device));
        let _ = write!(
            page,
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        );
        if self.steps == 0 && self.stages.is_empty() {
            let _ = write!(page, "<p>{HINT}.</p></html>");
            return page;
        }
        self.numbers(&mut page);
        self.bars(&mut page);
        self.timeline_svg(&mut page);
        self.tables(&mut page);
        page.push_str("</html>\n");
        page
    }

    fn per_step_ms(&self, ns: u64) -> f64 {
        ns as f64 / 1e6 / self.steps.max(1) as f64
    }

    fn numbers(&self, page: &mut String) {
        let steps = self.steps.max(1) as f64;
        let mut items = vec![
            ("steps", self.steps.to_string()),
            ("ms a step", format!("{:.3}", self.step_ms())),
            ("transfer share", format!("{:.1} %", 100.0 * self.transfer_share())),
            ("residency ceiling", format!("{:.2} x", self.residency_ceiling())),
            ("launch share", format!("{:.1} %", 100.0 * self.launch_share())),
            (
                "up a step",
                format!("{:.2}, {}", self.up.count as f64 / steps, bytes(self.up.bytes / self.steps.max(1))),
            ),
            (
                "down a step",
                format!(
                    "{:.2}, {}",
                    self.down.count as f64 / steps,
                    bytes(self.down.bytes / self.steps.max(1))
                ),
            ),
        ];
        if self.timed {
            items.push(("device busy", format!("{:.3} ms", self.per_step_ms(self.busy_ns))));
            items.push(("device idle between", format!("{:.3} ms", self.per_step_ms(self.gap_ns))));
        }
        page.push_str("<dl>");
        for (name, value) in items {
            let _ = write!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
        page.push_str("</dl>");
        if !self.timed {
            page.push_str(
                "<p class=\"soft\">This device has no clock for kernels: times are the host's.</p>",
            );
        }
    }

    /// A bar a stage.
    fn bars(&self, page: &mut String) {
        let mut rows: Vec<(&str, u64)> = self.stages.iter().map(|l| (l.stage, l.ns)).collect();
        rows.push(("unattributed", self.unattributed_ns));
        let most = rows.iter().map(|(_, ns)| *ns).max().unwrap_or(1).max(1);
        let height = rows.len() as f64 * 24.0;
        let _ = write!(page, "<h2>Host stages</h2><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">");
        for (i, (name, ns)) in rows.iter().enumerate() {
            let (y, width) = (i as f64 * 24.0, (WIDTH - 330.0) * *ns as f64 / most as f64);
            let _ = write!(
                page,
                "<text x=\"0\" y=\"{:.0}\">{name}</text><rect x=\"110\" y=\"{:.0}\" width=\"{:.1}\" height=\"16\" \
                 rx=\"2\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.0}\">{:.4} ms, {:.1} %</text>",
                y + 16.0,
                y + 4.0,
                width.max(0.5),
                colour(name),
                118.0 + width,
                y + 16.0,
                self.per_step_ms(*ns),
                100.0 * *ns as f64 / self.total_ns.max(1) as f64
            );
        }
        page.push_str("</svg>");
    }

    /// The newest steps: a lane a thread, one for the device.
    fn timeline_svg(&self, page: &mut String) {
        let line = &self.timeline;
        let ends = line.host.iter().chain(&line.device).map(|e| e.end_ns);
        let Some(to) = ends.max() else { return };
        let span = (STEPS * self.total_ns / self.steps.max(1)).max(1);
        let from = to.saturating_sub(span);
        let lanes: Vec<(u32, &String)> = line.threads.iter().map(|(id, name)| (*id, name)).collect();
        let (lane, top) = (34.0, 22.0);
        let height = top + (lanes.len() + 1) as f64 * lane;
        let x = |ns: u64| 110.0 + (WIDTH - 110.0) * ns.saturating_sub(from) as f64 / span as f64;
        let _ = write!(
            page,
            "<h2>The last {STEPS} steps</h2><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">"
        );
        for tick in 0..=6 {
            let at = from + span * tick / 6;
            let _ = write!(
                page,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"16\" y2=\"{height}\" stroke=\"var(--line)\"/><text x=\"{0:.1}\" y=\"12\" \
                 text-anchor=\"{2}\">{1:.3} ms</text>",
                x(at),
                (at - from) as f64 / 1e6,
                if tick == 6 { "end" } else { "start" }
            );
        }
        let mut draw = |e: &TimelineEvent, y: f64, height: f64, fill: &str| {
            if e.end_ns <= from {
                return;
            }
            let (left, right) = (x(e.start_ns.max(from)), x(e.end_ns));
            let _ = write!(
                page,
                "<rect x=\"{left:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{height}\" fill=\"{fill}\"><title>{}, {}: {:.1} \
                 us</title></rect>",
                (right - left).max(0.3),
                safe(&e.name),
                e.phase,
                (e.end_ns - e.start_ns) as f64 / 1e3
            );
        };
        for (i, (id, _)) in lanes.iter().enumerate() {
            let y = top + i as f64 * lane;
            for e in line.host.iter().filter(|e| e.thread == *id).collect::<Vec<_>>().into_iter().rev() {
                draw(e, y, 24.0, colour(&e.name));
            }
        }
        let y = top + lanes.len() as f64 * lane;
        line.device
            .iter()
            .for_each(|e| draw(e, y, 24.0, colour(e.phase.split('+').next().unwrap_or_default())));
        for (i, (_, name)) in lanes.iter().enumerate() {
            let _ =
                write!(page, "<text x=\"0\" y=\"{:.0}\">{}</text>", top + i as f64 * lane + 16.0, safe(name));
        }
        let _ = write!(page, "<text x=\"0\" y=\"{:.0}\">device</text></svg>", y + 16.0);
        page.push_str("<p class=\"soft\">Host lanes have the colours of the stages; the device's are ");
        for phase in ["forward", "backward", "update"] {
            let _ = write!(page, "<span style=\"color:{}\">&#9632;</span> {phase} ", colour(phase));
        }
        page.push_str("</p>");
    }

    fn tables(&self, page: &mut String) {
        page.push_str(
            "<h2>Phases</h2><table><tr><th class=\"name\">phase</th><th>host ms a step</th><th>device ms a step</th>\
             <th>kernels a step</th></tr>",
        );
        for line in &self.phases {
            let _ = write!(
                page,
                "<tr><td class=\"name\">{}</td><td>{:.4}</td><td>{:.4}</td><td>{:.1}</td></tr>",
                line.phase,
                self.per_step_ms(line.host_ns),
                self.per_step_ms(line.device_ns),
                line.kernels / self.steps.max(1) as f64
            );
        }
        page.push_str("</table>");
        if !self.timed {
            return;
        }
        page.push_str(
            "<h2>Kernels</h2><table><tr><th class=\"name\">kernel and lines</th><th>phase</th><th>ms a step</th>\
             <th>share</th><th>runs</th><th>us each</th><th>GB/s</th><th>GFLOP/s</th></tr>",
        );
        for k in &self.kernels {
            let lines: Vec<String> = k.lines.iter().map(|l| safe(short(l))).collect();
            let _ = write!(
                page,
                "<tr><td class=\"name\">{} {:?}<br><small>{}</small></td><td>{}</td><td>{:.4}</td><td>{:.1} %</td><td>{}</td>\
                 <td>{:.2}</td><td>{:.1}</td><td>{:.1}</td></tr>",
                safe(&k.what),
                k.dims,
                lines.join(", "),
                k.phase,
                self.per_step_ms(k.ns),
                100.0 * k.share,
                k.count,
                k.ns as f64 / 1e3 / k.count.max(1) as f64,
                k.gb_s(),
                k.gflop_s()
            );
        }
        page.push_str("</table>");
    }
}
