//! Order against a model of the protocol: writers get room, take the time and submit, each
//! step at any moment and with other steps between; a reader makes its rounds meanwhile.

use super::super::decode::{Item, What};
use super::super::order::Order;
use super::Random;

fn item(ts: u64, tid: u32) -> Item {
    Item { ts, tid, seq: 0, what: What::Fork { pid: 0, child: 0 } }
}

fn times(order: &mut Order) -> Vec<u64> {
    let mut out = Vec::new();
    order.release(&mut |item| out.push(item.ts));
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
fn of_equal_times_in_one_ring_the_first_stays_first() {
    let mut order = Order::new(2);
    for tid in 0..5 {
        order.push(0, item(7, tid));
    }
    order.push(0, item(6, 9));
    let mut tids = Vec::new();
    order.release_all(&mut |item| tids.push(item.tid));
    assert_eq!(tids, [9, 0, 1, 2, 3, 4]);
}

#[test]
fn at_the_end_everything_comes_even_from_rings_never_completed() {
    let mut order = Order::new(4);
    for (ring, ts) in [(0, 4), (3, u64::MAX), (1, 2), (0, 9), (1, 8), (2, 0)] {
        order.push(ring, item(ts, 0));
    }
    let mut out = Vec::new();
    order.release_all(&mut |item| out.push(item.ts));
    assert_eq!(out, [0, 2, 4, 8, 9, u64::MAX]);
    order.release_all(&mut |_| panic!("nothing is left"));
    Order::new(0).release_all(&mut |_| panic!("there is no ring"));
}

struct Slot {
    ts: Option<u64>,
    submitted: bool,
}

/// Rings as BPF fills them, and the one clock.
struct Machine {
    random: Random,
    clock: u64,
    rings: Vec<Vec<Slot>>,
    read_to: Vec<usize>,
    /// Rings with a writer that is preempted for long.
    stalled: u64,
    written: Vec<u64>,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let mut random = Random::new(seed);
        let count = 1 + random.below(16) as usize;
        let stalled = if random.percent(50) { random.next() & random.next() & random.next() } else { 0 };
        let rings = (0..count).map(|_| Vec::new()).collect();
        Machine { random, clock: 1000, rings, read_to: vec![0; count], stalled, written: Vec::new() }
    }

    /// One step of one writer: room in a ring, or the time, or the submission.
    fn step(&mut self) {
        // Clocks of virtual machines can stand still between two looks.
        self.clock += self.random.below(4);
        let ring = self.random.below(self.rings.len() as u64) as usize;
        let read_to = self.read_to[ring];
        let open: Vec<usize> =
            (read_to..self.rings[ring].len()).filter(|i| !self.rings[ring][*i].submitted).collect();
        // A thread can be preempted inside, and its CPU's next thread be too.
        if open.is_empty() || (open.len() < 4 && self.random.percent(30)) {
            self.rings[ring].push(Slot { ts: None, submitted: false });
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
            Some(_) => slot.submitted = true,
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..self.random.below(steps + 1) {
            self.step();
        }
    }

    /// As Ring::read: up to what was produced at the beginning. True if it was drained.
    fn read(&mut self, ring: usize, each: &mut dyn FnMut(u64)) -> bool {
        let end = self.rings[ring].len();
        while self.read_to[ring] < end {
            let slot = &self.rings[ring][self.read_to[ring]];
            if !slot.submitted {
                return false;
            }
            each(slot.ts.unwrap());
            self.read_to[ring] += 1;
            self.run(2);
        }
        true
    }
}

fn play(seed: u64) {
    let mut machine = Machine::new(seed);
    let count = machine.rings.len();
    let mut order = Order::new(count);
    let mut complete_to = vec![0; count];
    let mut pushed: Vec<u64> = Vec::new();
    let mut released: Vec<u64> = Vec::new();
    for _ in 0..60 {
        machine.run(40);
        let now = machine.clock;
        for (ring, complete_to) in complete_to.iter_mut().enumerate() {
            machine.run(5);
            let drained = machine.read(ring, &mut |ts| {
                pushed.push(ts);
                order.push(ring, item(ts, ring as u32));
            });
            if drained {
                order.complete(ring, now);
                *complete_to = now;
            }
        }
        let watermark = *complete_to.iter().min().unwrap();
        let before = released.len();
        order.release(&mut |item| released.push(item.ts));
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
            order.push(ring, item(slot.ts.unwrap(), ring as u32));
        }
    }
    order.release_all(&mut |item| released.push(item.ts));
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
