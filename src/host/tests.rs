//! Tests the plan on a capable machine with one fact removed at a time.

use super::Backend;
use super::{Facts, facts::version_in, plan};

fn capable() -> Facts {
    Facts {
        kernel: Some("6.18.0".into()),
        machine: Some("x86_64".into()),
        can_load_bpf: Some(true),
        lacking: Vec::new(),
        can_signal: Some(true),
        is_admin: Some(true),
        can_read_processes: Some(true),
        lockdown: Some("none".into()),
        first_pid_namespace: Some(true),
        proc: Some(true),
        btf: Some(true),
        ring_buffer: Some(true),
        task_storage: Some(true),
        cookies: Some(true),
        uprobe_multi: Some(true),
        uprobe_session: Some(true),
        syscall_tracepoints: Some(true),
        tracefs_mounted: Some(true),
        can_read_tracefs: Some(true),
        kprobes: Some(true),
        fprobe: Some(true),
        driver: Some("580.159.04".into()),
        driver_is_open: Some(true),
        devices: Some(1),
    }
}

#[test]
fn a_capable_machine_has_no_problem() {
    let plan = plan(&capable());
    assert!(plan.problems.is_empty());
    assert!(plan.backends.iter().all(|(_, why)| why.is_none()));
}

#[test]
fn unknown_is_not_no() {
    let plan = plan(&Facts::default());
    assert!(plan.problems.is_empty());
    assert!(plan.backends.iter().all(|(_, why)| why.is_none()));
}

#[test]
fn each_missing_fact_is_one_problem_with_a_remedy() {
    type Remove = fn(&mut Facts);
    let cases: [(Remove, bool); 13] = [
        (|f| f.proc = Some(false), true),
        (|f| f.can_load_bpf = Some(false), true),
        (|f| f.can_signal = Some(false), true),
        (|f| f.can_read_tracefs = Some(false), true),
        (|f| (f.tracefs_mounted, f.can_read_tracefs) = (Some(false), Some(false)), true),
        (|f| f.can_read_processes = Some(false), false),
        (|f| f.lockdown = Some("confidentiality".into()), true),
        (|f| f.btf = Some(false), true),
        (|f| f.ring_buffer = Some(false), true),
        (|f| f.task_storage = Some(false), true),
        (|f| f.cookies = Some(false), true),
        (|f| f.syscall_tracepoints = Some(false), true),
        (|f| f.first_pid_namespace = Some(false), true),
    ];
    for (remove, fatal) in cases {
        let mut facts = capable();
        remove(&mut facts);
        let problems = plan(&facts).problems;
        assert_eq!(problems.len(), 1, "{facts:?}");
        assert_eq!(problems[0].fatal, fatal, "{problems:?}");
        assert!(!problems[0].remedy.is_empty());
    }
}

#[test]
fn what_is_lacking_is_named() {
    let lacking = vec!["CAP_BPF", "CAP_PERFMON"];
    let problems = plan(&Facts { can_load_bpf: Some(false), lacking, ..capable() }).problems;
    assert!(problems[0].what.ends_with("it lacks CAP_BPF and CAP_PERFMON"), "{problems:?}");
}

#[test]
fn what_suffices_without_root_is_what_this_kernel_takes() {
    let remedy = |uprobe_multi| {
        let (uprobe_multi, uprobe_session) = (Some(uprobe_multi), Some(uprobe_multi));
        let facts = Facts { can_signal: Some(false), uprobe_multi, uprobe_session, ..capable() };
        plan(&facts).problems.remove(0).remedy
    };
    assert!(remedy(true).contains("(CAP_BPF, CAP_PERFMON, CAP_KILL,"), "{}", remedy(true));
    assert!(remedy(false).contains("(CAP_SYS_ADMIN, CAP_KILL,"), "{}", remedy(false));
}

#[test]
fn lockdown_to_integrity_is_no_problem() {
    assert!(plan(&Facts { lockdown: Some("integrity".into()), ..capable() }).problems.is_empty());
}

#[test]
fn each_older_kernel_loses_a_backend() {
    let loses = |facts: &Facts, lost: Backend| {
        let plan = plan(facts);
        let why = |wanted| plan.backends.iter().find(|(backend, _)| *backend == wanted).unwrap().1.as_ref();
        assert!(why(lost).is_some(), "{plan:?}");
        let first = plan.backends.iter().find(|(_, why)| why.is_none());
        first.map(|(backend, _)| *backend)
    };
    let mut facts = capable();
    facts.uprobe_session = Some(false);
    assert_eq!(loses(&facts, Backend::Session), Some(Backend::Multi));
    facts.uprobe_multi = Some(false);
    assert_eq!(loses(&facts, Backend::Multi), Some(Backend::Single));
    facts.is_admin = Some(false);
    loses(&facts, Backend::Single);
}

#[test]
fn driver_versions() {
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)";
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024";
    assert_eq!(version_in(open).as_deref(), Some("580.159.04"));
    assert_eq!(version_in(closed).as_deref(), Some("470.256.02"));
    assert_eq!(version_in("nothing here"), None);
}
