//! Unfinished calls. They count with their time so far: a program that hangs is waiting, though its wait has no end
//! yet.

use std::collections::{HashMap, HashSet};

use super::{Open, Summary};
use crate::figures::{Figures, OTHERS};
use crate::stacks::StackFigures;
use crate::tally::{Role, Tally};
use gpurec_trace::InFlight;
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::hash::Map;
use gpurec_trace::tree::Call;

/// Limit on bytes of the names of calls in flight.
const NAMES: usize = 8 << 20;

impl Summary {
    /// Adds unfinished calls to the time by category and in synchronisation. Returns the functions that have such
    /// calls, with those included.
    pub(super) fn unfinished(&self, figures: &mut Figures) -> Map<usize, Tally> {
        let mut tallies: Map<usize, Tally> = Map::default();
        let mut categories = self.categories.clone();
        for (open, ns) in self.unreturned(&figures.in_flight) {
            let Some(known) = self.functions.get(open.function) else { continue };
            let tally = tallies.entry(open.function).or_insert_with(|| known.clone());
            tally.add(ns);
            tally.unfinished += 1;
            let (kernel_ns, off_cpu_ns) = open.of.in_driver();
            tally.add_inside(open.of.nested_ns, kernel_ns, off_cpu_ns);
            if known.role == Some(Role::Sync) && !open.has_inside(Role::Sync.bit()) {
                figures.sync.calls += 1;
                figures.sync.unfinished += 1;
                figures.sync.total_ns = figures.sync.total_ns.saturating_add(ns);
            }
            if open.parent.is_none() {
                categories.add(known.category, ns);
            }
        }
        figures.by_category = categories.finish();
        tallies
    }

    /// The open calls that are in flight, each with its time so far. The list of a flight recorder lacks those that died.
    fn unreturned<'a>(&'a self, in_flight: &'a [InFlight]) -> Vec<(&'a Call<Open>, u64)> {
        // Other entries in flight are driver spans.
        let listed = in_flight.iter().filter_map(|call| Some((self.open.get(call.begin)?, call.duration_ns)));
        let mut all: Vec<(&Call<Open>, u64)> = listed.collect();
        if self.settles_dead {
            let known: HashSet<u64> = all.iter().map(|(open, _)| open.id).collect();
            let died = self.open.iter().filter(|open| !known.contains(&open.id));
            all.extend(died.filter_map(|open| Some((open, self.died_after(open)?))));
        }
        all
    }

    /// The stacks of the recording, unfinished calls included.
    pub(super) fn stack_figures(&self, in_flight: &[InFlight]) -> Option<StackFigures> {
        if self.stacks.is_empty() {
            return None;
        }
        let unreturned = self.unreturned(in_flight).into_iter();
        let so_far: Map<u64, u64> = unreturned.map(|(open, ns)| (open.id, ns)).collect();
        let sums = self.stacks.with_unfinished(|begin, _| so_far.get(&begin).copied());
        self.stacks.figures(&sums)
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

    /// A trace without an end may have very many open calls whose functions have very long names.
    pub(super) fn in_flight(&self, at_ns: u64) -> Vec<InFlight> {
        let mut left: BytesLeft<NAMES> = BytesLeft::default();
        let mut of = |pid, tid, name: &str, begin, ts_ns, died_ns: Option<u64>| InFlight {
            pid,
            tid,
            name: if left.take(name.len()) { name } else { OTHERS }.to_owned(),
            begin,
            duration_ns: died_ns.unwrap_or(at_ns).saturating_sub(ts_ns),
            died: died_ns.is_some(),
        };
        let mut calls = Vec::new();
        for call in self.open.iter() {
            let name = self.name_of(call.function);
            calls.push(of(call.pid, call.tid, name, call.id, call.ts_ns, self.open.died_ns(call)));
        }
        for span in self.driver.open.iter() {
            let name = self.driver.name(span.function);
            calls.push(of(span.pid, span.tid, name, span.id, span.ts_ns, self.driver.open.died_ns(span)));
        }
        calls.sort_by_key(|call| call.begin);
        calls
    }

    /// Unfinished outermost calls that began at `until_ns` or before, the oldest first: begin, function, process and
    /// thread.
    pub(crate) fn open_since(&self, until_ns: u64) -> Vec<(u64, &str, u32, u32)> {
        let is_old = |open: &&Call<Open>| open.parent.is_none() && open.ts_ns <= until_ns;
        let is_alive = |open: &&Call<Open>| self.open.died_ns(open).is_none();
        let old = self.open.iter().filter(is_old).filter(is_alive);
        let mut all: Vec<_> =
            old.map(|open| (open.ts_ns, self.name_of(open.function), open.pid, open.tid)).collect();
        all.sort_unstable();
        all
    }
}
