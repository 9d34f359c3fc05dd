//! Programs on a GPU of a model: what the summary, `report gpu` and `report idle` say of them, against figures that the
//! model worked out itself. In: programs with a planted cause of idle time, and random ones. The lines of GPU work come
//! late and out of order, as CUPTI delivers them.

use std::path::Path;

use serde_json::Value as Json;

use super::*;
use crate::views::ReportConfig;
use crate::views::tests::{Written, json_of, text_of};

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// A pseudo-random number below `n`.
fn below(seed: &mut u64, n: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
}

/// Some work, as the model ran it.
#[derive(Clone)]
struct Work {
    from_ns: u64,
    to_ns: u64,
    tid: u32,
    returned_ns: u64,
    line: Gpu<'static>,
}

/// What a thread did: thread, from, to, in the words of the report.
type Activity = (u32, u64, u64, String);

/// A program, and what the model knows of it.
struct Model {
    script: Script,
    seed: u64,
    tid: u32,
    /// When each stream is free.
    free_ns: BTreeMap<u32, u64>,
    works: Vec<Work>,
    reported: usize,
    host: Vec<Activity>,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut script = Script::new();
        if let Body::Header(header) = &mut script.lines[0].body {
            header.options = serde_json::json!({ "gpu": "nodes" });
        }
        let (free_ns, works, host) = Default::default();
        Model { script, seed, tid: 100, free_ns, works, reported: 0, host }
    }

    fn did(&mut self, from_ns: u64, what: impl Into<String>) {
        self.host.push((self.tid, from_ns, self.script.ns, what.into()));
    }

    /// Time in no call.
    fn own(&mut self, ns: u64) {
        self.script.ns += ns;
    }

    /// A call of `ns`, with a call of the driver's API inside. Returns the inner one.
    fn call(&mut self, name: &'static str, inner: &'static str, ns: u64) -> u64 {
        let tid = self.tid;
        let outer = self.script.begin_on(tid, name, None);
        let from_ns = self.script.ns;
        let begin = self.script.begin_on(tid, inner, Some(outer));
        self.script.end(begin, ns, 0);
        self.script.end(outer, US, 0);
        self.did(from_ns, name);
        begin
    }

    /// Work of `ns` that the call submitted, `latency` after its return at the earliest.
    fn work(&mut self, begin: u64, stream: u32, (latency, ns): (u64, u64), line: Gpu<'static>) {
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
        self.works.push(Work { from_ns, to_ns: from_ns + ns, tid: self.tid, returned_ns, line });
    }

    fn launch(&mut self, kernel: &'static str, stream: u32, ns: u64) {
        let begin = self.call("cudaLaunchKernel", "cuLaunchKernel", 3 * US);
        let line = Gpu { name: kernel.into(), kind: GpuKind::Kernel, ..Gpu::default() };
        self.work(begin, stream, (2 * US, ns), line);
    }

    fn copy(&mut self, stream: u32, direction: &'static str, size: u64, ns: u64) {
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

    /// Waits until all streams are free.
    fn wait(&mut self, name: &'static str) {
        let (tid, free_ns) = (self.tid, self.free_ns.values().copied().max().unwrap_or(0));
        let begin = self.script.begin_on(tid, name, None);
        let from_ns = self.script.ns;
        self.script.end(begin, 5 * US + free_ns.saturating_sub(from_ns), 0);
        self.did(from_ns, name);
    }

    /// CUPTI delivers some of the records, in any order.
    fn deliver(&mut self, all: bool) {
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
    fn finish(mut self) -> (Figures, Written, Vec<Work>, Vec<Activity>) {
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

fn report(name: &str, file: &Path) -> Json {
    json_of(name, file, &ReportConfig::default())
}

/// The share of the idle time, in percent, of the rows that begin with a text.
fn share(idle: &Json, what: &str) -> f64 {
    let rows = idle["causes"].as_array().unwrap();
    let of = |row: &&Json| row["what"].as_str().unwrap().starts_with(what);
    let ns: u64 = rows.iter().filter(of).map(|row| row["total_ns"].as_u64().unwrap()).sum();
    100.0 * ns as f64 / idle["idle_ns"].as_u64().unwrap() as f64
}

/// The idle times of a device: the end of one span, the start of the next, and the work that starts that.
fn gaps(works: &[Work], device: u32) -> (u64, Vec<(u64, u64, Work)>) {
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

/// What the report should say of the idle time, by cause.
fn causes(works: &[Work], host: &[Activity]) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |what: &str, ns: u64| {
        if ns > 0 {
            *sums.entry(what.to_owned()).or_default() += ns;
        }
    };
    for device in 0..3 {
        for (since, to, work) in gaps(works, device).1 {
            if work.returned_ns <= since {
                add("nothing: the work was queued already", to - since);
                continue;
            }
            let until = work.returned_ns.min(to);
            add("from the return of the call to the start on the GPU", to - until);
            let (mut at, mut wait) = (since, None);
            for (_, from, upto, what) in host.iter().filter(|(tid, ..)| *tid == work.tid) {
                let own = wait
                    .map_or("own code, in no CUDA call".to_owned(), |wait| format!("own code after {wait}"));
                if *from > at {
                    let ns = (*from).min(until).saturating_sub(at);
                    add(&own, ns);
                    at += ns;
                }
                let ns = (*upto).min(until).saturating_sub(at);
                add(what, ns);
                at += ns;
                wait = what.ends_with("Synchronize").then_some(what);
            }
            assert_eq!(at, until, "the call itself is the last");
        }
    }
    sums
}

#[test]
fn a_wait_in_the_loop_is_named() {
    let mut model = Model::new(3);
    for _ in 0..6000 {
        model.launch("gemm", 7, 100 * US);
        model.wait("cudaDeviceSynchronize");
        model.own(20 * US);
        model.deliver(false);
    }
    let (figures, file, ..) = model.finish();
    let (gpu, idle) = (figures.gpu.unwrap(), report("idle", file.path()));
    assert_eq!((gpu.waited_gaps, idle["waited_gaps"].as_u64()), (5999, Some(5999)));
    let waited = 100.0 * gpu.waited_gap_ns as f64 / gpu.idle_ns as f64;
    assert!(waited > 90.0, "{waited}");
    assert!(share(&idle, "own code after cudaDeviceSynchronize") > 60.0, "{idle}");
    assert!(share(&idle, "cudaDeviceSynchronize") > 10.0, "{idle}");
    let finding = figures.findings.iter().find(|finding| finding.what.starts_with("GPU 0 idle")).unwrap();
    assert_eq!((finding.times, finding.cost_ns), (5999, Some(gpu.waited_gap_ns)));
    let text = text_of("idle", file.path(), &ReportConfig::default());
    assert!(text.contains("By synchronisation: ") && text.contains("in 5999 gaps"), "{text}");
}

#[test]
fn a_slow_data_loader_is_named() {
    let mut model = Model::new(5);
    for _ in 0..50 {
        model.own(2 * MS);
        model.copy(7, "H2D", 1 << 20, 40 * US);
        model.launch("gemm", 7, 100 * US);
        model.deliver(false);
    }
    let (figures, file, ..) = model.finish();
    let idle = report("idle", file.path());
    assert!(share(&idle, "own code, in no CUDA call") > 95.0, "{idle}");
    assert_eq!(figures.gpu.unwrap().waited_gaps, 0, "the host never waited");
}

#[test]
fn an_allocation_in_the_loop_is_named() {
    let mut model = Model::new(7);
    for _ in 0..50 {
        model.call("cudaMalloc", "cuMemAlloc_v2", MS);
        model.launch("gemm", 7, 100 * US);
        model.call("cudaFree", "cuMemFree_v2", MS);
        model.deliver(false);
    }
    let (_, file, ..) = model.finish();
    let idle = report("idle", file.path());
    let (alloc, free) = (share(&idle, "cudaMalloc"), share(&idle, "cudaFree"));
    assert!(alloc > 45.0 && free > 40.0 && alloc + free > 98.0, "{idle}");
}

/// A copy from memory that is on disk: the thread sleeps in the call until the pages are there, and the driver works.
#[test]
fn a_copy_that_faults_is_named() {
    let mut model = Model::new(11);
    for _ in 0..50 {
        let outer = model.script.begin_on(100, "cudaMemcpy", None);
        let begin = model.script.begin_on(100, "cuMemcpyHtoD_v2", Some(outer));
        model.script.ns += 1500 * US;
        let args = Some(Args::Named(List::Owned(vec![Arg::new("state", Value::Text("disk".into()))])));
        let off_cpu = Instant {
            kind: Kind::Scheduler,
            name: "off_cpu".into(),
            pid: 100,
            tid: 100,
            depth: 2,
            parent: Some(begin),
            cpu: Some(1),
            duration_ns: Some(1400 * US),
            args,
        };
        model.script.push(0, Body::Instant(off_cpu));
        let detail = Args::Named(List::Owned(vec![Arg::new("command", Value::Text("NV_MAP".into()))]));
        let ioctl = Ioctl {
            device: "nvidiactl".into(),
            cmd: 1,
            request: "NV_ESC_RM_CONTROL".into(),
            detail,
            unknown: false,
        };
        let span = KernelBegin {
            kind: Kind::Kernel,
            name: "nvidia_ioctl".into(),
            pid: 100,
            tid: 100,
            depth: 2,
            parent: Some(begin),
            ioctl: Some(ioctl),
            args: None,
            thread: None,
        };
        let span = model.script.push(US, Body::KernelBegin(span));
        let end = KernelEnd {
            kind: Kind::Kernel,
            name: "nvidia_ioctl".into(),
            pid: 100,
            tid: 100,
            begin: span,
            duration_ns: Some(300 * US),
            retval: None,
            status: None,
            error: None,
            out: None,
            ended: EndKind::Returned,
        };
        model.script.push(300 * US, Body::KernelEnd(end));
        let from_ns = model.script.ns;
        model.script.end(begin, 50 * US, 0);
        model.script.end(outer, US, 0);
        let line = Gpu { name: "memcpy".into(), kind: GpuKind::Copy, size: Some(1 << 20), ..Gpu::default() };
        let line =
            Gpu { pid: 100, begin: Some(begin), duration_ns: 20 * US, correlation: begin as u32, ..line };
        let line = Gpu { direction: Some("H2D".into()), queued_ns: Some(-50 * US as i64), ..line };
        model.works.push(Work { from_ns, to_ns: from_ns + 20 * US, tid: 100, returned_ns: from_ns, line });
        model.deliver(false);
    }
    let (_, file, ..) = model.finish();
    let idle = report("idle", file.path());
    assert!(share(&idle, "cudaMemcpy, off the CPU (disk)") > 70.0, "{idle}");
    assert!(share(&idle, "cudaMemcpy, in NV_ESC_RM_CONTROL NV_MAP") > 14.0, "{idle}");
    let all = share(&idle, "cudaMemcpy");
    assert!(all > 95.0, "{all}: {idle}");
}

fn random_program(seed: u64) -> Model {
    let mut model = Model::new(seed);
    let mut random = seed;
    for _ in 0..400 {
        model.tid = 100 + below(&mut random, 3) as u32;
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

#[test]
fn figures_are_those_of_a_straightforward_computation() {
    for seed in 1..20 {
        let (figures, file, works, host) = random_program(seed).finish();
        let gpu = figures.gpu.unwrap();
        let (mut busy_ns, mut idle_ns) = (0, 0);
        for device in &gpu.devices {
            let (busy, gaps) = gaps(&works, device.device);
            let idle: u64 = gaps.iter().map(|(since, to, _)| to - since).sum();
            assert_eq!(
                (device.busy_ns, device.idle_ns, device.gaps),
                (busy, idle, gaps.len() as u64),
                "{seed}"
            );
            (busy_ns, idle_ns) = (busy_ns + busy, idle_ns + idle);
        }
        assert_eq!((gpu.busy_ns, gpu.idle_ns, gpu.late), (busy_ns, idle_ns, 0));
        for kernel in &gpu.kernels {
            let mut all: Vec<u64> = works
                .iter()
                .filter(|work| work.line.name == kernel.name)
                .map(|work| work.line.duration_ns)
                .collect();
            all.sort_unstable();
            let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2;
            assert_eq!((kernel.instances, kernel.total_ns), (all.len() as u64, all.iter().sum()));
            assert_eq!((kernel.min_ns, kernel.max_ns), (all[0], all[all.len() - 1]));
            assert!(kernel.med_ns.abs_diff(median) * 100 <= median, "{} {median}", kernel.med_ns);
        }
        for stream in &gpu.streams {
            let of = works.iter().filter(|work| work.line.stream == stream.stream);
            assert_eq!(stream.time_ns, of.map(|work| work.line.duration_ns).sum::<u64>());
        }
        let copied: u64 = works.iter().filter_map(|work| work.line.size).sum();
        assert_eq!(gpu.copies.iter().map(|copies| copies.bytes).sum::<u64>(), copied);
        let idle = report("idle", file.path());
        let rows = idle["causes"].as_array().unwrap().iter();
        let found: BTreeMap<String, u64> = rows
            .map(|row| (row["what"].as_str().unwrap().to_owned(), row["total_ns"].as_u64().unwrap()))
            .collect();
        assert_eq!(found, causes(&works, &host), "{seed}");
        for (key, value) in [
            ("busy_ns", busy_ns),
            ("idle_ns", idle_ns),
            ("waited_gaps", gpu.waited_gaps),
            ("waited_gap_ns", gpu.waited_gap_ns),
        ] {
            assert_eq!(idle[key].as_u64(), Some(value), "{key}");
        }
    }
}

#[test]
fn a_part_has_the_work_of_its_calls() {
    let (_, file, works, _) = random_program(42).finish();
    let middle = works[works.len() / 2].returned_ns;
    let of = |only: Only| crate::summary_of(file.path(), &only).unwrap().gpu.map_or(0, |gpu| gpu.time_ns);
    let begun = |work: &&Work| work.line.begin.is_some();
    let all: u64 = works.iter().filter(begun).map(|work| work.line.duration_ns).sum();
    let thread: u64 = works.iter().filter(|work| work.tid == 101).map(|work| work.line.duration_ns).sum();
    assert_eq!(of(Only::default()), all);
    assert_eq!(of(Only { tids: vec![101], ..Only::default() }), thread);
    assert_eq!(of(Only { pids: vec![5], ..Only::default() }), 0);
    let before = of(Only { to_ns: Some(middle), ..Only::default() });
    let after = of(Only { from_ns: Some(middle), ..Only::default() });
    assert!(before > 0 && after > 0);
    assert_eq!(before + after, all);
}

#[test]
fn streams_that_never_overlap_copies_that_could_and_short_kernels_are_found() {
    let mut model = Model::new(13);
    for _ in 0..600 {
        model.copy(7, "H2D", 1 << 20, 40 * US);
        model.launch("gemm", 7, US);
        model.wait("cudaStreamSynchronize");
        model.launch("gemm", 8, US);
        model.wait("cudaStreamSynchronize");
        model.deliver(false);
    }
    let (figures, ..) = model.finish();
    let found = |what: &str| figures.findings.iter().find(|finding| finding.what.contains(what)).cloned();
    assert_eq!(found("copies during which no kernel runs").map(|it| it.times), Some(600));
    assert_eq!(found("kernels shorter than the call").map(|it| it.times), Some(1200));
    assert!(
        found("streams of GPU 0 that never runs at the same time").is_none(),
        "stream 8 has too small a part"
    );
    assert!(found("GPU 0 idle because").is_some_and(|it| it.times >= 1199));
    let mut model = Model::new(14);
    for _ in 0..20 {
        model.launch("a", 7, 40 * US);
        model.wait("cudaStreamSynchronize");
        model.launch("b", 8, 40 * US);
        model.wait("cudaStreamSynchronize");
    }
    let (figures, ..) = model.finish();
    let finding =
        figures.findings.iter().find(|finding| finding.what.contains("never runs at the same time"));
    assert_eq!(
        finding.map(|it| (it.times, it.cost_ns)),
        Some((40, Some(800 * US))),
        "{:?}",
        figures.findings
    );
}

#[test]
fn the_account_is_printed_with_each_difference() {
    let mut script = Script::new();
    script.call("cuInit", 1000, 0);
    let account = GpuAccount {
        launches: 42,
        api: 42,
        delivered: 40,
        dropped: 2,
        reasons: vec![
            GpuReason { code: "dropped".into(), count: 2 },
            GpuReason { code: "brand_new".into(), count: 1 },
        ],
        ..GpuAccount::default()
    };
    let mut summary = Summary::new();
    script.lines.iter().for_each(|line| summary.add(line));
    summary.recorder_knows_of_gpu(account);
    let figures = summary.finish(script.ns);
    let text = crate::text::print(&figures, UNBOUNDED);
    for said in [
        "GPU accounting: 42 launches recorded, 42 seen by CUPTI, 40 kernels delivered",
        "  records that CUPTI dropped, because it had no buffer for them: 2\n",
        "  brand_new: 1\n",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("GPU busy"), "{text}");
    let not_known = "records that CUPTI dropped, because it had no buffer for them: 2";
    assert_eq!(figures.unknown.get("gpu.busy_ns").map(String::as_str), Some(not_known));
    assert!(figures.with_nulls()["gpu"]["busy_ns"].is_null());
    assert_eq!(Figures::from_json(&figures.to_json()).unwrap(), figures);
}

#[test]
fn the_state_of_the_devices_is_summed_up() {
    let mut script = Script::new();
    let line = |used, power, throttle: &[&str]| {
        Body::Device(Box::new(Device {
            device: 1,
            gpu_name: Some("NVIDIA H200".into()),
            used_bytes: Some(used),
            processes: Some(vec![
                DeviceProcess { pid: 7, bytes: Some(1 << 30) },
                DeviceProcess { pid: 8, bytes: None },
            ]),
            utilization: Some(80),
            power_w: Some(power),
            throttle: Some(throttle.iter().map(|reason| reason.to_string()).collect()),
            ..Device::default()
        }))
    };
    script.push(MS, line(2 << 30, 600.25, &[]));
    script.push(MS, line(5 << 30, 612.34, &["sw_power_cap", "hw_slowdown"]));
    script.push(MS, line(3 << 30, 100.0, &["sw_power_cap"]));
    let (figures, _) = script.finish();
    let of = &figures.nvml[0];
    assert_eq!((of.samples, of.throttled, of.utilization, of.most_power_mw), (3, 2, Some(80), Some(612_340)));
    assert_eq!((of.first_used_bytes, of.most_used_bytes), (Some(2 << 30), Some(5 << 30)));
    let text = crate::text::print(&figures, UNBOUNDED);
    for said in [
        "   1  NVIDIA H200: 2.00 GB in use at the start, at most 5.00 GB, 80 % utilization on average, up to 612.3 W",
        "clocks lowered in 2 of 3 seconds: sw_power_cap (2), hw_slowdown (1)",
        "pid 7 held 1.00 GB at the start",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(Figures::from_json(&figures.to_json()).unwrap(), figures);
}

#[test]
fn metrics_of_gpu_work_are_checked() {
    let (figures, file, works, _) = random_program(8).finish();
    let gpu = figures.gpu.unwrap();
    let passes = |text: &str| crate::check::tests::passes(file.path(), text);
    let mut runs: Vec<u64> = works
        .iter()
        .filter(|work| work.line.name.starts_with('g'))
        .map(|work| work.line.duration_ns)
        .collect();
    runs.sort_unstable();
    let p99 = runs[(runs.len() * 99).div_ceil(100) - 1];
    let mut delays: Vec<u64> = works
        .iter()
        .filter(|work| work.line.kind == GpuKind::Kernel)
        .map(|work| u64::try_from(work.line.queued_ns.unwrap()).unwrap_or(0))
        .collect();
    delays.sort_unstable();
    let p50 = delays[delays.len().div_ceil(2) - 1];
    for text in [
        format!("gpu.busy == {}ns", gpu.busy_ns),
        format!("gpu.idle <= {}ns", gpu.idle_ns),
        format!("gpu.waited == {}ns", gpu.waited_gap_ns),
        format!("gpu.idle/duration <= {}%", 100 * gpu.idle_ns / figures.duration_ns + 1),
        format!("kernel(\"g*\").gpu.p99 <= {p99}ns"),
        format!("kernel(\"g*\").gpu.calls == {}", runs.len()),
        format!("gpu.queue.p50 <= {p50}ns"),
        format!("gpu.queue.max == {}ns", delays[delays.len() - 1]),
    ] {
        assert!(passes(&text), "{text}");
    }
    for text in [format!("kernel(\"g*\").gpu.p99 < {p99}ns"), format!("gpu.queue.p50 < {p50}ns")] {
        assert!(!passes(&text), "{text}");
    }
}
