//! Threads that help the worker while much is to be done. In: jobs. Out: their effects. The threads start with the first
//! job, and sleep while there is none. The worker never waits for one of them to become free: it does the job itself.

use std::io;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::libc;

pub type Job = Box<dyn FnOnce() + Send>;

/// The most threads of a recorder that turn records into lines: the worker, and its helpers. More of them wait for the
/// worker most of the time.
const MOST: usize = 8;

pub struct Helpers {
    count: usize,
    /// The queue of jobs, and its other end.
    jobs: Option<(Sender<Job>, Receiver<Job>)>,
}

/// The number of threads for the CPUs that this process may use.
pub fn fitting() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

impl Helpers {
    /// `threads`: with the worker.
    pub fn new(threads: usize) -> Helpers {
        Helpers { count: threads.saturating_sub(1), jobs: None }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Has a helper do the job, or does it here if all of them are busy.
    pub fn run(&mut self, job: Job) {
        if self.jobs.is_none() && self.count > 0 {
            self.jobs = started(self.count).ok();
            // Without them, the worker does everything.
            self.count = self.jobs.as_ref().map_or(0, |_| self.count);
        }
        let left = match &self.jobs {
            Some((jobs, _)) => jobs.try_send(job).err().map(crossbeam_channel::TrySendError::into_inner),
            None => Some(job),
        };
        if let Some(job) = left {
            job();
        }
    }

    /// Waits for what a job sends, and does other jobs meanwhile. None: a job panicked.
    pub fn wait<T>(&self, done: &Receiver<T>) -> Option<T> {
        loop {
            if let Ok(it) = done.try_recv() {
                return Some(it);
            }
            match self.jobs.as_ref().and_then(|(_, work)| work.try_recv().ok()) {
                Some(job) => job(),
                None => return done.recv().ok(),
            }
        }
    }
}

fn started(count: usize) -> io::Result<(Sender<Job>, Receiver<Job>)> {
    // The more helpers there are, the less often the worker should do a job itself: it has work that only it can do.
    let (jobs, work) = bounded(count * (count + 1));
    for _ in 0..count {
        let work = work.clone();
        thread::Builder::new().name("gpurec-help".into()).spawn(move || help(&work))?;
    }
    Ok((jobs, work))
}

fn help(work: &Receiver<Job>) {
    // The worker, which starts them, goes before other threads. Helpers do not: formatting must not slow the programs.
    // SAFETY: plain integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    for job in work {
        job();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_job_is_done_once() {
        for threads in [0, 1, 2, 6] {
            let done = Arc::new(AtomicUsize::new(0));
            let mut helpers = Helpers::new(threads);
            for _ in 0..1000 {
                let done = done.clone();
                helpers.run(Box::new(move || _ = done.fetch_add(1, Ordering::SeqCst)));
            }
            drop(helpers);
            let began = std::time::Instant::now();
            while done.load(Ordering::SeqCst) < 1000 {
                assert!(began.elapsed().as_secs() < 60, "{threads} threads: a job was dropped");
                thread::yield_now();
            }
        }
    }
}
