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
        sum.dropped = total([sum.dropped, dropped(rings), no_room(rings)]);
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
            Some(one) => one.1 = one.1.saturating_add(count),
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

/// A process may have written any counts into its ring: their sum stays at the largest number.
fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

fn dropped(rings: &[&Ended]) -> u64 {
    total(rings.iter().flat_map(|one| [one.facts.dropped, one.facts.discarded]))
}

fn no_room(rings: &[&Ended]) -> u64 {
    total(rings.iter().flat_map(|one| one.facts.no_room))
}

/// Launches without a kernel that no other reason explains, by the likeliest reason.
fn missing(own: &Account, rings: &[&Ended], is_lane: bool) -> [(&'static str, u64); 2] {
    let no_room =
        |one: &&Ended| [class::KERNEL, class::GRAPH, class::API].map(|class| one.facts.no_room[class]);
    let no_room = total(rings.iter().flat_map(no_room));
    let explained = total([own.complete, own.untimed, own.unfinished, dropped(rings), no_room]);
    let count = own.launches.saturating_sub(explained);
    let is_on = rings.iter().any(|one| one.facts.state == state::ON);
    // A client that gets records of calls gets those of their kernels.
    let captured = own.api.saturating_sub(explained.saturating_add(own.failed)).min(count);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_process_made_up_do_not_wrap_around() {
        let no_room = [u64::MAX; class::COUNT];
        let facts = Facts { state: state::ON, dropped: u64::MAX, discarded: 1, no_room, ..Facts::default() };
        let mut join = Join::default();
        join.watch(7);
        let program = Some(join.program_at(7, 1));
        let liar =
            Ended { pid: 7, since: 1, program, facts, has_ended: true, is_broken: false, was_taken: false };
        let mut totals = Totals::default();
        for _ in 0..2 {
            let own = Account { launches: 3, api: 3, failed: 1, complete: 1, ..Account::default() };
            totals.add(&own, &[&liar, &liar], true);
        }
        let account = totals.account(&[liar], &join, [("unread", 0), ("other_clock", 0)], true);
        assert_eq!((account.launches, account.dropped), (8, u64::MAX));
        let reasons: Vec<_> = account.reasons.iter().map(|it| (it.code.as_str(), it.count)).collect();
        assert_eq!(reasons, [("failed", 2), ("dropped", u64::MAX), ("no_room", u64::MAX)]);
    }
}
