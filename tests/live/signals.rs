//! Signals to gpurec: it passes them on, or they end the recording. killed.rs tests SIGKILL.

use std::fs;

use nix::sys::signal::Signal;

use crate::room::{eventually, live};
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
        // gpurec stops a program while it examines its files. If the signal ended it then, the trace would say that
        // another program resumed it.
        eventually("sleep sleeps", || {
            room.processes().iter().any(|it| it.name == "sleep" && it.state == 'S')
        });
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
        // Linux merges two signals that arrive at once; the first was read once it is no longer pending.
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

/// A shell makes what it starts with `&` ignore INT; a script can end such a recording all the same.
#[test]
fn a_recording_that_was_started_deaf_is_ended() {
    live(|room| {
        let gpurec = env!("CARGO_BIN_EXE_gpurec");
        for (ignored, signal) in
            [("INT", Signal::SIGINT), ("TERM INT", Signal::SIGTERM), ("TERM", Signal::SIGINT)]
        {
            let target = room.target(&["sleep", "1000"]);
            let file = room.text(&format!("{signal}-{}.jsonl", ignored.len()));
            let line = format!(
                "trap '' {ignored}; {gpurec} -p {} -o {file} & until [ -s {file} ]; do sleep 0.05; done; kill -{} $!; wait $!",
                target.pid(),
                signal.as_str().trim_start_matches("SIG"),
            );
            let mut command = room.command("sh");
            command.args(["-c", &line]);
            room.run(command).exited(0);
            Trace::checked(room, &file).is_whole();
            target.kill();
        }
        // A hangup that was ignored (nohup) does not end the recording; one that was not ignored does.
        let target = room.target(&["sleep", "1000"]);
        let file = room.text("hup.jsonl");
        let line = format!(
            "trap '' HUP; {gpurec} --pid {} -o {file} & until [ -s {file} ]; do sleep 0.05; done; kill -HUP $!; sleep 0.5; kill -TERM $!; wait $!",
            target.pid()
        );
        let mut command = room.command("sh");
        command.args(["-c", &line]);
        room.run(command).exited(0);
        Trace::checked(room, &file).is_whole();
        target.kill();
    });
}
