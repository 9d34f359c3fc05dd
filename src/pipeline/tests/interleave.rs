//! The lines do not depend on the CPUs of the threads, on the reader's timing or on items that are put off: they are those
//! that one ring would have given, numbered without a gap, in time order, and nested.

use std::fs;
use std::task::Poll;

use super::super::decode::Item;
use super::super::order::{Order, Release};
use super::super::pair::Pairing;
use super::model::{Model, Weather};
use super::sink::Folder;
use super::{Random, probes_named};
use gpurec_trace::{self as trace, Body};

const START: u64 = 1000;

/// Writes the items that `feed` passes to `each`, and returns the trace as text.
fn written(name: &str, feed: impl FnOnce(&mut dyn FnMut(&Item))) -> String {
    let folder = Folder::new(name);
    let (mut lines, writer) = folder.lines(START);
    lines.line(0, Body::Header(Box::default()));
    lines.add_probes(&probes_named(&["cuLaunchKernel", "cudaMalloc", "cuMemAlloc_v2", "cuMemFree_v2"]));
    let mut pairing = Pairing::default();
    feed(&mut |item| pairing.feed(item, &mut lines));
    lines.flush();
    assert!(lines.failed.is_none());
    drop(lines);
    writer.join().unwrap();
    let text = fs::read_to_string(folder.trace()).unwrap();
    is_a_trace(&folder, text.lines().count() as u64);
    text
}

fn is_a_trace(folder: &Folder, count: u64) {
    let mut reader = trace::open(&folder.trace()).unwrap();
    let (mut events, mut last) = (0, 0);
    while let Some(line) = reader.next().unwrap() {
        assert_eq!(line.event_id, events);
        assert!(line.ts_ns >= last, "time goes back at event {events}");
        (events, last) = (events + 1, line.ts_ns);
    }
    assert_eq!(events, count);
    let notes = reader.notes();
    let odd = [notes.bad_lines, notes.unknown_keys, notes.missing_events, notes.disorder.count];
    assert_eq!(odd, [0; 4], "{notes:?}");
    assert_eq!((notes.unmatched_ends.count, notes.crossed_ends.count), (0, 0), "{notes:?}");
}

/// Puts each item into the ring of its thread's CPU, where a preempted thread's record may come in front of it, and
/// reads the rings as the worker does: up to different moments, some not to their ends.
fn through_rings(items: &[Item], random: &mut Random, each: &mut dyn FnMut(&Item)) {
    let mut moods = Random::new(random.next());
    let mut each = |item: &Item| {
        if moods.percent(5) {
            return Poll::Pending;
        }
        each(item);
        Poll::Ready(())
    };
    let count = 1 + random.below(8) as usize;
    let mut order = Order::new(count);
    let mut waiting: Vec<Vec<Item>> = vec![Vec::new(); count];
    let mut cpus = std::collections::HashMap::new();
    for item in items {
        let cpu = cpus.entry(item.tid).or_insert_with(|| random.below(count as u64) as usize);
        if random.percent(10) {
            *cpu = random.below(count as u64) as usize;
        }
        let ring = &mut waiting[*cpu];
        let at = ring.len() - usize::from(!ring.is_empty() && random.percent(15));
        ring.insert(at, item.clone());
        if random.percent(5) {
            for (number, ring) in waiting.iter_mut().enumerate() {
                // An unfinished record holds up all records behind it.
                let unfinished = random.percent(30);
                let read = if unfinished { random.below(ring.len() as u64 + 1) as usize } else { ring.len() };
                ring.drain(..read).for_each(|item| order.push(number, item));
                if !unfinished {
                    order.complete(number, item.ts);
                }
            }
            order.release(&mut each);
        }
    }
    for (number, ring) in waiting.into_iter().enumerate() {
        ring.into_iter().for_each(|item| order.push(number, item));
    }
    while order.release_all(&mut each).stopped == Release::PutOff {}
}

#[test]
fn lines_do_not_depend_on_the_cpus() {
    for seed in 0..60 {
        let weather = Weather {
            lost_calls: 5 * (seed % 2),
            lost_returns: 5 * (seed % 3),
            longjmp: true,
            tail_calls: true,
            ends: true,
            forks: seed % 4 == 0,
            ..Weather::default()
        };
        let mut model = Model::new(seed, weather);
        (0..300).for_each(|_| model.step());
        let items = model.items;
        let one = written(&format!("one-ring-{seed}"), |each| items.iter().for_each(each));
        for way in 0..3 {
            let mut random = Random::new(seed * 7 + way);
            let name = format!("rings-{seed}-{way}");
            let many = written(&name, |each| through_rings(&items, &mut random, each));
            assert!(one == many, "seed {seed}, way {way}: other lines than of one ring");
        }
    }
}
