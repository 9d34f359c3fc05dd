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
        backends: Backend::ALL.into_iter().map(|backend| (backend, backend.against(facts))).collect(),
        problems: problems(facts),
    }
}

/// The capabilities needed to record one's own command; for other users' processes CAP_SYS_PTRACE is needed too.
fn what_suffices(facts: &Facts) -> String {
    // Linux refuses single uprobes without CAP_SYS_ADMIN, and with it needs no other capability to load programs.
    let admin = Facts { is_admin: Some(true), ..facts.clone() };
    let mut possible = Backend::ALL.into_iter().filter(|backend| backend.against(&admin).is_none());
    let hooks = if possible.all(Backend::is_single) { "CAP_SYS_ADMIN" } else { "CAP_BPF, CAP_PERFMON" };
    format!("{hooks}, CAP_KILL, CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE suffice")
}

fn problems(facts: &Facts) -> Vec<Problem> {
    let suffice = what_suffices(facts);
    let (what, remedy) = match facts.tracefs_mounted {
        Some(false) => (
            "tracefs is not mounted, and gpurec may not mount it: it lacks CAP_SYS_ADMIN",
            "run it as root: sudo gpurec ..., or mount it: mount -t tracefs nodev /sys/kernel/tracing",
        ),
        _ => (
            "gpurec may not read /sys/kernel/tracing: it lacks CAP_DAC_READ_SEARCH",
            "run it as root: sudo gpurec ..., or with this capability",
        ),
    };
    let limited = |fact: Option<bool>, what: &str, remedy: &str| {
        let problem = || Problem { what: what.to_owned(), remedy: remedy.to_owned(), fatal: false };
        (fact == Some(false)).then(problem)
    };
    let fatal = |fact, what: &str, remedy: &str| {
        limited(fact, what, remedy).map(|problem| Problem { fatal: true, ..problem })
    };
    let all = [
        fatal(
            facts.proc,
            "/proc is not mounted, and gpurec needs it to see what processes have mapped",
            "mount it: mount -t proc proc /proc",
        ),
        fatal(
            facts.can_load_bpf,
            &format!(
                "gpurec may not load BPF programs as this user: it lacks {}",
                facts.lacking.join(" and ")
            ),
            &format!("run it as root: sudo gpurec ... ({suffice})"),
        ),
        fatal(
            facts.can_signal,
            "gpurec may not resume processes of other users after it stops them: it lacks CAP_KILL",
            &format!("run it as root: sudo gpurec ... ({suffice})"),
        ),
        fatal(facts.can_read_tracefs, what, remedy),
        limited(
            facts.can_read_processes,
            "gpurec may not look into other users' processes: it lacks CAP_SYS_PTRACE",
            "run it as root, or with this capability",
        ),
        fatal(
            facts.lockdown.as_deref().map(|mode| mode != "confidentiality"),
            "the kernel is locked down to confidentiality, so BPF may not read memory",
            "boot with lockdown=integrity or without lockdown",
        ),
        fatal(
            facts.btf,
            "the kernel has no type information (/sys/kernel/btf/vmlinux)",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of Debian 11, Ubuntu 20.10, RHEL 8.2 and newer are",
        ),
        fatal(facts.ring_buffer, "the kernel has no BPF ring buffers", "use Linux 5.8 or newer"),
        fatal(facts.task_storage, "the kernel has no BPF task storage", "use Linux 5.11 or newer"),
        fatal(
            facts.cookies,
            "the kernel has no BPF cookies, which tell a hook its function",
            "use Linux 6.1 or newer",
        ),
        fatal(
            facts.syscall_tracepoints,
            "the kernel has no system-call tracepoints, by which gpurec sees that a process loads a library",
            "use a kernel built with CONFIG_FTRACE_SYSCALLS=y",
        ),
        fatal(
            facts.first_pid_namespace,
            "gpurec runs in a PID namespace of its own (a container), but BPF reports the host's PIDs",
            "run it on the host, or give the container the host's processes (docker run --pid=host)",
        ),
    ];
    all.into_iter().flatten().collect()
}
