//! What one rank does and the others do not: counts of calls first, then times of kernels. In: sums of each rank by name.
//! Out: the ranks that differ from most. Not here: when they did it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::process::Sum;
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
pub type ByRank = BTreeMap<Option<u32>, BTreeMap<String, Sum>>;

/// The lower one of the two in the middle.
fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn names(sums: &ByRank) -> BTreeSet<&String> {
    sums.values().flat_map(BTreeMap::keys).collect()
}

/// Functions that allocate, free, copy, set, wait or launch.
pub fn differences(calls: &ByRank) -> Vec<Difference> {
    let mut found = Vec::new();
    if calls.len() < 3 {
        return found;
    }
    for name in names(calls) {
        let role = CallRole::of(&FunctionTraits::of(name));
        if matches!(role, CallRole::Other | CallRole::Init) {
            continue;
        }
        let of = |sums: &BTreeMap<String, Sum>| sums.get(name).copied().unwrap_or_default();
        let others = median(&mut calls.values().map(|sums| of(sums).count).collect::<Vec<_>>());
        for (rank, sums) in calls {
            let Sum { count, ns } = of(sums);
            let differs = count.abs_diff(others) * 100 > others * COUNT_PERCENT;
            if differs && count.abs_diff(others) >= LEAST_CALLS {
                let (role, function) = (role.name(), name.clone());
                found.push(Difference { rank: *rank, role, function, calls: count, others, time_ns: ns });
            }
        }
    }
    found.sort_by_key(|it| (std::cmp::Reverse(it.calls.abs_diff(it.others)), it.rank));
    found.truncate(MOST);
    found
}

/// Kernels of NCCL wait for other ranks, and are left out.
pub fn slow_kernels(kernels: &ByRank) -> Vec<SlowKernel> {
    let mut found = Vec::new();
    if kernels.len() < 3 {
        return found;
    }
    for name in names(kernels).into_iter().filter(|name| !name.starts_with("nccl")) {
        let of =
            |sums: &BTreeMap<String, Sum>| sums.get(name).copied().filter(|sum| sum.count >= LEAST_CALLS);
        let average = |sum: Sum| sum.ns / sum.count.max(1);
        let mut averages: Vec<u64> = kernels.values().filter_map(of).map(average).collect();
        if averages.len() < 3 {
            continue;
        }
        let others_avg_ns = median(&mut averages);
        for (rank, sum) in kernels.iter().filter_map(|(rank, sums)| Some((rank, of(sums)?))) {
            let avg_ns = average(sum);
            if avg_ns * 100 > others_avg_ns * (100 + TIME_PERCENT) {
                found.push(SlowKernel {
                    rank: *rank,
                    kernel: name.clone(),
                    count: sum.count,
                    avg_ns,
                    others_avg_ns,
                    excess_ns: (avg_ns - others_avg_ns).saturating_mul(sum.count),
                });
            }
        }
    }
    found.sort_by_key(|it| (std::cmp::Reverse(it.excess_ns), it.rank));
    found.truncate(MOST);
    found
}
