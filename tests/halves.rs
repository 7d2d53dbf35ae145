//! Halves as words of their own, where the adapter has them: the numbers of two halves a word, in fewer kernels.

#![expect(clippy::unwrap_used, reason = "tests")]

use wgrad::{Context, DType, HostTensor, Pass, Tensor, f16};

use crate::Subject;

crate::suite![
    plain: ;
    device: same_bits_as_packed, results_are_narrowed_where_they_are_made, steps_are_those_of_f32, parts_are_written_in_place,
];

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Small integers: every sum of them is exact in whatever order.
fn small(p: &Pass, dims: &[usize], dtype: DType, of: i32) -> Tensor {
    let elems: Vec<f32> =
        (0..dims.iter().product::<usize>() as i32).map(|i| ((i * 7 + of) % 11 - 5) as f32).collect();
    p.input(HostTensor::new(dims, &elems).unwrap().cast(dtype)).unwrap()
}

/// Every bit pattern.
fn all(p: &Pass, dtype: DType) -> Tensor {
    let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    p.input(HostTensor::from_bytes([256, 256], dtype, raw).unwrap()).unwrap()
}

/// One of each kind of kernel, of dtype `h`.
pub(crate) fn programs(p: &Pass, h: DType) -> Vec<(&'static str, Tensor)> {
    let x = |dims: &[usize], of: i32| small(p, dims, h, of);
    let mut made =
        vec![("views", all(p, h).t().flip([1])), ("there and back", all(p, h).cast(DType::F32).cast(h))];
    // One element an invocation, and four, with and without a rest.
    for n in [1, 7, 16, 65535, 65536, 70002] {
        made.push(("pointwise", x(&[n], 1) * x(&[n], 2) + x(&[n], 3)));
        made.push(("beside bytes", x(&[n], 1).gt(x(&[n], 2)).select(x(&[n], 1), x(&[n], 4))));
    }
    for dims in [[5, 7], [3, 4096], [4096, 3], [300, 64], [1, 100_000], [2, 0]] {
        for axis in 0..2 {
            made.push(("sum", x(&dims, 1).sum(axis)));
            made.push(("sum, then more", x(&dims, 1).sum(axis) * 2.0 + 1.0));
            if dims[1] > 0 {
                made.push(("argmax", x(&dims, 1).argmax(axis).cast(h)));
                made.push(("max", x(&dims, 1).max(axis)));
            }
        }
    }
    for [m, k, n] in [[5, 7, 3], [1, 300, 1], [64, 64, 64], [33, 130, 20], [8, 0, 4]] {
        made.push(("matmul", x(&[m, k], 1).matmul(x(&[k, n], 2))));
        made.push(("matmul turned", x(&[m, k], 1).matmul(x(&[k, n], 2)).t() + 1.0));
    }
    let ids = p.input(HostTensor::new([6], &[3i32, 0, 3, 1, 2, 3]).unwrap()).unwrap();
    made.push(("index_select", x(&[4, 9], 1).index_select(0, ids)));
    made.push(("index_add", x(&[4, 9], 1).index_add(0, ids, x(&[6, 9], 2))));
    made.push(("cumsum", x(&[4, 9], 1).cumsum(1)));
    made.push(("sort", x(&[4, 9], 1).sort(1, false).0));
    made.push(("slice_assign", x(&[5, 3], 1).slice_assign(0, 2, x(&[2, 3], 2)) * 2.0));
    made.push(("slice_assign_step", x(&[7, 3], 1).slice_assign_step(0, 1..6, 2, x(&[3, 1], 2))));
    let parts: Vec<Tensor> = (1..14).map(|i| x(&[3, i as usize], i)).collect();
    made.push(("cat", Tensor::cat(&parts, 1)));
    made
}

fn bytes(ctx: &Context, h: DType) -> Vec<(&'static str, Vec<u8>)> {
    let read = |p: &Pass| {
        let made = programs(p, h);
        made.into_iter().map(|(name, y)| Ok((name, y.read()?.bytes().to_vec()))).collect()
    };
    ctx.pass(read).unwrap()
}

fn same_bits_as_packed(subject: &Subject) {
    if !subject.backend().caps().native_half {
        return;
    }
    let packed = Context::new(subject.lowered(|caps| caps.native_half = false)).unwrap();
    for h in HALVES {
        for (a, b) in bytes(&subject.context(), h).into_iter().zip(bytes(&packed, h)) {
            assert_eq!(a, b, "{h}");
        }
    }
}

/// Sums, differences and products of every half are those of f32, rounded after each step, with numbers that are
/// halves and with some that are not: subnormal results, ties, infinities, NaN, steps that undo each other.
fn steps_are_those_of_f32(subject: &Subject) {
    // What the oracle computes in f64 is rounded once.
    if subject.is_oracle() {
        return;
    }
    type Step = fn(f32, f32) -> f32;
    let rounded = |x: f32| f16::from_f32(x).to_f32();
    let two = |x: f16, w: f16, steps: [Step; 2], last: f32| {
        f16::from_f32(steps[1](rounded(steps[0](x.to_f32(), w.to_f32())), last))
    };
    let right = |got: Vec<u8>, name: &str, want: &dyn Fn(f16, f16) -> f16| {
        for (i, got) in got.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]])).enumerate() {
            let (x, w) = (f16::from_bits(i as u16), f16::from_bits((i as u16).wrapping_mul(40503) ^ 0x5a5a));
            let want = want(x, w);
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{name} of {x:e}, {w:e}: {got:e}, not {want:e}");
        }
    };
    let ctx = subject.context();
    let run = |f: &dyn Fn(Tensor, Tensor) -> Tensor| {
        ctx.pass(|p| {
            let other: Vec<u8> =
                (0..=u16::MAX).flat_map(|i| (i.wrapping_mul(40503) ^ 0x5a5a).to_le_bytes()).collect();
            let w = p.input(HostTensor::from_bytes([256, 256], DType::F16, other)?)?;
            Ok(f(all(p, DType::F16), w).read()?.bytes().to_vec())
        })
        .unwrap()
    };
    let [add, sub, mul]: [Step; 3] = [|x, w| x + w, |x, w| x - w, |x, w| x * w];
    right(run(&|x, w| x + w), "x + w", &|x, w| f16::from_f32(x.to_f32() + w.to_f32()));
    right(run(&|x, w| x - w), "x - w", &|x, w| f16::from_f32(x.to_f32() - w.to_f32()));
    right(run(&|x, w| x * w), "x w", &|x, w| f16::from_f32(x.to_f32() * w.to_f32()));
    right(run(&|x, w| x * w - x), "x w - x", &|x, w| two(x, w, [mul, sub], x.to_f32()));
    right(run(&|x, w| (x + w) - w), "(x + w) - w", &|x, w| two(x, w, [add, sub], w.to_f32()));
    // 0.1, 65536 and 1e-30 are no halves; 2^-24 is the least.
    for a in [2.0, -0.75, 0.1, 65536.0, 2f32.powi(-24), 1e-30, f32::INFINITY] {
        let number = f64::from(a);
        right(run(&|x, _| x * number), &format!("{a} x"), &|x, _| f16::from_f32(x.to_f32() * a));
        right(run(&|x, _| number - x), &format!("{a} - x"), &|x, _| f16::from_f32(a - x.to_f32()));
        for b in [1.0, 0.1] {
            let sum = |x: f16, _: f16| f16::from_f32(rounded(x.to_f32() * a) + b);
            right(run(&|x, _| x * number + f64::from(b)), &format!("{a} x + {b}"), &sum);
        }
    }
}

/// Dispatches of `f` on words of 16 bits and on two halves a word; `None` where there are no such words.
fn dispatches(subject: &Subject, f: impl Fn(&Pass) -> Tensor) -> Option<[u64; 2]> {
    let native = subject.fresh();
    if !native.caps().native_half {
        return None;
    }
    Some([native, subject.lowered(|caps| caps.native_half = false)].map(|backend| {
        let ctx = Context::new(backend).unwrap();
        let before = ctx.stats().dispatches;
        ctx.pass(|p| f(p).to_vec::<f64>()).unwrap();
        ctx.stats().dispatches - before
    }))
}

/// Reductions and products write halves themselves; two a word need a kernel that owns both.
fn results_are_narrowed_where_they_are_made(subject: &Subject) {
    for h in HALVES {
        let sum = dispatches(subject, |p| small(p, &[300, 64], h, 1).sum(1));
        assert!(sum.is_none() || sum == Some([1, 2]), "{sum:?}");
        let product = dispatches(subject, |p| {
            let [x, w] = [[8, 16], [16, 4]].map(|dims| small(p, &dims, DType::F32, 1));
            x.matmul(w).cast(h)
        });
        assert!(product.is_none() || product == Some([1, 2]), "{product:?}");
    }
}

/// A part is written as one of whole words is, where it lies.
fn parts_are_written_in_place(subject: &Subject) {
    let made = |dtype| {
        dispatches(subject, |p| {
            let x = small(p, &[4096], dtype, 1) + 1.0;
            x.slice_assign(0, 5, small(p, &[3], dtype, 2))
        })
    };
    for h in HALVES {
        if let (Some([native, packed]), Some(word)) = (made(h), made(DType::F32)) {
            assert_eq!([native; 2], word, "{h}");
            assert_eq!(packed, 1, "where halves share words, all of them are written");
        }
    }
}
