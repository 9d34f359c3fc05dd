//! A small process beside gpurec, so that no process gpurec stopped stays stopped.
//!
//! In: a way to ask which processes are stopped, and when the recorder last said that it is there (BPF maps read
//! through kept descriptors). Out: SIGCONT to them if gpurec dies, or does not run for [`DEADLINE`]: the recorder has
//! the caller's user id, so the caller may stop it, at a moment when another user's process waits for it. The
//! guardian stays root and out of the caller's reach. It holds nothing open but its pipe and the kept descriptors, so
//! that links are detached and pipelines end without it. At the end it can be handed what takes the
//! kernel long to close: nobody waits for a process that has nothing to say any more.

use super::fds::close_all_except;
use super::rights::keep_what_guarding_needs;
use super::{Pid, identity, proc, stops};
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};

/// The kernel passes no more at once.
const MOST_FDS: usize = 253;
const QUIET: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_millis(10);
/// If somebody else keeps stopping them, it is no longer our business.
const AT_MOST: Duration = Duration::from_secs(60);

/// A recorder that has not said so long that it is there is not: it does ten times a second. What it stops waits no
/// longer than this and two looks.
pub const DEADLINE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);

/// When the recorder last said that it is there.
pub struct Beat {
    /// Another number for each time.
    pub at: u64,
    pub age: Duration,
}

/// What is known of the processes that gpurec has stopped.
pub trait Stops {
    fn beat(&mut self) -> Option<Beat>;
    /// It may go on naming those that were resumed.
    fn stopped(&mut self) -> Vec<Pid>;
    /// This one is about to be resumed, though the recorder has not looked at what it was stopped for.
    fn rescue(&mut self, pid: Pid);
    /// Every process that had been stopped by now was resumed: for the recorder, if it comes back.
    fn rescued(&mut self);
    /// Gpurec is gone. Hooks can outlive it for a while: they record nothing more, and pause nobody.
    fn silence(&mut self);
}

/// Dismiss it when gpurec ends in good order. Dropped otherwise (an error, a panic) it does its work.
#[derive(Debug)]
pub struct Guardian {
    pid: Pid,
    pipe: OwnedFd,
}

/// Fork it. Call before any thread starts, for `stops` may allocate, and before links are made, which
/// it would have to close.
pub fn spawn(stops: impl Stops, keep_fds: &[RawFd]) -> io::Result<Guardian> {
    let (read, write) = pipe()?;
    // SAFETY: the child calls only `guard` and ends there; the parent has no other threads.
    match unsafe { libc::fork() } {
        0 => {
            // A panic in `stops` must not unwind into a second gpurec.
            let work = std::panic::AssertUnwindSafe(|| guard(read.as_raw_fd(), stops, keep_fds));
            let _ = std::panic::catch_unwind(work);
            // SAFETY: ends this process without running gpurec's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => Ok(Guardian { pid: pid as Pid, pipe: write }),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Guardian {
    #[cfg(test)]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Nothing is stopped any more: it ends, and closes what it is given, as the last to do so.
    pub fn dismiss(self, last: Vec<OwnedFd>) {
        let Guardian { pid, pipe } = self;
        let written = send_word(&pipe, &last);
        let takes_time = !last.is_empty();
        drop(last);
        // By this it knows that it is the last.
        drop(pipe);
        // Only a guardian that got the word ends; another is left to end by itself.
        if written && takes_time {
            // Where no thread can be had, it is reaped when we are.
            let _ = std::thread::Builder::new().spawn(move || reap(pid, 0));
        } else {
            reap(pid, if written { 0 } else { libc::WNOHANG });
        }
    }
}

fn reap(pid: Pid, flags: libc::c_int) {
    let mut status = 0;
    // SAFETY: a child of ours, and an int to fill.
    while unsafe { libc::waitpid(pid as libc::pid_t, &mut status, flags) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// The word by which it is dismissed: one byte, with descriptors if there are any.
fn send_word(pipe: &OwnedFd, last: &[OwnedFd]) -> bool {
    let fds: Vec<RawFd> = last.iter().take(MOST_FDS).map(AsRawFd::as_raw_fd).collect();
    let word = [IoSlice::new(&[1u8])];
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(pipe.as_raw_fd(), &word, rights, MsgFlags::MSG_NOSIGNAL, None) == Ok(1)
}

/// A socket, not a pipe: it can be written to without SIGPIPE.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors, which are new and ours when the call succeeds.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let [read, write] = fds;
        Ok((OwnedFd::from_raw_fd(read), OwnedFd::from_raw_fd(write)))
    }
}

fn guard(pipe: RawFd, mut stops: impl Stops, keep_fds: &[RawFd]) {
    detach(pipe, keep_fds, c"gpurec-guard");
    leave_cgroup();
    keep_what_guarding_needs();
    let mut last = None;
    while !is_readable(pipe) {
        let beat = stops.beat();
        let at = beat.as_ref().map(|beat| beat.at);
        // Twice the same: where the whole machine stood still, the recorder has had its turn since.
        if beat.is_some_and(|beat| beat.age > DEADLINE) && at == last {
            rescue(&mut stops);
        }
        last = at;
    }
    if !dismissed(pipe) {
        let_go(&mut stops);
    }
}

/// The recorder is not there: the processes that wait for it go on.
fn rescue(stops: &mut impl Stops) {
    let pids = stops.stopped();
    if pids.is_empty() {
        return;
    }
    // Also before: the recorder may come back meanwhile.
    stops.rescued();
    for pid in pids {
        stops.rescue(pid);
        stops::go_on(pid);
    }
    stops.rescued();
}

/// Whether there is a word, or the end, within the time between two looks.
fn is_readable(pipe: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, LOOK.as_millis() as libc::c_int) > 0 }
}

/// A user may freeze the control groups that are theirs (systemd's, of their session), with all that is in them. Where
/// this is refused, or there are only groups of the first version, it stays.
fn leave_cgroup() {
    if !identity::elevated() {
        return;
    }
    for group in ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"] {
        if let Ok(mut file) = OpenOptions::new().write(true).open(group) {
            let _ = file.write_all(b"0");
        }
    }
}

/// Leave gpurec's session, terminal, files and directory.
pub fn detach(pipe: RawFd, keep_fds: &[RawFd], name: &CStr) {
    let mut keep = keep_fds.to_vec();
    keep.push(pipe);
    keep.sort_unstable();
    // SAFETY: calls on constants; /dev/null replaces the standard descriptors, which stay taken so
    // that nothing opened later becomes one by accident.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in 0..3 {
            if null < 0 || libc::dup2(null, fd) < 0 {
                libc::close(fd);
            }
        }
    }
    close_all_except(&keep);
}

/// Reads to the end of the file: whether the word came first. The descriptors that come with it
/// stay open until this process ends.
fn dismissed(pipe: RawFd) -> bool {
    let mut dismissed = false;
    let mut room = nix::cmsg_space!([RawFd; MOST_FDS]);
    loop {
        let mut byte = [0u8];
        let mut word = [IoSliceMut::new(&mut byte)];
        match recvmsg::<()>(pipe, &mut word, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 1 => dismissed = true,
            Err(Errno::EINTR) => {}
            _ => return dismissed,
        }
    }
}

fn let_go(stops: &mut impl Stops) {
    let begin = Instant::now();
    let mut quiet_since = begin;
    let mut told = HashSet::new();
    // Whom somebody else keeps stopped.
    let mut others = HashSet::new();
    while quiet_since.elapsed() < QUIET && begin.elapsed() < AT_MOST {
        stops.silence();
        for pid in stops.stopped() {
            // Once in any case: a SIGSTOP that is pending (the process is inside a long ioctl) is
            // cancelled by it. Afterwards only whoever really is stopped.
            let needed = told.insert(pid) || proc::stat(pid).is_ok_and(|s| s.stopped());
            if needed && !others.contains(&pid) {
                if !stops::go_on(pid) {
                    others.insert(pid);
                }
                quiet_since = Instant::now();
            }
        }
        std::thread::sleep(ROUND);
    }
}
