//! Whether who typed sudo may run a command as root. In: the person, the command. Out: nothing, or why not.
//! --as-root must give nothing that sudo does not give by itself: else a rule for gpurec alone would be a root
//! shell. Nothing is decided here: the sudo that called us is asked for its policy, without a shell, and runs nothing.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use super::identity::{self, Identity};
use super::launch::LaunchError;
use super::proc;

/// `program` is the file that will be executed, `words` the command as it was given.
pub fn as_root(user: &Identity, program: &Path, words: &[OsString]) -> Result<(), LaunchError> {
    if !identity::elevated() || user.uid == 0 || root_called_us() {
        return Ok(());
    }
    let name = words.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
    let refused = |why: String| Err(LaunchError::CannotRun { name, why });
    match sudo_lets(user, program, words.get(1..).unwrap_or_default()) {
        Some(true) => Ok(()),
        Some(false) => refused(format!(
            "sudo does not let {} run it as root, so --as-root does not either; leave --as-root out, or have a rule for it added",
            user.user
        )),
        None => refused(format!(
            "--as-root would make {} root, and gpurec found no sudo among its parents to ask; in a root shell, run: env -u SUDO_UID -u DOAS_USER -u PKEXEC_UID gpurec ...",
            user.user
        )),
    }
}

/// No sudo stands between us and a caller who is root already: SUDO_UID came down from further up. Who has no parent
/// any more may have been anybody's.
fn root_called_us() -> bool {
    let parent = std::os::unix::process::parent_id();
    identity::elevator().is_none() && parent > 1 && proc::real_uid(parent) == Some(0)
}

/// None: there is no sudo to ask.
fn sudo_lets(user: &Identity, program: &Path, args: &[OsString]) -> Option<bool> {
    let (name, pid) = identity::elevator()?;
    if name == "doas" {
        return None;
    }
    let status = Command::new(proc::exe_path(pid).ok()?)
        .args(["-n", "-l", "-u", "root", "-U", &user.user, "--"])
        .arg(std::path::absolute(program).ok()?)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.ok().map(|status| status.success())
}
