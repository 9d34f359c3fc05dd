use super::*;
use crate::gpu::cupti::Node;

fn api(tid: u32, start: u64, end: u64, correlation: u32) -> Api {
    Api { is_driver: true, function: 307, start, end, tid, correlation, status: 0 }
}

fn kernel(correlation: u32, start: u64) -> Work {
    let what = What::Kernel { grid: [1; 3], block: [1; 3], registers: 8, shared: 0 };
    Work { start, end: start + 10, device: 0, context: 1, stream: 7, correlation, node: None, what }
}

fn of(pid: u32) -> Program {
    Program { pid, run: 0 }
}

/// What comes out: correlation, call, its end.
#[derive(Default)]
struct Out(Vec<(u32, Option<u64>, Option<u64>)>);

impl Out {
    fn take(&mut self) -> impl FnMut(Joined) + '_ {
        |joined| {
            self.0.push((joined.work.correlation, joined.by.map(|by| by.id), joined.by.and_then(|by| by.end)))
        }
    }
}

#[test]
fn work_belongs_to_the_innermost_call_in_any_order() {
    for work_first in [false, true] {
        let (mut join, mut out) = (Join::default(), Out::default());
        join.watch(5);
        join.begin(5, 6, 100, 1, true);
        join.begin(5, 6, 110, 2, true);
        join.end(5, 6, 150, 2, true);
        join.end(5, 6, 160, 1, true);
        join.begin(5, 6, 200, 3, false);
        join.end(5, 6, 300, 3, true);
        let give = |join: &mut Join, out: &mut Out| {
            join.work(0, of(5), kernel(9, 1000), None, &mut out.take());
            join.work(0, of(5), kernel(10, 1000), None, &mut out.take());
        };
        if work_first {
            give(&mut join, &mut out);
            assert!(out.0.is_empty());
        }
        // The runtime's record, whose call encloses the driver's.
        join.api(of(5), &api(6, 105, 155, 9), true, &mut |_| {});
        join.api(of(5), &api(6, 120, 140, 9), true, &mut out.take());
        join.api(of(5), &api(6, 210, 290, 10), false, &mut out.take());
        if !work_first {
            give(&mut join, &mut out);
            assert_eq!(out.0, [(9, Some(2), Some(150)), (10, Some(3), Some(300))]);
        } else {
            assert_eq!(out.0, [(10, Some(3), Some(300))], "the first went with the first record");
        }
        let account = join.account(of(5));
        assert_eq!((account.launches, account.api, account.complete), (1, 1, 1));
        assert_eq!((account.delivered, account.unmatched), (2, 0));
    }
}

#[test]
fn the_call_within_a_record_of_the_runtime_is_the_inner_one() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    // Call 1 is of a hooked runtime, around call 2. Calls 3 and 4, a copy and a launch, are within a runtime without
    // hooks.
    for (id, begin, end, is_launch) in [
        (1, 100, 200, true),
        (2, 120, 150, true),
        (3, 310, 320, false),
        (4, 330, 350, true),
        (5, 500, 540, true),
    ] {
        join.begin(5, 6, begin, id, is_launch);
        join.end(5, 6, end, id, true);
    }
    // The last record is of a call of the driver, not of the runtime.
    for (start, end, correlation) in [(110, 190, 1), (300, 400, 2), (510, 530, 3)] {
        join.api(of(5), &api(6, start, end, correlation), true, &mut out.take());
        join.work(0, of(5), kernel(correlation, 1000), None, &mut out.take());
    }
    assert_eq!(out.0, [(1, Some(2), Some(150)), (2, Some(4), Some(350)), (3, Some(5), Some(540))]);
    join.api(of(5), &api(6, 300, 400, 4), false, &mut out.take());
    join.work(0, of(5), kernel(4, 1000), None, &mut out.take());
    assert_eq!(out.0.last(), Some(&(4, Some(3), Some(320))));
}

#[test]
fn threads_and_processes_are_told_apart() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.watch(50);
    for (pid, tid, id) in [(5, 6, 1), (5, 7, 2), (50, 6, 3), (4, 6, 4)] {
        join.begin(pid, tid, 100, id, true);
        join.end(pid, tid, 200, id, true);
    }
    for (pid, tid) in [(5, 7), (5, 6), (50, 6), (4, 6)] {
        join.api(of(pid), &api(tid, 120, 130, tid), true, &mut out.take());
        join.work(0, of(pid), kernel(tid, 500), None, &mut out.take());
    }
    let ids: Vec<_> = out.0.iter().map(|one| one.1).collect();
    assert_eq!(ids, [Some(2), Some(1), Some(3)], "process 4 is not watched");
}

#[test]
fn a_thread_of_another_name_is_known_by_its_calls() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    for (tid, at, id) in [(6, 100, 3), (7, 110, 4), (6, 300, 1), (7, 350, 2)] {
        join.begin(5, tid, at, id, true);
        join.end(5, tid, at + 40, id, true);
    }
    // The first is in calls of both threads.
    for (start, correlation) in [(120, 3), (310, 1), (360, 2)] {
        join.api(
            of(5),
            &api(0x7700_0000 + correlation % 2, start, start + 5, correlation),
            true,
            &mut out.take(),
        );
        join.work(0, of(5), kernel(correlation, 500), None, &mut out.take());
    }
    let ids: Vec<_> = out.0.iter().map(|one| one.1).collect();
    assert_eq!(ids, [Some(3), Some(1), Some(2)]);
}

#[test]
fn a_call_outside_of_all_recorded_ones_is_unknown() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.begin(5, 6, 100, 1, true);
    join.end(5, 6, 200, 1, true);
    join.begin(5, 6, 300, 2, true);
    for (start, correlation) in [(50, 1), (250, 2), (350, 3)] {
        join.api(of(5), &api(6, start, start + 1, correlation), true, &mut out.take());
        join.work(0, of(5), kernel(correlation, 500), None, &mut out.take());
    }
    join.expire(0, true, &mut out.take());
    assert_eq!(out.0, [(1, None, None), (2, None, None), (3, Some(2), None)]);
}

#[test]
fn work_without_a_call_is_written_in_the_end() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.work(1000, of(5), kernel(1, 500), None, &mut out.take());
    join.work(2000, of(5), kernel(2, 500), None, &mut out.take());
    join.expire(1000 + PATIENCE_NS, false, &mut out.take());
    assert_eq!(out.0, [(1, None, None)]);
    join.expire(0, true, &mut out.take());
    assert_eq!(out.0, [(1, None, None), (2, None, None)]);
    assert_eq!((join.account(of(5)).unmatched, join.waiting), (2, 0));
}

#[test]
fn what_has_no_times_is_counted() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.work(0, of(5), Work { start: 0, end: 0, ..kernel(1, 0) }, None, &mut out.take());
    join.work(0, of(5), Work { end: 0, ..kernel(2, 100) }, None, &mut out.take());
    // Work that ends after its record came.
    join.work(0, of(5), kernel(3, 2 * AHEAD_NS), None, &mut out.take());
    join.work(0, of(5), Work { end: u64::MAX, ..kernel(4, 100) }, None, &mut out.take());
    join.expire(0, true, &mut out.take());
    let account = join.account(of(5));
    assert_eq!((out.0.len(), account.untimed, account.unfinished, account.delivered), (0, 3, 1, 0));
}

#[test]
fn a_graph_is_one_launch_of_many_kernels() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.begin(5, 6, 100, 1, true);
    join.end(5, 6, 200, 1, true);
    join.api(of(5), &api(6, 120, 130, 1), true, &mut out.take());
    for node in 0..4 {
        let work = Work { node: Some(Node { graph: 3, node }), ..kernel(1, 500) };
        join.work(0, of(5), work, None, &mut out.take());
    }
    let account = join.account(of(5));
    assert_eq!((account.launches, account.api, account.complete), (1, 1, 1));
    assert_eq!((account.delivered, account.graph_nodes, out.0.len()), (4, 3, 4));
}

#[test]
fn memory_is_bounded() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    for id in 0..MOST_CALLS as u64 + 10 {
        let tid = if id < 10 { 7 } else { 6 };
        join.begin(5, tid, id * 10, id, true);
        join.end(5, tid, id * 10 + 5, id, true);
    }
    assert_eq!((join.calls.len(), join.threads.len()), (MOST_CALLS, 1), "the oldest are forgotten");
    for correlation in 0..MOST_WAITING as u32 + 10 {
        join.work(0, of(5), kernel(correlation, 500), None, &mut out.take());
    }
    assert_eq!((join.waiting, out.0.len()), (MOST_WAITING, 10));
}

#[test]
fn a_call_is_found_wherever_the_last_one_was() {
    let mut thread = Thread::default();
    assert_eq!(thread.begun_by(5), 0);
    // Two begin at each time, and the oldest are forgotten.
    for at in 0..1000u64 {
        let call =
            Call { begin: at / 2 * 10, end: u64::MAX, id: at, tid: 6, is_launch: true, is_outer: false };
        thread.calls.push_back(call);
    }
    thread.calls.drain(..100);
    thread.forgotten = 100;
    for found in [0, 100, 101, 150, 550, 998, 999, 1000, 5000] {
        for time in (0..6000).step_by(5) {
            thread.found = found;
            let expected = thread.calls.partition_point(|call| call.begin <= time);
            assert_eq!(thread.begun_by(time), expected, "{time} after {found}");
        }
    }
}

#[test]
fn an_exec_begins_anew() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.begin(5, 5, 100, 1, true);
    join.end(5, 5, 150, 1, true);
    join.ended(5, 200);
    join.watch(5);
    join.begin(5, 5, 300, 2, true);
    join.end(5, 5, 350, 2, true);
    let (first, second) = (join.program_at(5, 120), join.program_at(5, 310));
    assert_ne!(first, second);
    // Both programs begin to count their calls at 1.
    for (program, start) in [(second, 310), (first, 110)] {
        join.api(program, &api(5, start, start + 5, 1), true, &mut out.take());
        join.work(0, program, kernel(1, 500), None, &mut out.take());
        assert_eq!(join.account(program).complete, 1);
    }
    assert_eq!(out.0, [(1, Some(2), Some(350)), (1, Some(1), Some(150))]);
}

#[test]
fn a_process_that_executes_without_end_takes_bounded_memory() {
    let mut join = Join::default();
    for run in 0..MOST_ENDS as u64 + 100 {
        join.watch(5);
        assert_eq!(join.program_at(5, run * 10), Program { pid: 5, run: run as u32 });
        join.ended(5, run * 10 + 5);
    }
    assert_eq!((join.ends[&5].times.len(), join.ends[&5].forgotten), (MOST_ENDS, 100));
    // The remaining ones keep their numbers.
    assert_eq!(join.program_at(5, 100 * 10 + 6).run, 101);
    assert_eq!(join.program_at(5, u64::MAX).run, MOST_ENDS as u32 + 100);
}

#[test]
fn programs_that_come_and_go_take_bounded_memory() {
    let (mut join, mut out, mut closed) = (Join::default(), Out::default(), Vec::new());
    let programs = 3 * MOST_PROGRAMS as u64;
    for n in 0..programs {
        // PIDs are reused.
        let (pid, at) = ((n % (2 * MOST_PROGRAMS as u64)) as u32, 1000 * n);
        join.watch(pid);
        join.begin(pid, pid, at + 1, n, true);
        join.end(pid, pid, at + 5, n, true);
        let program = join.program_at(pid, at + 1);
        join.api(program, &api(pid, at + 1, at + 4, 1), true, &mut out.take());
        join.work(at, program, kernel(1, at + 10), None, &mut out.take());
        join.ended(pid, at + 500);
        closed.extend(join.close(at, |_, _| false, &mut out.take()));
        assert!(join.processes.len() < 3 && join.ends.len() <= MOST_PROGRAMS);
    }
    closed.extend(join.close(u64::MAX, |_, _| false, &mut out.take()));
    assert_eq!((closed.len() as u64, join.processes.len()), (programs, 0));
    assert!(closed.iter().all(|(_, account)| (account.launches, account.complete) == (1, 1)));
}

#[test]
fn a_program_with_records_to_come_keeps_its_account() {
    let (mut join, mut out) = (Join::default(), Out::default());
    join.watch(5);
    join.begin(5, 5, 100, 1, true);
    let program = join.program_at(5, 100);
    join.ended(5, 200);
    assert_eq!(join.close(200, |_, _| false, &mut out.take()), [], "not before its time");
    assert_eq!(join.close(300, |of, at| (of, at) == (program, 200), &mut out.take()), []);
    join.work(0, program, kernel(1, 150), None, &mut out.take());
    assert_eq!(join.close(300, |_, _| false, &mut out.take()), [], "the record of its call may come");
    join.expire(PATIENCE_NS, false, &mut out.take());
    let closed = join.close(300, |_, _| false, &mut out.take());
    assert_eq!((closed.len(), closed[0].0, closed[0].1.unmatched), (1, program, 1));
    assert_eq!(join.close(300, |_, _| false, &mut out.take()), []);
}

#[test]
fn work_waits_for_the_end_of_its_call() {
    for work_first in [false, true] {
        let (mut join, mut out) = (Join::default(), Out::default());
        join.watch(5);
        for (id, correlation) in [(1, 7), (2, 8), (3, 9)] {
            join.begin(5, id as u32 + 10, 100, id, true);
            if work_first {
                join.work(0, of(5), kernel(correlation, 120), None, &mut out.take());
            }
            join.api(of(5), &api(id as u32 + 10, 110, 150, correlation), true, &mut out.take());
            if !work_first {
                join.work(0, of(5), kernel(correlation, 120), None, &mut out.take());
            }
        }
        assert!(out.0.is_empty());
        join.end(5, 11, 160, 1, true);
        join.expire(1000, false, &mut out.take());
        assert_eq!(out.0, [(7, Some(1), Some(160))]);
        join.end(5, 12, 170, 2, true);
        join.expire(130 + PATIENCE_NS, false, &mut out.take());
        assert_eq!(out.0[1..], [(8, Some(2), Some(170)), (9, Some(3), None)]);
    }
}
