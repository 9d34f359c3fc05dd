//! The process programs: attached before anything is recorded, detached at the end.
//! In: the loaded object. Out: links. Tracepoints are found through tracefs; where it
//! isn't mounted, it is for as long as this takes, and for this thread alone.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, Object, ProgramType};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

const TRACEFS: &str = "/sys/kernel/tracing";

pub fn attach(object: &Object) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let link = match program.prog_type() {
            ProgramType::Tracepoint => syscall_tracepoint(&program, &name),
            _ => program.attach().map_err(|e| anyhow!("{e}")),
        };
        links.push(link.with_context(|| format!("the kernel refused the hook {name}"))?);
    }
    Ok(links)
}

fn syscall_tracepoint(program: &libbpf_rs::ProgramMut, name: &str) -> Result<Link> {
    let event = match name {
        "mmap_enter" => "sys_enter_mmap",
        "mmap_exit" => "sys_exit_mmap",
        other => return Err(anyhow!("gpurec does not know where {other} goes")),
    };
    let id = tracepoint_id("syscalls", event)?;
    perf::attach(program, id).with_context(|| format!("syscalls:{event}"))
}

fn tracepoint_id(category: &str, event: &str) -> Result<u32> {
    let path = format!("{TRACEFS}/events/{category}/{event}/id");
    let text = if Path::new(TRACEFS).join("events").exists() {
        std::fs::read_to_string(&path)
    } else {
        let wanted = path.clone();
        thread::spawn(move || -> std::io::Result<String> {
            // A mount namespace of this thread alone: the mount ends with it, and nobody
            // else ever sees it.
            unshare(CloneFlags::CLONE_NEWNS)?;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
            mount(Some("tracefs"), TRACEFS, Some("tracefs"), MsFlags::empty(), None::<&str>)?;
            std::fs::read_to_string(wanted)
        })
        .join()
        .map_err(|_| anyhow!("the thread that mounts tracefs panicked"))?
    };
    let text = text.with_context(|| {
        format!("cannot read {path}; gpurec needs tracefs and CONFIG_FTRACE_SYSCALLS to see libraries as they are loaded")
    })?;
    text.trim().parse().with_context(|| format!("{path} holds no number"))
}

/// A tracepoint by its number, since libbpf looks it up by a path of its own.
mod perf {
    use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

    use anyhow::{Context, Result, anyhow};
    use libbpf_rs::libbpf_sys::perf_event_attr;
    use libbpf_rs::{Link, ProgramMut};

    const PERF_TYPE_TRACEPOINT: u32 = 2;
    const PERF_FLAG_FD_CLOEXEC: u64 = 8;

    pub fn attach(program: &ProgramMut, id: u32) -> Result<Link> {
        // The link closes the event when it goes.
        let event = open(id).context("perf_event_open")?.into_raw_fd();
        program.attach_perf_event(event).map_err(|e| anyhow!("{e}"))
    }

    fn open(id: u32) -> std::io::Result<OwnedFd> {
        let attr = perf_event_attr {
            type_: PERF_TYPE_TRACEPOINT,
            size: size_of::<perf_event_attr>() as u32,
            config: id.into(),
            ..perf_event_attr::default()
        };
        // SAFETY: attr is a valid perf_event_attr of the size it says; any process, CPU 0,
        // no group: a tracepoint's BPF program runs on every CPU whatever the event's CPU.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}
