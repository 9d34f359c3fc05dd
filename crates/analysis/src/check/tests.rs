use super::*;
use crate::golden;
use crate::measure::script::Script;

fn checked(file: &Path, budgets: &[&str]) -> (String, u8, serde_json::Value) {
    let budgets: Vec<String> = budgets.iter().map(|b| b.to_string()).collect();
    let budgets = budget::read(&budgets).unwrap();
    let mut asks = Asks::default();
    budgets.iter().for_each(|budget| asks.add(&budget.term, Some(budget.limit)));
    let gathered = gather(file, &asks, &Only::default()).unwrap();
    let outcomes: Vec<Outcome> = budgets.iter().map(|budget| judge(budget, &gathered)).collect();
    let status = outcomes.iter().map(|outcome| outcome.verdict.status()).max().unwrap_or(0);
    let shown = Path::new("traces").join(file.file_name().unwrap());
    (text::print(&shown, &gathered, &outcomes, golden::WIDTH), status, to_json(&shown, &gathered, &outcomes))
}

/// Whether one assertion holds.
pub fn passes(file: &Path, budget: &str) -> bool {
    checked(file, &[budget]).1 == 0
}

fn refused(budgets: &[&str]) -> String {
    let budgets: Vec<String> = budgets.iter().map(|b| b.to_string()).collect();
    let error = budget::read(&budgets).unwrap_err();
    assert!(error.is::<crate::Usage>(), "exit status 2: {error}");
    error.to_string()
}

/// Assertions that a team may make about a run, as in a file.
const BUDGET: [&str; 14] = [
    "launches <= 5000",
    "errors==0",
    "memory.leaked==0",
    "memory.peak <= 128MB",
    "sync.time<20ms",
    "sync.time/duration < 50%",
    "cudaMalloc.calls==0 after 50 launches",
    "cuMemAlloc.calls/launches <= 0.5",
    "cuLaunchKernel.p99<50us",
    "kernel(\"*gelu*\").launches == 192",
    "copies.H2D.rate > 1GB/s",
    "cudaMemcpyPeer.calls == 0",
    "ioctl.time < 1s",
    "complete",
];

#[test]
fn the_committed_traces() {
    for (name, file) in golden::TRACES {
        let (text, status, _) = checked(&golden::path(file), &BUDGET);
        assert_eq!(status, 1, "{text}");
        golden::check(&format!("check_{name}"), &text);
    }
}

/// Acceptance test 4: the needless cudaMalloc in the loop.
#[test]
fn a_needless_allocation_fails_and_its_absence_passes() {
    let budget = ["cudaMalloc.calls==0 after 32 launches", "errors<=2", "complete"];
    let (text, status, _) = checked(&golden::path("traces/needless_after.jsonl.zst"), &budget);
    assert!(status == 1 && text.contains("FAIL   cudaMalloc.calls==0 after 32 launches"), "{text}");
    golden::check("check_needless_after", &text);
    let (text, status, _) = checked(&golden::path("traces/needless_before.jsonl.zst"), &budget);
    assert!(status == 0, "{text}");
    golden::check("check_needless_before", &text);
}

#[test]
fn a_cut_trace_does_not_pass_in_silence() {
    let mut s = Script::new();
    s.calls("cudaMalloc", 1000, 3);
    let file = s.cut();
    let (text, status, json) = checked(file.path(), &["cudaMalloc.calls<=3"]);
    assert!(status == 1 && text.contains("no value") && text.contains("the trace has no end"), "{text}");
    assert!(text.contains("NOT complete") && text.contains("no end line follows"), "{text}");
    assert!(
        json["complete"] == false && json["passed"] == false && !json["notes"].as_array().unwrap().is_empty()
    );
}

#[test]
fn json_has_values_and_places() {
    let mut s = Script::new();
    s.calls("cudaMalloc", 1500, 4);
    let file = s.finish(0);
    let (_, status, json) = checked(
        file.path(),
        &["cudaMalloc.calls==0", "cudaMalloc.time<6.5us", "cudaMaloc.calls==0", "cudaFree.p50<1us"],
    );
    assert_eq!(status, 2);
    let checks = json["checks"].as_array().unwrap();
    let of = |at: usize, key: &str| checks[at][key].clone();
    assert_eq!((of(0, "value"), of(0, "limit"), of(0, "verdict")), (4.into(), 0.into(), "fail".into()));
    assert!(of(0, "because")[0].as_str().unwrap().starts_with("the first at 0.000000000 s in pid 7"));
    assert_eq!((of(1, "value"), of(1, "unit"), of(1, "verdict")), (6000.into(), "ns".into(), "pass".into()));
    assert_eq!((of(2, "value"), of(2, "verdict")), (serde_json::Value::Null, "error".into()));
    assert_eq!(of(3, "verdict"), "fail");
}

#[test]
fn a_budget_file_is_reported_by_line_and_column() {
    let dir = std::env::temp_dir().join(format!("gpurec-budget-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("budget.txt");
    let name = file.to_str().unwrap();
    let write = |text: &[u8]| std::fs::write(&file, text).unwrap();

    write(b"\xef\xbb\xbf# the budget\r\n\r\nlaunches<=5 # few\r\n  errors==0\r\n");
    let budgets = budget::read(&[name.to_owned()]).unwrap();
    let lines: Vec<_> = budgets.iter().map(|b| (b.text.as_str(), b.place.line)).collect();
    assert_eq!(lines, [("launches<=5", Some(3)), ("errors==0", Some(4))]);

    write(b"launches<=5\n\n  memory.leakd==0\nlaunches==x\n");
    let error = refused(&[name]);
    assert!(error.starts_with(&format!("{name}:3:3: there is no metric memory.leakd")), "{error}");
    assert!(error.contains("\n    memory.leakd==0\n    ^\n"), "{error}");
    assert!(
        error.contains(&format!("{name}:4:11: expected a number\n  launches==x\n            ^")),
        "{error}"
    );

    write(b"# nothing\n");
    assert!(refused(&[name]).contains("no assertion"));
    write(b"launches<=5\n\xff\n");
    assert!(refused(&[name]).contains(":2: this line is not UTF-8"));
    write(b"{\"event_id\":0,");
    assert!(refused(&[name]).contains("looks like a trace"));
    write(&vec![b' '; 2 << 20]);
    assert!(refused(&[name]).contains("looks like a trace"));
    write("x\n".repeat(50).as_bytes());
    assert!(refused(&[name]).ends_with("and 30 more errors"));
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(refused(&[name]).contains("neither an expression"));
    assert!(refused(&["launchs<=1"]).starts_with("column 1: there is no metric launchs"));
    assert!(refused(&[" "]).contains("neither an expression"));
    assert!(refused(&[]).contains("no assertion"));
}

#[test]
fn names_of_a_trace_cannot_reach_the_terminal() {
    let mut s = Script::new();
    s.launch("\x1b[31mred", 1000);
    let file = s.finish(0);
    let (text, ..) =
        checked(file.path(), &["kernel(\"*redd\").launches==0", "kernel(\"\x1b[31mredd\").launches==0"]);
    assert!(!text.contains('\x1b') && text.contains("\\u{1b}[31mred"), "{text}");
}
