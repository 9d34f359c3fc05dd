//! `--stacks` against the truth: a program of random shapes (fixtures/programs/stacks.py) prints its own stack at each
//! CUDA call, and the trace must have the same functions, files and lines.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::room::{Room, live};
use crate::trace::text_of;

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs/stacks.py");

/// Stacks that are compared for each interpreter.
const STACKS: &str = "500";

type Call = (u64, u64, u64);

fn key(line: &Value, number: &Value) -> Option<Call> {
    Some((line["pid"].as_u64()?, line["tid"].as_u64()?, number.as_u64()?))
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// What the program printed: for each call, [function, file, line], innermost first.
fn printed(text: &str) -> HashMap<Call, Value> {
    lines(text).filter_map(|line| Some((key(&line, &line["number"])?, line["stack"].clone()))).collect()
}

fn python_frames(stack: &Value) -> Value {
    let frames = stack["frames"].as_array().unwrap().iter();
    let python = frames.filter(|frame| frame["kind"] == "python");
    python.map(|frame| json!([frame["function"], frame["file"], frame["line"]])).collect()
}

fn compare(room: &Room, python: &str, seed: &str) {
    let file = room.text(&format!("stacks-{}.jsonl", room.number()));
    let words = ["--stacks", "-o", &file, "--", python, PROGRAM, seed, STACKS, LIBRARY];
    let done = room.run(room.gpurec(&words));
    done.exited(0);
    let expected = printed(&done.text());
    let text = text_of(file.as_ref());
    let (mut stacks, mut seen) = (Vec::new(), 0);
    for line in lines(&text) {
        if line["type"] == "stack" {
            assert_eq!(line["stack"], stacks.len(), "stacks are numbered from 0");
            stacks.push(python_frames(&line));
        }
        if line["name"] != "cuMemAlloc_v2" || line["phase"] != "B" {
            continue;
        }
        let Some(call) = key(&line, &line["args"]["bytesize"]) else { continue };
        let Some(expected) = expected.get(&call) else { continue };
        let stack = line["stack"].as_u64().unwrap_or_else(|| panic!("{python}: no stack: {line}"));
        assert_eq!(&stacks[stack as usize], expected, "{python}, seed {seed}, call {call:?}");
        seen += 1;
    }
    assert_eq!(seen, expected.len(), "{python}: calls with a stack");
}

#[test]
fn python_frames_are_those_that_the_program_prints() {
    live(|room| {
        // Interpreters apart by commas; scripts/pythons fetches them.
        let pythons = std::env::var("GPUREC_TEST_PYTHONS").unwrap_or_else(|_| "python3".to_owned());
        for python in pythons.split(',') {
            compare(room, python, "1");
        }
    });
}
