//! Who is recorded, found out before anything is set up: the command with its environment, or
//! the processes that run. In: the configuration. Out: what to launch, what to attach to, or
//! why that cannot be. Nobody is started or stopped here.

use anyhow::{Context, Result};

use super::{Config, Target};
use crate::say;
use crate::target::attach::{self, Attached};
use crate::target::identity::{self, EnvSource, Identity};
use crate::target::launch::{self, Launch};
use crate::target::permit;
use crate::target::proc::Env;

pub fn environment(config: &Config, user: &Identity) -> Env {
    let mut env = if config.as_root {
        identity::own_environment()
    } else {
        let (env, source) = identity::user_environment(user);
        let told = match source {
            EnvSource::Own { .. } => !config.quiet,
            _ => config.verbose,
        };
        if told {
            say::say(&format!("the command gets {source}"));
        }
        env
    };
    for (name, value) in &config.environment {
        env.retain(|(have, _)| have != name);
        env.push((name.clone(), value.clone()));
    }
    env
}

pub fn command(config: &Config, user: &Identity, env: Env) -> Result<Option<Launch>> {
    let Target::Command(words) = &config.target else { return Ok(None) };
    let identity = (!config.as_root).then(|| user.clone());
    let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let first = words.first().context("no command given after --")?;
    let program = launch::resolve(first, path.as_deref(), identity.as_ref())?;
    if config.as_root {
        permit::as_root(user, &program, words)?;
    }
    let keep_fds = config.keep_fds.clone();
    Ok(Some(Launch { command: words.clone(), identity, env, cwd: None, keep_fds }))
}

pub fn attached(config: &Config) -> Result<Vec<Attached>> {
    let Target::Pids(pids) = &config.target else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for pid in pids {
        let one = attach::check(*pid)?;
        if let Some(note) = one.note().filter(|_| !config.quiet) {
            say::say(&note.to_string());
        }
        all.push(one);
    }
    Ok(all)
}
