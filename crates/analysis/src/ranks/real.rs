//! Two ranks of PyTorch's DDP on two H100s of one host, as they were recorded (traces/README.md).

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Report, gather};
use crate::only::Only;

fn traces() -> [PathBuf; 2] {
    [0, 1].map(|rank| {
        PathBuf::from(format!("{}/../../traces/ddp_h100_rank{rank}.jsonl.zst", env!("CARGO_MANIFEST_DIR")))
    })
}

fn report(files: &[PathBuf]) -> Report {
    gather(files, &Only::default()).unwrap()
}

/// The lines of a rank, after `change`.
fn changed(rank: usize, change: impl Fn(&mut Value)) -> Vec<Value> {
    let text = zstd::decode_all(fs::File::open(&traces()[rank]).unwrap()).unwrap();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut lines: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    lines.iter_mut().for_each(change);
    lines
}

/// The report of both ranks after each line was changed.
fn report_after(name: &str, change: impl Fn(usize, &mut Value)) -> Report {
    let folder = std::env::temp_dir().join(format!("gpurec-real-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let files = [0, 1].map(|rank| {
        let path = folder.join(format!("{rank}.jsonl"));
        let lines = changed(rank, |line| change(rank, line));
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        path
    });
    let report = report(&files);
    fs::remove_dir_all(&folder).unwrap();
    report
}

fn counts(report: &Report) -> Vec<(&str, u64)> {
    let mut counts: Vec<_> = report.collectives.iter().map(|it| (it.op.as_str(), it.count)).collect();
    counts.sort_unstable();
    counts
}

/// NCCL sets itself up in the first collective, with copies; PyTorch calls ncclBcast, which calls ncclBroadcast. Each
/// collective has the times of its own kernel.
#[test]
fn every_collective_has_the_times_of_its_kernel() {
    let report = report(&traces());
    assert!(report.ranks.len() == 2 && report.ranks.iter().all(|it| it.complete));
    assert!(report.missing.is_empty() && report.hangs.is_empty() && report.mismatches.is_empty());
    assert_eq!(counts(&report), [("AllGather", 1), ("AllReduce", 23), ("Broadcast", 4)]);
    assert!(report.stragglers.iter().all(|it| it.arrival == "gpu"), "{:?}", report.stragglers);
    let causes: Vec<&str> = report.stragglers[0].causes.iter().map(|cause| cause.kind).collect();
    assert_eq!(causes.first(), Some(&"own_code"), "{:?}", report.stragglers);
    for one in &report.collectives {
        let each_ns = one.transfer_ns.unwrap() / one.count / one.ranks;
        assert!((1_000..5_000_000).contains(&each_ns), "{one:?}");
    }
}

#[test]
fn the_clock_of_one_host_taken_for_two_is_the_same_within_its_error() {
    for planted_ns in [0, 37_000_000, -50_000_000] {
        let report = report_after(&format!("clock{planted_ns}"), |rank, line| {
            if line["type"] == "header" && rank == 1 {
                line["host"] = json!("other");
                line["clock"]["boot_id"] = json!("other");
                let ns = line["clock"]["realtime_ns"].as_i64().unwrap() + planted_ns;
                line["clock"]["realtime_ns"] = json!(ns);
            }
        });
        let clock = report.clocks.iter().find(|it| it.host == "other").unwrap();
        let off_ns = (clock.offset_ns - planted_ns as f64).abs();
        assert!(off_ns <= clock.error_ns.unwrap(), "{clock:?}, planted {planted_ns}");
    }
}

/// A communicator that was split from another: PyTorch does not ask for the rank in it, so no line has it.
#[test]
fn ranks_of_a_split_communicator_are_told_apart_by_their_rank_in_the_job() {
    let with = report(&traces());
    let without = report_after("split", |_, line| {
        if line["type"] == "collective" {
            line.as_object_mut().unwrap().retain(|key, _| key != "rank" && key != "nranks");
        }
    });
    assert_eq!(counts(&with), counts(&without));
    assert_eq!(with.stragglers, without.stragglers);
    assert!(without.notes.is_empty(), "{:?}", without.notes);
}
