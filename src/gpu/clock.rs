//! The clocks of CUPTI's clients. In: the time of a record, on the clock that the client chose, and readings of this
//! machine's clocks. Out: the same time on CLOCK_MONOTONIC. Pure.
//!
//! A record comes a few seconds after its work, so only one clock fits its time: CLOCK_MONOTONIC, CLOCK_REALTIME (CUPTI's
//! own choice), or the processor's counter (PyTorch's).

use crate::clock::Reading;

/// How old a record may be.
const OLDEST_NS: u64 = 600_000_000_000;
/// How far the readings may be apart.
const AHEAD_NS: u64 = 1_000_000;

/// Two readings, as far apart as the recording is long.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    first: Reading,
    last: Reading,
}

impl Clocks {
    pub fn new(first: Reading) -> Clocks {
        Clocks { first, last: first }
    }

    pub fn last(&self) -> Reading {
        self.last
    }

    pub fn look(&mut self, now: Reading) {
        self.last = now;
    }

    /// None: no clock fits.
    pub fn monotonic(&self, time: u64) -> Option<u64> {
        let last = self.last;
        let fits = |time: u64| {
            (last.monotonic.saturating_sub(OLDEST_NS)..=last.monotonic + AHEAD_NS).contains(&time)
        };
        if fits(time) {
            return Some(time);
        }
        let on_realtime =
            time.checked_sub(last.realtime.checked_sub(last.monotonic)?).filter(|time| fits(*time));
        on_realtime.or_else(|| self.of_counter(time).filter(|time| fits(*time)))
    }

    fn of_counter(&self, time: u64) -> Option<u64> {
        let (first, last) = (self.first, self.last);
        let ticks = last.counter.checked_sub(first.counter).filter(|ticks| *ticks > 0)?;
        let ns = last.monotonic.checked_sub(first.monotonic)?;
        let back = i128::from(last.counter) - i128::from(time);
        u64::try_from(i128::from(last.monotonic) - back * i128::from(ns) / i128::from(ticks)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn clocks() -> Clocks {
        let at = |monotonic: u64| Reading {
            monotonic,
            realtime: 1_700_000_000 * S + monotonic,
            counter: 5_000 + monotonic * 5 / 2,
            error: 0,
        };
        let mut clocks = Clocks::new(at(1000 * S));
        clocks.look(at(1020 * S));
        clocks
    }

    #[test]
    fn every_clock_is_recognised() {
        let clocks = clocks();
        for time in [1015 * S, 1020 * S, 999 * S + 7] {
            assert_eq!(clocks.monotonic(time), Some(time));
            assert_eq!(clocks.monotonic(1_700_000_000 * S + time), Some(time));
            let by_counter = clocks.monotonic(5_000 + time * 5 / 2).unwrap();
            assert!(by_counter.abs_diff(time) <= 1, "{by_counter} {time}");
        }
        for time in [0, 1, 100 * S, 1022 * S, 1_600_000_000 * S, u64::MAX] {
            assert_eq!(clocks.monotonic(time), None, "{time}");
        }
    }

    #[test]
    fn the_machines_own_clocks_agree() {
        let mut clocks = Clocks::new(Reading::now());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = Reading::now();
        clocks.look(now);
        for time in [now.monotonic, now.realtime, now.counter].into_iter().filter(|time| *time > 0) {
            let found = clocks.monotonic(time).unwrap();
            assert!(found.abs_diff(now.monotonic) < 1_000_000, "{found} {now:?}");
        }
    }
}
