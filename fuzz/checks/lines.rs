//! Checks that lines are a trace.
//! In: the written text, and the calls reported as in flight.
//! Out: panics unless every line is JSON and reads back, event_id counts from 0 without a gap, time never goes back
//! except in lines of GPU work,
//! every end is that of the innermost call of its thread, depth and parent are right, and every call ends once or is in
//! flight.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::with_file;
use gpurec_trace as trace;

pub fn judge(text: &[u8], in_flight: &[u64]) {
    let lines: Vec<Value> = text
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    let mut nesting = Nesting::default();
    nesting.in_flight.extend(in_flight);
    assert_eq!(nesting.in_flight.len(), in_flight.len(), "twice in flight");
    let mut last = 0.0;
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line["event_id"], at, "{line}");
        let ts = line["ts"].as_f64().unwrap();
        // Lines of GPU work come late.
        if line["type"] != "gpu" {
            assert!(ts >= last, "time goes back: {line}");
            last = ts;
        }
        nesting.line(at as u64, line);
    }
    nesting.end();
    read_back(text, lines.len());
}

#[derive(Default)]
struct Nesting {
    open: HashMap<u64, Vec<(u64, String)>>,
    in_flight: HashSet<u64>,
    closed: HashSet<u64>,
}

impl Nesting {
    fn line(&mut self, id: u64, line: &Value) {
        let open = self.open.entry(line["tid"].as_u64().unwrap_or(0)).or_default();
        match line["phase"].as_str() {
            Some("B") => {
                // Calls that died with their thread have no end of their own.
                let depth = line["depth"].as_u64().unwrap() as usize;
                for (dead, _) in open.drain(depth.min(open.len())..) {
                    assert!(self.in_flight.contains(&dead), "call {dead} is left out: {line}");
                    self.closed.insert(dead);
                }
                assert_eq!(depth, open.len(), "depth: {line}");
                assert_eq!(line["parent"].as_u64(), open.last().map(|(id, _)| *id), "parent: {line}");
                // A call whose return is not watched has no end, and encloses no other call.
                if line["no_return"].is_null() {
                    open.push((id, line["name"].as_str().unwrap().to_owned()));
                }
            }
            Some("E") => {
                let (begin, name) = open.pop().unwrap_or_else(|| panic!("an end without a begin: {line}"));
                assert_eq!(
                    (line["begin"].as_u64(), line["name"].as_str()),
                    (Some(begin), Some(&*name)),
                    "{line}"
                );
                assert!(!self.in_flight.contains(&begin), "ended and in flight: {line}");
            }
            _ => {}
        }
    }

    fn end(mut self) {
        self.closed.extend(self.open.values().flatten().map(|(id, _)| *id));
        assert_eq!(self.closed, self.in_flight, "calls that neither ended nor are in flight");
    }
}

/// Asserts that the reader finds nothing wrong but the missing end line.
fn read_back(text: &[u8], count: usize) {
    with_file(text, |scratch| {
        let mut reader = trace::open(&scratch.path).unwrap();
        let mut read = 0;
        while let Some(line) = reader.next().unwrap() {
            assert_eq!(line.event_id, read);
            read += 1;
        }
        assert_eq!(read, count as u64);
        let notes = reader.notes();
        assert_eq!((notes.bad_lines, notes.unknown_lines, notes.unknown_keys), (0, 0, 0), "{notes:?}");
        assert_eq!((notes.missing_events, notes.disorder.count), (0, 0), "{notes:?}");
        assert_eq!((notes.unmatched_ends.count, notes.crossed_ends.count), (0, 0), "{notes:?}");
    });
}
