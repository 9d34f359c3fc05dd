//! Processes that go away at the worst moment, and machines that lack something. Checks what the user reads, and that
//! gpurec still records what it can.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime, clock_settime};
use nix::unistd::Pid;

use crate::disorder::X;
use crate::refuse::Call;
use crate::room::{Room, eventually, live};
use crate::trace::Trace;
use crate::unharmed::OddPrograms;

fn end(pid: u32) {
    let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
}

/// Returns whether gpurec's child made the call on its way to the command. gpurec itself makes the first one.
fn is_by_the_child(call: &Call, recorder: &mut Option<u32>) -> bool {
    *recorder.get_or_insert(call.tid) != call.tid
}

#[test]
fn a_command_that_dies_before_it_runs() {
    live(|room| {
        let x = X::new(room);
        let (file, lib) = (room.text("t.jsonl"), x.lib());
        let words = ["--lib", &lib, "-o", &file, "--", &x.program, "leaf", "5"];
        // Between the gate and the program: gpurec reports it like any command's end.
        let mut recorder = None;
        let rule = move |call: &Call| {
            if is_by_the_child(call, &mut recorder) {
                end(call.tid);
            }
            None
        };
        let done = room.start_refusing(room.gpurec(&words), &[libc::SYS_execve], rule).done();
        done.exited(128 + 9).said("killed by SIGKILL");
        let trace = Trace::checked(room, &file);
        trace.has_calls(&[]);
        assert_eq!((trace.lost(), trace.codes()), (0, vec!["lib"]));
        assert!(trace.process_events("exec").is_empty());
        let exit = trace.process_events("exit")[0];
        assert!(exit["status"] == 137 && exit["signal"] == "SIGKILL", "{exit}");

        // Before the recorder was ready.
        fs::remove_file(&file).unwrap();
        let mut children = Vec::new();
        let rule = move |call: &Call| {
            let name = fs::read_to_string(format!("/proc/{}/comm", call.tid)).unwrap_or_default();
            if name == "gpurec\n" && !children.contains(&call.tid) {
                children.push(call.tid);
            }
            // The first one looks the command up.
            if children.len() == 2 {
                end(call.tid);
            }
            None
        };
        let done = room.start_refusing(room.gpurec(&words), &[libc::SYS_close_range], rule).done();
        done.exited(125).one_sentence();
        assert_eq!(
            done.stderr,
            "gpurec: gpurec could not start the command: the process made for it was killed by signal 9\n"
        );
    });
}

/// The program ends at once: gpurec could not look at it without stopping it.
#[test]
fn a_start_that_takes_longer_than_a_stop_may() {
    live(|room| {
        let program = room.compile("static.c", "static", &["-static"]);
        let file = room.text("t.jsonl");
        let rule = |call: &Call| {
            if call.args[0] == libc::PR_SET_DUMPABLE as u64 && call.is_by_the_recorder() {
                std::thread::sleep(std::time::Duration::from_millis(2500));
            }
            None
        };
        let command = room.gpurec(&["-o", &file, "--", &program]);
        room.start_refusing(command, &[libc::SYS_prctl], rule).done().exited(3);
        Trace::checked(room, &file).is_whole();
    });
}

/// It is killed when gpurec reads its mappings.
#[test]
fn a_process_that_ends_while_gpurec_attaches() {
    live(|room| {
        let x = X::new(room);
        let target = room.target(&[&x.program, "wait", &room.text("never")]);
        let (pid, lib) = (target.pid(), x.lib());
        let file = room.text("t.jsonl");
        let words = ["--lib", &lib, "-o", &file, "--pid", &pid.to_string()];
        let (maps, stat) = (format!("/proc/{pid}/maps"), format!("/proc/{pid}/stat"));
        let rule = move |call: &Call| {
            if call.text(call.args[1]) == maps {
                end(pid);
                // A process has no maps any more once it is a zombie.
                eventually("its being a zombie", || {
                    fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z "))
                });
            }
            None
        };
        let done = room.start_refusing(room.gpurec(&words), &[libc::SYS_openat], rule).done();
        done.exited(125).one_sentence();
        assert_eq!(
            done.stderr,
            format!(
                "gpurec: process {pid} ended while gpurec was attaching to it; start it again under: gpurec -- COMMAND\n"
            )
        );
        target.done();
    });
}

/// As on a file system whose server answers only its owner, or does not answer at all any more.
#[test]
fn a_library_that_cannot_be_opened_is_told() {
    live(|room| {
        let x = X::new(room);
        let (file, start, lib, copy) =
            (room.text("t.jsonl"), room.text("start"), x.lib(), room.text("copy.so"));
        fs::copy(&x.library, &copy).unwrap();
        let words = ["--lib", &lib, "-o", &file, "--", &x.program, "load", &start, &copy];
        let (begun, by_path) = (room.path("start"), copy.clone());
        let rule = move |call: &Call| {
            let path = call.text(call.args[1]);
            let through_it = ["/map_files/", "/fd/", "/root/"].iter().any(|part| path.contains(part));
            let is_theirs =
                fs::read_to_string(format!("/proc/{}/comm", call.tid)).is_ok_and(|name| name == "x\n");
            (begun.exists() && !is_theirs && (through_it || path == by_path)).then_some(libc::EIO)
        };
        let done = room.start_refusing(room.gpurec(&words), &[libc::SYS_openat], rule).done();
        done.exited(0).said("NOT complete");
        let trace = Trace::checked(room, &file);
        assert_eq!(trace.lost(), 0);
        assert_eq!(trace.codes(), ["not_examined"]);
        assert!(trace.reasons()[0].contains("Input/output error"), "{:?}", trace.reasons());
    });
}

/// It is killed while it waits for gpurec to look into its new library.
#[test]
fn a_process_that_ends_while_its_library_is_looked_at() {
    live(|room| {
        let x = X::new(room);
        let (file, start, lib) = (room.text("t.jsonl"), room.text("start"), x.lib());
        let copy = room.text("copy.so");
        fs::copy(&x.library, &copy).unwrap();
        let script = format!("{} load {start} {copy}; echo $?; {} leaf 7", x.program, x.program);
        let words = ["--lib", &lib, "-o", &file, "--", "sh", "-c", &script];
        let mut killed = false;
        let begun = room.path("start");
        let rule = move |call: &Call| {
            let path = call.text(call.args[1]);
            let pid = path.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/maps"));
            if let (Some(pid), true, false) = (pid.and_then(|pid| pid.parse().ok()), begun.exists(), killed) {
                end(pid);
                killed = true;
            }
            None
        };
        let done = room.start_refusing(room.gpurec(&words), &[libc::SYS_openat], rule).done();
        assert_eq!(done.exited(0).text(), "137\n");
        let trace = Trace::checked(room, &file);
        trace.is_whole().has_calls(&[("x_leaf", 7)]);
        assert!(trace.process_events("exit").iter().any(|line| line["signal"] == "SIGKILL"));
    });
}

/// The process was not stopped, since it is traced as gdb traces. gpurec looks at its file when the next process maps
/// it, and records that process from its first call.
#[test]
fn a_process_that_is_gone_before_its_library_is_looked_at() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (file, first, second) = (room.text("t.jsonl"), room.text("first"), room.text("second"));
        let (program, copy) = (&odd.program, &odd.copies[0]);
        let script = format!(
            "{program} traced {program} wait {first} {copy}; until [ -e {second} ]; do sleep 0.01; done; \
             LD_PRELOAD={copy} {} leaf 7",
            odd.x.program
        );
        let words = ["--lib", "libx.so.1:x_*", "-o", &file, "--", "sh", "-c", &script];
        let mut recording = room.start(room.gpurec(&words));
        recording.wait_for_stdout("waiting");
        recording.signal(Signal::SIGSTOP);
        fs::write(&first, "").unwrap();
        recording.wait_for_stdout("status 0");
        recording.signal(Signal::SIGCONT);
        fs::write(&second, "").unwrap();
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        trace.has_calls(&[("x_leaf", 8)]);
        assert_eq!(trace.codes(), ["gone"], "{:?}", trace.reasons());
        assert!(trace.process_events("library").iter().any(|line| line["path"] == copy.as_str()));
    });
}

/// `fg` does this with a job: gpurec has stopped the process, and has not looked at its library yet.
#[test]
fn a_process_that_somebody_lets_go_before_its_library_is_looked_at() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (file, first, last) = (room.text("t.jsonl"), room.text("first"), room.text("last"));
        let words = [
            "--lib",
            "copy-0.so:x_*",
            "-o",
            &file,
            "--",
            &odd.program,
            "stay",
            &first,
            &last,
            &odd.copies[0],
        ];
        let mut recording = room.start(room.gpurec(&words));
        recording.wait_for_stdout("waiting");
        recording.signal(Signal::SIGSTOP);
        fs::write(&first, "").unwrap();
        let target = || room.processes().into_iter().find(|one| one.name == "odd");
        eventually("its stop", || target().is_some_and(|one| one.state == 'T'));
        kill(Pid::from_raw(target().unwrap().pid as i32), Signal::SIGCONT).unwrap();
        recording.wait_for_stdout("opened");
        recording.signal(Signal::SIGCONT);
        let looked = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"name\":\"library\""));
        eventually("the library's line", looked);
        fs::write(&last, "").unwrap();
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        let why = trace.reason("resumed");
        assert!(why.contains("copy-0.so was being hooked") && why.contains("SIGCONT"), "{why}");
    });
}

/// The process reaches its next library and is stopped there. That it is stopped when gpurec looks at the first library
/// proves nothing.
#[test]
fn a_process_that_somebody_lets_go_is_stopped_at_its_next_library() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (file, first) = (room.text("t.jsonl"), room.text("first"));
        let libraries = format!("{} {}", odd.copies[0], odd.copies[1]);
        let script = format!(
            "sleep 0; echo waiting; until [ -e {first} ]; do sleep 0.05; done; LD_PRELOAD='{libraries}' exec sleep 1000"
        );
        let words = ["--lib", "copy-*.so:x_*", "-o", &file, "--", "sh", "-c", &script];
        let mut recording = room.start(room.gpurec(&words));
        recording.wait_for_stdout("waiting");
        // gpurec has looked at the command's own programs and libraries by then.
        std::thread::sleep(std::time::Duration::from_millis(300));
        recording.signal(Signal::SIGSTOP);
        fs::write(&first, "").unwrap();
        let target = || room.processes().into_iter().find(|one| one.name == "sleep" && one.state == 'T');
        let pid = || target().map(|one| one.pid);
        let maps = |pid: u32, library: &str| {
            fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains(library)
        };
        eventually("its first stop", || pid().is_some_and(|pid| maps(pid, &odd.copies[0])));
        let pid = pid().unwrap();
        assert!(!maps(pid, &odd.copies[1]));
        kill(Pid::from_raw(pid as i32), Signal::SIGCONT).unwrap();
        eventually("its second stop", || target().is_some() && maps(pid, &odd.copies[1]));
        recording.signal(Signal::SIGCONT);
        eventually("its going on", || target().is_none());
        kill(Pid::from_raw(pid as i32), Signal::SIGTERM).unwrap();
        recording.done();
        let trace = Trace::checked(room, &file);
        assert!(trace.reason("resumed").contains("SIGCONT"), "{:?}", trace.reasons());
    });
}

/// Sets the machine's clock wrong for a moment; dropping it sets the clock right.
struct WrongClock {
    before: libc::timespec,
    since: std::time::Instant,
}

impl WrongClock {
    fn by(seconds: i64) -> WrongClock {
        let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
        let wrong = WrongClock { before: *now.as_ref(), since: std::time::Instant::now() };
        clock_settime(ClockId::CLOCK_REALTIME, (now.tv_sec() + seconds, now.tv_nsec()).into_timespec())
            .unwrap();
        wrong
    }
}

trait IntoTimespec {
    fn into_timespec(self) -> nix::sys::time::TimeSpec;
}

impl IntoTimespec for (i64, i64) {
    fn into_timespec(self) -> nix::sys::time::TimeSpec {
        nix::sys::time::TimeSpec::new(self.0, self.1)
    }
}

impl Drop for WrongClock {
    fn drop(&mut self) {
        let ns = self.before.tv_nsec as i128 + self.since.elapsed().as_nanos() as i128;
        let right = (self.before.tv_sec + (ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64);
        clock_settime(ClockId::CLOCK_REALTIME, right.into_timespec()).unwrap();
    }
}

/// Times in a trace come from a clock that cannot be set. The start in the header is what the machine's clock showed
/// then.
#[test]
fn a_clock_that_is_set_while_recording() {
    live(|room| {
        let x = X::new(room);
        let seconds = || {
            let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
            now.tv_sec()
        };
        for step in [-4, 4] {
            let (file, go) = (room.text(&format!("{step}.jsonl")), room.text(&format!("go{step}")));
            let lib = x.lib();
            let words = ["--lib", &lib, "-o", &file, "--", &x.program, "wait-then-leaf", &go, "500"];
            let before = seconds();
            let mut recording = room.start(room.gpurec(&words));
            recording.wait_for_stdout("inside");
            let after = seconds();
            let wrong = WrongClock::by(step);
            fs::write(&go, "").unwrap();
            recording.wait_for_stdout("called");
            drop(wrong);
            recording.done().exited(0);
            // Trace::checked verifies that time never goes back.
            let trace = Trace::checked(room, &file);
            trace.is_whole().has_calls(&[("x_wait", 1), ("x_leaf", 500)]);
            let whole = trace.last_ns / 1_000_000_000;
            assert!(whole <= (seconds() - before) as u64 + 1, "{whole} s");
            let start = trace.header["start"].as_str().unwrap().to_owned();
            let mut date = Command::new("date");
            let said = date.args(["+%s", "-d", &start]).output().unwrap().stdout;
            let said: i64 = String::from_utf8_lossy(&said).trim().parse().unwrap();
            assert!((before..=after).contains(&said), "{start}: {said} of {before} to {after}");
        }
    });
}

/// Inside, CLOCK_MONOTONIC differs from the clock of BPF.
#[test]
fn a_time_namespace_around_the_command_and_around_gpurec() {
    live(|room| {
        let x = X::new(room);
        let (file, lib) = (room.text("t.jsonl"), x.lib());
        let gpurec = [env!("CARGO_BIN_EXE_gpurec"), "--lib", &lib, "-o", &file, "--"];
        for offset in ["100000", "-20"] {
            let space = ["unshare", "--time", "--fork", "--monotonic", offset, "--boottime", offset, "--"];
            let command = [x.program.as_str(), "leaf", "300"];
            for words in [[&gpurec[..], &space, &command].concat(), [&space[..], &gpurec, &command].concat()]
            {
                let mut with = room.command(words[0]);
                with.args(&words[1..]);
                room.run(with).exited(0);
                let trace = Trace::checked(room, &file);
                trace.is_whole().has_calls(&[("x_leaf", 300)]);
                assert!(trace.last_ns < 60_000_000_000, "{} ns", trace.last_ns);
            }
        }
    });
}

/// Runs gpurec by a shell line in which `$@` is the recording.
fn by_shell(room: &Room, x: &X, line: &str, file: &str) -> crate::run::Done {
    let lib = x.lib();
    let gpurec = env!("CARGO_BIN_EXE_gpurec");
    let mut command = room.command("unshare");
    command
        .args(["--mount", "sh", "-c", line, "sh", gpurec, "--ring", "128", "--lib", &lib, "-o", file, "--"]);
    command.args([&x.program, "leaf", "20"]);
    room.run(command)
}

#[test]
fn a_machine_that_lacks_something() {
    live(|room| {
        let (x, file) = (X::new(room), room.text("t.jsonl"));
        for (line, sentence) in [
            (
                "umount -l /proc && exec \"$@\"",
                "/proc is not mounted"
                    .to_owned(),
            ),
            (
                "umount -l /sys && exec \"$@\"",
                "the kernel has no type information (/sys/kernel/btf/vmlinux); use a kernel built with CONFIG_DEBUG_INFO_BTF=y"
                    .to_owned(),
            ),
            (
                "ulimit -v 150000; exec \"$@\"",
                "(ulimit -v, memory.max of the cgroup)".to_owned(),
            ),
        ] {
            let done = by_shell(room, &x, line, &file);
            done.exited(125).one_sentence().said(&sentence);
            assert!(fs::read(&file).unwrap_or_default().is_empty());
            let _ = fs::remove_file(&file);
        }
        // These cases lack nothing that gpurec needs.
        for line in [
            // Mounts another /proc: the machine's own is shared by all tests.
            "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"",
            "ulimit -l 64; exec \"$@\"",
            "umount -l /sys/kernel/tracing 2>/dev/null; umount -l /sys/kernel/debug 2>/dev/null; exec \"$@\"",
        ] {
            by_shell(room, &x, line, &file).exited(0);
            Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 20)]);
        }
    });
}
