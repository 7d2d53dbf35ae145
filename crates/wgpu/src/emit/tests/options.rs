//! Every kernel in every option that can occur: the product of what tells kernels apart, printed by the real
//! emitter and checked by naga. A new variant of an operation does not compile before it is listed here; the
//! number of different texts of each family cannot shrink unseen.

use std::collections::BTreeSet;

use super::*;
use wgrad_graph::{Axes, Binary, ErrorKind, Fast, Kind, MAX_RANK, Matrix, Reduce, Scan, Unary};

/// The variants of an enum, all of them: a missing one does not compile.
macro_rules! every {
    ($name:ident: $($variant:ident)*) => {{
        let _ = |x: $name| match x { $($name::$variant => (),)* };
        [$($name::$variant),*]
    }};
}

/// What adapters store.
pub(super) const STORED: [DType; 8] =
    [DType::Bool, DType::U8, DType::U32, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32];
/// What reductions and scans compute with.
const COMPUTED: [DType; 4] = [DType::U32, DType::I32, DType::I64, DType::F32];
/// What places may be.
const PLACES: [DType; 4] = [DType::U8, DType::U32, DType::I32, DType::I64];

fn reduces() -> [Reduce; 4] {
    every!(Reduce: Sum Prod Max Min)
}

/// The kinds of limits that choose kernels: a GPU, one with small workgroups and little workgroup memory, the
/// least that Vulkan asks for, a driver on the CPU.
pub(super) fn limits() -> [Caps; 5] {
    [
        Caps { long_products: true, ..gpu() },
        Caps { max_invocations: 256, shared_bytes: 32768, max_workgroups: 512, ..gpu() },
        Caps { max_invocations: 128, shared_bytes: 16384, max_buffers: 4, ..gpu() },
        software(),
        Caps { long_words: true, long_products: true, ..software() },
    ]
}

/// The same for a graph: with halves also on adapters that have words of 16 bits.
pub(super) fn limits_for(graph: &Graph) -> Vec<Caps> {
    let mut all = limits().to_vec();
    if graph.nodes().iter().any(|node| node.outs.iter().any(|out| out.dtype.is_half())) {
        all.extend(limits().map(|caps| Caps { native_half: true, ..caps }));
    }
    all
}

/// The different texts of a family.
#[derive(Default)]
pub(super) struct Family(BTreeSet<String>);

impl Family {
    /// Prints and checks what `sketch` needs of the kind that `of` picks, fused and not, under all limits.
    pub(super) fn add_where(&mut self, sketch: &Sketch, of: impl Fn(&Kind) -> bool) {
        for caps in limits_for(&sketch.graph) {
            for fuse in [true, false] {
                self.add_plan(&sketch.plan(&caps, fuse), &caps, &of);
            }
        }
    }

    /// Prints and checks the steps of the kind that `of` picks.
    pub(super) fn add_plan(&mut self, plan: &Plan, caps: &Caps, of: impl Fn(&Kind) -> bool) {
        for step in plan.steps.iter().filter(|s| of(&s.group.kind)) {
            match lower(step, &plan.graph, &plan.scalars, caps) {
                Ok(lowered) => {
                    lowered.launches.iter().for_each(|l| check_launch(l, caps));
                    self.0.extend(lowered.launches.into_iter().map(|l| l.source));
                }
                // Matrices that a software driver refuses, kernels of more buffers than there are.
                Err(e) => assert_eq!(e.kind(), ErrorKind::Limit, "{e}\n{}", step.group),
            }
        }
    }

    pub(super) fn add(&mut self, sketch: &Sketch) {
        self.add_where(sketch, |_| true);
    }

    /// The family has at least `least` different texts, which hold each of `words`.
    pub(super) fn has(&self, least: usize, words: &[&str]) {
        for word in words {
            assert!(self.0.iter().any(|text| text.contains(word)), "no text has `{word}`");
        }
        assert!(self.0.len() >= least, "{} texts, not {least}", self.0.len());
    }
}

pub(super) fn axes_swapped(a: usize, b: usize) -> Op {
    let mut perm: [u8; MAX_RANK] = std::array::from_fn(|i| i as u8);
    perm.swap(a, b);
    Op::Permute(perm)
}

#[test]
fn rows() {
    let mut family = Family::default();
    // An invocation a point; four points, which only stores of words or bytes have.
    for n in [7, 65536] {
        for dtype in STORED {
            let mut s = Sketch::default();
            let (x, w) = (s.input(&[n], dtype), s.input(&[n], dtype));
            for op in Unary::ALL.into_iter().filter(|op| op.row().takes(dtype)) {
                // A few rows are not defined on two words.
                let Ok(y) = s.graph.add(Op::Unary(op), &[x], None, None) else { continue };
                s.roots = vec![y];
                family.add(&s);
            }
            for op in Binary::ALL.into_iter().filter(|op| op.row().takes(dtype)) {
                let Ok(y) = s.graph.add(Op::Binary(op), &[x, w], None, None) else { continue };
                s.roots = vec![y];
                family.add(&s);
            }
            let c = s.input(&[n], DType::Bool);
            s.roots = vec![s.op(Op::Select, &[c, x, w])];
            family.add(&s);
            for to in STORED {
                s.roots = vec![s.cast(x, to)];
                family.add(&s);
            }
        }
    }
    family.has(1518, &["wg_pow(", "_i64(", "wg_to_bf16("]);
}

#[test]
fn reductions() {
    let mut family = Family::default();
    for dtype in COMPUTED {
        for results in [1, 7, 300, 300_000] {
            for length in [0, 1, 9, 40, 1024, 4099, 100_000] {
                if results * length > 80_000_000 {
                    continue;
                }
                // Rows; columns; both ends; rows of what is computed on the way.
                let shapes: [(&[usize], &[usize]); 3] = [
                    (&[results, length], &[1]),
                    (&[length, results], &[0]),
                    (&[length, results, 3], &[0, 2]),
                ];
                for (dims, over) in shapes {
                    let mut s = Sketch::default();
                    let x = s.input(dims, dtype);
                    let axes: Axes = over.iter().copied().collect();
                    for kind in reduces() {
                        let y = s.op(Op::Reduce { kind, axes }, &[x]);
                        let zero = s.op(Op::Binary(Binary::Gt), &[y, y]);
                        s.roots = vec![y, zero];
                        family.add(&s);
                    }
                    for max in [false, true] {
                        if let ([axis], true) = (over, length > 0) {
                            s.roots = vec![s.op(Op::ArgReduce { max, axis: *axis as u8 }, &[x])];
                            family.add(&s);
                        }
                    }
                }
            }
        }
    }
    family.has(
        1276,
        &["workgroupBarrier", "let tile = slot /", "wg_arg_max_i64", "next + 3u * step", "vec4<f32>"],
    );
}

#[test]
fn scans() {
    let mut family = Family::default();
    for kind in every!(Scan: Sum Prod LogAddExp ArgMax ArgMin Recur) {
        for dtype in COMPUTED.into_iter().filter(|d| kind != Scan::LogAddExp || d.is_float()) {
            for reverse in [false, true] {
                // A line an invocation, a workgroup a line, lines in pieces.
                for dims in [[3, 20, 2], [40_000, 70, 1], [2, 5000, 3], [1, 9_000_000, 1], [9, 200_000, 1]] {
                    let mut s = Sketch::default();
                    let x = s.input(&dims, dtype);
                    let ins = if kind == Scan::Recur { vec![x, x] } else { vec![x] };
                    s.roots = vec![s.op(Op::Scan { kind, axis: 1, reverse }, &ins)];
                    family.add(&s);
                }
            }
        }
    }
    family.has(252, &["const BLOCK = 64u", "const BLOCK = 1u", "const EACH"]);
}

#[test]
fn sorts() {
    let mut family = Family::default();
    for dtype in STORED.into_iter().filter(|d| !d.is_half()) {
        for descending in [false, true] {
            for n in [1, 40, 300, 600, 5000] {
                let mut s = Sketch::default();
                let x = s.input(&[2, n, 3], dtype);
                s.roots = vec![s.op(Op::ArgSort { axis: 1, descending }, &[x])];
                family.add(&s);
            }
        }
    }
    family.has(144, &["wg_order_f32", "~"]);
}

#[test]
fn scatters() {
    let mut family = Family::default();
    for kind in reduces() {
        for dtype in COMPUTED {
            for places in PLACES {
                // One launch; pieces; one column.
                for dims in [[5, 9, 2], [3, 150_000, 1], [1, 7, 1]] {
                    let mut s = Sketch::default();
                    let (idx, src) = (s.input(&dims, places), s.input(&dims, dtype));
                    let padded = [dims[0], dims[1] + 2, dims[2]];
                    let plain = s.to(Op::Scatter { axis: 1, kind }, &[idx, src], &padded);
                    // Views: turned around, and with zeros that no element backs.
                    let (i, x) = (s.op(axes_swapped(0, 2), &[idx]), s.op(axes_swapped(0, 2), &[src]));
                    let turned = s.to(Op::Scatter { axis: 1, kind }, &[i, x], &[dims[2], 4, dims[0]]);
                    let mut lo = [0; MAX_RANK];
                    lo[1] = 1;
                    let (i, x) =
                        (s.to(Op::Pad { lo }, &[idx], &padded), s.to(Op::Pad { lo }, &[src], &padded));
                    let backed = s.to(Op::Scatter { axis: 1, kind }, &[i, x], &dims);
                    s.roots = vec![plain, turned, backed];
                    family.add_where(&s, |kind| matches!(kind, Kind::Scatter { .. }));
                }
            }
        }
    }
    family.has(1152, &["wg_index_i64", "atomicMax", "wg_add_i64"]);
}

#[test]
fn matrices() {
    let mut family = Family::default();
    let mut kinds = vec![Matrix::Cholesky, Matrix::Solve, Matrix::Slogdet, Matrix::Det];
    for upper in [false, true] {
        kinds.extend([false, true].map(|unit| Matrix::Triangular { upper, unit }));
    }
    for kind in kinds {
        // A new kind does not compile before it is listed above, and here.
        let right = match kind {
            Matrix::Triangular { .. } | Matrix::Solve => true,
            Matrix::Cholesky | Matrix::Slogdet | Matrix::Det => false,
        };
        // Every size of workgroup memory, scratch memory, every number of lanes.
        for (n, k) in
            [(1, 1), (5, 2), (9, 1), (20, 3), (33, 70), (64, 1), (70, 9), (90, 2), (120, 3), (700, 1)]
        {
            for count in [1, 70_000 / n] {
                let mut s = Sketch::default();
                let (a, b) = (s.x(&[count, n, n]), s.x(&[count, n, k]));
                let ins = if right { vec![a, b] } else { vec![a] };
                s.roots = vec![s.op(Op::Matrix(kind), &ins)];
                family.add(&s);
            }
        }
    }
    family.has(65, &["atomicLoad", "array<f32, 256>", "array<f32, 8192>", "const UPPER = true"]);
}

#[test]
fn products() {
    let mut family = Family::default();
    for m in [1, 3, 8, 130, 2048] {
        for n in [1, 3, 4, 129, 2048] {
            for k in [0, 1, 4, 33, 5000] {
                for layout in 0..4 {
                    let batch: &[usize] = [&[][..], &[3], &[2, 3]][(m + n + k) % 3];
                    let mut s = Sketch::default();
                    let rank = batch.len() + 2;
                    let side = |s: &mut Sketch, r: usize, c: usize, turned: bool| {
                        let x = s.x(&[batch, &if turned { [c, r] } else { [r, c] }].concat());
                        if turned { s.op(axes_swapped(rank - 1, rank - 2), &[x]) } else { x }
                    };
                    let (a, b) = (side(&mut s, m, k, layout & 1 == 1), side(&mut s, k, n, layout & 2 == 2));
                    let y = s.op(Op::MatMul, &[a, b]);
                    let z = s.op(Op::Unary(Unary::Relu), &[y]);
                    let positive = s.op(Op::Binary(Binary::Gt), &[z, y]);
                    for roots in [vec![y], vec![z, positive]] {
                        s.roots = roots;
                        family.add_where(&s, |kind| matches!(kind, Kind::MatMul { .. }));
                    }
                }
            }
        }
    }
    family.has(
        898,
        &[
            "var<workgroup> ta",
            "const STEP = 4u",
            "const STEP = 1u",
            "fn finish_one",
            "bitcast<vec4<u32>>(value)",
        ],
    );
}

/// Steps between halves are the device's own on software drivers alone, and with scalars in a text for where those are
/// halves.
#[test]
fn steps_of_halves() {
    let long = Caps { long_words: true, native_half: true, ..software() };
    let off = Caps { off: long.off.with(Fast::HalfArithmetic), ..long.clone() };
    for (caps, own) in [(long, true), (off, false), (Caps { native_half: true, ..gpu() }, false)] {
        for n in [7, 1000, 65536] {
            let mut s = Sketch::default();
            let (x, w) = (s.input(&[n], DType::F16), s.input(&[n], DType::F16));
            let [wide, other] = [x, w].map(|x| s.cast(x, DType::F32));
            let number = s.full(&[n], DType::F32);
            let mut narrow = |op, a, b| {
                let y = s.op(Op::Binary(op), &[a, b]);
                let y = s.cast(y, DType::F16);
                s.roots = vec![y];
                let made = launches(&s.plan(&caps, true), &caps).remove(0);
                let has = |text: &str| text.contains("bitcast<f16>(");
                (has(&made.source), made.of_halves.as_deref().map(has))
            };
            for op in [Binary::Add, Binary::Sub, Binary::Mul] {
                assert_eq!(narrow(op, wide, other), (own, None), "{op:?} {n}");
                assert_eq!(narrow(op, wide, number), (false, own.then_some(true)), "{op:?} {n}");
                assert_eq!(narrow(op, number, number), (false, None), "{op:?} {n}");
            }
            // Of one number drivers make 0; a quotient may be off by some of its last digits.
            assert_eq!(narrow(Binary::Sub, wide, wide), (false, None));
            assert_eq!(narrow(Binary::Div, wide, other), (false, None));
        }
    }
}

#[test]
fn halves_by_any_kernel() {
    let mut family = Family::default();
    for half in [DType::F16, DType::BF16] {
        for (rows, columns) in [(1, 9), (5, 7), (300, 64), (3, 100_000), (4096, 256)] {
            let mut s = Sketch::default();
            let x = s.input(&[rows, columns], half);
            let wide = s.cast(x, DType::F32);
            let turned = s.op(axes_swapped(0, 1), &[x]);
            for axis in 0..2 {
                let axes = Axes::NONE.with(axis);
                let sum = s.op(Op::Reduce { kind: Reduce::Sum, axes }, &[wide]);
                let most = s.op(Op::ArgReduce { max: true, axis: axis as u8 }, &[wide]);
                let positive = s.op(Op::Binary(Binary::Gt), &[sum, sum]);
                let (narrow, whole) = (s.cast(sum, half), s.cast(most, half));
                // Alone; beside the words and the bytes of the same reduction; at other places than its own.
                let aside = s.op(axes_swapped(0, 1), &[narrow]);
                for roots in [vec![narrow], vec![narrow, sum, positive], vec![whole], vec![aside]] {
                    s.roots = roots;
                    family.add(&s);
                }
            }
            let w = s.x(&[columns, 20]);
            let product = s.op(Op::MatMul, &[wide, w]);
            let (left, right) = (s.cast(turned, DType::F32), s.x(&[rows, 6]));
            let other = s.op(Op::MatMul, &[left, right]);
            for product in [product, other] {
                let narrow = s.cast(product, half);
                s.roots = vec![narrow];
                family.add(&s);
                s.roots = vec![product, s.op(axes_swapped(0, 1), &[narrow])];
                family.add(&s);
            }
            // More parts than one kernel takes.
            s.roots = vec![s.op(Op::Concat { axis: 1 }, &[x; 11])];
            family.add(&s);
        }
    }
    family.has(400, &["array<u16>", "array<vec4<u16>>", "u16(", "vec4<u16>("]);
}
