//! Compares a trace with the truth.
//! In: a visit and a recording's name.
//! Out: panics that say what differs.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::machine::{Visit, root};
use crate::truth::{Request, Truth};

pub struct Ioctl {
    pub request: Request,
    /// The event_id of the CUDA call around it.
    call: Option<u64>,
    pid: Option<u64>,
    named: bool,
    duration: Option<f64>,
}

pub struct Recording {
    pub about: String,
    pub lines: Vec<Value>,
    pub ioctls: Vec<Ioctl>,
    pub truth: Truth,
}

pub fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_default()
}

/// Reads the "number name" lines of one of gpurec's tables, as name to numbers.
fn table(file: &str) -> BTreeMap<String, Vec<u32>> {
    let path = root().join("crates/nvidia/src").join(file);
    let mut names: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap().lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        if let (Some(number), Some(name)) = (words.next(), words.next())
            && let Ok(number) = u32::from_str_radix(number, 16)
        {
            names.entry(name.to_owned()).or_default().push(number);
        }
    }
    names
}

/// A name of the table, or the number itself: 0x7777, GSS_LEGACY_0x0000fe01.
fn number(name: &str, table: &BTreeMap<String, Vec<u32>>) -> Option<u32> {
    if let Some(numbers) = table.get(name) {
        return numbers.first().copied();
    }
    u32::from_str_radix(name.rsplit("0x").next()?, 16).ok()
}

/// Returns the nr of a request that may come wrapped; other requests have it in the command word.
fn nr_of(request: &str, cmd: u32, unified: bool, wrapped: bool) -> u32 {
    match request {
        "NV_ESC_RM_CONTROL" if wrapped => 0x2a,
        _ if unified => cmd,
        _ => cmd & 0xff,
    }
}

/// Linux skipped hits of a probe: gpurec reports at most how many, and no more is missing.
pub fn says_what_was_passed_over(visit: &Visit, name: &str) {
    let about = format!("{visit}, {name}");
    let trace = visit.text(&format!("{name}.jsonl"));
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = lines.last().unwrap();
    assert_eq!((&end["lost"], &end["complete"]), (&Value::from(0), &Value::from(false)), "{about}");
    let (because, codes) = (&end["incomplete_because"], &end["incomplete_codes"]);
    let at = codes.as_array().and_then(|codes| codes.iter().position(|code| code == "recursion_misses"));
    let sentence = at.and_then(|at| because[at].as_str());
    let count = sentence.and_then(|why| why.split(' ').find_map(|word| word.parse::<u64>().ok()));
    let seen = lines.iter().filter(|line| text(line, "phase") == "B" && !line["request"].is_null()).count();
    let truth = Truth::read(&visit.text(&format!("{name}.truth")));
    let missing = truth.total().saturating_sub(seen as u64);
    assert!(count.is_some_and(|count| count >= missing), "{about}: {missing} are missing, {because:?}");
}

impl Recording {
    pub fn read(visit: &Visit, name: &str) -> Recording {
        let about = format!("{visit}, {name}");
        let trace = visit.text(&format!("{name}.jsonl"));
        assert!(!trace.is_empty(), "{about}: no trace; gpurec said: {}", visit.text(&format!("{name}.txt")));
        let parse =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{about}: {e}: {line}"));
        let lines: Vec<Value> = trace.lines().map(parse).collect();
        let truth = Truth::read(&visit.text(&format!("{name}.truth")));
        let ioctls = ioctls(&lines, &about);
        Recording { about, lines, ioctls, truth }
    }

    pub fn is_complete(&self) {
        let end = self.lines.last().unwrap();
        assert_eq!(text(end, "type"), "end", "{}", self.about);
        assert_eq!(end["lost"], 0, "{}: {end}", self.about);
        assert_eq!(end["complete"], true, "{}: {}", self.about, end["incomplete_because"]);
    }

    /// Asserts that each outermost call has a stack down to where its thread began, and that some come from main.
    pub fn has_stacks(&self) {
        self.is_complete();
        let stacks: Vec<&Value> = self.lines.iter().filter(|line| line["type"] == "stack").collect();
        let calls = self.lines.iter().filter(|line| line["phase"] == "B" && line["depth"] == 0);
        let mut count = 0;
        for call in calls {
            let number = call["stack"].as_u64().unwrap_or_else(|| panic!("{}: no stack: {call}", self.about));
            let stack = stacks.iter().find(|line| line["stack"] == number).expect("a line before its number");
            let frames = stack["frames"].as_array().unwrap();
            let outermost = frames.last().unwrap_or_else(|| panic!("{}: no frame: {stack}", self.about));
            let began =
                text(outermost, "function") == "_start" || text(outermost, "module").contains("/libc.so.6");
            assert!(began || stack["cut"] == true, "{}: {stack}", self.about);
            count += usize::from(frames.iter().any(|frame| frame["function"] == "main"));
        }
        assert!(count > 0, "{}: no stack reaches main", self.about);
    }

    /// Asserts that each ioctl is there once, with its name, status and duration.
    pub fn has_what_the_driver_counted(&self) {
        let mut mine: BTreeMap<Request, u64> = BTreeMap::new();
        for one in &self.ioctls {
            *mine.entry(one.request.clone()).or_default() += 1;
            assert!(
                one.duration.is_some_and(|us| us > 0.0),
                "{}: no duration: {:?}",
                self.about,
                one.request
            );
            let known = one.request.returned == 0 && one.request.status == Some(0);
            assert!(one.named || !known, "{}: without a name: {:?}", self.about, one.request);
        }
        let mut truth: BTreeMap<Request, u64> = BTreeMap::new();
        for (request, count) in &self.truth.requests {
            *truth.entry(seen(request)).or_default() += count;
        }
        assert_eq!(self.ioctls.len() as u64, self.truth.total(), "{}: so many ioctls", self.about);
        for (request, count) in &truth {
            assert_eq!(mine.get(request), Some(count), "{}: {request:?}, of {mine:#?}", self.about);
        }
    }

    /// The stand-in libcuda calls the driver module inside CUDA calls only; the other program makes none.
    pub fn has_ioctls_in_calls(&self) {
        let mut calling = 0;
        for one in &self.ioctls {
            let program = self.lines.iter().find(|line| {
                line["type"] == "process"
                    && line["pid"].as_u64() == one.pid
                    && line["command"][0] == "./program"
            });
            assert_eq!(
                one.call.is_some(),
                program.is_some(),
                "{}: {:?} of {:?} in {:?}",
                self.about,
                one.request,
                one.pid,
                one.call
            );
            calling += u32::from(program.is_some());
        }
        assert!(calling > 0, "{}: no program called CUDA", self.about);
    }

    /// A parent is a line of the same thread that began before and ends after.
    pub fn nests(&self) {
        let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for line in &self.lines {
            let (Some(tid), Some(id)) = (line["tid"].as_u64(), line["event_id"].as_u64()) else { continue };
            let stack = open.entry(tid).or_default();
            match text(line, "phase") {
                "B" => {
                    assert_eq!(line["parent"].as_u64(), stack.last().copied(), "{}: {line}", self.about);
                    assert_eq!(line["depth"].as_u64(), Some(stack.len() as u64), "{}: {line}", self.about);
                    stack.push(id);
                }
                "E" => assert_eq!(stack.pop(), line["begin"].as_u64(), "{}: {line}", self.about),
                _ => {}
            }
        }
    }
}

/// Returns what a tracer can know of a request: the driver module writes a status only if it took the request, and
/// arguments that could not be copied in have no detail.
fn seen(request: &Request) -> Request {
    let mut seen = request.clone();
    if request.returned != 0 {
        seen.status = None;
        seen.detail = None;
    }
    if request.device == "nvidia-modeset" {
        seen.detail = None;
    }
    seen
}

fn ioctls(lines: &[Value], about: &str) -> Vec<Ioctl> {
    let (commands, classes, statuses) = (table("commands.txt"), table("classes.txt"), table("statuses.txt"));
    let by_id: BTreeMap<u64, &Value> =
        lines.iter().filter_map(|line| Some((line["event_id"].as_u64()?, line))).collect();
    let ends: BTreeMap<u64, &Value> = lines
        .iter()
        .filter(|l| text(l, "phase") == "E")
        .filter_map(|l| Some((l["begin"].as_u64()?, l)))
        .collect();
    let mut found = Vec::new();
    for line in lines.iter().filter(|l| text(l, "phase") == "B" && !l["request"].is_null()) {
        let end = line["event_id"]
            .as_u64()
            .and_then(|id| ends.get(&id))
            .unwrap_or_else(|| panic!("{about}: {line}"));
        let cmd = u32::from_str_radix(text(line, "cmd").trim_start_matches("0x"), 16).unwrap();
        let (device, detail) = (text(line, "device").to_owned(), &line["detail"]);
        let wrapped = detail["wrapped"] == true;
        let returned = end["retval"].as_i64().unwrap_or_else(|| panic!("{about}: {end}"));
        let command = detail["command"].as_str().and_then(|name| number(name, &commands));
        let class = || detail["class"].as_str().and_then(|name| number(name, &classes));
        let nr = nr_of(text(line, "request"), cmd, device.starts_with("nvidia-uvm"), wrapped);
        let request = Request {
            detail: match nr {
                0x2a => command,
                0x2b | 0x27 => class(),
                _ => None,
            },
            status: end["status"].as_str().and_then(|name| number(name, &statuses)),
            device,
            nr,
            returned,
            wrapped,
        };
        let (mut call, mut at) = (None, line["parent"].as_u64());
        while let Some(parent) = at.and_then(|id| by_id.get(&id)) {
            if text(parent, "type") == "userspace" {
                call = at;
                break;
            }
            at = parent["parent"].as_u64();
        }
        let named = line["unknown"] != true;
        let request = seen(&request);
        let (pid, duration) = (line["pid"].as_u64(), end["duration_us"].as_f64());
        found.push(Ioctl { request, call, pid, named, duration });
    }
    found
}
