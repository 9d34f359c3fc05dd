//! Calls that nest, that never return, and processes that end inside them: a library of our own, hooked
//! with --lib, whose every call is known. In: libx.c and x.c. Out: exact counts, depths and endings.

use std::fs;
use std::process::Command;

use crate::needs::backends;
use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::{Call, Trace};

/// The library and the program that calls it, built.
pub struct X {
    pub program: String,
    pub library: String,
}

impl X {
    pub fn new(room: &Room) -> X {
        let library = room.compile("libx.c", "libx.so.1", &["-shared", "-fPIC", "-Wl,-soname,libx.so.1"]);
        let program = room.compile("x.c", "x", &[&library, "-Wl,-rpath,$ORIGIN"]);
        X { program, library }
    }

    pub fn lib(&self) -> String {
        format!("{}:x_*", self.library)
    }
}

/// Records `x MODE...` by every backend, and checks each trace.
fn each_backend(mode: &str, check: impl Fn(&Done, &Trace)) {
    recorded_by_each_backend(mode, |done, trace| {
        assert!(trace.complete(), "{}", trace.end["incomplete_because"]);
        check(done, trace);
    });
}

fn recorded_by_each_backend(mode: &str, check: impl Fn(&Done, &Trace)) {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let words: Vec<&str> = std::iter::once(x.program.as_str()).chain(mode.split(' ')).collect();
            let (done, trace) = room.record(&["--backend", backend, "--lib", &x.lib()], &words);
            trace.by(backend);
            assert_eq!(trace.lost(), 0, "{backend}");
            check(&done, &trace);
        }
    });
}

fn unwound(call: &Call) -> bool {
    call.end.as_ref().is_some_and(|end| end.unwound)
}

fn returned(call: &Call) -> bool {
    call.end.as_ref().is_some_and(|end| !end.unwound && !end.lost)
}

/// Asserts that the one call in flight is the one that its process ended in.
#[track_caller]
fn died_in(trace: &Trace, name: &str) {
    let in_flight = trace.in_flight();
    assert_eq!(in_flight.len(), 1, "{in_flight:?}");
    assert!(in_flight[0].name == name && in_flight[0].died, "{in_flight:?}");
}

#[test]
fn recursion_forty_deep() {
    each_backend("down 40 50", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_down", 2000)]);
        for depth in 0..40 {
            let at = trace.calls.iter().filter(|call| call.depth == depth).count();
            assert_eq!(at, 50, "calls at depth {depth}");
        }
        let first = trace.calls[0].end.as_ref().unwrap();
        assert_eq!(first.retval, "0x28", "40 levels");
    });
}

/// gpurec's BPF programs follow 64 calls to their returns; a deeper call has none, and the trace says so.
#[test]
fn recursion_deeper_than_the_kernel_follows() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let options = ["--backend", backend, "--lib", &x.lib()];
            let (done, trace) = room.record(&options, &[&x.program, "down", "70", "3"]);
            done.exited(0).said("18 events were lost");
            trace.by(backend).has_calls(&[("x_down", 210)]);
            let lost: Vec<&Call> =
                trace.calls.iter().filter(|call| call.end.as_ref().is_some_and(|end| end.lost)).collect();
            assert!(lost.len() == 18 && lost.iter().all(|call| call.depth >= 64), "{lost:?}");
            assert!(trace.calls.iter().all(|call| !unwound(call)));
            assert_eq!(trace.end["summary"]["lost_by_probe"]["x_down (return)"], 18);
            assert!(!trace.complete());
        }
    });
}

#[test]
fn a_jump_out_of_one_call() {
    each_backend("jump 1 300", |done, trace| {
        done.exited(0);
        trace.has_calls(&[("x_jump", 300), ("x_leaf", 1)]);
        assert!(trace.named("x_jump").iter().all(|call| unwound(call) && call.depth == 0));
        assert!(trace.in_flight().is_empty(), "{:?}", trace.in_flight());
        assert!(returned(trace.named("x_leaf")[0]));
    });
}

#[test]
fn a_jump_out_of_three_calls() {
    each_backend("jump 3 300", |done, trace| {
        done.exited(0);
        trace.has_calls(&[("x_jump", 900), ("x_leaf", 1)]);
        assert!(trace.named("x_jump").iter().all(|call| unwound(call)));
        for depth in 0..3 {
            assert_eq!(trace.calls.iter().filter(|c| c.name == "x_jump" && c.depth == depth).count(), 300);
        }
        assert_eq!(trace.named("x_leaf")[0].depth, 0);
        assert!(trace.in_flight().is_empty(), "{:?}", trace.in_flight());
    });
}

#[test]
fn a_jump_that_is_caught_inside_a_call() {
    each_backend("catch 3 200", |done, trace| {
        done.exited(0);
        trace.has_calls(&[("x_catch", 200), ("x_jump", 600), ("x_leaf", 200)]);
        assert!(trace.named("x_jump").iter().all(|call| unwound(call)));
        assert!(trace.named("x_catch").iter().all(|call| returned(call) && call.depth == 0));
        assert!(trace.named("x_leaf").iter().all(|call| returned(call) && call.depth == 1));
        let retval = &trace.named("x_catch")[0].end.as_ref().unwrap().retval;
        assert_eq!(retval, "0x5");
    });
}

#[test]
fn a_tail_call_lies_inside_its_caller() {
    each_backend("tail 200", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_tail2", 200), ("x_tail", 400), ("x_leaf", 400)]);
        for (name, depth, calls) in [
            ("x_tail2", 0, 200),
            ("x_tail", 1, 200),
            ("x_tail", 0, 200),
            ("x_leaf", 2, 200),
            ("x_leaf", 1, 200),
        ] {
            let at = trace.calls.iter().filter(|call| call.name == name && call.depth == depth).count();
            assert_eq!(at, calls, "{name} at depth {depth}");
        }
        let retvals: Vec<_> = trace.calls[..3].iter().map(|c| &c.end.as_ref().unwrap().retval).collect();
        assert_eq!(retvals, ["0x4"; 3], "one return for all three");
    });
}

#[test]
fn callbacks_lie_inside_the_call_that_makes_them() {
    each_backend("callback 200", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_call", 200), ("x_leaf", 200), ("x_down", 400)]);
        assert!(trace.named("x_leaf").iter().all(|call| call.depth == 1));
        let names: Vec<&str> = trace.calls[..4].iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["x_call", "x_leaf", "x_down", "x_down"]);
    });
}

/// By pthread_exit, whose unwinding ends at the call: the trace says so.
#[test]
fn threads_that_end_inside_a_call() {
    recorded_by_each_backend("exit-thread 40 8", |done, trace| {
        done.exited(0);
        assert_eq!(trace.codes(), ["thread_unwound"], "{:?}", trace.reasons());
        assert!(trace.reason("thread_unwound").starts_with("40 threads"), "{:?}", trace.reasons());
        trace.has_calls(&[("x_leaf", 40), ("x_exit_thread", 40)]);
        assert!(trace.named("x_leaf").iter().all(|call| returned(call)));
        let in_flight = trace.in_flight();
        assert_eq!(in_flight.len(), 40);
        assert!(in_flight.iter().all(|call| call.died && call.name == "x_exit_thread"), "{in_flight:?}");
    });
}

#[test]
fn a_process_that_is_killed_inside_a_call() {
    each_backend("kill", |done, trace| {
        done.exited(128 + 9);
        trace.has_calls(&[("x_kill", 1)]);
        died_in(trace, "x_kill");
        let exit = trace.process_events("exit")[0];
        assert!(exit["status"] == 137 && exit["signal"] == "SIGKILL", "{exit}");
    });
}

#[test]
fn a_process_that_aborts_inside_a_call() {
    each_backend("abort", |done, trace| {
        done.exited(128 + 6);
        trace.has_calls(&[("x_abort", 1)]);
        died_in(trace, "x_abort");
        let exit = trace.process_events("exit")[0];
        assert!(exit["status"] == 134 && exit["signal"] == "SIGABRT", "{exit}");
    });
}

#[test]
fn a_process_that_executes_another_program_inside_a_call() {
    for mode in ["exec", "exec-in-thread"] {
        each_backend(mode, |done, trace| {
            done.exited(0);
            trace.has_calls(&[("x_leaf", 4), ("x_exec", 1)]);
            died_in(trace, "x_exec");
            assert_eq!(trace.process_events("exec").len(), 2);
            assert!(trace.named("x_leaf").iter().all(|call| returned(call) && call.depth == 0));
        });
    }
}

#[test]
fn a_fork_inside_a_call_from_which_the_child_returns_too() {
    each_backend("fork 20", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_fork", 20), ("x_leaf", 80)]);
        let parent = trace.named("x_fork")[0].pid;
        let of_parent = trace.named("x_leaf").iter().filter(|call| call.pid == parent).count();
        assert_eq!(of_parent, 40);
        assert!(trace.calls.iter().all(|call| call.depth == 0));
        let children = trace.process_events("fork");
        assert_eq!(children.len(), 20);
        for call in trace.named("x_fork") {
            let retval = call.end.as_ref().unwrap().retval.as_str().unwrap();
            let child = u64::from_str_radix(retval.trim_start_matches("0x"), 16).unwrap();
            assert!(children.iter().any(|fork| fork["child"] == child), "{retval} in {children:?}");
        }
    });
}

#[test]
fn vfork_and_exec() {
    each_backend("vfork 20", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 60)]);
        assert_eq!(trace.process_events("fork").len(), 20);
        assert_eq!(trace.process_events("exec").len(), 21);
    });
}

#[test]
fn two_hundred_children_that_live_shortly() {
    each_backend("children 200", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 400)]);
        assert_eq!(trace.process_events("fork").len(), 200);
        assert_eq!(trace.process_events("exit").len(), 201);
        let processes = trace.end["summary"]["processes"].as_array().unwrap().len() as u64;
        let more = trace.end["summary"]["more_processes"].as_u64().unwrap();
        assert_eq!(processes + more, 201);
    });
}

#[test]
fn five_hundred_threads() {
    each_backend("churn 500 10", |done, trace| {
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 1500)]);
        assert!(trace.calls.iter().all(|call| call.pid == trace.calls[0].pid));
    });
}

#[test]
fn children_are_left_alone_if_asked() {
    live(|room| {
        let x = X::new(room);
        let (done, trace) = room.record(&["--no-follow", "--lib", &x.lib()], &[&x.program, "fork", "5"]);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_fork", 5), ("x_leaf", 10)]);
        assert_eq!(trace.process_events("exit").len(), 1);
    });
}

#[test]
fn a_library_by_its_bare_name_or_soname() {
    live(|room| {
        let x = X::new(room);
        for lib in ["libx.so.1:x_leaf", "libx.so.1:x_l*", "libx.so.1:x_[k-l]eaf"] {
            let (done, trace) = room.record(&["--lib", lib], &[&x.program, "callback", "3"]);
            done.exited(0);
            trace.is_whole().has_calls(&[("x_leaf", 3)]);
        }
        // Under another name gpurec recognises it by its SONAME.
        let odd = room.text("odd.name");
        fs::copy(&x.library, &odd).unwrap();
        let preload = format!("LD_PRELOAD={odd}");
        let words = ["env", &preload, &x.program, "callback", "3"];
        let (done, trace) = room.record(&["--lib", "libx.so.1:x_leaf"], &words);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 3)]);
        let library = trace.process_events("library")[0];
        assert!(library["path"].as_str().unwrap().ends_with("odd.name"), "{library}");
    });
}

#[test]
fn a_library_by_a_relative_path() {
    live(|room| {
        let x = X::new(room);
        fs::copy(&x.library, room.cwd().join("libcopy.so")).unwrap();
        let program = room.text("cwd/x");
        let built = Command::new("cc")
            .args(["-pthread", "-o", &program, "-Wl,-rpath,$ORIGIN"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs/x.c"))
            .arg(&x.library)
            .status();
        assert!(built.unwrap().success());
        std::os::unix::fs::symlink("libcopy.so", room.cwd().join("libx.so.1")).unwrap();
        for lib in ["./libcopy.so:x_*", "./libx.so.1:x_*"] {
            let (done, trace) = room.record(&["--lib", lib], &["./x", "leaf", "7"]);
            done.exited(0);
            trace.is_whole().has_calls(&[("x_leaf", 7)]);
        }
    });
}

#[test]
fn a_call_in_flight_at_the_cut() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let (file, go) = (room.text(&format!("{backend}.jsonl")), room.text(&format!("go-{backend}")));
            let lib = x.lib();
            let options = ["--backend", backend, "--lib", &lib, "--duration", "1", "-o", &file, "--"];
            let words = [&options[..], &[&x.program, "wait", &go]].concat();
            let mut recording = room.start(room.gpurec(&words));
            recording.wait_for_stdout("inside");
            crate::room::eventually("the end of the recording", || {
                recording.stderr().contains("The recording is over")
            });
            let trace = Trace::checked(room, &file);
            assert!(recording.is_running(), "it waits for its command");
            // The return passes through what is left of the hook, without harm.
            fs::write(&go, "").unwrap();
            recording.done().exited(0);
            trace.by(backend).has_calls(&[("x_wait", 1)]);
            let in_flight = trace.in_flight();
            assert!(in_flight.len() == 1 && !in_flight[0].died, "{in_flight:?}");
        }
    });
}

#[test]
fn a_process_attached_to_inside_a_call() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let (file, go) = (room.text(&format!("{backend}.jsonl")), room.text(&format!("go-{backend}")));
            let mut target = room.target(&[&x.program, "wait", &go]);
            target.wait_for_stdout("inside");
            let (lib, pid) = (x.lib(), target.pid().to_string());
            let options = ["--backend", backend, "--lib", &lib, "--pid", &pid, "-o", &file];
            let recording = room.start(room.gpurec(&options));
            room.wait_until_recording(&file);
            fs::write(&go, "").unwrap();
            target.done().exited(0);
            recording.done().exited(0);
            // The call began before the recording: its return alone is not recorded.
            Trace::checked(room, &file).by(backend).is_whole().has_calls(&[]);
        }
    });
}
