//! Compares a recording with what the stand-in library counted itself, with losses forced (tiny rings, a stopped
//! recorder, a slow reader, killed targets), and among calls that are hard to see (actions.rs).
//! In: a seed (GPUREC_SEED, else the clock) and the number of recordings (GPUREC_RECORDINGS, else as many as fit into
//! half a minute).
//! Out: for each function, recorded and lost calls add up to all that were made, or the trace says what else may be
//! missing; and `complete` is true exactly when nothing is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::actions::{self, Action};
use crate::needs::every_backend;
use crate::room::{Room, eventually, live, within};
use crate::trace::Trace;

/// On a machine that leaves the recorder no processor for seconds, the guardian resumes its targets before their hooks
/// are in, and the trace says so.
const RESUMED: &str = "gpurec's guardian resumed";

/// In the order of programs/truth.c.
pub const NAMES: [&str; 9] = [
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuCtxGetCurrent",
    "cuGetErrorName",
    "cuLaunchHostFunc",
];

/// One run of programs/truth.c.
pub struct Truth {
    pub program: String,
    pub words: Vec<String>,
    counts: PathBuf,
    by_library: String,
    actions: Vec<Action>,
}

/// For one function: how many calls the program began, and how many ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCounts {
    pub begun: u64,
    pub ended: u64,
}

impl Truth {
    /// Builds the program once for each test environment.
    pub fn new(room: &Room, seed: u64, threads: u64, calls: u64, storm: bool) -> Truth {
        let program = room.text("truth");
        if !fs::exists(&program).unwrap() {
            room.compile("truth.c", "truth", &[]);
        }
        let run = room.number();
        let counts = room.path(&format!("made-{run}"));
        // A copy: the hooks of recordings that run at the same time would watch returns here too (docs/limitations.md).
        let library = room.text("libcuda.so.1");
        if !fs::exists(&library).unwrap() {
            fs::copy(concat!(env!("OUT_DIR"), "/demo/libcuda.so.1"), &library).unwrap();
        }
        let mut words = vec![program.clone(), library, counts.to_str().unwrap().to_owned()];
        words.extend([seed & 0xffff, threads, calls].map(|n| n.to_string()));
        if storm {
            words.push("storm".to_owned());
        }
        let by_library = room.text(&format!("library-{run}"));
        Truth { program, words, counts, by_library, actions: Vec::new() }
    }

    /// Makes the program do these actions among its calls.
    fn with(self, actions: &[Action]) -> Truth {
        let names = actions.iter().map(|action| action.name.to_owned());
        Truth { words: self.words.into_iter().chain(names).collect(), actions: actions.to_vec(), ..self }
    }

    /// `gpurec OPTIONS --only EACH -o FILE -- truth…`
    pub fn recording(&self, room: &Room, options: &[&str], file: &str) -> Command {
        let mut command = room.gpurec(options);
        for name in NAMES {
            command.args(["--only", name]);
        }
        command.args(["-o", file, "--"]).args(&self.words).env("STANDIN_COUNTS", &self.by_library);
        actions::prepared(room, command, &self.actions)
    }

    /// The program by itself, as a target to be attached to.
    pub fn command(&self, room: &Room) -> Command {
        let mut command = room.command(&self.program);
        command.args(&self.words[1..]).env("STANDIN_COUNTS", &self.by_library);
        command
    }

    fn number(&self, index: usize) -> u64 {
        let bytes = fs::read(&self.counts).unwrap_or_default();
        bytes.get(index * 8..index * 8 + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap()))
    }

    /// Returns the program's process number, once it begins to make calls.
    pub fn pid(&self) -> Option<u32> {
        Some(self.number(0) as u32).filter(|pid| *pid > 0)
    }

    pub fn has_finished(&self) -> bool {
        self.number(1) == 1
    }

    pub fn made(&self) -> [CallCounts; NAMES.len()] {
        std::array::from_fn(|i| CallCounts { begun: self.number(2 + 2 * i), ended: self.number(3 + 2 * i) })
    }

    /// The number of processes that it started and that have ended.
    fn children(&self) -> u64 {
        self.number(2 + 3 * NAMES.len())
    }

    /// The libraries' own count of each function; None if the process was killed.
    pub fn counted(&self) -> Option<BTreeMap<String, u64>> {
        let text = fs::read_to_string(format!("{}.cuda", self.by_library)).ok()?;
        let line = |line: &str| {
            let (name, count) = line.split_once(' ').unwrap();
            (name.to_owned(), count.parse::<u64>().unwrap())
        };
        let mut counted: BTreeMap<String, u64> = text.lines().map(line).collect();
        for (i, name) in NAMES.iter().enumerate() {
            *counted.entry(name.to_string()).or_default() += self.number(2 + 2 * NAMES.len() + i);
        }
        Some(counted)
    }

    /// Compares a trace with the truth. Returns calls recorded and calls lost.
    pub fn holds(&self, trace: &Trace, threads: u64) -> (u64, u64) {
        let counted = self.counted();
        let mut sums = (0, 0);
        for (name, made) in NAMES.iter().zip(self.made()) {
            let (lost, lost_returns) = (lost(trace, name), lost(trace, &format!("{name} (return)")));
            let TraceCounts { recorded, unreturned, died } = seen(trace, name);
            let all = recorded + lost;
            match &counted {
                Some(counted) => {
                    let truth = counted.get(*name).copied().unwrap_or(0);
                    assert_eq!(
                        (made.begun, made.ended),
                        (truth, truth),
                        "{name}: the program and the library"
                    );
                    let said = (!self.actions.is_empty() && actions::says_what_is_missing(trace))
                        || was_resumed(trace);
                    assert!(
                        all == truth || (all < truth && said),
                        "{name}: recorded {recorded} and lost {lost}, of the library's own count {truth}; incomplete because {:?}",
                        trace.reasons()
                    );
                    assert_eq!((unreturned, died), (lost_returns, 0), "{name}: returns");
                }
                // A thread may be killed before or after it passed the hook.
                None => {
                    let made = made.ended..=made.begun;
                    let said = all < *made.start() && was_resumed(trace);
                    assert!(
                        made.contains(&all) || said,
                        "{name}: recorded {recorded}, lost {lost}, made {made:?}; incomplete because {:?}",
                        trace.reasons()
                    );
                    let returns = lost_returns..=lost_returns + threads;
                    assert!(
                        returns.contains(&(unreturned + died)),
                        "{name}: {unreturned} {died} {returns:?}"
                    );
                }
            }
            sums = (sums.0 + recorded, sums.1 + lost);
        }
        self.is_complete_if_whole(trace, sums, counted);
        sums
    }

    /// Asserts that `complete` is true exactly when nothing is missing or may be missing.
    fn is_complete_if_whole(&self, trace: &Trace, sums: (u64, u64), counted: Option<BTreeMap<String, u64>>) {
        let returns: u64 = NAMES.iter().map(|name| lost(trace, &format!("{name} (return)"))).sum();
        let made = counted.map(|c| NAMES.iter().filter_map(|name| c.get(*name)).sum());
        let calls_missing = sums.0 != made.unwrap_or(sums.0 + sums.1);
        let unwatched = trace.unwatched().count();
        let children = self.children() as usize;
        let processes = ["exec", "exit", "library", "fork"].map(|event| trace.process_events(event).len());
        let processes_missing = processes[0] != 1
            || processes[1] != 1 + children
            || processes[2] == 0
            || processes[3] != children;
        let missing = calls_missing || returns > 0 || unwatched > 0 || processes_missing;
        let may_be = was_resumed(trace) || !self.actions.is_empty() && actions::says_what_is_missing(trace);
        assert_eq!(
            trace.complete(),
            !(missing || may_be),
            "complete, with calls missing: {calls_missing}, returns: {returns}, not watched: {unwatched}, \
             exec, exit, library, fork: {processes:?} with {children} children; {:?}",
            trace.reasons()
        );
        assert!(trace.lost() == 0 || !trace.complete());
        let expected = trace.lost() > 0 || !self.actions.is_empty() || was_resumed(trace);
        assert!(trace.complete() || expected, "{:?}", trace.reasons());
    }
}

fn lost(trace: &Trace, name: &str) -> u64 {
    trace.of_type("lost").filter_map(|line| line["by_probe"][name].as_u64()).sum()
}

/// What a trace says of a function.
struct TraceCounts {
    recorded: u64,
    /// How many of those have no return.
    unreturned: u64,
    died: u64,
}

fn seen(trace: &Trace, name: &str) -> TraceCounts {
    let in_flight: Vec<_> = trace.in_flight().into_iter().filter(|call| call.name == name).collect();
    let died = in_flight.iter().filter(|call| call.died).count() as u64;
    let open = in_flight.len() as u64 - died;
    if !trace.has_no_calls() {
        let calls = trace.named(name);
        let lost = calls.iter().filter(|call| call.end.as_ref().is_some_and(|end| end.lost)).count() as u64;
        assert!(calls.iter().all(|call| call.end.as_ref().is_none_or(|end| !end.unwound)), "{name}");
        return TraceCounts { recorded: calls.len() as u64, unreturned: lost + open, died };
    }
    // The trace has only counts: the figures include calls that returned, and the rest is reported as lost.
    let functions = trace.end["summary"]["functions"].as_array().unwrap();
    let number =
        |function: &serde_json::Value, key: &str| function.get(key).map_or(0, |n| n.as_u64().unwrap());
    let returned = |function: &serde_json::Value| number(function, "calls") - number(function, "unfinished");
    let returned = functions.iter().find(|f| f["name"] == name).map_or(0, returned);
    let unreturned = lost(trace, &format!("{name} (return)"));
    TraceCounts { recorded: returned + unreturned + died, unreturned, died }
}

/// A generator as good as its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a test does to one recording.
#[derive(Debug)]
struct Plan {
    seed: u64,
    backend: &'static str,
    threads: u64,
    calls: u64,
    lossless: bool,
    summary_only: bool,
    storm: bool,
    /// How often the recorder is stopped, and for how many ms each time.
    stalls: u64,
    stall_ms: u64,
    /// How long its reader sleeps after each piece, in ms.
    slow_reader: Option<u64>,
    /// After how many us the target is killed.
    killed_after: Option<u64>,
    actions: Vec<Action>,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        // Makes seeds that follow each other have nothing in common.
        let mut random = Random(seed << 32);
        let backends = every_backend();
        let threads = 1 + random.below(8);
        let killed_after = random.one_in(4).then(|| random.below(120_000));
        let mut plan = Plan {
            seed,
            backend: backends[random.below(backends.len() as u64) as usize],
            threads,
            // A program that the test kills must not end before that.
            calls: (500 + random.below(16_000)) * if killed_after.is_some() { 8 } else { 1 } / threads,
            lossless: random.one_in(2),
            summary_only: random.one_in(5),
            storm: random.one_in(4),
            stalls: random.below(4),
            stall_ms: 1 + random.below(150),
            slow_reader: random.one_in(4).then(|| 1 + random.below(30)),
            killed_after,
            actions: Vec::new(),
        };
        // After a process is killed, the actions of its children are unknown.
        if plan.killed_after.is_none() {
            plan.actions = actions::some(&mut random, plan.backend, plan.summary_only);
        }
        plan
    }

    fn options(&self) -> Vec<&str> {
        let mut options = vec!["-q", "--backend", self.backend, "--ring", "1"];
        options.extend(self.lossless.then_some("--lossless"));
        options.extend(self.summary_only.then_some("--summary-only"));
        options
    }
}

/// Copies what comes through a pipe into a file, slowly.
fn read_slowly(from: PathBuf, to: PathBuf, ms: u64) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut from, mut to) = (File::open(from).unwrap(), File::create(to).unwrap());
        let mut bytes = vec![0; 64 << 10];
        loop {
            let length = from.read(&mut bytes).unwrap();
            if length == 0 {
                return;
            }
            to.write_all(&bytes[..length]).unwrap();
            std::thread::sleep(Duration::from_millis(ms));
        }
    })
}

struct TracedRun {
    trace: Trace,
    truth: Truth,
    status: Option<i32>,
}

fn record(room: &Room, plan: &Plan) -> TracedRun {
    let truth = Truth::new(room, plan.seed, plan.threads, plan.calls, plan.storm).with(&plan.actions);
    let file = room.path(&format!("{}.jsonl", plan.seed));
    let errors = room.path(&format!("{}.err", plan.seed));
    let pipe = room.path(&format!("{}.pipe", plan.seed));
    let reader = plan.slow_reader.map(|ms| {
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        read_slowly(pipe.clone(), file.clone(), ms)
    });
    let output = if reader.is_some() { &pipe } else { &file };
    let mut command = truth.recording(room, &plan.options(), output.to_str().unwrap());
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut child = command.stderr(File::create(&errors).unwrap()).spawn().unwrap();
    disturb(&mut child, plan, &truth);
    let ended = within(Duration::from_secs(120), || child.try_wait().unwrap().is_some());
    assert!(ended, "it does not end; {:?}", room.processes());
    if let Some(reader) = reader {
        reader.join().unwrap();
    }
    let status = child.wait().unwrap().code();
    let said = fs::read_to_string(&errors).unwrap();
    assert!(said.is_empty(), "it said {said}");
    let trace = Trace::checked(room, file.to_str().unwrap());
    for path in [file, errors, pipe] {
        let _ = fs::remove_file(path);
    }
    TracedRun { trace, truth, status }
}

/// Stops the recorder and kills the target, as planned.
fn disturb(recorder: &mut Child, plan: &Plan, truth: &Truth) {
    let recorder_pid = Pid::from_raw(recorder.id() as i32);
    eventually("the first call", || truth.pid().is_some() || recorder.try_wait().unwrap().is_some());
    let Some(target) = truth.pid() else { return };
    let mut random = Random(plan.seed ^ 0x5555);
    for _ in 0..plan.stalls {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        kill(recorder_pid, Signal::SIGSTOP).unwrap();
        std::thread::sleep(Duration::from_millis(plan.stall_ms));
        kill(recorder_pid, Signal::SIGCONT).unwrap();
    }
    if let Some(us) = plan.killed_after {
        std::thread::sleep(Duration::from_micros(us));
        // The recorder reaps the target: until then the number is the target's.
        if !truth.has_finished() && recorder.try_wait().unwrap().is_none() {
            let _ = kill(Pid::from_raw(target as i32), Signal::SIGKILL);
        }
    }
}

#[derive(Default)]
struct Sums {
    recordings: u64,
    killed: u64,
    lossless: u64,
    with_loss: u64,
    paused: u64,
    pauses: u64,
    recorded: u64,
    lost: u64,
    with_actions: u64,
    /// How many of those missed calls, and say so.
    unseen: u64,
    /// Calls without a return.
    unwatched: u64,
}

/// Returns whether the trace says that the program was resumed before its library had hooks, as on a starved machine.
fn was_resumed(trace: &Trace) -> bool {
    trace.reasons().iter().any(|reason| reason.contains(RESUMED) || reason.contains("did not answer within"))
}

/// GPUREC_SEED, else from the clock.
pub fn first_seed() -> u64 {
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    variable("GPUREC_SEED").unwrap_or_else(|| clock() % 1_000_000_000)
}

pub fn recordings() -> u64 {
    variable("GPUREC_RECORDINGS").unwrap_or(30)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

#[test]
fn recorded_and_lost_are_all_that_the_library_counted() {
    let (first, count) = (first_seed(), recordings());
    live(|room| {
        let (mut sums, began) = (Sums::default(), Instant::now());
        for seed in first..first + count {
            let plan = Plan::new(seed);
            println!("GPUREC_SEED={seed} GPUREC_RECORDINGS=1: {plan:?}");
            add(&mut sums, &plan, record(room, &plan));
        }
        println!("{}", said(&sums, began.elapsed()));
    });
}

fn add(sums: &mut Sums, plan: &Plan, done: TracedRun) {
    let (recorded, lost) = done.truth.holds(&done.trace, plan.threads + 1);
    let killed = done.truth.counted().is_none();
    assert_eq!(done.status, Some(if killed { 137 } else { 0 }), "its own end");
    assert!(!killed || plan.killed_after.is_some());
    let pauses = done.trace.end["summary"]["pauses"]["count"].as_u64();
    assert_eq!(pauses.is_some(), plan.lossless);
    if plan.lossless {
        assert_eq!(done.trace.lost(), 0, "--lossless: {}", done.trace.end["summary"]["lost_by_probe"]);
    }
    sums.recordings += 1;
    sums.killed += u64::from(killed);
    sums.lossless += u64::from(plan.lossless);
    sums.with_loss += u64::from(done.trace.lost() > 0);
    sums.paused += u64::from(pauses.is_some_and(|count| count > 0));
    sums.pauses += pauses.unwrap_or(0);
    sums.recorded += recorded;
    sums.lost += lost;
    let made: u64 = done.truth.made().iter().map(|made| made.ended).sum();
    sums.unwatched += done.trace.unwatched().count() as u64;
    sums.with_actions += u64::from(!plan.actions.is_empty());
    sums.unseen += u64::from(!plan.actions.is_empty() && recorded + lost < made);
}

fn said(sums: &Sums, took: Duration) -> String {
    let Sums { recordings, killed, lossless, with_loss, paused, pauses, recorded, lost, .. } = sums;
    let Sums { with_actions, unseen, unwatched, .. } = sums;
    let mut text = format!(
        "{recordings} recordings in {} s: {killed} killed, {with_loss} with losses, ",
        took.as_secs()
    );
    let _ = write!(text, "{recorded} calls recorded, {lost} lost; ");
    let _ = write!(text, "{lossless} with --lossless, of which {paused} paused, {pauses} times; ");
    let _ = write!(text, "{with_actions} with actions, of which {unseen} say that calls were not seen; ");
    let _ = write!(text, "{unwatched} calls without a return");
    text
}
