//! Divides time into buckets when the total length is still unknown: a fixed number of buckets, whose width doubles
//! whenever they do not suffice. Memory does not grow with the trace.

/// The time scale that all buckets of one picture share.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub start_ns: u64,
    pub bucket_ns: u64,
    /// Maximum number of buckets; even.
    most: usize,
}

impl Scale {
    /// A long trace ends with between `most / 2` and `most` buckets in use.
    pub fn new(start_ns: u64, most: usize) -> Scale {
        Scale { start_ns, bucket_ns: 64, most: most.max(2).next_multiple_of(2) }
    }

    /// Makes room for a time. Returns how many times the width of the buckets doubled.
    pub fn reach(&mut self, ts_ns: u64) -> u32 {
        let mut times = 0;
        while ts_ns.saturating_sub(self.start_ns) / self.bucket_ns >= self.most as u64 {
            self.bucket_ns = self.bucket_ns.saturating_mul(2);
            times += 1;
        }
        times
    }

    pub fn bucket(&self, ts_ns: u64) -> usize {
        let at = ts_ns.saturating_sub(self.start_ns) / self.bucket_ns;
        usize::try_from(at).unwrap_or(usize::MAX).min(self.most - 1)
    }

    pub fn begins_ns(&self, bucket: usize) -> u64 {
        self.start_ns.saturating_add(self.bucket_ns.saturating_mul(bucket as u64))
    }
}

/// Merges pairs of buckets, as many times as `reach` returned.
pub fn halve<T: Copy + Default>(buckets: &mut Vec<T>, times: u32, join: impl Fn(T, T) -> T) {
    for _ in 0..times {
        let joined = |pair: &[T]| match pair {
            [a, b] => join(*a, *b),
            [a] => *a,
            _ => T::default(),
        };
        *buckets = buckets.chunks(2).map(joined).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_the_trace() {
        let mut scale = Scale::new(1000, 8);
        assert_eq!((scale.reach(1000), scale.bucket(1000), scale.bucket(0)), (0, 0, 0));
        assert_eq!((scale.reach(1000 + 8 * 64 - 1), scale.bucket(1511)), (0, 7));
        let mut counts = vec![1, 2, 3, 4, 5, 6, 7];
        let times = scale.reach(1000 + 8 * 64);
        halve(&mut counts, times, |a, b| a + b);
        assert_eq!((times, scale.bucket_ns, scale.bucket(1512), counts), (1, 128, 4, vec![3, 7, 11, 7]));
        assert_eq!(scale.begins_ns(4), 1512);
        scale.reach(u64::MAX);
        assert!(scale.bucket(u64::MAX) < 8 && scale.bucket(u64::MAX) >= 4);
    }
}
