//! The figures of a trace: those in its `end` line, those that the recording printed, those that
//! `gpurec summary FILE` computes from the file alone, and those that this suite counts itself. All must be
//! the same. `Started::done` sees to the first three for every recording, `Trace::checked` to the last.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

use crate::room::Room;
use crate::trace::{InFlight, Trace, text_of};

pub fn check(room: &Room, file: &str, trace: &Trace) {
    let stored = &trace.end["summary"];
    let done = room.run(room.gpurec(&["summary", "--json", file]));
    done.exited(0);
    let read: Value = serde_json::from_slice(&done.stdout).expect("summary --json");
    same(stored, &read);
    assert_eq!(stored["complete"], trace.end["complete"]);
    assert_eq!(stored["lost"], trace.end["lost"]);
    in_flight(trace, stored);
    if !trace.has_no_calls() {
        counted(trace, stored);
    }
}

/// The recording of `file` said `stderr`: the summary in it is, word for word, what `gpurec summary` says of
/// the file, and the file's last line has the same figures.
pub fn printed_is_read(room: &Room, file: &str, stderr: &str) {
    let read = room.run(room.gpurec(&["summary", file]));
    let printed = printed(stderr).unwrap_or_else(|| panic!("{file}: no summary was printed:\n{stderr}"));
    assert_eq!(printed, read.exited(0).text(), "{file}: as printed, and of the file alone");
    stored_is_read(room, file);
}

/// The same for a recording that printed nothing.
pub fn stored_is_read(room: &Room, file: &str) {
    let text = text_of(Path::new(file));
    let end: Value = serde_json::from_str(text.lines().next_back().expect("a line")).expect("JSON");
    let read = room.run(room.gpurec(&["summary", "--json", file]));
    let read: Value = serde_json::from_slice(&read.exited(0).stdout).expect("summary --json");
    same(&end["summary"], &read);
}

/// The summary in what a recording said, without the sentences that follow it.
pub fn printed(stderr: &str) -> Option<&str> {
    let text = &stderr[stderr.find("=== TRACE SUMMARY ===")?..];
    let ends = ["\n\nTrace: ", "\n\nThe recording is over"].map(|end| text.find(end).map(|at| at + 1));
    Some(&text[..ends.into_iter().flatten().min().unwrap_or(text.len())])
}

/// Field by field, so that a failure names the field.
fn same(stored: &Value, read: &Value) {
    let (stored, read) = (stored.as_object().expect("end.summary"), read.as_object().expect("figures"));
    for (name, value) in stored {
        assert_eq!(read.get(name), Some(value), "{name}: of the file alone, and as recorded");
    }
    let more: Vec<_> = read.keys().filter(|name| !stored.contains_key(*name)).collect();
    assert!(more.is_empty(), "the reader adds {more:?}: {read:?}");
}

fn in_flight(trace: &Trace, stored: &Value) {
    let sorted = |mut calls: Vec<InFlight>| {
        calls.sort_by_key(|call| call.begin);
        calls.into_iter().map(|c| (c.begin, c.duration_ns(), c.died, c.name)).collect::<Vec<_>>()
    };
    let of_summary = serde_json::from_value(stored["in_flight"].clone()).expect("summary.in_flight");
    assert_eq!(sorted(trace.in_flight()), sorted(of_summary), "end.in_flight and its summary's");
}

fn counted(trace: &Trace, stored: &Value) {
    let number = |name: &str| stored[name].as_u64().unwrap_or_else(|| panic!("{name} in {stored}"));
    assert_eq!(number("cuda_calls") + number("other_calls"), trace.calls.len() as u64);
    assert_eq!(number("unmatched_ends"), 0);
    assert_eq!(number("unwound_calls"), trace.ends().filter(|end| end.unwound).count() as u64);
    let failed = trace.ends().filter(|end| end.error.is_some()).count() as u64;
    assert_eq!(stored["failures"]["calls"], failed);
    assert_eq!(number("duration_ns"), trace.last_ns);

    let mut functions: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for call in &trace.calls {
        let Some(ns) = call.end.as_ref().and_then(|end| end.duration_ns) else { continue };
        let [calls, total, min, max] = functions.entry(&call.name).or_insert([0, 0, u64::MAX, 0]);
        (*calls, *total) = (*calls + 1, *total + ns);
        (*min, *max) = ((*min).min(ns), (*max).max(ns));
    }
    let said: BTreeMap<&str, [u64; 4]> = stored["functions"]
        .as_array()
        .expect("functions")
        .iter()
        .map(|f| {
            let n = |key: &str| f[key].as_u64().expect("a number");
            (f["name"].as_str().expect("a name"), [n("calls"), n("total_ns"), n("min_ns"), n("max_ns")])
        })
        .collect();
    assert_eq!(said, functions, "calls, total, min and max of each function");

    let mut processes: HashMap<u64, u64> = HashMap::new();
    for call in &trace.calls {
        *processes.entry(call.pid.into()).or_default() += 1;
    }
    let listed = stored["processes"].as_array().expect("processes");
    for process in listed {
        let pid = process["pid"].as_u64().expect("pid");
        assert_eq!(process["calls"], processes.get(&pid).copied().unwrap_or(0), "calls of {pid}");
    }
    if number("more_processes") == 0 {
        let unlisted: Vec<_> =
            processes.keys().filter(|pid| !listed.iter().any(|p| p["pid"] == **pid)).collect();
        assert!(unlisted.is_empty(), "processes that the summary leaves out: {unlisted:?}");
    }
}
