//! The times in which gpurec itself kept processes stopped: for a mapped file, or for --lossless. In: each stop when
//! it ends. Out: the number of stops, their total time, and the part of a call's time that fell into them. Pure.

use std::collections::VecDeque;

use gpurec_trace as trace;
use gpurec_trace::hash::Map;

/// The most stops of one process that are kept apart. Calls that were open for longer enclose all older stops.
const KEPT: usize = 1024;
/// The most stops of all processes whose times are kept for dumps.
const RECENT: usize = 1 << 16;

#[derive(Default)]
pub struct Stops {
    of: Map<u32, VecDeque<Stop>>,
    pub all: trace::Stops,
    /// When each ended, and its time.
    recent: VecDeque<(u64, u64)>,
    /// Stops up to this time are no longer in `recent`.
    forgotten_to: u64,
}

/// The stops of a part of the recording.
#[derive(Default)]
pub struct Recent {
    /// When each ended, and its time.
    stops: Vec<(u64, u64)>,
    forgotten_to: u64,
}

impl Recent {
    /// The stops that ended after a time. None: some of them are no longer known.
    pub fn since(&self, from: u64) -> Option<trace::Stops> {
        let later = self.stops.iter().filter(|(to, _)| *to > from);
        let sum = |all: trace::Stops, (to, ns): &(u64, u64)| trace::Stops {
            count: all.count + 1,
            total_ns: all.total_ns + ns.min(&to.saturating_sub(from)),
        };
        (from >= self.forgotten_to).then(|| later.fold(trace::Stops::default(), sum))
    }
}

struct Stop {
    from: u64,
    to: u64,
    ns: u64,
}

impl Stops {
    /// Adds a stop and returns the time that it adds. Two stops at the same time, for two reasons, count once.
    pub fn add(&mut self, pid: u32, from: u64, to: u64) -> u64 {
        let stops = self.of.entry(pid).or_default();
        let from = stops.back().map_or(from, |last| from.max(last.to));
        let Some(ns) = to.checked_sub(from).filter(|ns| *ns > 0) else { return 0 };
        self.all.count += 1;
        self.all.total_ns += ns;
        self.recent.push_back((to, ns));
        if self.recent.len() > RECENT
            && let Some((to, _)) = self.recent.pop_front()
        {
            self.forgotten_to = self.forgotten_to.max(to);
        }
        stops.push_back(Stop { from, to, ns });
        if stops.len() > KEPT
            && let Some(oldest) = stops.pop_front()
            && let Some(next) = stops.front_mut()
        {
            *next = Stop { from: oldest.from, to: next.to, ns: oldest.ns + next.ns };
        }
        ns
    }

    /// The time between `from` and `to` in which the process was stopped.
    pub fn within(&self, pid: u32, from: u64, to: u64) -> u64 {
        let Some(stops) = self.of.get(&pid) else { return 0 };
        let later = stops.iter().rev().take_while(|stop| stop.to > from);
        later.map(|stop| stop.ns.min(stop.to.min(to).saturating_sub(stop.from.max(from)))).sum()
    }

    /// The latest stops, with times since the start of the recording.
    pub fn recent(&self, start: u64) -> Recent {
        let stops = self.recent.iter().map(|(to, ns)| (to.saturating_sub(start), *ns)).collect();
        Recent { stops, forgotten_to: self.forgotten_to.saturating_sub(start) }
    }

    pub fn gone(&mut self, pid: u32) {
        self.of.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_part_of_a_stop_that_falls_into_it() {
        let mut stops = Stops::default();
        stops.add(7, 100, 200);
        stops.add(7, 300, 350);
        // A stop for another reason, at the same time.
        assert_eq!(stops.add(7, 310, 360), 10);
        stops.add(8, 0, 1000);
        assert_eq!(stops.within(7, 0, 1000), 160);
        assert_eq!(stops.within(7, 150, 1000), 110);
        assert_eq!(stops.within(7, 200, 300), 0);
        assert_eq!(stops.within(7, 320, 330), 10);
        assert_eq!((stops.all.count, stops.all.total_ns), (4, 1160));
        stops.gone(7);
        assert_eq!(stops.within(7, 0, 1000), 0);
        // A part has each stop that ended in it, with the time that falls into the part.
        let since = |from| stops.recent(50).since(from).map(|of| (of.count, of.total_ns));
        assert_eq!(since(0), Some((4, 100 + 50 + 10 + 950)));
        assert_eq!(since(300), Some((2, 10 + 650)));
        assert_eq!(since(950), Some((0, 0)));
    }

    #[test]
    fn of_very_many_the_oldest_are_one() {
        let mut stops = Stops::default();
        for i in 0..5000 {
            stops.add(7, 100 * i, 100 * i + 10);
        }
        assert_eq!(stops.of[&7].len(), KEPT);
        assert_eq!(stops.within(7, 0, u64::MAX), 50_000);
        assert_eq!(stops.within(7, 499_900, u64::MAX), 10);
        for i in 0..RECENT as u64 {
            stops.add(8, 600_000 + 2 * i, 600_001 + 2 * i);
        }
        let recent = stops.recent(0);
        assert_eq!(recent.since(400_000).map(|of| of.count), None, "a stop at 499,910 was forgotten");
        assert_eq!(recent.since(600_000).map(|of| of.count), Some(RECENT as u64));
    }
}
