//! What went wrong in other frameworks, and odd shapes, aliases and limits. A test of a public fault is
//! named by its number in the list of faults; each runs eagerly (without fusion), fused, and on views.

mod convolution;
mod matmul;
mod odd;
mod pooling;
mod shapes;

use wgrad::{Context, ContextOptions, DType, HostTensor, Pass, Tensor};

use crate::Subject;
use crate::Test;
use crate::ops::near;

pub(crate) fn tests() -> Vec<Test> {
    [odd::tests(), matmul::tests(), shapes::tests(), convolution::tests(), pooling::tests()]
        .into_iter()
        .flatten()
        .collect()
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
