//! Reads exports back: text with serde_json and by hand, Perfetto's bytes with a decoder of the wire format. Not here:
//! foreign readers, which tests/export/check.py covers.

mod html;
mod stacks;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use super::annotate::Annotator;
use super::{ExportConfig, ExportFormat, Writing, chrome::Chrome, export};
use crate::Only;
use crate::stacks::Weight;

/// The fields of a message: number, and content as bytes or as a number.
type Fields = Vec<(u64, Result<Vec<u8>, u64>)>;

const HEADER: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"h","kernel":"6","user":"ada","options":{},"hooks":{}}"#;
const END: &str = r#"{"event_id":9,"ts":9.000000000,"type":"end","name":"end","events":9,"lost":0,"in_flight":[],"complete":true,"summary":{}}"#;

/// A temporary file, deleted on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(content: &str) -> Temporary {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpurec-export-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).expect("the folder for temporary files can be written");
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir_all(&self.0));
    }
}

/// The export, and the notes. The bytes of a folder are empty.
fn exported(format: ExportFormat, traces: &[&str]) -> (Vec<u8>, Vec<String>) {
    let kept: Vec<Temporary> = traces.iter().map(|trace| Temporary::new(trace)).collect();
    let files: Vec<PathBuf> = kept.iter().map(|file| file.0.clone()).collect();
    let to = Temporary::new("");
    if format.is_folder() {
        std::fs::remove_file(&to.0).expect("it is there");
    }
    let writing = Writing { files: &files, only: &Only::default(), path: Some(&to.0) };
    let said = format.write(writing, Weight::default()).expect("traces that can be read");
    (if format.is_folder() { Vec::new() } else { std::fs::read(&to.0).expect("an export") }, said)
}

fn trace(lines: &[&str]) -> String {
    [HEADER].iter().chain(lines).chain([&END]).map(|line| format!("{line}\n")).collect()
}

fn begin(id: u64, us: u64, depth: u32, name: &str) -> String {
    format!(
        r#"{{"event_id":{id},"ts":0.{us:06}000,"type":"userspace","name":"{name}","phase":"B","pid":7,"tid":8,"depth":{depth},"args":{{}}}}"#
    )
}

fn end(id: u64, us: u64, begin: u64, name: &str) -> String {
    format!(
        r#"{{"event_id":{id},"ts":0.{us:06}000,"type":"userspace","name":"{name}","phase":"E","pid":7,"tid":8,"begin":{begin},"duration_us":1.000,"retval":0}}"#
    )
}

/// The events of a Chrome trace by phase.
fn events(json: &[u8]) -> HashMap<String, Vec<Value>> {
    let document: Value = serde_json::from_slice(json).expect("JSON");
    let mut by_phase: HashMap<String, Vec<Value>> = HashMap::new();
    for event in document["traceEvents"].as_array().expect("a list") {
        let phase = event["ph"].as_str().expect("a phase").to_owned();
        by_phase.entry(phase).or_default().push(event.clone());
    }
    by_phase
}

fn count(json: &[u8], phase: &str) -> usize {
    events(json).get(phase).map_or(0, Vec::len)
}

fn fields(mut bytes: &[u8]) -> Fields {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                found.push((tag >> 3, Err(varint(&mut bytes))));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        found.push((tag >> 3, Ok(content.to_vec())));
        bytes = rest;
    }
    found
}

/// Type and time of the events of a Perfetto trace.
fn packets(bytes: &[u8]) -> Vec<(u64, u64)> {
    let number = |fields: &[(u64, Result<Vec<u8>, u64>)], wanted: u64| {
        fields.iter().find(|(field, _)| *field == wanted).and_then(|(_, value)| value.clone().err())
    };
    let mut found = Vec::new();
    for (_, packet) in fields(bytes) {
        let packet = fields(&packet.expect("a packet"));
        let event = packet.iter().find(|(field, _)| *field == 11);
        if let Some((_, Ok(event))) = event {
            let kind = number(&fields(event), 9).expect("a type");
            found.push((kind, number(&packet, 8).expect("a time")));
        }
    }
    found
}

/// `GPUREC_REWRITE=1` rewrites them.
fn golden(name: &str, text: &str) {
    let path = crate::golden::path(&format!("crates/analysis/src/golden/{name}.txt"));
    if std::env::var_os("GPUREC_REWRITE").is_some() {
        std::fs::write(&path, text).expect("the golden text can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden text");
    assert_eq!(text, expected, "{name}: if it is better so, GPUREC_REWRITE=1 cargo test writes it");
}

const KERNEL: &str = include_str!("../tests/kernel.jsonl");

const GPU: &str = include_str!("../tests/gpu.jsonl");

#[test]
fn traces_of_the_driver_and_of_a_gpu_as_chrome_and_as_csv() {
    for (format, name, trace) in [
        (ExportFormat::Chrome, "export_chrome_kernel", KERNEL),
        (ExportFormat::Csv, "export_csv_kernel", KERNEL),
        (ExportFormat::Chrome, "export_chrome_gpu", GPU),
        (ExportFormat::Csv, "export_csv_gpu", GPU),
    ] {
        let (bytes, said) = exported(format, &[trace]);
        assert_eq!(said, Vec::<String>::new());
        let text = String::from_utf8(bytes).expect("text");
        // The file name differs in each run.
        let shown: String = text
            .lines()
            .map(|line| match line.strip_prefix("/") {
                Some(row) if format == ExportFormat::Csv => {
                    format!("FILE,{}\n", row.split_once(',').expect("cells").1)
                }
                _ => format!("{line}\n"),
            })
            .collect();
        golden(name, &shown);
    }
}

#[test]
fn what_is_in_the_trace_is_in_every_format() {
    let lines = |phase: &str| KERNEL.lines().filter(|line| line.contains(phase)).count();
    let (json, _) = exported(ExportFormat::Chrome, &[KERNEL]);
    assert_eq!(count(&json, "B"), lines(r#""phase":"B""#));
    // Two calls end with the exit of their process.
    assert_eq!(count(&json, "E"), lines(r#""phase":"E""#) + 2);
    let (bytes, _) = exported(ExportFormat::Perfetto, &[KERNEL]);
    let beside = 5;
    let kinds = |wanted| packets(&bytes).iter().filter(|(kind, _)| *kind == wanted).count();
    assert_eq!(kinds(1), count(&json, "B") + beside);
    assert_eq!(kinds(2), count(&json, "E") + beside);
    assert_eq!(kinds(3), count(&json, "i"));
    assert_eq!(kinds(4), count(&json, "C"));
    assert_eq!(count(&json, "s"), 8);
    assert_eq!(count(&json, "f"), 8);
}

#[test]
fn json_has_no_character_that_controls_a_terminal() {
    const ODD: &str = "x\u{9b}31m\u{202e}\u{7f}é";
    let args = format!("\"args\":{{\"{ODD}\":\t\"{ODD}\"}}");
    let exec = format!(
        r#"{{"event_id":1,"ts":0.000000500,"type":"process","name":"exec","pid":7,"tid":8,"command":["{ODD}"]}}"#
    );
    let odd = trace(&[&exec, &begin(2, 1, 0, ODD).replace("\"args\":{}", &args), &end(3, 2, 2, ODD)]);
    let (json, _) = exported(ExportFormat::Chrome, &[&odd]);
    let text = std::str::from_utf8(&json).expect("text");
    assert!(!text.contains(|c| c != '\n' && crate::ui::is_unsafe(c)) && text.contains('é'), "{text:?}");
    let call = &events(&json)["B"][0];
    assert_eq!((&call["name"], &call["args"]["args"][ODD]), (&ODD.into(), &ODD.into()));
}

#[test]
fn times_are_exact() {
    let lines = [
        begin(1, 1, 0, "cuA").replace("0.000001000", "86401.123456789"),
        end(2, 2, 1, "cuA").replace("0.000002000", "86401.123456790"),
    ];
    let trace = trace(&[&lines[0], &lines[1]]);
    let (json, _) = exported(ExportFormat::Chrome, &[&trace]);
    let text = String::from_utf8(json).expect("text");
    assert!(
        text.contains(r#""ph":"B","ts":86401123456.789,"#)
            && text.contains(r#""ph":"E","ts":86401123456.790,"#)
    );
    let (bytes, _) = exported(ExportFormat::Perfetto, &[&trace]);
    assert!(
        packets(&bytes).contains(&(1, 86_401_123_456_789))
            && packets(&bytes).contains(&(2, 86_401_123_456_790))
    );
}

#[test]
fn a_call_in_flight_is_closed_for_chrome_and_open_for_perfetto() {
    let trace = trace(&[&begin(1, 1, 0, "cuA"), &begin(2, 2, 1, "cuB"), &end(3, 3, 2, "cuB")]);
    let (json, _) = exported(ExportFormat::Chrome, &[&trace]);
    let ends = &events(&json)["E"];
    assert_eq!(ends.len(), 2);
    assert_eq!(ends[1]["args"], serde_json::json!({"in_flight": true}));
    assert_eq!(ends[1]["ts"], 9_000_000.0);
    let (bytes, _) = exported(ExportFormat::Perfetto, &[&trace]);
    let slices = packets(&bytes).into_iter().filter(|(kind, _)| *kind < 3);
    assert_eq!(slices.map(|(kind, _)| kind).collect::<Vec<_>>(), [1, 1, 2]);
    let (table, _) = exported(ExportFormat::Csv, &[&trace]);
    let table = String::from_utf8(table).expect("text");
    assert!(
        table
            .lines()
            .any(|row| row.contains("0.000001000,,userspace,cuA,7,8") && row.contains(",in_flight,"))
    );
}

#[test]
fn a_missing_end_closes_nothing_else_and_a_missing_begin_is_reported() {
    let trace = trace(&[
        &begin(1, 1, 0, "cuOuter"),
        &begin(2, 2, 1, "cuEndIsMissing"),
        &end(3, 3, 1, "cuOuter"),
        &end(4, 4, 77, "cuBeginIsMissing"),
        &begin(5, 5, 0, "cuEndIsMissingToo"),
        &begin(6, 6, 0, "cuNext"),
        &end(7, 5, 6, "cuNext"),
    ]);
    let (json, said) = exported(ExportFormat::Chrome, &[&trace]);
    let found = events(&json);
    assert_eq!((found["B"].len(), found["E"].len()), (4, 4));
    let lost: Vec<bool> = found["E"].iter().map(|end| end["args"]["lost"] == true).collect();
    assert_eq!(lost, [true, false, true, false]);
    // The line claims an end before the begin: the duration is zero, not negative.
    assert_eq!(found["E"][3]["ts"], 6.0);
    let said = said.join("\n");
    for reported in ["1 ends of calls whose begin", "2 calls have no end", "1 events are earlier"] {
        assert!(said.contains(reported), "{reported}: {said}");
    }
    let notes: Value = serde_json::from_slice(&json).expect("JSON");
    assert!(notes["otherData"]["notes"].to_string().contains("2 calls have no end"));
}

#[test]
fn ranks_are_put_on_one_time_and_keep_apart() {
    let one = trace(&[&begin(1, 1, 0, "cuA"), &end(2, 2, 1, "cuA")]);
    let later = one.replace("05:00:00.000", "05:00:01.500");
    let exec = |rank| {
        format!(
            r#"{{"event_id":1,"ts":0.000000000,"type":"process","name":"exec","pid":7,"tid":7,"command":["python","train.py"],"rank":{rank}}}"#
        )
    };
    let named = |trace: &str, rank: u32| {
        trace.replacen(HEADER.get(100..).expect("long"), &format!("{}\n{}", &HEADER[100..], exec(rank)), 1)
    };
    let later =
        named(&later.replace("05:00:01.500", "05:00:00.000"), 1).replace("05:00:00.000", "05:00:01.500");
    let one = named(&one, 0);
    // The order of the files does not matter for the times.
    let (json, _) = exported(ExportFormat::Chrome, &[&later, &one]);
    let found = events(&json);
    let begins: Vec<(f64, u64)> = found["B"]
        .iter()
        .map(|event| (event["ts"].as_f64().expect("ts"), event["pid"].as_u64().expect("pid")))
        .collect();
    assert_eq!((begins[0].0, begins[1].0), (1_500_001.0, 1.0));
    assert_ne!(begins[0].1, begins[1].1);
    let names = found["M"]
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"].to_string());
    let names: Vec<String> = names.collect();
    for rank in ["python train.py [rank 0]", "python train.py [rank 1]"] {
        assert!(names.iter().any(|name| name.contains(rank)), "{rank}: {names:?}");
    }
    let (bytes, _) = exported(ExportFormat::Perfetto, &[&later, &one]);
    let times: Vec<u64> = packets(&bytes).iter().filter(|(kind, _)| *kind == 1).map(|(_, at)| *at).collect();
    assert_eq!(times, [1_500_001_000, 1_000]);
}

#[test]
fn of_two_recordings_in_one_file_the_second_is_left_out_and_that_is_said() {
    let one = trace(&[&begin(1, 1, 0, "cuA")]);
    let (json, said) = exported(ExportFormat::Chrome, &[&format!("{one}{one}")]);
    let found = events(&json);
    assert_eq!((found["B"].len(), found["E"].len()), (1, 1));
    assert!(said.join("").contains("another trace begins"), "{said:?}");
}

#[test]
fn memory_that_a_process_held_is_gone_with_it() {
    let alloc = r#"{"event_id":3,"ts":0.000003000,"type":"memory","name":"cuA","pid":7,"tid":8,"begin":1,"op":"alloc","space":"device","ptr":"0x10","size":4096,"total_allocated":4096}"#;
    let exit = r#"{"event_id":4,"ts":0.000004000,"type":"process","name":"exit","pid":7,"tid":8,"status":0}"#;
    let trace = trace(&[&begin(1, 1, 0, "cuA"), &end(2, 2, 1, "cuA"), alloc, exit]);
    let (json, _) = exported(ExportFormat::Chrome, &[&trace]);
    let bytes: Vec<Value> = events(&json)["C"].iter().map(|event| event["args"]["bytes"].clone()).collect();
    assert_eq!(bytes, [4096, 0]);
}

#[test]
fn a_cell_keeps_commas_and_quotes_and_shows_line_ends() {
    let name = r#"a \"b\",\nc"#;
    let trace = trace(&[&begin(1, 1, 0, name), &end(2, 2, 1, name)]);
    let (table, _) = exported(ExportFormat::Csv, &[&trace]);
    let table = String::from_utf8(table).expect("text");
    assert!(table.contains("userspace,\"a \"\"b\"\",\\nc\",7,8,"), "{table}");
    let columns = table.lines().next().expect("a header").matches(',').count();
    let whole = table.lines().filter(|row| !row.contains("b\"\""));
    for row in whole.filter(|row| !row.contains('{')) {
        assert_eq!(row.matches(',').count(), columns, "{row}");
    }
}

#[test]
fn an_export_is_never_written_over_its_trace_nor_for_one_that_cannot_be_read() {
    let trace = Temporary::new(&trace(&[]));
    for format in ExportFormat::ALL {
        let config = |file: &Temporary, to: &Temporary| ExportConfig {
            only: Only::default(),
            files: vec![file.0.clone()],
            format: *format,
            output: Some(to.0.clone()),
            by: None,
        };
        let error = export(&config(&trace, &trace)).expect_err("it is the trace itself");
        assert!(error.is::<crate::Usage>(), "{error}");
        let (old, no_trace) = (Temporary::new("an older export"), Temporary::new("not a trace\n"));
        export(&config(&no_trace, &old)).expect_err("it is no trace");
        assert_eq!(std::fs::read(&old.0).expect("it is there"), b"an older export");
        if format.is_folder() {
            continue;
        }
        export(&config(&trace, &old)).expect("a trace");
        assert_ne!(std::fs::read(&old.0).expect("it is there"), b"an older export", "{}", format.name());
    }
}

#[cfg(feature = "cli")]
#[test]
fn the_command_line_has_every_format_and_no_other() {
    use clap::ValueEnum;
    let named = |format: &ExportFormat| format.to_possible_value().expect("a name").get_name().to_owned();
    let words: Vec<String> = ExportFormat::value_variants().iter().map(named).collect();
    let all: Vec<String> = ExportFormat::ALL.iter().map(|format| format.name()).collect();
    assert_eq!(words, all);
}

/// Lines are missing, duplicated or moved: in each format every call that begins also ends.
#[test]
fn a_damaged_trace_is_exported_whole() {
    let mut state = 0x1234_5678_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    for round in 0..200 {
        let mut lines: Vec<&str> = if round % 4 == 0 { GPU } else { KERNEL }.lines().collect();
        for _ in 0..4 {
            // The header stays, since the rest is no trace without it.
            let at = 1 + random(lines.len() - 1);
            let line = lines.remove(at);
            match random(3) {
                0 => lines.insert(1 + random(lines.len() - 1), line),
                1 => lines.splice(at..at, [line, line]).for_each(drop),
                _ => {}
            }
        }
        let damaged: String = lines.iter().map(|line| format!("{line}\n")).collect();
        // A folder waits for the disk, file by file.
        for format in ExportFormat::ALL.iter().filter(|format| !format.is_folder() || round % 20 < 2) {
            exported(*format, &[&damaged]);
        }
        let (json, _) = exported(ExportFormat::Chrome, &[&damaged]);
        let begins = count(&json, "B");
        assert_eq!(begins, count(&json, "E"));
        let (bytes, _) = exported(ExportFormat::Perfetto, &[&damaged]);
        let slices = packets(&bytes).iter().filter(|(kind, _)| *kind == 1).count();
        assert_eq!(slices, begins + count(&json, "X"));
        let (table, _) = exported(ExportFormat::Csv, &[&damaged]);
        let rows = String::from_utf8(table).expect("text").lines().count() - 1;
        assert_eq!(rows, begins + count(&json, "X") + count(&json, "i") - notes(&json));
    }
}

fn notes(json: &[u8]) -> usize {
    events(json)["i"].iter().filter(|event| event["name"] == "note").count()
}

/// Annotations as text, `name=value`, decoded with the entries that came with them.
#[test]
fn json_becomes_annotations() {
    let json = r#"{"a":1,"b":-2,"c":1.5,"d":"0x1f","e":"0x01","f":"x\"y\u00e9","g":true,"h":null,"i":[1,[2]],"j":{"a":"x"},"k":{},"l":18446744073709551615}"#;
    let (mut annotator, mut out) = (Annotator::default(), Vec::new());
    let Ok(gpurec_trace::Value::Object(items)) = serde_json::from_str(json) else { panic!("an object") };
    for item in &*items {
        annotator.annotation(&mut out, 4, &item.name, &item.value);
    }
    let mut texts: HashMap<(u64, u64), String> = HashMap::new();
    for (kind, entry) in fields(&annotator.entries) {
        match fields(&entry.expect("an entry")).as_slice() {
            [(1, Err(iid)), (2, Ok(text))] => {
                let text = String::from_utf8(text.clone()).expect("UTF-8");
                assert!(texts.insert((kind, *iid), text).is_none());
            }
            other => panic!("{other:?}"),
        }
    }
    let shown = shown(&out, &texts);
    let expected = "a=3:1 b=4:-2 c=5:1.5 d=7:31 e=0x01 f=x\"yé g=2:1 h=6:null i=[3:1,[3:2]] j={a=x} k= l=3:18446744073709551615";
    assert_eq!(shown, expected);
}

fn shown(bytes: &[u8], texts: &HashMap<(u64, u64), String>) -> String {
    let all = fields(bytes).into_iter().map(|(_, one)| annotation(&one.expect("an annotation"), texts));
    all.collect::<Vec<_>>().join(" ")
}

fn annotation(bytes: &[u8], texts: &HashMap<(u64, u64), String>) -> String {
    let (mut name, mut values, mut opening) = (String::new(), Vec::new(), ("", ""));
    for (field, value) in fields(bytes) {
        match (field, value) {
            (1, Err(iid)) => name = format!("{}=", texts[&(3, iid)]),
            (17, Err(iid)) => values.push(texts[&(29, iid)].clone()),
            (4, Err(n)) => values.push(format!("4:{}", n as i64)),
            (5, Ok(bits)) => {
                values.push(format!("5:{}", f64::from_le_bytes(bits.try_into().expect("8 bytes"))))
            }
            (6, Ok(text)) => values.push(format!("6:{}", String::from_utf8_lossy(&text))),
            (11, Ok(inner)) => (opening, _) = (("{", "}"), values.push(annotation(&inner, texts))),
            (12, Ok(inner)) => (opening, _) = (("[", "]"), values.push(annotation(&inner, texts))),
            (field, Err(n)) => values.push(format!("{field}:{n}")),
            (field, value) => panic!("{field}: {value:?}"),
        }
    }
    format!("{name}{}{}{}", opening.0, values.join(","), opening.1)
}

/// A pipe among several files would have to be read twice.
#[test]
fn what_can_be_read_once_is_exported_alone() {
    let one = Temporary::new(&trace(&[]));
    let fifo = Temporary::new("");
    std::fs::remove_file(&fifo.0).expect("it is there");
    nix::unistd::mkfifo(&fifo.0, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for files in [[&fifo, &one], [&one, &fifo]] {
        let files = files.map(|file| file.0.clone()).to_vec();
        let error = export(&ExportConfig {
            files,
            format: ExportFormat::Csv,
            output: None,
            only: Only::default(),
            by: None,
        })
        .expect_err("a pipe");
        assert!(error.is::<crate::Usage>() && error.to_string().contains("only alone"), "{error}");
    }
}

#[test]
fn more_lanes_than_are_kept_share_one() {
    let mut tracks = super::tracks::Tracks::<()>::default();
    let mut sink = Chrome::new();
    let mut uuids: Vec<u64> =
        (0..17_000).map(|cpu| tracks.lane(&mut sink, super::tracks::Lane::Cpu(cpu)).uuid).collect();
    uuids.extend((0..17_000).map(|cpu| tracks.lane(&mut sink, super::tracks::Lane::Cpu(cpu)).uuid));
    assert_eq!(uuids[..17_000], uuids[17_000..]);
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), 16_384 + 1);
}
