//! A recording for weeks: programs come and go. What the summary holds is bounded by what runs, and no sum loses any.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use gpurec_analysis::Summary;
use gpurec_analysis::figures::Figures;
use gpurec_trace::{
    Args, Begin, Body, End, EndKind, Exec, Exit, ExitStatus, Header, Launch, Line, Memory, Op, Process,
    Retval, SCHEMA, Transfer, Where,
};

/// Counts the bytes that are in use.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all; the count is only read by the test.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The lines of processes, each after the other, as the recorder has them.
struct Recording {
    summary: Summary,
    id: u64,
    ns: u64,
    pid: u32,
}

impl Recording {
    fn new() -> Recording {
        let mut recording = Recording { summary: Summary::new(), id: 0, ns: 0, pid: 0 };
        recording.summary.measure(5, false);
        recording.summary.settles_dead_calls();
        let header = Header { schema: SCHEMA, all: true, ns_per_call: Some(1000), ..Header::default() };
        recording.line(Body::Header(Box::new(header)));
        recording
    }

    fn line(&mut self, body: Body) -> u64 {
        self.id += 1;
        self.ns += 1000;
        self.summary.add(&Line { event_id: self.id, ts_ns: self.ns, body });
        self.id
    }

    fn begin(&mut self, tid: u32, name: &'static str, parent: Option<u64>) -> u64 {
        let launch =
            (name == "cuLaunchKernel").then(|| Launch { kernel: Some("saxpy".into()), ..Launch::default() });
        self.line(Body::Begin(Begin {
            name: name.into(),
            pid: self.pid,
            tid,
            depth: u32::from(parent.is_some()),
            parent,
            args: Args::raw(&[]),
            launch,
            stack: None,
            no_return: None,
            carried: false,
        }))
    }

    fn end(&mut self, tid: u32, name: &'static str, begin: u64, status: i64) {
        let error = (status != 0).then_some(Cow::Borrowed("CUDA_ERROR_INVALID_VALUE"));
        self.line(Body::End(End {
            name: name.into(),
            pid: self.pid,
            tid,
            begin,
            duration_ns: Some(1000),
            paused_ns: 0,
            retval: Some(Retval::Number(status)),
            error,
            out: None,
            late: None,
            ended: EndKind::Returned,
        }));
    }

    fn call(&mut self, tid: u32, name: &'static str, parent: Option<u64>, status: i64) -> u64 {
        let begin = self.begin(tid, name, parent);
        self.end(tid, name, begin, status);
        begin
    }

    fn memory(&mut self, op: Op, name: &'static str) {
        let begin = self.call(self.pid, name, None, 0);
        self.line(Body::Memory(Memory {
            name: name.into(),
            pid: self.pid,
            tid: self.pid,
            begin: Some(begin),
            on: Where { device: Some(0), ..Where::default() },
            op,
            space: "device".into(),
            ptr: 0x1000,
            size: Some(512),
            total_allocated: None,
            earlier: false,
            missed: false,
            runtime: true,
            carried: false,
            stack: None,
        }));
    }

    /// A program with two threads, which is killed in the `more` waits that it makes at last.
    fn program(&mut self, pid: u32, more: u32) {
        self.pid = pid;
        let command = vec!["/usr/bin/train".to_owned(), format!("--job={pid}")];
        let exec = Exec { pid, tid: pid, command, rank: None, local_rank: None, world_size: None, job: None };
        self.line(Body::Process(Process::Exec(exec)));
        for _ in 0..3 {
            self.memory(Op::Alloc, "cudaMalloc");
            self.memory(Op::Free, "cudaFree");
        }
        let copy = self.call(pid, "cudaMemcpy", None, 0);
        self.line(Body::Transfer(Transfer {
            name: "cudaMemcpy".into(),
            pid,
            tid: pid,
            begin: copy,
            on: Where::default(),
            direction: "H2D".into(),
            size: 1 << 20,
            partial: false,
            is_async: false,
            pageable: true,
            duration_ns: Some(1000),
        }));
        for tid in [pid, pid + 1] {
            self.call(tid, "cuLaunchKernel", None, 0);
            self.call(tid, "cuCtxSynchronize", None, 0);
            self.call(tid, "cuMemFree_v2", None, 1);
        }
        for _ in 0..=more {
            let outer = self.begin(pid, "cudaDeviceSynchronize", None);
            self.call(pid, "cuMemFree_v2", Some(outer), 1);
            self.begin(pid, "cuCtxSynchronize", Some(outer));
        }
        // Half a second, in which the metrics still have processes that ended.
        self.ns += 500_000_000;
        self.line(Body::Process(Process::Exit(Exit { pid, tid: pid, status: ExitStatus::Signal(9) })));
    }

    fn figures(&self) -> Figures {
        self.summary.finish(self.ns)
    }

    /// The calls, the seconds of waits and the failed calls in the metrics.
    fn counters(&mut self) -> [u64; 3] {
        let snapshot = self.summary.snapshot(self.ns, None).unwrap();
        let parts = || snapshot.processes.iter().chain([&snapshot.ended]).chain(&snapshot.others);
        [
            parts().map(|part| part.sums.calls.iter().sum::<u64>()).sum(),
            parts().map(|part| part.sums.sync_ns).sum(),
            parts().flat_map(|part| part.sums.failed.values()).sum(),
        ]
    }
}

#[test]
fn programs_that_come_and_go_leave_their_sums_and_nothing_else() {
    let mut recording = Recording::new();
    let (mut before, mut live) = ([0; 3], Vec::new());
    let programs = 12_000;
    for n in 0..programs {
        // PIDs come back.
        let pid = 1000 + 2 * (n % 5000);
        recording.program(pid, u32::from(n % 1000 == 7) * 50);
        if n % 100 == 99 {
            let now = recording.counters();
            assert!(now.iter().zip(before).all(|(now, before)| *now > before), "{now:?} after {before:?}");
            before = now;
        }
        if n % 3000 == 2999 {
            live.push(LIVE.load(Relaxed));
        }
    }
    let grown = live[3].saturating_sub(live[1]);
    println!("{live:?} bytes after each 3000 programs");
    // Some 45,000, or 0.6 MB more where a hash table happens to double. With all that programs leave it would be 17 MB.
    assert!(grown < 1_500_000, "{live:?}: {} bytes for a program", grown / 6000);
    let figures = recording.figures();
    let (programs, more) = (u64::from(programs), 12 * 50);
    let calls = 16 * programs + 3 * more;
    assert_eq!((figures.cuda_calls, before[0]), (calls, calls));
    assert_eq!(figures.functions.iter().map(|function| function.calls).sum::<u64>(), calls);
    let unfinished = figures.functions.iter().map(|function| function.unfinished).sum::<u64>();
    assert_eq!(unfinished, 2 * (programs + more));
    assert_eq!((figures.sync.calls, figures.sync.unfinished), (3 * programs + more, programs + more));
    assert_eq!(figures.sync.total_ns, before[1]);
    assert_eq!((figures.failures.calls, before[2]), (3 * programs + more, 3 * programs + more));
    assert_eq!((figures.kernel_launches, figures.kernels[0].launches), (2 * programs, 2 * programs));
    assert_eq!(figures.memory.allocated_bytes, 3 * 512 * programs);
    assert_eq!((figures.devices[0].allocations, figures.devices[0].processes), (3 * programs, programs));
    let cost = figures.cost.unwrap();
    assert_eq!((cost.calls, cost.calls_ns()), (calls, 1000 * calls));
    assert_eq!(cost.threads.len() as u64 + cost.more_threads, 2 * programs);
    assert_eq!(cost.threads[9].calls, 13 + 150, "the most costly of all");
    assert_eq!((figures.processes.len(), figures.more_processes), (100, programs - 100));
    assert_eq!(figures.processes[4].calls, 16 + 150, "those with the most calls whose PID did not come back");
    assert!(figures.processes[5].calls == 16 && figures.processes[0].command[1].starts_with("--job="));
}
