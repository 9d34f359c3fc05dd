//! Asks for optional details of a trace line, such as a name or a rank, from a thread that must not wait. In: a request
//! and a time limit. Out: an answer within that time, or None. While one request is unanswered, no other is sent.

use std::time::{Duration, Instant};

use super::process::{Files, Worker};
use super::{Ask, Found};

/// After this time the worker is ended.
const GONE: Duration = Duration::from_secs(2);

pub struct Side {
    files: Option<Files>,
    worker: Option<Worker>,
    /// When the unanswered request was sent.
    open: Option<Instant>,
}

impl Side {
    /// Without files, every answer is None.
    pub fn new(files: Option<Files>) -> Side {
        Side { files, worker: None, open: None }
    }

    pub fn ask(&mut self, ask: &Ask, patience: Duration) -> Option<Found> {
        if let Some(since) = self.open {
            // This answer is too late for the caller that asked.
            self.answer(Duration::ZERO);
            if self.open.is_some() {
                if since.elapsed() > GONE {
                    self.end();
                }
                return None;
            }
        }
        if self.worker.is_none() {
            self.worker = self.files.as_ref()?.worker().ok();
        }
        if self.worker.as_mut()?.ask(ask).is_err() {
            self.end();
            return None;
        }
        self.open = Some(Instant::now());
        self.answer(patience)
    }

    fn answer(&mut self, patience: Duration) -> Option<Found> {
        let answer = self.worker.as_mut()?.answer_within(patience);
        match &answer {
            Ok(None) => {}
            Ok(Some(Found::Refused(_))) => (self.worker, self.open) = (None, None),
            Ok(Some(_)) => self.open = None,
            Err(_) => self.end(),
        }
        answer.ok()?
    }

    fn end(&mut self) {
        self.open = None;
        if let Some(worker) = self.worker.take() {
            worker.end();
        }
    }
}
