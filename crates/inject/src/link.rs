//! How the library gets its ring: it connects to the recorder's socket, which is in the library's own folder, and
//! receives a descriptor. So nothing depends on names of processes or files, and the recorder has the ring before the
//! process can end. In: the variable by which the driver found the library. Out: the descriptor.

use core::ffi::{c_int, c_long, c_void};
use core::mem::size_of;
use core::ptr::null_mut;

use crate::system::{self, Address, Descriptor, Message, Piece};

/// The recorder answers at once. If it does not, the process runs on without the library.
const SECONDS: c_long = 2;
/// The socket's name in the library's folder.
const SOCKET: &[u8] = b"gpu";

pub fn connect() -> Option<c_int> {
    let address = address()?;
    // SAFETY: plain integers.
    let fd = unsafe { system::socket(system::LOCAL, system::SEQUENCED, 0) };
    if fd < 0 {
        return None;
    }
    let within = [SECONDS, 0];
    for option in [system::RECEIVE_WITHIN, system::SEND_WITHIN] {
        let length = size_of::<[c_long; 2]>() as u32;
        // SAFETY: a struct timeval.
        unsafe { system::setsockopt(fd, system::SOCKET_LEVEL, option, within.as_ptr().cast(), length) };
    }
    // SAFETY: an address of that length.
    let connected = unsafe { system::connect(fd, &raw const address, size_of::<Address>() as u32) } == 0;
    let received = if connected { receive(fd) } else { None };
    // SAFETY: its own descriptor.
    unsafe { system::close(fd) };
    received
}

/// The socket's path: that of the library, with another name at its end.
fn address() -> Option<Address> {
    // SAFETY: a terminated string.
    let text = unsafe { system::getenv(c"CUDA_INJECTION64_PATH".as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a terminated string.
    let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), system::strlen(text)) };
    let folder = text.get(..=text.iter().rposition(|byte| *byte == b'/')?)?;
    let mut address = Address { family: system::LOCAL as u16, path: [0; 108] };
    // A zero is behind the name.
    let path = address.path.get_mut(..folder.len() + SOCKET.len() + 1)?;
    path.iter_mut().zip(folder.iter().chain(SOCKET)).for_each(|(to, from)| *to = *from);
    Some(address)
}

fn receive(fd: c_int) -> Option<c_int> {
    let mut byte = 0u8;
    let mut piece = Piece { at: (&raw mut byte).cast::<c_void>(), length: 1 };
    let mut control = Descriptor { length: 0, level: 0, kind: 0, fd: -1, pad: 0 };
    let mut message = Message {
        name: null_mut(),
        name_length: 0,
        pieces: &raw mut piece,
        piece_count: 1,
        control: (&raw mut control).cast(),
        control_length: size_of::<Descriptor>(),
        flags: 0,
    };
    // SAFETY: all that the message points to outlives the call.
    let length = unsafe { system::recvmsg(fd, &raw mut message, system::CLOSE_ON_EXEC) };
    let is_descriptor = control.level == system::SOCKET_LEVEL && control.kind == system::DESCRIPTORS;
    (length == 1 && message.control_length > 0 && is_descriptor && control.fd >= 0).then_some(control.fd)
}
