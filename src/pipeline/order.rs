//! One stream in time's order out of a ring for each CPU.
//!
//! BPF takes a record's timestamp after its room in the ring. So if every ring is read
//! up to what was produced after a moment T, and none ends in a record still being
//! written, then everything older than T has been read: T is the watermark, and what is
//! not younger may be released. A ring that ends in an unfinished record holds the
//! watermark at the moment when it was last read to the end.
//! Not here: what an item means; any clock of our own.

use std::collections::VecDeque;

use super::decode::Item;

/// Items that an empty queue keeps room for. What a backlog took beyond is given back when it has been read, or a
/// moment without CPU would be held for the rest of a long recording.
const ROOM: usize = 8 << 10;

pub struct Order {
    rings: Vec<Queue>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Everything older than this has been read from the ring.
    complete_to: u64,
}

impl Order {
    pub fn new(rings: usize) -> Order {
        Order { rings: (0..rings).map(|_| Queue::default()).collect() }
    }

    pub fn push(&mut self, ring: usize, item: Item) {
        self.rings[ring].push(item);
    }

    /// The ring was read to its end, as it was at `time` or later.
    pub fn complete(&mut self, ring: usize, time: u64) {
        self.rings[ring].complete_to = time;
    }

    /// Gives what is complete to `each`, in time's order.
    pub fn release(&mut self, each: &mut dyn FnMut(Item)) {
        let watermark = self.rings.iter().map(|q| q.complete_to).min().unwrap_or(u64::MAX);
        self.release_to(watermark, each);
        self.rings.iter_mut().for_each(Queue::give_back);
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
        if self.items.len() < ROOM && self.items.capacity() > 4 * ROOM {
            self.items.shrink_to(ROOM);
        }
    }

    /// Almost always at the end. A record can be older than its neighbour when a thread
    /// was preempted between getting its room and reading the clock.
    fn push(&mut self, item: Item) {
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
}
