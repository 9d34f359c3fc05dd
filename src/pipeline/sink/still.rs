//! Calls that do not return, for `--live`: one row when a call has been open for a second, and one at every doubling.

use super::Lines;
use crate::pipeline::pair::Open;

const SECOND: u64 = 1_000_000_000;

impl Lines {
    /// Shows the rows that are due at `now`, in CLOCK_MONOTONIC ns. Each row comes once, at the first check after its
    /// time.
    pub fn still<'a>(&mut self, open: impl Iterator<Item = &'a Open>, now: u64) {
        let before = std::mem::replace(&mut self.looked, now);
        if self.live.is_none() || self.hurry {
            return;
        }
        for call in open.filter(|call| is_due(call.ts, before, now)) {
            let is_call = self.probes.get(call.probe as usize).is_some_and(|facts| facts.beneath.is_none());
            let (at, call) = (self.since_start(now), self.one_in_flight(now, call, false));
            if let Some(live) = self.live.as_mut().filter(|_| is_call) {
                live.still(at, &call);
            }
        }
    }
}

/// True if a call that began at `begin` reached an age of 1, 2, 4, 8... seconds since the check at `before`.
fn is_due(begin: u64, before: u64, now: u64) -> bool {
    let doublings = |at: u64| (at.saturating_sub(begin) / SECOND).checked_ilog2();
    doublings(now) > doublings(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_at_a_second_and_at_every_doubling() {
        const TICK: u64 = 100_000_000;
        let begin = 12_345_678_901;
        let mut rows = Vec::new();
        for tick in 0..200 {
            let now = begin + tick * TICK;
            if is_due(begin, now.saturating_sub(TICK), now) {
                rows.push(tick / 10);
            }
        }
        assert_eq!(rows, [1, 2, 4, 8, 16]);
        assert!(is_due(0, SECOND - 1, 9 * SECOND), "one row for what was not looked at in time");
        assert!(!is_due(5 * SECOND, 0, 5 * SECOND) && !is_due(5 * SECOND, 0, 4 * SECOND));
    }
}
