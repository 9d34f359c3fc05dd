//! Large numbers of threads, of libraries, and of libraries that come and go. The calls made are known exactly, and all
//! of them are in the trace; where gpurec meets a limit, it says so.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::disorder::X;
use crate::needs::{backends, is_single, single_uprobes_only};
use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::Trace;

const CALL: &str = "cuDriverGetVersion";

struct Stage {
    program: String,
    /// The smallest library that there is, to be copied.
    library: String,
}

impl Stage {
    fn new(room: &Room) -> Stage {
        let flags = ["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("long.c", "libcuda.so.1", &flags);
        Stage { program: room.compile("long.c", "long", &[]), library }
    }

    /// Makes copies of the library, each a file of its own, as containers and environments have them.
    fn copies(&self, room: &Room, count: usize) -> Vec<String> {
        let copy = |i| {
            let path = room.text(&format!("libcuda.so.1.{i}"));
            fs::copy(&self.library, &path).unwrap();
            path
        };
        (0..count).map(copy).collect()
    }
}

/// Limits the number of descriptors, without the right to raise it.
fn with_few_files(mut command: Command, files: u64) -> Command {
    const CAP_SYS_RESOURCE: libc::c_ulong = 24;
    let limit = move || {
        // SAFETY: system calls on constants.
        unsafe {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
            libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: files, rlim_max: files });
        }
        Ok(())
    };
    // SAFETY: what the closure does is safe after a fork: system calls.
    unsafe { command.pre_exec(limit) };
    command
}

/// A summary breaks sentences into several lines.
fn in_one_line(done: &Done) -> String {
    done.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_thousand_threads_that_call_at_once() {
    live(|room| {
        let stage = Stage::new(room);
        for backend in backends() {
            let words = [&stage.program, "at-once", &stage.library, "1000", "20"];
            let (done, trace) = room.record(&["--backend", backend], &words);
            done.exited(0);
            trace.is_whole().by(backend).has_calls(&[(CALL, 20_000)]);
        }
    });
}

#[test]
fn a_thousand_threads_that_come_and_go() {
    live(|room| {
        let stage = Stage::new(room);
        let words = [&stage.program, "born", &stage.library, "1000", "20", "10"];
        let (done, trace) = room.record(&[], &words);
        done.exited(0);
        trace.is_whole().has_calls(&[(CALL, 20_000)]);
    });
}

/// The process runs already: its thousand threads begin while it is recorded.
#[test]
fn a_thousand_threads_of_a_process_that_runs() {
    live(|room| {
        let stage = Stage::new(room);
        let (go, file) = (room.text("go"), room.text("t.jsonl"));
        let script = format!(
            "until [ -e {go} ]; do sleep 0.01; done; exec {} born {} 1000 20 50",
            stage.program, stage.library
        );
        let target = room.target(&["sh", "-c", &script]);
        let recording = room.start(room.gpurec(&["-o", &file, "--pid", &target.pid().to_string()]));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        target.done().exited(0);
        recording.done().exited(0);
        Trace::checked(room, &file).is_whole().has_calls(&[(CALL, 20_000)]);
    });
}

#[test]
fn five_hundred_libraries() {
    live(|room| {
        let stage = Stage::new(room);
        let copies = stage.copies(room, 500);
        let words: Vec<&str> =
            [&stage.program, "open", "3"].into_iter().chain(copies.iter().map(String::as_str)).collect();
        let (done, trace) = room.record(&[], &words);
        done.exited(0);
        trace.is_whole().has_calls(&[(CALL, 1500)]);
        assert_eq!(trace.process_events("library").len(), 500);
    });
}

/// gpurec says what it cannot hook, and what to do; the program runs on.
#[test]
#[ignore = "slow, and much as five_hundred_libraries: scripts/test --full"]
fn more_libraries_than_files_can_be_open() {
    live(|room| {
        let stage = Stage::new(room);
        let copies = stage.copies(room, 200);
        let file = room.text("t.jsonl");
        let mut words = vec!["-o", &file, "--", &stage.program, "open", "3"];
        words.extend(copies.iter().map(String::as_str));
        let done = room.run(with_few_files(room.gpurec(&words), 200));
        done.exited(0).said("NOT complete:");
        let said = in_one_line(&done);
        assert!(said.contains("200 files") && said.contains("(`ulimit -n`)"), "{said}");
        assert!(said.contains("libraries could not be hooked"), "{said}");
        let trace = Trace::checked(room, &file);
        // The last library may have found room for one of its two hooks.
        let named = |line: &Value| {
            line["not_hooked"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == CALL))
        };
        let has_call = |line: &&&Value| line["functions"].as_u64() > Some(0) && !named(line);
        let hooked = trace.process_events("library").iter().filter(has_call).count();
        // Descriptors for two functions: one each, or one for each entry, for each return, and for each hook's own
        // event.
        let expected = if single_uprobes_only() { 8..25 } else { 40..150 };
        assert!(expected.contains(&hooked), "{hooked} hooked");
        trace.has_calls(&[(CALL, 3 * hooked as u64)]);
    });
}

#[test]
fn a_library_that_is_loaded_again_and_again() {
    live(|room| {
        let stage = Stage::new(room);
        for backend in backends() {
            let words = [&stage.program, "reopen", &stage.library, "1000", "3"];
            let (done, trace) = room.record(&["--backend", backend], &words);
            done.exited(0);
            trace.is_whole().has_calls(&[(CALL, 3000)]);
            assert_eq!(trace.process_events("library").len(), 1);
        }
    });
}

/// Each time it is another file: gpurec must release the files that are gone, or the descriptors would not suffice.
#[test]
fn a_library_that_is_replaced_again_and_again() {
    live(|room| {
        let stage = Stage::new(room);
        let by_backend = backends().into_iter().map(|backend| vec!["--backend", backend, "--only", CALL]);
        // With this budget gpurec gives up nothing, however slow the machine.
        for options in by_backend.chain([vec!["--budget", "100"]]) {
            // Single uprobes stay, which takes three descriptors a library; and Linux removes one after the other, a
            // tenth of a second each. 40 of them and gpurec's own are just below the limit.
            let times = if is_single(options[1]) || single_uprobes_only() { 40 } else { 300 };
            stage.copies(room, times);
            let next = room.text("libcuda.so.1.%d");
            let file = room.text("t.jsonl");
            let count = times.to_string();
            let run = ["-o", &file, "--", &stage.program, "reopen", &stage.library, &count, "3", &next];
            let files = if single_uprobes_only() { 5000 } else { 400 };
            let done = room.run(with_few_files(room.gpurec(&[&options[..], &run].concat()), files));
            done.exited(0);
            let trace = Trace::checked(room, &file);
            assert!(
                trace.lost() == 0 && trace.complete(),
                "{options:?}: {}",
                trace.end["incomplete_because"]
            );
            let given_up = trace.of_type("budget").collect::<Vec<_>>();
            assert!(given_up.is_empty(), "{given_up:?}");
            trace.has_calls(&[(CALL, 3 * times as u64)]);
            assert_eq!(trace.process_events("library").len(), times, "{options:?}");
        }
    });
}

/// Calls more different functions than there are numbers for.
#[test]
fn functions_that_are_too_many_are_told() {
    live(|room| {
        let source = room.path("many.c");
        let functions: String =
            (0..17_000).map(|i| format!("int many_{i}(void) {{ return {i}; }}\n")).collect();
        fs::write(&source, functions).unwrap();
        let library = room.text("libmany.so");
        let flags = ["-O0", "-shared", "-fPIC", "-o", &library, source.to_str().unwrap()];
        assert!(Command::new("cc").args(flags).status().unwrap().success());
        let (file, lib) = (room.text("t.jsonl"), format!("{library}:many_*"));
        let x = crate::disorder::X::new(room);
        let load = [&x.program, "load", &room.text("started"), &library];
        let words = [&["--lib", &lib, "-o", &file, "--"][..], &load].concat();
        let done = room.run(room.gpurec(&words));
        done.exited(0).said("NOT complete:");
        let said = in_one_line(&done);
        assert!(said.contains("gpurec hooks 16383 functions at most"), "{said}");
        let codes = Trace::checked(room, &file).codes().join(" ");
        assert!(codes.contains("too_many_functions"), "{codes}");
    });
}

/// The backlog waits in the rings: read all at once, it would take as much memory again.
#[test]
fn a_backlog_stays_in_its_rings() {
    const CALLS: u64 = 400_000;
    live(|room| {
        let x = X::new(room);
        let (file, go, lib) = (room.text("t.jsonl"), room.text("go"), x.lib());
        let options = ["--lib", &lib, "--ring", "256", "--summary-only", "-o", &file];
        let command = ["--", &x.program, "wait-then-leaf", &go, &CALLS.to_string()];
        let mut recording = room.start(room.gpurec(&[&options[..], &command].concat()));
        recording.wait_for_stdout("inside");
        recording.signal(Signal::SIGSTOP);
        fs::write(&go, "").unwrap();
        recording.wait_for_stdout("called");
        recording.signal(Signal::SIGCONT);
        let most = recording.most_memory();
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        let functions = trace.end["summary"]["functions"].as_array().unwrap();
        let leaf = functions.iter().find(|function| function["name"] == "x_leaf").unwrap();
        assert_eq!((&leaf["calls"], trace.lost(), trace.complete()), (&CALLS.into(), 0, true));
        assert!(most > 0 && most < 64 << 10, "{most} KiB of its own");
    });
}
