//! The thread that gives rings to recorded processes. In: connections to the socket beside the injected library. Out:
//! for each process its ring, or why it has none.
//!
//! The recorder makes the ring, so its size is no process's choice, and has it before the process can end. A process may
//! connect as often as it likes: it has one ring, its last. The number of rings is bounded for each process and for all.
//! Where Linux has no memory or descriptor for a ring, only the GPU work of that process is not recorded.
//! Not here: what comes through the ring.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, SockFlag, UnixAddr, accept4, getsockopt, sendmsg, sockopt};

use super::ring::{Ring, Wanted};
use crate::clock::monotonic_ns;
use crate::process::proc;

/// The most rings at one time; each takes 16 MiB at most.
const MOST_RINGS: usize = 256;
/// The most rings of one process in its life: it needs a new one for each program that it executes.
const MOST_OF_PROCESS: u32 = 32;
/// The most processes that are remembered with their number of rings. Those that have ended are forgotten.
const MOST_REMEMBERED: usize = 4 * MOST_RINGS;
const MOST_REASONS: usize = 16;
/// How often the thread looks whether the recording has ended, in ms.
const TICK: u16 = 100;

/// A process that has the library, and its ring.
pub struct Connected {
    pub pid: u32,
    /// When, CLOCK_MONOTONIC ns.
    pub at: u64,
    pub ring: Ring,
    /// Readable when the process has ended.
    pub end: OwnedFd,
    /// Counts among the rings until it is dropped.
    pub seat: Seat,
}

/// A clone of the door's own.
pub type Seat = Arc<()>;

/// Why a process has no ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    TooMany,
    TooManyOfProcess,
    /// Linux's number of the error.
    Failed(i32),
}

impl Refusal {
    pub fn why(&self) -> String {
        match self {
            Refusal::TooMany => format!("{MOST_RINGS} processes are recorded already"),
            Refusal::TooManyOfProcess => format!("it has asked for more than {MOST_OF_PROCESS} rings"),
            Refusal::Failed(number) => format!(
                "gpurec cannot make its ring: {}; give gpurec more memory or open files (ulimit -v, ulimit -n)",
                io::Error::from_raw_os_error(*number)
            ),
        }
    }
}

pub enum Answer {
    Ring(Connected),
    Refused(u32, Refusal),
}

/// The answers since.
pub struct Rings {
    receiver: Receiver<Answer>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rings {
    pub fn come(&self) -> impl Iterator<Item = Answer> + '_ {
        self.receiver.try_iter()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives rings to the processes that connect, until the result is dropped. `user`: whose processes may wait.
pub fn open(
    socket: OwnedFd,
    wanted: Wanted,
    user: u32,
    is_recorded: impl Fn(u32) -> bool + Send + 'static,
) -> io::Result<Rings> {
    let (to, receiver) = bounded(2 * MOST_RINGS);
    let over = Arc::new(AtomicBool::new(false));
    let mut door = Door {
        wanted,
        user,
        to,
        make: Ring::make,
        seats: Arc::new(()),
        refused: Vec::new(),
        given: HashMap::new(),
    };
    let flag = over.clone();
    let thread = std::thread::Builder::new().name("gpurec-gpu".into());
    let thread = thread.spawn(move || door.serve(&socket, &is_recorded, &flag))?;
    Ok(Rings { receiver, over, thread: Some(thread) })
}

struct Door {
    wanted: Wanted,
    user: u32,
    to: Sender<Answer>,
    make: fn(Wanted) -> io::Result<(Ring, OwnedFd)>,
    /// One more reference for each ring.
    seats: Seat,
    /// The reasons that have been sent.
    refused: Vec<Refusal>,
    /// By PID: when the process started, and its number of rings.
    given: HashMap<u32, (u64, u32)>,
}

impl Door {
    fn serve(&mut self, socket: &OwnedFd, is_recorded: &dyn Fn(u32) -> bool, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let mut waited = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut waited, PollTimeout::from(TICK)), Ok(1..)) {
                continue;
            }
            match accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
                Ok(fd) => {
                    // SAFETY: the descriptor is new and has no other owner.
                    let caller = unsafe { OwnedFd::from_raw_fd(fd) };
                    self.answer(&caller, is_recorded);
                }
                // The connection stays in the queue, and poll() returns at once, while gpurec has no descriptor left.
                Err(_) => std::thread::sleep(Duration::from_millis(TICK.into())),
            }
        }
    }

    /// Without a ring the library is silent, and its process runs on.
    fn answer(&mut self, caller: &OwnedFd, is_recorded: &dyn Fn(u32) -> bool) {
        let peer = getsockopt(caller, sockopt::PeerCredentials);
        let pid = peer.ok().and_then(|peer| u32::try_from(peer.pid()).ok()).unwrap_or(0);
        if pid == 0 || !is_recorded(pid) {
            return;
        }
        match self.ring_for(pid) {
            // The recorder gets the ring first, so that it has the ring however soon the process ends.
            Ok(Some((connected, fd))) => {
                if self.to.try_send(Answer::Ring(connected)).is_ok() {
                    let _ = give(caller.as_raw_fd(), fd.as_raw_fd());
                }
            }
            Ok(None) => {}
            // Each reason once: a process that asks again and again does not fill the channel.
            Err(refusal) if self.refused.len() < MOST_REASONS && !self.refused.contains(&refusal) => {
                let _ = self.to.try_send(Answer::Refused(pid, refusal.clone()));
                self.refused.push(refusal);
            }
            Err(_) => {}
        }
    }

    /// None: the process has ended meanwhile.
    fn ring_for(&mut self, pid: u32) -> Result<Option<(Connected, OwnedFd)>, Refusal> {
        let Ok(stat) = proc::stat(pid) else { return Ok(None) };
        if Arc::strong_count(&self.seats) > MOST_RINGS {
            return Err(Refusal::TooMany);
        }
        self.count(pid, stat.start_time)?;
        let mut wanted = self.wanted;
        // --lossless never makes another user's process wait.
        wanted.lossless &= self.user == 0 || proc::uids(pid).is_ok_and(|uids| uids == [self.user; 4]);
        let failed = |error: io::Error| Refusal::Failed(error.raw_os_error().unwrap_or(0));
        let end = proc::pidfd_open(pid).map_err(failed)?;
        let (ring, fd) = (self.make)(wanted).map_err(failed)?;
        let seat = self.seats.clone();
        Ok(Some((Connected { pid, at: monotonic_ns(), ring, end, seat }, fd)))
    }

    fn count(&mut self, pid: u32, start_time: u64) -> Result<(), Refusal> {
        if self.given.len() >= MOST_REMEMBERED && !self.given.contains_key(&pid) {
            let lives = |pid: u32, since: u64| {
                proc::stat(pid).is_ok_and(|stat| !stat.ended() && stat.start_time == since)
            };
            self.given.retain(|pid, (since, _)| lives(*pid, *since));
            if self.given.len() >= MOST_REMEMBERED {
                return Err(Refusal::TooMany);
            }
        }
        let (since, count) = self.given.entry(pid).or_default();
        if *since != start_time {
            (*since, *count) = (start_time, 0);
        }
        if *count >= MOST_OF_PROCESS {
            return Err(Refusal::TooManyOfProcess);
        }
        *count += 1;
        Ok(())
    }
}

fn give(caller: RawFd, fd: RawFd) -> io::Result<()> {
    let fds = [fd];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<UnixAddr>(caller, &[IoSlice::new(b"r")], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockType, recv, socketpair};

    use super::*;

    fn door() -> (Door, Receiver<Answer>) {
        let (to, answers) = bounded(2 * MOST_RINGS);
        let (wanted, seats) = (Wanted::default(), Arc::new(()));
        let (refused, given) = (Vec::new(), HashMap::new());
        (Door { wanted, user: 0, to, make: Ring::make, seats, refused, given }, answers)
    }

    /// This process connects. The result is its ring, and whether the process has got it.
    fn ask(door: &mut Door, answers: &Receiver<Answer>) -> Result<(Connected, bool), Refusal> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap();
        door.answer(&ours, &|pid| pid == std::process::id());
        drop(ours);
        match answers.try_recv().unwrap() {
            Answer::Ring(connected) => {
                Ok((connected, recv(theirs.as_raw_fd(), &mut [0], MsgFlags::empty()) == Ok(1)))
            }
            Answer::Refused(pid, refusal) => {
                assert_eq!(pid, std::process::id());
                Err(refusal)
            }
        }
    }

    #[test]
    fn where_linux_refuses_a_ring_that_process_alone_has_none() {
        let (mut door, answers) = door();
        for (number, said) in [(libc::EMFILE, "open files"), (libc::ENOMEM, "memory")] {
            door.make = match number {
                libc::EMFILE => |_| Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => |_| Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            };
            let refusal = ask(&mut door, &answers).err().unwrap();
            assert_eq!(refusal, Refusal::Failed(number));
            assert!(refusal.why().contains(said), "{}", refusal.why());
        }
        assert_eq!(Arc::strong_count(&door.seats), 1);
        door.make = Ring::make;
        let (connected, has_it) = ask(&mut door, &answers).unwrap();
        assert_eq!((connected.pid, has_it), (std::process::id(), true));
        assert!(!proc::pidfd_ended(connected.end.as_raw_fd(), 0));
    }

    #[test]
    fn rings_are_bounded_for_a_process_and_for_all() {
        let (mut door, answers) = door();
        for _ in 0..MOST_OF_PROCESS {
            assert!(ask(&mut door, &answers).unwrap().1);
        }
        assert_eq!(ask(&mut door, &answers).err(), Some(Refusal::TooManyOfProcess));
        let (again, _) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::empty()).unwrap();
        door.answer(&again, &|_| true);
        assert!(answers.is_empty(), "a reason is sent once");
        // Another process has had this PID.
        door.given.values_mut().for_each(|(since, _)| *since += 1);
        let held: Vec<Seat> = (0..MOST_RINGS).map(|_| door.seats.clone()).collect();
        assert_eq!(ask(&mut door, &answers).err(), Some(Refusal::TooMany));
        drop(held);
        assert!(ask(&mut door, &answers).is_ok());
        // Processes that have ended: no PID is as large.
        door.given = (0..MOST_REMEMBERED as u32).map(|number| (number | 1 << 30, (1, 1))).collect();
        assert!(ask(&mut door, &answers).is_ok());
        assert_eq!(door.given.len(), 1);
    }

    #[test]
    fn a_process_that_is_not_recorded_gets_no_answer() {
        let (mut door, answers) = door();
        let (ours, _theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::empty()).unwrap();
        door.answer(&ours, &|_| false);
        assert!(answers.is_empty() && door.given.is_empty());
    }
}
