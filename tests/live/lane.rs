//! A process fills the ring of `--gpu` as fast as it can. With --lossless it waits for room while a recorder reads, and
//! it continues when the recorder is killed.
//! In: the programs of the benchmark, which deliver records as CUPTI does. Out: the account, and the process's own end.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::room::{Room, eventually, live};
use crate::run::Started;
use crate::trace::Trace;

/// The records of two seconds. The ring has room for a seventh of them.
const PAIRS: u64 = 1_000_000;
const A_SECOND: &str = "1e6";

fn program(room: &Room) -> String {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcupti.so.13"];
    let library = room.compile("bench/cupti.c", "libcupti.so.13", &flags);
    let folder = format!("-Wl,-rpath,{}", room.path("").display());
    room.compile("bench/lane.c", "lane", &[&library, &folder])
}

/// Waits for a record, stops the recorder, and returns when the ring is full.
fn stopped<'a>(room: &'a Room, program: &str, file: &str, options: &[&str]) -> Started<'a> {
    let words = ["-q", "--gpu", "-o", file, "--", program, &PAIRS.to_string(), A_SECOND];
    let recording = room.start(room.gpurec(&[options, &words].concat()));
    eventually("a record", || fs::read_to_string(file).is_ok_and(|text| text.contains("\"type\":\"gpu\"")));
    recording.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(1));
    recording
}

#[test]
fn with_lossless_no_record_is_without_room() {
    live(|room| {
        let program = program(room);
        for lossless in [true, false] {
            let file = room.text(&format!("{lossless}.jsonl"));
            let recording = stopped(room, &program, &file, if lossless { &["--lossless"] } else { &[] });
            recording.signal(Signal::SIGCONT);
            recording.done().exited(0);
            let trace = Trace::checked(room, &file);
            let account = &trace.end["gpu"];
            let [delivered, dropped] = ["delivered", "dropped"].map(|key| account[key].as_u64().unwrap());
            let lines = trace.of_type("gpu").count() as u64;
            assert_eq!(
                (lines, delivered == PAIRS, dropped == 0),
                (delivered, lossless, lossless),
                "{account}"
            );
        }
    });
}

#[test]
fn a_process_that_waits_for_a_recorder_continues_when_that_is_killed() {
    live(|room| {
        let program = program(room);
        let file = room.text("t.jsonl");
        let recording = stopped(room, &program, &file, &["--lossless"]);
        let stdout = recording.stdout_file();
        assert_eq!(fs::read_to_string(&stdout).unwrap(), "", "it waits");
        let killed = Instant::now();
        recording.kill();
        eventually("the process's own end", || room.processes().is_empty());
        assert!(!fs::read_to_string(&stdout).unwrap().is_empty(), "it has delivered all records");
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        // A killed gpurec leaves its folder, and the next one removes it.
        room.run(room.gpurec(&["-q", "--gpu", "-o", &file, "--", &program, "1", "1e6"])).exited(0);
    });
}
