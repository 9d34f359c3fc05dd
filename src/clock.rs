//! The clock of every time in a trace: CLOCK_MONOTONIC of the machine, which BPF's records use. Also readings of all
//! clocks at one moment. Not here: converting times of another clock (gpu/clock.rs).

use std::sync::OnceLock;

/// The time on the clock of BPF's records, even if a time namespace gives gpurec another one.
pub fn monotonic_ns() -> u64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    let ahead = *AHEAD.get_or_init(|| namespace_ns(&std::fs::read_to_string(OFFSETS).unwrap_or_default()));
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let ns = time.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64);
    ns.wrapping_sub(ahead as u64)
}

/// The length of a jiffy, in which Linux itself counts time.
pub fn tick_ns() -> u64 {
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    tick.map_or(1_000_000, |tick| tick.tv_nsec() as u64)
}

/// The time of day.
pub fn realtime_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME);
    time.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// A reading that took less than this is good enough.
const TIGHT_NS: u64 = 150;
const TRIES: u32 = 10;

/// All clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub monotonic: u64,
    pub realtime: u64,
    /// The processor's counter; 0 if programs cannot read one.
    pub counter: u64,
    /// All clocks were read at most this long before or after `monotonic`.
    pub error: u64,
}

impl Reading {
    /// The shortest of a few readings, because this thread may be preempted in the middle of one.
    pub fn now() -> Reading {
        let mut best = (u64::MAX, Reading::default());
        for _ in 0..TRIES {
            let before = monotonic_ns();
            let (counter, realtime) = (counter(), realtime_ns());
            let took = monotonic_ns().saturating_sub(before);
            if took < best.0 {
                let (monotonic, error) = (before + took / 2, took.div_ceil(2));
                best = (took, Reading { monotonic, realtime, counter, error });
            }
            if took < TIGHT_NS {
                break;
            }
        }
        best.1
    }
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

const OFFSETS: &str = "/proc/self/timens_offsets";

/// The offset of a time namespace's monotonic clock from the machine's own.
fn namespace_ns(offsets: &str) -> i64 {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"));
    let mut numbers =
        line.into_iter().flat_map(str::split_whitespace).map_while(|word| word.parse::<i64>().ok());
    let (seconds, ns) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

#[cfg(test)]
mod tests {
    use super::namespace_ns;

    #[test]
    fn the_clock_of_a_time_namespace() {
        assert_eq!(namespace_ns("monotonic  100000         5\nboottime  7 8\n"), 100_000_000_000_005);
        assert_eq!(namespace_ns("monotonic -20 0\n"), -20_000_000_000);
        for none in ["", "monotonic", "boottime 7 8\n", "monotonic x y\n"] {
            assert_eq!(namespace_ns(none), 0);
        }
    }
}
