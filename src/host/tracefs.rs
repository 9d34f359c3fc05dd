//! Reads tracefs, mounted or not. In: a path inside it. Out: a file's text. If it is not mounted, this makes a detached
//! mount, which no other process can see and which ends with its descriptor. Writes nothing.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

const MOUNTED: &str = "/sys/kernel/tracing";
const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;
const NAME: &CStr = c"tracefs";

/// The text of a file such as `events/irq/irq_handler_entry/id`.
pub fn read(path: &str) -> io::Result<String> {
    match fs::read_to_string(Path::new(MOUNTED).join(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut text = String::new();
            File::from(open(&mount()?, path)?).read_to_string(&mut text)?;
            Ok(text)
        }
        other => other,
    }
}

fn mount() -> io::Result<OwnedFd> {
    // SAFETY: each call gets a valid string or descriptor and integers.
    unsafe {
        let context = owned(libc::syscall(libc::SYS_fsopen, NAME.as_ptr(), FSOPEN_CLOEXEC))?;
        let null = ptr::null::<libc::c_char>();
        if libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        owned(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0))
    }
}

fn open(mount: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    // SAFETY: a valid descriptor and string.
    let fd = unsafe { libc::openat(mount.as_raw_fd(), path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    owned(fd.into())
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just created, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
