//! Programs that claim to be a Python interpreter (fixtures/programs/liar.c), and interpreters whose frames gpurec does
//! not read. In: lies in the state and in the file. Out: every call is recorded, stacks have bounded frames and texts and
//! are marked where they end early, and the user reads why a stack has no Python frames.

use serde_json::Value;

use crate::pythons::LIBRARY;
use crate::room::{Room, live};

const CALLS: u64 = 1000;
/// As bpf/gpurec.h has them.
const MOST_FRAMES: usize = 128;
const MOST_TEXT: usize = 1024;

/// Of a stack: the Python frames, and whether it is cut.
type Stack = (Vec<Value>, bool);

fn stacks(room: &Room, program: &str, mode: &str) -> Vec<Stack> {
    let (done, trace) = room.record(&["--stacks"], &[program, LIBRARY, mode, &CALLS.to_string()]);
    assert_eq!(done.exited(0).text(), "called\n", "{mode}");
    trace.is_whole().has_calls(&[("cuInit", 1), ("cuMemAlloc_v2", CALLS)]);
    assert!(!done.stderr.contains('\x1b'), "{mode}: no escape reaches the terminal");
    trace.of_type("stack").map(stack).collect()
}

fn stack(line: &Value) -> Stack {
    let frames = line["frames"].as_array().unwrap().iter();
    (frames.filter(|frame| frame["kind"] == "python").cloned().collect(), line["cut"] == true)
}

/// With the symbol of an interpreter.
fn liar(room: &Room, name: &str, flags: &[&str]) -> String {
    room.compile("liar.c", name, &[&["-rdynamic"], flags].concat())
}

#[test]
fn a_state_that_is_a_lie_has_bounded_stacks() {
    live(|room| {
        let program = liar(room, "liar", &[]);
        let of = |mode: &str| stacks(room, &program, mode);
        // What follows is no lie of the test: this program's frames are read.
        let honest = of("honest");
        assert!(honest.iter().any(|(python, _)| python.len() == 1 && python[0]["function"] == "lie"));
        for (python, cut) in of("cycle").iter().filter(|(python, _)| !python.is_empty()) {
            assert_eq!((python.len(), cut), (MOST_FRAMES, &true));
        }
        for mode in ["hidden", "threads", "interpreters"] {
            assert!(of(mode).iter().all(|(python, _)| python.is_empty()), "{mode}");
        }
        for mode in ["names", "control", "wild", "churn"] {
            for (python, _) in of(mode) {
                assert!(python.len() <= MOST_FRAMES, "{mode}");
                for text in python.iter().flat_map(|frame| [&frame["function"], &frame["file"]]) {
                    assert!(text.as_str().unwrap().chars().count() <= MOST_TEXT + 1, "{mode}: {text}");
                }
            }
        }
    });
}

/// What the recorder prints of a program whose file describes such an interpreter.
fn said(room: &Room, name: &str, flags: &[&str]) -> String {
    let program = liar(room, name, flags);
    let (done, trace) = room.record(&["--stacks"], &[&program, LIBRARY, "honest", "3"]);
    trace.is_whole().has_calls(&[("cuInit", 1), ("cuMemAlloc_v2", 3)]);
    assert!(trace.of_type("stack").all(|line| stack(line).0.is_empty()), "{name}");
    done.exited(0).stderr.clone()
}

#[test]
fn an_interpreter_that_cannot_be_read_is_named_with_the_reason() {
    live(|room| {
        let cases: [(&str, &[&str], &str); 4] = [
            ("threaded", &["-DFREE_THREADED"], "this Python 3.13 is free-threaded"),
            ("damaged", &["-DDAMAGED"], "the debug offsets of this interpreter are damaged"),
            ("newer", &["-DVERSION=0x036300f0"], "Python 3.99 is not known to this gpurec"),
            ("early", &["-DVERSION=0x030d00a1"], "a pre-release of Python 3.13"),
        ];
        for (name, flags, sentence) in cases {
            let stderr = said(room, name, flags);
            let line = stderr.lines().find(|line| line.starts_with("Stacks without Python frames: "));
            assert!(line.is_some_and(|line| line.contains(sentence)), "{name}: {stderr}");
        }
    });
}
