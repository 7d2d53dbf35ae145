//! A model that is larger than one device's budget: refused by one context, trained by several.

use std::time::Instant;

use wgrad::prelude::*;
use wgrad::{ContextOptions, ErrorKind, Result, bail};

use super::staged::{self, Plan};
use super::table::{Row, Table};
use super::{Args, whole};

/// Half of what one context needs for the batch in one piece; and the largest stage's need, where no number of
/// micro-batches fits one context.
pub(crate) fn run(args: &Args, devices: &[Device], table: &mut Table) -> Result<()> {
    let Some(need) = table.peak(1) else { bail!(Argument, "budget", "one context did not run at all") };
    let gpt = args.gpt();
    let most = args.micro_batches.iter().copied().max().unwrap_or(1);
    let name = args.schedules.iter().find(|s| *s != "auto").map_or("1f1b", String::as_str);
    let (plan, _) = args.plan(name, most, None)?;
    let plan = Plan { options: wgrad::pipeline::TrainOptions { together: false, ..plan.options }, ..plan };
    let backends = devices.iter().map(Device::open).collect::<Result<Vec<_>>>()?;
    let caps: Vec<_> = backends.iter().map(|b| b.caps().clone()).collect();
    let planned = staged::planned(&caps, gpt, &plan, false)?;
    let largest = planned.bytes.iter().copied().max().unwrap_or(0);
    let half = args.budget_bytes.unwrap_or(need / 2);
    // A little above the plans: what is asked for counts beside what has not been freed yet.
    for (what, bytes) in [("half of what one needs", half), ("the largest stage", largest + largest / 64)] {
        let options = ContextOptions::default().budget_bytes(bytes);
        println!("\nbudget {bytes} bytes ({what}); one context in one piece needs {need}");
        if largest > bytes {
            println!("  the largest of these stages needs {largest} by plans: not tried");
            continue;
        }
        let mut refused = true;
        for m in [1].into_iter().chain(args.micro_batches.iter().copied()) {
            match whole::run(&devices[0], options.clone(), gpt, args.batch, m, 3) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    println!("  one context M {m}: {error}");
                }
                Err(error) => return Err(error),
                Ok(whole) => {
                    println!("  one context M {m}: fits, peak {}", whole.peak_bytes);
                    refused &= m > 1;
                }
            }
        }
        let begun = Instant::now();
        let label = format!("{name}, budget");
        let row = match staged::run(devices, &options, gpt, &plan, args.steps, false) {
            Ok(staged) if refused => Row::new(&label, &plan, &staged, table),
            Ok(_) => Row::failed(&label, most, "one context was not refused".to_owned()),
            Err(error) => Row::failed(&label, most, error.to_string()),
        };
        table.row(args, row, begun.elapsed())?;
    }
    Ok(())
}
