//! `export --format html`: the modules of the page by node, and the page by Chromium.
//!
//! In: node; for the page also Debian's chromium and the folder of puppeteer-core and axe-core that GPUREC_BROWSER names
//! (scripts/test --full fills it). Out: what tests/export/html finds. With CI=true a missing thing fails a test.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Folder, root, run, said, trace};

fn skipped(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "a test was skipped under CI: {why}");
    eprintln!("SKIPPED: {why}");
}

fn has(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

#[test]
fn the_modules_of_the_page_do_what_they_say() {
    if !has("node") {
        return skipped("node runs the tests of the page's modules: apt install nodejs");
    }
    let file = root().join("tests/export/html/modules.test.mjs");
    let done = Command::new("node").arg("--test").arg(file).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
}

/// A trace with a text in every field that tries to be markup, a terminal's command, or longer than all else.
fn hostile() -> String {
    let text = r#"\u001b]0;x\u0007\u202e</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\" onload=\"window.pwned=1"#;
    let long = format!("{text}{}", "x".repeat(1 << 20));
    let mut lines = vec![format!(
        r#"{{"event_id":0,"ts":0.0,"type":"header","name":"gpurec","schema":1,"version":"{text}","start":"{text}","host":"{text}","kernel":"{text}","driver":"{text}","command":["{text}"],"user":"{text}","options":{{"{text}":"{text}"}},"hooks":{{}}}}"#
    )];
    let mut add = |line: String| {
        let line = line.replace("\"event_id\":ID", &format!("\"event_id\":{}", lines.len()));
        lines.push(line);
    };
    add(format!(
        r#"{{"event_id":ID,"ts":0.001,"type":"process","name":"exec","pid":7,"tid":7,"command":["{text}","{long}"]}}"#
    ));
    add(format!(
        r#"{{"event_id":ID,"ts":0.001,"type":"stack","name":"stack","stack":0,"pid":7,"frames":[{{"kind":"python","function":"{text}","file":"{text}","line":3}},{{"kind":"native","function":"{text}","module":"{text}","build_id":"{text}","offset":"0x1"}}]}}"#
    ));
    for (at, name) in [text, &long, "cudaMalloc", "cudaLaunchKernel"].into_iter().enumerate() {
        let begin = 3 + 4 * at;
        add(format!(
            r#"{{"event_id":ID,"ts":0.{at}1,"type":"userspace","name":"{name}","phase":"B","pid":7,"tid":7,"depth":0,"args":{{"{text}":"{text}"}},"stack":0,"kernel":"{text}","grid":[1,1,1],"block":[1,1,1]}}"#
        ));
        add(format!(
            r#"{{"event_id":ID,"ts":0.{at}2,"type":"userspace","name":"{name}","phase":"E","pid":7,"tid":7,"begin":{begin},"duration_us":10000.000,"retval":2,"error":"{text}","out":{{"{text}":"{text}"}}}}"#
        ));
        add(format!(
            r#"{{"event_id":ID,"ts":0.{at}2,"type":"memory","name":"{name}","pid":7,"tid":7,"begin":{begin},"op":"alloc","space":"{text}","ptr":"0x1{at}0","size":4096,"total_allocated":4096}}"#
        ));
        add(format!(
            r#"{{"event_id":ID,"ts":0.{at}3,"type":"gpu","name":"{name}","kind":"kernel","source":"lane","pid":7,"stream":7,"device":0,"context":1,"correlation":1,"begin":{begin},"duration_us":2.240,"direction":"{text}"}}"#
        ));
    }
    add(format!(
        r#"{{"event_id":ID,"ts":1.0,"type":"end","name":"end","events":9,"lost":1,"in_flight":[],"complete":false,"incomplete_because":["{text}"],"incomplete_codes":["lost"],"summary":{{"unknown":{{"memory.leaks":"{text}"}}}}}}"#
    ));
    lines.join("\n") + "\n"
}

#[test]
#[ignore = "takes half a minute in a browser; the test above runs the scripts of the page without one: scripts/test --full"]
fn the_page_is_read_by_a_browser_and_runs_nothing_of_a_trace() {
    let modules = std::env::var_os("GPUREC_BROWSER").map(PathBuf::from);
    let Some(modules) = modules.filter(|_| has("node") && has("chromium")) else {
        return skipped(
            "GPUREC_BROWSER names no folder, or there is no node or chromium: npm install --prefix DIR puppeteer-core@24 axe-core",
        );
    };
    let folder = Folder::new();
    let evil = folder.file("hostile.jsonl");
    std::fs::write(&evil, hostile()).unwrap();
    let traces = [
        "demo.jsonl.zst",
        "torch_gpu_h100.jsonl.zst",
        "torch_stacks_h100.jsonl.zst",
        "context_h200.jsonl.zst",
    ];
    let mut files: Vec<String> = traces.into_iter().map(trace).collect();
    files.push(evil);
    let mut check = Command::new("node");
    check.env("NODE_MODULES", &modules).arg(root().join("tests/export/html/browser.mjs"));
    for (at, file) in files.iter().enumerate() {
        let page = folder.file(&format!("{at}.html"));
        let done = run(&["export", "--format", "html", "-o", &page, file]);
        assert!(done.status.success(), "{file}: {}", said(&done));
        check.arg(page);
    }
    // What changed between two traces, and two ranks of a job.
    for (name, pair) in [
        ("changes.html", ["needless_before.jsonl.zst", "needless_after.jsonl.zst"]),
        ("ranks.html", ["ddp_h100_rank0.jsonl.zst", "ddp_h100_rank1.jsonl.zst"]),
    ] {
        let page = folder.file(name);
        let pair = pair.map(trace);
        let done = run(&["export", "--format", "html", "-o", &page, &pair[0], &pair[1]]);
        assert!(done.status.success(), "{}", said(&done));
        check.arg(page);
    }
    let done = check.output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    eprintln!("{}", said(&done));
}
