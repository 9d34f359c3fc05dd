//! `gpurec dump`: asks a running flight recorder for a dump (its end is `ear`). In: a PID, or none. Out: the path of the
//! dump. What answers may be anything that a user of this machine runs: it is asked only if it can be a recorder that
//! this user may ask, its answer is bounded in size and time, and the path counts only after a look at the file.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;

use super::ear::{ERROR, OK};
use super::kept;
use super::sockets::{self, Name};
use crate::process::proc;
use crate::ui;
use gpurec_analysis::Usage;
use gpurec_trace::Body;

/// The longest answer: a path, or a sentence.
const LONGEST: usize = 8 << 10;
/// How long the recorder may take to accept the request.
const ACCEPT: Duration = Duration::from_secs(60);
/// How long it may take to write the dump.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest first line of a dump, which has the command line of the recording.
const HEADER: u64 = 16 << 20;

/// Waits until the recorder has written a dump, and prints its path.
pub fn ask(pid: Option<u32>) -> Result<u8> {
    let pid = match pid {
        Some(pid) => pid,
        None => only_one(&Vec::from_iter(recorders()?))?,
    };
    let path = request(pid)?;
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        writeln!(out, "{}", ui::clean(&path.to_string_lossy()))?;
    } else {
        out.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
    }
    Ok(0)
}

/// The recorders that this user may ask, by PID.
fn recorders() -> Result<BTreeSet<u32>> {
    let may_be_one = |name: &&Name| {
        let uid = proc::effective_uid(name.pid).ok();
        uid.is_some_and(|uid| may_ask(uid) && check(name.pid, uid).is_ok()) && name.may_be_of_its_process()
    };
    let names = sockets::listed()?;
    Ok(names.iter().filter(may_be_one).map(|name| name.pid).collect())
}

fn only_one(recorders: &[u32]) -> Result<u32> {
    match recorders {
        [one] => Ok(*one),
        [] if geteuid().is_root() => bail!(
            "no flight recorder runs here: start one with --last, as in sudo gpurec --all --last 60s --dump-on exit"
        ),
        [] => bail!(
            "no flight recorder of yours runs here: start one with --last, as in sudo gpurec --all --last 60s --dump-on exit, or ask that of another user as root, by `sudo env -u SUDO_UID gpurec dump`"
        ),
        several => {
            let all: Vec<String> = several.iter().take(10).map(u32::to_string).collect();
            bail!(Usage(format!(
                "several flight recorders run (PID {}): name one, as in gpurec dump {}",
                all.join(", "),
                several[0]
            )))
        }
    }
}

/// Root may ask every recorder, and a user those that the user started.
fn may_ask(uid: u32) -> bool {
    geteuid().is_root() || geteuid().as_raw() == uid
}

/// Refuses what is no recorder, as far as this user can see. Linux does not show the program of a real recorder to its
/// user, so without root any process of the user's own may be one.
fn check(pid: u32, uid: u32) -> Result<()> {
    let is_trusted = uid == 0 || uid == geteuid().as_raw();
    match runs_gpurec(pid) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_trusted => Ok(()),
        Ok(false) => bail!(
            "process {pid} listens where a flight recorder would, but runs another program than this gpurec: ask a real recorder with the gpurec that started it"
        ),
        Err(error) => bail!(
            "cannot see whether process {pid}, of the user {uid}, is a flight recorder ({error}): ask as the user who started it"
        ),
    }
}

/// Whether the program is this one, or a gpurec that only root can have put there.
fn runs_gpurec(pid: u32) -> io::Result<bool> {
    let program = fs::metadata(format!("/proc/{pid}/exe"))?;
    let own = fs::metadata("/proc/self/exe")?;
    let is_this = (program.dev(), program.ino()) == (own.dev(), own.ino());
    let is_roots = program.uid() == 0 && program.mode() & 0o022 == 0;
    Ok(is_this || (is_roots && proc::program_name(&proc::exe_path(pid)?) == "gpurec"))
}

fn request(pid: u32) -> Result<PathBuf> {
    let (stream, uid) = sockets::connected(pid, ACCEPT)?;
    if uid != 0 && !may_ask(uid) {
        bail!(
            "process {pid} belongs to another user, and only that user and root may ask it for a dump: root asks by `sudo env -u SUDO_UID gpurec dump {pid}`"
        );
    }
    check(pid, uid)?;
    let Some(answer) = answer(&stream, PATIENCE).with_context(|| format!("recorder {pid}"))? else {
        bail!("recorder {pid} ended before it had written the dump: look for the dump of its end");
    };
    if let Some(why) = answer.strip_prefix(ERROR) {
        bail!("recorder {pid}: {}", ui::clean(&String::from_utf8_lossy(why)));
    }
    let Some(path) = answer.strip_prefix(OK) else {
        bail!("recorder {pid} sent what is no answer: look for its dump where it records to");
    };
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    examine(&seen_by(pid, &path), &path, uid).map_err(|why| {
        let shown = ui::name(&path);
        anyhow::anyhow!(
            "recorder {pid} says that it wrote {shown}, but {why}: look for the dump as the user who started the recorder, or in its container"
        )
    })?;
    Ok(path)
}

/// The line that comes within this time, without its line feed. None: the other end closed before it.
fn answer(mut stream: &UnixStream, patience: Duration) -> Result<Option<Vec<u8>>> {
    let until = Instant::now() + patience;
    let (mut answer, mut bytes) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!(
                "it has not written the dump within {} s: it may still write it; look where it records to",
                patience.as_secs()
            );
        }
        stream.set_read_timeout(Some(left))?;
        let read = match stream.read(&mut bytes) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error).context("cannot read its answer"),
        };
        answer.extend_from_slice(bytes.get(..read).unwrap_or_default());
        if let Some(end) = memchr::memchr(b'\n', &answer) {
            answer.truncate(end);
            return Ok(Some(answer));
        }
        if read == 0 {
            return Ok(None);
        }
        if answer.len() > LONGEST {
            bail!("it sent what is no answer: look for its dump where it records to");
        }
    }
}

/// Where this process finds a file of the recorder's, which may be in a mount namespace of its own, as a service is.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let relative = path.strip_prefix("/").unwrap_or(path);
    // Only root may look.
    if fs::metadata(&root).is_ok() { root.join(relative) } else { path.to_owned() }
}

/// Checks that `seen` is a trace that the recorder's user (`uid`) or root owns, and that `path` is the same file. The
/// error is a clause.
fn examine(seen: &Path, path: &Path, uid: u32) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("that is no absolute path".to_owned());
    }
    let unopened = |error: io::Error| format!("it cannot be opened ({error})");
    // O_PATH: to open a device can start it (a watchdog), and `seen` is what a liar chose.
    let place = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(seen);
    let place = place.map_err(unopened)?;
    let about = place.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("that is no regular file".to_owned());
    }
    if about.uid() != uid && about.uid() != 0 {
        return Err("that belongs to another user".to_owned());
    }
    // Opens what was examined, not what has its name now.
    let file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(unopened)?;
    if !begins_as_trace(file).unwrap_or(false) {
        return Err("that is no trace".to_owned());
    }
    match fs::symlink_metadata(path) {
        Ok(here) if (here.dev(), here.ino()) == (about.dev(), about.ino()) => Ok(()),
        _ => Err("another file, or none, has that name here".to_owned()),
    }
}

fn begins_as_trace(file: File) -> io::Result<bool> {
    let mut file = BufReader::new(file);
    let is_packed = file.fill_buf()?.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes());
    let mut lines: Box<dyn BufRead> = if is_packed {
        Box::new(BufReader::new(zstd::stream::read::Decoder::with_buffer(file)?.take(HEADER)))
    } else {
        Box::new(file.take(HEADER))
    };
    let mut first = Vec::new();
    lines.read_until(b'\n', &mut first)?;
    let line = kept::read(first.strip_suffix(b"\n").unwrap_or(&first));
    Ok(line.is_some_and(|line| matches!(line.body, Body::Header(_))))
}

#[cfg(test)]
mod tests {
    use super::super::ear::Ear;
    use super::*;
    use gpurec_trace::{Line, LineWriter};
    use nix::errno::Errno;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use nix::sys::stat::Mode;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_only_recorder_needs_no_name() {
        assert_eq!(only_one(&[3]).unwrap(), 3);
        let several = only_one(&[3, 4]).unwrap_err().to_string();
        assert!(several.contains("PID 3, 4") && only_one(&[]).is_err(), "{several}");
    }

    fn trace() -> Vec<u8> {
        let mut writer = LineWriter::new(Vec::new());
        writer.write(&Line { event_id: 0, ts_ns: 0, body: Body::Header(Box::default()) }).unwrap();
        writer.into_inner().unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gpurec-ask-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_request_is_answered_with_the_path() {
        let folder = folder("path");
        let dump = folder.join("a-1-dump.jsonl");
        fs::write(&dump, trace()).unwrap();
        let mut ear = Ear::listen(geteuid().as_raw()).unwrap();
        let own = std::process::id();
        let asks = std::thread::spawn(move || [request(own), request(own), request(own)]);
        let results = [Ok(dump.clone()), Err("no\nroom".to_owned()), Ok("/dev/zero".into())];
        for result in results {
            let cause = loop {
                match ear.take() {
                    Some(cause) => break cause,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            assert_eq!(cause.event, "dump");
            cause.reply.unwrap()(result);
        }
        let [path, error, forged] = asks.join().unwrap();
        assert_eq!(path.unwrap(), dump);
        assert!(error.unwrap_err().to_string().contains("no"));
        assert!(forged.unwrap_err().to_string().contains("/dev/zero, but that is no regular file"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = folder("fifo");
        let fifo = folder.join("a-1-dump.jsonl");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        watch.add_watch(&fifo, AddWatchFlags::IN_OPEN).unwrap();
        assert!(examine(&fifo, &fifo, geteuid().as_raw()).unwrap_err().contains("no regular file"));
        assert_eq!(watch.read_events().unwrap_err(), Errno::EAGAIN, "it was opened");
        fs::remove_dir_all(folder).unwrap();
    }

    /// A liar sends without end, nothing at all, or a byte now and then.
    #[test]
    fn an_answer_is_bounded_in_size_and_time() {
        let of = |lie: fn(UnixStream), patience| {
            let (own, other) = UnixStream::pair().unwrap();
            let liar = std::thread::spawn(move || lie(other));
            let said = answer(&own, patience);
            drop(own);
            liar.join().unwrap();
            said
        };
        let (long, short) = (Duration::from_secs(600), Duration::from_millis(100));
        let endless = |mut to: UnixStream| while to.write_all(&[b'x'; 512]).is_ok() {};
        assert!(of(endless, long).unwrap_err().to_string().contains("is no answer"));
        let silent = |mut to: UnixStream| assert_eq!(to.read(&mut [0]).unwrap_or(0), 0);
        assert!(of(silent, short).unwrap_err().to_string().contains("has not written"));
        let slow = |mut to: UnixStream| {
            while to.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        assert!(of(slow, short).unwrap_err().to_string().contains("has not written"));
        assert_eq!(of(|mut to| to.write_all(b"ok /a\nmore").unwrap(), long).unwrap().unwrap(), b"ok /a");
        assert_eq!(of(|mut to| to.write_all(b"ok /a").unwrap(), long).unwrap(), None);
    }

    #[test]
    fn a_path_counts_after_a_look_at_the_file() {
        let (folder, own) = (folder("look"), geteuid().as_raw());
        let path = |name: &str| folder.join(name);
        fs::write(path("plain"), trace()).unwrap();
        fs::write(path("packed"), zstd::stream::encode_all(&trace()[..], 1).unwrap()).unwrap();
        for name in ["plain", "packed"] {
            examine(&path(name), &path(name), own).unwrap();
        }
        fs::write(path("text"), "root:x:0:0\n").unwrap();
        let bomb = zstd::stream::encode_all(io::repeat(0).take(64 << 20), 1).unwrap();
        fs::write(path("bomb"), bomb).unwrap();
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        symlink("plain", path("link")).unwrap();
        for (name, why) in [
            ("text", "no trace"),
            ("bomb", "no trace"),
            ("fifo", "no regular file"),
            ("link", "no regular file"),
            ("none", "cannot be opened"),
            (".", "no regular file"),
        ] {
            let said = examine(&path(name), &path(name), own).unwrap_err();
            assert!(said.contains(why), "{name}: {said}");
        }
        assert!(examine(&path("plain"), &path("packed"), own).unwrap_err().contains("another file"));
        assert!(examine(Path::new("plain"), Path::new("plain"), own).is_err());
        if own == 0 {
            std::os::unix::fs::chown(path("plain"), Some(65_534), None).unwrap();
            assert!(examine(&path("plain"), &path("plain"), 0).unwrap_err().contains("another user"));
            examine(&path("plain"), &path("plain"), 65_534).unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
