//! What threads do around their calls: waiting for one call at a time, and
//! errors that nobody can have seen.

use super::figures::Finding;
use super::tally::Tally;
use crate::room::short;
use crate::trace::hash::Map;

/// How many threads, pairs of functions and processes are watched.
const MOST: usize = 65_536;

const LONGEST_ERROR: usize = 256;

/// A pair of an asynchronous call and a wait for it is told from so many on,
/// if the waits took at least so long.
const PAIRS: u64 = 20;
const WAITED_NS: u64 = 1_000_000;

#[derive(Default)]
pub struct Habits {
    threads: Map<(u32, u32), Habit>,
    /// By the two functions: how often, and how long the waits took.
    pairs: Map<(usize, usize), (u64, u64)>,
    /// Launches of each process since anything could report their errors.
    unsynced: Map<u32, u64>,
    /// Of processes that ended well.
    never_synced: u64,
}

#[derive(Default)]
struct Habit {
    /// Asynchronous calls since the last wait, and the last of them.
    asyncs: u64,
    last: Option<usize>,
    /// Failed launches whose error was not asked for yet.
    unseen: u64,
    error: Option<String>,
}

/// A call at the outermost level that has returned.
pub struct Returned<'a> {
    pub pid: u32,
    pub tid: u32,
    pub function: usize,
    pub tally: &'a Tally,
    pub error: Option<&'a str>,
    pub ns: u64,
}

impl Habits {
    pub fn add(&mut self, call: &Returned) {
        let thread = (call.pid, call.tid);
        let marks = call.tally.marks;
        if call.error.is_none() && marks.reports {
            self.unsynced.remove(&call.pid);
        }
        if self.threads.len() >= MOST && !self.threads.contains_key(&thread) {
            return;
        }
        let habit = self.threads.entry(thread).or_default();
        if marks.asks_error {
            habit.unseen = 0;
        } else if marks.hides_error
            && let Some(error) = call.error
        {
            habit.unseen += 1;
            habit.error.get_or_insert_with(|| short(error, LONGEST_ERROR));
        }
        if marks.waits {
            if habit.asyncs == 1
                && let Some(last) = habit.last
                && (self.pairs.len() < MOST || self.pairs.contains_key(&(last, call.function)))
            {
                let pair = self.pairs.entry((last, call.function)).or_default();
                pair.0 += 1;
                pair.1 = pair.1.saturating_add(call.ns);
            }
            habit.asyncs = 0;
        } else if marks.is_async {
            habit.asyncs += 1;
            habit.last = Some(call.function);
        }
    }

    pub fn launched(&mut self, pid: u32) {
        if self.unsynced.len() < MOST || self.unsynced.contains_key(&pid) {
            *self.unsynced.entry(pid).or_default() += 1;
        }
    }

    pub fn ended(&mut self, pid: u32, well: bool) {
        let launches = self.unsynced.remove(&pid).unwrap_or(0);
        if well {
            self.never_synced += launches;
        }
    }

    pub fn findings(&self, functions: &[Tally]) -> Vec<Finding> {
        let name = |index: usize| functions.get(index).map_or("?", |f| &f.name);
        let mut pairs: Vec<_> =
            self.pairs.iter().filter(|(_, (count, ns))| *count >= PAIRS && *ns >= WAITED_NS).collect();
        pairs.sort_by(|a, b| (b.1.1, a.0).cmp(&(a.1.1, b.0)));
        let waits = pairs.into_iter().take(3).map(|((call, wait), (count, ns))| Finding {
            what: format!("{} waits for a single {}", name(*wait), name(*call)),
            times: *count,
            cost_ns: Some(*ns),
            advice: "wait once for many calls; order them with streams and events".to_owned(),
        });
        waits.chain(self.unseen()).chain(self.unsynced()).collect()
    }

    fn unseen(&self) -> Option<Finding> {
        let unseen: u64 = self.threads.values().map(|habit| habit.unseen).sum();
        let mut errors: Vec<&str> =
            self.threads.values().filter(|h| h.unseen > 0).filter_map(|h| h.error.as_deref()).collect();
        errors.sort();
        (unseen > 0).then(|| Finding {
            what: format!("launches failed and nobody asked ({})", errors.first().unwrap_or(&"?")),
            times: unseen,
            cost_ns: None,
            advice: "call cudaGetLastError after each <<<>>> launch".to_owned(),
        })
    }

    fn unsynced(&self) -> Option<Finding> {
        (self.never_synced > 0).then(|| Finding {
            what: "launches before an exit without any call that would report their errors".to_owned(),
            times: self.never_synced,
            cost_ns: None,
            advice: "call cudaDeviceSynchronize before the end, and look at what it returns".to_owned(),
        })
    }
}
