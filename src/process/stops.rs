//! Letting go whom gpurec has stopped. In: a process. Out: it goes on, unless somebody else has stopped it too: then
//! that stop is in force from here on. gpurec's own stops are sent to a thread, so what waits for the process is
//! another's.

use std::time::{Duration, Instant};

use super::{Pid, proc};

/// From taking a signal to being stopped by it: microseconds, if the thread is given a processor.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

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

/// Stops a process, by its first thread: a stop that waits for the process would be taken for another's, and the process
/// would never be resumed.
pub fn stop(pid: Pid) {
    // SAFETY: plain integers; a thread that is gone is an error without effect.
    unsafe { libc::syscall(libc::SYS_tgkill, pid as libc::pid_t, pid as libc::pid_t, libc::SIGSTOP) };
}

/// Is a thread to which gpurec has sent a stop still kept by it? It stops on its way back to the program: for that moment
/// it runs, and the signal is not pending any more. Waits for as long as that may take, which is seldom needed.
pub fn holds(tid: Pid) -> bool {
    let begun = Instant::now();
    loop {
        match is_kept(tid) {
            // Of whom nothing is left it is not known.
            None | Some(true) => return true,
            Some(false) if begun.elapsed() > ON_ITS_WAY => return false,
            Some(false) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn is_kept(tid: Pid) -> Option<bool> {
    let state = proc::status_field(tid, "State").ok()?;
    match state.as_bytes().first()? {
        b'Z' | b'X' => ended_by(tid).map(|signal| signal == libc::SIGKILL),
        b'T' | b't' => Some(true),
        _ => {
            let waiting = u64::from_str_radix(&proc::status_field(tid, "SigPnd").ok()?, 16).ok()?;
            Some(waiting >> (libc::SIGSTOP - 1) & 1 == 1)
        }
    }
}

/// The last field of /proc/PID/stat, of a process that has ended.
fn ended_by(pid: Pid) -> Option<libc::c_int> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status: libc::c_int = text.split_ascii_whitespace().last()?.parse().ok()?;
    Some(status & 0x7f)
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
