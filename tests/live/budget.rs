//! `--budget`: a program that queries without a pause and launches now and then. gpurec gives up the queries but not
//! the launches; the counts are exact; the trace and the summary say what is missing.
//! Not here: how long the program took. The test checks the figures of gpurec's own overhead control.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::needs::backends;
use crate::room::{Room, live, slow};
use crate::run::Done;
use crate::trace::Trace;

const LEVELS: [&str; 3] = ["recorded", "counted", "unhooked"];

struct Hot {
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
    counted: u64,
    line: &'a Value,
}

fn hot(room: &Room) -> Hot {
    let library = room.compile("libhot.c", "libhot.so", &["-shared", "-fPIC"]);
    let program = room.compile("hot.c", "hot", &[&library]);
    Hot { library, program }
}

impl Hot {
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
    let of = |line: &'_ Value, key: &str| line[key].as_u64().unwrap_or_else(|| panic!("{key}: {line}"));
    let all = trace.of_type("budget");
    all.map(|line| Line {
        ts: line["ts"].as_f64().expect("ts"),
        function: line["function"].as_str().expect("function"),
        action: line["action"].as_str().expect("action"),
        before: level(&line["before"]),
        level: level(&line["level"]),
        counted: of(line, "counted"),
        line,
    })
    .collect()
}

fn counted(trace: &Trace, function: &str) -> u64 {
    lines(trace).iter().filter(|line| line.function == function).map(|line| line.counted).sum()
}

/// Checks that each line begins where the function's last one ended, one step further or back, and says why.
fn check_lines(trace: &Trace) {
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for Line { function, action, before, level, line, .. } in lines(trace) {
        assert_eq!(before, at.insert(function, level).unwrap_or(0), "{line}");
        match action {
            "give_up" => {
                assert_eq!(level, before + 1, "{line}");
                assert!(line["percent"].as_f64().unwrap() >= 5.0, "{line}");
                assert!(line["hits_per_sec"].as_u64().unwrap() > 0, "{line}");
            }
            "take_back" => {
                assert_eq!(level + 1, before, "{line}");
                let percent = &line["percent"];
                assert!(percent.is_null() || percent.as_f64().unwrap() <= 5.0, "{line}");
            }
            "end" => assert!(level == before && line["percent"].is_null(), "{line}"),
            _ => panic!("{line}"),
        }
        assert_eq!(line["name"], "budget");
    }
}

/// Checks that the summary's list equals that of the lines.
fn check_figures(trace: &Trace) {
    let figures = &trace.end["summary"]["budget"];
    let listed = figures["functions"].as_array().expect("functions");
    for function in listed {
        let name = function["name"].as_str().unwrap();
        assert_eq!(function["counted_calls"], counted(trace, name), "{name}");
    }
    let total: u64 = lines(trace).iter().map(|line| line.counted).sum();
    assert_eq!(figures["counted_calls"], total);
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
            assert_eq!(of.iter().map(|line| line.level).max(), Some(2), "{function} was unhooked");
            // After the loop they are hooked again, and recorded.
            let last = of.last().unwrap();
            assert_eq!((last.action, last.level), ("take_back", 0), "{}", last.line);
            let again = trace.calls.iter().filter(|c| c.name == function && c.ts as f64 > last.ts * 1e9);
            assert!(again.count() > 10, "{function}");
            assert!(recorded(&trace, function) + counted(&trace, function) < called[function]);
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
        done.said("Given up for --budget 5").said("not hooked from").said("NOT complete:");
    });
}

/// gpurec does not unhook a function while a call of it is open, as it would never see that call end. So a function
/// that one thread is inside for the whole recording is counted to the last call.
#[test]
fn counts_are_exact() {
    live(|room| {
        let hot = hot(room);
        for backend in backends() {
            let options = ["--budget", "5", "--backend", backend];
            let (done, trace) = hot.record(room, &options, &["700", "100", "open"]);
            let called = called(&done);
            let device = "cudaGetDevice";
            assert!(lines(&trace).iter().all(|line| line.function != device || line.level < 2), "{backend}");
            assert!(counted(&trace, device) > 1000, "{backend}");
            assert_eq!(recorded(&trace, device) + counted(&trace, device), called[device], "{backend}");
            assert_eq!(recorded(&trace, "cuLaunchKernel"), called["cuLaunchKernel"], "{backend}");
            assert_eq!(trace.in_flight().len(), 1, "{backend}: the thread that stays");
            check_figures(&trace);
        }
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
