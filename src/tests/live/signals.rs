//! Signals to gpurec: passed on, or the end of the recording; and what becomes of everybody when it is
//! killed without warning.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::disorder::X;
use crate::room::{Room, eventually, live, within};
use crate::trace::Trace;

#[test]
fn an_interrupt_and_a_termination_are_passed_on() {
    live(|room| {
        for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
            let file = room.text(&format!("{name}.jsonl"));
            let script = format!("trap 'echo got; exit 4' {name}; echo ready; while :; do sleep 0.02; done");
            let mut recording = room.start(room.gpurec(&["-o", &file, "--", "sh", "-c", &script]));
            recording.wait_for_stdout("ready");
            recording.signal(signal);
            let done = recording.done();
            assert_eq!(done.exited(4).text(), "ready\ngot\n");
            Trace::checked(room, &file).is_whole();
        }
    });
}

#[test]
fn an_untrapped_signal_ends_the_command_and_is_its_status() {
    live(|room| {
        let file = room.text("t.jsonl");
        let mut recording =
            room.start(room.gpurec(&["-o", &file, "--", "sh", "-c", "echo ready; exec sleep 100"]));
        recording.wait_for_stdout("ready");
        recording.signal(Signal::SIGTERM);
        recording.done().exited(143);
        let trace = Trace::checked(room, &file);
        assert_eq!(trace.is_whole().process_events("exit").last().unwrap()["signal"], "SIGTERM");
    });
}

#[test]
fn a_second_interrupt_ends_the_recording_of_a_command_that_ignores_it() {
    live(|room| {
        let (file, go) = (room.text("t.jsonl"), room.text("go"));
        let script = format!("trap '' INT; echo ready; while [ ! -e {go} ]; do sleep 0.02; done; echo end");
        let mut recording = room.start(room.gpurec(&["-o", &file, "--", "sh", "-c", &script]));
        recording.wait_for_stdout("ready");
        recording.signal(Signal::SIGINT);
        // Two at once would be one to the kernel; the first was read when it is no more pending.
        eventually("the first signal was taken", || !is_pending(recording.pid(), Signal::SIGINT));
        recording.signal(Signal::SIGINT);
        let done = recording.done();
        done.exited(130);
        Trace::checked(room, &file);
        let running = room.processes();
        assert!(running.iter().any(|p| p.name == "sh"), "the command runs on: {running:?}");
        fs::write(&go, "").unwrap();
        eventually("the command's own end", || room.processes().is_empty());
    });
}

fn is_pending(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & (1 << (signal as i32 - 1)) != 0
}

#[test]
fn an_interrupt_ends_the_recording_of_a_running_process_which_runs_on() {
    live(|room| {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let file = room.text(&format!("{signal}.jsonl"));
            let mut target = room.target(&["sleep", "1000"]);
            let recording = room.start(room.gpurec(&["--pid", &target.pid().to_string(), "-o", &file]));
            room.wait_until_recording(&file);
            recording.signal(signal);
            recording.done().exited(0);
            Trace::checked(room, &file).is_whole();
            assert!(target.is_running());
            target.kill();
        }
    });
}

#[test]
fn gpurec_is_killed_while_the_command_loads_libraries() {
    live(|room| {
        let x = X::new(room);
        let libraries: Vec<String> = (0..60)
            .map(|i| {
                let copy = room.text(&format!("copy-{i}.so"));
                fs::copy(&x.library, &copy).unwrap();
                copy
            })
            .collect();
        for round in 0..10 {
            killed(room, &x, &libraries, round);
        }
    });
}

/// At a random instant; in every other round surely after the command has begun to load.
fn killed(room: &Room, x: &X, libraries: &[String], round: u32) {
    let (start, file) = (room.text(&format!("start-{round}")), room.text(&format!("{round}.jsonl")));
    let lib = x.lib();
    let mut words: Vec<&str> = vec!["--lib", &lib, "-o", &file, "--", &x.program, "load", &start];
    words.extend(libraries.iter().map(String::as_str));
    let recording = room.start(room.gpurec(&words));
    let begun = round & 1 == 0;
    if begun {
        eventually("the command's beginning", || fs::exists(&start).unwrap());
    }
    let random = RandomState::new().build_hasher().finish();
    let limit = if begun { 60_000 } else { 400_000 };
    std::thread::sleep(Duration::from_micros(random % limit));
    recording.signal(Signal::SIGKILL);
    let stdout = recording.stdout_file();
    let done = recording.done();
    let gone = within(Duration::from_secs(10), || room.processes().is_empty());
    assert!(gone, "round {round}, {} us: {:?}", random, room.processes());
    if fs::exists(&start).unwrap() {
        // The command outlives gpurec: what it said is all there only now.
        let said = fs::read_to_string(stdout).unwrap();
        assert_eq!(said, "loaded\n", "round {round}: the command ran to its end: {}", done.stderr);
    }
}
