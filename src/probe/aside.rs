//! Threads other than the recorder's first. In: a function that starts them. Out: they take no signals: signals are for
//! the recording thread, which may block them only later.

use nix::sys::signal::{SigSet, SigmaskHow};

/// Threads and processes that `begin` starts have all signals blocked.
pub fn without_signals<T>(begin: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let begun = begin();
    if let Ok(before) = before {
        // Cannot fail for a mask that was in force.
        let _ = before.thread_set_mask();
    }
    begun
}
