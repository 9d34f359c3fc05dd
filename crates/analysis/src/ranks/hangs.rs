//! Communicators whose sequence stands still. In: what each process did last. Out: for each such communicator, who has not
//! called the collective that others wait in, and what each rank is in. Not here: how it is shown.

use std::collections::BTreeMap;

use serde::Serialize;

use super::arrival::Who;
use super::process::{InCall, Last};

/// A collective that others entered this long before the end of a rank's trace is one that the rank does not come to.
const STANDS_NS: i64 = 1_000_000_000;
/// Limit on the hangs listed: of nested communicators the one that stands longest is the cause.
const MOST: usize = 20;

/// A member of a communicator at the end of its trace.
#[derive(Clone, Debug)]
pub struct Standing {
    pub who: Who,
    pub rank: Option<u32>,
    pub last: Last,
    /// The last time of its trace, and of the enqueue of its last collective, on the clock of the reference.
    pub end_ns: i64,
    pub enqueued_ns: i64,
    pub ended: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InFlight {
    pub rank: Option<u32>,
    /// It has not called the collective.
    pub is_missing: bool,
    /// The open calls of each thread that is in one, the outermost first.
    pub threads: Vec<Thread>,
    /// The last collective of the communicator that it called.
    pub last: Option<LastCall>,
    pub process: Option<String>,
    pub xids: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Thread {
    pub tid: u32,
    pub calls: Vec<String>,
    /// The request to nvidia.ko that it is in.
    pub request: Option<String>,
    pub site: Option<String>,
    pub for_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LastCall {
    pub seq: u64,
    pub op: String,
    pub before_end_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hang {
    pub comm: String,
    /// The collective that some have called and others have not.
    pub seq: u64,
    pub op: String,
    pub missing: Vec<Option<u32>>,
    /// For how long the first rank had been in it at the end.
    pub stood_ns: u64,
    pub in_flight: Vec<InFlight>,
    /// Ranks whose traces end before the others called it.
    pub unknown: Vec<Option<u32>>,
}

pub struct Describe<'a> {
    pub name: &'a dyn Fn(u32) -> String,
    pub in_calls: &'a dyn Fn(Who) -> Vec<InCall>,
    pub xids: &'a dyn Fn(Who) -> Vec<String>,
}

/// `comms`: the members of each communicator.
pub fn hangs(comms: BTreeMap<u32, Vec<Standing>>, describe: &Describe) -> Vec<Hang> {
    let mut hangs: Vec<Hang> =
        comms.into_iter().filter_map(|(comm, members)| hang(comm, &members, describe)).collect();
    hangs.sort_by(|a, b| (b.stood_ns, &a.comm).cmp(&(a.stood_ns, &b.comm)));
    hangs.truncate(MOST);
    hangs
}

fn hang(comm: u32, members: &[Standing], describe: &Describe) -> Option<Hang> {
    let seq = members.iter().map(|it| it.last.seq).max()?;
    let there = || members.iter().filter(|it| it.last.seq == seq);
    let first = there().min_by_key(|it| it.enqueued_ns)?;
    let (mut missing, mut unknown) = (Vec::new(), Vec::new());
    for member in members.iter().filter(|it| it.last.seq < seq) {
        let stood_ns = member.end_ns - first.enqueued_ns;
        if member.ended.is_some() || stood_ns >= STANDS_NS {
            missing.push(member);
        } else if stood_ns < 0 {
            unknown.push(member.rank);
        }
    }
    if missing.is_empty() {
        return None;
    }
    let in_flight = |member: &Standing| InFlight {
        rank: member.rank,
        is_missing: member.last.seq < seq,
        threads: (describe.in_calls)(member.who)
            .into_iter()
            .map(|InCall { tid, calls, request, site, for_ns }| Thread { tid, calls, request, site, for_ns })
            .collect(),
        last: Some(LastCall {
            seq: member.last.seq,
            op: (describe.name)(member.last.what.op),
            before_end_ns: (member.end_ns - member.enqueued_ns).max(0) as u64,
        }),
        process: member.ended.clone(),
        xids: (describe.xids)(member.who),
    };
    let mut ranks: Vec<Option<u32>> = missing.iter().map(|it| it.rank).collect();
    ranks.sort_unstable();
    let end_ns = members.iter().map(|it| it.end_ns).max().unwrap_or(0);
    Some(Hang {
        comm: (describe.name)(comm),
        seq,
        op: (describe.name)(first.last.what.op),
        missing: ranks,
        stood_ns: (end_ns - first.enqueued_ns).max(0) as u64,
        // The missing ones first: the reason is there.
        in_flight: missing.iter().copied().chain(there()).map(in_flight).collect(),
        unknown,
    })
}
