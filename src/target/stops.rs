//! Letting go whom gpurec has stopped. In: a process. Out: it goes on, unless somebody else has stopped it too: then
//! that stop is in force from here on. gpurec's own stops are sent to a thread, so what waits for the process is
//! another's.

use super::{Pid, proc};

/// Signals that stop a process, if it doesn't take them.
const STOPS: [libc::c_int; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// True if nobody else keeps it stopped.
pub fn go_on(pid: Pid) -> bool {
    if pid == 0 || pid > i32::MAX as u32 {
        return true;
    }
    let others = stops_waiting(pid);
    // It is stopped, and whoever wants that ends it. A SIGCONT of ours and that signal anew would let it run between.
    if others.contains(&libc::SIGSTOP) {
        return false;
    }
    send(pid, libc::SIGCONT);
    // That undid what somebody else had asked for meanwhile. It runs for a moment: whether it takes such a signal, or
    // stops by it at all, is for the kernel to say.
    for signal in &others {
        send(pid, *signal);
    }
    others.is_empty()
}

/// Stop signals that were sent to a stopped process wait until it goes on.
fn stops_waiting(pid: Pid) -> Vec<libc::c_int> {
    let pending = proc::status_field(pid, "ShdPnd").ok();
    let bits = pending.and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    STOPS.into_iter().filter(|signal| bits >> (*signal - 1) & 1 == 1).collect()
}

fn send(pid: Pid, signal: libc::c_int) {
    // SAFETY: plain integers; the pid is positive, so one process.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}
