//! Merges the rings of all CPUs into one stream in time order.
//!
//! BPF takes a record's timestamp after it reserves room in the ring. So if every ring is read up to what was
//! produced after a moment T, and none ends in an unfinished record, then everything older than T has been read: T is
//! the watermark, and items no younger than T may be released. A ring that ends in an unfinished record holds the
//! watermark at the moment when it was last read to the end.
//!
//! A backlog is not read to its end: it stays in its ring, which has the room for it, and is read in parts that fit
//! into a CPU's cache. The records themselves show up to when such a part is complete: a hit reserved its room after
//! the timestamp of the same thread's hit before it, and all records behind it reserved theirs later still.
//!
//! The receiver may put off an item. The rings are still read then, and their items kept here, up to a limit: what a
//! program does meanwhile is not lost. Not here: what an item means; any clock of our own.

use std::collections::VecDeque;
use std::mem;
use std::task::Poll;

use super::decode::{Item, What};

/// The number of items that a queue keeps room for, and that are read from a ring at once. Room beyond this is freed
/// after a backlog: otherwise a moment without CPU would keep memory for the rest of a long recording.
pub const PART: usize = 4 << 10;

/// The most items that are kept while one of them is put off, and how many of them are released at once: the rings must
/// be read in between. They take some 200 bytes each.
const MOST_KEPT: usize = 512 << 10;
const AT_ONCE: usize = 4 * PART;

/// An item is fetched into the CPU's cache this number of items before its turn.
const AHEAD: usize = 8;

/// Bytes of a line of a CPU's cache.
const LINE: usize = 64;

/// The most used parts that are kept.
const SPARE: usize = 16;

/// Number of threads per ring whose last hits are known, by the last bits of their tids. Few threads take turns on
/// one CPU.
const THREADS: usize = 16;

#[derive(Default)]
pub struct Order {
    rings: Vec<Queue>,
    /// The ring that all others wait for, if more of it can be read.
    holder: Option<usize>,
    /// An item was put off, and the items that came meanwhile are not all released.
    is_behind: bool,
    /// While items are released: the rings that have any, and the time of the oldest of each.
    fronts: Vec<usize>,
    times: Vec<u64>,
    /// Used parts, whose memory new ones take.
    spare: Vec<Items>,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Everything older than this was released.
    pub to: u64,
    pub stopped: Release,
}

/// Why no more was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Everything that is complete was released.
    Done,
    /// That is enough for one time.
    Enough,
    /// The next item was put off.
    PutOff,
}

/// The items of a ring.
#[derive(Default)]
pub struct Queue {
    /// The oldest, and those that come behind them. Empty only if the ring has no items at all.
    items: Items,
    later: VecDeque<Items>,
    /// Everything older than this has been read from the ring.
    complete_to: u64,
    hits: Hits,
    /// The last read stopped before the end, although more was there.
    has_more: bool,
    /// Another thread reads the ring.
    is_read_ahead: bool,
}

/// Items of a ring that another thread reads, to be put behind those of its queue.
pub struct Part {
    items: Items,
    hits: Hits,
}

/// Items in the order of their times. Those that were taken from the front stay until there are many, or a helper needs
/// the room: the worker has no time to free their memory.
#[derive(Default)]
struct Items {
    all: Vec<Item>,
    taken: usize,
}

/// How far a ring is complete, as its hits show it.
#[derive(Clone, Default)]
struct Hits {
    /// The last record read reserved its room after this time, so everything older has been read.
    had_room: u64,
    /// Tid and time of each thread's last hit.
    last: [(u32, u64); THREADS],
}

impl Order {
    pub fn new(rings: usize) -> Order {
        Order { rings: (0..rings).map(|_| Queue::default()).collect(), ..Order::default() }
    }

    /// True if the ring should be read. False while many of its items wait for another ring that is behind: they stay
    /// in the ring, because memory here has no limit.
    pub fn wants(&self, ring: usize) -> bool {
        if self.is_behind {
            return self.kept() < MOST_KEPT;
        }
        self.rings[ring].len() < PART || self.holder.is_none_or(|holder| holder == ring)
    }

    /// True if another thread may read a part of the ring while items that were read before are released.
    pub fn wants_ahead(&self, ring: usize) -> bool {
        if self.is_behind {
            return self.kept() < MOST_KEPT;
        }
        self.rings[ring].len() < 2 * PART || self.holder == Some(ring)
    }

    #[cfg(test)]
    pub fn push(&mut self, ring: usize, item: Item) {
        self.rings[ring].push(item);
    }

    /// Where the ring's items are put.
    pub fn queue(&mut self, ring: usize) -> &mut Queue {
        &mut self.rings[ring]
    }

    /// The same for another thread. It must be `put` back before anything else is read from the ring.
    pub fn take(&mut self, ring: usize) -> Part {
        self.rings[ring].is_read_ahead = true;
        Part { items: self.spare.pop().unwrap_or_default(), hits: self.rings[ring].hits.clone() }
    }

    pub fn put(&mut self, ring: usize, part: Part) {
        self.rings[ring].is_read_ahead = false;
        let used = self.rings[ring].append(part);
        self.reuse(used);
    }

    fn reuse(&mut self, used: Option<Items>) {
        self.spare.extend(used.filter(|_| self.spare.len() < SPARE));
    }

    /// The ring was read to the end that it had at `time` or later.
    pub fn complete(&mut self, ring: usize, time: u64) {
        self.rings[ring].complete_to = time;
        self.rings[ring].has_more = false;
    }

    /// More of the ring could have been read.
    pub fn has_more(&mut self, ring: usize) {
        let queue = &mut self.rings[ring];
        queue.complete_to = queue.complete_to.max(queue.hits.had_room);
        queue.has_more = true;
    }

    /// A record of the ring is still being written.
    pub fn is_held_up(&mut self, ring: usize) {
        self.rings[ring].has_more = false;
    }

    /// Passes what is complete to `each`, in time order. `each` may put an item off: it comes again the next time.
    pub fn release(&mut self, each: &mut impl FnMut(&Item) -> Poll<()>) -> Released {
        let behind = self.rings.iter().enumerate().min_by_key(|(_, queue)| queue.complete_to);
        let watermark = behind.map_or(u64::MAX, |(_, queue)| queue.complete_to);
        self.holder = behind.filter(|(_, queue)| queue.has_more).map(|(ring, _)| ring);
        let most = if self.is_behind { AT_ONCE } else { usize::MAX };
        let released = self.release_to(watermark, most, each);
        self.is_behind = released.stopped != Release::Done;
        if !self.rings.iter().any(|queue| queue.is_read_ahead) {
            self.spare.clear();
        }
        for ring in 0..self.rings.len() {
            let used = self.rings[ring].give_back();
            self.reuse(used);
        }
        released
    }

    fn kept(&self) -> usize {
        self.rings.iter().map(Queue::len).sum()
    }

    #[cfg(test)]
    pub fn room(&self) -> usize {
        let all = self.rings.iter().flat_map(|queue| queue.later.iter().chain([&queue.items]));
        all.map(|items| items.all.capacity()).sum()
    }

    /// Passes everything that is left to `each`, at the end of a recording.
    pub fn release_all(&mut self, each: &mut impl FnMut(&Item) -> Poll<()>) -> Released {
        self.release_to(u64::MAX, usize::MAX, each)
    }

    fn release_to(
        &mut self,
        watermark: u64,
        most: usize,
        each: &mut impl FnMut(&Item) -> Poll<()>,
    ) -> Released {
        let mut left = most;
        self.fronts.clear();
        self.times.clear();
        for (ring, queue) in self.rings.iter().enumerate() {
            if let Some(item) = queue.items.front() {
                self.fronts.push(ring);
                self.times.push(item.ts);
            }
        }
        while let Some((at, next)) = first_two(&self.times) {
            let ts = self.times[at];
            if ts > watermark {
                break;
            }
            let queue = &mut self.rings[self.fronts[at]];
            let is_next = |item: &Item| item.ts == ts || item.ts < next && item.ts <= watermark;
            while let Some(item) = queue.items.front().filter(|item| is_next(item)) {
                if left == 0 {
                    return Released { to: item.ts, stopped: Release::Enough };
                }
                queue.items.after(AHEAD).into_iter().for_each(fetch);
                queue.items.after(AHEAD / 2).map(Item::bytes).into_iter().for_each(fetch_bytes);
                if each(item).is_pending() {
                    return Released { to: item.ts, stopped: Release::PutOff };
                }
                queue.items.taken += 1;
                left -= 1;
            }
            if let Some(item) = queue.items.front() {
                self.times[at] = item.ts;
                continue;
            }
            let used = queue.go_on();
            match queue.items.front() {
                Some(item) => self.times[at] = item.ts,
                None => _ = (self.fronts.remove(at), self.times.remove(at)),
            }
            self.reuse(used);
        }
        Released { to: watermark, stopped: Release::Done }
    }
}

/// The index of the oldest, and the time of the oldest of the others: until there, one ring's items follow each other.
/// Of equal times the first ring's comes first.
fn first_two(times: &[u64]) -> Option<(usize, u64)> {
    let (mut first, mut second) = (0, u64::MAX);
    let mut oldest = *times.first()?;
    for (at, ts) in times.iter().enumerate().skip(1) {
        if *ts < oldest {
            (second, oldest, first) = (oldest, *ts, at);
        } else {
            second = second.min(*ts);
        }
    }
    Some((first, second))
}

/// Fetches an item into this CPU's cache before its turn: another CPU has just written it.
fn fetch(item: &Item) {
    let at = std::ptr::from_ref(item).cast::<u8>();
    (0..size_of::<Item>()).step_by(LINE).for_each(|line| fetch_line(at.wrapping_add(line)));
}

/// The same for the beginning of what was captured of memory.
fn fetch_bytes(bytes: &[u8]) {
    if !bytes.is_empty() {
        fetch_line(bytes.as_ptr());
    }
}

fn fetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this only says what will be read; it is no access.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Queue {
    fn len(&self) -> usize {
        self.items.len() + self.later.iter().map(Items::len).sum::<usize>()
    }

    /// Returns a used part, if there is one.
    fn give_back(&mut self) -> Option<Items> {
        if self.is_read_ahead && self.items.is_empty() {
            return Some(mem::take(&mut self.items));
        }
        self.items.free_taken();
        if self.items.len() < PART && self.items.all.capacity() > 4 * PART {
            self.items.all.shrink_to(PART);
        }
        None
    }

    /// If all items of the oldest part have been taken, the next part becomes the oldest. Returns the used part.
    fn go_on(&mut self) -> Option<Items> {
        if !self.items.is_empty() {
            return None;
        }
        let next = self.later.pop_front()?;
        Some(mem::replace(&mut self.items, next))
    }

    pub fn push(&mut self, item: Item) {
        self.hits.note(&item);
        self.insert(item);
    }

    /// Inserts by time into the last part that has older items.
    fn insert(&mut self, item: Item) {
        let is_behind = |part: &&mut Items| part.front().is_some_and(|first| first.ts <= item.ts);
        let part = self.later.iter_mut().rev().find(is_behind);
        part.unwrap_or(&mut self.items).insert(item);
    }

    /// Adds a part behind the other items. Returns a used part, if there is one.
    fn append(&mut self, part: Part) -> Option<Items> {
        let Part { mut items, hits } = part;
        self.hits = hits;
        let newest = self.later.back().unwrap_or(&self.items).newest();
        while let Some(item) = items.front().filter(|first| first.ts < newest) {
            self.insert(item.clone());
            items.taken += 1;
        }
        if items.is_empty() {
            return Some(items);
        }
        self.later.push_back(items);
        self.go_on()
    }
}

impl Part {
    /// Frees the memory of the items that it had before.
    pub fn begin(&mut self) {
        self.items.all.clear();
        self.items.taken = 0;
    }

    pub fn push(&mut self, item: Item) {
        self.hits.note(&item);
        self.items.insert(item);
    }
}

impl Items {
    fn len(&self) -> usize {
        self.all.len() - self.taken
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn front(&self) -> Option<&Item> {
        self.all.get(self.taken)
    }

    fn after(&self, count: usize) -> Option<&Item> {
        self.all.get(self.taken + count)
    }

    fn newest(&self) -> u64 {
        if self.is_empty() { 0 } else { self.all.last().map_or(0, |item| item.ts) }
    }

    /// Inserts by time, almost always at the end. A record can be older than the one before it if a thread was preempted
    /// between reserving room and reading the clock.
    fn insert(&mut self, item: Item) {
        let mut at = self.all.len();
        while at > self.taken && self.all[at - 1].ts > item.ts {
            at -= 1;
        }
        if at == self.all.len() {
            self.all.push(item);
        } else {
            self.all.insert(at, item);
        }
    }

    fn free_taken(&mut self) {
        if self.is_empty() {
            self.all.clear();
            self.taken = 0;
        } else if self.taken >= PART && self.taken >= self.len() {
            self.all.drain(..mem::take(&mut self.taken));
        }
    }
}

impl Hits {
    /// Learns from a user-space hit how far the ring is complete. Such hits of one thread follow each other: none
    /// begins before BPF's program has finished the last one. A record from inside Linux may come in the middle of a
    /// hit.
    fn note(&mut self, item: &Item) {
        match &item.what {
            What::Call { origin, .. } | What::Return { origin, .. } if !origin.kernel => {}
            What::Block(_) => {}
            _ => return,
        }
        let last = &mut self.last[item.tid as usize % THREADS];
        if last.0 == item.tid {
            self.had_room = self.had_room.max(last.1);
        }
        *last = (item.tid, item.ts);
    }
}
