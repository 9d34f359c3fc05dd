//! Sums by process have the figures of the summary.

use std::collections::BTreeSet;

use super::*;
use crate::golden;
use crate::stacks::CallRole;
use crate::usage::{APIS, ByLinux, DIRECTIONS, Part, Snapshot, ThreadPart};
use gpurec_cuda::traits::Space;

/// A minute, in which an ended process keeps its own sums.
const MINUTE: u64 = 60_000_000_000;

fn measured(lines: &[Line]) -> Summary {
    let mut summary = Summary::new();
    summary.measure(2, false);
    for line in lines {
        summary.add(line);
        while let Some(pid) = summary.newcomer() {
            summary.identify(pid, ByLinux::default());
        }
    }
    summary
}

fn parts(snapshot: &Snapshot) -> impl Iterator<Item = &Part> {
    snapshot.processes.iter().chain([&snapshot.ended]).chain(&snapshot.others)
}

fn sum(snapshot: &Snapshot, of: impl Fn(&Part) -> u64) -> u64 {
    parts(snapshot).map(of).sum()
}

#[track_caller]
fn agrees(snapshot: &Snapshot, figures: &Figures) {
    let total = |of: fn(&Part) -> u64| sum(snapshot, of);
    assert_eq!(total(|p| p.sums.calls[0] + p.sums.calls[1]), figures.cuda_calls);
    assert_eq!(total(|p| p.sums.calls[2]), figures.other_calls, "{APIS:?}");
    assert_eq!(total(|p| p.sums.launches), figures.kernel_launches);
    assert_eq!(total(|p| p.sums.graph_launches), figures.graph_launches);
    assert_eq!(total(|p| p.sums.sync_ns), figures.sync.total_ns);
    for space in &figures.memory.by_space {
        let at = Space::ALL.iter().position(|known| known.name() == space.space).unwrap();
        assert_eq!(sum(snapshot, |p| p.sums.allocated[at]), space.allocated_bytes, "{}", space.space);
    }
    for moved in &figures.transfers.by_direction {
        let at = DIRECTIONS.iter().position(|known| *known == moved.direction).unwrap();
        assert_eq!(sum(snapshot, |p| p.sums.copied[at]), moved.bytes, "{}", moved.direction);
    }
    let mut failed: BTreeMap<String, u64> = BTreeMap::new();
    figures
        .failures
        .by_error
        .iter()
        .for_each(|kind| *failed.entry(kind.error.clone()).or_default() += kind.count);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for (error, count) in parts(snapshot).flat_map(|part| &part.sums.failed) {
        *seen.entry(error.clone()).or_default() += count;
    }
    assert_eq!(seen, failed);
    let cost = figures.cost.as_ref().map_or(0, |cost| cost.calls_ns());
    assert_eq!(total(|p| p.cost_ns), cost);
    // Unfinished calls have a category, but no duration yet.
    if figures.in_flight.is_empty() {
        let calls: u64 = figures.by_category.iter().map(|seen| seen.calls).sum();
        let ns: u64 = figures.by_category.iter().map(|seen| seen.total_ns).sum();
        assert_eq!(total(|p| p.sums.durations.iter().map(|d| d.count()).sum()), calls);
        assert_eq!(total(|p| p.sums.durations.iter().map(|d| d.sum_ns).sum()), ns);
    }
    let busy: Vec<(u32, u64)> = figures
        .gpu
        .iter()
        .flat_map(|gpu| &gpu.devices)
        .map(|device| (device.device, device.busy_ns))
        .collect();
    assert_eq!(snapshot.gpu_busy_ns, busy);
}

#[test]
fn of_the_committed_traces() {
    let traces = golden::TRACES.map(|(_, file)| golden::path(file));
    let gpu = golden::path("crates/analysis/src/tests/gpu.jsonl");
    for file in traces.iter().chain([&gpu]) {
        let mut summary = Summary::new();
        summary.measure(2, false);
        let mut ended_ns = 0;
        crate::read::each(file, &Only::default(), |line| {
            if !matches!(line.body, Body::Finish(_)) {
                summary.add(line);
            }
            ended_ns = line.ts_ns;
        })
        .unwrap();
        let figures = summary.finish(ended_ns);
        let now = summary.snapshot(ended_ns, None).unwrap();
        assert!(now.processes.iter().any(|process| process.sums.calls.iter().sum::<u64>() > 0));
        agrees(&now, &figures);
        let later = summary.snapshot(ended_ns + MINUTE, None).unwrap();
        assert!(later.processes.iter().all(|process| !process.has_ended), "{}", file.display());
    }
}

#[test]
fn an_ended_process_keeps_its_sums_for_a_minute() {
    let mut s = Script::new();
    s.call("cuInit", 1000, 0);
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x100, 4096, 4096);
    s.launch("saxpy", None);
    s.call("cuMemAlloc_v2", 1000, 2);
    s.exit(0);
    let ended_ns = s.ns;
    s.push(0, Body::Lost(Lost::default()));
    let mut summary = measured(&s.lines);
    let now = summary.snapshot(ended_ns + MINUTE - 1, None).unwrap();
    let [process] = now.processes.as_slice() else { panic!("{now:?}") };
    assert!(process.has_ended && process.pid == 100 && process.sums.calls == [4, 0, 0]);
    assert_eq!((process.sums.allocated[0], process.sums.launches), (4096, 0), "the launch did not return");
    assert_eq!(process.sums.failed["CUDA_ERROR_OUT_OF_MEMORY"], 1);
    assert_eq!(process.sums.durations[CallRole::Alloc as usize].count(), 2);
    assert_eq!(now.ended.sums, Default::default());
    let later = summary.snapshot(ended_ns + MINUTE, None).unwrap();
    assert!(later.processes.is_empty());
    assert_eq!((&later.ended.sums, later.ended.cost_ns), (&process.sums, process.cost_ns));
}

/// Linux uses the number of a process again while the process's sums are still shown.
#[test]
fn a_process_number_that_is_used_again_is_another_process() {
    let exec = |s: &mut Script, command: &str, rank| {
        let command = vec![command.into(), "x".into()];
        let exec = Exec { pid: 100, tid: 100, command, rank, ..Exec::default() };
        s.push(0, Body::Process(Process::Exec(exec)));
    };
    let mut s = Script::new();
    exec(&mut s, "/usr/bin/python3", Some(7));
    s.call("cuInit", 1000, 0);
    s.exit(0);
    exec(&mut s, "./a-name-that-Linux-cuts", None);
    s.call("cuInit", 1000, 0);
    s.call("cuInit", 1000, 0);
    let mut summary = measured(&s.lines);
    let now = summary.snapshot(s.ns, None).unwrap();
    let [process] = now.processes.as_slice() else { panic!("{now:?}") };
    assert_eq!((process.name.comm.as_str(), process.name.rank), ("a-name-that-Lin", None));
    assert_eq!((process.sums.calls[0], now.ended.sums.calls[0]), (2, 1));
    let mut summary = measured(&s.lines[..5]);
    let now = summary.snapshot(s.ns, None).unwrap();
    assert_eq!((now.processes[0].name.comm.as_str(), now.processes[0].name.rank), ("python3", Some(7)));
}

#[test]
fn a_hanging_wait_counts_with_its_time_so_far() {
    let mut s = Script::new();
    s.call("cuCtxSynchronize", 1_000_000, 0);
    let outer = s.begin("cudaDeviceSynchronize", None);
    s.begin("cuCtxSynchronize", Some(outer));
    let began = s.ns;
    let mut summary = measured(&s.lines);
    let at = |summary: &mut Summary, ns| summary.snapshot(ns, None).unwrap().processes[0].sums.sync_ns;
    assert_eq!(at(&mut summary, began), 1_000_000);
    assert_eq!(at(&mut summary, began + 500), 1_000_500);
    s.exit(0);
    let died = s.ns;
    let mut summary = measured(&s.lines);
    assert_eq!(
        at(&mut summary, died + 500),
        1_000_000 + died - began,
        "no longer after its process has ended"
    );
    let folded = summary.snapshot(died + MINUTE, None).unwrap();
    assert_eq!(folded.ended.sums.sync_ns, 1_000_000 + died - began);
}

/// A failure inside a call that never returns.
#[test]
fn a_failure_counts_once_its_process_has_ended() {
    let mut s = Script::new();
    let outer = s.begin("cudaMalloc", None);
    let inner = s.begin("cuMemAlloc_v2", Some(outer));
    s.end(inner, 1000, 2);
    let failed =
        |s: &Script| measured(&s.lines).snapshot(s.ns, None).unwrap().processes[0].sums.failed.clone();
    assert!(failed(&s).is_empty());
    s.exit(1);
    assert_eq!(failed(&s)["CUDA_ERROR_OUT_OF_MEMORY"], 1);
    agrees(&measured(&s.lines).snapshot(s.ns, None).unwrap(), &measured(&s.lines).finish(s.ns));
}

#[test]
fn what_is_given_up_for_the_budget_is_time_not_observed() {
    let mut s = Script::new();
    s.call("cuInit", 1000, 0);
    let change = |s: &mut Script, level, after| {
        let line = Budget {
            action: Action::GiveUp,
            function: "cuCtxSynchronize".into(),
            probe: 5,
            level,
            before: Level::Recorded,
            counted: 0,
            why: None,
        };
        s.push(after, Body::Budget(line));
    };
    change(&mut s, Level::Unhooked, 0);
    change(&mut s, Level::Recorded, 700);
    s.exit(0);
    let mut summary = measured(&s.lines);
    let unobserved = summary.snapshot(s.ns + 9999, None).unwrap().processes[0].sums.unobserved_ns;
    assert_eq!(unobserved[CallRole::Sync as usize], 700);
    assert_eq!(unobserved.iter().sum::<u64>(), 700);
}

/// Threads, call sites and kernels of a process add up to its sums.
#[test]
fn what_is_followed_adds_up() {
    let gpu = golden::path("crates/analysis/src/tests/gpu.jsonl");
    let traces = golden::TRACES.map(|(_, file)| golden::path(file));
    let (mut sites, mut kernels, mut devices) = (0, 0, 0);
    for file in traces.iter().chain([&gpu]) {
        let mut summary = Summary::new();
        summary.follow_processes();
        let mut ended_ns = 0;
        crate::read::each(file, &Only::default(), |line| {
            if !matches!(line.body, Body::Finish(_) | Body::Process(_)) {
                summary.add(line);
            }
            ended_ns = line.ts_ns;
        })
        .unwrap();
        let pids: Vec<u32> =
            summary.snapshot(ended_ns, None).unwrap().processes.iter().map(|part| part.pid).collect();
        for pid in pids {
            let now = summary.snapshot(ended_ns, Some(pid)).unwrap();
            let part = now.processes.iter().find(|part| part.pid == pid).unwrap();
            let all = |of: fn(&ThreadPart) -> u64| part.threads.iter().map(of).sum::<u64>();
            assert_eq!(all(|thread| thread.calls), part.sums.calls.iter().sum::<u64>());
            assert_eq!(all(|thread| thread.sync_ns), part.sums.sync_ns);
            assert_eq!(all(|thread| thread.cost_ns), part.cost_ns);
            let open_ns = all(|thread| thread.open.as_ref().map_or(0, |(_, ns)| *ns));
            let ended_ns: u64 = part.sums.durations.iter().map(|durations| durations.sum_ns).sum();
            assert_eq!(all(|thread| thread.call_ns), ended_ns + open_ns);
            let detail = part.detail.as_ref().unwrap();
            let launches: u64 = detail.kernels.iter().map(|(_, launches)| launches).sum();
            assert!(launches <= part.sums.launches, "{launches} of {}", part.sums.launches);
            let names: BTreeSet<_> = detail.sites.iter().map(|site| (&site.site, &site.function)).collect();
            assert_eq!(names.len(), detail.sites.len(), "a call site has one row");
            let of_sites: u64 = detail.sites.iter().map(|site| site.times.calls).sum();
            let ended: u64 = part.sums.durations.iter().map(|durations| durations.count()).sum();
            assert!(of_sites <= ended, "{of_sites} of {ended}");
            sites += of_sites;
            kernels += launches;
            devices += part.devices.len();
        }
    }
    assert!(sites > 0 && kernels > 0 && devices > 0, "{sites} {kernels} {devices}");
}
