//! The user who called sudo. In: SUDO_* in gpurec's environment, and its ancestors in /proc. Out: an identity to run the
//! command as.

use super::Pid;
use super::proc;
use nix::unistd::{self, Gid, Uid, User};
use std::ffi::CString;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub user: String,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// The user behind sudo or doas, or else the user that gpurec runs as.
pub fn invoking_user() -> Identity {
    caller().map(|((uid, gid, name), _)| identity_of(uid, gid, name)).unwrap_or_else(own_identity)
}

/// True if a user became root to run gpurec.
pub fn elevated() -> bool {
    caller().is_some()
}

/// The tool that made gpurec root, if any.
pub fn elevation() -> Option<Elevation> {
    caller().map(|(_, by)| by)
}

/// The caller's name, if doas names one who cannot be looked up: gpurec must not take such a user for root.
pub fn unknown_caller() -> Option<String> {
    let is_root = unistd::getuid().is_root() && unistd::geteuid().is_root();
    std::env::var("DOAS_USER").ok().filter(|_| is_root && caller().is_none())
}

fn caller() -> Option<(CallerIds, Elevation)> {
    // Trust these variables only as real root: in a set-user-id program the caller could have written them.
    let trusted = unistd::getuid().is_root() && unistd::geteuid().is_root();
    let var = |name: &str| std::env::var(name).ok();
    // sudo always sets its own variables. doas may keep those of its caller (keepenv), which could then name any user.
    let sudos = var("DOAS_USER").is_none() || elevator().is_some_and(|(name, _)| name != "doas");
    caller_ids(trusted, |name| var(name).filter(|_| sudos || !name.starts_with("SUDO_")))
}

/// The process that called sudo or its like.
pub fn calling_process() -> Option<Pid> {
    let (_, pid) = elevator()?;
    proc::stat(pid).ok().map(|stat| stat.ppid)
}

/// The name and pid of the program that made gpurec root, if it still runs.
pub(super) fn elevator() -> Option<(String, Pid)> {
    find_caller(std::process::id(), &LiveProcesses)
}

pub(super) fn own_identity() -> Identity {
    let mut own = identity_of(unistd::getuid().as_raw(), Some(unistd::getgid().as_raw()), None);
    if let Ok(groups) = unistd::getgroups() {
        own.groups = groups.into_iter().map(Gid::as_raw).collect();
    }
    own
}

type CallerIds = (u32, Option<u32>, Option<String>);

/// The tool that made gpurec root, and the variable in which it names the caller.
type Elevation = (&'static str, &'static str);

pub(super) fn caller_ids(
    trusted: bool,
    var: impl Fn(&str) -> Option<String>,
) -> Option<(CallerIds, Elevation)> {
    let var = |name: &str| var(name).filter(|_| trusted);
    let number = |name: &str| var(name)?.parse::<u32>().ok();
    // For setresuid the last value of uid_t means "no change", so it can never be a user.
    let valid = |uid: &u32| *uid != u32::MAX;
    if let Some(uid) = number("SUDO_UID").filter(valid) {
        let gid = number("SUDO_GID").filter(valid);
        return Some(((uid, gid, var("SUDO_USER")), ("sudo", "SUDO_UID")));
    }
    if let Some(name) = var("DOAS_USER") {
        let user = User::from_name(&name).ok().flatten()?;
        return Some(((user.uid.as_raw(), None, Some(name)), ("doas", "DOAS_USER")));
    }
    let uid = number("PKEXEC_UID").filter(valid)?;
    Some(((uid, None, None), ("pkexec", "PKEXEC_UID")))
}

fn identity_of(uid: u32, gid: Option<u32>, name: Option<String>) -> Identity {
    // Two names may share a uid: prefer the name from sudo if it has this uid.
    let by_name = name
        .as_deref()
        .and_then(|name| User::from_name(name).ok().flatten())
        .filter(|user| user.uid.as_raw() == uid);
    let entry = by_name.or_else(|| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    // In containers a uid without a passwd entry is normal. If the group is missing too, use nogroup, never root's group.
    let own_gid = entry.as_ref().map(|user| user.gid.as_raw());
    let gid = gid.or(own_gid).unwrap_or(if uid == 0 { 0 } else { 65534 });
    let groups = entry.as_ref().map_or_else(|| vec![gid], |user| groups_of(&user.name, gid));
    let (user, home, shell) = match entry {
        Some(user) => (user.name, user.dir, user.shell),
        None => (name.unwrap_or_else(|| uid.to_string()), "/".into(), "/bin/sh".into()),
    };
    Identity { uid, gid, groups, user, home, shell }
}

fn groups_of(user: &str, gid: u32) -> Vec<u32> {
    CString::new(user)
        .ok()
        .and_then(|name| unistd::getgrouplist(&name, Gid::from_raw(gid)).ok())
        .map(|groups| groups.into_iter().map(Gid::as_raw).collect())
        .unwrap_or_else(|| vec![gid])
}

/// What the walk needs from a process; a trait, so that tests can use made-up process trees.
pub(super) trait Processes {
    fn parent(&self, pid: Pid) -> Option<Pid>;
    fn is_root(&self, pid: Pid) -> bool;
    /// The file that the process executes, not the name that it gives itself.
    fn program(&self, pid: Pid) -> Option<String>;
}

struct LiveProcesses;

impl Processes for LiveProcesses {
    fn parent(&self, pid: Pid) -> Option<Pid> {
        proc::stat(pid).ok().map(|s| s.ppid)
    }
    fn is_root(&self, pid: Pid) -> bool {
        proc::effective_uid(pid).is_ok_and(|uid| uid == 0)
    }
    fn program(&self, pid: Pid) -> Option<String> {
        proc::exe_path(pid).ok().map(|p| proc::program_name(&p))
    }
}

/// Finds the sudo that made gpurec root: the nearest one upwards, through root's processes only (a wrapper script,
/// `timeout`). In a chain of them (with use_pty, sudo puts a monitor in between) it takes the topmost.
pub(super) fn find_caller(from: Pid, processes: &impl Processes) -> Option<(String, Pid)> {
    let mut found = None;
    let mut pid = from;
    for _ in 0..64 {
        pid = processes.parent(pid).filter(|parent| *parent > 0)?;
        let name = processes.is_root(pid).then(|| processes.program(pid)).flatten();
        match name {
            Some(name) if matches!(name.as_str(), "sudo" | "sudo-rs" | "doas") => {
                found = Some((name, pid));
            }
            // Above the topmost sudo, or at another user's process, the ancestors have nothing to do with this call.
            _ if found.is_some() || !processes.is_root(pid) => return found,
            _ => {}
        }
    }
    found
}
