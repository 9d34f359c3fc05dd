//! Pairing with lost records: no record is taken for another.

use super::pair::{Story, call, returned};
use crate::wire;

#[test]
fn a_lost_return_is_lost_and_not_unwound() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    // Record 2, the return, was lost.
    story.call(12, 3, 2, 900);
    assert_eq!(story.take()[1..], ["Lost 1", "begin 2 at 0 in None"]);
}

/// Linux tracks the returns of MAX_FRAMES nested calls, and no more.
#[test]
fn a_return_too_deep_to_be_seen_is_lost_and_not_unwound() {
    let mut story = Story::default();
    let most = u64::from(wire::MAX_FRAMES);
    for depth in 0..=most {
        story.call(10 + depth, depth as u32 + 1, 1, 9000 - 10 * depth);
    }
    story.returned(200, most as u32 + 2, 10 + most - 1, 0);
    let reported = story.take();
    assert_eq!(reported[most as usize + 1..], ["Lost 1", "Returned(0) 1"]);
    assert_eq!(story.too_deep(), [(1, 1)]);
}

#[test]
fn a_lost_return_inside_a_call_is_lost_when_that_returns() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    story.call(11, 2, 2, 800);
    story.returned(13, 4, 10, 0);
    assert_eq!(story.take()[2..], ["Lost 2", "Returned(0) 1"]);
}

#[test]
fn a_loss_before_a_call_is_not_held_against_it() {
    let mut story = Story::default();
    story.call(10, 4, 1, 900);
    story.call(11, 9, 2, 800);
    story.returned(12, 10, 10, 0);
    assert_eq!(story.take()[2..], ["Unwound 2", "Returned(0) 1"]);
}

#[test]
fn a_lost_call_changes_nothing_for_those_around_it() {
    let mut story = Story::default();
    story.call(10, 1, 1, 900);
    // Record 2 was a call inside: neither it nor its return is recorded.
    story.call(12, 3, 3, 700);
    story.returned(13, 4, 12, 1);
    story.returned(14, 5, 10, 2);
    let reported = story.take();
    assert_eq!(reported[1..], ["begin 3 at 1 in Some(1)", "Returned(1) 3", "Returned(2) 1"]);
}

#[test]
fn losses_of_one_thread_do_not_touch_another() {
    let mut story = Story::default();
    story.feed(&call(10, 7, 7, 1, 1, 900, false));
    story.feed(&call(11, 7, 8, 1, 2, 900, false));
    story.feed(&call(12, 7, 8, 9, 3, 800, false));
    story.feed(&call(13, 7, 7, 2, 4, 900, false));
    assert_eq!(story.take()[3..], ["Unwound 1", "begin 4 at 0 in None"]);
}

/// The end of the thread that had this tid was lost, and then the first call of the new one.
#[test]
fn a_number_that_goes_back_is_another_thread() {
    let mut story = Story::default();
    story.call(10, 50, 1, 900);
    story.call(20, 2, 2, 800);
    assert_eq!(story.take()[1..], ["died 1", "begin 2 at 0 in None"]);
}

#[test]
fn a_call_is_never_inside_another_processs_call() {
    let mut story = Story::default();
    story.feed(&call(10, 7, 8, 1, 1, 900, false));
    story.feed(&call(20, 70, 8, 2, 2, 800, false));
    assert_eq!(story.take()[1..], ["died 1", "begin 2 at 0 in None"]);
}

/// The thread was forked inside a call, and the end of the previous thread with its tid was lost: the first hit is
/// the return of the parent's call.
#[test]
fn a_first_hit_can_be_a_parents_return() {
    let mut story = Story::default();
    story.feed(&call(10, 8, 8, 1, 1, 900, false));
    story.feed(&call(15, 7, 7, 1, 2, 900, false));
    story.feed(&returned(20, 8, 1, 15, 0));
    story.feed(&call(21, 8, 8, 2, 3, 800, false));
    let reported = story.take();
    assert_eq!((reported[2].as_str(), reported[3].as_str()), ("died 1", "begin 3 at 0 in None"));
    assert_eq!(story.orphans(), 0);
}
