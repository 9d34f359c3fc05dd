//! Threads beside the recorder's first. In: what begins them. Out: they take no signals, since those are for whoever
//! records, who may come to block them only later.

use nix::sys::signal::{SigSet, SigmaskHow};

/// What `begin` starts has all signals blocked.
pub fn without_signals<T>(begin: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let begun = begin();
    if let Ok(before) = before {
        // Fails for no mask that was in force.
        let _ = before.thread_set_mask();
    }
    begun
}
