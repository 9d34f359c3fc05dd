//! A line between bounds: where the difference of two clocks lies, if it changes evenly. In: times at which it was at
//! most or at least some value. Out: the middle of all lines that no bound excludes, and how far it can be from the
//! truth. Not here: where the bounds come from.
//!
//! Times and values are in nanoseconds; `f64` is exact enough, since both are taken relative to the first bound.

/// No two clocks of computers run further apart than this.
const MOST_DRIFT: f64 = 1e-3;
/// A hull with more points than this is thinned. Fewer bounds are still true bounds.
const MOST_POINTS: usize = 256;
const ROUNDS: usize = 60;

/// One side of the band: only the points that a line can touch are kept.
#[derive(Clone, Debug, Default)]
struct Side {
    points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Bounds {
    origin: Option<(i64, i64)>,
    at_most: Side,
    /// Negated, so that both sides are bounds from above.
    at_least: Side,
    last: f64,
    pub count: u64,
}

/// The difference at both ends of the observed time, each with the most by which it can be wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    pub from_ns: i64,
    pub to_ns: i64,
    pub at_from_ns: f64,
    pub at_to_ns: f64,
    pub error_ns: f64,
    /// The bounds contradict each other by this: the clocks did not run evenly. It is part of the error.
    pub uneven_ns: f64,
}

impl Side {
    fn add(&mut self, time: f64, value: f64) {
        self.points.push((time, value));
        if self.points.len() >= 4 * MOST_POINTS {
            self.prune();
        }
    }

    /// Keeps the lower convex hull.
    fn prune(&mut self) {
        self.points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut hull: Vec<(f64, f64)> = Vec::new();
        for point in self.points.drain(..) {
            while let [.., a, b] = hull[..] {
                let above = (b.0 - a.0) * (point.1 - a.1) - (b.1 - a.1) * (point.0 - a.0) <= 0.0;
                if !above {
                    break;
                }
                hull.pop();
            }
            hull.push(point);
        }
        if hull.len() > MOST_POINTS {
            let every = hull.len().div_ceil(MOST_POINTS);
            hull = hull.into_iter().step_by(every).collect();
        }
        self.points = hull;
    }

    /// The least value at the time 0 of a line with that slope.
    fn least(&self, slope: f64) -> f64 {
        self.points.iter().map(|(time, value)| value - slope * time).fold(f64::INFINITY, f64::min)
    }
}

impl Bounds {
    fn place(&mut self, time_ns: i64, value_ns: i64) -> (f64, f64) {
        let (time, value) = *self.origin.get_or_insert((time_ns, value_ns));
        self.count += 1;
        let place = (time_ns.saturating_sub(time) as f64, value_ns.saturating_sub(value) as f64);
        self.last = self.last.max(place.0);
        place
    }

    pub fn at_most(&mut self, time_ns: i64, value_ns: i64) {
        let (time, value) = self.place(time_ns, value_ns);
        self.at_most.add(time, value);
    }

    pub fn at_least(&mut self, time_ns: i64, value_ns: i64) {
        let (time, value) = self.place(time_ns, value_ns);
        self.at_least.add(time, -value);
    }

    /// None: one of the sides has no bound.
    pub fn band(&self) -> Option<Band> {
        let mut pruned = self.clone();
        pruned.at_most.prune();
        pruned.at_least.prune();
        if pruned.at_most.points.is_empty() || pruned.at_least.points.is_empty() {
            return None;
        }
        let (time, value) = self.origin?;
        let room = |slope: f64| pruned.at_most.least(slope) + pruned.at_least.least(-slope);
        let best = highest(-MOST_DRIFT, MOST_DRIFT, room);
        // Where no line fits, each bound is moved by as little as lets one fit.
        let uneven = (-room(best) / 2.0).max(0.0) * (1.0 + 1e-9);
        let fits = |slope: f64| room(slope) + 2.0 * uneven >= -1e-6;
        let (low, high) = (edge(best, -MOST_DRIFT, fits), edge(best, MOST_DRIFT, fits));
        let at = |time: f64| {
            let top = |slope: f64| pruned.at_most.least(slope) + uneven + slope * time;
            let bottom = |slope: f64| pruned.at_least.least(-slope) + uneven - slope * time;
            (-bottom(highest(low, high, bottom)), top(highest(low, high, top)))
        };
        let (from, to) = (at(0.0), at(self.last));
        let middle = |(least, most): (f64, f64)| (least + most) / 2.0;
        let half = |(least, most): (f64, f64)| ((most - least) / 2.0).max(0.0);
        Some(Band {
            from_ns: time,
            to_ns: time.saturating_add(self.last as i64),
            at_from_ns: value as f64 + middle(from),
            at_to_ns: value as f64 + middle(to),
            error_ns: half(from).max(half(to)) + uneven,
            uneven_ns: uneven,
        })
    }
}

impl Band {
    pub fn drift(&self) -> f64 {
        let ns = self.to_ns.saturating_sub(self.from_ns) as f64;
        if ns > 0.0 { (self.at_to_ns - self.at_from_ns) / ns } else { 0.0 }
    }

    /// The error from a time on, which may be before the first bound.
    pub fn error_from(&self, time_ns: i64) -> f64 {
        let (before, span) = (
            self.from_ns.saturating_sub(time_ns).max(0) as f64,
            self.to_ns.saturating_sub(self.from_ns).max(1) as f64,
        );
        self.error_ns * (1.0 + 2.0 * before / span)
    }

    pub fn at(&self, time_ns: i64) -> f64 {
        self.at_from_ns + self.drift() * time_ns.saturating_sub(self.from_ns) as f64
    }
}

/// Where a concave function is highest.
fn highest(mut low: f64, mut high: f64, of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..ROUNDS * 2 {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if of(left) < of(right) { low = left } else { high = right }
    }
    (low + high) / 2.0
}

/// The last slope that fits on the way from one that does to the limit.
fn edge(mut fits: f64, mut limit: f64, is_fit: impl Fn(f64) -> bool) -> f64 {
    if is_fit(limit) {
        return limit;
    }
    for _ in 0..ROUNDS {
        let middle = (fits + limit) / 2.0;
        if is_fit(middle) { fits = middle } else { limit = middle }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::made::Random;

    #[test]
    fn the_truth_lies_within_the_error() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (offset, ppm) = (random.signed() * 5e7, random.signed() * 100.0);
            let mut bounds = Bounds::default();
            for step in 0..50 + random.below(500) {
                let time = 1_000_000_000_000 + step * 5_000_000 + random.below(1000);
                let value = offset + ppm * 1e-6 * (time - 1_000_000_000_000) as f64;
                bounds.at_most(time, value as i64 + 1 + random.below(200_000));
                bounds.at_least(time, value as i64 - 1 - random.below(200_000));
            }
            let band = bounds.band().unwrap();
            assert!(band.error_ns < 60_000.0 && band.uneven_ns == 0.0, "{seed}: {band:?}");
            for time in [band.from_ns, (band.from_ns + band.to_ns) / 2, band.to_ns] {
                let value = offset + ppm * 1e-6 * (time - 1_000_000_000_000) as f64;
                assert!((band.at(time) - value).abs() <= band.error_ns + 2.0, "{seed}: {band:?} {value}");
            }
        }
    }

    #[test]
    fn a_clock_that_jumps_is_uneven_and_one_sided_bounds_say_nothing() {
        let mut bounds = Bounds::default();
        for step in 0..100 {
            let value = if step < 50 { 0 } else { 1_000_000 };
            bounds.at_most(step * 1_000_000, value + 10);
            assert!(step > 0 || bounds.band().is_none());
            bounds.at_least(step * 1_000_000, value - 10);
        }
        let band = bounds.band().unwrap();
        assert!(band.uneven_ns > 400_000.0 && band.error_ns >= band.uneven_ns, "{band:?}");
    }

    #[test]
    fn many_bounds_take_no_more_memory_than_few() {
        let mut bounds = Bounds::default();
        (0..100_000).for_each(|n: i64| bounds.at_most(n * 1000, n * n / 1_000_000));
        assert!(bounds.at_most.points.len() < 4 * MOST_POINTS);
    }
}
