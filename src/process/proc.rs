//! Small readers of /proc. A process can end between any two reads, so every answer is a Result or an Option. The bytes
//! need not be UTF-8 or well formed.

use super::Pid;
use super::cgroup::{self, Owner};
use super::job::Job;
use gpurec_trace::{Found, lossy};
use nix::errno::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

/// Environment variables in their original order.
pub type Env = Vec<(OsString, OsString)>;

const PF_KTHREAD: u32 = 0x0020_0000;

/// The fields of /proc/PID/stat that gpurec uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub comm: String,
    pub state: u8,
    pub ppid: Pid,
    pub flags: u32,
    /// Clock ticks since boot (field 22). Together with the pid this identifies a process for good.
    pub start_time: u64,
}

impl Stat {
    pub fn kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    pub fn ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// True if a signal such as SIGSTOP stopped it, false if a debugger did.
    pub fn stopped(&self) -> bool {
        self.state == b'T'
    }
}

pub fn stat(pid: Pid) -> io::Result<Stat> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&bytes).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is malformed")))
}

/// True for a process that has not ended.
pub fn lives(pid: Pid) -> bool {
    stat(pid).is_ok_and(|stat| !stat.ended())
}

/// The command name may contain anything, even ") R 1", so the fields begin after the last ')'.
pub fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let comm = bytes.get(open + 1..close)?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1, and the state is field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        comm: String::from_utf8_lossy(comm).into_owned(),
        state: *field(3)?.as_bytes().first()?,
        ppid: field(4)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

/// One "Name:\tvalue" line of /proc/PID/status.
pub fn status_field(pid: Pid, name: &str) -> io::Result<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/status"))?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_string())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/status has no {name}")))
}

/// The process that a thread belongs to; for a process, itself.
pub fn tgid_of(tid: Pid) -> io::Result<Pid> {
    status_field(tid, "Tgid")?.parse().map_err(io::Error::other)
}

/// The real, effective, saved and file system user id.
pub fn uids(pid: Pid) -> io::Result<[u32; 4]> {
    let value = status_field(pid, "Uid")?;
    let uids: Vec<u32> = value.split_ascii_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    uids.try_into().map_err(|_| io::Error::other(format!("/proc/{pid}/status has no four user ids")))
}

pub fn effective_uid(pid: Pid) -> io::Result<u32> {
    uids(pid).map(|[_, effective, ..]| effective)
}

pub fn exe_path(pid: Pid) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe"))
}

/// More than Linux accepts at exec. Afterwards a process can claim (PR_SET_MM_MAP) that its environment is as large as
/// its address space.
const MOST_ENVIRON: u64 = 8 << 20;

/// The environment that the process had when it was executed.
pub fn environ(pid: Pid) -> io::Result<Env> {
    read_some(&format!("/proc/{pid}/environ"), MOST_ENVIRON).map(|bytes| parse_environ(&bytes))
}

/// The beginning of a file whose length another process chooses.
pub fn read_some(path: &str, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn parse_environ(bytes: &[u8]) -> Env {
    bytes
        .split(|b| *b == 0)
        .filter_map(|entry| {
            // A name is never empty, so a leading '=' belongs to the name, as in getenv.
            let at = entry.iter().skip(1).position(|b| *b == b'=')? + 1;
            let (name, value) = entry.split_at(at);
            Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.get(1..)?.to_vec())))
        })
        .collect()
}

/// The process's place in a distributed job.
pub fn job_of(pid: Pid) -> Job {
    environ(pid).map(|env| Job::within(&env)).unwrap_or_default()
}

/// The most bytes read of a command line.
const MOST_COMMAND: u64 = 64 << 10;

/// Describes a process whose start the trace has not seen.
pub fn about(pid: Pid) -> io::Result<Found> {
    let comm = stat(pid)?.comm;
    let command = read_some(&format!("/proc/{pid}/cmdline"), MOST_COMMAND).unwrap_or_default();
    let cgroup = cgroup(pid);
    let job = job_of(pid);
    Ok(Found {
        pid,
        tid: pid,
        comm,
        command: words(&command),
        user: user(pid),
        container: cgroup.as_deref().and_then(|cgroup| Owner::of(cgroup).container),
        cgroup,
        rank: job.rank,
        local_rank: job.local_rank,
        world_size: job.world_size,
        job: job.name,
    })
}

/// The most bytes read of a list of cgroups.
const MOST_CGROUP: u64 = 64 << 10;

/// The cgroup of a process. Like the name, it is Linux's own data: reading it needs no memory of the process.
pub fn cgroup(pid: Pid) -> Option<String> {
    let text = read_some(&format!("/proc/{pid}/cgroup"), MOST_CGROUP).ok()?;
    cgroup::path(&String::from_utf8_lossy(&text))
}

/// The name that Linux has for a process.
pub fn comm(pid: Pid) -> Option<String> {
    let name = read_some(&format!("/proc/{pid}/comm"), 64).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// The words of an argv as in memory.
pub fn words(command: &[u8]) -> Vec<String> {
    let command = command.strip_suffix(&[0]).unwrap_or(command);
    let words = command.split(|byte| *byte == 0).filter(|_| !command.is_empty());
    words.map(|word| lossy(word).into_owned()).collect()
}

/// The effective user of a process: the name, or the number if it has no name.
pub fn user(pid: Pid) -> Option<String> {
    effective_uid(pid).ok().map(|uid| user_name(uid).unwrap_or_else(|| uid.to_string()))
}

/// Reads only this machine's /etc/passwd, because other name services can be slow.
fn user_name(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = text.lines().map(|line| line.split(':'));
    fields.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

pub fn all_processes() -> Vec<Pid> {
    numbers_in("/proc")
}

/// The names in a folder that are numbers, in order.
pub fn numbers_in<T: FromStr + Ord>(folder: &str) -> Vec<T> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<T> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn children_by_parent() -> HashMap<Pid, Vec<Pid>> {
    let mut map: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in all_processes() {
        if let Ok(stat) = stat(pid) {
            map.entry(stat.ppid).or_default().push(pid);
        }
    }
    map
}

/// Reads every process's parent field, because not every Linux has /proc/PID/task/*/children.
#[cfg(test)]
pub fn children_of(pid: Pid) -> Vec<Pid> {
    children_by_parent().remove(&pid).unwrap_or_default()
}

/// The process and all its descendants, parents first. It can miss a fork during the walk: add the result to the target
/// set, which grows at fork by itself, and then walk once more.
pub fn process_tree(pid: Pid) -> Vec<Pid> {
    let mut children = children_by_parent();
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        // Removing the entry prevents a cycle if a pid is reused during the walk.
        tree.extend(children.remove(&parent).unwrap_or_default());
        next += 1;
    }
    tree
}

/// Readable once the process has ended.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: a system call on plain integers; the descriptor returned is new and ours (CLOEXEC).
    unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Sends a signal through a pidfd, so that it never reaches a process that reuses the pid.
pub fn pidfd_signal(pidfd: RawFd, signal: libc::c_int) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: plain integers and a null siginfo, which Linux treats as "like kill".
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, no_info, 0) };
    Ok(Errno::result(sent).map(drop)?)
}

/// Waits for a child of ours. Returns its wait status.
pub fn wait_for_child(pid: Pid, flags: libc::c_int) -> nix::Result<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: a child of ours, and an int to fill.
        match Errno::result(unsafe { libc::waitpid(pid as libc::pid_t, &mut status, flags) }) {
            Err(Errno::EINTR) => {}
            waited => return waited.map(|_| status),
        }
    }
}

/// True if the process behind a pidfd has ended, after waiting up to `timeout_ms` (-1: for ever).
pub fn pidfd_ended(pidfd: RawFd, timeout_ms: i32) -> bool {
    is_readable(pidfd, timeout_ms)
}

/// True if the descriptor is readable, or becomes so within `timeout_ms` (-1: for ever).
pub fn is_readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) > 0 }
}

/// The last component of a path as text, without the "(deleted)" mark.
pub fn program_name(path: &std::path::Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    let name = bytes.rsplit(|b| *b == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
