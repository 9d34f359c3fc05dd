//! What is gpurec's own in a folder where others may make names too: regular files and folders of the user who records,
//! as whom this thread runs. Nothing here follows a symbolic link or waits for the other end of a FIFO.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::{FOLDER_FLAGS, kind};

/// The bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Opens a file for reading. EPERM: it is not a regular file of this user.
pub fn open(folder: &impl AsFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    if is_own(&fstat(&file)?) { Ok(File::from(file)) } else { Err(Errno::EPERM) }
}

/// The file's state, if it is a regular file of this user.
pub(super) fn examine(folder: &impl AsFd, name: &OsStr) -> Option<FileStat> {
    fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok().filter(is_own)
}

fn is_own(about: &FileStat) -> bool {
    kind(*about) == SFlag::S_IFREG && about.st_uid == geteuid().as_raw()
}

/// Opens a folder to which only this user may write. The error says what is wrong with it.
pub(super) fn open_folder(parent: &impl AsFd, name: &OsStr) -> Result<OwnedFd, &'static str> {
    let found = openat(parent, name, FOLDER_FLAGS | OFlag::O_NOFOLLOW, Mode::empty());
    let found = found.map_err(|errno| match errno {
        // What Linux returns for a symbolic link and for a file.
        Errno::ELOOP | Errno::ENOTDIR => "it is not a folder",
        errno => errno.desc(),
    })?;
    let about = fstat(&found).map_err(Errno::desc)?;
    if about.st_uid != geteuid().as_raw() {
        return Err("it belongs to another user");
    }
    if about.st_mode & OTHERS_WRITE != 0 {
        return Err("others may write to it");
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(&found, ".", flags, Mode::empty()).map_err(Errno::desc)
}

/// Passes the names in a folder, of which others may have made any number.
pub(super) fn each_name(folder: &impl AsFd, mut take: impl FnMut(&OsStr)) -> nix::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut open = Dir::openat(folder, ".", flags, Mode::empty())?;
    for entry in open.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            take(name);
        }
    }
    Ok(())
}

/// The name of a segment's file.
pub fn segment(number: u64) -> String {
    format!("{number:08}.zst")
}

fn is_segment(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_suffix(b".zst").unwrap_or_default();
    digits.len() >= 8 && digits.iter().all(u8::is_ascii_digit)
}

/// Removes the segments in a folder, as far as possible. What else the user has there stays.
pub(super) fn remove_segments(folder: &impl AsFd) {
    let mut all: Vec<OsString> = Vec::new();
    let take = |name: &OsStr| all.extend(is_segment(name).then(|| name.to_owned()));
    let _ = each_name(folder, take);
    for name in all {
        let _ = unlinkat(folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }
}
