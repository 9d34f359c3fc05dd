//! Durations counted in buckets, for a median in bounded memory.
//!
//! Each power of two is divided into 64 buckets, so a bucket is at most 1/64
//! of its lower bound wide and its middle at most 0.8 % from any value in it.
//! Below 128 every value has its own. At most 3,776 buckets (30 KB), of which
//! only those up to the largest value exist.

const BITS: u32 = 6;
const PER_OCTAVE: u64 = 1 << BITS;

#[derive(Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        let at = bucket(value);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
    }

    /// Of an even number of values, half way between the two in the middle.
    pub fn median(&self) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let low = self.value_at((self.count - 1) / 2);
        let high = self.value_at(self.count / 2);
        low + (high - low) / 2
    }

    /// The value with `rank` smaller ones before it.
    fn value_at(&self, rank: u64) -> u64 {
        let mut before = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            before += count;
            if before > rank {
                return middle(at as u64);
            }
        }
        0
    }
}

fn bucket(value: u64) -> usize {
    let octave = (value | PER_OCTAVE).ilog2() - BITS;
    (u64::from(octave) * PER_OCTAVE + (value >> octave)) as usize
}

/// The middle of a bucket: the inverse of `bucket`.
fn middle(at: u64) -> u64 {
    let octave = (at / PER_OCTAVE).saturating_sub(1);
    let lowest = (at - octave * PER_OCTAVE) << octave;
    lowest + ((1u64 << octave) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_within_one_percent_of_its_values() {
        let mut value = 0u64;
        while value < u64::MAX / 2 {
            for v in [value, value + 1, value + value / 3] {
                let error = middle(bucket(v) as u64).abs_diff(v);
                assert!(error <= v / 100, "{v}: off by {error}");
            }
            value += value / 8 + 1;
        }
        assert!(middle(bucket(u64::MAX) as u64) > u64::MAX / 128 * 127);
        assert_eq!(bucket(u64::MAX), 3775);
    }

    #[test]
    fn small_values_are_exact() {
        for v in 0..128 {
            assert_eq!(middle(bucket(v) as u64), v);
        }
    }

    #[test]
    fn the_median_is_between_the_two_in_the_middle() {
        let mut h = Histogram::default();
        assert_eq!(h.median(), 0);
        for v in [10, 20, 30, 100] {
            h.add(v);
        }
        assert_eq!(h.median(), 25);
        h.add(31);
        assert_eq!(h.median(), 30);
    }
}
