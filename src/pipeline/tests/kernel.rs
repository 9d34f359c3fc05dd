//! Records from inside Linux nest in the calls of their thread, and never break them.

use super::super::decode::{Captured, Item, Origin, What};
use super::pair::Story;

/// BPF's stack pointers for records from inside Linux: below every user stack, smaller with depth.
const TOP: u64 = 4096;
const USER: u64 = 0x7ffd_0000_0900;
const KERNEL: Origin = Origin { kernel: true, kernel_thread: false, wrapped: false, elsewhere: false };

fn call(ts: u64, probe: u32, depth: u64) -> Item {
    let captured = Captured::registers([0; 6]);
    let what =
        What::Call { pid: 7, probe, chained: false, sp: TOP - depth, captured, origin: KERNEL, stack: None };
    Item { ts, tid: 7, seq: 0, what }
}

fn returned(ts: u64, begin: u64) -> Item {
    let what = What::Return { probe: 0, begin, value: 0, pieces: Box::default(), origin: KERNEL };
    Item { ts, tid: 7, seq: 0, what }
}

fn instant(ts: u64, tid: u32) -> Item {
    let what = What::Instant { pid: 7, probe: 9, cpu: 0, duration: 1, args: [0; 6], pieces: Box::default() };
    Item { ts, tid, seq: 0, what }
}

#[test]
fn an_ioctl_and_what_it_calls_lie_in_the_call() {
    let mut story = Story::default();
    story.call(10, 1, 1, USER);
    story.feed(&call(11, 20, 0));
    story.feed(&call(12, 21, 1));
    story.feed(&returned(13, 12));
    story.feed(&returned(14, 11));
    story.returned(15, 2, 10, 0);
    assert_eq!(
        story.take(),
        [
            "begin 1 at 0 in None",
            "begin 20 at 1 in Some(1)",
            "begin 21 at 2 in Some(2)",
            "Returned(0) 21",
            "Returned(0) 20",
            "Returned(0) 1"
        ]
    );
}

#[test]
fn one_outside_a_call_stands_alone() {
    let mut story = Story::default();
    story.feed(&call(11, 20, 0));
    story.feed(&returned(14, 11));
    assert_eq!(story.take(), ["begin 20 at 0 in None", "Returned(0) 20"]);
}

/// The next record at the same depth shows the loss, or the end of the call around it. longjmp cannot leave code
/// inside Linux.
#[test]
fn a_return_that_was_lost_is_lost_and_not_unwound() {
    let mut story = Story::default();
    story.call(10, 1, 1, USER);
    story.feed(&call(11, 20, 0));
    story.feed(&call(12, 20, 0));
    story.returned(15, 2, 10, 0);
    assert_eq!(
        story.take()[1..],
        ["begin 20 at 1 in Some(1)", "Lost 20", "begin 20 at 1 in Some(1)", "Lost 20", "Returned(0) 1"]
    );
    assert_eq!(story.orphans(), 0);
}

/// The thread's own sequence numbers continue as if there were no record between them.
#[test]
fn the_kernels_records_are_not_counted_in_the_thread() {
    let mut story = Story::default();
    story.call(10, 1, 1, USER);
    story.feed(&call(11, 20, 0));
    story.feed(&returned(12, 11));
    story.call(13, 2, 2, USER);
    assert_eq!(story.take()[3..], ["Unwound 1", "begin 2 at 0 in None"]);
}

/// A page that gpurec itself reads may fault into the driver: that record is older than the call for which it was
/// made.
#[test]
fn a_record_made_while_a_call_was_being_recorded_comes_before_it() {
    let mut story = Story::default();
    story.feed(&call(8, 20, 0));
    story.feed(&returned(9, 8));
    story.call(10, 1, 1, USER);
    assert_eq!(story.take()[2..], ["begin 1 at 0 in None"]);
}

#[test]
fn an_instant_knows_the_innermost_call_of_its_thread_only() {
    let mut story = Story::default();
    story.call(10, 1, 1, USER);
    story.feed(&instant(11, 7));
    story.feed(&instant(12, 8));
    story.feed(&instant(13, 0));
    assert_eq!(story.take()[1..], ["instant in Some(1)", "instant in None", "instant in None"]);
}

#[test]
fn a_process_that_ends_in_an_ioctl_leaves_it_in_flight() {
    let mut story = Story::default();
    story.feed(&call(11, 20, 0));
    story.feed(&super::exit_item(12, 7, 7, true));
    assert_eq!(story.take(), ["begin 20 at 0 in None", "died 20", "exit"]);
}
