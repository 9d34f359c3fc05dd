//! A trace, read by this suite's own reader and checked line by line against the trace format.
//! In: a file.
//! Out: its calls, paired, and its other lines; any broken promise fails the test.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::figures;
use crate::room::Room;

pub struct Trace {
    pub header: Value,
    pub end: Value,
    /// All lines but the calls', in order.
    pub others: Vec<Value>,
    /// In the order in which they began.
    pub calls: Vec<Call>,
    pub lines: u64,
    /// The time of the last line, in nanoseconds.
    pub last_ns: u64,
}

pub struct Call {
    pub id: u64,
    pub ts: u64,
    pub name: String,
    pub pid: u32,
    pub tid: u32,
    pub depth: u32,
    pub parent: Option<u64>,
    /// The number of its own stack.
    pub stack: Option<u64>,
    /// Why gpurec cannot watch its return.
    pub no_return: Option<String>,
    pub end: Option<End>,
}

pub struct End {
    pub id: u64,
    pub ts: u64,
    pub duration_ns: Option<u64>,
    pub paused_ns: u64,
    pub retval: Value,
    pub error: Option<String>,
    pub unwound: bool,
    pub lost: bool,
}

#[derive(Deserialize)]
struct Userspace<'a> {
    event_id: u64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    phase: Cow<'a, str>,
    pid: u32,
    tid: u32,
    depth: Option<u32>,
    parent: Option<u64>,
    stack: Option<u64>,
    no_return: Option<String>,
    #[serde(borrow)]
    args: Option<BTreeMap<Cow<'a, str>, IgnoredAny>>,
    begin: Option<u64>,
    duration_us: Option<f64>,
    paused_us: Option<f64>,
    #[serde(default)]
    retval: Value,
    error: Option<String>,
    #[serde(default)]
    unwound: bool,
    #[serde(default)]
    lost: bool,
}

/// A call that the `end` line lists as in flight.
#[derive(Clone, Debug, Deserialize)]
pub struct InFlight {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub begin: u64,
    pub duration_us: f64,
    pub died: bool,
}

impl InFlight {
    pub fn duration_ns(&self) -> u64 {
        (self.duration_us * 1e3).round() as u64
    }
}

const TYPES: [&str; 16] = [
    "header",
    "process",
    "userspace",
    "memory",
    "transfer",
    "kernel",
    "scheduler",
    "lost",
    "budget",
    "stack",
    "block",
    "collective",
    "gpu",
    "device",
    "clock",
    "end",
];

impl Trace {
    /// Reads a file and checks every promise, those of `gpurec summary FILE` too.
    pub fn checked(room: &Room, file: &str) -> Trace {
        let trace = Trace::parsed(&text_of(Path::new(file)));
        trace.check();
        figures::check(room, file, &trace);
        trace
    }

    /// Reads lines, and checks each of them and their order.
    pub fn parsed(text: &str) -> Trace {
        assert!(text.ends_with('\n'), "the last line is not whole: {:?}", text.lines().last());
        let mut reading = Reading::default();
        for line in text.lines() {
            reading.line(line);
        }
        reading.done()
    }

    fn check(&self) {
        self.check_nesting();
        self.check_in_flight();
        self.check_losses();
    }

    /// Checks that calls nest in each thread, with the depth and parent that follow from that. Calls whose thread died
    /// end when it died, as `in_flight` says. A call whose return cannot be watched has a position among the others,
    /// and encloses none.
    fn check_nesting(&self) {
        let died: HashMap<u64, u64> = self
            .in_flight()
            .iter()
            .filter(|call| call.died)
            .map(|call| (call.begin, call.duration_ns()))
            .collect();
        let mut threads: HashMap<u32, Vec<&Call>> = HashMap::new();
        for call in &self.calls {
            let open = threads.entry(call.tid).or_default();
            while let Some(top) = open.last() {
                let over = match &top.end {
                    Some(end) => end.id < call.id,
                    None => died.get(&top.id).is_some_and(|lived| top.ts + lived <= call.ts),
                };
                if !over {
                    break;
                }
                open.pop();
            }
            assert_eq!(call.depth as usize, open.len(), "the depth of {call:?} in {open:?}");
            assert_eq!(call.parent, open.last().map(|outer| outer.id), "the parent of {call:?}");
            if let (Some(outer), Some(end)) = (open.last(), &call.end)
                && let Some(outer_end) = &outer.end
            {
                assert!(end.id < outer_end.id, "{call:?} outlives {outer:?}");
            }
            if call.no_return.is_none() {
                open.push(call);
            }
        }
    }

    /// Checks that exactly the calls without an end are in flight, except for calls whose return cannot be watched.
    fn check_in_flight(&self) {
        if self.has_no_calls() {
            return;
        }
        let by_id: HashMap<u64, &Call> = self
            .calls
            .iter()
            .filter(|c| c.end.is_none() && c.no_return.is_none())
            .map(|c| (c.id, c))
            .collect();
        let listed = self.in_flight();
        for one in &listed {
            let call = by_id.get(&one.begin).unwrap_or_else(|| panic!("not in flight, or ended: {one:?}"));
            assert_eq!((&call.name, call.pid, call.tid), (&one.name, one.pid, one.tid));
            let at_most = self.last_ns - call.ts;
            let lived = one.duration_ns();
            assert!(if one.died { lived <= at_most } else { lived == at_most }, "{one:?}: {at_most}");
        }
        let mut ids: Vec<u64> = listed.iter().map(|one| one.begin).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), listed.len(), "a call is in flight twice: {listed:?}");
        let unlisted: Vec<_> = by_id.values().filter(|call| !ids.contains(&call.id)).collect();
        assert!(unlisted.is_empty(), "neither ended nor in flight: {unlisted:?}");
    }

    fn check_losses(&self) {
        let mut sum = 0;
        for line in self.of_type("lost") {
            let count = line["count"].as_u64().unwrap();
            let by_probe: u64 =
                line["by_probe"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(count, by_probe, "{line}");
            sum += count;
        }
        let end = &self.end;
        assert_eq!(end["lost"], sum, "the sum of the lost lines");
        assert_eq!(end["events"], self.lines - 1, "end.events");
        let reasons = self.reasons().len();
        assert_eq!(self.complete(), reasons == 0, "complete and incomplete_because: {end}");
        assert_eq!(self.codes().len(), reasons, "a code for each reason: {end}");
        assert!(sum == 0 || !self.complete(), "complete in spite of losses: {end}");
        let lost_ends = self.ends().filter(|end| end.lost).count();
        assert!(lost_ends == 0 || sum > 0, "{lost_ends} lost ends, no losses");
        let unwatched = self.unwatched().next();
        assert!(unwatched.is_none() || !self.complete(), "complete in spite of {unwatched:?}");
    }

    pub fn complete(&self) -> bool {
        self.end["complete"].as_bool().expect("end.complete")
    }

    pub fn lost(&self) -> u64 {
        self.end["lost"].as_u64().expect("end.lost")
    }

    pub fn in_flight(&self) -> Vec<InFlight> {
        serde_json::from_value(self.end["in_flight"].clone()).expect("end.in_flight")
    }

    /// The recording was made with --summary-only.
    pub fn has_no_calls(&self) -> bool {
        self.header["options"]["summary_only"] == true
    }

    pub fn ends(&self) -> impl Iterator<Item = &End> {
        self.calls.iter().filter_map(|call| call.end.as_ref())
    }

    /// The calls whose return cannot be watched.
    pub fn unwatched(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.no_return.is_some())
    }

    /// Why the trace is not complete, each reason a sentence.
    pub fn reasons(&self) -> Vec<&str> {
        let listed = self.end["incomplete_because"].as_array();
        listed.into_iter().flatten().map(|reason| reason.as_str().expect("a sentence")).collect()
    }

    /// The code of each reason.
    pub fn codes(&self) -> Vec<&str> {
        let listed = self.end["incomplete_codes"].as_array();
        listed.into_iter().flatten().map(|code| code.as_str().expect("a code")).collect()
    }

    /// The sentence of the first reason with this code.
    pub fn reason(&self, code: &str) -> &str {
        let at = self.codes().iter().position(|one| *one == code);
        at.and_then(|at| self.reasons().get(at).copied())
            .unwrap_or_else(|| panic!("{code}: {:?}", self.reasons()))
    }

    pub fn of_type(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.others.iter().filter(move |line| line["type"] == kind)
    }

    pub fn process_events(&self, name: &str) -> Vec<&Value> {
        self.of_type("process").filter(|line| line["name"] == name).collect()
    }

    pub fn named(&self, name: &str) -> Vec<&Call> {
        self.calls.iter().filter(|call| call.name == name).collect()
    }

    /// How often each function was called.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for call in &self.calls {
            *counts.entry(call.name.clone()).or_insert(0) += 1;
        }
        counts
    }

    /// Asserts that nothing is missing, and that every call returned.
    #[track_caller]
    pub fn is_whole(&self) -> &Trace {
        assert_eq!(
            self.lost(),
            0,
            "lost: {:?}, {}",
            self.of_type("lost").collect::<Vec<_>>(),
            self.end["incomplete_because"]
        );
        assert!(self.complete(), "{}", self.end["incomplete_because"]);
        assert!(self.in_flight().is_empty(), "{:?}", self.in_flight());
        assert!(self.ends().all(|end| !end.unwound && !end.lost && end.duration_ns.is_some()));
        self
    }

    /// Asserts that the trace has exactly these calls.
    #[track_caller]
    pub fn has_calls(&self, expected: &[(&str, u64)]) -> &Trace {
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(name, count)| (name.to_string(), *count)).collect();
        assert_eq!(self.counts(), expected);
        self
    }

    #[track_caller]
    pub fn by(&self, backend: &str) -> &Trace {
        assert_eq!(self.header["hooks"]["userspace"]["backend"], backend);
        self
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let ended = match (&self.end, &self.no_return) {
            (Some(end), _) => format!("to {}", end.ts),
            (None, Some(why)) => format!("without a return: {why}"),
            (None, None) => "no end".to_owned(),
        };
        write!(f, "{} {} pid {} tid {} at {} {ended}", self.id, self.name, self.pid, self.tid, self.ts)
    }
}

#[derive(Default)]
struct Reading {
    lines: u64,
    last_ns: u64,
    others: Vec<Value>,
    calls: Vec<Call>,
    /// The index in `calls` of each begin, by its event_id.
    begun: HashMap<u64, usize>,
}

impl Reading {
    fn line(&mut self, line: &str) {
        assert!(!self.others.last().is_some_and(|last| last["type"] == "end"), "after the end: {line}");
        let ts = decimal(line, "ts", 9).unwrap_or_else(|| panic!("no ts with nine decimals: {line}"));
        // Lines of GPU work come late.
        if !line.contains("\"type\":\"gpu\"") {
            assert!(ts >= self.last_ns, "time goes back from {}: {line}", self.last_ns);
            self.last_ns = ts;
        }
        let id = if line.contains("\"type\":\"userspace\"") {
            let call = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            self.userspace(line, ts, call)
        } else {
            self.other(line)
        };
        assert_eq!(id, self.lines, "event_id counts by one: {line}");
        self.lines += 1;
    }

    fn other(&mut self, line: &str) -> u64 {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let kind = value["type"].as_str().expect("type");
        assert!(TYPES.contains(&kind), "an unknown type: {line}");
        assert!(value["name"].is_string(), "no name: {line}");
        assert_eq!(kind == "header", self.lines == 0, "the header is the first line: {line}");
        let id = value["event_id"].as_u64().expect("event_id");
        self.others.push(value);
        id
    }

    fn userspace(&mut self, line: &str, ts: u64, u: Userspace) -> u64 {
        let id = u.event_id;
        assert!(u.pid > 0 && u.tid > 0 && !u.name.is_empty(), "{line}");
        if u.phase == "B" {
            assert!(u.begin.is_none() && u.args.is_some(), "{line}");
            let (name, depth) = (u.name.into_owned(), u.depth.expect("depth"));
            let (pid, tid, parent, stack, no_return) = (u.pid, u.tid, u.parent, u.stack, u.no_return);
            assert!(no_return.as_ref().is_none_or(|why| why.len() > 5), "no reason: {line}");
            self.begun.insert(id, self.calls.len());
            self.calls.push(Call { id, ts, name, pid, tid, depth, parent, stack, no_return, end: None });
            return id;
        }
        assert_eq!(u.phase, "E", "{line}");
        let begin = u.begin.unwrap_or_else(|| panic!("no begin: {line}"));
        let index = *self.begun.get(&begin).unwrap_or_else(|| panic!("ends what never began: {line}"));
        let call = &mut self.calls[index];
        assert!(call.end.is_none(), "ends {call:?} again: {line}");
        assert!(call.no_return.is_none() && u.no_return.is_none(), "ends what has no return: {line}");
        assert_eq!((&*u.name, u.pid, u.tid), (&*call.name, call.pid, call.tid), "{line}");
        let duration_ns = u.duration_us.map(|_| decimal(line, "duration_us", 3).expect("three decimals"));
        if let Some(ns) = duration_ns {
            assert_eq!(ns, ts - call.ts, "{line} ends {call:?}");
        }
        let paused_ns = u.paused_us.map_or(0, |_| decimal(line, "paused_us", 3).expect("three decimals"));
        assert!(paused_ns <= duration_ns.unwrap_or(0), "paused for longer than it took: {line}");
        assert!(duration_ns.is_some() || u.lost, "no duration: {line}");
        let (retval, error, unwound, lost) = (u.retval, u.error, u.unwound, u.lost);
        assert!(!(unwound || lost) || retval.is_null(), "a retval of a call that did not return: {line}");
        call.end = Some(End { id, ts, duration_ns, paused_ns, retval, error, unwound, lost });
        id
    }

    fn done(mut self) -> Trace {
        let header = self.others.first().expect("a header").clone();
        let end = self.others.pop().expect("an end");
        assert_eq!(end["type"], "end", "the last line is {end}");
        Trace {
            header,
            end,
            others: self.others,
            calls: self.calls,
            lines: self.lines,
            last_ns: self.last_ns,
        }
    }
}

/// Reads a number with exactly this many decimals, as an integer of the smallest of them. A quote inside a JSON string
/// is escaped, so what matches the quoted key is a key.
fn decimal(line: &str, key: &str, decimals: usize) -> Option<u64> {
    let key = format!("\"{key}\":");
    let rest = &line[line.find(&key)? + key.len()..];
    let number = &rest[..rest.find([',', '}'])?];
    let (whole, part) = number.split_once('.')?;
    (part.len() == decimals).then(|| format!("{whole}{part}").parse().ok())?
}

/// A file's text, decompressed if need be.
pub fn text_of(path: &Path) -> String {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut file = BufReader::new(file);
    let mut text = String::new();
    if file.fill_buf().unwrap().starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        zstd::stream::read::Decoder::with_buffer(file).unwrap().read_to_string(&mut text).unwrap();
    } else {
        file.read_to_string(&mut text).unwrap();
    }
    text
}
