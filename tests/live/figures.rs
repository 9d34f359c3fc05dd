//! The figures of a trace: those in its `end` line, those that the recording printed, those that `gpurec summary FILE`
//! computes from the file alone, and those that this suite counts itself. All must be equal. `Started::done` checks the
//! first three for every recording, `Trace::checked` the last.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

use crate::room::Room;
use crate::trace::{Call, InFlight, Trace, text_of};

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

/// Asserts that the summary in `stderr`, which the recording of `file` printed, is word for word that of `gpurec
/// summary`, and that the file's last line has the same figures.
pub fn printed_is_read(room: &Room, file: &str, stderr: &str) {
    printed_is_read_by(room, file, stderr, &["summary", file]);
}

/// The same on a terminal of the given number of columns.
pub fn printed_is_read_at(room: &Room, file: &str, stderr: &str, width: &str) {
    printed_is_read_by(room, file, stderr, &["summary", "--width", width, file]);
}

fn printed_is_read_by(room: &Room, file: &str, stderr: &str, words: &[&str]) {
    let read = room.run(room.gpurec(words));
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

/// Returns the summary that a recording printed, without the sentences after it.
pub fn printed(stderr: &str) -> Option<&str> {
    let text = &stderr[stderr.find("=== TRACE SUMMARY ===")?..];
    let ends = ["\n\nTrace: ", "\n\nThe recording is over", "\n\nThe target ended"]
        .map(|end| text.find(end).map(|at| at + 1));
    Some(&text[..ends.into_iter().flatten().min().unwrap_or(text.len())])
}

/// Compares field by field, so that a failure names the field.
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

/// A figure of a summary, or what was seen of it where the figure is not known.
pub fn figure<'a>(stored: &'a Value, name: &str) -> &'a Value {
    if stored["unknown"].get(name).is_some() {
        return &stored["seen"][name];
    }
    name.split('.').fold(stored, |value, key| &value[key])
}

fn counted(trace: &Trace, stored: &Value) {
    let number = |name: &str| figure(stored, name).as_u64().unwrap_or_else(|| panic!("{name} in {stored}"));
    assert_eq!(number("cuda_calls") + number("other_calls"), trace.calls.len() as u64);
    assert_eq!(number("unmatched_ends"), 0);
    assert_eq!(number("unwound_calls"), trace.ends().filter(|end| end.unwound).count() as u64);
    let failures = ["failures.calls", "failures.handled", "failures.shutdown"].map(number);
    assert_eq!(failures, failed(trace), "failures, handled, after the driver's shutdown");
    // In a dump of the flight recorder the duration is that of its period.
    let from_ns = trace.end["dump"]["from_ns"].as_u64().unwrap_or(0);
    assert_eq!(number("duration_ns"), trace.last_ns - from_ns);

    let mut functions: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    // A call that has not returned counts with its time so far.
    let so_far: HashMap<u64, u64> =
        trace.in_flight().into_iter().map(|call| (call.begin, call.duration_ns())).collect();
    for call in &trace.calls {
        let returned = call.end.as_ref().and_then(|end| end.duration_ns);
        let Some(ns) = returned.or_else(|| so_far.get(&call.id).copied()) else { continue };
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

/// Counts failures that the program saw, those that a call around them handled, and those that came after the driver
/// had been shut down. All other failures are causes of those.
fn failed(trace: &Trace) -> [u64; 3] {
    let by_id: HashMap<u64, &Call> = trace.calls.iter().map(|call| (call.id, call)).collect();
    let is_cuda = |call: &&Call| {
        let rest = call.name.trim_start_matches('_').strip_prefix("cu");
        let rest = rest.map(|rest| rest.strip_prefix("da").unwrap_or(rest));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
            && !call.name.starts_with("cuFile")
    };
    let around = |call: &Call| call.parent.and_then(|parent| by_id.get(&parent)).copied();
    let mut counts = [0; 3];
    for call in &trace.calls {
        let Some(error) = call.end.as_ref().and_then(|end| end.error.as_deref()) else { continue };
        let decides =
            |outer: &&Call| is_cuda(outer) && outer.end.as_ref().is_some_and(|end| !end.unwound && !end.lost);
        let mut outer = around(call);
        while let Some(undecided) = outer.filter(|outer| !decides(outer)) {
            outer = around(undecided);
        }
        match outer.map(|outer| outer.end.as_ref().is_some_and(|end| end.error.is_some())) {
            None if matches!(error, "CUDA_ERROR_DEINITIALIZED" | "cudaErrorCudartUnloading") => {
                counts[2] += 1
            }
            None => counts[0] += 1,
            Some(false) => counts[1] += 1,
            Some(true) => {}
        }
    }
    counts
}
