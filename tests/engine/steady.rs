//! Promise 2: a training loop in its steady state: one submission, one upload, no download a step, no
//! plan made, nothing that grows.

use std::sync::Arc;

use wgrad::prelude::*;
use wgrad::{Backend, Result, Stats};

use super::recorder::{Counts, Recorder};
use crate::Subject;
use crate::programs::plain;

crate::suite![plain: ; device: steady_state];

const ROWS: usize = 16;
const WIDE: usize = 20;

fn steady_state(subject: &Subject) {
    run(subject).expect("the loop runs");
}

/// What may not change from step to step.
#[derive(Debug, PartialEq)]
struct Held {
    pages: usize,
    live_bytes: usize,
    peak_bytes: usize,
    buffers: usize,
    asked_bytes: usize,
}

fn run(subject: &Subject) -> Result<()> {
    let gpu = subject.fresh_gpu();
    let inner = match &gpu {
        Some(gpu) => Arc::clone(gpu) as Arc<dyn Backend>,
        None => subject.fresh(),
    };
    let recorder = Recorder::new(inner);
    let ctx = Context::new(Arc::clone(&recorder) as Arc<dyn Backend>)?;
    let model = Sequential::new()
        .then(Linear::new(&ctx, "fc1", WIDE, 16, Rng::seed(1))?)
        .then(Activation::Relu)
        .then(Dropout::new("drop", 0.1))
        .then(Linear::new(&ctx, "fc2", 16, 4, Rng::seed(1))?);
    let mut opt = AdamW::new(model.params(), AdamWConfig::default())?;
    let (low, high) = (ctx.scalar(-1.0), ctx.scalar(1.0));
    let last = if subject.is_slow() { 300 } else { 2000 };
    let schedule = Cosine::new(1e-3, last).warmup(10);
    let images: Vec<u8> = plain::noise(1, ROWS * WIDE).iter().map(|x| (127.0 + 100.0 * x) as u8).collect();
    let images = HostTensor::new([ROWS, WIDE], &images)?;
    let labels = HostTensor::new([ROWS], &(0..ROWS).map(|i| (i % 4) as u8).collect::<Vec<_>>())?;
    let batch_bytes = (images.bytes().len() + labels.bytes().len()) as u64;

    let held = || -> Result<Held> {
        ctx.sync()?;
        let (stats, counts) = (ctx.stats(), recorder.counts());
        Ok(Held {
            pages: stats.pages,
            live_bytes: stats.live_bytes,
            peak_bytes: stats.peak_bytes,
            buffers: counts.buffers,
            asked_bytes: counts.live_bytes,
        })
    };

    let report = || gpu.as_ref().and_then(|gpu| gpu.allocator_report());
    let (mut at_100, mut first, mut newest) = (None, None, None);
    for step in 1..=last {
        let before = (ctx.stats(), recorder.counts());
        opt.lr().set(schedule.at(opt.steps()));
        high.set(1.0 + step as f64 / 100.0);
        low.set(-high.value());
        newest = Some(ctx.pass(|p| {
            let x = p.input(&images)? / 255.0;
            let loss = model.forward(x).clamp(&low, &high).cross_entropy(p.input(&labels)?);
            opt.step(&loss.backward()?)?;
            Ok(loss.deferred::<f64>())
        })?);
        if step > 2 {
            one_step(&before, &(ctx.stats(), recorder.counts()), batch_bytes);
        }
        if step == 1 {
            first = newest.as_ref().map(Deferred::get).transpose()?;
        }
        if step == 100 {
            at_100 = Some((held()?, report()));
        }
    }
    let (then, before) = at_100.expect("there are more than 100 steps");
    assert_eq!(then, held()?, "from step 100 to step {last}");
    if let (Some(before), Some(now)) = (before, report()) {
        assert!(before.allocations >= then.pages);
        assert_eq!(now, before, "the allocator's report at the end and at step 100");
    }

    let before = (ctx.stats(), recorder.counts());
    let loss = newest.expect("there was a step").get()?;
    let after = (ctx.stats(), recorder.counts());
    assert_eq!(after.0.downloads, before.0.downloads + 1, "reading the loss is one download");
    assert_eq!(after.1.downloads, before.1.downloads + 1);
    assert_eq!(after.1.download_bytes - before.1.download_bytes, if subject.is_oracle() { 8 } else { 4 });
    assert!(loss < first.expect("it was read") * 0.9, "it learns: {first:?}, {loss}");

    let (stats, counts) = after;
    // Writes before the first step and the read at the end may have submissions of their own.
    let aside = counts.uploads - counts.submissions + counts.downloads;
    assert!(
        (0..=aside).contains(&(stats.submissions - counts.submissions)),
        "{stats:?}, recorded {counts:?}"
    );
    assert_eq!(stats.downloads, counts.downloads);
    assert_eq!(stats.download_bytes, counts.download_bytes);
    assert_eq!(stats.uploads, counts.uploads);
    assert_eq!(stats.plans_made, counts.plans);
    assert_eq!(stats.plans_made + stats.plans_reused, counts.submissions);
    assert_eq!(stats.steps, last);
    Ok(())
}

/// One step of the steady state, by the context's count and by the recorder's.
#[track_caller]
fn one_step(before: &(Stats, Counts), after: &(Stats, Counts), batch_bytes: u64) {
    let ((a, x), (b, y)) = (before, after);
    assert_eq!(b.submissions - a.submissions, 1, "submissions");
    assert_eq!(b.uploads - a.uploads, 1, "uploads");
    let bytes = b.upload_bytes - a.upload_bytes;
    assert!((batch_bytes..=batch_bytes + 1024).contains(&bytes), "{bytes} bytes uploaded for {batch_bytes}");
    assert_eq!(b.downloads - a.downloads, 0, "downloads");
    assert_eq!(b.plans_made - a.plans_made, 0, "plans made");
    assert_eq!(b.plans_reused - a.plans_reused, 1, "plans reused");
    assert_eq!(b.kernels - a.kernels, 0, "kernels compiled");
    assert_eq!(y.plans - x.plans, 0, "plans prepared");
    assert_eq!(y.submissions - x.submissions, 1, "submissions recorded");
    assert_eq!(y.uploads - x.uploads, 1, "uploads recorded");
    assert_eq!(y.upload_bytes - x.upload_bytes, batch_bytes, "bytes recorded");
    assert_eq!(y.downloads - x.downloads, 0, "downloads recorded");
}
