//! Lines under load: the worker only drafts them, in order; helpers count and format them, batch by batch, and the writer
//! gets the texts in the order of the batches. In: drafts. Out: texts to the writer, lines to the summary.
//!
//! One thread at a time has the summary, and adds the batches to it in order. The worker takes it back when it needs it,
//! after what is not counted yet. While few lines come, nothing here is used: the worker writes them itself.
//!
//! (Compact records could be spooled instead, and made into lines after the recording. The trace would not be readable
//! meanwhile, and would be written twice; and what limits it would be the same afterwards: order and pairing.)

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::Lines;
use super::batch::{Batch, Place, Table};
use super::facts::Facts;
use crate::pipeline::helpers::Helpers;
use gpurec_analysis::Summary;

/// With so many records in a round of the worker, their lines are shared; with so few no longer.
const MANY: usize = 2048;
const FEW: usize = 512;
/// The most batches that wait to be counted.
const UNCOUNTED: usize = 64;
/// The most batches kept for reuse.
const KEPT: usize = 16;
/// After a line that only the worker can count, it counts this number of batches itself: there may be many such lines.
const AT_HOME: u32 = 64;

pub(super) struct Sharing {
    helpers: Helpers,
    pub(super) is_on: bool,
    pub(super) batch: Batch,
    facts: Table,
    /// The number of batches that the worker counts itself.
    at_home: u32,
    away: Arc<Away>,
    used: (Sender<Batch>, Receiver<Batch>),
}

/// The summary, while a helper has it, and what is to be added to it.
struct Away {
    summary: Mutex<Option<Box<Summary>>>,
    uncounted: (Sender<Arc<Batch>>, Receiver<Arc<Batch>>),
    used: Sender<Batch>,
}

impl Away {
    fn new(used: Sender<Batch>) -> Away {
        Away { summary: Mutex::default(), uncounted: bounded(UNCOUNTED), used }
    }

    /// Counts what there is, unless another thread does.
    fn count(&self) {
        loop {
            match self.summary.try_lock() {
                Ok(mut summary) => self.add_to(&mut summary),
                Err(_) => return,
            }
            // A batch that came just before the lock was given back has no other thread that counts it.
            if self.uncounted.1.is_empty() {
                return;
            }
        }
    }

    fn add_to(&self, summary: &mut Option<Box<Summary>>) {
        let Some(summary) = summary else { return };
        while let Ok(batch) = self.uncounted.1.try_recv() {
            batch.count_in(summary);
            reuse(batch, &self.used);
        }
    }

    /// Waits for the summary, which has everything then.
    fn back(&self) -> Box<Summary> {
        let mut summary = self.locked();
        self.add_to(&mut summary);
        summary.take().unwrap_or_default()
    }

    fn give(&self, summary: Box<Summary>) {
        *self.locked() = Some(summary);
    }

    /// A summary that a panic left behind is wrong.
    fn locked(&self) -> MutexGuard<'_, Option<Box<Summary>>> {
        self.summary.lock().unwrap_or_else(|_| panic!("a thread that helps the worker panicked"))
    }
}

/// The last thread that had the batch keeps its memory for another one.
fn reuse(batch: Arc<Batch>, used: &Sender<Batch>) {
    if let Some(batch) = Arc::into_inner(batch) {
        _ = used.try_send(batch);
    }
}

impl Sharing {
    pub(super) fn new(threads: usize) -> Sharing {
        let used = bounded(KEPT);
        let away = Arc::new(Away::new(used.0.clone()));
        let (helpers, facts) = (Helpers::new(threads), Table::default());
        Sharing { helpers, is_on: false, batch: Batch::default(), facts, at_home: 0, away, used }
    }

    /// New probes, for the drafts that follow: the batch is empty.
    pub(super) fn learn(&mut self, probes: &[Arc<Facts>]) {
        self.facts = Arc::new(probes.to_vec());
        self.batch.learn(self.facts.clone());
    }

    /// Ends the batch, and begins another.
    fn take(&mut self) -> Arc<Batch> {
        let mut next = self.used.1.try_recv().unwrap_or_default();
        next.begin(self.facts.clone());
        Arc::new(std::mem::replace(&mut self.batch, next))
    }

    fn count(&mut self, batch: &Arc<Batch>) {
        let mut batch = batch.clone();
        while let Err(TrySendError::Full(back)) = self.away.uncounted.0.try_send(batch) {
            batch = back;
            self.away.add_to(&mut self.away.locked());
        }
        let away = self.away.clone();
        self.helpers.run(Box::new(move || away.count()));
    }
}

impl Lines {
    /// Threads that turn records into lines: this one and helpers.
    pub fn with_threads(self, threads: usize) -> Lines {
        Lines { sharing: Sharing::new(threads), ..self }
    }

    /// Lines are shared from now on if many records came, and no longer if few came.
    pub fn share(&mut self, records: usize) {
        if self.sharing.is_on && records <= FEW {
            self.pass_on();
            self.sharing.is_on = false;
        } else if !self.sharing.is_on && records >= MANY && self.can_share() {
            if let Some(writer) = &mut self.writer {
                self.failed = writer.drained().err();
            }
            self.sharing.is_on = true;
            let facts = self.sharing.facts.clone();
            self.sharing.batch.begin(facts);
        }
    }

    /// None while few records come.
    pub fn helpers(&mut self) -> Option<&mut Helpers> {
        self.sharing.is_on.then_some(&mut self.sharing.helpers)
    }

    /// The rows of --live and the alarms of the flight recorder need each line at once.
    fn can_share(&self) -> bool {
        self.sharing.helpers.count() > 0
            && self.writer.is_some()
            && self.write_calls
            && self.live.is_none()
            && self.alarms.is_none()
            && self.failed.is_none()
    }

    /// The summary of all lines so far.
    pub fn summary(&mut self) -> &mut Summary {
        let sharing = &mut self.sharing;
        let summary = self.summary.get_or_insert_with(|| sharing.away.back());
        if !sharing.batch.is_counted() {
            sharing.batch.count(summary);
        }
        summary
    }

    /// After a draft was added.
    pub(super) fn drafted(&mut self) {
        if self.sharing.at_home > 0 || self.summary.as_ref().is_some_and(|summary| summary.is_measured()) {
            self.summary();
            self.identify();
        }
        if self.sharing.batch.is_full() {
            self.pass_on();
        }
    }

    /// After a line that the worker counts itself.
    pub(super) fn counts_itself(&mut self) {
        self.sharing.at_home = AT_HOME;
    }

    /// Has the batch counted and formatted.
    pub(super) fn pass_on(&mut self) {
        if self.sharing.batch.is_empty() {
            return;
        }
        self.sharing.at_home = self.sharing.at_home.saturating_sub(1);
        let batch = self.sharing.take();
        if !batch.is_counted() {
            if let Some(summary) = self.summary.take() {
                self.sharing.away.give(summary);
            }
            self.sharing.count(&batch);
        }
        let (text, slot) = bounded(1);
        let Some(writer) = &mut self.writer else { return };
        let handoff = match writer.drained() {
            Ok(handoff) => handoff,
            Err(error) => return self.fails(error),
        };
        if let Err(error) = handoff.later(slot) {
            return self.fails(error);
        }
        let (empty, used) = (handoff.empty().unwrap_or_default(), self.sharing.used.0.clone());
        self.sharing.helpers.run(Box::new(move || {
            let mut out = empty;
            let result = batch.format(&mut out);
            reuse(batch, &used);
            _ = text.send(result.map(|()| out));
        }));
    }

    fn fails(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
    }

    /// The id and the time of the next line of a call.
    pub(super) fn place(&mut self, ts: u64) -> Place {
        let id = self.next_id;
        self.next_id += 1;
        self.written_ids += u64::from(self.failed.is_none());
        Place { id, ts_ns: self.now_is(ts) }
    }
}
