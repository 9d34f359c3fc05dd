//! A series of traces with one name: the dumps of the flight recorder. In: the name that -o gives, or the default;
//! events. Out: `NAME-N-EVENT.jsonl`, each under a temporary name until it is whole; the oldest are deleted beyond a
//! limit. Also a folder `NAME.segments` beside them for what is not written out yet.
//!
//! The folder is locked while it is open, so a second recording of that name is refused. Others may make names beside
//! it: what is not a regular file of the user who records is never read, counted or deleted (`own`). Call `Series::open`
//! with the rights of the user who named the path; all later calls stay within the folder that it opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::own::{self, each_name};
use super::{FOLDER, FOLDER_FLAGS, OpenError, Output, link_latest, lock, no_folder, refused, traces_folder};
use gpurec_trace::time;

const SEGMENTS: &str = ".segments";
const PART: &str = ".part";
/// The most digits in the number of a dump. No recorder writes so many; a name with more is not one of a dump.
const DIGITS: usize = 15;
/// How many numbers are tried in a row where others have taken the names.
const TRIES: u64 = 1024;
/// How far the others may lie from these.
const FAR: u128 = 10_000_000_000_000;

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
    event: String,
    file: Option<File>,
    /// Its temporary name.
    name: OsString,
}

/// A trace of the series that this user wrote.
struct Own<'a> {
    number: u64,
    is_whole: bool,
    bytes: u64,
    name: &'a OsStr,
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
        let is_number = number.len() <= DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
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
                let folder = traces_folder(Path::new("."), &shown)?;
                (folder, shown, format!("trace_{}.jsonl", time::stamp(now)).into())
            }
        };
        let shown = shown.strip_prefix(".").map_or(shown.clone(), Path::to_owned);
        let name = Name::of(&file);
        let path = shown.join(&file);
        let segments = locked_folder(&folder, &name.segments(), &shown, &path)?;
        let folder = Arc::new(folder);
        let mut series = Series { folder, shown, name, is_default: given.is_none(), segments, next: 1 };
        series.tidy().map_err(|errno| refused(&path, errno))?;
        Ok(series)
    }

    /// Removes what a killed recording of this name left, and continues the numbers of its dumps.
    fn tidy(&mut self) -> nix::Result<()> {
        own::remove_segments(&self.segments);
        let (mut next, mut parts) = (self.next, Vec::new());
        self.each_own(|own| match own.is_whole {
            true => next = next.max(own.number + 1),
            false => parts.push(own.name.to_owned()),
        })?;
        self.next = next;
        for part in parts {
            unlinkat(&*self.folder, part.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        Ok(())
    }

    fn each_own(&self, mut take: impl FnMut(Own)) -> nix::Result<()> {
        each_name(&*self.folder, |name| {
            let Some((number, is_whole)) = self.name.number(name) else { return };
            let Some(about) = own::examine(&*self.folder, name) else { return };
            let bytes = u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(512);
            take(Own { number, is_whole, bytes, name });
        })
    }

    /// A folder for what is not written out yet.
    pub fn segments(&self) -> io::Result<OwnedFd> {
        self.segments.try_clone()
    }

    /// Begins the next trace, with the first number whose names are free.
    pub fn begin(&mut self, event: &str) -> io::Result<(Part, Output)> {
        for number in numbers(self.next) {
            let name = self.name.dump(number, event);
            if fstatat(&*self.folder, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
                continue;
            }
            let file = match super::create(&self.folder, &part(&name)) {
                Err(Errno::EEXIST) => continue,
                created => created?,
            };
            self.next = number + 1;
            let output = Output::file(file, self.shown.join(&name), None)
                .map_err(|error| io::Error::other(error.to_string()))?;
            let file = output.regular();
            return Ok((Part { number, event: event.to_owned(), file, name: part(&name) }, output));
        }
        Err(Errno::EEXIST.into())
    }

    /// Gives a whole trace its final name.
    pub fn finish(&mut self, whole: Part, output: Output) -> io::Result<PathBuf> {
        let Part { number, event, file, name: temporary } = whole;
        let written = output.finish().and_then(|()| file.map_or(Ok(()), |file| file.sync_all()));
        let named = written.and_then(|()| Ok(self.rename(&temporary, number, &event)?));
        let name = named.inspect_err(|_| self.remove(&temporary))?;
        if self.is_default {
            // The trace is usable without the link.
            let _ = link_latest(&self.folder, &name.to_string_lossy());
        }
        Ok(self.shown.join(&name))
    }

    /// Another user may have taken the name in the meantime: then it gets a later number.
    fn rename(&mut self, temporary: &OsStr, number: u64, event: &str) -> nix::Result<OsString> {
        for number in numbers(number) {
            let name = self.name.dump(number, event);
            let folder = &*self.folder;
            let flags = RenameFlags::RENAME_NOREPLACE;
            match renameat2(folder, temporary, folder, name.as_os_str(), flags) {
                Err(Errno::EEXIST) => continue,
                // The file system does not support this flag.
                Err(Errno::EINVAL) => match rename_by_link(folder, temporary, &name) {
                    Err(Errno::EEXIST) => continue,
                    renamed => renamed?,
                },
                renamed => renamed?,
            }
            self.next = self.next.max(number + 1);
            return Ok(name);
        }
        Err(Errno::EEXIST)
    }

    fn remove(&self, name: &OsStr) {
        let _ = unlinkat(&*self.folder, name, UnlinkatFlags::NoRemoveDir);
    }

    /// Removes a trace that could not be written.
    pub fn abandon(&self, part: Part) {
        self.remove(&part.name);
    }

    /// Deletes the oldest traces of the series until the others take no more than `most` bytes. The newest stays.
    /// Returns the number of deleted traces.
    pub fn keep(&self, most: u64) -> io::Result<u64> {
        let mut all = Vec::new();
        self.each_own(|own| {
            if own.is_whole {
                all.push((own.number, own.bytes, own.name.to_owned()));
            }
        })?;
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

/// As renameat2() with RENAME_NOREPLACE: renameat() would replace a file that another user made meanwhile.
fn rename_by_link(folder: &impl AsFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    linkat(folder, from, folder, to, AtFlags::empty())?;
    unlinkat(folder, from, UnlinkatFlags::NoRemoveDir)
}

impl Drop for Series {
    fn drop(&mut self) {
        // The next recording of this name removes what this one cannot.
        own::remove_segments(&self.segments);
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

/// The numbers from `next` on, and then, because others can take any number of names, some that nobody can foresee.
fn numbers(next: u64) -> impl Iterator<Item = u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let far = next + (now.as_nanos() % FAR) as u64;
    (next..next + TRIES).chain(far..far + TRIES)
}

fn part(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(PART);
    name
}

/// The folder NAME.segments: a new one, or one that a recording of this user left.
fn locked_folder(parent: &OwnedFd, name: &OsStr, shown: &Path, path: &Path) -> Result<OwnedFd, OpenError> {
    match mkdirat(parent, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(refused(path, errno)),
    }
    let folder = own::open_folder(parent, name).map_err(|why| {
        OpenError(format!(
            "cannot keep the recording's segments in {}: {why}; remove it, or give -o a name in a folder of your own",
            shown.join(name).display()
        ))
    })?;
    lock(&folder).map_err(|errno| refused(path, errno))?;
    Ok(folder)
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
        let [left, users] = ["run.segments/00000007.zst", "run.segments/7"].map(|name| folder.join(name));
        [&left, &users].iter().for_each(|path| std::fs::write(path, "left").unwrap());
        std::mem::drop(series);
        assert!(!left.exists() && users.exists(), "only segments are removed");
        std::fs::write(folder.join("run-9-end.jsonl.part"), "left").unwrap();
        std::fs::write(folder.join("run-5-end.jsonl"), "whole").unwrap();
        let mut next = Series::open(Some(&path), SystemTime::now()).unwrap();
        assert_eq!(next.begin("end").unwrap().0.number, 6, "it continues the earlier numbers");
        assert_eq!(std::fs::read(folder.join("run-1-error.jsonl")).unwrap(), b"one\n");
        assert!(!folder.join("run-9-end.jsonl.part").exists());
        std::mem::drop(next);
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn refused_in(folder: &Path) -> String {
        let refused = Series::open(Some(&folder.join("run.jsonl")), SystemTime::now());
        refused.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_folder_of_segments_is_of_this_user_alone() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = folder("taken");
        let taken = folder.join("run.segments");
        nix::unistd::mkfifo(&taken, Mode::from_bits_truncate(0o600)).unwrap();
        assert!(refused_in(&folder).contains("it is not a folder; remove it"), "{}", refused_in(&folder));
        std::fs::remove_file(&taken).unwrap();
        std::fs::create_dir(folder.join("elsewhere")).unwrap();
        symlink("elsewhere", &taken).unwrap();
        assert!(refused_in(&folder).contains("it is not a folder"));
        std::fs::remove_file(&taken).unwrap();
        std::fs::create_dir(&taken).unwrap();
        std::fs::write(taken.join("00000001.zst"), "kept").unwrap();
        for mode in [0o720, 0o702, 0o1777] {
            std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(refused_in(&folder).contains("others may write to it"));
        }
        std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(0o755)).unwrap();
        if nix::unistd::geteuid().is_root() {
            chown(&taken, Some(65_534), None).unwrap();
            assert!(refused_in(&folder).contains("it belongs to another user"));
            chown(&taken, Some(0), None).unwrap();
        }
        assert_eq!(listed(&taken), ["00000001.zst"]);
        let series = Series::open(Some(&folder.join("run.jsonl")), SystemTime::now()).unwrap();
        assert!(listed(&taken).is_empty(), "a killed recording left it");
        std::mem::drop(series);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Files of others, links and numbers beyond all bounds neither stop a recording nor are deleted by it.
    #[test]
    fn names_that_others_made_are_left_alone() {
        use std::os::unix::fs::{chown, symlink};
        let folder = folder("others");
        let path = folder.join("run.jsonl");
        let mut theirs = vec!["run-18446744073709551615-end.jsonl", "run-9999999999999999-end.jsonl"];
        if nix::unistd::geteuid().is_root() {
            theirs.extend(["run-1-end.jsonl", "run-2-end.jsonl.part", "run-40-end.jsonl"]);
        }
        for name in &theirs {
            std::fs::write(folder.join(name), vec![b'x'; 100_000]).unwrap();
            if nix::unistd::geteuid().is_root() {
                chown(folder.join(name), Some(65_534), None).unwrap();
            }
        }
        symlink("/nowhere", folder.join("run-3-end.jsonl")).unwrap();
        nix::unistd::mkfifo(&folder.join("run-50-end.jsonl"), Mode::from_bits_truncate(0o600)).unwrap();
        theirs.extend(["run-3-end.jsonl", "run-50-end.jsonl"]);
        let mut series = Series::open(Some(&path), SystemTime::now()).unwrap();
        let mut write = |meanwhile: Option<&str>| {
            let (one, mut output) = series.begin("end").unwrap();
            output.write_all(&[b'x'; 8192]).unwrap();
            if let Some(name) = meanwhile {
                std::fs::write(folder.join(name), "taken").unwrap();
            }
            let name = series.finish(one, output).unwrap();
            name.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let own = [write(None), write(Some("run-5-end.jsonl")), write(None)];
        if nix::unistd::geteuid().is_root() {
            assert_eq!(own, ["run-4-end.jsonl", "run-6-end.jsonl", "run-7-end.jsonl"]);
        }
        series.keep(1).unwrap();
        std::mem::drop(series);
        let left = listed(&folder);
        assert!(theirs.iter().all(|name| left.iter().any(|one| one == name)), "{left:?}");
        assert!(left.contains(&own[2]) && !left.contains(&own[0]), "{left:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_dump_finds_a_name_where_others_have_taken_the_next_ones() {
        let folder = folder("many");
        (1..=TRIES).for_each(|number| {
            std::os::unix::fs::symlink("x", folder.join(format!("run-{number}-end.jsonl"))).unwrap();
        });
        let mut series = Series::open(Some(&folder.join("run.jsonl")), SystemTime::now()).unwrap();
        let (whole, output) = series.begin("end").unwrap();
        let path = series.finish(whole, output).unwrap();
        let (number, is_whole) = series.name.number(path.file_name().unwrap()).unwrap();
        assert!(number > TRIES && is_whole, "{number}");
        std::mem::drop(series);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// What a file system without RENAME_NOREPLACE (NFS) gets.
    #[test]
    fn a_rename_by_link_replaces_no_file() {
        let folder = folder("link");
        let fd = openat(AT_FDCWD, &folder, FOLDER_FLAGS, Mode::empty()).unwrap();
        let rename = |to: &str| rename_by_link(&fd, OsStr::new("part"), OsStr::new(to));
        std::fs::write(folder.join("part"), "ours").unwrap();
        std::fs::write(folder.join("taken"), "theirs").unwrap();
        std::os::unix::fs::symlink("taken", folder.join("link")).unwrap();
        assert_eq!([rename("taken"), rename("link")], [Err(Errno::EEXIST); 2]);
        assert_eq!(std::fs::read(folder.join("taken")).unwrap(), b"theirs");
        rename("free").unwrap();
        assert_eq!(std::fs::read(folder.join("free")).unwrap(), b"ours");
        assert_eq!(listed(&folder), ["free", "link", "taken"]);
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
