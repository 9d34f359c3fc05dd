//! Sizes that are freed and allocated again and again. In: `memory` lines with the time of their calls. Out: findings.
//! Of processes that ended and were folded, only those remain that the findings may name.

use std::cmp::Reverse;

use super::Names;
use crate::by_process::ByProcess;
use crate::figures::Finding;
use crate::stacks::{Places, Site};
use gpurec_trace::hash::Map;
use gpurec_trace::{Memory, Op};

/// Limit on sizes watched for loops.
const SIZES: usize = 65_536;

/// A size that is freed and allocated again at least AGAIN times is a loop if that takes one SHARE-th of the time of
/// all calls.
const AGAIN: u64 = 10;
const SHARE: u64 = 100;

/// Fewer repetitions suffice if they take most of that time: this number of times, if they took at least COST_NS.
const AGAIN_AT_COST: u64 = 3;
const COST_NS: u64 = 1_000_000;

/// Number of loops reported.
const LOOPS: usize = 5;

#[derive(Default)]
pub struct Loops {
    /// By space and size.
    by_size: ByProcess<(u8, u64), Loop>,
    /// The same for all sizes together.
    churn: ByProcess<u8, Loop>,
    /// The largest of folded processes.
    gone: Vec<((u32, u8, u64), Loop)>,
    gone_churn: Vec<((u32, u8), Loop)>,
}

/// Frees and allocations of one size in one space, or of all sizes.
#[derive(Clone, Default)]
struct Loop {
    /// The first function that allocated.
    function: Option<u32>,
    /// Number freed and not yet allocated again.
    free: u64,
    again: u64,
    ns: u64,
    /// The call sites that allocated again.
    sites: Places,
}

impl Loops {
    pub fn add(&mut self, memory: &Memory, (space, size): (u8, u64), by: (u32, Option<Site>), ns: u64) {
        let Some(of_size) = self.by_size.entry(memory.pid, (space, size), SIZES) else { return };
        of_size.add(memory.op, by, ns);
        if let Some(of_all) = self.churn.entry(memory.pid, space, SIZES) {
            of_all.add(memory.op, by, ns);
        }
    }

    /// The process ended, and has no figures of its own any more.
    pub fn fold(&mut self, pid: u32) {
        let sizes =
            self.by_size.ended(pid).into_iter().map(|((space, size), seen)| ((pid, space, size), seen));
        self.gone.extend(sizes.filter(|(_, seen)| seen.again >= AGAIN_AT_COST));
        // What most of the time goes to is the first of all; the others need AGAIN.
        self.gone.sort_by_key(|(key, seen)| (Reverse(seen.ns), *key));
        let mut named = 0;
        let mut is_first = true;
        self.gone.retain(|(_, seen)| {
            let is_named = seen.again >= AGAIN && named < LOOPS;
            named += usize::from(is_named);
            std::mem::take(&mut is_first) || is_named
        });
        let churn = self.churn.ended(pid).into_iter().map(|(space, seen)| ((pid, space), seen));
        self.gone_churn.extend(churn.filter(|(_, seen)| seen.again >= AGAIN));
        self.gone_churn.sort_by_key(|(key, seen)| (Reverse(seen.ns), *key));
        self.gone_churn.truncate(LOOPS);
    }

    /// The sizes for which freeing and reallocating cost most. `all_ns` is the time of all calls.
    pub fn findings(&self, all_ns: u64, names: &Names) -> Vec<Finding> {
        let is_most = |seen: &Loop| seen.ns >= COST_NS && seen.ns > all_ns / 2;
        let is_loop = |seen: &Loop| match seen.again {
            AGAIN.. => seen.ns >= all_ns / SHARE,
            AGAIN_AT_COST.. => is_most(seen),
            _ => false,
        };
        let sizes = self.by_size.iter().map(|(pid, (space, size), seen)| ((pid, *space, *size), seen));
        let sizes = sizes.chain(self.gone.iter().map(|(key, seen)| (*key, seen)));
        let mut loops: Vec<((u32, u8, u64), &Loop)> = sizes.filter(|(_, seen)| is_loop(seen)).collect();
        let churn = self.churn.iter().map(|(pid, space, seen)| ((pid, *space), seen.clone()));
        let mut churn: Map<(u32, u8), Loop> = churn.collect();
        for (key, seen) in &self.gone_churn {
            churn.entry(*key).or_insert_with(|| seen.clone());
        }
        for ((pid, space, _), seen) in &loops {
            if let Some(rest) = churn.get_mut(&(*pid, *space)) {
                rest.again = rest.again.saturating_sub(seen.again);
                rest.ns = rest.ns.saturating_sub(seen.ns);
            }
        }
        let name = |(pid, space, size): &(u32, u8, u64)| (*pid, names.of_space(*space), *size);
        loops.sort_by(|(a, x), (b, y)| (y.ns, y.again, name(a)).cmp(&(x.ns, x.again, name(b))));
        let of_one_size = loops.into_iter().take(LOOPS).map(|(key, seen)| {
            let (pid, space, size) = name(&key);
            seen.finding(names, (pid, space), &format!("{size} bytes of {space} memory"), "them")
        });
        let mut rest: Vec<_> =
            churn.iter().filter(|(_, seen)| seen.again >= AGAIN && is_most(seen)).collect();
        rest.sort_by_key(|(key, seen)| (Reverse(seen.ns), **key));
        let of_all_sizes = rest.into_iter().take(LOOPS).map(|((pid, space), seen)| {
            let space = names.of_space(*space);
            seen.finding(names, (*pid, space), &format!("{space} memory of many sizes"), "it")
        });
        of_one_size.chain(of_all_sizes).collect()
    }
}

impl Loop {
    fn add(&mut self, op: Op, (function, site): (u32, Option<Site>), ns: u64) {
        self.ns = self.ns.saturating_add(ns);
        match op {
            Op::Free => self.free += 1,
            Op::Alloc => {
                if self.free > 0 {
                    self.free -= 1;
                    self.again += 1;
                    self.sites.add(site);
                }
                self.function.get_or_insert(function);
            }
        }
    }

    fn finding(&self, names: &Names, (pid, space): (u32, &str), what: &str, pronoun: &str) -> Finding {
        let function = self.function.map_or("", |function| names.of_function(function));
        let advice = match space {
            "device" => "keep the buffer, or use cudaMallocAsync, whose pool keeps it",
            _ => "keep the buffer",
        };
        let what = format!("pid {pid} gives back {what} and allocates {pronoun} again ({function})");
        Finding::new(what, self.again, Some(self.ns), advice).at(&self.sites, |site| names.of_site(site))
    }
}
