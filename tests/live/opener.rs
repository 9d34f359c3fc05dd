//! Files that keep their reader waiting, and files that cannot be read. The process that mapped them continues, gpurec
//! stays responsive, and the trace says what it may lack.

use std::fs;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;

use crate::disorder::X;
use crate::refuse::Call;
use crate::room::live;
use crate::room::{Room, eventually};
use crate::run::{Done, Started};
use crate::trace::Trace;

/// How many seconds a server stays that does not answer: far longer than gpurec may take.
const STAYS: &str = "40";

/// A library behind a FUSE server, see fixtures/programs/fuse.c.
struct ServedLibrary<'a> {
    x: X,
    server: Started<'a>,
    point: String,
    library: String,
}

impl ServedLibrary<'_> {
    fn new<'a>(room: &'a Room, mode: &str, user: &str) -> ServedLibrary<'a> {
        let x = X::new(room);
        let program = room.compile("fuse.c", "fuse", &[]);
        let point = room.text("mnt");
        fs::create_dir(&point).unwrap();
        let mut server = room.target(&[&program, &point, "libserved.so", &x.library, mode, STAYS, user]);
        server.wait_for_stdout("serving");
        ServedLibrary { library: format!("{point}/libserved.so"), point, x, server }
    }

    fn record(&self, room: &Room, file: &str) -> Done {
        let words = ["--lib", "libserved.so:x_*", "-o", file, "--"];
        let load = [self.x.program.as_str(), "load", &room.text("start"), &self.library];
        room.run(room.gpurec(&[&words[..], &load].concat()))
    }

    /// Asserts that the server runs to the end: then no wait ended because the server did.
    fn ends(mut self) {
        assert!(self.server.is_running(), "the server ended before gpurec did");
    }
}

impl Drop for ServedLibrary<'_> {
    fn drop(&mut self) {
        if self.server.is_running() {
            self.server.signal(Signal::SIGTERM);
        }
        eventually("the server's end", || !self.server.is_running());
        // A killed server leaves its mount.
        let _ = umount2(self.point.as_str(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_library_whose_server_does_not_answer() {
    for mode in ["open", "getattr"] {
        live(|room| {
            let served = ServedLibrary::new(room, mode, "0");
            let file = room.text("t.jsonl");
            let done = served.record(room, &file);
            assert_eq!(done.exited(0).text(), "loaded\n", "{mode}");
            let trace = Trace::checked(room, &file);
            let why = trace.reason("not_examined");
            let is_it = why.contains(&served.library) && why.contains("did not answer within 2 s");
            assert!(trace.codes().len() == 1 && is_it, "{mode}: {:?}", trace.reasons());
            served.ends();
        });
    }
}

#[test]
#[ignore = "slow, and much as a_library_whose_server_does_not_answer: scripts/test --full"]
fn gpurec_ends_while_a_server_does_not_answer() {
    live(|room| {
        let served = ServedLibrary::new(room, "open", "0");
        let mut command = room.command(&served.x.program);
        command.args(["wait", &room.text("never")]).env("LD_PRELOAD", &served.library);
        let mut target = room.start(command);
        target.wait_for_stdout("inside");
        let (file, pid) = (room.text("t.jsonl"), target.pid().to_string());
        let words = ["--lib", "libserved.so:x_*", "-o", &file, "--pid", &pid];
        let recording = room.start(room.gpurec(&words));
        eventually("its reader", || {
            room.processes().iter().any(|p| p.name == "gpurec-files" && p.state == 'D')
        });
        recording.signal(Signal::SIGTERM);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        let silent = trace.reason("not_examined").contains("did not answer");
        assert!(trace.codes().len() == 1 && silent, "{:?}", trace.reasons());
        assert!(target.is_running());
        target.kill();
        served.ends();
    });
}

/// As an AppImage, whose own program serves its files: the server is stopped for a library while gpurec waits for it.
#[test]
fn a_server_that_is_recorded_and_maps_a_library_itself() {
    live(|room| {
        let x = X::new(room);
        let program = room.compile("fuse.c", "fuse", &[]);
        let (point, other, file) = (room.text("mnt"), room.text("libother.so"), room.text("t.jsonl"));
        fs::create_dir(&point).unwrap();
        fs::copy(&x.library, &other).unwrap();
        let script = format!(
            "{program} {point} libserved.so {0} honest {STAYS} 0 {other} & \
             until [ -e {point}/libserved.so ]; do sleep 0.05; done; \
             {1} load {2} {point}/libserved.so; kill $!; wait",
            x.library,
            x.program,
            room.text("start")
        );
        let words = ["--lib", "libserved.so:x_*", "--lib", "libother.so:x_*", "-o", &file, "--"];
        let done = room.run(room.gpurec(&[&words[..], &["sh", "-c", &script]].concat()));
        assert!(done.exited(0).text().contains("loaded"), "{}", done.text());
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        let libraries = trace.process_events("library");
        for path in [format!("{point}/libserved.so"), other] {
            let hooked =
                libraries.iter().any(|line| line["path"] == path.as_str() && line["functions"] == 13);
            assert!(hooked, "{path}: {libraries:?}");
        }
    });
}

#[test]
fn a_library_that_roots_server_serves_is_recorded() {
    live(|room| {
        let served = ServedLibrary::new(room, "honest", "0");
        let (file, start) = (room.text("t.jsonl"), room.text("start"));
        let words = ["--lib", "libserved.so:x_*", "-o", &file, "--", "env"];
        let preload = format!("LD_PRELOAD={}", served.library);
        let leaf = [preload.as_str(), &served.x.program, "leaf", "500"];
        room.run(room.gpurec(&[&words[..], &leaf].concat())).exited(0);
        Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 500)]);
        assert!(!fs::exists(start).unwrap());
        served.ends();
    });
}

#[test]
fn a_library_that_an_ordinary_users_server_serves_is_not_hooked() {
    live(|room| {
        let served = ServedLibrary::new(room, "honest", "1000");
        let file = room.text("t.jsonl");
        assert_eq!(served.record(room, &file).exited(0).text(), "loaded\n");
        let trace = Trace::checked(room, &file);
        let library = trace.process_events("library")[0];
        assert_eq!((&library["path"], &library["functions"]), (&served.library.as_str().into(), &0.into()));
        assert_eq!(library["not_hooked"][0]["code"], "user_file_system");
        assert_eq!(trace.codes(), ["not_hooked"], "{:?}", trace.reasons());
        served.ends();
    });
}

/// The process mapped it before the recording began.
#[test]
fn a_mapped_library_that_cannot_be_opened() {
    live(|room| {
        let x = X::new(room);
        for all in [false, true] {
            let (file, go) = (room.text(&format!("{all}.jsonl")), room.text(&format!("go-{all}")));
            let mut target = room.target(&[&x.program, "wait-then-leaf", &go, "500"]);
            target.wait_for_stdout("inside");
            let (pid, lib, library) = (target.pid().to_string(), x.lib(), x.library.clone());
            let (links, root) = (format!("/proc/{pid}/map_files/"), format!("/proc/{pid}/root/"));
            let rule = move |call: &Call| {
                let path = call.text(call.args[1]);
                (path.starts_with(&links) || path.starts_with(&root) || path == library).then_some(libc::EIO)
            };
            let whom = if all { vec!["--all"] } else { vec!["--pid", pid.as_str()] };
            let words = [&["--lib", &lib, "-o", &file][..], &whom].concat();
            let recording = room.start_refusing(room.gpurec(&words), &[libc::SYS_openat], rule);
            room.wait_until_recording(&file);
            fs::write(&go, "").unwrap();
            target.done().exited(0);
            recording.signal(Signal::SIGINT);
            recording.done().exited(0).said("NOT complete");
            let trace = Trace::checked(room, &file);
            let why = trace.reason("not_examined");
            assert!(why.contains(&x.library) && why.contains(&pid), "{whom:?}: {why}");
        }
    });
}

/// A search for a name takes longer the more mappings there are; other processes make calls meanwhile.
#[test]
fn names_that_are_looked_for_in_vain_cost_the_others_nothing() {
    live(|room| {
        let x = X::new(room);
        let libraries = concat!(env!("OUT_DIR"), "/demo");
        let runtime = format!("{libraries}/libcudart.so.13");
        let stubs = room.compile("stubs.c", "stubs", &[&runtime, &format!("-Wl,-rpath,{libraries}")]);
        let (file, lib, over) = (room.text("t.jsonl"), x.lib(), room.text("over"));
        // gpurec searches the mappings of a process only while it exists: it stays until the others have called.
        let others = format!("{} leaf 200000", x.program);
        let script = format!("{stubs} 32000 20000 {over} | (read launched; {others}; touch {over})");
        let words = ["--lib", &lib, "-o", &file, "--ring", "32", "--", "sh", "-c", &script];
        room.run(room.gpurec(&words)).exited(0);
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        assert_eq!(trace.calls.iter().filter(|call| call.name == "x_leaf").count(), 200_000);
        assert_eq!(trace.calls.iter().filter(|call| call.name == "cudaLaunchKernel").count(), 20_000);
        let unnamed = trace.end["summary"]["unnamed_launches"].as_u64().unwrap_or(0);
        assert!((1..=20_000).contains(&unnamed), "{unnamed} launches were not asked about");
    });
}
