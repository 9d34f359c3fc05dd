//! The files that a process executes, and how to open exactly those.
//!
//! In: /proc/PID/maps, with any bytes. Out: mappings, and files verified to be the mapped ones, even if they were
//! deleted, replaced or are in another mount namespace.

use super::{Pid, rights};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use gpurec_trace::bounds::BytesLeft;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    /// Major and minor number of the file system as Linux records them; stat() reports another number on some file
    /// systems.
    pub dev: (u32, u32),
    pub inode: u64,
    #[serde(with = "as_text")]
    pub path: PathBuf,
    pub deleted: bool,
}

/// A process controls the number and the length of these lines and can easily produce ten gigabytes. So this module
/// reads line by line and cuts a path that is longer than a system call accepts: such a file is found through its
/// mapping.
const LONGEST_LINE: u64 = 256 + libc::PATH_MAX as u64;
/// What Linux puts behind the path of a file that is gone.
const DELETED: &[u8] = b" (deleted)";
/// At most this much is kept of one process's mappings. Typical ones take a few hundred kilobytes.
const MOST: usize = 16 << 20;
/// Bytes of each mapping without its path.
const EACH: usize = 128;

/// Every executable mapping of a file.
pub fn executable_mappings(pid: Pid) -> io::Result<Vec<Mapping>> {
    collect(open(pid)?, |_| true)
}

/// Everything that a process can execute.
#[derive(Default)]
pub struct Executable {
    /// In address order, as Linux lists them.
    pub files: Vec<Mapping>,
    /// Memory that belongs to no file, from start to end: code made at run time, and Linux' own.
    others: Vec<(u64, u64)>,
}

impl Executable {
    pub fn file_at(&self, address: u64) -> Option<&Mapping> {
        let after = self.files.partition_point(|mapping| mapping.start <= address);
        self.files.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    pub fn is_other(&self, address: u64) -> bool {
        let after = self.others.partition_point(|(start, _)| *start <= address);
        let before = after.checked_sub(1).and_then(|at| self.others.get(at));
        before.is_some_and(|(_, end)| address < *end)
    }

    /// The memory that it takes.
    pub fn held(&self) -> usize {
        held(&self.files) + self.others.len() * size_of::<(u64, u64)>()
    }
}

pub fn executable_memory(pid: Pid) -> io::Result<Executable> {
    let (mut all, mut left) = (Executable::default(), BytesLeft::<MOST>::default());
    let mut lines = open(pid)?;
    let mut line = Vec::new();
    while next_line(&mut lines, &mut line)? {
        if let Some(mapping) = parse_line(&line) {
            if !left.take(bytes_of(&mapping)) {
                return Err(too_many());
            }
            all.files.push(mapping);
        } else if let Some(other) = parse_other(&line) {
            if !left.take(size_of_val(&other)) {
                return Err(too_many());
            }
            all.others.push(other);
        }
    }
    Ok(all)
}

/// The executable mappings of files, each file once.
pub fn executable_files(pid: Pid) -> io::Result<Vec<Mapping>> {
    let mut seen = HashSet::new();
    collect(open(pid)?, |mapping| seen.insert((mapping.dev, mapping.inode)))
}

/// The executable mapping of a file at an address.
pub fn executable_mapping_at(pid: Pid, address: u64) -> io::Result<Option<Mapping>> {
    // Mappings are in address order.
    let is_behind =
        |mapping: &io::Result<Mapping>| mapping.as_ref().map_or(true, |known| known.end > address);
    let found = mappings(open(pid)?).find(is_behind).transpose()?;
    Ok(found.filter(|mapping| mapping.start <= address))
}

/// The memory that a list of mappings takes.
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
    let (mut all, mut left) = (Vec::new(), BytesLeft::<MOST>::default());
    for mapping in mappings(lines) {
        let mapping = mapping?;
        if wanted(&mapping) {
            if !left.take(bytes_of(&mapping)) {
                return Err(too_many());
            }
            all.push(mapping);
        }
    }
    Ok(all)
}

fn too_many() -> io::Error {
    io::Error::other("it has mapped more files than gpurec examines")
}

/// Every executable file mapping. Skips malformed lines.
fn mappings(mut lines: impl BufRead) -> impl Iterator<Item = io::Result<Mapping>> {
    let mut line = Vec::new();
    let mut next = move || loop {
        if !next_line(&mut lines, &mut line)? {
            return Ok(None);
        }
        if let Some(mapping) = parse_line(&line) {
            return Ok(Some(mapping));
        }
    };
    std::iter::from_fn(move || next().transpose())
}

/// The beginning of the next line. False: there is none.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if lines.take(LONGEST_LINE).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.pop_if(|last| *last == b'\n').is_none() {
        lines.skip_until(b'\n')?;
    }
    Ok(true)
}

/// Executable memory without a file, except the trampolines of return probes, which Linux put there.
fn parse_other(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let [range, perms, _, _, inode, name] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let is_code = inode == b"0" && perms.get(2) == Some(&b'x') && name.trim_ascii() != b"[uprobes]";
    if is_code { pair(range, b'-') } else { None }
}

/// Parses bytes that were read before.
pub fn parse(bytes: &[u8]) -> Vec<Mapping> {
    collect(bytes, |_| true).unwrap_or_default()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // start-end perms offset major:minor inode      path
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let [range, perms, offset, dev, inode, path] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok()?;
    // Linux pads with spaces; a file's path begins with a slash and may contain spaces itself.
    let path = path.trim_ascii_start();
    if inode == 0 || perms.get(2) != Some(&b'x') || path.first() != Some(&b'/') {
        return None;
    }
    let unmarked = path.strip_suffix(DELETED);
    let (start, end) = pair(range, b'-')?;
    let (major, minor) = pair(dev, b':')?;
    Some(Mapping {
        start,
        end,
        offset: hex(offset)?,
        dev: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        path: PathBuf::from(OsString::from_vec(unescape(unmarked.unwrap_or(path)))),
        deleted: unmarked.is_some(),
    })
}

fn pair(bytes: &[u8], separator: u8) -> Option<(u64, u64)> {
    let mut parts = bytes.splitn(2, |byte| *byte == separator);
    Some((hex(parts.next()?)?, hex(parts.next()?)?))
}

fn hex(bytes: &[u8]) -> Option<u64> {
    // from_str_radix would accept a sign.
    let digits = bytes.iter().all(u8::is_ascii_hexdigit).then_some(bytes)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// In this file Linux escapes only the newline, not even the backslash.
fn unescape(path: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) =
        memmem::find(rest, NEWLINE).and_then(|at| Some((rest.get(..at)?, rest.get(at + NEWLINE.len()..)?)))
    {
        out.extend_from_slice(before);
        out.push(b'\n');
        rest = after;
    }
    out.extend_from_slice(rest);
    out
}

/// Finds the file that is mapped, without opening it. It tries the mapping itself first, which needs no path; then the
/// path below the process's root, and below gpurec's own (a chroot shows paths from outside). It accepts a path only if
/// it leads to the same file.
pub fn find_mapped(pid: Pid, mapping: &Mapping) -> io::Result<Found> {
    let first = match find(&map_file(pid, mapping)).and_then(|f| same_file(f, mapping)) {
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

/// The same, but fails if the process does not have that mapping any more. The file may still be there by its path, and
/// another may be mapped from there to there.
pub fn find_still_mapped(pid: Pid, mapping: &Mapping) -> io::Result<Found> {
    match find(&map_file(pid, mapping)) {
        Ok(found) => same_file(found, mapping),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        // Linux does not let it be opened in this way.
        Err(_) => find_mapped(pid, mapping),
    }
}

/// The path of a mapping with exactly these ends, and whether the file is deleted.
pub fn path_of_mapping(pid: Pid, start: u64, end: u64) -> io::Result<(PathBuf, bool)> {
    let path = std::fs::read_link(map_files(pid, start, end))?;
    let bytes = path.as_os_str().as_bytes();
    Ok(match bytes.strip_suffix(DELETED) {
        Some(unmarked) => (OsString::from_vec(unmarked.to_owned()).into(), true),
        None => (path, false),
    })
}

fn map_file(pid: Pid, mapping: &Mapping) -> PathBuf {
    map_files(pid, mapping.start, mapping.end)
}

fn map_files(pid: Pid, start: u64, end: u64) -> PathBuf {
    format!("/proc/{pid}/map_files/{start:x}-{end:x}").into()
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
    // On overlayfs and btrfs, stat() reports another device number than Linux uses internally, both without a device
    // (major 0). There the inode alone must match.
    let same_dev = dev == mapping.dev || (dev.0 == 0 && mapping.dev.0 == 0);
    if same_dev && meta.ino() == mapping.inode {
        return Ok(found);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "another file has this path now"))
}

/// A regular file that was found but not opened. Its file system may wait for a server, and a target may have chosen a
/// file that has side effects when opened (a device) or blocks (a FIFO).
#[derive(Debug)]
pub struct Found {
    /// O_PATH: it cannot be read, and neither its use nor its close can block.
    pub handle: File,
    pub meta: Metadata,
}

impl Found {
    /// Opens it for reading. Never waits for a lease that the target holds.
    pub fn open(&self) -> io::Result<File> {
        reopen(&self.handle)
    }
}

/// Opens the file of a descriptor that only names it.
pub fn reopen(handle: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

pub fn find(path: &Path) -> io::Result<Found> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let meta = handle.metadata()?;
    if !meta.is_file() {
        let shown = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        return Err(io::Error::other(format!("{shown} is not a regular file")));
    }
    Ok(Found { handle, meta })
}

/// The root folder of a process. Reaching it may take a capability that the files below it do not need.
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

    pub fn folder(&self) -> &File {
        &self.folder
    }

    /// A path that leads to it again.
    pub fn shown(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }
}

/// Finds a file by a path that another user may have chosen, from one of the recorder's processes, and only if the
/// caller could read that file themselves.
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

/// A file that the process has open.
pub fn find_fd(pid: Pid, fd: i32) -> io::Result<Found> {
    find(Path::new(&format!("/proc/{pid}/fd/{fd}")))
}

/// The inode as Linux knows it, which can differ from stat() (overlayfs). Needs Linux 5.14.
pub fn inode_of_fd(pid: Pid, fd: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

/// The program that the process executes.
pub fn find_exe(pid: Pid) -> io::Result<Found> {
    find(Path::new(&format!("/proc/{pid}/exe")))
}

/// A path in a message, with any bytes: each byte becomes one character.
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
