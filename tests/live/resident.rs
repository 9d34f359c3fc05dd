//! A call points at a page that is not in memory and may never come: its fault is answered late, or never. A recorder
//! that waits for it inside Linux blocks every other recorder on the machine.
//! In: programs/resident.c and few.c.
//! Out: other recordings come and go, this one ends on request, and what the callee has touched is in the trace all the
//! same.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::needs::{backends, skip};
use crate::room::{Room, live};
use crate::trace::{Trace, text_of};

struct ResidentProgram {
    program: String,
    library: String,
}

impl ResidentProgram {
    fn new(room: &Room) -> ResidentProgram {
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("few.c", "libcuda.so.1", &flags);
        ResidentProgram { program: room.compile("resident.c", "resident", &[]), library }
    }
}

/// The lines of the only call of a function: its begin, and its end if there is one.
fn lines_of(file: &str, function: &str) -> Vec<Value> {
    let text = text_of(Path::new(file));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["name"] == function && line["type"] == "userspace").collect()
}

fn is_unreadable(args: &Value, name: &str) -> bool {
    args[name].is_null() && args["unreadable"].as_array().is_some_and(|all| all.contains(&json!(name)))
}

/// Attaches, makes the program call, and does what must be possible before the fault is answered.
fn while_it_waits(room: &Room, resident: &ResidentProgram, backend: &str, mode: &str) -> Option<String> {
    let number = room.number();
    let [file, go, answer] = ["t.jsonl", "go", "answer"].map(|name| room.text(&format!("{number}-{name}")));
    let mut target = room.target(&[&resident.program, mode, &resident.library, "", &go, &answer]);
    crate::room::eventually("a word", || !target.stdout().is_empty() || !target.is_running());
    if target.stdout() == "not here\n" {
        skip("this kernel has no userfaultfd");
        return None;
    }
    let pid = target.pid().to_string();
    let recording = room.start(room.gpurec(&["-q", "--backend", backend, "--pid", &pid, "-o", &file]));
    room.wait_until_recording(&file);
    fs::write(&go, "").unwrap();
    target.wait_for_stdout("calling");
    if mode != "touched" {
        // The callee does not read the page, so only a recorder could wait.
        target.wait_for_stdout("called");
        assert!(!target.stdout().contains("answered"), "{mode} by {backend}: the call waited for the page");
    }
    room.run(room.gpurec(&["-q", "-o", "other.jsonl", "--", "true"])).exited(0);
    assert!(!target.stdout().contains("answered"), "{mode} by {backend}: another recording waited");
    recording.signal(Signal::SIGTERM);
    recording.done().exited(0);
    assert!(!target.stdout().contains("answered"), "{mode} by {backend}: the end of the recording waited");
    fs::write(&answer, "").unwrap();
    target.done().exited(0);
    Trace::checked(room, &file);
    Some(file)
}

/// Runs each backend; `check` gets the file.
fn each_backend(mode: &str, check: impl Fn(&str)) {
    live(|room| {
        let resident = ResidentProgram::new(room);
        for backend in backends() {
            if let Some(file) = while_it_waits(room, &resident, backend, mode) {
                check(&file);
            }
        }
    });
}

#[test]
fn a_text_that_never_comes() {
    each_backend("text", |file| {
        let lines = lines_of(file, "cuModuleGetFunction");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(is_unreadable(&lines[0]["args"], "name"), "{}", lines[0]);
        assert_eq!(lines[1]["retval"], 0);
    });
}

#[test]
fn a_structure_that_never_comes() {
    each_backend("structure", |file| {
        let lines = lines_of(file, "cuMemcpy2D_v2");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(is_unreadable(&lines[0]["args"], "pCopy"), "{}", lines[0]);
    });
}

#[test]
fn a_result_that_never_comes() {
    each_backend("out", |file| {
        let lines = lines_of(file, "cuMemAlloc_v2");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(is_unreadable(&lines[1]["out"], "dptr"), "{}", lines[1]);
    });
}

/// The callee itself waits for the page.
#[test]
fn a_call_that_waits_for_its_text() {
    each_backend("touched", |file| {
        let lines = lines_of(file, "cuModuleGetFunction");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(is_unreadable(&lines[0]["args"], "name"), "{}", lines[0]);
    });
}

/// Like the constants of a library: the callee is the first to read them.
#[test]
fn a_text_that_the_callee_is_the_first_to_touch() {
    live(|room| {
        let resident = ResidentProgram::new(room);
        let letters = room.text("letters");
        for backend in backends() {
            let mut bytes = vec![b'f'; 8 * 4096];
            bytes[3 * 4096 + 20] = 0;
            fs::write(&letters, bytes).unwrap();
            let file = room.text(&format!("{backend}.jsonl"));
            let words = ["--backend", backend, "-o", &file, "--", &resident.program, "constants"];
            let more = [&resident.library, &letters, &resident.program, "unused"];
            room.run(room.gpurec(&[&words[..], &more].concat())).exited(0);
            Trace::checked(room, &file).is_whole();
            let lines = lines_of(&file, "cuModuleGetFunction");
            assert_eq!(lines.len(), 2, "{lines:?}");
            let all = [&lines[0]["args"], &lines[1]["args"], &lines[1]["out"]].map(|of| of["name"].clone());
            let text = json!("f".repeat(20));
            assert!(all.contains(&text), "{backend}: {} {}", lines[0], lines[1]);
        }
    });
}
