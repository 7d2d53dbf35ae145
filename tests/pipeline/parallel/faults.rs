//! What fails on one place of a mesh: one error that says where, nothing half applied, nobody hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wgrad::nn::{Linear, Module, Rng};
use wgrad::pipeline::parallel::{RowLinear, ShardedMlp};
use wgrad::pipeline::{
    Contract, Function, Line, Mesh, MeshOptions, MeshTrainer, Source, StageSpec, Stages, TrainOptions,
    schedule,
};
use wgrad::{Context, DType, ErrorKind, Result};

use super::{counted, sgd, trainer};
use crate::Subject;
use crate::devices::cpu;
use crate::handles::tap::{Call, Tap};
use crate::pipeline::{DIMS, data, loss, model};

crate::suite![
    plain: a_replica_that_panics_ends_the_step, a_rank_that_stands_still_is_not_waited_for,
        ranks_that_do_different_things_are_told, no_thread_is_left;
    device: a_failing_device_leaves_all_replicas, a_device_lost_in_a_collective
];

/// A line of one stage: a split block, before which `f` is run with the replica's and the shard's number.
fn build(line: &Line, f: Arc<dyn Fn(usize, usize) + Send + Sync>) -> Result<Stages> {
    let (replica, shard) = (line.replica(), line.shard().clone());
    let spec = StageSpec::new("block", &line.contexts()[0], move |ctx: &Context| {
        let rng = Rng::seed(1);
        let first = Linear::new(ctx, "fc", DIMS[0], 6, rng)?;
        let mlp = ShardedMlp::new(ctx, "mlp", [6, 7, DIMS[4]], wgrad::nn::Activation::Tanh, rng, &shard)?;
        let params = first.params().iter().chain(mlp.params().iter()).cloned().collect();
        Ok(Function::new(params, move |x| {
            f(replica, shard.rank());
            Ok(mlp.forward(first.forward(x[0])))
        }))
    });
    Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([DIMS[0]], DType::F32))])
}

fn made(mesh: &Mesh, options: MeshOptions, f: impl Fn(usize, usize) + Send + Sync + 'static) -> MeshTrainer {
    let f: Arc<dyn Fn(usize, usize) + Send + Sync> = Arc::new(f);
    MeshTrainer::new(mesh, |line| build(line, Arc::clone(&f)), loss(), sgd, options).unwrap()
}

fn two_by_two(open: impl Fn() -> Context) -> Mesh {
    super::mesh(&[("replica", 2), ("shard", 2)], open)
}

/// Weights of every line.
fn all_weights(made: &MeshTrainer) -> Vec<Vec<(String, wgrad::HostTensor)>> {
    let (replicas, shards) = (made.mesh().size("replica"), made.mesh().size("shard"));
    let lines = (0..replicas).flat_map(|r| (0..shards).map(move |t| (r, t)));
    lines.map(|(r, t)| made.stages(r, t).unwrap().weights().unwrap()).collect()
}

fn a_replica_that_panics_ends_the_step() {
    let bad = Arc::new(AtomicUsize::new(0));
    let armed = Arc::clone(&bad);
    let mut made = made(&two_by_two(cpu), MeshOptions::default(), move |replica, shard| {
        if (replica, shard) == (1, 1) && armed.load(Ordering::SeqCst) > 0 {
            assert_ne!(armed.fetch_sub(1, Ordering::SeqCst), 1, "this rank is bad");
        }
    });
    let schedule = schedule::gpipe(1, 2).unwrap();
    made.step(&schedule, &data(8, 0.0)).unwrap();
    let before = all_weights(&made);
    for micro_batch in [0, 1] {
        bad.store(micro_batch + 1, Ordering::SeqCst);
        let begun = Instant::now();
        let error = made.step(&schedule, &data(8, 1.0)).unwrap_err().to_string();
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody hangs");
        let place = format!("micro-batch {micro_batch}, action F{micro_batch}");
        assert!(error.contains("replica 1, shard 1, stage 0") && error.contains(&place), "{error}");
        assert!(error.contains("this rank is bad"), "{error}");
        assert_eq!(all_weights(&made), before, "no line moved");
    }
    made.step(&schedule, &data(8, 1.0)).unwrap();
    assert_ne!(all_weights(&made), before);
}

/// Who waits in a collective for a rank that does not come gives up at the deadline.
fn a_rank_that_stands_still_is_not_waited_for() {
    let train = TrainOptions { deadline: Duration::from_millis(150), ..Default::default() };
    for still in [(1, 0), (0, 1)] {
        let slow = Arc::new(AtomicUsize::new(0));
        let ms = Arc::clone(&slow);
        let options = MeshOptions { train: train.clone(), ..Default::default() };
        let mut made = made(&two_by_two(cpu), options, move |replica, shard| {
            if (replica, shard) == still {
                std::thread::sleep(Duration::from_millis(ms.load(Ordering::SeqCst) as u64));
            }
        });
        let schedule = schedule::gpipe(1, 1).unwrap();
        let before = all_weights(&made);
        slow.store(1500, Ordering::SeqCst);
        let error = made.step(&schedule, &data(8, 0.0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let text = error.to_string();
        assert!(text.contains("for ranks [") && text.contains("AllReduce"), "{text}");
        assert_eq!(all_weights(&made), before);
        slow.store(0, Ordering::SeqCst);
        made.step(&schedule, &data(8, 0.0)).unwrap();
    }
}

fn ranks_that_do_different_things_are_told() {
    let mesh = super::mesh(&[("shard", 2)], cpu);
    let build = |line: &Line| {
        let shard = line.shard().clone();
        let spec = StageSpec::new("block", &line.contexts()[0], move |ctx: &Context| {
            let layer = RowLinear::new(ctx, "fc", 2 * DIMS[0], DIMS[4], Rng::seed(1), &shard)?;
            // The trial has two rows.
            Ok(Function::new(layer.params(), move |x| {
                let rows = x[0].shape()[0];
                let own = if shard.rank() == 1 && rows > 2 { rows - 1 } else { rows };
                Ok(layer.forward(x[0].try_narrow(0, 0, own)?))
            }))
        });
        Stages::build(vec![spec.takes(Source::Batch(0), Contract::new([DIMS[0]], DType::F32))])
    };
    let mut made = MeshTrainer::new(&mesh, build, loss(), sgd, MeshOptions::default()).unwrap();
    let error = made.step(&schedule::gpipe(1, 1).unwrap(), &data(8, 0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 0 makes call 0, AllReduce of [8, 4]"), "{text}");
    assert!(text.contains("rank 1 makes call 0, AllReduce of [7, 4]"), "{text}");
}

/// Nothing holds the collectives of a trainer that is gone, whether its last step failed or not.
fn no_thread_is_left() {
    for fails in [false, true] {
        let (counts, options) = counted("replica");
        let bad = Arc::new(AtomicUsize::new(0));
        let armed = Arc::clone(&bad);
        let mut made = made(&two_by_two(cpu), options, move |replica, _| {
            assert!(replica == 0 || armed.load(Ordering::SeqCst) == 0, "bad");
        });
        let schedule = schedule::gpipe(1, 2).unwrap();
        for round in 0..20 {
            bad.store(usize::from(fails && round > 1), Ordering::SeqCst);
            assert_eq!(made.step(&schedule, &data(8, 0.0)).is_err(), fails && round > 1);
        }
        drop(made);
        assert_eq!(Arc::strong_count(&counts), 1, "fails: {fails}");
    }
}

/// Fails the n-th call of each kind on one place, for all n until the step passes.
fn a_failing_device_leaves_all_replicas(subject: &Subject) {
    let calls = [
        (Call::Submit, ErrorKind::OutOfMemory),
        (Call::Read, ErrorKind::OutOfMemory),
        (Call::Alloc, ErrorKind::OutOfMemory),
        (Call::Fetch, ErrorKind::Timeout),
    ];
    for (call, kind) in calls {
        let tap = Tap::new(subject.backend());
        let mesh = Mesh::new([("replica", 2), ("shard", 2)], &[cpu(), cpu(), cpu(), tap.context()]).unwrap();
        let mut made = made(&mesh, MeshOptions::default(), |_, _| ());
        let schedule = schedule::gpipe(1, 2).unwrap();
        made.step(&schedule, &data(8, 0.0)).unwrap();
        let before = all_weights(&made);
        let stride = if subject.is_slow() { 5 } else { 1 };
        let (mut failed, mut after) = (0, 0);
        loop {
            tap.fail_after(call, after, kind);
            let Err(error) = made.step(&schedule, &data(8, 1.0)) else { break };
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{call:?} {after}: {text}");
            assert!(text.contains("replica 1, shard 1, stage 0"), "{text}");
            assert_eq!(all_weights(&made), before, "{call:?} {after}: no line moved");
            (failed, after) = (failed + 1, after + stride);
        }
        assert!(failed >= 3 / stride, "{call:?} failed only {failed} times");
        // The fault that was not met is met by reading; then all is well.
        let _met = made.weights();
        let _met = made.stages(1, 1).unwrap().weights();
        let _met = made.step(&schedule, &data(8, 1.0));
        made.step(&schedule, &data(8, 1.0)).unwrap();
        super::same_everywhere(&made);
    }
}

/// A device lost while it reads what it has for the others.
fn a_device_lost_in_a_collective(subject: &Subject) {
    for axis in ["replica", "shard"] {
        for after in [0, 1, 2] {
            let tap = Tap::new(subject.backend());
            let mesh = Mesh::new([(axis, 2)], &[cpu(), tap.context()]).unwrap();
            let mut made = made(&mesh, MeshOptions::default(), |_, _| ());
            let schedule = schedule::gpipe(1, 2).unwrap();
            let before = made.stages(0, 0).unwrap().weights().unwrap();
            tap.fail_after(Call::Read, after, ErrorKind::Lost);
            // A replica reads its gradients and its losses, a shard also the sums of every micro-batch.
            let Err(error) = made.step(&schedule, &data(8, 0.0)) else {
                assert_eq!((axis, after), ("replica", 2));
                continue;
            };
            assert!(error.is_lost() && error.to_string().contains(&format!("{axis} 1")), "{error}");
            assert!(made.step(&schedule, &data(8, 0.0)).unwrap_err().is_lost(), "it stays lost");
            assert_eq!(made.stages(0, 0).unwrap().weights().unwrap(), before, "the weights of the last step");
        }
    }
    // The rest goes on with what one replica still has.
    let tap = Tap::new(subject.backend());
    let model = model(false);
    let mesh = Mesh::new([("replica", 2)], &[cpu(), tap.context()]).unwrap();
    let mut two = trainer(&model, &mesh, sgd, MeshOptions::default()).unwrap();
    let schedule = schedule::gpipe(1, 1).unwrap();
    two.step(&schedule, &data(8, 0.0)).unwrap();
    tap.fail(Call::Submit, ErrorKind::Lost);
    assert!(two.step(&schedule, &data(8, 1.0)).unwrap_err().is_lost());
    let saved = two.weights().unwrap();
    let mut one = trainer(&model, &super::mesh(&[("replica", 1)], cpu), sgd, MeshOptions::default()).unwrap();
    one.set_weights(&saved).unwrap();
    assert_eq!(one.weights().unwrap(), saved);
    one.step(&schedule, &data(8, 1.0)).unwrap();
}
