//! The target of the recording, determined before anything is set up: the command with its environment, or running
//! processes. In: the configuration. Out: what to launch, what to attach to, or the error. No process is started or
//! stopped here.

use std::os::fd::RawFd;

use anyhow::{Context, Result, bail};

use super::{Config, Target};
use crate::process::attach::{self, AttachedProcess};
use crate::process::environment::{self, EnvSource};
use crate::process::identity::{self, Identity};
use crate::process::launch::{self, Launch};
use crate::process::limits::Limits;
use crate::process::proc::{self, Env};
use crate::ui;
use gpurec_analysis::Usage;

/// Refuses --as-root under sudo: a sudo rule that allows only gpurec must not become a root shell. gpurec cannot ask
/// sudo whether it would run this command: sudo's rules are paths, and the file at a path may be replaced before it
/// is executed.
pub fn refuse_root_for_others(config: &Config) -> Result<()> {
    if !config.as_root {
        return Ok(());
    }
    match identity::elevation().filter(|_| identity::invoking_user().uid != 0) {
        Some((tool, variable)) => bail!(Usage(format!(
            "--as-root runs COMMAND as root only where root itself calls gpurec; if {tool} allows you more than gpurec, run: {tool} env -u {variable} gpurec ... -- COMMAND"
        ))),
        None => Ok(()),
    }
}

/// Refuses --lib for processes of others under sudo: while Linux watches a function's return, an exception that passes
/// through it ends the program, and no list can name all such functions. Backends without sessions watch the returns in
/// all processes.
pub fn refuse_lib_for_others(config: &Config, user: &Identity) -> Result<()> {
    let Some((tool, variable)) = identity::elevation().filter(|_| user.uid != 0) else { return Ok(()) };
    if config.selection.libs.is_empty() {
        return Ok(());
    }
    let is_of_another = |pid: &u32| proc::uids(*pid).is_ok_and(|uids| uids != [user.uid; 4]);
    let what = match &config.target {
        Target::All => "--all".to_owned(),
        Target::Pids(pids) => match pids.iter().find(|pid| is_of_another(pid)) {
            Some(pid) => format!("process {pid}, which is another user's"),
            None => return Ok(()),
        },
        Target::Command(_) => match config.backend.filter(|backend| !backend.has_sessions()) {
            Some(backend) => format!("--backend {}", backend.name()),
            None => return Ok(()),
        },
    };
    bail!(Usage(format!(
        "--lib could end programs of other users with {what}: leave it out; if {tool} allows you more than gpurec, run: {tool} env -u {variable} gpurec ..."
    )))
}

pub fn environment(config: &Config, user: &Identity) -> Env {
    if config.as_root {
        environment::own_environment()
    } else {
        let (env, source) = environment::user_environment(user);
        let is_reported = match source {
            EnvSource::Own { .. } => !config.quiet,
            _ => config.verbose,
        };
        if is_reported {
            ui::say(&format!("the command gets {source}"));
        }
        env
    }
}

/// `trace`: the caller's descriptor to which the trace is written. The command does not inherit it. If it is standard
/// output, the command writes to standard error, because the two outputs would mix.
pub fn command(config: &Config, user: &Identity, env: Env, trace: Option<RawFd>) -> Result<Option<Launch>> {
    let Target::Command(words) = &config.target else { return Ok(None) };
    let identity = (!config.as_root).then(|| user.clone());
    let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let first = words.first().context("no command given after --")?;
    launch::resolve(first, path.as_deref(), identity.as_ref())?;
    let keep_fds = config.keep_fds.iter().copied().filter(|fd| Some(*fd) != trace).collect();
    let stdout_to_stderr = trace == Some(libc::STDOUT_FILENO);
    let limits = identity::elevated().then(|| Limits::of_caller(user)).flatten();
    Ok(Some(Launch { command: words.clone(), identity, env, limits, keep_fds, stdout_to_stderr }))
}

pub fn attached(config: &Config, user: &Identity) -> Result<Vec<AttachedProcess>> {
    let Target::Pids(pids) = &config.target else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for pid in pids {
        let one = attach::check(*pid)?;
        if config.lossless && user.uid != 0 && proc::uids(*pid).is_ok_and(|uids| uids != [user.uid; 4]) {
            bail!(Usage(format!(
                "process {pid} ({}) is another user's, and --lossless pauses only your own processes: leave --lossless out, or call gpurec as root itself",
                one.comm
            )));
        }
        if let Some(note) = one.note().filter(|_| !config.quiet) {
            ui::say(&note.to_string());
        }
        all.push(one);
    }
    Ok(all)
}
