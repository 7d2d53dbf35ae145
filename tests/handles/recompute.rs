//! Checkpoints and scopes: recomputation is exact, and what a scope switches off comes back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wgrad::{ErrorKind, Param, Result, Tensor, checkpoint, grad};

use super::tap::{Net, bits, fill, host, refused};
use crate::Subject;

crate::suite![
    plain: ;
    device: b106_checkpoint_gradients_equal_plain_ones, hole_6_checkpoints_draw_their_own_numbers,
        hole_7_a_checkpoint_counts_each_use_once, no_grad_ends_with_its_scope, detach_stops_gradients,
        a_checkpoint_inside_a_checkpoint, a_failed_segment_leaves_the_pass_well,
];

fn layer(net: &Net, x: Tensor) -> Tensor {
    let h = (x.matmul(net.w1.t()) + net.b1.t()).tanh().dropout("h", 0.4);
    (h.matmul(net.w2.t()) + net.b2.t()).sigmoid().dropout("y", 0.3)
}

fn gradients(on: &Subject, f: impl Fn(&Net, Tensor) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let ctx = on.context();
    let net = Net::new(&ctx);
    ctx.pass(|p| {
        let x = p.input(fill(&[9, 6], 0.6))?;
        let y = f(&net, x * 1.5)?;
        let loss = (y * p.input(fill(y.shape().dims(), 0.2))?).sum_all();
        let grads = loss.backward()?;
        let mut all = vec![grad(loss, &[x])?[0].to_vec::<f64>()?, loss.to_vec::<f64>()?];
        for w in net.params() {
            all.push(grads.get(w).unwrap().to_vec::<f64>()?);
        }
        Ok(all)
    })
    .unwrap()
}

fn equal(on: &Subject, a: &[Vec<f64>], b: &[Vec<f64>]) {
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        let tolerance = if on.is_vulkan() { 1e-5 } else { 0.0 };
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }
}

fn b106_checkpoint_gradients_equal_plain_ones(on: &Subject) {
    let plain = gradients(on, |net, x| Ok(layer(net, x)));
    let again = gradients(on, |net, x| checkpoint(x, |x| Ok(layer(net, x))));
    equal(on, &plain, &again);
    assert!(plain.iter().all(|g| g.iter().any(|x| *x != 0.0)));
    // The loss read before, so that the segment was computed once already.
    let read = gradients(on, |net, x| {
        let y = checkpoint(x, |x| Ok(layer(net, x)))?;
        y.read()?;
        Ok(y)
    });
    equal(on, &plain, &read);
}

fn a_checkpoint_inside_a_checkpoint(on: &Subject) {
    let plain = gradients(on, |net, x| Ok(layer(net, x).tanh()));
    let nested = gradients(on, |net, x| checkpoint(x, |x| Ok(checkpoint(x, |x| Ok(layer(net, x)))?.tanh())));
    equal(on, &plain, &nested);
}

fn hole_6_checkpoints_draw_their_own_numbers(on: &Subject) {
    let ctx = on.context();
    let masks = |checked: bool| {
        let ctx = on.context();
        ctx.pass(|p| {
            let x = p.input(host(&[64], &[1.0; 64]))?;
            let drop = |x: Tensor| Ok(x.dropout("d", 0.5));
            let run = |x| if checked { checkpoint(x, drop) } else { drop(x) };
            let (a, b) = (run(x)?, run(x)?);
            Ok([bits(&a.read()?), bits(&b.read()?), bits(&drop(x)?.read()?)])
        })
        .unwrap()
    };
    let [a, b, after] = masks(true);
    assert!(a != b && b != after && a != after, "two segments share a mask");
    assert_eq!([a, b, after], masks(false), "the stream goes on as without checkpoints");
    // The mask of the gradient is that of the value.
    ctx.pass(|p| {
        let x = p.input(host(&[64], &[1.0; 64]))?;
        let y = checkpoint(x * 1.0, |x| Ok(x.dropout("d", 0.5).square()))?;
        let g = grad(y.sum_all(), &[x])?[0];
        let (y, g) = (y.to_vec::<f32>()?, g.to_vec::<f32>()?);
        assert!(y.iter().zip(&g).all(|(y, g)| *g == 2.0 * *y));
        assert!(y.contains(&0.0) && y.contains(&4.0));
        Ok(())
    })
    .unwrap();
}

fn hole_7_a_checkpoint_counts_each_use_once(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[3.0, 4.0])).unwrap();
    ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))?;
        let y = checkpoint(x, |x| Ok(x * w.t() + w.t() * w.t() + w.t().exp() * 0.0))?;
        let got = (y + w.t()).sum_all().backward()?.get(&w).unwrap().to_vec::<f32>()?;
        assert_eq!(got, [1.0 + 6.0 + 1.0, 2.0 + 8.0 + 1.0]);
        Ok(())
    })
    .unwrap();
}

fn a_failed_segment_leaves_the_pass_well(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[3.0, 4.0])).unwrap();
    ctx.pass(|p| {
        let x = p.input(host(&[2], &[1.0, 2.0]))?;
        let failed = checkpoint(x, |x| (x * w.t()).try_reshape([5]));
        refused(failed, ErrorKind::Shape);
        let got = (x * w.t()).sum_all().backward()?.get(&w).unwrap().to_vec::<f32>()?;
        assert_eq!(got, [1.0, 2.0]);
        Ok(())
    })
    .unwrap();
}

fn no_grad_ends_with_its_scope(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[3.0])).unwrap();
    ctx.pass(|p| {
        let slope = |y: Tensor| y.sum_all().backward()?.get(&w).unwrap().item::<f32>();
        let frozen = p.no_grad(|| w.t() * w.t());
        refused(frozen.sum_all().backward(), ErrorKind::Gradient);
        assert_eq!(slope(w.t() * frozen)?, 9.0);
        // It nests, it ends on unwind, and it holds in its own pass alone.
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            p.no_grad(|| p.no_grad(|| panic!("inside")));
        }));
        panicked.unwrap_err();
        assert_eq!(slope(w.t() * w.t())?, 6.0);
        let inner = p.no_grad(|| ctx.pass(|_| slope(w.t() * w.t())))?;
        assert_eq!(inner, 6.0);
        let elsewhere = p.no_grad(|| {
            std::thread::scope(|s| s.spawn(|| ctx.pass(|_| slope(w.t() * w.t()))).join().unwrap())
        })?;
        assert_eq!(elsewhere, 6.0);
        Ok(())
    })
    .unwrap();
}

fn detach_stops_gradients(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[3.0])).unwrap();
    ctx.pass(|_| {
        let y = w.t() * w.t();
        let loss = y * y.detach();
        assert_eq!(loss.sum_all().backward()?.get(&w).unwrap().item::<f32>()?, 54.0);
        // The handle that was detached from is what it was.
        assert_eq!((y * y).sum_all().backward()?.get(&w).unwrap().item::<f32>()?, 108.0);
        Ok(())
    })
    .unwrap();
}
