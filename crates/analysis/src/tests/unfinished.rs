//! Unfinished calls count with their time so far.

use super::*;

/// A wait that returned, and one that did not: 7 ms so far in both levels, 8 ms at the end of the recording.
fn hanging() -> Script {
    let mut s = Script::new();
    s.call("cuCtxSynchronize", 1_000_000, 0);
    let outer = s.begin("cudaDeviceSynchronize", None);
    let inner = s.begin("cuCtxSynchronize", Some(outer));
    let asked = s.begin("cuDeviceGetCount", Some(inner));
    s.end(asked, 1_000_000, 0);
    s.ns += 7_000_000;
    s
}

#[test]
fn a_wait_that_has_not_returned_counts() {
    let (live, bytes) = hanging().finish();
    assert_eq!(of_file(&bytes), live, "the same from the file");
    let so_far = live.in_flight.iter().find(|call| call.name == "cuCtxSynchronize").unwrap().duration_ns;
    assert!(so_far > 8_000_000);
    let sync = &live.sync;
    assert_eq!((sync.calls, sync.unfinished, sync.total_ns), (2, 1, so_far + 1_000_000));
    let of = |name: &str| live.functions.iter().find(|f| f.name == name).unwrap();
    let inner = of("cuCtxSynchronize");
    assert_eq!((inner.calls, inner.unfinished, inner.max_ns), (2, 1, so_far));
    assert_eq!((of("cudaDeviceSynchronize").calls, of("cudaDeviceSynchronize").unfinished), (1, 1));
    assert_eq!(live.functions[0].name, "cuCtxSynchronize", "by time");
    let category = &live.by_category[0];
    assert_eq!((category.category.as_str(), category.calls), ("sync", 2));
    let printed = crate::text::print(&live, UNBOUNDED);
    for said in [
        " in 2 calls, 1 of them unfinished\n",
        "Unfinished, with their time so far: 1 cuCtxSynchronize, 1 cudaDeviceSynchronize.",
        "Calls in flight at the end: 2\n",
    ] {
        assert!(printed.contains(said), "{said}: {printed}");
    }
}

/// A launch or an allocation that has not returned does not count as one.
#[test]
fn what_has_not_returned_has_done_nothing() {
    let mut s = Script::new();
    s.launch("saxpy", None);
    let live = s.finish().0;
    assert_eq!((live.cuda_calls, live.kernel_launches, live.functions[0].unfinished), (1, 0, 1));
}

#[test]
fn reports_count_it_as_the_summary_does() {
    let path = std::env::temp_dir().join(format!("gpurec-unfinished-{}.jsonl", std::process::id()));
    let (live, bytes) = hanging().finish();
    std::fs::write(&path, bytes).unwrap();
    let view = |name: &str| views::tests::json_of(name, &path, &views::ReportConfig::default());
    let sync = view("sync");
    assert_eq!((&sync["waited_ns"], &sync["unfinished"]), (&live.sync.total_ns.into(), &1.into()), "{sync}");
    let api = view("api");
    let functions = api["functions"].as_array().unwrap();
    let own: u64 = functions.iter().map(|f| f["self_ns"].as_u64().unwrap()).sum();
    let outer: u64 = live.functions.iter().find(|f| f.name == "cudaDeviceSynchronize").unwrap().total_ns;
    assert_eq!(own, outer + 1_000_000, "{api}");
    assert_eq!(functions.iter().map(|f| f["unfinished"].as_u64().unwrap_or(0)).sum::<u64>(), 2);
    assert_eq!(view("threads")["threads"][0]["cuda_ns"], own);
    assert_eq!(view("errors")["in_flight"], 2);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_running_report_tells_of_long_calls_alone() {
    let mut summary = Summary::new();
    let script = hanging();
    script.lines.iter().for_each(|line| summary.add(line));
    let at = |at_ns| {
        let wall = std::time::UNIX_EPOCH;
        let now = running::Now { at_ns, wall, events: 1, new_events: 1, passed_ns: 1, lost: 0, skipped: 0 };
        summary.running(&now, &crate::activity::Activity::default(), 100)
    };
    assert!(!at(500_000_000).contains("unfinished"));
    let said = at(3_000_000_000);
    assert!(said.contains(
        "\nCalls open for a second or longer: 1\n  pid 100 tid 100: cudaDeviceSynchronize for 2.99"
    ));
}
