//! The account of GPU work: three counts, and the reasons for every difference between them. In: the counts of each
//! program, and the last state of its processes' rings. Out: their sums, which include ended programs that no longer
//! have counts of their own. Pure.

use crate::gpu::join::{Account, Join, Program};
use crate::gpu::ring::{Facts, class, state};
use gpurec_trace::{GpuAccount, GpuReason};

/// The state of a process's ring at its end.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub pid: u32,
    pub since: u64,
    /// Known when the records of the hooks are complete up to `since`.
    pub program: Option<Program>,
    pub facts: Facts,
    pub has_ended: bool,
    pub is_broken: bool,
    pub was_taken: bool,
}

/// Sums over programs.
#[derive(Clone, Default)]
pub struct Totals {
    sum: GpuAccount,
    reasons: Vec<(&'static str, u64)>,
}

impl Totals {
    /// `rings`: those of the program. `is_lane`: gpurec's library recorded the work, not the tap.
    pub(super) fn add(&mut self, own: &Account, rings: &[&Ended], is_lane: bool) {
        let sum = &mut self.sum;
        sum.launches += own.launches + own.failed;
        sum.api += own.api;
        sum.delivered += own.delivered;
        sum.unmatched += own.unmatched;
        sum.dropped += dropped(rings) + no_room(rings);
        self.because("graph_nodes", own.graph_nodes);
        self.because("whole_graphs", own.whole_graphs);
        self.because("failed", own.failed);
        self.because("dropped", dropped(rings));
        self.because("no_room", no_room(rings));
        self.because("no_times", own.untimed);
        self.because("running", own.unfinished);
        missing(own, rings, is_lane).into_iter().for_each(|(code, count)| self.because(code, count));
    }

    fn because(&mut self, code: &'static str, count: u64) {
        match self.reasons.iter_mut().find(|one| one.0 == code) {
            Some(one) => one.1 += count,
            None => self.reasons.push((code, count)),
        }
    }

    /// The sums so far, with those of the programs that still have accounts of their own. `of_tap`: reasons that only
    /// the tap knows.
    pub(super) fn account(
        &self,
        ended: &[Ended],
        join: &Join,
        of_tap: [(&'static str, u64); 2],
        is_lane: bool,
    ) -> GpuAccount {
        let mut all = self.clone();
        let mut programs: Vec<Program> = join.programs().collect();
        programs.sort_unstable();
        for program in programs {
            all.add(&join.account(program), &of(ended, program), is_lane);
        }
        of_tap.into_iter().for_each(|(code, count)| all.because(code, count));
        let known = all.reasons.into_iter().filter(|(_, count)| *count > 0);
        let reasons = known.map(|(code, count)| GpuReason { code: code.to_owned(), count }).collect();
        GpuAccount { reasons, ..all.sum }
    }
}

/// The rings of a program.
pub(super) fn of(ended: &[Ended], program: Program) -> Vec<&Ended> {
    ended.iter().filter(|one| one.program == Some(program)).collect()
}

fn dropped(rings: &[&Ended]) -> u64 {
    rings.iter().map(|one| one.facts.dropped + one.facts.discarded).sum()
}

fn no_room(rings: &[&Ended]) -> u64 {
    rings.iter().flat_map(|one| one.facts.no_room).sum()
}

/// Launches without a kernel that no other reason explains, by the likeliest reason.
fn missing(own: &Account, rings: &[&Ended], is_lane: bool) -> [(&'static str, u64); 2] {
    let no_room =
        |one: &&Ended| [class::KERNEL, class::GRAPH, class::API].map(|class| one.facts.no_room[class]);
    let no_room: u64 = rings.iter().flat_map(no_room).sum();
    let without = own.untimed + own.unfinished + dropped(rings) + no_room;
    let explained = own.complete + without;
    let count = own.launches.saturating_sub(explained);
    let is_on = rings.iter().any(|one| one.facts.state == state::ON);
    // A client that gets records of calls gets those of their kernels.
    let captured = own.api.saturating_sub(own.failed + explained).min(count);
    match rings.last() {
        None if !is_lane => [("captured", captured), ("no_client", count - captured)],
        _ if !is_on => [("no_lane", count), ("", 0)],
        Some(one) if one.was_taken => [("other_client", count), ("", 0)],
        Some(one) if one.is_broken => [("broken", count), ("", 0)],
        Some(one) if !one.has_ended && !one.facts.flushed => [("running", count), ("", 0)],
        Some(one) if !one.facts.flushed => [("killed", count), ("", 0)],
        _ => [("captured", captured), ("killed", count - captured)],
    }
}
