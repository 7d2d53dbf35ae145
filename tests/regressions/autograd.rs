//! Faults of the autograd engine.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, DType, GradSum, HostTensor, Param, Pass, Result, Tensor, custom_gradient, grad};

use super::{bools, each_gradient, every_way, floats, gradient, ramp, ways};
use crate::Subject;
use crate::ops::near;

crate::suite![
    plain: ;
    device: b098_parts_joined_with_a_constant, b100_gradient_of_a_scatter_of_other_sizes,
        b101_gradient_of_a_repeat, b103_a_gradient_is_replaced, b104_backward_inside_a_gradient,
        b107_weights_alone_are_differentiated, b109_gradient_of_a_sort, b110_second_gradient_of_an_order,
        b112_operands_partly_tracked, b113_ties_of_cummax, b115_a_step_leaves_nothing,
        b116_steps_block_no_other_path, b118_cross_product_along_the_first_axis,
];

fn b098_parts_joined_with_a_constant(on: &Subject) {
    let operands = || [floats([2], &[2., 3.]), floats([1], &[1.])];
    let f = |p: &Pass, x: &[Tensor]| {
        let weights = p.input(HostTensor::new([3], &[10f32, 20., 30.]).unwrap()).unwrap();
        Tensor::cat(&[x[1].detach(), x[0]], 0) * weights
    };
    gradient(on, &operands(), f, &[20., 30.]);
    each_gradient(on, &operands(), f, &[&[20., 30.], &[0.]]);
}

fn b100_gradient_of_a_scatter_of_other_sizes(on: &Subject) {
    let operands = [ramp([1, 6]), floats([1, 3], &[1., 2., 3.])];
    let idx = |p: &Pass| p.input(HostTensor::new([1, 3], &[2i32, 1, 0]).unwrap()).unwrap();
    let add = |p: &Pass, x: &[Tensor]| x[0].scatter_add(1, idx(p), x[1]);
    every_way(on, &operands, add, &[1, 6], &[3., 3., 3., 3., 4., 5.]);
    each_gradient(on, &operands, add, &[&[1.; 6], &[1.; 3]]);
    let put = |p: &Pass, x: &[Tensor]| x[0].scatter(1, idx(p), x[1]);
    each_gradient(on, &operands, put, &[&[0., 0., 0., 1., 1., 1.], &[1.; 3]]);
}

fn b101_gradient_of_a_repeat(on: &Subject) {
    let operands = [floats([2, 2], &[4., 2., 2., 4.]), floats([2, 2], &[1., 7., -2., -3.])];
    let f = |_: &Pass, x: &[Tensor]| x[1].matmul(x[0].repeat(1, 3));
    gradient(on, &operands, f, &[-3., -3., 12., 12.]);
}

/// Gradients are values: only a `GradSum` adds, and what was taken from it is gone.
fn b103_a_gradient_is_replaced(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", HostTensor::new([1], &[1f32]).unwrap()).unwrap();
    let sum = GradSum::new(&ctx, [&w]).unwrap();
    let step = |slope: f64| {
        ctx.pass(|_| {
            let grads = (w.t() * slope).sum_all().backward()?;
            sum.add(&grads)?;
            grads.get(&w).unwrap().item::<f64>()
        })
        .unwrap()
    };
    let take = || ctx.pass(|_| sum.take()?.get(&w).unwrap().item::<f64>()).unwrap();
    assert_eq!((step(5.0), take()), (5.0, 5.0));
    assert_eq!((step(2.0), take()), (2.0, 2.0));
    assert_eq!((step(2.0), step(3.0), take()), (2.0, 3.0, 5.0));
}

fn b104_backward_inside_a_gradient(on: &Subject) {
    let other = on.context();
    for inside in [true, false] {
        let other = other.clone();
        let slope = on
            .context()
            .pass(|p| {
                let x = p.input(HostTensor::new([2], &[1f32, 3.])?)?;
                let other = other.clone();
                let y = custom_gradient(
                    &[x],
                    |x| Ok(x[0] * x[0]),
                    move |at| {
                        let twice = if inside {
                            grad(at.input(0).square().sum(..), &[at.input(0)])?[0]
                        } else {
                            let two = other.pass(|p| {
                                let t = p.input(HostTensor::new([1], &[2f32])?)?;
                                grad(t.square().sum(..) * 0.5, &[t])?[0].item::<f64>()
                            })?;
                            at.input(0) * two
                        };
                        Ok(vec![Some(at.dout(0) * twice)])
                    },
                )?;
                grad((y * 5.0).sum(..), &[x])?[0].to_vec::<f64>()
            })
            .unwrap();
        assert_eq!(slope, [10.0, 30.0]);
    }
}

fn b107_weights_alone_are_differentiated(on: &Subject) {
    let ctx = on.context();
    let make = |name: &str, dims: [usize; 2], scale: f32| {
        let x: Vec<f32> = (0..dims[0] * dims[1]).map(|i| ((i * 7 % 11) as f32 - 5.0) * scale).collect();
        Param::new(&ctx, name, HostTensor::new(dims, &x).unwrap()).unwrap()
    };
    let (a, b) = (make("a", [3, 4], 0.1), make("b", [4, 2], 0.2));
    let gradients = |with_input: bool| {
        ctx.pass(|p| {
            let x = p.input(HostTensor::new([2, 3], &[0.5f32, -1., 2., 0., 1., -0.5])?)?;
            let loss = x.matmul(a.t()).relu().matmul(b.t()).square().mean(..);
            if with_input {
                let of_input = grad(loss, &[x])?[0].to_vec::<f64>()?;
                assert!(of_input.iter().any(|g| *g != 0.0));
            }
            let grads = loss.backward()?;
            Ok([grads.get(&a).unwrap().to_vec::<f64>()?, grads.get(&b).unwrap().to_vec::<f64>()?])
        })
        .unwrap()
    };
    let (alone, beside) = (gradients(false), gradients(true));
    for (alone, beside) in alone.iter().zip(&beside) {
        assert!(alone.iter().any(|g| *g != 0.0));
        near("gradient", alone, beside, 1e-6);
    }
}

fn b109_gradient_of_a_sort(on: &Subject) {
    let operands = [floats([5], &[3., 1., 2., 5., 4.]), floats([5], &[10., 20., 30., 40., 50.])];
    let f = |_: &Pass, x: &[Tensor]| x[0].sort(0, false).0 * x[1];
    gradient(on, &operands, f, &[30., 10., 20., 50., 40.]);
}

/// The second derivative times a vector.
fn twice(f: fn(Tensor) -> Tensor) -> impl Fn(&Pass, &[Tensor]) -> Tensor {
    move |_, x| {
        let first = grad(f(x[0]).square().sum(..), &[x[0]]).unwrap()[0];
        first * x[1]
    }
}

fn b110_second_gradient_of_an_order(on: &Subject) {
    let operands = || [floats([5], &[3., 1., 2., 5., 4.]), floats([5], &[10., 20., 30., 40., 50.])];
    gradient(on, &operands(), twice(|x| x.sort(0, false).0), &[20., 40., 60., 80., 100.]);
    gradient(on, &operands(), twice(|x| x.topk(2, 0, true).0), &[0., 0., 0., 80., 100.]);
    // The largest so far: 3 three times, 5 twice.
    gradient(on, &operands(), twice(|x| x.cummax(0).0), &[60., 0., 0., 160., 0.]);
}

/// The tangent of t is the gradient of its gradient by what arrives.
fn b112_operands_partly_tracked(on: &Subject) {
    let operands = || [floats([2], &[0., 0.]), floats([2], &[1., 1.]), bools([2], &[true, false])];
    let f = |x: &[Tensor]| x[2].select((x[0] + 1.0).square(), 999.0);
    gradient(on, &operands(), |_, x| f(x), &[2., 0.]);
    let tangent = move |_: &Pass, x: &[Tensor]| {
        let slope = grad((f(x) * x[1]).sum(..), &[x[0]]).unwrap()[0];
        grad(slope.sum(..), &[x[1]]).unwrap()[0]
    };
    every_way(on, &operands(), tangent, &[2], &[2., 0.]);
}

/// Of equal elements the latest is read; all that arrives goes somewhere.
fn b113_ties_of_cummax(on: &Subject) {
    let x = || [floats([5], &[3., 3., 1., 5., 5.])];
    every_way(on, &x(), |_, x| x[0].cummax(0).0, &[5], &[3., 3., 3., 5., 5.]);
    every_way(on, &x(), |_, x| x[0].cummax(0).1, &[5], &[0., 1., 1., 3., 4.]);
    gradient(on, &x(), |_, x| x[0].cummax(0).0, &[1., 2., 0., 1., 1.]);
}

fn b115_a_step_leaves_nothing(on: &Subject) {
    let ctx = Context::new(on.fresh()).unwrap();
    let w = Param::new(&ctx, "w", HostTensor::new([4, 3], &[0.5f32; 12]).unwrap()).unwrap();
    let x = HostTensor::new([2, 4], &[1f32, -1., 0.5, 2., 0., 1., -2., 0.25]).unwrap();
    let train = |rounds: usize| {
        let before = ctx.stats();
        for _ in 0..rounds {
            let step = |p: &Pass| -> Result<()> {
                let loss = p.input(&x)?.matmul(w.t()).tanh().square().mean_all();
                let g = loss.backward()?.get(&w).unwrap();
                w.set(w.t() - g * 0.01);
                Ok(())
            };
            ctx.pass(step).unwrap();
        }
        ctx.sync().unwrap();
        let now = ctx.stats();
        (now, (now.dispatches - before.dispatches) / rounds as u64)
    };
    let (first, each) = train(10);
    let (last, later) = train(if on.is_slow() { 100 } else { 1000 });
    assert_eq!(each, later, "kernels a step");
    assert_eq!(first.live_bytes, last.live_bytes);
    assert_eq!(first.pages, last.pages);
    assert_eq!(first.plans_made, last.plans_made);
}

fn b116_steps_block_no_other_path(on: &Subject) {
    let x = || [floats([3], &[1.25, 3.5, -2.75])];
    let masked = |_: &Pass, x: &[Tensor]| x[0] * x[0].argmax(0).one_hot(3) + x[0];
    gradient(on, &x(), masked, &[1., 2., 1.]);
    let alone = |_: &Pass, x: &[Tensor]| x[0].argmax(0).one_hot(3) + x[0];
    gradient(on, &x(), alone, &[1.; 3]);
    for step in [Tensor::ceil, Tensor::floor, Tensor::round, Tensor::trunc, Tensor::sign] {
        gradient(on, &x(), |_, x| step(x[0]) + x[0], &[1.; 3]);
        gradient(on, &x(), |_, x| step(x[0] * x[0]) * 3.0, &[0.; 3]);
    }
}

fn b118_cross_product_along_the_first_axis(on: &Subject) {
    let operands = || {
        let w = floats([3, 3], &[2., -1., 0.5, 1., 3., -2., 0., 1., 4.]);
        [floats([3, 3], &[1., 2., 3., -4., 5., 6., 7., -8., 9.]), w]
    };
    ways(on, &operands(), |_, x, say| {
        let y = x[0].cross(x[1], 0);
        let turned = x[0].t().cross(x[1].t(), 1).t();
        near(say, &y.to_vec::<f64>().unwrap(), &turned.to_vec::<f64>().unwrap(), 1e-6);
        let slope = |y: Tensor| {
            let weighted = y * x[0].sin().detach();
            let g = grad(weighted.sum(..), &x[..2]).unwrap();
            Tensor::cat(&g, 0).cast(DType::F32).to_vec::<f64>().unwrap()
        };
        near(say, &slope(y), &slope(turned), 1e-5);
    });
    // The first column by hand: [1, -4, 7] x [2, 1, 0].
    let first = |_: &Pass, x: &[Tensor]| x[0].cross(x[1], 0).narrow(1, 0, 1);
    every_way(on, &operands(), first, &[3, 1], &[-7., 14., 9.]);
}
