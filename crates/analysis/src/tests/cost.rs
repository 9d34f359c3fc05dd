//! gpurec's own share of a program's time: its hooks and its stops.

use super::*;

fn paused(s: &mut Script, begin: u64, took: u64, paused: u64) {
    s.end(begin, took, 0);
    if let Some(Line { body: Body::End(end), .. }) = s.lines.last_mut() {
        end.paused_ns = paused;
    }
}

/// cudaMalloc loads a library, for which gpurec stops the process, and calls cuMemAlloc.
fn first_call() -> Script {
    let mut s = Script::new();
    let outer = s.begin("cudaMalloc", None);
    let inner = s.begin("cuMemAlloc_v2", Some(outer));
    paused(&mut s, inner, 50_000, 0);
    paused(&mut s, outer, 9_000_000, 8_000_000);
    let finish = Finish { stops: Some(Stops { count: 2, total_ns: 8_500_000 }), ..Finish::default() };
    s.push(0, Body::Finish(Box::new(Finish { complete: true, ..finish })));
    s
}

#[test]
fn corrected_and_own_cost_have_the_time_for_which_gpurec_stopped_the_program() {
    let (live, _) = first_call().finish();
    let function = |name: &str| live.functions.iter().find(|f| f.name == name).unwrap();
    let outer = function("cudaMalloc");
    // The nested call cost 1000 ns.
    assert_eq!(outer.corrected_ns, Some(outer.total_ns - 8_000_000 - 1000));
    assert_eq!(function("cuMemAlloc_v2").corrected_ns, None);
    let cost = live.cost.as_ref().unwrap();
    assert_eq!((cost.calls_ns(), cost.total_ns, cost.stops.unwrap().count), (2000, 8_502_000, 2));
    let printed = crate::text::print(&live, 200);
    assert!(printed.contains("gpurec had stopped processes for 8.500 ms in 2 stops"), "{printed}");
    assert!(printed.contains("less the time for which"), "{printed}");
}

#[test]
fn a_trace_that_does_not_say_how_long_the_stops_took_says_that() {
    let mut s = first_call();
    s.lines.pop();
    let (live, bytes) = s.finish();
    assert_eq!(live.cost.as_ref().unwrap().stops, None);
    assert!(crate::text::print(&live, 100).contains("does not say for how long"));
    assert_eq!(of_file(&bytes), live);
}

#[test]
fn each_call_costs_what_its_kind_of_site_was_measured_to_cost() {
    let mut s = Script::new();
    let Body::Header(header) = &mut s.lines[0].body else { panic!() };
    let kinds =
        [(EMULATED, 1000), (SINGLE_STEPPED, 7000), (EMULATED_COLD, 5000), (SINGLE_STEPPED_COLD, 20_000)];
    let kinds = kinds.map(|(kind, ns)| (kind.to_owned(), ns));
    header.ns_per_call_by_site = BTreeMap::from([("uprobe.session".to_owned(), kinds.into())]);
    let library = |name: &str, stepped: &[&str]| Library {
        pid: 100,
        tid: 100,
        path: name.to_owned().into(),
        build_id: None,
        functions: 9,
        not_hooked: Vec::new(),
        single_stepped: stepped.iter().map(|name| (*name).to_owned()).collect(),
    };
    s.push(0, Body::Process(Process::Library(library("/libcuda.so.1", &["cuMemAlloc_v2", "cuInit"]))));
    for _ in 0..10 {
        let outer = s.begin("cudaMalloc", None);
        let inner = s.begin("cuMemAlloc_v2", Some(outer));
        s.end(inner, 50_000, 0);
        s.end(outer, 100, 0);
    }
    let (live, bytes) = s.finish();
    let cost = live.cost.as_ref().unwrap();
    assert_eq!((cost.ns_per_call, cost.ns_per_stepped), (1000, Some(7000)));
    assert_eq!((cost.calls, cost.stepped_calls), (20, 10));
    assert_eq!((cost.total_ns, cost.cold_ns, cost.threads[0].cost_ns), (80_000, Some(250_000), 80_000));
    let outer = live.functions.iter().find(|f| f.name == "cudaMalloc").unwrap();
    assert_eq!(outer.corrected_ns, Some(outer.total_ns - 70_000), "less what the calls inside cost");
    let printed = crate::text::print(&live, 200);
    assert!(printed.contains("at 1000 ns a call as measured at the start, 7000 ns for 10 that"), "{printed}");
    assert!(printed.contains("cost more: up to 250.000 us"), "{printed}");
    assert_eq!(of_file(&bytes), live);
}
