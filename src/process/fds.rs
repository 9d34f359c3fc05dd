//! Descriptors: how many gpurec may have, and closing what a forked child must not hold.
//! What the child calls is async-signal-safe: no allocation, no locks.

use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Kernels before 6.6 want two for every function hooked.
const MANY: libc::rlim_t = 65_536;

/// What we were started with: the command shall have the same.
static INHERITED: OnceLock<libc::rlimit> = OnceLock::new();

/// As many descriptors as hooking may take, or as many as we may have.
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

/// What a person can do where there are not enough.
pub fn too_few() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid rlimit to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    format!(
        "gpurec may have {} files open, which is too few: raise that limit (`ulimit -n`) before it is started",
        limit.rlim_cur
    )
}

/// For the child, before it becomes the command.
pub(super) fn restore_limit() {
    if let Some(limit) = INHERITED.get() {
        // SAFETY: a valid limit, not above the one in force.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    }
}

/// Close every descriptor from 3 on except those in `keep`, which must be sorted.
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
    // Refused by an old kernel or a container's filter: one at a time, up to what could be open.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid rlimit to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let highest = limit.rlim_cur.clamp(1024, 1 << 20) as RawFd;
    for fd in first..=last.min(highest) {
        // SAFETY: as above; a number that is not open is an error without effect.
        unsafe { libc::close(fd) };
    }
}
