//! File descriptors: how many gpurec may open, and closing those that a forked child must not hold. Functions for the
//! child are async-signal-safe: no allocation, no locks.

use gpurec_trace::HookError;
use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Linux before 6.6 needs two descriptors for every hooked function.
const MANY: u64 = 65_536;

/// The soft and the hard limit that gpurec was started with; the command gets the same.
static INHERITED: OnceLock<(u64, u64)> = OnceLock::new();

/// Raises the limit to what hooking may take, or as far as Linux allows.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(RLIMIT_NOFILE) else { return };
    if soft < MANY {
        INHERITED.get_or_init(|| (soft, hard));
        let _ = setrlimit(RLIMIT_NOFILE, MANY, hard.max(MANY))
            .or_else(|_| setrlimit(RLIMIT_NOFILE, hard.min(MANY), hard));
    }
}

/// The advice for a user whose limit is too low.
pub fn too_few() -> HookError {
    HookError::Descriptors { limit: getrlimit(RLIMIT_NOFILE).map_or(0, |(soft, _)| soft) }
}

/// For the child, before it executes the command.
pub(super) fn restore_limit() {
    if let Some((soft, hard)) = INHERITED.get() {
        let _ = setrlimit(RLIMIT_NOFILE, *soft, *hard);
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
    let highest = getrlimit(RLIMIT_NOFILE).map_or(0, |(soft, _)| soft).clamp(1024, 1 << 20) as RawFd;
    for fd in first..=last.min(highest) {
        // SAFETY: as above; a number that is not open is an error without effect.
        unsafe { libc::close(fd) };
    }
}
