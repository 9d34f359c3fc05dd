//! Interpreters to record, and what their stacks are compared with.
//! In: GPUREC_TEST_PYTHONS, commands apart by commas, or GPUREC_PYTHONS, a folder of scripts/pythons; else python3.
//! Out: each recorded stack has the Python frames that the program printed at that call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::room::Room;
use crate::run::Done;
use crate::trace::text_of;

pub const LIBRARY: &str = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
pub const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs");

pub struct Python {
    pub command: String,
    /// libpython3.x.so, if it is there.
    pub library: Option<PathBuf>,
    /// What runs another program with its libraries.
    pub with: String,
}

impl Python {
    fn of(command: &str) -> Python {
        let ask = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.base_prefix)";
        let said = Command::new(command).args(["-c", ask]).output();
        let said =
            String::from_utf8(said.unwrap_or_else(|error| panic!("{command}: {error}")).stdout).unwrap();
        let (version, prefix) =
            said.trim_end().split_once('\n').unwrap_or_else(|| panic!("{command}: {said}"));
        let name = format!("libpython{version}.so.1.0");
        // Of scripts/pythons.
        let folder = Path::new(command).parent().unwrap();
        let with = folder.join("with");
        let own = with.exists();
        let places = if own {
            vec![folder.join("libraries")]
        } else {
            ["lib", "lib/x86_64-linux-gnu"].map(|part| Path::new(prefix).join(part)).to_vec()
        };
        let with = if own { with.display().to_string() } else { format!("env PYTHONHOME={prefix}") };
        let library = places.into_iter().map(|place| place.join(&name)).find(|path| path.exists());
        Python { command: command.to_owned(), library, with }
    }
}

pub fn pythons() -> Vec<Python> {
    let said = match (std::env::var("GPUREC_TEST_PYTHONS"), std::env::var("GPUREC_PYTHONS")) {
        (Ok(commands), _) => commands,
        (_, Ok(folder)) => fetched(&folder),
        _ => "python3".to_owned(),
    };
    said.split(',').map(Python::of).collect()
}

fn fetched(folder: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/pythons");
    let output = Command::new(script).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let commands = text.lines().filter_map(|line| line.split_once('\t')).map(|(_, command)| command);
    commands.collect::<Vec<_>>().join(",")
}

type Call = (u64, u64, u64);

fn key(line: &Value, number: &Value) -> Option<Call> {
    Some((line["pid"].as_u64()?, line["tid"].as_u64()?, number.as_u64()?))
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

fn python_frames(stack: &Value) -> Vec<Value> {
    let frames = stack["frames"].as_array().unwrap();
    let has_python = frames.iter().any(|frame| frame["kind"] == "python");
    let of_interpreter = frames.iter().find(|frame| {
        let module = frame["module"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        module.starts_with("python3") || module.starts_with("libpython3")
    });
    assert!(!has_python || of_interpreter.is_none(), "a frame of the interpreter's own: {stack}");
    let python = frames.iter().filter(|frame| frame["kind"] == "python");
    python.map(|frame| json!([frame["function"], frame["file"], frame["line"]])).collect()
}

/// What the programs printed.
#[derive(Default)]
struct Printed {
    /// For each call, [function, file, line], innermost first.
    stacks: HashMap<Call, Value>,
    /// The stack of the first interpreter at calls from a number on, within a million, in another.
    inside: Vec<(Call, Value)>,
}

impl Printed {
    fn of(text: &str) -> Printed {
        let mut printed = Printed::default();
        for line in lines(text) {
            if let Some(call) = key(&line, &line["number"]) {
                printed.stacks.insert(call, line["stack"].clone());
            } else if let Some(call) = key(&line, &line["inside"]) {
                printed.inside.push((call, line["stack"].clone()));
            }
        }
        printed
    }

    fn has_beneath(&self, call: Call, frames: &[Value]) -> bool {
        self.inside.iter().any(|((pid, tid, first), stack)| {
            (*pid, *tid) == (call.0, call.1)
                && (*first..*first + 1_000_000).contains(&call.2)
                && stack.as_array().is_some_and(|all| all == frames)
        })
    }
}

/// Runs `gpurec --stacks OPTIONS -- WORDS` and compares.
pub fn compare(room: &Room, what: &str, words: &[&str]) {
    let file = room.text(&format!("stacks-{}.jsonl", room.number()));
    let done = room.run(room.gpurec(&[&["--stacks", "-o", &file, "--"], words].concat()));
    check(what, &done, &done.text(), &file);
}

/// `done`: the recorder. `printed`: by the programs.
pub fn check(what: &str, done: &Done, printed: &str, file: &str) {
    done.exited(0);
    let printed = Printed::of(printed);
    assert!(!printed.stacks.is_empty(), "{what}: the programs made no calls");
    let text = text_of(file.as_ref());
    let mut stacks = Vec::new();
    let (mut seen, mut cut, mut short) = (0, 0, 0);
    for line in lines(&text) {
        if line["type"] == "stack" {
            assert_eq!(line["stack"], stacks.len(), "stacks are numbered from 0");
            stacks.push((line["cut"] == true, python_frames(&line)));
        } else if line["type"] == "end" {
            assert_eq!(line["complete"], true, "{what}: {}", line["incomplete_because"]);
        }
        if line["name"] != "cuMemAlloc_v2" || line["phase"] != "B" {
            continue;
        }
        let Some(call) = key(&line, &line["args"]["bytesize"]) else { continue };
        let Some(expected) = printed.stacks.get(&call) else { continue };
        let stack = line["stack"].as_u64().unwrap_or_else(|| panic!("{what}: no stack: {line}"));
        let (is_cut, frames) = &stacks[stack as usize];
        let expected = expected.as_array().unwrap();
        seen += 1;
        cut += usize::from(*is_cut);
        if frames != expected {
            let is_part = *is_cut && (expected.starts_with(frames) || printed.has_beneath(call, frames));
            assert!(is_part, "{what}, call {call:?}: {frames:?}, not {expected:?}");
            short += usize::from(!printed.has_beneath(call, frames));
        }
    }
    assert_eq!(seen, printed.stacks.len(), "{what}: calls with a stack");
    println!("{what}: {seen} stacks, {cut} cut, {short} of them in their Python frames");
    assert!(short <= seen / 100, "{what}: {short} of {seen} stacks have not all Python frames");
}
