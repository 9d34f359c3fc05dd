//! Made-up jobs, read back: what was planted must be found.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::made::{Job, Plan, Random};
use super::{Report, align, files_of, gather, text};
use crate::measure;
use crate::only::Only;

mod bounds;
mod by_line;
mod standing;

/// A folder that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("gpurec-job-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The job's traces, not compressed, and the truth.
    fn of(plan: Plan) -> (Folder, Value) {
        let folder = Folder::new();
        let open = |name: &str| File::create(folder.0.join(name.trim_end_matches(".zst")));
        let (_, truth) = Job::new(plan, open).unwrap().run().unwrap();
        (folder, truth)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn report(&self) -> Report {
        gather(&files_of(std::slice::from_ref(&self.0)).unwrap(), &Only::default()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn faulty() -> Plan {
    Plan {
        ranks: 32,
        per_host: 8,
        steps: 100,
        seed: 7,
        skew_ns: 50_000_000,
        drift_ppm: 100.0,
        straggler: Some(5),
        mismatch: true,
        hang: true,
        ..Plan::default()
    }
}

/// Every planted offset lies within its error bar, at the start and at the end.
fn clocks_hold(report: &Report, truth: &Value, length_ns: f64) {
    let of: BTreeMap<&str, (f64, f64)> = truth["clocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (
                it["host"].as_str().unwrap(),
                (it["offset_ns"].as_f64().unwrap(), it["drift_ppm"].as_f64().unwrap()),
            )
        })
        .collect();
    let reference = of[report.clocks[0].host.as_str()];
    for clock in &report.clocks {
        let (offset, drift) = of[clock.host.as_str()];
        let error = clock.error_ns.unwrap();
        for after_ns in [0.0, length_ns] {
            // The reference shows `at_ns` at this true time.
            let at = (clock.at_ns - truth["start_realtime_ns"].as_i64().unwrap()) as f64 + after_ns;
            let planted = offset - reference.0 + (drift - reference.1) * 1e-6 * at;
            let found = clock.offset_ns + clock.drift_ppm * 1e-6 * after_ns;
            assert!((planted - found).abs() <= error + 5.0, "{clock:?}: planted {planted}, after {after_ns}");
        }
    }
}

/// `part`: how far the cost may be from the truth, for the errors of the clocks.
fn named_correctly(report: &Report, truth: &Value, part: f64) {
    let straggler = &report.stragglers[0];
    assert_eq!(straggler.rank.map(u64::from), truth["straggler"].as_u64(), "{:?}", report.stragglers);
    let cause = &straggler.causes[0];
    assert_eq!((cause.kind, cause.name.as_deref()), ("call", Some("cudaMalloc")), "{straggler:?}");
    assert_eq!(cause.request.as_deref(), Some("NV_ESC_RM_ALLOC"));
    assert_eq!(cause.site.as_deref(), Some("train.py:44 grow_cache"));
    let planted = truth["stragglers"].as_array().unwrap();
    let planted = planted.iter().find(|it| it["rank"] == truth["straggler"]).unwrap();
    let cost = planted["cost_ns"].as_f64().unwrap();
    assert!((straggler.cost_ns as f64 - cost).abs() < cost * part, "{straggler:?} {planted}");

    let json = report.json();
    let (mismatch, planted) = (&json["mismatches"][0], &truth["mismatch"]);
    for key in ["comm", "seq", "field"] {
        assert_eq!(mismatch[key], planted[key]);
    }
    let values = mismatch["values"].as_object().unwrap();
    for (rank, value) in values {
        let odd = rank.parse::<u64>().ok() == planted["rank"].as_u64();
        assert_eq!(*value, planted[if odd { "value" } else { "others" }]);
    }
    assert_eq!(report.mismatches.len(), 1);

    let (hang, planted) = (&json["hangs"][0], &truth["hang"]);
    for key in ["comm", "seq", "missing"] {
        assert_eq!(hang[key], planted[key]);
    }
    let first = &hang["in_flight"][0];
    assert_eq!(first["rank"], planted["missing"][0]);
    assert_eq!(
        (&first["threads"][0]["calls"][0], &first["threads"][0]["request"]),
        (&planted["call"], &planted["request"])
    );
    assert_eq!(hang["in_flight"][1]["threads"][0]["calls"][0], "cudaStreamSynchronize");
    assert_eq!(report.hangs.len(), 1, "{:?}", report.hangs);
}

#[test]
fn a_job_of_32_ranks_with_a_straggler_a_mismatch_and_a_hang() {
    let (folder, truth) = Folder::of(faulty());
    let report = folder.report();
    named_correctly(&report, &truth, 0.02);
    clocks_hold(&report, &truth, 5e8);
    assert_eq!(report.job.as_deref(), truth["job"].as_str());
    assert!(report.clocks.iter().all(|clock| clock.error_ns.unwrap() < 200_000.0), "{:?}", report.clocks);
    assert!(
        report.missing.is_empty() && report.ranks.len() == 32 && report.ranks.iter().all(|it| it.complete)
    );
    assert!(report.differences.iter().all(|it| it.rank == Some(5)), "{:?}", report.differences);
    assert!(report.differences.iter().any(|it| it.function == "cudaMalloc" && it.others == 0));
    crate::golden::check(
        "ranks",
        &text::print(&report, crate::golden::WIDTH).replace(folder.0.to_str().unwrap(), "job"),
    );
}

/// Without GPU times the enqueue is the arrival, and the first wait for the stream the end.
#[test]
fn a_job_without_gpu_times() {
    let (folder, truth) = Folder::of(Plan { gpu: false, ..faulty() });
    let report = folder.report();
    named_correctly(&report, &truth, 0.1);
    clocks_hold(&report, &truth, 5e8);
    assert!(report.stragglers.iter().all(|it| it.arrival == "enqueue"));
}

/// PyTorch puts each collective into a group, which launches the kernel when it ends.
#[test]
fn the_kernel_of_a_group_is_that_of_its_collectives() {
    let (folder, truth) = Folder::of(Plan { groups: true, ..faulty() });
    let report = folder.report();
    named_correctly(&report, &truth, 0.02);
    clocks_hold(&report, &truth, 5e8);
    assert!(report.stragglers.iter().all(|it| it.arrival == "gpu"));
}

/// One trace for each node has the same answers as one for each rank.
#[test]
fn a_trace_of_a_node_has_several_ranks() {
    let (by_node, truth) = Folder::of(Plan { by_node: true, ..faulty() });
    let report = by_node.report();
    named_correctly(&report, &truth, 0.02);
    clocks_hold(&report, &truth, 5e8);
    assert!(report.missing.is_empty() && report.ranks.len() == 32);
    assert!(report.ranks.iter().enumerate().all(|(at, it)| it.rank == Some(at as u32)));
}

#[test]
fn in_100_random_jobs_every_clock_lies_within_its_error() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let per_host = 1 + random.below(3) as u32;
        let plan = Plan {
            seed,
            ranks: per_host * (2 + random.below(4) as u32),
            per_host,
            steps: 20 + random.below(60) as u32,
            launches: 2,
            skew_ns: 50_000_000,
            drift_ppm: 100.0,
            straggler: (seed % 3 == 0).then_some(1),
            gpu: seed % 4 != 0,
            by_node: seed % 5 == 0,
            ..Plan::default()
        };
        let length_ns = f64::from(plan.steps) * plan.step_ns as f64 * 0.9;
        let (folder, truth) = Folder::of(plan);
        clocks_hold(&folder.report(), &truth, length_ns);
    }
}

/// The traces are read one after the other in each round, and transfers have numbers of their own.
#[test]
fn every_collective_and_transfer_of_a_long_job_is_matched() {
    let plan = Plan { steps: 1500, launches: 1, step_ns: 400_000, ..Plan::default() };
    let (folder, _) = Folder::of(plan);
    let report = folder.report();
    let count = |op: &str| report.collectives.iter().filter(|it| it.op == op).map(|it| it.count).sum::<u64>();
    assert_eq!((count("Send") + count("Recv"), report.partial), (1500 / 4 * 8, 0));
    // In the communicators of all, of each of two hosts, and of the same places on both.
    assert_eq!((count("Broadcast"), count("AllReduce")), (1500 / 4, 1500 / 4 + 1500 * 6));
}

#[test]
fn a_slow_gpu_is_found_by_its_kernels() {
    let (folder, _) = Folder::of(Plan { slow_gpu: Some(6), ..Plan::default() });
    let report = folder.report();
    assert_eq!(report.slow_kernels.len(), 1, "{:?}", report.slow_kernels);
    assert_eq!(report.slow_kernels[0].rank, Some(6));
    assert_eq!((report.stragglers[0].rank, report.stragglers[0].causes[0].kind), (Some(6), "gpu_busy"));
    assert!(report.hangs.is_empty() && report.mismatches.is_empty() && report.differences.is_empty());
}

#[test]
fn a_wrong_ntp_is_contradicted_and_a_right_one_is_not() {
    for (error_ns, contradicts) in [(1_000_000, true), (200_000_000, false)] {
        let plan = Plan { skew_ns: 50_000_000, ntp_error_ns: Some(error_ns), ..Plan::default() };
        let (folder, _) = Folder::of(plan);
        let report = folder.report();
        let said =
            report.clocks.iter().flat_map(|clock| &clock.said).any(|said| said.contains("NTP is wrong"));
        assert_eq!(said, contradicts, "{:?}", report.clocks);
    }
}

fn cut(path: &Path, part: f64) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..(bytes.len() as f64 * part) as usize]).unwrap();
}

#[test]
fn missing_cut_damaged_and_doubled_traces_are_said_and_the_rest_is_analysed() {
    let plan = Plan { ranks: 8, per_host: 4, hang: false, mismatch: false, straggler: Some(5), ..faulty() };
    let (folder, truth) = Folder::of(plan);
    fs::remove_file(folder.file("node01-7.jsonl")).unwrap();
    cut(&folder.file("node00-2.jsonl"), 0.5);
    fs::copy(folder.file("node00-0.jsonl"), folder.file("node00-0-copy.jsonl")).unwrap();
    fs::write(folder.file("broken.jsonl"), "no trace\n").unwrap();
    fs::write(folder.file("empty.jsonl"), "").unwrap();
    let text = fs::read_to_string(folder.file("node00-1.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let newer = lines[0].replace("\"schema\":1", "\"schema\":9,\"future\":{}");
    let damaged =
        [&[newer.as_str()], &lines[1..900], &["{\"event_id\":7,\"ts\":garbage"], &lines[900..]].concat();
    fs::write(folder.file("node00-1.jsonl"), damaged.join("\n")).unwrap();

    let report = folder.report();
    assert_eq!(report.missing.first(), (vec![7], 0));
    let incomplete: Vec<Option<u32>> =
        report.ranks.iter().filter(|it| !it.complete).map(|it| it.rank).collect();
    assert_eq!(incomplete, [Some(1), Some(2)]);
    let notes = report.notes.join("\n");
    for said in ["rank 0 is there twice", "broken.jsonl", "empty.jsonl"] {
        assert!(notes.contains(said), "{notes}");
    }
    assert_eq!(report.unread, 2);
    let shown = text::print(&report, 200);
    assert!(shown.contains("7 ranks on 2 hosts"), "{shown}");
    assert_eq!(report.stragglers[0].rank.map(u64::from), truth["straggler"].as_u64());
    assert!(report.hangs.is_empty(), "a trace that ends early says nothing of a hang: {:?}", report.hangs);
}

#[test]
fn traces_of_two_jobs_and_of_no_rank_are_said() {
    let (folder, _) = Folder::of(Plan { ranks: 2, steps: 3, seed: 1, ..Plan::default() });
    let (other, _) = Folder::of(Plan { ranks: 2, steps: 3, seed: 2, ..Plan::default() });
    assert!(folder.report().notes.iter().all(|note| !note.contains("jobs") && !note.contains("no process")));
    for (number, file) in files_of(std::slice::from_ref(&other.0)).unwrap().iter().enumerate() {
        fs::copy(file, folder.file(&format!("other-{number}.jsonl"))).unwrap();
    }
    let first = fs::read_to_string(other.file("node00-0.jsonl")).unwrap();
    let header = first.lines().next().unwrap();
    fs::write(folder.file("without.jsonl"), format!("{header}\n")).unwrap();
    let notes = folder.report().notes.join("\n");
    for said in ["the traces are of 2 jobs (job-1, job-2)", "1 trace has no process with a rank"] {
        assert!(notes.contains(said), "{notes}");
    }
}

#[test]
fn assertions_about_the_ranks_of_a_job() {
    let (folder, _) = Folder::of(Plan { straggler: Some(5), ..Plan::default() });
    let report = folder.report();
    let holds = |text: &str| {
        let (term, op, limit) = measure::budget(text).unwrap().unwrap();
        assert!(term.is_of_job());
        measure::decide(&measure::evaluate_job(&term, &report).unwrap(), op, &limit)
    };
    for text in [
        "ranks.skew.p99<5ms",
        "ranks.skew.p50<100us",
        "ranks.count==8",
        "ranks.hangs==0",
        "ranks.clock.error<1ms",
    ] {
        assert!(holds(text), "{text}");
    }
    for text in
        ["ranks.skew.p99.9<1ms", "ranks.cost<1ms", "ranks.missing>0", "ranks.wait/ranks.collectives<1us"]
    {
        assert!(!holds(text), "{text}");
    }
    assert!(measure::budget("ranks.skw.p99<5ms").unwrap_err().reason.contains("skew.p99"));
    assert!(measure::budget("ranks.skew.p101<5ms").is_err() && measure::budget("ranks.hangs<5ms").is_err());
    let none = Report::default();
    for text in ["ranks.hangs==0", "ranks.missing==0", "ranks.wait<1ms", "ranks.clock.error<1ms"] {
        let (term, ..) = measure::budget(text).unwrap().unwrap();
        assert!(measure::evaluate_job(&term, &none).is_err(), "{text} of no rank");
    }
    let late = measure::budget("ranks.hangs==0 after 10s").unwrap().unwrap();
    assert!(measure::evaluate_job(&late.0, &report).is_err());
}

#[test]
fn nothing_to_read_is_an_error() {
    let folder = Folder::new();
    assert!(files_of(std::slice::from_ref(&folder.0)).unwrap_err().to_string().contains("has no trace"));
    let missing = gather(&[folder.file("none.jsonl")], &Only::default());
    assert!(missing.err().unwrap().to_string().contains("there is no such file"));
    assert_eq!(
        gather(&[crate::golden::path("traces/torch_h200.jsonl")], &Only::default()).unwrap().ranks.len(),
        0
    );
}

/// Documents of `summary --json` tell what a rank does and the others do not, and no collective.
#[test]
fn a_job_of_documents() {
    let (folder, _) = Folder::of(Plan { straggler: Some(5), slow_gpu: Some(6), ..Plan::default() });
    let documents = Folder::new();
    for (at, trace) in files_of(std::slice::from_ref(&folder.0)).unwrap().iter().enumerate() {
        let figures = crate::summary_of(trace, &Only::default()).unwrap();
        fs::write(documents.file(&format!("{at}.json")), figures.with_nulls().to_string()).unwrap();
    }
    fs::write(documents.file("other.json"), "{}").unwrap();
    let (whole, report) = (folder.report(), documents.report());
    assert!(
        report.ranks.len() == 8 && report.ranks.iter().all(|it| it.complete) && report.missing.is_empty()
    );
    assert!(report.notes.iter().any(|note| note.contains("other.json")), "{:?}", report.notes);
    assert_eq!(report.slow_kernels, whole.slow_kernels);
    assert_eq!(report.differences, whole.differences);
    assert!(!report.differences.is_empty());
    let json = report.json();
    for figure in ["stragglers", "hangs", "mismatches", "clocks", "skew", "collectives"] {
        assert!(json[figure].is_null() && json["unknown"][figure].is_string(), "{figure}");
    }
    let of = |name: &str| super::JOB_FIGURES.iter().find(|it| it.name == name).unwrap().value(&report);
    assert_eq!(
        (of("count"), of("incomplete"), of("hangs"), of("clock.error")),
        (Some(8), Some(0), None, None)
    );
    assert!(text::print(&report, 100).contains("not known: clocks, collectives, hangs"));
    fs::remove_file(documents.file("3.json")).unwrap();
    assert_eq!(documents.report().missing.first(), (vec![3], 0));
    let mixed = [documents.file("0.json"), folder.file("node00-0.jsonl")];
    assert!(gather(&mixed, &Only::default()).is_err_and(|error| error.is::<crate::Usage>()));
}

/// Whatever a document has in great number is bounded.
#[test]
fn large_documents() {
    let folder = Folder::new();
    let list = "[],".repeat(400_000);
    let head = r#"{"cuda_calls":1,"functions":[]"#;
    fs::write(folder.file("0.json"), format!("{head},\"x\":[{list}1]}}")).unwrap();
    let process =
        |rank: u32| format!(r#"{{"pid":1,"rank":{rank},"command":[],"calls":1,"peak_device_bytes":0}}"#);
    for (name, first) in [("1.json", 0), ("2.json", 40_000), ("3.json", 0)] {
        let all: Vec<String> = (first..first + 40_000).map(process).collect();
        fs::write(folder.file(name), format!(r#"{head},"processes":[{}]}}"#, all.join(","))).unwrap();
    }
    fs::write(folder.file("4.json"), format!("{head}}}\n").repeat(3000)).unwrap();
    let report = folder.report();
    assert!(
        report.notes.first().is_some_and(|note| note.contains("too large")),
        "{:?}",
        report.notes.first()
    );
    assert_eq!((report.ranks.len(), report.missing.is_empty()), (65_536, true));
    assert!(report.notes.len() < 1100 && report.notes.last().is_some_and(|note| note.contains("more notes")));
}

/// What happened at one time on all hosts is at one time in an export, although their clocks are 50 ms apart.
#[test]
fn an_export_has_one_time_line() {
    let (folder, truth) = Folder::of(Plan { skew_ns: 50_000_000, ..faulty() });
    let files = files_of(std::slice::from_ref(&folder.0)).unwrap();
    let aligned = align(&files, true).unwrap();
    let clocks = folder.report().clocks;
    let start_ns = truth["start_realtime_ns"].as_i64().unwrap();
    let of = |host: &str| {
        let all = truth["clocks"].as_array().unwrap();
        let clock = all.iter().find(|it| it["host"] == host).unwrap();
        (clock["offset_ns"].as_f64().unwrap(), clock["drift_ppm"].as_f64().unwrap() * 1e-6)
    };
    let reads = |host: &str, true_ns: f64| {
        let (offset_ns, drift) = of(host);
        start_ns + (offset_ns + true_ns * (1.0 + drift)) as i64
    };
    assert_eq!((aligned.traces.len(), aligned.notes.len()), (32, 3), "{:?}", aligned.notes);
    assert!(aligned.notes[0].contains("which collectives show to within"), "{:?}", aligned.notes);
    let reference = &clocks[0].host;
    for placed in aligned.traces.iter().map(|placed| placed.as_ref().unwrap()) {
        let clock = &clocks[placed.shift.domain];
        for true_ns in [1e8, 3e8] {
            let ts_ns = reads(&clock.host, true_ns) - placed.shift.time(0);
            let apart_ns = placed.time(ts_ns as u64) - reads(reference, true_ns);
            assert!(apart_ns.abs() as f64 <= clock.error_ns.unwrap() + 50.0, "{clock:?}: {apart_ns}");
        }
    }
    // Their headers alone place them where their own clocks do.
    let rough = align(&files, false).unwrap();
    let far = |of: &super::Aligned| {
        let starts = of.traces.iter().flatten().map(|placed| placed.time(0));
        starts.clone().max().unwrap() - starts.min().unwrap()
    };
    assert!(far(&rough) > far(&aligned) + 10_000_000, "{} {}", far(&rough), far(&aligned));
}
