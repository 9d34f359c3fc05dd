//! Tests that need no root. The tests with real processes and root are in tests/.

mod guard;
mod live;
mod processes;
mod sudo;

use super::child::{Stage, WORD_LEN, Word};
use super::environment;
use super::identity::{self, Identity, Processes};
use super::launch::{Exit, candidates};
use super::maps;
use super::proc::{self, Env};
use super::signals::{Action, Mode, Recording, Signal, on_signal};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// True for root; otherwise prints which test is skipped and why.
fn root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: it changes users, which needs root");
    }
    root
}

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
}

fn value<'a>(env: &'a Env, name: &str) -> Option<&'a OsStr> {
    let found = env.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_os_str())
}

/// The arguments that run one ignored test of this crate as a separate process.
fn helper_args(name: &str) -> Vec<String> {
    // module_path begins with the crate's name, which libtest leaves out.
    let module = module_path!().split_once("::").expect("a module").1;
    ["--exact", "--ignored", "--nocapture"]
        .iter()
        .map(|s| s.to_string())
        .chain([format!("{module}::{name}")])
        .collect()
}

fn helper(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args(helper_args(name));
    command
}

/// Waits until `done` returns true, at most `seconds`.
fn eventually(seconds: u64, mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..seconds * 100 {
        if done() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    done()
}

// ---- identity

fn ids(pairs: &[(&str, &str)], trusted: bool) -> Option<(u32, Option<u32>, Option<String>)> {
    let var = |name: &str| {
        let found = pairs.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_string())
    };
    identity::caller_ids(trusted, var).map(|(ids, _)| ids)
}

#[test]
fn caller_is_read_from_sudo_only_when_trusted() {
    let sudo = [("SUDO_UID", "1000"), ("SUDO_GID", "1001"), ("SUDO_USER", "ann")];
    assert_eq!(ids(&sudo, true), Some((1000, Some(1001), Some("ann".into()))));
    assert_eq!(ids(&sudo, false), None);
    assert_eq!(ids(&[("SUDO_UID", "x")], true), None);
    assert_eq!(ids(&[("SUDO_UID", "4294967295"), ("PKEXEC_UID", "7")], true), Some((7, None, None)));
    assert_eq!(ids(&[("SUDO_UID", "5"), ("SUDO_GID", "-1")], true), Some((5, None, None)));
    assert_eq!(ids(&[("DOAS_USER", "root")], true), Some((0, None, Some("root".into()))));
    assert_eq!(ids(&[("DOAS_USER", "no-such-user-here")], true), None);
    assert_eq!(ids(&[], true), None);
}

#[test]
fn a_users_environment_keeps_theirs_and_takes_what_was_set_since() {
    let theirs = env(&[
        ("PATH", "/venv/bin:/bin"),
        ("HOME", "/home/ann"),
        ("VIRTUAL_ENV", "/venv"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("PWD", "/"),
    ]);
    let own = env(&[
        ("PATH", "/usr/sbin:/usr/bin"),
        ("HOME", "/root"),
        ("MAIL", "/var/mail/root"),
        ("SUDO_COMMAND", "gpurec"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("NCCL_DEBUG", "INFO"),
        ("PWD", "/root"),
    ]);
    let merged = environment::merge(theirs, own, Some(Path::new("/")));
    let expected = env(&[
        ("PATH", "/venv/bin:/bin"),
        ("HOME", "/home/ann"),
        ("VIRTUAL_ENV", "/venv"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("PWD", "/"),
        ("NCCL_DEBUG", "INFO"),
    ]);
    assert_eq!(merged, expected);
    let moved = environment::merge(env(&[("PWD", "/")]), vec![], Some(Path::new("/usr")));
    assert_eq!(moved, env(&[("PWD", "/usr")]));
}

#[test]
fn without_the_users_environment_the_home_is_theirs_at_least() {
    let ann = Identity {
        uid: 1000,
        gid: 1000,
        groups: vec![1000],
        user: "ann".into(),
        home: "/home/ann".into(),
        shell: "/bin/zsh".into(),
    };
    let own = env(&[("HOME", "/root"), ("SUDO_UID", "1000"), ("LANG", "C")]);
    let env = environment::without_sudo(own, &ann);
    assert_eq!(value(&env, "HOME"), Some(OsStr::new("/home/ann")));
    assert_eq!(value(&env, "USER"), Some(OsStr::new("ann")));
    assert_eq!(value(&env, "LANG"), Some(OsStr::new("C")));
    assert_eq!(value(&env, "SUDO_UID"), None);
}

/// pid → (parent, is root, program)
struct Tree(HashMap<u32, (u32, bool, &'static str)>);

impl Processes for Tree {
    fn parent(&self, pid: u32) -> Option<u32> {
        self.0.get(&pid).map(|p| p.0)
    }
    fn is_root(&self, pid: u32) -> bool {
        self.0.get(&pid).is_some_and(|p| p.1)
    }
    fn program(&self, pid: u32) -> Option<String> {
        self.0.get(&pid).map(|p| p.2.to_string())
    }
}

fn caller(processes: &[(u32, u32, bool, &'static str)]) -> Option<u32> {
    let tree = processes.iter().map(|p| (p.0, (p.1, p.2, p.3))).collect();
    identity::find_caller(100, &Tree(tree)).map(|(_, pid)| pid)
}

#[test]
fn the_sudo_that_called_us_is_found() {
    let us = (100, 90, true, "gpurec");
    let sh = (50, 1, false, "bash");
    let init = (1, 0, true, "systemd");
    assert_eq!(caller(&[us, (90, 50, true, "sudo"), sh, init]), Some(90));
    let monitor = (90, 80, true, "sudo");
    assert_eq!(caller(&[us, monitor, (80, 50, true, "sudo"), sh, init]), Some(80));
    let wrapped = (90, 80, true, "timeout");
    assert_eq!(caller(&[us, wrapped, (80, 50, true, "sudo"), sh, init]), Some(80));
    // A user's program with that name is not sudo, neither as the parent nor further up.
    assert_eq!(caller(&[us, (90, 50, false, "sudo"), sh, init]), None);
    assert_eq!(caller(&[us, (90, 80, false, "bash"), (80, 1, true, "sudo"), sh, init]), None);
    assert_eq!(caller(&[us, (90, 1, true, "bash"), init]), None);
    assert_eq!(caller(&[us]), None);
}

// ---- launch

#[test]
fn candidates_follow_execvp() {
    let paths = |name: &str, path: Option<&str>| -> Vec<PathBuf> {
        candidates(OsStr::new(name), path.map(OsStr::new))
    };
    assert_eq!(paths("ls", Some("/a::/b")), ["/a/ls", "./ls", "/b/ls"].map(PathBuf::from));
    assert_eq!(paths("ls", None), ["/bin/ls", "/usr/bin/ls"].map(PathBuf::from));
    assert_eq!(paths("./ls", Some("/a")), [PathBuf::from("./ls")]);
    assert!(paths("", Some("/a")).is_empty());
}

#[test]
fn exit_codes() {
    assert_eq!(Exit::Code(3).code(), 3);
    assert_eq!(Exit::Signal(15).code(), 143);
}

#[test]
fn words_survive_the_socket_and_nonsense_does_not() {
    let word = Word { stage: Stage::Exec, errno: -5, index: 70_000 };
    assert_eq!(Word::decode(&word.encode()), Some(word));
    assert_eq!(Word::decode(&[0; WORD_LEN]), None);
    assert_eq!(Word::decode(&[0xff; WORD_LEN]), None);
}

// ---- signals

#[test]
fn manners() {
    let typed = Signal::Interrupt { from_terminal: true };
    let sent = Signal::Interrupt { from_terminal: false };
    let act = |forward, recording| Action { forward, recording };
    use Recording::{Abandon, Continue, End, EndNow};
    assert_eq!(on_signal(Mode::Launch, 1, typed), act(None, Continue));
    assert_eq!(on_signal(Mode::Launch, 1, sent), act(Some(libc::SIGINT), Continue));
    assert_eq!(on_signal(Mode::Launch, 1, Signal::Terminate), act(Some(libc::SIGTERM), Continue));
    assert_eq!(on_signal(Mode::Launch, 2, typed), act(None, End));
    assert_eq!(on_signal(Mode::Launch, 2, Signal::Terminate), act(Some(libc::SIGTERM), End));
    assert_eq!(on_signal(Mode::Launch, 3, sent), act(None, Abandon));
    for signal in [typed, sent, Signal::Terminate] {
        assert_eq!(on_signal(Mode::Attach, 1, signal), act(None, End));
        assert_eq!(on_signal(Mode::Attach, 2, signal), act(None, EndNow));
        assert_eq!(on_signal(Mode::Attach, 3, signal), act(None, Abandon));
    }
}

// ---- /proc

#[test]
fn stat_is_read_after_the_last_parenthesis() {
    let line = b"42 (a) R 1 (b\n) S 7 42 42 0 -1 2097152 1 2 3 4 5 6 7 8 20 0 3 0 987654 1 1";
    let stat = proc::parse_stat(line).expect("a stat line");
    assert_eq!((stat.comm.as_str(), stat.state, stat.ppid), ("a) R 1 (b\n", b'S', 7));
    assert_eq!(stat.start_time, 987_654);
    assert!(stat.kernel_thread());
    for cut in 0..line.len() {
        proc::parse_stat(&line[..cut]);
    }
    assert_eq!(proc::parse_stat(b")("), None);
}

#[test]
fn environ() {
    let env = proc::parse_environ(b"A=1\0nothing\0B=x=y\0=C=2\0E=\0\0");
    let pairs: Vec<(String, String)> = env
        .iter()
        .map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()))
        .collect();
    let expected = [("A", "1"), ("B", "x=y"), ("=C", "2"), ("E", "")];
    assert_eq!(pairs, expected.map(|(k, v)| (k.to_string(), v.to_string())));
}

// ---- maps

#[test]
fn maps_lines() {
    let text = b"\
55d0-55e0 r-xp 00001000 fe:01 12      /usr/bin/a b
55e0-55f0 rw-p 00001000 fe:01 12      /usr/bin/a b
7f00-7f10 r-xp 00000000 103:2 13                         /tmp/x (deleted)
7f10-7f20 r-xp 00000000 00:2e 14                         /tmp/new\\012line\\q\xff
7f20-7f30 r-xp 00000000 00:00 0                          [vdso]
7f30-7f40 r-xp 00000000 00:0d 15                         anon_inode:[x]
7f40-7f50 r-xp 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
";
    let found = maps::parse(text);
    let paths: Vec<&Path> = found.iter().map(|m| m.path.as_path()).collect();
    let odd = PathBuf::from(OsString::from_vec(b"/tmp/new\nline\\q\xff".to_vec()));
    assert_eq!(paths, [Path::new("/usr/bin/a b"), Path::new("/tmp/x"), odd.as_path()]);
    assert_eq!((found[0].start, found[0].end), (0x55d0, 0x55e0));
    assert_eq!((found[0].dev, found[0].inode), ((0xfe, 1), 12));
    assert_eq!((found[1].dev, found[1].deleted), ((0x103, 2), true));
}

/// A path longer than any system call accepts is cut, and the next line is read whole.
#[test]
fn maps_with_a_path_without_end() {
    let long = "/d".repeat(50_000);
    let text = format!("55d0-55e0 r-xp 0 fe:01 12 {long}\n55e0-55f0 r-xp 0 fe:01 13 /b\n");
    let found = maps::parse(text.as_bytes());
    let ends: Vec<(u64, bool)> = found.iter().map(|m| (m.inode, m.path.as_os_str().len() < 5000)).collect();
    assert_eq!(ends, [(12, true), (13, true)]);
    // A list of too many mapped files is dropped as a whole, not cut.
    assert_eq!(maps::parse(text.repeat(10_000).as_bytes()), []);
}

/// Parsing survives any change to real lines, and its results are sane.
#[test]
fn maps_fuzzed() {
    let seed_text = std::fs::read("/proc/self/maps").expect("our maps");
    // A small generator with a fixed seed, so that a failure is reproducible.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    const SPICE: &[u8] = b" \n-:\\012/(x\0\xff9f+";
    for _ in 0..3000 {
        let mut text = seed_text.clone();
        for _ in 0..1 + random(20) {
            let at = random(text.len());
            match random(4) {
                0 => text[at] = SPICE[random(SPICE.len())],
                1 => text[at] = random(256) as u8,
                2 => drop(text.remove(at)),
                _ => text.insert(at, SPICE[random(SPICE.len())]),
            }
        }
        text.truncate(random(text.len()) + 1);
        for mapping in maps::parse(&text) {
            assert!(mapping.inode != 0 && mapping.path.is_absolute());
        }
    }
}

// ---- limits

#[test]
fn limits_are_read_as_the_kernel_writes_them() {
    use super::limits::Limits;
    let text = std::fs::read_to_string("/proc/self/limits").expect("our limits");
    assert!(Limits::parse(&text).is_some(), "{text}");
    let odd = text.replace("unlimited", "7");
    assert_ne!(Limits::parse(&odd), Limits::parse(&text));
    for cut in 0..text.len() {
        assert!(cut > 1200 || Limits::parse(&text[..cut]).is_none());
    }
    assert_eq!(Limits::parse(&text.replace("unlimited", "much")), None);
}
