//! Derives from the facts which backends may work and what prevents recording. Pure. Only a known fact rules a backend
//! out; the others are tried.

use super::Backend;
use super::Facts;
use gpurec_trace::HookError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub remedy: String,
    /// With this problem nothing can be recorded.
    pub fatal: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Best first, each with the reason why it cannot work here, if there is one.
    pub backends: Vec<(Backend, Option<HookError>)>,
    pub problems: Vec<Problem>,
}

pub fn plan(facts: &Facts) -> Plan {
    Plan {
        backends: Backend::ALL.into_iter().map(|backend| (backend, against(backend, facts))).collect(),
        problems: problems(facts),
    }
}

fn against(backend: Backend, facts: &Facts) -> Option<HookError> {
    let (known, why) = match backend {
        Backend::Session => (facts.uprobe_session, HookError::NoSessions),
        Backend::Multi => (facts.uprobe_multi, HookError::NoMulti),
        Backend::Single => (facts.is_admin, HookError::NotAdmin),
    };
    (known == Some(false)).then_some(why)
}

/// The capabilities needed to record one's own command; for other users' processes CAP_SYS_PTRACE is needed too.
fn what_suffices(facts: &Facts) -> String {
    // Linux refuses single uprobes without CAP_SYS_ADMIN, and with it needs no other capability to load programs.
    let hooks = if facts.uprobe_multi == Some(false) { "CAP_SYS_ADMIN" } else { "CAP_BPF, CAP_PERFMON" };
    format!("{hooks}, CAP_KILL, CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE suffice")
}

fn problems(facts: &Facts) -> Vec<Problem> {
    let suffice = what_suffices(facts);
    let mut problems = Vec::new();
    let mut add = |fact: Option<bool>, fatal, what: &str, remedy: &str| {
        if fact == Some(false) {
            problems.push(Problem { what: what.to_owned(), remedy: remedy.to_owned(), fatal });
        }
    };
    add(
        facts.proc,
        true,
        "/proc is not mounted here, by which gpurec finds what processes have mapped",
        "mount it: mount -t proc proc /proc",
    );
    add(
        facts.can_load_bpf,
        true,
        &format!("gpurec may not load BPF programs as this user: it lacks {}", facts.lacking.join(" and ")),
        &format!("run it as root: sudo gpurec ... ({suffice})"),
    );
    add(
        facts.can_signal,
        true,
        "gpurec could not let processes of other users go on that it stops: it lacks CAP_KILL",
        &format!("run it as root: sudo gpurec ... ({suffice})"),
    );
    let (what, remedy) = match facts.tracefs_mounted {
        Some(false) => (
            "tracefs is not mounted, and gpurec may not mount it: it lacks CAP_SYS_ADMIN",
            "run it as root: sudo gpurec ..., or have it mounted: mount -t tracefs nodev /sys/kernel/tracing",
        ),
        _ => (
            "gpurec may not read /sys/kernel/tracing: it lacks CAP_DAC_READ_SEARCH",
            "run it as root: sudo gpurec ..., or with this capability",
        ),
    };
    add(facts.can_read_tracefs, true, what, remedy);
    add(
        facts.can_read_processes,
        false,
        "gpurec may not look into other users' processes: it lacks CAP_SYS_PTRACE",
        "run it as root, or with this capability",
    );
    add(
        facts.lockdown.as_deref().map(|mode| mode != "confidentiality"),
        true,
        "the kernel is locked down to confidentiality, so BPF may not read memory",
        "boot with lockdown=integrity or without lockdown",
    );
    add(
        facts.btf,
        true,
        "the kernel has no type information (/sys/kernel/btf/vmlinux)",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of Debian 11, Ubuntu 20.10, RHEL 8.2 and newer are",
    );
    add(facts.ring_buffer, true, "the kernel has no BPF ring buffers", "use Linux 5.8 or newer");
    add(facts.task_storage, true, "the kernel has no BPF task storage", "use Linux 5.11 or newer");
    add(
        facts.cookies,
        true,
        "the kernel has no BPF cookies, by which a hook knows at which function it is",
        "use Linux 6.1 or newer",
    );
    add(
        facts.syscall_tracepoints,
        true,
        "the kernel has no system-call tracepoints, by which gpurec sees a library being loaded",
        "use a kernel built with CONFIG_FTRACE_SYSCALLS=y",
    );
    add(
        facts.first_pid_namespace,
        true,
        "gpurec runs in a container with process numbers of its own, which the kernel's records do not use",
        "run it on the host, or give the container the host's processes (docker run --pid=host)",
    );
    problems
}
