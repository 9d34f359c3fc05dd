//! Processes that ended. A recording may run for weeks while programs come and go, so only some of them keep figures of
//! their own: those that made the most calls, which are the ones that the figures list, and the last ones. The others
//! are folded: what they did stays in every sum. A flight recorder does the same with calls that do not return because
//! their process ended.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::cost::PaidCalls;
use super::{EACH, LISTED_PROCESSES, Open, Summary};
use crate::figures::ThreadCost;
use crate::tally::Role;
use gpurec_trace::hash::Map;
use gpurec_trace::tree::Call;

/// The most ended processes with figures of their own; how many of them stay when there are more; the last ones that
/// stay then too, since lines about them may still come.
const MOST_ENDED: usize = 1024;
const KEPT: usize = 512;
const LAST: usize = 128;
const _: () = assert!(KEPT >= LISTED_PROCESSES && KEPT + LAST < MOST_ENDED);

/// The most calls of ended processes that stay open.
const MOST_DEAD: usize = 1024;
/// The most folded processes of which it is known that they made calls.
const MOST_CALLERS: usize = 65_536;

#[derive(Default)]
pub struct Ended {
    /// The threads of each process that made calls.
    threads: Map<u32, Vec<u32>>,
    /// Ended processes that are not folded, each with its place in the order of their ends.
    processes: Map<u32, u64>,
    count: u64,
    folded: Folded,
}

/// What folded processes leave, besides sums.
#[derive(Default)]
struct Folded {
    ran_before: bool,
    callers: HashSet<u32>,
    /// The number of their threads that made calls, and those with the highest cost.
    threads: u64,
    costly: Vec<ThreadCost>,
}

impl Ended {
    /// A thread made its first call.
    pub fn meets(&mut self, (pid, tid): (u32, u32)) {
        self.threads.entry(pid).or_default().push(tid);
    }

    pub fn made_calls(&self, pid: u32) -> bool {
        self.threads.contains_key(&pid) || self.folded.callers.contains(&pid)
    }

    pub fn some_ran_before(&self) -> bool {
        self.folded.ran_before
    }

    /// The threads of folded processes: the most costly ones, and the number of all.
    pub fn threads(&self) -> (&[ThreadCost], u64) {
        (&self.folded.costly, self.folded.threads)
    }
}

impl Summary {
    /// The process has ended.
    pub(super) fn has_ended(&mut self, pid: u32) {
        let ended = &mut self.ended_processes;
        ended.count += 1;
        ended.processes.insert(pid, ended.count);
        if ended.processes.len() > MOST_ENDED {
            self.fold_some();
        }
    }

    /// A process with this number runs: one that ended before is another.
    pub(super) fn comes_back(&mut self, pid: u32) {
        if self.ended_processes.processes.contains_key(&pid) {
            self.fold(pid);
        }
    }

    fn fold_some(&mut self) {
        let ended = &self.ended_processes;
        let last = ended.count - LAST as u64;
        let old = ended.processes.iter().filter(|(_, at)| **at <= last).map(|(pid, _)| *pid);
        let mut old: Vec<(Reverse<u64>, u32)> = old.map(|pid| (Reverse(self.calls_of(pid)), pid)).collect();
        // As the figures list them.
        old.sort_unstable();
        old.into_iter().skip(KEPT).for_each(|(_, pid)| self.fold(pid));
    }

    fn calls_of(&self, pid: u32) -> u64 {
        let tids = self.ended_processes.threads.get(&pid).into_iter().flatten();
        tids.filter_map(|tid| self.calls_by_thread.by_key.get(&(pid, *tid))).map(|paid| paid.calls).sum()
    }

    fn fold(&mut self, pid: u32) {
        self.ended_processes.processes.remove(&pid);
        let tids = self.ended_processes.threads.remove(&pid).unwrap_or_default();
        let known = self.processes.remove(&pid);
        self.figures.more_processes += u64::from(known.is_some() || !tids.is_empty());
        if let Some(process) = known {
            self.ended_processes.folded.ran_before |= self.has_run_before(pid);
            self.forgets(&process.command);
        }
        self.begun.remove(&pid);
        self.fold_calls(pid, &tids);
        self.memories.fold(pid);
        self.devices.fold(pid);
        self.transfers.fold(pid);
        self.kernels.fold(pid, &tids, self.habits.waited_ns(pid));
        self.habits.fold(pid, &tids);
        self.gpu.fold(pid, &tids);
    }

    fn fold_calls(&mut self, pid: u32, tids: &[u32]) {
        let folded = &mut self.ended_processes.folded;
        if !tids.is_empty() && folded.callers.len() < MOST_CALLERS {
            folded.callers.insert(pid);
        }
        for tid in tids {
            let Some(paid) = self.calls_by_thread.by_key.remove(&(pid, *tid)) else { continue };
            self.calls_by_thread.others.add(paid);
            folded.threads += 1;
            if let Some(prices) = &self.prices {
                folded.costly.push(ThreadCost {
                    pid,
                    tid: *tid,
                    calls: paid.calls,
                    cost_ns: prices.sum(paid),
                });
            }
        }
        super::cost::keep_costly(&mut folded.costly);
    }

    /// A command is not kept any more.
    pub(super) fn forgets(&mut self, command: &[String]) {
        self.commands_left.give_back(command.iter().map(|word| EACH + word.len()).sum());
    }

    /// For a flight recorder: it may run for weeks, and no trace has all its lines, so no reader has to arrive at the
    /// same figures.
    pub fn settles_dead_calls(&mut self) {
        self.settles_dead = true;
    }

    /// Counts the oldest calls of ended processes as `unfinished` does, if there are many. Their ends do not come.
    pub(super) fn settle_dead(&mut self) {
        if !self.settles_dead {
            return;
        }
        let mut dead = self.open.dead();
        if dead.len() > MOST_DEAD {
            dead.truncate(dead.len() - MOST_DEAD / 2);
            // The innermost first.
            dead.into_iter().rev().for_each(|id| self.settle(id));
        }
    }

    /// How long a call took until its thread or its process ended.
    pub(super) fn died_after(&self, open: &Call<Open>) -> Option<u64> {
        let until = self.open.died_ns(open).map(|at_ns| at_ns.saturating_sub(open.ts_ns));
        open.of.died_after_ns.or(until)
    }

    fn settle(&mut self, id: u64) {
        let Some(ns) = self.open.get(id).and_then(|open| self.died_after(open)) else { return };
        let Some(mut open) = self.open.end(id, Some(ns)) else { return };
        self.stacks.settle(id, ns);
        if let Some(inside) = open.of.failed.take() {
            self.failures.undecided(Some(inside), None);
            if let Some(usage) = &mut self.usage {
                self.failures.take_news(|pid, error, count| usage.of_dead(pid).failed(error, count));
            }
        }
        let Some(tally) = self.functions.get_mut(open.function) else { return };
        tally.add(ns);
        tally.unfinished += 1;
        tally.own_ns = tally.own_ns.saturating_add(ns.saturating_sub(open.inside_ns));
        let (kernel_ns, off_cpu_ns) = open.of.in_driver();
        tally.add_inside(open.of.nested_ns, kernel_ns, off_cpu_ns);
        if open.parent.is_none() {
            self.categories.add(tally.category, ns);
        }
        if tally.role == Some(Role::Sync) && !open.has_inside(Role::Sync.bit()) {
            let sync = &mut self.figures.sync;
            sync.calls += 1;
            sync.unfinished += 1;
            sync.total_ns = sync.total_ns.saturating_add(ns);
            if let Some(usage) = &mut self.usage {
                let sum = &mut usage.of_dead(open.pid).sync_ns;
                *sum = sum.saturating_add(ns);
            }
        }
    }
}

impl PaidCalls {
    fn add(&mut self, other: PaidCalls) {
        self.calls += other.calls;
        self.stepped += other.stepped;
    }
}
