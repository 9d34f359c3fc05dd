//! Figures that are unknown because of what a recording left out.

use std::collections::BTreeSet;

use super::*;
use gpurec_trace::Incomplete;

/// A program that allocates, frees, launches, copies and waits.
fn script(options: serde_json::Value) -> Script {
    let mut s = Script::new();
    let Body::Header(header) = &mut s.lines[0].body else { panic!() };
    header.options = options;
    for name in ["cuMemAlloc_v2", "cuLaunchKernel", "cuMemcpyHtoD_v2", "cuCtxSynchronize", "cuMemFree_v2"] {
        s.call(name, 10, 0);
    }
    s
}

fn unknown_with(options: serde_json::Value) -> (BTreeSet<String>, Figures) {
    let (live, bytes) = script(options).finish();
    assert_eq!(of_file(&bytes), live, "the same from the file");
    (live.unknown.keys().cloned().collect(), live)
}

fn set(figures: &[&str]) -> BTreeSet<String> {
    figures.iter().map(|figure| (*figure).to_owned()).collect()
}

const ALWAYS: [&str; 3] = ["cuda_calls", "failures.calls", "failures.handled"];
const OF_FREES: [&str; 5] =
    ["memory.freed_bytes", "memory.frees", "memory.held", "memory.leaks", "memory.peak"];
const OF_ALLOCATIONS: [&str; 2] = ["memory.allocated_bytes", "memory.allocations"];
const OF_COPIES: [&str; 2] = ["transfers.bytes", "transfers.count"];
const OF_WAITS: [&str; 2] = ["sync.calls", "sync.total_ns"];

#[test]
fn options_leave_out_the_inputs_of_figures() {
    let none = unknown_with(serde_json::json!({}));
    assert_eq!(none.0, set(&[]));
    let (unknown, figures) = unknown_with(serde_json::json!({"skip": ["*Free*"]}));
    assert_eq!(unknown, set(&[&ALWAYS[..], &OF_FREES].concat()));
    let reason = &figures.unknown["memory.leaks"];
    assert!(
        reason.starts_with("cuMemFree") && reason.ends_with("functions that free were not recorded"),
        "{reason}"
    );
    // The command line from the README.
    let (unknown, figures) = unknown_with(serde_json::json!({"only": ["cuLaunch*", "cuMemAlloc*"]}));
    let all = [&ALWAYS[..], &OF_FREES, &OF_ALLOCATIONS, &OF_COPIES, &OF_WAITS, &["graph_launches"]].concat();
    assert_eq!(unknown, set(&all));
    assert_eq!(figures.unknown["transfers.count"], "copies were not recorded");
    let printed = crate::text::print(&figures, 100);
    assert!(printed.contains("  Kernel launches: 1\n"), "{printed}");
    assert!(printed.contains("  Memory transfers: not known (copies were not recorded)\n"), "{printed}");
    assert!(printed.contains("Time by category: 5 CUDA calls seen\n"), "{printed}");
    assert_eq!(
        unknown_with(serde_json::json!({"skip": ["cuMemset*"]})).0,
        set(&[&ALWAYS[..], &OF_COPIES].concat())
    );
    // Only functions of the driver matter; calls and failures of the runtime are its own.
    assert_eq!(unknown_with(serde_json::json!({"api": "driver"})).0, set(&ALWAYS));
    assert_eq!(unknown_with(serde_json::json!({"skip": ["cuda*"]})).0, set(&ALWAYS));
    let (unknown, figures) = unknown_with(serde_json::json!({"api": "runtime"}));
    assert_eq!(unknown.len(), 16, "{unknown:?}");
    assert_eq!(figures.unknown["kernel_launches"], "launches were not recorded");
    // One version of a function represents all.
    assert_eq!(
        unknown_with(serde_json::json!({"skip": ["cuLaunchKernelEx_ptsz", "cuMemAlloc"]})).0.len(),
        10
    );
}

#[test]
fn losses_leave_out_what_they_may_have_been() {
    let lost = |probe: &str| {
        let mut s = script(serde_json::json!({}));
        s.push(0, Body::Lost(Lost { count: 2, by_probe: BTreeMap::from([(probe.to_owned(), 2)]) }));
        let (live, bytes) = s.finish();
        assert_eq!(of_file(&bytes), live);
        live
    };
    let known = |figures: &Figures| figures.unknown.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(known(&lost("cuDeviceGet")), set(&ALWAYS));
    let launches = lost("cuLaunchKernel (return)");
    assert_eq!(known(&launches), set(&[&ALWAYS[..], &["kernel_launches"]].concat()));
    assert_eq!(launches.unknown["kernel_launches"], "2 records of cuLaunchKernel (return) were lost");
    assert_eq!(known(&lost("cudaMalloc")), set(&ALWAYS), "the driver's call in it is in the trace");
    assert_eq!(known(&lost("nvidia_unlocked_ioctl")), set(&[]));
    assert_eq!(known(&lost("process: exit")).len(), 17);
}

#[test]
fn a_recording_that_is_not_complete_or_not_whole() {
    let s = script(serde_json::json!({}));
    let mut summary = Summary::new();
    s.lines.iter().for_each(|line| summary.add(line));
    summary.incomplete(Incomplete::HookedLate { path: "libcuda.so".to_owned() });
    let live = summary.finish(s.ns);
    assert_eq!(live.unknown.len(), 17);
    assert_eq!(live.unknown["cuda_calls"], "the recording is not complete");
    let (_, bytes) = script(serde_json::json!({})).finish();
    let end = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap();
    let cut = of_file(&bytes[..=end]);
    assert_eq!((cut.unknown.len(), cut.unknown["cuda_calls"].as_str()), (17, "the trace has no end"));
    assert_eq!(cut.cuda_calls, 5, "what was seen is still there");
}

#[test]
fn what_is_not_known_is_null_and_comes_back() {
    let (_, figures) = unknown_with(serde_json::json!({"skip": ["*Free*"]}));
    let json = figures.to_json();
    assert_eq!(
        (&json["cuda_calls"], &json["memory"]["leaks"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!((&json["seen"]["cuda_calls"], &json["kernel_launches"]), (&5.into(), &1.into()));
    assert!(json["unknown"]["memory.leaks"].is_string(), "{json}");
    assert_eq!(Figures::from_json(&json).unwrap(), figures);
}

/// A process that ran before the recording: earlier memory is unknown, later allocations are known.
#[test]
fn of_processes_from_before_the_recording_peaks_are_not_known() {
    let mut s = script(serde_json::json!({}));
    let Body::Header(header) = &mut s.lines[0].body else { panic!() };
    (header.command, header.pids) = (None, Some(vec![100]));
    // The live summary gets the header as it is after the change.
    let (_, bytes) = s.finish();
    let figures = of_file(&bytes);
    assert!(figures.attached);
    assert_eq!(figures.unknown.keys().collect::<Vec<_>>(), ["memory.held", "memory.peak"]);
    let json = figures.to_json();
    assert_eq!(json["processes"][0]["peak_device_bytes"], serde_json::Value::Null);
    assert_eq!(Figures::from_json(&json).unwrap(), figures);
}
