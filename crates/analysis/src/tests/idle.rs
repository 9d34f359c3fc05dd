//! `report idle` of programs on a GPU of a model: each has a planted cause of idle time, which must be named, with its
//! line if calls have stacks.

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
