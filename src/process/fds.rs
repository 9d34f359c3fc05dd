//! File descriptors: how many gpurec may open, and closing those that a forked child must not hold. Functions for the
//! child are async-signal-safe: no allocation, no locks.

use gpurec_trace::HookError;
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Linux before 6.6 needs two descriptors for every hooked function.
const MANY: libc::rlim_t = 65_536;

/// The limit that gpurec was started with; the command gets the same.
static INHERITED: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises the limit to what hooking may take, or as far as Linux allows.
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid rlimit to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= MANY {
        return;
    }
    INHERITED.get_or_init(|| limit);
    let most = libc::rlimit { rlim_cur: MANY, rlim_max: limit.rlim_max.max(MANY) };
    let allowed = libc::rlimit { rlim_cur: limit.rlim_max.min(MANY), rlim_max: limit.rlim_max };
    // SAFETY: valid limits; a refusal leaves everything as it was.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_NOFILE, &most) != 0 {
            libc::setrlimit(libc::RLIMIT_NOFILE, &allowed);
        }
    }
}

/// The advice for a user whose limit is too low.
pub fn too_few() -> HookError {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid rlimit to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    HookError::Descriptors { limit: limit.rlim_cur }
}

/// For the child, before it executes the command.
pub(super) fn restore_limit() {
    if let Some(limit) = INHERITED.get() {
        // SAFETY: a valid limit, not above the one in force.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    }
}

/// Closes every descriptor from 3 on except those in `keep`, which must be sorted.
pub(super) fn close_all_except(keep: &[RawFd]) {
    let mut from: RawFd = 3;
    for fd in keep.iter().copied().filter(|fd| *fd >= 3) {
        if fd > from {
            close_between(from, fd - 1);
        }
        from = fd + 1;
    }
    close_between(from, RawFd::MAX);
}

fn close_between(first: RawFd, last: RawFd) {
    // SAFETY: closing descriptors this process no longer uses.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // An old Linux or a container's filter refuses the call: close one descriptor at a time, up to the highest
    // possible.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid rlimit to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let highest = limit.rlim_cur.clamp(1024, 1 << 20) as RawFd;
    for fd in first..=last.min(highest) {
        // SAFETY: as above; a number that is not open is an error without effect.
        unsafe { libc::close(fd) };
    }
}
