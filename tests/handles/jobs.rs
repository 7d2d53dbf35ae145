//! Jobs of a pool whose threads take up others while they wait, as rayon's do: what a pass holds while it waits must not be
//! what the next job on its thread wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use wgrad::{Context, Result};

use super::tap::fill;
use crate::Subject;

crate::suite![
    plain: ;
    device: jobs_share_a_context, jobs_share_a_device
];

const LONG: Duration = Duration::from_secs(60);

/// A pass whose kernels no other has compiled: the second takes longer to compile the larger `n` is.
fn large(ctx: &Context, n: usize) -> Result<f32> {
    let x = fill(&[96, 250 + n], 0.5);
    ctx.pass(|p| {
        let x = p.input(&x)?;
        let mut y = (x.t() * n as f32).sin().matmul(x);
        for _ in 0..n {
            y = (y * 2.0).tanh() + y.mean(1).unsqueeze(1);
        }
        Ok(y.mean_all().to_vec::<f32>()?[0])
    })
}

/// Runs large passes in a job of a pool of two threads, and small ones of `other` in jobs that come meanwhile.
fn run(ctx: Context, other: &Context, rounds: usize) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let (tell, told) = channel();
    pool.spawn(move || {
        let all = (0..rounds).map(|round| large(&ctx, 1 + round % 12)).collect::<Result<Vec<f32>>>();
        let _gone = tell.send(all);
    });
    let (waiting, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let all = loop {
        match told.recv_timeout(Duration::from_micros(50)) {
            Ok(all) => break all.unwrap(),
            Err(RecvTimeoutError::Timeout) => {
                assert!(begun.elapsed() < LONG, "a pass waits for what its own thread holds");
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the job has panicked"),
        }
        if waiting.load(Ordering::Acquire) < 2 {
            waiting.fetch_add(1, Ordering::AcqRel);
            let (waiting, other) = (Arc::clone(&waiting), other.clone());
            pool.spawn(move || {
                let y = other.pass(|p| (p.input(fill(&[4], 0.5))? + 1.0).to_vec::<f32>());
                assert_eq!(y.unwrap().len(), 4);
                waiting.fetch_sub(1, Ordering::AcqRel);
            });
        }
    };
    for (round, x) in all.iter().enumerate() {
        assert!(x.is_finite() && *x == all[round % 12], "{round}: {x}");
    }
}

fn jobs_share_a_context(on: &Subject) {
    let ctx = on.context();
    run(ctx.clone(), &ctx, if on.is_slow() { 12 } else { 60 });
}

fn jobs_share_a_device(on: &Subject) {
    let device = on.fresh();
    let context = || Context::new(Arc::clone(&device)).unwrap();
    run(context(), &context(), if on.is_slow() { 12 } else { 60 });
}
