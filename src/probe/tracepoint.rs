//! Tracepoints and kprobes as perf events. In: names, addresses. Out: links, and the description of an event in
//! tracefs.
//! Not here: which events are wanted, what they mean.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, PerfEventOpts, ProgramMut};

use crate::host::tracefs;

/// The id by which perf identifies a tracepoint.
pub fn id(category: &str, event: &str) -> Result<u32> {
    let path = format!("events/{category}/{event}/id");
    let text = tracefs::read(&path).map_err(|error| why_not(error, category, event))?;
    text.trim().parse().with_context(|| format!("{path} in tracefs does not contain a number"))
}

/// The fields of an event, as tracefs describes them.
pub fn format(category: &str, event: &str) -> Result<String> {
    tracefs::read(&format!("events/{category}/{event}/format"))
        .map_err(|error| why_not(error, category, event))
}

fn why_not(error: io::Error, category: &str, event: &str) -> anyhow::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound => format!("this kernel has no tracepoint {category}:{event}"),
        _ => format!("gpurec cannot read the tracepoint {category}:{event} in tracefs"),
    };
    anyhow::Error::new(error).context(what)
}

/// Every `category:event`.
pub fn all() -> io::Result<Vec<String>> {
    Ok(tracefs::read("available_events")?.lines().map(str::to_owned).collect())
}

/// Attaches to the tracepoint with this id.
pub fn attach(program: &ProgramMut, id: u32, cookie: u64) -> Result<Link> {
    // Dropping the link closes the event.
    let event = perf::tracepoint(id).map_err(|error| denied(error, paranoid()))?;
    attach_event(program, event, cookie)
}

fn paranoid() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// Levels above 2 are specific to Debian and Ubuntu, and Debian's default is 3: CAP_PERFMON is not enough there.
fn denied(error: io::Error, paranoid: Option<i32>) -> anyhow::Error {
    match paranoid {
        Some(level) if level > 2 && error.raw_os_error() == Some(libc::EACCES) => anyhow!(
            "perf_event_open: {error}; kernel.perf_event_paranoid is {level}, and above 2 this kernel wants CAP_SYS_ADMIN: \
             run gpurec as root, or run: sysctl kernel.perf_event_paranoid=2"
        ),
        _ => anyhow::Error::new(error).context("perf_event_open"),
    }
}

/// Attaches to a function of Linux or a module, by its address or else by its name.
pub fn attach_kprobe(
    program: &ProgramMut,
    symbol: &str,
    address: Option<u64>,
    retprobe: bool,
    cookie: u64,
) -> Result<Link> {
    attach_event(program, perf::kprobe(symbol, address, retprobe)?, cookie)
}

fn attach_event(program: &ProgramMut, event: OwnedFd, cookie: u64) -> Result<Link> {
    let options = PerfEventOpts { cookie, ..PerfEventOpts::default() };
    let link = program.attach_perf_event_with_opts(event.as_raw_fd(), options);
    let link = link.map_err(|error| anyhow!("{error:#}"))?;
    // The link owns it from now on.
    let _ = event.into_raw_fd();
    Ok(link)
}

/// perf events opened directly, because libbpf looks them up by paths and names of its own.
mod perf {
    use std::ffi::CString;
    use std::fs;
    use std::io;
    use std::os::fd::{FromRawFd, OwnedFd};

    use anyhow::{Context, Result};
    use libbpf_rs::libbpf_sys::perf_event_attr;

    use crate::errno::KernelRefused;

    const PERF_TYPE_TRACEPOINT: u32 = 2;
    const PERF_FLAG_FD_CLOEXEC: u64 = 8;
    const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";

    pub fn tracepoint(id: u32) -> io::Result<OwnedFd> {
        open(&perf_event_attr {
            type_: PERF_TYPE_TRACEPOINT,
            config: id.into(),
            ..perf_event_attr::default()
        })
    }

    pub fn kprobe(symbol: &str, address: Option<u64>, retprobe: bool) -> Result<OwnedFd> {
        let kind = fs::read_to_string(format!("{KPROBES}/type"))
            .context("this kernel has no kprobes (CONFIG_KPROBE_EVENTS)")?;
        let kind =
            kind.trim().parse().with_context(|| format!("{KPROBES}/type does not contain a number"))?;
        let name = CString::new(symbol).context("the symbol's name contains a zero byte")?;
        let mut attr = perf_event_attr { type_: kind, config: retprobe.into(), ..perf_event_attr::default() };
        // The address distinguishes two functions of the same name.
        match address {
            Some(address) => attr.__bindgen_anon_4.kprobe_addr = address,
            None => attr.__bindgen_anon_3.kprobe_func = name.as_ptr() as u64,
        }
        open(&attr).with_context(|| KernelRefused(format!("a probe at {symbol}")))
    }

    fn open(attr: &perf_event_attr) -> io::Result<OwnedFd> {
        let attr = perf_event_attr { size: size_of::<perf_event_attr>() as u32, ..*attr };
        // SAFETY: attr is a valid perf_event_attr of the size in its size field, and what it points to lives until the
        // call returns. Any process, CPU 0, no group: a tracepoint's BPF program runs on every CPU whatever the event's
        // CPU.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_of_the_distributions_own_is_named() {
        let reported = |errno, level| format!("{:#}", denied(io::Error::from_raw_os_error(errno), level));
        let plain = "perf_event_open: Permission denied (os error 13)";
        assert_eq!(reported(libc::EACCES, None), plain);
        assert_eq!(reported(libc::EACCES, Some(2)), plain);
        assert!(
            reported(libc::EACCES, Some(3))
                .starts_with(&format!("{plain}; kernel.perf_event_paranoid is 3, "))
        );
        assert!(reported(libc::EMFILE, Some(3)).ends_with("(os error 24)"));
    }
}
