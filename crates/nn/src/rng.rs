//! Counter-based random numbers on the host: the same bits as the device operation `Random`.

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four words from
/// a counter and a key, by ten rounds of multiply, xor and swap.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let ([mut k0, mut k1], [mut c0, mut c1, mut c2, mut c3]) = (key, counter);
    for _ in 0..10 {
        let a = u64::from(c0) * 0xD251_1F53;
        let b = u64::from(c2) * 0xCD9E_8D57;
        (c0, c1, c2, c3) = ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
    }
    [c0, c1, c2, c3]
}

/// A key of random streams: a seed and a path of names. It has no state and no order of use: the same
/// seed, path, step and index give the same number on every device, in any order.
///
/// ```
/// use wgrad_nn::Rng;
/// let rng = Rng::seed(1);
/// assert_eq!(rng.at("fc1").at("weight"), rng.at("fc1.weight"));
/// assert_ne!(rng.at("fc1.weight").bits(0, 0), rng.at("fc2.weight").bits(0, 0));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rng {
    seed: u64,
    path: u64,
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

impl Rng {
    /// The root key of `seed`.
    pub fn seed(seed: u64) -> Rng {
        Rng { seed, path: FNV_START }
    }

    /// The key of the stream `name` below this one; names join with a dot.
    #[must_use]
    pub fn at(self, name: &str) -> Rng {
        let dot: &[u8] = if self.path == FNV_START { b"" } else { b"." };
        // FNV-1a: its state after "a.b" is the state after "a" continued with ".b", so a path hashes
        // alike whether it is given in one piece or in several.
        let path = dot
            .iter()
            .chain(name.as_bytes())
            .fold(self.path, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Rng { path, ..self }
    }

    /// The two key words of the stream: `seed ^ hash(path)`, low word first.
    pub fn key(self) -> [u32; 2] {
        // FNV leaves the high bits of short names weak; the finaliser of MurmurHash3 spreads them.
        let mut hash = self.path;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let key = self.seed ^ hash ^ hash >> 33;
        [key as u32, (key >> 32) as u32]
    }

    /// The 32 bits of element `index` at `step`: those of the device operation `Random` with row 0.
    pub fn bits(self, step: u32, index: u32) -> u32 {
        philox(self.key(), [index, 0, step, 0])[0]
    }

    /// A number in (0, 1), uniform on the 2^24 midpoints of a regular grid, so never 0 or 1.
    pub fn uniform(self, step: u32, index: u32) -> f64 {
        (f64::from(self.bits(step, index) >> 8) + 0.5) * (1.0 / f64::from(1 << 24))
    }

    /// A permutation of `0..n`, uniform (Fisher-Yates), the same for the same key and step.
    pub fn permutation(self, step: u32, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        let key = self.key();
        for last in (1..n).rev() {
            // 64 bits scaled to 0..=last: the bias is below n / 2^64.
            let [low, high, ..] = philox(key, [last as u32, (last as u64 >> 32) as u32, step, 1]);
            let bits = u128::from(low) | u128::from(high) << 32;
            order.swap(last, ((bits * (last as u128 + 1)) >> 64) as usize);
        }
        order
    }
}

/// The inverse of the standard normal distribution function for `p` in (0, 1): Wichura's algorithm
/// AS 241 (PPND16), relative error about 1e-16.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    // Coefficients from the highest power down, for Horner's rule.
    const A: [f64; 8] = [
        2.509_080_928_730_122_7e3,
        3.343_057_558_358_813e4,
        6.726_577_092_700_87e4,
        4.592_195_393_154_987e4,
        1.373_169_376_550_946e4,
        1.971_590_950_306_551_3e3,
        1.331_416_678_917_843_8e2,
        3.387_132_872_796_366_5,
    ];
    const B: [f64; 8] = [
        5.226_495_278_852_854e3,
        2.872_908_573_572_194_3e4,
        3.930_789_580_009_271e4,
        2.121_379_430_158_66e4,
        5.394_196_021_424_751e3,
        6.871_870_074_920_579e2,
        4.231_333_070_160_091e1,
        1.0,
    ];
    const C: [f64; 8] = [
        7.745_450_142_783_414e-4,
        2.272_384_498_926_918_4e-2,
        2.417_807_251_774_506e-1,
        1.270_458_252_452_368_4,
        3.647_848_324_763_204_5,
        5.769_497_221_460_691,
        4.630_337_846_156_546,
        1.423_437_110_749_683_5,
    ];
    const D: [f64; 8] = [
        1.050_750_071_644_416_9e-9,
        5.475_938_084_995_345e-4,
        1.519_866_656_361_645_7e-2,
        1.481_039_764_274_800_8e-1,
        6.897_673_349_851e-1,
        1.676_384_830_183_803_8,
        2.053_191_626_637_759,
        1.0,
    ];
    const E: [f64; 8] = [
        2.010_334_399_292_288_1e-7,
        2.711_555_568_743_487_6e-5,
        1.242_660_947_388_078_4e-3,
        2.653_218_952_657_612_4e-2,
        2.965_605_718_285_048_7e-1,
        1.784_826_539_917_291_3,
        5.463_784_911_164_114,
        6.657_904_643_501_103,
    ];
    const F: [f64; 8] = [
        2.044_263_103_389_939_8e-15,
        1.421_511_758_316_446e-7,
        1.846_318_317_510_054_8e-5,
        7.868_691_311_456_133e-4,
        1.487_536_129_085_061_5e-2,
        1.369_298_809_227_358e-1,
        5.998_322_065_558_879e-1,
        1.0,
    ];
    let ratio = |num: &[f64; 8], den: &[f64; 8], r: f64| {
        let horner = |c: &[f64; 8]| c.iter().fold(0.0, |sum, c| sum * r + c);
        horner(num) / horner(den)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(&A, &B, 0.180_625 - q * q);
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let x = if r <= 5.0 { ratio(&C, &D, r - 1.6) } else { ratio(&E, &F, r - 5.0) };
    x.copysign(q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 2], [!0; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let answer = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox([0xa409_3822, 0x299f_31d0], pi), answer);
    }

    #[test]
    fn a_permutation_holds_each_index_once_and_changes_with_step_and_seed() {
        let rng = Rng::seed(7);
        let order = rng.permutation(0, 1000);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert_eq!(order, rng.permutation(0, 1000));
        assert_ne!(order, rng.permutation(1, 1000));
        assert_ne!(order, Rng::seed(8).permutation(0, 1000));
        assert!(rng.permutation(0, 0).is_empty());
    }

    #[test]
    fn each_place_of_a_permutation_is_uniform() {
        let mut counts = [[0u32; 5]; 5];
        for step in 0..20_000 {
            for (place, item) in Rng::seed(3).permutation(step, 5).into_iter().enumerate() {
                counts[place][item] += 1;
            }
        }
        // 4000 expected, standard deviation 57.
        assert!(counts.iter().flatten().all(|n| n.abs_diff(4000) < 300), "{counts:?}");
    }

    #[test]
    fn the_normal_quantile_has_known_values() {
        for (p, x) in [
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (0.841_344_746_068_542_9, 1.0),
            (0.25, -0.674_489_750_196_081_7),
            (1e-10, -6.361_340_902_404_056),
            (1e-20, -9.262_340_089_798_408),
        ] {
            assert!(
                (normal_quantile(p) - x).abs() <= 1e-13 * x.abs().max(1.0),
                "{p}: {}",
                normal_quantile(p)
            );
        }
    }
}
