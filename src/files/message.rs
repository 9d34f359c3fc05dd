//! Messages between the recorder and the processes that read files: a length, then JSON. A descriptor comes with the
//! first byte of its message, and the length has a flag for it, because one read may also return the previous message.
//! In: a socket. Out: whole messages. A worker has read data that a target wrote, so its messages are not trusted.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message: all functions of a file with their names.
const MOST: usize = 256 << 20;
const HEAD: usize = 4;
/// Flag in the length of a message that carries a descriptor.
const WITH: u32 = 1 << 31;
const PIECE: usize = 64 << 10;

pub fn send(socket: &OwnedFd, message: &impl Serialize, with: Option<RawFd>) -> io::Result<()> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - HEAD).map_err(io::Error::other)?;
    let length = if with.is_some() { length | WITH } else { length };
    bytes[..HEAD].copy_from_slice(&length.to_le_bytes());
    let (mut rest, mut with) = (&bytes[..], with);
    while !rest.is_empty() {
        let fds: Vec<RawFd> = with.into_iter().collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
        let sent =
            sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(rest)], rights, MsgFlags::MSG_NOSIGNAL, None);
        match sent {
            Ok(sent) => (rest, with) = (&rest[sent..], None),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Received bytes, up to one whole message.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Inbox {
    /// Reads what has arrived, or waits for data. False: the other end is closed.
    pub fn receive(&mut self, socket: &OwnedFd, wait: bool) -> io::Result<bool> {
        let mut piece = [0u8; PIECE];
        let mut room = nix::cmsg_space!([RawFd; 1]);
        let flags = if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        loop {
            let mut into = [IoSliceMut::new(&mut piece)];
            let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
            let got = match recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut room), flags) {
                Ok(message) => {
                    // If the process had no free descriptor, the message comes without it.
                    for control in message.cmsgs().into_iter().flatten() {
                        let ControlMessageOwned::ScmRights(fds) = control else { continue };
                        for fd in fds {
                            // SAFETY: a descriptor just received, which has no other owner.
                            self.fd = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                        }
                    }
                    message.bytes
                }
                Err(nix::errno::Errno::EINTR) => continue,
                Err(nix::errno::Errno::EAGAIN) => return Ok(true),
                Err(nix::errno::Errno::ECONNRESET) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            };
            self.bytes.extend_from_slice(&piece[..got]);
            if wait || got < PIECE {
                return Ok(got > 0);
            }
        }
    }

    /// Waits for the next message. None: the other end is closed.
    pub fn wait<T: DeserializeOwned>(&mut self, socket: &OwnedFd) -> Option<(T, Option<OwnedFd>)> {
        loop {
            if let Some(message) = self.next().ok()? {
                return Some(message);
            }
            self.receive(socket, true).ok().filter(|open| *open)?;
        }
    }

    /// The next message and its descriptor, if the message is complete.
    pub fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let Some(head) = self.bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let head = u32::from_le_bytes(*head);
        let length = (head & !WITH) as usize;
        if length > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(body) = self.bytes.get(HEAD..HEAD + length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.bytes.drain(..HEAD + length);
        Ok(Some((message, if head & WITH != 0 { self.fd.take() } else { None })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::process::pair;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (ours, theirs) = pair(libc::SOCK_STREAM).unwrap();
        let long = "x".repeat(3 * PIECE);
        let sent = long.clone();
        let writer = std::thread::spawn(move || {
            send(&theirs, &sent, Some(0)).unwrap();
            send(&theirs, &"short", None).unwrap();
            theirs
        });
        let mut inbox = Inbox::default();
        let mut texts = Vec::new();
        while texts.len() < 2 {
            assert!(inbox.receive(&ours, true).unwrap());
            while let Some((text, fd)) = inbox.next::<String>().unwrap() {
                assert_eq!(fd.is_some(), texts.is_empty());
                texts.push(text);
            }
        }
        assert_eq!(texts, [long, "short".to_owned()]);
        drop(writer.join().unwrap());
        assert!(!inbox.receive(&ours, true).unwrap(), "closed");
        inbox.bytes = u32::MAX.to_le_bytes().to_vec();
        inbox.next::<String>().unwrap_err();
    }

    #[test]
    fn a_descriptor_belongs_to_its_message() {
        let (ours, theirs) = pair(libc::SOCK_STREAM).unwrap();
        send(&theirs, &"before", None).unwrap();
        send(&theirs, &"with", Some(0)).unwrap();
        let mut inbox = Inbox::default();
        let mut messages = Vec::new();
        while messages.len() < 2 {
            assert!(inbox.receive(&ours, true).unwrap());
            while let Some((text, fd)) = inbox.next::<String>().unwrap() {
                messages.push((text, fd.is_some()));
            }
        }
        assert_eq!(messages, [("before".to_owned(), false), ("with".to_owned(), true)]);
    }
}
