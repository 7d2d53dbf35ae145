use wgrad::prelude::*;
use wgrad::vjp;

use crate::threads::{fill, ranges};
use crate::{Input, Kind, Model, Row, Stamp, Sweep, by_hand, copies, floats, ids, indices};

/// As `peers/torch_peer.py` makes them.
#[test]
fn values_are_those_of_every_peer() {
    assert_eq!(floats(3, 0, 0.5), [0.2890715, -0.07735783, 0.41676843]);
    assert_eq!(floats(2, 1003, 0.25), [-0.12573966, -0.032507867]);
    assert_eq!(ids(4, 2, 1000), [403, 533, 596, 52]);
    let many = floats(10_000, 5, 2.0);
    assert!(many.iter().all(|x| (-2.0..2.0).contains(x)));
    let mean = many.iter().sum::<f32>() / 10_000.0;
    assert!(mean.abs() < 0.05, "{mean}");
}

#[test]
fn samples_hold_both_ends() {
    assert_eq!(indices(3), [0, 1, 2]);
    let many = indices(1_000_003);
    assert_eq!((many.len(), many[0], many[256]), (257, 0, 1_000_002));
}

/// A device that idled is slow at first; what it takes later counts, part by part.
#[test]
fn a_slow_start_does_not_count() {
    let begun = std::time::Instant::now();
    let mut turns = 0;
    let found = crate::least(|| {
        turns += 1;
        std::thread::sleep(std::time::Duration::from_millis(5));
        let slow = if begun.elapsed().as_millis() < 200 { 4.0 } else { 1.0 };
        Ok::<_, ()>([slow, 2.0 * slow + f64::from(turns % 3)])
    });
    assert_eq!(found, Ok([1.0, 2.0]));
    assert!(turns > 5);
    assert_eq!(crate::least(|| Err::<[f64; 1], _>("lost")), Err("lost"));
}

#[test]
fn dates_know_leap_days() {
    for (seconds, text) in
        [(0, "1970-01-01 00:00"), (951_782_400, "2000-02-29 00:00"), (1_796_000_345, "2026-11-30 00:59")]
    {
        assert_eq!(crate::record::date(seconds), text);
    }
    assert!(Stamp::now("x", "y", "z", String::new()).date.starts_with("20"));
}

#[test]
fn slopes_are_found() {
    let sizes = [1.0, 2.0, 4.0, 8.0];
    let line = Sweep::of("line", &sizes, &sizes.map(|n| 3.0 * n + 5.0));
    assert!((line.per_unit_ms - 3.0).abs() < 1e-9 && (line.at_zero_ms - 5.0).abs() < 1e-9, "{line}");
    let square = Sweep::of("square", &sizes, &sizes.map(|n| 7.0 * n * n));
    assert!((square.exponent - 2.0).abs() < 1e-9 && (square.last - 2.0).abs() < 1e-9, "{square}");
}

#[test]
fn models_have_the_known_sizes() {
    let count =
        |model: &Model| model.params().iter().map(|p| p.dims.iter().product::<usize>()).sum::<usize>();
    let gpt = Model::Gpt {
        layers: 12,
        width: 768,
        heads: 12,
        tokens: 1024,
        vocabulary: 32000,
        batch: 8,
        mixed: false,
    };
    assert_eq!(count(&gpt), 134_994_432);
    assert_eq!(count(&Model::ResNet18 { batch: 1 }), 11_173_962);
    assert_eq!(count(&Model::Mlp { sizes: vec![784, 512, 512, 10], batch: 1 }), 669_706);
    // 0.56 GFLOP an image forward.
    let flops = Model::ResNet18 { batch: 1 }.flops() / 6.0;
    assert!((flops - 5.55e8).abs() < 0.05e8, "{flops}");
}

#[test]
fn small_operands_come_in_copies() {
    let row = |n: usize| Row {
        name: String::new(),
        op: String::new(),
        inputs: vec![Input { dims: vec![n], kind: Kind::F32, bound: 0 }],
        tolerance: 0.0,
        model: None,
    };
    assert_eq!([1, 1 << 20, 6 << 20, 1 << 28].map(|n| copies(&row(n))), [16, 16, 2, 1]);
}

/// An operation as devices compute it.
type Run = fn(&[Tensor]) -> wgrad::Result<Vec<Tensor>>;

fn adamw(x: &[Tensor]) -> wgrad::Result<Vec<Tensor>> {
    let [w, g, m, v] = [x[0], x[1], x[2], x[3]];
    let (m, v) = (m * 0.9 + g * (1.0 - 0.9), v * 0.999 + g * g * (1.0 - 0.999));
    let step = m / (1.0 - 0.9) / ((v / (1.0 - 0.999)).sqrt() + 1e-8);
    Ok(vec![w - (step + w * 0.01) * 1e-3, m, v])
}

fn cross_entropy(x: &[Tensor]) -> wgrad::Result<Vec<Tensor>> {
    let loss = x[0].cross_entropy(x[1]);
    Ok(vec![loss, vjp(&[loss], &[loss.ones_like()], &x[..1])?[0]])
}

#[test]
fn loops_by_hand_agree_with_the_oracle() {
    const M: usize = 5;
    const N: usize = 7;
    let table: [(&str, &[&[usize]], usize, Run); 16] = [
        ("scale", &[&[M, N]], 0, |x| Ok(vec![x[0] * 2.0 + 1.0])),
        ("transpose", &[&[M, N]], 0, |x| Ok(vec![x[0].t() * 2.0])),
        ("sum", &[&[N]], 0, |x| Ok(vec![x[0].sum(..)])),
        ("sum_rows", &[&[M, N]], 0, |x| Ok(vec![x[0].sum(0)])),
        ("sum_columns", &[&[M, N]], 0, |x| Ok(vec![x[0].sum(1)])),
        ("cumsum", &[&[N]], 0, |x| Ok(vec![x[0].cumsum(0)])),
        ("sort", &[&[N]], 0, |x| Ok(vec![x[0].sort(0, false).0])),
        ("softmax", &[&[M, N]], 0, |x| Ok(vec![x[0].softmax(1)])),
        ("softmax_backward", &[&[M, N], &[M, N]], 0, |x| vjp(&[x[0].softmax(1)], &x[1..], &x[..1])),
        ("layer_norm", &[&[M, N], &[N], &[N]], 0, |x| Ok(vec![x[0].layer_norm(x[1], x[2], 1e-5)])),
        ("layer_norm_backward", &[&[M, N], &[N], &[N], &[M, N]], 0, |x| {
            vjp(&[x[0].layer_norm(x[1], x[2], 1e-5)], &x[3..], &x[..3])
        }),
        ("cross_entropy", &[&[M, N], &[M]], N, cross_entropy),
        ("embedding", &[&[M, N], &[9]], M, |x| Ok(vec![x[0].index_select(0, x[1])])),
        ("embedding_backward", &[&[M, N], &[9], &[9, N]], M, |x| {
            vjp(&[x[0].index_select(0, x[1])], &x[2..], &x[..1])
        }),
        ("index_add", &[&[N], &[9], &[9]], N, |x| Ok(vec![x[0].index_add(0, x[1], x[2])])),
        ("adamw", &[&[N], &[N], &[N], &[N]], 0, adamw),
    ];
    let ctx = Context::new(&Device::oracle()).unwrap();
    for (op, dims, bound, run) in table {
        let input = |(i, dims): (usize, &&[usize])| Input {
            dims: dims.to_vec(),
            kind: if bound > 0 && i == 1 { Kind::I32 } else { Kind::F32 },
            bound,
        };
        let inputs: Vec<Input> = dims.iter().enumerate().map(input).collect();
        let host = |(i, input): (usize, &Input)| match input.kind {
            Kind::I32 => HostTensor::new(&*input.dims, &input.ids(i)).unwrap(),
            _ => HostTensor::new(&*input.dims, &input.floats(i).iter().map(|x| x.abs()).collect::<Vec<_>>())
                .unwrap(),
        };
        let host: Vec<HostTensor> = inputs.iter().enumerate().map(host).collect();
        let got = ctx.pass(|p| {
            let x = host.iter().map(|x| p.input(x)).collect::<wgrad::Result<Vec<_>>>()?;
            run(&x)?.iter().map(Tensor::read).collect::<wgrad::Result<Vec<_>>>()
        });
        let elems: Vec<Vec<f32>> = host.iter().map(HostTensor::to_vec).collect();
        let (got, want) = (got.unwrap(), by_hand(op, &inputs, &elems).unwrap());
        assert_eq!(got.len(), want.len(), "{op}");
        for (got, want) in got.iter().zip(&want) {
            let got = got.to_vec::<f64>();
            assert_eq!(got.len(), want.elems, "{op}");
            let off = want.off(|from, out| out.copy_from_slice(&got[from..][..out.len()]));
            assert!(off < 2e-7, "{op}: {off:e}");
            let off = want.off(|from, out| out.iter_mut().zip(&got[from..]).for_each(|(y, x)| *y = x + 1e-3));
            assert!(off > 1e-6, "{op}: a difference is not seen");
            assert!(want.off(|_, out| out.fill(f64::NAN)).is_infinite(), "{op}: NaN is not seen");
        }
    }
}

#[test]
fn work_is_shared_without_gaps() {
    for (n, unit) in [(0, 1), (1, 1), (131_073, 1), (300 * 1000, 1000), (7 << 16, 7)] {
        let mut all = vec![0; n];
        fill(&mut all, unit, |from, part| {
            assert!(from % unit == 0 && part.len() % unit == 0);
            part.iter_mut().zip(from..).for_each(|(x, i)| *x += i + 1);
        });
        assert!(all.iter().enumerate().all(|(i, x)| *x == i + 1));
        let parts = ranges(n, unit, |part| part.collect::<Vec<_>>());
        assert_eq!(parts.concat(), (0..n).collect::<Vec<_>>());
    }
}
