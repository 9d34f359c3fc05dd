//! Which server a file's reader may have to wait for. In: a file, and the process that maps it. Out: none, a server
//! that root mounted, or one that an ordinary user mounted.
//!
//! A uprobe reads its page inside Linux, while no process of the machine can fork (dup_mmap_sem). A FUSE server that
//! does not answer would then block the whole machine, and an ordinary user must not be able to cause that.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};

use crate::process::proc;

/// From linux/nsfs.h: returns the user namespace that owns a namespace.
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// The most bytes read of a process's list of mounts; a mount beyond them counts as a user's.
const MOST_MOUNTS: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    None,
    Roots,
    Users,
}

/// Can itself wait for the server.
pub fn server_of(handle: &File, pid: u32) -> Server {
    // If the type is unknown, assume that it has a server. virtiofs has the same.
    if fstatfs(handle).is_ok_and(|about| about.filesystem_type() != FUSE_SUPER_MAGIC) {
        return Server::None;
    }
    let number = mount_number(handle);
    let of = |process: &str| {
        let mounts = proc::read_some(&format!("/proc/{process}/mountinfo"), MOST_MOUNTS).ok()?;
        let found = of_root(&mounts, number?)?;
        // A user is root in their own user namespace, so only mounts outside of it are root's.
        Some(found && is_ours(process))
    };
    match of("self").or_else(|| of(&pid.to_string())) {
        Some(true) => Server::Roots,
        _ => Server::Users,
    }
}

fn mount_number(handle: &File) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// True if root made the mount of that number; None if there is no such mount. See proc_pid_mountinfo(5).
fn of_root(mounts: &[u8], number: u64) -> Option<bool> {
    let text = String::from_utf8_lossy(mounts);
    let line =
        text.lines().find(|line| line.split(' ').next().and_then(|n| n.parse().ok()) == Some(number))?;
    // The fields before the separator are paths and numbers, none of which is a dash; the mounted source may be named
    // "-".
    let mut words = line.split_once(" - ")?.1.split(' ');
    let (kind, _source, options) = (words.next()?, words.next()?, words.next().unwrap_or_default());
    if kind == "virtiofs" {
        return Some(true);
    }
    Some(options.split(',').any(|option| option == "user_id=0"))
}

/// True if the process's mounts do not belong to another user namespace.
fn is_ours(process: &str) -> bool {
    let owner = || {
        let mounts = File::open(format!("/proc/{process}/ns/mnt")).ok()?;
        // SAFETY: takes no argument and gives a new descriptor.
        let owner = unsafe { libc::ioctl(mounts.as_raw_fd(), NS_GET_USERNS as _) };
        // SAFETY: just created, and it has no other owner.
        let owner = (owner >= 0).then(|| unsafe { OwnedFd::from_raw_fd(owner) })?;
        Some(File::from(owner).metadata().ok()?.ino())
    };
    let own = fs::metadata("/proc/self/ns/user").ok().map(|meta| meta.ino());
    own.is_some() && owner() == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_root_and_of_others() {
        let mounts = b"22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n\
            40 22 0:40 / /mnt/a\\040- rw shared:1 - fuse.sshfs h:/ rw,user_id=1000,group_id=0\n\
            41 22 0:41 / /mnt/b rw - fuse /dev/fuse rw,user_id=0,group_id=0,allow_other\n\
            42 22 0:42 / /mnt/c rw - virtiofs share rw\n\
            43 22 0:43 / /mnt/user_id=0 rw - fuse - rw,user_id=10\n\
            44 22\n";
        let all = [40, 41, 42, 43, 44, 4].map(|number| of_root(mounts, number));
        assert_eq!(all, [Some(false), Some(true), Some(true), Some(false), None, None]);
        assert!(is_ours("self"));
    }
}
