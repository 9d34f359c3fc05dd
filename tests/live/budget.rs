//! `--budget`: a program that queries without a pause and launches now and then. gpurec gives up the queries but not
//! the launches; the trace and the summary say what is missing.
//! Not here: how long the program took. The test checks the figures of gpurec's own overhead control.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::needs::backends;
use crate::room::{Room, live, slow};
use crate::run::Done;
use crate::trace::{Call, Trace};

/// The name of all stacks in the lines of a budget.
const STACKS: &str = "call stacks";

const LEVELS: [&str; 2] = ["recorded", "unhooked"];

struct HotProgram {
    library: String,
    program: String,
}

/// A function's budget lines, with their times.
struct Line<'a> {
    ts: f64,
    function: &'a str,
    action: &'a str,
    before: usize,
    level: usize,
    line: &'a Value,
}

fn hot(room: &Room) -> HotProgram {
    let library = room.compile("libhot.c", "libhot.so", &["-shared", "-fPIC"]);
    let program = room.compile("hot.c", "hot", &[&library]);
    HotProgram { library, program }
}

impl HotProgram {
    fn record(&self, room: &Room, options: &[&str], words: &[&str]) -> (Done, Trace) {
        let options = [&["--lib", &self.library], options].concat();
        // Launches, and the queries that come with them, are well within the budget where a hit costs most: the
        // functions are so short that each is stepped over, which takes 2 to 20 us.
        let pause = (10 * slow()).to_string();
        let (done, trace) = room.record(&options, &[&[self.program.as_str(), &pause], words].concat());
        done.exited(0);
        check_lines(&trace);
        (done, trace)
    }
}

/// How often the program called each function, as it prints itself.
fn called(done: &Done) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    done.text().lines().filter_map(count).collect()
}

fn recorded(trace: &Trace, function: &str) -> u64 {
    trace.calls.iter().filter(|call| call.name == function).count() as u64
}

fn lines(trace: &Trace) -> Vec<Line<'_>> {
    let level = |value: &Value| LEVELS.iter().position(|level| value == level).expect("a level");
    let all = trace.of_type("budget");
    all.map(|line| Line {
        ts: line["ts"].as_f64().expect("ts"),
        function: line["function"].as_str().expect("function"),
        action: line["action"].as_str().expect("action"),
        before: level(&line["before"]),
        level: level(&line["level"]),
        line,
    })
    .collect()
}

/// Checks that each line begins where the function's last one ended, and says why.
fn check_lines(trace: &Trace) {
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for Line { function, action, before, level, line, .. } in lines(trace) {
        assert_eq!(before, at.insert(function, level).unwrap_or(0), "{line}");
        match action {
            "give_up" => {
                assert_eq!((before, level), (0, 1), "{line}");
                assert!(line["percent"].as_f64().unwrap() >= 5.0, "{line}");
                assert!(line["hits_per_sec"].as_u64().unwrap() > 0, "{line}");
            }
            "take_back" => {
                assert_eq!((before, level), (1, 0), "{line}");
                let percent = &line["percent"];
                assert!(percent.is_null() || percent.as_f64().unwrap() <= 5.0, "{line}");
            }
            "end" => assert!((before, level) == (1, 1) && line["percent"].is_null(), "{line}"),
            _ => panic!("{line}"),
        }
        assert_eq!(line["name"], "budget");
    }
}

/// Checks that the summary's list equals that of the lines.
fn check_figures(trace: &Trace) {
    let figures = &trace.end["summary"]["budget"];
    let all = lines(trace);
    for function in figures["functions"].as_array().expect("functions") {
        let of = || all.iter().filter(|line| function["name"] == line.function);
        let given_up = of().filter(|line| line.action == "give_up").count() as u64;
        assert_eq!(function["given_up"], given_up, "{function}");
        assert_eq!(function["level"], LEVELS[of().next_back().expect("a line").level], "{function}");
    }
    assert!(!trace.complete() && trace.codes().contains(&"budget"), "{:?}", trace.reasons());
}

#[test]
fn what_asks_is_given_up_and_launches_are_not() {
    live(|room| {
        let (done, trace) = hot(room).record(room, &["--budget", "5"], &["1500", "5000"]);
        let called = called(&done);
        let all = lines(&trace);
        // The loop alone queries hundreds of thousands of times a second: gpurec must unhook both.
        for function in ["cudaGetDevice", "cudaGetLastError"] {
            let of: Vec<&Line> = all.iter().filter(|line| line.function == function).collect();
            assert_eq!(of.iter().map(|line| line.level).max(), Some(1), "{function} was unhooked");
            // After the loop they are hooked again, and recorded.
            let last = of.last().unwrap();
            assert_eq!((last.action, last.level), ("take_back", 0), "{}", last.line);
            let again = trace.calls.iter().filter(|c| c.name == function && c.ts as f64 > last.ts * 1e9);
            assert!(again.count() > 10, "{function}");
            assert!(recorded(&trace, function) < called[function]);
            let unhooked = &trace.end["summary"]["budget"]["functions"];
            let unhooked = unhooked.as_array().unwrap().iter().find(|f| f["name"] == function).unwrap();
            assert!(unhooked["unhooked_ns"].as_u64().unwrap() > 1_000_000_000, "{unhooked}");
        }
        assert!(all.iter().all(|line| line.function.starts_with("cudaGet")), "{:?}", trace.others);
        for function in ["cuLaunchKernel", "cudaEventRecord"] {
            assert_eq!(recorded(&trace, function), called[function], "{function}");
        }
        assert!(trace.ends().all(|end| !end.unwound && !end.lost));
        check_figures(&trace);
        done.said("Given up for --budget 5").said("not recorded from").said("NOT complete:");
    });
}

/// gpurec does not unhook a function while a call of it is open, as it would never see that call end.
#[test]
fn an_open_call_keeps_its_end() {
    live(|room| {
        let hot = hot(room);
        for backend in backends() {
            let options = ["--budget", "5", "--backend", backend];
            let (done, trace) = hot.record(room, &options, &["1000", "100", "open"]);
            let called = called(&done);
            let device = "cudaGetDevice";
            let all = lines(&trace);
            let given_up =
                all.iter().find(|line| line.function == device).expect("cudaGetDevice is given up");
            let long = |call: &&Call| call.name == device && call.tid != call.pid;
            let open: Vec<&Call> = trace.calls.iter().filter(long).collect();
            let [Call { ts, end: Some(end), .. }] = open.as_slice() else { panic!("{backend}") };
            assert!((*ts as f64) < given_up.ts * 1e9 && end.ts as f64 > given_up.ts * 1e9, "{backend}");
            assert!(!end.lost && end.duration_ns.is_some_and(|ns| ns > 500_000_000), "{backend}");
            assert!(recorded(&trace, device) < called[device], "{backend}");
            assert_eq!(recorded(&trace, "cuLaunchKernel"), called["cuLaunchKernel"], "{backend}");
            assert_eq!(trace.in_flight().len(), 0, "{backend}");
            check_figures(&trace);
        }
    });
}

/// Stacks go first, and the calls of the functions that stay are all recorded, from then on without a stack.
#[test]
fn stacks_are_given_up_before_calls() {
    live(|room| {
        let options = ["--budget", "5", "--stacks=cudaGet*,cuLaunchKernel"];
        let (done, trace) = hot(room).record(room, &options, &["500", "3500"]);
        let called = called(&done);
        let all = lines(&trace);
        let of_stacks: Vec<&Line> = all.iter().filter(|line| line.function == STACKS).collect();
        assert_eq!(all.first().map(|line| (line.function, line.action)), Some((STACKS, "give_up")));
        // In the quiet part of the program they come back.
        assert_eq!(of_stacks.last().map(|line| line.action), Some("take_back"), "{:?}", trace.others);
        assert_eq!(recorded(&trace, "cuLaunchKernel"), called["cuLaunchKernel"]);
        let launches = trace.named("cuLaunchKernel");
        let is_taken = |call: &Call| {
            let before = of_stacks.iter().rev().find(|line| line.ts * 1e9 <= call.ts as f64);
            before.is_none_or(|line| line.level == 0)
        };
        // A change takes effect just before its line.
        let wrong = launches.iter().filter(|call| call.stack.is_some() != is_taken(call)).count();
        assert!(wrong <= of_stacks.len(), "{wrong} of {} launches", launches.len());
        let without = launches.iter().filter(|call| call.stack.is_none()).count();
        assert!(without > 0 && without < launches.len(), "{without} of {}", launches.len());
        let stacks = &trace.end["summary"]["budget"]["stacks"];
        assert!(stacks["unhooked_ns"].as_u64().unwrap() > 500_000_000, "{stacks}");
        check_figures(&trace);
        done.said("Given up for --budget 5: call stacks");
    });
}

#[test]
fn within_its_budget_a_recording_is_whole() {
    live(|room| {
        let (done, trace) = hot(room).record(room, &["--budget", "5"], &["0", "1000"]);
        let called = called(&done);
        for (function, count) in &called {
            assert_eq!(recorded(&trace, function), *count, "{function}");
        }
        assert_eq!(lines(&trace).len(), 0);
        assert_eq!(trace.end["complete"], true);
        assert!(trace.end["summary"]["budget"].is_null());
    });
}

#[test]
fn a_summary_only_says_it_too() {
    live(|room| {
        let (done, trace) = hot(room).record(room, &["--budget", "5", "--summary-only"], &["500", "100"]);
        check_figures(&trace);
        done.said("Given up for --budget 5");
    });
}
