//! Where a trace is written: a file, a compressed file, or a descriptor such as standard output.
//!
//! In: a path (`name` has its letters), followed with the rights of the calling thread, which are to be those of the person who
//! named it (`target::rights`) and not root's by sudo: so it is theirs what is created, and nothing else
//! can be opened. No file is opened through a symbolic link of someone else, a default name never meets
//! an existing file, and nobody else may read a new one: it tells of processes what only their owner knows.
//! A file is locked while it is written: a second recording into it is refused. A descriptor is written as it is: it was
//! opened by those who handed it down.

pub mod name;
#[cfg(test)]
mod tests;

use nix::libc;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, ftruncate, geteuid, symlinkat, unlinkat};

use gpurec_trace::time;

const FOLDER: &str = "traces";
const LATEST: &str = "latest";
const ZSTD_LEVEL: i32 = 3;
/// How long a file may still be in use by a recording that has ended.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A sentence: what cannot be written, why, and what to do.
#[derive(Debug)]
pub struct OpenError(String);

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

pub struct Output {
    sink: Sink,
    /// None for a descriptor.
    pub path: Option<PathBuf>,
    /// The descriptor that the caller handed down: 1 for standard output.
    pub descriptor: Option<RawFd>,
    /// What did not work but does not matter for the trace itself.
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

    /// What was written before can be read from the file after this, also
    /// if nothing more is ever written.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Plain(file) => file.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
        }
    }
}

impl Output {
    /// For looking at its size. None for what is no regular file: a pipe's reader would wait for this to be closed.
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

/// Where descriptors come from: those that gpurec was started with, and, as sudo closes them, those of the process that
/// called sudo.
#[derive(Clone, Copy, Default)]
pub struct HandedDown<'a> {
    pub inherited: &'a [RawFd],
    pub caller: Option<u32>,
}

/// Opens the trace to write: `given` by the user (`-` is standard output), or
/// by default `traces/trace_YYYYMMDD_HHMMSS.jsonl` with `traces/latest` as a
/// link to it. A regular file that exists is emptied if it was `given`.
pub fn open(given: Option<&Path>, now: SystemTime, from: HandedDown) -> Result<Output, OpenError> {
    let Some(path) = given else { return default_file(Path::new("."), now) };
    match name::descriptor(path) {
        Some(fd) => descriptor(path, fd, from),
        None => given_file(path),
    }
}

/// No descriptor of gpurec's own is taken, whatever number is given.
fn descriptor(path: &Path, fd: RawFd, from: HandedDown) -> Result<Output, OpenError> {
    let file = if (0..3).contains(&fd) || from.inherited.contains(&fd) {
        // SAFETY: a number that is asked about, and may be closed.
        let inherited = unsafe { BorrowedFd::borrow_raw(fd) };
        writable(inherited)
    } else {
        from.caller.ok_or(Errno::EBADF).and_then(|caller| pipe_of(caller, fd))
    };
    let file = file.map_err(|errno| not_handed_down(path, fd, from, errno))?;
    Ok(Output { sink: Sink::Plain(file), path: None, descriptor: Some(fd), warning: None })
}

/// Not io::Stdout, which would look for lines in every buffer.
fn writable(fd: BorrowedFd) -> nix::Result<File> {
    let mode = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    if mode == OFlag::O_RDONLY {
        return Err(Errno::EBADF);
    }
    fd.try_clone_to_owned()
        .map(File::from)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// What a shell made for `>(...)` and sudo has closed. The kernel asks whether the rights of this thread, the caller's,
/// reach that process; and nothing but a pipe has no name by which it would have been given.
fn pipe_of(pid: u32, fd: RawFd) -> nix::Result<File> {
    let link = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    let is_pipe = |mode| kind(mode) == SFlag::S_IFIFO;
    // Before: opening anything else could do something.
    let about = fstatat(AT_FDCWD, &link, AtFlags::empty())?;
    if !is_pipe(about.st_mode) {
        return Err(Errno::EBADF);
    }
    let fd = openat(AT_FDCWD, &link, OFlag::O_WRONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())?;
    if is_pipe(fstat(&fd)?.st_mode) { Ok(File::from(fd)) } else { Err(Errno::EBADF) }
}

fn given_file(path: &Path) -> Result<Output, OpenError> {
    let Some(name) = path.file_name() else {
        return Err(refused(path, Errno::EISDIR));
    };
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let folder =
        openat(AT_FDCWD, parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| no_folder(path, parent, errno))?;
    let file = match create(&folder, name) {
        Err(Errno::EEXIST) => empty_existing(&folder, name),
        other => other,
    }
    .map_err(|errno| refused(path, errno))?;
    Output::file(file, path.to_path_buf(), None)
}

/// The default file in `base`, the current folder outside of tests.
pub(super) fn default_file(base: &Path, now: SystemTime) -> Result<Output, OpenError> {
    // Named to the user as `traces/…`, not `./traces/…`.
    let traces = base.strip_prefix(".").unwrap_or(base).join(FOLDER);
    let folder = traces_folder(base).map_err(|errno| refused(&traces, errno))?;
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
        .map(|why| format!("{} was not renewed: {why}", traces.join(LATEST).display()));
    Output::file(file, traces.join(name), warning)
}

/// The folder of traces in `base`, made if it is not there.
fn traces_folder(base: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let base = openat(AT_FDCWD, base, flags, Mode::empty())?;
    match mkdirat(&base, FOLDER, Mode::from_bits_truncate(0o755)) {
        Ok(()) => {
            let flags = flags | OFlag::O_NOFOLLOW;
            openat(&base, FOLDER, flags, Mode::empty())
        }
        Err(Errno::EEXIST) => open_trusted(&base, OsStr::new(FOLDER), flags),
        Err(errno) => Err(errno),
    }
}

/// A new file, also where a link of that name points to none.
fn create(folder: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(folder, name, flags, Mode::from_bits_truncate(0o600))?;
    lock(&fd)?;
    Ok(File::from(fd))
}

/// Against a second recording, until the file is closed; before anything in it is changed. A recording that has just
/// been killed keeps its file until all that it started have closed it, so this waits a moment. Where a file system
/// has no locks, there is none.
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

/// A file that exists, emptied; a pipe or a device as it is.
fn empty_existing(folder: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let fd = open_trusted(folder, name, OFlag::O_WRONLY | OFlag::O_CLOEXEC)?;
    let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFREG {
        lock(&fd)?;
        ftruncate(&fd, 0)?;
    }
    Ok(File::from(fd))
}

/// Opens what exists, through a symbolic link only if the link was made by
/// root or by the person recording, and through no second one. ELOOP if not.
fn open_trusted(folder: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let first = openat(folder, name, flags, Mode::empty());
    // A link asked for as a folder is ENOTDIR.
    if !matches!(first, Err(Errno::ELOOP | Errno::ENOTDIR)) {
        return first;
    }
    let link = openat(folder, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let about = fstat(&link)?;
    if SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK {
        return first;
    }
    if about.st_uid != 0 && about.st_uid != geteuid().as_raw() {
        return Err(Errno::ELOOP);
    }
    // Asked of the link that was looked at, not of its name.
    let target = readlinkat(&link, "")?;
    openat(folder, target.as_os_str(), flags, Mode::empty())
}

/// Points `latest` at `name` in one step, so that it never points nowhere.
fn link_latest(folder: &OwnedFd, name: &str) -> Result<(), String> {
    let said = |errno: Errno| errno.desc().to_string();
    let latest = fstatat(folder, LATEST, AtFlags::AT_SYMLINK_NOFOLLOW);
    if let Ok(about) = latest
        && SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK
    {
        return Err("it is not a symbolic link; move it away".to_string());
    }
    let temporary = OsString::from(format!(".latest.{}", std::process::id()));
    match symlinkat(name, folder, temporary.as_os_str()) {
        // Left by a recording that was killed and had our process id.
        Err(Errno::EEXIST) => {
            unlinkat(folder, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(said)?;
            symlinkat(name, folder, temporary.as_os_str()).map_err(said)?;
        }
        other => other.map_err(said)?,
    }
    renameat(folder, temporary.as_os_str(), folder, LATEST).map_err(said)
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

fn not_handed_down(path: &Path, fd: RawFd, from: HandedDown, errno: Errno) -> OpenError {
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
            "{path} is a symbolic link of someone else, or to another link, which gpurec does not follow; give -o the file it points to"
        ),
        Errno::EACCES | Errno::EPERM => format!(
            "{path} is not yours to write ({}); give -o a place where you may write yourself, without sudo",
            errno.desc()
        ),
        Errno::EROFS => {
            format!("cannot write {path}: {}; give -o a folder you can write to", errno.desc())
        }
        Errno::ENOSPC | Errno::EDQUOT => {
            format!("cannot write {path}: {}; free some space, or give -o another disk", errno.desc())
        }
        _ => format!("cannot write {path}: {}; give -o another place", errno.desc()),
    })
}
