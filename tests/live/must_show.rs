//! The must-shows: NVIDIA's real libcuda, opened and called at once, with nothing missed,
//! at the start, in children, in threads, and in processes that run already.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::needs::{every_backend, is_single};
use crate::room::{Room, live_nvidia};
use crate::trace::Trace;

const CALL: &str = "cuDriverGetVersion";

/// Single uprobes take about 40 ms each to remove, so there is one of them.
fn options(backend: &str) -> Vec<&str> {
    match is_single(backend) {
        true => vec!["--backend", backend, "--only", CALL],
        false => vec!["--backend", backend],
    }
}

fn scaled(backend: &str, count: u64) -> u64 {
    if is_single(backend) { count / 10 } else { count }
}

fn calls(room: &Room) -> String {
    room.compile("calls.c", "calls", &[])
}

fn libcuda(libraries: &Path) -> String {
    libraries.join("libcuda.so.1").to_str().unwrap().to_owned()
}

#[test]
fn every_call_from_dlopen_on_in_a_process_and_its_child() {
    live_nvidia(|room, libraries| {
        let (program, library) = (calls(room), libcuda(libraries));
        for backend in every_backend() {
            let count = scaled(backend, 100_000);
            let (done, trace) =
                room.record(&options(backend), &[&program, &library, &count.to_string(), "fork"]);
            done.exited(0);
            trace.by(backend).is_whole().has_calls(&[(CALL, 2 * count)]);
            two_processes(&trace, count);
        }
    });
}

/// The parent forks, the child executes, both end with 0, and each made its share of the calls.
fn two_processes(trace: &Trace, count: u64) {
    let forks = trace.process_events("fork");
    assert_eq!(forks.len(), 1, "{forks:?}");
    for key in ["pid", "child"] {
        let pid = forks[0][key].as_u64().unwrap();
        let made = trace.calls.iter().filter(|call| u64::from(call.pid) == pid).count();
        assert_eq!(made as u64, count, "calls of the {key}, process {pid}");
        let of_pid = |name| trace.process_events(name).into_iter().filter(move |line| line["pid"] == pid);
        assert_eq!(of_pid("exec").count(), 1, "executions of {pid}");
        let exits: Vec<_> = of_pid("exit").collect();
        assert_eq!(exits.len(), 1, "ends of {pid}: {exits:?}");
        assert_eq!(exits[0]["status"], 0);
    }
    let libraries = trace.process_events("library");
    assert_eq!(libraries.len(), 1, "one library for both: {libraries:?}");
    assert!(libraries[0]["path"].as_str().unwrap().contains("libcuda"), "{}", libraries[0]);
}

#[test]
fn every_call_of_four_threads() {
    live_nvidia(|room, libraries| {
        let (program, library) = (calls(room), libcuda(libraries));
        for backend in every_backend() {
            let count = scaled(backend, 100_000);
            let (done, trace) =
                room.record(&options(backend), &[&program, &library, &count.to_string(), "threads", "4"]);
            done.exited(0);
            trace.by(backend).is_whole().has_calls(&[(CALL, 4 * count)]);
            let mut tids: Vec<u32> = trace.calls.iter().map(|call| call.tid).collect();
            tids.sort_unstable();
            for of_one in tids.chunk_by(|a, b| a == b) {
                assert_eq!(of_one.len() as u64, count, "calls of thread {}", of_one[0]);
            }
        }
    });
}

#[test]
fn a_process_in_full_run_is_attached_to_and_left_running() {
    live_nvidia(|room, libraries| {
        let (program, library) = (calls(room), libcuda(libraries));
        let go = room.text("go");
        let mut target = room.target(&[&program, &library, "-1", "threads", "2", "ready-file", &go]);
        target.wait_for_stdout("ready");
        fs::write(&go, "").unwrap();
        for backend in every_backend() {
            let file = room.text(&format!("{backend}.jsonl"));
            let pid = target.pid().to_string();
            let options = [options(backend), vec!["--duration", "0.5", "-o", &file, "--pid", &pid]].concat();
            room.run(room.gpurec(&options)).exited(0);
            let trace = Trace::checked(room, &file);
            trace.by(backend);
            assert!(trace.calls.len() > 1000, "{} calls", trace.calls.len());
            assert_eq!(trace.counts().into_keys().collect::<Vec<_>>(), [CALL], "{backend}");
            assert!(trace.calls.iter().all(|call| call.pid == target.pid()));
            let in_flight = trace.in_flight();
            assert!(in_flight.len() <= 2 && in_flight.iter().all(|call| !call.died), "{in_flight:?}");
            assert_eq!(trace.header["pids"], serde_json::json!([target.pid()]));
            if trace.lost() == 0 {
                assert!(trace.ends().all(|end| !end.unwound), "nothing here is left without a return");
            }
            assert!(target.is_running(), "it goes on: {}", target.stderr());
        }
        target.signal(Signal::SIGKILL);
        target.done();
    });
}

#[test]
fn a_waiting_process_is_attached_to_and_then_makes_exactly_these_calls() {
    live_nvidia(|room, libraries| {
        let (program, library) = (calls(room), libcuda(libraries));
        for backend in every_backend() {
            // The library is loaded before gpurec attaches, or after.
            for (wait, word) in [("ready-file", "ready"), ("wait-file", "waiting")] {
                let count = scaled(backend, 50_000);
                let go = room.text(&format!("go-{backend}-{word}"));
                let mut target =
                    room.target(&[&program, &library, &count.to_string(), "threads", "2", wait, &go]);
                target.wait_for_stdout(word);
                let trace = attached_then_released(room, &options(backend), target.pid(), &go);
                target.done().exited(0);
                trace.by(backend).is_whole().has_calls(&[(CALL, 2 * count)]);
            }
        }
    });
}

/// Attaches to a process, creates the file that it waits for, and reads the trace when it has ended.
fn attached_then_released(room: &Room, options: &[&str], pid: u32, go: &str) -> Trace {
    let file = room.text(&format!("trace-{}.jsonl", room.number()));
    let pid = pid.to_string();
    let recording = room.start(room.gpurec(&[options, &["-o", &file, "--pid", &pid]].concat()));
    room.wait_until_recording(&file);
    fs::write(go, "").unwrap();
    recording.done().exited(0);
    Trace::checked(room, &file)
}
