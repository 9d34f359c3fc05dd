//! PyTorch's own blocks: the `block` lines of a program are the blocks that it printed, to the byte.
//! In: libc10_cuda.c, a stand-in library with static probes, and blocks.c.
//! Out: each line has the program's figures, in the program's order; afterwards no counter is raised.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use crate::needs::backends;
use crate::room::{Room, eventually, live};
use crate::trace::Trace;

const BLOCKS: u64 = 1500;

struct Stage {
    library: String,
    program: String,
}

impl Stage {
    fn new(room: &Room, options: &[&str]) -> Stage {
        let options = [&["-shared", "-fPIC", "-fno-omit-frame-pointer"], options].concat();
        let library = room.compile("libc10_cuda.c", "libc10_cuda.so", &options);
        let bytes = fs::read(&library).unwrap();
        if cfg!(target_arch = "x86_64") {
            let at_frame = memchr::memmem::find(&bytes, b"(%rbp)");
            assert!(at_frame.is_some(), "no argument is next to the frame pointer");
        }
        Stage { library, program: room.compile("blocks.c", "blocks", &[]) }
    }

    fn words<'a>(&'a self, seed: &'a str, blocks: &'a str) -> [&'a str; 4] {
        [&self.program, &self.library, seed, blocks]
    }
}

type Thread = (u64, u64);

/// What a thread's lines must be. `known`: the blocks of each process that were handed out during the recording.
fn expected(printed: &str) -> BTreeMap<Thread, Vec<Value>> {
    let mut threads: BTreeMap<Thread, Vec<Value>> = BTreeMap::new();
    let mut known: BTreeMap<(u64, &str), Value> = BTreeMap::new();
    for words in printed.lines().map(|line| line.split(' ').collect::<Vec<_>>()) {
        let Some(tid) = words.get(1) else { continue };
        let (Ok(pid), Ok(tid)) = (words[0].parse(), tid.parse()) else { continue };
        let ptr = words[3];
        let mut line = json!({ "op": words[2], "ptr": ptr });
        let facts = match words[2] {
            "alloc" => {
                let stream = words[6].parse::<i64>().unwrap();
                let facts = json!({
                    "size": words[4].parse::<u64>().unwrap(),
                    "device": words[5].parse::<u64>().unwrap(),
                    "stream": format!("{stream:#x}"),
                });
                known.insert((pid, ptr), facts.clone());
                facts
            }
            _ => known.remove(&(pid, ptr)).unwrap_or(json!({})),
        };
        line.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        threads.entry((pid, tid)).or_default().push(line);
    }
    threads
}

fn recorded(trace: &Trace) -> BTreeMap<Thread, Vec<Value>> {
    let mut threads: BTreeMap<Thread, Vec<Value>> = BTreeMap::new();
    for line in trace.of_type("block") {
        let thread = (line["pid"].as_u64().unwrap(), line["tid"].as_u64().unwrap());
        let op = if line["op"] == "alloc" { "pytorch:malloc" } else { "pytorch:free" };
        assert_eq!(line["name"], op);
        let kept = ["op", "ptr", "size", "device", "stream"].into_iter();
        let kept = kept.filter_map(|key| Some((key.to_owned(), line.get(key)?.clone())));
        threads.entry(thread).or_default().push(Value::Object(kept.collect()));
    }
    threads
}

#[track_caller]
fn same(trace: &Trace, printed: &str) {
    let (found, expected) = (recorded(trace), expected(printed));
    let threads = |of: &BTreeMap<Thread, Vec<Value>>| of.keys().copied().collect::<Vec<_>>();
    assert_eq!(threads(&found), threads(&expected));
    for (thread, lines) in &expected {
        let other = found[thread].iter().zip(lines).find(|(found, line)| found != line);
        assert!(other.is_none(), "thread {thread:?}, recorded and printed: {other:?}");
        assert_eq!(found[thread].len(), lines.len(), "thread {thread:?}");
    }
}

/// The blocks of a `library` line.
fn library_of<'a>(trace: &'a Trace, stage: &Stage) -> &'a Value {
    let all = trace.process_events("library");
    let own = all.into_iter().find(|line| line["path"] == stage.library.as_str());
    own.unwrap_or_else(|| panic!("no line about {}", stage.library))
}

#[test]
fn blocks_are_those_that_the_program_prints() {
    live(|room| {
        let stage = Stage::new(room, &[]);
        let blocks = BLOCKS.to_string();
        for backend in backends() {
            let (done, trace) = room.record(&["--backend", backend], &stage.words("1", &blocks));
            done.exited(0);
            let printed = done.text();
            assert!(printed.lines().count() as u64 > 3 * BLOCKS);
            same(trace.is_whole().has_calls(&[]), &printed);
            let library = library_of(&trace, &stage);
            assert_eq!((&library["functions"], &library["not_hooked"]), (&json!(2), &json!([])));
            // The parent hands out and takes back this one, and its child has only its end.
            let ends = trace.of_type("block").filter(|line| line["ptr"] == "0x3000" && line["op"] == "free");
            let mut sizes: Vec<_> = ends.map(|line| line["size"].as_u64()).collect();
            sizes.sort_unstable();
            assert_eq!(sizes, [None, Some(2048)]);
        }
    });
}

/// Of a process that runs already, and of its child. What it handed out before has no size when it comes back.
#[test]
fn a_running_program_and_its_counters_afterwards() {
    live(|room| {
        let stage = Stage::new(room, &[]);
        let (file, begin, end) = (room.text("t.jsonl"), room.text("begin"), room.text("end"));
        let blocks = BLOCKS.to_string();
        let words = [&stage.words("5", &blocks)[..], &[&begin, &end]].concat();
        let mut target = room.target(&words);
        target.wait_for_stdout("ready");
        let pid = target.pid().to_string();
        let recording = room.start(room.gpurec(&["-o", &file, "--pid", &pid]));
        room.wait_until_recording(&file);
        fs::write(&begin, "").unwrap();
        eventually("both processes", || target.stdout().matches("done").count() == 2);
        recording.signal(nix::sys::signal::Signal::SIGINT);
        recording.done().exited(0);
        fs::write(&end, "").unwrap();
        let done = target.done();
        done.exited(0);
        let printed = done.text();
        assert_eq!(printed.matches("counters 0\n").count(), 2, "a counter is still raised");
        let trace = Trace::checked(room, &file);
        let during = printed.split_once("ready").unwrap().1;
        same(trace.is_whole().has_calls(&[]), during);
        let before = trace.of_type("block").find(|line| line["ptr"] == "0x1000").unwrap();
        assert_eq!((&before["op"], &before["size"]), (&json!("free"), &Value::Null));
    });
}

/// A block inside a recorded call belongs to it, and to its stack; others have a stack of their own.
#[test]
fn blocks_have_the_call_around_them_and_a_stack() {
    live(|room| {
        let stage = Stage::new(room, &["-fasynchronous-unwind-tables"]);
        let (file, begin, end) = (room.text("t.jsonl"), room.text("begin"), room.text("end"));
        fs::write(&begin, "").unwrap();
        let inside = format!("{}:block_malloc", stage.library);
        let options = ["--lib", &inside, "--stacks=all", "-o", &file, "--"];
        let words = [&options[..], &stage.words("9", "100"), &[&begin, &end]].concat();
        let recording = room.start(room.gpurec(&words));
        // The names of functions are read from the processes, which must not have ended.
        eventually("the last blocks of both processes", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.matches(r#""op":"free","ptr":"0x3000""#).count() == 2 && text.contains(r#""ptr":"0x1000""#)
        });
        fs::write(&end, "").unwrap();
        let done = recording.done();
        done.exited(0);
        let trace = Trace::checked(room, &file);
        same(&trace, &done.text());
        let calls: BTreeSet<u64> = trace.named("block_malloc").iter().map(|call| call.id).collect();
        let (mut stacks, mut whole) = (Vec::new(), 0);
        for line in &trace.others {
            match line["type"].as_str() {
                Some("stack") => stacks.push((names(line), line["cut"] == true)),
                Some("block") if line["op"] == "alloc" => {
                    assert!(line["begin"].as_u64().is_some_and(|begin| calls.contains(&begin)), "{line}");
                    assert!(line.get("stack").is_none(), "its call has the stack: {line}");
                }
                Some("block") => {
                    assert!(line.get("begin").is_none(), "{line}");
                    let stack = line["stack"].as_u64().unwrap_or_else(|| panic!("no stack: {line}"));
                    let (names, cut) = &stacks[stack as usize];
                    assert!(["block_free", "block_free_uncached"].contains(&names[0].as_str()), "{names:?}");
                    // The first stacks are cut, until BPF knows how to unwind them.
                    whole += u64::from(!cut);
                    let outer = ["main", "work"].iter().any(|name| names.contains(&name.to_string()));
                    assert!(*cut || outer, "{names:?}");
                }
                _ => {}
            }
        }
        let blocks = trace.of_type("block").filter(|line| line["op"] == "alloc").count();
        assert_eq!(calls.len(), blocks);
        assert!(whole > 0, "every stack is cut: {stacks:?}");
    });
}

fn names(stack: &Value) -> Vec<String> {
    let frames = stack["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap_or("?").to_owned()).collect()
}

#[test]
fn a_probe_that_cannot_be_hooked_is_reported_and_costs_no_call() {
    live(|room| {
        let stage = Stage::new(room, &["-DODD"]);
        let (done, trace) = room.record(&[], &stage.words("3", "100"));
        done.exited(0).said("pytorch:malloc");
        trace.is_whole();
        let library = library_of(&trace, &stage);
        assert_eq!(library["functions"], 1);
        let refused = library["not_hooked"].as_array().unwrap();
        assert_eq!(refused.len(), 1);
        assert_eq!(
            (&refused[0]["name"], &refused[0]["code"]),
            (&json!("pytorch:malloc"), &json!("no_argument"))
        );
        let frees = done.text().matches(" free ").count();
        assert_eq!(trace.of_type("block").count(), frees);
        assert!(trace.of_type("block").all(|line| line["op"] == "free" && line.get("size").is_none()));
    });
}

#[test]
fn blocks_that_are_not_wanted_are_not_hooked() {
    live(|room| {
        let stage = Stage::new(room, &[]);
        let words = stage.words("3", "20");
        for options in [&["--skip", "pytorch:*"][..], &["--only", "cudaMalloc"], &["--api", "driver"]] {
            let (done, trace) = room.record(options, &words);
            done.exited(0);
            assert_eq!(
                trace.of_type("block").count() + trace.process_events("library").len(),
                0,
                "{options:?}"
            );
        }
        let (done, trace) = room.record(&["--skip", "pytorch:free"], &words);
        done.exited(0);
        assert!(trace.of_type("block").count() > 0);
        assert!(trace.of_type("block").all(|line| line["op"] == "alloc"));
    });
}
