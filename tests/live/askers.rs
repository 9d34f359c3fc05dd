//! Those who ask a flight recorder for dumps, and those who answer instead of one.
//! In: strangers that flood the recorder's socket, forge answers, and make the recorder's names before it does; a user
//! whose sudo rule names gpurec alone; signals that come all the time.
//! Out: root and the user who started the recorder get their dumps, and others get nothing.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::room::{Room, eventually, live};
use crate::run::Started;
use crate::trace::Trace;
use crate::user::as_user;

const STRANGER: u32 = 65_534;

fn program(room: &Room) -> String {
    let libraries = concat!(env!("OUT_DIR"), "/demo");
    let runtime = format!("{libraries}/libcudart.so.13");
    room.compile("flight.c", "flight", &[&runtime, &format!("-Wl,-rpath,{libraries}")])
}

/// A recorder of root's own, which runs until it is told to end.
fn recorder<'a>(room: &'a Room, options: &[&str]) -> Started<'a> {
    let (program, file) = (program(room), room.text("run.jsonl"));
    let words = [&["--last", "60s", "-q", "-o", &file], options, &["--", &program, "none", "600"]].concat();
    let mut started = room.start(room.gpurec(&words));
    started.wait_for_stdout("ready");
    started
}

/// Ends the program, and so the recording.
fn ended(room: &Room, started: Started) {
    let program = room.processes().into_iter().find(|process| process.name == "flight").unwrap();
    let pid = nix::unistd::Pid::from_raw(program.pid as i32);
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    started.done().exited(128 + libc::SIGTERM);
}

fn address(pid: u32) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("gpurec-dump/{pid}")).unwrap()
}

/// Makes the calling thread a stranger for good. The other threads stay root's.
fn become_stranger() {
    // SAFETY: plain integers. The system calls change this thread alone.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, STRANGER, STRANGER, STRANGER), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER), 0);
    }
}

/// Without a bound on strangers, one in half a second is refused, and the queue has room for thousands.
#[test]
fn a_flood_of_strangers_keeps_nobody_from_a_dump() {
    live(|room| {
        let started = recorder(room, &[]);
        let pid = started.pid();
        let connections = Arc::new(AtomicU64::new(0));
        for _ in 0..2 {
            let connections = connections.clone();
            // The recorder's end ends the flood.
            thread::spawn(move || {
                become_stranger();
                while UnixStream::connect_addr(&address(pid)).is_ok() {
                    connections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the flood", || connections.load(Ordering::Relaxed) > 1000);
        for _ in 0..3 {
            room.run(room.gpurec(&["dump", &pid.to_string()])).exited(0);
        }
        ended(room, started);
    });
}

/// A stranger can take names of processes to come.
#[test]
fn a_recorder_whose_name_is_taken_is_asked_all_the_same() {
    live(|room| {
        let (program, file, go) = (program(room), room.text("run.jsonl"), room.text("go"));
        let words = format!("-q --last 60s -o {file} -- {program} none 600");
        let script =
            format!("until [ -e {go} ]; do sleep 0.01; done; exec {} {words}", env!("CARGO_BIN_EXE_gpurec"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        let mut started = room.start(shell);
        let pid = started.pid();
        let taken = UnixListener::bind_addr(&address(pid)).unwrap();
        fs::write(go, "").unwrap();
        started.wait_for_stdout("ready");
        for words in [&["dump", &pid.to_string()][..], &["dump"]] {
            let done = room.run(room.gpurec(words));
            done.exited(0);
            assert!(done.text().contains("run-"), "{}", done.text());
        }
        drop(taken);
        ended(room, started);
    });
}

/// Whoever runs a program can listen where a recorder would.
#[test]
fn who_only_listens_is_not_believed() {
    live(|room| {
        let own = std::process::id();
        let listener = UnixListener::bind_addr(&address(own)).unwrap();
        let forged = room.text("forged.jsonl");
        fs::write(&forged, "{}\n").unwrap();
        let answer = format!("ok {forged}\n");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let _ = listener.accept().unwrap().0.write_all(answer.as_bytes());
                }
            });
            let done = [&["dump", &own.to_string()][..], &["dump"]].map(|words| room.run(room.gpurec(words)));
            is_over.store(true, Ordering::Release);
            UnixStream::connect_addr(&address(own)).unwrap();
            for done in done {
                done.exited(125).one_sentence();
                assert_eq!(done.text(), "");
            }
        });
    });
}

/// A folder like /tmp, where the recorder's names may be taken before it starts.
#[test]
fn names_that_others_made_are_not_used() {
    live(|room| {
        let (program, shared) = (program(room), room.path("shared"));
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        let taken = shared.join("run.segments");
        fs::create_dir(&taken).unwrap();
        chown(&taken, Some(STRANGER), Some(STRANGER)).unwrap();
        let file = shared.join("run.jsonl");
        let file = file.to_str().unwrap();
        let words = ["--last", "60s", "--keep", "1MB", "-q", "-o", file, "--", &program, "none", "1"];
        let refused = room.run(room.gpurec(&words));
        refused.exited(125).said("run.segments: it belongs to another user").one_sentence();
        fs::remove_dir(&taken).unwrap();
        for name in ["run-18446744073709551615-end.jsonl", "run-1-end.jsonl", "run-7-end.jsonl.part"] {
            fs::write(shared.join(name), "another's").unwrap();
            chown(shared.join(name), Some(STRANGER), Some(STRANGER)).unwrap();
        }
        room.run(room.gpurec(&words)).exited(0);
        let mut names: Vec<(String, u32)> = fs::read_dir(&shared)
            .unwrap()
            .map(|one| one.unwrap())
            .map(|one| (one.file_name().into_string().unwrap(), one.metadata().unwrap().uid()))
            .collect();
        names.sort();
        let expected = [
            ("run-1-end.jsonl", STRANGER),
            ("run-18446744073709551615-end.jsonl", STRANGER),
            ("run-2-end.jsonl", 0),
            ("run-7-end.jsonl.part", STRANGER),
        ];
        assert_eq!(names, expected.map(|(name, uid)| (name.to_owned(), uid)));
        let dump = Trace::checked(room, shared.join("run-2-end.jsonl").to_str().unwrap());
        assert_eq!(dump.end["dump"]["number"], 2);
    });
}

#[test]
fn through_sudo_only_own_recorders_are_asked() {
    as_user(|room, user| {
        let started = recorder(room, &[]);
        let of_root = started.pid();
        let denied = user.types(room, &format!("sudo $GPUREC dump {of_root}"));
        denied.exited(125).said("only root and the user who started it").one_sentence();
        let program = room.text("flight");
        let line =
            format!("sudo $GPUREC -q --last 60s -o own.jsonl -- sh -c 'echo $PPID; exec {program} none 600'");
        let mut own = room.start(user.command(room, &line));
        own.wait_for_stdout("ready");
        let of_user: u32 = own.stdout().split_whitespace().next().unwrap().parse().unwrap();
        // Without a PID, it is the only one that the user may ask.
        let dump = user.types(room, "sudo $GPUREC dump").exited(0).text();
        user.owns(std::path::Path::new(dump.trim()));
        user.types(room, &format!("$GPUREC dump {of_user}")).exited(0);
        let again = format!("for n in 1 2 3 4 5; do sudo $GPUREC dump {of_user} || exit; done");
        user.types(room, &again).exited(125).said("ask again in");
        room.run(room.gpurec(&["dump", &of_user.to_string()])).exited(0);
        assert_eq!(count(&user.home, "-dump.jsonl"), 7, "six of the user's own, and one of root's");
        user.types(room, &format!("kill -TERM {of_user}")).exited(0);
        own.done();
        ended(room, started);
    });
}

fn count(folder: &std::path::Path, end: &str) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(end)).count()
}

/// The first signal has a dump at once; those soon after it share one, and are counted.
#[test]
fn signals_have_few_dumps() {
    live(|room| {
        let started = recorder(room, &["--dump-on", "signal"]);
        started.signal(Signal::SIGUSR1);
        eventually("a dump", || room.path("run-1-signal.jsonl").exists());
        for _ in 0..200 {
            started.signal(Signal::SIGUSR1);
            thread::sleep(std::time::Duration::from_millis(5));
        }
        ended(room, started);
        assert!(count(&room.dir, "-signal.jsonl") <= 2);
        let suppressed = |number| {
            let name = ["signal", "end"].map(|event| room.text(&format!("run-{number}-{event}.jsonl")));
            let name = name.into_iter().find(|name| fs::exists(name).unwrap())?;
            let end: &Value = &Trace::checked(room, &name).end;
            end["dump"]["suppressed"].as_u64()
        };
        let counted: u64 = (1..4).filter_map(suppressed).sum();
        assert!(counted > 2, "{counted}");
    });
}

/// The right to open a port below 1024 is not in a rule for gpurec. In a network namespace of its own, where Linux has
/// its default for these ports.
#[test]
fn through_sudo_ports_need_the_callers_own_right() {
    as_user(|room, user| {
        let apart = |inner: &Command| {
            let mut command = room.command("unshare");
            command.arg("-n").arg(inner.get_program()).args(inner.get_args());
            command
        };
        let of_user = |line: &str| room.run(apart(&user.command(room, line)));
        let refused = of_user("sudo $GPUREC --metrics 0.0.0.0:929 -- touch ran");
        refused.exited(125).said("below 1024").one_sentence();
        assert!(!user.home.join("ran").exists());
        of_user("sudo $GPUREC -q --metrics 0.0.0.0:1029 -- true").exited(0);
        room.run(apart(&room.gpurec(&["-q", "--metrics", "0.0.0.0:929", "--", "true"]))).exited(0);
    });
}
