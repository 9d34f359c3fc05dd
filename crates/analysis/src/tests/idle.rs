//! `report idle` of programs on a model of a GPU. Each has a planted cause of idle time, which the report must name,
//! with its line if calls have stacks.

use super::gpu_model::*;
use super::*;
use crate::views::ReportConfig;
use crate::views::tests::text_of;

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

/// As in PyTorch: before the copy it asks for the device and the stream, in calls that have no stack.
fn slow_loader(mut model: Model, stacks: [Option<u64>; 2]) -> Model {
    for _ in 0..50 {
        model.own(2 * MS);
        model.stack = None;
        model.call("cudaGetDevice", "cuCtxGetDevice", US);
        model.call("cudaStreamIsCapturing", "cuStreamIsCapturing", US);
        model.stack = stacks[0];
        model.copy(7, "H2D", 1 << 20, 40 * US);
        model.stack = stacks[1];
        model.launch("gemm", 7, 100 * US);
        model.launch("gemm", 7, 100 * US);
        model.deliver(false);
    }
    model
}

#[test]
fn a_slow_data_loader_is_named() {
    let (figures, file, ..) = slow_loader(Model::new(5), [None; 2]).finish();
    let idle = report("idle", file.path());
    assert!(share(&idle, "own code, in no CUDA call") > 95.0, "{idle}");
    assert_eq!(figures.gpu.unwrap().waited_gaps, 0, "the host never waited");
    assert!(idle.get("lines").is_none(), "{idle}");
    let text = text_of("idle", file.path(), &ReportConfig::default());
    assert!(!text.contains("In which line") && !text.contains("Call site"), "{text}");
}

#[test]
fn the_line_that_follows_a_slow_data_loader_is_named_and_the_one_before() {
    let (.., file, _, _) = slow_loader(Model::new(6), [None; 2]).finish();
    let without = report("idle", file.path());
    let (.., file, _, _) = slow_loader(Model::with_stacks(6), [LOAD, STEP]).finish();
    let idle = report("idle", file.path());
    assert_eq!(rows(&idle, "causes", &["what"]), rows(&without, "causes", &["what"]));
    let first = &idle["lines"][0];
    assert_eq!(
        (&first["what"], &first["call_site"], &first["after_call_site"], &first["times"]),
        (
            &"own code, before this call".into(),
            &"data.py:12 load".into(),
            &"train.py:29 step".into(),
            &49.into()
        )
    );
    assert!(first["total_percent"].as_f64().unwrap() > 95.0, "{idle}");
    let lines = rows(&idle, "lines", &["what", "call_site", "after_call_site"]);
    let all: u64 = lines.values().sum();
    assert_eq!(Some(all), idle["idle_ns"].as_u64(), "each part has its line");
    let before = ["cudaGetDevice, before this call", "data.py:12 load", "train.py:29 step"];
    assert!(lines.contains_key(before.map(str::to_owned).as_slice()), "{lines:?}");
    let gap = &idle["longest"][0];
    assert_eq!(
        (gap["call_site"].as_str(), gap["after_call_site"].as_str()),
        (Some(SITES[0]), Some(SITES[1]))
    );
}

/// Asleep in own code, as the scheduler reports it (`--kernel`).
#[test]
fn the_line_that_follows_a_sleep_is_named() {
    let mut model = Model::with_stacks(8);
    for _ in 0..20 {
        model.own(2 * MS);
        let args = Some(Args::Named(List::Owned(vec![Arg::new("state", Value::Text("sleep".into()))])));
        let off_cpu = Instant {
            kind: Kind::Scheduler,
            name: "off_cpu".into(),
            pid: 100,
            tid: 100,
            depth: 0,
            parent: None,
            cpu: Some(1),
            duration_ns: Some(1900 * US),
            args,
        };
        model.script.push(0, Body::Instant(off_cpu));
        model.stack = LOAD;
        model.copy(7, "H2D", 1 << 20, 40 * US);
    }
    let (.., file, _, _) = model.finish();
    let idle = report("idle", file.path());
    let first = &idle["lines"][0];
    assert_eq!(first["what"].as_str(), Some("own code, off the CPU (sleep), before this call"));
    assert_eq!((first["call_site"].as_str(), first["times"].as_u64()), (Some(SITES[0]), Some(19)));
    assert!(first["total_percent"].as_f64().unwrap() > 90.0, "{idle}");
}

/// A training step whose metric fetches a number from the GPU: with `copies` by a copy that blocks, otherwise by an
/// asynchronous copy and a wait.
fn hidden_item(mut model: Model, has_stacks: bool, copies: bool) -> Model {
    let at = |stack: Option<u64>| stack.filter(|_| has_stacks);
    for _ in 0..50 {
        model.stack = at(STEP);
        (0..5).for_each(|_| model.launch("gemm", 7, 400 * US));
        model.stack = at(METRIC);
        match copies {
            true => model.blocking_copy(7, 2 * US),
            false => {
                model.copy(7, "D2H", 4, 2 * US);
                model.wait("cudaStreamSynchronize");
            }
        }
        model.own(MS);
        model.stack = None;
        model.call("cudaGetDevice", "cuCtxGetDevice", US);
        model.deliver(false);
    }
    model
}

#[test]
fn the_line_of_a_hidden_wait_is_named() {
    for (copies, wait, own) in [
        (false, "cudaStreamSynchronize", "own code after cudaStreamSynchronize, before this call"),
        (true, "cudaMemcpy", "own code, before this call"),
    ] {
        let (figures, file, works, _) = hidden_item(Model::with_stacks(9), true, copies).finish();
        let idle = report("idle", file.path());
        let gpu = figures.gpu.unwrap();
        assert_eq!(gpu.waited_gaps, 49);
        let waits = rows(&idle, "waits", &["wait", "call_site"]);
        let expected = vec![wait.to_owned(), SITES[2].to_owned()];
        assert_eq!(waits, BTreeMap::from([(expected, gpu.waited_gap_ns)]), "{idle}");
        // From the end of the copy to the start of the next step's first kernel.
        let (mut ends, mut starts) = (Vec::new(), Vec::new());
        for pair in works.windows(2).filter(|pair| pair[0].line.kind == GpuKind::Copy) {
            ends.push(pair[0].to_ns);
            starts.push(pair[1].from_ns);
        }
        let between: u64 = ends.iter().zip(&starts).map(|(end, start)| start - end).sum();
        assert_eq!(idle["idle_ns"].as_u64(), Some(between));
        let latency = 49 * 2 * US;
        assert_eq!(gpu.waited_gap_ns, between - latency, "up to the return of the launch");
        let first = &idle["lines"][0];
        let texts = ["what", "call_site", "after_call_site"].map(|key| first[key].as_str().unwrap());
        assert_eq!(texts, [own, SITES[1], SITES[2]], "{idle}");
        assert!(first["total_percent"].as_f64().unwrap() > 90.0, "{idle}");
        let text = text_of("idle", file.path(), &ReportConfig::default());
        assert!(text.contains("By synchronisation, in which wait") && text.contains(SITES[2]), "{text}");
    }
}

#[test]
fn a_hidden_wait_without_stacks_is_named_without_its_line() {
    let (figures, file, ..) = hidden_item(Model::new(10), false, false).finish();
    let idle = report("idle", file.path());
    let waits = rows(&idle, "waits", &["wait", "call_site"]);
    let expected = vec!["cudaStreamSynchronize".to_owned(), "-".to_owned()];
    assert_eq!(waits, BTreeMap::from([(expected, figures.gpu.unwrap().waited_gap_ns)]));
    assert!(idle.get("lines").is_none(), "{idle}");
}

/// The first work of a run often comes seconds before its loop.
#[test]
fn one_gap_that_hides_the_others_is_named() {
    let mut model = Model::new(12);
    model.launch("init", 7, 100 * US);
    model.own(3000 * MS);
    let (.., file, works, _) = slow_loader(model, [None; 2]).finish();
    let all = text_of("idle", file.path(), &ReportConfig::default());
    let start_ns = works[1].from_ns;
    let from = crate::units::decimal(start_ns.div_ceil(MS), 3);
    assert!(all.contains(&format!("--from {from} ")), "{all}");
    let only = Only { from_ns: Some(start_ns.div_ceil(MS) * MS), ..Only::default() };
    let rest = text_of("idle", file.path(), &ReportConfig { only, ..ReportConfig::default() });
    assert!(!rest.contains("--from") && rest.contains("in 48 gaps"), "{rest}");
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
            carried: false,
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
        model.works.push(Work {
            from_ns,
            to_ns: from_ns + 20 * US,
            tid: 100,
            returned_ns: from_ns,
            stack: None,
            line,
        });
        model.deliver(false);
    }
    let (_, file, ..) = model.finish();
    let idle = report("idle", file.path());
    assert!(share(&idle, "cudaMemcpy, off the CPU (disk)") > 70.0, "{idle}");
    assert!(share(&idle, "cudaMemcpy, in NV_ESC_RM_CONTROL NV_MAP") > 14.0, "{idle}");
    let all = share(&idle, "cudaMemcpy");
    assert!(all > 95.0, "{all}: {idle}");
}
