//! Pairing, case by case: one thread's calls, and the events that end them.

use super::super::decode::{Captured, Item, Origin, What};
use super::super::pair::{Open, Outcome, Pairing, Sink};
use super::exit_item;

/// The events that a sink received, each as a word and the call's probe, so that tests read as stories.
#[derive(Default)]
pub struct Story {
    pub reported: Vec<String>,
    pub pairing: Option<Pairing>,
    begins: u64,
}

struct Teller<'a>(&'a mut Vec<String>, &'a mut u64);

impl Sink for Teller<'_> {
    fn begin(&mut self, call: &Open, _: &Captured) -> u64 {
        self.0.push(format!("begin {} at {} in {:?}", call.probe, call.depth, call.parent));
        *self.1 += 1;
        *self.1
    }
    fn end(&mut self, _: u64, call: &Open, outcome: Outcome, _: &[u8]) {
        self.0.push(format!("{outcome:?} {}", call.probe));
    }
    fn died(&mut self, _: u64, call: &Open) {
        self.0.push(format!("died {}", call.probe));
    }
    fn process(&mut self, item: &Item) {
        let word = match item.what {
            What::Exit { .. } => "exit",
            What::Exec { .. } => "exec",
            _ => "fork",
        };
        self.0.push(word.to_owned());
    }
    fn block(&mut self, _: &Item, within: Option<u64>) {
        self.0.push(format!("block in {within:?}"));
    }
    fn instant(&mut self, _: &Item, within: Option<&Open>) {
        self.0.push(format!("instant in {:?}", within.map(|call| call.probe)));
    }
}

impl Story {
    pub fn feed(&mut self, item: &Item) {
        let pairing = self.pairing.get_or_insert_default();
        pairing.feed(item, &mut Teller(&mut self.reported, &mut self.begins));
    }

    /// The events since the last `take`.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reported)
    }

    pub fn in_flight(&self) -> Vec<u32> {
        self.pairing.iter().flat_map(Pairing::in_flight).map(|call| call.probe).collect()
    }

    pub fn orphans(&self) -> u64 {
        self.pairing.as_ref().map_or(0, |pairing| pairing.orphans)
    }

    pub fn too_deep(&self) -> Vec<(u32, u64)> {
        self.pairing.iter().flat_map(|p| p.too_deep.iter().map(|(probe, count)| (*probe, *count))).collect()
    }

    /// A call by thread 7 of process 7.
    pub fn call(&mut self, ts: u64, seq: u32, probe: u32, sp: u64) {
        self.feed(&call(ts, 7, 7, seq, probe, sp, false));
    }

    pub fn returned(&mut self, ts: u64, seq: u32, begin: u64, value: u64) {
        self.feed(&returned(ts, 7, seq, begin, value));
    }
}

/// A call by thread 7 of process 7 on another stack than its thread's open calls.
pub fn call_elsewhere(ts: u64, seq: u32, probe: u32, sp: u64) -> Item {
    let mut item = call(ts, 7, 7, seq, probe, sp, false);
    if let What::Call { origin, .. } = &mut item.what {
        origin.elsewhere = true;
    }
    item
}

pub fn call(ts: u64, pid: u32, tid: u32, seq: u32, probe: u32, sp: u64, chained: bool) -> Item {
    Item {
        ts,
        tid,
        seq,
        what: What::Call {
            pid,
            probe,
            chained,
            sp,
            captured: Captured::registers([0; 6]),
            origin: Origin::default(),
            stack: None,
        },
    }
}

pub fn returned(ts: u64, tid: u32, seq: u32, begin: u64, value: u64) -> Item {
    Item {
        ts,
        tid,
        seq,
        what: What::Return { probe: 0, begin, value, pieces: Box::default(), origin: Origin::default() },
    }
}

#[test]
fn calls_nest() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    story.call(11, 2, 2, 800);
    story.returned(12, 3, 11, 5);
    story.call(13, 4, 3, 800);
    story.returned(14, 5, 13, 6);
    story.returned(15, 6, 10, 7);
    let reported = story.take();
    assert_eq!(reported[..3], ["begin 1 at 0 in None", "begin 2 at 1 in Some(1)", "Returned(5) 2"]);
    assert_eq!(reported[3..], ["begin 3 at 1 in Some(1)", "Returned(6) 3", "Returned(7) 1"]);
    assert_eq!((story.in_flight(), story.orphans()), (vec![], 0));
}

#[test]
fn a_tail_call_nests_in_the_call_whose_frame_it_took_over() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    story.feed(&call(11, 7, 7, 2, 2, 900, true));
    story.returned(12, 3, 11, 5);
    story.returned(13, 4, 10, 5);
    let reported = story.take();
    assert_eq!(reported[1..], ["begin 2 at 1 in Some(1)", "Returned(5) 2", "Returned(5) 1"]);
}

#[test]
fn an_outer_return_closes_what_longjmp_left() {
    let mut story = Story::default();
    for (ts, probe) in [(10, 1), (11, 2), (12, 3)] {
        story.call(ts, ts as u32 - 9, probe, 900 - ts);
    }
    story.returned(20, 4, 10, 0);
    assert_eq!(story.take()[3..], ["Unwound 3", "Unwound 2", "Returned(0) 1"]);
}

#[test]
fn a_new_frame_at_or_above_closes_what_longjmp_left() {
    for sp in [700, 750] {
        let mut story = Story::default();
        story.call(10, 1, 1, 900);
        story.call(11, 2, 2, 800);
        story.call(12, 3, 3, 700);
        story.take();
        story.call(13, 4, 4, sp);
        assert_eq!(story.take(), ["Unwound 3", "begin 4 at 2 in Some(2)"]);
    }
}

#[test]
fn of_what_was_open_at_the_end_the_oldest_is_first() {
    let mut story = Story::default();
    story.feed(&call(30, 8, 9, 1, 3, 900, false));
    story.feed(&call(10, 7, 7, 1, 1, 900, false));
    story.feed(&call(20, 7, 7, 2, 2, 800, false));
    assert_eq!(story.in_flight(), [1, 2, 3]);
}

#[test]
fn the_end_of_a_thread_ends_its_calls_and_no_others() {
    let mut story = Story::default();
    story.feed(&call(10, 7, 7, 1, 1, 900, false));
    story.feed(&call(11, 7, 8, 1, 2, 900, false));
    story.feed(&call(12, 7, 8, 2, 3, 800, false));
    story.take();
    story.feed(&exit_item(13, 7, 8, false));
    assert_eq!(story.take(), ["died 3", "died 2", "exit"]);
    assert_eq!(story.in_flight(), [1]);
}

#[test]
fn threads_that_are_unwound_out_of_their_calls_are_counted_with_the_first_call() {
    let mut story = Story::default();
    let left = |tid| {
        let mut item = exit_item(20, 7, tid, false);
        if let What::Exit { left_calls, .. } = &mut item.what {
            *left_calls = true;
        }
        item
    };
    for tid in [8, 9] {
        story.feed(&call(10, 7, tid, 1, tid, 900, false));
        story.feed(&call(11, 7, tid, 2, 3, 800, false));
        story.feed(&left(tid));
    }
    // Its call was lost.
    story.feed(&left(10));
    let left = &story.pairing.as_ref().unwrap().left;
    assert_eq!((left.threads, left.first.map(|call| (call.tid, call.probe))), (2, Some((8, 8))));
}

/// BPF cannot report the end of every thread: once one thread finds that the process has ended, the process is no
/// longer a target.
#[test]
fn the_end_of_a_process_ends_the_calls_of_all_its_threads() {
    let mut story = Story::default();
    for tid in [7, 8, 9] {
        story.feed(&call(10 + u64::from(tid), 7, tid, 1, tid, 900, false));
    }
    story.feed(&call(20, 50, 50, 1, 50, 900, false));
    story.take();
    story.feed(&exit_item(30, 7, 8, true));
    let mut reported = story.take();
    reported.sort_unstable();
    assert_eq!(reported, ["died 7", "died 8", "died 9", "exit"]);
    assert_eq!(story.in_flight(), [50], "another process runs on");
}

#[test]
fn a_thread_of_which_nothing_is_known_may_end() {
    let mut story = Story::default();
    story.feed(&exit_item(13, 7, 8, true));
    assert_eq!(story.take(), ["exit"]);
}

/// exec keeps the thread's tid and its count of hits.
#[test]
fn exec_ends_what_was_open_and_the_thread_continues() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    let what = What::Exec { pid: 7, old_tid: 0, command: b"a\0".as_slice().into(), cut: false };
    story.feed(&Item { ts: 11, tid: 7, seq: 0, what });
    story.call(12, 2, 2, 700);
    story.returned(13, 3, 12, 0);
    assert_eq!(story.take()[1..], ["died 1", "exec", "begin 2 at 0 in None", "Returned(0) 2"]);
}

#[test]
fn a_thread_begins_anew_when_its_number_comes_again() {
    let mut story = Story::default();
    story.call(10, 5, 1, 900);
    story.call(20, 1, 2, 800);
    assert_eq!(story.take()[1..], ["died 1", "begin 2 at 0 in None"]);
}

#[test]
fn a_return_of_a_call_already_closed_is_counted() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    story.call(11, 2, 2, 800);
    story.returned(12, 3, 10, 0);
    story.returned(13, 4, 11, 0);
    assert_eq!(story.orphans(), 1);
    assert_eq!(story.take()[2..], ["Unwound 2", "Returned(0) 1"]);
}

#[test]
fn returns_of_a_parents_calls_are_no_orphans() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    // The child gets this return, whether it is the child's first hit or follows other calls.
    story.feed(&returned(20, 8, 1, 10, 0));
    story.feed(&call(21, 9, 9, 1, 2, 800, false));
    story.feed(&returned(22, 9, 2, 21, 0));
    story.feed(&returned(23, 9, 3, 10, 0));
    assert_eq!((story.orphans(), story.in_flight()), (0, vec![1]));
    story.take();
    story.returned(24, 2, 10, 3);
    assert_eq!(story.take(), ["Returned(3) 1"]);
}

/// The return shows that all calls the child had open inside it are gone. It is a hit like others, not a gap.
#[test]
fn a_parents_call_returning_in_the_child_is_no_loss() {
    let mut story = Story::default();
    story.feed(&call(20, 9, 9, 1, 1, 700, false));
    story.feed(&returned(23, 9, 2, 10, 0));
    story.feed(&call(24, 9, 9, 3, 2, 750, false));
    assert_eq!(story.take()[1..], ["Unwound 1", "begin 2 at 0 in None"]);
}

#[test]
fn after_the_last_number_comes_zero_and_one() {
    let mut story = Story::default();
    story.call(10, u32::MAX - 1, 1, 900);
    story.call(11, u32::MAX, 2, 800);
    story.returned(12, 0, 11, 0);
    story.take();
    story.call(13, 1, 3, 800);
    assert_eq!(story.take(), ["begin 3 at 1 in Some(1)"], "the thread did not begin anew");
    story.returned(14, 2, 13, 0);
    story.returned(15, 3, 10, 9);
    assert_eq!(story.take(), ["Returned(0) 3", "Returned(9) 1"]);
}

#[test]
fn a_thread_may_make_more_hits_than_a_number_has() {
    // At a million per second, 2^32 hits take an hour. An outer call is open over all of them.
    let mut story = Story::default();
    story.call(1, u32::MAX - 4, 1, 900);
    story.take();
    let mut seq = u32::MAX - 4;
    for turn in 1..=4u64 {
        seq = seq.wrapping_add(1);
        story.call(turn * 10, seq, 2, 800);
        seq = seq.wrapping_add(1);
        story.returned(turn * 10 + 5, seq, turn * 10, 0);
        assert_eq!(story.take(), ["begin 2 at 1 in Some(1)", "Returned(0) 2"], "at {seq}");
    }
    assert_eq!(seq, 3);
    // There is no gap: a call that is skipped now was left by longjmp, not lost.
    story.call(100, 4, 3, 700);
    story.returned(101, 5, 1, 0);
    assert_eq!(story.take(), ["begin 3 at 1 in Some(1)", "Unwound 3", "Returned(0) 1"]);
    assert_eq!((story.orphans(), story.in_flight().len()), (0, 0));
}

#[test]
fn hits_lost_where_the_number_goes_round_are_a_gap() {
    let mut story = Story::default();
    story.call(1, u32::MAX - 1, 1, 900);
    // Its return, with the number u32::MAX, was lost, and so was the hit with the number 0.
    story.call(10, 1, 2, 900);
    story.returned(20, 2, 10, 0);
    assert_eq!(story.take()[1..], ["Lost 1", "begin 2 at 0 in None", "Returned(0) 2"]);
    // A number that goes back still belongs to another thread.
    story.call(30, u32::MAX, 3, 900);
    assert_eq!(story.take(), ["begin 3 at 0 in None"]);
}

#[test]
fn a_call_on_another_stack_encloses_nothing_and_ends_nothing() {
    let mut story = Story::default();
    story.call(1, 1, 10, 1000);
    // Above the first call. On one stack this would mean that the first call was left.
    story.feed(&call_elsewhere(2, 2, 11, 5000));
    story.feed(&call_elsewhere(3, 3, 12, 100));
    story.call(4, 4, 13, 900);
    story.returned(5, 5, 4, 0);
    story.returned(6, 6, 1, 0);
    let reported = [
        "begin 10 at 0 in None",
        "begin 11 at 1 in Some(1)",
        "begin 12 at 1 in Some(1)",
        "begin 13 at 1 in Some(1)",
        "Returned(0) 13",
        "Returned(0) 10",
    ];
    assert_eq!(story.take(), reported);
    assert_eq!((story.in_flight().len(), story.orphans()), (0, 0));
    assert_eq!(story.pairing.unwrap().elsewhere, 2);
}

/// A program may make calls forever and never return.
#[test]
fn calls_without_end_are_followed_up_to_a_bound() {
    let mut story = Story::default();
    for depth in 0..2000u32 {
        let sp = 1_000_000 - u64::from(depth) * 16;
        story.feed(&call(u64::from(depth) + 1, 1, 1, depth + 1, 1, sp, false));
    }
    let reported = story.take();
    let (open, lost) = (story.in_flight().len(), reported.iter().filter(|word| *word == "Lost 1").count());
    assert_eq!((open, open + lost), (1024, 2000));
    let mut story = Story::default();
    for tid in 0..gpurec_trace::bounds::MOST_OPEN as u32 + 100 {
        story.feed(&call(u64::from(tid) + 1, 1, tid + 1, 1, 1, 900, false));
        story.take();
    }
    assert_eq!(story.in_flight().len(), gpurec_trace::bounds::MOST_OPEN);
    for tid in 0..50 {
        story.feed(&exit_item(1 << 40, 1, tid + 1, false));
    }
    story.feed(&call(1 << 41, 1, 1 << 30, 1, 1, 900, false));
    assert_eq!(story.in_flight().len(), gpurec_trace::bounds::MOST_OPEN - 49, "there is room again");
}
