//! What goes wrong: mistakes, full memory, a lost device, raised flags, long waits.

use std::time::Duration;

use wgrad_graph::{Args, Backend, BufferId, ErrorKind, LeafArg, LeafKind, Loc};

use super::{LONG, Sketch, axpb, bound, bytes, check, fixed, floats, on_every_adapter};
use crate::Gpu;
use crate::launch::{Bound, Params};

#[test]
fn a_raised_flag_is_told_with_op_limit_and_line() {
    on_every_adapter(|_, gpu| {
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], ..Sketch::default() };
        let good = sketch.ready(&gpu, vec![check(8, Loc::Leaf(0), 100)]).unwrap();
        let bad = sketch.ready(&gpu, vec![check(8, Loc::Leaf(0), 5)]).unwrap();
        let x = gpu.alloc(32).unwrap();
        gpu.write(x, bytemuck::cast_slice(&[0_u32, 1, 2, 3, 4, 5, 6, 7])).unwrap();
        let args = Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[], watch: None };
        let first = gpu.submit(&good, args).unwrap();
        let second = gpu.submit(&bad, args).unwrap();
        let third = gpu.submit(&good, args).unwrap();
        gpu.wait(first, LONG).unwrap();
        let error = gpu.wait(second, LONG).unwrap_err();
        assert_eq!((error.kind(), error.op()), (ErrorKind::Data, "gather"));
        let text = error.to_string();
        assert!(text.contains("limit 5") && text.contains("tests.rs"), "{text}");
        assert_eq!(gpu.wait(second, LONG).unwrap_err().to_string(), text, "whoever waits for it hears of it");
        gpu.wait(third, LONG).unwrap();
        gpu.submit(&bad, args).unwrap();
        assert_eq!(gpu.read(&[(x, 4)]).unwrap().wait(LONG).unwrap_err().kind(), ErrorKind::Data);
        assert_eq!(gpu.read(&[(x, 4)]).unwrap().wait(LONG).unwrap()[0][..], [0; 4]);
    });
}

#[test]
fn mistakes_are_errors() {
    on_every_adapter(|adapter, gpu| {
        let kind = |e: wgrad_graph::Error| e.kind();
        let x = gpu.alloc(256).unwrap();
        gpu.free(x);
        gpu.free(x);
        let error = gpu.write(x, &[0; 4]).unwrap_err();
        assert!(error.kind() == ErrorKind::Stale && error.to_string().contains(&format!("{:#x}", x.0)));
        assert_eq!(kind(gpu.read(&[(BufferId(77), 4)]).err().unwrap()), ErrorKind::Stale);
        let y = gpu.alloc(256).unwrap();
        assert_eq!(kind(gpu.write(y, &[0; 257]).unwrap_err()), ErrorKind::Argument);
        assert_eq!(kind(gpu.read(&[(y, 300)]).err().unwrap()), ErrorKind::Argument);
        assert_eq!(kind(gpu.alloc(usize::MAX / 2).unwrap_err()), ErrorKind::Limit);
        assert_eq!(kind(gpu.wait(wgrad_graph::Ticket(999), LONG).unwrap_err()), ErrorKind::Argument);

        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let launch = axpb(128, Loc::Leaf(0), Loc::Out(0), fixed(1.0), 0.0);
        let ready = sketch.ready(&gpu, vec![launch.clone()]).unwrap();
        let submit = |leaves: &[LeafArg<'_>], outputs: &[BufferId]| {
            gpu.submit(&ready, Args { leaves, scalars: &[], outputs, watch: None }).unwrap_err().kind()
        };
        assert_eq!(submit(&[], &[y]), ErrorKind::Argument);
        assert_eq!(submit(&[LeafArg::Host(&[0; 4])], &[y]), ErrorKind::Argument);
        assert_eq!(submit(&[LeafArg::Buffer(x)], &[y]), ErrorKind::Stale);
        assert_eq!(submit(&[LeafArg::Buffer(y)], &[y]), ErrorKind::Argument);

        let mut broken = launch.clone();
        broken.source = "fn main() { return 1; }".to_owned();
        let error = sketch.ready(&gpu, vec![broken]).unwrap_err();
        assert!(error.kind() == ErrorKind::Kernel && error.to_string().contains("return 1"), "{error}");
        let mut huge = launch.clone();
        huge.grid[1] = gpu.caps().max_workgroups + 1;
        assert_eq!(kind(sketch.ready(&gpu, vec![huge]).unwrap_err()), ErrorKind::Limit);

        // Nothing of this hurt the device, and another device on the adapter is another device.
        let other = Gpu::open(adapter).unwrap();
        let args = Args { leaves: &[LeafArg::Buffer(y)], scalars: &[], outputs: &[y], watch: None };
        assert_eq!(kind(other.submit(&ready, args).unwrap_err()), ErrorKind::Device);
        let big = gpu.alloc(512).unwrap();
        let args = Args { leaves: &[LeafArg::Buffer(big)], scalars: &[], outputs: &[big], watch: None };
        gpu.wait(gpu.submit(&ready, args).unwrap(), LONG).unwrap();
    });
}

#[test]
fn a_lost_device_is_an_error_and_others_go_on() {
    on_every_adapter(|adapter, gpu| {
        let other = Gpu::open(adapter).unwrap();
        let sketch = Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, ..Sketch::default() };
        let launch = axpb(64, Loc::Leaf(0), Loc::Out(0), fixed(3.0), 0.0);
        let ready = sketch.ready(&gpu, vec![launch.clone()]).unwrap();
        let x = gpu.alloc(256).unwrap();
        gpu.write(x, bytes(&[1.0; 64])).unwrap();
        let args = Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[x], watch: None };
        let ticket = gpu.submit(&ready, args).unwrap();
        let mut pending = gpu.read(&[(x, 256)]).unwrap();
        gpu.lose();
        assert!(gpu.submit(&ready, args).unwrap_err().is_lost());
        assert!(gpu.wait(ticket, LONG).unwrap_err().is_lost());
        assert!(pending.wait(LONG).unwrap_err().is_lost());
        assert!(gpu.alloc(4).unwrap_err().is_lost());
        assert!(gpu.write(x, &[0; 4]).unwrap_err().is_lost());
        assert!(gpu.read(&[(x, 4)]).err().unwrap().is_lost());
        assert!(sketch.ready(&gpu, vec![launch.clone()]).unwrap_err().is_lost());
        drop((ready, gpu));
        let ready = sketch.ready(&other, vec![launch]).unwrap();
        let x = other.alloc(256).unwrap();
        other.write(x, bytes(&[1.0; 64])).unwrap();
        other
            .submit(&ready, Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[x], watch: None })
            .unwrap();
        assert_eq!(floats(&other, x, 64), [3.0; 64]);
    });
}

#[test]
fn long_steps_are_split_and_waits_have_deadlines() {
    on_every_adapter(|_, gpu| {
        let sketch =
            Sketch { leaves: vec![(LeafKind::Buffer, 0)], outs: 1, slots: vec![1024], ..Sketch::default() };
        let mut heavy = axpb(256, Loc::Slot(0), Loc::Slot(0), fixed(1.0), 1.0);
        // In place: one binding.
        heavy.source = "@group(0) @binding(0) var<storage, ACCESS0> x: array<f32>;
            @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] += 1.0; }"
            .to_owned();
        heavy.bindings = vec![bound(Bound::Loc(Loc::Slot(0)), true, 256)];
        (heavy.params, heavy.words) = (Params::None, Vec::new());
        heavy.cost_bytes = 1 << 40;
        let mut launches = vec![axpb(256, Loc::Leaf(0), Loc::Slot(0), fixed(1.0), 0.0)];
        launches.extend(std::iter::repeat_n(heavy, 4));
        launches.push(axpb(256, Loc::Slot(0), Loc::Out(0), fixed(1.0), 0.0));
        let ready = sketch.ready(&gpu, launches).unwrap();
        let x = gpu.alloc(1024).unwrap();
        gpu.write(x, bytes(&[5.0; 256])).unwrap();
        let args = Args { leaves: &[LeafArg::Buffer(x)], scalars: &[], outputs: &[x], watch: None };
        let ticket = gpu.submit(&ready, args).unwrap();
        // The write, then one for each heavy dispatch and the light ones around them.
        assert_eq!(gpu.memory().submissions, 1 + 6);
        gpu.wait(ticket, LONG).unwrap();
        assert_eq!(floats(&gpu, x, 256), [9.0; 256]);
        // A deadline that has passed is told, and the work still ends.
        let ticket = gpu.submit(&ready, args).unwrap();
        if let Err(error) = gpu.wait(ticket, Duration::ZERO) {
            assert_eq!(error.kind(), ErrorKind::Timeout);
        }
        gpu.wait(ticket, LONG).unwrap();
    });
}

#[test]
fn memory_that_runs_out_is_an_error_and_the_device_goes_on() {
    on_every_adapter(|_, gpu| {
        let deny = |times| gpu.core().deny.store(times, std::sync::atomic::Ordering::Relaxed);
        // What was freed is given back to the driver before it is asked again.
        let old = gpu.alloc(1 << 20).unwrap();
        gpu.free(old);
        deny(1);
        let x = gpu.alloc(2 << 20).unwrap();
        assert_eq!((gpu.memory().pages, gpu.memory().reserved_bytes), (1, 2 << 20));
        // A shared page that does not fit becomes an exact one.
        let y = gpu.alloc(3 << 20).unwrap();
        deny(2);
        let z = gpu.alloc(256).unwrap();
        assert_eq!(gpu.memory().reserved_bytes, (5 << 20) + 256);
        deny(100);
        let error = gpu.alloc(1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("1024 bytes"), "{error}");
        let sketch = Sketch { slots: vec![1 << 20], ..Sketch::default() };
        assert!(sketch.ready(&gpu, Vec::new()).unwrap_err().is_out_of_memory());
        deny(0);
        gpu.write(x, bytes(&[2.0; 64])).unwrap();
        assert_eq!(floats(&gpu, x, 64), [2.0; 64]);
        [x, y, z].into_iter().for_each(|id| gpu.free(id));
        sketch.ready(&gpu, Vec::new()).unwrap();
    });
}
