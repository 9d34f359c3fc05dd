//! Functions that do not return as others do, or look at return addresses: setjmp and longjmp, contexts, vfork, the
//! unwinder. A watched return has another address on the stack meanwhile, so gpurec does not hook these functions.
//! In: programs/nonlocal.c and exceptions.cc, and --lib that names such functions of the system's libraries.
//! Out: the programs run as without gpurec, and the trace says what was not hooked, with the reason.

use serde_json::Value;

use crate::needs::{backends, backends_for_many, program, skip};
use crate::room::{Room, live};
use crate::trace::Trace;

const JUMPS: [&str; 7] =
    ["setjmp", "_setjmp", "__sigsetjmp", "longjmp", "_longjmp", "siglongjmp", "__longjmp_chk"];
const CONTEXTS: [&str; 3] = ["getcontext", "setcontext", "swapcontext"];
const CHILDREN: [&str; 2] = ["vfork", "__vfork"];
const UNWINDER: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_ForcedUnwind",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_Backtrace",
];
const THROWS: [&str; 2] = ["__cxa_throw", "__cxa_rethrow"];

/// Records the program with `--lib LIBRARY:PATTERN`, and asserts that these functions are not hooked.
fn refuses(room: &Room, backend: &str, program: &str, lib: (&str, &str), names: &[&str]) {
    let rule = format!("{}:{}", lib.0, lib.1);
    let (done, trace) = room.record(&["--backend", backend, "--lib", &rule], &[program]);
    assert_eq!(done.exited(0).text(), "called\n", "{rule}");
    let Some(library) = library(&trace, lib.0) else {
        skip(&format!("{program} has no {}", lib.0));
        return;
    };
    let refused = library["not_hooked"].as_array().unwrap();
    for name in names {
        let reason =
            refused.iter().find(|one| one["name"] == *name).map(|one| one["reason"].as_str().unwrap());
        assert!(reason.is_some_and(|reason| reason.len() > 5), "{rule} by {backend}: {name} in {refused:?}");
        assert!(trace.named(name).is_empty(), "{name}");
    }
}

fn library<'a>(trace: &'a Trace, name: &str) -> Option<&'a Value> {
    let all = trace.process_events("library").into_iter();
    all.into_iter().find(|line| line["path"].as_str().is_some_and(|path| path.contains(name)))
}

#[test]
fn jumps_contexts_and_vfork() {
    live(|room| {
        let program = room.compile("nonlocal.c", "nonlocal", &[]);
        for backend in backends() {
            refuses(room, backend, &program, ("libc.so.6", "*jmp*"), &JUMPS);
            refuses(room, backend, &program, ("libc.so.6", "*context"), &CONTEXTS);
            refuses(room, backend, &program, ("libc.so.6", "*vfork"), &CHILDREN);
        }
    });
}

#[test]
fn the_unwinder() {
    live(|room| {
        if !program("c++") {
            skip("it needs a C++ compiler (apt-get install g++)");
            return;
        }
        let program = room.compile("exceptions.cc", "exceptions", &["-lstdc++"]);
        for backend in backends() {
            refuses(room, backend, &program, ("libgcc_s.so.1", "_Unwind_*"), &UNWINDER);
            refuses(room, backend, &program, ("libstdc++.so.6", "__cxa_*throw"), &THROWS);
        }
    });
}

/// All other functions of the C library can be hooked without harm.
#[test]
fn the_whole_c_library() {
    live(|room| {
        let program = room.compile("nonlocal.c", "nonlocal", &[]);
        let names = [&JUMPS[..], &CONTEXTS, &CHILDREN].concat();
        for backend in backends_for_many() {
            refuses(room, backend, &program, ("libc.so.6", "*"), &names);
        }
    });
}

/// Builds the program of threads that end inside calls, and its libcuda.
fn cancelled(room: &Room) -> String {
    let shared = ["-DLIBRARY", "-shared", "-fPIC", "-fexceptions", "-Wl,-soname,libcuda.so.1"];
    let library = room.compile("cancelled.c", "libcuda.so.1", &shared);
    room.compile("cancelled.c", "cancelled", &["-fexceptions", &library, "-Wl,-rpath,$ORIGIN"])
}

/// Linux's return address ends the unwinding of pthread_cancel and pthread_exit, so the handlers beyond do not run.
#[test]
fn threads_that_are_unwound_out_of_a_call() {
    live(|room| {
        let program = cancelled(room);
        let by_itself = room.target(&[&program, "cancel"]).done();
        assert_eq!(by_itself.exited(0).text(), "cleaned 1\n");
        for backend in backends() {
            for (mode, function) in [("cancel", "cuCtxSynchronize"), ("exit", "cuLaunchHostFunc")] {
                let (done, trace) = room.record(&["--backend", backend], &[&program, mode]);
                assert_eq!(done.exited(0).text(), "cleaned 0\n", "{mode}");
                trace.by(backend).has_calls(&[(function, 1)]);
                assert_eq!(trace.codes(), ["thread_unwound"], "{mode}: {:?}", trace.reasons());
                let call = &trace.in_flight()[0];
                let named = format!("thread {} of process {}, in {function}", call.tid, call.pid);
                assert!(trace.reason("thread_unwound").contains(&named), "{:?}", trace.reasons());
            }
        }
    });
}

/// Linux's return address ends the search for the handler, and the program with it: the trace names the hook.
#[test]
fn an_exception_that_passes_through_a_recorded_call() {
    live(|room| {
        let library =
            room.compile("thrower.cc", "libthrower.so", &["-DLIBRARY", "-shared", "-fPIC", "-lstdc++"]);
        let program = room.compile("thrower.cc", "thrower", &[&library, "-Wl,-rpath,$ORIGIN", "-lstdc++"]);
        assert_eq!(room.target(&[&program]).done().exited(0).text(), "caught\n");
        let lib = format!("{library}:x_*");
        for backend in backends() {
            let (done, trace) = room.record(&["--backend", backend, "--lib", &lib], &[&program]);
            done.exited(128 + libc::SIGABRT).said("was aborted in x_thrower");
            trace.by(backend).has_calls(&[("x_thrower", 1)]);
        }
    });
}

/// All other ends of threads with open calls leave nothing out, and the trace is complete.
#[test]
fn threads_that_end_in_other_ways() {
    live(|room| {
        let program = cancelled(room);
        for backend in backends() {
            for (mode, status, said, calls) in [
                ("cancel-outside", 0, "cleaned 1\n", 0),
                ("system-call", 0, "cleaned 0\n", 1),
                ("leave", 0, "cleaned 0\n", 2),
                ("exec", 0, "", 2),
                ("kill", 128 + 9, "", 2),
            ] {
                let (done, trace) = room.record(&["--backend", backend], &[&program, mode]);
                assert_eq!(done.exited(status).text(), said, "{mode}");
                assert!(trace.by(backend).complete(), "{mode}: {:?}", trace.reasons());
                assert_eq!(trace.in_flight().iter().filter(|call| call.died).count(), calls, "{mode}");
            }
        }
    });
}
