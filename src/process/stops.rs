//! Resumes processes that gpurec has stopped. In: a process. Out: it runs again, unless another process has stopped it
//! too; then that stop takes effect. gpurec sends its own stops to a thread, so a stop signal that is pending for the
//! process came from elsewhere.

use std::time::{Duration, Instant};

use super::{Pid, proc};

/// Time from receiving a signal to being stopped by it: microseconds, if the thread gets a processor.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// Signals that stop a process unless it handles them.
const STOPS: [libc::c_int; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// True if no other process keeps it stopped.
pub fn go_on(pid: Pid) -> bool {
    if pid == 0 || pid > i32::MAX as u32 {
        return true;
    }
    let others = stops_waiting(pid);
    // Another SIGSTOP is pending, and its sender will resume the process. Sending SIGCONT and then SIGSTOP again would
    // let the process run in between.
    if others.contains(&libc::SIGSTOP) {
        return false;
    }
    send(pid, libc::SIGCONT);
    // SIGCONT discarded stop signals that others had sent meanwhile, so send them again. The process runs for a moment;
    // Linux decides whether such a signal is handled or stops it.
    for signal in &others {
        send(pid, *signal);
    }
    others.is_empty()
}

/// Stops a process by a signal to its first thread. A signal to the process would look like another sender's stop, and
/// gpurec would never resume the process.
pub fn stop(pid: Pid) {
    // SAFETY: plain integers; a thread that is gone is an error without effect.
    unsafe { libc::syscall(libc::SYS_tgkill, pid as libc::pid_t, pid as libc::pid_t, libc::SIGSTOP) };
}

/// True if a thread that gpurec has sent a stop to is still held by it. A thread stops on its way back to user space:
/// for that moment it runs and the signal is no longer pending. This function waits for that long, which is rarely
/// needed.
pub fn holds(tid: Pid) -> bool {
    let begun = Instant::now();
    loop {
        match is_kept(tid) {
            // The thread is gone, so its state is unknown; assume that it was stopped.
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

/// The last field of /proc/PID/stat for a process that has ended.
fn ended_by(pid: Pid) -> Option<libc::c_int> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status: libc::c_int = text.split_ascii_whitespace().last()?.parse().ok()?;
    Some(status & 0x7f)
}

/// Stop signals that are sent to a stopped process stay pending until it resumes.
fn stops_waiting(pid: Pid) -> Vec<libc::c_int> {
    let pending = proc::status_field(pid, "ShdPnd").ok();
    let bits = pending.and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    STOPS.into_iter().filter(|signal| bits >> (*signal - 1) & 1 == 1).collect()
}

fn send(pid: Pid, signal: libc::c_int) {
    // SAFETY: plain integers; the pid is positive, so one process.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}
