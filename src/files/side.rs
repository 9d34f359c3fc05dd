//! Asks for optional details of a trace line, such as a name or a rank, from a thread that must not wait. In: a request
//! and a time limit. Out: an answer within that time, or None. While one request is unanswered, no other is sent.

use std::time::{Duration, Instant};

use super::pool::{found, readable};
use super::process::{Files, Worker};
use super::{Answer, Ask, Found};

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
        if self.open.is_some() {
            // This answer is too late for the caller that asked.
            self.look();
        }
        if let Some(since) = self.open {
            if since.elapsed() > GONE {
                self.end();
            }
            return None;
        }
        if self.worker.is_none() {
            self.worker = self.files.as_ref()?.worker().ok();
        }
        if self.worker.as_ref()?.ask(ask).is_err() {
            self.end();
            return None;
        }
        let since = Instant::now();
        self.open = Some(since);
        loop {
            if let Some(found) = self.look() {
                return Some(found);
            }
            let left = patience.saturating_sub(since.elapsed());
            if self.open.is_none() || left.is_zero() {
                return None;
            }
            readable(self.worker.as_ref()?.socket(), left);
        }
    }

    fn look(&mut self) -> Option<Found> {
        match self.worker.as_mut()?.answer() {
            Ok(None | Some((Answer::Opening(_), _))) => None,
            Ok(Some((answer, fd))) => {
                self.open = None;
                if matches!(answer, Answer::Refused(_)) {
                    self.worker = None;
                }
                found(answer, fd)
            }
            Err(_) => {
                self.end();
                None
            }
        }
    }

    fn end(&mut self) {
        self.open = None;
        if let Some(worker) = self.worker.take() {
            worker.end();
        }
    }
}
