use super::order::ChangeList;
use super::*;
use crate::golden;
use crate::measure::script::{Recorded, Script};

struct Done {
    text: String,
    status: u8,
    changes: ChangeList,
    json: Value,
}

fn compared(before: &Path, after: &Path, fail_over: &[&str]) -> Done {
    let given: Vec<String> = fail_over.iter().map(|text| text.to_string()).collect();
    let thresholds = thresholds::read(&given).unwrap();
    let mut asks = Asks::default();
    thresholds.iter().for_each(|threshold| asks.add(&threshold.term, None));
    let mut diff = Diff::new([before, after], &asks, &thresholds, &Only::default()).unwrap();
    let shown = [before, after].map(|file| Path::new("traces").join(file.file_name().unwrap()));
    diff.files = [&shown[0], &shown[1]];
    let text = text::print(&diff, None, golden::WIDTH);
    let json = diff.json(None);
    Done {
        text,
        status: diff.verdicts.iter().map(Verdict::status).max().unwrap_or(0),
        changes: diff.changes,
        json,
    }
}

fn of(before: &Recorded, after: &Recorded) -> Done {
    compared(before.path(), after.path(), &[])
}

impl Done {
    /// Names of the changes other than times, with their indentation.
    fn counts(&self) -> Vec<(&str, usize)> {
        let changes = self.changes.changes.iter().filter(|c| c.rank != Rank::Times);
        changes.map(|c| (c.row.name.as_str(), c.depth)).collect()
    }
}

/// Acceptance test 4. Times of the pair differ by tens of milliseconds by chance.
#[test]
fn a_needless_allocation_is_named_first() {
    let [before, after] =
        ["before", "after"].map(|n| golden::path(&format!("traces/needless_{n}.jsonl.zst")));
    let fail_over =
        ["cudaMalloc.calls=10%", "launches=0", "cudaMalloc.calls/launches=0.02", "cudaFree.p99=100000%"];
    let done = compared(&before, &after, &fail_over);
    let names: Vec<&str> = done.counts().iter().map(|(name, _)| *name).collect();
    assert_eq!(names.first(), Some(&"cudaMalloc"), "{}", done.text);
    assert_eq!(names.len(), 4, "{}", done.text);
    assert!(done.counts().iter().skip(1).all(|(_, depth)| *depth > 0), "{}", done.text);
    assert!(done.status == 1 && done.text.contains("FAIL   cudaMalloc.calls=10%"), "{}", done.text);
    assert!(done.text.contains("pass   launches=0"), "{}", done.text);
    assert_eq!(done.json["changes"][0]["name"], "cudaMalloc");
    golden::check("diff_needless", &done.text);
    // In the other direction it is gone, and still named first.
    let back = compared(&after, &before, &fail_over);
    assert_eq!((back.counts()[0].0, back.status), ("cudaMalloc", 0), "{}", back.text);
}

#[test]
fn a_trace_does_not_differ_from_itself() {
    for (_, file) in golden::TRACES {
        let file = golden::path(file);
        let done = compared(&file, &file, &["memory.leaked=0", "launches=0%", "complete=0"]);
        assert!(done.changes.changes.is_empty() && done.status == 0, "{}", done.text);
    }
}

#[test]
fn two_programs() {
    let [torch, demo] = ["torch_h200.jsonl", "demo.jsonl.zst"].map(|n| golden::path(&format!("traces/{n}")));
    golden::check("diff_torch_demo", &compared(&torch, &demo, &[]).text);
    let context = golden::path("traces/context_h200.jsonl.zst");
    golden::check("diff_torch_context", &compared(&torch, &context, &["ioctl.calls=0"]).text);
}

/// A loop of launches and copies, with noise in the times.
fn training(steps: u64, noise: u64, each: impl Fn(&mut Script, u64)) -> Recorded {
    let mut s = Script::new();
    s.calls("cuDeviceGet", 700, 20).calls("cuModuleGetFunction", 900, 30);
    s.memory("alloc", 0x1000, 4096, 3000 + noise);
    for step in 0..steps {
        let late = noise * (1 + step % 7);
        s.launch("matmul", 5000 + late).launch("gelu", 3000 + late).copy("H2D", 4096, 20_000 + late);
        s.calls("cudaStreamSynchronize", 100_000 + 30 * late, 1).calls("cudaEventRecord", 900, 1);
        each(&mut s, step);
    }
    s.finish(0)
}

fn plain(_: &mut Script, _: u64) {}

fn needless(s: &mut Script, step: u64) {
    s.memory("alloc", 0x2000 + step * 16, 64, 1500).memory("free", 0x2000 + step * 16, 64, 40_000);
}

#[test]
fn counts_come_before_times_however_large() {
    let done = of(&training(100, 0, plain), &training(100, 9000, needless));
    assert_eq!(
        done.counts(),
        [("cudaMalloc", 0), ("cudaFree", 1), ("cuMemFree_v2", 2), ("cuMemAlloc_v2", 1)],
        "{}",
        done.text
    );
    assert_eq!(done.changes.scale, 1.0);
    let first = done.changes.changes.iter().find(|c| c.rank == Rank::Times).unwrap();
    assert_eq!(first.row.name, "cudaStreamSynchronize", "{}", done.text);
}

#[test]
fn runs_of_different_length_are_compared_by_their_ratio() {
    for (before, after) in [(100, 250), (250, 100), (1000, 1010)] {
        let same = of(&training(before, 0, plain), &training(after, 300, plain));
        assert_eq!(same.counts(), [], "{before} {after}: {}", same.text);
        let done = of(&training(before, 0, plain), &training(after, 300, needless));
        assert_eq!(done.counts()[0].0, "cudaMalloc", "{before} {after}: {}", done.text);
        assert!((done.changes.scale - after as f64 / before as f64).abs() < 0.05, "{}", done.changes.scale);
    }
    // More calls of one function are a change, not a longer run.
    let done = of(&training(100, 0, plain), &training(100, 0, |s, _| _ = s.launch("extra", 5000)));
    assert_eq!(done.changes.scale, 1.0);
    assert_eq!(
        done.counts(),
        [("extra", 0), ("cudaLaunchKernel", 1), ("cuLaunchKernel", 2)],
        "{}",
        done.text
    );
}

#[test]
fn polling_is_as_uncertain_as_time() {
    let poll = |times| move |s: &mut Script, _| _ = s.calls("cudaEventQuery", 800, times);
    let done = of(&training(100, 0, poll(10)), &training(100, 0, poll(400)));
    assert_eq!(done.counts(), [], "{}", done.text);
    let both = of(
        &training(100, 0, poll(10)),
        &training(100, 0, |s, n| {
            poll(400)(s, n);
            needless(s, n);
        }),
    );
    assert_eq!(both.counts()[0].0, "cudaMalloc", "{}", both.text);
}

#[test]
fn a_leak_failures_and_bytes_are_changes() {
    let leak = |s: &mut Script, n: u64| _ = s.memory("alloc", 0x9000 + n, 8, 1000);
    let done = of(&training(20, 0, plain), &training(20, 0, leak));
    assert_eq!(done.counts(), [("cudaMalloc", 0), ("cuMemAlloc_v2", 1)], "{}", done.text);
    // After the leak is fixed, the additional frees are not hidden below the allocations.
    let mended = of(&training(20, 0, leak), &training(20, 0, needless));
    assert_eq!(mended.counts()[0].0, "cudaFree", "{}", mended.text);
    let fail = |s: &mut Script, _: u64| _ = s.failed("cudaMemGetInfo", "cudaErrorInvalidValue");
    let fine = |s: &mut Script, _: u64| _ = s.call("cudaMemGetInfo", 1000);
    let done = of(&training(20, 0, fine), &training(20, 0, fail));
    assert_eq!(done.counts(), [("cudaMemGetInfo", 0)], "{}", done.text);
    assert!(
        done.changes.changes[0].rank == Rank::Errors && done.text.contains("(0 failed, after 20)"),
        "{}",
        done.text
    );
    let copy = |size| move |s: &mut Script, _: u64| _ = s.copy("D2H", size, 5000);
    let done = of(&training(20, 0, copy(16)), &training(20, 0, copy(1 << 20)));
    assert_eq!(done.counts(), [("cuMemcpyHtoD_v2", 0)], "{}", done.text);
}

#[test]
fn what_may_be_chance_or_loss_is_no_change() {
    // Handles of kernels without a name differ from run to run.
    let nameless = |handle: &'static str| move |s: &mut Script, _: u64| _ = s.launch(handle, 1000);
    let done = of(&training(20, 0, nameless("0x1234")), &training(20, 0, nameless("0x5678")));
    assert_eq!(done.counts(), [], "{}", done.text);
    // Lost events may have been the calls that are missing.
    let mut s = Script::new();
    s.calls("cuInit", 1000, 90).line("lost", "lost", r#""count":10,"by_probe":{"cuInit":10}"#);
    let lost = s.finish(10);
    let whole = Script::new().calls("cuInit", 1000, 100).finish(0);
    let done = of(&whole, &lost);
    assert_eq!(done.counts(), [], "{}", done.text);
    assert!(
        done.text.contains("after is NOT complete") && done.json["after"]["complete"] == false,
        "{}",
        done.text
    );
    let more = Script::new().calls("cuInit", 1000, 120).finish(0);
    assert_eq!(of(&more, &lost).counts(), [("cuInit", 0)]);
}

#[test]
fn what_was_left_out_is_not_compared() {
    let mut s = Script::with(r#"{"skip":["cudaEvent*"]}"#);
    s.calls("cuInit", 1000, 3);
    let before = s.finish(0);
    let after = Script::new().calls("cuInit", 1000, 3).calls("cudaEventRecord", 10, 50).finish(0);
    let done = of(&before, &after);
    assert_eq!(done.counts(), [], "{}", done.text);
    assert!(done.text.contains("--skip cudaEvent*"), "{}", done.text);
}

#[test]
fn thresholds_know_zero_and_what_is_new() {
    let before =
        Script::new().calls("cuInit", 1000, 10).launch("old", 1000).copy("H2D", 1 << 20, 1000).finish(0);
    let after = Script::new().calls("cuInit", 1000, 11).call("cudaMalloc", 5).launch("new", 1000).finish(0);
    let status = |text: &str| compared(before.path(), after.path(), &[text]).status;
    for (text, expected) in [
        ("cuInit.calls=10%", 0),
        ("cuInit.calls=9.99%", 1),
        ("cuInit.calls=1", 0),
        ("cuInit.calls=0", 1),
        // Growth from zero exceeds any percentage.
        ("cudaMalloc.calls=1000000%", 1),
        ("cudaMalloc.calls=1", 0),
        ("cudaMemcpyPeer.calls=0%", 0),
        ("cudaMalloc.p99=10%", 1),
        ("cudaMemcpyPeer.p99=10%", 1),
        ("copies.rate=10%", 1),
        ("kernel(\"new\").launches=10%", 1),
        ("kernel(\"old\").launches=10%", 0),
        ("kernel(\"none\").launches=10%", 2),
        ("cudaMaloc.calls=10%", 2),
        ("launches=0", 0),
    ] {
        assert_eq!(status(text), expected, "{text}");
    }
    let error = thresholds::read(&["cudaMalloc.cals=10%".into()]).err().unwrap();
    assert!(error.is::<crate::Usage>() && error.to_string().contains("column 12"), "{error}");
}

/// A site that only moved to another line is neither new nor gone.
#[test]
fn a_call_site_that_appeared_is_named() {
    use crate::stacks::tests::training;
    use crate::views::tests::Written;
    let before = training(true);
    let after = before.replace(r#""line":50"#, r#""line":52"#).replace(
        r#""function":"load_batch","file":"/home/ada/train.py","line":88"#,
        r#""function":"prefetch","file":"/home/ada/train.py","line":95"#,
    );
    let [before, after] = [Written::new("sites-before", &before), Written::new("sites-after", &after)];
    let done = compared(before.path(), after.path(), &[]);
    let sites = &done.json["call_sites"];
    let names = |rows: &Value| -> Vec<String> {
        rows.as_array().unwrap().iter().map(|row| format!("{} {}", row["role"], row["call_site"])).collect()
    };
    let expected = |site: &str| [format!("\"copy\" \"{site}\""), format!("\"alloc\" \"{site}\"")];
    assert_eq!(names(&sites["appeared"]), expected("train.py:95 prefetch"));
    assert_eq!(names(&sites["gone"]), expected("train.py:88 load_batch"));
    assert!(
        done.text.contains("Call sites that appeared:") && !done.text.contains(":52 wait"),
        "{}",
        done.text
    );
    let same = compared(before.path(), before.path(), &[]);
    assert!(
        !same.text.contains("Call sites that") && same.json["call_sites"]["gone"] == serde_json::json!([])
    );
    let without = Written::new("sites-without", &before_without_stacks());
    let done = compared(without.path(), before.path(), &[]);
    assert!(done.text.contains("only one of the two was recorded with --stacks"), "{}", done.text);
    assert!(done.json["call_sites"].is_null());
}

fn before_without_stacks() -> String {
    let text = crate::stacks::tests::training(true);
    let kept = text.lines().filter(|line| !line.contains(r#""type":"stack""#));
    let mut without: String = kept
        .map(|line| line.split(",\"stack\":").next().unwrap().to_owned())
        .map(|line| if line.ends_with('}') { line + "\n" } else { line + "}\n" })
        .collect();
    without.retain(|c| c != '\r');
    without
}
