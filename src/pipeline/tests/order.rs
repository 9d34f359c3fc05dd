//! Order against a model of the protocol. Writers reserve room, take the time and submit; other steps may come
//! between. Meanwhile a reader reads the rings.

use super::super::decode::{Item, Origin, What};
use super::super::order::{Order, PART, Release};
use super::Random;
use crate::ring::Stopped;
use std::task::Poll;

/// A user-space hit.
fn hit(ts: u64, tid: u32) -> Item {
    let what =
        What::Return { probe: 0, begin: 0, value: 0, pieces: Box::default(), origin: Origin::default() };
    Item { ts, tid, seq: 0, what }
}

/// A record that may come in the middle of a thread's hit.
fn item(ts: u64, tid: u32) -> Item {
    Item { ts, tid, seq: 0, what: What::Fork { pid: 0, child: 0 } }
}

/// Takes every item.
fn taking(mut each: impl FnMut(&Item)) -> impl FnMut(&Item) -> Poll<()> {
    move |item| {
        each(item);
        Poll::Ready(())
    }
}

fn times(order: &mut Order) -> Vec<u64> {
    let mut out = Vec::new();
    order.release(&mut taking(|item| out.push(item.ts)));
    out
}

#[test]
fn nothing_is_released_before_every_ring_was_read_to_its_end() {
    let mut order = Order::new(3);
    order.push(0, item(10, 0));
    order.push(1, item(5, 0));
    assert!(times(&mut order).is_empty());
    order.complete(0, 100);
    order.complete(1, 100);
    assert!(times(&mut order).is_empty(), "the third ring was never read");
    order.complete(2, 7);
    assert_eq!(times(&mut order), [5]);
    order.complete(2, 10);
    assert_eq!(times(&mut order), [10]);
}

#[test]
fn an_older_neighbour_is_put_in_its_place() {
    let mut order = Order::new(1);
    for ts in [10, 30, 20, 5, 30, 40, 35] {
        order.push(0, item(ts, 0));
    }
    order.complete(0, 36);
    assert_eq!(times(&mut order), [5, 10, 20, 30, 30, 35]);
    order.complete(0, 40);
    assert_eq!(times(&mut order), [40]);
}

#[test]
fn parts_that_another_thread_read_come_in_the_order_of_time() {
    let mut order = Order::new(2);
    [10, 20].into_iter().for_each(|ts| order.push(0, item(ts, 0)));
    for (ring, times) in [(0, [15, 30]), (1, [12, 40]), (0, [25, 50]), (0, [5, 8])] {
        let mut part = order.take(ring);
        part.begin();
        times.into_iter().for_each(|ts| part.push(item(ts, 0)));
        order.put(ring, part);
    }
    order.push(0, item(28, 0));
    [0, 1].into_iter().for_each(|ring| order.complete(ring, 20));
    assert_eq!(times(&mut order), [5, 8, 10, 12, 15, 20]);
    [0, 1].into_iter().for_each(|ring| order.complete(ring, 100));
    assert_eq!(times(&mut order), [25, 28, 30, 40, 50]);
}

#[test]
fn of_equal_times_in_one_ring_the_first_stays_first() {
    let mut order = Order::new(2);
    for tid in 0..5 {
        order.push(0, item(7, tid));
    }
    order.push(0, item(6, 9));
    let mut tids = Vec::new();
    order.release_all(&mut taking(|item| tids.push(item.tid)));
    assert_eq!(tids, [9, 0, 1, 2, 3, 4]);
}

#[test]
fn at_the_end_everything_comes_even_from_rings_never_completed() {
    let mut order = Order::new(4);
    for (ring, ts) in [(0, 4), (3, u64::MAX), (1, 2), (0, 9), (1, 8), (2, 0)] {
        order.push(ring, item(ts, 0));
    }
    let mut out = Vec::new();
    order.release_all(&mut taking(|item| out.push(item.ts)));
    assert_eq!(out, [0, 2, 4, 8, 9, u64::MAX]);
    order.release_all(&mut taking(|_| panic!("nothing is left")));
    Order::new(0).release_all(&mut taking(|_| panic!("there is no ring")));
}

#[test]
fn a_part_of_a_ring_is_complete_to_the_time_of_the_last_thread_that_hit_twice() {
    let mut order = Order::new(1);
    let mut next = |items: &[Item]| {
        items.iter().for_each(|item| order.push(0, item.clone()));
        order.has_more(0);
        times(&mut order)
    };
    // A record of a thread that was preempted before it took the time may come behind these.
    assert!(next(&[hit(10, 1), hit(20, 2)]).is_empty());
    // Its second hit reserved its room after its first one's time.
    assert_eq!(next(&[hit(30, 1)]), [10]);
    assert!(next(&[item(31, 2), item(32, 1)]).is_empty(), "what is reported in the kernel says nothing");
    assert_eq!(next(&[hit(50, 2)]), [20]);
    assert_eq!(next(&[hit(45, 2)]), [30, 31, 32, 45, 50]);
}

/// Its records wait in the ring, which has the room for them.
#[test]
fn a_ring_whose_items_wait_for_a_backlog_is_left_alone() {
    let mut order = Order::new(2);
    let many = PART as u64;
    let (mut behind, mut ahead, mut most) = (0, 0, 0);
    while behind < 100 * many {
        for ring in 0..2 {
            if !order.wants(ring) {
                continue;
            }
            let from = if ring == 0 { &mut behind } else { &mut ahead };
            let at = if ring == 0 { 0 } else { 1000 * many };
            for ts in *from..*from + many {
                order.push(ring, hit(at + ts, ring as u32));
            }
            *from += many;
            order.has_more(ring);
        }
        times(&mut order);
        most = most.max(order.room());
    }
    assert_eq!(ahead, many, "once it is full it is not read");
    assert!(most <= 4 * PART, "{most}");
    order.complete(0, 2000 * many);
    let last = order.release(&mut taking(|_| ())).to;
    assert_eq!(
        last,
        1000 * many + many - 2,
        "of the ring ahead, whose last hit may be followed by an older one"
    );
    assert!(order.wants(1));
}

struct Slot {
    /// None for a record from inside Linux, which shows nothing about others.
    tid: Option<u32>,
    ts: Option<u64>,
    submitted: bool,
}

/// Rings as BPF fills them, and the clock that they share.
struct Machine {
    random: Random,
    clock: u64,
    rings: Vec<Vec<Slot>>,
    read_to: Vec<usize>,
    /// Rings with a writer that is preempted for a long time.
    stalled: u64,
    written: Vec<u64>,
    /// Whether each thread is inside a hit, on any CPU.
    inside: Vec<bool>,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let mut random = Random::new(seed);
        let count = 1 + random.below(16) as usize;
        let stalled = if random.percent(50) { random.next() & random.next() & random.next() } else { 0 };
        let rings = (0..count).map(|_| Vec::new()).collect();
        let inside = vec![false; 1 + random.below(40) as usize];
        Machine { random, clock: 1000, rings, read_to: vec![0; count], stalled, written: Vec::new(), inside }
    }

    /// Makes one step of one writer: reserves room in a ring, takes the time, or submits.
    fn step(&mut self) {
        // Clocks of virtual machines may not advance between two readings.
        self.clock += self.random.below(4);
        let ring = self.random.below(self.rings.len() as u64) as usize;
        let read_to = self.read_to[ring];
        let open: Vec<usize> =
            (read_to..self.rings[ring].len()).filter(|i| !self.rings[ring][*i].submitted).collect();
        // A thread can be preempted inside a hit, and so can the next thread on its CPU.
        if open.is_empty() || (open.len() < 4 && self.random.percent(30)) {
            let tid = self.random.below(self.inside.len() as u64) as usize;
            let kernel = self.random.percent(10);
            if kernel || !std::mem::replace(&mut self.inside[tid], true) {
                let tid = (!kernel).then_some(tid as u32);
                self.rings[ring].push(Slot { tid, ts: None, submitted: false });
            }
            return;
        }
        let which = open[self.random.below(open.len() as u64) as usize];
        let stalls = self.stalled >> ring & 1 == 1 && which == open[0] && self.random.percent(97);
        let slot = &mut self.rings[ring][which];
        match slot.ts {
            None => {
                slot.ts = Some(self.clock);
                self.written.push(self.clock);
            }
            Some(_) if stalls => {}
            Some(_) => {
                slot.submitted = true;
                if let Some(tid) = slot.tid {
                    self.inside[tid as usize] = false;
                }
            }
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..self.random.below(steps + 1) {
            self.step();
        }
    }

    /// Reads like Ring::read: up to what was produced at the beginning.
    fn read(&mut self, ring: usize, most: u64, each: &mut dyn FnMut(Item)) -> Stopped {
        let end = self.rings[ring].len();
        let mut left = most;
        while self.read_to[ring] < end {
            let slot = &self.rings[ring][self.read_to[ring]];
            if left == 0 {
                return Stopped::Many;
            }
            left -= 1;
            if !slot.submitted {
                return Stopped::Busy;
            }
            each(slot.item(ring));
            self.read_to[ring] += 1;
            self.run(2);
        }
        Stopped::Drained
    }
}

impl Slot {
    fn item(&self, ring: usize) -> Item {
        let ts = self.ts.unwrap();
        self.tid.map_or_else(|| item(ts, ring as u32), |tid| hit(ts, tid))
    }
}

fn play(seed: u64) {
    let mut machine = Machine::new(seed);
    let count = machine.rings.len();
    let mut order = Order::new(count);
    // Reads always to the end, or in parts that are small compared with what arrives meanwhile.
    let most = if machine.random.percent(30) { u64::MAX } else { 1 + machine.random.below(12) };
    let mut watermark = 0;
    let mut pushed: Vec<u64> = Vec::new();
    let mut released: Vec<u64> = Vec::new();
    for _ in 0..60 {
        machine.run(40);
        let now = machine.clock;
        for ring in 0..count {
            machine.run(5);
            if !order.wants(ring) {
                continue;
            }
            let stopped = machine.read(ring, most, &mut |item| {
                assert!(item.ts >= watermark, "seed {seed}: it was said that all before was there");
                pushed.push(item.ts);
                order.push(ring, item);
            });
            match stopped {
                Stopped::Drained => order.complete(ring, now),
                Stopped::Busy => order.is_held_up(ring),
                Stopped::Many => order.has_more(ring),
            }
        }
        let before = released.len();
        watermark = order.release(&mut taking(|item| released.push(item.ts))).to;
        assert!(released[before..].iter().all(|ts| *ts <= watermark), "seed {seed}: released too early");
        assert!(released.is_sorted(), "seed {seed}: not in time's order");
        let due = pushed.iter().filter(|ts| **ts <= watermark).count();
        assert_eq!(released.len(), due, "seed {seed}: held back what was complete");
    }
    machine.stalled = 0;
    let unfinished = |m: &Machine| m.rings.iter().flatten().any(|slot| !slot.submitted);
    while unfinished(&machine) {
        for slot in machine.rings.iter_mut().flatten().filter(|slot| !slot.submitted) {
            if slot.ts.is_none() {
                machine.clock += 1;
                machine.written.push(machine.clock);
            }
            slot.ts.get_or_insert(machine.clock);
            slot.submitted = true;
        }
    }
    for ring in 0..count {
        for slot in &machine.rings[ring][machine.read_to[ring]..] {
            order.push(ring, slot.item(ring));
        }
    }
    order.release_all(&mut taking(|item| released.push(item.ts)));
    assert!(released.is_sorted(), "seed {seed}: the end is not in time's order");
    machine.written.sort_unstable();
    assert_eq!(released, machine.written, "seed {seed}: not complete");
}

#[test]
fn what_is_released_is_sorted_complete_and_never_early() {
    for seed in 0..400 {
        play(seed);
    }
}

#[test]
fn a_backlog_holds_no_memory_when_it_has_been_read() {
    let mut order = Order::new(2);
    for round in 1..=3 {
        let begin = round * 1_000_000;
        for ts in begin..begin + 200_000 {
            order.push((ts % 2) as usize, item(ts, 0));
        }
        assert!(order.room() >= 200_000);
        for ring in 0..2 {
            order.complete(ring, begin + 199_000);
        }
        assert_eq!(times(&mut order).len(), 199_001);
        assert!(order.room() < 40_000, "{}", order.room());
        for ring in 0..2 {
            order.complete(ring, begin + 200_000);
        }
        assert_eq!(times(&mut order).len(), 999);
    }
}

#[test]
fn while_an_item_is_put_off_the_rings_are_read_up_to_a_limit() {
    let mut order = Order::new(2);
    let put_off = |order: &mut Order| order.release(&mut |_| Poll::Pending);
    let mut ts = 0;
    while order.wants(0) && order.wants(1) {
        for _ in 0..PART {
            ts += 1;
            order.push((ts % 2) as usize, item(ts, 0));
        }
        (0..2).for_each(|ring| order.complete(ring, ts));
        let released = put_off(&mut order);
        assert_eq!((released.to, released.stopped), (1, Release::PutOff));
        assert!(ts < 1 << 20, "no limit");
    }
    assert!(ts > 100 * PART as u64, "{ts}");
    assert!(!order.wants(0) && !order.wants(1));
    let mut out = Vec::new();
    loop {
        let before = out.len();
        let released = order.release(&mut taking(|item| out.push(item.ts)));
        if released.stopped == Release::Done {
            break;
        }
        assert_eq!((released.to, released.stopped), (out.len() as u64 + 1, Release::Enough));
        assert!(out.len() - before <= 4 * PART, "the rings are read in between");
        assert!(order.wants(0) && order.wants(1));
    }
    assert!(out.iter().copied().eq(1..=ts));
    assert!(order.room() < 40_000, "{}", order.room());
}
