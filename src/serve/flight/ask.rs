//! `gpurec dump`: asks a running flight recorder for a dump. The recorder listens on a socket in the abstract name
//! space, `gpurec-dump/PID`, so it leaves nothing behind if it is killed; Linux reports the process and the user at the
//! other end. Only root and the user who started the recording may ask. In: a PID, or none. Out: the path of the dump.

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::pipeline::observer::{Cause, Reply};
use crate::ui;
use gpurec_analysis::Usage;

const NAME: &str = "gpurec-dump/";
/// How long the other end may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(1);
const OK: &[u8] = b"ok ";
const ERROR: &[u8] = b"error ";

/// How long the recorder ignores requests after one from a user who has no permission and could otherwise keep it busy.
const DEAF: Duration = Duration::from_millis(500);

/// The recorder's end.
pub struct Ear {
    socket: UnixListener,
    /// The user who may ask, besides root.
    uid: u32,
    deaf_until: Option<Instant>,
}

impl Ear {
    pub fn listen(uid: u32) -> io::Result<Ear> {
        let socket = UnixListener::bind_addr(&address(std::process::id())?)?;
        socket.set_nonblocking(true)?;
        Ok(Ear { socket, uid, deaf_until: None })
    }

    /// Takes a request that has arrived.
    pub fn take(&mut self) -> Option<Cause> {
        if self.is_deaf() {
            return None;
        }
        let (mut stream, _) = self.socket.accept().ok()?;
        stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        if peer.uid() != 0 && peer.uid() != self.uid {
            let why = "only root and the user who started it may ask it for a dump: use sudo";
            let _ = stream.write_all(&[ERROR, why.as_bytes(), b"\n"].concat());
            self.deaf_until = Some(Instant::now() + DEAF);
            return None;
        }
        let reply: Reply = Box::new(move |result| {
            let answer =
                match result.and_then(|path| std::path::absolute(path).map_err(|error| error.to_string())) {
                    Ok(path) => [OK, path.as_os_str().as_bytes(), b"\n"].concat(),
                    Err(why) => [ERROR, why.as_bytes(), b"\n"].concat(),
                };
            // The client may have stopped waiting.
            let _ = stream.write_all(&answer);
        });
        Some(Cause { event: "dump", because: "gpurec dump requested it".to_owned(), reply: Some(reply) })
    }

    fn is_deaf(&self) -> bool {
        self.deaf_until.is_some_and(|until| Instant::now() < until)
    }

    /// A descriptor that becomes readable when a request arrives. None while requests are ignored.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_deaf()).then(|| self.socket.as_fd())
    }
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}{pid}"))
}

/// Waits until the recorder has written a dump, and prints its path.
pub fn ask(pid: Option<u32>) -> Result<u8> {
    let pid = match pid {
        Some(pid) => pid,
        None => only_one(&recorders(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default()))?,
    };
    let path = answer(pid)?;
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        writeln!(out, "{}", ui::clean(&path.to_string_lossy()))?;
    } else {
        out.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
    }
    Ok(0)
}

fn only_one(recorders: &[u32]) -> Result<u32> {
    match recorders {
        [one] => Ok(*one),
        [] => bail!(
            "no flight recorder runs here: start one with --last, as in sudo gpurec --all --last 60s --dump-on exit"
        ),
        several => {
            let all: Vec<String> = several.iter().map(u32::to_string).collect();
            bail!(Usage(format!(
                "several flight recorders run (PID {}): name one, as in gpurec dump {}",
                all.join(", "),
                several[0]
            )))
        }
    }
}

/// The PIDs of the flight recorders, from Linux's list of sockets.
fn recorders(list: &str) -> Vec<u32> {
    let name = |line: &str| line.split('@').nth(1)?.strip_prefix(NAME)?.trim_end().parse().ok();
    let mut all: Vec<u32> = list.lines().filter_map(name).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn answer(pid: u32) -> Result<PathBuf> {
    let stream = match UnixStream::connect_addr(&address(pid)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => bail!(
            "process {pid} is no flight recorder (gpurec --last), or runs in another network namespace: gpurec dump without a PID finds the one that runs"
        ),
        connected => connected.with_context(|| format!("cannot ask process {pid}"))?,
    };
    if getsockopt(&stream, PeerCredentials).map(|peer| peer.pid()) != Ok(pid as i32) {
        bail!(
            "another process has taken the socket of process {pid}: start the recorder with --dump-on signal, and send it SIGUSR1"
        );
    }
    let mut line = Vec::new();
    match BufReader::new(stream).read_until(b'\n', &mut line) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
            return Err(error).context("cannot read the recorder's answer");
        }
        // A recorder that ended sends no answer.
        _ => {}
    }
    let line = line.strip_suffix(b"\n").unwrap_or_default();
    if let Some(path) = line.strip_prefix(OK) {
        return Ok(std::ffi::OsString::from_vec(path.to_vec()).into());
    }
    match line.strip_prefix(ERROR) {
        Some(why) => bail!("recorder {pid}: {}", ui::clean(&String::from_utf8_lossy(why))),
        None => bail!("recorder {pid} ended before it had written the dump: look for the dump of its end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorders_are_found_in_the_list_of_sockets() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @gpurec-dump/71\n\
            0: 00000003 00000000 00000000 0001 03 2 @gpurec-dump/71\n\
            0: 00000002 00000000 00010000 0001 01 3 /run/gpurec-dump/9\n\
            0: 00000002 00000000 00010000 0001 01 4 @gpurec-dump/x\n\
            0: 00000002 00000000 00010000 0001 01 5 @gpurec-dump/12\n";
        assert_eq!(recorders(list), [12, 71]);
        assert_eq!(only_one(&[3]).unwrap(), 3);
        let several = only_one(&[3, 4]).unwrap_err().to_string();
        assert!(several.contains("PID 3, 4") && only_one(&[]).is_err(), "{several}");
    }

    #[test]
    fn a_request_is_answered_with_the_path() {
        let mut ear = Ear::listen(nix::unistd::geteuid().as_raw()).unwrap();
        let own = std::process::id();
        let asks = std::thread::spawn(move || (answer(own), answer(own)));
        let results = [Ok("/tmp/a-1-dump.jsonl".into()), Err("no\nroom".to_owned())];
        for result in results {
            let cause = loop {
                match ear.take() {
                    Some(cause) => break cause,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            assert_eq!(cause.event, "dump");
            cause.reply.unwrap()(result);
        }
        let (path, error) = asks.join().unwrap();
        assert_eq!(path.unwrap(), PathBuf::from("/tmp/a-1-dump.jsonl"));
        assert!(error.unwrap_err().to_string().contains("no"));
    }
}
