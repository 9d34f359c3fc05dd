//! Who comes last at collectives, what that costs the others, and why. In: finished collectives, with times on the clocks
//! of their hosts, and how these clocks differ. Out: sums by rank, and by communicator and operation. Not here: which
//! arrivals belong together.

use std::collections::BTreeMap;

use serde::Serialize;

use super::arrival::{Arrival, Who};
use super::clocks::HostClock;
use super::names::Names;
use crate::histogram::Histogram;

/// Limit on the distinct causes of one rank, and on those listed.
const MOST_CAUSES: usize = 256;
const LISTED: usize = 5;
/// A cause below this part of the lateness is not listed, in percent.
const LEAST_PERCENT: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Call,
    OwnCode,
    OffCpu,
    Queue,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::OwnCode => "own_code",
            Kind::OffCpu => "off_cpu",
            Kind::Queue => "gpu_busy",
        }
    }
}

/// What a rank did for longer than the others before it came last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// `call`, `own_code` (in no recorded call), `off_cpu`, `gpu_busy` (enqueued in time, but the GPU had other work).
    pub kind: &'static str,
    /// The function.
    pub name: Option<String>,
    /// The number of collectives before which it took longer.
    pub collectives: u64,
    /// How much longer than the others' average, in all.
    pub excess_ns: u64,
    /// The request to nvidia.ko that took longest meanwhile, and the call site of the longest call.
    pub request: Option<String>,
    pub site: Option<String>,
}

#[derive(Default)]
struct CauseSum {
    collectives: u64,
    excess_ns: u64,
    requests: BTreeMap<u32, u64>,
    sites: BTreeMap<u32, u64>,
}

/// A rank that came last.
#[derive(Default)]
struct Late {
    collectives: u64,
    on_gpu: u64,
    cost_ns: u64,
    late_ns: u64,
    causes: BTreeMap<(Kind, u32), CauseSum>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Straggler {
    pub rank: Option<u32>,
    /// The number of collectives at which it came last.
    pub collectives: u64,
    /// The time that the other ranks waited for it, in all.
    pub cost_ns: u64,
    pub arrival: &'static str,
    pub causes: Vec<Cause>,
    #[serde(skip)]
    pub who: Who,
}

/// The collectives of one communicator and operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collectives {
    pub comm: String,
    pub op: String,
    pub count: u64,
    /// The time from each rank's arrival to that of the last, in all.
    pub wait_ns: u64,
    /// The time from the last arrival to each rank's end, in all. None: no end is known.
    pub transfer_ns: Option<u64>,
    pub ranks: u64,
}

/// How far apart the ranks arrive.
#[derive(Clone, Debug, Default)]
pub struct Skew {
    pub histogram: Histogram,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

pub struct Stragglers<'a> {
    clocks: &'a [HostClock],
    /// The domain of each trace.
    domains: &'a [usize],
    names: &'a Names,
    late: BTreeMap<Who, Late>,
    collectives: BTreeMap<(u32, u32), Collectives>,
    pub skew: Skew,
}

impl<'a> Stragglers<'a> {
    pub fn new(clocks: &'a [HostClock], domains: &'a [usize], names: &'a Names) -> Stragglers<'a> {
        let (late, collectives) = Default::default();
        Stragglers { clocks, domains, names, late, collectives, skew: Skew::default() }
    }

    fn corrected(&self, who: Who, ns: i64) -> i64 {
        let clock = self.domains.get(who.trace as usize).and_then(|domain| self.clocks.get(*domain));
        clock.map_or(ns, |clock| clock.corrected(ns))
    }

    pub fn add(&mut self, rows: &[Arrival]) {
        // Where the GPU start of one rank is unknown, all are compared by when they enqueued.
        let on_gpu = rows.iter().all(|row| row.started_ns.is_some());
        let arrived = |row: &Arrival| {
            self.corrected(row.who, row.started_ns.filter(|_| on_gpu).unwrap_or(row.enqueued_ns))
        };
        let times: Vec<i64> = rows.iter().map(arrived).collect();
        let Some((at, last_ns)) = times.iter().copied().enumerate().max_by_key(|(_, ns)| *ns) else { return };
        let first_ns = times.iter().copied().min().unwrap_or(last_ns);
        let wait_ns = times.iter().map(|ns| last_ns.abs_diff(*ns)).fold(0, u64::saturating_add);
        let transfers = rows.iter().filter_map(|row| {
            let ended_ns = row.ended_ns?;
            // What ran on the GPU took as long by any clock.
            let ended_ns = match row.started_ns {
                Some(started_ns) => {
                    self.corrected(row.who, started_ns).saturating_add(ended_ns.saturating_sub(started_ns))
                }
                None => self.corrected(row.who, ended_ns),
            };
            Some(ended_ns.saturating_sub(last_ns).max(0) as u64)
        });
        let transfers: Vec<u64> = transfers.collect();
        let (Some(first), Some(last)) = (rows.first(), rows.get(at)) else { return };
        let of = self.collectives.entry((first.key.comm, first.what.op)).or_insert_with(|| Collectives {
            comm: self.names.text(first.key.comm),
            op: self.names.text(first.what.op),
            ..Collectives::default()
        });
        of.count += 1;
        of.ranks = of.ranks.max(rows.len() as u64);
        of.wait_ns = of.wait_ns.saturating_add(wait_ns);
        if !transfers.is_empty() {
            let sum = transfers.iter().fold(of.transfer_ns.unwrap_or(0), |sum, ns| sum.saturating_add(*ns));
            of.transfer_ns = Some(sum);
        }
        if !first.key.is_collective() {
            return;
        }
        let skew_ns = last_ns.abs_diff(first_ns);
        self.skew.histogram.add(skew_ns);
        self.skew.count += 1;
        self.skew.total_ns = self.skew.total_ns.saturating_add(skew_ns);
        self.skew.max_ns = self.skew.max_ns.max(skew_ns);
        let late = self.late.entry(last.who).or_default();
        late.collectives += 1;
        late.on_gpu += u64::from(on_gpu);
        late.cost_ns = late.cost_ns.saturating_add(wait_ns);
        late.late_ns = late.late_ns.saturating_add(wait_ns / (rows.len() as u64 - 1).max(1));
        blame(late, rows, at, on_gpu);
    }

    /// Those that cost most come first.
    pub fn finish(self, rank: impl Fn(Who) -> Option<u32>) -> (Vec<Straggler>, Vec<Collectives>, Skew) {
        let mut stragglers: Vec<Straggler> = Vec::new();
        for (who, late) in &self.late {
            stragglers.push(Straggler {
                rank: rank(*who),
                collectives: late.collectives,
                cost_ns: late.cost_ns,
                arrival: if late.on_gpu * 2 >= late.collectives { "gpu" } else { "enqueue" },
                causes: causes(late, self.names),
                who: *who,
            });
        }
        stragglers.sort_by_key(|it| (std::cmp::Reverse(it.cost_ns), it.rank));
        let mut collectives: Vec<Collectives> = self.collectives.into_values().collect();
        collectives.sort_by(|a, b| (b.wait_ns, &a.comm, &a.op).cmp(&(a.wait_ns, &b.comm, &b.op)));
        (stragglers, collectives, self.skew)
    }
}

/// The time of a call before a collective.
fn in_call(row: &Arrival, name: u32) -> u64 {
    row.before
        .calls
        .iter()
        .filter(|(known, _)| *known == name)
        .fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
}

fn queued(row: &Arrival) -> u64 {
    row.started_ns.map_or(0, |started_ns| started_ns.saturating_sub(row.enqueued_ns).max(0) as u64)
}

/// Compares what the last rank did with what the others did on average.
fn blame(late: &mut Late, rows: &[Arrival], at: usize, on_gpu: bool) {
    let Some(last) = rows.get(at) else { return };
    let others = || {
        rows.iter().enumerate().filter(|(other, row)| *other != at && row.before.is_known).map(|(_, row)| row)
    };
    let count = others().count() as u64;
    if count == 0 || !last.before.is_known {
        return;
    }
    let mut compare = |kind: Kind, name: u32, of: &dyn Fn(&Arrival) -> u64| {
        let average_ns = others().map(of).fold(0, u64::saturating_add) / count;
        let excess_ns = of(last).saturating_sub(average_ns);
        if excess_ns == 0 || (late.causes.len() >= MOST_CAUSES && !late.causes.contains_key(&(kind, name))) {
            return;
        }
        let sum = late.causes.entry((kind, name)).or_default();
        sum.collectives += 1;
        sum.excess_ns = sum.excess_ns.saturating_add(excess_ns);
        if kind == Kind::Call {
            // A request is of this call if it fits into it.
            let (request, ns) = last.before.ioctl;
            if ns > 0 && ns <= of(last) && ns >= excess_ns / 2 && sum.requests.len() < MOST_CAUSES {
                let total = sum.requests.entry(request).or_default();
                *total = total.saturating_add(ns);
            }
            let is_longest = last.before.calls.first().is_some_and(|(longest, _)| *longest == name);
            if last.before.site != 0 && is_longest && sum.sites.len() < MOST_CAUSES {
                let total = sum.sites.entry(last.before.site).or_default();
                *total = total.saturating_add(excess_ns);
            }
        }
    };
    for (name, ns) in last.before.calls {
        if ns > 0 {
            compare(Kind::Call, name, &|row| in_call(row, name));
        }
    }
    compare(Kind::OwnCode, 0, &|row| row.before.own_ns);
    compare(Kind::OffCpu, 0, &|row| row.before.off_cpu_ns);
    if on_gpu {
        compare(Kind::Queue, 0, &queued);
    }
}

fn causes(late: &Late, names: &Names) -> Vec<Cause> {
    let most =
        |of: &BTreeMap<u32, u64>| of.iter().max_by_key(|(_, ns)| **ns).map(|(name, _)| names.text(*name));
    let least_ns = late.late_ns / 100 * LEAST_PERCENT;
    let listed = late.causes.iter().filter(|(_, sum)| sum.excess_ns >= least_ns);
    let mut causes: Vec<Cause> = listed
        .map(|((kind, name), sum)| Cause {
            kind: kind.name(),
            name: (*kind == Kind::Call).then(|| names.text(*name)),
            collectives: sum.collectives,
            excess_ns: sum.excess_ns,
            request: most(&sum.requests),
            site: most(&sum.sites),
        })
        .collect();
    causes.sort_by(|a, b| (b.excess_ns, a.kind, &a.name).cmp(&(a.excess_ns, b.kind, &b.name)));
    causes.truncate(LISTED);
    causes
}
