//! Calls on one stack while a call is open on another: in a signal handler on its alternate stack, in coroutines.
//! In: programs/stacks.c and libx.c.
//! Out: the program runs as without gpurec; every call is recorded; a call without its return is recorded as such, and
//! the trace is not complete.
//! Return probes that cannot be declined crash such a program: none of this holds before Linux 6.13.

use std::collections::BTreeMap;

use crate::disorder::X;
use crate::needs::{backends, skip};
use crate::room::{Room, live};
use crate::trace::{Call, Trace};

const TIMES: u64 = 20;
const THREADS: u64 = 4;

/// For a mode of programs/stacks.c: its calls of x_call and x_leaf, and how many of each return at least.
struct Mode {
    calls: [u64; 2],
    return_at_least: [u64; 2],
    /// The program leaves calls by jumps, or never returns to them.
    leaves: bool,
}

fn mode(name: &str) -> Mode {
    let (calls, return_at_least) = match name {
        "signal" | "hand" => ([TIMES, 2 * TIMES + 1], [TIMES, TIMES + 1]),
        "jump" => ([TIMES, 2 * TIMES + 1], [0, 1]),
        "nest" => ([TIMES + 1, 2 * TIMES + 1], [1, 1]),
        "switch" => ([2 * TIMES, 5 * TIMES + 2], [0, 1]),
        "left" => ([TIMES, TIMES + 11], [0, 0]),
        _ => panic!("{name}"),
    };
    Mode { calls, return_at_least, leaves: ["jump", "left"].contains(&name) }
}

/// The library and the program; none where Linux cannot decline return probes.
fn stacks(room: &Room) -> Option<(X, String)> {
    if backends()[0] != "uprobe.session" {
        skip("it needs return probes that can be declined (Linux 6.13)");
        return None;
    }
    let x = X::new(room);
    let program = room.compile("stacks.c", "stacks", &[&x.library, "-Wl,-rpath,$ORIGIN"]);
    Some((x, program))
}

/// Records `stacks MODE OUTER INNER` for each.
fn each(cases: &[&str]) {
    live(|room| {
        let Some((x, program)) = stacks(room) else { return };
        let harmed: Vec<String> = cases.iter().filter_map(|case| harmed(room, &x, &program, case)).collect();
        assert!(harmed.is_empty(), "{harmed:#?}");
    });
}

/// Returns how the program ended, if it does not end so without gpurec.
fn harmed(room: &Room, x: &X, program: &str, case: &str) -> Option<String> {
    let times = TIMES.to_string();
    let words: Vec<&str> = [program].into_iter().chain(case.split(' ')).chain([times.as_str()]).collect();
    let mut alone = room.command(program);
    alone.args(&words[1..]);
    assert_eq!(room.run(alone).exited(0).text(), "called\n", "{case} without gpurec");
    let (done, trace) = room.record(&["--lib", &x.lib()], &words);
    if !done.status.success() {
        return Some(format!("{case}: {:?}", done.status));
    }
    assert_eq!(done.text(), "called\n", "{case}");
    let unwatched = trace.unwatched().count();
    println!(
        "{case}: {unwatched} of {} without a return, incomplete because {:?}",
        trace.calls.len(),
        trace.reasons()
    );
    check(case, &trace);
    None
}

fn check(case: &str, trace: &Trace) {
    let threads = if case.starts_with("threads") { THREADS } else { 1 };
    let mode = mode(case.trim_start_matches("threads ").split(' ').next().unwrap());
    let made =
        ["x_call", "x_leaf"].into_iter().zip(mode.calls).map(|(name, n)| (name.to_owned(), n * threads));
    assert_eq!(trace.counts(), made.collect::<BTreeMap<_, _>>(), "{case}");
    for ((name, retval), at_least) in [("x_call", "0x7"), ("x_leaf", "0x2a")].iter().zip(mode.return_at_least)
    {
        let calls = trace.named(name);
        let returned: Vec<&&Call> = calls.iter().filter(|call| has_returned(call)).collect();
        let wrong = returned.iter().find(|call| call.end.as_ref().unwrap().retval != *retval);
        assert!(wrong.is_none(), "{case}: not {retval} of {wrong:?}");
        assert!(returned.len() as u64 >= at_least * threads, "{case}: {} of {name} return", returned.len());
        let rest: Vec<_> =
            calls.iter().filter(|call| !has_returned(call) && call.no_return.is_none()).collect();
        assert!(mode.leaves || rest.is_empty(), "{case}: these have returned: {rest:?}");
    }
    assert_eq!(trace.lost(), 0, "{case}");
    assert_eq!(trace.complete(), trace.unwatched().next().is_none(), "{case}: {:?}", trace.reasons());
}

fn has_returned(call: &Call) -> bool {
    call.end.as_ref().is_some_and(|end| !end.unwound && !end.lost)
}

/// The hooks of the other recorder are in this program too, and ask for none of its returns.
#[test]
fn a_program_that_a_second_gpurec_does_not_record() {
    live(|room| {
        let Some((x, program)) = stacks(room) else { return };
        let (file, go) = (room.text("other.jsonl"), room.text("go"));
        let other = [&x.program, "wait-then-leaf", &go, "10"];
        let mut recording =
            room.start(room.gpurec(&[&["--lib", &x.lib(), "-o", &file, "--"], &other[..]].concat()));
        recording.wait_for_stdout("inside");
        for case in ["signal own map", "switch map heap"] {
            assert_eq!(harmed(room, &x, &program, case), None);
        }
        std::fs::write(&go, "").unwrap();
        recording.done().exited(0);
        Trace::checked(room, &file).is_whole().has_calls(&[("x_wait", 1), ("x_leaf", 10)]);
    });
}

#[test]
fn a_handler_on_an_alternate_stack() {
    each(&[
        "signal own map",
        "signal own heap",
        "signal own static",
        "signal own array",
        "signal heap map",
        "signal static heap",
        "signal map static",
        "signal map array",
        "signal lower upper",
        "signal upper lower",
    ]);
}

#[test]
fn a_handler_on_an_alternate_stack_that_jumps_out_of_it() {
    each(&["jump own map", "jump own array", "jump heap map", "jump map static"]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_stack_that_is_changed_by_hand() {
    each(&["hand own map", "hand own static", "hand heap map", "hand map heap", "hand static map"]);
}

#[test]
fn coroutines_that_run_inside_a_call() {
    each(&["nest own map", "nest heap map", "nest map heap", "nest static heap", "nest map map"]);
}

/// The calls end in the order in which they began.
#[test]
fn coroutines_that_take_turns() {
    each(&["switch map map", "switch heap map", "switch map heap", "switch static map"]);
}

#[test]
fn coroutines_whose_stacks_lie_in_one_mapping() {
    each(&["nest lower upper", "nest upper lower", "nest heap heap", "switch lower upper"]);
}

/// A call begins below an open one, and ends after it.
#[test]
fn coroutines_in_one_mapping_that_take_turns() {
    each(&["switch upper lower", "switch heap heap", "switch static static"]);
}

/// The inner stack is in an unused part of the thread's own stack.
#[test]
fn a_stack_inside_another() {
    each(&["nest map array", "switch array map"]);
}

#[test]
fn a_coroutine_that_is_left_for_good() {
    each(&["left map map", "left heap map", "left static map", "left array map"]);
}

#[test]
fn each_thread_has_stacks_of_its_own() {
    each(&[
        "threads signal own map",
        "threads signal own heap",
        "threads signal own array",
        "threads signal heap map",
        "threads nest map heap",
        "threads switch map map",
        "threads switch lower upper",
        "threads left map map",
    ]);
}
