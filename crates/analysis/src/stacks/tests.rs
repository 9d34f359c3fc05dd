//! A small made trace with stacks, for the tests of all readers, and tests of the table of stacks.

use super::*;
use crate::golden;
use crate::views::tests::{Written, json_of};
use crate::views::{Format, ReportConfig};
use crate::{Only, summary_of};

const HEADER: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"h","kernel":"6","user":"ada","options":{"stacks":true},"hooks":{}}"#;

/// Builds the lines of a trace.
pub struct Made {
    lines: Vec<String>,
    us: u64,
    live: u64,
    freed: u64,
}

impl Made {
    fn new() -> Made {
        Made { lines: vec![HEADER.to_owned()], us: 0, live: 0, freed: 0 }
    }

    fn push(&mut self, kind: &str, name: &str, rest: &str) -> u64 {
        let id = self.lines.len() as u64;
        let ts = format!("{}.{:06}000", self.us / 1_000_000, self.us % 1_000_000);
        self.lines.push(format!(r#"{{"event_id":{id},"ts":{ts},"type":"{kind}","name":"{name}",{rest}}}"#));
        id
    }

    /// Frames as `function file line` of Python, or `function module` of native ones; the innermost first.
    pub fn stack(&mut self, number: u64, frames: &[&str]) {
        let frame = |frame: &&str| match frame.split(' ').collect::<Vec<_>>().as_slice() {
            [function, file, line] => {
                format!(r#"{{"kind":"python","function":"{function}","file":"{file}","line":{line}}}"#)
            }
            [function, module] => format!(
                r#"{{"kind":"native","function":"{function}","module":"{module}","build_id":"ab","offset":"0x1f"}}"#
            ),
            other => panic!("{other:?}"),
        };
        let frames: Vec<String> = frames.iter().map(frame).collect();
        self.push("stack", "stack", &format!(r#""stack":{number},"pid":7,"frames":[{}]"#, frames.join(",")));
    }

    /// A call of a runtime function with the driver's inside. Returns the event_id of the inner begin.
    pub fn call(&mut self, names: (&str, &str), stack: u64, us: u64, inside: &str, retval: &str) -> u64 {
        let of = r#""pid":7,"tid":7"#;
        let outer = self.push(
            "userspace",
            names.0,
            &format!(r#""phase":"B",{of},"depth":0,"args":{{}},"stack":{stack}"#),
        );
        self.us += 1;
        let inner = format!(r#""phase":"B",{of},"depth":1,"parent":{outer},"args":{{}}{inside}"#);
        let inner = self.push("userspace", names.1, &inner);
        self.us += us;
        for (begin, name, us) in [(inner, names.1, us), (outer, names.0, us + 2)] {
            let end = format!(r#""phase":"E",{of},"begin":{begin},"duration_us":{us}.000,{retval}"#);
            self.push("userspace", name, &end);
            self.us += 1;
            // The lines of the consequences come right after the end of the inner call.
            if begin == inner {
                self.consequences(names.1, inner);
            }
        }
        self.us += 3;
        inner
    }

    fn consequences(&mut self, name: &str, begin: u64) {
        let of = format!(r#""pid":7,"tid":7,"begin":{begin}"#);
        match name {
            "cuMemAlloc_v2" => {
                self.live += 4096;
                let (ptr, live) = (0x1000 * (begin + 16), self.live);
                self.push("memory", name, &format!(r#"{of},"op":"alloc","space":"device","ptr":"{ptr:#x}","size":4096,"total_allocated":{live},"runtime":true"#));
            }
            "cuMemcpyHtoD_v2" => {
                self.push("transfer", name, &format!(r#"{of},"direction":"H2D","size":65536,"async":false,"pageable":true,"duration_us":4.000"#));
            }
            "cuMemFree_v2" => {
                let (ptr, live) = (self.freed, self.live);
                let freed = format!(
                    r#"{of},"op":"free","space":"device","ptr":"{ptr:#x}","freed":4096,"total_allocated":{live}"#
                );
                self.push("memory", name, &freed);
            }
            _ => {}
        }
    }

    /// Frees what the call with this inner begin allocated.
    pub fn free(&mut self, begin: u64, stack: u64) {
        self.live -= 4096;
        self.freed = 0x1000 * (begin + 16);
        self.call(("cudaFree", "cuMemFree_v2"), stack, 5, "", r#""retval":0"#);
    }

    pub fn block(&mut self, op: &str, ptr: u64, stack: u64) {
        let size = if op == "alloc" { r#""size":1024,"device":0,"stream":"0x0","# } else { "" };
        self.push(
            "block",
            &format!("pytorch:{}", if op == "alloc" { "malloc" } else { "free" }),
            &format!(r#""pid":7,"tid":7,"op":"{op}","ptr":"{ptr:#x}",{size}"stack":{stack}"#),
        );
    }

    pub fn finish(mut self) -> String {
        let events = self.lines.len();
        self.push(
            "end",
            "end",
            &format!(r#""events":{events},"lost":0,"in_flight":[],"complete":true,"summary":{{}}"#),
        );
        self.lines.join("\n") + "\n"
    }
}

const MAIN: &str = "<module> /home/ada/train.py 12";
const TORCH: &str = "forward /usr/lib/python3/dist-packages/torch/nn.py 501";

/// Twenty steps of a training loop. `leaks`: the call site load_batch never frees.
pub fn training(leaks: bool) -> String {
    let mut made = Made::new();
    made.stack(0, &["load_batch /home/ada/train.py 88", MAIN]);
    made.stack(1, &["at::empty /opt/libtorch.so", TORCH, "step /home/ada/train.py 40", MAIN]);
    made.stack(2, &["launch /opt/libtorch.so", TORCH, "step /home/ada/train.py 41", MAIN]);
    made.stack(3, &["wait /home/ada/train.py 50", MAIN]);
    made.stack(4, &["main /opt/native"]);
    let ok = r#""retval":0"#;
    let mut blocks = Vec::new();
    for step in 0..20u64 {
        let loaded = made.call(("cudaMalloc", "cuMemAlloc_v2"), 0, 10, "", ok);
        let scratch = made.call(("cudaMalloc", "cuMemAlloc_v2"), 1, 10, "", ok);
        made.call(("cudaMemcpy", "cuMemcpyHtoD_v2"), 0, 4, "", ok);
        let kernel = if step % 4 == 0 { "init" } else { "gemm" };
        let shape =
            format!(r#","kernel":"{kernel}","grid":[1,1,1],"block":[32,1,1],"shared":0,"stream":"0x0""#);
        made.call(("cudaLaunchKernel", "cuLaunchKernel"), if step % 4 == 0 { 4 } else { 2 }, 6, &shape, ok);
        made.call(("cudaDeviceSynchronize", "cuCtxSynchronize"), 3, 100, "", ok);
        made.block("alloc", 0x100 * (step + 1), 1);
        blocks.push(0x100 * (step + 1));
        if step % 2 == 1 {
            made.block("free", blocks.remove(0), 1);
        }
        made.free(scratch, 1);
        if !leaks {
            made.free(loaded, 0);
        }
        made.us += 500;
    }
    let failed = r#""retval":2,"error":"cudaErrorMemoryAllocation""#;
    made.call(("cudaMalloc", "cuMemAlloc_v2x"), 1, 10, "", failed);
    made.finish()
}

fn lines(text: &str, mut take: impl FnMut(&Line)) {
    let mut reader = gpurec_trace::Reader::new(text.as_bytes());
    while let Some(line) = reader.next().unwrap() {
        take(&line);
    }
}

fn of(text: &str) -> Stacks {
    let mut stacks = Stacks::default();
    lines(text, |line| stacks.line(line));
    stacks
}

#[test]
fn a_call_counts_once_in_its_role_and_what_is_inside_shares_its_stack() {
    let stacks = of(&training(true));
    let sum = |stack, role| stacks.sums.by_stack.get(&(stack, role)).copied().unwrap_or_default();
    let alloc = sum(0, CallRole::Alloc);
    assert_eq!((alloc.calls, alloc.ns, alloc.bytes), (20, 20 * 12_000, 20 * 4096));
    assert_eq!((sum(0, CallRole::Copy).calls, sum(0, CallRole::Copy).bytes), (20, 20 * 65_536));
    assert_eq!((sum(1, CallRole::Alloc).calls, sum(1, CallRole::Alloc).bytes), (21, 20 * 4096));
    assert_eq!((sum(1, CallRole::Free).calls, sum(1, CallRole::Free).bytes), (20, 20 * 4096));
    assert_eq!((sum(2, CallRole::Launch).calls, sum(4, CallRole::Launch).calls), (15, 5));
    assert_eq!((sum(3, CallRole::Sync).calls, sum(3, CallRole::Sync).ns), (20, 20 * 102_000));
    assert_eq!((sum(1, CallRole::Block).calls, sum(1, CallRole::Block).bytes), (20, 20 * 1024));
    assert_eq!(stacks.totals.calls, 20 * 6 + 1);
    let sites: Vec<String> = (0..5).map(|n| stacks.text(stacks.site(n).unwrap())).collect();
    let expected = [
        "train.py:88 load_batch",
        "train.py:40 step",
        "train.py:41 step",
        "train.py:50 wait",
        "main (native)",
    ];
    assert_eq!(sites, expected);
}

/// Lines are missing, duplicated, moved or refer to stacks that are not there.
#[test]
fn damaged_traces_have_sums_within_those_of_the_whole() {
    let whole = training(true);
    let calls = of(&whole).totals.calls;
    let mut state = 0x9e37_79b9_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    for _ in 0..200 {
        let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
        for _ in 0..6 {
            let at = 1 + random(lines.len() - 2);
            match random(3) {
                0 => drop(lines.remove(at)),
                1 => lines[at] = lines[at].replace("\"stack\":1", "\"stack\":18446744073709551615"),
                _ => lines[at] = lines[at].replace("\"parent\":", "\"parent\":9999"),
            }
        }
        let stacks = of(&(lines.join("\n") + "\n"));
        assert!(stacks.totals.calls <= calls);
        let counted: u64 = stacks.sums.by_stack.values().map(|sum| sum.calls).sum();
        assert!(counted <= 2 * calls + 40, "{counted}");
        assert!(stacks.figures(&stacks.sums).is_some());
    }
}

/// Stacks that point anywhere, and lines about calls that are not there: every reader answers.
#[test]
fn every_reader_answers_about_a_hostile_trace() {
    let lines = [
        HEADER,
        r#"{"event_id":1,"ts":0.1,"type":"stack","name":"stack","stack":18446744073709551615,"pid":0,"frames":[]}"#,
        r#"{"event_id":2,"ts":0.1,"type":"stack","name":"stack","stack":0,"pid":7,"frames":[{"kind":"x","function":";\n\u001b[31m","module":"/"},{"kind":"python","function":"","file":"","line":4294967295}],"cut":true}"#,
        r#"{"event_id":3,"ts":0.1,"type":"userspace","name":"cudaMalloc","phase":"B","pid":7,"tid":7,"depth":0,"parent":3,"args":{},"stack":0}"#,
        r#"{"event_id":4,"ts":0.1,"type":"userspace","name":"cuMemAlloc_v2","phase":"B","pid":7,"tid":7,"depth":1,"parent":3,"args":{},"stack":99}"#,
        r#"{"event_id":5,"ts":0.2,"type":"userspace","name":"cuMemAlloc_v2","phase":"E","pid":7,"tid":7,"begin":4,"duration_us":18014398509481984.0,"retval":0}"#,
        r#"{"event_id":6,"ts":0.2,"type":"memory","name":"x","pid":7,"tid":7,"begin":4,"op":"alloc","space":"device","ptr":"0x1","size":18446744073709551615}"#,
        r#"{"event_id":7,"ts":0.2,"type":"block","name":"x","pid":7,"tid":7,"begin":9,"op":"alloc","ptr":"0x1","size":18446744073709551615,"stack":18446744073709551615}"#,
        r#"{"event_id":8,"ts":0.2,"type":"block","name":"x","pid":7,"tid":7,"op":"alloc","ptr":"0x1","size":18446744073709551615,"stack":0}"#,
        r#"{"event_id":9,"ts":0.2,"type":"block","name":"x","pid":7,"tid":7,"op":"free","ptr":"0x2"}"#,
        r#"{"event_id":10,"ts":0.2,"type":"memory","name":"x","pid":7,"tid":7,"begin":3,"op":"free","space":"device","ptr":"0x1","freed":1}"#,
        r#"{"event_id":11,"ts":0.3,"type":"userspace","name":"cudaMalloc","phase":"B","pid":7,"tid":7,"depth":0,"args":{},"stack":0,"no_return":"x"}"#,
    ];
    let file = Written::new("stacks-hostile", &(lines.join("\n") + "\n"));
    for view in crate::views::NAMES {
        let text = crate::views::tests::text_of(view, file.path(), &ReportConfig::default());
        assert!(!text.contains('\u{1b}'), "{view}: {text:?}");
        json_of(view, file.path(), &ReportConfig::default());
    }
    let figures = summary_of(file.path(), &Only::default()).unwrap();
    assert!(!crate::text::print(&figures, golden::WIDTH).contains('\u{1b}'));
    for format in crate::export::ExportFormat::ALL {
        let files = vec![file.path().to_owned()];
        let folder = file.path().with_extension("export");
        let output = if format.is_folder() { folder.clone() } else { "/dev/null".into() };
        let (output, only) = (Some(output), Only::default());
        let config = crate::export::ExportConfig { files, format: *format, output, only, by: None };
        assert_eq!(crate::export::export(&config).unwrap(), 0, "{}", format.name());
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[test]
fn an_unfinished_call_is_of_its_stack() {
    let mut made = Made::new();
    made.stack(0, &["wait /home/ada/train.py 50"]);
    let hang = r#""phase":"B","pid":7,"tid":7,"depth":0,"args":{},"stack":0"#;
    let begin = made.push("userspace", "cudaDeviceSynchronize", hang);
    made.us += 5_000_000;
    made.push("end", "end", &format!(r#""events":3,"lost":0,"in_flight":[{{"pid":7,"tid":7,"name":"cudaDeviceSynchronize","begin":{begin},"duration_us":5000000.0,"died":false}}],"complete":true,"summary":{{}}"#));
    let file = Written::new("stacks-hang", &(made.lines.join("\n") + "\n"));
    let json = json_of("stacks", file.path(), &ReportConfig::default());
    let row = &json["stacks"][0];
    assert_eq!((&row["unfinished"], &row["total_ns"]), (&1.into(), &5_000_000_000u64.into()));
    assert_eq!(row["call_site"], "train.py:50 wait");
    let figures = summary_of(file.path(), &Only::default()).unwrap().stacks.unwrap();
    let sync = &figures.by_role[0];
    assert_eq!(
        (sync.role.as_str(), sync.top[0].unfinished, sync.top[0].total_ns),
        ("sync", 1, 5_000_000_000)
    );
}

#[test]
fn every_report_names_the_call_site() {
    let file = Written::new("stacks-sites", &training(true));
    let config = ReportConfig::default();
    let json = |name: &str| json_of(name, file.path(), &config);
    let site = |rows: &serde_json::Value| rows[0]["call_site"].as_str().unwrap_or("none").to_owned();
    let leaks = json("leaks");
    assert_eq!(
        (site(&leaks["groups"]), site(&leaks["sites"])),
        ("train.py:88 load_batch".into(), "train.py:88 load_batch".into())
    );
    assert_eq!((&leaks["count"], &leaks["sites"][0]["count"]), (&20.into(), &20.into()));
    let memory = json("memory");
    assert_eq!(site(&memory["held_at_peak"]), "train.py:88 load_batch");
    assert_eq!(
        (&memory["blocks"][0]["peak_bytes"], &memory["blocks"][0]["blocks"]),
        (&(11 * 1024).into(), &20.into())
    );
    assert_eq!(memory["spaces"][0]["allocated_bytes"], 40 * 4096, "blocks are not memory");
    assert_eq!(site(&json("kernels")["kernels"]), "train.py:41 step");
    assert_eq!(site(&json("sync")["waiters"]), "train.py:50 wait");
    assert_eq!(site(&json("sync")["copies"]), "train.py:88 load_batch");
    assert_eq!(site(&json("copies")["calls"]), "train.py:88 load_batch");
    assert_eq!(site(&json("errors")["errors"]), "train.py:40 step");
    assert_eq!(site(&json("gaps")["longest"]), "train.py:41 step");
    assert_eq!(site(&json("longest")["calls"]), "train.py:50 wait");
    let figures = summary_of(file.path(), &Only::default()).unwrap();
    assert_eq!(figures.memory.leaks.largest[0].site.as_deref(), Some("train.py:88 load_batch"));
    assert_eq!(figures.findings.iter().find_map(|f| f.site.as_deref()), Some("train.py:88 load_batch"));
}

#[test]
fn golden_texts() {
    let file = Written::new("stacks-golden", &training(true));
    for view in
        ["stacks", "leaks", "memory", "kernels", "sync", "copies", "errors", "gaps", "longest", "waste"]
    {
        let text = crate::views::tests::text_of(view, file.path(), &ReportConfig::default());
        golden::check(&format!("{view}_stacks"), &text);
    }
    // The fuzzer begins with a part of the trace.
    let whole = training(true);
    let part: Vec<&str> = whole.lines().take(70).chain(whole.lines().last()).collect();
    golden::check("stacks_trace", &(part.join("\n") + "\n"));
    let config = ReportConfig { role: Some(CallRole::Alloc), invert: true, ..ReportConfig::default() };
    golden::check("stacks_alloc_inverted", &crate::views::tests::text_of("stacks", file.path(), &config));
    let figures = summary_of(file.path(), &Only::default()).unwrap();
    golden::check("summary_stacks", &crate::text::print(&figures, golden::WIDTH));
}

/// A recording with --summary-only has the top stacks of each role in its figures.
#[test]
fn figures_answer_alone() {
    let whole = Written::new("stacks-whole", &training(true));
    let figures = summary_of(whole.path(), &Only::default()).unwrap();
    let end = serde_json::json!({
        "event_id": 1, "ts": 1.0, "type": "end", "name": "end", "events": 1, "lost": 0, "in_flight": [],
        "complete": true, "summary": figures.to_json(),
    });
    let file = Written::new("stacks-figures", &format!("{HEADER}\n{end}\n"));
    let config =
        ReportConfig { role: Some(CallRole::Alloc), format: Format::Json, ..ReportConfig::default() };
    let json = json_of("stacks", file.path(), &config);
    assert_eq!((&json["calls"], &json["stacks"][0]["call_site"]), (&41.into(), &"train.py:40 step".into()));
    assert_eq!(json["stacks"].as_array().unwrap().len(), 2);
    assert_eq!(
        json_of("leaks", file.path(), &ReportConfig::default())["groups"][0]["call_site"],
        "train.py:88 load_batch"
    );
}

/// What the recorder alone knows is in its `end` line.
#[test]
fn what_stacks_lack_is_said() {
    let mut made = Made::new();
    made.stack(0, &["step /home/ada/train.py 40", MAIN]);
    made.push("stack", "stack", r#""stack":1,"pid":7,"frames":[],"cut":true"#);
    made.call(("cudaMalloc", "cuMemAlloc_v2"), 0, 10, "", r#""retval":0"#);
    made.push("lost", "lost", r#""count":3,"by_probe":{"call stacks":3}"#);
    let end = r#""summary":{"stacks":{"missing":2,"unnamed":1}}}"#;
    let text = made.finish().replace(r#""lost":0"#, r#""lost":3"#).replace(r#""summary":{}}"#, end);
    let written = Written::new("gaps", &text);
    let stacks = summary_of(written.path(), &Only::default()).unwrap().stacks.unwrap();
    assert_eq!((stacks.stacks, stacks.cut, stacks.lost, stacks.missing, stacks.unnamed), (2, 1, 3, 2, 1));
    let said = [
        "1 call stack is cut: outer frames are missing.",
        "3 calls have no call stack, because the ring buffers were full: try a larger --ring.",
        "2 calls have no call stack, because the recorder keeps no more distinct ones.",
        "1 native frame has no name, because the recorder could not ask for it in time.",
    ];
    assert_eq!(stacks.gaps(), said);
    assert!(StackFigures::default().gaps().is_empty());
}
