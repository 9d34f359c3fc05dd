//! What is served, from a copy of the sums to the texts.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::families::{self, Points};
use super::labels::Pods;
use super::text::{self, Format};
use super::{address, otlp};
use crate::serve::state::State;
use gpurec_analysis::stacks::CallRole;
use gpurec_analysis::usage::{Name, Part, Snapshot, Sums};
use gpurec_cuda::Api;
use gpurec_trace::Device;

fn state() -> State {
    let mut sums = Sums { launches: 3, sync_ns: 1_500_000_000, ..Sums::default() };
    sums.called(Api::Runtime, false);
    sums.allocated("device", 4096);
    sums.copied("H2D", 10);
    sums.failed("cudaErrorInvalidValue", 2);
    sums.returned(CallRole::Copy, 2_500);
    sums.unobserved_ns[CallRole::Sync as usize] = 7;
    let name = Name { comm: "tr\"ain".into(), rank: Some(1), ..Name::default() };
    let long = |end: &str| "k".repeat(300) + end;
    let kernels = vec![("void f<\"a\">(int)".to_owned(), 3), (long("a"), 4), (long("b"), 5)];
    let held = Some([64, 0, 0, 0, 0, 0, 0]);
    let process = Part { pid: 42, name, sums, kernels, cost_ns: 1_000, held, ..Part::default() };
    let device = Device {
        device: 0,
        uuid: Some("GPU-1".into()),
        used_bytes: Some(5),
        utilization: Some(25),
        power_w: Some(71.5),
        temperature_c: Some(40),
        throttle: Some(vec!["sw_power_cap".into()]),
        ..Device::default()
    };
    let usage = Snapshot {
        at_ns: 1,
        processes: vec![process],
        xids: Some(vec![(79, "0000:01:00".into(), 1)]),
        gpu_busy_ns: vec![(0, 250_000_000)],
        devices: vec![device],
        lost: 9,
        ..Snapshot::default()
    };
    let start = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let now = start + Duration::from_millis(1500);
    State { usage, start, now, dropped: Some(0) }
}

fn text(state: &State, format: Format) -> String {
    text::write(&Points::of(state, &Pods::default()), format)
}

#[test]
fn open_metrics() {
    let text = text(&state(), Format::OpenMetrics);
    let long: Vec<&str> = text.lines().filter(|line| line.contains("kernel=\"kkk")).collect();
    assert!(long.len() == 1 && long[0].ends_with(" 9"), "a label has no room for what differs: {long:?}");
    assert!(text.ends_with("\n# EOF\n"));
    let process = "pid=\"42\",comm=\"tr\\\"ain\",rank=\"1\"";
    for line in [
        "# TYPE gpurec_calls counter".to_owned(),
        "# UNIT gpurec_sync_seconds seconds".to_owned(),
        format!("gpurec_calls_total{{{process},api=\"runtime\"}} 1"),
        "gpurec_calls_total{pid=\"ended\",api=\"driver\"} 0".to_owned(),
        format!("gpurec_launches_total{{{process}}} 3"),
        format!("gpurec_kernel_launches_total{{{process},kernel=\"void f<\\\"a\\\">(int)\"}} 3"),
        format!("gpurec_memory_held_bytes{{{process},space=\"device\"}} 64"),
        format!("gpurec_memory_allocated_bytes_total{{{process},space=\"device\"}} 4096"),
        format!("gpurec_copied_bytes_total{{{process},direction=\"H2D\"}} 10"),
        format!("gpurec_failed_calls_total{{{process},error=\"cudaErrorInvalidValue\"}} 2"),
        format!("gpurec_sync_seconds_total{{{process}}} 1.5"),
        format!("gpurec_call_duration_seconds_bucket{{{process},role=\"copy\",le=\"0.000001\"}} 0"),
        format!("gpurec_call_duration_seconds_bucket{{{process},role=\"copy\",le=\"0.000003\"}} 1"),
        format!("gpurec_call_duration_seconds_bucket{{{process},role=\"copy\",le=\"100.0\"}} 1"),
        format!("gpurec_call_duration_seconds_bucket{{{process},role=\"copy\",le=\"+Inf\"}} 1"),
        format!("gpurec_call_duration_seconds_count{{{process},role=\"copy\"}} 1"),
        format!("gpurec_call_duration_seconds_sum{{{process},role=\"copy\"}} 0.0000025"),
        format!("gpurec_unobserved_seconds_total{{{process},role=\"sync\"}} 0.000000007"),
        format!("gpurec_overhead_seconds_total{{{process}}} 0.000001"),
        "gpurec_gpu_busy_seconds_total{device=\"0\"} 0.25".to_owned(),
        "gpurec_xid_total{xid=\"79\",device=\"0000:01:00\"} 1".to_owned(),
        "gpurec_events_lost_total 9".to_owned(),
        "gpurec_otlp_dropped_total 0".to_owned(),
        "gpurec_device_used_bytes{device=\"0\",uuid=\"GPU-1\"} 5".to_owned(),
        "gpurec_device_utilization_ratio{device=\"0\",uuid=\"GPU-1\"} 0.25".to_owned(),
        "gpurec_device_power_watts{device=\"0\",uuid=\"GPU-1\"} 71.5".to_owned(),
        "gpurec_device_temperature_celsius{device=\"0\",uuid=\"GPU-1\"} 40".to_owned(),
        "gpurec_device_throttled{device=\"0\",uuid=\"GPU-1\",reason=\"sw_power_cap\"} 1".to_owned(),
    ] {
        assert!(text.lines().any(|known| known == line), "{line}:\n{text}");
    }
    // Absent where it is not known.
    for absent in ["pid=\"others\"", "api=\"other\"", "held_bytes{pid=\"ended\"", "space=\"managed\""] {
        assert!(!text.contains(absent), "{absent}:\n{text}");
    }
}

#[test]
fn the_older_format_differs_in_the_names_of_counters() {
    let text = text(&state(), Format::Prometheus);
    for line in
        ["# TYPE gpurec_calls_total counter", "# HELP gpurec_events_lost_total Records that were lost."]
    {
        assert!(text.lines().any(|known| known == line), "{line}:\n{text}");
    }
    assert!(text.contains("le=\"100\"} 1") && !text.contains("# UNIT") && !text.contains("# EOF"));
}

#[test]
fn what_is_not_known_has_no_family() {
    let usage = Snapshot { processes: vec![Part::default()], ..Snapshot::default() };
    let state = State { usage, dropped: None, ..state() };
    let text = text(&state, Format::OpenMetrics);
    for absent in ["gpurec_xid", "gpurec_gpu_busy", "gpurec_device", "gpurec_otlp", "gpurec_kernel_launches"]
    {
        assert!(!text.contains(absent), "{absent}:\n{text}");
    }
    assert!(!text.contains("gpurec_memory_held_bytes{"));
}

#[test]
fn otlp_has_the_same_points() {
    let state = state();
    let points = Points::of(&state, &Pods::default());
    let body: serde_json::Value = serde_json::from_slice(&otlp::export(&points, &state, "node7")).unwrap();
    let resource = &body["resourceMetrics"][0];
    assert_eq!(resource["resource"]["attributes"][2]["value"]["stringValue"], "node7");
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let of =
        |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("{name}"));
    let launches = &of("gpurec_launches")["sum"];
    assert_eq!((&launches["isMonotonic"], &launches["aggregationTemporality"]), (&true.into(), &2.into()));
    let point = &launches["dataPoints"][0];
    assert_eq!((&point["asInt"], &point["startTimeUnixNano"]), (&"3".into(), &"1700000000000000000".into()));
    assert_eq!(point["timeUnixNano"], "1700000001500000000");
    assert_eq!(point["attributes"][0], serde_json::json!({"key": "pid", "value": {"stringValue": "42"}}));
    assert_eq!(of("gpurec_memory_held_bytes")["gauge"]["dataPoints"][0]["asInt"], "64");
    assert_eq!(of("gpurec_memory_held_bytes")["unit"], "By");
    let duration = &of("gpurec_call_duration_seconds")["histogram"]["dataPoints"][0];
    assert_eq!((&duration["count"], &duration["sum"]), (&"1".into(), &2.5e-6.into()));
    let lengths = ["bucketCounts", "explicitBounds"].map(|key| duration[key].as_array().unwrap().len());
    assert_eq!(lengths, [18, 17]);
    assert_eq!(duration["bucketCounts"][1], "1");
}

/// A scrape of 200 busy processes is made in well under 10 ms by a release build; this bound is for a debug build on a
/// busy machine.
#[test]
fn two_hundred_processes() {
    let mut state = state();
    let mut process = state.usage.processes.remove(0);
    CallRole::ALL.into_iter().for_each(|role| process.sums.returned(role, 10));
    process.held = Some([64; 7]);
    state.usage.processes = (1..=200).map(|pid| Part { pid, ..process.clone() }).collect();
    let began = std::time::Instant::now();
    let text: Arc<str> = text(&state, Format::OpenMetrics).into();
    let took = began.elapsed();
    println!("{} lines, {} bytes in {took:?}", text.lines().count(), text.len());
    assert!(text.lines().count() > 200 * 9 * 20 && took < Duration::from_secs(1));
}

#[test]
fn addresses() {
    for (text, expected) in [
        ("9400", "127.0.0.1:9400"),
        (":9400", "127.0.0.1:9400"),
        ("localhost:9400", "127.0.0.1:9400"),
        ("0.0.0.0:9400", "0.0.0.0:9400"),
        ("[::]:9400", "[::]:9400"),
        ("10.0.0.7:0", "10.0.0.7:0"),
    ] {
        assert_eq!(address(text).unwrap().to_string(), expected, "{text}");
    }
    for text in ["", ":", "a:1", "127.0.0.1", "::1:9400x", "1:2:3", "99999", "-1"] {
        assert!(address(text).is_err(), "{text}");
    }
}

/// docs/metrics.md has a row for each metric.
#[test]
fn every_metric_is_documented() {
    let page = include_str!("../../../docs/metrics.md");
    for family in families::ALL {
        let total = if family.kind == families::Kind::Counter { "_total" } else { "" };
        assert!(page.contains(&format!("| `{}{total}` |", family.name)), "{}", family.name);
    }
}
