//! Sums of the calls by stack and role, and the figures made of them. In: calls and bytes. Out: the stacks that weigh
//! most. Not here: which stack a call has.

use serde::{Deserialize, Serialize};

use super::{CallRole, Site, Stacks, Weight};
use crate::driver_figures::is_zero;
use crate::units::plural;
use gpurec_trace::bounds::{entry, short};
use gpurec_trace::hash::Map;

/// Limit on pairs of a stack and a role. The rest of each role shares a sum.
const MOST_SUMS: usize = 1 << 19;

/// Number of stacks of a role that the figures list, of their frames, and the length of a frame's text.
const LISTED: usize = 20;
const LISTED_FRAMES: usize = 64;
const LONGEST: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub calls: u64,
    pub ns: u64,
    pub bytes: u64,
    pub unfinished: u64,
    /// The time on the GPU of what the calls submitted.
    pub gpu_ns: u64,
}

impl Sum {
    pub fn call(ns: u64) -> Sum {
        Sum { calls: 1, ns, ..Sum::default() }
    }

    pub fn add(&mut self, other: Sum) {
        self.calls = self.calls.saturating_add(other.calls);
        self.ns = self.ns.saturating_add(other.ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.unfinished = self.unfinished.saturating_add(other.unfinished);
        self.gpu_ns = self.gpu_ns.saturating_add(other.gpu_ns);
    }

    pub fn weight(&self, by: Weight) -> u64 {
        match by {
            Weight::Count => self.calls,
            Weight::Time => self.ns,
            Weight::Bytes => self.bytes,
            Weight::Gpu => self.gpu_ns,
        }
    }
}

#[derive(Clone, Default)]
pub struct Sums {
    pub by_stack: Map<(u64, CallRole), Sum>,
    /// Those of calls beyond the limit.
    pub others: Map<CallRole, Sum>,
}

impl Sums {
    pub fn add(&mut self, stack: u64, role: CallRole, sum: Sum) {
        let of = entry(&mut self.by_stack, (stack, role), MOST_SUMS);
        match of {
            Some(known) => known.add(sum),
            None => self.others.entry(role).or_default().add(sum),
        }
    }

    /// The sum of all stacks of a role.
    pub fn total(&self, role: CallRole) -> Sum {
        let of_role = self.by_stack.iter().filter(|((_, of), _)| *of == role).map(|(_, sum)| sum);
        let mut total = Sum::default();
        of_role.chain(self.others.get(&role)).for_each(|sum| total.add(*sum));
        total
    }

    /// The stacks of these roles, those that weigh most first.
    pub fn heaviest(&self, roles: &[CallRole], by: Weight) -> Vec<(u64, CallRole, Sum)> {
        let mut all: Vec<(u64, CallRole, Sum)> = self
            .by_stack
            .iter()
            .filter(|((_, role), _)| roles.contains(role))
            .map(|((stack, role), sum)| (*stack, *role, *sum))
            .collect();
        let weights = |sum: &Sum| (sum.weight(by), sum.ns, sum.bytes, sum.calls);
        all.sort_by(|(a, of_a, x), (b, of_b, y)| weights(y).cmp(&weights(x)).then((a, of_a).cmp(&(b, of_b))));
        all
    }
}

/// The first few distinct call sites of some calls, each with its number of calls or another weight.
#[derive(Clone, Default)]
pub struct Places {
    known: Vec<(Site, u64)>,
    others: u64,
}

/// Limit on the distinct sites of one row of a table.
const PLACES: usize = 32;

impl Places {
    pub fn add(&mut self, site: Option<Site>) {
        if let Some(site) = site {
            self.weigh(site, 1);
        }
    }

    /// Adds a weight that is not a number of calls, such as a time.
    pub fn weigh(&mut self, site: Site, weight: u64) {
        if let Some((_, sum)) = self.known.iter_mut().find(|(known, _)| *known == site) {
            *sum = sum.saturating_add(weight);
        } else if self.known.len() < PLACES {
            self.known.push((site, weight));
        } else {
            self.others = self.others.saturating_add(weight);
        }
    }

    pub fn merge(&mut self, other: &Places) {
        other.known.iter().for_each(|(site, weight)| self.weigh(*site, *weight));
        self.others = self.others.saturating_add(other.others);
    }

    /// The call site of the largest weight, and that weight: with `add`, the most frequent one.
    pub fn most(&self) -> Option<(Site, u64)> {
        let most = self.known.iter().max_by_key(|(site, count)| (*count, std::cmp::Reverse(*site)));
        most.copied()
    }

    /// `train.py:88 step`, with the number of other sites, if there are some.
    pub fn text(&self, stacks: &Stacks) -> Option<String> {
        let (site, _) = self.most()?;
        let text = stacks.text(site);
        let more = self.known.len() - 1;
        Some(match (more, self.others) {
            (0, 0) => text,
            (_, 0) => format!("{text} (+{more})"),
            _ => format!("{text} (+{more} and more)"),
        })
    }
}

/// Call stacks, for a recording with `--stacks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackFigures {
    /// Distinct stacks, and how many of them lack their deeper frames.
    pub stacks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: u64,
    /// Stacks beyond the limit: their calls have no call site.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Calls with a stack of their own; those inside them share it.
    pub calls: u64,
    /// Calls whose stack the recorder did not keep, because there were too many distinct ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// Stacks that found no space in a ring: their calls have none.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Native frames of which the recorder did not learn the function in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub unnamed: u64,
    pub by_role: Vec<RoleFigures>,
}

impl StackFigures {
    /// What is missing, a sentence for each kind.
    pub fn gaps(&self) -> Vec<String> {
        let plural =
            |count, what, is, are| format!("{} {}", plural(count, what), if count == 1 { is } else { are });
        let stacks = |is, are| move |count| plural(count, "call stack", is, are);
        let calls = |count| plural(count, "call", "has", "have");
        let all = [
            (self.cut, stacks("is", "are")(self.cut) + " cut: outer frames are missing."),
            (
                self.lost,
                calls(self.lost) + " no call stack, because the ring buffers were full: try a larger --ring.",
            ),
            (
                self.missing,
                calls(self.missing) + " no call stack, because the recorder keeps no more distinct ones.",
            ),
            (
                self.left_out,
                stacks("is", "are")(self.left_out) + " not kept here, and their calls have no call site.",
            ),
            (
                self.unnamed,
                plural(self.unnamed, "native frame", "has", "have")
                    + " no name, because the recorder could not ask for it in time.",
            ),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, sentence)| sentence).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleFigures {
    pub role: String,
    pub calls: u64,
    pub total_ns: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub gpu_ns: u64,
    pub stacks: u64,
    /// By bytes for roles that move or hold bytes, by host time for the others; the largest first.
    pub top: Vec<StackRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackRow {
    pub calls: u64,
    pub total_ns: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub unfinished: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub gpu_ns: u64,
    /// `train.py:88 load_batch`; empty if the stack was not kept.
    pub site: String,
    /// The innermost first.
    pub frames: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

impl Stacks {
    /// None for a recording without stacks.
    pub fn figures(&self, sums: &Sums) -> Option<StackFigures> {
        if self.is_empty() {
            return None;
        }
        let of_role = |role: &CallRole| {
            let all = sums.heaviest(&[*role], role.weight());
            let total = sums.total(*role);
            (total != Sum::default()).then(|| RoleFigures {
                role: role.name().to_owned(),
                calls: total.calls,
                total_ns: total.ns,
                bytes: total.bytes,
                gpu_ns: total.gpu_ns,
                stacks: all.len() as u64,
                top: all.iter().take(LISTED).map(|(stack, _, sum)| self.row(*stack, sum)).collect(),
            })
        };
        Some(StackFigures {
            stacks: self.frames.count() as u64 + self.frames.left_out,
            cut: self.frames.cut,
            left_out: self.frames.left_out,
            calls: self.totals.calls,
            missing: self.recorder.missing,
            lost: self.lost,
            unnamed: self.recorder.unnamed,
            by_role: CallRole::ALL.iter().filter_map(of_role).collect(),
        })
    }

    pub fn row(&self, stack: u64, sum: &Sum) -> StackRow {
        let known = self.frames.stack(stack);
        let text = |site: &Site| short(&self.text(*site), LONGEST);
        let frames = known.map_or(&[][..], |known| &known.frames);
        StackRow {
            calls: sum.calls,
            total_ns: sum.ns,
            bytes: sum.bytes,
            unfinished: sum.unfinished,
            gpu_ns: sum.gpu_ns,
            site: known.and_then(|known| known.site.as_ref()).map_or_else(String::new, text),
            frames: frames.iter().take(LISTED_FRAMES).map(text).collect(),
            cut: known.is_some_and(|known| known.cut || known.frames.len() > LISTED_FRAMES),
        }
    }
}
