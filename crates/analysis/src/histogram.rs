//! Durations counted in buckets, for a median in bounded memory.
//!
//! Each power of two is divided into 64 buckets, so a bucket is at most 1/64 of its lower bound wide, and its middle
//! differs by at most 0.8 % from any value in it. Below 128 every value has its own bucket. There are at most 3,776
//! buckets (30 KB). The histogram allocates them up to the largest value, and only those in use while they are few:
//! memory grows with the number of distinct values, not with one large value.

const BITS: u32 = 6;
const PER_OCTAVE: u64 = 1 << BITS;

/// Up to FEW buckets in use are always stored sparsely, by number. More become a dense array if at least one in DENSE
/// of its entries is in use.
const FEW: usize = 32;
const DENSE: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Sorted numbers of the buckets in use; empty if the array is dense.
    few: Vec<u16>,
    /// Counts of the buckets in `few`, or of all buckets if dense.
    buckets: Vec<u64>,
    /// Number of dense buckets in use.
    used: usize,
    count: u64,
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        self.add_to(bucket(value), 1);
    }

    fn add_to(&mut self, at: usize, more: u64) {
        self.count += more;
        if self.buckets.len() == self.few.len() {
            // There are 3,776 buckets, which fit into u16.
            match self.few.binary_search(&(at as u16)) {
                Ok(known) => {
                    if let Some(count) = self.buckets.get_mut(known) {
                        *count += more;
                    }
                }
                Err(place) => {
                    self.few.insert(place, at as u16);
                    self.buckets.insert(place, more);
                    self.lay_out();
                }
            }
            return;
        }
        if at >= self.buckets.len() {
            if (self.used + 1) * DENSE <= at {
                self.gather();
                self.add_to(at, more);
                self.count -= more;
                return;
            }
            self.buckets.resize(at + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(at) {
            self.used += usize::from(*count == 0);
            *count += more;
        }
    }

    /// Converts to a dense array, if that is worth its memory.
    fn lay_out(&mut self) {
        let length = self.few.last().map_or(0, |most| usize::from(*most) + 1);
        if self.few.len() <= FEW || self.few.len() * DENSE < length {
            return;
        }
        let counts = std::mem::replace(&mut self.buckets, vec![0; length]);
        let few = std::mem::take(&mut self.few);
        self.used = few.len();
        for (at, count) in few.iter().zip(counts) {
            if let Some(bucket) = self.buckets.get_mut(usize::from(*at)) {
                *bucket = count;
            }
        }
    }

    /// Converts back to sparse: a value far above all others would make the array long.
    fn gather(&mut self) {
        let row = std::mem::take(&mut self.buckets);
        for (at, count) in row.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            self.few.push(at as u16);
            self.buckets.push(count);
        }
    }

    /// Each bucket that may be in use and its count, the lowest first.
    fn each(&self) -> Vec<(usize, u64)> {
        if self.few.is_empty() {
            return self.buckets.iter().copied().enumerate().collect();
        }
        self.few.iter().map(|at| usize::from(*at)).zip(self.buckets.iter().copied()).collect()
    }

    /// Adds the values of the other histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (at, count) in other.each().into_iter().filter(|(_, count)| *count > 0) {
            self.add_to(at, count);
        }
    }

    /// Number of values between each power of two and the next, up to the largest value.
    pub fn by_octave(&self) -> Vec<u64> {
        let mut octaves: Vec<u64> = Vec::new();
        for (at, count) in self.each().into_iter().filter(|(_, count)| *count > 0) {
            let octave = middle(at as u64).max(1).ilog2() as usize;
            if octaves.len() <= octave {
                octaves.resize(octave + 1, 0);
            }
            if let Some(sum) = octaves.get_mut(octave) {
                *sum += count;
            }
        }
        octaves
    }

    /// For an even number of values, the mean of the middle two.
    pub fn median(&self) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let low = self.value_at((self.count - 1) / 2);
        let high = self.value_at(self.count / 2);
        low + (high - low) / 2
    }

    /// The value that has `rank` smaller ones before it.
    pub fn value_at(&self, rank: u64) -> u64 {
        let mut before = 0;
        for (at, count) in self.each() {
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
    fn few_or_many_buckets_say_the_same() {
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
        assert!(all.few.is_empty());
        let mut few = Histogram::default();
        few.add(u64::MAX);
        few.add(3);
        assert!((few.few.len(), few.buckets.len()) == (2, 2) && few.value_at(0) == 3);
        let [mut merged, other] = parts;
        merged.merge(&other);
        for rank in 0..200 {
            assert_eq!(merged.value_at(rank), all.value_at(rank));
        }
        merged.merge(&few);
        assert_eq!(merged.value_at(201), few.value_at(1));
    }

    /// A few calls must not allocate a long array: a trace may have very many functions.
    #[test]
    fn memory_grows_with_the_values_seen() {
        let mut h = Histogram::default();
        let mut values: Vec<u64> = (0..100).chain([u64::MAX, 1 << 50, 7, 1 << 40]).collect();
        for (seen, value) in values.iter().enumerate() {
            h.add(*value);
            assert!(h.buckets.len() <= (seen + 1) * DENSE + FEW, "{seen}: {}", h.buckets.len());
        }
        values.sort_unstable();
        for (rank, value) in values.iter().enumerate() {
            assert_eq!(h.value_at(rank as u64), middle(bucket(*value) as u64));
        }
        assert_eq!(h.count, 104);
        let all: Vec<u64> = (0..3776).map(middle).collect();
        all.iter().for_each(|value| h.add(*value));
        assert!(h.few.is_empty() && h.buckets.len() == 3776);
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
