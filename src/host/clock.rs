//! The fields of a `clock` line: the clocks of this machine and how good they are. In: a reading of the clocks; Linux.
//! Out: the line. Not here: reading the clocks (crate::clock), and when a line is due.

use std::fs;

use crate::clock::Reading;
use gpurec_trace::{Clock, Ntp};

/// While no program disciplines the clock, Linux raises the maximum error up to this limit.
const UNSYNCHRONIZED_US: i64 = 16_000_000;

pub fn now() -> Clock {
    describe(Reading::now())
}

pub fn describe(reading: Reading) -> Clock {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    let names = devices.filter_map(|entry| entry.file_name().into_string().ok());
    Clock {
        monotonic_ns: reading.monotonic,
        realtime_ns: reading.realtime,
        error_ns: reading.error,
        boot_id: boot_id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()),
        ntp: ntp(),
        ptp: first_ptp(names),
    }
}

fn ntp() -> Option<Ntp> {
    // SAFETY: integers, which may be 0.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: without a mode it only reads, for which no right is needed.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    #[allow(clippy::useless_conversion)] // C's long
    (answer >= 0).then(|| ntp_of(state.status, state.offset.into(), state.maxerror.into()))
}

/// Whether the clock is synchronised follows from the maximum error, which grows to its limit while nothing corrects
/// it. The flag STA_UNSYNC does not show it: chrony sets that flag to keep Linux from setting the hardware clock.
fn ntp_of(status: i32, offset: i64, max_error_us: i64) -> Ntp {
    let unit = if status & libc::STA_NANO != 0 { 1 } else { 1000 };
    Ntp {
        offset_ns: offset.saturating_mul(unit),
        max_error_ns: u64::try_from(max_error_us).unwrap_or(0).saturating_mul(1000),
        synchronized: max_error_us < UNSYNCHRONIZED_US,
    }
}

/// The device with the lowest number, mostly `/dev/ptp0`.
fn first_ptp(names: impl Iterator<Item = String>) -> Option<String> {
    let number = |name: String| name.strip_prefix("ptp")?.parse::<u32>().ok();
    names.filter_map(number).min().map(|number| format!("/dev/ptp{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ptp_device() {
        let first = |names: &[&str]| first_ptp(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(first(&["ptp10", "ptp2", "ptp_kvm", "ptp", "pts", "ptmx"]).as_deref(), Some("/dev/ptp2"));
        assert_eq!(first(&["ptp_kvm", "null"]), None);
    }

    #[test]
    fn the_state_of_ntp_has_one_unit() {
        let chrony = ntp_of(libc::STA_NANO | libc::STA_UNSYNC, -1500, 730);
        assert_eq!(chrony, Ntp { offset_ns: -1500, max_error_ns: 730_000, synchronized: true });
        let none = ntp_of(libc::STA_UNSYNC, 3, UNSYNCHRONIZED_US);
        assert_eq!(none, Ntp { offset_ns: 3000, max_error_ns: 16_000_000_000, synchronized: false });
    }

    #[test]
    fn this_machine_has_clocks() {
        let (before, clock) = (crate::clock::monotonic_ns(), now());
        assert!((before..=crate::clock::monotonic_ns()).contains(&clock.monotonic_ns), "{clock:?}");
        assert!(clock.realtime_ns.abs_diff(crate::clock::realtime_ns()) < 1_000_000_000, "{clock:?}");
        assert!(clock.error_ns < 1_000_000, "{clock:?}");
        assert_eq!(clock.boot_id.as_ref().map(String::len), Some(36), "{clock:?}");
    }
}
