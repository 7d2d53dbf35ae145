//! Large uploads and read-backs.

use std::time::Instant;

use wgrad::Result;
use wgrad::prelude::*;

use super::median;

pub(crate) fn run(device: &Device) -> Result<()> {
    println!("transfer of 64 MiB, GB/s, {device}");
    let ctx = Context::new(device)?;
    let n = 16 << 20;
    let data = HostTensor::new([n], &vec![1.0f32; n])?;
    let gb = (n * 4) as f64 / 1e9;
    let (mut kept, mut input, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..7 {
        let begin = Instant::now();
        let x = ctx.put(&data)?;
        ctx.sync()?;
        kept.push(gb / begin.elapsed().as_secs_f64());
        drop(x);
        let begin = Instant::now();
        let pass = ctx.begin()?;
        let x = pass.input(&data)?;
        let y = pass.within(|| x.slice(0, ..1) + 1.0);
        y.to_vec::<f32>()?;
        input.push(gb / begin.elapsed().as_secs_f64());
        let z = pass.within(|| x + 1.0);
        pass.compute(&[z])?;
        ctx.sync()?;
        let begin = Instant::now();
        let back = z.read()?;
        read.push(gb / begin.elapsed().as_secs_f64());
        drop(back);
        drop(pass);
    }
    println!(
        "  put {:.2}   input of a pass {:.2}   read {:.2}",
        median(&mut kept),
        median(&mut input),
        median(&mut read)
    );
    Ok(())
}
