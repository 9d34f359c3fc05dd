//! `--gpu`: the `gpu` lines are what the stand-in CUPTI says that ran, to the nanosecond, in the layout of every version;
//! what it did not deliver is accounted for; and no end of a process harms it.
//! In: gpu.c, the stand-in libraries. Out: each line compared with the stand-in's own log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::room::{Room, eventually, live};
use crate::run::Done;
use crate::trace::{Call, Trace};

const VERSIONS: [&str; 8] = ["12.0", "12.4", "12.6", "12.8", "13.0", "13.1", "13.3", "13.5"];
const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");

pub fn program(room: &Room, source: &str) -> String {
    let runtime = format!("{LIBRARIES}/libcudart.so.13");
    let out = source.trim_end_matches(".c");
    room.compile(source, out, &[&runtime, &format!("-Wl,-rpath,{LIBRARIES}")])
}

/// Work as the stand-in logged it.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct Work {
    pub kind: String,
    pub correlation: u64,
    pub tid: u64,
    pub start: u64,
    pub end: u64,
    pub device: u64,
    pub context: u64,
    pub stream: u64,
    pub bytes: u64,
    pub graph: u64,
    pub node: u64,
    pub name: String,
}

#[derive(Default)]
pub struct Log {
    pub works: Vec<Work>,
    /// Number, thread, start, end, result of each call that submits work.
    pub calls: Vec<(u64, u64, u64, u64, i64)>,
    pub words: Vec<String>,
    /// The number of records and their total time, by kind.
    overhead: BTreeMap<u64, (u64, u64)>,
    /// By correlation and node.
    spoiled: BTreeMap<(u64, u64), String>,
}

impl Log {
    pub fn read(path: &str) -> Log {
        let mut log = Log::default();
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be cut off: SIGKILL can end a write at the end of a page.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..whole].lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
            match words[0] {
                "work" => log.works.push(Work {
                    kind: words[1].to_owned(),
                    correlation: number(2),
                    tid: number(3),
                    start: number(4),
                    end: number(5),
                    device: number(6),
                    context: number(7),
                    stream: number(8),
                    bytes: number(9),
                    graph: number(10),
                    node: number(11),
                    name: words[12].to_owned(),
                }),
                "call" => {
                    log.calls.push((number(1), number(2), number(3), number(4), words[6].parse().unwrap()))
                }
                "overhead" => {
                    let sum = log.overhead.entry(number(1)).or_default();
                    *sum = (sum.0 + 1, sum.1 + number(2));
                }
                "dropped" | "untimed" | "unfinished" => {
                    log.spoiled.insert((number(1), number(2)), words[0].to_owned());
                }
                "violation:" => panic!("{line}"),
                _ => log.words.push(line.to_owned()),
            }
        }
        log
    }

    pub fn delivered(&self) -> impl Iterator<Item = &Work> {
        self.works.iter().filter(|work| !self.spoiled.contains_key(&(work.correlation, work.node)))
    }

    pub fn spoiled(&self, how: &str, kind: &str) -> u64 {
        let is = |work: &&Work| {
            self.spoiled.get(&(work.correlation, work.node)).is_some_and(|is| is == how) && work.kind == kind
        };
        self.works.iter().filter(is).count() as u64
    }
}

pub struct Gpu {
    pub done: Done,
    pub trace: Trace,
    pub log: Log,
}

/// `knobs`: the stand-in's variables.
pub fn record(room: &Room, options: &[&str], knobs: &[(&str, &str)], words: &[&str]) -> Gpu {
    let number = room.number();
    let file = room.text(&format!("gpu-{number}.jsonl"));
    let log = room.text(&format!("gpu-{number}.log"));
    let mut command = room.gpurec(&[options, &["-o", &file, "--"], words].concat());
    command.env("STANDIN_CUPTI_LOG", &log);
    command.envs(knobs.iter().map(|(name, value)| (format!("STANDIN_CUPTI{name}"), *value)));
    let done = room.run(command);
    Gpu { done, trace: Trace::checked(room, &file), log: Log::read(&log) }
}

fn ns(value: &Value, to_ns: f64) -> u64 {
    (value.as_f64().unwrap() * to_ns).round() as u64
}

impl Gpu {
    pub fn lines(&self) -> Vec<&Value> {
        self.trace.of_type("gpu").collect()
    }

    /// Each line is a work of the log, and each work that was delivered has a line, with all that is known of it.
    pub fn agrees(&self) -> &Gpu {
        self.agrees_within(0)
    }

    /// The same where the client's clock is another, which is read with an error of some nanoseconds.
    pub fn agrees_within(&self, error: u64) -> &Gpu {
        let lines = self.lines();
        let mut works: BTreeMap<(u64, u64), &Work> =
            self.log.delivered().map(|work| ((work.correlation, work.node), work)).collect();
        assert!(!works.is_empty(), "the stand-in has logged no work: {}", self.done.stderr);
        let by_id: BTreeMap<u64, &Call> = self.trace.calls.iter().map(|call| (call.id, call)).collect();
        let calls: BTreeMap<u64, _> = self.log.calls.iter().map(|call| (call.0, call)).collect();
        let mut began = BTreeSet::new();
        for line in &lines {
            let number = |key: &str| line[key].as_u64();
            let key = (number("correlation").unwrap(), number("node").unwrap_or(0));
            let work = works.remove(&key).unwrap_or_else(|| panic!("not delivered, or twice: {line}"));
            assert_eq!(line["kind"], work.kind.as_str(), "{line}");
            let duration = ns(&line["duration_us"], 1e3);
            assert!(duration.abs_diff(work.end - work.start) <= error, "{line} {work:?}");
            // The trace has times since its beginning, which is the same for all.
            began.insert(work.start - ns(&line["ts"], 1e9));
            for (key, value) in [("device", work.device), ("context", work.context), ("stream", work.stream)]
            {
                assert_eq!(number(key), Some(value), "{line}");
            }
            assert_eq!(number("graph").unwrap_or(0), work.graph, "{line}");
            self.has_its_own(line, work);
            let call = by_id
                [&number("begin").unwrap_or_else(|| panic!("no call: {line} {}", self.trace.end["gpu"]))];
            let (_, tid, start, end, _) = *calls[&work.correlation];
            // A client may let CUPTI name threads in another way.
            let is_thread = u64::from(call.tid) == tid && work.tid == tid;
            assert!(is_thread || tid > 1 << 22 && error > 0, "{line} {call:?}");
            let began = *began.iter().next().unwrap();
            let lasted = call.end.as_ref().map_or(u64::MAX, |end| began + end.ts);
            let is_around = began + call.ts <= start + error && end <= lasted.saturating_add(error);
            assert!(is_around, "{call:?} is not around {start} to {end}");
            assert!(
                call.name.starts_with("cu") && !call.name.starts_with("cuda"),
                "not the innermost: {call:?}"
            );
            if let Some(end) = &call.end {
                let queued = work.start as i64 - (began + end.ts) as i64;
                let found = line["queued_us"].as_f64().unwrap_or_else(|| panic!("{line}: {call:?}"));
                let found = (found * 1e3).round() as i64;
                assert!(found.abs_diff(queued) <= error, "{line}: {queued}");
            }
        }
        let (first, last) = (began.first().unwrap(), began.last().unwrap());
        assert!(last - first <= error, "one clock has one beginning: {began:?}");
        let left: Vec<_> = works.values().take(5).collect();
        assert!(works.is_empty(), "{} without a line, of {}: {left:?}", works.len(), lines.len());
        self
    }

    fn has_its_own(&self, line: &Value, work: &Work) {
        match work.kind.as_str() {
            "kernel" => {
                let name = match work.name.as_str() {
                    "_Z7kernelAPi" => "kernelA(int*)",
                    "_Z7kernelBPi" => "kernelB(int*)",
                    _ => "void ns::matmul<float, 4>(float*, float*)",
                };
                assert_eq!((&line["name"], &line["registers"]), (&name.into(), &32.into()), "{line}");
                assert!(line["grid"][1] == 2 && line["block"][1] == 1, "{line}");
            }
            "copy" => {
                assert_eq!((&line["name"], &line["size"]), (&"memcpy".into(), &work.bytes.into()), "{line}");
                assert!(["H2D", "D2H", "D2D"].contains(&line["direction"].as_str().unwrap()), "{line}");
            }
            "set" => {
                assert_eq!((&line["name"], &line["size"]), (&"memset".into(), &work.bytes.into()), "{line}");
                assert_eq!(line["direction"], "set");
            }
            _ => assert_eq!(line["name"], "graph"),
        }
    }

    pub fn account(&self, key: &str) -> u64 {
        self.trace.end["gpu"][key].as_u64().unwrap_or_else(|| panic!("{}", self.trace.end))
    }

    pub fn reason(&self, code: &str) -> u64 {
        let reasons = self.trace.end["gpu"]["reasons"].as_array().unwrap();
        reasons.iter().find(|one| one["code"] == code).map_or(0, |one| one["count"].as_u64().unwrap())
    }

    /// Launches, calls and kernels are the same number, but for the reasons given.
    pub fn adds_up(&self, reasons: &[&str]) -> &Gpu {
        let account = &self.trace.end["gpu"];
        let less: u64 = ["no_times", "killed", "running", "captured", "other_client", "no_lane"]
            .iter()
            .map(|code| self.reason(code))
            .sum();
        let [launches, api, delivered] = ["launches", "api", "delivered"].map(|key| self.account(key));
        assert_eq!(
            launches - less - self.kernels_dropped(),
            delivered - self.reason("graph_nodes"),
            "{account}"
        );
        if self.reason("killed") + self.reason("no_lane") == 0 {
            assert_eq!(launches, api, "{account}");
        }
        let given: BTreeSet<&str> =
            account["reasons"].as_array().unwrap().iter().map(|one| one["code"].as_str().unwrap()).collect();
        assert_eq!(given, reasons.iter().copied().collect::<BTreeSet<_>>(), "{account}");
        self
    }

    /// Of launches: a graph's kernels are many.
    fn kernels_dropped(&self) -> u64 {
        self.reason("dropped").min(self.log.spoiled("dropped", "kernel"))
    }
}

#[test]
fn every_layout_is_recorded_to_the_nanosecond() {
    live(|room| {
        let program = program(room, "gpu.c");
        for (seed, version) in VERSIONS.iter().enumerate() {
            let seed = seed.to_string();
            let gpu = record(room, &["--gpu"], &[("", version)], &[&program, &seed, "3", "400"]);
            gpu.done.exited(0);
            gpu.trace.is_whole();
            gpu.agrees().adds_up(&["captured", "graph_nodes"]);
            assert_eq!(gpu.reason("captured"), 3 * 4);
            assert_eq!((gpu.account("dropped"), gpu.account("unmatched")), (0, 0));
            assert!(gpu.log.words.iter().any(|line| line == "flush 1"), "it flushes at exit");
            assert!(!gpu.log.words.iter().any(|line| line == "finalize"));
            let first = |word: &str| gpu.log.words.iter().position(|line| line.starts_with(word)).unwrap();
            assert!(first("clock") < first("callbacks") && first("callbacks") < first("enable"));
        }
    });
}

#[test]
fn cuptis_own_overhead_is_summed_up_by_kind() {
    live(|room| {
        let program = program(room, "gpu.c");
        for version in ["12.0", "13.5"] {
            let gpu = record(room, &["--gpu"], &[("", version)], &[&program, "3", "2", "600"]);
            gpu.done.exited(0).said("CUPTI's own overhead: ").said("The driver's, by CUPTI's records: ");
            let code = |kind: u64| match kind {
                0x10000 => "buffer_flush",
                0x20000 => "instrumentation",
                0x30000 => "resource",
                0x50000 => "function_loading",
                1 => "driver_compiler",
                _ => "other",
            };
            let logged: BTreeMap<&str, (u64, u64)> =
                gpu.log.overhead.iter().map(|(kind, sum)| (code(*kind), *sum)).collect();
            for account in [&gpu.trace.end["gpu"], &gpu.trace.end["summary"]["gpu"]["account"]] {
                let sums = account["overhead"].as_array().unwrap();
                let number = |sum: &Value, key: &str| sum[key].as_u64().unwrap();
                let found = sums.iter().map(|sum| {
                    (sum["code"].as_str().unwrap(), (number(sum, "count"), number(sum, "total_ns")))
                });
                assert_eq!(found.collect::<BTreeMap<_, _>>(), logged);
            }
            assert_eq!(logged.len(), 6);
        }
    });
}

#[test]
fn late_and_shuffled_records_of_many_threads_are_joined_alike() {
    live(|room| {
        let program = program(room, "gpu.c");
        let knobs = [("", "13.1"), ("_LATE", "50"), ("_SHUFFLE", "1"), ("_THREADS", "3")];
        let gpu = record(room, &["--gpu"], &knobs, &[&program, "7", "4", "600"]);
        gpu.done.exited(0);
        gpu.agrees().adds_up(&["captured", "graph_nodes"]);
    });
}

#[test]
fn what_cupti_does_not_deliver_is_accounted_for() {
    live(|room| {
        let program = program(room, "gpu.c");
        let gpu = record(room, &["--gpu"], &[("", "12.4"), ("_DROP", "7")], &[&program, "8", "2", "400"]);
        gpu.done.exited(0);
        gpu.agrees();
        let dropped: u64 =
            ["kernel", "copy", "set"].iter().map(|kind| gpu.log.spoiled("dropped", kind)).sum();
        assert!(dropped > 50);
        assert_eq!((gpu.reason("dropped"), gpu.account("dropped")), (dropped, dropped));
        let gpu = record(room, &["--gpu"], &[("", "13.3"), ("_ZERO", "5")], &[&program, "9", "2", "400"]);
        gpu.done.exited(0);
        gpu.agrees();
        assert_eq!(gpu.reason("no_times"), gpu.log.spoiled("untimed", "kernel"));
        assert!(gpu.reason("no_times") > 20);
    });
}

/// A dump that has the whole recording has its account, and each dump the stops of its period.
#[test]
fn a_dump_has_the_account_of_the_whole_recording() {
    live(|room| {
        let (program, log) = (program(room, "gpu.c"), room.text("dump.log"));
        for (last, is_whole) in [("60s", true), ("1MB", false)] {
            let file = room.text(&format!("{last}.jsonl"));
            let words = ["--gpu", "--last", last, "-o", &file, "--", &program, "3", "3", "4000"];
            let mut command = room.gpurec(&words);
            command.env("STANDIN_CUPTI", "13.0").env("STANDIN_CUPTI_LOG", &log);
            let done = room.run(command);
            done.exited(0);
            let trace = Trace::checked(room, &room.text(&format!("{last}-1-end.jsonl")));
            let gpu = Gpu { done, trace, log: Log::read(&log) };
            let (account, stops) = (&gpu.trace.end["gpu"], &gpu.trace.end["stops"]);
            assert_eq!(account.is_object(), is_whole, "{account}");
            if is_whole {
                gpu.agrees().adds_up(&["captured", "graph_nodes"]);
            }
            // gpurec stops the program where it loads libraries: at its start.
            assert_eq!(stops["count"].as_u64().map(|count| count > 0), Some(is_whole), "{stops}");
        }
    });
}

#[test]
fn a_graph_is_one_record_if_that_is_asked_for() {
    live(|room| {
        let program = program(room, "gpu.c");
        for version in ["12.0", "13.5"] {
            let gpu = record(room, &["--gpu=graphs"], &[("", version)], &[&program, "3", "2", "400"]);
            gpu.done.exited(0);
            gpu.agrees().adds_up(&["captured", "whole_graphs"]);
            let graphs = gpu.lines().iter().filter(|line| line["kind"] == "graph").count() as u64;
            assert_eq!(gpu.reason("whole_graphs"), graphs);
            assert!(graphs > 10 && gpu.lines().iter().all(|line| line.get("node").is_none()));
        }
    });
}

#[test]
fn each_end_of_a_process_leaves_a_whole_trace() {
    live(|room| {
        let program = program(room, "gpu.c");
        // CUPTI delivers no record by itself while the program runs, even on a slow machine.
        let late = ("_LATE", "10000");
        for (end, status) in [("exit", 0), ("now", 0), ("kill", 137), ("fork", 0), ("exec", 0)] {
            let gpu = record(room, &["--gpu"], &[("", "12.8"), late], &[&program, "5", "2", "300", end]);
            gpu.done.exited(status);
            let lines = gpu.lines().len() as u64;
            let account = &gpu.trace.end["gpu"];
            assert_eq!(gpu.account("unmatched"), 0, "{account}");
            if ["exit", "fork"].contains(&end) {
                gpu.agrees().adds_up(&["captured", "graph_nodes"]);
            } else {
                // What CUPTI had not delivered is gone, and counted.
                assert!(gpu.reason("killed") > 0 && (lines > 0) == (end == "exec"), "{end}: {account}");
            }
        }
    });
}

#[test]
fn without_cupti_the_recording_goes_on_and_says_why() {
    live(|room| {
        let program = program(room, "gpu.c");
        for (refused, word) in
            [("39", "--gpu=tap"), ("15", "nvidia-cuda-cupti"), ("43", "MIG"), ("41", "confidential")]
        {
            let gpu = record(room, &["--gpu"], &[("_REFUSE", refused)], &[&program, "1", "1", "50"]);
            gpu.done.exited(0).said("the GPU's work in process ").said(word);
            gpu.trace.is_whole();
            assert_eq!(gpu.lines().len(), 0);
            assert_eq!((gpu.account("delivered"), gpu.account("api")), (0, 0));
            assert_eq!(gpu.reason("no_lane"), gpu.account("launches"));
            let left = gpu.log.words.iter().filter(|line| line.starts_with("enable")).count();
            assert_eq!(left, 0, "nothing is enabled: {:?}", gpu.log.words);
        }
        let mut command = room.gpurec(&["--gpu", "-o", "set.jsonl", "--", &program, "1", "1", "50"]);
        command.env("CUDA_INJECTION64_PATH", "/other/profiler.so");
        let done = room.run(command);
        done.exited(0).said("CUDA_INJECTION64_PATH is set already (/other/profiler.so)");
    });
}

fn client(room: &Room, library: &str, clock: &str, rounds: &str) -> [String; 6] {
    let library = format!("{LIBRARIES}/{library}");
    [program(room, "client.c"), library, clock.into(), "4".into(), "2".into(), rounds.into()]
}

/// The client has all that CUPTI delivered: gpurec took nothing from it.
#[track_caller]
fn given(gpu: &Gpu) {
    let given = gpu.log.delivered().count() + gpu.log.calls.len();
    assert_eq!(gpu.done.text().trim(), format!("given {given}"));
}

#[test]
fn the_tap_reads_what_another_client_is_given() {
    live(|room| {
        for (clock, error) in [("monotonic", 1), ("cupti", 5_000), ("counter", 5_000)] {
            let words = client(room, "libcupti.so.12", clock, "400");
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            for options in [&[][..], &["--gpu=tap"]] {
                let gpu = record(room, options, &[("", "12.6")], &words);
                gpu.done.exited(0);
                gpu.trace.is_whole();
                gpu.agrees_within(error);
                given(&gpu);
                assert!(gpu.lines().iter().all(|line| line["source"] == "tap"));
                let calls = gpu.trace.counts();
                assert!(!calls.keys().any(|name| name.contains("NextRecord")), "{calls:?}");
                assert_eq!(calls["cuptiActivityRegisterCallbacks"], 1);
                assert_eq!((gpu.account("unmatched"), gpu.reason("unread")), (0, 0));
                gpu.adds_up(&["captured", "graph_nodes"]);
            }
        }
    });
}

#[test]
fn a_profiler_of_the_programs_own_gets_cupti() {
    live(|room| {
        let words = client(room, "libcupti.so.13", "monotonic", "300");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let gpu = record(room, &["--gpu"], &[("", "12.6")], &words);
        gpu.done.exited(0).said("another client of CUPTI in process ");
        given(&gpu);
        assert_eq!(gpu.lines().len(), 0, "the client came before the first work");
        assert_eq!(gpu.reason("other_client") + gpu.reason("graph_nodes"), gpu.account("launches"));
    });
}

/// The profiler starts in the middle of the work, while CUPTI holds a buffer of gpurec's library.
#[test]
fn a_profiler_that_comes_later_loses_no_record() {
    live(|room| {
        let library = format!("{LIBRARIES}/libcupti.so.13");
        let runtime = format!("{LIBRARIES}/libcudart.so.13");
        let path = format!("-Wl,-rpath,{LIBRARIES}");
        let cases = [
            ("-Wl,-z,now", "13.0", None),
            ("-Wl,-z,lazy", "12.4", None),
            ("-Wl,-z,now", "13.0", Some("early")),
        ];
        for (binding, version, order) in cases {
            let program = room.compile("taken.c", "taken", &[&runtime, &library, &path, binding]);
            let words: Vec<&str> = [&*program, "2", "200"].into_iter().chain(order).collect();
            let gpu = record(room, &["--gpu"], &[("", version)], &words);
            gpu.done.exited(0).said("another client of CUPTI in process ");
            let (lane, all) = (gpu.lines().len(), gpu.log.delivered().count());
            assert!(lane > 100 && lane < all, "{lane} of {all}");
            assert_eq!(gpu.reason("no_times"), 0);
            assert_eq!(gpu.done.text().trim(), format!("given {}, calls 0, dropped 0", all - lane));
        }
    });
}

#[test]
fn no_end_at_any_instant_does_harm() {
    end_at_random_instants(30);
}

#[test]
#[ignore = "takes over two minutes; the test above makes 30 of the 200 recordings: scripts/test --full"]
fn no_end_at_any_of_200_instants_does_harm() {
    end_at_random_instants(200);
}

/// The ends are the program's own, a signal's, and gpurec's.
fn end_at_random_instants(recordings: u32) {
    live(|room| {
        let program = program(room, "gpu.c");
        let left = || fs::read_dir(room.tmp()).unwrap().flatten().map(|entry| entry.path());
        let mut random = 12345u64;
        for round in 0..recordings {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let instant = std::time::Duration::from_micros((random >> 33) % 60_000);
            let file = room.text(&format!("storm-{round}.jsonl"));
            let log = room.text(&format!("storm-{round}.log"));
            let rounds = if round % 4 == 0 { "200" } else { "100000" };
            let ends = ["exit", "fork", "exec", "now"][round as usize / 4 % 4];
            let words = ["--gpu", "-o", &file, "--", &program, "5", "3", rounds, ends];
            let mut command = room.gpurec(&words);
            command.env("STANDIN_CUPTI_LOG", &log).env("STANDIN_CUPTI", VERSIONS[round as usize % 8]);
            let mut started = room.start(command);
            if round % 4 == 0 {
                let done = started.done();
                done.exited(0);
            } else {
                room.wait_until_recording(&file);
                std::thread::sleep(instant);
                // On a busy machine the program has not begun by then.
                let mut target = None;
                eventually("the program runs", || {
                    let targets = room.processes();
                    target = targets.iter().find(|one| one.name == "gpu").map(|one| one.pid);
                    target.is_some() || !started.is_running()
                });
                match (round % 4, target) {
                    (1, Some(pid)) => {
                        let pid = nix::unistd::Pid::from_raw(pid as i32);
                        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
                        started.done().exited(137);
                    }
                    (2, Some(pid)) => {
                        let pid = nix::unistd::Pid::from_raw(pid as i32);
                        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
                        started.done().exited(143);
                    }
                    (_, target) => {
                        // gpurec goes, and the program runs on.
                        assert!(started.is_running());
                        started.kill();
                        let pid = target.expect("the program runs");
                        std::thread::sleep(std::time::Duration::from_millis(30));
                        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "round {round}");
                        let pid = nix::unistd::Pid::from_raw(pid as i32);
                        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
                        continue;
                    }
                }
            }
            let log = Log::read(&log);
            let trace = Trace::checked(room, &file);
            let account = &trace.end["gpu"];
            // A kill may come between a kernel's record and its call's.
            let killed = account["reasons"].as_array().unwrap().iter().any(|one| one["code"] == "killed");
            assert!(account["unmatched"] == 0 || killed, "round {round}: {account}");
            let known: BTreeSet<(u64, u64)> = log.works.iter().map(|work| (work.start, work.end)).collect();
            assert!(trace.of_type("gpu").count() <= known.len(), "round {round}");
        }
        // A killed gpurec leaves its folder. The next one removes it, once the last process of the killed one has ended.
        eventually("the next recording removes what is left", || {
            record(room, &["--gpu"], &[], &[&program, "5", "1", "1"]).done.exited(0);
            left().count() == 0
        });
    });
}
