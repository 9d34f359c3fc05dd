//! Reports to systemd that a recording has begun, as sd_notify(3) does, so that a unit of `Type=notify` is active once
//! its hooks are in place. In: NOTIFY_SOCKET from the environment. Out: one datagram.
//! Not here: when a recording has begun. A recorded command inherits the variable and may be the service itself, so a
//! recording of a command reports nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(1);

/// Does nothing if no service manager set NOTIFY_SOCKET.
pub fn report() -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(name) => send(&name),
        None => Ok(()),
    }
}

fn send(name: &OsStr) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // What receives may not read, and the recording must not wait for it.
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(b"READY=1", &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receives(socket: &UnixDatagram, name: &str) {
        send(OsStr::new(name)).unwrap();
        let mut text = [0; 32];
        let length = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
    }

    /// Nobody reads this socket. Its queue has room for a few messages (net.unix.max_dgram_qlen); the next send waits.
    #[test]
    fn a_socket_that_nobody_reads_does_not_delay_the_recording_for_long() {
        let name = format!("gpurec-unread-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _unread = UnixDatagram::bind_addr(&address).unwrap();
        let filler = UnixDatagram::unbound().unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send_to_addr(b"full", &address).is_ok() {}
        let (done, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(send(OsStr::new(&format!("@{name}")))));
        let sent = result.recv_timeout(Duration::from_secs(60)).expect("it waits without end");
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_socket_has_a_path_or_an_abstract_name() {
        let name = format!("gpurec-ready-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        receives(&UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        receives(&UnixDatagram::bind_addr(&address).unwrap(), &format!("@{name}"));
        assert!(send(OsStr::new(&path)).is_err());
    }
}
