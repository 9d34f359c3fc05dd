mod bounds;
mod budget;
mod cost;
mod devices;
mod dumps;
mod effects;
mod failures;
mod gpu;
mod gpu_model;
mod idle;
mod kernel;
mod ledger;
mod recipes;
mod sleeps;
mod unfinished;
mod unknown;
mod usage;
mod waste;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use super::figures::KernelSpace;
use super::*;
use crate::paper::UNBOUNDED;
use gpurec_cuda as cuda;
use gpurec_trace::*;

/// Builds a recording line by line.
struct Script {
    lines: Vec<Line<'static>>,
    ns: u64,
}

impl Script {
    fn new() -> Script {
        let mut script = Script { lines: Vec::new(), ns: 0 };
        let header = Header {
            schema: SCHEMA,
            ns_per_call: Some(1000),
            hooks: BTreeMap::from([(
                "userspace".to_string(),
                Layer {
                    backend: "uprobe.session".into(),
                    attached: 1,
                    refused: vec![refused("cuOdd", "its first instruction cannot be decoded")],
                    ..Layer::default()
                },
            )]),
            ..Header::default()
        };
        script.push(0, Body::Header(Box::new(header)));
        script
    }

    fn push(&mut self, after_ns: u64, body: Body<'static>) -> u64 {
        self.ns += after_ns;
        let event_id = self.lines.len() as u64;
        self.lines.push(Line { event_id, ts_ns: self.ns, body });
        event_id
    }

    fn begin_on(&mut self, tid: u32, name: &'static str, parent: Option<u64>) -> u64 {
        let depth = parent.map_or(0, |parent| match &self.lines[parent as usize].body {
            Body::Begin(outer) => outer.depth + 1,
            other => panic!("{other:?}"),
        });
        self.push(
            1000,
            Body::Begin(Begin {
                name: Cow::Borrowed(name),
                pid: 100,
                tid,
                depth,
                parent,
                args: Args::raw(&[1, 0xffff_ffff_ffff_ffff]),
                launch: None,
                stack: None,
                no_return: None,
                carried: false,
            }),
        )
    }

    fn begin(&mut self, name: &'static str, parent: Option<u64>) -> u64 {
        self.begin_on(100, name, parent)
    }

    /// A launch of `kernel` at the driver level.
    fn launch(&mut self, kernel: &'static str, parent: Option<u64>) -> u64 {
        let id = self.begin("cuLaunchKernel", parent);
        let Body::Begin(begin) = &mut self.lines[id as usize].body else { panic!() };
        begin.launch = Some(Launch {
            kernel: Some(kernel.into()),
            grid: Some([64, 1, 1]),
            block: Some([256, 1, 1]),
            shared: Some(0),
            stream: Some(0),
            ..Launch::default()
        });
        id
    }

    /// A call that allocates or frees `size` bytes.
    fn memory(&mut self, name: &'static str, op: Op, space: &'static str, ptr: u64, size: u64, total: u64) {
        let begin = self.begin(name, None);
        self.end(begin, 3000, 0);
        self.push(
            0,
            Body::Memory(Memory {
                name: name.into(),
                pid: 100,
                tid: 100,
                begin: Some(begin),
                on: Where::default(),
                op,
                space: space.into(),
                ptr,
                size: Some(size),
                total_allocated: Some(total),
                earlier: false,
                missed: false,
                runtime: name.starts_with("cuda"),
                carried: false,
                stack: None,
            }),
        );
    }

    fn copy(&mut self, name: &'static str, direction: &'static str, size: u64, ns: u64) {
        let begin = self.begin(name, None);
        self.end(begin, ns, 0);
        let is_async = name.contains("Async") || direction == "set";
        self.push(
            0,
            Body::Transfer(Transfer {
                name: name.into(),
                pid: 100,
                tid: 100,
                begin,
                on: Where::default(),
                direction: direction.into(),
                size,
                partial: false,
                is_async,
                pageable: direction == "H2D",
                duration_ns: (!is_async).then_some(ns),
            }),
        );
    }

    fn exit(&mut self, status: i32) {
        let exit = Exit { pid: 100, tid: 100, status: ExitStatus::Code(status) };
        self.push(1000, Body::Process(Process::Exit(exit)));
    }

    fn end(&mut self, begin: u64, ns: u64, status: i32) {
        let (name, began, tid) = match &self.lines[begin as usize] {
            Line { body: Body::Begin(b), ts_ns, .. } => (b.name.clone(), *ts_ns, b.tid),
            other => panic!("{other:?}"),
        };
        let failed = cuda::FunctionTraits::of(&name).is_failure(status);
        let error = cuda::error_name(cuda::api(&name), status).filter(|_| failed);
        self.push(
            ns,
            Body::End(End {
                pid: 100,
                tid,
                begin,
                duration_ns: Some(self.ns + ns - began),
                paused_ns: 0,
                retval: Some(Retval::Number(status.into())),
                error: error.map(Cow::Borrowed),
                out: None,
                late: None,
                ended: EndKind::Returned,
                name,
            }),
        );
    }

    fn call(&mut self, name: &'static str, ns: u64, status: i32) {
        let begin = self.begin(name, None);
        self.end(begin, ns, status);
    }

    /// The figures from the recorder's path, and the trace that contains them.
    fn finish(mut self) -> (Figures, Vec<u8>) {
        let mut summary = Summary::new();
        for line in &self.lines {
            summary.add(line);
        }
        let figures = summary.finish(self.ns + 500);
        let finish = Finish {
            events: self.lines.len() as u64,
            lost: figures.lost,
            in_flight: figures.in_flight.clone(),
            complete: figures.complete,
            incomplete_because: figures.incomplete_because.clone(),
            incomplete_codes: figures.incomplete_codes.clone(),
            stops: figures.stops,
            gpu: figures.gpu.as_ref().and_then(|gpu| gpu.account.clone()),
            dump: None,
            summary: figures.to_json(),
        };
        self.push(500, Body::Finish(Box::new(finish)));
        let mut writer = LineWriter::new(Vec::new());
        for line in &self.lines {
            writer.write(line).unwrap();
        }
        (figures, writer.into_inner().unwrap())
    }
}

fn refused(name: &str, reason: &str) -> RefusedHook {
    RefusedHook { name: name.to_string(), reason: reason.to_string(), code: "refused".to_string() }
}

fn of_file(bytes: &[u8]) -> Figures {
    let mut reader = Reader::new(bytes);
    let mut summary = Summary::new();
    while let Some(line) = reader.next().unwrap() {
        summary.add(&line);
    }
    summary.of_file(reader.notes())
}

/// A recording with some of everything.
fn rich() -> Script {
    let mut s = Script::new();
    let command = vec!["python".into(), "train\x1b[31m.py".into()];
    let exec = Exec { pid: 100, tid: 100, command, rank: Some(0), ..Exec::default() };
    s.push(1000, Body::Process(Process::Exec(exec)));
    let library = Library {
        pid: 100,
        tid: 100,
        path: "/usr/lib/libcuda.so.1".into(),
        build_id: None,
        functions: 3,
        not_hooked: vec![refused("cudbgMain", "it is data")],
        single_stepped: Vec::new(),
    };
    s.push(1000, Body::Process(Process::Library(library)));
    for i in 0..5 {
        let outer = s.begin("cudaLaunchKernel", None);
        let inner = s.launch(if i < 3 { "void saxpy<float>(int, float*)" } else { "0x7f10" }, Some(outer));
        s.end(inner, 2_000 + i * 100, 0);
        s.end(outer, 500, 0);
    }
    s.memory("cuMemAlloc_v2", Op::Alloc, "device", 0x7f00, 500 << 20, 500 << 20);
    s.memory("cuMemCreate", Op::Alloc, "virtual", 0x7f00, 2 << 20, 2 << 20);
    s.memory("cuMemFree_v2", Op::Free, "device", 0x7f00, 500 << 20, 0);
    s.copy("cuMemcpyHtoD_v2", "H2D", 1000 << 20, 100_000_000);
    s.copy("cuMemcpyDtoHAsync_v2", "D2H", 4096, 2_000);
    s.copy("cuMemsetD8Async", "set", 64, 2_000);
    s.call("cuEventQuery", 700, 600);
    s.call("cudaMalloc", 1_500, 2);
    s.call("cudaMalloc", 1_500, 2);
    let outer = s.begin("cudaDeviceSynchronize", None);
    let inner = s.begin("cuCtxSynchronize", Some(outer));
    s.end(inner, 3_000_000, 0);
    s.end(outer, 1_000, 0);
    s.call("cuGraphLaunch", 4_000, 0);
    s.call("ncclAllReduce", 10_000, 0);
    s.begin_on(101, "cuStreamSynchronize", None);
    let lost = Lost {
        count: 3,
        by_probe: BTreeMap::from([("cuLaunchKernel".to_string(), 2), ("cuInit".to_string(), 1)]),
    };
    s.push(1000, Body::Lost(lost));
    let exit = Exit { pid: 100, tid: 100, status: ExitStatus::Signal(11) };
    s.push(1000, Body::Process(Process::Exit(exit)));
    s
}

#[test]
fn live_and_from_the_file_are_the_same() {
    let (live, bytes) = rich().finish();
    let read = of_file(&bytes);
    assert_eq!(read, live);
    assert_eq!(crate::text::print(&read, 100), crate::text::print(&live, 100));
    let stored = Figures::from_json(&live.to_json()).unwrap();
    assert_eq!(stored, live);
}

#[test]
fn the_text_is_as_agreed() {
    let (figures, _) = rich().finish();
    golden::check("summary", &crate::text::print(&figures, golden::WIDTH));
}

#[test]
fn an_empty_recording_says_that_nothing_was_there() {
    let mut summary = Summary::new();
    summary.add(&Script::new().lines[0]);
    let printed = crate::text::print(&summary.finish(1_500_000_000), 80);
    assert!(printed.starts_with(
        "=== TRACE SUMMARY ===\n\nUSERSPACE (libcuda.so, libcudart.so):\n  Total CUDA API calls: 0\n  Kernel launches: 0\n  Memory allocations: 0\n  Total memory allocated: 0 bytes (0.00 MB)\n  Memory transfers: 0\n  Total data transferred: 0 bytes (0.00 MB)\n  No CUDA library was loaded.\n"
    ));
    assert!(printed.ends_with("Recording: 1.500 s, complete\n"));
    assert!(!printed.contains("Top functions"));
}

#[test]
fn a_launch_counts_once_at_the_innermost_level() {
    let launches = |make: &dyn Fn(&mut Script)| {
        let mut script = Script::new();
        make(&mut script);
        script.finish().0.kernel_launches
    };
    // Both levels, with a level between them that is not a launch.
    assert_eq!(
        launches(&|s| {
            let a = s.begin("cudaLaunchKernel", None);
            let b = s.begin("__cudaGetKernel", Some(a));
            let c = s.begin("cuLaunchKernelEx_ptsz", Some(b));
            s.end(c, 1, 0);
            s.end(b, 1, 0);
            s.end(a, 1, 0);
        }),
        1
    );
    // One level only.
    assert_eq!(launches(&|s| s.call("cudaLaunchKernel", 1, 0)), 1);
    assert_eq!(launches(&|s| s.call("cuLaunchKernel", 1, 0)), 1);
    // A runtime call that launches twice.
    assert_eq!(
        launches(&|s| {
            let a = s.begin("cudaLaunchCooperativeKernelMultiDevice", None);
            for _ in 0..2 {
                let b = s.begin("cuLaunchCooperativeKernel", Some(a));
                s.end(b, 1, 0);
            }
            s.end(a, 1, 0);
        }),
        2
    );
    // Failed, still running, or no kernel.
    assert_eq!(launches(&|s| s.call("cuLaunchKernel", 1, 700)), 0);
    assert_eq!(launches(&|s| s.call("cuLaunchHostFunc", 1, 0)), 0);
    assert_eq!(launches(&|s| s.call("cuGraphLaunch", 1, 0)), 0);
    assert_eq!(
        launches(&|s| {
            s.begin("cuLaunchKernel", None);
        }),
        0
    );
    assert_eq!(
        launches(&|s| {
            let a = s.begin("cudaLaunchKernel", None);
            let b = s.begin("cuLaunchKernel", Some(a));
            s.end(b, 1, 1);
            s.end(a, 1, 1);
        }),
        0
    );
}

#[test]
fn synchronisation_counts_once() {
    let (figures, _) = rich().finish();
    // The recording also has one that has not returned.
    assert_eq!((figures.sync.calls, figures.sync.unfinished, figures.sync.total_ns), (2, 1, 3_002_000));
    assert_eq!(figures.sync.by_function.len(), 3);
}

#[test]
fn not_ready_is_no_failure() {
    let (figures, _) = rich().finish();
    assert_eq!(figures.failures.calls, 2);
    assert_eq!(figures.failures.by_error.len(), 1);
    assert_eq!(figures.failures.by_error[0].function, "cudaMalloc");
}

#[test]
fn the_columns_are_those_of_nsys() {
    let mut s = Script::new();
    for ns in [100, 200, 400, 800] {
        s.call("cuInit", ns, 0);
    }
    let f = s.finish().0.functions.remove(0);
    assert_eq!((f.calls, f.total_ns, f.avg_ns), (4, 1500, 375));
    assert_eq!((f.min_ns, f.max_ns), (100, 800));
    // The mean of 200 and 400, each within 1 %.
    assert!(f.med_ns.abs_diff(300) <= 3, "{}", f.med_ns);
    // statistics.stdev([100, 200, 400, 800])
    assert_eq!(f.stddev_ns, 310);
}

#[test]
fn extreme_durations_do_not_overflow() {
    let mut summary = Summary::new();
    for id in 0..3 {
        summary.add(&Line {
            event_id: id,
            ts_ns: u64::MAX,
            body: Body::End(End {
                name: "cuInit".into(),
                pid: u32::MAX,
                tid: u32::MAX,
                begin: u64::MAX,
                duration_ns: Some(u64::MAX),
                paused_ns: 0,
                retval: None,
                error: None,
                out: None,
                late: None,
                ended: EndKind::Returned,
            }),
        });
    }
    let figures = summary.finish(u64::MAX);
    assert_eq!(figures.unmatched_ends, 3);
    assert_eq!(figures.functions[0].total_ns, u64::MAX);
    assert_eq!(figures.functions[0].med_ns, u64::MAX);
    assert!(crate::text::print(&figures, UNBOUNDED).contains("18446744073709551.615"));
}

#[test]
fn a_cut_trace_gives_what_it_has() {
    let (live, bytes) = rich().finish();
    let end = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n');
    let without_end = &bytes[..end.unwrap() + 1];
    let figures = of_file(without_end);
    assert_eq!(figures.cuda_calls, live.cuda_calls);
    assert_eq!(figures.functions, live.functions);
    assert!(!figures.complete);
    assert!(figures.notes[0].contains("cut at line 58: no end line"), "{:?}", figures.notes);
    let printed = crate::text::print(&figures, 200);
    assert!(printed.contains("NOT complete") && printed.contains("cut at line 58"));
    let header = bytes.iter().position(|b| *b == b'\n').unwrap();
    for length in (header..bytes.len() - 1).step_by(7) {
        crate::text::print(&of_file(&bytes[..length]), 80);
    }
}

#[test]
fn figures_without_events_come_from_the_end_line() {
    let (live, bytes) = rich().finish();
    let text = String::from_utf8(bytes).unwrap();
    let first = text.lines().next().unwrap();
    let last = text.lines().next_back().unwrap();
    let last = last.replace("{\"event_id\":58,", "{\"event_id\":1,");
    let bytes = format!("{first}\n{last}\n");
    assert_eq!(of_file(bytes.as_bytes()), live);
}

#[test]
fn unwound_and_lost_ends_are_kept_apart() {
    let mut s = Script::new();
    for ended in [EndKind::Unwound, EndKind::Lost] {
        let begin = s.begin("cuLaunchKernel", None);
        s.push(
            10,
            Body::End(End {
                name: "cuLaunchKernel".into(),
                pid: 100,
                tid: 100,
                begin,
                duration_ns: None,
                paused_ns: 0,
                retval: None,
                error: None,
                out: None,
                late: None,
                ended,
            }),
        );
    }
    let (live, bytes) = s.finish();
    assert_eq!((live.unwound_calls, live.kernel_launches), (1, 1));
    assert!(live.functions.is_empty() && live.in_flight.is_empty());
    assert_eq!(of_file(&bytes), live);
}

/// Runs each recipe of traces/README.md that shows its output.
#[test]
fn the_recipes_of_the_readme_work() {
    if Command::new("jq").arg("--version").output().is_err() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("gpurec-jq-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("traces")).unwrap();
    let (_, bytes) = rich().finish();
    std::fs::write(folder.join("traces/trace_20261121_030405.jsonl"), &bytes).unwrap();
    std::fs::write(folder.join("T"), &bytes).unwrap();
    std::fs::write(folder.join("K"), include_str!("tests/kernel.jsonl")).unwrap();
    let readme = include_str!("../../../traces/README.md");
    let recipes: Vec<&str> =
        readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert!(recipes.len() >= 5);
    let mut answers = Vec::new();
    for recipe in &recipes {
        let output = Command::new("sh")
            .args(["-c", &format!("set -e; {recipe}")])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{recipe}: {said}");
        answers.push(String::from_utf8(output.stdout).unwrap());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(answers[0].contains("userspace") && answers[0].contains(" 1 header"));
    assert!(answers[1].contains("\"name\": \"cuMemcpyHtoD_v2\""), "{}", answers[1]);
    assert_eq!(answers[2].trim(), ((502u64 << 20).to_string()));
    assert!(answers[6].trim().parse::<f64>().unwrap() > 0.0, "{}", answers[6]);
    assert_eq!(answers[7].lines().count(), 2);
    assert!(answers[3].contains("cuMemCreate") && !answers[3].contains("cuMemAlloc"), "{}", answers[3]);
    assert!(answers[5].contains("3 void saxpy<float>"), "{}", answers[5]);
    let last: Vec<&str> = answers.iter().rev().take(7).rev().map(String::as_str).collect();
    let begins = [
        r#"[{"request":"NV_ESC_RM_ALLOC HOPPER_CHANNEL_GPFIFO_A","calls":1,"us":332"#,
        r#"{"name":"cuCtxCreate_v4","us":498,"driver_us":442"#,
        r#"{"call":7,"name":"cuCtxCreate_v4","driver_us":442"#,
        r#"{"request":"NV_ESC_RM_ALLOC","what":"NV01_MEMORY_LOCAL_USER","status":"NV_OK","us":26"#,
        r#"{"command":"NV2080_CTRL_CMD_GR_GET_INFO","us":40"#,
        r#"[{"name":"cuCtxSynchronize","state":"preempted","us":100"#,
        r#"{"ts":0.002733"#,
    ];
    for (answer, begin) in last.iter().zip(begins) {
        assert!(answer.starts_with(begin), "{answer}");
    }
    for (recipe, answer) in recipes.iter().zip(&answers).skip(3) {
        assert!(!answer.trim().is_empty(), "{recipe} answers nothing");
    }
}

/// A PyTorch program recorded on an H200 (see traces/README.md).
#[test]
fn a_real_trace_has_the_figures_that_its_recorder_printed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/torch_h200.jsonl");
    let figures = summary_of(std::path::Path::new(path), &Only::default()).unwrap();
    assert!(figures.complete);
    assert!(figures.notes.is_empty());
    assert_eq!((figures.cuda_calls, figures.kernel_launches), (190, 18));
    let last = std::fs::read_to_string(path).unwrap().lines().last().unwrap().to_owned();
    let end: serde_json::Value = serde_json::from_str(&last).unwrap();
    // This figure is newer than the trace: the cost of recording nested calls.
    assert_eq!(figures.functions.iter().filter(|f| f.corrected_ns.is_some()).count(), 6);
    // So is this: the recording left calls out.
    assert_eq!(
        figures.unknown.keys().collect::<Vec<_>>(),
        ["cuda_calls", "failures.calls", "failures.handled"]
    );
    let mut figures = figures;
    figures.unknown.clear();
    figures.functions.iter_mut().for_each(|f| f.corrected_ns = None);
    // So is this.
    assert_eq!(figures.by_category[0].category, "init");
    figures.by_category.clear();
    // Also newer: of failed calls only those that the program saw.
    let stored = Figures::from_json(&end["summary"]).unwrap();
    assert_eq!((figures.failures.calls, figures.failures.shutdown, stored.failures.calls), (0, 9, 9));
    figures.failures = stored.failures.clone();
    figures.error_windows = stored.error_windows.clone();
    figures.functions.iter_mut().for_each(|f| f.errors = 0);
    assert_eq!(stored, figures);
}

/// Creation and destruction of a CUDA context on an H200, down to the ioctls.
#[test]
fn a_real_kernel_trace_has_its_ioctls_in_their_calls() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/context_h200.jsonl.zst");
    let mut reader = gpurec_trace::open(std::path::Path::new(path)).unwrap();
    let mut summary = Summary::new();
    let mut stored = None;
    while let Some(line) = reader.next().unwrap() {
        match &line.body {
            Body::KernelBegin(begin) if begin.ioctl.is_some() => {
                assert!(begin.parent.is_some(), "event {} stands alone", line.event_id);
            }
            Body::Finish(finish) => stored = Figures::from_json(&finish.summary).ok(),
            _ => {}
        }
        summary.add(&line);
    }
    let mut figures = summary.of_file(reader.notes());
    // This figure is newer than the trace.
    assert_eq!(figures.by_category.drain(..).map(|seen| seen.calls).sum::<u64>(), 5);
    let kernel = figures.kernel_space.as_ref().unwrap();
    assert!(figures.complete);
    assert_eq!((figures.cuda_calls, kernel.ioctls, kernel.unknown_ioctls), (5, 675, 3));
    assert!(kernel.requests.iter().all(|request| request.failed == 0));
    assert_eq!(stored.as_ref(), Some(&figures));
}
