//! Reads the data of an HTML page back, and compares it with the summary, the reports and another export of the same
//! trace. Not here: what a browser makes of it (tests/export/html).

use std::io::Read;

use flate2::read::GzDecoder;

use super::*;
use crate::views::tests::json_of;
use crate::views::{NAMES, ReportConfig};

/// The page without its blocks, and the data in the block of JSON.
fn page(traces: &[&str]) -> (String, Value) {
    let (bytes, _) = exported(ExportFormat::Html, traces);
    parts(bytes)
}

/// The same of a page that was begun already.
fn page_of(html: crate::export::html::Html, files: &[PathBuf]) -> (String, Value) {
    let to = Temporary::new("");
    let writing = Writing { files, only: &Only::default(), path: Some(&to.0) };
    writing.stream(html).expect("traces that can be read");
    parts(std::fs::read(&to.0).expect("a page"))
}

fn parts(bytes: Vec<u8>) -> (String, Value) {
    let page = String::from_utf8(bytes).expect("text");
    let data = block(&page, "data");
    let from = page.find("<script type=\"text/plain\"").expect("a block");
    let to = page.rfind("<script type=\"module\">").expect("the script");
    let around = [page.get(..from), page.get(to..)].map(|part| part.expect("a part")).concat();
    (around, serde_json::from_slice(&data).expect("JSON"))
}

fn block(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"text/plain\" id=\"{id}\">");
    let text = page.split_once(&begin).expect("the block").1.split_once("</script>").expect("its end").0;
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        other => panic!("{other} is not of base64"),
    };
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let word = four.iter().fold(0u32, |word, c| word << 6 | u32::from(digit(*c)));
        let padding = four.iter().filter(|c| **c == b'=').count();
        bytes.extend_from_slice(&word.to_be_bytes()[1..4 - padding]);
    }
    let mut data = Vec::new();
    GzDecoder::new(bytes.as_slice()).read_to_end(&mut data).expect("gzip");
    data
}

/// The rows of a report on the page, as `report --json` has them, by the key of the table.
fn tables(report: &Value) -> HashMap<String, Vec<Value>> {
    let mut tables: HashMap<String, Vec<Value>> = HashMap::new();
    for part in report["parts"].as_array().expect("parts") {
        let table = if part["table"].is_object() { &part["table"] } else { &part["data"] };
        let Some(rows) = table["rows"].as_array() else { continue };
        let columns = table["columns"].as_array().expect("columns");
        let all = tables.entry(table["key"].as_str().expect("a key").to_owned()).or_default();
        for row in rows {
            let value = |cell: &Value| match cell {
                Value::Array(pair) => pair[0].clone(),
                other => other.clone(),
            };
            let key = |column: &Value| column["key"].as_str().expect("a key").to_owned();
            let cells = row.as_array().expect("cells").iter().map(value);
            all.push(Value::Object(columns.iter().map(key).zip(cells).collect()));
        }
    }
    tables
}

fn compare(trace: &str) {
    let file = Temporary::new(trace);
    let (_, data) = page(&[trace]);
    let shown = &data["traces"][0];
    let figures = crate::summary_of(&file.0, &Only::default()).expect("a trace");
    assert_eq!(shown["summary"], figures.with_nulls());
    let reports = shown["reports"].as_array().expect("reports");
    let names: Vec<&str> = reports.iter().filter_map(|report| report["view"].as_str()).collect();
    assert_eq!(names, NAMES);
    for report in reports {
        let view = report["view"].as_str().expect("a name");
        let json = json_of(view, &file.0, &ReportConfig::default());
        for (key, value) in report["facts"].as_object().expect("facts") {
            assert_eq!(json[key], *value, "{view}: {key}");
        }
        assert_eq!(json["notes"], report["notes"], "{view}");
        for (key, rows) in tables(report).into_iter().filter(|(key, _)| key != "process_names") {
            let wanted = json[&key].as_array().unwrap_or_else(|| panic!("{view} has no {key}"));
            assert_eq!(wanted.len(), rows.len(), "{view}: {key}");
            for (wanted, row) in wanted.iter().zip(&rows) {
                for (column, value) in row.as_object().expect("a row") {
                    // Names and dimensions are shown as text.
                    let is_same = *value == wanted[column] || value.is_string();
                    assert!(is_same, "{view}: {key}: {column}: {value} {}", wanted[column]);
                }
            }
        }
    }
    let (json, _) = exported(ExportFormat::Chrome, &[trace]);
    let events = count(&json, "B") + count(&json, "X") + count(&json, "i") - notes(&json);
    assert_eq!(data["kept"]["events"], events);
}

#[test]
fn a_page_has_the_figures_of_the_summary_and_of_every_report() {
    [KERNEL, GPU, &crate::stacks::tests::training(true)].into_iter().for_each(compare);
}

#[test]
fn a_page_has_tracks_labels_counters_and_stacks() {
    let (_, data) = page(&[GPU]);
    let names: Vec<&str> = data["tracks"]
        .as_array()
        .expect("tracks")
        .iter()
        .filter_map(|track| track["name"].as_str())
        .collect();
    assert!(names.iter().any(|name| name.starts_with("GPU 0 stream ")), "{names:?}");
    let rows = data["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row[0].as_u64().is_some_and(|track| track < names.len() as u64)));
    let sorts = data["sorts"].as_array().expect("sorts").len() as u64;
    assert!(data["labels"].as_array().expect("labels").iter().all(|label| label[1].as_u64() < Some(sorts)));
    let (_, data) = page(&[&crate::stacks::tests::training(true)]);
    let stacks = &data["stacks"];
    assert!(!stacks["rows"].as_array().expect("rows").is_empty());
    let frames = stacks["frames"].as_array().expect("frames").len() as u64;
    for stack in stacks["stacks"].as_array().expect("stacks") {
        assert!(
            stack["frames"].as_array().expect("frames").iter().all(|frame| frame.as_u64() < Some(frames))
        );
    }
    assert!(!data["counters"].as_array().expect("counters").is_empty());
}

#[test]
fn several_traces_are_one_page() {
    let (_, data) = page(&[GPU, KERNEL]);
    assert_eq!(data["traces"].as_array().expect("traces").len(), 2);
    let alone = [GPU, KERNEL].map(|trace| page(&[trace]).1["kept"]["events"].as_u64().expect("a number"));
    assert_eq!(data["kept"]["events"], alone[0] + alone[1]);
}

/// The documents of several traces are those of `ranks --json` and `diff --json`.
#[test]
fn several_traces_say_what_they_say_about_each_other() {
    let files = [GPU, KERNEL].map(Temporary::new);
    let paths = files.each_ref().map(|file| file.0.clone());
    let html = crate::export::html::Html::of(&paths, &Only::default()).expect("traces");
    let (_, data) = page_of(html, &paths);
    let diff = crate::diff::document(paths.each_ref().map(|path| path.as_path()), &Only::default());
    assert_eq!(data["diff"], diff.expect("a comparison"));
    assert_eq!(data["ranks"], Value::Null, "no process has a rank");
    let exec = |rank: u32| {
        let process = r#"{"event_id":1,"ts":0.000000000,"type":"process","name":"exec","pid":7,"tid":7,"command":["python"],"rank":RANK}"#;
        trace(&[
            &process.replace("RANK", &rank.to_string()),
            &begin(2, 5, 0, "cudaFree"),
            &end(3, 9, 2, "cudaFree"),
        ])
    };
    let ranks = [0, 1, 3].map(|rank| Temporary::new(&exec(rank)));
    let paths = ranks.each_ref().map(|file| file.0.clone());
    let html = crate::export::html::Html::of(&paths, &Only::default()).expect("traces");
    let (_, data) = page_of(html, &paths);
    let job = crate::ranks::gather(&paths, &Only::default()).expect("a job");
    assert_eq!((&data["ranks"], &data["diff"]), (&job.json(), &Value::Null));
    assert_eq!(data["ranks"]["ranks"].as_array().map(Vec::len), Some(3));
}

#[test]
fn copies_over_time_have_the_bytes_of_the_report() {
    for trace in [KERNEL, GPU, &crate::stacks::tests::training(true)] {
        let (_, data) = page(&[trace]);
        let sum =
            |value: &Value| value.as_array().expect("bytes").iter().filter_map(Value::as_u64).sum::<u64>();
        let drawn: u64 = data["copies"]["directions"]
            .as_array()
            .expect("directions")
            .iter()
            .map(|it| sum(&it["bytes"]))
            .sum();
        assert_eq!(drawn, data["traces"][0]["summary"]["transfers"]["bytes"].as_u64().expect("bytes"));
    }
}

/// What is around the data does not depend on the trace, so no text of a trace can be markup.
#[test]
fn no_text_of_a_trace_is_in_the_document() {
    let name = r#"</script><img src=x onerror=alert(1)>\u202e\u001b[31m@SCRIPT@"#;
    let hostile = trace(&[&begin(1, 1, 0, name), &end(2, 2, 1, name)]);
    let (around, data) = page(&[&hostile]);
    assert_eq!(around, page(&[KERNEL]).0);
    assert!(data["labels"].to_string().contains("onerror"));
}

/// More stacks and functions than a page has: it counts the others.
#[test]
fn tables_stacks_and_the_flame_graph_are_bounded() {
    const CALLS: u64 = 33_000;
    let frame = |n: u64| format!(r#"{{"kind":"python","function":"f{n}","file":"a.py","line":1}}"#);
    let mut lines = Vec::new();
    for n in 0..CALLS {
        let (stack, open, closed, name) = (3 * n + 1, 3 * n + 2, 3 * n + 3, format!("cudaX{}", n % 2500));
        // A stack of two frames, whose pairs are all different.
        let frames = [frame(n % 200), frame(1000 + n / 200)].join(",");
        lines.push(format!(
            r#"{{"event_id":{stack},"ts":0.{n:06}000,"type":"stack","name":"stack","stack":{n},"pid":7,"frames":[{frames}]}}"#
        ));
        let begin = begin(open, n, 0, &name);
        lines.push(begin.replace(r#""args":{}"#, &format!(r#""args":{{}},"stack":{n}"#)));
        lines.push(end(closed, n, open, &name));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (_, data) = page(&[&trace(&lines)]);
    let stacks = &data["stacks"];
    assert_eq!(stacks["rows"].as_array().map(Vec::len), Some(16_384));
    assert_eq!(stacks["left_out"], CALLS - 16_384);
    assert_eq!(stacks["stacks"].as_array().map(Vec::len), Some(32_768));
    let reports = data["traces"][0]["reports"].as_array().expect("reports");
    let tables = reports.iter().flat_map(|report| report["parts"].as_array().expect("parts"));
    let tables = tables.flat_map(|part| [&part["table"], &part["data"]]).filter(|table| table.is_object());
    let mut is_full = false;
    for table in tables {
        let (rows, more) = (table["rows"].as_array().expect("rows").len(), &table["more"]);
        assert!(rows <= 2000, "{rows} rows of {}", table["key"]);
        is_full |= rows == 2000 && *more == 500;
    }
    assert!(is_full, "no table counts the functions that it leaves out");
}
