//! Loops over slices, one for each row and dtype, compiled for several instruction sets and chosen at
//! run time. Nothing in them is interpreted for each element.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use wgrad_graph::{Binary, DType, Unary, bf16, f16};

use crate::{halves, math, philox::philox};

/// Runs a loop compiled for the best instruction set of this machine.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident<$life:lifetime $(, $T:ident: $bound:ident $(+ $more:ident)*)?>
        ($($arg:ident: $ty:ty),*) $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name<$life $(, $T: $bound $(+ $more)*)?>($($arg: $ty),*) {
            struct Loop<$life $(, $T: $bound $(+ $more)*)?> {
                args: ($($ty,)*),
                life: std::marker::PhantomData<(&$life (), $($T)?)>,
            }
            impl<$life $(, $T: $bound $(+ $more)*)?> pulp::WithSimd for Loop<$life $(, $T)?> {
                type Output = ();
                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _: S) {
                    let ($($arg,)*) = self.args;
                    $body
                }
            }
            pulp::Arch::new().dispatch(Loop { args: ($($arg,)*), life: std::marker::PhantomData });
        }
    };
}

mod pair;

pub(crate) use pair::{Pair, pair};

#[inline(always)]
fn map<A: Copy, Y>(x: &[A], y: &mut [Y], f: impl Fn(A) -> Y) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*x);
    }
}

#[inline(always)]
fn map2<A: Copy, Y>(x: &[A], w: &[A], y: &mut [Y], f: impl Fn(A, A) -> Y) {
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = f(*x, *w);
    }
}

/// Which operands of a block are one number throughout: those need no load for each element.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Same {
    Neither,
    X,
    W,
    Both,
}

#[inline(always)]
fn map2_same<A: Copy, Y>(same: Same, x: &[A], w: &[A], y: &mut [Y], f: impl Fn(A, A) -> Y) {
    match (same, x.first(), w.first()) {
        (Same::X, Some(&x), _) => map(w, y, |w| f(x, w)),
        (Same::W, _, Some(&w)) => map(x, y, |x| f(x, w)),
        (Same::Both, Some(&x), Some(&w)) => y.iter_mut().for_each(|y| *y = f(x, w)),
        _ => map2(x, w, y, f),
    }
}

/// An integer element. Operations are those of the rows on 64 bits, wrapped; the compiler narrows
/// them where it can.
pub(crate) trait Int: Pod + Ord + Send + Sync {
    /// The bits of a shift count that are looked at.
    const SHIFT: i64;
    fn wide(self) -> i64;
    fn wrap(x: i64) -> Self;
}

macro_rules! ints {
    ($($t:ty)*) => {$(
        impl Int for $t {
            const SHIFT: i64 = if size_of::<$t>() == 8 { 63 } else { 31 };
            #[inline(always)]
            fn wide(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn wrap(x: i64) -> $t {
                x as $t
            }
        }
    )*};
}
ints!(u8 u32 i32 i64);

/// Why a loop over elements knows no halves.
const HALVES: &str = "halves are computed as f32, checked when recorded";

/// `y = op(x)`.
pub(crate) fn unary(op: Unary, dtype: DType, x: &[u8], y: &mut [u8]) {
    match dtype {
        DType::F32 if op == Unary::IsNan => {
            map(cast_slice::<_, f32>(x), y, |x| u8::from(x.is_nan()));
        }
        DType::F64 if op == Unary::IsNan => {
            map(cast_slice::<_, f64>(x), y, |x| u8::from(x.is_nan()));
        }
        DType::F32 => unary_f32(op, cast_slice(x), cast_slice_mut(y)),
        DType::F64 => {
            let f = op.row().float.expect("the row takes floats, checked when recorded");
            map(cast_slice::<_, f64>(x), cast_slice_mut::<_, f64>(y), f);
        }
        _ if op == Unary::IsNan => y.fill(0),
        DType::Bool => map(x, y, |x: u8| (x ^ 1) & 1),
        DType::U8 => unary_int::<u8>(op, x, y),
        DType::U32 => unary_int::<u32>(op, cast_slice(x), cast_slice_mut(y)),
        DType::I32 => unary_int::<i32>(op, cast_slice(x), cast_slice_mut(y)),
        DType::I64 => unary_int::<i64>(op, cast_slice(x), cast_slice_mut(y)),
        DType::F16 | DType::BF16 => unreachable!("{HALVES}"),
    }
}

vectorised! {
    fn unary_f32<'a>(op: Unary, x: &'a [f32], y: &'a mut [f32]) {
        match op {
            Unary::Neg => map(x, y, |x| -x),
            Unary::Abs => map(x, y, f32::abs),
            Unary::Sign => map(x, y, |x| if x == 0.0 || x.is_nan() { x } else { 1f32.copysign(x) }),
            Unary::Recip => map(x, y, |x| 1.0 / x),
            Unary::Exp => map(x, y, math::exp),
            Unary::Exp2 => map(x, y, math::exp2),
            Unary::Expm1 => map(x, y, math::expm1),
            Unary::Log => map(x, y, math::log),
            Unary::Log2 => map(x, y, math::log2),
            Unary::Log1p => map(x, y, math::log1p),
            Unary::Sqrt => map(x, y, f32::sqrt),
            Unary::Rsqrt => map(x, y, |x| 1.0 / x.sqrt()),
            Unary::Sin => map(x, y, math::sin),
            Unary::Cos => map(x, y, math::cos),
            Unary::Tan => map(x, y, math::tan),
            Unary::Asin => map(x, y, math::asin),
            Unary::Acos => map(x, y, math::acos),
            Unary::Atan => map(x, y, math::atan),
            Unary::Sinh => map(x, y, math::sinh),
            Unary::Cosh => map(x, y, math::cosh),
            Unary::Tanh => map(x, y, math::tanh),
            Unary::Asinh => map(x, y, math::asinh),
            Unary::Acosh => map(x, y, math::acosh),
            Unary::Atanh => map(x, y, math::atanh),
            Unary::Sigmoid => map(x, y, math::sigmoid),
            Unary::Softplus => map(x, y, math::softplus),
            Unary::Relu => map(x, y, |x| if x <= 0.0 { 0.0 } else { x }),
            Unary::Erf => map(x, y, math::erf),
            Unary::Erfc => map(x, y, math::erfc),
            Unary::Floor => map(x, y, f32::floor),
            Unary::Ceil => map(x, y, f32::ceil),
            Unary::Round => map(x, y, f32::round_ties_even),
            Unary::Trunc => map(x, y, f32::trunc),
            Unary::Not | Unary::LeadingZeros | Unary::IsNan => unreachable!("not defined from f32 to f32"),
        }
    }
}

vectorised! {
    fn unary_int<'a, T: Int>(op: Unary, x: &'a [T], y: &'a mut [T]) {
        match op {
            Unary::Neg => map(x, y, |x| T::wrap(x.wide().wrapping_neg())),
            Unary::Not => map(x, y, |x| T::wrap(!x.wide())),
            _ => {
                let f = op.row().int.expect("the row takes integers, checked when recorded");
                map(x, y, |x| T::wrap(f(x.wide())));
            }
        }
    }
}

/// Whether [`binary`] looks at one element alone of an operand that is one number throughout.
pub(crate) fn takes_same(op: Binary, dtype: DType) -> bool {
    use Binary::{Add, Div, DivZero, Maximum, Minimum, Mul, MulZero, Sub};
    dtype == DType::F32 && matches!(op, Add | Sub | Mul | Div | Maximum | Minimum | MulZero | DivZero)
}

/// `y = op(x, w)`.
pub(crate) fn binary(op: Binary, dtype: DType, same: Same, x: &[u8], w: &[u8], y: &mut [u8]) {
    match dtype {
        DType::F32 if op.compares() => compare::<f32>(op, cast_slice(x), cast_slice(w), y),
        DType::F64 if op.compares() => compare::<f64>(op, cast_slice(x), cast_slice(w), y),
        DType::U32 if op.compares() => compare::<u32>(op, cast_slice(x), cast_slice(w), y),
        DType::I64 if op.compares() => compare::<i64>(op, cast_slice(x), cast_slice(w), y),
        DType::I32 if op.compares() => compare::<i32>(op, cast_slice(x), cast_slice(w), y),
        DType::U8 | DType::Bool if op.compares() => compare::<u8>(op, x, w, y),
        DType::F32 => binary_f32(op, same, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        DType::F64 => {
            let f = op.row().float.expect("the row takes floats, checked when recorded");
            map2(cast_slice::<_, f64>(x), cast_slice(w), cast_slice_mut::<_, f64>(y), f);
        }
        DType::Bool | DType::U8 => binary_int::<u8>(op, x, w, y),
        DType::U32 => binary_int::<u32>(op, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        DType::I32 => binary_int::<i32>(op, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        DType::I64 => binary_int::<i64>(op, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        DType::F16 | DType::BF16 => unreachable!("{HALVES}"),
    }
}

vectorised! {
    fn compare<'a, T: Pod + PartialOrd>(op: Binary, x: &'a [T], w: &'a [T], y: &'a mut [u8]) {
        match op {
            Binary::Eq => map2(x, w, y, |x, w| u8::from(x == w)),
            Binary::Ne => map2(x, w, y, |x, w| u8::from(x != w)),
            Binary::Lt => map2(x, w, y, |x, w| u8::from(x < w)),
            Binary::Le => map2(x, w, y, |x, w| u8::from(x <= w)),
            Binary::Gt => map2(x, w, y, |x, w| u8::from(x > w)),
            Binary::Ge => map2(x, w, y, |x, w| u8::from(x >= w)),
            _ => unreachable!("a comparison"),
        }
    }
}

vectorised! {
    fn binary_f32<'a>(op: Binary, same: Same, x: &'a [f32], w: &'a [f32], y: &'a mut [f32]) {
        match op {
            Binary::Add => map2_same(same, x, w, y, |x, w| x + w),
            Binary::Sub => map2_same(same, x, w, y, |x, w| x - w),
            Binary::Mul => map2_same(same, x, w, y, |x, w| x * w),
            Binary::Div => map2_same(same, x, w, y, |x, w| x / w),
            Binary::MulZero => map2_same(same, x, w, y, mul_zero),
            Binary::DivZero => map2_same(same, x, w, y, |x, w| if x == 0.0 { 0.0 } else { x / w }),
            Binary::Atan2 => map2(x, w, y, math::atan2),
            Binary::Hypot => map2(x, w, y, math::hypot),
            Binary::Copysign => map2(x, w, y, f32::copysign),
            Binary::Xlogy => {
                map2(x, w, y, |x, w| if x == 0.0 && !w.is_nan() { 0.0 } else { x * math::log(w) });
            }
            Binary::Pow => {
                map2(x, w, y, math::pow);
                for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                    if !(*x > 0.0 && *x < f32::INFINITY && w.is_finite()) {
                        *y = f64::from(*x).powf(f64::from(*w)) as f32;
                    }
                }
            }
            Binary::Maximum => map2_same(same, x, w, y, |x, w| if x > w || x.is_nan() { x } else { w }),
            Binary::Minimum => map2_same(same, x, w, y, |x, w| if x < w || x.is_nan() { x } else { w }),
            // Remainders, which f64 gives exactly.
            _ => {
                let f = op.row().float.expect("the row takes floats, checked when recorded");
                map2(x, w, y, |x, w| f(f64::from(x), f64::from(w)) as f32);
            }
        }
    }
}

#[inline(always)]
fn mul_zero(x: f32, w: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x * w }
}

vectorised! {
    fn binary_int<'a, T: Int>(op: Binary, x: &'a [T], w: &'a [T], y: &'a mut [T]) {
        match op {
            Binary::Add => map2(x, w, y, |x, w| T::wrap(x.wide().wrapping_add(w.wide()))),
            Binary::Sub => map2(x, w, y, |x, w| T::wrap(x.wide().wrapping_sub(w.wide()))),
            Binary::Mul => map2(x, w, y, |x, w| T::wrap(x.wide().wrapping_mul(w.wide()))),
            Binary::Maximum => map2(x, w, y, |x: T, w| x.max(w)),
            Binary::Minimum => map2(x, w, y, |x: T, w| x.min(w)),
            Binary::And => map2(x, w, y, |x, w| T::wrap(x.wide() & w.wide())),
            Binary::Or => map2(x, w, y, |x, w| T::wrap(x.wide() | w.wide())),
            Binary::Xor => map2(x, w, y, |x, w| T::wrap(x.wide() ^ w.wide())),
            Binary::Shl => map2(x, w, y, |x, w| T::wrap(x.wide() << (w.wide() & T::SHIFT))),
            Binary::Shr => map2(x, w, y, |x, w| T::wrap(x.wide() >> (w.wide() & T::SHIFT))),
            Binary::MulHigh => map2(x, w, y, |x, w| T::wrap(x.wide().wrapping_mul(w.wide()) >> 32)),
            _ => {
                let f = op.row().int.expect("the row takes integers, checked when recorded");
                map2(x, w, y, |x, w| T::wrap(f(x.wide(), w.wide())));
            }
        }
    }
}

/// `y = c ? x : w`.
pub(crate) fn select(dtype: DType, c: &[u8], x: &[u8], w: &[u8], y: &mut [u8]) {
    match dtype.bytes() {
        1 => select_as::<u8>(c, x, w, y),
        2 => select_as::<u16>(c, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        4 => select_as::<u32>(c, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
        _ => select_as::<u64>(c, cast_slice(x), cast_slice(w), cast_slice_mut(y)),
    }
}

vectorised! {
    fn select_as<'a, T: Pod>(c: &'a [u8], x: &'a [T], w: &'a [T], y: &'a mut [T]) {
        for (((y, c), x), w) in y.iter_mut().zip(c).zip(x).zip(w) {
            // Both are read whatever `c` is: a load that depends on it would be a jump.
            let (x, w) = (*x, *w);
            *y = if *c != 0 { x } else { w };
        }
    }
}

macro_rules! casts {
    ($from:ident $to:ident $x:ident $y:ident; $($fd:ident $ft:ty),*) => {
        match $from {
            $(DType::$fd => {
                let x: &[$ft] = cast_slice($x);
                match $to {
                    DType::Bool => map(x, $y, |x| u8::from(x != <$ft>::default())),
                    DType::U8 => map(x, $y, |x| x as u8),
                    DType::U32 => map(x, cast_slice_mut($y), |x| x as u32),
                    DType::I32 => map(x, cast_slice_mut($y), |x| x as i32),
                    DType::I64 => map(x, cast_slice_mut($y), |x| x as i64),
                    DType::F16 => map(x, cast_slice_mut($y), |x| math::to_f16(x as f32)),
                    DType::BF16 => map(x, cast_slice_mut($y), |x| math::to_bf16(x as f32)),
                    DType::F32 => map(x, cast_slice_mut($y), |x| x as f32),
                    DType::F64 => map(x, cast_slice_mut($y), |x| x as f64),
                }
            })*
            DType::F16 | DType::BF16 => unreachable!("widened first"),
        }
    };
}

/// `y = x` as another dtype: Rust's `as` is the definition (saturating from floats, else wrapping); halves are
/// rounded to the nearest, ties to even.
pub(crate) fn cast(from: DType, to: DType, x: &[u8], y: &mut [u8]) {
    const AT_ONCE: usize = 256;
    match (from, to) {
        (DType::F16 | DType::BF16, DType::F32) => halves::widen(from, cast_slice(x), cast_slice_mut(y)),
        (DType::F32, DType::F16) => halves::narrow(cast_slice(x), cast_slice_mut(y)),
        (DType::F16 | DType::BF16, _) => {
            let mut wide = [0f32; AT_ONCE];
            let parts = x.chunks(AT_ONCE * 2).zip(y.chunks_mut(AT_ONCE * to.bytes()));
            for (x, y) in parts {
                let wide = &mut wide[..x.len() / 2];
                halves::widen(from, cast_slice(x), wide);
                cast_plain(DType::F32, to, cast_slice(wide), y);
            }
        }
        // f64 is rounded once: by way of f32 a tie would be met that is none.
        (DType::F64, DType::F16 | DType::BF16) => {
            let narrow = |x: f64| match to {
                DType::F16 => f16::from_f64(to.round(x)).to_bits(),
                _ => bf16::from_f64(to.round(x)).to_bits(),
            };
            map(cast_slice::<_, f64>(x), cast_slice_mut::<_, u16>(y), narrow);
        }
        _ => cast_plain(from, to, x, y),
    }
}

vectorised! {
    /// `y = x`, halves as f32.
    fn widen<'a>(from: DType, x: &'a [u16], y: &'a mut [f32]) {
        match from {
            DType::F16 => map(x, y, math::from_f16),
            _ => map(x, y, |x| f32::from_bits(u32::from(x) << 16)),
        }
    }
}

vectorised! {
    /// `y = x` as f16.
    fn narrow<'a>(x: &'a [f32], y: &'a mut [u16]) {
        map(x, y, math::to_f16);
    }
}

vectorised! {
    /// As [`cast`], where `from` is no half.
    fn cast_plain<'a>(from: DType, to: DType, x: &'a [u8], y: &'a mut [u8]) {
        casts!(from to x y; Bool u8, U8 u8, U32 u32, I32 i32, I64 i64, F32 f32, F64 f64);
    }
}

vectorised! {
    /// Philox words of counters `first, first + stride, ..`.
    fn random<'a>(first: u32, stride: u32, step: u32, key: [u32; 2], y: &'a mut [u32]) {
        for (i, y) in (0u32..).zip(y.iter_mut()) {
            *y = philox([first.wrapping_add(i.wrapping_mul(stride)), 0, step, 0], key)[0];
        }
    }
}

/// `x` as the bytes of one element of `dtype`: floats round, integers truncate and wrap.
pub(crate) fn element(x: f64, dtype: DType) -> ([u8; 8], usize) {
    let mut bytes = [0; 8];
    match dtype {
        DType::Bool => bytes[0] = u8::from(x != 0.0),
        DType::U8 => bytes[0] = x as i64 as u8,
        DType::U32 => bytes[..4].copy_from_slice(&(x as i64 as u32).to_ne_bytes()),
        DType::I32 => bytes[..4].copy_from_slice(&(x as i64 as i32).to_ne_bytes()),
        DType::I64 => bytes.copy_from_slice(&(x as i64).to_ne_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(dtype.round(x)).to_ne_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&bf16::from_f64(dtype.round(x)).to_ne_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&(x as f32).to_ne_bytes()),
        DType::F64 => bytes.copy_from_slice(&x.to_ne_bytes()),
    }
    (bytes, dtype.bytes())
}

/// Fills `y` with copies of `element`, whose size is 1, 2, 4 or 8 bytes.
pub(crate) fn fill(element: &[u8], y: &mut [u8]) {
    match element.len() {
        1 => y.fill(element[0]),
        2 => cast_slice_mut::<_, u16>(y).fill(bytemuck::pod_read_unaligned(element)),
        4 => cast_slice_mut::<_, u32>(y).fill(bytemuck::pod_read_unaligned(element)),
        _ => cast_slice_mut::<_, u64>(y).fill(bytemuck::pod_read_unaligned(element)),
    }
}

/// `y[i] = x[first + i * stride]`, elements of `size` bytes.
pub(crate) fn copy_strided(size: usize, x: &[u8], first: i64, stride: i64, y: &mut [u8]) {
    fn go<T: Pod>(x: &[u8], first: i64, stride: i64, y: &mut [u8]) {
        let (x, y): (&[T], &mut [T]) = (cast_slice(x), cast_slice_mut(y));
        match stride {
            1 => y.copy_from_slice(&x[first as usize..][..y.len()]),
            0 => y.fill(x[first as usize]),
            _ => {
                let mut at = first;
                for y in y {
                    *y = x[at as usize];
                    at += stride;
                }
            }
        }
    }
    match size {
        1 => go::<u8>(x, first, stride, y),
        2 => go::<u16>(x, first, stride, y),
        4 => go::<u32>(x, first, stride, y),
        _ => go::<u64>(x, first, stride, y),
    }
}

/// `y[i] = x[at[i] - base]`, elements of `size` bytes; 0 where `at[i]` is negative.
pub(crate) fn pick(size: usize, x: &[u8], base: i64, at: &[i32], y: &mut [u8]) {
    fn go<T: Pod>(x: &[u8], base: i64, at: &[i32], y: &mut [u8]) {
        let (x, y): (&[T], &mut [T]) = (cast_slice(x), cast_slice_mut(y));
        for (y, at) in y.iter_mut().zip(at) {
            *y = if *at < 0 { T::zeroed() } else { x[(i64::from(*at) - base) as usize] };
        }
    }
    match size {
        1 => go::<u8>(x, base, at, y),
        2 => go::<u16>(x, base, at, y),
        4 => go::<u32>(x, base, at, y),
        _ => go::<u64>(x, base, at, y),
    }
}

vectorised! {
    fn count_words<'a>(first: i32, stride: i32, y: &'a mut [i32]) {
        for (i, y) in (0i32..).zip(y.iter_mut()) {
            *y = first.wrapping_add(stride.wrapping_mul(i));
        }
    }
}

/// `y[i] = first + i * stride` as elements of `dtype`.
pub(crate) fn count_up(dtype: DType, first: i64, stride: i64, y: &mut [u8]) {
    let size = dtype.bytes();
    match dtype {
        DType::I32 | DType::U32 if stride == 0 => cast_slice_mut(y).fill(first as i32),
        DType::I32 | DType::U32 => count_words(first as i32, stride as i32, cast_slice_mut(y)),
        _ => {
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                y.copy_from_slice(&element((first + i as i64 * stride) as f64, dtype).0[..size]);
            }
        }
    }
}

/// The numbers `at` as elements of `dtype`; 0 where they are negative.
pub(crate) fn counted(dtype: DType, at: &[i32], y: &mut [u8]) {
    let size = dtype.bytes();
    match dtype {
        DType::I32 | DType::U32 => {
            let y: &mut [i32] = cast_slice_mut(y);
            y.iter_mut().zip(at).for_each(|(y, at)| *y = (*at).max(0));
        }
        _ => {
            for (y, at) in y.chunks_exact_mut(size).zip(at) {
                y.copy_from_slice(&element(f64::from((*at).max(0)), dtype).0[..size]);
            }
        }
    }
}

vectorised! {
    /// A step of AdamW with the numbers rate1, rate2, scale1, scale2, eps, decay, lr: `w`, `m` and `v` become the new
    /// ones.
    fn adamw<'a>(numbers: [f32; 7], g: &'a [f32], w: &'a mut [f32], m: &'a mut [f32], v: &'a mut [f32]) {
        let [rate1, rate2, scale1, scale2, eps, decay, lr] = numbers;
        for (((g, w), m), v) in g.iter().zip(w).zip(m).zip(v) {
            *m += (g - *m) * rate1;
            *v += (g * g - *v) * rate2;
            let direction = *m * scale1 / ((*v * scale2).sqrt() + eps);
            *w -= (direction + *w * decay) * lr;
        }
    }
}

/// `y[first + i * stride] = x[i]`, elements of `size` bytes.
pub(crate) fn scatter_strided(size: usize, x: &[u8], y: &mut [u8], first: i64, stride: i64) {
    fn go<T: Pod>(x: &[u8], y: &mut [u8], first: i64, stride: i64) {
        let (x, y): (&[T], &mut [T]) = (cast_slice(x), cast_slice_mut(y));
        if stride == 1 {
            y[first as usize..][..x.len()].copy_from_slice(x);
            return;
        }
        let mut at = first;
        for x in x {
            y[at as usize] = *x;
            at += stride;
        }
    }
    match size {
        1 => go::<u8>(x, y, first, stride),
        2 => go::<u16>(x, y, first, stride),
        4 => go::<u32>(x, y, first, stride),
        _ => go::<u64>(x, y, first, stride),
    }
}
