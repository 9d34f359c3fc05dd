//! Figures about what --budget left out, from its lines alone.

use super::*;
use crate::budget::{ForgoneFunction, Period};
use crate::figures::Finding;
use Action::{End, GiveUp, TakeBack};
use Level::{Counted, Recorded, Unhooked};

const MS: u64 = 1_000_000;

fn script() -> Script {
    let mut script = Script::new();
    let Body::Header(header) = &mut script.lines[0].body else { panic!() };
    header.options = serde_json::json!({"budget": 5.0});
    script
}

impl Script {
    fn budget(&mut self, after_ns: u64, action: Action, probe: u32, [before, level]: [Level; 2]) {
        let function = ["cudaGetDevice", "cudaGetLastError", CALL_STACKS][probe as usize].to_owned();
        let why = Why { pid: 100, tid: 100, percent: 12.5, hits_per_sec: 1_000_000 };
        let why = (action != End).then_some(why);
        let line = Budget { action, function, probe, level, before, counted: 0, why };
        self.push(after_ns, Body::Budget(line));
    }
}

#[test]
fn what_was_given_up_is_reported_with_times() {
    let mut s = script();
    s.budget(10 * MS, GiveUp, 0, [Recorded, Unhooked]);
    s.budget(0, GiveUp, 1, [Recorded, Unhooked]);
    s.budget(1000 * MS, TakeBack, 0, [Unhooked, Recorded]);
    s.budget(70 * MS, End, 1, [Unhooked, Unhooked]);
    let (live, bytes) = s.finish();
    let budget = live.budget.as_ref().expect("something was given up");
    assert_eq!((budget.limit.as_str(), budget.given_up, budget.taken_back), ("5", 2, 1));
    let [error, device] = budget.functions.as_slice() else { panic!("{budget:?}") };
    assert_eq!((device.name.as_str(), device.level), ("cudaGetDevice", Recorded));
    let unhooked = |function: &ForgoneFunction| -> Vec<_> {
        function.unhooked.iter().map(|p| (p.from_ns / MS, p.to_ns / MS)).collect()
    };
    assert_eq!((device.unhooked_ns, unhooked(device)), (1000 * MS, vec![(10, 1010)]));
    // Given up until the end.
    assert_eq!((error.level, error.unhooked_ns), (Unhooked, live.duration_ns - 10 * MS));
    assert_eq!(unhooked(error), [(10, 1080)]);
    assert!(!live.complete);
    let because = "given up for --budget: 2 functions were not recorded for a while";
    assert_eq!(live.incomplete_because, [because]);
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("Given up for --budget 5: 2 functions"), "{printed}");
    assert!(printed.contains("not recorded from 0.010 to 1.010 s"), "{printed}");
}

/// The calls are all there, and so are the figures.
#[test]
fn call_stacks_that_were_given_up_are_no_calls() {
    let mut s = script();
    s.budget(10 * MS, GiveUp, 2, [Recorded, Unhooked]);
    s.call("cudaMalloc", 5 * MS, 0);
    s.budget(1000 * MS, TakeBack, 2, [Unhooked, Recorded]);
    let (live, bytes) = s.finish();
    let budget = live.budget.as_ref().expect("something was given up");
    let stacks = budget.stacks.as_ref().expect("call stacks");
    assert!(budget.functions.is_empty() && stacks.level == Recorded && stacks.unhooked_ns >= 1000 * MS);
    assert_eq!(live.incomplete_because, ["given up for --budget: calls had no call stacks for a while"]);
    assert!(live.unknown.is_empty(), "{:?}", live.unknown);
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("Given up for --budget 5: call stacks"), "{printed}");
    let mut s = script();
    s.budget(MS, GiveUp, 2, [Recorded, Unhooked]);
    s.budget(MS, GiveUp, 0, [Recorded, Unhooked]);
    let (live, _) = s.finish();
    let because = "given up for --budget: calls had no call stacks for a while, and 1 function was not recorded for a while";
    assert_eq!(live.incomplete_because, [because]);
}

/// Older recorders had a third level, at which calls were counted and not recorded.
#[test]
fn calls_that_were_only_counted_are_not_recorded() {
    let mut s = script();
    s.budget(10 * MS, GiveUp, 0, [Recorded, Counted]);
    s.budget(20 * MS, GiveUp, 0, [Counted, Unhooked]);
    s.budget(1000 * MS, TakeBack, 0, [Unhooked, Counted]);
    s.budget(200 * MS, TakeBack, 0, [Counted, Recorded]);
    let (live, bytes) = s.finish();
    let [function] = live.budget.as_ref().unwrap().functions.as_slice() else { panic!() };
    assert_eq!((function.level, function.unhooked_ns), (Recorded, 1220 * MS));
    assert_eq!(function.unhooked, [Period { from_ns: 10 * MS, to_ns: 1230 * MS }]);
    assert_eq!(of_file(&bytes), live);
}

#[test]
fn many_times_without_a_hook_are_summed_up() {
    let mut s = script();
    for _ in 0..20 {
        s.budget(MS, GiveUp, 0, [Recorded, Unhooked]);
        s.budget(MS, TakeBack, 0, [Unhooked, Recorded]);
    }
    let (live, bytes) = s.finish();
    let [function] = live.budget.as_ref().unwrap().functions.as_slice() else { panic!() };
    assert_eq!((function.unhooked.len(), function.more_periods, function.unhooked_ns), (8, 12, 20 * MS));
    assert_eq!(of_file(&bytes), live);
}

/// A truncated trace has no final line: a function keeps its level as far as the trace goes.
#[test]
fn a_cut_trace_says_what_it_knows() {
    let mut s = script();
    s.budget(MS, GiveUp, 0, [Recorded, Unhooked]);
    s.call("cudaMalloc", 5 * MS, 0);
    let (_, bytes) = s.finish();
    let cut = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let figures = of_file(&bytes[..cut]);
    let [function] = figures.budget.as_ref().unwrap().functions.as_slice() else { panic!() };
    assert_eq!((function.level, function.unhooked_ns), (Unhooked, 5 * MS + 1000));
    assert!(!figures.complete);
}

/// A program whose error queries were not recorded must not be reported as making none.
#[test]
fn findings_that_rest_on_missing_calls_are_left_out() {
    let findings = |given_up: bool| -> Vec<Finding> {
        let mut s = script();
        if given_up {
            s.budget(MS, GiveUp, 1, [Recorded, Unhooked]);
        }
        s.call("cudaLaunchKernel", 1000, 9);
        s.finish().0.findings
    };
    assert_eq!(findings(false).len(), 1);
    assert_eq!(findings(true), []);
}
