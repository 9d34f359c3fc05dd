//! A map for the few maps that every line of a trace uses, where the standard hash took a tenth of the time. Its seed
//! is random, as the standard hash's is, so that a trace cannot be made to collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

pub type Map<K, V> = HashMap<K, V, Seed>;

#[derive(Clone)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Seed(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seed {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix(self.0)
    }
}

pub struct Mix(u64);

impl Mix {
    /// Both halves of the product depend on all bits of the input.
    fn mix(&mut self, n: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ n) * u128::from(ODD);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.mix(u64::from_le_bytes(*chunk));
        }
        let mut last = rest.len() as u64;
        for byte in rest {
            last = (last << 8) | u64::from(*byte);
        }
        self.mix(last);
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Consecutive numbers, multiples of a power of two and similar names must not collide.
    #[test]
    fn what_is_alike_is_spread() {
        let seed = Seed::default();
        let numbers = (0..4096u64).map(|n| seed.hash_one(n));
        let pages = (0..4096u64).map(|n| seed.hash_one(n << 20));
        let pairs = (0..4096u32).map(|n| seed.hash_one((1000u32, n)));
        let names = (0..4096).map(|n| seed.hash_one(format!("cuFunction{n}")));
        let sorts: [Vec<u64>; 4] = [numbers.collect(), pages.collect(), pairs.collect(), names.collect()];
        for (i, hashes) in sorts.iter().enumerate() {
            // A table of 4096 uses the lowest bits, and the highest seven to distinguish entries.
            let mut buckets = vec![0; 4096];
            for hash in hashes {
                buckets[(*hash % 4096) as usize] += 1;
            }
            let fullest = buckets.iter().max().copied().unwrap_or(0);
            let tops: std::collections::HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(fullest < 16 && tops.len() > 100, "{i}: {fullest} {}", tops.len());
        }
    }

    #[test]
    fn every_map_has_its_own_seed() {
        assert_ne!(Seed::default().hash_one(1u64), Seed::default().hash_one(1u64));
    }
}
