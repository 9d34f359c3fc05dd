//! What a recording costs the program: gpurec's own stops, and its hooks by their kind of site.
//! In: programs that measure it by their own clocks.
//! Out: the trace says the same.

use crate::needs::backends;
use crate::room::{Room, live};
use crate::trace::Trace;

const LIBRARY: [&str; 3] = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];

/// Records inside.c. Also returns how long loading inside the call took by the program's own clock.
fn inside(room: &Room, options: &[&str]) -> (Trace, u64) {
    let library = room.compile("few.c", "libcuda.so.1", &LIBRARY);
    let copy = room.text("copy.so");
    std::fs::copy(&library, &copy).unwrap();
    let program = room.compile("inside.c", "inside", &[]);
    let (done, trace) = room.record(options, &[&program, &library, &copy]);
    let took = done.exited(0).text().trim().parse().expect("nanoseconds");
    (trace, took)
}

/// The cost of the calls by the header's prices and the numbers of calls.
fn of_calls(trace: &Trace) -> u64 {
    let cost = &trace.end["summary"]["cost"];
    let number = |key: &str| cost[key].as_u64().unwrap_or(0);
    let layer = trace.header["hooks"]["userspace"]["backend"].as_str().unwrap();
    let price = |kind: &str| trace.header["ns_per_call_by_site"][layer][kind].as_u64().unwrap();
    assert_eq!(
        (&trace.header["ns_per_call"], number("ns_per_call")),
        (&price("emulated").into(), price("emulated"))
    );
    (number("calls") - number("stepped_calls")) * price("emulated")
        + number("stepped_calls") * price("single_stepped")
}

#[test]
fn the_time_for_which_gpurec_stops_the_target_is_told() {
    live(|room| {
        let (trace, took) = inside(room, &[]);
        trace.is_whole();
        let call = trace.named("cuLaunchHostFunc")[0].end.as_ref().unwrap();
        let (paused, duration) = (call.paused_ns, call.duration_ns.unwrap());
        // gpurec stops the program while it hooks a new library, which is most of the time that loading it takes.
        assert!(paused > 0 && paused <= took && took <= duration, "{paused} of {took} in {duration} ns");
        let after = trace.named("cuDriverGetVersion")[0].end.as_ref().unwrap();
        assert_eq!(after.paused_ns, 0, "a call after it");

        let stops = &trace.end["stops"];
        // At least the program itself and the two libraries.
        assert!(stops["count"].as_u64() >= Some(3), "{stops}");
        assert!(stops["total_ns"].as_u64() > Some(paused), "{stops}");
        let summary = &trace.end["summary"];
        assert_eq!((&summary["stops"], &summary["cost"]["stops"]), (stops, stops));
        assert_eq!(of_calls(&trace) + stops["total_ns"].as_u64().unwrap(), summary["cost"]["total_ns"]);
        let functions = summary["functions"].as_array().unwrap();
        let launch = functions.iter().find(|f| f["name"] == "cuLaunchHostFunc").unwrap();
        let own = launch["total_ns"].as_u64().unwrap() - launch["corrected_ns"].as_u64().unwrap();
        assert_eq!(own, paused, "subtracted in Corrected");
    });
}

#[test]
fn each_call_costs_what_its_kind_of_site_was_measured_to_cost() {
    const CALLS: u64 = 500;
    live(|room| {
        let library = room.compile("sites.c", "libcuda.so.1", &LIBRARY);
        let program = room.compile("calls.c", "calls", &[]);
        for backend in backends() {
            let (done, trace) =
                room.record(&["--backend", backend], &[&program, &library, &CALLS.to_string()]);
            done.exited(0);
            trace.is_whole();
            let libraries = trace.process_events("library");
            let hooked = libraries.iter().find(|line| line["path"] == library.as_str()).unwrap();
            let cost = &trace.end["summary"]["cost"];
            println!("{backend}: {} and {cost}", trace.header["ns_per_call_by_site"]);
            if cfg!(target_arch = "x86_64") {
                assert_eq!(hooked["single_stepped"], serde_json::json!(["cuInit"]), "{hooked}");
                assert_eq!((&cost["calls"], &cost["stepped_calls"]), (&(2 * CALLS).into(), &CALLS.into()));
            }
            let stops = trace.end["stops"]["total_ns"].as_u64().unwrap();
            assert_eq!(of_calls(&trace) + stops, cost["total_ns"]);
            let by_site = &trace.header["ns_per_call_by_site"][backend];
            for (cheap, dear) in [
                ("emulated", "single_stepped"),
                ("emulated", "emulated_cold"),
                ("single_stepped", "single_stepped_cold"),
            ] {
                assert!(by_site[cheap].as_u64() <= by_site[dear].as_u64(), "{by_site}");
            }
            let functions = trace.end["summary"]["functions"].as_array().unwrap();
            let outer = functions.iter().find(|f| f["name"] == "cuDriverGetVersion").unwrap();
            let own = CALLS * by_site["single_stepped"].as_u64().unwrap();
            let total = outer["total_ns"].as_u64().unwrap();
            assert_eq!(outer["corrected_ns"].as_u64(), Some(total.saturating_sub(own)));
        }
    });
}
