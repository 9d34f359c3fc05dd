//! The document of `gpurec top --json` and `--interval --json`. In: the activity. Out: JSON, with null for a figure
//! that is not known, and the reason.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{Activity, Counts, HELD_UNKNOWN, MEMORY_UNSEEN, NVML_UNKNOWN, Row};
use gpurec_trace::time;

pub fn document(activity: &Activity, host: &str, at: SystemTime) -> Value {
    let (held_bytes, unknown) = activity.held();
    let mut document = json!({
        "ts": seconds(activity.at_ns),
        "time": time::rfc3339(at),
        "host": host,
        "interval_sec": seconds(activity.passed_ns),
        "processes": activity.rows.iter().map(process).collect::<Vec<_>>(),
        "total": {
            "held_bytes": held_bytes,
            "held_unknown_processes": unknown,
            "failed": activity.failed,
        },
        "lost": activity.lost,
    });
    if let Some(total) = document["total"].as_object_mut() {
        total.extend(rates(&activity.total, activity.passed_ns));
    }
    document
}

fn process(row: &Row) -> Value {
    let held = row.held.as_ref().map(|held| {
        held.iter().map(|(space, bytes)| ((*space).to_owned(), json!(bytes))).collect::<Map<_, _>>()
    });
    let in_flight: Vec<Value> = row
        .long_calls()
        .into_iter()
        .map(|(tid, name, ns)| json!({"tid": tid, "name": name, "duration_us": ns as f64 / 1e3}))
        .collect();
    let by_nvml: Vec<Value> =
        row.nvml.iter().map(|(device, bytes)| json!({"device": device, "bytes": bytes})).collect();
    let why_held = if row.held_since.is_some() { HELD_UNKNOWN } else { MEMORY_UNSEEN };
    let unknown = [
        ("held_bytes", row.held.is_none(), why_held),
        ("nvml_bytes", row.nvml_bytes().is_none(), NVML_UNKNOWN),
    ];
    let unknown = unknown.into_iter().filter(|(_, is_unknown, _)| *is_unknown);
    let unknown: Map<String, Value> = unknown.map(|(key, _, why)| (key.to_owned(), json!(why))).collect();
    let share = |ns: u64| millionths(ns, row.passed_ns);
    let mut process = json!({
        "pid": row.pid,
        "comm": row.comm,
        "user": row.user,
        "container": row.container,
        "rank": row.rank,
        "devices": row.devices,
        "held_bytes": row.held_bytes(),
        "held_by_space": held,
        "held_since_start_bytes": row.held_since_bytes(),
        "nvml_bytes": row.nvml_bytes(),
        "nvml": by_nvml,
        "sync_share": share(row.sync_ns),
        "call_share": share(row.call_ns),
        "overhead_share": share(row.cost_ns),
        "failed": row.failed_calls(),
        "in_flight": in_flight,
        "unknown": unknown,
    });
    if let Some(process) = process.as_object_mut() {
        process.extend(rates(&row.new, row.passed_ns));
    }
    process
}

fn rates(new: &Counts, passed_ns: u64) -> Map<String, Value> {
    let rates = [
        ("calls_per_sec", new.calls),
        ("launches_per_sec", new.all_launches()),
        ("graph_launches_per_sec", new.graph_launches),
        ("copied_bytes_per_sec", new.copied),
    ];
    rates.into_iter().map(|(key, count)| (key.to_owned(), json!(per_second(count, passed_ns)))).collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// With three decimals.
fn per_second(count: u64, ns: u64) -> f64 {
    (count as f64 * 1e12 / ns.max(1) as f64).round() / 1e3
}

/// A share from 0 to 1, with six decimals.
fn millionths(part: u64, whole: u64) -> f64 {
    (part as f64 * 1e6 / whole.max(1) as f64).round() / 1e6
}
