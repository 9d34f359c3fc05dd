//! Traces with more of something than `ranks` keeps: what is left out is in no figure, and the report says so.

use super::*;

/// A trace that is made line by line, and has an end line that says it is complete.
struct Made {
    text: String,
    id: u64,
}

impl Made {
    fn new() -> Made {
        let header = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"node","kernel":"6","user":"ada","options":{},"hooks":{},"clock":{"monotonic_ns":5000,"realtime_ns":1790000000000000000,"error_ns":60,"boot_id":"b","ntp":null,"ptp":null}}"#;
        Made { text: format!("{header}\n"), id: 0 }
    }

    /// A line at a time in seconds, and its number.
    fn line(&mut self, at: f64, rest: &str) -> u64 {
        self.id += 1;
        self.text.push_str(&format!("{{\"event_id\":{},\"ts\":{at:.9},{rest}}}\n", self.id));
        self.id
    }

    fn rank(&mut self, pid: u32, rank: u32) {
        let exec = r#""type":"process","name":"exec""#;
        self.line(0.0, &format!(r#"{exec},"pid":{pid},"tid":{pid},"command":["a"],"rank":{rank}"#));
    }

    fn begin(&mut self, at: f64, (pid, tid): (u32, u32), name: &str) -> u64 {
        let call = r#""type":"userspace","phase":"B","depth":0,"args":{}"#;
        self.line(at, &format!(r#"{call},"name":"{name}","pid":{pid},"tid":{tid}"#))
    }

    fn call(&mut self, at: f64, pid: u32, name: &str) {
        let begin = self.begin(at, (pid, pid), name);
        let end = r#""type":"userspace","phase":"E","duration_us":1.000,"retval":0"#;
        self.line(at, &format!(r#"{end},"name":"{name}","pid":{pid},"tid":{pid},"begin":{begin}"#));
    }

    fn kernel(&mut self, at: f64, pid: u32, name: &str, us: u64) {
        let work = r#""type":"gpu","kind":"kernel","source":"lane","stream":1,"device":0,"context":1,"correlation":1,"begin":null,"queued_us":null"#;
        self.line(at, &format!(r#"{work},"name":"{name}","pid":{pid},"duration_us":{us}.000"#));
    }

    /// `rank`: in the communicator, which has `nranks`.
    fn collective(&mut self, at: f64, pid: u32, comm: &str, (rank, nranks): (u32, u32), seq: u64) {
        let what = r#""type":"collective","name":"ncclAllReduce","op":"AllReduce","begin":0"#;
        self.line(
            at,
            &format!(
                r#"{what},"pid":{pid},"tid":{pid},"comm":"{comm}","rank":{rank},"nranks":{nranks},"seq":{seq}"#
            ),
        );
    }

    fn end(&mut self, at: f64, reasons: &str) {
        let events = self.id + 1;
        let (kind, complete) =
            (r#""type":"end","name":"end","lost":0,"in_flight":[],"summary":{}"#, reasons.is_empty());
        let rest =
            format!(r#"{kind},"events":{events},"complete":{complete},"incomplete_because":[{reasons}]"#);
        self.line(at, &rest);
    }
}

fn report_of<const N: usize>(traces: [Made; N]) -> Report {
    let folder = Folder::new();
    for (number, trace) in traces.iter().enumerate() {
        fs::write(folder.file(&format!("{number}.jsonl")), &trace.text).unwrap();
    }
    let report = folder.report();
    assert_eq!((report.unread, report.ranks.iter().filter(|it| it.host != "node").count()), (0, 0));
    report
}

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
