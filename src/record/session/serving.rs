//! Metrics of a recording. In: the open port. Out: the threads that serve. Not here: what they serve.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::{Session, THREAD};
use crate::clock::Reading;
use crate::serve::metrics;
use crate::ui;

impl Session<'_> {
    /// Starts the threads, and prints the address.
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
                let _ = voice.say(ui::clean_lines(&format!("gpurec: {sentence}\n")), 0);
            }
        };
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(start.realtime);
        Ok(Some(open.serve(start, say).context(THREAD)?))
    }
}
