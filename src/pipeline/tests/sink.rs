//! Lines, from the sink through the writer thread into a file and back.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value;

use super::super::decode::{Item, What};
use super::super::handoff::{self, Writer};
use super::super::pair::Pairing;
use super::super::sink::Lines;
use super::pair::{call, returned};
use super::{Random, exit_item, probes_named};
use crate::output;
use gpurec_trace::{Body, Finish, Lost, Notes, Reader};

/// A folder for one test, deleted at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gpurec-pipe-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn trace(&self) -> PathBuf {
        self.0.join("trace.jsonl")
    }

    /// A sink that writes into this folder's trace.
    pub fn lines(&self, start: u64) -> (Lines, Writer) {
        let output = output::open(Some(&self.trace()), SystemTime::now(), Default::default()).unwrap();
        let (handoff, writer) = handoff::start(Box::new(output)).unwrap();
        (Lines::new(Some(handoff.lines()), None, start), writer)
    }

    pub fn read(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.trace()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NAMES: [&str; 7] = [
    "cuLaunchKernel",
    "cudaMalloc",
    "cudaGetErrorString",
    "cublasSgemm_v2",
    "cuStreamQuery",
    "cudaGetLastError",
    "__cudaUnregisterFatBinary",
];

fn lines_of(name: &str, items: &[Item]) -> Vec<Value> {
    lines_with(name, &NAMES, items)
}

/// Feeds items to a sink with a header and these probes, and returns the lines after the header.
pub fn lines_with(name: &str, probes: &[&str], items: &[Item]) -> Vec<Value> {
    let folder = Folder::new(name);
    let (mut lines, writer) = folder.lines(1000);
    lines.line(0, Body::Header(Box::default()));
    lines.add_probes(&probes_named(probes));
    let mut pairing = Pairing::default();
    for item in items {
        pairing.feed(item, &mut lines);
    }
    lines.flush();
    drop(lines);
    writer.join().unwrap();
    folder.read().split_off(1)
}

/// The E line of a call of a probe that returns `value`.
fn ended(name: &str, probe: u32, value: u64) -> Value {
    let items = [call(2000, 7, 8, 1, probe, 900, false), returned(3500, 8, 2, 2000, value)];
    lines_of(&format!("{name}-{probe}-{value}"), &items).pop().unwrap()
}

#[test]
fn a_call_is_two_lines_that_name_each_other() {
    let items = [
        call(2000, 7, 8, 1, 1, 900, false),
        call(2500, 7, 8, 2, 4, 800, false),
        returned(4000, 8, 3, 2500, 0xdead),
        returned(5500, 8, 4, 2000, 0),
    ];
    let lines = lines_of("two", &items);
    let expected = [
        r#"{"event_id":1,"ts":0.000001000,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":7,"tid":8,"depth":0,
            "args":{"arg0":"0x0","arg1":"0x0","arg2":"0x0","arg3":"0x0","arg4":"0x0","arg5":"0x0"}}"#,
        r#"{"event_id":2,"ts":0.000001500,"type":"userspace","name":"cublasSgemm_v2","phase":"B","pid":7,"tid":8,"depth":1,
            "parent":1,"args":{"arg0":"0x0","arg1":"0x0","arg2":"0x0","arg3":"0x0","arg4":"0x0","arg5":"0x0"}}"#,
        r#"{"event_id":3,"ts":0.000003000,"type":"userspace","name":"cublasSgemm_v2","phase":"E","pid":7,"tid":8,"begin":2,
            "duration_us":1.500,"retval":"0xdead"}"#,
        r#"{"event_id":4,"ts":0.000004500,"type":"userspace","name":"cuLaunchKernel","phase":"E","pid":7,"tid":8,"begin":1,
            "duration_us":3.500,"retval":0}"#,
    ];
    let expected: Vec<Value> = expected.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_status_is_the_low_half_of_the_register() {
    let end = ended("status", 1, 0xffff_ffff_0000_0000);
    assert_eq!((&end["retval"], end.get("error")), (&0.into(), None));
    let end = ended("status", 1, u64::MAX);
    assert_eq!((&end["retval"], &end["error"]), (&(-1).into(), &"error -1".into()));
}

#[test]
fn an_error_has_the_name_that_its_own_api_gives_it() {
    assert_eq!(ended("error", 1, 2)["error"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(ended("error", 2, 2)["error"], "cudaErrorMemoryAllocation");
    assert_eq!(ended("error", 1, 54321)["error"], "error 54321");
}

#[test]
fn what_is_no_failure_has_no_error() {
    for (probe, value) in [(1, 0), (3, 2), (4, 5), (5, 600), (6, 2)] {
        let end = ended("fine", probe, value);
        assert_eq!(end.get("error"), None, "{end}");
    }
    assert_eq!(ended("fine", 5, 1)["error"], "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn a_pointer_is_hexadecimal_and_nothing_is_nothing() {
    assert_eq!(ended("pointer", 3, 0x7fff_1234)["retval"], "0x7fff1234");
    assert_eq!(ended("pointer", 7, 0x7fff_1234).get("retval"), None);
}

#[test]
fn what_never_returned_has_no_value() {
    let items = [
        call(2000, 7, 8, 1, 1, 900, false),
        call(2500, 7, 8, 2, 1, 900, false),
        // Record 3, a return, was lost.
        call(2700, 7, 8, 4, 1, 900, false),
    ];
    let lines = lines_of("never", &items);
    let (unwound, lost) = (&lines[1], &lines[3]);
    assert_eq!(
        (&unwound["begin"], &unwound["unwound"], unwound.get("retval")),
        (&1.into(), &true.into(), None)
    );
    assert_eq!(unwound["duration_us"], 0.5);
    assert_eq!((&lost["begin"], &lost["lost"], lost.get("duration_us")), (&3.into(), &true.into(), None));
}

#[test]
fn processes() {
    let exec = |ts, command: &[u8], cut| {
        let what = What::Exec { pid: u32::MAX, old_tid: 0, command: command.into(), cut };
        Item { ts, tid: u32::MAX, seq: 0, what }
    };
    let exit = |status| Item {
        what: What::Exit { pid: 7, status, process: true, left_calls: false },
        ..exit_item(4000, 7, 7, true)
    };
    let items = [
        Item { ts: 1500, tid: 8, seq: 0, what: What::Fork { pid: 7, child: 9 } },
        exec(1600, b"ls\0-l\0\0", false),
        exec(1700, b"a\0b \xff", true),
        exit(0x300),
        exit(11),
        exit(11 | 0x80),
        exit_item(5000, 7, 8, false),
    ];
    let lines = lines_of("processes", &items);
    let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fork", "exec", "exec", "exit", "exit", "exit"], "a thread's end is no line");
    assert_eq!((&lines[0]["tid"], &lines[0]["child"]), (&8.into(), &9.into()));
    assert_eq!(lines[1]["command"], serde_json::json!(["ls", "-l", ""]));
    assert_eq!(lines[2]["command"], serde_json::json!(["a", "b \u{fffd}", "…"]));
    assert_eq!((&lines[3]["status"], lines[3].get("signal")), (&3.into(), None));
    for line in &lines[4..] {
        assert_eq!((&line["status"], &line["signal"]), (&139.into(), &"SIGSEGV".into()));
    }
}

/// The record that BPF writes when it could not read the command line.
#[test]
fn a_command_that_could_not_be_read_has_no_empty_word() {
    let what = What::Exec { pid: u32::MAX, old_tid: 0, command: b"".as_slice().into(), cut: true };
    let lines = lines_of("unread", &[Item { ts: 1500, tid: 8, seq: 0, what }]);
    assert_eq!(lines[0]["command"], serde_json::json!(["…"]));
}

/// Random calls of known and unknown probes, with times that go back.
fn random_trace(folder: &Folder, seed: u64, write_calls: bool) -> u64 {
    let mut random = Random::new(seed);
    let (mut lines, writer) = folder.lines(5000);
    lines.write_calls = write_calls;
    lines.line(0, Body::Header(Box::default()));
    lines.add_probes(&probes_named(&NAMES));
    let mut pairing = Pairing::default();
    let mut seq = [0; 4];
    let mut open: [Vec<u64>; 4] = Default::default();
    for ts in (4000..).step_by(10).take(3000) {
        let thread = random.below(4) as usize;
        let tid = thread as u32;
        seq[thread] += 1;
        let sp = 10_000 - 8 * open[thread].len() as u64;
        match open[thread].pop().filter(|_| random.percent(55)) {
            Some(begin) => pairing.feed(&returned(ts, tid, seq[thread], begin, random.below(4)), &mut lines),
            None => {
                // The popped calls end without a return, by longjmp.
                let probe = random.below(9) as u32;
                pairing.feed(&call(ts, 1, tid, seq[thread], probe, sp, false), &mut lines);
                open[thread].push(ts);
            }
        }
        if random.percent(2) {
            lines.line(random.below(ts), Body::Lost(Lost { count: 1, by_probe: [].into() }));
        }
        if random.percent(1) {
            lines.flush();
        }
    }
    let written = lines.written_so_far();
    lines.flush();
    drop(lines);
    writer.join().unwrap();
    written
}

#[test]
fn numbers_have_no_gaps_and_time_never_goes_back() {
    for (seed, write_calls) in [(1, true), (2, true), (3, false)] {
        let folder = Folder::new(&format!("random-{seed}"));
        let written = random_trace(&folder, seed, write_calls);
        let lines = folder.read();
        assert_eq!(lines.len() as u64, written);
        for (id, line) in lines.iter().enumerate() {
            assert_eq!(line["event_id"], id);
        }
        assert!(lines.is_sorted_by_key(|line| (line["ts"].as_f64().unwrap() * 1e9).round() as u64));
        let calls = lines.iter().filter(|line| line["type"] == "userspace").count();
        assert_eq!(calls > 2000, write_calls, "{calls} lines of calls");
        for end in lines.iter().filter(|line| line["phase"] == "E") {
            let begin = &lines[end["begin"].as_u64().unwrap() as usize];
            assert_eq!(
                (&begin["phase"], &begin["name"], &begin["tid"]),
                (&"B".into(), &end["name"], &end["tid"])
            );
        }
        let notes = notes(&folder);
        assert_eq!((notes.bad_lines, notes.missing_events, notes.unknown_keys), (0, 0, 0));
    }
}

fn notes(folder: &Folder) -> Notes {
    let text = std::fs::read(folder.trace()).unwrap();
    let mut reader = Reader::new(text.as_slice());
    while reader.next().unwrap().is_some() {}
    reader.notes().clone()
}

#[test]
fn calls_in_flight_are_those_that_died_and_those_still_open() {
    let folder = Folder::new("flight");
    let (mut lines, writer) = folder.lines(1000);
    lines.add_probes(&probes_named(&NAMES));
    let mut pairing = Pairing::default();
    pairing.feed(&call(2000, 7, 8, 1, 1, 900, false), &mut lines);
    pairing.feed(&call(2100, 7, 9, 1, 2, 900, false), &mut lines);
    pairing.feed(&exit_item(2600, 7, 8, false), &mut lines);
    assert_eq!(lines.now_is(4100), 3100);
    let all = lines.in_flight(&pairing.in_flight());
    let reported: Vec<_> =
        all.0.iter().map(|c| (c.tid, c.name.as_str(), c.begin, c.duration_ns, c.died)).collect();
    assert_eq!(reported, [(8, "cuLaunchKernel", 0, 600, true), (9, "cudaMalloc", 1, 2000, false)]);
    drop(lines);
    writer.join().unwrap();
}

/// The `end` line is bounded, and counts the calls that it does not list.
#[test]
fn calls_in_flight_are_listed_up_to_a_bound() {
    const CALLS: u32 = 200_000;
    let mut lines = Lines::new(None, None, 1000);
    lines.add_probes(&probes_named(&NAMES));
    let mut pairing = Pairing::default();
    for tid in 1..=CALLS {
        let ts = u64::from(tid) * 10;
        pairing.feed(&call(ts, 1, tid, 1, 1, 900, false), &mut lines);
        pairing.feed(&exit_item(ts + 5, 1, tid, false), &mut lines);
    }
    let (listed, more) = lines.in_flight(&pairing.in_flight());
    assert_eq!(listed.len() as u64 + more, u64::from(CALLS));
    assert!(listed.len() > 20_000, "{} are exact", listed.len());
    let finish = Finish { in_flight: listed, ..Finish::default() };
    let text = serde_json::to_vec(&finish).unwrap();
    assert!(text.len() < 4 << 20 && gpurec_trace::fits(&text), "{} bytes", text.len());
}

#[test]
fn a_full_disk_is_reported_once_and_stops_nothing() {
    let output = output::open(Some("/dev/full".as_ref()), SystemTime::now(), Default::default()).unwrap();
    let (handoff, writer) = handoff::start(Box::new(output)).unwrap();
    let mut lines = Lines::new(Some(handoff.lines()), None, 0);
    let began = std::time::Instant::now();
    while lines.failed.is_none() && began.elapsed().as_secs() < 60 {
        lines.line(0, Body::Lost(Lost { count: 1, by_probe: [].into() }));
        lines.flush();
    }
    assert!(lines.failed.is_some());
    assert!(writer.has_failed());
    lines.line(0, Body::Lost(Lost { count: 1, by_probe: [].into() }));
    lines.flush();
    drop(lines);
    assert_eq!(writer.join().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
}
