//! Versions of owned values: what a value was made from is what it stays made from.

use wgrad::{ErrorKind, Kept, Param, grad};

use super::tap::{Net, bits, fill, host, refused};
use crate::Subject;

crate::suite![
    plain: ;
    device: weight_updated_before_an_old_value_is_read, hole_4_backward_uses_what_forward_used,
        same_weight_used_twice, two_versions_in_one_loss_are_refused, bug_b3_an_update_waits_for_its_readers,
        the_old_version_outlives_an_update_in_place, a_gradient_stops_at_an_assignment,
        functional_updates_stay_differentiable, bug_b5_a_copy_is_exact, passes_that_update_the_same_value_clash,
        owned_values_that_share_a_buffer,
];

fn weight_updated_before_an_old_value_is_read(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[1.0, 2.0])).unwrap();
    ctx.pass(|_| {
        let h = w.t() * 2.0;
        let unread = (h + 1.0).exp();
        w.set(w.t() * 100.0);
        let new = w.t() * 1.0;
        assert_eq!(new.to_vec::<f32>()?, [100.0, 200.0]);
        assert_eq!((h * 10.0).to_vec::<f32>()?, [20.0, 40.0]);
        w.set(w.t() + 1.0);
        assert_eq!(h.to_vec::<f32>()?, [2.0, 4.0]);
        assert_eq!(unread.log().round().to_vec::<f32>()?, [3.0, 5.0]);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.t().to_vec::<f32>().unwrap(), [101.0, 201.0]);
}

fn hole_4_backward_uses_what_forward_used(on: &Subject) {
    // q, k and v of an attention are weights, written between forward and backward.
    let ctx = on.context();
    let make = |name: &str, turn| Param::new(&ctx, name, fill(&[3, 5], turn)).unwrap();
    let [q, k, v] = [make("q", 0.1), make("k", 0.2), make("v", 0.3)];
    let loss = || {
        let scores = (q.t().matmul(k.t().t()) * 0.5).softmax(-1);
        (scores.matmul(v.t()) * v.t()).square().sum_all()
    };
    let params = [&q, &k, &v];
    let wanted = ctx
        .pass(|_| {
            let grads = loss().backward()?;
            params.iter().map(|p| grads.get(p).unwrap().to_vec::<f64>()).collect::<wgrad::Result<Vec<_>>>()
        })
        .unwrap();
    for read_first in [false, true] {
        let pass = ctx.begin().unwrap();
        let loss = loss();
        if read_first {
            loss.item::<f32>().unwrap();
        }
        params.iter().for_each(|p| p.set(p.t() * 3.0 + 1.0));
        if read_first {
            q.t().read().unwrap();
        }
        let grads = loss.backward().unwrap();
        for (p, want) in params.iter().zip(&wanted) {
            let got = grads.get(p).unwrap().to_vec::<f64>().unwrap();
            let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-5, "{}: {far}", p.name());
        }
        drop(pass);
    }
}

fn same_weight_used_twice(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[2], &[3.0, 4.0])).unwrap();
    ctx.pass(|_| {
        let (a, b) = (w.t(), w.t());
        // w * w: 2w. The same value on both sides of one operation, and in two operations.
        let grads = (a * b).sum_all().backward()?;
        assert_eq!(grads.len(), 1);
        assert_eq!(grads.get(&w).unwrap().to_vec::<f32>()?, [6.0, 8.0]);
        let x = w.t();
        assert_eq!((x + x).sum_all().backward()?.get(&w).unwrap().to_vec::<f32>()?, [2.0, 2.0]);
        let clone = w.clone();
        let loss = (w.t() * 2.0 + clone.t() * clone.t()).sum_all();
        assert_eq!(loss.backward()?.get(&w).unwrap().to_vec::<f32>()?, [8.0, 10.0]);
        Ok(())
    })
    .unwrap();
}

fn two_versions_in_one_loss_are_refused(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "fc.w", host(&[2], &[3.0, 4.0])).unwrap();
    ctx.pass(|_| {
        let old = w.t() * 2.0;
        w.set(w.t() * 5.0);
        let new = w.t() * 3.0;
        let text = refused((old + new).sum_all().backward(), ErrorKind::Gradient);
        assert!(text.contains("fc.w") && text.contains("version 1") && text.contains("version 2"), "{text}");
        assert!(text.matches("versions.rs").count() >= 3, "both lines and the caller's: {text}");
        // One of them by `grad` is well defined.
        let by_new = grad((old + new).sum_all(), &[w.t()])?;
        assert_eq!(by_new[0].to_vec::<f32>()?, [3.0, 3.0]);
        Ok(())
    })
    .unwrap();
}

fn bug_b3_an_update_waits_for_its_readers(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", fill(&[4], 0.3)).unwrap();
    let kept = Kept::new(&ctx, host(&[4], &[0.0; 4])).unwrap();
    let mut losses = Vec::new();
    for _ in 0..6 {
        let before = w.read().unwrap().to_vec::<f64>();
        let loss = ctx
            .pass(|_| {
                let before = w.t() + 0.0;
                let loss = w.t().square().sum_all();
                w.set(w.t() - loss.backward()?.get(&w).unwrap() * 0.1);
                // A reader recorded before the update, wanted after it, in the same submission.
                kept.set(before);
                Ok(loss.deferred::<f64>())
            })
            .unwrap();
        losses.push(loss.get().unwrap());
        assert_eq!(kept.read().unwrap().to_vec::<f64>(), before);
    }
    assert!(losses.windows(2).all(|l| l[1] < 0.9 * l[0]), "{losses:?}");
}

fn the_old_version_outlives_an_update_in_place(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[3], &[1.0, 2.0, 3.0])).unwrap();
    let last = Kept::new(&ctx, host(&[3], &[0.0; 3])).unwrap();
    for i in 0..4 {
        let want: Vec<f32> = w.read().unwrap().to_vec();
        let old = ctx
            .pass(|_| {
                // The version itself, not a value made from it, goes to another owner and to a reader.
                let old = w.t();
                last.set(old);
                let old = old.deferred::<f32>();
                w.set(w.t() * 2.0 + 1.0);
                Ok(old)
            })
            .unwrap();
        assert_eq!(last.read().unwrap().to_vec::<f32>(), want, "round {i}");
        assert_eq!(old.read().unwrap().to_vec::<f32>(), want, "round {i}");
    }
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [31.0, 47.0, 63.0]);
}

fn a_gradient_stops_at_an_assignment(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[3.0])).unwrap();
    let h = Kept::new(&ctx, host(&[1], &[1.0])).unwrap();
    ctx.pass(|_| {
        let first = h.t() * w.t();
        h.set(first);
        // d/dw of h' * w with h' = 3 taken as given.
        let grads = (h.t() * w.t()).sum_all().backward()?;
        assert_eq!(grads.get(&w).unwrap().to_vec::<f32>()?, [3.0]);
        // Through the value itself it flows.
        assert_eq!((first * w.t()).sum_all().backward()?.get(&w).unwrap().to_vec::<f32>()?, [6.0]);
        Ok(())
    })
    .unwrap();
    assert_eq!(h.read().unwrap().to_vec::<f32>(), [3.0]);
}

fn functional_updates_stay_differentiable(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "w", host(&[1], &[2.0])).unwrap();
    ctx.pass(|_| {
        // One step of descent on w^3, then w'^2: d/dw (w - 0.1 * 3w^2)^2 = 2 (w - 0.3 w^2) (1 - 0.6 w).
        let g = grad((w.t() * w.t() * w.t()).sum_all(), &[w.t()])?[0];
        let moved = w.t() - g * 0.1;
        let meta = (moved * moved).sum_all().backward()?.get(&w).unwrap().item::<f64>()?;
        assert!((meta - 2.0 * (2.0 - 1.2) * (1.0 - 1.2)).abs() < 1e-5, "{meta}");
        Ok(())
    })
    .unwrap();
}

fn bug_b5_a_copy_is_exact(on: &Subject) {
    let ctx = on.context();
    let floats = [1.0f32, -0.0, 1.000_000_1, 16_777_217.0, 3.402_823_5e38, 1.175_494_4e-38, 1.0 / 3.0];
    let ints = [i32::MIN, i32::MAX, 16_777_217, -1];
    let words = [u32::MAX, 0x8000_0001, 16_777_217];
    let (f, i, u) = ctx
        .pass(|p| {
            let f = p.input(host(&[7], &floats))?.keep()?;
            let i = p.input(wgrad::HostTensor::new([4], &ints)?)?.keep()?;
            let u = p.input(wgrad::HostTensor::new([3], &words)?)?.keep()?;
            Ok((f, i, u))
        })
        .unwrap();
    let copy = f.copy_to(&crate::devices::oracle()).unwrap();
    let want: Vec<u32> = floats.iter().map(|x| x.to_bits()).collect();
    for kept in [&f, &copy] {
        let got: Vec<u32> = kept.read().unwrap().to_vec::<f32>().iter().map(|x| x.to_bits()).collect();
        assert_eq!(got, want);
    }
    assert_eq!(i.read().unwrap().to_vec::<i32>(), ints);
    assert_eq!(u.read().unwrap().to_vec::<u32>(), words);
}

fn passes_that_update_the_same_value_clash(on: &Subject) {
    let ctx = on.context();
    let w = Param::new(&ctx, "fc.w", host(&[1], &[1.0])).unwrap();
    let pass = ctx.begin().unwrap();
    w.set(w.t() + 1.0);
    std::thread::scope(|s| {
        s.spawn(|| ctx.pass(|_| w.try_set(w.t() * 10.0)).unwrap()).join().unwrap();
    });
    let text = refused(pass.end(), ErrorKind::Stale);
    assert!(text.contains("fc.w"), "{text}");
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [10.0]);
    ctx.pass(|_| w.try_set(w.t() + 1.0)).unwrap();
    assert_eq!(w.read().unwrap().to_vec::<f32>(), [11.0]);
}

fn owned_values_that_share_a_buffer(on: &Subject) {
    let ctx = on.context();
    let net = Net::new(&ctx);
    let (a, b) = (Kept::zeros(&ctx, [4]).unwrap(), Kept::zeros(&ctx, [4]).unwrap());
    ctx.pass(|_| {
        let x = net.b2.t() * 2.0;
        a.set(x);
        b.set(x);
        Ok(())
    })
    .unwrap();
    assert_eq!(bits(&a.read().unwrap()), bits(&b.read().unwrap()));
    let kept = bits(&b.read().unwrap());
    // One of them moves on, in place if it may: the other stays.
    for _ in 0..2 {
        ctx.pass(|_| a.try_set(a.t() + 1.0)).unwrap();
    }
    assert_eq!(bits(&b.read().unwrap()), kept);
    ctx.pass(|_| b.try_set(a.t())).unwrap();
    ctx.pass(|_| a.try_set(a.t() * 0.0)).unwrap();
    assert_ne!(bits(&b.read().unwrap()), bits(&a.read().unwrap()));
}
