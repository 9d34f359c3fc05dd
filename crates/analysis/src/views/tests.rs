//! Runs each view over the committed traces, as golden text and against the summary's figures, and over invalid traces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::*;
use crate::golden::{self, TRACES, WIDTH};
use crate::paper::UNBOUNDED;
use crate::summary_of;

fn kind(name: &str) -> &'static Kind {
    VIEWS.iter().find(|kind| kind.name == name).unwrap()
}

pub fn json_of(name: &str, file: &Path, config: &ReportConfig) -> Value {
    let config = ReportConfig { format: Format::Json, ..config.clone() };
    let (report, context) = run(kind(name), file, &config).unwrap();
    serde_json::to_value(report.json(name, "FILE", &context.sentences(false))).unwrap()
}

pub fn text_of(name: &str, file: &Path, config: &ReportConfig) -> String {
    run(kind(name), file, config).unwrap().0.text(WIDTH)
}

/// A trace of a few lines in a file.
pub struct Written(PathBuf);

impl Written {
    pub fn new(name: &str, lines: &str) -> Written {
        // Two tests may use one name.
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpurec-views-{}-{number}-{name}.jsonl", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, lines).unwrap();
        Written(file)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn golden_texts() {
    for kind in VIEWS {
        for (name, file) in TRACES {
            let text = text_of(kind.name, &golden::path(file), &ReportConfig::default());
            golden::check(&format!("{}_{name}", kind.name), &text);
        }
    }
}

/// Made by hand: a loop that loads, computes and waits, with GPU work and call stacks.
pub const GPU_TRACE: &str = "crates/analysis/src/tests/gpu.jsonl";

#[test]
fn golden_texts_of_gpu_work() {
    let path = golden::path(GPU_TRACE);
    for view in ["gpu", "idle", "waste", "kernels"] {
        golden::check(&format!("{view}_gpu_work"), &text_of(view, &path, &ReportConfig::default()));
    }
    let by_gpu = ReportConfig { by: Some(Weight::Gpu), ..ReportConfig::default() };
    golden::check("stacks_by_gpu", &text_of("stacks", &path, &by_gpu));
    let figures = summary_of(&path, &Only::default()).unwrap();
    golden::check("summary_gpu", &crate::text::print(&figures, WIDTH));
}

#[test]
fn every_view_says_something_in_every_form() {
    for kind in VIEWS {
        for (_, file) in TRACES {
            let path = golden::path(file);
            let json = json_of(kind.name, &path, &ReportConfig::default());
            // One of them was recorded with --skip.
            let left_out = usize::from(json.get("unknown").is_some());
            assert!(left_out == 0 || file.contains("torch"), "{json}");
            assert_eq!(
                (json["view"].as_str(), json["notes"].as_array().unwrap().len()),
                (Some(kind.name), left_out)
            );
            let config = ReportConfig { format: Format::Csv, ..ReportConfig::default() };
            let csv = run(kind, &path, &config).unwrap().0.csv(kind.main, true, None);
            let rows = json.get(kind.main).map_or(0, |rows| rows.as_array().unwrap().len());
            assert_eq!(
                csv.lines().count(),
                if csv.is_empty() { 0 } else { rows + 1 },
                "{} {file}",
                kind.name
            );
            let limited = ReportConfig { top: Some(1), ..ReportConfig::default() };
            let limited = json_of(kind.name, &path, &limited);
            if kind.main != "series" {
                assert!(
                    limited.get(kind.main).is_none_or(|rows| rows.as_array().unwrap().len() <= 1),
                    "{}",
                    kind.name
                );
            }
        }
    }
}

#[test]
fn views_agree_with_the_summary_and_with_one_another() {
    for (_, file) in TRACES {
        let path = golden::path(file);
        let figures = summary_of(&path, &Only::default()).unwrap();
        let view = |name: &str| json_of(name, &path, &ReportConfig::default());
        let sum = |json: &Value, table: &str, key: &str| -> u64 {
            json[table].as_array().map_or(0, |rows| rows.iter().filter_map(|row| row[key].as_u64()).sum())
        };
        let number = |json: &Value, key: &str| json[key].as_u64().unwrap_or(0);

        let kernels = view("kernels");
        assert_eq!(number(&kernels, "launches"), figures.kernel_launches);
        assert_eq!(number(&kernels, "graph_launches"), figures.graph_launches);
        let by_name: BTreeMap<&str, u64> =
            figures.kernels.iter().map(|k| (k.name.as_str(), k.launches)).collect();
        for row in kernels["kernels"].as_array().into_iter().flatten() {
            assert_eq!(by_name.get(row["kernel"].as_str().unwrap()), row["launches"].as_u64().as_ref());
        }

        let sync = view("sync");
        assert_eq!(number(&sync, "waits"), figures.sync.calls);
        assert_eq!(number(&sync, "waited_ns"), figures.sync.total_ns);
        assert_eq!(sum(&sync, "waiters", "total_ns"), figures.sync.total_ns);

        let leaks = view("leaks");
        assert_eq!(number(&leaks, "count"), figures.memory.leaks.count);
        assert_eq!(number(&leaks, "bytes"), figures.memory.leaks.bytes);
        assert_eq!(number(&leaks, "held_count"), figures.memory.held.count);
        assert_eq!(number(&leaks, "held_bytes"), figures.memory.held.bytes);
        assert_eq!(sum(&leaks, "groups", "bytes"), figures.memory.held.bytes);
        assert_eq!(sum(&leaks, "allocations", "bytes"), figures.memory.held.bytes);

        let memory = view("memory");
        assert_eq!(sum(&memory, "spaces", "allocated_bytes"), figures.memory.allocated_bytes);
        let peak = memory["spaces"].as_array().unwrap().iter().find(|row| row["space"] == "device");
        assert_eq!(
            peak.and_then(|row| row["peak_bytes"].as_u64()),
            Some(figures.processes[0].peak_device_bytes)
        );
        assert!(sum(&memory, "series", "most_bytes") > 0);

        let copies = view("copies");
        assert_eq!(sum(&copies, "directions", "bytes"), figures.transfers.bytes);
        assert_eq!(sum(&copies, "sizes", "count"), figures.transfers.count);
        assert_eq!(sum(&copies, "calls", "bytes"), figures.transfers.bytes);

        let (api, threads) = (view("api"), view("threads"));
        let calls = figures.cuda_calls + figures.other_calls;
        assert_eq!(sum(&api, "functions", "calls"), calls);
        assert_eq!(sum(&threads, "threads", "calls"), calls);
        assert_eq!(sum(&api, "functions", "self_ns"), sum(&threads, "threads", "cuda_ns"));
        assert_eq!(sum(&threads, "threads", "sync_ns"), figures.sync.total_ns);
        assert_eq!(sum(&threads, "threads", "failed"), figures.failures.calls);
        assert_eq!(sum(&threads, "threads", "launches"), figures.kernel_launches + figures.graph_launches);

        let gaps = view("gaps");
        let (parts, whole) = (sum(&gaps, "causes", "total_ns"), number(&gaps, "gap_ns"));
        assert_eq!(parts, whole, "the causes are all of the time");
        assert_eq!(sum(&gaps, "lengths", "total_ns"), whole);

        if let Some(kernel) = &figures.kernel_space {
            let ioctl = view("ioctl");
            assert_eq!(sum(&ioctl, "requests", "calls"), kernel.ioctls);
            assert_eq!(sum(&ioctl, "callers", "ioctls"), kernel.ioctls);
            assert_eq!(sum(&ioctl, "callers", "ioctl_ns"), kernel.ioctl_ns);
        }
    }
}

const HEADER: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0","start":"","host":"","kernel":"","user":"","hooks":{}}"#;

/// Lines of calls: thread, name, begin and end in us. The calls must be in the order of their ends.
fn trace(calls: &[(u32, &str, u64, u64)]) -> String {
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (index, (_, _, begin, end)) in calls.iter().enumerate() {
        edges.extend([(*begin, true, index), (*end, false, index)]);
    }
    edges.sort();
    let (mut text, mut ids) = (format!("{HEADER}\n"), BTreeMap::new());
    for (id, (us, begins, index)) in edges.into_iter().enumerate() {
        let (tid, name, begin, end) = calls[index];
        let (id, ts) = (id + 1, format!("0.{us:06}000"));
        let head = format!(r#"{{"event_id":{id},"ts":{ts},"type":"userspace","name":"{name}""#);
        if begins {
            let inside = |other: &&(u32, &str, u64, u64)| other.0 == tid && other.2 < begin && other.3 > end;
            let depth = calls.iter().filter(inside).count();
            ids.insert(index, id);
            text += &format!(r#"{head},"phase":"B","pid":1,"tid":{tid},"depth":{depth},"args":{{}}}}"#);
        } else {
            let (begin_id, us) = (ids[&index], end - begin);
            text += &format!(
                r#"{head},"phase":"E","pid":1,"tid":{tid},"begin":{begin_id},"duration_us":{us}.000,"retval":0}}"#
            );
        }
        text.push('\n');
    }
    text
}

#[test]
fn a_gap_is_the_time_without_a_launch_in_any_thread() {
    let calls = [
        (1, "cudaLaunchKernel", 10, 20),
        (2, "cuLaunchKernel", 15, 30), // overlaps: no gap
        (1, "cudaMalloc", 35, 75),
        (1, "cudaLaunchKernel", 80, 90), // after 50 us: 40 in cudaMalloc, 10 in its own code
        (2, "cudaDeviceSynchronize", 32, 95), // of another thread: not why 1 was late
        (2, "cudaLaunchKernel", 100, 110), // after 10 us: 5 in the synchronisation
    ];
    let file = Written::new("gaps", &trace(&calls));
    let json = json_of("gaps", file.path(), &ReportConfig::default());
    let gap = |at: usize, key: &str| json["longest"][at][key].clone();
    assert_eq!((json["gaps"].as_u64(), json["gap_ns"].as_u64()), (Some(2), Some(60_000)));
    assert_eq!((gap(0, "gap_ns"), gap(0, "tid")), (50_000.into(), 1.into()));
    assert_eq!(gap(0, "what"), "cudaMalloc 80.0 %; own code 20.0 %");
    assert_eq!((gap(1, "gap_ns"), gap(1, "tid")), (10_000.into(), 2.into()));
    assert_eq!(gap(1, "what"), "own code 50.0 %; cudaDeviceSynchronize 50.0 %");
}

#[test]
fn time_in_the_driver_and_off_the_cpu_is_kept_apart_in_a_gap() {
    let text = [
        HEADER.to_owned(),
        r#"{"event_id":1,"ts":0.000010000,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":1,"tid":1,"depth":0,"args":{}}"#.into(),
        r#"{"event_id":2,"ts":0.000020000,"type":"userspace","name":"cuLaunchKernel","phase":"E","pid":1,"tid":1,"begin":1,"duration_us":10.000,"retval":0}"#.into(),
        r#"{"event_id":3,"ts":0.000030000,"type":"userspace","name":"cuMemAlloc_v2","phase":"B","pid":1,"tid":1,"depth":0,"args":{}}"#.into(),
        r#"{"event_id":4,"ts":0.000040000,"type":"kernel","name":"nvidia_ioctl","phase":"B","pid":1,"tid":1,"depth":1,"parent":3,"device":"nvidiactl","cmd":"0x1","request":"NV_ESC_RM_ALLOC"}"#.into(),
        r#"{"event_id":5,"ts":0.000070000,"type":"scheduler","name":"off_cpu","pid":1,"tid":1,"depth":2,"parent":4,"cpu":0,"duration_us":20.000,"args":{"state":"sleeping"}}"#.into(),
        r#"{"event_id":6,"ts":0.000080000,"type":"kernel","name":"nvidia_ioctl","phase":"E","pid":1,"tid":1,"begin":4,"duration_us":40.000,"retval":0}"#.into(),
        r#"{"event_id":7,"ts":0.000090000,"type":"userspace","name":"cuMemAlloc_v2","phase":"E","pid":1,"tid":1,"begin":3,"duration_us":60.000,"retval":0}"#.into(),
        r#"{"event_id":8,"ts":0.000120000,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":1,"tid":1,"depth":0,"args":{}}"#.into(),
    ];
    let file = Written::new("driver", &(text.join("\n") + "\n"));
    let json = json_of("gaps", file.path(), &ReportConfig::default());
    let causes: BTreeMap<&str, u64> = json["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["what"].as_str().unwrap(), row["total_ns"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("cuMemAlloc_v2", 20_000),
        ("cuMemAlloc_v2, in the driver", 20_000),
        ("cuMemAlloc_v2, off the CPU", 20_000),
        ("own code", 40_000),
    ];
    assert_eq!(causes, BTreeMap::from(expected));
    let notes = json["notes"].as_array().unwrap();
    assert!(notes[0].as_str().unwrap().contains("cut"), "{notes:?}");
}

#[test]
fn older_than_leaves_the_young_out() {
    let file = golden::path(TRACES[1].1);
    let config = ReportConfig { older_than: Some(Duration::from_millis(300)), ..ReportConfig::default() };
    let json = json_of("leaks", &file, &config);
    assert_eq!((json["held_count"].as_u64(), json["younger"].as_u64()), (Some(5), Some(1)));
    let config = ReportConfig { older_than: Some(Duration::from_secs(300)), ..ReportConfig::default() };
    assert!(
        text_of("leaks", &file, &config)
            .starts_with("Nothing was left allocated for 300.000 s and longer.\n")
    );
}

#[test]
fn waste_is_reported_by_cost() {
    let mut calls = Vec::new();
    for i in 0..30 {
        calls.push((1, "cudaMemsetAsync", 1000 * i + 10, 1000 * i + 20));
        calls.push((1, "cudaStreamSynchronize", 1000 * i + 30, 1000 * i + 130));
        calls.push((1, "cudaLaunchKernel", 1000 * i + 150, 1000 * i + 160));
        calls.push((1, "cudaDeviceSynchronize", 1000 * i + 170, 1000 * i + 670));
        calls.push((1, "cudaLaunchKernel", 1000 * i + 680, 1000 * i + 690));
        calls.push((1, "cudaLaunchKernel", 1000 * i + 700, 1000 * i + 710));
        calls.push((1, "cudaDeviceSynchronize", 1000 * i + 720, 1000 * i + 980));
    }
    // The host does something else first.
    for i in 0..30 {
        calls.push((1, "cudaLaunchKernel", 40_000 + 1000 * i, 40_010 + 1000 * i));
        calls.push((1, "cudaStreamSynchronize", 40_020 + 1000 * i, 40_420 + 1000 * i));
    }
    let file = Written::new("waste", &trace(&calls));
    golden::check("waste_made", &text_of("waste", file.path(), &ReportConfig::default()));
}

#[test]
fn a_recording_without_events_says_so() {
    let end = r#"{"event_id":1,"ts":1.000000000,"type":"end","name":"end","events":1,"lost":3,"in_flight":[],"complete":false,"incomplete_because":["the disk was full"],"summary":{"cuda_calls":7,"functions":[{"name":"cuInit","calls":7,"total_ns":70,"avg_ns":10,"med_ns":10,"min_ns":10,"max_ns":10,"stddev_ns":0}]}}"#;
    let file = Written::new("figures", &format!("{HEADER}\n{end}\n"));
    let json = json_of("api", file.path(), &ReportConfig::default());
    assert_eq!(json["functions"][0]["calls"], 7);
    let notes: Vec<&str> =
        json["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    assert!(notes.iter().any(|note| note.contains("--summary-only")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("3 events were lost")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("the disk was full")), "{notes:?}");
}

/// A recording with --summary-only answers from its figures, and never claims that nothing happened.
#[test]
fn figures_answer_where_there_are_no_events() {
    let mut figures = summary_of(&golden::path(TRACES[1].1), &Only::default()).unwrap();
    figures.unknown.insert("cuda_calls".into(), "the recording had --skip".into());
    let end = serde_json::json!({
        "event_id": 1, "ts": 1.0, "type": "end", "name": "end", "events": 1, "lost": 0, "in_flight": [],
        "complete": true, "summary": figures.to_json(),
    });
    let file = Written::new("only-figures", &format!("{HEADER}\n{end}\n"));
    for kind in VIEWS {
        let (report, context) = run(kind, file.path(), &ReportConfig::default()).unwrap();
        let said = context.sentences(false).join("\n");
        assert!(
            said.contains("the trace has no events, only figures (--summary-only)"),
            "{}: {said}",
            kind.name
        );
        assert_eq!(context.unanswered, matches!(kind.name, "gaps" | "idle" | "longest"), "{}", kind.name);
        let text = report.text(WIDTH);
        assert!(!text.contains("in this trace."), "{}: {text}", kind.name);
        assert_eq!(text.starts_with("Not known: the trace has no events"), context.unanswered, "{text}");
    }
    let config = ReportConfig::default();
    let rows = |name: &str, key: &str| json_of(name, file.path(), &config)[key].as_array().unwrap().clone();
    let launches: u64 = rows("kernels", "kernels").iter().map(|row| row["launches"].as_u64().unwrap()).sum();
    assert_eq!(launches, figures.kernel_launches);
    let sync = json_of("sync", file.path(), &config);
    assert_eq!(
        (&sync["waits"], &sync["waited_ns"]),
        (&figures.sync.calls.into(), &figures.sync.total_ns.into())
    );
    let cost = figures.cost.as_ref().unwrap();
    assert_eq!(rows("threads", "threads").len(), cost.threads.len());
    assert_eq!(rows("threads", "threads")[0]["calls"], cost.threads[0].calls);
    assert_eq!(rows("memory", "spaces").len(), figures.memory.by_space.len());
    assert_eq!(rows("latency", "functions").len(), figures.functions.len());
    let status = |view: &str| {
        let config = ReportConfig {
            view: Some(view.into()),
            files: vec![file.path().into()],
            format: Format::Json,
            ..ReportConfig::default()
        };
        super::report(&config).unwrap()
    };
    assert_eq!((status("gaps"), status("kernels")), (1, 0));
}

/// Memory that is live at the end of a part is not held at exit, and its age is the same in all views. A part without a
/// call must not be reported as a trace without a library.
#[test]
fn a_part_ends_where_it_ends() {
    let file = golden::path(TRACES[0].1);
    let only = Only { from_ns: Some(2_050_000_000), to_ns: Some(2_092_000_000), ..Only::default() };
    let figures = summary_of(&file, &only).unwrap();
    let text = crate::text::print(&figures, UNBOUNDED);
    assert!(text.contains("Memory held at the end of this part: "), "{text}");
    let leaks = json_of("leaks", &file, &ReportConfig { only: only.clone(), ..ReportConfig::default() });
    let largest = &figures.memory.held.largest[0];
    let same = leaks["allocations"].as_array().unwrap().iter().find(|row| row["begin"] == largest.begin);
    assert_eq!(same.unwrap()["age_ns"], largest.age_ns);
    // Earlier memory is not in it.
    for known in ["memory.held", "memory.peak"] {
        assert!(figures.unknown[known].contains("outside this part"), "{:?}", figures.unknown);
    }
    assert!(!figures.unknown.contains_key("memory.leaks"), "{:?}", figures.unknown);
    let tids = vec![largest.pid];
    let of_thread = summary_of(&file, &Only { tids, ..Only::default() }).unwrap();
    assert!(of_thread.unknown["memory.leaks"].contains("other threads"), "{:?}", of_thread.unknown);
    let pids = summary_of(&file, &Only::default()).unwrap().processes.iter().map(|one| one.pid).collect();
    let whole = summary_of(&file, &Only { pids, ..Only::default() }).unwrap();
    assert!(
        !whole.unknown.contains_key("memory.held") && whole.memory.held.count > 0 && whole.stops.is_none()
    );
    let none = Only { pids: vec![1], ..Only::default() };
    let text = crate::text::print(&summary_of(&file, &none).unwrap(), UNBOUNDED);
    assert!(text.contains("No CUDA call in this part of the trace."), "{text}");
}

#[test]
fn usage_errors_say_what_there_is() {
    let config = ReportConfig { view: Some("nope".into()), ..ReportConfig::default() };
    let error = report(&config).unwrap_err();
    assert!(error.is::<Usage>() && error.to_string().contains("api, kernels, memory"), "{error}");
    let older_than = Some(Duration::from_secs(1));
    let config = ReportConfig { view: Some("api".into()), older_than, ..ReportConfig::default() };
    assert!(report(&config).unwrap_err().is::<Usage>());
}

/// A generator of reproducible numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Lines are missing, duplicated, reordered or broken, or two traces are in one: no view may panic.
#[test]
fn no_trace_makes_a_view_panic() {
    let mut random = Random(5);
    for round in 0..12 {
        let mut lines: Vec<String> = Vec::new();
        for (_, file) in TRACES {
            let bytes = std::fs::read(golden::path(file)).unwrap();
            let bytes = if file.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
            let text = String::from_utf8(bytes).unwrap();
            lines.extend(text.lines().take(400 + 100 * round).map(str::to_owned));
        }
        let gpu = std::fs::read_to_string(golden::path(GPU_TRACE)).unwrap();
        lines.extend(gpu.lines().skip(1).map(str::to_owned));
        for _ in 0..200 {
            let (a, b) = (random.below(lines.len()), random.below(lines.len()));
            match random.below(5) {
                0 => _ = lines.remove(a),
                1 => lines.swap(a, b),
                2 => lines.insert(a, lines[b].clone()),
                3 => {
                    let cut: String = lines[a].chars().take(random.below(80)).collect();
                    lines[a] = cut;
                }
                _ => lines[a] = lines[a].replace("\"ts\":", "\"ts\":18446744073"),
            }
        }
        let file = Written::new(&format!("bad{round}"), &(lines.join("\n") + "\n"));
        for kind in VIEWS {
            // The first line may no longer be a valid header.
            let Ok((report, context)) = run(kind, file.path(), &ReportConfig::default()) else { continue };
            assert!(!report.text(WIDTH).is_empty() && !context.sentences(false).is_empty());
        }
    }
}

#[test]
fn several_files_are_kept_apart() {
    let of = |format: Format| -> String {
        let mut out = Vec::new();
        for (index, (_, file)) in TRACES.iter().enumerate() {
            let path = golden::path(file);
            let config = ReportConfig { format, ..ReportConfig::default() };
            let (report, context) = run(kind("threads"), &path, &config).unwrap();
            let layout =
                Layout { kind: kind("threads"), file: &path, several: true, first: index == 0, width: WIDTH };
            write(&mut out, &layout, report, &context, format).unwrap();
        }
        String::from_utf8(out).unwrap()
    };
    let text = of(Format::Text);
    assert_eq!(
        text.lines().filter(|line| line.starts_with('/') && line.ends_with(':')).count(),
        TRACES.len()
    );
    let json = of(Format::Json);
    let files: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(files.len(), TRACES.len());
    assert!(files[1]["file"].as_str().unwrap().ends_with("torch_h200.jsonl"));
    let rows: usize = files.iter().map(|file| file["threads"].as_array().unwrap().len()).sum();
    let csv = of(Format::Csv);
    assert!(csv.starts_with("file,cuda_ns,") && csv.matches("cuda_ns").count() == 1);
    assert_eq!(csv.lines().count(), 1 + rows);
}

/// Many short-lived threads, more than the limit on distinct ones: no figure is lost.
#[test]
fn threads_without_end_are_summed_as_others() {
    const THREADS: u64 = 65_536 + 500;
    let mut lines = String::new();
    for i in 0..THREADS {
        let (id, tid) = (2 * i + 1, i + 10);
        lines.push_str(&format!(
            "{{\"event_id\":{id},\"ts\":{}.{:09},\"type\":\"userspace\",\"name\":\"cudaDeviceSynchronize\",\"phase\":\"B\",\"pid\":7,\"tid\":{tid},\"depth\":0,\"args\":{{}}}}\n\
             {{\"event_id\":{},\"ts\":{}.{:09},\"type\":\"userspace\",\"name\":\"cudaDeviceSynchronize\",\"phase\":\"E\",\"pid\":7,\"tid\":{tid},\"begin\":{id},\"duration_us\":1.000,\"retval\":0}}\n",
            i / 100_000, i % 100_000 * 10_000, id + 1, i / 100_000, i % 100_000 * 10_000 + 1000,
        ));
    }
    let file = Written::new("threads", &lines);
    let sum = |json: &Value, table: &str, key: &str| -> u64 {
        json[table].as_array().unwrap().iter().filter_map(|row| row[key].as_u64()).sum()
    };
    let sync = json_of("sync", file.path(), &ReportConfig::default());
    assert_eq!(sync["seen"], serde_json::json!({"waited_ns": THREADS * 1000, "waits": THREADS}));
    assert_eq!(sum(&sync, "waiters", "waits"), THREADS);
    assert_eq!(sum(&sync, "waiters", "total_ns"), THREADS * 1000);
    let threads = json_of("threads", file.path(), &ReportConfig::default());
    assert_eq!(sum(&threads, "threads", "calls"), THREADS);
    assert_eq!(sum(&threads, "threads", "cuda_ns"), THREADS * 1000);
    assert_eq!(sum(&threads, "threads", "sync_ns"), THREADS * 1000);
    let text = text_of("threads", file.path(), &ReportConfig::default());
    assert!(
        text.contains("More than 65536 threads of") && text.contains("500 calls of other threads"),
        "{text}"
    );
    let text = text_of("sync", file.path(), &ReportConfig::default());
    assert!(text.contains("at least 65536 threads") && text.contains("`others` has 500 waits"), "{text}");
}
