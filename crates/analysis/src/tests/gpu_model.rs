//! A model of a GPU, and a straightforward computation of what `report idle` should say of a program on it. The lines
//! of GPU work come late and out of order, as CUPTI delivers them.

use std::path::Path;

use serde_json::Value as Json;

use super::*;
use crate::views::ReportConfig;
use crate::views::tests::{Written, json_of};

pub const US: u64 = 1000;
pub const MS: u64 = 1_000_000;

/// A pseudo-random number below `n`.
pub fn below(seed: &mut u64, n: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
}

/// Some work, as the model ran it.
#[derive(Clone)]
pub struct Work {
    pub from_ns: u64,
    pub to_ns: u64,
    pub tid: u32,
    pub returned_ns: u64,
    pub stack: Option<u64>,
    pub line: Gpu<'static>,
}

/// A call of a thread, under the name that the report gives it.
pub struct Activity {
    pub tid: u32,
    pub from_ns: u64,
    pub to_ns: u64,
    pub what: String,
    pub stack: Option<u64>,
}

/// The call sites of stacks, by number.
pub const SITES: [&str; 3] = ["data.py:12 load", "train.py:29 step", "metric.py:41 update"];
pub const LOAD: Option<u64> = Some(0);
pub const STEP: Option<u64> = Some(1);
pub const METRIC: Option<u64> = Some(2);

/// A program, and what the model knows of it.
pub struct Model {
    pub script: Script,
    seed: u64,
    pub tid: u32,
    /// The stack of the calls that follow.
    pub stack: Option<u64>,
    /// When each stream is free.
    free_ns: BTreeMap<u32, u64>,
    pub works: Vec<Work>,
    reported: usize,
    pub host: Vec<Activity>,
}

impl Model {
    pub fn new(seed: u64) -> Model {
        let mut script = Script::new();
        if let Body::Header(header) = &mut script.lines[0].body {
            header.options = serde_json::json!({ "gpu": "nodes" });
        }
        let (free_ns, works, host) = Default::default();
        Model { script, seed, tid: 100, stack: None, free_ns, works, reported: 0, host }
    }

    /// With call stacks, whose innermost frames are `SITES`.
    pub fn with_stacks(seed: u64) -> Model {
        let mut model = Model::new(seed);
        for (stack, site) in SITES.iter().enumerate() {
            let (file, rest) = site.split_once(':').unwrap();
            let (line, function) = rest.split_once(' ').unwrap();
            let file = format!("/home/ada/{file}").into();
            let frame = Frame::Python { function: function.into(), file, line: line.parse().ok() };
            let stack = Stack { stack: stack as u64, pid: 100, frames: vec![frame], cut: false };
            model.script.push(0, Body::Stack(stack));
        }
        model
    }

    pub fn did(&mut self, from_ns: u64, what: impl Into<String>) {
        let (tid, to_ns, stack) = (self.tid, self.script.ns, self.stack);
        self.host.push(Activity { tid, from_ns, to_ns, what: what.into(), stack });
    }

    /// Gives the call that began there the present stack.
    pub fn stacked(&mut self, begin: u64) {
        if let Body::Begin(begin) = &mut self.script.lines[begin as usize].body {
            begin.stack = self.stack;
        }
    }

    /// Time in no call.
    pub fn own(&mut self, ns: u64) {
        self.script.ns += ns;
    }

    /// A call of `ns`, with a call of the driver's API inside. Returns the inner one.
    pub fn call(&mut self, name: &'static str, inner: &'static str, ns: u64) -> u64 {
        let tid = self.tid;
        let outer = self.script.begin_on(tid, name, None);
        self.stacked(outer);
        let from_ns = self.script.ns;
        let begin = self.script.begin_on(tid, inner, Some(outer));
        self.script.end(begin, ns, 0);
        self.script.end(outer, US, 0);
        self.did(from_ns, name);
        begin
    }

    /// Work of `ns` that the call submitted, `latency` after its return at the earliest.
    pub fn work(&mut self, begin: u64, stream: u32, (latency, ns): (u64, u64), line: Gpu<'static>) {
        let Line { ts_ns: returned_ns, .. } = self.script.lines[begin as usize + 1];
        let free = self.free_ns.entry(stream).or_default();
        let from_ns = (*free).max(returned_ns + latency);
        *free = from_ns + ns;
        let line = Gpu {
            pid: 100,
            device: stream / 10,
            context: 1,
            stream,
            correlation: begin as u32,
            begin: Some(begin),
            duration_ns: ns,
            queued_ns: Some(from_ns as i64 - returned_ns as i64),
            ..line
        };
        self.works.push(Work {
            from_ns,
            to_ns: from_ns + ns,
            tid: self.tid,
            returned_ns,
            stack: self.stack,
            line,
        });
    }

    pub fn launch(&mut self, kernel: &'static str, stream: u32, ns: u64) {
        let begin = self.call("cudaLaunchKernel", "cuLaunchKernel", 3 * US);
        let line = Gpu { name: kernel.into(), kind: GpuKind::Kernel, ..Gpu::default() };
        self.work(begin, stream, (2 * US, ns), line);
    }

    pub fn copy(&mut self, stream: u32, direction: &'static str, size: u64, ns: u64) {
        let begin = self.call("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", 4 * US);
        let line = Gpu {
            name: "memcpy".into(),
            kind: GpuKind::Copy,
            direction: Some(direction.into()),
            size: Some(size),
            ..Gpu::default()
        };
        self.work(begin, stream, (US, ns), line);
    }

    /// A copy to the host that returns when it has been made.
    pub fn blocking_copy(&mut self, stream: u32, ns: u64) {
        let (begin, from_ns) = (self.script.lines.len() as u64, self.script.ns + 1000);
        let free = self.free_ns.entry(stream).or_default();
        let start_ns = (*free).max(from_ns + US);
        *free = start_ns + ns;
        self.script.copy("cudaMemcpy", "D2H", 4, start_ns + ns + 5 * US - from_ns);
        self.stacked(begin);
        self.did(from_ns, "cudaMemcpy");
        let line = Gpu {
            name: "memcpy".into(),
            kind: GpuKind::Copy,
            pid: 100,
            stream,
            correlation: begin as u32,
            begin: Some(begin),
            duration_ns: ns,
            queued_ns: Some(start_ns as i64 - self.script.ns as i64),
            ..Gpu::default()
        };
        let (tid, returned_ns, stack) = (self.tid, self.script.ns, self.stack);
        self.works.push(Work { from_ns: start_ns, to_ns: start_ns + ns, tid, returned_ns, stack, line });
    }

    /// Waits until all streams are free.
    pub fn wait(&mut self, name: &'static str) {
        let (tid, free_ns) = (self.tid, self.free_ns.values().copied().max().unwrap_or(0));
        let begin = self.script.begin_on(tid, name, None);
        self.stacked(begin);
        let from_ns = self.script.ns;
        self.script.end(begin, 5 * US + free_ns.saturating_sub(from_ns), 0);
        self.did(from_ns, name);
    }

    /// CUPTI delivers some of the records, in any order.
    pub fn deliver(&mut self, all: bool) {
        let mut due: Vec<Work> = self.works[self.reported..].to_vec();
        let later = if all { 0 } else { below(&mut self.seed, due.len() as u64 + 1) as usize };
        due.truncate(due.len() - later);
        due.retain(|work| all || work.to_ns <= self.script.ns);
        let count = due.len();
        // Those that are not due yet come later.
        self.works[self.reported..]
            .sort_by_key(|work| !due.iter().any(|due| due.line.correlation == work.line.correlation));
        self.reported += count;
        while !due.is_empty() {
            let work = due.swap_remove(below(&mut self.seed, due.len() as u64) as usize);
            let event_id = self.script.lines.len() as u64;
            self.script.lines.push(Line { event_id, ts_ns: work.from_ns, body: Body::Gpu(work.line) });
        }
    }

    /// The trace and its figures. The recorder's are those of the file.
    pub fn finish(mut self) -> (Figures, Written, Vec<Work>, Vec<Activity>) {
        self.script.ns += MS;
        self.deliver(true);
        let (live, bytes) = self.script.finish();
        let name = format!("gpu-{}", self.seed);
        let file = Written::new(&name, std::str::from_utf8(&bytes).unwrap());
        let read = crate::summary_of(file.path(), &Only::default()).unwrap();
        assert_eq!(read.gpu, live.gpu, "the recorder and the reader agree");
        (read, file, self.works, self.host)
    }
}

pub fn report(name: &str, file: &Path) -> Json {
    json_of(name, file, &ReportConfig::default())
}

/// The share of the idle time, in percent, of the rows that begin with a text.
pub fn share(idle: &Json, what: &str) -> f64 {
    let rows = idle["causes"].as_array().unwrap();
    let of = |row: &&Json| row["what"].as_str().unwrap().starts_with(what);
    let ns: u64 = rows.iter().filter(of).map(|row| row["total_ns"].as_u64().unwrap()).sum();
    100.0 * ns as f64 / idle["idle_ns"].as_u64().unwrap() as f64
}

/// The idle times of a device: the end of one span, the start of the next, and the work that starts that.
pub fn gaps(works: &[Work], device: u32) -> (u64, Vec<(u64, u64, Work)>) {
    let mut of: Vec<Work> = works.iter().filter(|work| work.line.device == device).cloned().collect();
    of.sort_by_key(|work| (work.from_ns, work.to_ns));
    let (mut busy_ns, mut gaps) = (0, Vec::new());
    let mut end: Option<u64> = None;
    for work in of {
        if let Some(end) = end.filter(|end| *end < work.from_ns) {
            gaps.push((end, work.from_ns, work.clone()));
        }
        busy_ns += work.to_ns.saturating_sub(end.unwrap_or(0).max(work.from_ns));
        end = end.max(Some(work.to_ns));
    }
    (busy_ns, gaps)
}

/// Some idle time: what the host did, its call site, and whether it lies before that call.
pub type Cause = (String, Option<u64>, bool);

/// What the report should say of the idle time.
pub fn causes(works: &[Work], host: &[Activity]) -> BTreeMap<Cause, u64> {
    let mut sums: BTreeMap<Cause, u64> = BTreeMap::new();
    let mut add = |what: &str, stack, is_before, ns: u64| {
        if ns > 0 {
            *sums.entry((what.to_owned(), stack, is_before)).or_default() += ns;
        }
    };
    for device in 0..3 {
        for (since, to, work) in gaps(works, device).1 {
            if work.returned_ns <= since {
                add("nothing: the work was queued already", work.stack, false, to - since);
                continue;
            }
            let until = work.returned_ns.min(to);
            add("from the return of the call to the start on the GPU", work.stack, false, to - until);
            let (mut at, mut wait) = (since, None);
            let of_thread: Vec<&Activity> = host.iter().filter(|call| call.tid == work.tid).collect();
            for (number, call) in of_thread.iter().enumerate() {
                let own = wait
                    .map_or("own code, in no CUDA call".to_owned(), |wait| format!("own code after {wait}"));
                let next = of_thread[number..].iter().find_map(|call| call.stack);
                if call.from_ns > at {
                    let ns = call.from_ns.min(until).saturating_sub(at);
                    add(&own, next, true, ns);
                    at += ns;
                }
                let ns = call.to_ns.min(until).saturating_sub(at);
                add(&call.what, next, call.stack.is_none(), ns);
                at += ns;
                wait = call.what.ends_with("Synchronize").then_some(&call.what);
            }
            assert_eq!(at, until, "the call itself is the last");
        }
    }
    sums
}

/// The rows of a table of the report by the columns `keys`, with their times.
pub fn rows(idle: &Json, table: &str, keys: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let rows = idle[table].as_array().unwrap().iter();
    let texts = |row: &Json| keys.iter().map(|key| row[key].as_str().unwrap_or("-").to_owned()).collect();
    rows.map(|row| (texts(row), row["total_ns"].as_u64().unwrap())).collect()
}

pub fn random_program(seed: u64) -> Model {
    let mut model = Model::with_stacks(seed);
    let mut random = seed;
    for _ in 0..400 {
        model.tid = 100 + below(&mut random, 3) as u32;
        model.stack = Some(below(&mut random, 6)).filter(|stack| *stack < 3);
        let stream = [7, 8, 13, 27][below(&mut random, 4) as usize];
        let ns = 1 + below(&mut random, 60 * US);
        match below(&mut random, 10) {
            0 => model.wait(["cudaDeviceSynchronize", "cuCtxSynchronize"][below(&mut random, 2) as usize]),
            1 => _ = model.call("cudaMalloc", "cuMemAlloc_v2", ns),
            2 => model.copy(stream, ["H2D", "D2D"][below(&mut random, 2) as usize], ns, ns),
            3 => model.own(ns),
            _ => model.launch(["gemm", "gelu<float>", "norm"][below(&mut random, 3) as usize], stream, ns),
        }
        if below(&mut random, 6) == 0 {
            model.deliver(false);
        }
    }
    model
}
