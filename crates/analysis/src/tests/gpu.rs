//! Programs on a model of a GPU: what the summary, `report gpu` and `report idle` say of them, against figures that the
//! model worked out itself.

use super::gpu_model::*;
use super::*;

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
        let (mut by_cause, mut by_line) = (BTreeMap::new(), BTreeMap::new());
        for ((what, stack, is_before), ns) in causes(&works, &host) {
            *by_cause.entry(vec![what.clone()]).or_default() += ns;
            let Some(site) = stack.map(|stack| SITES[stack as usize].to_owned()) else { continue };
            let what = match (what.as_str(), is_before) {
                (_, false) => what,
                ("own code, in no CUDA call", true) => "own code, before this call".to_owned(),
                (_, true) => format!("{what}, before this call"),
            };
            *by_line.entry(vec![what, site]).or_default() += ns;
        }
        assert_eq!(rows(&idle, "causes", &["what"]), by_cause, "{seed}");
        assert_eq!(rows(&idle, "lines", &["what", "call_site"]), by_line, "{seed}");
        assert!(by_line.len() > 20, "{by_line:?}");
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
        overhead: [
            ("instrumentation", 2, 1_000_000),
            ("buffer_flush", 3, 5_000_000),
            ("module_loading", 1, 7_000),
        ]
        .map(|(code, count, total_ns)| GpuOverhead { code: code.into(), count, total_ns })
        .to_vec(),
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
        "CUPTI's own overhead: 6.000 ms in all threads together (flushing buffers 5.000 ms in 3, instrumentation 1.000 ms in 2)",
        "The driver's, by CUPTI's records: 7.000 us in all threads together (loading modules 7.000 us in 1)",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("GPU busy"), "{text}");
    let not_known = "records that CUPTI dropped, because it had no buffer for them: 2";
    assert_eq!(figures.unknown.get("gpu.busy_ns").map(String::as_str), Some(not_known));
    assert!(figures.with_nulls()["gpu"]["busy_ns"].is_null());
    assert_eq!(Figures::from_json(&figures.to_json()).unwrap(), figures);
}

/// The library was in no process: nothing is known of the GPU, and nothing is 0.
#[test]
fn work_that_no_process_recorded_is_not_known() {
    let mut script = Script::new();
    script.call("cuInit", 1000, 0);
    let reasons = vec![GpuReason { code: "no_lane".into(), count: 42 }];
    let account = GpuAccount { launches: 42, reasons, ..GpuAccount::default() };
    let mut summary = Summary::new();
    script.lines.iter().for_each(|line| summary.add(line));
    summary.recorder_knows_of_gpu(account);
    let figures = summary.finish(script.ns);
    let text = crate::text::print(&figures, UNBOUNDED);
    assert!(
        text.contains("GPU busy: not known (launches of processes in which gpurec's library is not"),
        "{text}"
    );
    let json = figures.with_nulls();
    let (known, unknown): (Vec<_>, Vec<_>) =
        json["gpu"].as_object().unwrap().iter().partition(|(_, value)| value.is_number());
    assert!(known.is_empty(), "{known:?}");
    assert!(unknown.iter().filter(|(_, value)| value.is_null()).count() >= 9, "{unknown:?}");
    assert_eq!(Figures::from_json(&figures.to_json()).unwrap(), figures);
}

#[test]
fn the_state_of_the_devices_is_summed_up() {
    let line = |used, power, throttle: &[&str]| {
        Body::Device(Box::new(Device {
            device: 1,
            gpu_name: Some("NVIDIA H200".into()),
            used_bytes: Some(used),
            processes: Some(vec![
                DeviceProcess { pid: 7, bytes: Some(1 << 30) },
                DeviceProcess { pid: 8, bytes: None },
                DeviceProcess { pid: 9, bytes: Some(3 << 30) },
                DeviceProcess { pid: 10, bytes: Some(1 << 29) },
            ]),
            utilization: Some(80),
            power_w: Some(power),
            throttle: Some(throttle.iter().map(|reason| reason.to_string()).collect()),
            ..Device::default()
        }))
    };
    let exec = || Exec { pid: 7, tid: 7, command: vec!["./a".into()], ..Exec::default() };
    let recorded = |first_ns| {
        let mut script = Script::new();
        script.push(first_ns, line(2 << 30, 600.25, &[]));
        script.push(MS, Body::Process(Process::Exec(exec())));
        script.push(MS, line(5 << 30, 612.34, &["sw_power_cap", "hw_slowdown"]));
        script.push(MS, line(3 << 30, 100.0, &["gpu_idle"]));
        script.push(MS, line(3 << 30, 100.0, &["gpu_idle", "sw_power_cap"]));
        script.finish().0
    };
    let figures = recorded(MS);
    let of = &figures.nvml[0];
    assert_eq!((of.samples, of.throttled, of.utilization, of.most_power_mw), (4, 2, Some(80), Some(612_340)));
    assert_eq!((of.first_used_bytes, of.most_used_bytes), (Some(2 << 30), Some(5 << 30)));
    let text = crate::text::print(&figures, UNBOUNDED);
    for said in [
        "   1  NVIDIA H200: 2.00 GB in use at first, at most 5.00 GB, 80 % utilization on average, up to 612.3 W",
        "clocks lowered in 2 of 4 samples: sw_power_cap (2), hw_slowdown (1)",
        "pid 7 held 1.00 GB on device 1 at the start",
        "not recorded: 2 processes that held 3.50 GB at the start",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(Figures::from_json(&figures.to_json()).unwrap(), figures);
    let late = &recorded(100 * MS).nvml[0];
    assert!(late.processes_at_start.is_empty(), "it may have come from the recorded program: {late:?}");
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
