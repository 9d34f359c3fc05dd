//! What to give up and what to take back. In: who hit what how often, in an interval. Out:
//! decisions. Pure: no clock, no map, no hook; the same facts give the same decisions.
//!
//! A function goes from recorded to counted to unhooked, one step at a time. Of what a thread
//! over its budget calls, the least telling class goes first, in it what is called most; a
//! class is given up whole, where that helps, before the next is touched. What was
//! given up last comes back first, when there is room for it: what is counted if its rate is
//! known to fit, what is unhooked on trial. A trial that fails makes the next wait twice as long.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::rank::Class;
use gpurec_trace::{Level, Why};

/// When decisions are made, unless a thread has spent the budget of a whole one before.
pub const INTERVAL_NS: u64 = 100_000_000;

/// Of the budget: what giving up aims at, and below what something may come back. The
/// calibrated cost is that of a warm cache, so the real one is above it.
const AIM: f64 = 0.6;
const ROOM: f64 = 0.5;

/// What gives less than this part of the aim is not worth giving up, as long as more is to be had.
const WORTH: f64 = 1.0 / 50.0;

/// How long a function stays given up: the first time, and at most.
const HOLD_NS: u64 = 1_000_000_000;
const DOUBLINGS: u32 = 6;
/// How long a trial lasts before its function may come back wholly.
const TRIAL_NS: u64 = 200_000_000;
/// Recorded for so long, a function starts over with the shortest wait.
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
    /// Of the thread that paid most.
    pub why: Why,
}

pub struct Policy {
    /// As a part of 1.
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
    /// Not taken back before.
    held_until_ns: u64,
    /// How often it was given up.
    times: u32,
    /// It is where it is because there was room, not for lack of it.
    came_back: bool,
}

/// A thread's hits, and what they cost it.
struct Thread {
    pid: u32,
    tid: u32,
    hits: Vec<(u32, u64)>,
    /// As a part of its time.
    share: f64,
}

impl Policy {
    pub fn new(percent: f64, class: fn(&str) -> Class) -> Policy {
        Policy { budget: percent / 100.0, class, functions: HashMap::new() }
    }

    pub fn knows(&self, function: u32) -> bool {
        self.functions.contains_key(&function)
    }

    /// A function that is hooked and recorded.
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

    /// Is it time to decide? After an interval, or as soon as a thread has spent the budget of one.
    pub fn is_due(&self, elapsed_ns: u64, hits: &[Hits]) -> bool {
        let allowance = self.budget * INTERVAL_NS as f64;
        elapsed_ns >= INTERVAL_NS || self.paid(hits).values().any(|paid| *paid >= allowance)
    }

    /// What to do now. Nothing is taken as done before `done` says so: not every decision can be
    /// carried out at once.
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
            // From recorded to counted to unhooked is one time; a trial that failed is another.
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

    /// In nanoseconds. What is not known costs nothing: it is not ours to give up.
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

    /// Those that pay most first.
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
        // One step at a time: what happens after the first is measured again.
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

    /// Plans for one thread until it is well within its budget. Returns what was planned anew.
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
            // What an unhooked one would cost nobody knows: one at a time is tried.
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

    /// What each thread would pay if a counted function were recorded.
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

/// Less is known at `a` than at `b`.
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
