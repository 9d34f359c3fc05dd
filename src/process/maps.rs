//! The files a process executes, and how to open exactly those.
//!
//! In: /proc/PID/maps, whatever bytes it holds. Out: mappings, and files verified to be the mapped ones
//! even if they were deleted, replaced or lie in another mount namespace.

use super::{Pid, rights};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use gpurec_trace::bounds::Left;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    /// Major and minor number, as the kernel knows the file system; some give stat() another one.
    pub dev: (u32, u32),
    pub inode: u64,
    #[serde(with = "as_text")]
    pub path: PathBuf,
    pub deleted: bool,
}

/// A process decides how many lines there are, and how long: ten gigabytes are no effort. So they are read one by one,
/// and what is longer than a system call takes of a path is dropped: such a file is found through its mapping.
const LONGEST_LINE: u64 = 256 + libc::PATH_MAX as u64;
/// Of one process's mappings no more is kept. Usual ones take some hundred kilobytes.
const MOST: usize = 16 << 20;
/// Of each, besides its path.
const EACH: usize = 128;

/// Every executable mapping of a file.
pub fn executable_mappings(pid: Pid) -> io::Result<Vec<Mapping>> {
    collect(open(pid)?, |_| true)
}

/// The executable mappings of files, each file once.
pub fn executable_files(pid: Pid) -> io::Result<Vec<Mapping>> {
    let mut seen = HashSet::new();
    collect(open(pid)?, |mapping| seen.insert((mapping.dev, mapping.inode)))
}

/// The executable mapping of a file at an address.
pub fn executable_mapping_at(pid: Pid, address: u64) -> io::Result<Option<Mapping>> {
    let mut found = None;
    each(open(pid)?, &mut |mapping| {
        // They are in order.
        if mapping.end <= address {
            return ControlFlow::Continue(());
        }
        found = Some(mapping).filter(|mapping| mapping.start <= address);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// What a list of mappings takes in memory.
pub fn held(list: &[Mapping]) -> usize {
    list.iter().map(bytes_of).sum()
}

fn bytes_of(mapping: &Mapping) -> usize {
    EACH + mapping.path.as_os_str().len()
}

fn open(pid: Pid) -> io::Result<impl BufRead> {
    Ok(BufReader::with_capacity(64 << 10, File::open(format!("/proc/{pid}/maps"))?))
}

fn collect(lines: impl BufRead, mut wanted: impl FnMut(&Mapping) -> bool) -> io::Result<Vec<Mapping>> {
    let (mut all, mut left) = (Vec::new(), Left::<MOST>::default());
    let mut full = false;
    each(lines, &mut |mapping| {
        if wanted(&mapping) {
            full = !left.take(bytes_of(&mapping));
            all.push(mapping);
        }
        if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if full { Err(io::Error::other("it has mapped more files than gpurec looks at")) } else { Ok(all) }
}

/// Every executable file mapping. A line that makes no sense is passed over.
fn each(mut lines: impl BufRead, tell: &mut dyn FnMut(Mapping) -> ControlFlow<()>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.pop_if(|last| *last == b'\n').is_none() {
            lines.skip_until(b'\n')?;
        }
        if parse_line(&line).is_some_and(|mapping| tell(mapping).is_break()) {
            return Ok(());
        }
    }
}

/// Of bytes that were read already.
pub fn parse(bytes: &[u8]) -> Vec<Mapping> {
    collect(bytes, |_| true).unwrap_or_default()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // start-end perms offset major:minor inode      path
    let (range, rest) = word(line)?;
    let (perms, rest) = word(rest)?;
    let (offset, rest) = word(rest)?;
    let (dev, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok()?;
    if inode == 0 || perms.get(2) != Some(&b'x') {
        return None;
    }
    // The kernel pads with spaces; a path of a file begins with a slash and may hold spaces itself.
    let path = rest.trim_ascii_start();
    if path.first() != Some(&b'/') {
        return None;
    }
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let (start, end) = pair(range, b'-')?;
    let (major, minor) = pair(dev, b':')?;
    Some(Mapping {
        start,
        end,
        offset: hex(offset)?,
        dev: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        path: PathBuf::from(OsString::from_vec(unescape(path))),
        deleted,
    })
}

/// The first word and what follows it.
fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|b| *b == b' ').unwrap_or(bytes.len());
    let (word, rest) = bytes.split_at_checked(end)?;
    (!word.is_empty()).then_some((word, rest))
}

fn pair(bytes: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = bytes.iter().position(|b| *b == separator)?;
    Some((hex(bytes.get(..at)?)?, hex(bytes.get(at + 1..)?)?))
}

fn hex(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    // from_str_radix would take a sign.
    if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

/// The kernel escapes the newline here and nothing else, not even the backslash.
fn unescape(path: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(NEWLINE) {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// The very file that is mapped, not opened yet. First through the mapping itself, which needs no path; then by path
/// below the process's root, and below ours (a chroot shows paths from outside), each only if it is
/// the same file.
pub fn find_mapped(pid: Pid, mapping: &Mapping) -> io::Result<Found> {
    let direct = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let first = match find(Path::new(&direct)).and_then(|f| same_file(f, mapping)) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    for path in paths(pid, mapping) {
        if let Ok(found) = find(&path).and_then(|f| same_file(f, mapping)) {
            return Ok(found);
        }
    }
    let shown = mapping.path.display();
    Err(io::Error::new(first.kind(), format!("{shown}, mapped by process {pid}, cannot be opened: {first}")))
}

pub fn open_mapped(pid: Pid, mapping: &Mapping) -> io::Result<File> {
    find_mapped(pid, mapping)?.open()
}

fn paths(pid: Pid, mapping: &Mapping) -> Vec<PathBuf> {
    let mut names = vec![mapping.path.as_os_str().to_owned()];
    if mapping.deleted {
        // The mark may be part of the name.
        let mut marked = mapping.path.as_os_str().to_owned();
        marked.push(" (deleted)");
        names.push(marked);
    }
    let below_root = names.iter().map(|name| {
        let mut path = OsString::from(format!("/proc/{pid}/root"));
        path.push(name);
        PathBuf::from(path)
    });
    below_root.chain(names.iter().map(PathBuf::from)).collect()
}

fn same_file(found: Found, mapping: &Mapping) -> io::Result<Found> {
    let meta = &found.meta;
    let dev = (libc::major(meta.dev()), libc::minor(meta.dev()));
    // overlayfs and btrfs give stat() another device number than the kernel's own, both without a
    // driver behind them (major 0): there the inode has to do.
    let same_dev = dev == mapping.dev || (dev.0 == 0 && mapping.dev.0 == 0);
    if same_dev && meta.ino() == mapping.inode {
        return Ok(found);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "another file is there now"))
}

/// A regular file that was found and not opened: its file system may wait for a server, and opening what a target
/// chose may do something (a device) or wait (a FIFO).
#[derive(Debug)]
pub struct Found {
    /// O_PATH: whoever holds it can neither read nor wait, not even when it is closed.
    pub handle: File,
    pub meta: Metadata,
}

impl Found {
    /// For reading. Never waits for a lease of the target's.
    pub fn open(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
    }
}

fn find(path: &Path) -> io::Result<Found> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let meta = handle.metadata()?;
    if !meta.is_file() {
        let shown = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        return Err(io::Error::other(format!("{shown} is not a regular file")));
    }
    Ok(Found { handle, meta })
}

/// The root folder of a process. Getting there may take a capability; what lies below it need not.
pub struct Root {
    folder: File,
    pid: Pid,
}

pub fn root_of(pid: Pid) -> io::Result<Root> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{pid}/root"))?;
    Ok(Root { folder, pid })
}

impl Root {
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd()).into()
    }

    /// By which it can be found again.
    pub fn shown(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }
}

/// By a path that somebody else may have chosen, in a process of the recorder's: what the caller could read themselves.
pub fn find_named(pid: Pid, path: &Path) -> io::Result<Found> {
    let readable = |path: &Path| {
        rights::as_oneself(|| {
            let found = find(path)?;
            found.open().map(|_| found)
        })?
    };
    match path.strip_prefix(format!("/proc/{pid}/root")) {
        Ok(below) => readable(&root_of(pid)?.path().join(below)),
        Err(_) => readable(path),
    }
}

/// A file the process has open.
pub fn find_fd(pid: Pid, fd: i32) -> io::Result<Found> {
    find(Path::new(&format!("/proc/{pid}/fd/{fd}")))
}

/// As the kernel knows it, which may be another number than stat() tells (overlayfs). Linux 5.14.
pub fn inode_of_fd(pid: Pid, fd: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

/// The program it executes.
pub fn find_exe(pid: Pid) -> io::Result<Found> {
    find(Path::new(&format!("/proc/{pid}/exe")))
}

/// A path in a message, whatever its bytes: each is a character of its own.
pub mod as_text {
    use std::borrow::Cow;
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&path.as_os_str().as_bytes().iter().map(|byte| *byte as char).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        Ok(PathBuf::from(OsString::from_vec(text.chars().map(|c| c as u8).collect())))
    }
}
