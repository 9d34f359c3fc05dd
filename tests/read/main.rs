//! The commands that read traces, as a user runs them: the real binary, no root, no GPU, the committed traces.
//!
//! In: traces/, python3 with the protobuf classes of PyPI's `perfetto` (GPUREC_PERFETTO names the folder, which
//! scripts/test fills).
//! Out: exit statuses, messages, and exports that independent readers find equal to the traces. With CI=true a missing
//! thing fails a test.
//! Not here: golden texts; each view keeps its own.

mod bounds;
mod crafted;
mod gpu;
mod html;
mod shown;
mod strangers;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use gpurec_analysis::export::ExportFormat;
use gpurec_analysis::views::NAMES as VIEWS;

const TRACES: [&str; 3] = ["torch_h200.jsonl", "context_h200.jsonl.zst", "demo.jsonl.zst"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn trace(name: &str) -> String {
    root().join("traces").join(name).display().to_string()
}

/// A folder that is removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpurec-read-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn gpurec(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpurec"));
    command.args(words).env_remove("COLUMNS").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    gpurec(words).output().unwrap()
}

fn said(done: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&done.stdout) + &text(&done.stderr)
}

/// Asserts one sentence that says what to do, this exit status, and nothing on standard output.
fn refused(words: &[&str], status: i32, with: &str) {
    let done = run(words);
    let text = said(&done);
    assert_eq!(done.status.code(), Some(status), "{words:?}: {text}");
    assert!(done.stdout.is_empty() && text.contains(with) && !text.contains("panicked"), "{words:?}: {text}");
}

fn readers() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("GPUREC_PERFETTO") {
        return Some(folder.into());
    }
    let why = "GPUREC_PERFETTO names no folder: pip install --target DIR perfetto";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "a test was skipped under CI: {why}");
    eprintln!("SKIPPED: {why}");
    None
}

/// The folder of DuckDB and pyarrow.
fn engines() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("GPUREC_ENGINES") {
        return Some(folder.into());
    }
    let why = "GPUREC_ENGINES names no folder: pip install --target DIR duckdb pyarrow";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "a test was skipped under CI: {why}");
    eprintln!("SKIPPED: {why}");
    None
}

/// Exports the traces together, and has the independent readers compare them.
fn exports_are_true(traces: &[&str], mutate: bool) {
    let Some(readers) = readers() else { return };
    let folder = Folder::new();
    let files: Vec<String> = traces.iter().map(|name| trace(name)).collect();
    let mut check = Command::new("python3");
    check.env("PYTHONPATH", &readers).env("PYTHONDONTWRITEBYTECODE", "1");
    check.arg(root().join("tests/export/check.py"));
    if mutate {
        check.arg("--mutate");
    }
    check.arg(files.join(","));
    for format in ["chrome", "perfetto", "csv"] {
        let output = folder.file(format);
        let mut words = vec!["export", "--format", format, "-o", &output];
        words.extend(files.iter().map(String::as_str));
        let done = run(&words);
        assert!(done.status.success(), "{words:?}: {}", said(&done));
        check.arg(output);
    }
    let done = check.output().unwrap();
    assert!(done.status.success(), "{traces:?}: {}", said(&done));
    eprintln!("{traces:?}: {}", said(&done));
}

#[test]
fn exports_of_a_pytorch_trace_are_read_by_others_and_damage_is_found() {
    exports_are_true(&[TRACES[0]], true);
}

#[test]
fn exports_of_a_trace_with_ioctls_are_read_by_others() {
    exports_are_true(&[TRACES[1]], false);
}

#[test]
fn exports_of_several_traces_in_one_are_read_by_others() {
    exports_are_true(&TRACES, false);
}

/// DuckDB and pyarrow read datasets as gpurec reads their traces.
#[test]
fn datasets_are_read_by_other_engines() {
    let Some(engines) = engines() else { return };
    let mut check = Command::new("python3");
    check.env("PYTHONPATH", engines).env("PYTHONDONTWRITEBYTECODE", "1");
    check.arg(root().join("tests/export/parquet.py")).arg(env!("CARGO_BIN_EXE_gpurec"));
    check
        .args(TRACES.map(trace))
        .arg(trace("torch_gpu_h100.jsonl.zst"))
        .arg(trace("torch_stacks_h100.jsonl.zst"));
    let done = check.output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    eprintln!("{}", said(&done));
}

#[test]
fn a_dataset_needs_a_folder() {
    let demo = trace(TRACES[0]);
    refused(&["export", "--format", "parquet", &demo], 2, "give -o FOLDER");
    refused(&["export", "--format", "parquet", "-o", &demo, &demo], 2, "give -o FOLDER");
}

#[test]
fn a_needless_allocation_in_a_loop_is_named_first_and_fails_the_gate() {
    let (before, after) = (trace("needless_before.jsonl.zst"), trace("needless_after.jsonl.zst"));
    let done = run(&["diff", &before, &after]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    let text = said(&done);
    let first = text.lines().skip_while(|line| !line.trim_start().starts_with("Calls")).nth(1).unwrap();
    assert!(first.ends_with(" cudaMalloc"), "{text}");
    assert_eq!(run(&["diff", "--fail-over", "cudaMalloc.calls=10%", &before, &after]).status.code(), Some(1));
    assert_eq!(run(&["diff", "--fail-over", "launches=0", &before, &after]).status.code(), Some(0));
    let budget = "cudaMalloc.calls==0 after 32 launches";
    assert_eq!(run(&["check", "--assert", budget, &before]).status.code(), Some(0));
    assert_eq!(run(&["check", "--assert", budget, &after]).status.code(), Some(1));
}

/// As with `| head -1`: gpurec does not write what is left, and that is no failure.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let demo = trace("demo.jsonl.zst");
    let mut all: Vec<Vec<&str>> = vec![
        vec!["summary", &demo],
        vec!["summary", "--json", &demo],
        vec!["timeline", &demo],
        vec!["diff", &demo, &demo],
        vec!["check", "--assert", "launches>0", &demo],
        vec!["completions", "bash"],
        vec!["man"],
        vec!["report"],
    ];
    // Those of stacks say that this trace has none.
    let formats = ExportFormat::ALL.iter().filter(|format| !format.is_folder()).map(|format| format.name());
    let formats: Vec<String> = formats.filter(|name| !["folded", "pprof"].contains(&name.as_str())).collect();
    for format in &formats {
        all.push(vec!["export", "--format", format, "-o", "-", &demo]);
    }
    for view in VIEWS {
        all.push(vec!["report", view, &demo]);
        all.push(vec!["report", view, "--json", &demo]);
        all.push(vec!["report", view, "--csv", &demo]);
    }
    for words in all {
        let mut child = gpurec(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The pipe has no reader from the first byte on: it closes before anything can be written.
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), said(&done)), (Some(0), String::new()), "{words:?}");
    }
    // Then a reader that leaves after one line.
    let mut child = gpurec(&["export", "--format", "csv", &demo]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(child.wait().unwrap().success() && line.starts_with("file,event_id"), "{line}");
}

#[test]
fn what_is_no_trace_is_refused_in_a_sentence() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        let file = folder.file(name);
        fs::write(&file, text).unwrap();
        file
    };
    let (none, empty) = (folder.file("none.jsonl"), write("empty.jsonl", ""));
    let other = write("other.jsonl", "Dear reader,\n");
    for command in [
        &["summary"][..],
        &["timeline"],
        &["report", "api"],
        &["export", "--format", "csv"],
        &["check", "--assert", "calls>0"],
    ] {
        let with = |file: &'static str| [command, &[file]].concat();
        let (none, empty, other): (&'static str, &'static str, &'static str) =
            (none.clone().leak(), empty.clone().leak(), other.clone().leak());
        refused(&with(none), 125, "none.jsonl");
        refused(&with(empty), 125, "empty");
        refused(&with(other), 125, "line 1");
    }
    refused(&["report", "apis", &trace(TRACES[0])], 2, "api");
    refused(&["report", "leaks", "--top", "0", &trace(TRACES[0])], 2, "0");
    refused(&["check", "--assert", "lunches<=5", &trace(TRACES[0])], 2, "launches");
    refused(&["diff", "--fail-over", "calls=", &trace(TRACES[0]), &trace(TRACES[0])], 2, "calls=");
}

/// The newest trace is the one to which traces/latest leads.
#[test]
fn without_a_file_the_newest_trace_is_read() {
    let folder = Folder::new();
    fs::create_dir(folder.0.join("traces")).unwrap();
    let latest = folder.0.join("traces/latest");
    std::os::unix::fs::symlink(trace(TRACES[0]), &latest).unwrap();
    for words in
        [&["summary"][..], &["timeline"], &["report", "gaps"], &["check", "--assert", "launches==18"]]
    {
        let done = gpurec(words).current_dir(&folder.0).output().unwrap();
        assert!(done.status.success() && !done.stdout.is_empty(), "{words:?}: {}", said(&done));
    }
    fs::remove_file(&latest).unwrap();
    for words in [&["summary"][..], &["timeline"], &["report", "gaps"], &["export", "--format", "csv"]] {
        let done = gpurec(words).current_dir(&folder.0).output().unwrap();
        assert_eq!(done.status.code(), Some(125));
        let said = said(&done);
        assert!(said.contains("there is no trace here (traces/latest does not exist"), "{said}");
    }
}

#[test]
fn a_killed_recording_is_read_and_said_to_be_cut() {
    let folder = Folder::new();
    let whole = fs::read_to_string(trace(TRACES[0])).unwrap();
    let file = folder.file("cut.jsonl");
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    for words in [
        &["summary"][..],
        &["timeline"],
        &["report", "api"],
        &["export", "--format", "chrome"],
        &["check", "--assert", "complete"],
    ] {
        let done = run(&[words, &[&file]].concat());
        let failed = i32::from(words[0] == "check");
        assert_eq!(done.status.code(), Some(failed), "{words:?}: {}", said(&done));
        assert!(said(&done).contains("cut"), "{words:?}: {}", said(&done));
    }
}

/// Messages cannot be written: the answer and the exit status are the same.
#[test]
fn standard_error_may_be_full_or_closed() {
    let folder = Folder::new();
    let demo = trace("demo.jsonl.zst");
    let cut = folder.file("cut.jsonl");
    let whole = fs::read_to_string(trace(TRACES[0])).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    for (status, words) in [
        (125, &["summary", "nofile"][..]),
        (2, &["probes", "--lib", "/nofile"]),
        (2, &["report", "apis", &demo]),
        (2, &["--no-such-option"]),
        (2, &["check", "--assert", "lunches<=5", &demo]),
        (1, &["check", "--assert", "launches>5000", &cut]),
        (0, &["report", "api", &cut]),
        (0, &["timeline", &cut]),
        (0, &["diff", &cut, &demo]),
        (0, &["export", "--format", "csv", &cut]),
    ] {
        let heard = run(words);
        assert!(
            heard.status.code() == Some(status) && !heard.stderr.is_empty(),
            "{words:?}: {}",
            said(&heard)
        );
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        for stderr in [Stdio::from(full), Stdio::from(closed)] {
            let done = gpurec(words).stderr(stderr).stdout(Stdio::piped()).spawn().unwrap();
            let done = done.wait_with_output().unwrap();
            assert_eq!((done.status.code(), &done.stdout), (Some(status), &heard.stdout), "{words:?}");
        }
    }
}

/// Returns a trace in which this suffix follows every name, from the given number of first lines and the last line.
fn renamed(lines: usize, suffix: &str) -> String {
    fn rename(key: &str, value: &mut serde_json::Value, suffix: &str) {
        const KEPT: [&str; 7] = ["type", "phase", "op", "start", "ptr", "stream", "version"];
        match value {
            serde_json::Value::String(text) if !KEPT.contains(&key) && !text.starts_with("0x") => {
                text.push_str(suffix)
            }
            serde_json::Value::Array(all) => all.iter_mut().for_each(|one| rename(key, one, suffix)),
            serde_json::Value::Object(all) => all.iter_mut().for_each(|(key, one)| rename(key, one, suffix)),
            _ => {}
        }
    }
    let text = fs::read_to_string(trace("torch_h200.jsonl")).unwrap();
    let all: Vec<&str> = text.lines().collect();
    let mut renamed = String::new();
    for line in all.iter().take(lines.min(all.len() - 1)).chain(all.last()) {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = value["name"].clone();
        // The functions that could not be hooked are thousands of names: they need no long suffix too.
        let hooks = value["hooks"].take();
        rename("", &mut value, suffix);
        if value["type"] == "process" {
            value["name"] = name;
        }
        if hooks.is_object() && suffix.len() < 100 {
            value["hooks"] = hooks;
            rename("hooks", &mut value["hooks"], suffix);
        } else if let Some(object) = value.as_object_mut() {
            object.remove("hooks");
        }
        if value["type"] == "end" {
            value["complete"] = false.into();
            value["incomplete_because"] = serde_json::json!([format!("it is so{suffix}")]);
        }
        renamed += &(value.to_string() + "\n");
    }
    renamed
}

fn all_that_people_read(file: &str) -> Vec<Vec<&str>> {
    let mut all = vec![
        vec!["summary", file],
        vec!["summary", file, file],
        vec!["timeline", file, file],
        vec!["check", "--assert", "processes>=1", file],
        vec!["diff", file, file],
        vec!["export", "--format", "perfetto", "-o", "/dev/null", file],
        vec!["summary", "--json", file],
        vec!["check", "--json", "--assert", "processes>=1", file],
        vec!["diff", "--json", file, file],
    ];
    for view in VIEWS {
        all.push(vec!["report", view, file]);
        all.push(vec!["report", view, file, file]);
        all.push(vec!["report", view, "--json", file]);
    }
    all
}

/// Names come from the recorded programs, and from the sender of the trace.
#[test]
fn nothing_in_a_trace_or_its_name_is_a_command_to_a_terminal() {
    const EVIL: &str = "\u{1b}[31m\u{9b}31m\u{7}\u{202e}\u{2066}\u{200b}\u{feff}\r";
    let unsafe_ = |c: char| c != '\n' && (c.is_control() || (EVIL.contains(c) && !c.is_ascii()));
    let folder = Folder::new();
    let file = folder.file(&format!("t{EVIL}.jsonl"));
    let names = renamed(usize::MAX, EVIL);
    fs::write(&file, &names).unwrap();
    for words in all_that_people_read(&file) {
        let done = run(&words);
        let text = said(&done);
        assert_eq!(done.status.code(), Some(0), "{words:?}: {text}");
        assert!(!text.contains(unsafe_), "{words:?}: {text:?}");
        if words.contains(&"--json") {
            let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
            assert!(json.to_string().contains('\u{202e}'), "{words:?}: the names are the same");
        } else if ["timeline", "report", "diff"].contains(&words[0]) {
            assert!(text.contains("so\\u{1b}[31m\\u{9b}31m"), "{words:?}: {text}");
        }
    }
    for words in [
        &["summary"][..],
        &["timeline"],
        &["report", "api"],
        &["export", "--format", "csv"],
        &["check", "--assert", "calls>0"],
        &["check", "--assert"],
        &["report"],
        &["probes", "--lib"],
        &["--pid"],
    ] {
        let none = folder.file(&format!("none{EVIL}"));
        let text = said(&run(&[words, &[&none]].concat()));
        assert!(text.contains("none") && !text.contains(unsafe_), "{words:?}: {text:?}");
    }
}

#[test]
fn names_may_have_any_length() {
    let folder = Folder::new();
    let file = folder.file("long.jsonl");
    fs::write(&file, renamed(16, &"x".repeat(70_000))).unwrap();
    for words in all_that_people_read(&file) {
        let done = run(&words);
        assert_eq!(done.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn of_a_trace_without_an_event_no_budget_is_met() {
    let folder = Folder::new();
    let packed = fs::read(trace("demo.jsonl.zst")).unwrap();
    let plain = fs::read(trace(TRACES[0])).unwrap();
    let (cut, empty) = ("the trace is cut in its first block", "the trace is empty");
    for (name, bytes, says) in
        [("a.zst", &packed[..4], cut), ("b.zst", &packed[..20], cut), ("c", &plain[..40], empty)]
    {
        let file = folder.file(name);
        fs::write(&file, bytes).unwrap();
        let file: &'static str = file.leak();
        refused(&["check", "--assert", "errors==0", file], 125, says);
    }
}

/// `gpurec export T >> T` would read its own rows, without end.
#[test]
fn an_export_is_not_appended_to_its_own_trace() {
    let folder = Folder::new();
    let file = folder.file("t.jsonl");
    fs::copy(trace(TRACES[0]), &file).unwrap();
    let before = fs::read(&file).unwrap();
    for input in [file.as_str(), "-"] {
        let append = fs::File::options().append(true).open(&file).unwrap();
        let mut command = gpurec(&["export", "--format", "csv", input]);
        command.stdin(fs::File::open(&file).unwrap()).stdout(append).stderr(Stdio::piped());
        let done = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{}", said(&done));
        assert!(said(&done).contains("standard output is the trace"), "{}", said(&done));
        assert!(fs::read(&file).unwrap() == before, "the trace is as it was");
    }
}

#[test]
fn an_export_is_packed_if_it_is_named_so() {
    let folder = Folder::new();
    let demo = trace(TRACES[2]);
    let (plain, packed) = (folder.file("t.csv"), folder.file("t.csv.zst"));
    for file in [&plain, &packed] {
        let done = run(&["export", "--format", "csv", "-o", file, &demo]);
        assert!(done.status.success(), "{}", said(&done));
    }
    let unpacked = Command::new("zstd").args(["-dc", &packed]).output().unwrap();
    assert!(unpacked.status.success(), "{}", said(&unpacked));
    assert!(unpacked.stdout == fs::read(&plain).unwrap(), "the same rows");
}

#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_others() {
    let demo = trace(TRACES[2]);
    let all: [&[&str]; 4] =
        [&["summary"], &["report", "api"], &["timeline"], &["check", "--assert", "complete"]];
    for words in all {
        let alone = run(&[words, &[demo.as_str()]].concat());
        let done = run(&[words, &["/nowhere.jsonl", demo.as_str()]].concat());
        assert_eq!(done.status.code(), Some(125), "{}", said(&done));
        assert!(said(&done).contains("/nowhere.jsonl: "), "{}", said(&done));
        let last = said(&alone).trim_end().lines().last().unwrap().to_owned();
        assert!(said(&done).contains(&last), "{}", said(&done));
    }
}

/// Each cell of a CSV file, without its quotes.
fn cells(text: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut chars) = (false, text.chars().peekable());
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().unwrap();
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' | '\n' if !quoted => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells
}

/// Names come from the programs that were recorded.
#[test]
fn no_cell_is_a_formula_or_a_command_to_a_terminal() {
    let folder = Folder::new();
    let file = folder.file("=t.jsonl");
    let text = fs::read_to_string(trace(TRACES[0])).unwrap();
    let text = text.replace("cuLaunchKernel", "\\u001b]0;x\\u0007\u{9b}\u{202e}");
    fs::write(&file, text.replace("cudaLaunchKernel", "=HYPERLINK(1,2)").replace("void ", "@x ")).unwrap();
    let reports = VIEWS.iter().map(|view| vec!["report", view, "--csv", &file]);
    let mut seen = 0;
    for words in reports.chain([vec!["export", "--format", "csv", &file]]) {
        let done = run(&words);
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(!text.contains(|c: char| c != '\n' && (c.is_control() || c == '\u{202e}')), "{words:?}");
        for cell in cells(&text) {
            let is_text = cell.parse::<f64>().is_err();
            assert!(!(is_text && cell.starts_with(['=', '+', '-', '@'])), "{words:?}: {cell}");
            seen += usize::from(cell.starts_with("'=") || cell.starts_with("'@"));
        }
    }
    assert!(seen > 10, "{seen}");
}
