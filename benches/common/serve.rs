//! A program that a driver asks for one workload after the other, by lines of JSON:
//!
//! | asked | answered |
//! |---|---|
//! | (at the start) | `{"peer": "name version", "device": "name"}` |
//! | `{"do": "open", "row": {..}}` | `{"first_ms": 1.5, "results": [..]}`, or `{"no": "why"}` where it cannot run it |
//! | `{"do": "turn", "seconds": 0.5}` | `{"ms": [..]}`: of one run each, as the mean of a block that ends with a wait |
//! | `{"do": "close"}` | `{}` |
//!
//! The results are those of the very first run; a training step's are its first losses.

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::row::Row;
use crate::threads::ranges;
use crate::values;

/// What went wrong, as text.
pub type Fault = Box<dyn std::error::Error>;

/// A framework that runs workloads.
pub trait Peer {
    /// Prepares `row`, runs it for the first time and reads the results, floats of any shape in C order.
    ///
    /// # Errors
    /// Where it cannot run it.
    fn open(&mut self, row: &Row) -> Result<Vec<Vec<f32>>, Fault>;

    /// Runs it `times` times or a little more and waits for all of them. How often it ran.
    ///
    /// # Errors
    /// What the device meets.
    fn run(&mut self, times: usize) -> Result<usize, Fault>;

    /// Lets go of everything that belongs to the row.
    fn close(&mut self);
}

/// Results as few numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Digest {
    /// Number of elements.
    pub elems: usize,
    /// The largest magnitude.
    pub largest: f64,
    /// The mean.
    pub mean: f64,
    /// The elements at [`values::indices`].
    pub samples: Vec<f32>,
}

impl Digest {
    /// That of `x`.
    pub fn of(x: &[f32]) -> Digest {
        let parts = ranges(x.len(), 1, |part| {
            let x = &x[part];
            let largest = x.iter().fold(0.0, |m, x| x.abs().max(m));
            (largest, x.iter().map(|x| f64::from(*x)).sum::<f64>())
        });
        Digest {
            elems: x.len(),
            largest: parts.iter().fold(0.0, |m, part| f64::from(part.0).max(m)),
            mean: parts.iter().map(|part| part.1).sum::<f64>() / x.len().max(1) as f64,
            samples: values::indices(x.len()).into_iter().map(|i| x[i]).collect(),
        }
    }
}

/// In how many copies operands of so many bytes are held, run by run the next: so that none finds its operands in
/// a cache only because the benchmark runs the same again.
pub fn copies(row: &Row) -> usize {
    const BYTES: usize = 64 << 20;
    let bytes: usize = row.inputs.iter().map(crate::Input::bytes).sum();
    (BYTES / bytes.max(1)).clamp(1, 16)
}

/// Time of a block of runs, as far as they are so short.
const BLOCK_MS: f64 = 40.0;

/// The first runs after the very first, which are not timed: pipelines, autotuning, memory.
const WARM_MS: f64 = 600.0;

fn warm(peer: &mut dyn Peer) -> Result<f64, Fault> {
    let begin = Instant::now();
    loop {
        let start = Instant::now();
        let ran = peer.run(3)?;
        let ms = start.elapsed().as_secs_f64() * 1e3 / ran as f64;
        if begin.elapsed().as_secs_f64() * 1e3 > WARM_MS {
            return Ok(ms);
        }
    }
}

fn answer(peer: &mut dyn Peer, asked: &Value, each_ms: &mut f64) -> Result<Value, Fault> {
    match asked["do"].as_str() {
        Some("open") => {
            let row = Row::deserialize(&asked["row"])?;
            let start = Instant::now();
            let results = peer.open(&row)?;
            let first_ms = start.elapsed().as_secs_f64() * 1e3;
            let results: Vec<Digest> = results.iter().map(|x| Digest::of(x)).collect();
            *each_ms = warm(peer)?;
            Ok(json!({ "first_ms": first_ms, "results": results }))
        }
        Some("turn") => {
            let (begin, seconds) = (Instant::now(), asked["seconds"].as_f64().unwrap_or(0.5));
            let mut all = Vec::new();
            while all.is_empty() || begin.elapsed().as_secs_f64() < seconds {
                let times = (BLOCK_MS / *each_ms).ceil().clamp(1.0, 20_000.0);
                let start = Instant::now();
                let ran = peer.run(times as usize)?;
                *each_ms = start.elapsed().as_secs_f64() * 1e3 / ran as f64;
                all.push(*each_ms);
            }
            Ok(json!({ "ms": all }))
        }
        Some("close") => {
            peer.close();
            Ok(json!({}))
        }
        other => Err(format!("asked to do {other:?}").into()),
    }
}

/// Answers a driver until its input ends. `name` is the framework and its version.
///
/// # Errors
/// What reading and writing meet. What the framework meets is an answer.
pub fn serve(name: &str, device: &str, peer: &mut dyn Peer) -> std::io::Result<()> {
    // Not locked for long: a framework may print too.
    let say = |value: &Value| -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{value}")?;
        out.flush()
    };
    say(&json!({ "peer": name, "device": device }))?;
    let mut each_ms = 1.0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let asked: Value = serde_json::from_str(&line)?;
        let answered = catch_unwind(AssertUnwindSafe(|| answer(peer, &asked, &mut each_ms)));
        match answered.unwrap_or_else(|_| Err("it panicked".into())) {
            Ok(value) => say(&value)?,
            Err(why) => {
                peer.close();
                say(&json!({ "no": why.to_string() }))?;
            }
        }
    }
    Ok(())
}
