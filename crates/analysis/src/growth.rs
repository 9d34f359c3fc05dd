//! Detects leaks. In: allocations of a process, and those that are live at its end. Out: the groups that grow.
//!
//! Memory that is live at the end of a process is held: programs normally do not free pools, caches and buffers that
//! they make once, and the exit frees them. A leak is a group of similar allocations (function, space, size to a power
//! of two, and call site where one is known) that grows throughout the run: its allocations began in many parts of the run, late as well as early, and a
//! substantial share of all that the group ever allocated is still live.

use std::collections::{HashMap, HashSet};

use crate::stacks::Site;
use gpurec_trace::hash::Map;

/// Limit on groups of all processes together. Memory outside any group counts as held.
pub const GROUPS: usize = 65_536;

/// The run, from the first allocation of the process to its end, has PARTS parts. A leak has live allocations from
/// SEEN_IN of them, including one of the last parts.
const PARTS: u64 = 10;
const SEEN_IN: u32 = 5;
const LAST: u64 = 3;

/// At least a third of a group's live allocations began in each half of the run, and at least a tenth of all its
/// allocations are live.
const HALF: u64 = 3;
const LIVE: u64 = 10;

/// With fewer launches in the run, the number of events measures the work instead.
const LAUNCHES: u64 = 10;

/// Time of this length after the last allocation or launch does not count as part of the run: libraries clean up in it.
const CLEANUP_NS: u64 = 2_000_000_000;

/// A moment, measured by time and by work: a process may idle for long, or take most of its time to load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    pub ns: u64,
    pub event: u64,
    /// Launches of the process so far, while it held memory.
    pub launches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    function: u32,
    space: u8,
    size: u8,
    /// The call site, if it is known.
    site: Option<Site>,
}

impl Group {
    pub fn of(function: u32, space: u8, size: u64, site: Option<Site>) -> Group {
        // At most 64.
        Group { function, space, size: (u64::BITS - size.leading_zeros()) as u8, site }
    }
}

/// Allocations of a process.
#[derive(Default)]
pub struct Allocation {
    first: Option<Moment>,
    last_ns: u64,
    launches: u64,
    groups: Map<Group, u64>,
}

/// The live allocations of a group.
#[derive(Default)]
struct LiveCounts {
    count: u64,
    early: u64,
    by_time: u16,
    by_work: u16,
}

impl Allocation {
    /// `groups` is the number of groups of all processes. Returns the moment, with the number of launches before it.
    pub fn add(&mut self, group: Group, ns: u64, event: u64, groups: &mut usize) -> Moment {
        let at = Moment { ns, event, launches: self.launches };
        self.first.get_or_insert(at);
        self.last_ns = ns;
        if let Some(count) = self.groups.get_mut(&group) {
            *count += 1;
        } else if *groups < GROUPS {
            *groups += 1;
            self.groups.insert(group, 1);
        }
        at
    }

    pub fn launched(&mut self, ns: u64) {
        self.launches += 1;
        self.last_ns = ns;
    }

    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The groups that leak, judged by the allocations live at the end.
    pub fn growing(
        &self,
        live: impl Iterator<Item = (Group, Moment)>,
        ns: u64,
        event: u64,
    ) -> HashSet<Group> {
        let Some(first) = self.first else { return HashSet::new() };
        let end_ns = self.last_ns.max(ns.saturating_sub(CLEANUP_NS));
        let by_launches = self.launches >= first.launches + LAUNCHES;
        let mut groups: HashMap<Group, LiveCounts> = HashMap::new();
        for (group, at) in live {
            let seen = groups.entry(group).or_default();
            let by_time = part(first.ns, at.ns, end_ns);
            let by_work = if by_launches {
                part(first.launches, at.launches, self.launches)
            } else {
                part(first.event, at.event, event)
            };
            seen.count += 1;
            seen.early += u64::from(by_time < PARTS / 2);
            seen.by_time |= 1 << by_time;
            seen.by_work |= 1 << by_work;
        }
        let leaks = |(group, seen): &(Group, LiveCounts)| {
            let made = self.groups.get(group).copied().unwrap_or(u64::MAX);
            let late = seen.count - seen.early;
            is_spread(seen.by_time)
                && is_spread(seen.by_work)
                && seen.early.min(late) >= seen.count / HALF
                && seen.count >= made / LIVE
        };
        groups.into_iter().filter(leaks).map(|(group, _)| group).collect()
    }
}

/// The part of the run to which a moment belongs.
fn part(from: u64, at: u64, to: u64) -> u64 {
    let (at, whole) = (at.saturating_sub(from), to.saturating_sub(from));
    let part = u128::from(at) * u128::from(PARTS) / u128::from(whole.max(1));
    u64::try_from(part).unwrap_or(PARTS).min(PARTS - 1)
}

fn is_spread(parts: u16) -> bool {
    parts.count_ones() >= SEEN_IN && parts >> (PARTS - LAST) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Whether allocations of one size, made and freed at these seconds of 0 to 1000, leak.
    fn leaks(allocations: impl IntoIterator<Item = (u64, Option<u64>)>) -> bool {
        leaks_among(allocations, 1000, |_| 0)
    }

    /// The same with this number of launches after each second, and until the end.
    fn leaks_among(
        allocations: impl IntoIterator<Item = (u64, Option<u64>)>,
        end: u64,
        launches: impl Fn(u64) -> u64,
    ) -> bool {
        let (mut made, mut groups, mut live) = (Allocation::default(), 0, Vec::new());
        let group = Group::of(1, 0, 4096, None);
        let mut allocations = allocations.into_iter().peekable();
        made.add(Group::of(9, 9, 9, None), 0, 0, &mut groups);
        for second in 0..end {
            while let Some((_, freed)) = allocations.next_if(|(began, _)| *began <= second) {
                let at = made.add(group, second * SECOND, second, &mut groups);
                live.extend(freed.is_none().then_some((group, at)));
            }
            (0..launches(second)).for_each(|_| made.launched(second * SECOND));
        }
        !made.growing(live.into_iter(), end * SECOND, end).is_empty()
    }

    #[test]
    fn what_grows_through_the_run_leaks() {
        assert!(leaks((0..90).map(|i| (i * 11, None))));
        // One in each of seven parts; the work is over early.
        assert!(leaks((0..8).map(|i| (i * 100 + 50, None))));
        // Nine of ten allocations are freed.
        assert!(leaks((0..1000).map(|i| (i, (i % 10 > 0).then_some(i + 1)))));
    }

    #[test]
    fn work_is_measured_by_launches_where_there_are_some() {
        // Loading weights takes nine tenths of the time; then the program uses them.
        let weights = || (0..90).map(|i| (i, None));
        assert!(leaks_among(weights(), 100, |_| 0));
        assert!(!leaks_among(weights(), 100, |second| if second < 90 { 0 } else { 50 }));
        assert!(leaks_among(weights(), 100, |_| 5));
    }

    #[test]
    fn the_time_in_which_libraries_clean_up_is_not_of_the_run() {
        let (mut made, mut groups, mut live) = (Allocation::default(), 0, Vec::new());
        let group = Group::of(1, 0, 4096, None);
        for i in 0..100u64 {
            live.push((group, made.add(group, i * 1000, i, &mut groups)));
        }
        assert!(!made.growing(live.clone().into_iter(), SECOND, 100).is_empty());
        assert!(made.growing(live.into_iter(), 60 * SECOND, 100).is_empty());
    }

    #[test]
    fn what_is_held_does_not() {
        // One allocation, or all of them during loading.
        assert!(!leaks([(10, None)]));
        assert!(!leaks((0..100).map(|i| (i * 6, None))));
        // A pool that has grown to the needed size.
        assert!(!leaks([0, 1, 2, 5, 10, 30, 700].map(|at| (at, None))));
        // Each allocation lives for a while, so that the number of live ones is constant.
        assert!(!leaks((0..1000).map(|i| (i, (i < 900).then_some(i + 100)))));
        // A cache in which some entries live long and all others are replaced.
        assert!(!leaks((0..1000).map(|i| (i, (i % 20 > 0 && i < 990).then_some(i + 10)))));
    }
}
