//! Rings → items in the queues of their order. In: the rings. Out: a part of each, decoded; what could not be decoded, as
//! counts. Under load the helpers decode, a ring at a time, while the worker releases the items that were read before.

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::decode::{self, Item, What};
use super::helpers::Helpers;
use super::order::{self, Order, Part};
use crate::clock::monotonic_ns;
use crate::ring::{Level, Ring, Stopped};
use crate::stacks::Mapped;

/// A ring in which at least this number of bytes waits is decoded by a helper thread.
const MUCH: usize = 32 << 10;

/// Raises this thread's priority. Threads that call as fast as they can would otherwise keep it from emptying their
/// rings; it needs little time, but needs it first. Without the right to do so, it continues with its normal
/// priority.
pub fn go_first() {
    // SAFETY: plain integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

/// What was read.
#[derive(Default)]
pub struct Read {
    pub records: usize,
    /// Number of records without a meaning, and without the memory that should have been read with them.
    pub undecoded: u64,
    pub cut: u64,
    pub mapped: Vec<(u32, Mapped)>,
    /// More of some ring can be read, or a helper is reading it.
    pub has_more: bool,
}

impl Read {
    fn add(&mut self, part: Read) {
        self.records += part.records;
        self.undecoded += part.undecoded;
        self.cut += part.cut;
        self.mapped.extend(part.mapped);
        self.has_more |= part.has_more;
    }
}

pub struct Rings {
    /// None: a helper reads it.
    rings: Vec<Option<Ring>>,
    levels: Vec<Level>,
    /// The parts that helpers read: how many there are, and where they come from.
    ahead: Option<(usize, Receiver<Ahead>)>,
}

/// A part of a ring that a helper has read.
struct Ahead {
    number: usize,
    ring: Ring,
    part: Part,
    read: Read,
    stopped: Stopped,
    /// When the helper began to read.
    at: u64,
}

impl Rings {
    pub fn new(rings: Vec<Ring>) -> Rings {
        let levels = rings.iter().map(|ring| ring.level().clone()).collect();
        Rings { rings: rings.into_iter().map(Some).collect(), levels, ahead: None }
    }

    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// True if helpers read.
    pub fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// True if bytes wait in some ring.
    pub fn is_left(&self) -> bool {
        self.levels.iter().any(|level| level.waiting() > 0)
    }

    /// Takes what the helpers have read, and reads a part of every other ring that the order wants, as it was at `now`
    /// or later. `helpers`: none if there is little to do.
    pub fn read(&mut self, order: &mut Order, now: u64, helpers: Option<&mut Helpers>) -> Read {
        let Some(helpers) = helpers else {
            let mut all = self.take_back(order, None);
            (0..self.rings.len()).for_each(|number| all.add(self.read_here(number, order, now)));
            return all;
        };
        let mut all = self.take_back(order, Some(helpers));
        let (sender, done) = unbounded();
        let mut count = 0;
        for number in 0..self.rings.len() {
            if self.levels[number].waiting() < MUCH {
                all.add(self.read_here(number, order, now));
            } else if order.wants_ahead(number) && self.rings[number].is_some() {
                self.read_ahead(number, order, helpers, &sender);
                count += 1;
            }
        }
        if count > 0 {
            all.has_more = true;
            self.ahead = Some((count, done));
        }
        all
    }

    /// Takes what the helpers have read, or are reading.
    pub fn take_back(&mut self, order: &mut Order, helpers: Option<&mut Helpers>) -> Read {
        let mut all = Read::default();
        let Some((count, done)) = self.ahead.take() else { return all };
        for _ in 0..count {
            let ahead = match &helpers {
                Some(helpers) => helpers.wait(&done),
                None => done.recv().ok(),
            };
            let ahead = ahead.unwrap_or_else(|| panic!("a thread that helps the worker panicked"));
            order.put(ahead.number, ahead.part);
            self.rings[ahead.number] = Some(ahead.ring);
            note(ahead.number, ahead.stopped, ahead.at, order);
            all.add(ahead.read);
        }
        all
    }

    fn read_here(&mut self, number: usize, order: &mut Order, now: u64) -> Read {
        let wanted = self.rings[number].as_mut().filter(|_| order.wants(number));
        let Some(ring) = wanted else { return Read::default() };
        let queue = order.queue(number);
        let (read, stopped) = read(ring, |item| queue.push(item));
        note(number, stopped, now, order);
        read
    }

    fn read_ahead(&mut self, number: usize, order: &mut Order, helpers: &mut Helpers, done: &Sender<Ahead>) {
        let Some(mut ring) = self.rings[number].take() else { return };
        let (mut part, done) = (order.take(number), done.clone());
        helpers.run(Box::new(move || {
            part.begin();
            let at = monotonic_ns();
            let (read, stopped) = read(&mut ring, |item| part.push(item));
            _ = done.send(Ahead { number, ring, part, read, stopped, at });
        }));
    }
}

/// How far the ring has been read: to the end that it had at `at`, unless reading stopped before.
fn note(number: usize, stopped: Stopped, at: u64, order: &mut Order) {
    match stopped {
        Stopped::Drained => order.complete(number, at),
        Stopped::Busy => order.is_held_up(number),
        Stopped::Many => order.has_more(number),
    }
}

fn read(ring: &mut Ring, mut push: impl FnMut(Item)) -> (Read, Stopped) {
    let mut part = Read::default();
    let stopped = ring.read(order::PART, |bytes| {
        part.records += 1;
        part.cut += u64::from(decode::is_cut(bytes));
        match decode::decode(bytes) {
            Some(item) => {
                if let What::Mapped(new) = &item.what {
                    part.mapped.push((new.pid, new.what));
                }
                push(item);
            }
            None => part.undecoded += 1,
        }
    });
    part.has_more = stopped == Stopped::Many;
    (part, stopped)
}
