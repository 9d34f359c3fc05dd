//! Where the trace is written. In: -o and the invoking user. Out: the file or descriptor, opened with the user's
//! rights; or the error message.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use super::Config;
use super::header::host_name;
use crate::output::name::{self, Letters};
use crate::output::series::Series;
use crate::output::{self, FdSources, Output};
use crate::process::environment;
use crate::process::identity::{self, Identity};
use crate::process::job::Job;
use crate::process::rights;
use crate::ui;
use gpurec_analysis::Usage;

/// The path that -o gives, with its letters expanded.
pub struct Place {
    path: Option<PathBuf>,
    start: SystemTime,
}

impl Place {
    /// Expands the letters by the caller's environment, not root's.
    pub fn of(config: &Config, user: &Identity) -> Result<Place> {
        let start = SystemTime::now();
        let host = host_name();
        let rank = || Job::within(&environment::user_environment(user).0).rank.map(|rank| rank.to_string());
        let letters = Letters { host: &host, start, rank: &rank };
        let expand = |path: &PathBuf| name::expand(path, &letters).map_err(Usage);
        let path = config.output.as_ref().map(expand).transpose()?;
        Ok(Place { path, start })
    }

    /// The caller's descriptor to which the trace is written, if -o names one.
    pub fn descriptor(&self) -> Option<i32> {
        self.path.as_deref().and_then(name::descriptor)
    }

    /// The dumps of the flight recorder.
    pub fn series(&self, user: &Identity) -> Result<Series> {
        if self.descriptor().is_some() {
            bail!(Usage(
                "--last writes each dump into a file of its own: give -o the name of a file; gpurec makes the names of the dumps from it"
                    .to_owned()
            ));
        }
        let open = || Series::open(self.path.as_deref(), self.start);
        Ok(rights::as_caller(user, open).with_context(|| no_rights(user))??)
    }

    /// None: no trace is written.
    pub fn open(&self, config: &Config, user: &Identity) -> Result<Option<Output>> {
        let has_other = config.summary_only || config.metrics.is_on() || config.top.is_some();
        if has_other && self.path.is_none() {
            return Ok(None);
        }
        let caller = identity::elevated().then(identity::calling_process).flatten();
        let from = FdSources { inherited: &config.keep_fds, caller };
        let open = || output::open(self.path.as_deref(), self.start, from);
        let output = rights::as_caller(user, open).with_context(|| no_rights(user))??;
        if let Some(warning) = output.warning.as_ref().filter(|_| !config.quiet) {
            ui::say(warning);
        }
        Ok(Some(output))
    }
}

fn no_rights(user: &Identity) -> String {
    format!("cannot drop to the privileges of {} to open the trace; run gpurec from a root shell", user.user)
}
