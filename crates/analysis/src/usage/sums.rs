//! Running sums of one process, or of several together. In: single events. Out: sums that only grow. Not here: which
//! event counts; the summary decides that.

use std::collections::BTreeMap;

use super::super::figures::OTHERS;
use super::super::stacks::CallRole;
pub(super) use super::super::summary::PaidCalls;
use gpurec_cuda::Api;
use gpurec_cuda::traits::Space;
use gpurec_trace::bounds::{entry, short};
use gpurec_trace::hash::Map;

/// Without the last role, that of PyTorch's blocks: no call has it.
pub const ROLES: usize = CallRole::ALL.len() - 1;

pub const APIS: [&str; 3] = ["driver", "runtime", "other"];

/// The last one is for lines that do not show the direction.
pub const DIRECTIONS: [&str; 7] = ["H2D", "D2H", "D2D", "H2H", "P2P", "set", "unknown"];

/// The upper bounds of the buckets of durations: from 1 us to 100 s, two for each decade.
pub const BOUNDS_NS: [u64; 17] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    100_000_000_000,
];

/// Limits on distinct errors of a process, and on the length of an error's name.
const ERRORS: usize = 64;
const LONGEST_ERROR: usize = 64;

/// Limit on distinct kernels of a process.
const KERNELS: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// In the order of `APIS`.
    pub calls: [u64; APIS.len()],
    pub launches: u64,
    pub graph_launches: u64,
    /// Bytes, in the order of `Space::ALL`.
    pub allocated: [u64; Space::ALL.len()],
    /// Bytes, in the order of `DIRECTIONS`.
    pub copied: [u64; DIRECTIONS.len()],
    pub failed: BTreeMap<String, u64>,
    pub sync_ns: u64,
    /// By role, in the order of `CallRole::ALL`.
    pub durations: [Durations; ROLES],
    pub paid: PaidCalls,
    pub stopped_ns: u64,
    /// By role.
    pub unobserved_ns: [u64; ROLES],
}

/// Outermost calls by their duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The number of calls up to each bound and above the one before; the last is above all bounds.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    pub sum_ns: u64,
}

impl Durations {
    pub fn add(&mut self, ns: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Sums {
    pub fn called(&mut self, api: Api, stepped: bool) {
        let [driver, runtime, other] = &mut self.calls;
        let count = match api {
            Api::Driver => driver,
            Api::Runtime => runtime,
            Api::Other => other,
        };
        *count += 1;
        self.paid.calls += 1;
        self.paid.stepped += u64::from(stepped);
    }

    pub fn returned(&mut self, role: CallRole, ns: u64) {
        if let Some(durations) = self.durations.get_mut(role as usize) {
            durations.add(ns);
        }
    }

    /// A space that is not in `Space::ALL` has no sum; its bytes are not known either.
    pub fn allocated(&mut self, space: &str, bytes: u64) {
        let at = Space::ALL.iter().position(|known| known.name() == space);
        add(at.and_then(|at| self.allocated.get_mut(at)), bytes);
    }

    pub fn copied(&mut self, direction: &str, bytes: u64) {
        let at = DIRECTIONS.iter().position(|known| *known == direction).unwrap_or(DIRECTIONS.len() - 1);
        add(self.copied.get_mut(at), bytes);
    }

    pub fn failed(&mut self, error: &str, count: u64) {
        if let Some(sum) = self.failed.get_mut(error) {
            *sum = sum.saturating_add(count);
            return;
        }
        let is_full = self.failed.len() >= ERRORS;
        let error = if is_full { OTHERS.to_owned() } else { short(error, LONGEST_ERROR) };
        add(Some(self.failed.entry(error).or_default()), count);
    }

    /// Adds the sums of another process.
    pub fn merge(&mut self, other: &Sums) {
        let pairs = (self.calls.iter_mut().zip(other.calls))
            .chain(self.allocated.iter_mut().zip(other.allocated))
            .chain(self.copied.iter_mut().zip(other.copied))
            .chain(self.unobserved_ns.iter_mut().zip(other.unobserved_ns));
        pairs.for_each(|(sum, more)| add(Some(sum), more));
        for (all, more) in self.durations.iter_mut().zip(&other.durations) {
            all.counts.iter_mut().zip(more.counts).for_each(|(sum, more)| *sum += more);
            add(Some(&mut all.sum_ns), more.sum_ns);
        }
        other.failed.iter().for_each(|(error, count)| self.failed(error, *count));
        self.launches += other.launches;
        self.graph_launches += other.graph_launches;
        add(Some(&mut self.sync_ns), other.sync_ns);
        add(Some(&mut self.stopped_ns), other.stopped_ns);
        self.paid.calls += other.paid.calls;
        self.paid.stepped += other.paid.stepped;
    }
}

fn add(sum: Option<&mut u64>, more: u64) {
    if let Some(sum) = sum {
        *sum = sum.saturating_add(more);
    }
}

/// Launches by kernel, and the kernels that are shown.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    counts: Map<usize, u64>,
    shown: Vec<usize>,
}

impl Kernels {
    pub fn launched(&mut self, kernel: usize, count: u64) {
        add(entry(&mut self.counts, kernel, KERNELS), count);
    }

    pub fn merge(&mut self, other: &Kernels) {
        other.counts.iter().for_each(|(kernel, count)| self.launched(*kernel, *count));
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().map(|(kernel, count)| (*kernel, *count))
    }

    /// The most launched kernels. A kernel that is shown loses its place only to one with more than twice its launches,
    /// because each change makes a new series.
    pub fn most(&mut self, most: usize) -> Vec<(usize, u64)> {
        let mut rest: Vec<(u64, usize)> = self
            .counts
            .iter()
            .filter(|(kernel, _)| !self.shown.contains(kernel))
            .map(|(kernel, count)| (*count, *kernel))
            .collect();
        rest.sort_unstable_by_key(|(count, kernel)| (std::cmp::Reverse(*count), *kernel));
        let counts = &self.counts;
        let count = |kernel: &usize| counts.get(kernel).copied().unwrap_or(0);
        for (launches, kernel) in rest {
            if self.shown.len() < most {
                self.shown.push(kernel);
                continue;
            }
            match self.shown.iter_mut().min_by_key(|shown| count(shown)) {
                Some(least) if launches > count(least).saturating_mul(2) => *least = kernel,
                _ => break,
            }
        }
        self.shown.iter().map(|kernel| (*kernel, count(kernel))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_is_in_the_bucket_below_it() {
        let mut durations = Durations::default();
        for ns in [0, 1_000, 1_001, 3_000, 100_000_000_000, 100_000_000_001, u64::MAX] {
            durations.add(ns);
        }
        assert_eq!((durations.counts[0], durations.counts[1]), (2, 2));
        assert_eq!((durations.counts[16], durations.counts[17]), (1, 2));
        assert_eq!((durations.count(), durations.sum_ns), (7, u64::MAX));
    }

    #[test]
    fn merged_sums_are_the_sums_of_both() {
        let of = |n: u64| {
            let mut sums = Sums { launches: n, graph_launches: 2 * n, sync_ns: 3 * n, ..Sums::default() };
            sums.stopped_ns = 4 * n;
            sums.unobserved_ns[2] = 5 * n;
            (0..n).for_each(|_| sums.called(Api::Runtime, true));
            sums.called(Api::Driver, false);
            sums.returned(CallRole::Copy, n);
            sums.allocated("managed", n);
            sums.copied("H2D", n);
            sums.copied("sideways", n);
            sums.failed("cudaErrorInvalidValue", n);
            sums
        };
        let mut both = of(3);
        both.merge(&of(4));
        assert_eq!(both.calls, [2, 7, 0]);
        assert_eq!((both.paid.calls, both.paid.stepped), (9, 7));
        assert_eq!((both.launches, both.graph_launches, both.sync_ns, both.stopped_ns), (7, 14, 21, 28));
        assert_eq!((both.allocated[1], both.copied[0], both.copied[6], both.unobserved_ns[2]), (7, 7, 7, 35));
        assert_eq!(both.failed["cudaErrorInvalidValue"], 7);
        assert_eq!(both.durations[CallRole::Copy as usize].count(), 2);
    }

    #[test]
    fn a_program_cannot_make_errors_without_end() {
        let mut sums = Sums::default();
        (0..1000).for_each(|n| sums.failed(&format!("error {n}"), 1));
        assert_eq!(sums.failed.len(), ERRORS + 1);
        assert_eq!(sums.failed[OTHERS], 1000 - ERRORS as u64);
    }

    #[test]
    fn kernels_keep_their_places() {
        let mut kernels = Kernels::default();
        for (kernel, count) in [(1, 10), (2, 30), (3, 20)] {
            kernels.launched(kernel, count);
        }
        assert_eq!(kernels.most(2), [(2, 30), (3, 20)]);
        kernels.launched(1, 25);
        assert_eq!(kernels.most(2), [(2, 30), (3, 20)], "1 is ahead, but not by much");
        kernels.launched(1, 10);
        assert_eq!(kernels.most(2), [(2, 30), (1, 45)]);
        assert_eq!(kernels.most(0).len(), 2, "the number never changes in a recording");
    }
}
