//! Decides what to give up and what to take back. In: the hits of each thread at each function, in an interval. Out:
//! decisions. Pure: no clock, no map, no hook; the same facts give the same decisions.
//!
//! A function goes from recorded to counted to unhooked, one step at a time. Among the functions that a thread over
//! its budget calls, the class that tells least goes first, and within it the function called most. A class is given
//! up entirely, where that helps, before the next is touched. The function given up last comes back first, when the
//! budget has room: a counted one if its rate is known to fit, an unhooked one on trial. A trial that fails doubles
//! the wait before the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::rank::Class;
use gpurec_trace::{Level, Why};

/// The interval between decisions. A decision comes earlier if a thread has spent the budget of a whole interval.
pub const INTERVAL_NS: u64 = 100_000_000;

/// Parts of the budget: giving up aims at AIM, and a function may come back only if the cost stays below ROOM. The
/// real cost is above the calibrated one, which was measured with a warm cache.
const AIM: f64 = 0.6;
const ROOM: f64 = 0.5;

/// A function that saves less than this part of the aim is not worth giving up while others save more.
const WORTH: f64 = 1.0 / 50.0;

/// How long a function stays given up the first time, and how often that time can double.
const HOLD_NS: u64 = 1_000_000_000;
const DOUBLINGS: u32 = 6;
/// How long a trial lasts before the function may return to recorded.
const TRIAL_NS: u64 = 200_000_000;
/// A function that was recorded for this long starts over with the shortest wait.
const SETTLED_NS: u64 = 60_000_000_000;

/// What one hit of a function costs the thread.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub recorded_ns: f64,
    pub counted_ns: f64,
}

/// Hits of one thread at one function in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits {
    pub pid: u32,
    pub tid: u32,
    pub function: u32,
    pub recorded: u64,
    pub counted: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub function: u32,
    pub from: Level,
    pub to: Level,
    /// Facts about the thread that paid most.
    pub why: Why,
}

pub struct Policy {
    /// As a fraction of 1.
    budget: f64,
    class: fn(&str) -> Class,
    functions: HashMap<u32, State>,
}

#[derive(Clone, Copy)]
struct State {
    class: Class,
    costs: Costs,
    level: Level,
    since_ns: u64,
    /// Not taken back before this time.
    held_until_ns: u64,
    /// Number of times it was given up.
    times: u32,
    /// It reached this level because there was room, not because the budget was exceeded.
    came_back: bool,
}

/// A thread's hits, and what they cost the thread.
struct Thread {
    pid: u32,
    tid: u32,
    hits: Vec<(u32, u64)>,
    /// Cost as a fraction of the thread's time.
    share: f64,
}

impl Policy {
    pub fn new(percent: f64, class: fn(&str) -> Class) -> Policy {
        Policy { budget: percent / 100.0, class, functions: HashMap::new() }
    }

    pub fn knows(&self, function: u32) -> bool {
        self.functions.contains_key(&function)
    }

    /// Adds a function that is hooked and recorded.
    pub fn add(&mut self, function: u32, name: &str, costs: Costs) {
        let class = (self.class)(name);
        let state = State {
            class,
            costs,
            level: Level::Recorded,
            since_ns: 0,
            held_until_ns: 0,
            times: 0,
            came_back: false,
        };
        self.functions.insert(function, state);
    }

    /// True if it is time to decide: after an interval, or as soon as a thread has spent the budget of one.
    pub fn is_due(&self, elapsed_ns: u64, hits: &[Hits]) -> bool {
        let allowance = self.budget * INTERVAL_NS as f64;
        elapsed_ns >= INTERVAL_NS || self.paid(hits).values().any(|paid| *paid >= allowance)
    }

    /// What to do now. A decision takes effect only when `done` reports it: not every decision can be carried out at
    /// once.
    pub fn decide(&self, now_ns: u64, elapsed_ns: u64, hits: &[Hits]) -> Vec<Decision> {
        let threads = self.threads(elapsed_ns, hits);
        match threads.first() {
            Some(worst) if worst.share > self.budget => self.give_up(elapsed_ns, &threads),
            _ => self.take_back(now_ns, elapsed_ns, &threads),
        }
    }

    pub fn done(&mut self, now_ns: u64, decision: &Decision) {
        let Some(state) = self.functions.get_mut(&decision.function) else { return };
        if is_less(decision.to, decision.from) {
            if now_ns.saturating_sub(state.since_ns) >= SETTLED_NS {
                state.times = 0;
            }
            // Recorded to counted to unhooked counts as one time; a trial that failed counts as another.
            if decision.from == Level::Recorded || state.came_back {
                state.times = state.times.saturating_add(1);
            }
            let doublings = state.times.saturating_sub(1).min(DOUBLINGS);
            state.held_until_ns = now_ns + (HOLD_NS << doublings);
            state.came_back = false;
        } else {
            state.held_until_ns = now_ns + TRIAL_NS;
            state.came_back = true;
        }
        (state.level, state.since_ns) = (decision.to, now_ns);
    }

    /// The cost in nanoseconds. An unknown function costs 0: the policy cannot give it up.
    fn cost(&self, function: u32, recorded: u64, counted: u64) -> f64 {
        let cost = |state: &State| {
            recorded as f64 * state.costs.recorded_ns + counted as f64 * state.costs.counted_ns
        };
        self.functions.get(&function).map_or(0.0, cost)
    }

    fn cost_at(&self, level: Level, function: u32, hits: u64) -> f64 {
        match level {
            Level::Recorded => self.cost(function, hits, 0),
            Level::Counted => self.cost(function, 0, hits),
            Level::Unhooked => 0.0,
        }
    }

    /// What each thread has paid, in nanoseconds.
    fn paid(&self, hits: &[Hits]) -> BTreeMap<u32, f64> {
        let mut threads: BTreeMap<u32, f64> = BTreeMap::new();
        for hit in hits {
            *threads.entry(hit.tid).or_default() += self.cost(hit.function, hit.recorded, hit.counted);
        }
        threads
    }

    fn level(&self, function: u32) -> Level {
        self.functions.get(&function).map_or(Level::Recorded, |state| state.level)
    }

    /// The threads with hits, the highest cost first.
    fn threads(&self, elapsed_ns: u64, hits: &[Hits]) -> Vec<Thread> {
        let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
        for hit in hits.iter().filter(|hit| hit.recorded + hit.counted > 0) {
            let (pid, tid) = (hit.pid, hit.tid);
            let thread = threads.entry(tid).or_insert(Thread { pid, tid, hits: Vec::new(), share: 0.0 });
            thread.hits.push((hit.function, hit.recorded + hit.counted));
            thread.share += self.cost(hit.function, hit.recorded, hit.counted) / elapsed_ns.max(1) as f64;
        }
        let mut threads: Vec<Thread> = threads.into_values().collect();
        threads.sort_by(|a, b| b.share.total_cmp(&a.share));
        threads
    }

    fn give_up(&self, elapsed_ns: u64, threads: &[Thread]) -> Vec<Decision> {
        let mut planned: HashMap<u32, Level> = HashMap::new();
        let mut order: Vec<(u32, Why)> = Vec::new();
        for thread in threads.iter().filter(|thread| thread.share > self.budget) {
            for function in self.relieve(elapsed_ns, thread, &mut planned) {
                order.push((function, why(thread, function, elapsed_ns)));
            }
        }
        // One step at a time: the effect of a step is measured before the next.
        order
            .into_iter()
            .filter_map(|(function, why)| {
                let from = self.level(function);
                let to = match from {
                    Level::Recorded => Level::Counted,
                    Level::Counted => Level::Unhooked,
                    Level::Unhooked => return None,
                };
                Some(Decision { function, from, to, why })
            })
            .collect()
    }

    /// Plans steps until the thread is well within its budget. Returns the newly planned functions.
    fn relieve(&self, elapsed_ns: u64, thread: &Thread, planned: &mut HashMap<u32, Level>) -> Vec<u32> {
        let aim = self.budget * AIM * elapsed_ns as f64;
        let level = |planned: &HashMap<u32, Level>, function: u32| {
            planned.get(&function).copied().unwrap_or_else(|| self.level(function))
        };
        let mut cost: f64 =
            thread.hits.iter().map(|(f, hits)| self.cost_at(level(planned, *f), *f, *hits)).sum();
        let mut order = thread.hits.clone();
        order.sort_by_key(|(function, hits)| (self.class_of(*function), Reverse(*hits), *function));
        let mut given_up = Vec::new();
        for worth in [aim * WORTH, 0.0] {
            for (function, hits) in &order {
                loop {
                    let at = level(planned, *function);
                    let now = self.cost_at(at, *function, *hits);
                    if cost <= aim || now <= worth {
                        break;
                    }
                    let next = if at == Level::Recorded { Level::Counted } else { Level::Unhooked };
                    cost -= now - self.cost_at(next, *function, *hits);
                    if planned.insert(*function, next).is_none() {
                        given_up.push(*function);
                    }
                }
            }
        }
        given_up
    }

    fn class_of(&self, function: u32) -> Class {
        self.functions.get(&function).map_or(Class::Other, |state| state.class)
    }

    fn take_back(&self, now_ns: u64, elapsed_ns: u64, threads: &[Thread]) -> Vec<Decision> {
        let mut waiting: Vec<(u32, &State)> = self
            .functions
            .iter()
            .filter(|(_, state)| state.level != Level::Recorded && now_ns >= state.held_until_ns)
            .map(|(function, state)| (*function, state))
            .collect();
        waiting.sort_by_key(|(function, state)| (Reverse(state.class), Reverse(state.since_ns), *function));
        let room = self.budget * ROOM;
        let mut shares: Vec<f64> = threads.iter().map(|thread| thread.share).collect();
        let mut on_trial = false;
        let mut back = Vec::new();
        for (function, state) in waiting {
            let to = match state.level {
                Level::Unhooked => Level::Counted,
                _ => Level::Recorded,
            };
            // The cost of an unhooked function is unknown: one at a time is tried.
            let after: Vec<f64> = match to {
                Level::Recorded => self.shares_with(function, elapsed_ns, threads, &shares),
                _ if on_trial => continue,
                _ => shares.clone(),
            };
            if after.iter().any(|share| *share > room) {
                continue;
            }
            on_trial |= to == Level::Counted;
            shares = after;
            let why = threads.first().map_or(NOBODY, |thread| why(thread, function, elapsed_ns));
            back.push(Decision { function, from: state.level, to, why });
        }
        back
    }

    /// Each thread's share if a counted function were recorded.
    fn shares_with(&self, function: u32, elapsed_ns: u64, threads: &[Thread], shares: &[f64]) -> Vec<f64> {
        let more = |thread: &Thread| {
            let hits = thread.hits_of(function);
            let more = self.cost(function, hits, 0) - self.cost(function, 0, hits);
            more / elapsed_ns.max(1) as f64
        };
        threads.iter().zip(shares).map(|(thread, share)| share + more(thread)).collect()
    }
}

impl Thread {
    fn hits_of(&self, function: u32) -> u64 {
        self.hits.iter().find(|(f, _)| *f == function).map_or(0, |(_, hits)| *hits)
    }
}

/// True if level `a` tells less than level `b`.
pub fn is_less(a: Level, b: Level) -> bool {
    a > b
}

const NOBODY: Why = Why { pid: 0, tid: 0, percent: 0.0, hits_per_sec: 0 };

fn why(thread: &Thread, function: u32, elapsed_ns: u64) -> Why {
    let per_sec = u128::from(thread.hits_of(function)) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    Why {
        pid: thread.pid,
        tid: thread.tid,
        percent: (thread.share * 1000.0).round() / 10.0,
        hits_per_sec: per_sec as u64,
    }
}
