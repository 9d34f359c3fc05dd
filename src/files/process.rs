//! The processes that read files. In: the recorder's requests to start and to end a worker. Out: workers, each with a
//! socket to the recorder.
//!
//! `gpurec-files` is forked before the recorder has threads, descriptors or hooks, and holds only its socket. It forks
//! the workers and touches no file itself. A worker that blocks in a file system cannot be killed: it remains until its
//! file system ends. Once MOST_LEFT such workers remain, no more are started.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::{Deserialize, Serialize};

use super::look::Looker;
use super::message::{self, Inbox};
use super::{Answer, Ask, Found};
use crate::files::select::Selection;
use crate::process::guardian::detach;
use crate::process::identity::Identity;
use crate::process::rights;

/// The most workers that were ended and still exist.
const MOST_LEFT: usize = 8;

/// Memory limit of a worker: the largest table of names (256 MiB) and the data built from it. A worker that exceeds it
/// ends and is reported like any other that ends.
const MOST_MEMORY: libc::rlim_t = 512 << 20;

const TOO_MANY: &str = "8 other files lie on file systems that do not answer, and gpurec waits for no more";

const NAME: &std::ffi::CStr = c"gpurec-files";

/// Starts workers.
#[derive(Clone)]
pub struct Files(Arc<Manager>);

struct Manager {
    socket: Option<OwnedFd>,
    pid: libc::pid_t,
    next: AtomicU32,
}

/// A worker with the one request that it handles.
pub struct Worker {
    files: Files,
    number: u32,
    socket: OwnedFd,
    inbox: Inbox,
    /// The file that it opens, if the file system may block it.
    pub opening: Option<PathBuf>,
}

/// To the manager, by the worker's number.
#[derive(Serialize, Deserialize)]
enum Order {
    Start(u32),
    End(u32),
}

impl Files {
    /// Call this before any thread is started and while few descriptors are open.
    pub fn start(user: &Identity, selection: &Selection) -> io::Result<Files> {
        let (ours, theirs) = pair(libc::SOCK_SEQPACKET)?;
        // The recorder does not wait for the manager either.
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let pid = fork(|| manage(&theirs, user, selection))?;
        Ok(Files(Arc::new(Manager { socket: Some(ours), pid, next: AtomicU32::new(0) })))
    }

    pub(super) fn worker(&self) -> io::Result<Worker> {
        let (ours, theirs) = pair(libc::SOCK_STREAM)?;
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.order(&Order::Start(number), Some(theirs.as_raw_fd()))?;
        Ok(Worker { files: self.clone(), number, socket: ours, inbox: Inbox::default(), opening: None })
    }

    fn order(&self, order: &Order, with: Option<RawFd>) -> io::Result<()> {
        self.0.socket.as_ref().map_or(Ok(()), |socket| message::send(socket, order, with))
    }
}

impl Drop for Manager {
    /// The process ends when its socket closes, and so do its workers.
    fn drop(&mut self) {
        self.socket = None;
        for _ in 0..20 {
            // SAFETY: a child of ours, or an error without effect.
            if unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) } != 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Worker {
    pub fn ask(&mut self, ask: &Ask) -> io::Result<()> {
        self.opening = None;
        message::send(&self.socket, ask, None)
    }

    /// An answer, if one has arrived. An error means that none will arrive.
    pub fn answer(&mut self) -> io::Result<Option<Found>> {
        let mut open = None;
        loop {
            match (self.inbox.next()?, open) {
                (Some((Answer::Opening(path), _)), _) => self.opening = Some(path),
                (Some((Answer::Found(mut found), fd)), _) => {
                    if let Found::Wants(wants) = &mut found {
                        wants.handle = fd.map(File::from);
                    }
                    return Ok(Some(found));
                }
                (None, None) => open = Some(self.inbox.receive(&self.socket, false)?),
                (None, Some(true)) => return Ok(None),
                (None, Some(false)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// The same, but waits for the answer.
    pub fn answer_within(&mut self, patience: Duration) -> io::Result<Option<Found>> {
        let since = Instant::now();
        loop {
            let found = self.answer()?;
            let left = patience.saturating_sub(since.elapsed());
            if found.is_some() || left.is_zero() {
                return Ok(found);
            }
            self.wait(left);
        }
    }

    /// Waits until there is something to read or `patience` is over.
    pub fn wait(&self, patience: Duration) {
        let ms = patience.as_micros().div_ceil(1000);
        let patience = PollTimeout::from(u16::try_from(ms).unwrap_or(u16::MAX));
        let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], patience);
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Ends the worker, whatever it waits for. A worker that is only dropped ends when it is done.
    pub fn end(self) {
        // If this fails, the manager is gone and its workers with it.
        let _ = self.files.order(&Order::End(self.number), None);
    }
}

pub(super) fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SockType::try_from(kind)?;
    Ok(socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?)
}

/// A worker in the manager's list.
struct Child {
    pid: libc::pid_t,
    ended: bool,
}

fn manage(socket: &OwnedFd, user: &Identity, selection: &Selection) {
    detach(socket.as_raw_fd(), &[], NAME);
    // SAFETY: a constant. With the inherited setting, children may be reaped automatically.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // A stopped process waits for each answer, so this process must run soon even on a busy machine. If Linux refuses
    // the higher priority, it runs with the one it has.
    // SAFETY: plain integers; 0 means the calling process.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
    if rights::keep_what_reading_needs(user).is_err() {
        return;
    }
    let mut children: HashMap<u32, Child> = HashMap::new();
    let mut inbox = Inbox::default();
    while let Some((order, fd)) = inbox.wait::<Order>(socket) {
        reap(&mut children);
        match (order, fd) {
            (Order::Start(number), Some(fd)) => {
                let left = children.values().filter(|child| child.ended).count();
                let started = match left {
                    MOST_LEFT.. => Err(TOO_MANY.to_owned()),
                    _ => start(socket, &fd, selection).map_err(|error| error.to_string()),
                };
                match started {
                    Ok(pid) => _ = children.insert(number, Child { pid, ended: false }),
                    Err(why) => _ = message::send(&fd, &Answer::Found(Found::Refused(why)), None),
                }
            }
            (Order::End(number), _) => {
                if let Some(child) = children.get_mut(&number) {
                    // SAFETY: a child that was not reaped, so the number is its own.
                    unsafe { libc::kill(child.pid, libc::SIGKILL) };
                    child.ended = true;
                }
            }
            _ => {}
        }
    }
    end(children);
}

/// Ends all workers except those that a file system blocks.
fn end(mut children: HashMap<u32, Child>) {
    for _ in 0..20 {
        reap(&mut children);
        if children.values().all(|child| child.ended) {
            return;
        }
        for child in children.values() {
            // SAFETY: children that were not reaped, so the numbers are their own.
            unsafe { libc::kill(child.pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn reap(children: &mut HashMap<u32, Child>) {
    loop {
        // SAFETY: no status is requested.
        let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        if pid <= 0 {
            return;
        }
        children.retain(|_, child| child.pid != pid);
    }
}

fn start(socket: &OwnedFd, to: &OwnedFd, selection: &Selection) -> io::Result<libc::pid_t> {
    // SAFETY: this process has one thread.
    let manager = unsafe { libc::getpid() };
    fork(|| {
        // SAFETY: plain integers and a valid limit; the manager's socket is not this process's to read.
        let is_wanted = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            libc::close(socket.as_raw_fd());
            let most = libc::rlimit { rlim_cur: MOST_MEMORY, rlim_max: MOST_MEMORY };
            libc::setrlimit(libc::RLIMIT_DATA, &most);
            libc::getppid() == manager
        };
        if is_wanted {
            serve(to, selection);
        }
    })
}

/// Runs `work` in a child. The caller has no other threads.
fn fork(work: impl FnOnce()) -> io::Result<libc::pid_t> {
    // SAFETY: the child calls only `work` and ends there, without running gpurec's exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => Ok(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Answers one request after another until the recorder sends no more.
fn serve(socket: &OwnedFd, selection: &Selection) {
    let mut looker = Looker::new(selection);
    let mut inbox = Inbox::default();
    while let Some((ask, _)) = inbox.wait::<Ask>(socket) {
        if looker.answer(ask, &mut |answer, with| message::send(socket, answer, with)).is_err() {
            return;
        }
    }
}
