//! Figures about what --budget left out, from its lines alone.

use super::*;
use crate::figures::Finding;

const MS: u64 = 1_000_000;

fn script() -> Script {
    let mut script = Script::new();
    let Body::Header(header) = &mut script.lines[0].body else { panic!() };
    header.options = serde_json::json!({"budget": 5.0});
    header.ns_per_counted = Some(200);
    script
}

impl Script {
    fn budget(
        &mut self,
        after_ns: u64,
        action: Action,
        probe: u32,
        [before, level]: [Level; 2],
        counted: u64,
    ) {
        let function = ["cudaGetDevice", "cudaGetLastError"][probe as usize].to_owned();
        let why = Why { pid: 100, tid: 100, percent: 12.5, hits_per_sec: 1_000_000 };
        let why = (action != Action::End).then_some(why);
        self.push(after_ns, Body::Budget(Budget { action, function, probe, level, before, counted, why }));
    }
}

#[test]
fn what_was_given_up_is_told_with_counts_and_times() {
    use Action::*;
    use Level::*;
    let mut s = script();
    s.budget(10 * MS, GiveUp, 0, [Recorded, Counted], 0);
    s.budget(0, GiveUp, 1, [Recorded, Counted], 0);
    s.budget(20 * MS, GiveUp, 0, [Counted, Unhooked], 1000);
    s.budget(1000 * MS, TakeBack, 0, [Unhooked, Counted], 7);
    s.budget(200 * MS, TakeBack, 0, [Counted, Recorded], 30);
    s.budget(70 * MS, End, 1, [Counted, Counted], 500);
    let (live, bytes) = s.finish();
    let budget = live.budget.as_ref().expect("something was given up");
    assert_eq!((budget.limit.as_str(), budget.given_up, budget.taken_back), ("5", 3, 2));
    assert_eq!((budget.counted_calls, budget.counted_cost_ns), (1537, 1537 * 200));
    let [device, error] = budget.functions.as_slice() else { panic!("{budget:?}") };
    assert_eq!((device.name.as_str(), device.level, device.counted_calls), ("cudaGetDevice", Recorded, 1037));
    assert_eq!((device.counted_ns, device.unhooked_ns), (220 * MS, 1000 * MS));
    let unhooked: Vec<_> = device.unhooked.iter().map(|p| (p.from_ns, p.to_ns)).collect();
    assert_eq!(unhooked, [(30 * MS, 1030 * MS)]);
    // Given up until the end.
    assert_eq!((error.level, error.counted_calls), (Counted, 500));
    assert_eq!(error.counted_ns, live.duration_ns - 10 * MS);
    assert_eq!(error.unhooked, []);
    assert!(!live.complete);
    let because = "given up for --budget: of 2 functions 1537 calls were counted and not recorded, and 1 of them had no hook for a while";
    assert_eq!(live.incomplete_because, [because]);
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("Given up for --budget 5: 1537 calls counted and not recorded"), "{printed}");
    assert!(printed.contains("not hooked from 0.030 to 1.030 s"), "{printed}");
}

#[test]
fn many_times_without_a_hook_are_summed_up() {
    use Action::*;
    use Level::*;
    let mut s = script();
    s.budget(MS, GiveUp, 0, [Recorded, Counted], 0);
    for _ in 0..20 {
        s.budget(MS, GiveUp, 0, [Counted, Unhooked], 10);
        s.budget(MS, TakeBack, 0, [Unhooked, Counted], 0);
    }
    s.budget(MS, End, 0, [Counted, Counted], 0);
    let (live, bytes) = s.finish();
    let [function] = live.budget.as_ref().unwrap().functions.as_slice() else { panic!() };
    assert_eq!((function.unhooked.len(), function.more_periods, function.unhooked_ns), (8, 12, 20 * MS));
    assert_eq!(of_file(&bytes), live);
}

/// A truncated trace has no final line: a function keeps its level as far as the trace goes.
#[test]
fn a_cut_trace_says_what_it_knows() {
    use Action::*;
    use Level::*;
    let mut s = script();
    s.budget(MS, GiveUp, 0, [Recorded, Counted], 0);
    s.budget(MS, GiveUp, 0, [Counted, Unhooked], 10);
    s.call("cudaMalloc", 5 * MS, 0);
    let (_, bytes) = s.finish();
    let cut = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let figures = of_file(&bytes[..cut]);
    let [function] = figures.budget.as_ref().unwrap().functions.as_slice() else { panic!() };
    assert_eq!((function.level, function.counted_calls), (Unhooked, 10));
    assert_eq!(function.unhooked_ns, 5 * MS + 1000);
    assert!(!figures.complete);
}

/// A program whose error queries were not recorded must not be reported as making none.
#[test]
fn findings_that_rest_on_missing_calls_are_left_out() {
    let findings = |given_up: bool| -> Vec<Finding> {
        let mut s = script();
        if given_up {
            s.budget(MS, Action::GiveUp, 1, [Level::Recorded, Level::Counted], 0);
        }
        s.call("cudaLaunchKernel", 1000, 9);
        s.finish().0.findings
    };
    assert_eq!(findings(false).len(), 1);
    assert_eq!(findings(true), []);
}
