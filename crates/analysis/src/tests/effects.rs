//! Figures that follow from the keys memory, transfer and launch.

use super::*;

#[test]
fn what_is_never_freed_is_reported_largest_and_oldest_first() {
    let mut s = Script::new();
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 100, 100);
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x2000, 300, 400);
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x3000, 300, 700);
    s.memory("cuMemCreate", Op::Alloc, "virtual", 0x3000, 50, 50);
    s.memory("cuMemFree_v2", Op::Free, "device", 0x1000, 100, 600);
    s.memory("cudaIpcOpenMemHandle", Op::Alloc, "ipc", 0x9000, 0, 0);
    let (live, bytes) = s.finish();
    let leaks = &live.memory.held;
    assert_eq!(live.memory.leaks.count, 0, "it does not grow");
    assert_eq!((leaks.count, leaks.bytes), (3, 650));
    let listed: Vec<(&str, u64, bool)> =
        leaks.largest.iter().map(|l| (l.ptr.as_str(), l.size, l.at_exit)).collect();
    assert_eq!(listed, [("0x2000", 300, false), ("0x3000", 300, false), ("0x3000", 50, false)]);
    assert!(leaks.largest[0].age_ns > leaks.largest[1].age_ns);
    assert_eq!(live.processes[0].peak_device_bytes, 750);
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("Memory held at exit: 650 bytes (0.00 MB) in 3 allocations"), "{printed}");
    assert!(printed.contains("device   600 bytes (0.00 MB) in 2 allocations, live when the recording ended"));

    // The trace has the exit of the process; the same pid afterwards is another process.
    let mut s = Script::new();
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 100, 100);
    s.exit(0);
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 7, 7);
    let leaks = s.finish().0.memory.held;
    assert_eq!((leaks.count, leaks.bytes, leaks.by_space[0].at_exit), (2, 107, 1));
}

/// A step allocates and launches. One program frees the memory of the previous step, one never frees, one allocates
/// only while it loads.
#[test]
fn what_grows_is_a_leak_and_what_is_made_once_is_held() {
    let run = |kept: &dyn Fn(u64) -> bool| {
        let mut s = Script::new();
        s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x10, 64 << 20, 64 << 20);
        for step in 0..40 {
            let at = 0x1000 * (step + 1);
            s.memory("cuMemAlloc_v2", Op::Alloc, "device", at, 4096 + step, 0);
            let id = s.launch("k", None);
            s.end(id, 50_000, 0);
            if !kept(step) {
                s.memory("cuMemFree_v2", Op::Free, "device", at, 4096 + step, 0);
            }
        }
        let (live, bytes) = s.finish();
        assert_eq!(of_file(&bytes), live);
        assert_eq!(Figures::from_json(&live.to_json()).unwrap(), live);
        live
    };
    let live = run(&|_| true);
    assert_eq!((live.memory.held.count, live.memory.leaks.count), (41, 40));
    assert_eq!(live.memory.leaks.bytes, (0..40).map(|step| 4096 + step).sum::<u64>());
    let printed = crate::text::print(&live, 100);
    assert!(
        printed.contains("Memory held at exit: 67273484 bytes (64.16 MB) in 41 allocations\n"),
        "{printed}"
    );
    assert!(
        printed.contains("Leaks: 164620 bytes (0.16 MB) in 40 allocations, more and more through the run\n")
    );
    // The program fails to free one of four.
    assert_eq!(run(&|step| step % 4 == 0).memory.leaks.count, 10);
    for held in [run(&|_| false), run(&|step| step < 12), run(&|step| step > 35)] {
        assert_eq!(held.memory.leaks.count, 0);
        assert!(!crate::text::print(&held, 100).contains("Leaks"));
    }
}

/// In traces from before the distinction, everything held counted as a leak.
#[test]
fn leaks_of_older_traces_are_held() {
    let mut s = Script::new();
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 100, 100);
    let figures = s.finish().0;
    let mut json = figures.to_json();
    let memory = json["memory"].as_object_mut().unwrap();
    let held = memory.remove("held").unwrap();
    memory.insert("leaks".into(), held);
    assert_eq!(Figures::from_json(&json).unwrap(), figures);
}

#[test]
fn kernels_are_counted_by_name_and_shape() {
    let mut s = Script::new();
    for i in 0..1000 {
        let outer = s.begin("cudaLaunchKernel", None);
        let inner = s.launch(if i % 4 == 0 { "a" } else { "b" }, Some(outer));
        if i % 3 == 0 {
            let Body::Begin(begin) = &mut s.lines[inner as usize].body else { panic!() };
            begin.launch.as_mut().unwrap().grid = Some([1, 1, 1]);
        }
        s.end(inner, 100, i32::from(i == 0));
        s.end(outer, 100, i32::from(i == 0));
    }
    let (live, bytes) = s.finish();
    let seen: Vec<(&str, u64)> = live.kernels.iter().map(|k| (k.name.as_str(), k.launches)).collect();
    assert_eq!(seen, [("b", 750), ("a", 249)]);
    assert_eq!((live.kernels[0].grid, live.kernels[0].shapes), (Some([64, 1, 1]), 2));
    assert_eq!(live.kernel_launches, 999);
    assert_eq!(of_file(&bytes), live);
    assert!(crate::text::print(&live, 100).contains("       750  64x1x1*  256x1x1  b\n"));
    // A node of a graph is not launched by itself.
    let mut s = Script::new();
    let node = s.launch("n", None);
    let Body::Begin(begin) = &mut s.lines[node as usize].body else { panic!() };
    begin.name = "cuGraphAddKernelNode_v2".into();
    s.end(node, 1, 0);
    assert!(s.finish().0.kernels.is_empty());
}

#[test]
fn an_asynchronous_error_shows_the_window_of_its_cause() {
    let mut s = Script::new();
    let launch = |s: &mut Script, kernel| {
        let id = s.launch(kernel, None);
        s.end(id, 100, 0);
    };
    launch(&mut s, "innocent");
    s.call("cuCtxSynchronize", 1000, 0);
    s.call("cuMemAlloc_v2", 1000, 2);
    launch(&mut s, "suspect");
    launch(&mut s, "suspect");
    launch(&mut s, "other");
    s.call("cuStreamSynchronize", 1000, 700);
    s.call("cuCtxSynchronize", 1000, 700);
    let (live, bytes) = s.finish();
    let [first, second] = &live.error_windows[..] else { panic!("{:?}", live.error_windows) };
    assert_eq!(
        (first.error.as_str(), first.asynchronous, first.launches),
        ("CUDA_ERROR_OUT_OF_MEMORY", false, 0)
    );
    assert_eq!((second.error.as_str(), second.asynchronous), ("CUDA_ERROR_ILLEGAL_ADDRESS", true));
    assert_eq!(second.last_sync.as_ref().unwrap().function, "cuCtxSynchronize");
    let kernels: Vec<_> = second.kernels.iter().map(|k| (k.kernel.as_str(), k.launches)).collect();
    assert_eq!((second.launches, &kernels[..]), (3, &[("suspect", 2), ("other", 1)][..]));
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(
        printed.contains(
            "First asynchronous failure of pid 100: cuStreamSynchronize CUDA_ERROR_ILLEGAL_ADDRESS"
        )
    );
    assert!(printed.contains("3 launches since the last successful synchronisation before it"), "{printed}");
}

#[test]
fn contexts_have_windows_of_their_own() {
    let mut s = Script::new();
    let set = |s: &mut Script, tid: u32, context: u64| {
        let id = s.begin_on(tid, "cuCtxSetCurrent", None);
        let Body::Begin(begin) = &mut s.lines[id as usize].body else { panic!() };
        begin.args = Args::raw(&[context]);
        s.end(id, 1, 0);
    };
    let call = |s: &mut Script, tid: u32, name: &'static str, status: i32| {
        let id = s.begin_on(tid, name, None);
        s.end(id, 10, status);
    };
    call(&mut s, 1, "cuLaunchKernel", 0);
    set(&mut s, 1, 0xc1);
    set(&mut s, 2, 0xc2);
    call(&mut s, 2, "cuLaunchKernel", 0);
    call(&mut s, 2, "cuLaunchKernel", 0);
    call(&mut s, 2, "cuCtxSynchronize", 0);
    call(&mut s, 1, "cuCtxSynchronize", 719);
    call(&mut s, 2, "cuCtxSynchronize", 719);
    let (live, bytes) = s.finish();
    let seen: Vec<_> = live.error_windows.iter().map(|w| (w.context.as_deref(), w.launches)).collect();
    assert_eq!(seen, [(Some("0xc1"), 1), (Some("0xc2"), 0)]);
    assert_eq!(of_file(&bytes), live);
}

fn found<'a>(figures: &'a Figures, what: &str) -> Option<&'a figures::Finding> {
    figures.findings.iter().find(|f| f.what.contains(what))
}

#[test]
fn waste_is_found_from_its_thresholds_on() {
    let recording = |make: &dyn Fn(&mut Script)| {
        let mut script = Script::new();
        make(&mut script);
        let (live, bytes) = script.finish();
        assert_eq!(of_file(&bytes), live);
        let printed = crate::text::print(&live, 100);
        assert_eq!(printed.contains("What could be better"), !live.findings.is_empty());
        live
    };
    let in_a_loop = |times: u64| {
        recording(&move |s: &mut Script| {
            for _ in 0..times {
                s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x1000, 4096, 4096);
                s.memory("cuMemFree_v2", Op::Free, "device", 0x1000, 4096, 0);
            }
        })
    };
    let figures = in_a_loop(11);
    let finding = found(&figures, "gives back 4096 bytes").unwrap();
    assert_eq!((finding.times, finding.cost_ns), (10, Some(22 * 3000)));
    assert!(found(&in_a_loop(10), "gives back").is_none());
    // Allocating all and then freeing all is not a loop.
    let at_once = recording(&|s| {
        for i in 0..50 {
            s.memory("cuMemAlloc_v2", Op::Alloc, "device", i, 4096, 4096 * (i + 1));
        }
    });
    assert!(at_once.findings.is_empty());

    let launches = |times: u64, ns: u64| {
        recording(&move |s: &mut Script| {
            for _ in 0..times {
                let id = s.launch("k", None);
                s.end(id, ns, 0);
            }
        })
    };
    let figures = launches(1001, 4_000);
    let finding = found(&figures, "tiny launches").unwrap();
    // One of five microseconds is what recording the launch cost.
    assert_eq!((finding.times, finding.cost_ns), (1000, Some(4_000_000)));
    assert!(finding.what.contains("4.0 us"));
    assert!(found(&launches(1000, 4_000), "tiny").is_none());
    assert!(found(&launches(1001, 40_000), "tiny").is_none());
    // PyTorch makes a dozen calls for each launch: by the recorded times they are too far apart.
    let figures = recording(&|s: &mut Script| {
        for _ in 0..1001 {
            (0..12).for_each(|_| s.call("cudaGetDevice", 700, 0));
            let id = s.launch("k", None);
            s.end(id, 4_000, 0);
        }
    });
    let finding = found(&figures, "tiny launches").unwrap();
    assert!(finding.what.contains("12.4 us"), "{}", finding.what);

    let pageable = |rounds: u64, size: u64| {
        recording(&move |s: &mut Script| {
            for _ in 0..=rounds {
                s.copy("cuMemcpyHtoD_v2", "H2D", size, 9_000);
                let id = s.launch("k", None);
                s.end(id, 30_000, 0);
            }
        })
    };
    let figures = pageable(16, 1 << 20);
    assert_eq!(found(&figures, "pageable").unwrap().cost_ns, Some(16 * 9_000));
    assert!(pageable(16, (1 << 20) - 1).findings.is_empty());
    // Loading is not repetition.
    assert!(pageable(9, 16 << 20).findings.is_empty());

    let waits = |launches: usize, times: usize| {
        recording(&move |s: &mut Script| {
            for _ in 0..times {
                for _ in 0..launches {
                    let id = s.launch("k", None);
                    s.end(id, 30_000, 0);
                }
                s.call("cudaGetLastError", 10, 0);
                s.call("cuStreamSynchronize", 50_000, 0);
            }
        })
    };
    let figures = waits(1, 21);
    let finding = found(&figures, "cuStreamSynchronize waits for a single cuLaunchKernel").unwrap();
    // For the last one it is unknown whether it was needed.
    assert_eq!((finding.times, finding.cost_ns), (20, Some(1_000_000)));
    assert!(found(&waits(1, 20), "waits").is_none());
    let figures = waits(3, 21);
    let finding = found(&figures, "cuStreamSynchronize waits though nothing is copied to the host").unwrap();
    assert_eq!((finding.times, finding.cost_ns), (20, Some(1_000_000)));
}

#[test]
fn unchecked_errors_are_found() {
    let figures = |asked: bool, synced: bool| {
        let mut s = Script::new();
        s.call("cudaLaunchKernel", 10, 9);
        s.call("cudaLaunchKernel", 10, 0);
        if asked {
            s.call("cudaGetLastError", 10, 9);
        }
        if synced {
            s.call("cudaDeviceSynchronize", 10, 0);
        }
        s.exit(0);
        let (live, bytes) = s.finish();
        assert_eq!(of_file(&bytes), live);
        (found(&live, "did not check").is_some(), found(&live, "before an exit").is_some())
    };
    assert_eq!(figures(false, true), (true, false));
    assert_eq!(figures(true, false), (false, true));
}

#[test]
fn hostile_figures_do_not_overflow() {
    let mut s = Script::new();
    for i in 0..3 {
        s.memory("cuMemAlloc_v2", Op::Alloc, "device", i, u64::MAX, u64::MAX);
        s.memory("cuMemCreate", Op::Alloc, "virtual", i, u64::MAX, u64::MAX);
        s.copy("cuMemcpyHtoD_v2", "H2D", u64::MAX, 1);
    }
    s.memory("cuMemFree_v2", Op::Free, "device", 77, u64::MAX, 0);
    let id = s.launch("a\nb\x1b[31m\u{fffd}", None);
    s.end(id, 1, 0);
    let (live, bytes) = s.finish();
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("a\\nb\\u{1b}[31m") && !printed.contains('\u{1b}'));
    assert!(printed.contains("17592186044416.00 MB"));
}

/// Names beyond the limit: launches and waits in the shared entry still count.
#[test]
fn functions_without_end_are_summed_as_others() {
    let mut summary = Summary::new();
    let mut add = |id: u64, name: String| {
        let begin = Begin {
            name: Cow::Owned(name.clone()),
            pid: 1,
            tid: 1,
            depth: 0,
            parent: None,
            args: Args::raw(&[]),
            launch: None,
            stack: None,
            no_return: None,
            carried: false,
        };
        summary.add(&Line { event_id: 2 * id, ts_ns: id, body: Body::Begin(begin) });
        let end = End {
            name: Cow::Owned(name),
            pid: 1,
            tid: 1,
            begin: 2 * id,
            duration_ns: Some(5),
            paused_ns: 0,
            retval: None,
            error: None,
            out: None,
            late: None,
            ended: EndKind::Returned,
        };
        summary.add(&Line { event_id: 2 * id + 1, ts_ns: id, body: Body::End(end) });
    };
    for i in 0..65_536 {
        add(i, format!("cuNamed{i}"));
    }
    for i in 0..1000 {
        add(65_536 + 3 * i, format!("cuFurther{i}"));
        add(65_537 + 3 * i, "cudaDeviceSynchronize".to_owned());
        add(65_538 + 3 * i, "cuLaunchKernel".to_owned());
    }
    let figures = summary.finish(1_000_000);
    assert_eq!((figures.functions.len(), figures.cuda_calls), (65_539, 68_536));
    for name in ["(other functions)", "(other synchronisations)", "(other kernel launches)"] {
        let other = figures.functions.iter().find(|f| f.name == name).unwrap();
        assert_eq!((other.calls, other.total_ns, other.med_ns), (1000, 5000, 5), "{name}");
    }
    assert_eq!((figures.kernel_launches, figures.sync.calls), (1000, 1000));
    assert_eq!(figures.sync.by_function.len(), 1);
}

/// As many process exits as open calls: an exit must not scan all open calls.
#[test]
fn calls_die_with_their_own_process() {
    let mut s = Script::new();
    let first = s.begin("cuInit", None);
    s.exit(0);
    let second = s.begin("cuInit", None);
    let mut summary = Summary::new();
    s.lines.iter().for_each(|line| summary.add(line));
    let base = s.lines.len() as u64;
    let ns = s.ns;
    for i in 0..200_000 {
        let exit = Exit { pid: 1000 + i, tid: 1000 + i, status: ExitStatus::Code(0) };
        let body = Body::Process(Process::Exit(exit));
        summary.add(&Line { event_id: base + u64::from(i), ts_ns: ns, body });
    }
    let in_flight = summary.finish(ns + 7000).in_flight;
    let reported: Vec<(u64, bool)> = in_flight.iter().map(|call| (call.begin, call.died)).collect();
    assert_eq!(reported, [(first, true), (second, false)]);
    assert_eq!(in_flight[1].duration_ns, 7000);
}

/// Spaces beyond the limit share one name, and no allocation is lost.
#[test]
fn spaces_without_end_are_one() {
    let mut summary = Summary::new();
    for i in 0..1000u64 {
        let memory = Memory {
            name: "cuMemAlloc_v2".into(),
            pid: 1,
            tid: 1,
            begin: Some(i),
            on: Where::default(),
            op: Op::Alloc,
            space: format!("space{i}").into(),
            ptr: i,
            size: Some(10),
            total_allocated: Some(10),
            earlier: false,
            missed: false,
            runtime: false,
            carried: false,
            stack: None,
        };
        summary.add(&Line { event_id: i, ts_ns: i, body: Body::Memory(memory) });
    }
    let memory = summary.finish(1000).memory;
    assert_eq!((memory.by_space.len(), memory.held.by_space.len()), (32, 32));
    assert_eq!((memory.held.count, memory.held.bytes, memory.held.largest.len()), (1000, 10_000, 100));
    assert_eq!((memory.by_space[0].space.as_str(), memory.by_space[0].allocations), ("(others)", 969));
    assert_eq!((memory.held.largest[0].begin, memory.held.largest[99].begin), (0, 99));
}
