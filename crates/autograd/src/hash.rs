//! Maps whose keys are small numbers that this crate made itself: nobody can choose them so that they collide, so a
//! multiplication is hash enough. Passes are recorded, cut and looked up by such maps at every step.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Fast>>;
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<Fast>>;

/// Multiplies and rotates, a word at a time.
#[derive(Copy, Clone, Default)]
pub(crate) struct Fast(u64);

/// An odd number with bits everywhere: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Fast {
    fn take(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.take(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        if !rest.is_empty() {
            self.take(u64::from_le_bytes(last));
        }
    }

    fn write_u8(&mut self, x: u8) {
        self.take(x.into());
    }

    fn write_u32(&mut self, x: u32) {
        self.take(x.into());
    }

    fn write_u64(&mut self, x: u64) {
        self.take(x);
    }

    fn write_usize(&mut self, x: usize) {
        self.take(x as u64);
    }

    /// The table takes its place from the low bits and its tag from the high ones: both want mixed bits.
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn small_keys_spread_over_places_and_tags() {
        let of = |key: (u32, u32)| BuildHasherDefault::<Fast>::default().hash_one(key);
        let all: Vec<u64> = (0..4096).map(|i| of((i, i % 3))).collect();
        let distinct = |f: fn(&u64) -> u64| all.iter().map(f).collect::<HashSet<_>>().len();
        assert_eq!(distinct(|h| *h), 4096);
        assert!(distinct(|h| h & 0xfff) > 2000, "places");
        assert_eq!(distinct(|h| h >> 57), 128, "tags");
    }

    #[test]
    fn bytes_hash_by_all_of_them() {
        let of = |bytes: &[u8]| {
            let mut hasher = Fast::default();
            hasher.write(bytes);
            hasher.finish()
        };
        assert_ne!(of(b"123456789"), of(b"12345678"));
        assert_ne!(of(b"123456789"), of(b"123456780"));
        assert_ne!(of(b"0"), of(b"1"));
    }
}
