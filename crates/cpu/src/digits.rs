//! Elements of an index for a whole block at once, by the digits of its positions: for indices whose
//! pieces are too short to be walked one by one, such as windows, repeated elements, and padded axes cut
//! in two. Divisions by sizes are multiplications.

use std::ops::Range;

use crate::program::BLOCK;

/// One axis: its digit `c` adds `c * stride`, and has to be in `lo..lo + span`.
#[derive(Clone, Debug, PartialEq)]
struct Digit {
    size: u32,
    stride: i32,
    lo: u32,
    span: u32,
    /// `x / size` is `(x * factor) >> shift` for every `x` below 2^31.
    factor: u64,
    shift: u32,
}

impl Digit {
    fn new(size: usize, stride: i64, valid: &Range<usize>) -> Option<Digit> {
        let bits = usize::BITS - (size - 1).leading_zeros();
        let shift = 31 + bits;
        Some(Digit {
            size: i32::try_from(size).ok()? as u32,
            stride: i32::try_from(stride).ok()?,
            lo: valid.start as u32,
            span: valid.len() as u32,
            factor: (1u64 << shift) / size as u64 + 1,
            shift,
        })
    }

    fn is_whole(&self) -> bool {
        self.span == self.size
    }
}

/// `y += digit * stride`.
#[inline(always)]
fn add(axis: &Digit, digits: &[u32], y: &mut [i32]) {
    for (y, digit) in y.iter_mut().zip(digits) {
        *y = y.wrapping_add((*digit as i32).wrapping_mul(axis.stride));
    }
}

/// Marks where the digit is outside.
#[inline(always)]
fn leave_out(axis: &Digit, digits: &[u32], none: &mut [u32]) {
    for (none, digit) in none.iter_mut().zip(digits) {
        *none |= u32::from(digit.wrapping_sub(axis.lo) >= axis.span);
    }
}

/// An index, compiled: for each level its axes, innermost first, and the element at its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Digits(Vec<(Vec<Digit>, i32)>);

/// Positions, elements so far, and whether there is none.
type Block = [u32; BLOCK];

impl Digits {
    /// `levels`: the axes (size, stride, valid), outermost first, and the offset. `None` where numbers
    /// do not fit.
    pub(crate) fn new(
        levels: impl Iterator<Item = (Vec<(usize, i64, Range<usize>)>, i64)>,
    ) -> Option<Digits> {
        let mut all = Vec::new();
        for (axes, offset) in levels {
            let (mut lo, mut hi) = (offset, offset);
            for (size, stride, _) in &axes {
                if *size == 0 {
                    return None;
                }
                let end = (*size as i64 - 1) * stride;
                (lo, hi) = (lo + end.min(0), hi + end.max(0));
            }
            if lo < i64::from(i32::MIN) || hi > i64::from(i32::MAX) {
                return None;
            }
            let digits = axes.iter().rev().map(|(size, stride, valid)| Digit::new(*size, *stride, valid));
            all.push((digits.collect::<Option<Vec<_>>>()?, offset as i32));
        }
        Some(Digits(all))
    }

    /// The elements at positions `first..first + out.len()`; -1 where there is none.
    pub(crate) fn fill(&self, first: usize, out: &mut [i32]) {
        pulp::Arch::new().dispatch(Fill { digits: self, first, out });
    }
}

struct Fill<'a> {
    digits: &'a Digits,
    first: usize,
    out: &'a mut [i32],
}

impl pulp::WithSimd for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Fill { digits, first, out } = self;
        let (mut rest, mut none, mut digit): (Block, Block, Block) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
        let (rest, none) = (&mut rest[..out.len()], &mut none[..out.len()]);
        let digit = &mut digit[..out.len()];
        rest.iter_mut().enumerate().for_each(|(i, r)| *r = (first + i) as u32);
        for (level, (axes, offset)) in digits.0.iter().enumerate() {
            if level > 0 {
                rest.iter_mut().zip(&*out).for_each(|(r, y)| *r = *y as u32);
            }
            out.fill(*offset);
            for (i, axis) in axes.iter().enumerate() {
                let outermost = i + 1 == axes.len();
                let divide = |x: u32| ((u64::from(x) * axis.factor) >> axis.shift) as u32;
                if outermost {
                    add(axis, rest, out);
                    if !axis.is_whole() {
                        leave_out(axis, rest, none);
                    }
                } else if axis.is_whole() && axis.stride == 0 {
                    rest.iter_mut().for_each(|r| *r = divide(*r));
                } else {
                    for (rest, digit) in rest.iter_mut().zip(&mut *digit) {
                        let quotient = divide(*rest);
                        *digit = rest.wrapping_sub(quotient.wrapping_mul(axis.size));
                        *rest = quotient;
                    }
                    add(axis, digit, out);
                    if !axis.is_whole() {
                        leave_out(axis, digit, none);
                    }
                }
            }
        }
        out.iter_mut().zip(none).for_each(|(y, none)| *y = if *none == 0 { *y } else { -1 });
    }
}
