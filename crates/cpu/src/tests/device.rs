//! Buffers, budgets, counters, closures.

use super::*;
use crate::pool::testing::with_threads;
use wgrad_graph::{Bytes, CustomId, CustomSpec, ErrorKind};

#[test]
fn buffers_that_are_gone_are_errors() {
    for device in [&Cpu::new() as &dyn Backend, &Oracle::new()] {
        let buffer = device.alloc(100).unwrap();
        device.write(buffer, &[7; 100]).unwrap();
        assert_eq!(device.read(&[(buffer, 3)]).unwrap().wait(WAIT).unwrap(), [Bytes::from(vec![7; 3])]);
        device.free(buffer);
        let other = device.alloc(100).unwrap();
        assert_ne!(buffer, other);
        assert_eq!(device.write(buffer, &[1]).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(device.read(&[(buffer, 1)]).err().unwrap().kind(), ErrorKind::Stale);
        assert_eq!(device.write(other, &[0; 101]).unwrap_err().kind(), ErrorKind::Argument);
        device.free(other);
        assert_eq!(device.memory().live_bytes, 0);
    }
}

#[test]
fn a_budget_fails_before_data_are_touched() {
    let cpu = Cpu::with_budget(4096);
    let buffer = cpu.alloc(4000).unwrap();
    assert!(cpu.alloc(97).unwrap_err().is_out_of_memory());
    cpu.free(buffer);
    let mut s = Sketch::default();
    let x = s.x(&[1000], 1);
    let a = s.un(Unary::Exp, x);
    let b = s.reduce(Reduce::Sum, a, &[0]);
    let b = s.to(Op::Expand, &[b], &[1000]);
    let y = s.bin(Binary::Div, a, b);
    let plan = s.plan(&cpu, &[Root { val: y, into: None }], &[LeafKind::Upload], false);
    assert!(plan.workspace_bytes > 4096);
    assert!(cpu.prepare(&Arc::new(plan)).unwrap_err().is_out_of_memory());
    assert_eq!(cpu.memory().live_bytes, 0);
    cpu.alloc(4096).unwrap();
}

#[test]
fn a_thousand_steps_leave_memory_as_it_was() {
    let mut s = Sketch::default();
    let (x, w) = (s.x(&[64, 100], 1), s.x(&[100, 50], 2));
    let y = s.op(Op::MatMul, &[x, w]);
    let y = s.un(Unary::Tanh, y);
    let l = s.reduce(Reduce::Sum, y, &[0]);
    let cpu = Cpu::new();
    let plan = s.plan(&cpu, &[Root { val: l, into: None }], &[LeafKind::Upload, LeafKind::Buffer], true);
    s.run(&cpu, &plan).unwrap();
    let first = cpu.memory();
    for _ in 0..1000 {
        s.run(&cpu, &plan).unwrap();
    }
    let last = cpu.memory();
    assert_eq!(
        (first.pages, first.reserved_bytes, first.peak_bytes),
        (last.pages, last.reserved_bytes, last.peak_bytes)
    );
    assert_eq!(last.live_bytes, 0);
    assert_eq!(last.submissions, 1001);
    assert_eq!(last.dispatches, 1001 * plan.steps.len() as u64);
    // One weight is written and one batch uploaded in each.
    assert_eq!(last.uploads, 2002);
    assert_eq!(last.upload_bytes, 1001 * 4 * (6400 + 5000));
    assert_eq!((last.downloads, last.download_bytes), (1001, 1001 * 200));
}

#[test]
fn results_do_not_depend_on_threads() {
    let mut s = Sketch::default();
    let (x, w) = (s.x(&[300, 700], 1), s.x(&[700, 400], 2));
    let y = s.op(Op::MatMul, &[x, w]);
    let e = s.un(Unary::Sigmoid, y);
    let rows = s.reduce(Reduce::Sum, e, &[1]);
    let columns = s.reduce(Reduce::Sum, e, &[0]);
    let all = s.reduce(Reduce::Sum, y, &[0, 1]);
    let run = |threads| with_threads(threads, || s.check(&[y, rows, columns, all], 1e-3));
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(7));
}

#[test]
fn custom_operations_run_their_closures() {
    let spec = |cpu: fn(&[&[f64]], &mut [Vec<f64>])| {
        Arc::new(CustomSpec {
            name: "twice".to_owned(),
            wgsl: String::new(),
            dispatch: Box::new(|_, _| [1, 1, 1]),
            cpu: Box::new(cpu),
        })
    };
    let build = |cpu: fn(&[&[f64]], &mut [Vec<f64>])| {
        let mut s = Sketch::default();
        let x = s.x(&[10, 20], 1);
        let x = s.un(Unary::Neg, x);
        let out = s.graph.out(x);
        s.graph.register(CustomId(5), &spec(cpu));
        let id = s.graph.push(Node {
            op: Op::Custom(CustomId(5)),
            inputs: SmallVec::from_slice(&[x, x]),
            outs: SmallVec::from_slice(&[out, Out { dtype: DType::I32, ..out }]),
            after: SmallVec::new(),
            segment: 0,
            at: None,
        });
        (s, Val { node: id, out: 0 }, Val { node: id, out: 1 })
    };
    let (mut s, y, i) = build(|ins, outs| {
        for ((y, a), b) in outs[0].iter_mut().zip(ins[0]).zip(ins[1]) {
            *y = a + b;
        }
        outs[1].fill(7.9);
    });
    let z = s.un(Unary::Exp, y);
    let out = s.check(&[y, z, i], 1e-5);
    assert_eq!(out[2][..4], 7i32.to_le_bytes());
    let (s, y, _) = build(|_, _| panic!("on purpose"));
    for device in [&Cpu::new() as &dyn Backend, &Oracle::new()] {
        let plan = s.plan(device, &[Root { val: y, into: None }], &[], true);
        let error = s.run(device, &plan).unwrap_err();
        assert_eq!((error.kind(), error.op()), (ErrorKind::User, "twice"));
    }
}
