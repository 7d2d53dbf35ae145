//! A trace that Perfetto and Chrome open: threads of the host and queues of devices on one clock.

use serde_json::{Value, json};

use crate::report::{Report, TimelineEvent};

/// The newest events of all `reports` as a JSON trace: one process for the host with a track a thread, one for
/// the devices with a track each.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// let trace: serde_json::Value = serde_json::from_str(&wgrad_profile::trace(&[]))?;
/// assert!(trace["traceEvents"].is_array());
/// # Ok(()) }
/// ```
pub fn trace(reports: &[&Report]) -> String {
    let mut events: Vec<Value> = Vec::new();
    let name = |kind: &str, pid: u32, tid: u32, name: &str| json!({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}});
    let span = |e: &TimelineEvent, pid: u32, tid: u32| {
        json!({
            "ph": "X", "name": e.name, "cat": e.phase, "pid": pid, "tid": tid,
            "ts": e.start_ns as f64 / 1e3, "dur": e.end_ns.saturating_sub(e.start_ns) as f64 / 1e3,
        })
    };
    events.push(name("process_name", 1, 0, "host"));
    events.push(name("process_name", 2, 0, "devices"));
    let mut dropped = 0;
    for (i, report) in (1..).zip(reports) {
        let line = &report.timeline;
        dropped += line.dropped;
        for (thread, title) in &line.threads {
            events.push(name("thread_name", 1, *thread, title));
        }
        events.push(name("thread_name", 2, i, &report.device));
        events.extend(line.host.iter().map(|e| span(e, 1, e.thread)));
        events.extend(line.device.iter().map(|e| span(e, 2, i)));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"older_events_dropped": dropped}})
        .to_string()
}
