//! Decides what to give up and what to take back. In: the hits of each thread at each function, in an interval. Out:
//! decisions. Pure: no clock, no map, no hook; the same facts give the same decisions.
//!
//! A function is recorded or given up; so are the stacks of all calls, which count as a function here. Among the functions that a thread over its budget calls, the class that tells
//! least goes first, and within it the function called most. A class is given up entirely, where that helps, before the
//! next is touched. When the budget has room, one function at a time is taken back on trial, the most telling first:
//! how often a given-up function is called is not known. A trial that fails doubles the wait before the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::rank::Class;
use gpurec_trace::{Level, Why};

/// The interval between decisions. A decision comes earlier if a thread has spent the budget of a whole interval.
pub const INTERVAL_NS: u64 = 100_000_000;

/// Parts of the budget: giving up aims at AIM, and a function may come back only if the cost stays below ROOM. The
/// real cost is above the calibrated one, which was measured with a warm cache and without reading memory.
const AIM: f64 = 0.6;
const ROOM: f64 = 0.5;

/// A function that saves less than this part of the aim is not worth giving up while others save more.
const WORTH: f64 = 1.0 / 50.0;

/// How long a function stays given up the first time, and how often that time can double.
const HOLD_NS: u64 = 1_000_000_000;
const DOUBLINGS: u32 = 6;
/// A function that was recorded for this long starts over with the shortest wait.
const SETTLED_NS: u64 = 60_000_000_000;

/// Recorded hits of one thread at one function in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits {
    pub pid: u32,
    pub tid: u32,
    pub function: u32,
    pub count: u64,
    /// What they cost, if it was measured: else each costs the same.
    pub ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub function: u32,
    /// Unhooked: give it up. Recorded: take it back.
    pub to: Level,
    /// Facts about the thread that paid most. None if no thread paid.
    pub why: Option<Why>,
}

pub struct Policy {
    /// As a fraction of 1.
    budget: f64,
    class: fn(&str) -> Class,
    functions: HashMap<u32, Function>,
}

struct Function {
    class: Class,
    /// The cost of a hit for the thread.
    ns: f64,
    given_up: bool,
    /// The time of the last change.
    since_ns: u64,
    /// Number of times it was given up.
    times: u32,
}

/// A thread's hits, and what they cost the thread.
struct Thread {
    pid: u32,
    tid: u32,
    hits: Vec<Cost>,
    /// Cost as a fraction of the thread's time.
    share: f64,
}

#[derive(Clone, Copy)]
struct Cost {
    function: u32,
    hits: u64,
    ns: f64,
}

impl Policy {
    pub fn new(percent: f64, class: fn(&str) -> Class) -> Policy {
        Policy { budget: percent / 100.0, class, functions: HashMap::new() }
    }

    pub fn knows(&self, function: u32) -> bool {
        self.functions.contains_key(&function)
    }

    /// Adds a function that is recorded, with the cost of a hit.
    pub fn add(&mut self, function: u32, name: &str, ns: f64) {
        let class = (self.class)(name);
        self.functions.insert(function, Function { class, ns, given_up: false, since_ns: 0, times: 0 });
    }

    /// The functions that are given up, in a fixed order.
    pub fn given_up(&self) -> Vec<u32> {
        let given_up = self.functions.iter().filter(|(_, function)| function.given_up);
        let mut all: Vec<u32> = given_up.map(|(id, _)| *id).collect();
        all.sort_unstable();
        all
    }

    /// True if it is time to decide: after an interval, or as soon as a thread has spent the budget of one.
    pub fn is_due(&self, elapsed_ns: u64, hits: &[Hits]) -> bool {
        let threads = self.threads(INTERVAL_NS, hits);
        elapsed_ns >= INTERVAL_NS || threads.first().is_some_and(|worst| worst.share >= self.budget)
    }

    /// True if nothing is given up, and no thread is near its budget.
    pub fn is_calm(&self, elapsed_ns: u64, hits: &[Hits]) -> bool {
        let is_small = |worst: &Thread| worst.share <= self.budget * AIM;
        self.functions.values().all(|function| !function.given_up)
            && self.threads(elapsed_ns, hits).first().is_none_or(is_small)
    }

    /// What to do now. A decision takes effect only when `done` reports it.
    pub fn decide(&self, now_ns: u64, elapsed_ns: u64, hits: &[Hits]) -> Vec<Decision> {
        let threads = self.threads(elapsed_ns, hits);
        match threads.first() {
            Some(worst) if worst.share > self.budget => self.give_up(elapsed_ns, &threads),
            worst => self.take_back(now_ns, elapsed_ns, worst).into_iter().collect(),
        }
    }

    pub fn done(&mut self, now_ns: u64, decision: &Decision) {
        let Some(function) = self.functions.get_mut(&decision.function) else { return };
        function.given_up = decision.to == Level::Unhooked;
        if function.given_up {
            let settled = now_ns.saturating_sub(function.since_ns) >= SETTLED_NS;
            function.times = if settled { 1 } else { function.times.saturating_add(1) };
        }
        function.since_ns = now_ns;
    }

    /// The cost in nanoseconds. An unknown function costs 0: the policy cannot give it up.
    fn cost(&self, hits: &Hits) -> f64 {
        let function = self.functions.get(&hits.function);
        function.map_or(0.0, |function| hits.ns.map_or(hits.count as f64 * function.ns, |ns| ns as f64))
    }

    /// The threads with hits, the highest cost first.
    fn threads(&self, elapsed_ns: u64, hits: &[Hits]) -> Vec<Thread> {
        let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
        for hit in hits.iter().filter(|hit| hit.count > 0) {
            let (pid, tid) = (hit.pid, hit.tid);
            let thread = threads.entry(tid).or_insert(Thread { pid, tid, hits: Vec::new(), share: 0.0 });
            let cost = Cost { function: hit.function, hits: hit.count, ns: self.cost(hit) };
            thread.hits.push(cost);
            thread.share += cost.ns / elapsed_ns.max(1) as f64;
        }
        let mut threads: Vec<Thread> = threads.into_values().collect();
        threads.sort_by(|a, b| b.share.total_cmp(&a.share));
        threads
    }

    fn give_up(&self, elapsed_ns: u64, threads: &[Thread]) -> Vec<Decision> {
        let mut planned = Vec::new();
        for thread in threads.iter().filter(|thread| thread.share > self.budget) {
            self.relieve(elapsed_ns, thread, &mut planned);
        }
        planned
    }

    /// Plans to give up functions until the thread is well within its budget.
    fn relieve(&self, elapsed_ns: u64, thread: &Thread, planned: &mut Vec<Decision>) {
        let aim = self.budget * AIM * elapsed_ns as f64;
        // Hits of a function that is given up are from before that.
        let kept = |cost: &&Cost| {
            let known = self.functions.get(&cost.function).is_some_and(|known| !known.given_up);
            known && planned.iter().all(|decision| decision.function != cost.function)
        };
        let mut order: Vec<Cost> = thread.hits.iter().filter(kept).copied().collect();
        order.sort_by_key(|Cost { function, hits, .. }| {
            (self.functions.get(function).map(|known| known.class), Reverse(*hits), *function)
        });
        let mut cost: f64 = order.iter().map(|cost| cost.ns).sum();
        for worth in [aim * WORTH, 0.0] {
            order.retain(|Cost { function, ns: saved, .. }| {
                if cost <= aim || *saved <= worth {
                    return true;
                }
                cost -= saved;
                let why = Some(why(thread, *function, elapsed_ns));
                planned.push(Decision { function: *function, to: Level::Unhooked, why });
                false
            });
        }
    }

    fn take_back(&self, now_ns: u64, elapsed_ns: u64, worst: Option<&Thread>) -> Option<Decision> {
        if worst.is_some_and(|worst| worst.share > self.budget * ROOM) {
            return None;
        }
        let waiting = |function: &Function| {
            let doublings = function.times.saturating_sub(1).min(DOUBLINGS);
            function.given_up && now_ns >= function.since_ns + (HOLD_NS << doublings)
        };
        let first = self
            .functions
            .iter()
            .filter(|(_, function)| waiting(function))
            .min_by_key(|(id, function)| (Reverse(function.class), Reverse(function.since_ns), **id));
        let (id, _) = first?;
        let why = worst.map(|thread| why(thread, *id, elapsed_ns));
        Some(Decision { function: *id, to: Level::Recorded, why })
    }
}

fn why(thread: &Thread, function: u32, elapsed_ns: u64) -> Why {
    let hits = thread.hits.iter().find(|cost| cost.function == function).map_or(0, |cost| cost.hits);
    let per_sec = u128::from(hits) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    Why {
        pid: thread.pid,
        tid: thread.tid,
        percent: (thread.share * 1000.0).round() / 10.0,
        hits_per_sec: per_sec as u64,
    }
}
