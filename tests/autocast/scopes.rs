//! Where a scope holds, and what it does to products and their gradients.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wgrad::nn::{Linear, Module, Rng};
use wgrad::{DType, HostTensor, Param, Pass, Tensor, autocast, checkpoint, grad};

use crate::Subject;
use crate::devices::cpu;
use crate::table::spread;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn data<const R: usize>(dims: [usize; R], turn: f64) -> HostTensor {
    HostTensor::new(&dims[..], &spread(dims.iter().product(), -1.0, 1.5, turn)).unwrap().cast(DType::F32)
}

fn of<const R: usize>(p: &Pass, dims: [usize; R], turn: f64) -> Tensor {
    p.input(data(dims, turn)).unwrap()
}

pub(super) fn scopes_nest_and_end() {
    let ctx = cpu();
    ctx.pass(|p| {
        let (x, w) = (of(p, [3, 4], 0.2), of(p, [4, 2], 0.7));
        let dtype = || x.matmul(w).dtype();
        assert_eq!(dtype(), DType::F32);
        p.autocast(DType::F16, || {
            assert_eq!(dtype(), DType::F16);
            p.autocast(DType::BF16, || assert_eq!(dtype(), DType::BF16));
            p.autocast(None, || assert_eq!(dtype(), DType::F32));
            p.autocast(DType::F32, || {
                p.autocast(DType::F16, || assert_eq!(dtype(), DType::F16));
                assert_eq!(dtype(), DType::F32);
            });
            let y = autocast(x, DType::BF16, |x| Ok(x.matmul(w))).unwrap();
            assert_eq!((y.dtype(), dtype()), (DType::BF16, DType::F16));
            let caught = catch_unwind(AssertUnwindSafe(|| p.autocast(DType::BF16, || panic!("expected"))));
            assert!(caught.is_err());
            assert_eq!(dtype(), DType::F16);
        });
        assert_eq!(dtype(), DType::F32);
        Ok(())
    })
    .unwrap();
}

pub(super) fn scopes_belong_to_their_pass() {
    let (ctx, other) = (cpu(), cpu());
    let w = Param::new(&ctx, "w", data([4, 2], 0.7)).unwrap();
    let outer = ctx.begin().unwrap();
    let x = of(&outer, [3, 4], 0.2);
    let later = ctx.begin().unwrap();
    // The innermost pass is another one; what has no other operand is recorded where the scope is.
    outer.autocast(DType::F16, || {
        assert_eq!(x.matmul(w.t()).dtype(), DType::F16);
        assert_eq!(w.t().t().matmul(w.t()).dtype(), DType::F16);
        assert_eq!(of(&later, [3, 4], 0.2).matmul(w.t()).dtype(), DType::F32);
        ctx.pass(|p| {
            assert_eq!(of(p, [3, 4], 0.2).matmul(w.t()).dtype(), DType::F32);
            assert_eq!(w.t().t().matmul(w.t()).dtype(), DType::F32);
            Ok(())
        })
        .unwrap();
        other
            .pass(|p| {
                let x = of(p, [3, 3], 0.2);
                assert_eq!(x.matmul(x).dtype(), DType::F32);
                Ok(())
            })
            .unwrap();
        let handle = std::thread::spawn({
            let ctx = ctx.clone();
            move || ctx.pass(|p| Ok(of(p, [3, 3], 0.2).matmul(of(p, [3, 3], 0.1)).dtype())).unwrap()
        });
        assert_eq!(handle.join().unwrap(), DType::F32);
    });
}

pub(super) fn other_dtypes_are_refused() {
    let ctx = cpu();
    let pass = ctx.begin().unwrap();
    for dtype in [DType::F64, DType::I32, DType::Bool] {
        let panic = catch_unwind(AssertUnwindSafe(|| pass.autocast(dtype, || ()))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("f16, bf16 or f32, not"), "{text}");
    }
    // Nothing is rounded where a factor is f64, or none is of floats.
    let wide = pass.input(data([3, 3], 0.3).cast(DType::F64)).unwrap();
    let whole = pass.input(HostTensor::new([2, 2], &[1i32, 70_000, 3, 4]).unwrap()).unwrap();
    pass.autocast(DType::F16, || {
        assert_eq!(wide.matmul(of(&pass, [3, 3], 0.1)).dtype(), DType::F64);
        let product = Tensor::einsum("ij,jk->ik", &[whole, whole]);
        assert_eq!(product.to_vec::<i32>().unwrap(), [210_001, 350_000, 15, 210_016]);
    });
}

pub(super) fn products_are_of_rounded_operands(subject: &Subject) {
    let ctx = subject.context();
    for half in HALVES {
        ctx.pass(|p| {
            let (x, w, b) = (of(p, [5, 37], 0.2), of(p, [37, 3], 0.7), of(p, [3], 0.4));
            let rounded = |x: Tensor| x.cast(half).cast(DType::F32);
            let y = p.autocast(half, || b.addmm(x, w));
            let by_hand = (b + rounded(x).matmul(rounded(w))).cast(half);
            assert_eq!(y.to_vec::<f64>()?, by_hand.to_vec::<f64>()?);
            // The factor of a product between two products lies in memory as halves.
            let z = p.autocast(half, || y.relu().matmul(w.t()));
            let by_hand = by_hand.relu().cast(DType::F32).matmul(rounded(w).t()).cast(half);
            assert_eq!(z.to_vec::<f64>()?, by_hand.to_vec::<f64>()?);
            Ok(())
        })
        .unwrap();
    }
}

pub(super) fn gradients_of_weights_are_not_rounded(subject: &Subject) {
    let ctx = subject.context();
    for half in HALVES {
        let w = Param::new(&ctx, "w", data([37, 3], 0.7)).unwrap();
        let b = Param::new(&ctx, "b", data([3], 0.4)).unwrap();
        ctx.pass(|p| {
            let (x, g) = (of(p, [5, 37], 0.2), of(p, [5, 3], 0.9));
            let rounded = |x: Tensor| x.cast(half).cast(DType::F32);
            let y = p.autocast(half, || b.t().addmm(x, w.t()));
            let loss = |y: Tensor| (y.cast(DType::F32) * g).sum_all();
            let grads = loss(y).backward()?;
            let dx = grad(loss(y), &[x])?[0];
            let (dw, db) = (grads.get(&w).unwrap(), grads.get(&b).unwrap());
            assert_eq!([dw.dtype(), db.dtype(), dx.dtype()], [DType::F32; 3]);
            // What arrives at the product is of 16 bits, and so is what it gives back to a value.
            let (g, v) = (rounded(g), rounded(w.t()));
            assert_eq!(dw.to_vec::<f64>()?, rounded(x).t().matmul(g).to_vec::<f64>()?);
            assert_eq!(db.to_vec::<f64>()?, g.sum(0).to_vec::<f64>()?);
            assert_eq!(dx.to_vec::<f64>()?, rounded(g.matmul(v.t())).to_vec::<f64>()?);
            assert_ne!(dw.to_vec::<f64>()?, rounded(dw).to_vec::<f64>()?);
            Ok(())
        })
        .unwrap();
    }
}

pub(super) fn a_weight_is_rounded_once_a_pass(subject: &Subject) {
    let ctx = subject.context();
    let w = Param::new(&ctx, "w", data([4, 4], 0.7)).unwrap();
    let casts = |record: &dyn Fn(&Pass, Tensor) -> wgrad::Result<Tensor>| {
        ctx.pass(|p| record(p, of(p, [3, 4], 0.2))?.to_vec::<f32>()).unwrap();
        let plan = ctx.last_plan().unwrap();
        let narrow = plan.graph.nodes().iter().filter(|n| {
            n.op == wgrad_graph::Op::Cast && n.outs[0].dtype == DType::F16 && n.outs[0].shape.dims() == [4, 4]
        });
        narrow.count()
    };
    let twice = |p: &Pass, x: Tensor| p.autocast(DType::F16, || Ok(x.matmul(w.t()).matmul(w.t())));
    assert_eq!(casts(&twice), 1);
    let with_gradient = |p: &Pass, x: Tensor| {
        let y = twice(p, x)?.cast(DType::F32).sum_all();
        Ok(y.backward()?.get(&w).unwrap())
    };
    assert_eq!(casts(&with_gradient), 1);
    // Views of it are views of the rounded one.
    let views = |p: &Pass, x: Tensor| {
        p.autocast(DType::F16, || Ok(twice(p, x)?.matmul(w.t().t()).matmul(w.t().narrow(1, 1, 2))))
    };
    assert_eq!(casts(&views), 1);
    // Recorded without gradients first, it passes them on where it is used again.
    let after_no_grad = |p: &Pass, x: Tensor| {
        p.no_grad(|| twice(p, x))?;
        with_gradient(p, x)
    };
    assert_eq!(casts(&after_no_grad), 1);
    // A new version is another weight.
    ctx.pass(|p| {
        let x = of(p, [3, 4], 0.2);
        let before = p.autocast(DType::F16, || x.matmul(w.t()));
        w.set(w.t() * 2.0);
        let after = p.autocast(DType::F16, || x.matmul(w.t()));
        let doubled: Vec<f32> = before.to_vec::<f32>()?.iter().map(|y| y * 2.0).collect();
        assert_eq!(after.to_vec::<f32>()?, doubled);
        Ok(())
    })
    .unwrap();
}

pub(super) fn checkpoints_repeat_what_was_computed(subject: &Subject) {
    let ctx = subject.context();
    let layers: Vec<Linear> =
        (0..3).map(|i| Linear::new(&ctx, &format!("fc{i}"), 6, 6, Rng::seed(i)).unwrap()).collect();
    let run = |again: bool, outside: bool| {
        ctx.set_seed(7);
        ctx.pass(|p| {
            let mut x = of(p, [5, 6], 0.2);
            let scope = |x: Tensor, f: &dyn Fn(Tensor) -> Tensor| {
                if outside { Ok(f(x)) } else { autocast(x, DType::BF16, |x| Ok(f(x))) }
            };
            let mut forward = || {
                for _ in 0..2 {
                    for layer in &layers {
                        let block = |x: Tensor| layer.forward(x).gelu().dropout("drop", 0.3);
                        x = match again {
                            true => checkpoint(x, |x| scope(x, &block))?,
                            false => scope(x, &block)?,
                        };
                    }
                }
                Ok(x)
            };
            let y = if outside { p.autocast(DType::BF16, forward)? } else { forward()? };
            let loss = y.cast(DType::F32).square().mean(..);
            let grads = loss.backward()?;
            let mut all = vec![loss.to_vec::<f64>()?];
            for layer in &layers {
                all.push(grads.get(&layer.weight).unwrap().to_vec::<f64>()?);
                all.push(grads.get(layer.bias.as_ref().unwrap()).unwrap().to_vec::<f64>()?);
            }
            Ok(all)
        })
        .unwrap()
    };
    let plain = run(false, true);
    for outside in [true, false] {
        for (a, b) in plain.iter().flatten().zip(run(true, outside).iter().flatten()) {
            // Other kernels may contract other pairs of operations before values are rounded.
            let tolerance = if subject.is_vulkan() { 1e-2 } else { 0.0 };
            assert!((a - b).abs() <= tolerance * a.abs().max(0.1), "{a}, again {b}");
        }
    }
}

pub(super) fn second_derivatives_flow(subject: &Subject) {
    let ctx = subject.context();
    let w = Param::new(&ctx, "w", data([4, 4], 0.7)).unwrap();
    for half in HALVES {
        let run = |scope: Option<DType>| {
            ctx.pass(|p| {
                let x = of(p, [3, 4], 0.2);
                let y = p.autocast(scope, || x.matmul(w.t()).tanh().matmul(w.t()));
                let dx = grad(y.cast(DType::F32).square().sum(..), &[x])?[0];
                let grads = dx.square().sum(..).backward()?;
                let ddw = grads.get(&w).unwrap();
                assert_eq!(ddw.dtype(), DType::F32);
                ddw.to_vec::<f64>()
            })
            .unwrap()
        };
        let (got, want) = (run(Some(half)), run(None));
        let size = want.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let tolerance = if half == DType::F16 { 0.01 } else { 0.06 };
        for (a, b) in got.iter().zip(&want) {
            assert!((a - b).abs() <= tolerance * size, "{half}: {a}, in f32 {b}, the largest {size}");
        }
    }
}

pub(super) fn a_captured_step_keeps_its_scopes(subject: &Subject) {
    let ctx = subject.context();
    let w = Param::new(&ctx, "w", data([4, 2], 0.7)).unwrap();
    let step = ctx.capture(|p, x: Tensor| {
        let y = p.autocast(DType::F16, || x.matmul(w.t()));
        let loss = y.mean(..).cast(DType::F32);
        let grads = loss.backward()?;
        w.set(w.t() - grads.get(&w).unwrap() * 0.5);
        Ok(loss)
    });
    let losses: Vec<f64> =
        (0..4).map(|_| step.run(data([3, 4], 0.2)).unwrap().read().unwrap().to_vec::<f64>()[0]).collect();
    assert!(losses.windows(2).all(|w| w[1] < w[0]), "{losses:?}");
    assert!(ctx.stats().plans_made <= 1);
}
