//! The policy's decisions: what goes first, how far, and when it comes back.

use super::policy::{Decision, Hits, INTERVAL_NS, Policy};
use super::rank;
use crate::probe::overhead_control::STACKS;
use gpurec_trace::CALL_STACKS;
use gpurec_trace::Level::{self, Recorded, Unhooked};

const NAMES: [&str; 5] =
    ["cuLaunchKernel", "cudaGetDevice", "cudaGetLastError", "cudaEventRecord", "cudaMemcpyAsync"];
const LAUNCH: u32 = 1;
const DEVICE: u32 = 2;
const ERROR: u32 = 3;
const EVENT: u32 = 4;
const COPY: u32 = 5;

/// With a budget of 5 % and 1,000 ns per hit, an interval holds 5,000 hits.
const SECOND: u64 = 1_000_000_000;

fn policy() -> Policy {
    let mut policy = Policy::new(5.0, rank::class);
    for (id, name) in (1..).zip(NAMES) {
        policy.add(id, name, 1000.0);
    }
    policy
}

fn hits(tid: u32, function: u32, count: u64) -> Hits {
    Hits { pid: 7, tid, function, count, ns: None }
}

/// Makes an interval's decisions and carries out all of them.
fn decide(policy: &mut Policy, now_ns: u64, hits: &[Hits]) -> Vec<(u32, Level)> {
    let decisions = policy.decide(now_ns, INTERVAL_NS, hits);
    for decision in &decisions {
        policy.done(now_ns, decision);
    }
    moves(&decisions)
}

fn moves(decisions: &[Decision]) -> Vec<(u32, Level)> {
    decisions.iter().map(|decision| (decision.function, decision.to)).collect()
}

#[test]
fn within_the_budget_nothing_is_given_up() {
    assert_eq!(decide(&mut policy(), 0, &[]), []);
    assert_eq!(decide(&mut policy(), 0, &[hits(7, LAUNCH, 2_400), hits(7, DEVICE, 2_500)]), []);
    // Two threads, each within its own budget.
    assert_eq!(decide(&mut policy(), 0, &[hits(7, LAUNCH, 4_900), hits(8, LAUNCH, 4_900)]), []);
}

#[test]
fn what_only_asks_goes_before_what_is_short_before_what_tells() {
    // 30 % for each function: all have to go, in order.
    let all = [LAUNCH, COPY, EVENT, DEVICE].map(|function| hits(7, function, 30_000));
    let order = decide(&mut policy(), 0, &all);
    assert_eq!(order, [(DEVICE, Unhooked), (EVENT, Unhooked), (LAUNCH, Unhooked), (COPY, Unhooked)]);
}

#[test]
fn in_a_class_what_is_called_most_goes_first() {
    let order = decide(&mut policy(), 0, &[hits(7, DEVICE, 10_000), hits(7, ERROR, 20_000)]);
    assert_eq!(order, [(ERROR, Unhooked), (DEVICE, Unhooked)]);
}

#[test]
fn no_more_is_given_up_than_is_needed() {
    // Without the queries, 1 % is left.
    let mut policy = policy();
    let all = [hits(7, DEVICE, 50_000), hits(7, LAUNCH, 1_000), hits(7, EVENT, 10)];
    assert_eq!(decide(&mut policy, 0, &all), [(DEVICE, Unhooked)]);
    assert_eq!(policy.given_up(), [DEVICE]);
    // Hits from before it was given up.
    let late = [hits(7, DEVICE, 50_000), hits(7, LAUNCH, 1_000)];
    assert_eq!(decide(&mut policy, INTERVAL_NS, &late), []);
    assert_eq!(decide(&mut policy, 2 * INTERVAL_NS, &[hits(7, LAUNCH, 1_000)]), []);
}

#[test]
fn what_helps_nothing_is_kept() {
    let all = [hits(7, ERROR, 10), hits(7, LAUNCH, 20_000)];
    assert_eq!(decide(&mut policy(), 0, &all), [(LAUNCH, Unhooked)]);
}

#[test]
fn many_small_ones_go_if_nothing_else_is_left() {
    let mut policy = Policy::new(5.0, rank::class);
    let functions = 100..400;
    for id in functions.clone() {
        policy.add(id, "cudaGetDevice", 1000.0);
    }
    let all: Vec<Hits> = functions.map(|id| hits(7, id, 30)).collect();
    // 9 % become 3 %.
    assert_eq!(decide(&mut policy, 0, &all).len(), 200);
}

#[test]
fn only_the_threads_over_their_budget_decide() {
    let decisions = policy().decide(0, INTERVAL_NS, &[hits(7, DEVICE, 50_000), hits(8, ERROR, 4_000)]);
    assert_eq!(moves(&decisions), [(DEVICE, Unhooked)]);
    let why = decisions[0].why.unwrap();
    assert_eq!((why.pid, why.tid, why.percent, why.hits_per_sec), (7, 7, 50.0, 500_000));
}

#[test]
fn a_function_that_two_threads_call_is_given_up_once() {
    let both = [hits(7, DEVICE, 50_000), hits(8, DEVICE, 60_000)];
    assert_eq!(decide(&mut policy(), 0, &both), [(DEVICE, Unhooked)]);
}

#[test]
fn a_decision_that_was_not_carried_out_comes_again() {
    let policy = policy();
    for _ in 0..3 {
        let again = policy.decide(0, INTERVAL_NS, &[hits(7, DEVICE, 50_000)]);
        assert_eq!(moves(&again), [(DEVICE, Unhooked)]);
    }
}

#[test]
fn a_hot_loop_is_not_left_for_an_interval() {
    let policy = policy();
    // 5 ms within 20 ms are the budget of 100 ms.
    assert!(policy.is_due(INTERVAL_NS / 5, &[hits(7, LAUNCH, 5_000)]));
    assert!(!policy.is_due(INTERVAL_NS / 5, &[hits(7, LAUNCH, 4_000)]));
    assert!(!policy.is_due(INTERVAL_NS / 5, &[hits(7, LAUNCH, 2_600), hits(8, LAUNCH, 2_600)]));
    assert!(policy.is_due(INTERVAL_NS, &[]));
}

#[test]
fn it_is_calm_while_no_thread_is_near_the_budget() {
    let mut policy = policy();
    assert!(policy.is_calm(INTERVAL_NS, &[]));
    assert!(policy.is_calm(INTERVAL_NS, &[hits(7, LAUNCH, 2_900), hits(8, LAUNCH, 2_900)]));
    assert!(!policy.is_calm(INTERVAL_NS, &[hits(7, LAUNCH, 3_100)]));
    decide(&mut policy, 0, &[hits(7, DEVICE, 50_000)]);
    assert!(!policy.is_calm(INTERVAL_NS, &[]), "a function is given up");
}

fn all_given_up() -> Policy {
    let mut policy = policy();
    assert_eq!(decide(&mut policy, 0, &[LAUNCH, EVENT, DEVICE].map(|id| hits(7, id, 100_000))).len(), 3);
    policy
}

#[test]
fn what_tells_most_comes_back_first_and_one_at_a_time() {
    let mut policy = all_given_up();
    assert_eq!(decide(&mut policy, SECOND - 1, &[]), [], "not at once");
    for (i, function) in (0..).zip([LAUNCH, EVENT, DEVICE]) {
        assert_eq!(decide(&mut policy, SECOND + i * INTERVAL_NS, &[]), [(function, Recorded)]);
    }
    assert!(policy.given_up().is_empty());
}

#[test]
fn not_all_comes_back_where_there_is_room_for_some() {
    let mut policy = all_given_up();
    assert_eq!(decide(&mut policy, SECOND, &[]), [(LAUNCH, Recorded)]);
    // 2.4 % leave room for another.
    let later = SECOND + INTERVAL_NS;
    assert_eq!(decide(&mut policy, later, &[hits(7, LAUNCH, 2_400)]), [(EVENT, Recorded)]);
    let both = [hits(7, LAUNCH, 2_400), hits(7, EVENT, 1_200)];
    // 3.6 %: within the budget, but without room for more.
    for i in 1..100 {
        assert_eq!(decide(&mut policy, later + i * INTERVAL_NS, &both), []);
    }
}

#[test]
fn a_trial_that_fails_makes_the_next_wait_longer() {
    let mut policy = policy();
    let hot = [hits(7, LAUNCH, 100_000)];
    decide(&mut policy, 0, &hot);
    let mut trials = Vec::new();
    let mut is_recorded = false;
    for now in (0..600 * SECOND).step_by(INTERVAL_NS as usize) {
        match decide(&mut policy, now, if is_recorded { &hot } else { &[] }).as_slice() {
            [] => {}
            [(LAUNCH, Recorded)] => {
                trials.push(now);
                is_recorded = true;
            }
            [(LAUNCH, Unhooked)] => is_recorded = false,
            other => panic!("{other:?}"),
        }
    }
    let waits: Vec<u64> = trials.windows(2).map(|pair| (pair[1] - pair[0]) / SECOND).collect();
    assert_eq!(trials[0], SECOND);
    assert_eq!(waits[..6], [2, 4, 8, 16, 32, 64]);
    assert!(waits[6..].iter().all(|wait| *wait == 64), "{waits:?}");
}

#[test]
fn a_function_that_was_recorded_for_long_starts_over() {
    let mut policy = policy();
    let hot = [hits(7, LAUNCH, 5_500)];
    let mut now = 0;
    let mut wait_after = |quiet: u64| {
        assert_eq!(decide(&mut policy, now, &hot), [(LAUNCH, Unhooked)]);
        let given_up = now;
        while decide(&mut policy, now, &[]).is_empty() {
            now += INTERVAL_NS;
        }
        let waited = now - given_up;
        now += quiet;
        waited
    };
    assert_eq!(wait_after(SECOND), SECOND);
    assert_eq!(wait_after(SECOND), 2 * SECOND);
    assert_eq!(wait_after(90 * SECOND), 4 * SECOND);
    assert_eq!(wait_after(SECOND), SECOND);
}

#[test]
fn the_same_facts_give_the_same_decisions() {
    let all: Vec<Hits> =
        (1..=5).flat_map(|function| (1..9).map(move |tid| hits(tid, function, 10_000))).collect();
    let first = policy().decide(0, INTERVAL_NS, &all);
    for _ in 0..20 {
        assert_eq!(policy().decide(0, INTERVAL_NS, &all), first);
    }
}

/// 10 us for each stack.
fn stacks(tid: u32, count: u64) -> Hits {
    Hits { ns: Some(count * 10_000), ..hits(tid, STACKS, count) }
}

fn policy_with_stacks() -> Policy {
    let mut policy = policy();
    policy.add(STACKS, CALL_STACKS, 0.0);
    policy
}

#[test]
fn stacks_are_given_up_before_calls() {
    let mut policy = policy_with_stacks();
    // 20 % for stacks, 2 % for the calls, which also query.
    let all = [hits(7, LAUNCH, 1_500), hits(7, DEVICE, 500), stacks(7, 2_000)];
    assert_eq!(decide(&mut policy, 0, &all), [(STACKS, Unhooked)]);
    // The calls alone fit.
    let calls = [hits(7, LAUNCH, 1_500), hits(7, DEVICE, 500)];
    assert_eq!(decide(&mut policy, INTERVAL_NS, &calls), []);
    assert_eq!(decide(&mut policy, SECOND, &calls), [(STACKS, Recorded)], "on trial");
}

#[test]
fn calls_go_too_where_stacks_are_not_enough() {
    let all = [hits(7, LAUNCH, 1_500), hits(7, DEVICE, 50_000), stacks(7, 2_000)];
    let mut policy = policy_with_stacks();
    assert_eq!(decide(&mut policy, 0, &all), [(STACKS, Unhooked), (DEVICE, Unhooked)]);
    // What tells most comes back first: calls before their stacks.
    assert_eq!(decide(&mut policy, SECOND, &[hits(7, LAUNCH, 1_500)]), [(DEVICE, Recorded)]);
}

#[test]
fn stacks_that_cost_little_are_kept() {
    let all = [hits(7, DEVICE, 50_000), hits(7, LAUNCH, 20), stacks(7, 5)];
    assert_eq!(decide(&mut policy_with_stacks(), 0, &all), [(DEVICE, Unhooked)]);
}
