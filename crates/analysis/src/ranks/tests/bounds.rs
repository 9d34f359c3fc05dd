//! Traces with more of something than `ranks` keeps: what is left out is in no figure, and the report says so.

use super::by_line::{Made, report_of};
use super::*;

fn says(report: &Report, what: &str) -> bool {
    report.notes.iter().any(|note| note.contains(what))
}

/// That a function of the others is not among those kept of a rank does not mean that the rank never calls it.
#[test]
fn functions_beyond_the_bound_are_no_difference() {
    let job = |more: u32| {
        [0, 1, 2].map(|rank| {
            let mut made = Made::new();
            made.rank(7, rank);
            let is_third = rank == 2;
            (0..if is_third { 100 } else { 20 }).for_each(|_| made.call(0.1, 7, "cudaFree"));
            (0..if is_third { more } else { 0 }).for_each(|n| made.call(0.2, 7, &format!("f{n}")));
            (0..100).for_each(|_| made.call(0.3, 7, "cudaMalloc"));
            made.end(0.4, "");
            made
        })
    };
    for (more, is_bounded) in [(4000, false), (4096, true)] {
        let report = report_of(job(more));
        let found: Vec<_> = report.differences.iter().map(|it| (it.rank, it.function.as_str())).collect();
        assert_eq!(found, [(Some(2), "cudaFree")]);
        assert_eq!(says(&report, "1 rank called more functions"), is_bounded, "{:?}", report.notes);
    }
}

/// Kernels without a name of their own are different ones on each rank, and communicators without one cannot be matched.
#[test]
fn names_beyond_the_bound_are_compared_with_none() {
    let job = |long: usize| {
        [0, 1, 2].map(|rank| {
            let mut made = Made::new();
            made.rank(7, rank);
            if rank == 0 {
                let tail = "x".repeat(8100);
                (0..long).for_each(|n| made.call(0.01, 7, &format!("{n:04}{tail}")));
                (0..400).for_each(|n| made.call(0.01, 7, &format!("{n:030}")));
                (0..100).for_each(|n| made.call(0.01, 7, &n.to_string()));
            }
            // What follows is read after the first round, in which the first trace takes all names.
            made.call(5.0, 7, "cudaFree");
            let (kernel, us) = if rank == 2 { ("the slow kernel", 90) } else { ("the quick kernel", 10) };
            (0..20).for_each(|_| made.kernel(10.0, 7, kernel, us));
            (0..5).for_each(|seq| made.collective(10.1, 7, "communicator", (rank, 3), seq));
            made.call(11.0, 7, "cudaFree");
            made.end(11.0, "");
            made
        })
    };
    let few = report_of(job(3));
    assert!(few.slow_kernels.is_empty() && few.notes.is_empty(), "{:?}", few.notes);
    assert_eq!(few.collectives.iter().map(|it| it.count).sum::<u64>(), 5);
    let many = report_of(job(3100));
    assert!(many.slow_kernels.is_empty(), "{:?}", many.slow_kernels);
    assert!(many.collectives.is_empty() && many.mismatches.is_empty() && many.hangs.is_empty());
    assert!(says(&many, "follows: 15 collectives"), "{:?}", many.notes);
    assert!(!says(&many, "the recording began after"), "{:?}", many.notes);
}

/// A communicator of which the last collective is not kept is in no hang; its process is still a rank.
#[test]
fn last_collectives_beyond_the_bound_are_in_no_hang() {
    let job = |filled: u32| {
        let mut made = Made::new();
        for pid in 0..filled {
            (0..4096).for_each(|n| made.collective(0.1, 100 + pid, &format!("{pid}-{n}"), (0, 1), 0));
        }
        // In two communicators the first of these waits for the second.
        for (pid, rank) in [(1, 0), (2, 1)] {
            made.rank(pid, rank);
            for comm in ["first", "second"] {
                (0..2 - u64::from(rank)).for_each(|seq| made.collective(0.2, pid, comm, (rank, 2), seq));
            }
        }
        made.call(9.0, 1, "cudaFree");
        made.end(9.0, "");
        let report = report_of([made]);
        let ranks: Vec<_> = report.ranks.iter().filter(|it| it.pid < 100).map(|it| it.rank).collect();
        assert_eq!((ranks, report.missing.is_empty()), (vec![Some(0), Some(1)], true));
        report.hangs.iter().map(|it| (it.comm.clone(), it.missing.clone())).collect::<Vec<_>>()
    };
    let hang = |comm: &str| (comm.to_owned(), vec![Some(1)]);
    assert_eq!(job(0), [hang("first"), hang("second")]);
    assert_eq!(job(16), [hang("first")]);
}

/// The reasons of all ranks together are bounded. A rank without its reasons is incomplete all the same.
#[test]
fn reasons_beyond_the_bound_are_left_out() {
    let mut made = Made::new();
    (0..1000).for_each(|rank| made.rank(100 + rank, rank));
    let reason = format!(r#""{}""#, "x".repeat(5000));
    made.end(1.0, &vec![reason; 5].join(","));
    let report = report_of([made]);
    assert_eq!(report.ranks.len(), 1000);
    assert!(report.ranks.iter().all(|it| !it.complete));
    let bytes = |rank: &crate::ranks::report::RankState| rank.reasons.iter().map(String::len).sum::<usize>();
    let all: usize = report.ranks.iter().map(bytes).sum();
    assert!(all > 15 << 20 && all <= 16 << 20, "{all}");
    assert!(bytes(&report.ranks[0]) > 0 && report.ranks[999].reasons.is_empty());
}

#[test]
fn threads_of_a_hang_are_bounded() {
    let mut made = Made::new();
    for (pid, rank) in [(1, 0), (2, 1)] {
        made.rank(pid, rank);
        (0..2 - u64::from(rank)).for_each(|seq| made.collective(0.2, pid, "comm", (rank, 2), seq));
    }
    (0..300).for_each(|tid| _ = made.begin(0.3, (2, 1000 + tid), "cuCtxSynchronize"));
    made.call(9.0, 1, "cudaFree");
    made.end(9.0, "");
    let report = report_of([made]);
    let threads: Vec<_> = report.hangs[0].in_flight.iter().map(|it| (it.rank, it.threads.len())).collect();
    assert_eq!(threads, [(Some(1), 256), (Some(0), 0)]);
}
