//! Communicators whose sequence stands still. In: what each process did last. Out: for each such communicator, who has not
//! called the collective that others wait in, and what each rank is in. Not here: how it is shown.

use std::collections::{BTreeMap, BTreeSet};

use gpurec_trace::hash::Map;
use serde::Serialize;

use super::arrival::{What, Who};
use super::process::{InCall, Last};

/// A collective that others entered this long before the end of a rank's trace is one that the rank does not come to.
const STANDS_NS: i64 = 1_000_000_000;
/// Limits on the hangs listed, and on the ranks of one. Of nested communicators, the one that stands longest is the
/// cause.
const MOST: usize = 20;
const MOST_RANKS: usize = 4096;

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
    /// It has not called the collective, or with other arguments.
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
    pub site: Option<String>,
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

/// `comms`: the members of each communicator. Also returns a communicator that may stand still because of ranks without a
/// trace.
pub fn hangs(comms: BTreeMap<u32, Vec<Standing>>, describe: &Describe) -> (Vec<Hang>, Option<u32>) {
    let mut hangs: Vec<Hang> = Vec::new();
    let mut unclear = None;
    for (comm, members) in comms {
        let found = hang(comm, &members, describe);
        if found.is_none() && waits_for_others(&members, describe) {
            unclear.get_or_insert(comm);
        }
        hangs.extend(found);
        hangs.sort_by(|a, b| (b.stood_ns, &a.comm).cmp(&(a.stood_ns, &b.comm)));
        hangs.truncate(MOST);
    }
    (hangs, unclear)
}

/// All ranks with a trace stand in one collective, and there are ranks without.
fn waits_for_others(members: &[Standing], describe: &Describe) -> bool {
    let all = members.iter().filter_map(|it| it.last.nranks).max().unwrap_or(0) as usize;
    let Some(first) = members.iter().min_by_key(|it| it.enqueued_ns) else { return false };
    let stands = |it: &Standing| {
        it.last.seq == first.last.seq
            && !it.last.is_done
            && it.ended.is_none()
            && it.end_ns.saturating_sub(first.enqueued_ns) >= STANDS_NS
            && !(describe.in_calls)(it.who).is_empty()
    };
    members.len() < all && first.last.seq.is_some() && members.iter().all(stands)
}

/// All ranks have called the last collective, some of them with other arguments, and are in calls ever since.
fn called_otherwise<'a>(members: &'a [Standing], first: &Standing, describe: &Describe) -> Vec<&'a Standing> {
    let is_open = members.iter().any(|it| it.last.is_open);
    let what = |it: &Standing| match is_open {
        true => What { op: it.last.what.op, ..What::default() },
        false => it.last.what,
    };
    if members.iter().all(|it| what(it) == what(first)) {
        return Vec::new();
    }
    let mut same: Map<What, usize> = Map::default();
    members.iter().for_each(|it| *same.entry(what(it)).or_default() += 1);
    let Some(most) = members.iter().max_by_key(|it| same.get(&what(it))).map(what) else {
        return Vec::new();
    };
    let stands = |it: &&Standing| {
        it.end_ns.saturating_sub(first.enqueued_ns) >= STANDS_NS
            && it.ended.is_none()
            && !(describe.in_calls)(it.who).is_empty()
    };
    let odd: Vec<&Standing> = members.iter().filter(|it| what(it) != most).collect();
    if odd.iter().all(stands) { odd } else { Vec::new() }
}

fn hang(comm: u32, members: &[Standing], describe: &Describe) -> Option<Hang> {
    let seq = members.iter().filter_map(|it| it.last.seq).max()?;
    let there = || members.iter().filter(|it| it.last.seq == Some(seq));
    let first = there().min_by_key(|it| it.enqueued_ns)?;
    let (mut missing, mut unknown) = (Vec::new(), Vec::new());
    let is_done = there().any(|it| it.last.is_done);
    for member in members.iter().filter(|it| it.last.seq < Some(seq)) {
        if is_done && member.last.seq.is_none() {
            // Its collectives are not in its trace: the others came through.
            continue;
        }
        let stood_ns = member.end_ns.saturating_sub(first.enqueued_ns);
        if member.ended.is_some() || stood_ns >= STANDS_NS {
            missing.push(member);
        } else if stood_ns < 0 {
            unknown.push(member.rank);
        }
    }
    if missing.is_empty() {
        missing = called_otherwise(members, first, describe);
    }
    if missing.is_empty() {
        return None;
    }
    let absent: BTreeSet<Who> = missing.iter().map(|it| it.who).collect();
    let is_missing = |member: &Standing| absent.contains(&member.who);
    let in_flight = |member: &Standing| InFlight {
        rank: member.rank,
        is_missing: is_missing(member),
        threads: (describe.in_calls)(member.who)
            .into_iter()
            .map(|InCall { tid, calls, request, site, for_ns }| Thread { tid, calls, request, site, for_ns })
            .collect(),
        last: member.last.seq.map(|seq| LastCall {
            seq,
            op: (describe.name)(member.last.what.op),
            before_end_ns: member.end_ns.saturating_sub(member.enqueued_ns).max(0) as u64,
            site: (member.last.site != 0).then(|| (describe.name)(member.last.site)),
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
        stood_ns: end_ns.saturating_sub(first.enqueued_ns).max(0) as u64,
        // The missing ones first: the reason is there.
        in_flight: missing
            .iter()
            .copied()
            .chain(there().filter(|it| !is_missing(it)))
            .take(MOST_RANKS)
            .map(in_flight)
            .collect(),
        unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks that stand in their last collective, the second in another operation.
    fn members(ops: [u32; 3], seqs: [u64; 3], end_ns: i64) -> Vec<Standing> {
        let one = |(rank, (op, seq)): (usize, (u32, u64))| Standing {
            who: Who { trace: rank as u32, pid: 1 },
            rank: Some(rank as u32),
            last: Last {
                rank: rank as u32,
                nranks: Some(3),
                seq: Some(seq),
                is_open: false,
                is_done: false,
                what: What { op, ..What::default() },
                enqueued_ns: 0,
                site: 0,
            },
            end_ns,
            enqueued_ns: 0,
            ended: None,
        };
        ops.into_iter().zip(seqs).enumerate().map(one).collect()
    }

    fn missing(members: &[Standing], in_call: bool) -> Option<Vec<Option<u32>>> {
        let call = || InCall { calls: vec!["ncclAllReduce".to_owned()], ..InCall::default() };
        let describe = Describe {
            name: &|number| number.to_string(),
            in_calls: &|_| if in_call { vec![call()] } else { Vec::new() },
            xids: &|_| Vec::new(),
        };
        hang(1, members, &describe).map(|hang| hang.missing)
    }

    #[test]
    fn who_did_not_come_or_called_something_else() {
        const LONG: i64 = 2 * STANDS_NS;
        assert_eq!(missing(&members([4, 4, 4], [9, 9, 9], LONG), true), None);
        assert_eq!(missing(&members([4, 4, 4], [9, 8, 9], LONG), false), Some(vec![Some(1)]));
        assert_eq!(missing(&members([4, 4, 4], [9, 8, 9], STANDS_NS / 2), true), None, "it may still come");
        assert_eq!(missing(&members([4, 5, 4], [9, 9, 9], LONG), true), Some(vec![Some(1)]));
        assert_eq!(missing(&members([4, 5, 4], [9, 9, 9], LONG), false), None, "they went on");
        // It has made the communicator, and comes to no collective of it.
        let mut first = members([4, 4, 4], [0, 0, 0], LONG);
        first[1].last.seq = None;
        assert_eq!(missing(&first, true), Some(vec![Some(1)]));
        first[2].last.is_done = true;
        assert_eq!(missing(&first, true), None, "its collectives are not in its trace");
        // One stands in the call itself, of which the operation alone is known.
        let mut open = members([4, 4, 4], [9, 9, 9], LONG);
        open[0].last.is_open = true;
        open[2].last.what.count = Some(7);
        assert_eq!(missing(&open, true), None);
        let mut ended = members([4, 4, 4], [9, 8, 9], 0);
        ended[1].ended = Some("killed by SIGKILL".to_owned());
        assert_eq!(missing(&ended, true), Some(vec![Some(1)]));
    }

    #[test]
    fn the_ranks_of_a_hang_are_bounded_and_the_missing_ones_come_first() {
        let [here, absent, _]: [Standing; 3] = members([4; 3], [9, 8, 9], 2 * STANDS_NS).try_into().unwrap();
        let who = |trace| Who { trace, pid: 1 };
        let mut all: Vec<Standing> =
            (0..MOST_RANKS as u32 + 100).map(|trace| Standing { who: who(trace), ..here.clone() }).collect();
        all.push(Standing { who: who(u32::MAX), ..absent });
        let describe =
            Describe { name: &|_| String::new(), in_calls: &|_| Vec::new(), xids: &|_| Vec::new() };
        let hang = hang(1, &all, &describe).unwrap();
        assert_eq!((hang.missing, hang.in_flight.len()), (vec![Some(1)], MOST_RANKS));
        assert_eq!(hang.in_flight.iter().position(|it| it.is_missing), Some(0));
    }
}
