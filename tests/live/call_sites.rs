//! What `--stacks` tells: the line that leaks, in reports, exports, `--live` and `diff`, and stacks that are cut.
//! In: programs/leak.py and hidden.py, on the stand-in libcuda.
//! Not here: whether frames are right (python_stacks).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::{Trace, text_of};

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
const LEAK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs/leak.py");
const HIDDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs/hidden.py");
const STEPS: &str = "40";

struct Recording {
    done: Done,
    file: String,
    /// The line of each place of the program that allocates, by its function.
    places: BTreeMap<String, u64>,
}

fn record(room: &Room, options: &[&str], words: &[&str]) -> Recording {
    let file = room.text(&format!("leak-{}.jsonl", room.number()));
    let program = ["-o", &file, "--", "python3", LEAK, LIBRARY, STEPS];
    let done = room.run(room.gpurec(&[&["--stacks"], options, &program, words].concat()));
    done.exited(0);
    let place = |line: &str| {
        let (function, line) = line.split_once(' ')?;
        Some((function.to_owned(), line.parse().ok()?))
    };
    let places = done.text().lines().filter_map(place).collect();
    Recording { done, file, places }
}

impl Recording {
    fn site(&self, function: &str) -> String {
        format!("leak.py:{} {function}", self.places[function])
    }
}

fn said(room: &Room, words: &[&str]) -> String {
    room.run(room.gpurec(words)).exited(0).text()
}

fn json(room: &Room, words: &[&str]) -> Value {
    serde_json::from_str(&said(room, words)).unwrap()
}

#[test]
fn a_leak_is_found_by_its_line() {
    live(|room| {
        let before = record(room, &[], &[]);
        let after = record(room, &["--live"], &["leak"]);
        let (leak, load) = (after.site("keep_history"), after.site("load_batch"));

        let report = json(room, &["report", "leaks", "--json", &after.file]);
        let [site] = report["sites"].as_array().unwrap().as_slice() else { panic!("{report}") };
        assert_eq!((&site["call_site"], &site["count"]), (&leak.as_str().into(), &40.into()), "{report}");
        let text = said(room, &["report", "leaks", &after.file]);
        assert!(text.contains(&format!("in 40 allocations, {leak} → cuMemAlloc_v2")), "{text}");
        assert_eq!(json(room, &["report", "leaks", "--json", &before.file])["count"], 0);

        let diff = json(room, &["diff", "--json", &before.file, &after.file]);
        let sites = &diff["call_sites"];
        assert_eq!(sites["gone"], Value::Array(Vec::new()), "{diff}");
        let [new] = sites["appeared"].as_array().unwrap().as_slice() else { panic!("{diff}") };
        assert_eq!((&new["call_site"], &new["role"]), (&leak.as_str().into(), &"alloc".into()));

        let row = |row: &&str| row.contains("cuMemAlloc_v2") && row.contains(&format!("  at {leak}"));
        assert_eq!(after.done.stderr.lines().filter(row).count(), 40, "{}", after.done.stderr);

        let csv = said(room, &["export", "--format", "csv", &after.file]);
        let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
        assert!(header.contains(&"stack") && header.contains(&"site"), "{header:?}");
        for (kind, site) in [("userspace", &leak), ("memory", &leak), ("userspace", &load)] {
            let cells = format!(",{kind},cuMemAlloc_v2,");
            let rows = csv.lines().filter(|row| row.contains(&cells) && row.contains(site.as_str()));
            assert_eq!(rows.count(), 40, "{kind}, {site}");
        }
    });
}

#[test]
fn a_summary_has_the_stacks_of_each_role() {
    live(|room| {
        let done = record(room, &["--summary-only"], &["leak"]);
        done.done
            .said("Where calls come from: ")
            .said(&format!("  alloc   {}: 40 calls", done.site("load_batch")));
        let report = json(room, &["report", "stacks", "--role", "alloc", "--json", &done.file]);
        let rows = report["stacks"].as_array().unwrap().iter();
        // A site has several stacks if the first ones are cut.
        let sites: BTreeSet<&str> = rows.map(|row| row["call_site"].as_str().unwrap()).collect();
        let expected = ["load_batch", "forward", "keep_history"].map(|function| done.site(function));
        assert_eq!(sites, expected.iter().map(String::as_str).collect(), "{report}");
    });
}

/// For each stack, whether it is cut, and the number of its Python frames.
fn stacks(text: &str) -> Vec<(bool, usize)> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let stacks = lines.filter(|line| line["type"] == "stack");
    let frames = |line: &Value| {
        let frames = line["frames"].as_array().unwrap().iter();
        frames.filter(|frame| frame["kind"] == "python").count()
    };
    stacks.map(|line| (line["cut"] == true, frames(&line))).collect()
}

/// The pages of a thread's state are as if they were not resident.
#[test]
fn a_stack_without_the_interpreters_state_is_cut() {
    live(|room| {
        let library = room.compile("hidden.c", "hidden.so", &["-shared", "-fPIC"]);
        let file = room.text("hidden.jsonl");
        let words = ["--stacks", "-o", &file, "--", "python3", HIDDEN, LIBRARY, &library, "20"];
        let done = room.run(room.gpurec(&words));
        done.exited(0).said(" cut: outer frames are missing.");
        let trace = Trace::checked(room, &file);
        assert!(trace.complete(), "{:?}", trace.reasons());
        assert!(trace.end["summary"]["stacks"]["cut"].as_u64().unwrap() > 0);
        let stacks = stacks(&text_of(file.as_ref()));
        let calls = trace.named("cuMemAlloc_v2");
        let of = |call: usize| stacks[calls[call].stack.expect("a stack") as usize];
        assert_eq!(calls.len(), 40);
        // The last round: by then the native part can be unwound.
        let ((is_cut, shown), (hidden_is_cut, hidden)) = (of(38), of(39));
        assert!(!is_cut && shown > 0, "{shown} Python frames, cut: {is_cut}");
        assert!(hidden_is_cut && hidden == 0, "{hidden} Python frames, cut: {hidden_is_cut}");
    });
}
