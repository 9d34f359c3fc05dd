//! The environment of the recorded command. In: gpurec's own environment, and that of the program that called sudo. Out:
//! what the user had, with what was set for gpurec since. Not here: who the user is (identity.rs).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Pid;
use super::identity::{Identity, elevated, elevator};
use super::proc::{self, Env};
use super::rights::as_caller;

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

pub fn own_environment() -> Env {
    std::env::vars_os().collect()
}

/// The command's environment: what the user had when they called sudo, overlaid with variables set since then (`sudo
/// CUDA_VISIBLE_DEVICES=1 gpurec ...`).
pub fn user_environment(identity: &Identity) -> (Env, EnvSource) {
    if !elevated() {
        return (own_environment(), EnvSource::Direct);
    }
    let merged = caller_environment().and_then(|(name, pid, theirs)| {
        let cwd = std::env::current_dir().ok();
        // Runs with the user's rights: PWD may name folders that they cannot read.
        let merged = as_caller(identity, || merge(theirs, own_environment(), cwd.as_deref()));
        Ok((merged.map_err(|error| error.to_string())?, EnvSource::Caller { name, pid }))
    });
    merged.unwrap_or_else(|why| (without_sudo(own_environment(), identity), EnvSource::Own { why }))
}

fn caller_environment() -> Result<(String, Pid, Env), String> {
    let (name, pid) = elevator().ok_or("gpurec found no sudo among its parent processes")?;
    let env = proc::environ(pid).map_err(|e| format!("the environment of {name} ({pid}): {e}"))?;
    Ok((name, pid, env))
}

/// Variables that sudo or root's shell set for root; the user's command never gets them.
fn belongs_to_root(name: &OsStr) -> bool {
    const NAMES: &str = "HOME USER LOGNAME USERNAME SHELL PATH MAIL PWD OLDPWD SHLVL _ LS_COLORS DOAS_USER";
    is_sudos(name) || NAMES.split(' ').any(|known| name == known)
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
