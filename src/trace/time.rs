//! The wall clock as text, in the local time zone.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

/// `2026-11-21T03:04:05.123+01:00`.
pub fn rfc3339(at: SystemTime) -> String {
    let tm = local(at);
    let millis = since_epoch(at).subsec_millis();
    let offset = tm.tm_gmtoff / 60;
    format!(
        "{}-{:02}-{:02}T{:02}:{:02}:{:02}.{millis:03}{}{:02}:{:02}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        if offset < 0 { '-' } else { '+' },
        offset.abs() / 60,
        offset.abs() % 60,
    )
}

/// `20261121_030405`, as in the name of a trace.
pub fn stamp(at: SystemTime) -> String {
    let tm = local(at);
    format!(
        "{}{:02}{:02}_{:02}{:02}{:02}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
    )
}

fn since_epoch(at: SystemTime) -> std::time::Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn local(at: SystemTime) -> libc::tm {
    let seconds = since_epoch(at).as_secs() as libc::time_t;
    // SAFETY: tm is integers and a pointer, for which zero is a value.
    let mut tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid memory for the call; on failure tm is kept.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    tm
}
