//! Asks about files without waiting for any of them. In: requests, each with its job. Out: the results, in the order in
//! which they arrive; after two seconds an event that the answer is late, and finally one that it is gone. One worker
//! serves all requests as long as it answers at once; otherwise more are started.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::process::{Files, Worker};
use super::{Ask, Found};
use crate::process::fds;

/// How long a process is kept stopped for its file.
pub const LATE: Duration = Duration::from_secs(2);
/// How long the pool waits for a late answer, because a network can be slow. Then it ends the worker.
const GONE: Duration = Duration::from_secs(30);
/// How long the recorder waits for the answer to a new request. Nearly all are answered by then.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The most workers that are busy at a time.
const MOST: usize = 8;

/// Why no answer arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its file system did not answer.
    Silent,
    /// The worker ended.
    Ended,
}

#[derive(Debug)]
pub enum Event<J> {
    /// Not answered in time; a second event follows with the result. Contains the path, if it is known.
    Late(J, Option<PathBuf>),
    /// `late`: a Late event came before.
    Found {
        job: J,
        late: bool,
        found: Found,
    },
    Gone {
        job: J,
        late: bool,
        path: Option<PathBuf>,
        why: Gone,
    },
}

pub struct Pool<J> {
    files: Files,
    idle: Option<Worker>,
    busy: Vec<BusyWorker<J>>,
    waiting: VecDeque<Request<J>>,
    /// Requests for which no worker could be started.
    failed: Vec<(Request<J>, io::Error)>,
}

struct Request<J> {
    ask: Ask,
    job: J,
    since: Instant,
    late: bool,
    /// A worker was already lost on it.
    again: bool,
}

struct BusyWorker<J> {
    worker: Worker,
    request: Request<J>,
}

impl<J: Clone> Pool<J> {
    pub fn new(files: Files) -> Pool<J> {
        Pool { files, idle: None, busy: Vec::new(), waiting: VecDeque::new(), failed: Vec::new() }
    }

    /// Sends a request and waits for a moment. Then `events` may return the answer.
    pub fn ask(&mut self, ask: Ask, job: J) {
        let since = Instant::now();
        self.waiting.push_back(Request { ask, job, since, late: false, again: false });
        self.hand_out();
    }

    /// Waits for as long as the newest request may still be answered at once. False: that time is over.
    pub fn wait(&self) -> bool {
        let Some(newest) = self.busy.iter().max_by_key(|busy| busy.request.since) else { return false };
        let left = AT_ONCE.saturating_sub(newest.request.since.elapsed());
        newest.worker.wait(left);
        !left.is_zero()
    }

    /// Readable when there may be an event.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.busy.iter().map(|busy| busy.worker.fd())
    }

    /// The jobs that are pending and not late.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.requests().filter(|request| !request.late).map(|request| &request.job)
    }

    fn requests(&self) -> impl Iterator<Item = &Request<J>> {
        self.busy.iter().map(|busy| &busy.request).chain(&self.waiting)
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Event<J>> {
        let mut events = Vec::new();
        for mut busy in std::mem::take(&mut self.busy) {
            match busy.worker.answer() {
                Ok(None) => self.busy.push(busy),
                Ok(Some(found)) => {
                    let Request { job, late, .. } = busy.request;
                    self.rest(busy.worker, &found);
                    events.push(Event::Found { job, late, found });
                }
                // A fork can fail temporarily, and the worker may have died of another file.
                Err(_) if !busy.request.again => {
                    self.waiting.push_front(Request { again: true, ..busy.request });
                }
                Err(_) => events.push(busy.gone(Gone::Ended)),
            }
        }
        self.give_up(&mut events);
        self.hand_out();
        events.extend(self.failed.drain(..).map(|(request, error)| {
            let Request { job, late, .. } = request;
            match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => {
                    Event::Found { job, late, found: Found::Refused(fds::too_few().to_string()) }
                }
                _ => Event::Gone { job, late, path: None, why: Gone::Ended },
            }
        }));
        events
    }

    /// Abandons all pending requests and returns their jobs.
    pub fn abandon(&mut self) -> Vec<(J, bool)> {
        let busy = self.busy.drain(..).map(|busy| {
            busy.worker.end();
            busy.request
        });
        let failed = self.failed.drain(..).map(|(request, _)| request);
        let rest = self.waiting.drain(..).chain(failed);
        busy.chain(rest).map(|request| (request.job, request.late)).collect()
    }

    /// Sends one request and waits for its answer: None if it does not arrive in time.
    pub fn ask_now(&mut self, ask: &Ask, patience: Duration) -> Option<Found> {
        let mut worker = self.worker().ok()?;
        worker.ask(ask).ok()?;
        match worker.answer_within(patience) {
            Ok(Some(found)) => {
                self.rest(worker, &found);
                Some(found)
            }
            _ => {
                worker.end();
                None
            }
        }
    }

    fn worker(&mut self) -> io::Result<Worker> {
        self.idle.take().map_or_else(|| self.files.worker(), Ok)
    }

    /// Keeps a worker for another request, if there is one.
    fn rest(&mut self, worker: Worker, found: &Found) {
        if !matches!(found, Found::Refused(_)) {
            self.idle = Some(worker);
        }
    }

    fn give_up(&mut self, events: &mut Vec<Event<J>>) {
        let mut wanted = if self.busy.len() >= MOST { self.waiting.len() } else { 0 };
        for mut busy in std::mem::take(&mut self.busy) {
            let age = busy.request.since.elapsed();
            if age >= LATE && !busy.request.late {
                busy.request.late = true;
                events.push(Event::Late(busy.request.job.clone(), busy.worker.opening.clone()));
            }
            // Another request needs its worker, or its time is over.
            if age >= GONE || busy.request.late && wanted > 0 {
                wanted = wanted.saturating_sub(1);
                events.push(busy.gone(Gone::Silent));
            } else {
                self.busy.push(busy);
            }
        }
        for request in self.waiting.iter_mut().filter(|r| !r.late && r.since.elapsed() >= LATE) {
            request.late = true;
            events.push(Event::Late(request.job.clone(), None));
        }
    }

    fn hand_out(&mut self) {
        while !self.waiting.is_empty() {
            // Do not start a worker while another may finish in a moment.
            let soon = self.busy.iter().any(|busy| busy.request.since.elapsed() < AT_ONCE);
            let spare = self.idle.is_some() || self.busy.is_empty() || !soon && self.busy.len() < MOST;
            if !spare {
                return;
            }
            let Some(request) = self.waiting.pop_front() else { return };
            let asked = self.worker().and_then(|mut worker| worker.ask(&request.ask).map(|()| worker));
            match asked {
                Ok(worker) => self.busy.push(BusyWorker { worker, request }),
                // An idle worker that has ended does not count as a failure of the request.
                Err(_) if !request.again => self.waiting.push_front(Request { again: true, ..request }),
                Err(error) => self.failed.push((request, error)),
            }
        }
    }
}

impl<J> BusyWorker<J> {
    fn gone(self, why: Gone) -> Event<J> {
        let path = self.worker.opening.clone();
        self.worker.end();
        let Request { job, late, .. } = self.request;
        Event::Gone { job, late, path, why }
    }
}
