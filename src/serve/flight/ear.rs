//! The recorder's end of `gpurec dump`: a socket in the abstract name space, `gpurec-dump/PID`, so it leaves nothing
//! behind if the recorder is killed. Where another process has taken that name, it is `gpurec-dump/PID.NUMBER`. Linux
//! reports the user at the other end. Root and the user who started the recording get a dump, one at a time, and the
//! user a few a minute; all others are dropped at once, so that they delay nobody. In: connections. Out: causes of
//! dumps; to each client a line, for which Linux has room: nothing here waits.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::triggers::Busy;
use crate::pipeline::observer::{Cause, Reply};

pub(super) const NAME: &str = "gpurec-dump/";
pub(super) const OK: &[u8] = b"ok ";
pub(super) const ERROR: &[u8] = b"error ";

/// The most connections that are met before the recorder does its other work.
const TURN: usize = 256;

/// The most dumps for the user who started the recording in each `MINUTE`.
const MOST: usize = 6;
const MINUTE: Duration = Duration::from_secs(60);

pub struct Ear {
    socket: UnixListener,
    turns: Turns,
}

impl Ear {
    /// `uid`: the user who may ask, besides root.
    pub fn listen(uid: u32) -> io::Result<Ear> {
        let name = format!("{NAME}{}", std::process::id());
        let socket = bound(&name).or_else(|error| match error.kind() {
            // Another process has taken the name. A number that nobody can predict makes another one.
            io::ErrorKind::AddrInUse => bound(&format!("{name}.{}", RandomState::new().hash_one(&name))),
            _ => Err(error),
        })?;
        socket.set_nonblocking(true)?;
        Ok(Ear { socket, turns: Turns { uid, ..Turns::default() } })
    }

    /// Takes a request that has arrived.
    pub fn take(&mut self) -> Option<Cause> {
        (0..TURN).map_while(|_| self.socket.accept().ok()).find_map(|(stream, _)| self.turns.meet(stream))
    }

    /// A descriptor that becomes readable when a request arrives.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bound(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Whose request has a dump.
#[derive(Default)]
struct Turns {
    uid: u32,
    /// A requested dump is not written yet.
    is_busy: Arc<AtomicBool>,
    /// When the user's last dumps were requested.
    recent: VecDeque<Instant>,
}

impl Turns {
    fn meet(&mut self, stream: UnixStream) -> Option<Cause> {
        stream.set_nonblocking(true).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        if let Err(why) = self.allows(peer.uid(), Instant::now()) {
            answer(&stream, ERROR, why.as_bytes());
            return None;
        }
        let until_written = Busy::new(&self.is_busy);
        let reply: Reply = Box::new(move |result| {
            // Before the answer, after which the client may ask again.
            drop(until_written);
            match result.and_then(|path| std::path::absolute(path).map_err(|error| error.to_string())) {
                Ok(path) => answer(&stream, OK, path.as_os_str().as_bytes()),
                Err(why) => answer(&stream, ERROR, why.as_bytes()),
            }
        });
        Some(Cause { event: "dump", because: "gpurec dump requested it".to_owned(), reply: Some(reply) })
    }

    /// The error says why this user gets no dump now.
    fn allows(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        if uid != 0 && uid != self.uid {
            return Err(format!(
                "only root and the user who started it may ask it for a dump: root asks by `sudo env -u SUDO_UID gpurec dump {}`",
                std::process::id()
            ));
        }
        if self.is_busy.load(Ordering::Acquire) {
            return Err("it is writing another dump: ask again in a moment".to_owned());
        }
        if uid == 0 {
            return Ok(());
        }
        let since = |at: &Instant| now.saturating_duration_since(*at);
        while self.recent.front().is_some_and(|at| since(at) >= MINUTE) {
            self.recent.pop_front();
        }
        if let Some(first) = self.recent.front().filter(|_| self.recent.len() >= MOST) {
            let left = MINUTE.saturating_sub(since(first)).as_secs() + 1;
            return Err(format!(
                "it has written {MOST} dumps for you within a minute: ask again in {left} s, or as root"
            ));
        }
        self.recent.push_back(now);
        Ok(())
    }
}

/// The client may have stopped waiting.
fn answer(mut stream: &UnixStream, kind: &[u8], text: &[u8]) {
    let _ = stream.write_all(&[kind, text, b"\n"].concat());
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

    /// A connection on which Linux has no room for an answer, and the client's end of it.
    fn full() -> (UnixStream, UnixStream) {
        let (own, client) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        while (&own).write(&[0; 4096]).is_ok() {}
        own.set_nonblocking(false).unwrap();
        (own, client)
    }

    #[test]
    fn a_client_that_reads_nothing_delays_nobody() {
        let (done, all) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut turns = Turns { uid: geteuid().as_raw(), ..Turns::default() };
            let clients = [full(), full(), full()].map(|(own, client)| (turns.meet(own), client));
            let answers = clients.map(|(cause, _client)| {
                let reply = cause.and_then(|cause| cause.reply);
                reply.map(|reply| reply(Ok("run-1-dump.jsonl".into()))).is_some()
            });
            done.send((answers, turns.is_busy.load(Ordering::Acquire)))
        });
        // Only the first has a dump. The others are refused while it is written.
        let all = all.recv_timeout(Duration::from_secs(60)).expect("an answer waits for its client");
        assert_eq!(all, ([true, false, false], false));
    }

    #[test]
    fn a_user_has_a_few_dumps_a_minute_and_root_one_at_a_time() {
        let mut turns = Turns { uid: 1000, ..Turns::default() };
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(turns.allows(1001, at(0)).unwrap_err().contains("only root and the user"));
        for second in 0..6 {
            turns.allows(1000, at(second * 2)).unwrap();
        }
        let refused = turns.allows(1000, at(20)).unwrap_err();
        assert!(refused.contains("ask again in 41 s"), "{refused}");
        (0..100).for_each(|_| turns.allows(0, at(21)).unwrap());
        turns.allows(1000, at(60)).unwrap();
        turns.allows(1000, at(61)).unwrap_err();
        let until_written = Busy::new(&turns.is_busy);
        for uid in [0, 1000] {
            assert!(turns.allows(uid, at(200)).unwrap_err().contains("ask again"));
        }
        drop(until_written);
        turns.allows(1000, at(200)).unwrap();
    }
}
