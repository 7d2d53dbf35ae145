//! Halves as f32 and back, by the processor's instructions where it has them.

use wgrad_graph::DType;

use crate::{kernels, math};

/// `y = x`, halves of dtype `from` as f32.
pub(crate) fn widen(from: DType, x: &[u16], y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let (DType::F16, pulp::Arch::V4(simd)) = (from, pulp::Arch::new()) {
        return pulp::Simd::vectorize(simd, wide::Widen { simd, x, y });
    }
    kernels::widen(from, x, y);
}

/// `y = x` as f16: the nearest, ties to even.
pub(crate) fn narrow(x: &[f32], y: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if let pulp::Arch::V4(simd) = pulp::Arch::new() {
        return pulp::Simd::vectorize(simd, wide::Narrow { simd, x, y });
    }
    kernels::narrow(x, y);
}

/// Each of `y` is the sum of a chunk of f16, by the tree of [`crate::fold`]. Whether the processor has what that takes.
pub(crate) fn sums(x: &[u16], y: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let pulp::Arch::V4(simd) = pulp::Arch::new() {
        pulp::Simd::vectorize(simd, wide::Sums { simd, x, y });
        return true;
    }
    let _ = (x, y);
    false
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{__m256, __m512, __m512d};

    use pulp::x86::V4;

    use super::math;
    use crate::fold;

    /// Numbers that one instruction takes.
    const LANES: usize = 16;
    /// To the nearest, ties to even, without exceptions.
    const NEAREST: i32 = 8;

    /// A conversion element by element: of whole vectors by an instruction, of the rest by arithmetic.
    macro_rules! conversion {
        ($name:ident: $from:ty => $to:ty, $wide:ident $(::<$how:ident>)?, $one:path) => {
            pub(super) struct $name<'a> {
                pub(super) simd: V4,
                pub(super) x: &'a [$from],
                pub(super) y: &'a mut [$to],
            }

            impl pulp::WithSimd for $name<'_> {
                type Output = ();
                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _: S) {
                    let f = self.simd.avx512f;
                    let (x, x_rest) = self.x.as_chunks::<LANES>();
                    let (y, y_rest) = self.y.as_chunks_mut::<LANES>();
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = pulp::cast(f.$wide$(::<$how>)?(pulp::cast(*x)));
                    }
                    for (y, x) in y_rest.iter_mut().zip(x_rest) {
                        *y = $one(*x);
                    }
                }
            }
        };
    }
    conversion!(Widen: u16 => f32, _mm512_cvtph_ps, math::from_f16);
    conversion!(Narrow: f32 => u16, _mm512_cvtps_ph::<NEAREST>, math::to_f16);

    pub(super) struct Sums<'a> {
        pub(super) simd: V4,
        pub(super) x: &'a [u16],
        pub(super) y: &'a mut [f32],
    }

    impl pulp::WithSimd for Sums<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            let f = self.simd.avx512f;
            for (y, x) in self.y.iter_mut().zip(self.x.as_chunks::<{ fold::CHUNK }>().0) {
                let mut lanes: [__m512d; fold::LANES / 8] = [f._mm512_setzero_pd(); fold::LANES / 8];
                for row in x.as_chunks::<{ fold::LANES }>().0 {
                    let (pairs, _) = lanes.as_chunks_mut::<2>();
                    for (lanes, x) in pairs.iter_mut().zip(row.as_chunks::<LANES>().0) {
                        let wide: __m512 = f._mm512_cvtph_ps(pulp::cast(*x));
                        let [low, high]: [__m256; 2] = pulp::cast(wide);
                        lanes[0] = f._mm512_add_pd(lanes[0], f._mm512_cvtps_pd(low));
                        lanes[1] = f._mm512_add_pd(lanes[1], f._mm512_cvtps_pd(high));
                    }
                }
                let mut lanes: [f64; fold::LANES] = pulp::cast(lanes);
                fold::halve(&mut lanes, 1, |a, x| a + x);
                *y = lanes[0] as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_give_what_arithmetic_gives() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0f32; all.len()];
        widen(DType::F16, &all, &mut wide);
        for (x, y) in all.iter().zip(&wide) {
            let soft = math::from_f16(*x);
            assert!(
                soft.to_bits() == y.to_bits() || soft.is_nan() && y.is_nan(),
                "{x:#x} is {soft}, not {y}"
            );
        }
        // Every half, its neighbours, and the ties between.
        let mut floats: Vec<f32> = vec![f32::MAX, f32::INFINITY, 65519.996, 65520.0, 1e-40];
        for (x, next) in wide.iter().zip(&wide[1..]).filter(|(x, next)| x.is_finite() && next.is_finite()) {
            let tie = ((f64::from(*x) + f64::from(*next)) / 2.0) as f32;
            floats.extend([*x, tie, tie.next_up(), tie.next_down()]);
        }
        let mut narrowed = vec![0u16; floats.len()];
        narrow(&floats, &mut narrowed);
        for (x, y) in floats.iter().zip(&narrowed) {
            assert_eq!(math::to_f16(*x), *y, "{x}");
        }
        let mut nan = [0u16; 32];
        narrow(&[f32::NAN; 32], &mut nan);
        assert!(nan.iter().all(|x| math::from_f16(*x).is_nan()));
    }
}
