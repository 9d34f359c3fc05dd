//! Finds the socket of a recorder (`ear`) for `gpurec dump`. In: Linux's list of sockets. Out: a connection to the process
//! that was asked for. Any user may take any name, also of a process to come, so a name counts only if its process has
//! the socket.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};

use super::ear::NAME;

const AGAIN: Duration = Duration::from_millis(50);

/// A name of a recorder's socket, in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub pid: u32,
    inode: u64,
    name: Vec<u8>,
}

impl Name {
    /// False if its process does not have this socket. True where this user may not see that.
    pub fn may_be_of_its_process(&self) -> bool {
        let Ok(open) = fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return true };
        let socket = format!("socket:[{}]", self.inode);
        open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == &*socket))
    }
}

pub fn listed() -> Result<Vec<Name>> {
    let list = File::open("/proc/net/unix").context("cannot read /proc/net/unix, which lists the sockets")?;
    Ok(names(BufReader::new(list))?)
}

fn names(list: impl BufRead) -> io::Result<Vec<Name>> {
    let mut all = Vec::new();
    for line in list.split(b'\n') {
        all.extend(name(&line?));
    }
    Ok(all)
}

fn name(line: &[u8]) -> Option<Name> {
    let line = std::str::from_utf8(line).ok()?;
    let (columns, name) = line.split_once('@')?;
    let pid = name.strip_prefix(NAME)?.split('.').next()?.parse().ok()?;
    Some(Name { pid, inode: columns.split_whitespace().nth(6)?.parse().ok()?, name: name.into() })
}

/// A connection to this process, and the process's user.
pub fn connected(pid: u32, patience: Duration) -> Result<(UnixStream, u32)> {
    let until = Instant::now() + patience;
    loop {
        let mut is_full = false;
        let mut is_taken = false;
        for Name { name, .. } in listed()?.into_iter().filter(|name| name.pid == pid) {
            match connect(&name) {
                Ok(stream) => match socket::getsockopt(&stream, sockopt::PeerCredentials) {
                    Ok(peer) if peer.pid() == pid as i32 => return Ok((stream, peer.uid())),
                    _ => is_taken = true,
                },
                // A full queue, of the recorder's socket or of another process's.
                Err(Errno::EAGAIN) => is_full = true,
                // It has closed it.
                Err(Errno::ECONNREFUSED) => {}
                Err(errno) => return Err(errno).with_context(|| format!("cannot ask process {pid}")),
            }
        }
        if is_full && Instant::now() < until {
            sleep(AGAIN);
        } else if is_full {
            bail!(
                "process {pid} has not taken the request within {} s: it is stopped, or has no processor; try again later",
                patience.as_secs()
            );
        } else if is_taken {
            bail!(
                "another process has taken the socket of process {pid}, which is no flight recorder (gpurec --last)"
            );
        } else {
            bail!(
                "process {pid} is no flight recorder (gpurec --last), or runs in another network namespace: gpurec dump without a PID finds the one that runs"
            );
        }
    }
}

/// Does not wait where the queue is full.
fn connect(name: &[u8]) -> nix::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = UnixStream::from(socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
    socket::connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    stream.set_nonblocking(false).map_err(|_| Errno::last())?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorders_are_found_in_the_list_of_sockets() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @gpurec-dump/71\n\
            0: 00000003 00000000 00000000 0001 03 2 @gpurec-dump/71.5\n\
            0: 00000002 00000000 00010000 0001 01 3 /run/gpurec-dump/9\n\
            0: 00000002 00000000 00010000 0001 01 4 @gpurec-dump/x\n\
            0: 00000002 00000000 00010000 0001 01 6 @gpurec-dump/\xff\n\
            0: 00000002 00000000 00010000 0001 01 5 @gpurec-dump/12\n";
        let found: Vec<_> = names(&list[..]).unwrap().into_iter().map(|one| (one.pid, one.inode)).collect();
        assert_eq!(found, [(71, 1), (71, 2), (12, 5)]);
    }
}
