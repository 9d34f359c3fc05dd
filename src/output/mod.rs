//! Opens the output of a trace: a file, a compressed file, or a descriptor such as standard output.
//!
//! In: a path (`name` expands its letters). The calling thread must have the rights of the user who named the path
//! (`process::rights`), not root's from sudo, so that this user owns the files it creates and opens no others. It
//! follows no symbolic link of another user, never opens an existing file for a default name, and makes new files
//! unreadable for others, because a trace describes processes that only their owner may inspect. It locks a file while
//! it is written, so a second recording into it is refused. It writes a descriptor as it is, because the caller opened
//! it.

pub mod name;
pub mod own;
pub mod series;
#[cfg(test)]
mod tests;

use nix::libc;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, ftruncate, geteuid, symlinkat, unlinkat};

use gpurec_trace::time;

const FOLDER: &str = "traces";
const LATEST: &str = "latest";
const FOLDER_FLAGS: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Level 1 is faster than levels 2 to 5, and its traces are smaller.
const ZSTD_LEVEL: i32 = 1;
/// How long a file may stay in use by a recording that has ended.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A sentence: what cannot be written, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

pub struct Output {
    sink: Sink,
    /// None for a descriptor.
    pub path: Option<PathBuf>,
    /// The descriptor that the caller passed: 1 for standard output.
    pub descriptor: Option<RawFd>,
    /// A failure that does not affect the trace itself.
    pub warning: Option<String>,
}

enum Sink {
    Plain(File),
    Zstd(Box<zstd::stream::write::Encoder<'static, File>>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sink {
            Sink::Plain(file) => file.write(bytes),
            Sink::Zstd(encoder) => encoder.write(bytes),
        }
    }

    /// Afterwards everything written so far can be read from the file, even if nothing more is ever written.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Plain(file) => file.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
        }
    }
}

impl Output {
    /// For reading the file's size. None unless it is a regular file: a pipe's reader would wait until this copy is
    /// closed too.
    pub fn regular(&self) -> Option<File> {
        let file = match &self.sink {
            Sink::Plain(file) => file,
            Sink::Zstd(encoder) => encoder.get_ref(),
        };
        file.metadata().is_ok_and(|about| about.is_file()).then(|| file.try_clone().ok()).flatten()
    }

    /// Ends the compressed frame, if there is one.
    pub fn finish(self) -> io::Result<()> {
        match self.sink {
            Sink::Plain(mut file) => file.flush(),
            Sink::Zstd(encoder) => encoder.finish().map(drop),
        }
    }

    fn file(file: File, path: PathBuf, warning: Option<String>) -> Result<Output, OpenError> {
        let sink = if path.extension().is_some_and(|e| e == "zst") {
            let encoder = zstd::stream::write::Encoder::new(file, ZSTD_LEVEL)
                .map_err(|e| OpenError(format!("cannot start zstd compression: {e}")))?;
            Sink::Zstd(Box::new(encoder))
        } else {
            Sink::Plain(file)
        };
        Ok(Output { sink, path: Some(path), descriptor: None, warning })
    }
}

/// The sources of descriptors: those that gpurec inherited, and, because sudo closes them, those of the process that
/// called sudo.
#[derive(Clone, Copy, Default)]
pub struct FdSources<'a> {
    pub inherited: &'a [RawFd],
    pub caller: Option<u32>,
}

/// Opens the trace to write: the path `given` by the user (`-` is standard output), or by default
/// `traces/trace_YYYYMMDD_HHMMSS.jsonl` with the link `traces/latest` to it. Empties an existing regular file only if
/// it was `given`.
pub fn open(given: Option<&Path>, now: SystemTime, from: FdSources) -> Result<Output, OpenError> {
    let Some(path) = given else { return default_file(Path::new("."), now) };
    match name::descriptor(path) {
        Some(fd) => descriptor(path, fd, from),
        None => given_file(path),
    }
}

/// Never takes one of gpurec's own descriptors, whatever number the user gives.
fn descriptor(path: &Path, fd: RawFd, from: FdSources) -> Result<Output, OpenError> {
    let file = if (0..3).contains(&fd) || from.inherited.contains(&fd) {
        // SAFETY: only queries a number, which may be closed.
        let inherited = unsafe { BorrowedFd::borrow_raw(fd) };
        writable(inherited)
    } else {
        from.caller.ok_or(Errno::EBADF).and_then(|caller| pipe_of(caller, fd))
    };
    let file = file.map_err(|errno| not_handed_down(path, fd, from, errno))?;
    Ok(Output { sink: Sink::Plain(file), path: None, descriptor: Some(fd), warning: None })
}

/// Not io::Stdout, which would search every buffer for line ends.
fn writable(fd: BorrowedFd) -> nix::Result<File> {
    let mode = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    if mode == OFlag::O_RDONLY {
        return Err(Errno::EBADF);
    }
    fd.try_clone_to_owned()
        .map(File::from)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// Opens a pipe that a shell made for `>(...)` and that sudo has closed. Linux checks that this thread, which has the
/// caller's rights, may access that process. Only pipes are accepted: every other file has a name that the user could
/// have given.
fn pipe_of(pid: u32, fd: RawFd) -> nix::Result<File> {
    let link = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    // Check first: opening any other kind of file could have side effects.
    if kind(fstatat(AT_FDCWD, &link, AtFlags::empty())?) != SFlag::S_IFIFO {
        return Err(Errno::EBADF);
    }
    let fd = openat(AT_FDCWD, &link, OFlag::O_WRONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())?;
    if kind(fstat(&fd)?) == SFlag::S_IFIFO { Ok(File::from(fd)) } else { Err(Errno::EBADF) }
}

fn kind(about: FileStat) -> SFlag {
    SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT
}

fn given_file(path: &Path) -> Result<Output, OpenError> {
    let name = path.file_name().ok_or_else(|| refused(path, Errno::EISDIR))?;
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let folder = openat(AT_FDCWD, parent, FOLDER_FLAGS, Mode::empty())
        .map_err(|errno| no_folder(path, parent, errno))?;
    let file = match create(&folder, name) {
        Err(Errno::EEXIST) if is_planted(&folder, fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)) => {
            return Err(planted(path));
        }
        Err(Errno::EEXIST) => empty_existing(&folder, name),
        other => other,
    }
    .map_err(|errno| refused(path, errno))?;
    Output::file(file, path.to_path_buf(), None)
}

/// The default file in `base`, which is the current folder except in tests.
pub(super) fn default_file(base: &Path, now: SystemTime) -> Result<Output, OpenError> {
    // Messages show `traces/…`, not `./traces/…`.
    let traces = base.strip_prefix(".").unwrap_or(base).join(FOLDER);
    let folder = traces_folder(base, &traces)?;
    let stamp = time::stamp(now);
    let mut name = format!("trace_{stamp}.jsonl");
    let mut clashes = 0;
    let file = loop {
        match create(&folder, OsStr::new(&name)) {
            Err(Errno::EEXIST) if clashes < 1000 => {
                clashes += 1;
                name = format!("trace_{stamp}_{clashes}.jsonl");
            }
            other => break other.map_err(|errno| refused(&traces.join(&name), errno))?,
        }
    };
    let warning = link_latest(&folder, &name)
        .err()
        .map(|why| format!("cannot update the link {}: {why}", traces.join(LATEST).display()));
    Output::file(file, traces.join(name), warning)
}

/// The folder for traces in `base`; creates it if it does not exist.
fn traces_folder(base: &Path, shown: &Path) -> Result<OwnedFd, OpenError> {
    let refused = |errno| refused(shown, errno);
    let base = openat(AT_FDCWD, base, FOLDER_FLAGS, Mode::empty()).map_err(refused)?;
    let folder = match mkdirat(&base, FOLDER, Mode::from_bits_truncate(0o755)) {
        Ok(()) => openat(&base, FOLDER, FOLDER_FLAGS | OFlag::O_NOFOLLOW, Mode::empty()),
        Err(Errno::EEXIST) => open_trusted(&base, OsStr::new(FOLDER), FOLDER_FLAGS),
        Err(errno) => Err(errno),
    }
    .map_err(refused)?;
    if is_planted(&base, fstat(&folder)) { Err(planted(shown)) } else { Ok(folder) }
}

/// Creates a new file; fails if the name is a link, even a dangling one.
fn create(folder: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(folder, name, flags, Mode::from_bits_truncate(0o600))?;
    lock(&fd)?;
    Ok(File::from(fd))
}

/// Locks out a second recording until the file is closed. Call this before anything in the file changes. After a
/// recording is killed, its child processes may keep the file open for a moment, so this waits a little. On a file
/// system without locks, the file stays unlocked.
fn lock(fd: &OwnedFd) -> nix::Result<()> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        // SAFETY: a descriptor of ours, and plain integers.
        let locked = unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        if locked || Errno::last() != Errno::EWOULDBLOCK {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Errno::EWOULDBLOCK);
        }
        std::thread::sleep(LOCK_WAIT / 20);
    }
}

/// Empties an existing regular file; opens a pipe or a device as it is.
fn empty_existing(folder: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let fd = open_trusted(folder, name, OFlag::O_WRONLY | OFlag::O_CLOEXEC)?;
    if is_planted(folder, fstat(&fd)) {
        return Err(Errno::EACCES);
    }
    if kind(fstat(&fd)?) == SFlag::S_IFREG {
        lock(&fd)?;
        ftruncate(&fd, 0)?;
    }
    Ok(File::from(fd))
}

/// Whether a file, folder or FIFO may be there for others to read or exchange the trace: another user made it, in a
/// folder where everyone may make names. Linux has the same rule for what it is asked to create (fs.protected_regular).
fn is_planted(folder: &OwnedFd, about: nix::Result<FileStat>) -> bool {
    let (Ok(folder), Ok(about)) = (fstat(folder), about) else { return false };
    let is_of_others = about.st_uid != geteuid().as_raw() && about.st_uid != folder.st_uid;
    let kinds = [SFlag::S_IFREG, SFlag::S_IFDIR, SFlag::S_IFIFO];
    folder.st_mode & 0o002 != 0 && is_of_others && kinds.contains(&kind(about))
}

/// Opens an existing file. Follows a symbolic link only if root or the recording user made it, and never a second link.
/// Fails with ELOOP otherwise.
fn open_trusted(folder: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let first = openat(folder, name, flags, Mode::empty());
    // For a link that is opened as a folder, Linux returns ENOTDIR.
    if !matches!(first, Err(Errno::ELOOP | Errno::ENOTDIR)) {
        return first;
    }
    let link = openat(folder, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let about = fstat(&link)?;
    if kind(about) != SFlag::S_IFLNK {
        return first;
    }
    if about.st_uid != 0 && about.st_uid != geteuid().as_raw() {
        return Err(Errno::ELOOP);
    }
    // Reads the link that was checked, not whatever has its name now.
    let target = readlinkat(&link, "")?;
    openat(folder, target.as_os_str(), flags, Mode::empty())
}

/// Points `latest` at `name` in one step, so that the link always exists.
fn link_latest(folder: &OwnedFd, name: &str) -> Result<(), String> {
    let said = |errno: Errno| errno.desc().to_string();
    if let Ok(about) = fstatat(folder, LATEST, AtFlags::AT_SYMLINK_NOFOLLOW)
        && kind(about) != SFlag::S_IFLNK
    {
        return Err("it is not a symbolic link, so move it away".to_string());
    }
    let temporary = OsString::from(format!(".latest.{}", std::process::id()));
    match symlinkat(name, folder, temporary.as_os_str()) {
        // A killed recording with the same process id has left it.
        Err(Errno::EEXIST) => {
            unlinkat(folder, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(said)?;
            symlinkat(name, folder, temporary.as_os_str()).map_err(said)?;
        }
        other => other.map_err(said)?,
    }
    renameat(folder, temporary.as_os_str(), folder, LATEST).map_err(said)
}

fn planted(path: &Path) -> OpenError {
    let path = path.display();
    OpenError(format!(
        "another user made {path}, in a folder where everyone may make files, and could read or exchange the trace; remove it, or give -o another name"
    ))
}

fn no_folder(path: &Path, parent: &Path, errno: Errno) -> OpenError {
    let (path, parent) = (path.display(), parent.display());
    OpenError(match errno {
        Errno::ENOENT => format!(
            "cannot write {path}: the folder {parent} does not exist; create it, or give -o another place"
        ),
        Errno::ENOTDIR => {
            format!("cannot write {path}: {parent} is not a folder; give -o another place")
        }
        _ => format!("cannot write {path}: {}; give -o a folder you can write to", errno.desc()),
    })
}

fn not_handed_down(path: &Path, fd: RawFd, from: FdSources, errno: Errno) -> OpenError {
    let path = path.display();
    if fd < 3 || from.inherited.contains(&fd) {
        return OpenError(format!("{path} is not open for writing ({}); give -o a file", errno.desc()));
    }
    let sudo = if from.caller.is_some() { ", and sudo closes what its caller had open" } else { "" };
    OpenError(format!("{path} is not open here{sudo}; give -o a file or a FIFO (mkfifo), or - and a pipe"))
}

fn refused(path: &Path, errno: Errno) -> OpenError {
    let path = path.display();
    OpenError(match errno {
        Errno::EWOULDBLOCK => format!(
            "{path} is being written by another recording; give each a file of its own, as -o run-%h-%p.jsonl does (%h the host, %p the PID of gpurec, %r the rank)"
        ),
        Errno::EISDIR => format!("{path} is a folder; give -o the name of a file in it"),
        Errno::ELOOP => format!(
            "{path} is a symbolic link that another user made, or one to another link, and gpurec does not follow it; give -o the file it points to"
        ),
        Errno::EACCES | Errno::EPERM => format!(
            "you may not write {path} ({}); give -o a place where you may, without sudo",
            errno.desc()
        ),
        _ => {
            let advice = match errno {
                Errno::EROFS => "give -o a folder you can write to",
                Errno::ENOSPC | Errno::EDQUOT => "free some space, or give -o another disk",
                _ => "give -o another place",
            };
            format!("cannot write {path}: {}; {advice}", errno.desc())
        }
    })
}
