//! Reads datasets back with the crate's reader. Not here: other engines, which tests/export/parquet.py has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::columns::{Kind, Table};
use super::parts::MOST_RANKS;
use super::write;
use crate::Only;

const KERNEL: &str = include_str!("../../tests/kernel.jsonl");
const GPU: &str = include_str!("../../tests/gpu.jsonl");

/// A folder that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpurec-parquet-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Folder(path)
    }

    fn trace(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    fn dataset(&self) -> PathBuf {
        self.0.join("dataset")
    }

    fn exported(&self, files: &[PathBuf]) -> Vec<String> {
        write(files, &Only::default(), &self.dataset()).expect("a dataset")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Row = BTreeMap<String, Field>;

/// The files below a folder, with their paths in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if entry.path().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn open(path: &Path) -> SerializedFileReader<File> {
    SerializedFileReader::new(File::open(path).expect("a file")).expect("a whole Parquet file")
}

fn rows(dataset: &Path, table: Table) -> Vec<Row> {
    let mut all = Vec::new();
    for path in files(&dataset.join(table.name())) {
        for row in open(&path).get_row_iter(None).expect("rows") {
            all.push(row.expect("a row").into_columns().into_iter().collect());
        }
    }
    all
}

fn number(row: &Row, column: &str) -> Option<i64> {
    match row.get(column) {
        Some(Field::Long(n)) => Some(*n),
        Some(Field::Null) => None,
        other => panic!("{column}: {other:?}"),
    }
}

fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    match row.get(column) {
        Some(Field::Str(text)) => Some(text),
        Some(Field::Null) => None,
        other => panic!("{column}: {other:?}"),
    }
}

fn flag(row: &Row, column: &str) -> bool {
    row.get(column) == Some(&Field::Bool(true))
}

fn header(start: &str) -> String {
    format!(
        r#"{{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"node/1","kernel":"6","user":"ada","options":{{}},"hooks":{{}}{start}}}"#
    )
}

const CLOCK: &str = r#","clock":{"monotonic_ns":5000,"realtime_ns":1790000000000000000,"error_ns":60,"boot_id":"b","ntp":null,"ptp":null}"#;
fn end(id: usize) -> String {
    format!(
        r#"{{"event_id":{id},"ts":9.000000000,"type":"end","name":"end","events":{id},"lost":0,"in_flight":[],"complete":true,"summary":{{}}}}"#
    )
}

fn trace(clock: &str, lines: &[&str]) -> String {
    let (header, end) = (header(clock), end(lines.len() + 1));
    [header.as_str()].iter().chain(lines).chain([&end.as_str()]).map(|line| format!("{line}\n")).collect()
}

/// What each line of these traces says is in the dataset.
#[test]
fn every_line_has_its_row() {
    let ranks = [0, 1].map(|rank| {
        let path = format!("{}/../../traces/ddp_h100_rank{rank}.jsonl.zst", env!("CARGO_MANIFEST_DIR"));
        let text = zstd::decode_all(File::open(path).expect("a trace")).expect("Zstandard");
        String::from_utf8(text).expect("UTF-8")
    });
    for text in [KERNEL, GPU, &ranks[0], &ranks[1]] {
        let folder = Folder::new();
        folder.exported(&[folder.trace("t.jsonl", text)]);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let count = |kind: &[&str], phase: &[Option<&str>]| {
            let is = |line: &&serde_json::Value| {
                kind.contains(&line["type"].as_str().unwrap_or_default())
                    && phase.contains(&line["phase"].as_str())
            };
            lines.iter().filter(is).count()
        };
        for (table, kinds) in [
            (Table::Calls, &["userspace"][..]),
            (Table::Driver, &["kernel", "scheduler"]),
            (Table::Memory, &["memory"]),
            (Table::Transfers, &["transfer"]),
            (Table::Gpu, &["gpu"]),
            (Table::Collectives, &["collective"]),
            (Table::Processes, &["process"]),
            (Table::Other, &["device", "clock", "xid", "lost", "budget", "suspend"]),
            (Table::Meta, &["header"]),
        ] {
            let rows = rows(&folder.dataset(), table).len();
            assert_eq!(rows, count(kinds, &[Some("B"), None]), "{}", table.name());
        }
        let ended = rows(&folder.dataset(), Table::Calls)
            .iter()
            .filter(|row| number(row, "end_event_id").is_some())
            .count();
        assert_eq!(ended, count(&["userspace"], &[Some("E")]));
    }
}

#[test]
fn a_call_is_one_row_on_the_clocks_of_the_host() {
    let folder = Folder::new();
    let text_of = trace(
        CLOCK,
        &[
            r#"{"event_id":1,"ts":0.000001000,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":7,"tid":8,"depth":0,"args":{"f":"0x1"},"kernel":"k<int>","grid":[1,2,3],"block":[4,5,6],"shared":7,"stream":"0x8","new":[1,"x"]}"#,
            r#"{"event_id":2,"ts":0.000002000,"type":"userspace","name":"cuMemAlloc_v2","phase":"B","pid":7,"tid":9,"depth":0,"args":{}}"#,
            r#"{"event_id":3,"ts":0.000003500,"type":"userspace","name":"cuLaunchKernel","phase":"E","pid":7,"tid":8,"begin":1,"duration_us":2.500,"retval":700,"error":"CUDA_ERROR_ILLEGAL_ADDRESS","out":{"p":"0x2"},"args":{"late":1}}"#,
            r#"{"event_id":4,"ts":0.000004000,"type":"userspace","name":"x","phase":"B","pid":7,"tid":8,"depth":0,"args":{},"no_return":"because"}"#,
            r#"{"event_id":5,"ts":0.000005000,"type":"userspace","name":"y","phase":"E","pid":7,"tid":8,"begin":44,"duration_us":1.000,"retval":0}"#,
            r#"{"event_id":6,"ts":0.000006000,"type":"future","name":"z","pid":7,"more":{"a":1}}"#,
        ],
    );
    folder.exported(&[folder.trace("t.jsonl", &text_of)]);
    let calls = rows(&folder.dataset(), Table::Calls);
    let [launch, open, unwatched] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(number(launch, "ts"), Some(1_790_000_000_000_001_000));
    assert_eq!(number(launch, "mono"), Some(6_000));
    assert_eq!((number(launch, "event_id"), number(launch, "end_event_id")), (Some(1), Some(3)));
    assert_eq!((number(launch, "duration_ns"), number(launch, "retval")), (Some(2_500), Some(700)));
    let grid =
        ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"].map(|column| number(launch, column));
    assert_eq!(grid, [1, 2, 3, 4, 5, 6].map(Some));
    assert_eq!((text(launch, "kernel"), number(launch, "stream")), (Some("k<int>"), Some(8)));
    assert_eq!(
        (text(launch, "args"), text(launch, "late_args")),
        (Some(r#"{"f":"0x1"}"#), Some(r#"{"late":1}"#))
    );
    assert_eq!(text(launch, "error"), Some("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_eq!((number(open, "duration_ns"), text(open, "ended")), (None, Some("in_flight")));
    assert_eq!((number(unwatched, "duration_ns"), text(unwatched, "ended")), (None, Some("no_return")));
    assert_eq!(text(unwatched, "no_return"), Some("because"));
    let other = rows(&folder.dataset(), Table::Other);
    let kinds: Vec<_> = other.iter().map(|row| text(row, "type").unwrap_or_default()).collect();
    assert_eq!(kinds, ["userspace", "future"]);
    assert!(text(&other[1], "line").is_some_and(|line| line.contains(r#""more":{"a":1}"#)));
    // Without `clock` the start is known to a millisecond, and the monotonic time is not.
    let folder = Folder::new();
    folder.exported(&[folder.trace("t.jsonl", &trace("", &[]))]);
    let meta = rows(&folder.dataset(), Table::Meta);
    assert_eq!(number(&meta[0], "ts"), Some(1_795_237_200_000_000_000));
    assert_eq!(number(&meta[0], "mono"), None);
}

#[test]
fn rows_are_in_the_partition_of_their_rank() {
    let folder = Folder::new();
    let exec = |id: u64, pid: u32, rank: &str| {
        format!(
            r#"{{"event_id":{id},"ts":0.1,"type":"process","name":"exec","pid":{pid},"tid":{pid},"command":["a"]{rank}}}"#
        )
    };
    let call = |id: u64, pid: u32| {
        format!(
            r#"{{"event_id":{id},"ts":0.2,"type":"userspace","name":"f","phase":"B","pid":{pid},"tid":{pid},"depth":0,"args":{{}}}}"#
        )
    };
    let fork = r#"{"event_id":3,"ts":0.1,"type":"process","name":"fork","pid":8,"tid":8,"child":9}"#;
    let lines = [
        exec(1, 7, ",\"rank\":0"),
        exec(2, 8, ",\"rank\":1"),
        fork.to_owned(),
        call(4, 7),
        call(5, 9),
        call(6, 5),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    folder.exported(&[folder.trace("node.jsonl", &trace(CLOCK, &lines))]);
    let found = files(&folder.dataset().join("calls"));
    let names: Vec<_> =
        found.iter().map(|path| path.strip_prefix(folder.dataset()).expect("in it").to_owned()).collect();
    let name = |rank: &str| {
        PathBuf::from(format!(
            "calls/job=__HIVE_DEFAULT_PARTITION__/host=node%2F1/rank={rank}/part-0.parquet"
        ))
    };
    assert_eq!(names, [name("0"), name("1"), name("__HIVE_DEFAULT_PARTITION__")]);
    // With one rank alone, everything is that rank's.
    let folder = Folder::new();
    let lines = [exec(1, 7, ",\"rank\":3"), call(4, 7), call(6, 5)];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    folder.exported(&[folder.trace("rank.jsonl", &trace(CLOCK, &lines))]);
    assert!(files(&folder.dataset()).iter().all(|path| path.to_string_lossy().contains("rank=3/part-")));
    assert_eq!(rows(&folder.dataset(), Table::Calls).len(), 2);
}

/// The ranks beyond the limit share the partition of processes without a rank, and the export counts their processes.
#[test]
fn a_trace_of_very_many_ranks() {
    let calls_of = |ranks: usize| {
        let folder = Folder::new();
        let mut lines = Vec::new();
        for pid in 1..=ranks {
            let exec = r#""type":"process","name":"exec","command":["a"]"#;
            let call = r#""type":"userspace","name":"f","phase":"B","depth":0,"args":{}"#;
            for rest in [format!("{exec},\"rank\":{}", pid - 1), call.to_owned()] {
                let id = lines.len() + 1;
                lines.push(format!(r#"{{"event_id":{id},"ts":0.1,"pid":{pid},"tid":{pid},{rest}}}"#));
            }
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let said = folder.exported(&[folder.trace("node.jsonl", &trace(CLOCK, &lines))]);
        let calls = folder.dataset().join("calls/job=__HIVE_DEFAULT_PARTITION__/host=node%2F1");
        let mut partitions: BTreeMap<String, usize> = BTreeMap::new();
        for file in files(&calls) {
            let rank = file.strip_prefix(&calls).expect("in it").parent().expect("a partition");
            let rows = open(&file).metadata().file_metadata().num_rows() as usize;
            *partitions.entry(rank.display().to_string()).or_default() += rows;
        }
        (said, partitions)
    };
    let with_rank = |partitions: &BTreeMap<String, usize>| {
        let own = (0..MOST_RANKS).filter(|rank| partitions.get(&format!("rank={rank}")) == Some(&1));
        own.count()
    };
    let (said, partitions) = calls_of(MOST_RANKS);
    assert_eq!((with_rank(&partitions), partitions.len()), (MOST_RANKS, MOST_RANKS));
    assert!(said.is_empty(), "{said:?}");
    let (said, partitions) = calls_of(MOST_RANKS + 3);
    assert_eq!((with_rank(&partitions), partitions.len()), (MOST_RANKS, MOST_RANKS + 1));
    assert_eq!(partitions["rank=__HIVE_DEFAULT_PARTITION__"], 3);
    let [said] = said.as_slice() else { panic!("{said:?}") };
    let expected = "more than 64 ranks: the rows of 3 processes are in the partition without a rank";
    assert!(said.contains(expected), "{said}");
}

/// Twice the same trace is one; two traces are two. No hidden file stays.
#[test]
fn a_trace_is_in_the_dataset_once() {
    let folder = Folder::new();
    let one = folder.trace("one.jsonl", GPU);
    folder.exported(std::slice::from_ref(&one));
    let before = files(&folder.dataset());
    folder.exported(std::slice::from_ref(&one));
    assert_eq!(files(&folder.dataset()), before);
    let two = folder.trace("two.jsonl", GPU);
    folder.exported(&[one, two]);
    let after = files(&folder.dataset());
    assert_eq!(after.len(), 2 * before.len());
    assert!(after.iter().all(|path| path.extension().is_some_and(|extension| extension == "parquet")));
    assert_eq!(rows(&folder.dataset(), Table::Meta).len(), 2);
}

/// Parts that an earlier export put elsewhere go: it did not know the rank yet, or had rows of more tables.
#[test]
fn a_trace_that_was_longer_or_shorter_is_in_the_dataset_once() {
    let folder = Folder::new();
    let exec = r#"{"event_id":2,"ts":0.2,"type":"process","name":"exec","pid":7,"tid":7,"command":["a"],"rank":3,"job":"ジョブの名前が長い場合もあるジョブの名前が長い場合もある場合"}"#;
    let call = r#"{"event_id":1,"ts":0.1,"type":"userspace","name":"f","phase":"B","pid":7,"tid":7,"depth":0,"args":{}}"#;
    let other = folder.trace("other.jsonl", &trace(CLOCK, &[call]));
    folder.exported(std::slice::from_ref(&other));
    let of_other = files(&folder.dataset());
    for (lines, calls) in [(&[call][..], 2), (&[call, exec], 2), (&[exec], 1)] {
        folder.exported(&[folder.trace("one.jsonl", &trace(CLOCK, lines))]);
        assert_eq!(rows(&folder.dataset(), Table::Meta).len(), 2, "{lines:?}");
        assert_eq!(rows(&folder.dataset(), Table::Calls).len(), calls, "{lines:?}");
    }
    assert!(of_other.iter().all(|path| path.exists()));
}

#[test]
fn a_cut_trace_says_so() {
    let folder = Folder::new();
    let whole = trace(CLOCK, &[]);
    let cut = &whole[..whole.len() - 20];
    let said = folder.exported(&[folder.trace("whole.jsonl", &whole), folder.trace("cut.jsonl", cut)]);
    assert_eq!(said.len(), 1, "{said:?}");
    let mut complete: Vec<_> = rows(&folder.dataset(), Table::Meta)
        .iter()
        .map(|row| {
            (text(row, "file").is_some_and(|file| file.ends_with("whole.jsonl")), flag(row, "complete"))
        })
        .collect();
    complete.sort_unstable();
    assert_eq!(complete, [(false, false), (true, true)]);
    for path in files(&folder.dataset()) {
        let reader = open(&path);
        let pairs = reader.metadata().file_metadata().key_value_metadata().expect("metadata");
        let value = |key: &str| pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone());
        assert_eq!(value("gpurec.schema").as_deref(), Some("1"));
        assert!(value("gpurec.complete").is_some_and(|value| value == "true" || value == "false"));
    }
    fs::write(folder.0.join("bad.jsonl"), "no trace\n").expect("a file");
    let before = files(&folder.dataset());
    write(&[folder.0.join("bad.jsonl")], &Only::default(), &folder.dataset()).expect_err("no trace");
    assert_eq!(files(&folder.dataset()), before);
}

/// Keys that this version does not know are in `rest`, those of rows without that column in the line itself.
#[test]
fn nothing_of_a_line_is_lost() {
    let folder = Folder::new();
    let size = u64::MAX;
    let memory = format!(
        r#"{{"event_id":6,"ts":0.5,"type":"memory","name":"memory","pid":7,"tid":7,"begin":4,"function":"f","op":"alloc","space":"device","ptr":"0x1","size":{size},"tier":"hbm"}}"#
    );
    let text_of = trace(
        concat!(
            r#","rack":12"#,
            r#","clock":{"monotonic_ns":5000,"realtime_ns":1790000000000000000,"error_ns":60,"boot_id":"b","ntp":null,"ptp":null,"tai":37}"#
        ),
        &[
            r#"{"event_id":1,"ts":0.1,"type":"process","name":"exec","pid":7,"tid":7,"command":["a"],"rank":1,"zone":{"n":1}}"#,
            r#"{"event_id":2,"ts":0.2,"type":"stack","name":"stack","stack":0,"pid":7,"frames":[{"kind":"python","function":"f","file":"a.py","line":1,"column":9},{"kind":"native","function":null,"module":"m","build_id":null,"offset":"0x1f"}]}"#,
            r#"{"event_id":3,"ts":0.3,"type":"clock","name":"clock","monotonic_ns":1,"realtime_ns":2,"error_ns":3,"boot_id":null,"ntp":null,"ptp":null,"tai":37}"#,
            r#"{"event_id":4,"ts":0.4,"type":"userspace","name":"f","phase":"B","pid":7,"tid":7,"depth":0,"args":{"later":"0x1"},"sm":[1,"x"]}"#,
            r#"{"event_id":5,"ts":0.5,"type":"userspace","name":"f","phase":"E","pid":7,"tid":7,"begin":4,"duration_us":1.000,"retval":0,"sm":2,"q":"\"r"}"#,
            &memory,
            r#"{"event_id":7,"ts":0.6,"type":"userspace","name":"g","phase":"E","pid":7,"tid":7,"begin":99,"duration_us":1.000,"retval":0,"sm":3}"#,
            r#"{"event_id":8,"ts":0.7,"type":"userspace","name":"h","phase":"B","pid":7,"tid":7,"depth":0,"args":{}}"#,
            r#"{"event_id":9,"ts":0.8,"type":"userspace","name":"i","phase":"B","pid":7,"tid":7,"depth":0,"args":{},"sm":4}"#,
        ],
    );
    let said = folder.exported(&[folder.trace("t.jsonl", &text_of)]);
    assert!(!said.iter().any(|said| said.contains("skipped")), "{said:?}");
    let rest = |table: Table| {
        let rows = rows(&folder.dataset(), table);
        rows.iter().map(|row| text(row, "rest").map(str::to_owned)).collect::<Vec<_>>()
    };
    let some = |text: &str| Some(text.to_owned());
    // The end of `h` is missing; the line that shows it is about `i`.
    // Both lines of the call have a key `sm`. Keys of one line are in no order.
    assert_eq!(rest(Table::Calls), [some(r#"{"sm":[1,"x"],"q":"\"r","sm":2}"#), None, some(r#"{"sm":4}"#)]);
    let of_memory: serde_json::Value =
        serde_json::from_str(rest(Table::Memory)[0].as_deref().expect("keys")).expect("JSON");
    assert_eq!(of_memory, serde_json::json!({ "tier": "hbm", "function": "f", "size": size }));
    assert_eq!(rest(Table::Processes), [some(r#"{"zone":{"n":1}}"#)]);
    assert_eq!(rest(Table::Stacks), [some(r#"{"column":9}"#), None]);
    assert_eq!(rest(Table::Meta), [some(r#"{"rack":12}"#)]);
    let meta = rows(&folder.dataset(), Table::Meta);
    assert!(meta[0]["clock"].to_string().contains("tai"), "{meta:?}");
    let other = rows(&folder.dataset(), Table::Other);
    let lines: Vec<_> = other.iter().filter_map(|row| text(row, "line")).collect();
    assert_eq!(lines, [text_of.lines().nth(3), text_of.lines().nth(7)].map(Option::unwrap_or_default));
    assert_eq!(number(&rows(&folder.dataset(), Table::Memory)[0], "size"), None);
}

/// More rows than a window, with calls that are open for long: no row is lost or moved to another call.
#[test]
fn long_calls_keep_their_rows() {
    let folder = Folder::new();
    let mut text_of = header(CLOCK) + "\n";
    let mut id = 0;
    let mut line = |rest: String| {
        id += 1;
        text_of.push_str(&format!("{{\"event_id\":{id},\"ts\":0.{id:09},{rest}}}\n"));
        id
    };
    let begin = |name: &str, tid: u32, depth: u32| {
        format!(
            r#""type":"userspace","name":"{name}","phase":"B","pid":7,"tid":{tid},"depth":{depth},"args":{{"n":{tid}}}"#
        )
    };
    let ended = |name: &str, tid: u32, of: u64| {
        format!(
            r#""type":"userspace","name":"{name}","phase":"E","pid":7,"tid":{tid},"begin":{of},"duration_us":1.000,"retval":{of}"#
        )
    };
    let outer: Vec<u64> = (1..4).map(|tid| line(begin("outer", tid, 0))).collect();
    for _ in 0..70_000 {
        let inner = line(begin("inner", 1, 1));
        line(ended("inner", 1, inner));
    }
    for (tid, of) in (2..4).zip(&outer[1..]) {
        line(ended("outer", tid, *of));
    }
    text_of.push_str(&end(140_006));
    folder.exported(&[folder.trace("t.jsonl", &text_of)]);
    let calls = rows(&folder.dataset(), Table::Calls);
    assert_eq!(calls.len(), 70_003);
    for call in &calls {
        let (id, retval) = (number(call, "event_id"), number(call, "retval"));
        match (text(call, "name"), number(call, "tid")) {
            (Some("outer"), Some(1)) => assert_eq!((retval, text(call, "ended")), (None, Some("in_flight"))),
            _ => assert_eq!(retval, id),
        }
        assert_eq!(
            text(call, "args").map(str::to_owned),
            number(call, "tid").map(|tid| format!("{{\"n\":{tid}}}"))
        );
    }
}

/// python/ knows the columns by this file; `GPUREC_REWRITE=1` writes it.
#[test]
fn the_package_knows_the_columns() {
    let kind = |kind: Kind| match kind {
        Kind::Rising | Kind::Number => "BIGINT",
        Kind::Name | Kind::Text => "VARCHAR",
        Kind::Flag => "BOOLEAN",
    };
    let mut text = String::from("{\n");
    for table in Table::ALL {
        let columns: Vec<String> = table
            .columns()
            .map(|column| format!("    \"{}\": \"{}\"", column.name, kind(column.kind)))
            .collect();
        text.push_str(&format!("  \"{}\": {{\n{}\n  }},\n", table.name(), columns.join(",\n")));
    }
    text.push_str("  \"clocks\": {\n    \"host\": \"VARCHAR\",\n    \"offset_ns\": \"BIGINT\",\n    \"drift_ppm\": \"DOUBLE\",\n    \"error_ns\": \"BIGINT\",\n    \"at_ns\": \"BIGINT\"\n  }\n}\n");
    let path = crate::golden::path("python/src/gpurec/columns.json");
    if std::env::var_os("GPUREC_REWRITE").is_some() {
        fs::write(&path, &text).expect("it can be written");
    }
    assert_eq!(fs::read_to_string(&path).expect("columns.json"), text);
}
