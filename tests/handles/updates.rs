//! Gradients and updates: each leaf once, each parameter by identity, nothing uploaded twice.

use wgrad::nn::{AdamW, AdamWConfig, Optimizer, ParamSet, Sgd, SgdConfig};
use wgrad::{Context, ContextOptions, GradSum, Grads, Kept, Param, Tensor, vjp};

use super::tap::{BATCH, Call, Net, Tap, bits, fill, host};
use crate::Subject;

crate::suite![
    plain: ;
    device: bug_b1_a_leaf_gets_its_gradient_once, bug_b4_state_in_place_does_not_drift,
        bug_b6_every_weight_moves, bug_b7_rectangular_products, bug_b11_weights_are_uploaded_once,
        bug_b12_a_weight_stays_on_the_device, hole_9_writing_a_weight_keeps_it_on_the_device,
        bug_b25_updates_go_by_identity, bug_b26_clipping_goes_by_identity,
        bug_b40_gradients_have_one_source, bug_b51_there_is_one_way_to_write, hole_5_two_optimizers_in_one_pass,
        hole_8_gradients_of_parameters_only, grad_sum_over_passes,
];

fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{got:?} is not {want:?}");
    }
}

fn values(x: &wgrad::HostTensor) -> Vec<f64> {
    x.to_vec()
}

fn bug_b1_a_leaf_gets_its_gradient_once(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[0.5, -1.0])).unwrap();
    ctx.pass(|_| {
        // Five uses: w^2 + 3w + e^w + w + tanh(w).
        let w1 = w.t();
        let loss = (w1 * w1 + w1 * 3.0 + w1.exp() + w.t() + w.t().tanh()).sum_all();
        let got = loss.backward()?.get(&w).unwrap().to_vec::<f64>()?;
        let want = [0.5f64, -1.0].map(|x| 2.0 * x + 4.0 + x.exp() + 1.0 - x.tanh().powi(2));
        close(&got, &want, 1e-5);
        // Asking again gives the same, not twice as much.
        let again = loss.backward()?.get(&w).unwrap().to_vec::<f64>()?;
        assert_eq!(got, again);
        Ok(())
    })
    .unwrap();
}

fn bug_b4_state_in_place_does_not_drift(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", fill(&[5], 0.2)).unwrap();
    let m = Kept::zeros(&ctx, [5]).unwrap();
    let (mut hw, mut hm) = (w.read().unwrap().to_vec::<f64>(), vec![0.0; 5]);
    for _ in 0..10 {
        ctx.pass(|_| {
            let g = (w.t().square() * w.t()).sum_all().backward()?.get(&w).unwrap();
            // The state is read twice and written; the weight reads the state that was just made.
            m.set(m.t() * 0.9 + g * 0.1 + m.t().square() * 0.01);
            w.set(w.t() - m.t() * 0.5);
            Ok(())
        })
        .unwrap();
        for (w, m) in hw.iter_mut().zip(&mut hm) {
            let g = 3.0 * *w * *w;
            *m = *m * 0.9 + g * 0.1 + *m * *m * 0.01;
            *w -= *m * 0.5;
        }
    }
    close(&values(&w.read().unwrap()), &hw, 2e-5);
    close(&values(&m.read().unwrap()), &hm, 2e-5);
}

fn bug_b6_every_weight_moves(on: &Subject) {
    let ctx = on.context();
    let net = Net::new(&ctx);
    let mut opt = AdamW::new(set(net.params()), AdamWConfig::default()).unwrap();
    for _ in 0..2 {
        let before = net.bits();
        ctx.pass(|p| {
            // Weights used through views only.
            let x = p.input(fill(&[BATCH, 6], 0.3))?;
            let h = (x.matmul(net.w1.t().t().t()) + net.b1.t().reshape([1, 5])).tanh();
            let y = h.matmul(net.w2.t().reshape([20]).reshape([5, 4])) + net.b2.t().slice(0, 0..4);
            let info = opt.step(&y.square().sum_all().backward()?)?;
            assert_eq!((info.updated, info.skipped), (4, 0));
            Ok(())
        })
        .unwrap();
        for ((a, b), p) in before.iter().zip(net.bits()).zip(net.params()) {
            assert!(a.iter().zip(&b).all(|(a, b)| a != b), "{} did not move", p.name());
        }
    }
}

fn set<'a>(params: impl IntoIterator<Item = &'a Param>) -> ParamSet {
    params.into_iter().cloned().collect()
}

fn bug_b7_rectangular_products(on: &Subject) {
    let ctx = on.context();
    let (a, b, c) = (fill(&[5, 4], 0.1), fill(&[4, 3], 0.2), fill(&[5, 3], 0.3));
    let grads = ctx
        .pass(|p| {
            let (x, w, g) = (p.input(&a)?, p.input(&b)?, p.input(&c)?);
            let grads = vjp(&[x.matmul(w)], &[g], &[x, w])?;
            Ok([grads[0].read()?, grads[1].read()?])
        })
        .unwrap();
    let [a, b, c] = [a, b, c].map(|x| x.to_vec::<f64>());
    let da: Vec<f64> = (0..20).map(|i| (0..3).map(|k| c[i / 4 * 3 + k] * b[i % 4 * 3 + k]).sum()).collect();
    let db: Vec<f64> = (0..12).map(|i| (0..5).map(|k| a[k * 4 + i / 3] * c[k * 3 + i % 3]).sum()).collect();
    close(&values(&grads[0]), &da, 1e-5);
    close(&values(&grads[1]), &db, 1e-5);
}

fn train_step(net: &Net, opt: &mut AdamW, ctx: &Context) {
    ctx.pass(|p| opt.step(&net.loss(p, 0.4)?.backward()?)).unwrap();
}

/// Bytes that one batch of `Net` takes.
fn batch_bytes(ctx: &Context) -> u64 {
    let size = if ctx.caps().wide { 8 } else { 4 };
    (BATCH * (6 + 4) * size) as u64
}

/// Uploads of three steps stay within the batch and 1 KiB of numbers each, and nothing comes down.
fn steps_upload_the_batch_only(tap: &Tap, ctx: &Context, mut step: impl FnMut()) {
    step();
    let (before, writes) = (ctx.stats(), tap.count(Call::Write));
    (0..3).for_each(|_| step());
    let after = ctx.stats();
    let bytes = after.upload_bytes - before.upload_bytes;
    assert!(bytes <= 3 * (batch_bytes(ctx) + 1024), "{bytes} bytes went up in 3 steps");
    assert_eq!(after.downloads, before.downloads);
    assert_eq!(tap.count(Call::Write), writes);
}

fn bug_b11_weights_are_uploaded_once(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    let net = Net::new(&ctx);
    let mut opt = AdamW::new(set(net.params()), AdamWConfig::default()).unwrap();
    steps_upload_the_batch_only(&tap, &ctx, || train_step(&net, &mut opt, &ctx));
}

fn bug_b12_a_weight_stays_on_the_device(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    let net = Net::new(&ctx);
    let mut opt = AdamW::new(set(net.params()), AdamWConfig::default()).unwrap();
    train_step(&net, &mut opt, &ctx);
    train_step(&net, &mut opt, &ctx);
    ctx.sync().unwrap();
    let live = ctx.stats().live_bytes;
    for _ in 0..10 {
        train_step(&net, &mut opt, &ctx);
    }
    ctx.sync().unwrap();
    assert_eq!(ctx.stats().live_bytes, live);
    steps_upload_the_batch_only(&tap, &ctx, || train_step(&net, &mut opt, &ctx));
}

fn hole_9_writing_a_weight_keeps_it_on_the_device(on: &Subject) {
    let tap = Tap::new(on.fresh());
    let ctx = tap.context();
    let net = Net::new(&ctx);
    let mut opt = AdamW::new(set(net.params()), AdamWConfig::default()).unwrap();
    train_step(&net, &mut opt, &ctx);
    // Weights from outside, as a checkpoint or a gradient check gives them.
    ctx.pass(|p| {
        for param in net.params() {
            param.set(p.input(fill(param.shape().dims(), 0.8))?);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(bits(&net.w1.read().unwrap()), bits(&fill(&[6, 5], 0.8)));
    steps_upload_the_batch_only(&tap, &ctx, || train_step(&net, &mut opt, &ctx));
}

fn bug_b25_updates_go_by_identity(on: &Subject) {
    let run = |names: [&str; 2], twice: bool| {
        let ctx = on.context();
        let a = Param::new(&ctx, names[0], fill(&[3], 0.1)).unwrap();
        let b = Param::new(&ctx, names[1], fill(&[3], 0.2)).unwrap();
        let list = if twice { vec![&a, &b, &a] } else { vec![&a, &b] };
        let mut opt = Sgd::new(set(list), SgdConfig { lr: 0.1, ..SgdConfig::default() }).unwrap();
        ctx.pass(|_| opt.step(&(a.t().square() * b.t()).sum_all().backward()?)).unwrap();
        [bits(&a.read().unwrap()), bits(&b.read().unwrap())]
    };
    let want = run(["a", "b"], false);
    assert_eq!(run(["", ""], false), want);
    assert_eq!(run(["same", "same"], false), want);
    assert_eq!(run(["a", "b"], true), want);
}

fn bug_b26_clipping_goes_by_identity(on: &Subject) {
    for names in [["a", "b"], ["", ""]] {
        let ctx = on.context();
        let a = Param::new(&ctx, names[0], host(&[1], &[3.0])).unwrap();
        let b = Param::new(&ctx, names[1], host(&[1], &[4.0])).unwrap();
        ctx.pass(|_| {
            // The gradient is (6, 8); its norm is 10.
            let grads = (a.t().square() + b.t().square()).sum_all().backward()?;
            let (clipped, norm) = grads.clip_global_norm(5.0)?;
            close(&[norm.item::<f64>()?], &[10.0], 1e-6);
            close(&clipped.get(&a).unwrap().to_vec::<f64>()?, &[3.0], 1e-6);
            close(&clipped.get(&b).unwrap().to_vec::<f64>()?, &[4.0], 1e-6);
            let (same, _) = grads.clip_global_norm(50.0)?;
            close(&same.get(&b).unwrap().to_vec::<f64>()?, &[8.0], 1e-6);
            Ok(())
        })
        .unwrap();
    }
}

/// The mean loss's gradient over `parts` micro-batches of a batch of 8, made by `add`.
fn micro(net: &Net, p: &wgrad::Pass, part: usize, parts: usize) -> wgrad::Result<Grads> {
    let (x, y) = (fill(&[8, 6], 0.3), fill(&[8, 4], 0.6));
    let rows = 8 / parts;
    let x = p.input(x)?.narrow(0, part * rows, rows);
    let y = p.input(y)?.narrow(0, part * rows, rows);
    (net.forward(x)[2].mse(y) / parts as f32).backward()
}

fn whole_batch(net: &Net, ctx: &Context) -> Vec<Vec<f64>> {
    ctx.pass(|p| {
        let grads = micro(net, p, 0, 1)?;
        net.params().iter().map(|w| grads.get(w).unwrap().to_vec::<f64>()).collect()
    })
    .unwrap()
}

fn bug_b40_gradients_have_one_source(on: &Subject) {
    let ctx = on.context();
    let net = Net::new(&ctx);
    let want = whole_batch(&net, &ctx);
    ctx.pass(|p| {
        let mut sum = micro(&net, p, 0, 4)?;
        for part in 1..4 {
            sum = sum.add(&micro(&net, p, part, 4)?)?;
        }
        for (w, want) in net.params().iter().zip(&want) {
            close(&sum.get(w).unwrap().to_vec::<f64>()?, want, 1e-5);
        }
        Ok(())
    })
    .unwrap();
}

fn grad_sum_over_passes(on: &Subject) {
    let ctx = on.context();
    let net = Net::new(&ctx);
    let want = whole_batch(&net, &ctx);
    let sum = GradSum::new(&ctx, net.params()).unwrap();
    let mut opt = Sgd::new(set(net.params()), SgdConfig { lr: 0.5, ..SgdConfig::default() }).unwrap();
    for round in 0..2 {
        for part in 0..4 {
            ctx.pass(|p| sum.add(&micro(&net, p, part, 4)?)).unwrap();
            // A pass that fails adds nothing.
            let failed: wgrad::Result<()> = ctx.pass(|p| {
                sum.add(&micro(&net, p, part, 4)?)?;
                wgrad::bail!(User, "test", "no")
            });
            failed.unwrap_err();
        }
        let before: Vec<_> = net.params().map(|w| w.read().unwrap().to_vec::<f64>()).into();
        ctx.pass(|_| {
            let grads = sum.take()?;
            if round == 0 {
                for (w, want) in net.params().iter().zip(&want) {
                    close(&grads.get(w).unwrap().to_vec::<f64>()?, want, 1e-5);
                }
            }
            opt.step(&grads)
        })
        .unwrap();
        if round == 0 {
            for ((w, want), before) in net.params().iter().zip(&want).zip(&before) {
                let moved: Vec<f64> = before.iter().zip(want).map(|(w, g)| w - 0.5 * g).collect();
                close(&values(&w.read().unwrap()), &moved, 1e-5);
            }
        }
    }
    // Taken sums start at zero again.
    ctx.pass(|_| {
        for (_, g) in sum.take()?.iter() {
            assert!(g.to_vec::<f64>()?.iter().all(|x| *x == 0.0));
        }
        Ok(())
    })
    .unwrap();
}

fn bug_b51_there_is_one_way_to_write(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", fill(&[3], 0.4)).unwrap();
    let start = w.read().unwrap().to_vec::<f64>();
    let f = |w: Tensor| (w.exp() * w).sum_all();
    let analytic = ctx.pass(|_| f(w.t()).backward()?.get(&w).unwrap().to_vec::<f64>()).unwrap();
    let eps = 1.0 / 64.0;
    for i in 0..3 {
        let at = |by: f64| {
            let mut moved = start.clone();
            moved[i] += by;
            let moved: Vec<f32> = moved.iter().map(|x| *x as f32).collect();
            ctx.pass(|p| w.try_set(p.input(host(&[3], &moved))?)).unwrap();
            // What was written is what the next forward sees.
            ctx.pass(|_| f(w.t()).item::<f64>()).unwrap()
        };
        let slope = (at(eps) - at(-eps)) / (2.0 * eps);
        assert!((slope - analytic[i]).abs() < 2e-3, "{slope} is not {}", analytic[i]);
        at(0.0);
    }
}

fn hole_5_two_optimizers_in_one_pass(on: &Subject) {
    let run = |together: bool| {
        let ctx = on.context();
        let [a, b] = [Net::new(&ctx), Net::new(&ctx)];
        let mut opt_a = AdamW::new(set(a.params()), AdamWConfig::default()).unwrap();
        let mut opt_b =
            Sgd::new(set(b.params()), SgdConfig { momentum: 0.9, ..SgdConfig::default() }).unwrap();
        let losses = |p: &wgrad::Pass| -> wgrad::Result<[Tensor; 2]> {
            let x = p.input(fill(&[BATCH, 6], 0.2))?;
            let (ya, yb) = (a.forward(x)[2], b.forward(x)[2]);
            Ok([ya.mse(yb.detach()), (ya.detach() - yb).square().sum_all()])
        };
        for _ in 0..3 {
            if together {
                ctx.pass(|p| {
                    let [la, lb] = losses(p)?;
                    let (ga, gb) = (la.backward()?, lb.backward()?);
                    opt_a.step(&ga)?;
                    opt_b.step(&gb)
                })
                .unwrap();
            } else {
                // The second optimizer's gradients from the weights before the first one's step.
                let pass = ctx.begin().unwrap();
                let [la, lb] = losses(&pass).unwrap();
                opt_a.step(&la.backward().unwrap()).unwrap();
                opt_b.step(&lb.backward().unwrap()).unwrap();
                pass.end().unwrap();
            }
        }
        assert_eq!((opt_a.steps(), opt_b.steps()), (3, 3));
        (a.bits(), b.bits())
    };
    assert_eq!(run(true), run(false));
}

fn hole_8_gradients_of_parameters_only(on: &Subject) {
    let ids = |fuse| {
        let ctx = on.context_with(ContextOptions::default().fuse(fuse));
        let net = Net::new(&ctx);
        let kept = Kept::new(&ctx, fill(&[4], 0.1)).unwrap();
        ctx.pass(|p| {
            let loss = net.loss(p, 0.1)? + kept.t().sum_all();
            let grads = loss.backward()?;
            assert_eq!(grads.len(), 4);
            assert!(net.params().iter().all(|w| grads.get(w).is_some_and(|g| g.shape() == w.shape())));
            Ok(())
        })
        .unwrap();
    };
    ids(true);
    ids(false);
}
