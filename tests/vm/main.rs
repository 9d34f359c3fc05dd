//! The suite for the Linux side: gpurec in Debian's own kernels, under emulation, with a stand-in driver module.
//!
//! In: scripts/vm, the binary, the stand-in CUDA libraries that the build made, a C compiler.
//! Out: for every Linux version, kind of driver module and backend, each trace compared with what the driver module
//! itself counted (/proc/driver/nvidia/standin_counts).
//! A machine takes seconds to a minute, so one machine runs all recordings of its kind, and machines run in parallel as
//! tests do. GPUREC_TEST_KERNEL=6.12 leaves out the machines of other versions. Without --include-ignored (scripts/test
//! --full) an old, a middle and the newest kernel have a short list of backends each, and no more. What is missing here
//! skips a test and says so; with CI=true it fails it.
//! Not here: asserts on time.

mod bad;
mod compare;
mod functions;
mod machine;
mod sleep;
mod truth;
mod verified;
mod xid;

use compare::Recording;
use machine::{Machine, Visit};

const BACKENDS: [&str; 5] = ["fentry", "kprobe.session", "kprobe.multi", "kprobe", "tracepoint"];

/// Records the same work by each of the backends: the trace has all that the driver module counted.
fn record(machine: Machine, backends: &[&str], more: &str) -> Option<(Visit, Vec<Recording>)> {
    record_and(machine, backends, more, "")
}

/// `then`: a script that runs afterwards in the same machine.
fn record_and(
    machine: Machine,
    backends: &[&str],
    more: &str,
    then: &str,
) -> Option<(Visit, Vec<Recording>)> {
    let settings = format!("BACKENDS='{}' MORE='{more}'", backends.join(" "));
    let visit = machine.visit(&format!("{settings}\n{}\n{then}", include_str!("guest/backends.sh")))?;
    let read = |backend: &&str| {
        for attempt in visit.names(&format!("{backend}.passed"), ".jsonl") {
            compare::says_what_was_passed_over(&visit, &attempt);
        }
        let recording = Recording::read(&visit, backend);
        recording.is_complete();
        recording.has_what_the_driver_counted();
        recording.has_ioctls_in_calls();
        recording.nests();
        recording.has_functions_as_counted();
        recording.has_events_as_counted();
        recording
    };
    let recordings = backends.iter().map(read).collect();
    Some((visit, recordings))
}

/// A Linux version, and which backends are recorded with in it.
struct Kernel {
    version: &'static str,
    /// What this Linux has.
    offered: &'static [&'static str],
    /// What is recorded with unless every test is asked for. Together the kernels have each backend.
    short: &'static [&'static str],
    options: &'static str,
    /// Whether guest/xid.sh runs in this kernel too.
    has_xids: bool,
}

/// Without links for many uprobes, hooking both libraries takes half a minute here: only what makes ioctls is hooked.
const CALLS: &str =
    "--api=driver --only=cuInit --only=cuDeviceP* --only=cuCtx* --only=cuMem* --only=cu*Synchronize";

const OLD: Kernel = Kernel {
    version: "6.1",
    offered: &["fentry", "kprobe", "tracepoint"],
    short: &["kprobe", "tracepoint"],
    options: CALLS,
    has_xids: false,
};
const MIDDLE: Kernel = Kernel {
    version: "6.12",
    offered: &BACKENDS,
    short: &["kprobe.multi", "kprobe.session"],
    options: "",
    has_xids: false,
};
const MIDDLE_OF_ANOTHER_DEBIAN: Kernel = Kernel { version: "trixie/6.12", ..MIDDLE };
const NEWEST: Kernel =
    Kernel { version: "trixie/newest", offered: &BACKENDS, short: &["fentry"], options: "", has_xids: true };

/// Forces backends. gpurec refuses by name those that this Linux lacks, and nothing else is missing.
fn forced(kernel: &Kernel) {
    let backends = if machine::every_test() { &BACKENDS } else { kernel.short };
    let machine = Machine::of(kernel.version);
    let then = if kernel.has_xids { include_str!("guest/xid.sh") } else { "" };
    let Some((visit, recordings)) = record_and(machine, backends, kernel.options, then) else { return };
    if kernel.has_xids {
        xid::is_served_and_dumped(&visit);
    }
    let said: Vec<String> = backends.iter().map(|backend| visit.text(&format!("{backend}.txt"))).collect();
    verified::compare(kernel.version, &said);
    verified::compare(&format!("{}+stacks", kernel.version), &[visit.text("stacks.txt")]);
    Recording::read(&visit, "stacks").has_stacks();
    for (backend, recording) in backends.iter().zip(&recordings) {
        recording.keeps_to(backend, kernel.offered.contains(backend));
    }
}

#[test]
fn linux_6_1_has_no_sessions_and_no_fprobe() {
    forced(&OLD);
}

#[test]
fn linux_6_12_has_every_backend() {
    forced(&MIDDLE);
}

#[test]
#[ignore = "another build of 6.12: scripts/test --full"]
fn linux_6_12_of_another_debian_has_every_backend() {
    forced(&MIDDLE_OF_ANOTHER_DEBIAN);
}

#[test]
fn the_newest_linux_has_every_backend() {
    forced(&NEWEST);
}

/// The fallback between backends, as users get it, where the module has no type information.
#[test]
#[ignore = "another driver module: scripts/test --full"]
fn a_driver_without_type_information_goes_one_backend_down() {
    let machine = Machine::of("6.12").without_type_information();
    let Some((_, recordings)) = record(machine, &["ladder"], "") else { return };
    assert_eq!(recordings[0].hooked_by("fentry"), 0, "{}", recordings[0].about);
    assert!(recordings[0].hooked_by("kprobe.session") >= 30, "{}", recordings[0].about);
}

#[test]
#[ignore = "another driver module: scripts/test --full"]
fn a_driver_of_535_is_told_by_its_own_names() {
    let machine = Machine::of("6.12").with_driver("535", "layout=535");
    let Some((visit, recordings)) = record(machine, &["ladder"], "") else { return };
    let names: Vec<_> =
        recordings[0].layer()["hooks"].as_array().unwrap().iter().map(|h| &h["name"]).collect();
    assert!(names.iter().any(|name| **name == "nvidia_frontend_unlocked_ioctl"), "{visit}: {names:?}");
}

#[test]
#[ignore = "another driver module: scripts/test --full"]
fn the_proprietary_driver_is_told_as_far_as_its_names_go() {
    let machine = Machine::of("6.12").with_driver("proprietary", "");
    let Some((visit, recordings)) = record(machine, &["ladder"], "") else { return };
    let reason = recordings[0].reason("_issueRpcAndWait");
    assert!(reason.contains("proprietary"), "{visit}: {reason}");
}

/// Where Linux accepts probes there, the trace has the calls down to the GPU's own processor.
#[test]
#[ignore = "another driver module: scripts/test --full"]
fn the_resource_manager_is_told_where_it_can_be_hooked() {
    let machine = Machine::of("6.12").with_driver("traceable", "");
    let Some((_, recordings)) = record(machine, &["kprobe.multi", "kprobe", "ladder"], "") else { return };
    for recording in &recordings {
        recording.has_chain(&["_issueRpcAndWait", "rpcRmApiControl_GSP", "rm_ioctl", "nvidia_ioctl"]);
        recording.has_chain(&["_issueRpcAndWait", "rm_ioctl", "nvidia_ioctl", "cuInit"]);
    }
}
