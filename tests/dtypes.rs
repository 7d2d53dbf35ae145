//! Element types: storage, rounding, promotion, and integers of 64 bits, on every device.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, ContextOptions, DType, Element, HostTensor, Pass, Tensor, f16, grad};

use crate::Subject;

crate::suite![
    plain: ;
    device: halves_keep_their_bits, halves_round_once, sums_of_halves_do_not_overflow,
        numbers_widen_no_half, gradients_of_halves_are_halves, promotion_of_operands,
        b125_every_index_and_value_dtype,
        long_integers, long_integers_reduce, casts_of_every_pair,
];

fn input<T: Element>(p: &Pass, dims: &[usize], elems: &[T]) -> Tensor {
    p.input(HostTensor::new(dims, elems).unwrap()).unwrap()
}

fn halves(p: &Pass, dims: &[usize], elems: &[f64], dtype: DType) -> Tensor {
    p.input(HostTensor::new(dims, elems).unwrap().cast(dtype)).unwrap()
}

/// The subject fused and unfused.
fn both(subject: &Subject) -> [Context; 2] {
    [subject.context(), subject.context_with(ContextOptions::default().fuse(false))]
}

/// What `f` records, of dtype `dtype`, is `want`, fused and not.
#[track_caller]
fn gives(subject: &Subject, dtype: DType, want: &[f64], f: impl Fn(&Pass) -> Tensor) {
    for ctx in both(subject) {
        let (got_dtype, got) = ctx
            .pass(|p| {
                let y = f(p);
                Ok((y.dtype(), y.to_vec::<f64>()?))
            })
            .unwrap();
        assert_eq!(got_dtype, dtype);
        assert_eq!(got.len(), want.len(), "{got:?}");
        for (i, (a, b)) in got.iter().zip(want).enumerate() {
            assert!(a == b || a.is_nan() && b.is_nan(), "element {i} is {a}, not {b}: {got:?}");
        }
    }
}

const INF: f64 = f64::INFINITY;

/// Every bit pattern passes through loads, views and stores; every f16 through f32 and back.
fn halves_keep_their_bits(subject: &Subject) {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let ctx = subject.context();
    let same = |x: f64, y: f64| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
    // Drivers may take subnormal f32, and so the smallest bf16, for 0.
    let tiny = |x: f64| x != 0.0 && x.abs() < f64::from(f32::MIN_POSITIVE);
    for dtype in [DType::F16, DType::BF16] {
        let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        let host = HostTensor::from_bytes([256, 256], dtype, raw).unwrap();
        let (turned, there) = ctx
            .pass(|p| {
                let x = p.input(&host)?;
                let turned = x.t().reshape([-1]);
                let there = x.cast(DType::F32).cast(dtype);
                Ok((turned.to_vec::<f64>()?, there.to_vec::<f64>()?))
            })
            .unwrap();
        for (i, x) in host.to_vec::<f64>().into_iter().enumerate() {
            let y = turned[i % 256 * 256 + i / 256];
            assert!(same(x, y), "{dtype} {i:04x}: {x:e} became {y:e}");
            let y = there[i];
            assert!(same(x, y) || tiny(x) && y == 0.0, "{dtype} {i:04x}: {x:e} became {y:e}");
        }
    }
}

/// Casts from f32 are to the nearest, ties to even, as the rule on f64 says.
fn halves_round_once(subject: &Subject) {
    let mut x: Vec<f32> = Vec::new();
    for bits in (0..0x7c00u16).step_by(7) {
        let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
        let middle = if b.is_finite() { (a + b) / 2.0 } else { 65520.0 };
        x.extend([middle, -middle, middle.next_up(), middle.next_down()]);
    }
    for bits in (0x0080..0x7f80u16).step_by(31) {
        let middle = f32::from_bits(u32::from(bits) << 16 | 0x8000);
        x.extend([middle, middle.next_up(), -middle.next_down()]);
    }
    x.extend([65519.0, 65520.0, 1e6, -1e38, 3.4e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0]);
    let ctx = subject.context();
    for dtype in [DType::F16, DType::BF16] {
        let got = ctx.pass(|p| input(p, &[x.len()], &x).cast(dtype).to_vec::<f64>()).unwrap();
        for (x, y) in x.iter().zip(got) {
            let want = dtype.round(f64::from(*x));
            assert!(y == want || want.is_nan() && y.is_nan(), "{dtype}: {x:e} became {y:e}, not {want:e}");
        }
    }
    // One rounding an operation, fused and not: 2049 is no f16, and 2048 + 1 + 1 stays 2048.
    gives(subject, DType::F16, &[2048.0], |p| halves(p, &[1], &[2048.0], DType::F16) + 1.0 + 1.0);
    gives(subject, DType::BF16, &[256.0], |p| halves(p, &[1], &[256.0], DType::BF16) + 1.0 + 1.0);
}

fn sums_of_halves_do_not_overflow(subject: &Subject) {
    const F: DType = DType::F16;
    let x = &[40000.; 3];
    gives(subject, F, &[INF], |p| halves(p, &[3], x, F).sum(0));
    gives(subject, F, &[0.], |p| halves(p, &[3], x, F).var(0, 0));
    // The product of rows and columns is accumulated in f32 and narrowed once.
    gives(subject, F, &[INF, 65504.], |p| {
        let q = halves(p, &[2, 256], &[vec![16.; 256], vec![15.9922; 256]].concat(), F);
        q.matmul(halves(p, &[256], &[16.; 256], F))
    });
    gives(subject, F, &[1.], |p| {
        let q = halves(p, &[1, 256], &[16.; 256], F);
        let dot = q.cast(DType::F32).matmul(halves(p, &[256, 1], &[16.; 256], F).cast(DType::F32));
        (dot / 65536.0).cast(F).reshape([1])
    });
    gives(subject, F, &[0.25; 4], |p| halves(p, &[4], &[60000.; 4], F).softmax(0));
    gives(subject, F, &[0.], |p| {
        halves(p, &[1, 3], &[60000., 0., 0.], F).cross_entropy(input(p, &[1], &[0i32]))
    });
    // Sums longer than a half can count.
    gives(subject, DType::BF16, &[4096.], |p| p.full_of([4096], 1.0, DType::BF16).sum(0));
}

fn numbers_widen_no_half(subject: &Subject) {
    for dtype in [DType::F16, DType::BF16] {
        gives(subject, dtype, &[1.5], |p| halves(p, &[1], &[3.], dtype) * 0.5);
        gives(subject, dtype, &[0.5], |p| 1.0 / halves(p, &[1], &[2.], dtype));
        gives(subject, dtype, &[-1.], |p| 2 - halves(p, &[1], &[3.], dtype));
        gives(subject, dtype, &[3.], |p| halves(p, &[1], &[1.], dtype) + &p.context().scalar(2.0));
        gives(subject, DType::Bool, &[1.], |p| halves(p, &[1], &[1.], dtype).lt(1.0000001));
        gives(subject, dtype, &[1., 7.], |p| {
            input(p, &[2], &[true, false]).select(halves(p, &[1], &[1.], dtype), 7.0)
        });
    }
    // The number itself is not rounded to a half, and may be beyond its range.
    gives(subject, DType::F16, &[0.0625], |p| halves(p, &[1], &[2f64.powi(-20)], DType::F16) * 65536.0);
    gives(subject, DType::F32, &[0.5], |p| input(p, &[1], &[1i64]) * 0.5);
    gives(subject, DType::F32, &[1.5], |p| input(p, &[1], &[true]).cast(DType::I32) * 1.5);
}

fn gradients_of_halves_are_halves(subject: &Subject) {
    for dtype in [DType::F16, DType::BF16] {
        let made = |f: fn(Tensor) -> Tensor| {
            move |p: &Pass| -> Tensor {
                let x = halves(p, &[3], &[1., -2., 4.], dtype);
                grad(f(x), &[x]).unwrap()[0]
            }
        };
        gives(subject, dtype, &[2., -4., 8.], made(|x| x.square().sum_all()));
        gives(subject, dtype, &[1., -2., 4.], made(|x| (x * x * 0.5).cast(DType::F32).sum_all()));
        gives(
            subject,
            dtype,
            &[0.5; 3],
            made(|x| (x.cast(DType::F32).reshape([3, 1]) * 0.5).cast(x.dtype()).sum_all()),
        );
        gives(subject, dtype, &[1., 0., 1.], made(|x| x.relu().sum_all()));
        gives(subject, dtype, &[0., 0., 1.], made(|x| x.max(0)));
        gives(subject, dtype, &[3.; 3], made(|x| x.reshape([3, 1]).matmul(p_ones(x)).sum_all()));
        gives(subject, dtype, &[2., 1., 0.], made(|x| x.gather(0, indices(x)).sum_all()));
    }
    // 100 gradients of 1000 meet in f32: 100000 is no f16, its tenth is.
    gives(subject, DType::F16, &[10000.], |p| {
        let x = halves(p, &[1], &[1.], DType::F16);
        let y = x.expand([100]) * halves(p, &[100], &[1000.; 100], DType::F16);
        grad(y.mean(..) * 10.0, &[x]).unwrap()[0]
    });
}

fn p_ones(x: Tensor) -> Tensor {
    x.ones_like().reshape([1, 3])
}

fn indices(x: Tensor) -> Tensor {
    // 0, 0, 1 from the numbers 1, -2, 4.
    x.gt(2.0).cast(DType::I32)
}

fn promotion_of_operands(subject: &Subject) {
    let ctx = subject.context();
    for a in DType::ALL {
        for b in DType::ALL {
            if (a == DType::F64 || b == DType::F64) && !ctx.caps().f64 {
                continue;
            }
            let host = |dtype| HostTensor::new([2], &[1.0, 1.0]).unwrap().cast(dtype);
            let (dtype, sum) = ctx
                .pass(|p| {
                    let (x, w) = (p.input(host(a))?, p.input(host(b))?);
                    let y = if a == DType::Bool && b == DType::Bool { x.and(w) } else { x * w };
                    let joined = Tensor::cat(&[x, w], 0);
                    assert_eq!(joined.dtype(), y.dtype());
                    Ok((y.dtype(), (y.cast(DType::F32) + joined.slice(0, ..2)).to_vec::<f64>()?))
                })
                .unwrap();
            assert_eq!((dtype, sum), (a.promote(b), vec![2.0, 2.0]), "{a} with {b}");
        }
    }
}

/// Every integer dtype indexes every dtype.
fn b125_every_index_and_value_dtype(subject: &Subject) {
    for index in [DType::U8, DType::U32, DType::I32, DType::I64] {
        for dtype in DType::ALL {
            if dtype == DType::F64 && !subject.context().caps().f64 {
                continue;
            }
            let x = move |p: &Pass| halves(p, &[4], &[0., 1., 0., 1.], dtype);
            let at = move |p: &Pass| halves(p, &[3], &[3., 0., 1.], index);
            gives(subject, dtype, &[1., 0., 1.], |p| x(p).index_select(0, at(p)));
            gives(subject, dtype, &[1., 0., 1.], |p| x(p).gather(0, at(p)));
            if dtype != DType::Bool && dtype != DType::U8 {
                gives(subject, dtype, &[0., 2., 0., 1.], |p| {
                    x(p).scatter_add(0, at(p).slice(0, 2..), x(p).slice(0, 1..2))
                });
            }
        }
        let hot = &[0., 0., 0., 1., 0., 0.];
        gives(subject, DType::F32, hot, |p| halves(p, &[2], &[3., 0.], index).one_hot(3).reshape([-1]));
    }
    // An index of two words is out of range, whatever its lower word.
    // The flag of an index error is the device's: other tests may not hear it.
    let alone = Context::new(subject.fresh()).unwrap();
    for far in [1i64 << 32, -1, i64::MIN] {
        let failed =
            alone.pass(|p| input(p, &[2], &[1f32, 2.]).gather(0, input(p, &[1], &[far])).to_vec::<f32>());
        assert!(failed.is_err(), "{far}");
    }
}

const ENDS: [i64; 11] =
    [i64::MIN, i64::MIN + 1, -(1 << 40) - 3, -1, 0, 1, 7, 1 << 32, (1 << 53) + 1, i64::MAX - 1, i64::MAX];

/// What `f` gives on all pairs of `ENDS`, exactly.
fn pairs(subject: &Subject, name: &str, f: fn(Tensor, Tensor) -> Tensor, want: fn(i64, i64) -> i64) {
    let ctx = subject.context();
    let n = ENDS.len();
    let got = ctx
        .pass(|p| {
            let (x, w) = (input(p, &[n, 1], &ENDS), input(p, &[1, n], &ENDS));
            f(x, w).to_vec::<i64>()
        })
        .unwrap();
    for (i, got) in got.into_iter().enumerate() {
        let (x, w) = (ENDS[i / n], ENDS[i % n]);
        assert_eq!(got, want(x, w), "{x} {name} {w}");
    }
}

fn long_integers(subject: &Subject) {
    pairs(subject, "+", |x, w| x + w, i64::wrapping_add);
    pairs(subject, "-", |x, w| x - w, i64::wrapping_sub);
    pairs(subject, "*", |x, w| x * w, i64::wrapping_mul);
    pairs(subject, "/", |x, w| x / w, |x, w| if w == 0 { 0 } else { x.wrapping_div(w) });
    pairs(
        subject,
        "rem",
        |x, w| x.rem(w),
        |x, w| {
            let r = if w == 0 { 0 } else { x.wrapping_rem(w) };
            if r != 0 && (r < 0) != (w < 0) { r + w } else { r }
        },
    );
    pairs(
        subject,
        "floor_div",
        |x, w| x.floor_div(w),
        |x, w| {
            let r = if w == 0 { 0 } else { x.wrapping_rem(w) };
            let q = if w == 0 { 0 } else { x.wrapping_div(w) };
            if r != 0 && (r < 0) != (w < 0) { q - 1 } else { q }
        },
    );
    pairs(subject, "fmod", |x, w| x.fmod(w), |x, w| if w == 0 { 0 } else { x.wrapping_rem(w) });
    pairs(subject, "pow", |x, w| x.pow(w & 63), |x, w| x.wrapping_pow((w & 63) as u32));
    pairs(
        subject,
        "pow below",
        |x, w| x.pow(-(w & 7) - 1),
        |x, w| match x {
            1 => 1,
            -1 => {
                if w & 1 == 0 {
                    -1
                } else {
                    1
                }
            }
            _ => 0,
        },
    );
    pairs(subject, "&", |x, w| x & w, |x, w| x & w);
    pairs(subject, "|", |x, w| x | w, |x, w| x | w);
    pairs(subject, "^", |x, w| x ^ w, |x, w| x ^ w);
    pairs(subject, "<<", |x, w| x << w, |x, w| x.wrapping_shl(w as u32 & 63));
    pairs(subject, ">>", |x, w| x >> w, |x, w| x.wrapping_shr(w as u32 & 63));
    pairs(subject, "max", |x, w| x.maximum(w), i64::max);
    pairs(subject, "min", |x, w| x.minimum(w), i64::min);
    pairs(subject, "==", |x, w| x.eq(w), |x, w| i64::from(x == w));
    pairs(subject, "!=", |x, w| x.ne(w), |x, w| i64::from(x != w));
    pairs(subject, "<", |x, w| x.lt(w), |x, w| i64::from(x < w));
    pairs(subject, "<=", |x, w| x.le(w), |x, w| i64::from(x <= w));
    pairs(subject, ">", |x, w| x.gt(w), |x, w| i64::from(x > w));
    pairs(subject, ">=", |x, w| x.ge(w), |x, w| i64::from(x >= w));
    pairs(subject, "neg", |x, w| -x + w * 0, |x, _| x.wrapping_neg());
    pairs(subject, "abs", |x, w| x.abs() + w * 0, |x, _| x.wrapping_abs());
    pairs(subject, "sign", |x, w| x.sign() + w * 0, |x, _| x.signum());
    pairs(subject, "relu", |x, w| x.relu() + w * 0, |x, _| x.max(0));
    pairs(subject, "not", |x, w| !x + w * 0, |x, _| !x);
    pairs(subject, "number", |x, w| x + w * 0 + (1i64 << 40), |x, _| x.wrapping_add(1 << 40));
    let ctx = subject.context();
    let refused = ctx.pass(|p| input(p, &[1], &[1i64]).try_add((1i64 << 53) + 1)).unwrap_err();
    assert!(refused.to_string().contains("2^53"), "{refused}");
    let kept = ctx.pass(|p| input(p, &[ENDS.len()], &ENDS).keep()).unwrap();
    assert_eq!(kept.read().unwrap().to_vec::<i64>(), ENDS);
}

fn long_integers_reduce(subject: &Subject) {
    let n = 1500;
    let x: Vec<i64> = (0..3 * n).map(|i| ((i * 7919 % 4001) as i64 - 2000) * ((1 << 41) + 1)).collect();
    for ctx in both(subject) {
        let rows = |f: fn(Tensor) -> Tensor| ctx.pass(|p| f(input(p, &[3, n], &x)).to_vec::<i64>()).unwrap();
        let want = |f: fn(&[i64]) -> i64| x.chunks(n).map(f).collect::<Vec<i64>>();
        assert_eq!(rows(|x| x.sum(1)), want(|x| x.iter().sum()));
        assert_eq!(
            rows(|x| x.slice(1, ..9).prod(1)),
            want(|x| x[..9].iter().fold(1, |a: i64, b| a.wrapping_mul(*b)))
        );
        assert_eq!(rows(|x| x.max(1)), want(|x| *x.iter().max().unwrap()));
        assert_eq!(rows(|x| x.min(1)), want(|x| *x.iter().min().unwrap()));
        let place = |x: &[i64], best: i64| x.iter().position(|x| *x == best).unwrap() as i64;
        assert_eq!(
            rows(|x| x.argmax(1)),
            x.chunks(n).map(|x| place(x, *x.iter().max().unwrap())).collect::<Vec<_>>()
        );
        assert_eq!(
            rows(|x| x.argmin(1)),
            x.chunks(n).map(|x| place(x, *x.iter().min().unwrap())).collect::<Vec<_>>()
        );
        let columns: Vec<i64> = (0..n).map(|j| x[j] + x[n + j] + x[2 * n + j]).collect();
        assert_eq!(rows(|x| x.sum(0)), columns);
        let mut sums = x.clone();
        (0..sums.len()).filter(|i| i % n != 0).for_each(|i| sums[i] += sums[i - 1]);
        assert_eq!(rows(|x| x.cumsum(1)), sums);
        // Neighbours beyond 2^53, which f64 takes for one.
        let far = [(1i64 << 60) + 1, (1 << 60) + 3, (1 << 60) + 2];
        assert_eq!(ctx.pass(|p| input(p, &[3], &far).argmax(0).item::<i64>()).unwrap(), 1);
        assert_eq!(ctx.pass(|p| input(p, &[3], &far).argmin(0).item::<i64>()).unwrap(), 0);
    }
}

fn casts_of_every_pair(subject: &Subject) {
    let ctx = subject.context();
    let floats = [
        0.0,
        -0.0,
        0.5,
        1.0,
        2.0,
        -1.0,
        -1.5,
        100.25,
        255.0,
        256.0,
        300.0,
        65504.0,
        7e4,
        -3e9,
        5e9,
        9.3e18,
        -9.3e18,
        INF,
        -INF,
        f64::NAN,
    ];
    let ints = [0.0, 1.0, 2.0, 3.0, 100.0, 127.0, 128.0, 200.0, 255.0];
    for from in DType::ALL {
        let elems: &[f64] = if from.is_float() { &floats } else { &ints };
        let host = HostTensor::new([elems.len()], elems).unwrap().cast(from);
        for to in DType::ALL {
            if (from == DType::F64 || to == DType::F64) && !ctx.caps().f64 {
                continue;
            }
            let got = ctx.pass(|p| p.input(&host)?.cast(to).to_vec::<f64>()).unwrap();
            for (x, y) in host.to_vec::<f64>().into_iter().zip(got) {
                let want = match to {
                    DType::Bool => f64::from(u8::from(x != 0.0)),
                    DType::U8 => f64::from(x as u8),
                    DType::U32 => f64::from(x as u32),
                    DType::I32 => f64::from(x as i32),
                    DType::I64 => (x as i64) as f64,
                    // The oracle keeps f32 as f64.
                    DType::F32 if subject.is_oracle() => x,
                    _ => to.round(x),
                };
                assert!(
                    y == want || y.is_nan() && want.is_nan(),
                    "{x:?} {from} to {to}: {y:?}, not {want:?}"
                );
            }
        }
    }
    // Integers to the nearest float, ties to even, and back.
    let whole = [
        (1i64 << 24) + 1,
        (1 << 25) + 2,
        (1 << 60) + (1 << 36),
        (1 << 60) + (1 << 36) + 1,
        i64::MAX,
        i64::MIN,
        -(1 << 40) - 1,
        0,
    ];
    let got = ctx.pass(|p| input(p, &[8], &whole).cast(DType::F32).to_vec::<f64>()).unwrap();
    for (x, y) in whole.into_iter().zip(got) {
        let want = if subject.is_oracle() { x as f64 } else { f64::from(x as f32) };
        assert_eq!(y, want, "{x}");
    }
}
