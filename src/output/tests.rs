use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::process::identity::Identity;
use crate::process::rights::as_caller;
use gpurec_trace::{Body, Finish, Header, Line, LineWriter, open as read};

/// A folder for one test, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpurec-output-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn is_root() -> bool {
    geteuid().is_root()
}

fn error(path: &Path) -> String {
    match given_file(path) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[test]
fn the_default_file_is_new_and_latest_points_to_it() {
    let folder = Folder::new();
    let first = default_file(&folder.0, at(1_000_000_000)).unwrap();
    let second = default_file(&folder.0, at(1_000_000_000)).unwrap();
    let latest = folder.0.join("traces/latest");
    let (first, second) = (first.path.unwrap(), second.path.unwrap());
    let name = first.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("trace_2001090") && name.ends_with(".jsonl"), "{name}");
    assert_eq!(name.len(), "trace_YYYYMMDD_HHMMSS.jsonl".len());
    assert!(second.to_str().unwrap().ends_with("_1.jsonl"));
    let target = fs::read_link(&latest).unwrap();
    assert_eq!(target.as_os_str(), second.file_name().unwrap());
    assert_eq!(fs::read_dir(folder.0.join("traces")).unwrap().count(), 3);
}

#[test]
fn what_is_created_is_for_its_owner_alone() {
    let folder = Folder::new();
    let output = default_file(&folder.0, at(0)).unwrap();
    let given = given_file(&folder.0.join("t.jsonl")).unwrap();
    for path in [output.path.unwrap(), given.path.unwrap()] {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
    }
}

/// Like the recording session: opens the output with another user's rights.
#[test]
fn a_caller_gets_what_they_could_open_themselves() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let (open, closed, link) = (folder.0.join("open"), folder.0.join("closed"), folder.0.join("open/link"));
    for (path, mode) in [(&folder.0, 0o755), (&open, 0o777), (&closed, 0o755)] {
        let _ = fs::create_dir(path);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(closed.join("t"), "old").unwrap();
    symlink("../closed/t", &link).unwrap();
    fs::hard_link(closed.join("t"), open.join("hard")).unwrap();
    let someone = Identity {
        uid: 65534,
        gid: 65533,
        groups: vec![65533],
        user: "someone".into(),
        home: "/".into(),
        shell: "/bin/sh".into(),
    };
    let try_it = |path: &Path| as_caller(&someone, || given_file(path).map(drop)).unwrap();
    for path in [closed.join("t"), closed.join("new"), link.clone(), open.join("hard")] {
        let said = try_it(&path).unwrap_err().to_string();
        assert!(said.contains("you may not write"), "{said}");
        // A link that the user made gives access to no other file.
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
    }
    // The effective user id alone would let root write this one; CAP_SYS_PTRACE would give access to these.
    for path in ["/proc/sys/kernel/core_pattern", "/proc/1/root/tmp/t", "/proc/1/cwd/t"] {
        assert!(try_it(Path::new(path)).is_err(), "{path}");
    }
    assert_eq!(fs::read(closed.join("t")).unwrap(), b"old");
    try_it(&open.join("new")).unwrap();
    let about = fs::metadata(open.join("new")).unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (65534, 65533, 0o600));
    assert!(geteuid().is_root(), "the other threads are who they were");
}

#[test]
fn a_file_that_exists_is_emptied_and_keeps_its_owner_and_mode() {
    let folder = Folder::new();
    let path = folder.0.join("t.jsonl");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&path).unwrap();
    let mut output = given_file(&path).unwrap();
    output.write_all(b"new\n").unwrap();
    output.finish().unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new\n");
    assert_eq!((before.ino(), before.uid(), before.mode()), (after.ino(), after.uid(), after.mode()));
}

#[test]
fn only_links_of_root_and_of_ones_own_are_followed() {
    let folder = Folder::new();
    let (target, link) = (folder.0.join("target"), folder.0.join("link"));
    fs::write(&target, "old").unwrap();
    symlink("target", &link).unwrap();
    given_file(&link).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"");
    if is_root() {
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert!(error(&link).contains("symbolic link"));
        assert_eq!(fs::read(&target).unwrap(), b"old");
    }
}

/// A trace in another's file would be the other's to read, and another's FIFO would make gpurec wait.
#[test]
fn what_others_made_where_all_may_make_files_is_not_written() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let (file, fifo) = (folder.0.join("t.jsonl"), folder.0.join("fifo"));
    fs::write(&file, "theirs").unwrap();
    nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o666)).unwrap();
    let mode = |mode| fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
    for path in [&file, &fifo] {
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        for shared in [0o1777, 0o777] {
            mode(shared);
            assert!(error(path).contains("another user made"), "{}", error(path));
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"theirs");
    let traces = folder.0.join("traces");
    fs::create_dir(&traces).unwrap();
    std::os::unix::fs::chown(&traces, Some(65534), None).unwrap();
    assert!(
        default_file(&folder.0, at(0)).is_err_and(|error| error.to_string().contains("another user made"))
    );
    mode(0o775);
    given_file(&file).unwrap();
    mode(0o1777);
    std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    given_file(&file).unwrap();
}

#[test]
fn a_folder_of_traces_behind_a_link_of_someone_else_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("elsewhere")).unwrap();
    symlink("elsewhere", folder.0.join("traces")).unwrap();
    // The path is relative to the link, not to the current folder.
    let here = folder.0.join("elsewhere");
    match default_file(&folder.0, at(0)) {
        Ok(_) => assert_eq!(fs::read_dir(&here).unwrap().count(), 2),
        Err(error) => panic!("{error}"),
    }
    if is_root() {
        let link = folder.0.join("traces");
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert!(default_file(&folder.0, at(0)).is_err());
    }
}

#[test]
fn latest_that_is_no_link_is_left_alone() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("traces")).unwrap();
    fs::write(folder.0.join("traces/latest"), "mine").unwrap();
    let output = default_file(&folder.0, at(0)).unwrap();
    assert!(output.warning.unwrap().contains("latest"));
    assert_eq!(fs::read(folder.0.join("traces/latest")).unwrap(), b"mine");
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new();
    let missing = error(&folder.0.join("no/t.jsonl"));
    assert!(missing.contains("does not exist; create it"), "{missing}");
    assert!(error(&folder.0).contains("is a folder"));
    fs::write(folder.0.join("file"), "").unwrap();
    assert!(error(&folder.0.join("file/t")).contains("is not a folder"));
    assert!(error(Path::new("/proc/t.jsonl")).contains("give -o"));
    assert_eq!(error(Path::new("/")), "/ is a folder; give -o the name of a file in it");
}

#[test]
fn a_file_that_a_recording_writes_is_refused_and_left_alone() {
    let folder = Folder::new();
    let path = folder.0.join("t.jsonl");
    let mut first = given_file(&path).unwrap();
    first.write_all(b"first\n").unwrap();
    symlink("t.jsonl", folder.0.join("link")).unwrap();
    for again in [&path, &folder.0.join("link")] {
        let said = error(again);
        assert!(
            said.contains("is being written by another recording; give each a file of its own"),
            "{said}"
        );
        assert!(["%p", "%h", "%r"].iter().all(|letter| said.contains(letter)), "{said}");
    }
    let default = default_file(&folder.0, at(0)).unwrap();
    assert!(error(default.path.as_ref().unwrap()).contains("another recording"));
    first.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first\n");
    given_file(&path).unwrap().finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    let _two = [given_file(Path::new("/dev/null")).unwrap(), given_file(Path::new("/dev/null")).unwrap()];
}

#[test]
fn only_descriptors_that_were_handed_down_are_written() {
    let folder = Folder::new();
    let file = File::create(folder.0.join("f")).unwrap();
    let fd = file.as_raw_fd();
    let path = PathBuf::from(format!("/dev/fd/{fd}"));
    let try_it = |path: &Path, from| open(Some(path), at(0), from);
    let said =
        |path: &Path, from| try_it(path, from).err().map(|error| error.to_string()).unwrap_or_default();
    // The number of one of gpurec's own descriptors.
    let none = said(&path, FdSources::default());
    assert!(none.contains("is not open here; give -o a file or a FIFO"), "{none}");
    let inherited = [fd];
    let from = FdSources { inherited: &inherited, caller: None };
    let mut output = try_it(&path, from).unwrap();
    assert_eq!((output.descriptor, &output.path), (Some(fd), &None));
    output.write_all(b"x").unwrap();
    output.finish().unwrap();
    assert_eq!(fs::read(folder.0.join("f")).unwrap(), b"x");
    let reader = File::open(folder.0.join("f")).unwrap();
    let (number, inherited) = (reader.as_raw_fd(), [reader.as_raw_fd()]);
    let from = FdSources { inherited: &inherited, caller: None };
    let said = said(Path::new(&format!("/dev/fd/{number}")), from);
    assert!(said.contains("is not open for writing"), "{said}");
}

/// sudo closes descriptors: only the pipes of the process that called it are opened, nothing else of that process.
#[test]
fn of_the_callers_descriptors_pipes_alone_are_written() {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let file = File::create("/dev/null").unwrap();
    let from = FdSources { inherited: &[], caller: Some(std::process::id()) };
    let named = |fd: RawFd| PathBuf::from(format!("/dev/fd/{fd}"));
    let mut output = open(Some(&named(writer.as_raw_fd())), at(0), from).unwrap();
    drop(writer);
    output.write_all(b"x").unwrap();
    output.finish().unwrap();
    let mut got = String::new();
    std::io::Read::read_to_string(&mut File::from(reader), &mut got).unwrap();
    assert_eq!(got, "x");
    let Err(error) = open(Some(&named(file.as_raw_fd())), at(0), from) else { panic!("it was opened") };
    assert!(error.to_string().contains("sudo closes what its caller had open"), "{error}");
}

#[test]
fn devices_are_written_as_they_are() {
    let mut output = given_file(Path::new("/dev/null")).unwrap();
    output.write_all(b"x\n").unwrap();
    output.finish().unwrap();
}

fn line(event_id: u64, body: Body<'static>) -> Line<'static> {
    Line { event_id, ts_ns: event_id, body }
}

#[test]
fn a_compressed_recording_that_was_killed_is_read_up_to_its_last_flush() {
    let folder = Folder::new();
    let path = folder.0.join("t.jsonl.zst");
    let mut writer = LineWriter::new(given_file(&path).unwrap());
    let header = Header::default();
    writer.write(&line(0, Body::Header(Box::new(header)))).unwrap();
    writer.flush().unwrap();
    let killed = folder.0.join("killed");
    fs::copy(&path, &killed).unwrap();
    writer.write(&line(1, Body::Finish(Box::default()))).unwrap();
    writer.into_inner().unwrap().finish().unwrap();

    let mut whole = read(&path).unwrap();
    assert!(whole.next().unwrap().is_some());
    assert!(matches!(
        whole.next().unwrap().unwrap().body,
        Body::Finish(f) if *f == Finish::default()
    ));
    assert!(whole.next().unwrap().is_none() && whole.notes().is_whole());

    let mut cut = read(&killed).unwrap();
    assert!(cut.next().unwrap().is_some());
    assert!(cut.next().unwrap().is_none());
    let notes = cut.notes().cut.as_ref().unwrap();
    assert!(notes.reason.contains("compressed"), "{notes:?}");
}
