//! Programs that a recorder could disturb by the way they work. gpurec records every call of theirs, they end as they
//! should, and what else watches them (a debugger, a sandbox; for shells see jobs.rs) sees nothing that it would not
//! see without gpurec.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::disorder::X;
use crate::needs::backends;
use crate::room::{Process, Room, eventually, live};
use crate::trace::Trace;
use crate::truth::Truth;
use crate::user::as_user;

/// The programs, and copies of the library that no process has mapped yet.
pub struct OddPrograms {
    pub x: X,
    pub program: String,
    pub copies: Vec<String>,
}

impl OddPrograms {
    pub fn new(room: &Room) -> OddPrograms {
        let x = X::new(room);
        let program = room.compile("odd.c", "odd", &[&x.library, "-Wl,-rpath,$ORIGIN"]);
        let copy = |i: usize| {
            let copy = room.text(&format!("copy-{i}.so"));
            fs::copy(&x.library, &copy).unwrap();
            copy
        };
        let copies = (0..3).map(copy).collect();
        OddPrograms { x, program, copies }
    }
}

fn is_stopped(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.state == 'T')
}

/// Linux makes a system call of its own where a hooked function returns.
#[test]
fn a_sandbox_that_kills_at_unknown_system_calls() {
    live(|room| {
        let odd = OddPrograms::new(room);
        for backend in backends() {
            for how in ["strict", "filter"] {
                let options = ["--backend", backend, "--lib", &odd.x.lib()];
                let (done, trace) = room.record(&options, &[&odd.program, how]);
                assert_eq!(done.exited(0).text(), "locked\n", "{backend} {how}");
                trace.by(backend).is_whole().has_calls(&[("x_leaf", 1001)]);
            }
        }
    });
}

/// gpurec's stop is no SIGTSTP, and ends by one SIGCONT for each library, as README.md says.
#[test]
fn a_program_with_handlers_of_its_own_for_stops() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let words = [vec![odd.program.as_str(), "signals"], odd.copies.iter().map(String::as_str).collect()];
        let (done, trace) = room.record(&["--lib", "libx.so.1:x_*"], &words.concat());
        assert_eq!(done.exited(0).text(), "continued 3 stopped 0\n");
        trace.is_whole().has_calls(&[("x_leaf", 1)]);
    });
}

/// The target waits for gpurec to look into its library; meanwhile another process stops it too.
#[test]
fn who_is_stopped_by_somebody_else_meanwhile_stays_stopped() {
    live(|room| {
        let odd = OddPrograms::new(room);
        for (killed, copy) in [false, true].into_iter().zip(&odd.copies) {
            let (file, go) = (room.text(&format!("{killed}.jsonl")), room.text(&format!("go-{killed}")));
            let mut target = room.target(&[&odd.program, "wait", &go, copy]);
            target.wait_for_stdout("waiting");
            let pid = target.pid();
            let words = ["--lib", "libx.so.1:x_*", "-o", &file, "--pid", &pid.to_string()];
            let recording = room.start(room.gpurec(&words));
            room.wait_until_recording(&file);
            recording.signal(Signal::SIGSTOP);
            fs::write(&go, "").unwrap();
            // BPF stops processes only while the recorder updates its heartbeat.
            eventually("it waits for gpurec", || is_stopped(pid));
            target.signal(Signal::SIGSTOP);
            let goes_on = || {
                assert!(is_stopped(pid) && target.stdout() == "waiting\n", "it was let go");
                target.signal(Signal::SIGCONT);
            };
            if killed {
                recording.signal(Signal::SIGKILL);
                recording.done();
                let guards = |process: &Process| process.name == "gpurec-guard";
                eventually("the guardian's end", || !room.processes().iter().any(guards));
                goes_on();
                target.done().exited(0);
            } else {
                recording.signal(Signal::SIGCONT);
                std::thread::sleep(Duration::from_millis(700));
                goes_on();
                target.done().exited(0);
                recording.done().exited(0);
                Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 1)]);
            }
        }
    });
}

#[test]
fn a_program_that_is_traced() {
    live(|room| {
        let odd = OddPrograms::new(room);
        // By its SONAME, which the copies share.
        let lib = "libx.so.1:x_*";
        // As gdb traces: it would stop at each of gpurec's signals, so gpurec sends none, and says so.
        let (done, trace) =
            room.record(&["--lib", lib], &[&odd.program, "traced", &odd.x.program, "leaf", "50"]);
        assert_eq!(done.exited(0).text(), "continued 0 stopped 0 status 0\n");
        assert_eq!(trace.lost(), 0);
        // `odd` has mapped the library, so gpurec hooked it before the child began. The child's program may end before
        // gpurec has looked into it, as it is not stopped.
        trace.has_calls(&[("x_leaf", 50)]);
        assert!(trace.codes().iter().all(|code| *code == "gone"), "{:?}", trace.reasons());
        let traced =
            [odd.program.as_str(), "traced", odd.x.program.as_str(), "load", "/dev/null", &odd.copies[0]];
        let (done, trace) = room.record(&["--lib", lib], &traced);
        assert_eq!(done.exited(0).text(), "loaded\ncontinued 0 stopped 0 status 0\n");
        let is_known = |code: &&str| ["not_stopped", "gone"].contains(code);
        assert!(!trace.complete() && trace.codes().iter().all(is_known), "{:?}", trace.reasons());

        // As strace traces, which passes signals on.
        let seized =
            [odd.program.as_str(), "seized", odd.x.program.as_str(), "load", "/dev/null", &odd.copies[1]];
        let (done, trace) = room.record(&["--lib", lib], &seized);
        assert!(done.exited(0).text().starts_with("loaded\ncontinued "), "{}", done.text());
        assert!(done.text().ends_with(" status 0\n"));
        trace.is_whole().has_calls(&[("x_leaf", 1)]);

        // The process is traced already when gpurec comes.
        let (file, go) = (room.text("t.jsonl"), room.text("go"));
        let mut tracer = room.target(&[&odd.program, "seized", &odd.x.program, "wait-then-leaf", &go, "60"]);
        tracer.wait_for_stdout("inside");
        let mut asking = room.command("pgrep");
        asking.args(["-P", &tracer.pid().to_string()]);
        let pid = room.run(asking).text();
        let recording = room.start(room.gpurec(&["--lib", lib, "-o", &file, "--pid", pid.trim()]));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        assert_eq!(tracer.done().exited(0).text(), "inside\ncalled\ncontinued 0 stopped 0 status 0\n");
        recording.done().exited(0);
        Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 60)]);
    });
}

/// The container has its own process numbers, a root that cannot be written, or another root with its own library.
#[test]
fn a_command_in_a_container() {
    live(|room| {
        let odd = OddPrograms::new(room);
        // Without /proc the loader does not know the program's folder.
        let inside = |path: &str| format!("export LD_LIBRARY_PATH={path}; exec \"$@\"");
        // Also mounts the file system of the test's folder, where that is a separate mount.
        let chroot = format!(
            "mount --bind / /mnt && at=$(findmnt -no TARGET --target {0}) && mount --bind $at /mnt$at && \
             mount -o remount,bind,ro /mnt && exec chroot /mnt {0} leaf 30",
            odd.x.program
        );
        let own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
        let folder = inside(room.dir.to_str().unwrap());
        let words = [&["sh", "-c", &folder, "sh"], &own[..], &["sh", "-c", &chroot]].concat();
        let (done, trace) = room.record(&["--lib", &odd.x.lib()], &words);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 30)]);

        let root = room.text("root");
        let copy = "ldd $0 | grep -o '/[^ ]*' | while read f; do mkdir -p $1${f%/*}; cp $f $1$f; done; \
                    mkdir -p $1/opt; cp $0 ${0%/*}/libx.so.1 $1/opt; rm -f $1${0%/*}/libx.so.1";
        let mut copying = room.command("sh");
        copying.args(["-c", copy, &odd.x.program, &root]);
        room.run(copying).exited(0);
        let folder = inside("/opt");
        let own = ["unshare", "--mount", "--pid", "--fork", "--root", &root, "/opt/x", "leaf", "40"];
        let words = [&["sh", "-c", &folder, "sh"], &own[..]].concat();
        let (done, trace) = room.record(&["--lib", "libx.so.1:x_*"], &words);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 40)]);
    });
}

#[test]
fn a_command_that_becomes_another_user() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (done, trace) =
            room.record(&["--lib", "libx.so.1:x_*"], &[&odd.program, "other-user", &odd.copies[0]]);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 10)]);
    });
}

/// The program gets its rights as without gpurec, and unlike under strace by a user who is not root.
#[test]
fn a_set_uid_program_is_one() {
    as_user(|room, user| {
        let copy = room.path(&format!("id-{}", user.name));
        fs::copy("/usr/bin/id", &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        let line = format!("sudo $GPUREC -q -o t.jsonl -- {} -u", copy.display());
        assert_eq!(user.types(room, &line).exited(0).text().trim(), "0");
        Trace::checked(room, user.home.join("t.jsonl").to_str().unwrap()).is_whole();
    });
}

#[test]
fn a_recording_that_ends_in_the_middle_of_the_calls_of_64_threads() {
    live(|room| {
        for (round, options) in [&["--lossless"][..], &["--lossless", "--duration", "0.3"]].iter().enumerate()
        {
            let file = room.text(&format!("{round}.jsonl"));
            let truth = Truth::new(room, 40 + round as u64, 64, 100_000, false);
            let mut target = room.start(truth.command(room));
            eventually("its first call", || truth.pid().is_some());
            let pid = target.pid().to_string();
            let only = ["-q", "--only", "cuDriverGetVersion", "--pid", &pid, "-o", &file];
            let words = [options, &only[..]].concat();
            let recording = room.start(room.gpurec(&words));
            room.wait_until_recording(&file);
            let before = truth.made()[0].ended;
            let made = || truth.made()[0].ended;
            eventually("calls", || made() > before + 100 || !target.is_running());
            if round == 0 {
                recording.signal(Signal::SIGINT);
            }
            recording.done().exited(0);
            assert_eq!(target.done().exited(0).text(), "finished\n");
            assert!(truth.has_finished());
            // The program's count must equal the library's.
            let (made, counted) = (truth.made(), truth.counted().expect("the library's own count"));
            for (name, made) in crate::truth::NAMES.iter().zip(&made) {
                let counted = counted.get(*name).copied().unwrap_or(0);
                assert_eq!((made.begun, made.ended), (counted, counted), "{name}");
            }
            let trace = Trace::checked(room, &file);
            assert!(trace.lost() == 0 && trace.complete(), "{}", trace.end["incomplete_because"]);
            // Every call has its end, except for one call of each thread at most, at the cut.
            assert!(trace.in_flight().len() <= 64);
            let seen = trace.named("cuDriverGetVersion").len() as u64;
            assert!(seen > 0 && seen <= made[0].ended, "{seen} of {}", made[0].ended);
        }
    });
}

/// One after the other and many at a time. Process numbers are reused, and gpurec keeps nothing of processes that
/// ended.
#[test]
fn ten_thousand_children_that_live_shortly() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let file = room.text("t.jsonl");
        let script = format!("{0} children 2000 1; {0} children 8000 40", odd.program);
        let words = ["--lib", &odd.x.lib(), "-o", &file, "--", "sh", "-c", &script];
        let mut recording = room.start(room.gpurec(&words));
        let most = recording.most_memory();
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        trace.is_whole().has_calls(&[("x_leaf", 1000)]);
        // Includes the shell's own two.
        assert_eq!(trace.process_events("fork").len(), 10_002);
        assert_eq!(trace.process_events("exit").len(), 10_003);
        assert!(most < 100 << 10, "{most} KiB of its own");
    });
}
