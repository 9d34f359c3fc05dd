//! Hooks, programs, processes and threads that Linux refuses gpurec. Checks what the user reads, that gpurec still
//! records what it can, that the command ends as ever, and that nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::disorder::X;
use crate::needs::{backends, is_single, links, single_uprobes_only};
use crate::refuse::{BPF_LINK_CREATE, BPF_MAP_CREATE, BPF_PROG_LOAD, BPF_TRACE_RAW_TP, Call};
use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::Trace;

const BPF: [libc::c_long; 1] = [libc::SYS_bpf];
pub const HOOKS: [libc::c_long; 2] = [libc::SYS_bpf, libc::SYS_perf_event_open];
const FORKS: [libc::c_long; 2] = [libc::SYS_clone, libc::SYS_clone3];

/// The place at which gpurec hooks a function of the library.
pub fn place_of(room: &Room, x: &X, function: &str) -> u64 {
    let listed = room.run(room.gpurec(&["probes", "--lib", &format!("{}:{function}", x.library)])).text();
    let line = listed.lines().find(|line| line.trim_start().starts_with(function)).expect("the function");
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    number(words[1]) + words[2].trim_start_matches('+').parse::<u64>().unwrap()
}

/// Records `x tail 200` while the rule refuses system calls.
fn record(
    room: &Room,
    x: &X,
    options: &[&str],
    calls: &[libc::c_long],
    rule: impl FnMut(&Call) -> Option<i32> + Send + 'static,
) -> (Done, String) {
    let (file, lib) = (room.text(&format!("{}.jsonl", room.number())), x.lib());
    let words = [options, &["--lib", &lib, "-o", &file, "--", &x.program, "tail", "200"]].concat();
    (room.start_refusing(room.gpurec(&words), calls, rule).done(), file)
}

/// Asserts that gpurec failed with this sentence, and the command never ran.
#[track_caller]
fn failed(done: &Done, sentence: &str) {
    done.exited(125).one_sentence();
    assert_eq!(done.stderr, format!("gpurec: {sentence}\n"));
}

#[test]
fn a_hook_that_is_refused_among_others() {
    live(|room| {
        let x = X::new(room);
        let place = place_of(room, &x, "x_tail");
        for backend in backends() {
            let rule = move |call: &Call| call.places().contains(&place).then_some(libc::EBUSY);
            let (done, file) = record(room, &x, &["--backend", backend], &HOOKS, rule);
            let path = &x.library;
            done.exited(0).said("Not hooked:\n").said("x_tail in ");
            let printed = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
            let why = if is_single(backend) { "attach uprobe" } else { "attach uprobe multi" };
            let reason =
                format!("the kernel refused it: failed to {why}: Device or resource busy (os error 16)");
            assert!(printed.contains(&format!("{path}: {reason}")), "{printed}");
            assert!(
                printed.contains(&format!("NOT complete: - 1 of 13 functions of {path} could not be hooked"))
            );
            let trace = Trace::checked(room, &file);
            trace.by(backend).has_calls(&[("x_tail2", 200), ("x_leaf", 400)]);
            let library = trace.process_events("library")[0];
            assert_eq!(library["functions"], 12);
            let refused = serde_json::json!([{"name": "x_tail", "reason": reason, "code": "refused"}]);
            assert_eq!(library["not_hooked"], refused);
            assert!(!trace.complete() && trace.lost() == 0);
        }
    });
}

/// The same happens when a limit is reached in the middle, and where nothing can be hooked.
#[test]
fn a_library_whose_hooks_are_all_refused() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            // The first hooks are gpurec's own, which measure two kinds of site.
            let own = links(backend).map_or(4, |links| links as i32);
            let mut links = 0;
            let rule = move |call: &Call| {
                let hooks = !call.places().is_empty();
                links += i32::from(hooks);
                (hooks && links > own).then_some(libc::EMFILE)
            };
            let (done, file) = record(room, &x, &["--backend", backend], &HOOKS, rule);
            let printed = done.exited(0).stderr.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                printed.contains("no function of theirs was hooked: \"Not hooked\" says why."),
                "{printed}"
            );
            assert!(printed.contains("(`ulimit -n`)"), "{printed}");
            let trace = Trace::checked(room, &file);
            trace.has_calls(&[]);
            assert_eq!(trace.codes(), ["not_hooked"], "{:?}", trace.reasons());
            assert!(trace.reasons()[0].contains(&x.library), "{:?}", trace.reasons());
        }
    });
}

#[test]
fn programs_that_are_refused() {
    live(|room| {
        let x = X::new(room);
        if backends().contains(&"uprobe.session") {
            // gpurec takes the next backend.
            let rule = |call: &Call| call.program().starts_with("cuda_session").then_some(libc::EPERM);
            let (done, file) = record(room, &x, &[], &BPF, rule);
            done.exited(0);
            let trace = Trace::checked(room, &file);
            trace.is_whole().by("uprobe.multi");
            let refused = &trace.header["hooks"]["userspace"]["refused"][0];
            assert_eq!(refused["name"], "uprobe.session");
            assert_eq!(
                refused["reason"],
                "the kernel refused the uprobe.session programs: Operation not permitted (os error 1)"
            );
        }
        let rule = |call: &Call| call.program().starts_with("cuda_").then_some(libc::EPERM);
        let (done, _) = record(room, &x, &[], &BPF, rule);
        done.exited(125).one_sentence().said("gpurec doctor");
        done.said("uprobe: the kernel refused the uprobe programs: Operation not permitted (os error 1)");

        let rule = |call: &Call| call.program().starts_with("process_exec").then_some(libc::EPERM);
        let (done, _) = record(room, &x, &["--ring", "4"], &BPF, rule);
        let rings = (4 << 10) / libbpf_rs::num_possible_cpus().unwrap();
        let rings = 1 << rings.ilog2();
        let refused = format!("the kernel refused gpurec's maps, or its rings of {rings} KiB for each CPU");
        let container = "in a container, its seccomp filter may forbid it: run gpurec on the host, or the container with --privileged";
        let programs = "the kernel refused gpurec's process programs";
        failed(&done, &format!("{programs}: Operation not permitted (os error 1); {container}"));

        let rule = |_: &Call| Some(libc::ENOSYS);
        let (done, _) = record(room, &x, &["--ring", "4"], &BPF, rule);
        failed(&done, &format!("{refused}: Function not implemented (os error 38); {container}"));

        let rule = |call: &Call| call.is_bpf(BPF_MAP_CREATE).then_some(libc::ENOMEM);
        let (done, _) = record(room, &x, &["--ring", "4"], &BPF, rule);
        done.exited(125).one_sentence().said(&format!("{refused}: Cannot allocate memory (os error 12); "));
        done.said("ulimit -v").said("--ring");

        let rule = |call: &Call| call.is_bpf(BPF_LINK_CREATE).then_some(libc::EACCES);
        let (done, _) = record(room, &x, &[], &BPF, rule);
        // For single uprobes libbpf takes a refusal for a Linux that has no such links.
        let why = if single_uprobes_only() {
            "failed to attach uprobe: Operation not supported (os error 95)"
        } else {
            "failed to attach uprobe multi: Permission denied (os error 13)"
        };
        done.exited(125).one_sentence().said(why);
        let rule = |call: &Call| (call.link_type() == BPF_TRACE_RAW_TP).then_some(libc::EACCES);
        let (done, _) = record(room, &x, &[], &BPF, rule);
        done.exited(125).one_sentence().said("the kernel refused the hook process_fork: ").said(container);
        let rule = |call: &Call| (call.is_bpf(BPF_PROG_LOAD) && call.program() == "nothing").then_some(1);
        record(room, &x, &[], &BPF, rule).0.exited(0);
    });
}

/// Refuses each process and each thread that gpurec starts once; then all from the first, from the second and so on.
#[test]
fn processes_and_threads_that_cannot_be_started() {
    live(|room| {
        let x = X::new(room);
        for all in [false, true] {
            let (mut failures, mut n) = (0, 1);
            loop {
                let asked = Arc::new(AtomicU32::new(0));
                let counted = asked.clone();
                let rule = move |call: &Call| {
                    if !call.is_by_the_recorder() {
                        return None;
                    }
                    let number = counted.fetch_add(1, Ordering::Relaxed) + 1;
                    (number == n || all && number > n).then_some(libc::EAGAIN)
                };
                let (done, file) = record(room, &x, &[], &FORKS, rule);
                if done.status.code() == Some(0) {
                    Trace::checked(room, &file).is_whole();
                } else {
                    done.exited(125)
                        .one_sentence()
                        .said("gpurec c")
                        .said("Resource temporarily unavailable (os error 11); ")
                        .said("pids.max");
                    failures += 1;
                }
                if asked.load(Ordering::Relaxed) < n {
                    break;
                }
                n += 1;
            }
            assert!(failures >= 4 && n > 6, "{failures} failures of {n}");
        }
    });
}
