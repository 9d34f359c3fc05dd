//! Sums over the calls of one function, or the launches of one kernel.

use std::sync::Arc;

use super::value::Value;
use crate::histogram::Histogram;

/// The place of a call in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    pub event_id: u64,
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub name: Arc<str>,
    /// Number of calls that began, or of launches that succeeded.
    pub calls: u64,
    /// Number of those with a known duration.
    pub timed: u64,
    pub total_ns: u128,
    pub min_ns: u64,
    pub max_ns: u64,
    /// The median according to a recording without events.
    pub med_ns: Option<u64>,
    pub errors: u64,
    /// Bytes allocated, freed, copied or set, by the call or inside it.
    pub bytes: u64,
    pub first: Option<First>,
    /// Set only if an expression needs percentiles.
    pub durations: Option<Box<Durations>>,
}

#[derive(Clone, Debug, Default)]
pub struct Durations {
    histogram: Histogram,
    limits: Vec<Limit>,
}

/// Number of durations below a limit: it makes the comparison of a percentile exact, though the histogram is exact only
/// to 1 %.
#[derive(Clone, Debug)]
struct Limit {
    at: Value,
    below: u64,
    equal: u64,
}

/// In units of 1/100,000: p99.9 is 99,900.
pub type Percentile = u32;

impl Sample {
    /// Counts a call; the first one keeps its place.
    pub fn began(&mut self, event_id: u64, ts_ns: u64, (pid, tid): (u32, u32)) {
        self.calls += 1;
        self.first.get_or_insert(First { event_id, ts_ns, pid, tid });
    }

    pub fn took(&mut self, ns: u64) {
        self.min_ns = if self.timed == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.timed += 1;
        self.total_ns += u128::from(ns);
        if let Some(durations) = &mut self.durations {
            durations.add(ns);
        }
    }

    pub fn merge(&mut self, other: &Sample) {
        self.med_ns = None;
        if other.timed > 0 {
            self.min_ns = if self.timed == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        }
        self.max_ns = self.max_ns.max(other.max_ns);
        self.calls += other.calls;
        self.timed += other.timed;
        self.total_ns += other.total_ns;
        self.errors += other.errors;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.first = match (self.first, other.first) {
            (Some(a), Some(b)) => Some(if b.ts_ns < a.ts_ns { b } else { a }),
            (a, b) => a.or(b),
        };
        match (&mut self.durations, &other.durations) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
            _ => {}
        }
    }

    /// The smallest duration that this share of the calls does not exceed, within 1 %.
    pub fn percentile(&self, of: Percentile) -> Option<u64> {
        if of >= 100_000 {
            return (self.timed > 0).then_some(self.max_ns);
        }
        if let (50_000, Some(median)) = (of, self.med_ns) {
            return Some(median);
        }
        let rank = rank(self.timed, of)?;
        let value = self.durations.as_ref()?.histogram.value_at(rank - 1);
        Some(value.clamp(self.min_ns, self.max_ns))
    }

    /// Compares the percentile exactly with a limit that was announced.
    pub fn compare(&self, of: Percentile, limit: &Value) -> Option<std::cmp::Ordering> {
        let rank = rank(self.timed, of)?;
        let known = &self.durations.as_ref()?.limits;
        let limit = known.iter().find(|known| known.at.compare(limit).is_eq())?;
        Some(if limit.below >= rank {
            std::cmp::Ordering::Less
        } else if limit.below + limit.equal >= rank {
            std::cmp::Ordering::Equal
        } else {
            std::cmp::Ordering::Greater
        })
    }
}

/// The nearest rank of a percentile among `count` values, from 1.
fn rank(count: u64, of: Percentile) -> Option<u64> {
    let rank = (u128::from(count) * u128::from(of)).div_ceil(100_000);
    (count > 0).then(|| u64::try_from(rank).unwrap_or(count).clamp(1, count))
}

impl Durations {
    pub fn new(limits: &[Value]) -> Durations {
        let limits = limits.iter().map(|at| Limit { at: *at, below: 0, equal: 0 }).collect();
        Durations { histogram: Histogram::default(), limits }
    }

    fn add(&mut self, ns: u64) {
        self.histogram.add(ns);
        for limit in &mut self.limits {
            let order = Value::whole(ns, limit.at.unit).compare(&limit.at);
            limit.below += u64::from(order.is_lt());
            limit.equal += u64::from(order.is_eq());
        }
    }

    /// Merges two samples. Samples of one expression have the same limits.
    fn merge(&mut self, other: &Durations) {
        self.histogram.merge(&other.histogram);
        self.limits.retain_mut(|mine| {
            let same = other.limits.iter().find(|theirs| theirs.at.compare(&mine.at).is_eq());
            if let Some(theirs) = same {
                mine.below += theirs.below;
                mine.equal += theirs.equal;
            }
            same.is_some()
        });
    }
}
