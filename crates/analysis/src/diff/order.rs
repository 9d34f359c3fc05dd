//! Orders changes by importance. In: rows. Out: the rows that changed, the most informative first, each with the change
//! that explains it.
//!
//! Counts come before times. A program that does the same makes the same calls: counts, bytes and errors are equal from
//! run to run, whatever the load of the machine, and a difference comes from a change of the program. Times are never
//! equal. Two runs of the demo on one machine differ by 10 ms in cudaLaunchKernel, while ninety needless pairs of
//! cudaMalloc and cudaFree take half a millisecond: by time they would come last. Two runs are too few to separate
//! chance from change in times, so times follow the counts and are marked as less certain.
//!
//! Two factors order the counts. One is how surprising the change is, (after - before)² / larger: ninety additional
//! calls say more where there were ten than where there were a hundred thousand. The other is the time of a call, so
//! that expensive changes come first. It is the median, since one slow call is chance.

use std::collections::{BTreeMap, HashSet};

use super::rows::{Row, Side};
use gpurec_cuda::traits::Mark;
use gpurec_cuda::{FunctionTraits, base_name};

/// A function called less often says nothing about the length of a run.
const OFTEN: u64 = 10;

/// Counts of runs of different length are compared by their ratio. They are equal within this many hundredths plus this
/// many calls.
const HUNDREDTHS: f64 = 2.0;
const FEW: f64 = 2.0;

/// Minimum number of functions that must agree on a different length of a run.
const AGREEING: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// More calls failed.
    Errors,
    Counts,
    Times,
}

#[derive(Clone, Debug)]
pub struct Change {
    pub row: Row,
    pub rank: Rank,
    /// Order within a rank: larger comes first.
    pub weight: f64,
    /// Additional time of its calls in nanoseconds, compared with the same number of calls before.
    pub slower: f64,
    /// The row that explains it, and the depth below that row.
    pub follows: Option<String>,
    pub depth: usize,
}

pub struct ChangeList {
    pub changes: Vec<Change>,
    pub unchanged: usize,
    /// Length of the second run relative to the first, by calls; 1 if equal.
    pub scale: f64,
}

pub fn ordered(rows: Vec<Row>) -> ChangeList {
    let scale = scale(&rows);
    let all = rows.len();
    let mut changes: Vec<Change> = rows.into_iter().filter_map(|row| change(row, scale)).collect();
    let unchanged = all - changes.len();
    let follows: Vec<Option<usize>> = changes.iter().map(|change| cause(change, &changes)).collect();
    // A cause is at least as weighty as its effects: cudaFree takes longer than cudaMalloc, and the change in the
    // program was the cudaMalloc.
    for (at, cause) in follows.iter().enumerate() {
        let (mut weight, mut cause) = (changes.get(at).map_or(0.0, |change| change.weight), *cause);
        for _ in 0..changes.len().min(64) {
            let Some(above) = cause.and_then(|cause| changes.get_mut(cause)) else { break };
            above.weight = above.weight.max(weight);
            weight = above.weight;
            cause = cause.and_then(|cause| follows.get(cause).copied().flatten());
        }
    }
    ChangeList { changes: tree(changes, &follows), unchanged, scale }
}

/// How a row changed. `None`: it did not, or the recordings cannot tell.
fn change(row: Row, scale: f64) -> Option<Change> {
    let (before, after) = (&row.before, &row.after);
    if before.left_out || after.left_out {
        return None;
    }
    // The number of polls for completion depends only on time.
    let polls = FunctionTraits::of(&row.name).is(Mark::Poll);
    let calls = excess(before.calls, after.calls, before.lost, after.lost, scale);
    let bytes = excess(before.bytes, after.bytes, 0, 0, scale);
    let slower = time_change(before, after);
    let lossless = before.lost + after.lost == 0;
    let fewer_errors = after.errors < before.errors && scale == 1.0;
    let (rank, weight) =
        if excess(before.errors, after.errors, 0, 0, scale) > 0.0 && after.errors > before.errors {
            (Rank::Errors, (after.errors - before.errors) as f64 * typical(before, after))
        } else if calls > 0.0 && !polls {
            (Rank::Counts, calls * share(calls, before.calls, after.calls) * typical(before, after))
        } else if (bytes > 0.0 || fewer_errors) && calls == 0.0 && lossless {
            let time = before.total_ns.max(after.total_ns) as f64;
            (Rank::Counts, share(bytes, before.bytes, after.bytes) * time.max(1.0))
        } else {
            if slower == 0.0 {
                return None;
            }
            (Rank::Times, slower.abs())
        };
    Some(Change { row, rank, weight, slower, follows: None, depth: 0 })
}

/// How far a count is from the expected one. In a run of different length, one-time work occurs as often as before,
/// repeated work `scale` times as often, and a function that does both falls between. Lost events may have been calls.
fn excess(before: u64, after: u64, lost_before: u64, lost_after: u64, scale: f64) -> f64 {
    let (low, high) = (before as f64, (before.saturating_add(lost_before)) as f64);
    let (mut low, mut high) = (low.min(low * scale), high.max(high * scale));
    if scale != 1.0 {
        let slack = (high * HUNDREDTHS / 100.0).max(FEW);
        // A new call is unexplained; a call that disappeared is explained only where less than one was expected.
        high += if before == 0 { 0.0 } else { slack };
        low = if after == 0 && low >= 1.0 { low } else { low - slack };
    }
    let (least, most) = (after as f64, after.saturating_add(lost_after) as f64);
    (least - high).max(low - most).max(0.0)
}

fn share(excess: f64, before: u64, after: u64) -> f64 {
    excess / (before.max(after).max(1)) as f64
}

/// The time of a call, from the side with more calls: the additional calls come from there.
fn typical(before: &Side, after: &Side) -> f64 {
    let side = if after.calls >= before.calls { after } else { before };
    (side.typical_ns.max(1)) as f64
}

fn time_change(before: &Side, after: &Side) -> f64 {
    if before.timed == 0 || after.timed == 0 {
        return after.total_ns as f64 - before.total_ns as f64;
    }
    // Exactly 0 if a recording is compared with itself.
    after.total_ns as f64 - before.total_ns as f64 * (after.timed as f64 / before.timed as f64)
}

/// How many times as much work the second run did: the median over frequently called functions, so that one changed
/// function has no influence. 1 unless most functions agree on another number.
pub fn scale(rows: &[Row]) -> f64 {
    let often = |row: &&Row| !row.is_kernel && row.before.calls >= OFTEN && row.after.calls >= OFTEN;
    let often: Vec<&Row> = rows.iter().filter(often).collect();
    // A function that is called ten times as often has slightly more weight.
    let weight = |row: &Row| f64::from(row.before.calls.ilog2());
    let ratio = |row: &Row| row.after.calls as f64 / row.before.calls as f64;
    let mut ratios: Vec<(f64, f64)> = often.iter().map(|row| (ratio(row), weight(row))).collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = ratios.iter().map(|(_, weight)| weight).sum();
    let mut so_far = 0.0;
    let median = ratios.iter().find(|(_, weight)| {
        so_far += weight;
        so_far * 2.0 >= all
    });
    let Some((median, _)) = median else { return 1.0 };
    let near = |ratio: f64| (ratio / median - 1.0).abs() <= HUNDREDTHS / 100.0;
    let agreeing: Vec<f64> =
        ratios.iter().filter(|(ratio, _)| near(*ratio)).map(|(_, weight)| *weight).collect();
    let agree: f64 = agreeing.iter().sum();
    let same: f64 =
        often.iter().filter(|row| row.before.calls == row.after.calls).map(|row| weight(row)).sum();
    if agreeing.len() >= AGREEING && agree > same && agree * 2.0 >= all { *median } else { 1.0 }
}

/// The change that explains all of this one, if there is one.
fn cause(change: &Change, all: &[Change]) -> Option<usize> {
    let row = &change.row;
    if row.is_kernel || change.rank != Rank::Counts {
        return None;
    }
    let delta = delta(row);
    let at = |fits: &dyn Fn(&Change) -> bool| {
        let fitting = all.iter().enumerate().filter(|(_, other)| other.row.name != row.name && fits(other));
        fitting.max_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight)).map(|(at, _)| at)
    };
    let goes_along = |other: &Change, with: i64| {
        other.rank != Rank::Times
            && with.signum() == delta.signum()
            && with.unsigned_abs() >= delta.unsigned_abs()
            && self::delta(&other.row).signum() == delta.signum()
    };
    // All additional calls came from inside one function whose own number of calls changed in the same direction.
    let caller = |other: &Change| {
        let inside = row.callers.get(&other.row.name).copied().unwrap_or(0);
        !other.row.is_kernel && inside != 0 && goes_along(other, inside)
    };
    // A launch call launches some kernel.
    let kernels: i64 =
        all.iter().filter(|other| other.row.is_kernel).map(|other| self::delta(&other.row)).sum();
    let traits = FunctionTraits::of(&row.name);
    let launches = traits.is_kernel_launch() || traits.is(Mark::Configures);
    let kernel = |other: &Change| launches && other.row.is_kernel && goes_along(other, kernels);
    // A function that releases follows the one that acquires.
    let taker = |other: &Change| {
        !other.row.is_kernel
            && gives_back(&row.name, &other.row.name)
            && goes_along(other, self::delta(&other.row))
    };
    at(&caller).or_else(|| at(&kernel)).or_else(|| at(&taker))
}

fn delta(row: &Row) -> i64 {
    let wide = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    wide(row.after.calls).saturating_sub(wide(row.before.calls))
}

/// Whether a function releases what another acquires, such as cudaFree for cudaMalloc.
fn gives_back(gives: &str, takes: &str) -> bool {
    const PAIRS: [(&str, &[&str]); 6] = [
        ("FreeHost", &["MallocHost", "HostAlloc", "AllocHost"]),
        ("FreeAsync", &["MallocAsync", "AllocAsync", "MallocFromPoolAsync", "AllocFromPoolAsync"]),
        ("Free", &["Malloc", "Alloc"]),
        ("Destroy", &["Create"]),
        ("Unregister", &["Register"]),
        ("Unload", &["Load"]),
    ];
    let (gives, takes) = (base_name(gives), base_name(takes));
    let pair = PAIRS.iter().find(|(word, _)| gives.contains(word));
    pair.is_some_and(|(word, others)| {
        others.iter().any(|other| takes.starts_with(&gives.replacen(word, other, 1)))
    })
}

/// Orders by rank and weight; a change comes directly below its cause.
fn tree(mut changes: Vec<Change>, follows: &[Option<usize>]) -> Vec<Change> {
    let names: Vec<String> = changes.iter().map(|change| change.row.name.clone()).collect();
    let mut below: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (at, (change, follows)) in changes.iter_mut().zip(follows).enumerate() {
        change.follows = follows.and_then(|cause| names.get(cause).cloned());
        below.entry(*follows).or_default().push(at);
    }
    let key =
        |at: &usize| changes.get(*at).map(|change| (change.rank, change.weight, change.row.name.as_str()));
    for list in below.values_mut() {
        list.sort_by(|a, b| match (key(a), key(b)) {
            (Some(a), Some(b)) => a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(b.2)),
            _ => std::cmp::Ordering::Equal,
        });
    }
    // A cycle of functions that call one another has no root: it comes last.
    let roots = below.get(&None).cloned().unwrap_or_default();
    let mut stack: Vec<(usize, usize)> = (0..changes.len()).rev().map(|at| (at, 0)).collect();
    stack.extend(roots.into_iter().rev().map(|at| (at, 0)));
    let mut placed = HashSet::new();
    let mut order = Vec::new();
    while let Some((at, depth)) = stack.pop() {
        if placed.insert(at) {
            order.push((at, depth));
            stack.extend(below.get(&Some(at)).into_iter().flatten().rev().map(|at| (*at, depth + 1)));
        }
    }
    let mut slots: Vec<Option<Change>> = changes.into_iter().map(Some).collect();
    let taken = order.into_iter().filter_map(|(at, depth)| {
        let change = slots.get_mut(at)?.take()?;
        Some(Change { depth, ..change })
    });
    taken.collect()
}
