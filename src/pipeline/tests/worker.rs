//! The worker from rings to a file, with rings that the test fills. The loss counters are real BPF maps, so these
//! tests need root.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use libbpf_rs::{MapCore, MapFlags};
use serde_json::Value;

use super::super::handoff::Writer;
use super::super::made_ring::MadeRing;
use super::super::messages::{Message, MessageKind};
use super::super::worker::{Outcome, State, Worker};
use super::sink::Folder;
use super::{call_record, return_record};
use crate::clock::monotonic_ns;
use crate::probe::{Base, Library, LossCounters, Probe, Settings, rings};
use crate::wire;
use gpurec_trace::Header;

const RING: usize = 65536;

struct Recording {
    folder: Folder,
    rings: Vec<MadeRing>,
    messages: Sender<Message>,
    state: Arc<State>,
    worker: Option<Worker>,
    writer: Writer,
    /// Keeps the maps of the counters open.
    base: Base,
}

impl Recording {
    fn new(name: &str, rings: usize) -> Recording {
        Recording::with_rings(name, rings, RING)
    }

    fn with_rings(name: &str, rings: usize, size: usize) -> Recording {
        let folder = Folder::new(name);
        let rings: Vec<MadeRing> = (0..rings).map(|_| MadeRing::new(size, 0).unwrap()).collect();
        let settings = Settings {
            everyone: false,
            follow: false,
            ring: RING,
            budget: false,
            lossless: false,
            pause_user: crate::probe::ANY_USER,
            no_sessions: false,
            ..Settings::default()
        };
        let base = Base::load(&settings, rings::begin(RING).unwrap()).expect("needs root");
        let (lines, writer) = folder.lines(1000);
        let (messages, receiver) = unbounded();
        let state = Arc::new(State::default());
        let mapped = rings.iter().map(|ring| ring.map().unwrap()).collect();
        let loss = LossCounters::new(&base).unwrap();
        let worker = Worker::new(mapped, lines, receiver, loss, state.clone());
        Recording { folder, rings, messages, state, worker: Some(worker), writer, base }
    }

    fn hook(&self, ts: u64, id: u32, name: &str) {
        let (library, probes) = library(id, name);
        self.messages
            .send(Message { ts, pid: 1, what: MessageKind::Coming(library.clone(), probes) })
            .unwrap();
        self.messages.send(Message { ts, pid: 1, what: MessageKind::Hooked(library) }).unwrap();
    }

    /// Runs the worker over the records in the rings, to the end.
    fn run(mut self) -> (Vec<Value>, Outcome) {
        self.state.drain();
        let outcome = self.worker.take().unwrap().run(Header::default());
        drop(self.base);
        self.writer.join().unwrap();
        (self.folder.read(), outcome)
    }
}

fn library(id: u32, name: &str) -> (Library, Vec<Probe>) {
    let library = Library {
        path: PathBuf::from(format!("/lib/{name}.so")),
        build_id: None,
        functions: 1,
        blocks: 0,
        not_hooked: Vec::new(),
        single_stepped: Vec::new(),
        beyond: 0,
        refused: 0,
        slow: 0,
        took: Duration::ZERO,
    };
    (library, vec![Probe { id, name: name.to_owned(), signature: None, beneath: None }])
}

fn names(lines: &[Value]) -> Vec<String> {
    let name =
        |line: &Value| format!("{} {}", line["type"].as_str().unwrap(), line["name"].as_str().unwrap());
    lines.iter().map(name).collect()
}

#[test]
fn records_of_all_rings_come_in_one_order() {
    let mut recording = Recording::new("rings", 3);
    recording.hook(1500, 1, "cuA");
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    recording.rings[2].put(&return_record(3000, 8, 2, 1, 2000, 0));
    recording.rings[1].put(&call_record(2500, 9, 1, 1, 900));
    let (lines, outcome) = recording.run();
    let times: Vec<f64> = lines[1..5].iter().map(|line| line["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, [5e-7, 1e-6, 1.5e-6, 2e-6]);
    let expected =
        ["gpurec gpurec", "process library", "userspace cuA", "userspace cuA", "userspace cuA", "end end"];
    assert_eq!(names(&lines)[1..], expected[1..]);
    assert_eq!(lines[5]["in_flight"][0]["tid"], 9);
    assert_eq!((&lines[5]["complete"], &lines[5]["events"]), (&true.into(), &5.into()));
    assert!(outcome.figures.complete && outcome.failed.is_none());
}

/// The backlog is many times what is read of a ring at once; the only call of another thread is in the middle of it.
#[test]
fn a_backlog_comes_in_one_order_too() {
    const CALLS: u64 = 20_000;
    let mut recording = Recording::with_rings("backlog", 2, 8 << 20);
    recording.hook(1500, 1, "cuA");
    for i in 0..CALLS {
        let (ts, seq) = (2000 + 10 * i, 2 * i as u32 + 1);
        recording.rings[0].put(&call_record(ts, 8, seq, 1, 900));
        recording.rings[0].put(&return_record(ts + 5, 8, seq + 1, 1, ts, 0));
    }
    recording.rings[1].put(&call_record(100_001, 9, 1, 1, 900));
    recording.rings[1].put(&return_record(100_002, 9, 2, 1, 100_001, 0));
    let (lines, outcome) = recording.run();
    let calls: Vec<&Value> = lines.iter().filter(|line| line["type"] == "userspace").collect();
    assert_eq!(calls.len() as u64, 2 * CALLS + 2);
    assert!(calls.is_sorted_by_key(|line| line["ts"].as_f64().unwrap()));
    let ends = calls.iter().filter(|line| line["phase"] == "E");
    assert!(ends.clone().filter(|line| line["tid"] == 8).all(|line| line["duration_us"] == 0.005));
    let other = calls.iter().position(|line| line["tid"] == 9).unwrap();
    assert_eq!((calls[other]["ts"].as_f64(), calls[other + 1]["tid"].as_u64()), (Some(99_001e-9), Some(9)));
    assert!(outcome.figures.complete);
}

/// A running process is not stopped while its library is hooked: calls come before the recorder can report the hooks.
#[test]
fn a_call_recorded_while_its_library_was_hooked_has_its_name() {
    let mut recording = Recording::new("hooking", 1);
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    recording.hook(2500, 1, "cuA");
    recording.rings[0].put(&return_record(3000, 8, 2, 1, 2000, 0));
    let (lines, _) = recording.run();
    let calls: Vec<&Value> = lines.iter().filter(|line| line["type"] == "userspace").collect();
    let names: Vec<&Value> = calls.iter().map(|line| &line["name"]).collect();
    assert_eq!(names, ["cuA", "cuA"], "{lines:#?}");
}

/// The same, but the recorder's report takes long: the library has its line before its first call, and only once.
#[test]
fn a_library_is_reported_before_calls_that_come_while_it_is_hooked() {
    let mut recording = Recording::new("coming", 1);
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    let send = |what| recording.messages.send(Message { ts: 1500, pid: 1, what }).unwrap();
    let (library, probes) = library(1, "cuA");
    send(MessageKind::Coming(library.clone(), probes));
    let (messages, state) = (recording.messages.clone(), recording.state.clone());
    let worker = recording.worker.take().unwrap();
    let worker = std::thread::spawn(move || worker.run(Header::default()));
    // By then the worker has written the call.
    std::thread::sleep(Duration::from_millis(100));
    messages.send(Message { ts: 1500, pid: 1, what: MessageKind::Hooked(library) }).unwrap();
    state.drain();
    worker.join().unwrap();
    recording.writer.join().unwrap();
    let lines = recording.folder.read();
    assert_eq!(names(&lines)[1..3], ["process library", "userspace cuA"]);
    assert_eq!(lines.iter().filter(|line| line["name"] == "library").count(), 1);
}

#[test]
fn what_is_no_record_is_counted() {
    let mut recording = Recording::new("garbage", 1);
    recording.rings[0].put(&[0xff; 88]);
    recording.rings[0].put(&[]);
    let (lines, outcome) = recording.run();
    let end = lines.last().unwrap();
    assert_eq!(end["complete"], false);
    assert!(end["incomplete_because"][0].as_str().unwrap().starts_with("2 records"), "{end}");
    assert!(!outcome.figures.complete);
}

/// Hooks record before the worker reads its first record.
#[test]
fn what_was_lost_before_the_worker_began_is_reported() {
    let recording = Recording::new("before", 1);
    recording.hook(1500, 1, "cuA");
    let zero = 0u32.to_ne_bytes();
    let calls = |n: u64| [n.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
    let total = |n: u64| [calls(n), vec![0; 40]].concat();
    let map = |name| recording.base.map(name).unwrap();
    map("lost").update(&1u32.to_ne_bytes(), &calls(3), MapFlags::ANY).unwrap();
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    let each: Vec<_> = (0..cpus).map(|cpu| total(if cpu == 0 { 3 } else { 0 })).collect();
    map("lost_total").update_percpu(&zero, &each, MapFlags::ANY).unwrap();
    let (lines, outcome) = recording.run();
    let lost = lines.iter().find(|line| line["type"] == "lost").unwrap();
    assert_eq!((&lost["count"], &lost["by_probe"]["cuA"]), (&3.into(), &3.into()));
    assert!(!outcome.figures.complete && outcome.figures.lost == 3);
}

#[test]
fn memory_that_was_not_read_is_said() {
    let mut recording = Recording::new("cut", 1);
    recording.hook(1500, 1, "cuA");
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    let mut record = return_record(3000, 8, 2, 1, 2000, 0);
    let flags = std::mem::offset_of!(wire::Head, flags);
    record[flags..flags + 2].copy_from_slice(&wire::CUT.to_ne_bytes());
    recording.rings[0].put(&record);
    let (lines, outcome) = recording.run();
    assert_eq!(lines.iter().filter(|line| line["phase"] == "E").count(), 1);
    assert!(!outcome.figures.complete);
    assert_eq!(outcome.figures.incomplete_codes, ["cut"]);
}

/// The thread that was writing the record may have been preempted: the worker waits for it, or the trace reports that
/// it is missing.
#[test]
fn a_record_unfinished_at_the_end_is_not_passed_over_in_silence() {
    let mut recording = Recording::new("unfinished", 1);
    recording.hook(1500, 1, "cuA");
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    recording.rings[0].put_unfinished(&return_record(2500, 8, 2, 1, 2000, 0));
    recording.rings[0].put(&call_record(3000, 8, 3, 1, 900));
    let (lines, _) = recording.run();
    assert_eq!(lines.last().unwrap()["complete"], false, "{lines:#?}");
}

#[test]
fn an_unfinished_record_at_the_end_is_waited_for() {
    let mut recording = Recording::new("wait", 1);
    recording.hook(1500, 1, "cuA");
    recording.rings[0].put(&call_record(2000, 8, 1, 1, 900));
    let record = return_record(2500, 8, 2, 1, 2000, 0);
    let at = recording.rings[0].put_unfinished(&record);
    let ring = recording.rings.pop().unwrap();
    let finisher = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        ring.finish(at, record.len());
        ring
    });
    let (lines, _) = recording.run();
    finisher.join().unwrap();
    let end = lines.last().unwrap();
    assert_eq!((&end["in_flight"], &end["complete"]), (&serde_json::json!([]), &true.into()));
}

#[test]
fn stopped_at_once_it_says_what_was_left_unread() {
    let mut recording = Recording::new("stop", 2);
    recording.rings[1].put(&call_record(2000, 8, 1, 1, 900));
    recording.state.stop();
    let (lines, _) = recording.run();
    assert_eq!(names(&lines).len(), 2);
    assert_eq!(lines[1]["complete"], false);
}

#[test]
fn records_are_taken_while_the_target_runs() {
    let mut recording = Recording::new("live", 1);
    recording.hook(monotonic_ns(), 1, "cuA");
    let (worker, state) = (recording.worker.take().unwrap(), recording.state.clone());
    let thread = std::thread::spawn(move || worker.run(Header::default()));
    let mut ring = recording.rings.pop().unwrap();
    // Several times the ring's capacity: the worker must free room.
    let count: u32 = 3000;
    for i in 0..count {
        let began = std::time::Instant::now();
        while !ring.has_room(88) {
            assert!(began.elapsed().as_secs() < 60, "the ring is not emptied");
            std::thread::sleep(Duration::from_millis(1));
        }
        ring.put(&call_record(monotonic_ns(), 8, i + 1, 1, 1000));
    }
    state.drain();
    let outcome = thread.join().unwrap();
    recording.writer.join().unwrap();
    let lines = recording.folder.read();
    let begins = lines.iter().filter(|line| line["phase"] == "B").count();
    assert_eq!(begins, count as usize);
    assert!(outcome.failed.is_none());
}
