//! Tests with real child processes of real users.

use super::super::identity::{self, Identity};
use super::super::launch::{Exit, GatedCommand, Launch, LaunchError, resolve, start};
use super::super::proc;
use super::{eventually, helper, root};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn nobody() -> Identity {
    let user = nix::unistd::User::from_name("nobody").expect("passwd").expect("nobody");
    Identity {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: vec![user.gid.as_raw(), 44],
        user: "nobody".into(),
        home: "/".into(),
        shell: "/bin/sh".into(),
    }
}

fn launch(words: &[&str]) -> Launch {
    Launch {
        command: words.iter().map(OsString::from).collect(),
        identity: Some(nobody()),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        ..Launch::default()
    }
}

fn run(launch: &Launch) -> Result<Exit, LaunchError> {
    Ok(start(launch)?.go()?.wait())
}

/// A directory that every user can read; removed at the end.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("room-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a scratch folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its mode");
        Folder(path)
    }

    pub fn file(&self, name: &str, mode: u32, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a scratch file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a shell line as the user nobody and returns its output.
fn shell(name: &str, line: &str) -> String {
    let folder = Folder::new(name);
    let out = folder.0.join("out");
    let line = format!("exec >{} 2>&1; {line}", out.display());
    run(&launch(&["sh", "-c", &line])).expect("the shell runs");
    fs::read_to_string(out).expect("what it printed")
}

#[test]
fn the_child_is_the_user_and_only_that() {
    if !root("the_child_is_the_user_and_only_that") {
        return;
    }
    let status = shell("status", "cat /proc/self/status");
    let field = |name: &str| -> Vec<String> {
        let line = status.lines().find(|l| l.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {status}"));
        line.split_whitespace().skip(1).map(String::from).collect()
    };
    assert_eq!(field("Uid:"), ["65534"; 4]);
    assert_eq!(field("Gid:"), ["65534"; 4]);
    assert_eq!(field("Groups:"), ["44", "65534"]);
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("SigBlk:"), ["0000000000000000"]);
    // Signals that gpurec's caller ignored stay ignored, except SIGPIPE (bit 12), which Rust ignores in this process.
    // The two signals that the C library uses for its threads (32 and 33) are as they were before it took them.
    const OF_THREADS: u64 = 3 << 31;
    let ours = proc::status_field(std::process::id(), "SigIgn").expect("our own");
    let ours = u64::from_str_radix(&ours, 16).expect("a mask");
    assert_ne!(ours & (1 << 12), 0);
    let theirs = u64::from_str_radix(&field("SigIgn:")[0], 16).expect("a mask");
    assert_eq!(theirs & !OF_THREADS, ours & !OF_THREADS & !(1 << 12));
}

#[test]
fn no_descriptor_leaks_and_kept_ones_pass() {
    if !root("no_descriptor_leaks_and_kept_ones_pass") {
        return;
    }
    // Opened without close-on-exec, as in a careless library.
    // SAFETY: a new descriptor, closed below.
    let fds: Vec<i32> =
        (0..2).map(|_| unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) }).collect();
    let folder = Folder::new("fds");
    let out = folder.0.join("out");
    let mut launch = launch(&["sh", "-c", &format!("ls /proc/$$/fd >{}", out.display())]);
    launch.keep_fds = vec![fds[1]];
    run(&launch).expect("runs");
    let mut expected = vec!["0".to_string(), "1".into(), "2".into(), fds[1].to_string()];
    let seen = fs::read_to_string(&out).expect("its output");
    let mut seen: Vec<String> = seen.lines().map(String::from).collect();
    seen.sort();
    expected.sort();
    // dash holds a copy of its standard output (10) while the redirection lasts.
    seen.retain(|fd| fd != "10");
    assert_eq!(seen, expected);
    for fd in fds {
        // SAFETY: ours, from above.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn same_group_and_session_as_ours() {
    if !root("same_group_and_session_as_ours") {
        return;
    }
    let gated = start(&launch(&["true"])).expect("starts");
    // SAFETY: plain integers.
    unsafe {
        assert_eq!(libc::getpgid(gated.pid() as i32), libc::getpgid(0));
        assert_eq!(libc::getsid(gated.pid() as i32), libc::getsid(0));
    }
}

#[test]
fn exit_status_and_signal() {
    if !root("exit_status_and_signal") {
        return;
    }
    let code = |words: &[&str]| run(&launch(words)).map(Exit::code).expect("runs");
    assert_eq!(code(&["true"]), 0);
    assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), 143);
    assert_eq!(code(&["sh", "-c", "kill -PIPE $$"]), 141);
    let mut running = start(&launch(&["sleep", "60"])).and_then(GatedCommand::go).expect("runs");
    assert_eq!(running.wait_for(0), None);
    running.signal(libc::SIGUSR1).expect("sent");
    assert_eq!(running.wait_for(5000), Some(Exit::Signal(libc::SIGUSR1)));
    assert_eq!(running.wait().code(), 138);
    assert!(running.signal(libc::SIGUSR1).is_err());
}

fn failure(launch: &Launch) -> (u8, String) {
    match run(launch) {
        Err(error) => (error.exit_code(), error.to_string()),
        Ok(exit) => panic!("it ran: {exit:?}"),
    }
}

#[test]
fn what_cannot_run_is_reported() {
    if !root("what_cannot_run_is_reported") {
        return;
    }
    let folder = Folder::new("refused");
    let reported = |path: &Path| failure(&launch(&[&path.to_string_lossy()]));
    let (code, text) = failure(&launch(&["no-such-command-here"]));
    assert_eq!((code, text.contains("no-such-command-here")), (127, true), "{text}");
    assert_eq!(reported(&folder.0.join("absent")).0, 127);

    let (code, text) = reported(&folder.file("plain", 0o644, "x"));
    assert_eq!((code, text.contains("chmod +x")), (126, true), "{text}");
    let (code, text) = reported(&folder.0);
    assert_eq!((code, text.contains("directory")), (126, true), "{text}");
    let (code, text) = reported(&folder.file("bad", 0o755, "#!/no/such/interpreter\n"));
    assert_eq!((code, text.contains("interpreter")), (126, true), "{text}");
    // Root could run this file, but the user cannot.
    let (code, text) = reported(&folder.file("private", 0o700, "#!/bin/sh\n"));
    assert_eq!((code, text.contains("nobody")), (126, true), "{text}");

    let mut nul = launch(&["true"]);
    nul.command.push("a\0b".into());
    assert_eq!(failure(&nul).0, 125);
    assert_eq!(failure(&Launch::default()).0, 125);
    assert_eq!(failure(&launch(&[""])).0, 127);
}

#[test]
fn look_up_has_the_users_rights_and_path() {
    if !root("look_up_has_the_users_rights_and_path") {
        return;
    }
    let folder = Folder::new("lookup");
    folder.file("tool", 0o700, "#!/bin/sh\nexit 1\n");
    let open = folder.0.join("open");
    fs::create_dir(&open).expect("a folder");
    let theirs = folder.file("open/tool", 0o755, "exit $(($1 + 1))\n");
    let path = OsString::from(format!("{}:{}", folder.0.display(), open.display()));
    let who = nobody();
    // Like execvp, skips the file that the user may not execute.
    let found = resolve(OsStr::new("tool"), Some(&path), Some(&who)).expect("found");
    assert_eq!(found, theirs);
    let found = resolve(OsStr::new("tool"), Some(&path), None).expect("found by root");
    assert_eq!(found, folder.0.join("tool"));
    let absent = resolve(OsStr::new("no-such-tool"), Some(&path), Some(&who));
    assert!(matches!(absent, Err(LaunchError::NotFound(_))));

    // /bin/sh runs a script without #!, with its arguments.
    let mut script = launch(&["tool", "4"]);
    script.env = vec![("PATH".into(), path)];
    let gated = start(&script).expect("starts");
    assert_eq!(gated.program(), theirs);
    assert_eq!(gated.go().expect("runs").wait(), Exit::Code(5));
}

#[test]
fn environment_is_exactly_what_was_given() {
    if !root("environment_is_exactly_what_was_given") {
        return;
    }
    let mut sleeper = launch(&["sleep", "60"]);
    sleeper.env.push(("VIRTUAL_ENV".into(), "/x y".into()));
    let mut running = start(&sleeper).and_then(GatedCommand::go).expect("runs");
    assert_eq!(proc::environ(running.pid()).expect("its environment"), sleeper.env);
    running.signal(libc::SIGKILL).expect("sent");
    assert_eq!(running.wait().code(), 137);
}

#[test]
fn a_gate_never_opened_leaves_no_process() {
    if !root("a_gate_never_opened_leaves_no_process") {
        return;
    }
    let folder = Folder::new("gate");
    let mark = folder.0.join("mark");
    let gated = start(&launch(&["touch", &mark.to_string_lossy()])).expect("starts");
    let pid = gated.pid();
    // The child still executes gpurec's own program, but already as the user.
    assert_eq!(proc::exe_path(pid).expect("exe"), std::env::current_exe().expect("ours"));
    assert_eq!(proc::effective_uid(pid).expect("uid"), 65534);
    // A stopped child ends too.
    // SAFETY: plain integers.
    unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
    drop(gated);
    assert!(proc::stat(pid).is_err(), "ended and reaped");
    assert!(!mark.exists());
}

#[test]
fn killed_at_the_gate_is_the_commands_own_end() {
    if !root("killed_at_the_gate_is_the_commands_own_end") {
        return;
    }
    let gated = start(&launch(&["true"])).expect("starts");
    // SAFETY: plain integers.
    unsafe { libc::kill(gated.pid() as i32, libc::SIGUSR1) };
    assert!(eventually(5, || proc::stat(gated.pid()).is_ok_and(|s| s.ended())));
    assert_eq!(gated.go().expect("as if run").wait().code(), 138);
}

/// A stand-in for gpurec: one child waits at the gate, another runs; then the test kills the stand-in.
#[test]
#[ignore = "a helper process of the test below"]
fn helper_dies_with_children() {
    let _gated = start(&launch(&["sleep", "60"])).expect("starts");
    let running = start(&launch(&["sleep", "61"])).and_then(GatedCommand::go).expect("runs");
    let out = std::env::var_os("ROOM_OUT").expect("ROOM_OUT");
    let text = format!("{} {}", _gated.pid(), running.pid());
    fs::write(Path::new(&out).with_extension("part"), text).expect("written");
    fs::rename(Path::new(&out).with_extension("part"), out).expect("renamed");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn gpurecs_death_ends_the_gated_and_spares_the_running() {
    if !root("gpurecs_death_ends_the_gated_and_spares_the_running") {
        return;
    }
    let folder = Folder::new("death");
    let out = folder.0.join("pids");
    let mut gpurec = helper("live::helper_dies_with_children")
        .env("ROOM_OUT", &out)
        .stdout(Stdio::null())
        .spawn()
        .expect("the helper");
    assert!(eventually(10, || out.exists()));
    let pids: Vec<u32> =
        fs::read_to_string(&out).expect("pids").split(' ').map(|p| p.parse().expect("a pid")).collect();
    assert!(proc::stat(pids[0]).is_ok());
    gpurec.kill().expect("killed");
    gpurec.wait().expect("reaped");
    let gone = |pid: u32| proc::stat(pid).map_or(true, |s| s.ended());
    assert!(eventually(5, || gone(pids[0])), "the gated child ends");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!gone(pids[1]), "the running command lives on");
    // SAFETY: plain integers; the process was just seen alive and is ours to end.
    unsafe { libc::kill(pids[1] as i32, libc::SIGKILL) };
}

#[test]
fn as_root_stays_root() {
    if !root("as_root_stays_root") {
        return;
    }
    let folder = Folder::new("as-root");
    let out = folder.0.join("out");
    let mut l = launch(&["sh", "-c", &format!("id -u >{}", out.display())]);
    l.identity = None;
    assert_eq!(run(&l).expect("runs"), Exit::Code(0));
    assert_eq!(fs::read_to_string(out).expect("its output"), "0\n");
    assert_eq!(identity::own_identity().uid, 0);
}
