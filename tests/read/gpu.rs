//! GPU work in the exports and reports, by the real binary, of a trace that is written here.
//!
//! In: a random program on two devices and several streams, whose records come late and out of order. Out: lanes, flows
//! and counts that other readers find in the exports, equal to the trace and to `report gpu --json`.

use std::process::Command;

use gpurec_trace::{
    Args, Begin, Body, End, Finish, Gpu, GpuKind, Header, Launch, Line, LineWriter, Retval, SCHEMA,
};

use super::{Folder, readers, root, run, said};

/// A small generator with a seed, so that a failing case can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

struct Trace {
    lines: Vec<Line<'static>>,
    ns: u64,
}

impl Trace {
    fn new() -> Trace {
        let header = Header {
            schema: SCHEMA,
            start: "2026-11-25T05:00:00.000+00:00".into(),
            command: Some(vec!["train".into()]),
            options: serde_json::json!({ "gpu": "nodes" }),
            ..Header::default()
        };
        let mut trace = Trace { lines: Vec::new(), ns: 0 };
        trace.push(0, Body::Header(Box::new(header)));
        trace
    }

    fn push(&mut self, after_ns: u64, body: Body<'static>) -> u64 {
        self.ns += after_ns;
        let event_id = self.lines.len() as u64;
        self.lines.push(Line { event_id, ts_ns: self.ns, body });
        event_id
    }

    /// A launch that takes `ns`. Returns its event_id.
    fn launch(&mut self, tid: u32, ns: u64) -> u64 {
        let name = "cuLaunchKernel";
        let launch = Some(Launch { kernel: Some("gemm".into()), ..Launch::default() });
        let (args, depth) = (Args::raw(&[1]), 0);
        let begin = Begin {
            name: name.into(),
            pid: 7,
            tid,
            depth,
            parent: None,
            args,
            stack: None,
            launch,
            no_return: None,
            carried: false,
        };
        let begin = self.push(500, Body::Begin(begin));
        let retval = Some(Retval::Number(0));
        let end =
            End { name: name.into(), pid: 7, tid, begin, duration_ns: Some(ns), retval, ..End::default() };
        self.push(ns, Body::End(end));
        begin
    }

    fn write(mut self, path: &str) {
        let finish = Finish { events: self.lines.len() as u64, complete: true, ..Finish::default() };
        self.push(1000, Body::Finish(Box::new(finish)));
        let mut writer = LineWriter::new(Vec::new());
        self.lines.iter().for_each(|line| writer.write(line).unwrap());
        std::fs::write(path, writer.into_inner().unwrap()).unwrap();
    }
}

/// Work in streams, one piece after another in each, reported late and out of order.
fn program(random: &mut Random, rounds: u64) -> Trace {
    let mut trace = Trace::new();
    let mut streams = [0u64; 5];
    let mut waiting: Vec<(u64, Gpu<'static>)> = Vec::new();
    for round in 0..rounds {
        let ns = 1000 + random.below(4000);
        let begin = trace.launch(7 + random.below(2) as u32, ns);
        let stream = random.below(5) as usize;
        let nodes = if random.below(10) == 0 { 3 } else { 1 };
        for node in 0..nodes {
            let start =
                streams[stream].max(trace.ns + random.below(3000)) + random.below(2) * random.below(900);
            let duration_ns = 1 + random.below(9000);
            // Nodes of a graph may run at the same time.
            streams[stream] = if node + 1 < nodes { start } else { start + 9000 };
            let kind =
                [GpuKind::Kernel, GpuKind::Kernel, GpuKind::Copy, GpuKind::Set][random.below(4) as usize];
            let name = match kind {
                GpuKind::Copy => "memcpy",
                GpuKind::Set => "memset",
                _ => ["gemm", "softmax<float>"][random.below(2) as usize],
            };
            let is_kernel = kind == GpuKind::Kernel;
            let gpu = Gpu {
                name: name.into(),
                kind,
                pid: 7,
                device: stream as u32 / 3,
                context: 1 + stream as u32 / 3,
                stream: 7 + stream as u32,
                correlation: round as u32,
                begin: (random.below(20) > 0).then_some(begin),
                duration_ns,
                queued_ns: Some(start as i64 - trace.ns as i64),
                grid: is_kernel.then_some([64, 1, 1]),
                block: is_kernel.then_some([256, 1, 1]),
                registers: is_kernel.then_some(32),
                shared: is_kernel.then_some(0),
                direction: (!is_kernel).then(|| if kind == GpuKind::Set { "set" } else { "H2D" }.into()),
                size: (!is_kernel).then(|| random.below(1 << 20)),
                graph: (nodes > 1).then_some(3),
                node: (nodes > 1).then_some(node),
                ..Gpu::default()
            };
            waiting.push((start, gpu));
        }
        if waiting.len() > 40 || round + 1 == rounds {
            while !waiting.is_empty() {
                let (start, gpu) = waiting.swap_remove(random.below(waiting.len() as u64) as usize);
                let event_id = trace.lines.len() as u64;
                trace.lines.push(Line { event_id, ts_ns: start, body: Body::Gpu(gpu) });
            }
        }
    }
    trace.ns += 1_000_000;
    trace
}

#[test]
fn lanes_flows_and_counts_of_gpu_work_are_those_of_the_trace_and_of_the_report() {
    let folder = Folder::new();
    let trace = folder.file("gpu.jsonl");
    program(&mut Random(17), 250).write(&trace);
    let report = run(&["report", "gpu", "--json", &trace]);
    assert!(report.status.success() && report.stderr.is_empty(), "{}", said(&report));
    let json: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!((json["streams"].as_array().unwrap().len(), json["late"].as_u64()), (5, Some(0)));
    let idle = run(&["report", "idle", "--json", &trace]);
    let idle: serde_json::Value = serde_json::from_slice(&idle.stdout).unwrap();
    for key in ["busy_ns", "idle_ns", "waited_gaps", "waited_gap_ns"] {
        assert_eq!(json[key], idle[key], "{key}");
    }
    let report_file = folder.file("report.json");
    std::fs::write(&report_file, &report.stdout).unwrap();
    exports_are_true(&folder, &[&trace], &["--mutate"], &[&report_file]);
    // Two traces of the same processes in one.
    let sample = root().join("crates/analysis/src/tests/gpu.jsonl").display().to_string();
    let other = folder.file("other.jsonl");
    program(&mut Random(18), 100).write(&other);
    exports_are_true(&folder, &[&sample], &[], &[]);
    exports_are_true(&folder, &[&trace, &sample, &other], &[], &[]);
}

/// Exports the traces together, and has the independent readers compare them.
fn exports_are_true(folder: &Folder, traces: &[&str], how: &[&str], more: &[&str]) {
    let Some(readers) = readers() else { return };
    let mut check = Command::new("python3");
    check.env("PYTHONPATH", &readers).env("PYTHONDONTWRITEBYTECODE", "1");
    check.arg(root().join("tests/export/check.py")).args(how).arg(traces.join(","));
    for format in ["chrome", "perfetto", "csv"] {
        let output = folder.file(format);
        let done = run(&[&["export", "--format", format, "-o", &output], traces].concat());
        assert!(done.status.success(), "{}", said(&done));
        check.arg(output);
    }
    let done = check.args(more).output().unwrap();
    assert!(done.status.success(), "{traces:?}: {}", said(&done));
    eprintln!("{}", said(&done));
}
