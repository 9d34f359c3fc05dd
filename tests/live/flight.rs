//! The flight recorder: `--last`, `--dump-on`, `--keep`, `gpurec dump`.
//! In: programs that cause each event of `--dump-on`; a small disk; a recorder that is killed.
//! Out: each dump is a whole trace that has the event, the state before its period, and nothing else.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::disk::SmallDisk;
use crate::room::{Room, eventually, live};
use crate::run::Started;
use crate::trace::Trace;
use crate::user::as_user;

const MIB: u64 = 1 << 20;

fn program(room: &Room) -> String {
    let libraries = concat!(env!("OUT_DIR"), "/demo");
    let runtime = format!("{libraries}/libcudart.so.13");
    room.compile("flight.c", "flight", &[&runtime, &format!("-Wl,-rpath,{libraries}")])
}

/// The dumps in a folder, by name, in the order of their numbers.
fn dumps(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("run")).collect();
    names.sort();
    names
}

/// A dump, checked: what it carries is what was live and running.
fn checked(room: &Room, name: &str, event: &str) -> Trace {
    let trace = Trace::checked(room, &room.text(name));
    let end = &trace.end;
    assert_eq!(end["dump"]["event"], event, "{end}");
    assert!(trace.complete(), "{end}");
    let carried: Vec<_> = trace.of_type("memory").filter(|line| line["carried"] == true).collect();
    let mut sizes: Vec<u64> = carried.iter().map(|line| line["size"].as_u64().unwrap()).collect();
    sizes.sort_unstable();
    sizes.retain(|size| *size >= MIB);
    if end["dump"]["from_ns"].as_u64().unwrap() > 1_000_000_000 {
        assert_eq!(sizes, [MIB, 2 * MIB, 3 * MIB], "{carried:?}");
        assert!(carried.iter().all(|line| line.get("begin").is_none()), "{carried:?}");
    }
    let held = end["summary"]["memory"]["held"]["bytes"].as_u64().unwrap();
    assert!((6 * MIB..6 * MIB + 9000).contains(&held), "{held}");
    assert_eq!(trace.process_events("exec").len(), 1, "it has its name");
    trace
}

/// Records `flight CAUSE SECONDS` with these options.
fn flight<'a>(room: &'a Room, options: &[&str], cause: &str, seconds: &str) -> Started<'a> {
    let (program, file) = (program(room), room.text("run.jsonl"));
    let last = ["--last", "1s", "-o", file.as_str()];
    let words = [&last[..], options, &["--", program.as_str(), cause, seconds]].concat();
    room.start(room.gpurec(&words))
}

#[test]
fn the_end_is_written_and_only_the_last_second() {
    live(|room| {
        for options in [&[][..], &["--last-in", "memory"]] {
            flight(room, options, "none", "3").done().exited(0).said("run-");
            let name = dumps(&room.dir).last().unwrap().clone();
            let trace = checked(room, &name, "end");
            let dump = &trace.end["dump"];
            let period_ns = trace.last_ns - dump["from_ns"].as_u64().unwrap();
            assert!((900_000_000..1_200_000_000).contains(&period_ns), "{period_ns} {dump}");
            let from_ns = dump["from_ns"].as_u64().unwrap();
            let carried = trace.calls.iter().filter(|call| call.ts < from_ns).count();
            assert!(carried <= 3, "more than one call and those inside it: {carried}");
            assert!(trace.named("cudaMalloc").len() > 20);
        }
        assert_eq!(dumps(&room.dir), ["run-1-end.jsonl", "run-2-end.jsonl"], "and nothing else is left");
        // Every command reads it.
        let file = room.text("run-1-end.jsonl");
        for words in [
            &["summary", &file][..],
            &["timeline", &file],
            &["report", "leaks", &file],
            &["report", "memory", &file],
            &["report", "api", &file],
            &["export", "--format", "chrome", &file],
            &["export", "--format", "csv", &file],
            &["diff", &file, &file],
            &["check", "--assert", "memory.held>=6MB", &file],
        ] {
            room.run(room.gpurec(words)).exited(0);
        }
    });
}

#[test]
fn each_cause_writes_a_dump_that_has_it() {
    live(|room| {
        for (cause, on, event, status) in [
            ("fail", "error", "error", 0),
            ("crash", "exit", "exit", 128 + libc::SIGSEGV),
            ("abort", "exit", "exit", 128 + libc::SIGABRT),
            ("exit", "exit", "exit", 3),
            ("hang", "hang=1", "hang", 0),
        ] {
            let started = flight(room, &["--dump-on", on], cause, "2");
            started.done().exited(status).said(&format!("-{event}.jsonl"));
            let names = dumps(&room.dir);
            let [dump, last] = &names[..] else { panic!("{cause}: {names:?}") };
            assert!(last.ends_with("-end.jsonl"), "{names:?}");
            let trace = checked(room, dump, event);
            match cause {
                "fail" => {
                    let failed = trace
                        .named("cudaMalloc")
                        .into_iter()
                        .filter_map(|call| call.end.as_ref()?.error.clone());
                    assert_eq!(failed.collect::<Vec<_>>(), ["cudaErrorMemoryAllocation"]);
                }
                "hang" => {
                    let open = trace.in_flight();
                    assert!(open.iter().any(|call| call.name == "cudaDeviceSynchronize"), "{open:?}");
                    let held = &checked(room, last, "end");
                    assert!(held.in_flight().is_empty());
                    let wait = held.named("cudaDeviceSynchronize");
                    assert_eq!(wait.len(), 1, "its B is carried, and its E is in the period");
                }
                _ => {
                    let exits = trace.process_events("exit");
                    assert_eq!((exits.len(), &exits[0]["status"]), (1, &status.into()), "{exits:?}");
                }
            }
            names.iter().for_each(|name| fs::remove_file(room.path(name)).unwrap());
        }
    });
}

#[test]
fn a_signal_and_gpurec_dump_request_a_dump() {
    live(|room| {
        let none = room.run(room.gpurec(&["dump"]));
        none.exited(125).said("no flight recorder runs here").one_sentence();
        let mut started = flight(room, &["--dump-on", "signal"], "none", "8");
        started.wait_for_stdout("ready");
        let pid = started.pid().to_string();
        for words in [&["dump"][..], &["dump", &pid]] {
            let asked = room.run(room.gpurec(words));
            let path = asked.exited(0).text().trim_end().to_owned();
            checked(room, Path::new(&path).file_name().unwrap().to_str().unwrap(), "dump");
        }
        started.signal(Signal::SIGUSR1);
        eventually("a dump for the signal", || room.path("run-3-signal.jsonl").exists());
        room.run(room.gpurec(&["dump", "1"]))
            .exited(125)
            .said("process 1 is no flight recorder")
            .one_sentence();
        started.done().exited(0);
        checked(room, "run-3-signal.jsonl", "signal");
        let names = dumps(&room.dir);
        assert_eq!(names, ["run-1-dump.jsonl", "run-2-dump.jsonl", "run-3-signal.jsonl", "run-4-end.jsonl"]);
    });
}

#[test]
fn several_recorders_are_named_and_another_user_may_not_ask() {
    as_user(|room, user| {
        let x = program(room);
        let start = |name: &str| {
            let file = room.text(name);
            let mut one = room.start(room.gpurec(&["--last", "5MB", "-o", &file, "--", &x, "none", "5"]));
            one.wait_for_stdout("ready");
            one
        };
        let (one, other) = (start("run.jsonl"), start("run2.jsonl.zst"));
        let asked = room.run(room.gpurec(&["dump"]));
        asked
            .exited(2)
            .said(&format!("{}, {}", one.pid().min(other.pid()), one.pid().max(other.pid())))
            .one_sentence();
        let denied = user.types(room, &format!("$GPUREC dump {}", one.pid()));
        denied.exited(125).said("only root and the user who started it");
        one.done().exited(0);
        other.done().exited(0);
        Trace::checked(room, &room.text("run2-1-end.jsonl.zst"));
    });
}

#[test]
fn the_oldest_dumps_are_deleted() {
    live(|room| {
        let mut started = flight(room, &["--keep", "1MB"], "none", "6");
        started.wait_for_stdout("ready");
        let pid = started.pid().to_string();
        for _ in 0..6 {
            room.run(room.gpurec(&["dump", &pid])).exited(0);
        }
        let said = started.done().exited(0).stderr.clone();
        let left = dumps(&room.dir);
        let bytes: u64 = left.iter().map(|name| fs::metadata(room.path(name)).unwrap().len()).sum();
        assert!(bytes <= MIB + 65_536 || left.len() == 1, "{bytes} {left:?}\n{said}");
        assert_eq!(left.last().unwrap(), "run-7-end.jsonl");
    });
}

#[test]
fn a_full_disk_ends_no_recording() {
    live(|room| {
        let (program, disk) = (program(room), SmallDisk::of(room.path("disk"), "size=16m"));
        let file = disk.path().join("run.jsonl.zst").to_str().unwrap().to_owned();
        let mut started =
            room.start(room.gpurec(&["--last", "60s", "-o", &file, "--", program.as_str(), "none", "15"]));
        started.wait_for_stdout("ready");
        let filler = disk.path().join("filler");
        let fill = format!("cat /dev/zero >{} 2>/dev/null; true", filler.display());
        std::process::Command::new("sh").args(["-c", &fill]).status().unwrap();
        let pid = started.pid().to_string();
        room.run(room.gpurec(&["dump", &pid])).exited(125).said("No space left").one_sentence();
        assert!(dumps(disk.path()).iter().all(|name| name == "run.segments"), "no part of a dump stays");
        fs::remove_file(&filler).unwrap();
        let asked = room.run(room.gpurec(&["dump", &pid]));
        let path = asked.exited(0).text().trim_end().to_owned();
        Trace::checked(room, &path);
        started.done().exited(0).said("the recording continues");
    });
}

/// A recorder that is killed while it writes leaves no trace that claims to be whole.
#[test]
fn a_killed_recorder_leaves_no_half_dump() {
    live(|room| {
        let program = program(room);
        for round in 0..4u64 {
            let file = room.text("run.jsonl.zst");
            let words = [
                "--last",
                "60s",
                "-q",
                "-o",
                &file,
                "--dump-on",
                "signal",
                "--",
                program.as_str(),
                "none",
                "4",
            ];
            let mut started = room.start(room.gpurec(&words));
            started.wait_for_stdout("ready");
            std::thread::sleep(std::time::Duration::from_millis(700));
            let pid = Pid::from_raw(started.pid() as i32);
            kill(pid, Signal::SIGUSR1).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20 * round));
            started.kill();
            for name in dumps(&room.dir) {
                if name.ends_with(".jsonl.zst") {
                    Trace::checked(room, &room.text(&name));
                }
            }
            eventually("the program's own end", || room.processes().is_empty());
        }
        // The next recorder removes what they left.
        let file = room.text("run.jsonl.zst");
        room.run(room.gpurec(&["--last", "60s", "-q", "-o", &file, "--", program.as_str(), "none", "1"]))
            .exited(0);
        assert!(dumps(&room.dir).iter().all(|name| name.ends_with(".jsonl.zst")), "{:?}", dumps(&room.dir));
    });
}

#[test]
fn impossible_options_are_refused() {
    live(|room| {
        let file = room.text("run.jsonl");
        for (words, said) in [
            (&["--last", "60", "--", "true"][..], "60 has no unit"),
            (&["--last", "60s", "--summary-only", "--", "true"], "--summary-only"),
            (&["--last", "60s", "-o", "-", "--", "true"], "a file of its own"),
            (&["--last", "60s", "--dump-on", "hang", "--", "true"], "hang=30"),
            (&["--last", "60s", "--dump-on", "crash", "--", "true"], "error, xid, hang=SECS, exit, signal"),
            (&["--dump-on", "exit", "--", "true"], "--last"),
            (
                &["--last", "60s", "-o", &file, "--dump-on", "xid", "--", "true"],
                "--dump-on xid cannot work here",
            ),
        ] {
            room.run(room.gpurec(words)).exited(2).said(said);
        }
        assert!(dumps(&room.dir).is_empty(), "{:?}", dumps(&room.dir));
        let program = program(room);
        let mut first = room.start(room.gpurec(&["--last", "60s", "-o", &file, "--", &program, "none", "3"]));
        first.wait_for_stdout("ready");
        room.run(room.gpurec(&["--last", "60s", "-o", &file, "--", "true"]))
            .exited(125)
            .said("another recording");
        first.done().exited(0);
    });
}

/// Processes start and end; each dump has those that run, and none that ended before its period. Other programs of this
/// machine are recorded too, and may cause events of their own.
#[test]
fn with_all_each_dump_has_the_processes_that_ran_in_its_period() {
    live(|room| {
        let (program, file) = (program(room), room.text("run.jsonl"));
        let words = ["--all", "--last", "1s", "--dump-on", "exit", "-q", "-o", &file];
        let recorder = room.start(room.gpurec(&words));
        let pid = recorder.pid().to_string();
        eventually("the recorder", || room.run(room.gpurec(&["dump", &pid])).status.success());
        let ended = room.target(&[&program, "none", "1"]);
        let ended_pid = u64::from(ended.pid());
        ended.done().exited(0);
        let crashed = room.target(&[&program, "crash", "4"]);
        let crashed_pid = u64::from(crashed.pid());
        std::thread::sleep(std::time::Duration::from_secs(3));
        let asked = room.run(room.gpurec(&["dump", &pid]));
        let trace = Trace::checked(room, asked.exited(0).text().trim_end());
        let pids: Vec<u64> = trace.others.iter().filter_map(|line| line["pid"].as_u64()).collect();
        assert!(
            pids.contains(&crashed_pid) && !pids.contains(&ended_pid),
            "{ended_pid} {crashed_pid} {pids:?}"
        );
        crashed.done();
        let has_crash = || {
            dumps(&room.dir).iter().filter(|name| name.ends_with("-exit.jsonl")).any(|name| {
                let trace = Trace::checked(room, &room.text(name));
                let is_it = |line: &&&Value| line["pid"] == crashed_pid;
                trace
                    .process_events("exit")
                    .iter()
                    .find(is_it)
                    .is_some_and(|exit| exit["signal"] == "SIGSEGV")
            })
        };
        eventually("a dump with the crash", has_crash);
        recorder.signal(Signal::SIGINT);
        recorder.done().exited(0);
    });
}
