//! Unfinished calls. They count with their time so far: a program that hangs is waiting, though its wait has no end
//! yet.

use super::{Open, Summary};
use crate::figures::Figures;
use crate::tally::{Role, Tally};
use gpurec_trace::InFlight;
use gpurec_trace::bounds::Left;
use gpurec_trace::hash::Map;

/// Limit on bytes of the names of calls in flight, and the name of those beyond it.
const NAMES: usize = 8 << 20;
const OTHERS: &str = "(others)";

/// A trace without an end may have very many open calls whose functions have very long names.
#[derive(Default)]
pub struct InFlightNames(Left<NAMES>);

impl InFlightNames {
    pub fn of(&mut self, name: &str) -> String {
        if self.0.take(name.len()) { name } else { OTHERS }.to_owned()
    }
}

impl Summary {
    /// Adds unfinished calls to the time by category and in synchronisation. Returns the functions that have such
    /// calls, with those included.
    pub(super) fn unfinished(&self, figures: &mut Figures) -> Map<usize, Tally> {
        let mut tallies: Map<usize, Tally> = Map::default();
        let mut categories = self.categories.clone();
        for call in &figures.in_flight {
            // Other entries in flight are driver spans.
            let Some(open) = self.open.get(&call.begin) else { continue };
            let Some(known) = self.functions.get(open.function) else { continue };
            let tally = tallies.entry(open.function).or_insert_with(|| known.clone());
            tally.add(call.duration_ns);
            tally.unfinished += 1;
            tally.nested_ns = tally.nested_ns.saturating_add(open.nested_ns);
            if let Some(within) = &open.within {
                tally.add_within(within.kernel_ns, within.off_cpu_ns);
            }
            if known.role == Some(Role::Sync) && open.inside & Role::Sync.bit() == 0 {
                figures.sync.calls += 1;
                figures.sync.unfinished += 1;
                figures.sync.total_ns = figures.sync.total_ns.saturating_add(call.duration_ns);
            }
            if open.parent.is_none() {
                categories.add(known.category, call.duration_ns);
            }
        }
        figures.by_category = categories.finish();
        tallies
    }

    /// A function including its unfinished calls.
    pub(super) fn tally<'a>(&'a self, at: usize, open: &'a Map<usize, Tally>) -> Option<&'a Tally> {
        open.get(&at).or_else(|| self.functions.get(at))
    }

    pub(super) fn in_flight(&self, at_ns: u64) -> Vec<InFlight> {
        let mut names = InFlightNames::default();
        let mut calls: Vec<InFlight> = self
            .open
            .iter()
            .map(|(begin, open)| {
                let died_ns = self.deaths.of(open.pid, open.life).died_ns();
                InFlight {
                    pid: open.pid,
                    tid: open.tid,
                    name: names.of(self.functions.get(open.function).map_or("", |tally| &tally.name)),
                    begin: *begin,
                    duration_ns: died_ns.unwrap_or(at_ns).saturating_sub(open.ts_ns),
                    died: died_ns.is_some(),
                }
            })
            .collect();
        self.driver.in_flight(at_ns, &mut names, &mut calls);
        calls.sort_by_key(|call| call.begin);
        calls
    }

    /// Unfinished outermost calls that began at `until_ns` or before, the oldest first: begin, function, process and
    /// thread.
    pub(crate) fn open_since(&self, until_ns: u64) -> Vec<(u64, &str, u32, u32)> {
        let is_old = |open: &&Open| open.parent.is_none() && open.ts_ns <= until_ns;
        let is_alive = |open: &&Open| self.deaths.of(open.pid, open.life).died_ns().is_none();
        let old = self.open.values().filter(is_old).filter(is_alive);
        let name = |function: usize| self.functions.get(function).map_or("?", |tally| &tally.name);
        let mut all: Vec<_> = old.map(|open| (open.ts_ns, name(open.function), open.pid, open.tid)).collect();
        all.sort_unstable();
        all
    }
}
