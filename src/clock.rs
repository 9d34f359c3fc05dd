//! The clock of every time in a trace: CLOCK_MONOTONIC of the machine, which BPF's records use.

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
