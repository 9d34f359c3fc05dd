//! Unfinished calls. They count with their time so far: a program that hangs is waiting, though its wait has no end
//! yet.

use std::collections::HashMap;

use super::{Open, Summary};
use crate::figures::Figures;
use crate::tally::{Role, Tally};
use gpurec_trace::InFlight;
use gpurec_trace::bounds::Left;
use gpurec_trace::hash::Map;
use gpurec_trace::tree::{Call, Calls};

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

fn in_flight<T>(open: &Calls<T>, at_ns: u64, mut name: impl FnMut(&Call<T>) -> String) -> Vec<InFlight> {
    let of = |call: &Call<T>| {
        let died_ns = open.died_ns(call);
        InFlight {
            pid: call.pid,
            tid: call.tid,
            name: name(call),
            begin: call.id,
            duration_ns: died_ns.unwrap_or(at_ns).saturating_sub(call.ts_ns),
            died: died_ns.is_some(),
        }
    };
    open.iter().map(of).collect()
}

impl Summary {
    /// Adds unfinished calls to the time by category and in synchronisation. Returns the functions that have such
    /// calls, with those included.
    pub(super) fn unfinished(&self, figures: &mut Figures) -> Map<usize, Tally> {
        let mut tallies: Map<usize, Tally> = Map::default();
        let mut categories = self.categories.clone();
        for call in &figures.in_flight {
            // Other entries in flight are driver spans.
            let Some(open) = self.open.get(call.begin) else { continue };
            let Some(known) = self.functions.get(open.function) else { continue };
            let tally = tallies.entry(open.function).or_insert_with(|| known.clone());
            tally.add(call.duration_ns);
            tally.unfinished += 1;
            tally.nested_ns = tally.nested_ns.saturating_add(open.of.nested_ns);
            if let Some(within) = &open.of.within {
                tally.add_within(within.kernel_ns, within.off_cpu_ns);
            }
            if known.role == Some(Role::Sync) && !open.has_inside(Role::Sync.bit()) {
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

    /// The time of each function's calls without that of the calls inside; `open` has those that have not returned.
    pub(crate) fn own_ns(&self, open: &[(&Call<Open>, u64)]) -> HashMap<&str, u64> {
        let inside: Map<u64, u64> = open.iter().filter_map(|(call, ns)| Some((call.parent?, *ns))).collect();
        let mut own: HashMap<&str, u64> = HashMap::new();
        let mut add = |function: usize, ns: u64| {
            let Some(tally) = self.functions.get(function) else { return };
            let sum = own.entry(&tally.name).or_default();
            *sum = sum.saturating_add(ns);
        };
        self.functions.iter().enumerate().for_each(|(at, tally)| add(at, tally.own_ns));
        for (call, ns) in open {
            let inside_ns = call.inside_ns.saturating_add(inside.get(&call.id).copied().unwrap_or(0));
            add(call.function, ns.saturating_sub(inside_ns));
        }
        own
    }

    /// A function including its unfinished calls.
    pub(super) fn tally<'a>(&'a self, at: usize, open: &'a Map<usize, Tally>) -> Option<&'a Tally> {
        open.get(&at).or_else(|| self.functions.get(at))
    }

    pub(super) fn in_flight(&self, at_ns: u64) -> Vec<InFlight> {
        let mut names = InFlightNames::default();
        let function = |open: &Call<Open>| self.functions.get(open.function).map_or("", |tally| &tally.name);
        let mut calls = in_flight(&self.open, at_ns, |open| names.of(function(open)));
        calls.extend(in_flight(&self.driver.open, at_ns, |span| names.of(self.driver.name(span.function))));
        calls.sort_by_key(|call| call.begin);
        calls
    }

    /// Unfinished outermost calls that began at `until_ns` or before, the oldest first: begin, function, process and
    /// thread.
    pub(crate) fn open_since(&self, until_ns: u64) -> Vec<(u64, &str, u32, u32)> {
        let is_old = |open: &&Call<Open>| open.parent.is_none() && open.ts_ns <= until_ns;
        let is_alive = |open: &&Call<Open>| self.open.died_ns(open).is_none();
        let old = self.open.iter().filter(is_old).filter(is_alive);
        let name = |function: usize| self.functions.get(function).map_or("?", |tally| &tally.name);
        let mut all: Vec<_> = old.map(|open| (open.ts_ns, name(open.function), open.pid, open.tid)).collect();
        all.sort_unstable();
        all
    }
}
