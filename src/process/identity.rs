//! The user who called sudo, and the environment they had before sudo replaced it.
//!
//! In: SUDO_* in gpurec's environment, and its ancestors in /proc. Out: an identity to run the command as, and its
//! environment with a note on where it comes from.

use super::Pid;
use super::proc::{self, Env};
use super::rights::as_caller;
use nix::unistd::{self, Gid, Uid, User};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub user: String,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// Where the command's environment comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvSource {
    /// The user's environment at the time of the call, read from the calling process.
    Caller { name: String, pid: Pid },
    /// gpurec's own environment, which is the user's: nothing changed it on the way (root's own shell, a capability).
    Direct,
    /// gpurec's own environment, because the user's could not be read. This is worth a warning.
    Own { why: String },
}

impl fmt::Display for EnvSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvSource::Caller { name, pid } => {
                write!(f, "the environment {name} ({pid}) was called with")
            }
            EnvSource::Direct => write!(f, "the environment gpurec was called with"),
            EnvSource::Own { why } => write!(
                f,
                "gpurec's own environment ({why}); PATH, virtualenv or LD_LIBRARY_PATH may differ from yours, set them with: sudo env NAME=VALUE gpurec ..."
            ),
        }
    }
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
    if !trusted {
        return None;
    }
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
    match entry {
        Some(user) => {
            let gid = gid.unwrap_or(user.gid.as_raw());
            Identity {
                uid,
                gid,
                groups: groups_of(&user.name, gid),
                user: user.name,
                home: user.dir,
                shell: user.shell,
            }
        }
        // In containers a uid without a passwd entry is normal. If the group is missing too, use nogroup, never root's
        // group.
        None => {
            let gid = gid.unwrap_or(if uid == 0 { 0 } else { 65534 });
            Identity {
                uid,
                gid,
                groups: vec![gid],
                user: name.unwrap_or_else(|| uid.to_string()),
                home: PathBuf::from("/"),
                shell: PathBuf::from("/bin/sh"),
            }
        }
    }
}

fn groups_of(user: &str, gid: u32) -> Vec<u32> {
    CString::new(user)
        .ok()
        .and_then(|name| unistd::getgrouplist(&name, Gid::from_raw(gid)).ok())
        .map(|groups| groups.into_iter().map(Gid::as_raw).collect())
        .unwrap_or_else(|| vec![gid])
}

pub fn own_environment() -> Env {
    std::env::vars_os().collect()
}

/// The command's environment: what the user had when they called sudo, overlaid with variables set since then (`sudo
/// CUDA_VISIBLE_DEVICES=1 gpurec ...`).
pub fn user_environment(identity: &Identity) -> (Env, EnvSource) {
    let own = own_environment();
    if !elevated() {
        return (own, EnvSource::Direct);
    }
    match caller_environment() {
        Ok((name, pid, theirs)) => {
            let cwd = std::env::current_dir().ok();
            // Runs with the user's rights: PWD may name folders that they cannot read.
            let merged = as_caller(identity, || merge(theirs, own, cwd.as_deref()));
            match merged {
                Ok(env) => (env, EnvSource::Caller { name, pid }),
                Err(error) => {
                    (without_sudo(own_environment(), identity), EnvSource::Own { why: error.to_string() })
                }
            }
        }
        Err(why) => (without_sudo(own, identity), EnvSource::Own { why }),
    }
}

fn caller_environment() -> Result<(String, Pid, Env), String> {
    let caller = elevator().ok_or("no sudo among its parent processes")?;
    let env = proc::environ(caller.1)
        .map_err(|e| format!("the environment of {} ({}): {e}", caller.0, caller.1))?;
    Ok((caller.0, caller.1, env))
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

/// Variables that sudo or root's shell set for root; the user's command never gets them.
fn belongs_to_root(name: &OsStr) -> bool {
    const NAMES: [&str; 13] = [
        "HOME",
        "USER",
        "LOGNAME",
        "USERNAME",
        "SHELL",
        "PATH",
        "MAIL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "LS_COLORS",
        "DOAS_USER",
    ];
    is_sudos(name) || NAMES.iter().any(|n| name == OsStr::new(n))
}

fn is_sudos(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"SUDO_")
}

/// `sudo NAME=VALUE gpurec` and `sudo env NAME=VALUE gpurec` appear only in gpurec's own environment, so it takes
/// precedence for every variable that sudo does not set by itself.
pub(super) fn merge(theirs: Env, own: Env, cwd: Option<&Path>) -> Env {
    let mut merged = theirs;
    for (name, value) in own {
        if !belongs_to_root(&name) {
            set(&mut merged, name, value);
        }
    }
    // sudo -i, sudo -D or a script's cd changed the directory since then, and programs trust PWD.
    if let (Some((_, pwd)), Some(cwd)) = (merged.iter_mut().find(|(name, _)| name == "PWD"), cwd)
        && !same_directory(Path::new(pwd), cwd)
    {
        *pwd = cwd.as_os_str().to_owned();
    }
    merged
}

fn same_directory(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn set(env: &mut Env, name: OsString, value: OsString) {
    match env.iter_mut().find(|(known, _)| *known == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name, value)),
    }
}

/// Adapts gpurec's own environment to the user: with root's home, their programs would fail or write there.
pub(super) fn without_sudo(own: Env, identity: &Identity) -> Env {
    let mut env: Env = own
        .into_iter()
        .filter(|(name, _)| !is_sudos(name) && name != "MAIL" && name != "DOAS_USER")
        .collect();
    for (name, value) in [
        ("HOME", identity.home.as_os_str()),
        ("SHELL", identity.shell.as_os_str()),
        ("USER", OsStr::new(&identity.user)),
        ("LOGNAME", OsStr::new(&identity.user)),
    ] {
        set(&mut env, name.into(), value.to_owned());
    }
    env
}
