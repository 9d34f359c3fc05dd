//! --all: processes that somebody else starts, before and after; they are never stopped.

use std::fs;

use nix::sys::signal::Signal;

use crate::room::{Process, eventually, live_nvidia};
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
    });
}
