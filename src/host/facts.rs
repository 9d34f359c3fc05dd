//! Facts about this machine. In: /proc, /sys, BTF. Out: values; None if a fact could not be determined. Draws no
//! conclusions.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::statfs::{FsType, PROC_SUPER_MAGIC, TRACEFS_MAGIC, statfs};

use super::types::types;
use crate::host::tracefs;
use crate::process::capabilities as caps;

/// The first PID namespace has this inode on every Linux.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub kernel: Option<String>,
    pub machine: Option<String>,
    pub can_load_bpf: Option<bool>,
    /// The capabilities that loading needs and this process lacks.
    pub lacking: Vec<&'static str>,
    pub can_signal: Option<bool>,
    /// True if it has CAP_SYS_ADMIN.
    pub is_admin: Option<bool>,
    pub can_read_processes: Option<bool>,
    /// `none`, `integrity` or `confidentiality`.
    pub lockdown: Option<String>,
    /// True if gpurec and Linux use the same process ids.
    pub first_pid_namespace: Option<bool>,
    /// /proc is mounted.
    pub proc: Option<bool>,
    pub btf: Option<bool>,
    pub ring_buffer: Option<bool>,
    pub task_storage: Option<bool>,
    pub cookies: Option<bool>,
    pub uprobe_multi: Option<bool>,
    pub uprobe_session: Option<bool>,
    pub syscall_tracepoints: Option<bool>,
    pub tracefs_mounted: Option<bool>,
    pub can_read_tracefs: Option<bool>,
    pub kprobes: Option<bool>,
    pub fprobe: Option<bool>,
    pub driver: Option<String>,
    pub driver_is_open: Option<bool>,
    pub devices: Option<usize>,
}

impl Facts {
    pub fn gather() -> Facts {
        let mut facts = Facts {
            kernel: line("/proc/sys/kernel/osrelease"),
            machine: Some(std::env::consts::ARCH.to_owned()),
            lockdown: lockdown(),
            // Other files may be in its place.
            proc: Some(file_system("/proc") == Some(PROC_SUPER_MAGIC)),
            first_pid_namespace: fs::read_link("/proc/self/ns/pid")
                .ok()
                .map(|link| link == Path::new(FIRST_PID_NAMESPACE)),
            tracefs_mounted: file_system("/sys/kernel/tracing").map(|kind| kind == TRACEFS_MAGIC),
            driver: driver_version(),
            driver_is_open: fs::read_to_string("/proc/driver/nvidia/version")
                .ok()
                .map(|text| text.contains("Open Kernel Module")),
            devices: devices(),
            ..Facts::default()
        };
        facts.tracepoints();
        facts.capabilities();
        facts.types();
        facts
    }

    fn capabilities(&mut self) {
        let Ok(have) = caps::effective() else { return };
        let lacking = [caps::BPF, caps::PERFMON].into_iter().filter(|cap| !have.has(*cap));
        if !have.has(caps::SYS_ADMIN) {
            self.lacking = lacking.map(caps::Cap::name).collect();
        }
        self.is_admin = Some(have.has(caps::SYS_ADMIN));
        self.can_load_bpf = Some(self.lacking.is_empty());
        self.can_read_processes = Some(have.has(caps::SYS_PTRACE));
        self.can_signal = Some(have.has(caps::KILL));
    }

    /// Reads tracefs, because BTF describes tracepoints differently from one Linux to another.
    fn tracepoints(&mut self) {
        let answer = tracefs::read("events/syscalls/sys_enter_mmap/id");
        let kind = answer.err().map(|error| error.kind());
        self.syscall_tracepoints = match kind {
            None => Some(true),
            Some(io::ErrorKind::NotFound) => Some(false),
            Some(_) => None,
        };
        self.can_read_tracefs = Some(kind != Some(io::ErrorKind::PermissionDenied));
    }

    fn types(&mut self) {
        self.btf = Some(Path::new("/sys/kernel/btf/vmlinux").exists());
        let Some(types) = types() else { return };
        self.ring_buffer = Some(types.has("bpf_ringbuf"));
        self.task_storage = Some(types.has("bpf_local_storage"));
        self.uprobe_multi = Some(types.has("bpf_uprobe_multi_link"));
        self.uprobe_session = Some(types.uprobe_session);
        self.fprobe = Some(types.has("bpf_kprobe_multi_link"));
        self.kprobes = Some(types.has("kprobe_insn_cache"));
        self.cookies = Some(types.cookies);
    }
}

/// The type of the file system mounted here. Works even if the folders of tracefs cannot be entered.
fn file_system(path: &str) -> Option<FsType> {
    Some(statfs(path).ok()?.filesystem_type())
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The file lists every mode and puts the active one in brackets.
fn lockdown() -> Option<String> {
    let Ok(text) = fs::read_to_string("/sys/kernel/security/lockdown") else {
        // securityfs may not be mounted; then use the boot command line.
        let words = fs::read_to_string("/proc/cmdline").ok()?;
        return words.split_whitespace().find_map(|word| word.strip_prefix("lockdown=")).map(str::to_owned);
    };
    Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
}

fn devices() -> Option<usize> {
    let entries = fs::read_dir("/dev").ok()?;
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    Some(entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count())
}

/// The loaded NVIDIA driver's version: the first version number in its own report.
pub fn driver_version() -> Option<String> {
    version_in(fs::read_to_string("/proc/driver/nvidia/version").ok()?.lines().next()?)
}

pub(super) fn version_in(report: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    report.split_whitespace().find(is_version).map(str::to_owned)
}
