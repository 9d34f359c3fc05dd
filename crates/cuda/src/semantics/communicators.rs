//! The communicators of one process, and the numbers of the operations on them.
//!
//! In: communicators as they are made and ended, by their handles; operations in order. Out: an identity that is the
//! same on all ranks, this rank, and numbers that count alike on all ranks. Not here: calls and their arguments
//! (collectives.rs). What was not seen has no number: a wrong one would show a difference between ranks that is none.

use gpurec_trace::bounds::Share;
use gpurec_trace::bytes::digest;
use gpurec_trace::hash::Map;

/// Bytes that a communicator takes, and the counter of a peer.
const COMMUNICATOR: usize = 256;
const PEER: usize = 32;
/// The most communicators whose handles were not there when the calls that make them returned.
const MOST_PENDING: usize = 64;

#[derive(Default)]
pub struct Communicators {
    by_handle: Map<u64, Communicator>,
    /// Communicators whose handles the program is given later.
    pending: Vec<Communicator>,
    groups: u64,
    /// Every call of NCCL since the process began was seen.
    whole: bool,
}

/// A communicator, as one rank of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communicator {
    /// None: the calls do not show it.
    pub id: Option<u64>,
    pub rank: Option<u32>,
    pub nranks: Option<u32>,
    /// The event_id of the call that made it: another may get the same handle later.
    pub made: u64,
    /// Operations may have been missed: nothing is numbered.
    uncounted: bool,
    collectives: u64,
    /// By the other rank, and whether it is sent to.
    peers: Map<(u32, bool), u64>,
    splits: u64,
    shrinks: u64,
}

/// How a communicator is made from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child<'a> {
    Split { color: i32 },
    Shrink { without: &'a [u8], count: u32 },
}

/// The color of a rank that takes no part in a split.
const NO_COLOR: i32 = -1;

impl Communicators {
    /// Of a process that the recording saw begin.
    pub fn of_new(whole: bool) -> Communicators {
        Communicators { whole, ..Communicators::default() }
    }

    /// The number of a group of calls.
    pub fn next_group(&mut self) -> u64 {
        self.groups += 1;
        self.groups - 1
    }

    pub fn insert(&mut self, handle: u64, made: Communicator, tables: &mut Share) {
        self.remove(handle, None, tables);
        if handle != 0 {
            tables.insert(&mut self.by_handle, COMMUNICATOR, handle, made);
        } else if self.pending.len() < MOST_PENDING {
            self.pending.push(made);
        } else {
            self.whole = false;
        }
    }

    /// `made`: only if that call made it.
    pub fn remove(&mut self, handle: u64, made: Option<u64>, tables: &mut Share) {
        let is_meant = |known: &Communicator| made.is_none_or(|made| made == known.made);
        if self.by_handle.get(&handle).is_some_and(is_meant)
            && let Some(gone) = tables.remove(&mut self.by_handle, COMMUNICATOR, &handle)
        {
            tables.give_back(gone.peers.len() * PEER);
        }
    }

    /// A handle that is new belongs to the only communicator that waits for one.
    pub fn get(&mut self, handle: u64, tables: &mut Share) -> Option<&mut Communicator> {
        if self.whole && handle != 0 && self.pending.len() == 1 && !self.by_handle.contains_key(&handle) {
            let pending = self.pending.pop()?;
            tables.insert(&mut self.by_handle, COMMUNICATOR, handle, pending);
        }
        self.by_handle.get_mut(&handle)
    }

    /// Calls were missed.
    pub fn missed(&mut self) {
        self.whole = false;
        self.pending.clear();
        self.by_handle.values_mut().for_each(|known| known.uncounted = true);
    }
}

impl Communicator {
    pub fn new(id: Option<u64>, rank: Option<u32>, nranks: Option<u32>, made: u64) -> Communicator {
        Communicator { id, rank, nranks, made, ..Communicator::default() }
    }

    /// The text for all ranks.
    pub fn name(&self) -> Option<String> {
        self.id.map(|id| format!("{id:016x}"))
    }

    /// The number of a collective, counted from now on.
    pub fn collective(&mut self) -> Option<u64> {
        let number = self.collectives;
        self.collectives += 1;
        (!self.uncounted).then_some(number)
    }

    /// The number of a send to a peer, or of a receive from it.
    pub fn with_peer(&mut self, peer: u32, sends: bool, tables: &mut Share) -> Option<u64> {
        let number = self.peers.get(&(peer, sends)).copied().unwrap_or(0);
        if !tables.insert(&mut self.peers, PEER, (peer, sends), number + 1) {
            self.uncounted = true;
        }
        (!self.uncounted).then_some(number)
    }

    /// What this rank gets of a split or a shrink of this communicator. None: it takes no part. All ranks that take part
    /// make the same calls in the same order, so they get the same identity.
    pub fn child(&mut self, how: Child, made: u64) -> Option<Communicator> {
        let known = self.id.filter(|_| !self.uncounted);
        let id = |words: [&[u8]; 3]| {
            let parent = known?.to_le_bytes();
            Some(digest(&[&parent, words[0], words[1], words[2]].concat()))
        };
        match how {
            Child::Split { color } => {
                self.splits += 1;
                let id = id([b"split", &color.to_le_bytes(), &self.splits.to_le_bytes()]);
                (color != NO_COLOR).then(|| Communicator::new(id, None, None, made))
            }
            Child::Shrink { without, count } => {
                self.shrinks += 1;
                let id = id([b"shrink", without, &self.shrinks.to_le_bytes()]);
                let gone = without.chunks_exact(4).filter_map(|rank| gpurec_trace::bytes::u32_at(rank, 0));
                let before =
                    |rank: u32| rank.checked_sub(gone.clone().filter(|gone| *gone < rank).count() as u32);
                let is_whole = without.len() / 4 == count as usize;
                let rank = self.rank.filter(|_| is_whole).and_then(before);
                let nranks = self.nranks.and_then(|nranks| nranks.checked_sub(count));
                Some(Communicator::new(id, rank, nranks, made))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_trace::bounds::Room;

    fn tables() -> Share {
        Share::new(&Room::new(1 << 20))
    }

    #[test]
    fn ranks_agree_on_the_children_of_a_communicator() {
        let mut ranks: Vec<_> =
            (0..4).map(|rank| Communicator::new(Some(7), Some(rank), Some(4), 1)).collect();
        let split = |rank: &mut Communicator, color| rank.child(Child::Split { color }, 9);
        let first: Vec<_> =
            ranks.iter_mut().zip([0, 1, 0, 1]).map(|(rank, color)| split(rank, color).unwrap().id).collect();
        assert!(first[0] == first[2] && first[1] == first[3] && first[0] != first[1]);
        // One rank takes no part in the second split, and agrees with the others on the third.
        let second: Vec<_> =
            ranks.iter_mut().zip([0, 0, 0, NO_COLOR]).map(|(rank, color)| split(rank, color)).collect();
        assert!(second[3].is_none() && second[0] == second[2] && second[0].as_ref().unwrap().id != first[0]);
        let third: Vec<_> = ranks.iter_mut().map(|rank| split(rank, 0).unwrap().id).collect();
        assert!(third.iter().all(|id| *id == third[0] && id.is_some()));
        let without = [1u32.to_le_bytes()].concat();
        let shrunk = ranks[2].child(Child::Shrink { without: &without, count: 1 }, 9).unwrap();
        assert_eq!((shrunk.rank, shrunk.nranks), (Some(1), Some(3)));
        assert_eq!(shrunk.id, ranks[0].child(Child::Shrink { without: &without, count: 1 }, 9).unwrap().id);
    }

    #[test]
    fn a_handle_is_used_again() {
        let (mut all, mut tables) = (Communicators::of_new(true), tables());
        all.insert(5, Communicator::new(Some(1), None, None, 10), &mut tables);
        assert_eq!(all.get(5, &mut tables).unwrap().collective(), Some(0));
        // Another thread was given the handle before the call that ended the first one returned.
        all.insert(5, Communicator::new(Some(2), None, None, 20), &mut tables);
        all.remove(5, Some(10), &mut tables);
        let second = all.get(5, &mut tables).unwrap();
        assert_eq!((second.id, second.collective(), second.collective()), (Some(2), Some(0), Some(1)));
        all.remove(5, Some(20), &mut tables);
        assert!(all.get(5, &mut tables).is_none());
    }

    #[test]
    fn the_only_pending_communicator_gets_the_new_handle() {
        let (mut all, mut tables) = (Communicators::of_new(true), tables());
        let pending = |id| Communicator::new(Some(id), None, None, id);
        all.insert(0, pending(1), &mut tables);
        assert_eq!(all.get(5, &mut tables).unwrap().id, Some(1));
        all.insert(0, pending(2), &mut tables);
        all.insert(0, pending(3), &mut tables);
        assert!(all.get(6, &mut tables).is_none(), "it may be either");
        let mut running = Communicators::default();
        running.insert(0, pending(1), &mut tables);
        assert!(running.get(5, &mut tables).is_none(), "it may be older than the recording");
    }

    #[test]
    fn what_was_missed_is_not_numbered() {
        let (mut all, mut tables) = (Communicators::of_new(true), tables());
        all.insert(5, Communicator::new(Some(1), Some(0), Some(2), 1), &mut tables);
        let one = all.get(5, &mut tables).unwrap();
        let numbers = [true, false, true].map(|sends| one.with_peer(1, sends, &mut tables));
        assert_eq!(numbers, [Some(0), Some(0), Some(1)]);
        all.missed();
        let one = all.get(5, &mut tables).unwrap();
        assert_eq!((one.collective(), one.with_peer(1, true, &mut tables)), (None, None));
        assert_eq!(one.child(Child::Split { color: 1 }, 2).unwrap().id, None);
        assert_eq!(one.name().as_deref(), Some("0000000000000001"));
        all.insert(6, Communicator::new(Some(2), None, None, 9), &mut tables);
        assert_eq!(all.get(6, &mut tables).unwrap().collective(), Some(0), "it is new");
        let mut none = Share::new(&Room::new(0));
        assert_eq!(all.get(6, &mut none).unwrap().with_peer(1, true, &mut none), None);
    }
}
