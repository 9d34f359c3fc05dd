//! The process programs: attached before anything is recorded, detached at the end.
//! In: the loaded object. Out: links. Tracepoints are found through tracefs, mounted or not.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, Object, ProgramType};

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
    let path = format!("events/{category}/{event}/id");
    let text = match fs::read_to_string(Path::new(TRACEFS).join(&path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => tracefs::read(&path),
        other => other,
    };
    let text = text.with_context(|| {
        format!("cannot read {path} of tracefs; gpurec needs it and CONFIG_FTRACE_SYSCALLS to see libraries as they are loaded")
    })?;
    text.trim().parse().with_context(|| format!("{path} of tracefs holds no number"))
}

/// tracefs where nobody has mounted it: a mount that hangs nowhere, which nobody else
/// ever sees and which ends with its descriptor.
mod tracefs {
    use std::ffi::{CStr, CString};
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::ptr;

    const FSOPEN_CLOEXEC: u32 = 1;
    const FSCONFIG_CMD_CREATE: u32 = 6;
    const FSMOUNT_CLOEXEC: u32 = 1;
    const NAME: &CStr = c"tracefs";

    pub fn read(path: &str) -> io::Result<String> {
        let path = CString::new(path)?;
        // SAFETY: each call gets a valid string or descriptor and integers.
        let (context, mount, file);
        unsafe {
            context = owned(libc::syscall(libc::SYS_fsopen, NAME.as_ptr(), FSOPEN_CLOEXEC))?;
            let null = ptr::null::<libc::c_char>();
            if libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0) < 0
            {
                return Err(io::Error::last_os_error());
            }
            mount = owned(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0))?;
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            file = owned(libc::openat(mount.as_raw_fd(), path.as_ptr(), flags).into())?;
        }
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        Ok(text)
    }

    fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
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
