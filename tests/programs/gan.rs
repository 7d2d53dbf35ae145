//! A generator against a discriminator: two optimizers in one pass.

use wgrad::Result;
use wgrad::prelude::*;

use super::{close, plain, values, weights_close};
use crate::Subject;

crate::suite![plain: ; device: gan];

const BATCH: usize = 16;
const GENERATOR: [usize; 3] = [6, 12, 4];
const JUDGE: [usize; 3] = [4, 10, 1];

/// The binary cross-entropy of logits with one target for all.
fn bce(logits: Tensor, target: f64) -> Tensor {
    (logits.softplus() - logits * target).mean(..)
}

fn bce_plain(logits: &[f64], target: f64) -> (f64, Vec<f64>) {
    let n = logits.len() as f64;
    let loss = logits.iter().map(|l| l.exp().ln_1p() - l * target).sum::<f64>() / n;
    (loss, logits.iter().map(|l| (plain::sigmoid(*l) - target) / n).collect())
}

fn gan(subject: &Subject) {
    run(subject).expect("the program runs");
}

fn run(subject: &Subject) -> Result<()> {
    let ctx = subject.context();
    let g = Mlp::with(&ctx, &GENERATOR, Rng::seed(1).at("g"), Activation::Tanh)?;
    let d = Mlp::with(&ctx, &JUDGE, Rng::seed(1).at("d"), Activation::Tanh)?;
    let mut opt_d = AdamW::new(d.params(), AdamWConfig { lr: 1e-2, ..Default::default() })?;
    let mut opt_g = Sgd::new(g.params(), SgdConfig { lr: 0.1, momentum: 0.9, ..Default::default() })?;

    let (mut wg, mut wd) = (values(&g.params())?, values(&d.params())?);
    let (net_g, net_d) = (
        plain::Mlp { dims: &GENERATOR, activation: plain::TANH },
        plain::Mlp { dims: &JUDGE, activation: plain::TANH },
    );
    let (mut adam, mut sgd) = (plain::AdamW::new(1e-8), plain::Sgd::default());

    for step in 0..6 {
        let real = plain::noise(step, BATCH * 4);
        let batch = HostTensor::new([BATCH, 4], &real)?;

        let (d_loss, g_loss, z) = ctx.pass(|p| {
            let (real, z) = (p.input(&batch)?, p.randn("z", [BATCH, 6]));
            let fake = g.forward(z);
            let d_loss = bce(d.forward(real), 1.0) + bce(d.forward(fake.detach()), 0.0);
            let info = opt_d.step(&d_loss.backward()?)?;
            assert_eq!((info.updated, info.skipped), (4, 0));
            let g_loss = bce(d.forward(fake), 1.0);
            let grads = g_loss.backward()?;
            assert_eq!(grads.len(), 8, "the judge's new versions have gradients too, which opt_g ignores");
            opt_g.step(&grads)?;
            Ok((d_loss.deferred::<f64>(), g_loss.deferred::<f64>(), z.deferred::<f64>()))
        })?;

        let z = z.read()?.to_vec::<f64>();
        let fake = net_g.forward(&wg, &z);
        let (on_real, on_fake) = (net_d.forward(&wd, &plain::wide(&real)), net_d.forward(&wd, &fake[2]));
        let ((a, da), (b, db)) = (bce_plain(&on_real[2], 1.0), bce_plain(&on_fake[2], 0.0));
        let (mut grads, _) = net_d.backward(&wd, &on_real, da);
        let (more, _) = net_d.backward(&wd, &on_fake, db);
        grads.iter_mut().zip(&more).for_each(|(sum, g)| plain::add_to(sum, g));
        adam.step(&mut wd, &grads, 1e-2, 0.01);
        let judged = net_d.forward(&wd, &fake[2]);
        let (c, dc) = bce_plain(&judged[2], 1.0);
        let (_, dfake) = net_d.backward(&wd, &judged, dc);
        let (grads, _) = net_g.backward(&wg, &fake, dfake);
        sgd.step(&mut wg, &grads, 0.1, 0.9);

        close(subject, "losses", &[d_loss.get()?, g_loss.get()?], &[a + b, c], 1e-5);
    }
    weights_close(subject, &d.params(), &wd, 2e-4);
    weights_close(subject, &g.params(), &wg, 1e-4);
    Ok(())
}
