//! What one rank does and the others do not: counts of calls first, then times of kernels. In: sums of each rank by name.
//! Out: the ranks that differ from most. Not here: when they did it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::process::Sum;
use crate::figures::OTHERS;
use crate::stacks::CallRole;
use gpurec_cuda::FunctionTraits;

/// Limits on the lines listed.
const MOST: usize = 20;
/// A count differs if it is this many percent above or below the median of the ranks.
const COUNT_PERCENT: u64 = 10;
/// A kernel is slow on a rank if its average is this many percent above the median of the ranks.
const TIME_PERCENT: u64 = 10;
/// Less often called functions and kernels say little.
const LEAST_CALLS: u64 = 10;

/// A rank that called a function more or less often than most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub rank: Option<u32>,
    pub role: &'static str,
    pub function: String,
    pub calls: u64,
    /// The median of all ranks.
    pub others: u64,
    pub time_ns: u64,
}

/// A kernel that took longer on the GPU of one rank than on most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowKernel {
    pub rank: Option<u32>,
    pub kernel: String,
    pub count: u64,
    pub avg_ns: u64,
    /// The median of the averages of all ranks.
    pub others_avg_ns: u64,
    pub excess_ns: u64,
}

/// By rank and name.
pub type ByRank = BTreeMap<Option<u32>, BTreeMap<Arc<str>, Sum>>;

/// Whether a rank of which not all functions are kept calls one of the others is not known: leaves the functions that each
/// of these ranks has.
pub fn retain_known(calls: &mut ByRank, not_all: &BTreeSet<Option<u32>>) {
    let mut known: Option<BTreeSet<Arc<str>>> = None;
    for own in not_all.iter().filter_map(|rank| calls.get(rank)) {
        match &mut known {
            Some(known) => known.retain(|name| own.contains_key(name)),
            None => known = Some(own.keys().cloned().collect()),
        }
    }
    let Some(known) = known else { return };
    calls.values_mut().for_each(|sums| sums.retain(|name, _| known.contains(name)));
}

/// The lower one of the two in the middle.
fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The ranks that have each name, with their sums. A rank without the name costs nothing here.
fn by_name(sums: &ByRank) -> BTreeMap<&str, BTreeMap<Option<u32>, Sum>> {
    let mut names: BTreeMap<&str, BTreeMap<Option<u32>, Sum>> = BTreeMap::new();
    for (rank, sums) in sums {
        for (name, sum) in sums {
            names.entry(name).or_default().insert(*rank, *sum);
        }
    }
    names
}

/// Whether a value is this many percent above the other.
fn exceeds(value: u64, other: u64, percent: u64) -> bool {
    u128::from(value) * 100 > u128::from(other) * u128::from(100 + percent)
}

/// Functions that allocate, free, copy, set, wait or launch.
pub fn differences(calls: &ByRank) -> Vec<Difference> {
    let mut found = Vec::new();
    if calls.len() < 3 {
        return found;
    }
    for (name, by_rank) in by_name(calls) {
        let role = CallRole::of(&FunctionTraits::of(name));
        if matches!(role, CallRole::Other | CallRole::Init) {
            continue;
        }
        let without = calls.len() - by_rank.len();
        let mut counts: Vec<u64> = by_rank.values().map(|sum| sum.count).collect();
        // Where half of the ranks have no call, the median is 0, and no list of all is made.
        let others = if calls.len().saturating_sub(1) / 2 < without {
            0
        } else {
            counts.resize(calls.len(), 0);
            median(&mut counts)
        };
        let mut compare = |rank: Option<u32>, Sum { count, ns }: Sum| {
            let apart = count.abs_diff(others);
            let differs = u128::from(apart) * 100 > u128::from(others) * u128::from(COUNT_PERCENT);
            if differs && apart >= LEAST_CALLS {
                let (role, function) = (role.name(), name.to_owned());
                found.push(Difference { rank, role, function, calls: count, others, time_ns: ns });
            }
        };
        by_rank.iter().for_each(|(rank, sum)| compare(*rank, *sum));
        // A rank without a call differs only where the median is not 0, so where half of the ranks have calls.
        if others > 0 {
            let without = calls.keys().filter(|rank| !by_rank.contains_key(rank));
            without.for_each(|rank| compare(*rank, Sum::default()));
        }
        most_apart(&mut found);
    }
    found
}

fn most_apart(found: &mut Vec<Difference>) {
    found.sort_by_key(|it| (std::cmp::Reverse(it.calls.abs_diff(it.others)), it.rank));
    found.truncate(MOST);
}

/// Kernels of NCCL wait for other ranks, and are left out. So are those beyond the limit on names: they are different ones
/// on each rank.
pub fn slow_kernels(kernels: &ByRank) -> Vec<SlowKernel> {
    let mut found = Vec::new();
    if kernels.len() < 3 {
        return found;
    }
    for (name, mut by_rank) in by_name(kernels) {
        by_rank.retain(|_, sum| sum.count >= LEAST_CALLS);
        if by_rank.len() < 3 || name.starts_with("nccl") || name == OTHERS {
            continue;
        }
        let average = |sum: &Sum| sum.ns / sum.count.max(1);
        let others_avg_ns = median(&mut by_rank.values().map(average).collect::<Vec<_>>());
        for (rank, sum) in &by_rank {
            let avg_ns = average(sum);
            if exceeds(avg_ns, others_avg_ns, TIME_PERCENT) {
                found.push(SlowKernel {
                    rank: *rank,
                    kernel: name.to_owned(),
                    count: sum.count,
                    avg_ns,
                    others_avg_ns,
                    excess_ns: (avg_ns - others_avg_ns).saturating_mul(sum.count),
                });
            }
        }
        slowest(&mut found);
    }
    found
}

fn slowest(found: &mut Vec<SlowKernel>) {
    found.sort_by_key(|it| (std::cmp::Reverse(it.excess_ns), it.rank));
    found.truncate(MOST);
}
