//! Memory that crosses between host and device: lent, given back, copied by several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use wgrad_graph::Bytes;

use super::*;
use crate::Copying;

fn noise(bytes: usize, turn: usize) -> Bytes {
    Bytes::from((0..bytes).map(|i| (i * 31 + turn * 7 + i / 251) as u8).collect::<Vec<u8>>())
}

fn read(gpu: &Gpu, id: BufferId, bytes: usize) -> Bytes {
    gpu.read(&[(id, bytes)]).unwrap().wait(LONG).unwrap().remove(0)
}

#[test]
fn read_memory_is_lent_and_comes_back() {
    on_every_adapter(|_, gpu| {
        let idle = || gpu.core().downloads.idle_buffers();
        let (large, small) = (gpu.alloc(2 << 20).unwrap(), gpu.alloc(4096).unwrap());
        let (a, b) = (noise(2 << 20, 1), noise(4096, 2));
        gpu.write_shared(large, &a).unwrap();
        gpu.write_shared(small, &b).unwrap();
        drop(read(&gpu, large, 2 << 20));
        let all = idle();
        let first = read(&gpu, large, 2 << 20);
        let second = first.clone();
        assert_eq!(idle(), all - 1, "the buffer is out as long as somebody reads it");
        // What is written meanwhile does not show in what was read.
        gpu.write_shared(large, &noise(2 << 20, 3)).unwrap();
        let third = read(&gpu, large, 2 << 20);
        assert!(first == a && third == noise(2 << 20, 3));
        drop((first, third));
        assert_eq!(second, a, "the last clone holds it");
        drop(second);
        assert_eq!(idle(), all + 1, "two were out at once, both are back");
        // A small value holds no buffer, and neither does a small part of a crossing.
        let all = idle();
        let kept = gpu.read(&[(small, 4096), (large, 2 << 20)]).unwrap().wait(LONG).unwrap().remove(0);
        let alone = read(&gpu, small, 4096);
        assert!(idle() >= all && kept == b && alone == b, "{} and {all}", idle());
        let report = gpu.allocator_report();
        for _ in 0..50 {
            drop(read(&gpu, large, 2 << 20));
        }
        assert_eq!(gpu.allocator_report(), report, "nothing grows");
    });
}

#[test]
fn lent_memory_outlives_its_device() {
    on_every_adapter(|adapter, gpu| {
        let x = gpu.alloc(1 << 20).unwrap();
        gpu.write_shared(x, &noise(1 << 20, 4)).unwrap();
        let lent = read(&gpu, x, 1 << 20);
        gpu.lose();
        assert_eq!(lent, noise(1 << 20, 4), "after the loss");
        drop(gpu);
        assert_eq!(lent, noise(1 << 20, 4), "after the end");
        drop(lent);
        let gpu = Gpu::open(adapter).unwrap();
        let x = gpu.alloc(1 << 20).unwrap();
        gpu.write_shared(x, &noise(1 << 20, 5)).unwrap();
        let lent = read(&gpu, x, 1 << 20);
        drop(gpu);
        assert_eq!(lent, noise(1 << 20, 5), "of a device that was closed");
    });
}

#[test]
fn copies_by_several_threads_are_whole() {
    on_every_adapter(|_, gpu| {
        for (threads, piece_bytes) in [(1, 1 << 20), (2, 1 << 16), (4, 1 << 18), (3, 100_000)] {
            gpu.copy_by(Copying { threads, piece_bytes });
            for bytes in [(1 << 18) - 1, 1 << 18, (1 << 20) + 3, (17 << 20) + 5] {
                let x = gpu.alloc(bytes).unwrap();
                let before = gpu.memory();
                gpu.write_shared(x, &noise(bytes, threads)).unwrap();
                assert_eq!(read(&gpu, x, bytes), noise(bytes, threads), "{threads} threads, {bytes} bytes");
                let after = gpu.memory();
                assert_eq!(after.uploads - before.uploads, 1);
                assert_eq!(after.upload_bytes - before.upload_bytes, bytes as u64);
                gpu.free(x);
            }
        }
    });
}

#[test]
fn two_threads_upload_while_a_third_submits() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let ready = sketch.ready(&gpu, vec![axpb(64, Loc::Leaf(0), Loc::Out(0), fixed(1.0), 1.0)]).unwrap();
        let (bytes, done) = ((1 << 20) + 20, AtomicBool::new(false));
        let (gpu, done, ready) = (&gpu, &done, &ready);
        let state = gpu.alloc(256).unwrap();
        gpu.write(state, super::bytes(&[0.0; 64])).unwrap();
        thread::scope(|scope| {
            let upload = |thread: usize| {
                move || {
                    let id = gpu.alloc(bytes).unwrap();
                    for turn in 0..12 {
                        let data = noise(bytes, 100 * thread + turn);
                        gpu.write_shared(id, &data).unwrap();
                        assert_eq!(read(gpu, id, bytes), data, "thread {thread}, turn {turn}");
                    }
                    gpu.free(id);
                }
            };
            let uploads = [scope.spawn(upload(0)), scope.spawn(upload(1))];
            let steps = scope.spawn(move || {
                let mut steps = 0;
                while !done.load(Ordering::SeqCst) {
                    let args = Args {
                        leaves: &[LeafArg::Buffer(state)],
                        scalars: &[],
                        outputs: &[state],
                        watch: None,
                    };
                    gpu.wait(gpu.submit(ready, args).unwrap(), LONG).unwrap();
                    steps += 1;
                }
                steps
            });
            uploads.into_iter().for_each(|upload| upload.join().unwrap());
            done.store(true, Ordering::SeqCst);
            let steps = steps.join().unwrap();
            assert_eq!(floats(gpu, state, 64), [steps as f32; 64]);
        });
    });
}
