//! Finds the parts of one collective in all traces. In: arrivals, rank by rank, each rank's in order. Out: finished
//! collectives (spool), bounds on the clocks, mismatches. Memory grows with the number of open collectives. Not here:
//! times of one host on the clock of another.

use std::collections::BTreeMap;
use std::io;

use gpurec_trace::bounds::entry;
use gpurec_trace::hash::Map;

use super::arrival::{Arrival, Key, Who};
use super::fit::Bounds;
use super::names::Names;
use super::spool::Spool;

/// Operations that no rank can leave before the last has begun.
const MEETINGS: [&str; 4] = ["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"];
/// A rank may deliver a collective up to this many places away from the order in which it made them.
const DISORDER: u64 = 256;
/// Limits on the open collectives of a communicator while ranks of it are not known, on its open transfers, on the parts
/// of all that are open, on communicators, on the members of all, on mismatches, and on the ranks of one.
const MOST_OPEN: usize = 1024;
const MOST_ROWS: usize = 1 << 18;
const MOST_COMMS: usize = 1 << 16;
const MOST_MEMBERS: usize = 1 << 18;
const MOST_VALUES: usize = 4096;
const MOST_TRANSFERS: usize = 1 << 15;
pub const MOST_MISMATCHES: usize = 100;

/// A member of a communicator.
#[derive(Clone, Copy, Debug)]
struct Member {
    who: Who,
    /// The highest number that it has delivered.
    highest: u64,
    is_over: bool,
}

#[derive(Default)]
struct Comm {
    members: BTreeMap<u32, Member>,
    /// The rank under which a process is a member.
    ranks: Map<Who, u32>,
    nranks: Option<u32>,
    open: BTreeMap<u64, Vec<Arrival>>,
    /// By the number, the sender and the receiver.
    transfers: BTreeMap<(u64, u32, u32), Vec<Arrival>>,
    /// Collectives below this are closed.
    closed: u64,
}

impl Comm {
    /// The one that has the rank. A process whose rank becomes known later stays the same member.
    fn member(&mut self, arrival: &Arrival) -> &mut Member {
        let mut rank = arrival.rank;
        if !self.members.contains_key(&rank) {
            rank = *self.ranks.entry(arrival.who).or_insert(rank);
        }
        let new = Member { who: arrival.who, highest: arrival.key.seq, is_over: false };
        self.members.entry(rank).or_insert(new)
    }

    /// How many ranks take part in that collective. Where the size of the communicator is not known, those with a trace
    /// that does not end before it.
    fn expected(&self, seq: u64) -> usize {
        let there = self.members.values().filter(|it| !it.is_over || it.highest >= seq);
        self.nranks.map_or_else(|| there.count(), |all| all as usize)
    }
}

/// Ranks that called one collective with different arguments.
#[derive(Clone, Debug)]
pub struct Mismatch {
    pub key: Key,
    pub field: &'static str,
    pub values: Vec<(Who, Option<String>)>,
    /// The call sites; 0 if not known.
    pub sites: Vec<(Who, u32)>,
}

pub struct Matcher {
    names: Names,
    /// The domain of the clock of each trace.
    domains: Vec<usize>,
    comms: Map<u32, Comm>,
    /// Members and arrivals in all of them.
    members: usize,
    rows: usize,
    /// Parts of communicators that are beyond the limit.
    pub left_out: u64,
    spool: Spool,
    /// By two domains: how far the clock of the second is ahead of the first's.
    pub bounds: BTreeMap<(usize, usize), Bounds>,
    pub mismatches: Vec<Mismatch>,
    pub more_mismatches: u64,
    /// The process that is left out, and the one that is the same rank of the same communicator.
    pub duplicates: BTreeMap<Who, Who>,
    /// Collectives that some of the ranks did not reach.
    pub partial: u64,
    meets: Map<u32, bool>,
}

impl Matcher {
    pub fn new(names: Names, domains: Vec<usize>) -> Matcher {
        Matcher {
            names,
            domains,
            comms: Map::default(),
            members: 0,
            rows: 0,
            left_out: 0,
            spool: Spool::default(),
            bounds: BTreeMap::new(),
            mismatches: Vec::new(),
            more_mismatches: 0,
            duplicates: BTreeMap::new(),
            partial: 0,
            meets: Map::default(),
        }
    }

    pub fn add(&mut self, arrival: Arrival) -> io::Result<()> {
        let Key { comm, from, to, seq } = arrival.key;
        if self.duplicates.contains_key(&arrival.who) {
            return Ok(());
        }
        let Some(of) = entry(&mut self.comms, comm, MOST_COMMS) else {
            self.left_out += 1;
            return Ok(());
        };
        if !of.members.contains_key(&arrival.rank) && !of.ranks.contains_key(&arrival.who) {
            if self.members >= MOST_MEMBERS {
                self.left_out += 1;
                return Ok(());
            }
            self.members += 1;
        }
        let member = of.member(&arrival);
        if member.who != arrival.who {
            self.duplicates.insert(arrival.who, member.who);
            return Ok(());
        }
        if arrival.key.is_collective() {
            member.highest = member.highest.max(seq);
        } else {
            let rows = of.transfers.entry((seq, from, to)).or_default();
            rows.push(arrival);
            self.rows += 1;
            if rows.len() < 2 {
                return self.make_room(comm);
            }
            let rows = of.transfers.remove(&(seq, from, to)).unwrap_or_default();
            return self.close(&rows, true);
        }
        of.nranks = of.nranks.max(arrival.nranks);
        if seq < of.closed {
            return Ok(());
        }
        let rows = of.open.entry(seq).or_default();
        rows.push(arrival);
        self.rows += 1;
        if arrival.nranks.is_none_or(|all| rows.len() < all as usize) {
            return self.make_room(comm);
        }
        let rows = of.open.remove(&seq).unwrap_or_default();
        self.close(&rows, true)
    }

    /// Closes the oldest open collective of a communicator if all communicators together have too many open parts.
    fn make_room(&mut self, comm: u32) -> io::Result<()> {
        if self.rows <= MOST_ROWS {
            return Ok(());
        }
        let Some(of) = self.comms.get_mut(&comm) else { return Ok(()) };
        let Some((seq, rows)) = of.open.pop_first() else {
            let rows = of.transfers.pop_first().map(|(_, rows)| rows).unwrap_or_default();
            return self.close(&rows, false);
        };
        of.closed = seq.saturating_add(1);
        let is_all = rows.len() == of.expected(seq);
        self.close(&rows, is_all)
    }

    /// The trace has no more lines.
    pub fn over(&mut self, trace: u32) {
        for member in self.comms.values_mut().flat_map(|comm| comm.members.values_mut()) {
            member.is_over |= member.who.trace == trace;
        }
    }

    /// Closes the collectives that no rank still delivers. All traces have been read up to the same time.
    pub fn round(&mut self) -> io::Result<()> {
        let mut old = Vec::new();
        for of in self.comms.values_mut() {
            // Where all traces are over, `finish` closes the rest.
            let still = of.members.values().filter(|it| !it.is_over);
            let Some(low) = still.map(|it| it.highest).min() else { continue };
            let all_known = of.nranks.is_some_and(|all| of.members.len() >= all as usize);
            while let Some((seq, _)) = of.open.first_key_value() {
                let (seq, is_late) = (*seq, of.open.len() > MOST_OPEN);
                if seq.saturating_add(DISORDER) > low || !(all_known || is_late) {
                    break;
                }
                let rows = of.open.remove(&seq).unwrap_or_default();
                of.closed = seq.saturating_add(1);
                let is_all = rows.len() == of.expected(seq);
                old.push((rows, is_all));
            }
            while of.transfers.len() > MOST_TRANSFERS {
                old.extend(of.transfers.pop_first().map(|(_, rows)| (rows, false)));
            }
        }
        old.iter().try_for_each(|(rows, is_all)| self.close(rows, *is_all))
    }

    /// All traces are read. Collectives that ranks with a trace did not reach have no last arrival.
    pub fn finish(&mut self) -> io::Result<()> {
        let comms = std::mem::take(&mut self.comms);
        let mut comms: Vec<(u32, Comm)> = comms.into_iter().collect();
        comms.sort_by_key(|(comm, _)| *comm);
        for (_, comm) in &comms {
            for (seq, rows) in &comm.open {
                // Where none has ended, those that are not there are what the others wait for.
                let is_over = rows.iter().any(|row| row.ended_ns.is_some());
                self.close(rows, is_over && rows.len() == comm.expected(*seq))?;
            }
            for rows in comm.transfers.values() {
                self.close(rows, false)?;
            }
        }
        Ok(())
    }

    pub fn into_spool(self) -> Spool {
        self.spool
    }

    fn close(&mut self, rows: &[Arrival], is_all: bool) -> io::Result<()> {
        self.rows = self.rows.saturating_sub(rows.len());
        self.compare(rows);
        self.bound(rows);
        if !is_all || rows.len() < 2 {
            // A communicator may have one rank only.
            let is_alone = is_all || rows.first().is_some_and(|row| row.nranks == Some(1));
            self.partial += u64::from(!is_alone);
            return Ok(());
        }
        self.spool.push(rows)
    }

    fn compare(&mut self, rows: &[Arrival]) {
        let Some(first) = rows.first() else { return };
        let is_odd = |row: &Arrival| row.what != first.what;
        if !rows.iter().any(is_odd) {
            return;
        }
        let names = self.names.clone();
        let name = |number: Option<u32>| number.map(|number| names.text(number));
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        type Field<'a> = (&'static str, &'a dyn Fn(&Arrival) -> Option<String>);
        let fields: [Field; 5] = [
            ("op", &|row| name(Some(row.what.op))),
            ("count", &|row| number(row.what.count)),
            ("dtype", &|row| name(row.what.dtype)),
            ("root", &|row| number(row.what.root.map(u64::from))),
            ("redop", &|row| name(row.what.redop)),
        ];
        for (field, of) in fields {
            // A send and a receive are two operations of one transfer.
            let values = rows.iter().map(|row| (row.who, of(row)));
            let usual = of(first);
            let differs = values.clone().any(|(_, value)| value != usual);
            if !differs || (field == "op" && !first.key.is_collective()) {
                continue;
            }
            if self.mismatches.len() < MOST_MISMATCHES {
                // The odd ones first, in case that not all fit.
                let (same, mut odd): (Vec<_>, Vec<_>) = values.partition(|(_, value)| *value == usual);
                let room = MOST_VALUES - odd.len().min(MOST_VALUES - 1);
                odd.truncate(MOST_VALUES - 1);
                let values = odd.into_iter().chain(same.into_iter().take(room)).collect();
                let sites = rows.iter().take(MOST_VALUES).map(|row| (row.who, row.site)).collect();
                self.mismatches.push(Mismatch { key: first.key, field, values, sites });
            } else {
                self.more_mismatches += 1;
            }
        }
    }

    /// No rank ends before the last has begun.
    fn bound(&mut self, rows: &[Arrival]) {
        let Some(first) = rows.first().filter(|row| row.key.is_collective()) else { return };
        let names = &self.names;
        let meets = self.meets.entry(first.what.op);
        let all_meet = *meets.or_insert_with(|| MEETINGS.contains(&names.text(first.what.op).as_str()));
        if !all_meet || rows.iter().any(|row| row.what.op != first.what.op) {
            return;
        }
        // By domain: the latest begin and the earliest end.
        let mut hosts: BTreeMap<usize, (i64, Option<i64>)> = BTreeMap::new();
        for row in rows {
            let Some(domain) = self.domains.get(row.who.trace as usize) else { continue };
            let began_ns = row.started_ns.unwrap_or(row.enqueued_ns);
            let (latest, earliest) = hosts.entry(*domain).or_insert((began_ns, row.ended_ns));
            *latest = began_ns.max(*latest);
            *earliest = match (*earliest, row.ended_ns) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        let Some((hub, (hub_began, hub_ended))) = hosts.pop_first() else { return };
        for (host, (began, ended)) in hosts {
            let bounds = self.bounds.entry((hub, host)).or_default();
            if let Some(ended) = ended {
                bounds.at_most(hub_began, ended.saturating_sub(hub_began));
            }
            if let Some(hub_ended) = hub_ended {
                bounds.at_least(hub_ended, began.saturating_sub(hub_ended));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrival::{ALL, What};
    use super::*;

    fn matcher() -> Matcher {
        Matcher::new(Names::default(), vec![0])
    }

    fn arrival(comm: u32, rank: u32, seq: u64, nranks: Option<u32>) -> Arrival {
        Arrival {
            who: Who { trace: 0, pid: rank },
            key: Key { comm, from: ALL, to: ALL, seq },
            rank,
            nranks,
            what: What::default(),
            site: 0,
            enqueued_ns: 0,
            started_ns: None,
            ended_ns: Some(1),
            before: Default::default(),
        }
    }

    #[test]
    fn communicators_and_members_beyond_the_bounds_are_counted() {
        let mut matcher = matcher();
        (0..MOST_COMMS as u32 + 5).for_each(|comm| matcher.add(arrival(comm, 0, 0, Some(1))).unwrap());
        assert_eq!(matcher.left_out, 5);
        let mut matcher = self::matcher();
        (0..MOST_MEMBERS as u32 + 7).for_each(|rank| matcher.add(arrival(1, rank, 0, None)).unwrap());
        assert_eq!(matcher.left_out, 7);
    }

    /// The oldest collectives do without the ranks that come after they were closed, and are no mismatch.
    #[test]
    fn open_collectives_are_bounded() {
        let mut matcher = matcher();
        [0, 1].into_iter().for_each(|rank| matcher.add(arrival(1, rank, 0, Some(2))).unwrap());
        let most = MOST_ROWS as u64;
        (1..=most + 3).for_each(|seq| matcher.add(arrival(1, 0, seq, Some(2))).unwrap());
        assert_eq!((matcher.partial, matcher.rows), (3, MOST_ROWS));
        let late =
            |seq| Arrival { what: What { count: Some(9), ..What::default() }, ..arrival(1, 1, seq, Some(2)) };
        (1..=4).for_each(|seq| matcher.add(late(seq)).unwrap());
        assert_eq!((matcher.partial, matcher.rows), (3, MOST_ROWS - 1));
        let of_late: Vec<u64> = matcher.mismatches.iter().map(|it| it.key.seq).collect();
        assert_eq!(of_late, [4]);
        let mut whole = Vec::new();
        matcher.into_spool().each(|rows| whole.push((rows[0].key.seq, rows.len()))).unwrap();
        assert_eq!(whole, [(0, 2), (4, 2)]);
    }

    #[test]
    fn of_the_values_of_a_mismatch_the_odd_ones_stay() {
        let mut matcher = matcher();
        let all = MOST_VALUES as u32 + 1000;
        for rank in 0..all {
            let odd = rank >= all - 10;
            let what = What { count: Some(if odd { 7 } else { 8 }), ..What::default() };
            matcher.add(Arrival { what, ..arrival(1, rank, 0, Some(all)) }).unwrap();
        }
        let [mismatch] = matcher.mismatches.as_slice() else { panic!("{}", matcher.mismatches.len()) };
        let odd = mismatch.values.iter().filter(|(_, value)| value.as_deref() == Some("7")).count();
        assert_eq!((mismatch.values.len(), odd, mismatch.sites.len()), (MOST_VALUES, 10, MOST_VALUES));
    }
}
