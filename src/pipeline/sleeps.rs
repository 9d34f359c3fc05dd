//! Detects that the machine was suspended. CLOCK_MONOTONIC, which times everything here, stops during a suspend, and
//! CLOCK_BOOTTIME does not: the difference between the two grows only by the suspended time. In: readings of both.
//! Out: the time suspended since the previous reading. Pure except for `Reading::now`.

use nix::time::{ClockId, clock_gettime};

/// A shorter difference is no suspend: no machine suspends and resumes in that time.
const SHORTEST_NS: u64 = 10_000_000;

/// A reading that takes longer than this was preempted between the two clocks, and is ignored.
const KEPT_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Reading {
    before_ns: u64,
    boot_ns: u64,
    after_ns: u64,
}

impl Reading {
    pub fn now() -> Reading {
        let read = |clock| {
            let time = clock_gettime(clock);
            time.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
        };
        let before_ns = read(ClockId::CLOCK_MONOTONIC);
        let boot_ns = read(ClockId::CLOCK_BOOTTIME);
        Reading { before_ns, boot_ns, after_ns: read(ClockId::CLOCK_MONOTONIC) }
    }
}

#[derive(Default)]
pub struct Sleeps {
    /// The difference between the clocks, once it is known.
    apart_ns: Option<u64>,
}

impl Sleeps {
    pub fn look(&mut self, clocks: Reading) -> Option<u64> {
        if clocks.after_ns.saturating_sub(clocks.before_ns) > KEPT_NS {
            return None;
        }
        // In a time namespace, CLOCK_BOOTTIME may be behind CLOCK_MONOTONIC.
        let apart_ns = clocks.boot_ns.wrapping_sub(clocks.after_ns);
        let slept_ns = apart_ns.wrapping_sub(*self.apart_ns.get_or_insert(apart_ns));
        if !(SHORTEST_NS..i64::MAX as u64).contains(&slept_ns) {
            return None;
        }
        self.apart_ns = Some(apart_ns);
        Some(slept_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A reading at `at_ms` of CLOCK_MONOTONIC, with this difference to CLOCK_BOOTTIME, that took `took_ns`.
    fn reading(at_ms: u64, apart_ns: u64, took_ns: u64) -> Reading {
        let before_ns = at_ms * MS;
        Reading {
            before_ns,
            boot_ns: (before_ns + took_ns / 2).wrapping_add(apart_ns),
            after_ns: before_ns + took_ns,
        }
    }

    #[test]
    fn a_sleep_is_what_the_clocks_come_apart_by() {
        let mut sleeps = Sleeps::default();
        // A suspend before the recording does not count.
        assert_eq!(sleeps.look(reading(1000, 7_000_000 * MS, 0)), None);
        assert_eq!(sleeps.look(reading(1100, 7_000_000 * MS, 0)), None);
        assert_eq!(sleeps.look(reading(1200, 7_030_000 * MS, 0)), Some(30_000 * MS));
        assert_eq!(sleeps.look(reading(1300, 7_030_000 * MS, 0)), None);
        assert_eq!(sleeps.look(reading(1400, 7_030_011 * MS, 0)), Some(11 * MS));
    }

    #[test]
    fn a_reader_between_two_clocks_has_not_slept() {
        let mut sleeps = Sleeps::default();
        assert_eq!(sleeps.look(reading(1000, 5 * MS, 80_000 * MS)), None);
        for (at, took) in [(1000, 40), (1100, 900_000), (1200, 20_000 * MS), (1300, 0), (1400, 999_999)] {
            assert_eq!(sleeps.look(reading(at, 5 * MS, took)), None, "{took}");
        }
        // The next reading shows what an ignored one hides.
        assert_eq!(sleeps.look(reading(1500, 105 * MS, 20_000 * MS)), None);
        assert_eq!(sleeps.look(reading(1600, 105 * MS, 0)), Some(100 * MS + 20));
    }

    #[test]
    fn clocks_of_a_time_namespace_are_as_good() {
        let mut sleeps = Sleeps::default();
        let behind = 0u64.wrapping_sub(500 * MS);
        assert_eq!(sleeps.look(reading(1000, behind, 0)), None);
        assert_eq!(sleeps.look(reading(1100, behind, 300)), None);
        assert_eq!(sleeps.look(reading(1200, 250 * MS, 0)), Some(750 * MS));
    }

    #[test]
    fn these_clocks_can_be_read() {
        let mut sleeps = Sleeps::default();
        let read: Vec<_> = (0..1000).map(|_| sleeps.look(Reading::now())).collect();
        assert!(read.iter().all(Option::is_none), "{read:?}");
        assert!(sleeps.apart_ns.is_some());
    }
}
