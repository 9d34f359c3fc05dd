//! How some durations are spread: the statistics that nsys prints of calls and of kernels. In: durations. Out: their
//! number, sum, average, median, extremes and standard deviation. The median is within 1 %, everything else is exact.

use super::histogram::Histogram;

#[derive(Clone, Debug)]
pub struct Spread {
    pub count: u64,
    pub total: u128,
    squares: u128,
    min: u64,
    max: u64,
    values: Histogram,
}

/// The statistics of at least one duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub count: u64,
    pub total_ns: u64,
    pub avg_ns: u64,
    pub med_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub stddev_ns: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Spread { count: 0, total: 0, squares: 0, min: u64::MAX, max: 0, values: Histogram::default() }
    }
}

impl Spread {
    pub fn add(&mut self, ns: u64) {
        let wide = u128::from(ns);
        self.count += 1;
        self.total += wide;
        self.squares = self.squares.saturating_add(wide * wide);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        self.values.add(ns);
    }

    pub fn merge(&mut self, other: &Spread) {
        self.count += other.count;
        self.total += other.total;
        self.squares = self.squares.saturating_add(other.squares);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.values.merge(&other.values);
    }

    /// None if there is no duration.
    pub fn statistics(&self) -> Option<Statistics> {
        let count = u128::from(self.count);
        let average = self.total.checked_div(count)?;
        Some(Statistics {
            count: self.count,
            total_ns: narrow(self.total),
            avg_ns: narrow(average + u128::from(self.total % count * 2 >= count)),
            // The middle of a histogram bucket may lie outside its values.
            med_ns: self.values.median().clamp(self.min, self.max),
            min_ns: self.min,
            max_ns: self.max,
            stddev_ns: self.deviation(),
        })
    }

    /// The smallest value that this share of the values does not exceed, within 1 %. The share is in thousandths.
    pub fn permille(&self, share: u64) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(share)).div_ceil(1000);
        let rank = narrow(rank).clamp(1, self.count.max(1));
        (self.count > 0).then(|| self.values.value_at(rank - 1).clamp(self.min, self.max))
    }

    /// Standard deviation of a sample (division by n - 1), as in nsys.
    fn deviation(&self) -> u64 {
        let count = u128::from(self.count);
        if count < 2 {
            return 0;
        }
        let exact = count
            .checked_mul(self.squares)
            .zip(self.total.checked_mul(self.total))
            .map(|(a, b)| a.saturating_sub(b));
        let spread = match exact {
            Some(spread) => spread as f64,
            // The sum exceeds 128 bits: a less exact result suffices at that size.
            None => {
                let total = self.total as f64;
                (count as f64 * self.squares as f64 - total * total).max(0.0)
            }
        };
        let n = count as f64;
        (spread / (n * (n - 1.0))).sqrt().round() as u64
    }
}

pub fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
