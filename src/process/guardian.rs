//! A small helper process. If gpurec dies, it resumes the processes that gpurec has stopped.
//!
//! In: functions that list the stopped processes and read the recorder's last heartbeat (BPF maps, through inherited
//! descriptors); a terminal that a view covers. Out: SIGCONT to those processes if gpurec dies or does not run for
//! [`DEADLINE`]; then the terminal as it was, if gpurec has not restored it.
//!
//! The recorder runs with the caller's user id, so the caller can stop it while another user's process waits for it. The
//! guardian stays root, so the caller cannot stop it. It keeps open only its pipe and the inherited descriptors, so
//! links detach and pipelines end without it. At the end, gpurec can pass it descriptors that Linux takes long to close:
//! no process waits for the guardian.

use super::fds::close_all_except;
use super::rights::keep_what_guarding_needs;
use super::terminal::Terminal;
use super::{Pid, identity, proc, stops};
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};

/// Linux passes at most this many descriptors in one message.
const MOST_FDS: usize = 253;
const QUIET: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_millis(10);
/// After this time another process must be stopping them; the guardian gives up.
const AT_MOST: Duration = Duration::from_secs(60);

/// A recorder without a heartbeat for this long counts as gone: it normally sends ten a second. A process that gpurec
/// stopped waits at most this long plus two polls.
pub const DEADLINE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);

/// How long a terminal may take nothing before the guardian leaves it as it is.
const TERMINAL: Duration = Duration::from_secs(60);

/// Linux's default.
const TIMER_SLACK_NS: u64 = 50_000;
/// The recorder's own.
const NICE: i32 = -10;

/// The recorder's last heartbeat.
pub struct Beat {
    /// Differs for each heartbeat.
    pub at: u64,
    pub age: Duration,
}

/// Access to the state of the processes that gpurec has stopped.
pub trait Stops {
    fn beat(&mut self) -> Option<Beat>;
    /// May still contain processes that were resumed.
    fn stopped(&mut self) -> Vec<Pid>;
    /// Records that the guardian is about to resume this process although the recorder has not handled its stop.
    fn rescue(&mut self, pid: Pid);
    /// Records that every process stopped so far was resumed, for the recorder in case it comes back.
    fn rescued(&mut self);
    /// Turns the hooks off, because gpurec is gone. Hooks can outlive it for a while: they then record nothing and stop
    /// no process.
    fn silence(&mut self);
}

/// Dismiss it when gpurec ends normally. Dropped in any other way (an error, a panic), it resumes the stopped
/// processes.
#[derive(Debug)]
pub struct Guardian {
    pid: Pid,
    pipe: OwnedFd,
    /// The terminal is still to be restored.
    is_covered: Option<&'static AtomicBool>,
}

/// Forks the guardian. Call this before any thread starts, because `stops` may allocate, and before links are made,
/// because the guardian would have to close them.
pub fn spawn(stops: impl Stops, terminal: Option<&Terminal>, keep_fds: &[RawFd]) -> io::Result<Guardian> {
    let keep_fds: Vec<RawFd> =
        keep_fds.iter().copied().chain(terminal.into_iter().flat_map(Terminal::fds)).collect();
    // A socket instead of a pipe: writing to it raises no SIGPIPE.
    let (read, write) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the child calls only `guard` and ends there; the parent has no other threads.
    match unsafe { libc::fork() } {
        0 => {
            // A panic in `stops` must not unwind into a second gpurec.
            let work = std::panic::AssertUnwindSafe(|| guard(read.as_raw_fd(), stops, terminal, &keep_fds));
            let _ = std::panic::catch_unwind(work);
            // SAFETY: ends this process without running gpurec's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => {
            drop(read);
            wait_until_ready(&write)?;
            Ok(Guardian { pid: pid as Pid, pipe: write, is_covered: terminal.map(Terminal::covered) })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until the guardian has left the priority and the limits that the user set. Before that it may not run in time on
/// a busy processor, so gpurec must not stop any process yet.
fn wait_until_ready(pipe: &OwnedFd) -> io::Result<()> {
    let mut byte = [0];
    loop {
        match nix::unistd::read(pipe, &mut byte) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(io::Error::other("the guardian has ended")),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Guardian {
    #[cfg(test)]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Ends the guardian once no process is stopped. It closes `last`, as the last process that holds these
    /// descriptors, and restores a terminal that took nothing when its view ended.
    pub fn dismiss(self, last: Vec<OwnedFd>) {
        let Guardian { pid, pipe, is_covered } = self;
        let written = send_word(&pipe, &last);
        let takes_time = !last.is_empty() || is_covered.is_some_and(|flag| flag.load(Ordering::SeqCst));
        drop(last);
        // The closed pipe tells the guardian that it is the last holder.
        drop(pipe);
        // Only a guardian that received the word ends now; any other ends by itself later.
        if written && takes_time {
            // If no thread can be started, the guardian is reaped when gpurec ends.
            let _ = std::thread::Builder::new().spawn(move || proc::wait_for_child(pid, 0));
        } else {
            let _ = proc::wait_for_child(pid, if written { 0 } else { libc::WNOHANG });
        }
    }
}

/// Sends the word that dismisses the guardian: one byte, with descriptors if there are any.
fn send_word(pipe: &OwnedFd, last: &[OwnedFd]) -> bool {
    let fds: Vec<RawFd> = last.iter().take(MOST_FDS).map(AsRawFd::as_raw_fd).collect();
    let word = [IoSlice::new(&[1u8])];
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(pipe.as_raw_fd(), &word, rights, MsgFlags::MSG_NOSIGNAL, None) == Ok(1)
}

fn guard(pipe: RawFd, mut stops: impl Stops, terminal: Option<&Terminal>, keep_fds: &[RawFd]) {
    detach(pipe, keep_fds, c"gpurec-guard");
    if identity::elevated() {
        leave_limits();
        leave_cgroup();
    }
    keep_what_guarding_needs();
    // SAFETY: one byte of a constant. If gpurec is gone already, the end of the pipe says so below.
    unsafe { libc::send(pipe, [1u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    let mut last = None;
    // Until a word or the end of the pipe arrives.
    while !proc::is_readable(pipe, LOOK.as_millis() as i32) {
        let beat = stops.beat();
        let at = beat.as_ref().map(|beat| beat.at);
        // Requires the same heartbeat twice: if the whole machine was suspended, the recorder has had time to run in
        // between.
        if beat.is_some_and(|beat| beat.age > DEADLINE) && at == last {
            rescue(&mut stops);
        }
        last = at;
    }
    let uncover = |time| terminal.into_iter().for_each(|terminal| terminal.uncover_within(time));
    if !dismissed(pipe) {
        stops.silence();
        stops.stopped().into_iter().for_each(|pid| _ = stops::go_on(pid));
        // Does not wait for the terminal. Does nothing if gpurec itself has ended the view.
        uncover(Duration::ZERO);
        resume_all(&mut stops);
    }
    uncover(TERMINAL);
}

/// Resumes the processes that wait for a recorder that is gone.
fn rescue(stops: &mut impl Stops) {
    let pids = stops.stopped();
    if pids.is_empty() {
        return;
    }
    // Mark it before the loop too: the recorder may come back meanwhile.
    stops.rescued();
    for pid in pids {
        stops.rescue(pid);
        stops::go_on(pid);
    }
    stops.rescued();
}

/// What a user sets for a process stays through sudo: a timer slack of hours, with which no time-out ends; an idle
/// priority on one busy processor; limits on processor time and memory; the first place when Linux kills processes for
/// their memory. The guardian sets all of these for itself, as far as Linux lets it.
fn leave_limits() {
    let _ = prctl::set_timerslack(TIMER_SLACK_NS);
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let every_cpu = [u8::MAX; size_of::<libc::cpu_set_t>()];
    // SAFETY: structures that outlive the calls, with their sizes; 0 is the calling thread.
    unsafe {
        for limit in [libc::RLIMIT_CPU, libc::RLIMIT_AS, libc::RLIMIT_DATA] {
            libc::setrlimit(limit, &unlimited);
        }
        libc::sched_setaffinity(0, every_cpu.len(), every_cpu.as_ptr().cast());
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &libc::sched_param { sched_priority: 0 });
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// A user can freeze their own control groups (systemd's user session) with every process in them, so the guardian
/// moves out. It stays where it is if Linux refuses the move or the machine has only cgroup v1.
fn leave_cgroup() {
    for group in ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"] {
        if let Ok(mut file) = OpenOptions::new().write(true).open(group) {
            let _ = file.write_all(b"0");
        }
    }
}

/// Leaves gpurec's session, terminal, files and directory.
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

/// Reads to the end of the file; true if the word arrived first. Descriptors that come with it stay open until this
/// process ends.
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

fn resume_all(stops: &mut impl Stops) {
    let begin = Instant::now();
    let mut quiet_since = begin;
    let mut signalled = HashSet::new();
    // Processes that another process keeps stopped.
    let mut others = HashSet::new();
    while quiet_since.elapsed() < QUIET && begin.elapsed() < AT_MOST {
        stops.silence();
        for pid in stops.stopped() {
            // Send SIGCONT at least once: it cancels a SIGSTOP that is still pending (the process is inside a long
            // ioctl). After that, send it only to processes that are stopped.
            let needed = signalled.insert(pid) || proc::stat(pid).is_ok_and(|s| s.stopped());
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
