//! Tests the guardian and the signals, each with a process that is really killed.

use super::super::terminal::Terminal;
use super::super::{guardian, proc, signals};
use super::live::Folder;
use super::{eventually, helper};
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::termios::{FlowArg, tcflow};

/// The process ids in a file.
struct List(std::os::fd::RawFd);

impl guardian::Stops for List {
    fn beat(&mut self) -> Option<guardian::Beat> {
        None
    }

    fn stopped(&mut self) -> Vec<u32> {
        let mut text = [0u8; 256];
        // SAFETY: our own buffer with its length.
        let n = unsafe { libc::pread(self.0, text.as_mut_ptr().cast(), text.len(), 0) };
        String::from_utf8_lossy(&text[..n.max(0) as usize])
            .split_whitespace()
            .filter_map(|p| p.parse().ok())
            .collect()
    }

    fn rescue(&mut self, _pid: u32) {}
    fn rescued(&mut self) {}
    fn silence(&mut self) {}
}

/// A stand-in for gpurec. Its guardian reads the stopped processes from a file through an inherited descriptor.
#[test]
#[ignore = "a helper process of the tests below"]
fn helper_guarded() {
    let list = fs::File::open(std::env::var_os("ROOM_LIST").expect("ROOM_LIST")).expect("the list");
    let (kept, _also_open) = (list.as_raw_fd(), fs::File::open("/proc/self/status"));
    let guardian = guardian::spawn(List(kept), None, &[kept]).expect("a guardian");
    let out = PathBuf::from(std::env::var_os("ROOM_OUT").expect("ROOM_OUT"));
    fs::write(out.with_extension("part"), guardian.pid().to_string()).expect("written");
    fs::rename(out.with_extension("part"), &out).expect("renamed");
    if std::env::var_os("ROOM_END").is_some() {
        guardian.dismiss(Vec::new());
        return;
    }
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// The same with a terminal that takes nothing once a view covers it.
#[test]
#[ignore = "a helper process of the tests below"]
fn helper_with_a_terminal() {
    let list = fs::File::open(std::env::var_os("ROOM_LIST").expect("ROOM_LIST")).expect("the list");
    let terminal = Terminal::open().expect("a terminal").expect("a view");
    let kept = list.as_raw_fd();
    let guardian = guardian::spawn(List(kept), Some(&terminal), &[kept]).expect("a guardian");
    let enter = terminal.cover().expect("covered");
    assert_eq!(terminal.write(enter).expect("written"), enter.len());
    tcflow(std::io::stdin(), FlowArg::TCOOFF).expect("suspended");
    let out = PathBuf::from(std::env::var_os("ROOM_OUT").expect("ROOM_OUT"));
    fs::write(out.with_extension("part"), guardian.pid().to_string()).expect("written");
    fs::rename(out.with_extension("part"), &out).expect("renamed");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

fn guarded(folder: &Folder, end: bool) -> (Child, u32) {
    let out = folder.0.join("pid");
    let mut command = helper("guard::helper_guarded");
    command.env("ROOM_LIST", folder.0.join("list")).env("ROOM_OUT", &out).stdout(Stdio::piped());
    if end {
        command.env("ROOM_END", "1");
    }
    let gpurec = command.spawn().expect("the helper");
    assert!(eventually(10, || out.exists()));
    let pid = fs::read_to_string(out).expect("its pid");
    (gpurec, pid.parse().expect("a pid"))
}

fn gone(pid: u32) -> bool {
    proc::stat(pid).map_or(true, |s| s.ended())
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: plain integers, a process of this test.
    unsafe { libc::kill(pid as i32, signal) };
}

#[test]
fn the_guardian_lets_stopped_processes_go() {
    let folder = Folder::new("guard");
    let mut target = Command::new("sleep").arg("60").spawn().expect("a target");
    let list = folder.file("list", 0o644, &format!("{}\n", target.id()));
    let (mut gpurec, guard) = guarded(&folder, false);

    let list = list.to_string_lossy().into_owned();
    let expected = ["/dev/null", "/dev/null", "/dev/null", &list, "socket"];
    // The guardian closes the descriptors that it inherited from this process.
    assert!(eventually(5, || descriptors(guard) == expected), "{:?}", descriptors(guard));
    let stat = proc::stat(guard).expect("its stat");
    assert_eq!(stat.comm, "gpurec-guard");
    // SAFETY: plain integers.
    assert_eq!(unsafe { libc::getsid(guard as i32) }, guard as i32);

    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        kill(guard, signal);
    }
    kill(target.id(), libc::SIGSTOP);
    let stopped = |pid| proc::stat(pid).is_ok_and(|s| s.stopped());
    assert!(eventually(5, || stopped(target.id())));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(stopped(target.id()) && !gone(guard));

    gpurec.kill().expect("killed");
    let begin = std::time::Instant::now();
    // A pipeline around gpurec ends at once, while the guardian still works.
    gpurec.wait_with_output().expect("end of its output");
    let pipeline = begin.elapsed();
    assert!(eventually(5, || !stopped(target.id())));
    let freed = begin.elapsed();
    // The guardian also undoes a stop that comes late.
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill(target.id(), libc::SIGSTOP);
    assert!(eventually(5, || stopped(target.id()) || gone(guard)));
    assert!(eventually(5, || !stopped(target.id())), "the second stop");
    assert!(eventually(5, || gone(guard)), "the guardian ends by itself");
    let ended = begin.elapsed();
    eprintln!("after SIGKILL: output ended {pipeline:?}, target freed {freed:?}, guardian gone {ended:?}");
    assert!(!gone(target.id()));
    target.kill().expect("killed");
    target.wait().expect("reaped");
}

#[test]
fn the_guardian_waits_for_no_terminal() {
    let folder = Folder::new("frozen");
    let mut target = Command::new("sleep").arg("60").spawn().expect("a target");
    folder.file("list", 0o644, &format!("{}\n", target.id()));
    let pty = nix::pty::openpty(None, None).expect("a pty");
    let out = folder.0.join("pid");
    let mut command = helper("guard::helper_with_a_terminal");
    command.env("ROOM_LIST", folder.0.join("list")).env("ROOM_OUT", &out).env("TERM", "xterm");
    let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    let mut gpurec = command.stdin(end()).stdout(end()).spawn().expect("the helper");
    drop(command);
    assert!(eventually(10, || out.exists()));
    let guard: u32 = fs::read_to_string(out).expect("its pid").parse().expect("a pid");
    kill(target.id(), libc::SIGSTOP);
    let stopped = |pid| proc::stat(pid).is_ok_and(|s| s.stopped());
    assert!(eventually(5, || stopped(target.id())));
    gpurec.kill().expect("killed");
    gpurec.wait().expect("reaped");
    assert!(eventually(5, || !stopped(target.id())), "resumed while the terminal takes nothing");
    assert!(!gone(guard), "the terminal is still to be restored");
    tcflow(&pty.slave, FlowArg::TCOON).expect("resumed");
    drop(pty.slave);
    let mut text = Vec::new();
    // It ends with EIO, once the guardian has ended too.
    let _ = fs::File::from(pty.master).read_to_end(&mut text);
    assert!(text.ends_with(b"\x1b[?1049l"), "{}", String::from_utf8_lossy(&text));
    assert!(eventually(5, || gone(guard)));
    target.kill().expect("killed");
    target.wait().expect("reaped");
}

#[test]
fn a_dismissed_guardian_ends_at_once_and_is_reaped() {
    let folder = Folder::new("dismiss");
    folder.file("list", 0o644, "");
    let (mut gpurec, guard) = guarded(&folder, true);
    assert!(eventually(5, || proc::stat(guard).is_err()));
    assert!(gpurec.wait().expect("reaped").success());
}

/// A stand-in for gpurec that logs its signals; with ROOM_HANG it never reads them itself.
#[test]
#[ignore = "a helper process of the tests below"]
fn helper_signalled() {
    let signals = signals::Signals::block().expect("signals");
    let out = PathBuf::from(std::env::var_os("ROOM_OUT").expect("ROOM_OUT"));
    let log = out.clone();
    let note = move |count: u32, signal: signals::Signal| {
        let old = fs::read_to_string(&log).unwrap_or_default();
        fs::write(&log, format!("{old}{count} {signal:?}\n")).expect("noted");
    };
    signals.watch(note).expect("a watcher");
    fs::write(out.with_extension("ready"), "").expect("written");
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

/// gpurec blocks the signals in its main thread before it starts others. libtest runs the helper in a second thread, so
/// here the mask is set before exec. Also resets ignored signals, however these tests are run.
fn block_in_every_thread() {
    // SAFETY: a set of our own stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

fn signalled(folder: &Folder, nohup: bool) -> (Child, PathBuf) {
    let out = folder.0.join("log");
    let mut command = helper("guard::helper_signalled");
    command.env("ROOM_OUT", &out);
    command.stdout(Stdio::null());
    // SAFETY: between fork and exec only calls that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            block_in_every_thread();
            if nohup {
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
            }
            Ok(())
        })
    };
    let child = command.spawn().expect("the helper");
    let ready = out.with_extension("ready");
    assert!(eventually(10, || ready.exists()));
    (child, out)
}

fn logged(out: &Path, text: &str) -> bool {
    fs::read_to_string(out).is_ok_and(|log| log.contains(text))
}

#[test]
fn the_third_signal_kills() {
    let folder = Folder::new("third");
    let (mut gpurec, out) = signalled(&folder, false);
    kill(gpurec.id(), libc::SIGINT);
    let first = "1 Interrupt { from_terminal: false }";
    assert!(eventually(5, || logged(&out, first)));
    kill(gpurec.id(), libc::SIGTERM);
    assert!(eventually(5, || logged(&out, "2 Terminate")));
    kill(gpurec.id(), libc::SIGINT);
    let status = gpurec.wait().expect("reaped");
    assert_eq!(status.signal(), Some(libc::SIGINT));
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let folder = Folder::new("nohup");
    let (mut gpurec, out) = signalled(&folder, true);
    for _ in 0..3 {
        kill(gpurec.id(), libc::SIGHUP);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!out.exists(), "no signal was seen");
    assert!(gpurec.try_wait().expect("asked").is_none());
    gpurec.kill().expect("killed");
    gpurec.wait().expect("reaped");
}

/// gpurec distinguishes a Ctrl-C that is typed at a terminal (a pseudo-terminal of this test) from a sent signal.
#[test]
fn a_typed_interrupt_is_known() {
    let folder = Folder::new("typed");
    let (mut master, mut slave) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: room for two descriptors; no name, no settings wanted.
    let rc = unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()) };
    assert_eq!(rc, 0);
    let out = folder.0.join("log");
    let mut command = helper("guard::helper_signalled");
    command.env("ROOM_OUT", &out);
    command.stdout(Stdio::null());
    // SAFETY: between fork and exec only calls that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            block_in_every_thread();
            libc::setsid();
            libc::ioctl(slave, libc::TIOCSCTTY, 0);
            Ok(())
        })
    };
    let mut gpurec = command.spawn().expect("the helper");
    assert!(eventually(10, || out.with_extension("ready").exists()));
    // SAFETY: one byte, Ctrl-C.
    unsafe { libc::write(master, c"\x03".as_ptr().cast(), 1) };
    let typed = "1 Interrupt { from_terminal: true }";
    assert!(eventually(5, || logged(&out, typed)));
    gpurec.kill().expect("killed");
    gpurec.wait().expect("reaped");
    for fd in [master, slave] {
        // SAFETY: ours, from above.
        unsafe { libc::close(fd) };
    }
}

/// The open files of a process, sorted; sockets without their numbers.
fn descriptors(pid: u32) -> Vec<String> {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut files: Vec<String> = open
        .flatten()
        .filter_map(|e| fs::read_link(e.path()).ok())
        .map(|p| p.to_string_lossy().into_owned())
        .map(|p| p.split(':').next().unwrap_or_default().to_string())
        .collect();
    files.sort();
    files
}
