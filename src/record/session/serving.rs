//! Metrics and the view of a recording. In: the open port, the terminal. Out: the threads that serve them. Not here:
//! what they show.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::{Session, THREAD, header};
use crate::clock::Reading;
use crate::process::terminal::Terminal;
use crate::serve::metrics;
use crate::serve::state::Teller;
use crate::serve::top::{Place, View};
use crate::ui;

impl Session<'_> {
    /// Starts the view of `gpurec top`.
    pub(super) fn show(&mut self, terminal: Option<Arc<Terminal>>) -> Result<Option<Teller>> {
        let Some(config) = self.config.top else { return Ok(None) };
        let place = Place { host: header::host_name(), has_stacks: self.config.stacks.is_some() };
        let (view, teller) = View::start(config, place, terminal).context(THREAD)?;
        self.view = Some(view);
        Ok(Some(teller))
    }

    /// Starts the threads that serve metrics, and prints the address.
    pub(super) fn serve(&mut self, open: metrics::Open, start: &Reading) -> Result<Option<metrics::Serving>> {
        if !self.config.metrics.is_on() {
            return Ok(None);
        }
        if let Some(url) = open.url().filter(|_| !self.config.quiet) {
            self.screen.line(&format!("metrics at {url}"));
        }
        let (voice, quiet) = (self.screen.voice(), self.config.quiet);
        let say = move |sentence: &str| {
            if !quiet {
                let _ = voice.say(format!("gpurec: {}\n", ui::clean(sentence)), 0);
            }
        };
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(start.realtime);
        Ok(Some(open.serve(start, say).context(THREAD)?))
    }
}
