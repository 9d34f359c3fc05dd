//! The processes that read files. In: the recorder's requests to start and to end a worker. Out: workers, each with a
//! socket to the recorder.
//!
//! `gpurec-files` is forked before the recorder has threads, descriptors or hooks, and holds only its socket. It forks
//! the workers and touches no file itself. A worker that blocks in a file system cannot be killed: it remains until its
//! file system ends. Once MOST_LEFT such workers remain, no more are started.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::look::Looker;
use super::message::{self, Inbox};
use super::{Answer, Ask};
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
}

#[derive(Clone, Copy)]
enum Order {
    Start,
    End,
}

impl Files {
    /// Call this before any thread is started and while few descriptors are open.
    pub fn start(user: &Identity, selection: &Selection) -> io::Result<Files> {
        let (ours, theirs) = pair(libc::SOCK_SEQPACKET)?;
        // SAFETY: the child calls only `manage` and ends there; the parent has no other threads.
        let pid = unsafe { libc::fork() };
        match pid {
            0 => {
                let work = std::panic::AssertUnwindSafe(|| manage(&theirs, user, selection));
                let _ = std::panic::catch_unwind(work);
                // SAFETY: ends this process without running gpurec's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid if pid > 0 => {
                Ok(Files(Arc::new(Manager { socket: Some(ours), pid, next: AtomicU32::new(0) })))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn worker(&self) -> io::Result<Worker> {
        let (ours, theirs) = pair(libc::SOCK_STREAM)?;
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.order(Order::Start, number, Some(theirs.as_raw_fd()))?;
        Ok(Worker { files: self.clone(), number, socket: ours, inbox: Inbox::default() })
    }

    fn order(&self, order: Order, number: u32, with: Option<RawFd>) -> io::Result<()> {
        let Some(socket) = &self.0.socket else { return Ok(()) };
        let [a, b, c, d] = number.to_le_bytes();
        let word = [order as u8, a, b, c, d];
        let fds: Vec<RawFd> = with.into_iter().collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&word)], rights, flags, None)?;
        Ok(())
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
    pub fn ask(&self, ask: &Ask) -> io::Result<()> {
        message::send(&self.socket, ask, None)
    }

    /// An answer, if one has arrived. An error means that none will arrive.
    pub fn answer(&mut self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        if let Some(answer) = self.inbox.next()? {
            return Ok(Some(answer));
        }
        let open = self.inbox.receive(&self.socket, false)?;
        match self.inbox.next()? {
            None if !open => Err(io::ErrorKind::UnexpectedEof.into()),
            answer => Ok(answer),
        }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Ends the worker, whatever it waits for. A worker that is only dropped ends when it is done.
    pub fn end(self) {
        // If this fails, the manager is gone and its workers with it.
        let _ = self.files.order(Order::End, self.number, None);
    }
}

pub(super) fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are new and ours when the call succeeds.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
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
    while let Some((order, number, fd)) = next_order(socket) {
        reap(&mut children);
        match (order, fd) {
            (0, Some(fd)) => {
                if children.values().filter(|child| child.ended).count() >= MOST_LEFT {
                    let _ = message::send(&fd, &Answer::Refused(TOO_MANY.to_owned()), None);
                    continue;
                }
                match start(socket, &fd, selection) {
                    Ok(pid) => _ = children.insert(number, Child { pid, ended: false }),
                    Err(error) => _ = message::send(&fd, &Answer::Refused(error.to_string()), None),
                }
            }
            _ => {
                if let Some(child) = children.get_mut(&number) {
                    // SAFETY: a child that was not reaped, so the number is its own.
                    unsafe { libc::kill(child.pid, libc::SIGKILL) };
                    child.ended = true;
                }
            }
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
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: plain integers and a valid limit; the manager's socket is not this process's to read.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                libc::close(socket.as_raw_fd());
                let most = libc::rlimit { rlim_cur: MOST_MEMORY, rlim_max: MOST_MEMORY };
                libc::setrlimit(libc::RLIMIT_DATA, &most);
                if libc::getppid() == manager {
                    let work = std::panic::AssertUnwindSafe(|| serve(to, selection));
                    let _ = std::panic::catch_unwind(work);
                }
                libc::_exit(0)
            }
        }
        pid if pid > 0 => Ok(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// None: the recorder is gone.
fn next_order(socket: &OwnedFd) -> Option<(u8, u32, Option<OwnedFd>)> {
    let mut word = [0u8; 5];
    let mut room = nix::cmsg_space!([RawFd; 1]);
    let (count, fd) = loop {
        let mut into = [IoSliceMut::new(&mut word)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut room), flags) {
            Ok(message) => {
                let fds = message.cmsgs().ok()?.filter_map(|control| match control {
                    ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                    _ => None,
                });
                // SAFETY: descriptors just received, which have no other owner.
                break (message.bytes, fds.last().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return None,
        }
    };
    let [order, number @ ..] = word;
    (count == word.len()).then(|| (order, u32::from_le_bytes(number), fd))
}

/// Answers one request after another until the recorder sends no more.
fn serve(socket: &OwnedFd, selection: &Selection) {
    let mut looker = Looker::new(selection);
    let mut inbox = Inbox::default();
    loop {
        while let Ok(Some((ask, _))) = inbox.next::<Ask>() {
            let mut say = |answer: &Answer, with: Option<RawFd>| message::send(socket, answer, with);
            if looker.answer(ask, &mut say).is_err() {
                return;
            }
        }
        if !inbox.receive(socket, true).is_ok_and(|open| open) {
            return;
        }
    }
}
