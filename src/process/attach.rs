//! Checks whether a running process can be recorded.
//!
//! In: a process id that the user typed. Out: that process, held by a pidfd, or a one-sentence error.

use super::Pid;
use super::proc;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};

#[derive(Debug)]
pub struct AttachedProcess {
    pub pid: Pid,
    pub comm: String,
    /// None: its program could not be read.
    pub bits_32: Option<bool>,
    /// Readable once the process has ended.
    pub pidfd: OwnedFd,
}

impl AttachedProcess {
    /// A warning for the user about a process that can still be recorded.
    pub fn note(&self) -> Option<String> {
        (self.bits_32 == Some(true)).then(|| {
            format!(
                "{} ({}) is a 32-bit program, which cannot load a 64-bit CUDA library: expect calls only from its 64-bit children",
                self.pid, self.comm
            )
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("no process has the PID {0}; find the right one with: ps -e")]
    NoSuchProcess(Pid),
    #[error("{pid} ({comm}) is a kernel thread and calls no CUDA; give the PID of a program")]
    KernelThread { pid: Pid, comm: String },
    #[error(
        "{pid} ({comm}) is a zombie: it has ended and waits for its parent to notice, so nothing is left to record"
    )]
    Zombie { pid: Pid, comm: String },
    #[error("{tid} is a thread of process {pid} ({comm}); use --pid {pid}")]
    Thread { tid: Pid, pid: Pid, comm: String },
    #[error("{0} is gpurec itself; give the PID of another process")]
    Ourselves(Pid),
    #[error("process {0} ended while gpurec was attaching to it; start it again under: gpurec -- COMMAND")]
    Ended(Pid),
    #[error("process {pid} cannot be examined: {why}; run gpurec as root, or with CAP_SYS_PTRACE")]
    Denied { pid: Pid, why: io::Error },
    #[error(
        "process {pid} ({comm}) cannot be examined, not even by root: {why}; in a container run gpurec on the host, elsewhere look for a security module (SELinux, AppArmor) that forbids it"
    )]
    DeniedToRoot { pid: Pid, comm: String, why: io::Error },
}

pub fn check(pid: Pid) -> Result<AttachedProcess, AttachError> {
    // pid_t is signed, and many calls interpret 0 as the calling process.
    if pid == 0 || pid > i32::MAX as u32 {
        return Err(AttachError::NoSuchProcess(pid));
    }
    let tgid = proc::tgid_of(pid).map_err(|e| failed(pid, e, AttachError::NoSuchProcess(pid)))?;
    if tgid == std::process::id() {
        return Err(AttachError::Ourselves(pid));
    }
    if tgid != pid {
        let comm = proc::stat(tgid).map(|s| s.comm).unwrap_or_default();
        return Err(AttachError::Thread { tid: pid, pid: tgid, comm });
    }
    // Open the pidfd first: all later reads are of this process if it still lives at the end.
    let pidfd = proc::pidfd_open(pid).map_err(|e| failed(pid, e, AttachError::NoSuchProcess(pid)))?;
    let stat = proc::stat(pid).map_err(|e| failed(pid, e, AttachError::Ended(pid)))?;
    let comm = stat.comm.clone();
    if stat.kernel_thread() {
        return Err(AttachError::KernelThread { pid, comm });
    }
    if stat.ended() {
        return Err(AttachError::Zombie { pid, comm });
    }
    // Without the right to inspect the process, gpurec cannot hook it either.
    proc::exe_path(pid).map_err(|e| failed(pid, e, AttachError::Ended(pid)))?;
    let bits_32 = is_32_bit(pid);
    if proc::pidfd_ended(pidfd.as_raw_fd(), 0) {
        return Err(AttachError::Ended(pid));
    }
    Ok(AttachedProcess { pid, comm, bits_32, pidfd })
}

fn failed(pid: Pid, why: io::Error, gone: AttachError) -> AttachError {
    match why.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => gone,
        _ if nix::unistd::geteuid().is_root() => {
            let comm = proc::stat(pid).map(|stat| stat.comm).unwrap_or_default();
            AttachError::DeniedToRoot { pid, comm, why }
        }
        _ => AttachError::Denied { pid, why },
    }
}

/// Decides by the auxiliary vector, whose words have the program's size. In a 64-bit program the first eight bytes hold
/// one small number; in a 32-bit program they hold the number and its value. Does not open the program's file, because
/// that may wait for a server.
fn is_32_bit(pid: Pid) -> Option<bool> {
    let mut head = [0u8; 8];
    File::open(format!("/proc/{pid}/auxv")).ok()?.read_exact(&mut head).ok()?;
    Some(u64::from_le_bytes(head) >> 32 != 0)
}
