//! One stream in time's order out of a ring for each CPU.
//!
//! BPF takes a record's timestamp after its room in the ring. So if every ring is read
//! up to what was produced after a moment T, and none ends in a record still being
//! written, then everything older than T has been read: T is the watermark, and what is
//! not younger may be released. A ring that ends in an unfinished record holds the
//! watermark at the moment when it was last read to the end.
//!
//! A backlog is not read to its end: it stays in its ring, which is there for it, and is read in parts that fit into a
//! CPU's cache. How far such a part is complete the records say: a hit had its room after the hit of the same thread
//! before it had its time, and all that lies behind had its room later still.
//! Not here: what an item means; any clock of our own.

use std::collections::VecDeque;

use super::decode::{Item, What};

/// Items that a queue keeps room for, and that are read of a ring at once. What a backlog took beyond is given back
/// when it has been read, or a moment without CPU would be held for the rest of a long recording.
pub const PART: usize = 4 << 10;

/// Threads of a ring whose last hits are known, by the last bits of their numbers. On one CPU few take turns.
const THREADS: usize = 16;

pub struct Order {
    rings: Vec<Queue>,
    /// The ring that all others wait for, while more of it can be read.
    holder: Option<usize>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Everything older than this has been read from the ring.
    complete_to: u64,
    /// So it was when the last record that was read had its room.
    had_room: u64,
    /// A thread's number, and the time of its last hit.
    last: [(u32, u64); THREADS],
    /// It was not read to its end, and could have been.
    has_more: bool,
}

impl Order {
    pub fn new(rings: usize) -> Order {
        Order { rings: (0..rings).map(|_| Queue::default()).collect(), holder: None }
    }

    /// Is the ring to be read? Not when much of it waits for another one that is behind: it is not moved from there to
    /// here, where no limit would be.
    pub fn wants(&self, ring: usize) -> bool {
        self.rings[ring].items.len() < PART || self.holder.is_none_or(|holder| holder == ring)
    }

    pub fn push(&mut self, ring: usize, item: Item) {
        self.rings[ring].push(item);
    }

    /// The ring was read to its end, as it was at `time` or later.
    pub fn complete(&mut self, ring: usize, time: u64) {
        self.rings[ring].complete_to = time;
        self.rings[ring].has_more = false;
    }

    /// More of the ring could have been read.
    pub fn has_more(&mut self, ring: usize) {
        let queue = &mut self.rings[ring];
        queue.complete_to = queue.complete_to.max(queue.had_room);
        queue.has_more = true;
    }

    /// A record of the ring is still being written.
    pub fn is_held_up(&mut self, ring: usize) {
        self.rings[ring].has_more = false;
    }

    /// Gives what is complete to `each`, in time's order. Returns up to when that is.
    pub fn release(&mut self, each: &mut dyn FnMut(Item)) -> u64 {
        let behind = self.rings.iter().enumerate().min_by_key(|(_, queue)| queue.complete_to);
        let watermark = behind.map_or(u64::MAX, |(_, queue)| queue.complete_to);
        self.holder = behind.filter(|(_, queue)| queue.has_more).map(|(ring, _)| ring);
        self.release_to(watermark, each);
        self.rings.iter_mut().for_each(Queue::give_back);
        watermark
    }

    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.rings.iter().map(|queue| queue.items.capacity()).sum()
    }

    /// Gives everything that is left, for the end of a recording.
    pub fn release_all(&mut self, each: &mut dyn FnMut(Item)) {
        self.release_to(u64::MAX, each);
    }

    fn release_to(&mut self, watermark: u64, each: &mut dyn FnMut(Item)) {
        while let Some((first, limit)) = self.next_run(watermark) {
            let items = &mut self.rings[first].items;
            while items.front().is_some_and(|item| item.ts <= limit) {
                if let Some(item) = items.pop_front() {
                    each(item);
                }
            }
        }
    }

    /// The ring with the oldest item, and the time up to which no other ring has one: a
    /// run is taken from one ring without looking at the others again.
    fn next_run(&self, watermark: u64) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        let mut second = u64::MAX;
        for (ring, queue) in self.rings.iter().enumerate() {
            let Some(item) = queue.items.front() else { continue };
            match first {
                Some((_, ts)) if item.ts >= ts => second = second.min(item.ts),
                Some((_, ts)) => {
                    second = second.min(ts);
                    first = Some((ring, item.ts));
                }
                None => first = Some((ring, item.ts)),
            }
        }
        let (ring, ts) = first?;
        (ts <= watermark).then_some((ring, second.min(watermark)))
    }
}

impl Queue {
    fn give_back(&mut self) {
        if self.items.len() < PART && self.items.capacity() > 4 * PART {
            self.items.shrink_to(PART);
        }
    }

    /// Almost always at the end. A record can be older than its neighbour when a thread
    /// was preempted between getting its room and reading the clock.
    fn push(&mut self, item: Item) {
        self.note(&item);
        let mut at = self.items.len();
        while at > 0 && self.items[at - 1].ts > item.ts {
            at -= 1;
        }
        if at == self.items.len() {
            self.items.push_back(item);
        } else {
            self.items.insert(at, item);
        }
    }
    /// A thread's hits of user space follow each other: none begins before the program at the last one is over. What is
    /// told in the kernel may come in the middle of one.
    fn note(&mut self, item: &Item) {
        let (What::Call { origin, .. } | What::Return { origin, .. }) = &item.what else { return };
        if origin.kernel {
            return;
        }
        let last = &mut self.last[item.tid as usize % THREADS];
        if last.0 == item.tid {
            self.had_room = self.had_room.max(last.1);
        }
        *last = (item.tid, item.ts);
    }
}
