//! Durations counted in buckets, for a median in bounded memory.
//!
//! Each power of two is divided into 64 buckets, so a bucket is at most 1/64 of its lower bound wide, and its middle
//! differs by at most 0.8 % from any value in it. Below 128 every value has its own bucket. There are at most 3,776
//! buckets, of which only those in use are stored, and no more than three empty ones for each of them: memory grows with
//! the number of distinct values.

use gpurec_trace::hash::Map;

const BITS: u32 = 6;
const PER_OCTAVE: usize = 1 << BITS;
/// An octave with this number of buckets in use has an array, where a count is found without hashing.
const DENSE: usize = PER_OCTAVE / 4;

#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// The buckets of octaves without an array.
    sparse: Map<u16, u64>,
    /// By octave: all its buckets; empty if it has no array.
    dense: Vec<Vec<u64>>,
    count: u64,
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        self.add_to(bucket(value), 1);
    }

    fn add_to(&mut self, bucket: u16, count: u64) {
        self.count += count;
        let (octave, at) = (usize::from(bucket) / PER_OCTAVE, usize::from(bucket) % PER_OCTAVE);
        if let Some(sum) = self.dense.get_mut(octave).and_then(|counts| counts.get_mut(at)) {
            *sum += count;
            return;
        }
        let known = self.sparse.len();
        *self.sparse.entry(bucket).or_default() += count;
        if self.sparse.len() > known {
            self.make_dense(octave);
        }
    }

    /// Gives the octave an array if enough of its buckets are in use.
    fn make_dense(&mut self, octave: usize) {
        let buckets = (octave * PER_OCTAVE) as u16..((octave + 1) * PER_OCTAVE) as u16;
        if buckets.clone().filter(|bucket| self.sparse.contains_key(bucket)).count() < DENSE {
            return;
        }
        if self.dense.len() <= octave {
            self.dense.resize(octave + 1, Vec::new());
        }
        if let Some(counts) = self.dense.get_mut(octave) {
            *counts = buckets.map(|bucket| self.sparse.remove(&bucket).unwrap_or(0)).collect();
        }
    }

    /// The buckets that have values, in order, with the number of these.
    fn buckets(&self) -> Vec<(u16, u64)> {
        let sparse = self.sparse.iter().map(|(bucket, count)| (*bucket, *count));
        let dense = self.dense.iter().enumerate().flat_map(|(octave, counts)| {
            (octave * PER_OCTAVE..).zip(counts).map(|(bucket, count)| (bucket as u16, *count))
        });
        let mut all: Vec<_> = sparse.chain(dense).filter(|(_, count)| *count > 0).collect();
        all.sort_unstable();
        all
    }

    /// Adds the values of the other histogram.
    pub fn merge(&mut self, other: &Histogram) {
        other.buckets().into_iter().for_each(|(at, count)| self.add_to(at, count));
    }

    /// Number of values between each power of two and the next, up to the largest value.
    pub fn by_octave(&self) -> Vec<u64> {
        let octave = |at: u16| middle(at).max(1).ilog2() as usize;
        let buckets = self.buckets();
        let mut octaves = vec![0; buckets.last().map_or(0, |(at, _)| octave(*at) + 1)];
        for (at, count) in buckets {
            if let Some(sum) = octaves.get_mut(octave(at)) {
                *sum += count;
            }
        }
        octaves
    }

    /// For an even number of values, the mean of the middle two.
    pub fn median(&self) -> u64 {
        let low = self.value_at(self.count.saturating_sub(1) / 2);
        let high = self.value_at(self.count / 2);
        low + (high - low) / 2
    }

    /// The value that has `rank` smaller ones before it; 0 if there is none.
    pub fn value_at(&self, rank: u64) -> u64 {
        let mut before = 0;
        let is_it = |(_, count): &(u16, u64)| {
            before += count;
            before > rank
        };
        self.buckets().into_iter().find(is_it).map_or(0, |(at, _)| middle(at))
    }
}

fn bucket(value: u64) -> u16 {
    let octave = (value | PER_OCTAVE as u64).ilog2() - BITS;
    // At most 3,775.
    (u64::from(octave) * PER_OCTAVE as u64 + (value >> octave)) as u16
}

/// The middle of a bucket: the inverse of `bucket`.
fn middle(at: u16) -> u64 {
    let (at, width) = (u64::from(at), PER_OCTAVE as u64);
    let octave = (at / width).saturating_sub(1);
    let lowest = (at - octave * width) << octave;
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
                let error = middle(bucket(v)).abs_diff(v);
                assert!(error <= v / 100, "{v}: off by {error}");
            }
            value += value / 8 + 1;
        }
        assert!(middle(bucket(u64::MAX)) > u64::MAX / 128 * 127);
        assert_eq!(bucket(u64::MAX), 3775);
    }

    #[test]
    fn merged_parts_say_the_same() {
        let mut all = Histogram::default();
        let mut parts = [Histogram::default(), Histogram::default()];
        let mut values: Vec<u64> = Vec::new();
        for i in 0..200u64 {
            let value = i * 7919 % 97;
            values.push(value);
            values.sort_unstable();
            all.add(value);
            parts[(i % 2) as usize].add(value);
            for (rank, value) in values.iter().enumerate() {
                assert_eq!(all.value_at(rank as u64), *value, "{i}");
            }
        }
        let mut few = Histogram::default();
        few.add(u64::MAX);
        few.add(3);
        assert!(few.buckets().len() == 2 && few.value_at(0) == 3);
        let [mut merged, other] = parts;
        merged.merge(&other);
        for rank in 0..200 {
            assert_eq!(merged.value_at(rank), all.value_at(rank));
        }
        merged.merge(&few);
        assert_eq!(merged.value_at(201), few.value_at(1));
    }

    /// A trace may have very many functions of a few calls each.
    #[test]
    fn memory_grows_with_the_values_seen() {
        let mut h = Histogram::default();
        let mut values: Vec<u64> = (0..100).chain([u64::MAX, 1 << 50, 7, 1 << 40]).collect();
        for (seen, value) in values.iter().enumerate() {
            h.add(*value);
            let stored = h.sparse.len() + h.dense.iter().map(Vec::len).sum::<usize>();
            assert!(stored <= 4 * (seen + 1), "{seen}: {stored}");
        }
        values.sort_unstable();
        for (rank, value) in values.iter().enumerate() {
            assert_eq!(h.value_at(rank as u64), middle(bucket(*value)));
        }
        assert_eq!(h.count, 104);
        (0..3776).map(middle).for_each(|value| h.add(value));
        assert_eq!(h.buckets().len(), 3776);
    }

    #[test]
    fn small_values_are_exact() {
        for v in 0..128 {
            assert_eq!(middle(bucket(v)), v);
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
