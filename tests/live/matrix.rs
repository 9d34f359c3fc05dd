//! Every figure under every kind of recording.
//! In: a seed (GPUREC_SEED, else the clock) and the number of recordings (GPUREC_RECORDINGS, else 30), GPUREC_MODE to
//! make only those with --all (`everyone`), which would see other tests' programs, or only the others (`others`);
//! programs/matrix.c, which counts what it does.
//! Out: each figure of summary, report and check is the program's own count, or is not known and says why; `complete`
//! is never wrong.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::room::{Room, eventually, live};
use crate::run::Started;
use crate::truth::{Random, first_seed, recordings};

const PATTERNS: [&str; 14] = [
    "cuLaunch*",
    "cuMem*",
    "cudaMalloc*",
    "*Free*",
    "cudaMemcpy*",
    "cuMemcpy*",
    "cu*Synchronize*",
    "cudaLaunchKernel",
    "cuMemAlloc",
    "*Async*",
    "cudaGet*",
    "*Launch*",
    "cuda*",
    "cuMemset*",
];

fn is_of_runtime(pattern: &str) -> bool {
    pattern.starts_with("cuda")
}

fn is_of_driver(pattern: &str) -> bool {
    pattern.starts_with("cu") && !pattern.starts_with("cuda") && !pattern.starts_with("cu*")
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Command,
    Attached,
    Everyone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Extra {
    None,
    SummaryOnly,
    Budget,
    /// The recorder is stopped during more calls than a small ring holds.
    Lost,
    /// Only the beginning of the trace is read.
    Cut,
}

#[derive(Debug)]
struct Plan {
    seed: u64,
    steps: u64,
    hot: u64,
    options: Vec<String>,
    mode: Mode,
    extra: Extra,
    /// How many of 1,000 parts of the trace are kept.
    cut: u64,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        let mut random = Random::new(seed << 32);
        let extra = match random.below(9) {
            0 | 1 => Extra::SummaryOnly,
            2 => Extra::Budget,
            3 => Extra::Lost,
            4 => Extra::Cut,
            _ => Extra::None,
        };
        let mode = match random.below(8) {
            0 | 1 => Mode::Attached,
            2 => Mode::Everyone,
            _ => Mode::Command,
        };
        let mut options: Vec<String> = Vec::new();
        for _ in 0..random.below(4) {
            let pattern = PATTERNS[random.below(PATTERNS.len() as u64) as usize];
            let option = if random.one_in(2) { "--only" } else { "--skip" };
            options.extend([option.to_owned(), pattern.to_owned()]);
        }
        if random.one_in(5) {
            let (api, other) = if random.one_in(2) {
                ("driver", is_of_runtime as fn(&str) -> bool)
            } else {
                ("runtime", is_of_driver as _)
            };
            // gpurec refuses these together.
            options = options.chunks(2).filter(|option| !other(&option[1])).flatten().cloned().collect();
            options.extend(["--api".to_owned(), api.to_owned()]);
        }
        let hot = match extra {
            Extra::Budget => 20_000 + random.below(40_000),
            Extra::Lost => 60_000,
            _ => random.below(100),
        };
        Plan { seed, steps: 20 + random.below(800), hot, options, mode, extra, cut: random.below(1000) }
    }

    fn options(&self) -> Vec<&str> {
        let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        options.extend(match self.extra {
            Extra::SummaryOnly => &["--summary-only"][..],
            Extra::Budget => &["--budget", "1"],
            Extra::Lost => &["--ring", "1"],
            Extra::None | Extra::Cut => &[],
        });
        options
    }

    /// Returns whether nothing was left out, nothing is missing, and the whole process was seen.
    fn is_plain(&self) -> bool {
        self.options.is_empty()
            && self.mode == Mode::Command
            && matches!(self.extra, Extra::None | Extra::SummaryOnly)
    }

    /// Returns whether nothing is missing that the recording was asked for.
    fn is_whole(&self) -> bool {
        self.mode != Mode::Everyone && matches!(self.extra, Extra::None | Extra::SummaryOnly)
    }
}

/// What the program did: by the names of `check`, and each function's calls as the libraries counted them.
struct ProgramCounts {
    figures: BTreeMap<String, u64>,
    functions: BTreeMap<String, u64>,
}

fn numbers(path: &str) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = |line: &str| {
        let (name, number) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Records one plan. Returns the trace and what the program did.
fn record(room: &Room, program: &str, plan: &Plan) -> (String, ProgramCounts) {
    let run = room.number();
    let [file, counts, by_library, go] =
        ["jsonl", "figures", "calls", "go"].map(|what| room.text(&format!("{run}.{what}")));
    let words = [plan.seed & 0xffff_ffff, plan.steps, plan.hot].map(|n| n.to_string());
    let mut words: Vec<&str> = [program].into_iter().chain(words.iter().map(String::as_str)).collect();
    words.push(&counts);
    let mut options = plan.options();
    options.extend(["-q", "-o", &file]);
    if plan.mode == Mode::Command {
        let mut command = room.gpurec(&options);
        command.arg("--").args(&words).env("STANDIN_COUNTS", &by_library);
        let recording = room.start_unchecked(command);
        stall(plan, &recording);
        recording.done().exited(0);
    } else {
        words.push(&go);
        let mut command = room.command(words[0]);
        command.args(&words[1..]).env("STANDIN_COUNTS", &by_library);
        let mut target = room.start_unchecked(command);
        target.wait_for_stdout("ready");
        let pid = target.pid().to_string();
        match plan.mode {
            Mode::Everyone => options.push("--all"),
            _ => options.extend(["--pid", &pid]),
        }
        let recording = room.start_unchecked(room.gpurec(&options));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        stall(plan, &recording);
        target.done().exited(0);
        if plan.mode == Mode::Everyone {
            recording.signal(Signal::SIGINT);
        }
        recording.done().exited(0);
    }
    let mut functions = numbers(&format!("{by_library}.cuda"));
    functions.extend(numbers(&format!("{by_library}.cudart")));
    (file, ProgramCounts { figures: numbers(&counts), functions })
}

fn stall(plan: &Plan, recording: &Started) {
    if plan.extra == Extra::Lost {
        recording.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(150));
        recording.signal(Signal::SIGCONT);
    }
}

/// Asserts that a figure is the program's own, or `null` with a reason. Returns whether it is known.
fn holds(what: &str, value: &Value, reason: Option<&str>, expected: u64) -> bool {
    if value.is_null() {
        assert!(reason.is_some_and(|reason| !reason.is_empty()), "{what}: null without a reason");
        return false;
    }
    assert_eq!(value.as_u64(), Some(expected), "{what}");
    true
}

/// The figures that have another name in the summary and the reports than in `check`.
const IN_SUMMARY: [(&str, &[&str]); 9] = [
    ("kernel_launches", &["launches"]),
    ("memory.allocations", &["memory.allocations"]),
    ("memory.allocated_bytes", &["memory.allocated"]),
    ("memory.frees", &["memory.frees"]),
    ("memory.freed_bytes", &["memory.freed"]),
    ("transfers.count", &["copies.calls", "copies.set.calls"]),
    ("transfers.bytes", &["copies.bytes", "copies.set.bytes"]),
    ("sync.calls", &["sync.calls"]),
    ("failures.calls", &["errors"]),
];
const IN_REPORTS: [(&str, &str, &[&str]); 5] = [
    ("kernels", "launches", &["launches"]),
    ("copies", "count", &["copies.calls", "copies.set.calls"]),
    ("copies", "bytes", &["copies.bytes", "copies.set.bytes"]),
    ("sync", "waits", &["sync.calls"]),
    ("errors", "failed_calls", &["errors"]),
];

fn at<'a>(document: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(document, |value, key| &value[key])
}

/// How many figures were checked, and how many are known.
#[derive(Default)]
struct Sums {
    figures: u64,
    known: u64,
    complete: u64,
    recordings: u64,
}

impl Sums {
    fn add(&mut self, known: bool) {
        self.figures += 1;
        self.known += u64::from(known);
    }
}

fn json(room: &Room, words: &[&str]) -> Value {
    let done = room.run(room.gpurec(words));
    assert!(done.stdout.starts_with(b"{"), "{words:?}: {}", done.text());
    serde_json::from_slice(&done.stdout).unwrap()
}

fn judge(room: &Room, plan: &Plan, file: &str, made: &ProgramCounts, sums: &mut Sums) {
    let summary = json(room, &["summary", "--json", file]);
    let sum = |names: &[&str]| names.iter().map(|name| made.figures[*name]).sum::<u64>();
    let mut all_known = true;
    for (figure, names) in IN_SUMMARY {
        let known = holds(figure, at(&summary, figure), summary["unknown"][figure].as_str(), sum(names));
        sums.add(known);
        all_known &= known;
    }
    let complete = summary["complete"].as_bool().unwrap();
    sums.recordings += 1;
    sums.complete += u64::from(complete);
    if plan.is_whole() {
        assert!(complete, "{:?}", summary["incomplete_because"]);
    }
    assert!(plan.extra != Extra::Cut || !complete, "a cut trace");
    assert!(!plan.is_plain() || all_known, "nothing is missing: {}", summary["unknown"]);
    calls(plan, &summary, made, complete);
    checks(room, plan, file, made, sums);
    for (view, figure, names) in IN_REPORTS {
        let report = json(room, &["report", view, "--json", file]);
        let reason = report["unknown"].as_object().and_then(|all| all.values().next()?.as_str());
        let note = report["notes"].as_array().and_then(|notes| notes.first()?.as_str());
        let value = report.get(figure).cloned().unwrap_or_else(|| match reason.or(note) {
            Some(_) => Value::Null,
            None => 0.into(),
        });
        sums.add(holds(&format!("report {view}: {figure}"), &value, reason.or(note), sum(names)));
    }
}

/// Checks the calls of each function, and of all.
fn calls(plan: &Plan, summary: &Value, made: &ProgramCounts, complete: bool) {
    for function in summary["functions"].as_array().unwrap() {
        let (name, calls) = (function["name"].as_str().unwrap(), function["calls"].as_u64().unwrap());
        let counted = match plan.mode {
            Mode::Command => made.functions.get(name),
            _ => made.figures.get(&format!("{name}.calls")),
        };
        let Some(counted) = counted else { continue };
        assert!(calls == *counted || (calls < *counted && !complete), "{name}: {calls} of {counted}");
    }
    if plan.is_plain() {
        let all: u64 = made.functions.values().sum();
        assert_eq!(summary["cuda_calls"].as_u64(), Some(all), "all calls");
    }
}

fn checks(room: &Room, plan: &Plan, file: &str, made: &ProgramCounts, sums: &mut Sums) {
    let assertions: Vec<String> =
        made.figures.iter().map(|(name, number)| format!("{name}=={number}")).collect();
    let mut words = vec!["check", "--json"];
    for assertion in &assertions {
        words.extend(["--budget", assertion]);
    }
    words.push(file);
    let checked = json(room, &words);
    for check in checked["checks"].as_array().unwrap() {
        let (what, verdict) = (check["budget"].as_str().unwrap(), check["verdict"].as_str().unwrap());
        let known = !check["value"].is_null();
        assert!(!known || verdict == "pass", "check {what}: {check}");
        assert!(known || verdict != "pass", "check {what} passes without a value: {check}");
        let because = check["because"].as_array().is_some_and(|because| !because.is_empty());
        assert!(known || because, "check {what}: no value, and no reason: {check}");
        assert!(known || !plan.is_plain() || plan.extra == Extra::SummaryOnly, "check {what}: {check}");
        sums.add(known);
    }
}

/// Cuts the trace off, as a killed writer leaves it.
fn cut(file: &str, parts: u64) {
    let bytes = fs::read(file).unwrap();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap() as u64 + 1;
    let rest = bytes.len() as u64 - header - 1;
    fs::write(file, &bytes[..(header + rest * parts / 1000) as usize]).unwrap();
}

#[test]
fn every_figure_is_the_programs_own_or_not_known() {
    let (first, count) = (first_seed(), recordings());
    let mode = std::env::var("GPUREC_MODE").ok();
    live(|room| {
        let libraries = concat!(env!("OUT_DIR"), "/demo");
        let linked = ["libcudart.so.13", "libcuda.so.1"].map(|name| format!("{libraries}/{name}"));
        let rpath = format!("-Wl,-rpath,{libraries}");
        let program = room.compile("matrix.c", "matrix", &[&linked[0], &linked[1], &rpath]);
        let mut sums = Sums::default();
        for seed in first..first + count {
            let plan = Plan::new(seed);
            if mode.as_ref().is_some_and(|mode| (mode == "everyone") != (plan.mode == Mode::Everyone)) {
                continue;
            }
            println!("GPUREC_SEED={seed} GPUREC_RECORDINGS=1: {plan:?}");
            let (file, made) = record(room, &program, &plan);
            if plan.extra == Extra::Cut {
                cut(&file, plan.cut);
            }
            judge(room, &plan, &file, &made, &mut sums);
            eventually("no process is left", || room.processes().is_empty());
            let _ = fs::remove_file(file);
        }
        println!(
            "{} recordings, {} complete; {} figures, {} of them known",
            sums.recordings, sums.complete, sums.figures, sums.known
        );
    });
}
