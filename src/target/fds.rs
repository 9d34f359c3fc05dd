//! Closing what a forked child must not hold. Async-signal-safe: no allocation, no locks.

use std::os::fd::RawFd;

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
