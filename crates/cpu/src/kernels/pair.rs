//! Two operations on floats in one loop.

use bytemuck::{cast_slice, cast_slice_mut};
use wgrad_graph::Binary;

use super::{map, map2, mul_zero};

/// Two operations of which the second takes the result of the first.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    first: Binary,
    second: Second,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Second {
    /// With another operand: the result is its second one where it is flipped.
    With(Binary, bool),
    /// The result times itself.
    Square,
}

impl Pair {
    /// The pair, where there is a loop for it.
    pub(crate) fn new(first: Binary, second: Binary, flipped: bool) -> Option<Pair> {
        let known = |op| matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::MulZero);
        (known(first) && known(second)).then_some(Pair { first, second: Second::With(second, flipped) })
    }

    /// The square of what `first` gives, where there is a loop for it.
    pub(crate) fn squared(first: Binary) -> Option<Pair> {
        Pair::new(first, Binary::Mul, false).map(|pair| Pair { second: Second::Square, ..pair })
    }

    /// Whether the operands of the first may change places.
    pub(crate) fn commutes(self) -> bool {
        matches!(self.first, Binary::Add | Binary::Mul)
    }
}

/// `y = second(first(x, w), z)`, where a square reads no `z`; `same`: whether `w` and `z` are one number throughout.
pub(crate) fn pair(pair: Pair, [x, w, z]: [&[u8]; 3], same: [bool; 2], y: &mut [u8]) {
    pair_f32(pair, same, cast_slice(x), cast_slice(w), cast_slice(z), cast_slice_mut(y));
}

vectorised! {
    fn pair_f32<'a>(
        pair: Pair,
        same: [bool; 2],
        x: &'a [f32],
        w: &'a [f32],
        z: &'a [f32],
        y: &'a mut [f32]
    ) {
        match pair.first {
            Binary::Add => second(pair, same, [x, w, z], y, |x, w| x + w),
            Binary::Sub => second(pair, same, [x, w, z], y, |x, w| x - w),
            Binary::Mul => second(pair, same, [x, w, z], y, |x, w| x * w),
            _ => second(pair, same, [x, w, z], y, mul_zero),
        }
    }
}

#[inline(always)]
fn second(pair: Pair, same: [bool; 2], from: [&[f32]; 3], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match pair.second {
        Second::With(Binary::Add, _) => map3(same, from, y, |x, w, z| f(x, w) + z),
        Second::With(Binary::Sub, false) => map3(same, from, y, |x, w, z| f(x, w) - z),
        Second::With(Binary::Sub, true) => map3(same, from, y, |x, w, z| z - f(x, w)),
        Second::With(Binary::Mul, _) => map3(same, from, y, |x, w, z| f(x, w) * z),
        Second::With(_, false) => map3(same, from, y, |x, w, z| mul_zero(f(x, w), z)),
        Second::With(_, true) => map3(same, from, y, |x, w, z| mul_zero(z, f(x, w))),
        Second::Square => map3(same, from, y, |x, w, _| f(x, w) * f(x, w)),
    }
}

#[inline(always)]
fn map3(same: [bool; 2], [x, w, z]: [&[f32]; 3], y: &mut [f32], f: impl Fn(f32, f32, f32) -> f32) {
    let (Some(&one), Some(&other)) = (w.first(), z.first()) else { return };
    match same {
        [true, true] => map(x, y, |x| f(x, one, other)),
        [true, false] => map2(x, z, y, |x, z| f(x, one, z)),
        [false, true] => map2(x, w, y, |x, w| f(x, w, other)),
        [false, false] => {
            for (((y, x), w), z) in y.iter_mut().zip(x).zip(w).zip(z) {
                *y = f(*x, *w, *z);
            }
        }
    }
}
