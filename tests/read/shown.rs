//! What a user sees of a trace: on terminals of any width, through a pipe, of a part of it.

use super::*;

/// The kernels of a trace, read directly from its lines.
fn kernels(file: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut all: Vec<String> = lines
        .filter(|line| line["type"] == "userspace")
        .filter_map(|line| Some(line.get("kernel")?.as_str()?.to_owned()))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn shown(words: &[&str], environment: &[(&str, &str)]) -> String {
    let done = gpurec(words).envs(environment.iter().copied()).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", said(&done));
    String::from_utf8(done.stdout).unwrap()
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

#[test]
fn off_a_terminal_nothing_is_cut_and_no_name_is_broken() {
    let torch = trace("torch_h200.jsonl");
    let kernels = kernels(&torch);
    assert!(kernels.len() == 4 && kernels.iter().all(|name| name.len() > 100), "{kernels:?}");
    for words in [&["summary", &torch][..], &["report", "kernels", &torch]] {
        let text = shown(words, &[]);
        for name in &kernels {
            let name = name.trim_start_matches("void ");
            assert!(text.lines().any(|line| line.contains(name)), "{words:?} lacks {name}:\n{text}");
        }
    }
    let text = shown(&["summary", &trace("demo.jsonl.zst")], &[]);
    let process = text.lines().find(|line| line.contains("pid 19898: 4185 calls")).unwrap();
    assert!(
        process.contains("exit status 0") && process.contains("gpurec-demo-735ed63fcbaa9036"),
        "{process}"
    );
    let head = text.lines().find(|line| line.contains("Total (us)")).unwrap();
    let heads: Vec<&str> = head.split("  ").filter(|word| !word.is_empty()).map(str::trim).collect();
    let nsys = [
        "Name",
        "Time (%)",
        "Total (us)",
        "Calls",
        "Avg (us)",
        "Med (us)",
        "Min (us)",
        "Max (us)",
        "StdDev (us)",
    ];
    assert_eq!(heads[..9], nsys);
}

#[test]
fn a_width_is_kept_and_names_that_differ_still_do() {
    let torch = trace("torch_h200.jsonl");
    for (words, environment, width) in [
        (&["report", "kernels", &torch][..], &[("COLUMNS", "80")][..], 80),
        (&["report", "kernels", &torch, "--width", "200"], &[("COLUMNS", "80")], 200),
        (&["summary", "--width", "80", &torch], &[], 80),
        (&["summary", &torch], &[("COLUMNS", "120")], 120),
        (&["report", "api", "--width", "80", &torch], &[], 80),
    ] {
        let text = shown(words, environment);
        // Paths are words that are not broken.
        let tables = text.lines().filter(|line| !line.contains('/'));
        let tables: Vec<&str> = tables.collect();
        assert!(widest(&tables.join("\n")) <= width, "{words:?}:\n{text}");
        assert!(!text.contains("Launches") || text.matches("at::native::").count() >= 3, "{text}");
    }
    let text = shown(&["summary", "--width", "80", &torch], &[]);
    let process =
        text.lines().skip_while(|line| *line != "Processes: 1").take(4).collect::<Vec<_>>().join(" ");
    assert!(process.contains("exit status 0"), "{process}");
}

#[test]
fn colours_are_as_asked_for() {
    let demo = trace("demo.jsonl.zst");
    let has = |words: &[&str], environment: &[(&str, &str)]| {
        let words: Vec<&str> = ["timeline", &demo].iter().chain(words).copied().collect();
        shown(&words, environment).contains('\u{1b}')
    };
    assert!(
        !has(&[], &[]) && has(&["--color", "always"], &[]) && has(&["--color=always"], &[("NO_COLOR", "1")])
    );
    assert!(has(&[], &[("CLICOLOR_FORCE", "1")]) && !has(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    let help = shown(&["summary", "--color", "always", "--help"], &[]);
    assert!(help.contains('\u{1b}') && !shown(&["summary", "--help"], &[]).contains('\u{1b}'));
}

/// Collects each key of a trace by its path, with DuckDB's rule: a key of one line and one of another that differ only
/// in case cannot be columns of one table.
fn keys(value: &serde_json::Value, at: &str, all: &mut std::collections::BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let place = format!("{at}.{}", key.to_lowercase());
                let known = all.entry(place.clone()).or_insert_with(|| key.clone());
                assert_eq!(known, key, "at {at}");
                keys(value, &place, all);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, at, all)),
        _ => {}
    }
}

#[test]
fn no_keys_of_a_trace_differ_only_in_case() {
    for name in TRACES {
        let bytes = fs::read(trace(name)).unwrap();
        let bytes = if name.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
        let mut all = std::collections::BTreeMap::new();
        for line in String::from_utf8(bytes).unwrap().lines() {
            keys(&serde_json::from_str(line).unwrap(), "", &mut all);
        }
        assert!(all.len() > 50);
    }
}

/// With DuckDB itself, if this machine has it.
#[test]
fn duckdb_reads_every_trace() {
    let has = Command::new("python3")
        .args(["-c", "import duckdb"])
        .output()
        .is_ok_and(|done| done.status.success());
    if !has {
        return eprintln!("SKIPPED: pip install duckdb");
    }
    for name in TRACES {
        let query = "import duckdb, sys\nprint(duckdb.sql(\"select count(*) from read_json_auto('\" + sys.argv[1] + \"') where type = 'userspace' and phase = 'B'\").fetchone()[0])";
        let done = Command::new("python3").args(["-c", query, &trace(name)]).output().unwrap();
        let figures: serde_json::Value =
            serde_json::from_slice(&run(&["summary", "--json", &trace(name)]).stdout).unwrap();
        assert_eq!(said(&done).trim(), figures["cuda_calls"].to_string(), "{name}");
    }
}

/// Counts lines without any code of gpurec.
fn counted(lines: &[serde_json::Value], wanted: impl Fn(&serde_json::Value) -> bool) -> u64 {
    lines.iter().filter(|line| line["type"] == "userspace" && line["phase"] == "B" && wanted(line)).count()
        as u64
}

#[test]
fn a_part_of_a_trace_is_read_by_every_reader() {
    let folder = Folder::new();
    let file = folder.file("two.jsonl");
    // Two ranks, the second a process that was running already; each with a call that fails.
    let mut text = String::from(
        "{\"event_id\":0,\"ts\":0.0,\"type\":\"header\",\"name\":\"gpurec\",\"schema\":1,\"version\":\"\",\"start\":\"2026-01-01T00:00:00Z\",\"host\":\"\",\"kernel\":\"\",\"user\":\"\"}\n",
    );
    let mut id = 0u64;
    let mut line = |ts: u64, rest: String| {
        id += 1;
        text.push_str(&format!(
            "{{\"event_id\":{id},\"ts\":{}.{:09},{rest}}}\n",
            ts / 1_000_000_000,
            ts % 1_000_000_000
        ));
        id
    };
    line(
        1,
        r#""type":"process","name":"exec","pid":10,"tid":10,"command":["/bin/train","--a"],"rank":0"#.into(),
    );
    line(2, r#""type":"process","name":"found","pid":20,"tid":20,"comm":"serve","command":["/bin/serve"],"rank":3"#.into());
    line(3, r#""type":"process","name":"fork","pid":10,"tid":10,"child":30"#.into());
    for step in 0..30u64 {
        for (at, (pid, tid)) in [(10, 10), (10, 11), (20, 20), (30, 30)].into_iter().enumerate() {
            let ts = 100_000_000 * (step + 1) + at as u64 * 1000;
            let begin = line(
                ts,
                format!(
                    r#""type":"userspace","name":"cudaMalloc","phase":"B","pid":{pid},"tid":{tid},"depth":0,"args":{{"devPtr":"0x1","size":{}}}"#,
                    step + 1
                ),
            );
            let (retval, error) =
                if step == 7 { (2, r#","error":"cudaErrorMemoryAllocation""#) } else { (0, "") };
            line(
                ts + 50,
                format!(
                    r#""type":"userspace","name":"cudaMalloc","phase":"E","pid":{pid},"tid":{tid},"begin":{begin},"duration_us":{}.000,"retval":{retval}{error}"#,
                    step + 1
                ),
            );
        }
    }
    line(
        4_000_000_000,
        r#""type":"end","name":"end","events":0,"lost":0,"in_flight":[],"complete":true,"summary":{}"#.into(),
    );
    fs::write(&file, &text).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    type LineCheck = fn(&serde_json::Value) -> bool;
    let cases: [(&[&str], LineCheck); 6] = [
        (&["--pid", "10"], |line| line["pid"] == 10),
        (&["--tid", "11,20"], |line| line["tid"] == 11 || line["tid"] == 20),
        (&["--rank", "3"], |line| line["pid"] == 20),
        // A child has the rank of its parent.
        (&["--rank", "0", "--pid", "30"], |line| line["pid"] == 30),
        (&["--from", "1", "--to", "2s"], |line| (1.0..2.0).contains(&line["ts"].as_f64().unwrap())),
        (&["--pid", "20", "--from", "500ms"], |line| {
            line["pid"] == 20 && line["ts"].as_f64().unwrap() >= 0.5
        }),
    ];
    for (part, wanted) in cases {
        let calls = counted(&lines, wanted);
        let read = |words: &[&str], files: &[&str]| shown(&[words, part, files].concat(), &[]);
        let json =
            |words: &[&str]| -> serde_json::Value { serde_json::from_str(&read(words, &[&file])).unwrap() };
        let summary = json(&["summary", "--json"]);
        assert_eq!(summary["cuda_calls"], calls, "{part:?}");
        assert!(summary["notes"][0].as_str().unwrap().contains("only calls"), "{summary}");
        assert_eq!(json(&["report", "api", "--json"])["functions"][0]["calls"], calls, "{part:?}");
        assert_eq!(json(&["report", "latency", "cudaM*", "--json"])["calls"], calls, "{part:?}");
        let rows = read(&["export", "--format", "csv"], &[&file]);
        assert_eq!(rows.matches("cudaMalloc").count() as u64, calls, "{part:?}:\n{rows}");
        let picture = read(&["timeline"], &[&file]);
        assert!(picture.contains(" tid ") && !picture.contains("No CUDA call"), "{part:?}:\n{picture}");
        let assertion = format!("calls=={calls}");
        let check = read(&["check", "--budget", &assertion], &[&file]);
        assert!(check.contains("1 of 1 passed"), "{check}");
        let diff = json_of(&read(&["diff", "--json"], &[&file, &file]));
        assert_eq!(diff["unchanged"], 1, "{part:?}: {diff}");
    }
    // Names come from exec, from found and from the parent.
    for (pid, name) in [("10", "/bin/train --a"), ("20", "/bin/serve"), ("30", "/bin/train --a")] {
        for words in [&["summary"][..], &["report", "threads"], &["timeline"]] {
            let text = shown(&[words, &["--pid", pid, &file]].concat(), &[]);
            assert!(text.contains(name), "{words:?} of {pid}:\n{text}");
        }
    }
    // The last of them failed, and asked for 8 bytes.
    for words in [&["summary"][..], &["report", "errors"]] {
        let text = shown(&[words, &[&file]].concat(), &[]);
        assert!(
            text.contains("asked for 8 bytes") || text.contains("Asked for") && text.contains("8 B"),
            "{text}"
        );
    }
    let longest = json_of(&shown(&["report", "longest", "--top", "3", "--json", &file], &[]));
    let longest: Vec<u64> = longest["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["duration_ns"].as_u64().unwrap())
        .collect();
    assert_eq!(longest, [30_000; 3]);
    let histogram = json_of(&shown(&["report", "latency", "cudaMalloc", "--json", &file], &[]));
    let octaves: Vec<u64> =
        histogram["histogram"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).collect();
    assert_eq!(octaves.iter().sum::<u64>(), 120);
    // 1 µs is the only one below 1024 ns; 2 µs is below 2048.
    assert_eq!(octaves[..3], [4, 4, 8], "{histogram}");
    refused(&["summary", "--from", "2", "--to", "1", &file], 2, "--from must be earlier");
    let empty = shown(&["summary", "--pid", "99", &file], &[]);
    assert!(empty.contains("no call in this part"), "{empty}");
    // A gate must not pass because the process, thread or rank is missing.
    for part in ["--pid", "--tid", "--rank"] {
        let gate = run(&["check", "--budget", "launches<=1000000", part, "99", &file]);
        let text = String::from_utf8_lossy(&gate.stdout);
        assert!(gate.status.code() == Some(1) && text.contains("no value"), "{part}: {text}");
    }
    let near = shown(&["report", "latency", "cudaMaloc", &file], &[]);
    assert!(near.contains("is called cudaMaloc; did you mean cudaMalloc"), "{near}");
    let uncalled = shown(&["report", "latency", "cudaHostAlloc", &file], &[]);
    assert!(uncalled.contains("cudaHostAlloc was not called in this trace."), "{uncalled}");
    refused(&["summary", "/nonexistent.jsonl"], 125, "there is no such file");
    refused(&["summary", "/"], 125, "this is a folder");
    refused(&["summary", "--from", "x", &file], 2, "not a time");
    refused(&["summary", "--pid", "x", &file], 2, "must be a number");
    // At 80 columns no report drops its essential column.
    for (report, column) in [("longest", "Event"), ("threads", "TID"), ("errors", "Asked for")] {
        let text = shown(&["--width", "80", "report", report, &file], &[]);
        assert!(text.contains(column), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}
