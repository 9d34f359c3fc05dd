//! --all: processes that gpurec does not start, before and after it attaches; it never stops them.

use std::fs;

use nix::sys::signal::Signal;

use crate::room::{Process, eventually, live, live_nvidia};
use crate::trace::Trace;

#[test]
fn processes_of_others_are_recorded_and_not_stopped() {
    live_nvidia(|room, libraries| {
        let program = room.compile("calls.c", "calls", &[]);
        // A copy of our own: hooked only when our processes open it.
        let library = room.text("libcuda.so.1");
        fs::copy(libraries.join("libcuda.so.1"), &library).unwrap();
        let (file, go) = (room.text("t.jsonl"), room.text("go"));
        let mut before = room.target(&[&program, &library, "-1", "ready-file", &go]);
        before.wait_for_stdout("ready");

        let recording = room.start(room.gpurec(&["--all", "--only", "cuDriver*", "-o", &file]));
        let recorder = recording.pid();
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        let after = room.target(&[&program, &library, "200000"]);
        let pids = [before.pid(), after.pid()];
        eventually("calls of both", || {
            for pid in pids {
                assert!(Process::of(pid).is_none_or(|p| p.state != 'T'), "{pid} is stopped");
            }
            let text = fs::read_to_string(&file).unwrap();
            pids.iter().all(|pid| text.contains(&format!("\"phase\":\"E\",\"pid\":{pid},")))
        });
        before.signal(Signal::SIGSTOP);
        after.done().exited(0);
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        before.signal(Signal::SIGCONT);
        assert!(before.is_running());
        before.kill();

        let trace = Trace::checked(room, &file);
        assert_eq!(trace.header["all"], true);
        for pid in pids {
            let calls: Vec<_> = trace.calls.iter().filter(|call| call.pid == pid).collect();
            assert!(calls.iter().all(|call| call.name == "cuDriverGetVersion"), "of {pid}");
            assert!(calls.len() > 100, "{} of {pid}", calls.len());
        }
        // Each has a line that says what it is, before its first call; gpurec itself has no line of any kind.
        let found = trace.process_events("found");
        for pid in pids {
            let lines: Vec<_> = found.iter().filter(|line| line["pid"] == pid).collect();
            assert_eq!(lines.len(), 1, "{found:?}");
            assert_eq!(
                (&lines[0]["comm"], &lines[0]["command"][0]),
                (&"calls".into(), &program.as_str().into())
            );
            assert!(lines[0]["user"].is_string() && lines[0]["cgroup"].is_string(), "{}", lines[0]);
            let first = trace.calls.iter().find(|call| call.pid == pid).unwrap();
            assert!(lines[0]["event_id"].as_u64().unwrap() < first.id);
        }
        for line in trace.others.iter().filter(|line| line["type"] == "process") {
            assert_ne!(line["pid"], recorder, "{line}");
            // Other tests record demos at the same time.
            let is_ours = |name: &str| name.starts_with("gpurec") && name != "gpurec-demo";
            assert!(!line["comm"].as_str().is_some_and(is_ours), "{line}");
        }
        let libraries = trace.process_events("library");
        let ours = libraries.iter().filter(|line| line["path"] == library.as_str()).count();
        assert_eq!(ours, 1, "{libraries:?}");
    });
}

#[test]
fn a_library_that_appears_under_all_is_hooked_when_noticed() {
    live_nvidia(|room, libraries| {
        let program = room.compile("calls.c", "calls", &[]);
        let library = room.text("libcuda.so.1");
        fs::copy(libraries.join("libcuda.so.1"), &library).unwrap();
        let file = room.text("t.jsonl");
        let recording = room.start(room.gpurec(&["--all", "--only", "cuDriver*", "-o", &file]));
        room.wait_until_recording(&file);
        let target = room.target(&[&program, &library, "-1"]);
        let pid = target.pid();
        eventually("its calls", || {
            assert!(Process::of(pid).is_some_and(|p| p.state != 'T'));
            fs::read_to_string(&file).unwrap().contains(&format!("\"phase\":\"E\",\"pid\":{pid},"))
        });
        target.kill();
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        let calls: Vec<_> = trace.calls.iter().filter(|call| call.pid == pid).collect();
        assert!(calls.iter().all(|call| call.name == "cuDriverGetVersion"));
        let hooked =
            trace.process_events("library").into_iter().find(|line| line["path"] == library.as_str());
        let hooked = hooked.expect("from when it is hooked");
        assert_eq!(hooked["pid"], pid);
        assert!(hooked["event_id"].as_u64().unwrap() < calls[0].id, "told before its first call");
        // If the process is killed while gpurec still looks at its mappings, another reason may name it too.
        let why: Vec<&str> = trace.reasons().into_iter().filter(|why| why.contains(&library)).collect();
        assert!(!trace.complete() && why.len() == 1, "{:?}", trace.reasons());
        assert!(why[0].starts_with(&format!("process {pid} ")), "{why:?}");
        assert!(trace.codes().contains(&"hooked_late"), "{why:?}");
    });
}

/// Each process has a library of its own, which no process has mapped before, and ends at once.
#[test]
fn of_a_process_that_is_over_before_its_library_is_hooked_the_trace_says_so() {
    live(|room| {
        let program = room.compile("calls.c", "calls", &[]);
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("few.c", "libcuda.so.1", &flags);
        let file = room.text("t.jsonl");
        let recording = room.start(room.gpurec(&["--all", "-o", &file]));
        room.wait_until_recording(&file);
        let mut made = Vec::new();
        for i in 0..10 {
            fs::create_dir(room.path(&format!("{i}"))).unwrap();
            let copy = room.text(&format!("{i}/libcuda.so.1"));
            fs::copy(&library, &copy).unwrap();
            let target = room.target(&[&program, &copy, "1"]);
            made.push(target.pid());
            target.done().exited(0);
        }
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        for pid in made {
            let seen = trace.calls.iter().filter(|call| call.pid == pid).count();
            let said = trace.reasons().iter().any(|why| why.contains(&format!("process {pid}")));
            println!("process {pid}: {seen} calls, {}", if said { "told" } else { "not told" });
            assert!(said || seen > 0, "process {pid} was missed: {:?}", trace.reasons());
        }
    });
}

#[test]
fn the_wheels_of_a_running_interpreter_are_hooked_before_they_are_loaded() {
    live(|room| {
        let program = room.compile("calls.c", "calls", &[]);
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let built = room.compile("few.c", "libcuda.so.1", &flags);
        let wheel = room.path("venv/lib/python3.11/site-packages/nvidia/cuda_driver/lib");
        fs::create_dir_all(&wheel).unwrap();
        let library = wheel.join("libcuda.so.1").to_str().unwrap().to_owned();
        fs::copy(&built, &library).unwrap();
        fs::create_dir(room.path("venv/bin")).unwrap();
        let python = room.text("venv/bin/python3");
        fs::copy("/bin/sleep", &python).unwrap();
        let interpreter = room.target(&[&python, "100"]);

        let file = room.text("t.jsonl");
        let recording = room.start(room.gpurec(&["--all", "-o", &file]));
        room.wait_until_recording(&file);
        let target = room.target(&[&program, &library, "1000"]);
        let pid = target.pid();
        target.done().exited(0);
        interpreter.kill();
        recording.signal(Signal::SIGINT);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        assert!(trace.reasons().iter().all(|why| !why.contains(&pid.to_string())), "{:?}", trace.reasons());
        let calls =
            trace.calls.iter().filter(|call| call.pid == pid && call.name == "cuDriverGetVersion").count();
        assert_eq!(calls, 1000, "from the first one");
        let hooked =
            trace.process_events("library").into_iter().find(|line| line["path"] == library.as_str());
        assert_eq!(hooked.expect("hooked")["pid"], 0, "before anybody had it mapped");
    });
}

/// gpurec has seen nothing of a process that runs already but its number: every view has its name all the same.
#[test]
fn a_process_that_was_running_already_has_its_name_everywhere() {
    live_nvidia(|room, libraries| {
        let program = room.compile("calls.c", "calls", &[]);
        let library = libraries.join("libcuda.so.1").display().to_string();
        let file = room.text("t.jsonl");
        let target = room.target(&[&program, &library, "-1"]);
        let pid = target.pid().to_string();
        let recording = room.start(room.gpurec(&["--pid", &pid, "--live", "-o", &file]));
        eventually("its calls", || {
            fs::read_to_string(&file).unwrap_or_default().contains(&format!("\"phase\":\"E\",\"pid\":{pid},"))
        });
        recording.signal(Signal::SIGINT);
        let done = recording.done();
        done.exited(0);
        target.kill();
        let trace = Trace::checked(room, &file);
        let found = trace.process_events("found");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["event_id"], 1, "before everything else of the process");
        assert_eq!(found[0]["comm"], "calls");
        assert_eq!(found[0]["command"][0], program.as_str());
        assert!(done.stderr.contains(" calls "), "{}", done.stderr);
        for words in [
            &["summary"][..],
            &["report", "threads"],
            &["timeline"],
            &["export", "--format", "chrome"],
            &["export", "--format", "csv"],
        ] {
            let shown = room.run(room.gpurec(&[words, &[&file]].concat()));
            shown.exited(0);
            let text = String::from_utf8_lossy(&shown.stdout);
            assert!(text.contains(&program), "{words:?}: {text}");
        }
    });
}
