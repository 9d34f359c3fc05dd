//! Traces made to fill a reader's memory: gpurec reads them to their end within a memory limit.
//!
//! In: compressed traces of some hundred megabytes, made here, line by line.
//! Out: the reader's memory while it reads.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use super::{Folder, gpurec};

/// In KiB. The reader's own code and buffers are some ten thousand of it.
const MOST: u64 = 300 << 10;

const HEADER: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"","host":"","kernel":"","user":""}"#;

fn write(folder: &Folder, name: &str, each: impl Fn(&mut dyn Write)) -> String {
    let path = folder.file(name);
    let mut out = zstd::stream::write::Encoder::new(File::create(&path).unwrap(), 1).unwrap();
    writeln!(out, "{HEADER}").unwrap();
    each(&mut out);
    out.finish().unwrap();
    path
}

/// Returns the most memory of its own, in KiB, that a reading command uses.
fn most_memory(words: &[&str]) -> u64 {
    let mut child = gpurec(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = own.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse().ok());
        most = kib.unwrap_or(0).max(most);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().code().is_some_and(|code| code <= 1), "{words:?}");
    println!("{words:?}: {} MiB", most >> 10);
    most
}

fn bounded(file: &str, commands: &[&[&str]]) {
    for command in commands {
        let words = [command, &[file][..]].concat();
        let most = most_memory(&words);
        assert!(most < MOST, "{words:?} took {} MiB", most >> 10);
    }
}

#[test]
fn memory_of_very_many_processes() {
    let folder = Folder::new();
    let file = write(&folder, "pids.jsonl.zst", |out| {
        for id in 1..1_500_000u64 {
            let line = format!(
                r#"{{"event_id":{id},"ts":0.{id:09},"type":"memory","name":"cuMemAlloc_v2","pid":{id},"tid":1,"begin":{id},"op":"alloc","space":"device","ptr":"0x10","size":8,"total_allocated":8}}"#
            );
            writeln!(out, "{line}").unwrap();
        }
    });
    bounded(&file, &[&["summary"], &["report", "leaks"], &["report", "memory"]]);
}

#[test]
fn calls_that_never_return() {
    let folder = Folder::new();
    let file = write(&folder, "open.jsonl.zst", |out| {
        for id in 1..2_000_000u64 {
            let (pid, tid) = (id / 1000, id);
            let line = format!(
                r#"{{"event_id":{id},"ts":0.{id:09},"type":"userspace","name":"cuInit","phase":"B","pid":{pid},"tid":{tid},"depth":0,"args":{{}}}}"#
            );
            writeln!(out, "{line}").unwrap();
        }
    });
    bounded(
        &file,
        &[
            &["summary"],
            &["report", "threads"],
            &["report", "gaps"],
            &["report", "errors"],
            &["timeline"],
            &["check", "--assert", "calls<=1"],
            &["export", "--format", "csv", "-o", &folder.file("csv")],
        ],
    );
}

/// Each open call has its name, which is long.
#[test]
fn calls_that_never_return_of_functions_with_long_names() {
    let folder = Folder::new();
    let file = write(&folder, "open-long.jsonl.zst", |out| {
        let long = "x".repeat(8000);
        for id in 1..60_000u64 {
            let name = format!("cuda{}{long}", id % 1900);
            let line = format!(
                r#"{{"event_id":{id},"ts":0.{id:09},"type":"userspace","name":"{name}","phase":"B","pid":1,"tid":{id},"depth":0,"args":{{}}}}"#
            );
            writeln!(out, "{line}").unwrap();
        }
    });
    bounded(&file, &[&["summary"], &["report", "errors"], &["report", "longest"]]);
}

/// Reads a part of a trace, in which a child has the name of its parent.
#[test]
fn children_of_a_process_with_a_long_command() {
    let folder = Folder::new();
    let file = write(&folder, "forks.jsonl.zst", |out| {
        let mut id = 0;
        let mut line = |name: &str, rest: &str| {
            id += 1;
            writeln!(
                out,
                r#"{{"event_id":{id},"ts":0.{id:09},"type":"process","name":"{name}","tid":1,{rest}}}"#
            )
            .unwrap();
        };
        let long = "x".repeat(1 << 20);
        line("exec", &format!(r#""pid":1,"command":["{long}"]"#));
        (2..1000).for_each(|child| line("fork", &format!(r#""pid":1,"child":{child}"#)));
        (1000..1400).for_each(|pid| line("exec", &format!(r#""pid":{pid},"command":["{long}"]"#)));
    });
    bounded(&file, &[&["summary", "--pid", "7"], &["report", "api", "--pid", "7"]]);
}

/// Functions, kernels and errors, each with a long name of its own.
#[test]
fn names_that_are_all_different() {
    let folder = Folder::new();
    let file = write(&folder, "names.jsonl.zst", |out| {
        let long = "x".repeat(6000);
        for i in 0..30_000u64 {
            let (begin, end, name) = (2 * i + 1, 2 * i + 2, format!("{i}{long}"));
            let launch = format!(
                r#"{{"event_id":{begin},"ts":0.{begin:09},"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":{i},"tid":{i},"depth":0,"args":{{}},"kernel":"k{name}","grid":[1,1,1],"block":[1,1,1]}}"#
            );
            let failed = format!(
                r#"{{"event_id":{end},"ts":0.{end:09},"type":"userspace","name":"f{name}","phase":"E","pid":{i},"tid":{i},"begin":{begin},"duration_us":1.000,"retval":{end},"error":"e{name}"}}"#
            );
            writeln!(out, "{launch}\n{failed}").unwrap();
        }
    });
    bounded(
        &file,
        &[
            &["summary", "--json"],
            &["report", "kernels"],
            &["report", "errors"],
            &["report", "api"],
            &["report", "sync"],
            &["export", "--format", "perfetto", "-o", &folder.file("perfetto")],
        ],
    );
}

#[test]
fn very_long_lines() {
    let folder = Folder::new();
    let file = write(&folder, "long.jsonl.zst", |out| {
        let words = r#""x","#.repeat(300_000);
        let long = "y".repeat(15 << 20);
        let mut id = 1;
        let mut line = |kind: &str, name: &str, rest: &str| {
            writeln!(
                out,
                r#"{{"event_id":{id},"ts":0.{id:09},"type":"{kind}","name":"{name}","pid":{id},"tid":{id},{rest}}}"#
            )
            .unwrap();
            id += 1;
        };
        for _ in 0..10 {
            line("process", "exec", &format!(r#""command":[{words}"x"]"#));
            line("process", "exec", &format!(r#""command":["{long}"]"#));
            line("process", "library", &format!(r#""path":"{long}","functions":1"#));
            line("userspace", &long, r#""phase":"B","depth":0,"args":{}"#);
            line(
                "memory",
                "cuMemAlloc_v2",
                &format!(
                    r#""begin":1,"op":"alloc","space":"{long}","ptr":"0x10","size":8,"total_allocated":8"#
                ),
            );
        }
        for parts in [r#"{"a":{}},"#, "[[]],", "0,"] {
            let many = parts.repeat((15 << 20) / parts.len());
            line(
                "end",
                "end",
                &format!(
                    r#""events":1,"lost":0,"complete":true,"incomplete_because":[],"summary":{{"a":[{many}0]}}"#
                ),
            );
        }
    });
    bounded(&file, &[&["summary"], &["report", "threads"], &["report", "memory"], &["timeline"]]);
}

/// GPU work of ever new processes, streams and kernels on many devices, with pauses, each piece with a call of its own.
#[test]
fn gpu_work_that_is_all_different() {
    let folder = Folder::new();
    let file = write(&folder, "gpu.jsonl.zst", |out| {
        let long = "x".repeat(700);
        for i in 0..250_000u64 {
            let (begin, end, work, us) = (3 * i + 1, 3 * i + 2, 3 * i + 3, 10 * i);
            let (pid, tid, kernel, device) = (i / 50, i / 5, i % 200_000, i % 80);
            let at = |us: u64| format!("{}.{:06}000", us / 1_000_000, us % 1_000_000);
            let call = format!(r#""type":"userspace","name":"cuLaunchKernel","pid":{pid},"tid":{tid}"#);
            let (from, to, start) = (at(us), at(us + 2), at(us + 9_000_000 - us % 9_000_000));
            let lines = [
                format!(r#"{{"event_id":{begin},"ts":{from},{call},"phase":"B","depth":0,"args":{{}}}}"#),
                format!(
                    r#"{{"event_id":{end},"ts":{to},{call},"phase":"E","begin":{begin},"duration_us":2.000,"retval":0}}"#
                ),
                format!(
                    r#"{{"event_id":{work},"ts":{start},"type":"gpu","name":"k{kernel}{long}","kind":"kernel","source":"lane","pid":{pid},"stream":{i},"device":{device},"context":1,"correlation":1,"begin":{begin},"duration_us":{}.001,"queued_us":3.000}}"#,
                    i % 7
                ),
            ];
            lines.iter().for_each(|line| writeln!(out, "{line}").unwrap());
        }
    });
    bounded(
        &file,
        &[
            &["summary"],
            &["report", "gpu"],
            &["report", "idle"],
            &["timeline"],
            &["check", "--assert", "gpu.queue.p99<1s"],
            &["summary", "--tid", "7"],
            &["export", "--format", "perfetto", "-o", &folder.file("perfetto")],
        ],
    );
}
