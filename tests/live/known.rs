//! Figures that a recording cannot know: in the summary, in JSON, in `check` and in `report leaks`.
//! In: the stand-in libraries.
//! Out: a reason, where a number would mislead.

use std::fs;

use serde_json::Value;

use crate::figures::figure;
use crate::room::{Room, live};
use crate::trace::Trace;

fn compiled(room: &Room, source: &str) -> String {
    let libraries = concat!(env!("OUT_DIR"), "/demo");
    let runtime = format!("{libraries}/libcudart.so.13");
    let name = source.trim_end_matches(".c");
    room.compile(source, name, &[&runtime, &format!("-Wl,-rpath,{libraries}")])
}

/// The README's own line: frees are not recorded, so gpurec cannot tell what leaks.
#[test]
fn without_frees_nothing_leaks() {
    live(|room| {
        let (program, file) = (compiled(room, "cases.c"), room.text("t.jsonl"));
        let words = ["--only", "cuLaunch*", "--only", "cuMemAlloc*", "-o", &file, "--", program.as_str()];
        let done = room.run(room.gpurec(&words));
        done.exited(0).said("Kernel launches: 2000\n").said("Leaks: not known (frees were not recorded");
        let trace = Trace::checked(room, &file);
        let summary = &trace.end["summary"];
        assert_eq!((&summary["memory"]["leaks"], &summary["kernel_launches"]), (&Value::Null, &2000.into()));
        assert_eq!(summary["unknown"]["memory.leaks"], "frees were not recorded");
        assert_eq!(*figure(summary, "memory.allocations"), 3);
        assert!(trace.of_type("memory").all(|line| line.get("total_allocated").is_none()));

        let leaks = room.run(room.gpurec(&["report", "leaks", &file]));
        let said = leaks.exited(0).text();
        assert!(said.starts_with("Not known: what was never freed (frees were not recorded).\n"), "{said}");
        let check = |assertion| room.run(room.gpurec(&["check", "--assert", assertion, &file]));
        check("launches==2000").exited(0);
        check("memory.leaked==0").exited(1);
        check("errors==0").exited(1);
        assert!(check("memory.peak<1GB").exited(1).text().contains("no value"));
    });
}

/// A process's figures leave out what it held before the recording, and its frees of that are marked as such.
#[test]
fn memory_from_before_a_recording() {
    live(|room| {
        let (program, file, go) = (compiled(room, "earlier.c"), room.text("t.jsonl"), room.text("go"));
        let mut target = room.target(&[&program, &go]);
        target.wait_for_stdout("ready");
        let recording = room.start(room.gpurec(&["-o", &file, "--pid", &target.pid().to_string()]));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        target.done().exited(0);
        let done = recording.done();
        done.exited(0).said("Memory held at exit: not known (memory from before the recording is not in it; 2097152 bytes (2.00 MB) in 1 allocation seen)");
        let trace = Trace::checked(room, &file);
        let lines: Vec<&Value> = trace.of_type("memory").collect();
        let told = |line: &&Value| (line["op"] == "alloc", line["size"].as_u64().or(line["freed"].as_u64()));
        let told: Vec<_> = lines.iter().map(told).collect();
        assert_eq!(
            told,
            [(true, Some(2 << 20)), (false, None), (true, Some(1 << 20)), (false, Some(1 << 20))]
        );
        let earlier: Vec<bool> = lines.iter().map(|line| line["earlier"] == true).collect();
        assert_eq!(earlier, [false, true, false, false]);
        assert!(lines.iter().all(|line| line.get("total_allocated").is_none()), "{lines:?}");
        let summary = &trace.end["summary"];
        assert_eq!(summary["memory"]["frees"], 2);
        assert_eq!(summary["memory"]["freed_bytes"], Value::Null);
        assert_eq!(summary["processes"][0]["peak_device_bytes"], Value::Null);
        let check = room.run(room.gpurec(&["check", "--assert", "memory.held<1GB", &file]));
        assert!(check.exited(1).text().contains("memory from before the recording is not in it"));
    });
}
