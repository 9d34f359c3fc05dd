//! A series of traces with one name: the dumps of the flight recorder. In: the name that -o gives, or the default;
//! events. Out: `NAME-N-EVENT.jsonl`, each under a temporary name until it is whole; the oldest are deleted beyond a
//! limit. Also a folder `NAME.segments` beside them for what is not written out yet.
//!
//! The folder is locked while it is open, so a second recording of that name is refused. Nothing here follows a
//! symbolic link of another user. Call `Series::open` with the rights of the user who named the path; all later calls
//! stay within the folder that it opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{FOLDER, FOLDER_FLAGS, OpenError, Output, link_latest, lock, no_folder, refused, traces_folder};
use gpurec_trace::time;

const SEGMENTS: &str = ".segments";
const PART: &str = ".part";

pub struct Series {
    folder: Arc<OwnedFd>,
    /// The folder, for messages.
    shown: PathBuf,
    name: Name,
    /// The link `traces/latest` points to the newest.
    is_default: bool,
    /// Locked.
    segments: OwnedFd,
    next: u64,
}

/// The parts of a name around what a dump inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    stem: OsString,
    extension: OsString,
}

/// A trace that is being written, without its output.
pub struct Part {
    pub number: u64,
    file: Option<File>,
    name: OsString,
}

impl Name {
    fn of(file: &OsStr) -> Name {
        let path = Path::new(file);
        let inner = match path.extension() {
            Some(packed) if packed == "zst" => path.file_stem().map_or(path, Path::new),
            _ => path,
        };
        let stem = inner.file_stem().unwrap_or(inner.as_os_str());
        let extension = file.as_bytes().get(stem.len()..).unwrap_or_default();
        Name { stem: stem.to_owned(), extension: OsString::from_vec(extension.to_vec()) }
    }

    fn dump(&self, number: u64, event: &str) -> OsString {
        let mut name = self.stem.clone();
        name.push(format!("-{number}-{event}"));
        name.push(&self.extension);
        name
    }

    /// The number of a dump of this name, and whether it is whole.
    fn number(&self, file: &OsStr) -> Option<(u64, bool)> {
        let rest = file.as_bytes().strip_prefix(self.stem.as_bytes())?.strip_prefix(b"-")?;
        let whole = rest.strip_suffix(PART.as_bytes());
        let rest = whole.unwrap_or(rest).strip_suffix(self.extension.as_bytes())?;
        let (number, event) = std::str::from_utf8(rest).ok()?.split_once('-')?;
        let is_event = !event.is_empty() && event.bytes().all(|byte| byte.is_ascii_lowercase());
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        (is_event && is_number).then(|| number.parse().ok()).flatten().map(|number| (number, whole.is_none()))
    }
}

impl Series {
    /// `given`: the path of the user; by default `traces/trace_YYYYMMDD_HHMMSS.jsonl`.
    pub fn open(given: Option<&Path>, now: SystemTime) -> Result<Series, OpenError> {
        let (folder, shown, file) = match given {
            Some(path) => {
                let name = path.file_name().ok_or_else(|| refused(path, Errno::EISDIR))?;
                let parent =
                    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
                let folder = openat(AT_FDCWD, parent, FOLDER_FLAGS, Mode::empty())
                    .map_err(|errno| no_folder(path, parent, errno))?;
                (folder, parent.to_owned(), name.to_owned())
            }
            None => {
                let shown = PathBuf::from(FOLDER);
                let folder = traces_folder(Path::new(".")).map_err(|errno| refused(&shown, errno))?;
                (folder, shown, format!("trace_{}.jsonl", time::stamp(now)).into())
            }
        };
        let shown = shown.strip_prefix(".").map_or(shown.clone(), Path::to_owned);
        let name = Name::of(&file);
        let path = shown.join(&file);
        let segments = locked_folder(&folder, &name.segments()).map_err(|errno| refused(&path, errno))?;
        let folder = Arc::new(folder);
        let mut series = Series { folder, shown, name, is_default: given.is_none(), segments, next: 1 };
        series.tidy().map_err(|errno| refused(&path, errno))?;
        Ok(series)
    }

    /// Removes what a killed recording of this name left, and continues the numbers of its dumps.
    fn tidy(&mut self) -> nix::Result<()> {
        for file in names(&self.segments)? {
            unlinkat(&self.segments, file.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        for file in names(&*self.folder)? {
            match self.name.number(&file) {
                Some((number, true)) => self.next = self.next.max(number.saturating_add(1)),
                Some((_, false)) => unlinkat(&*self.folder, file.as_os_str(), UnlinkatFlags::NoRemoveDir)?,
                None => {}
            }
        }
        Ok(())
    }

    /// A folder for what is not written out yet.
    pub fn segments(&self) -> io::Result<OwnedFd> {
        self.segments.try_clone()
    }

    /// Begins the next trace.
    pub fn begin(&mut self, event: &str) -> io::Result<(Part, Output)> {
        let number = self.next;
        let name = self.name.dump(number, event);
        let file = super::create(&self.folder, &part(&name))?;
        self.next += 1;
        let output = Output::file(file, self.shown.join(&name), None)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let file = output.regular();
        Ok((Part { number, file, name }, output))
    }

    /// Gives a whole trace its final name.
    pub fn finish(&self, whole: Part, output: Output) -> io::Result<PathBuf> {
        let Part { file, name, .. } = whole;
        let temporary = part(&name);
        let written = output.finish().and_then(|()| file.map_or(Ok(()), |file| file.sync_all()));
        let named = written.and_then(|()| {
            let flags = RenameFlags::RENAME_NOREPLACE;
            match renameat2(&*self.folder, temporary.as_os_str(), &*self.folder, name.as_os_str(), flags) {
                // The file system does not support this flag.
                Err(Errno::EINVAL) => nix::fcntl::renameat(
                    &*self.folder,
                    temporary.as_os_str(),
                    &*self.folder,
                    name.as_os_str(),
                ),
                renamed => renamed,
            }
            .map_err(io::Error::from)
        });
        if let Err(error) = named {
            let _ = unlinkat(&*self.folder, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
            return Err(error);
        }
        if self.is_default {
            // The trace is usable without the link.
            let _ = link_latest(&self.folder, &name.to_string_lossy());
        }
        Ok(self.shown.join(&name))
    }

    /// Removes a trace that could not be written.
    pub fn abandon(&self, part_of: Part) {
        let _ = unlinkat(&*self.folder, part(&part_of.name).as_os_str(), UnlinkatFlags::NoRemoveDir);
    }

    /// Deletes the oldest traces of the series until the others take no more than `most` bytes. The newest stays.
    /// Returns the number of deleted traces.
    pub fn keep(&self, most: u64) -> io::Result<u64> {
        let mut all = Vec::new();
        for file in names(&*self.folder)? {
            if let Some((number, true)) = self.name.number(&file) {
                let about = fstatat(&*self.folder, file.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
                all.push((number, u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(512), file));
            }
        }
        all.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
        let (mut sum, mut deleted) = (0u64, 0);
        for (at, (_, bytes, file)) in all.iter().enumerate() {
            sum = sum.saturating_add(*bytes);
            if at > 0 && sum > most {
                unlinkat(&*self.folder, file.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
                deleted += 1;
            }
        }
        Ok(deleted)
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        // The next recording of this name removes what this one cannot.
        for file in names(&self.segments).unwrap_or_default() {
            let _ = unlinkat(&self.segments, file.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        let _ = unlinkat(&*self.folder, self.name.segments().as_os_str(), UnlinkatFlags::RemoveDir);
    }
}

impl Name {
    fn segments(&self) -> OsString {
        let mut name = self.stem.clone();
        name.push(SEGMENTS);
        name
    }
}

fn part(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(PART);
    name
}

fn locked_folder(parent: &OwnedFd, name: &OsStr) -> nix::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    lock(&folder)?;
    Ok(folder)
}

/// The names in a folder.
fn names(folder: &impl AsFd) -> nix::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut open = Dir::openat(folder, ".", flags, Mode::empty())?;
    let mut all = Vec::new();
    for entry in open.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            all.push(name);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gpurec-series-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    fn listed(folder: &Path) -> Vec<String> {
        let all = std::fs::read_dir(folder).unwrap();
        let mut all: Vec<String> = all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_dump_is_named_before_the_extension() {
        for (given, expected) in [
            ("run.jsonl", "run-3-error.jsonl"),
            ("run.jsonl.zst", "run-3-error.jsonl.zst"),
            ("run.zst", "run-3-error.zst"),
            ("run", "run-3-error"),
            ("a.b.jsonl", "a.b-3-error.jsonl"),
            (".jsonl", ".jsonl-3-error"),
        ] {
            let name = Name::of(OsStr::new(given));
            let dump = name.dump(3, "error");
            assert_eq!(dump, expected);
            assert_eq!(name.number(&dump), Some((3, true)), "{given}");
            assert_eq!(name.number(&part(&dump)), Some((3, false)), "{given}");
            assert_eq!(name.number(OsStr::new(given)), None);
        }
        let name = Name::of(OsStr::new("run.jsonl"));
        for other in [
            "run-1-.jsonl",
            "run-x-end.jsonl",
            "run-1-end.jsonl.zst",
            "run2-1-end.jsonl",
            "run-1-End.jsonl",
            "run.segments",
        ] {
            assert_eq!(name.number(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_trace_has_its_name_when_it_is_whole() {
        let folder = folder("whole");
        let path = folder.join("run.jsonl");
        let mut series = Series::open(Some(&path), SystemTime::now()).unwrap();
        let (first, mut output) = series.begin("error").unwrap();
        output.write_all(b"one\n").unwrap();
        assert_eq!(listed(&folder), ["run-1-error.jsonl.part", "run.segments"]);
        assert_eq!(series.finish(first, output).unwrap(), folder.join("run-1-error.jsonl"));
        let (abandoned, _) = series.begin("xid").unwrap();
        series.abandon(abandoned);
        assert_eq!(listed(&folder), ["run-1-error.jsonl", "run.segments"]);
        let refused = Series::open(Some(&path), SystemTime::now()).err().unwrap().to_string();
        assert!(refused.contains("another recording"), "{refused}");
        std::fs::write(folder.join("run.segments/7"), "left").unwrap();
        std::mem::drop(series);
        std::fs::write(folder.join("run-9-end.jsonl.part"), "left").unwrap();
        std::fs::write(folder.join("run-5-end.jsonl"), "whole").unwrap();
        let mut next = Series::open(Some(&path), SystemTime::now()).unwrap();
        assert_eq!(next.begin("end").unwrap().0.number, 6, "it continues the earlier numbers");
        assert_eq!(std::fs::read(folder.join("run-1-error.jsonl")).unwrap(), b"one\n");
        assert!(!folder.join("run-9-end.jsonl.part").exists());
        std::mem::drop(next);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_oldest_are_deleted_and_the_newest_stays() {
        let folder = folder("keep");
        let mut series = Series::open(Some(&folder.join("run.jsonl")), SystemTime::now()).unwrap();
        std::fs::write(folder.join("run-x.jsonl"), vec![1; 100_000]).unwrap();
        for _ in 0..12 {
            let (one, mut output) = series.begin("end").unwrap();
            output.write_all(&[b'x'; 8192]).unwrap();
            series.finish(one, output).unwrap();
        }
        assert_eq!(series.keep(20_000).unwrap(), 10);
        assert_eq!(listed(&folder), ["run-11-end.jsonl", "run-12-end.jsonl", "run-x.jsonl", "run.segments"]);
        assert_eq!(series.keep(1).unwrap(), 1);
        assert_eq!(series.keep(1).unwrap(), 0, "the newest stays");
        std::mem::drop(series);
        assert_eq!(listed(&folder), ["run-12-end.jsonl", "run-x.jsonl"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
