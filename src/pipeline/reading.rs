//! Rings → items in the queues of their order. In: the rings. Out: a part of each, decoded; what could not be decoded, as
//! counts. Under load the helpers decode, a ring at a time.

use crossbeam_channel::unbounded;

use super::decode::{self, What};
use super::helpers::Helpers;
use super::order::{self, Order, Queue};
use crate::ring::{Ring, Stopped};
use crate::stacks::Mapped;

/// A ring in which at least this number of bytes waits is decoded by a helper thread.
const MUCH: usize = 32 << 10;

/// What was read.
#[derive(Default)]
pub struct Read {
    pub records: usize,
    /// Number of records without a meaning, and without the memory that should have been read with them.
    pub undecoded: u64,
    pub cut: u64,
    pub mapped: Vec<(u32, Mapped)>,
    /// More of some ring could have been read.
    pub has_more: bool,
}

/// Reads a part of every ring that the order wants, as it was at `now` or later. `helpers`: none if there is little to do.
pub fn read_all(rings: &mut Vec<Ring>, order: &mut Order, now: u64, helpers: Option<&mut Helpers>) -> Read {
    let mut all = Read::default();
    let mut shared = match helpers {
        Some(helpers) => read_together(rings, order, helpers),
        None => Vec::new(),
    };
    for (i, ring) in rings.iter_mut().enumerate() {
        let (part, stopped) = match shared.iter_mut().find(|(at, _)| *at == i) {
            Some((_, part)) => (std::mem::take(&mut part.0), part.1),
            None if order.wants(i) => read(ring, order.queue(i)),
            None => continue,
        };
        match stopped {
            Stopped::Drained => order.complete(i, now),
            Stopped::Busy => order.is_held_up(i),
            Stopped::Many => order.has_more(i),
        }
        all.records += part.records;
        all.undecoded += part.undecoded;
        all.cut += part.cut;
        all.mapped.extend(part.mapped);
        all.has_more |= stopped == Stopped::Many;
    }
    all
}

type Part = (Read, Stopped);

fn read(ring: &mut Ring, queue: &mut Queue) -> Part {
    let mut part = Read::default();
    let stopped = ring.read(order::PART, |bytes| {
        part.records += 1;
        part.cut += u64::from(decode::is_cut(bytes));
        match decode::decode(bytes) {
            Some(item) => {
                if let What::Mapped(new) = &item.what {
                    part.mapped.push((new.pid, new.what));
                }
                queue.push(item);
            }
            None => part.undecoded += 1,
        }
    });
    (part, stopped)
}

/// Reads the rings that have much, if there are several. Returns the number of each, and its part.
fn read_together(rings: &mut Vec<Ring>, order: &mut Order, helpers: &mut Helpers) -> Vec<(usize, Part)> {
    let has_much = |(i, ring): &(usize, &Ring)| ring.waiting() >= MUCH && order.wants(*i);
    let full: Vec<usize> = rings.iter().enumerate().filter(has_much).map(|(i, _)| i).collect();
    if full.len() < 2 {
        return Vec::new();
    }
    let (sender, done) = unbounded();
    let mut kept = Vec::with_capacity(rings.len());
    for (i, mut ring) in std::mem::take(rings).into_iter().enumerate() {
        if !full.contains(&i) {
            kept.push(Some(ring));
            continue;
        }
        kept.push(None);
        let (mut queue, sender) = (order.take(i), sender.clone());
        helpers.run(Box::new(move || {
            let part = read(&mut ring, &mut queue);
            _ = sender.send((i, ring, queue, part));
        }));
    }
    drop(sender);
    let mut parts = Vec::with_capacity(full.len());
    for _ in &full {
        let back = helpers.wait(&done);
        let (i, ring, queue, part) =
            back.unwrap_or_else(|| panic!("a thread that helps the worker panicked"));
        order.put(i, queue);
        kept[i] = Some(ring);
        parts.push((i, part));
    }
    *rings = kept.into_iter().flatten().collect();
    parts
}
