//! Asks for optional details of a trace line, such as a name or a rank, from a thread that must not wait for long. In: a
//! request, and how long to wait for its answer now. Out: the answer, that it may still come, or that none will. While
//! one request is unanswered, no other is sent.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::process::{Files, Worker};
use super::{Ask, Found};

/// After this time the worker is ended.
const GONE: Duration = Duration::from_secs(2);
/// The longest wait beyond a request's patience.
const LONGEST: Duration = Duration::from_secs(1);

pub struct Side {
    files: Option<Files>,
    worker: Option<Worker>,
    /// When the unanswered request was sent.
    open: Option<Instant>,
    /// What remains of the time that may be waited beyond the patience of all requests.
    slack: Duration,
}

impl Side {
    /// Without files, every answer is None.
    pub fn new(files: Option<Files>) -> Side {
        Side { files, worker: None, open: None, slack: Duration::ZERO }
    }

    /// Waits longer for some answers, as long as these waits together do not exceed `slack`: on a machine that is busy,
    /// the first answers come late.
    pub fn with_slack(self, slack: Duration) -> Side {
        Side { slack, ..self }
    }

    /// The answer, if it comes in time.
    pub fn ask(&mut self, ask: &Ask, patience: Duration) -> Option<Found> {
        let since = Instant::now();
        let longest = patience + self.slack.min(LONGEST);
        // The answer to an earlier request may be about to come.
        let sent = self.send(ask) || self.answer(longest).is_ready() && self.send(ask);
        let found = if sent { self.answer(longest) } else { Poll::Pending };
        self.slack = self.slack.saturating_sub(since.elapsed().saturating_sub(patience));
        match found {
            Poll::Ready(found) => found,
            Poll::Pending => None,
        }
    }

    /// Sends a request. False: the answer to an earlier one, which is too late for its caller, has not come, or there is
    /// no worker.
    pub fn send(&mut self, ask: &Ask) -> bool {
        if self.answer(Duration::ZERO).is_pending() {
            return false;
        }
        if self.worker.is_none() {
            self.worker = self.files.as_ref().and_then(|files| files.worker().ok());
        }
        let Some(worker) = &mut self.worker else { return false };
        if worker.ask(ask).is_err() {
            self.end();
            return false;
        }
        self.open = Some(Instant::now());
        true
    }

    /// The answer to the last request. None: none will come.
    pub fn answer(&mut self, patience: Duration) -> Poll<Option<Found>> {
        let (Some(worker), Some(since)) = (&mut self.worker, self.open) else { return Poll::Ready(None) };
        match worker.answer_within(patience) {
            Ok(None) if since.elapsed() <= GONE => return Poll::Pending,
            Ok(Some(Found::Refused(_))) => (self.worker, self.open) = (None, None),
            Ok(Some(found)) => {
                self.open = None;
                return Poll::Ready(Some(found));
            }
            Ok(None) | Err(_) => self.end(),
        }
        Poll::Ready(None)
    }

    /// Waits until an answer comes or `patience` is over.
    pub fn wait(&self, patience: Duration) {
        match self.worker.as_ref().filter(|_| self.open.is_some()) {
            Some(worker) => worker.wait(patience),
            None => std::thread::sleep(patience),
        }
    }

    fn end(&mut self) {
        self.open = None;
        if let Some(worker) = self.worker.take() {
            worker.end();
        }
    }
}
