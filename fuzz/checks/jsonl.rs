//! Reads a trace and makes the views of it.
//! In: a choice of view, and a file.
//! Out: panics unless an answer comes whatever the file, every event is read the same by both readers and written back
//! the same, and the figures survive their way through JSON.

use std::path::Path;
use std::time::Duration;

use super::{choice, with_file};
use gpurec_analysis::diff::{DiffConfig, diff};
use gpurec_analysis::export::{ExportConfig, ExportFormat, export};
use gpurec_analysis::only::Only;
use gpurec_analysis::timeline::{TimelineConfig, timeline};
use gpurec_analysis::views::{Format, NAMES as VIEWS, ReportConfig, report};
use gpurec_analysis::{Figures, summary_of, text};
use gpurec_trace::{
    self as trace, Body, Brief, CallBegin, CallEnd, GpuWork, Line, LineWriter, brief, fast, parse,
};

pub fn jsonl(data: &[u8]) {
    let (how, text) = choice(data);
    for line in text.split(|b| *b == b'\n') {
        both_ways(line);
    }
    with_file(text, |scratch| {
        // One view for each input: the more inputs, the better.
        match (read(&scratch.path), how % 64) {
            (true, 0..60) => view(how % 64, &part(how), &scratch.path),
            _ => figures(&scratch.path),
        }
    });
}

/// Asserts that the thorough reader accepts every line that the quick one accepts, with the same result.
fn both_ways(text: &[u8]) {
    let slow = parse::any_order(text);
    if let Some(quick) = fast::line(text) {
        let slow = slow.as_ref().expect("one reader takes it and the other does not");
        assert_eq!((&quick, true), (&slow.line, slow.unknown.is_empty()));
        in_brief(&quick, text);
    }
    let Ok(parsed) = slow else { return };
    if !matches!(parsed.line.body, Body::Unknown(_)) {
        written_back(&parsed.line);
    }
}

/// Asserts that what is read in brief is what the line says.
fn in_brief(line: &Line, text: &[u8]) {
    match (brief::line(text), &line.body) {
        (None, _) => {}
        (Some(Brief::Begin(it)), Body::Begin(begin)) => {
            assert_eq!((it, &begin.no_return), (CallBegin::of(line, begin), &None));
        }
        (Some(Brief::End(it)), Body::End(end)) => assert_eq!(it, CallEnd::of(line, end)),
        (Some(Brief::Work(it)), Body::Gpu(gpu)) => assert_eq!(it, GpuWork::of(line, gpu)),
        _ => panic!("read in brief as another kind: {line:?}"),
    }
}

fn written_back(line: &Line) {
    let mut written = Vec::new();
    let mut writer = LineWriter::new(&mut written);
    let done = writer.write(line).and_then(|()| writer.flush());
    drop(writer);
    // The event has a number that JSON cannot hold.
    if done.is_err() {
        return;
    }
    let text = written.trim_ascii_end();
    assert!(!text.contains(&b'\n'), "two lines of one");
    let again = parse::any_order(text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(text)));
    assert_eq!(&again.line, line, "{}", String::from_utf8_lossy(text));
}

/// Returns whether it is a trace at all.
fn read(path: &Path) -> bool {
    let Ok(mut reader) = trace::open(path) else { return false };
    let mut events = 0u64;
    loop {
        match reader.next() {
            Ok(Some(_)) => events += 1,
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return false;
            }
        }
    }
    let notes = reader.notes();
    assert!(notes.is_whole() || !notes.sentences().is_empty(), "nothing is said about {notes:?}");
    assert!(events > 0);
    true
}

fn figures(path: &Path) {
    let Ok(figures) = summary_of(path, &Only::default()) else { return };
    assert!(!text::print(&figures, 100).is_empty());
    let json = figures.to_json();
    let again = Figures::from_json(&json).expect("figures from their own JSON");
    assert_eq!(again.to_json(), json);
}

/// All of the trace, or a part of it.
fn part(how: u8) -> Only {
    match how / 64 {
        0 => Only::default(),
        1 => Only { pids: vec![1], ..Only::default() },
        2 => Only { from_ns: Some(5), to_ns: Some(1 << 40), ..Only::default() },
        _ => Only { tids: vec![1, 2], ranks: vec![0], ..Only::default() },
    }
}

fn view(how: u8, only: &Only, path: &Path) {
    let (files, only) = (vec![path.to_owned()], only.clone());
    let is_part = !only.is_all();
    let format = [Format::Text, Format::Json, Format::Csv][usize::from(how / 20) % 3];
    // The last of the other kinds of reading is more likely, since it reads two traces.
    let kind = usize::from(how % 60) % (VIEWS.len() + ExportFormat::ALL.len() + 4);
    let done = match kind.checked_sub(VIEWS.len()) {
        None => {
            let view = Some(VIEWS[kind].to_owned());
            let invert = how & 1 != 0;
            report(&ReportConfig {
                view,
                files,
                format,
                only,
                invert: invert && VIEWS[kind] == "stacks",
                ..ReportConfig::default()
            })
        }
        Some(0) => {
            let (from, to) = (Some(Duration::from_nanos(5)), None);
            timeline(&TimelineConfig { files, from, to, tids: Vec::new(), only })
        }
        Some(at) => match ExportFormat::ALL.get(at - 1) {
            Some(format) => {
                let folder = std::env::temp_dir().join(format!("gpurec-fuzz-{}", std::process::id()));
                let output = Some(if format.is_folder() { folder.clone() } else { "/dev/null".into() });
                let done = export(&ExportConfig { files, format: *format, output, only, by: None });
                if format.is_folder() {
                    let _ = std::fs::remove_dir_all(folder);
                }
                done
            }
            None => diff(&DiffConfig {
                before: path.to_owned(),
                after: path.to_owned(),
                json: how & 16 != 0,
                top: None,
                fail_over: vec!["duration=0".to_owned()],
                only,
            })
            // No threshold holds of a part that the trace does not have.
            .inspect(|status| assert!(*status == 0 || is_part, "a trace differs from itself")),
        },
    };
    if let Err(error) = done {
        assert!(!format!("{error:#}").is_empty());
    }
}
