//! gpurec's own cost: each call at the measured price for its kind of probe site, plus the stops.

use super::super::figures::{Cost, ThreadCost, truncate};
use super::{EACH, Summary};
use gpurec_trace::{EMULATED, EMULATED_COLD, Header, Library, SINGLE_STEPPED, SINGLE_STEPPED_COLD};

/// Number of threads listed with their cost.
const LISTED_THREADS: usize = 10;

/// Cost of recording one call, in nanoseconds.
pub struct Prices {
    emulated: u64,
    stepped: Option<u64>,
    /// Both prices with cold processor caches.
    cold: Option<(u64, u64)>,
}

/// Recorded calls of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaidCalls {
    pub calls: u64,
    /// Calls at sites that Linux single-steps.
    pub stepped: u64,
}

/// Keeps the threads with the highest cost. Returns the number of the others.
pub(super) fn keep_costly(threads: &mut Vec<ThreadCost>) -> u64 {
    threads.sort_by(|a, b| (b.cost_ns, b.calls, a.tid).cmp(&(a.cost_ns, a.calls, b.tid)));
    truncate(threads, LISTED_THREADS)
}

impl Prices {
    pub fn of_header(header: &Header) -> Option<Prices> {
        let emulated = header.ns_per_call?;
        // All hooks use one backend.
        let by_kind =
            header.hooks.get("userspace").and_then(|layer| header.ns_per_call_by_site.get(&layer.backend));
        let of = |kind: &str| by_kind?.get(kind).copied();
        Some(Prices {
            emulated: of(EMULATED).unwrap_or(emulated),
            stepped: of(SINGLE_STEPPED),
            cold: of(EMULATED_COLD).zip(of(SINGLE_STEPPED_COLD)),
        })
    }

    pub fn of(&self, stepped: bool) -> u64 {
        if stepped { self.stepped.unwrap_or(self.emulated) } else { self.emulated }
    }

    pub(super) fn sum(&self, paid: PaidCalls) -> u64 {
        paid.at(self.of(false), self.of(true))
    }
}

impl PaidCalls {
    fn at(self, emulated: u64, stepped: u64) -> u64 {
        let cheap = self.calls.saturating_sub(self.stepped).saturating_mul(emulated);
        cheap.saturating_add(self.stepped.saturating_mul(stepped))
    }
}

impl Summary {
    /// Functions of one name in two libraries have one price: the higher one.
    pub(super) fn single_stepped(&mut self, library: &Library) {
        for name in &library.single_stepped {
            if !self.stepped.contains(name.as_str()) && self.stepped_left.take(EACH + name.len()) {
                self.stepped.insert(name.as_str().into());
                if let Some(tally) = self.functions.find(name).and_then(|at| self.functions.get_mut(at)) {
                    tally.stepped = true;
                }
            }
        }
    }

    /// A time, less what the thread's recorded calls have cost so far: the time between two of them is then near what it
    /// would be without gpurec.
    pub(super) fn without_cost(&self, pid: u32, tid: u32, at_ns: u64) -> u64 {
        let paid = self.calls_by_thread.by_key.get(&(pid, tid));
        let cost = paid.zip(self.prices.as_ref()).map_or(0, |(paid, prices)| prices.sum(*paid));
        at_ns.saturating_sub(cost)
    }

    pub fn has_calls(&self, pid: u32) -> bool {
        self.ended_processes.made_calls(pid)
    }

    /// The cost for the thread with the highest cost.
    pub fn highest_cost(&self) -> u64 {
        let Some(prices) = &self.prices else { return 0 };
        let ended = self.ended_processes.threads().0.iter().map(|thread| thread.cost_ns);
        self.calls_by_thread.by_key.values().map(|paid| prices.sum(*paid)).chain(ended).max().unwrap_or(0)
    }

    pub(super) fn cost(&self) -> Option<Cost> {
        let prices = self.prices.as_ref()?;
        let mut all = self.calls_by_thread.others;
        let mut threads = Vec::new();
        for ((pid, tid), paid) in &self.calls_by_thread.by_key {
            all.calls += paid.calls;
            all.stepped += paid.stepped;
            threads.push(ThreadCost { pid: *pid, tid: *tid, calls: paid.calls, cost_ns: prices.sum(*paid) });
        }
        let (costly, ended) = self.ended_processes.threads();
        threads.extend_from_slice(costly);
        let more_threads = keep_costly(&mut threads) + ended - costly.len() as u64;
        let stops = self.figures.stops;
        (all.calls > 0).then(|| Cost {
            ns_per_call: prices.emulated,
            calls: all.calls,
            total_ns: prices.sum(all).saturating_add(stops.map_or(0, |stops| stops.total_ns)),
            ns_per_stepped: prices.stepped,
            stepped_calls: all.stepped,
            cold_ns: prices.cold.map(|(emulated, stepped)| all.at(emulated, stepped)),
            stops,
            threads,
            more_threads,
        })
    }
}
