//! What went wrong in other frameworks, and odd shapes, aliases and limits. A test of a public fault is
//! named by its number in the list of faults; each runs eagerly (without fusion), fused, and on views.

mod adapters;
mod autograd;
mod convolution;
mod fusion;
mod indexing;
mod losses;
mod matmul;
mod memory;
mod norms;
mod odd;
mod pointwise;
mod pooling;
mod reductions;
mod saving;
mod several;
mod shapes;
mod slopes;
mod softmax;
mod sorting;
mod training;

use std::collections::BTreeSet;

use wgrad::{Context, ContextOptions, DType, HostTensor, Pass, Tensor, grad};

use crate::Subject;
use crate::Test;
use crate::ops::near;

pub(crate) fn tests() -> Vec<Test> {
    [
        reductions::tests(),
        softmax::tests(),
        norms::tests(),
        losses::tests(),
        pointwise::tests(),
        slopes::tests(),
        autograd::tests(),
        indexing::tests(),
        shapes::tests(),
        convolution::tests(),
        pooling::tests(),
        matmul::tests(),
        fusion::tests(),
        sorting::tests(),
        training::tests(),
        adapters::tests(),
        memory::tests(),
        saving::tests(),
        several::tests(),
        odd::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The numbers of the public faults, by the sections of their list: reductions, softmax and attention,
/// normalisations, losses, elementwise, autograd, indexing, shapes, convolution and pooling, products;
/// fusion, order and random numbers, training, adapters, memory and threads, files and dtypes, devices.
const FAULTS: [&[u16]; 17] = [
    &[1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19],
    &[20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35],
    &[37, 38, 40, 41, 43, 44, 46, 47],
    &[49, 50, 52, 53, 55, 56, 58, 59],
    &[61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95],
    &[97, 98, 100, 101, 103, 104, 106, 107, 109, 110, 112, 113, 115, 116, 118],
    &[119, 121, 122, 124, 125, 127, 128, 130],
    &[131, 133, 134, 136, 137, 139, 140, 142, 143, 145, 146, 148, 149, 151, 152],
    &[154, 155, 157, 158, 160, 161, 163, 164, 166, 167, 169, 170, 172, 173],
    &[175, 176, 178, 179, 181, 182, 184, 185],
    &[187, 188, 190, 191, 193, 194, 196, 197, 199, 200, 202, 203, 205],
    &[206, 208, 209, 211, 212, 214, 215, 217, 218],
    &[220, 221, 223, 224, 226, 227, 229, 230, 232],
    &[233, 235, 236, 238, 239, 241, 242, 244, 245, 247, 248, 250, 251, 253, 254],
    &[256, 257, 259, 260, 262, 263, 265, 266],
    &[268, 269, 271, 272, 274, 275],
    &[277, 278, 280, 281, 283, 284],
];

/// Every public fault is tried by a test of its number, or `docs/regressions.md` says why it is not.
pub(crate) fn faults_are_tried(names: &BTreeSet<String>) {
    let text = include_str!("../../docs/regressions.md");
    let excused = |id: &str| text.lines().any(|l| l.starts_with(&format!("| B{id} | ")));
    let mut missing = Vec::new();
    for id in FAULTS.iter().copied().flatten() {
        let id = format!("{id:03}");
        let test = format!("::b{id}_");
        let tried = names.iter().any(|n| n.contains(&test));
        assert!(!(tried && excused(&id)), "B{id} has a test and an excuse");
        if !tried && !excused(&id) {
            missing.push(id);
        }
    }
    assert!(missing.is_empty(), "no test and no reason for {missing:?}");
}

/// An operand: sizes, elements, dtype.
struct Given {
    dims: Vec<usize>,
    elems: Vec<f64>,
    dtype: DType,
}

fn floats(dims: impl AsRef<[usize]>, elems: &[f64]) -> Given {
    Given { dims: dims.as_ref().to_vec(), elems: elems.to_vec(), dtype: DType::F32 }
}

/// 0, 1, 2 ..
fn ramp(dims: impl AsRef<[usize]>) -> Given {
    let count = dims.as_ref().iter().product();
    floats(dims, &(0..count).map(|i: usize| i as f64).collect::<Vec<_>>())
}

/// Elements that are cast to `dtype`.
fn of(dtype: DType, dims: impl AsRef<[usize]>, elems: &[f64]) -> Given {
    Given { dtype, ..floats(dims, elems) }
}

fn ints(dims: impl AsRef<[usize]>, elems: &[i32]) -> Given {
    let elems: Vec<f64> = elems.iter().map(|e| f64::from(*e)).collect();
    Given { dtype: DType::I32, ..floats(dims, &elems) }
}

fn bools(dims: impl AsRef<[usize]>, elems: &[bool]) -> Given {
    let elems: Vec<f64> = elems.iter().map(|e| f64::from(u8::from(*e))).collect();
    Given { dtype: DType::Bool, ..floats(dims, &elems) }
}

/// How operands lie in memory.
#[derive(Copy, Clone, Debug)]
enum Lie {
    Plain,
    Transposed,
    /// One element further on each axis of something larger.
    Offset,
}

/// The row-major place of every element of `dims` in `wide`, whose axes are those of `dims` moved by
/// `place`.
fn places(dims: &[usize], wide: &[usize], place: impl Fn(Vec<usize>) -> Vec<usize>) -> Vec<usize> {
    (0..dims.iter().product())
        .map(|mut n| {
            let mut at = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                at[axis] = n % dims[axis];
                n /= dims[axis];
            }
            place(at).iter().zip(wide).fold(0, |n, (c, d)| n * d + c)
        })
        .collect()
}

impl Given {
    fn on(&self, p: &Pass, lie: Lie) -> Tensor {
        let Given { dims, elems, dtype } = self;
        let input = |dims: &[usize], elems: &[f64]| {
            p.input(HostTensor::new(dims, elems).unwrap().cast(*dtype)).unwrap()
        };
        let laid = |wide: &[usize], place: &dyn Fn(Vec<usize>) -> Vec<usize>| {
            let mut stored = vec![77.0; wide.iter().product()];
            places(dims, wide, place).into_iter().zip(elems).for_each(|(i, x)| stored[i] = *x);
            input(wide, &stored)
        };
        match lie {
            Lie::Plain => input(dims, elems),
            Lie::Transposed => {
                let wide: Vec<usize> = dims.iter().rev().copied().collect();
                let back: Vec<i32> = (0..dims.len() as i32).rev().collect();
                laid(&wide, &|at| at.into_iter().rev().collect()).permute(&back[..])
            }
            Lie::Offset => {
                let wide: Vec<usize> = dims.iter().map(|d| d + 2).collect();
                let mut x = laid(&wide, &|at| at.iter().map(|c| c + 1).collect());
                for (axis, size) in dims.iter().enumerate() {
                    x = x.narrow(axis as i32, 1, *size);
                }
                x
            }
        }
    }
}

/// Runs `f` in every way, and compares what it gives.
fn every_way(
    on: &Subject,
    operands: &[Given],
    f: impl Fn(&Pass, &[Tensor]) -> Tensor,
    dims: &[usize],
    want: &[f64],
) {
    ways(on, operands, |p, x, say| {
        let y = f(p, x);
        assert_eq!(y.shape().dims(), dims, "{say}");
        near(say, &y.to_vec::<f64>().unwrap(), want, 1e-5);
    });
}

/// Compares the gradient of the sum of `f` by the first operand.
fn gradient(on: &Subject, operands: &[Given], f: impl Fn(&Pass, &[Tensor]) -> Tensor, want: &[f64]) {
    each_gradient(on, operands, f, &[want]);
}

/// Compares the gradients of the sum of `f` by the first operands.
fn each_gradient(on: &Subject, operands: &[Given], f: impl Fn(&Pass, &[Tensor]) -> Tensor, want: &[&[f64]]) {
    ways(on, operands, |p, x, say| {
        let slopes = grad(f(p, x).sum(..), &x[..want.len()]).unwrap();
        for (i, (slope, want)) in slopes.iter().zip(want).enumerate() {
            assert_eq!(slope.shape(), x[i].shape(), "gradient {i}, {say}");
            near(&format!("gradient {i}, {say}"), &slope.to_vec::<f64>().unwrap(), want, 1e-5);
        }
    });
}

/// Calls `f` with the operands in every way: eager and fused, plain and as views.
fn ways(on: &Subject, operands: &[Given], f: impl Fn(&Pass, &[Tensor], &str)) {
    let contexts: [(&str, Context); 2] =
        [("eager", on.context_with(ContextOptions::default().fuse(false))), ("fused", on.context())];
    for (mode, ctx) in &contexts {
        for lie in [Lie::Plain, Lie::Transposed, Lie::Offset] {
            ctx.pass(|p| {
                let x: Vec<Tensor> = operands.iter().map(|o| o.on(p, lie)).collect();
                f(p, &x, &format!("{mode}, {lie:?}"));
                Ok(())
            })
            .unwrap();
        }
    }
}
