//! How fast tensors cross between devices: down, up, both at once, and from one context to another, with several sizes
//! of pieces and numbers of copying threads, idle and beside computing. Every way is checked before it is timed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod end;
mod ways;

use std::time::Duration;

use clap::Parser;
use wgrad::Result;
use wgrad_wgpu::Copying;

use end::End;
use ways::{Rates, Way};

/// Measures the ways between two contexts. The same adapter may be named twice.
#[derive(Parser)]
struct Args {
    /// `auto`, `cpu`, or an adapter's index or part of its name: one for both ends, or two.
    #[arg(long = "device", default_value = "auto")]
    devices: Vec<String>,
    /// MiB that a thread copies at a time.
    #[arg(long, value_delimiter = ',', default_value = "0.25,1,4,16")]
    pieces: Vec<f64>,
    /// Threads that copy one tensor.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    threads: Vec<usize>,
    /// MiB of a tensor.
    #[arg(long, default_value_t = 32.0)]
    mib: f64,
    /// Rows and columns of the products that are computed beside.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Print one line of JSON for each measurement in place of the table.
    #[arg(long)]
    json: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

const MIB: f64 = (1 << 20) as f64;

/// One measurement.
struct Row {
    way: Way,
    copying: Copying,
    busy: bool,
    rates: Rates,
    /// For each end how much longer its products take meanwhile.
    slower: [f64; 2],
}

impl Row {
    fn print(&self, json: bool) {
        let Row { way, copying: Copying { threads, piece_bytes }, busy, rates: (one, two), slower } = self;
        let (name, piece) = (way.name(), *piece_bytes as f64 / MIB);
        if json {
            let two = two.map_or("null".to_owned(), |rate| format!("{rate:.4}"));
            println!(
                "{{\"way\": \"{name}\", \"threads\": {threads}, \"piece_mib\": {piece}, \"computing\": {busy}, \"gb_per_s\": \
                 {one:.4}, \"back_gb_per_s\": {two}, \"slower\": [{:.4}, {:.4}]}}",
                slower[0], slower[1]
            );
            return;
        }
        let state = if *busy { "computing" } else { "idle" };
        let two = two.map_or(String::new(), |rate| format!("{rate:.2}"));
        let slower = if *busy { format!("{:.2} {:.2}", slower[0], slower[1]) } else { String::new() };
        println!("{name:<22} {threads:>7} {piece:>9.2}  {state:<9} {one:>9.2} {two:>9}  {slower}");
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let second = args.devices.get(1).unwrap_or(&args.devices[0]);
    let bytes = ((args.mib * MIB) as usize).max(4096).next_multiple_of(4);
    let ends = [&args.devices[0], second].map(|name| End::open(name, bytes, args.size));
    let [a, b] = ends;
    let ends = [a?, b?];
    let time = Duration::from_secs_f64(args.seconds);
    for way in Way::ALL {
        way.check(&ends)?;
    }
    let alone = [ends[0].computes(time)?, ends[1].computes(time)?];
    if !args.json {
        println!("A {}\nB {}", ends[0].name, ends[1].name);
        println!(
            "tensors of {:.2} MiB; products of {}: {:.1} and {:.1} a second alone\n",
            bytes as f64 / MIB,
            args.size,
            alone[0],
            alone[1]
        );
        let head = ["way", "threads", "MiB/piece", "state", "GB/s", "back GB/s", "products slower by (A, B)"];
        let [way, threads, piece, state, one, two, slower] = head;
        println!("{way:<22} {threads:>7} {piece:>9}  {state:<9} {one:>9} {two:>9}  {slower}");
    }
    for way in Way::ALL {
        for &threads in &args.threads {
            for &piece in &args.pieces {
                let copying = Copying { threads, piece_bytes: (piece * MIB) as usize };
                let same = !way.copies() && (threads, piece) != (args.threads[0], args.pieces[0]);
                // One thread copies in one piece whatever the pieces are.
                if same || threads == 1 && piece != args.pieces[0] {
                    continue;
                }
                ends.iter().for_each(|end| end.copy_by(copying));
                for busy in [false, true] {
                    let (rates, counts) = way.measure(&ends, time, busy)?;
                    let slower = [0, 1].map(|i| if busy { alone[i] / counts[i].max(1e-9) } else { 1.0 });
                    Row { way, copying, busy, rates, slower }.print(args.json);
                }
            }
        }
    }
    Ok(())
}
