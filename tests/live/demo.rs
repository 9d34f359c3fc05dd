//! `gpurec demo`: the stand-in libraries count every call themselves, and the trace must have the same
//! counts, function by function.

use std::collections::BTreeMap;
use std::fs;

use glob::Pattern;

use crate::needs::backends_for_many;
use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::Trace;

struct Demo {
    done: Done,
    trace: Trace,
    /// What the two libraries counted, in all processes.
    driver: BTreeMap<String, u64>,
    runtime: BTreeMap<String, u64>,
}

fn demo(room: &Room, options: &[&str], arguments: &[&str]) -> Demo {
    let run = room.number();
    let file = room.text(&format!("demo-{run}.jsonl"));
    let counts = format!("counts-{run}-");
    let words = [&["demo"], options, &["-o", &file, "--"], arguments].concat();
    let mut command = room.gpurec(&words);
    command.env("STANDIN_COUNTS", room.path(&format!("{counts}%p")));
    let done = room.run(command);
    let sum = |suffix: &str| {
        let mut sum = BTreeMap::new();
        for entry in fs::read_dir(&room.dir).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if !(name.starts_with(&counts) && name.ends_with(suffix)) {
                continue;
            }
            for line in fs::read_to_string(entry.path()).unwrap().lines() {
                let (function, count) = line.split_once(' ').unwrap();
                *sum.entry(function.to_owned()).or_insert(0) += count.parse::<u64>().unwrap();
            }
        }
        assert!(!sum.is_empty(), "no counts of the stand-in: {}", done.stderr);
        sum
    };
    let (driver, runtime) = (sum(".cuda"), sum(".cudart"));
    Demo { trace: Trace::checked(room, &file), driver, runtime, done }
}

impl Demo {
    /// Asserts that the trace has the libraries' own counts of the wanted functions, and no others.
    #[track_caller]
    fn agrees(&self, driver: bool, runtime: bool, wanted: impl Fn(&str) -> bool) {
        self.done.exited(0);
        assert!(self.done.text().contains("checksum "), "the program's own words: {}", self.done.text());
        self.trace.is_whole();
        let mut expected = BTreeMap::new();
        for (counts, _) in [(&self.driver, driver), (&self.runtime, runtime)].iter().filter(|(_, yes)| *yes) {
            expected.extend(counts.iter().filter(|(name, _)| wanted(name)).map(|(n, c)| (n.clone(), *c)));
        }
        let counts = self.trace.counts();
        for (name, count) in &expected {
            assert_eq!(counts.get(name), Some(count), "{name}: the trace, and the library itself");
        }
        assert_eq!(counts, expected);
    }

    fn all(&self, name: &str) -> u64 {
        self.driver.get(name).or(self.runtime.get(name)).copied().unwrap_or(0)
    }
}

#[test]
fn every_function_is_counted_as_its_library_counts() {
    live(|room| {
        for backend in backends_for_many() {
            let demo = demo(room, &["--backend", backend], &[]);
            demo.trace.by(backend);
            demo.agrees(true, true, |_| true);
        }
    });
}

#[test]
fn single_uprobes_count_a_few_functions_alike() {
    live(|room| {
        let demo = demo(room, &["--backend", "uprobe", "--only", "cu*LaunchKernel"], &["--threads", "2"]);
        demo.trace.by("uprobe");
        demo.agrees(true, true, |name| name.ends_with("LaunchKernel"));
    });
}

#[test]
fn launches_and_the_summary_are_the_stand_ins_own() {
    live(|room| {
        let demo = demo(room, &[], &["--loops", "20"]);
        demo.agrees(true, true, |_| true);
        let summary = &demo.trace.end["summary"];
        // A runtime launch is a driver launch inside: counted once, at the innermost level. Captured launches do not
        // count.
        let launches = demo.all("cuLaunchKernel") + demo.all("cuLaunchKernelEx");
        assert!(launches >= 20 * 8 * 4, "{launches}");
        assert_eq!(summary["kernel_launches"], launches);
        assert_eq!(summary["graph_launches"], demo.all("cuGraphLaunch"));
        let calls: u64 = demo.driver.values().chain(demo.runtime.values()).sum();
        assert_eq!(summary["cuda_calls"], calls);
        let launch = demo.trace.named("cuLaunchKernel");
        let inside = launch.iter().filter(|call| call.parent.is_some()).count();
        assert_eq!(inside, launch.len(), "each driver launch lies in a runtime launch");
        demo.done.said(&format!("Total CUDA API calls: {calls}"));
        let errors: Vec<_> = demo.trace.ends().filter_map(|end| end.error.as_deref()).collect();
        assert!(errors.contains(&"cudaErrorMemoryAllocation"), "{errors:?}");
        assert!(errors.contains(&"CUDA_ERROR_OUT_OF_MEMORY"), "{errors:?}");
    });
}

#[test]
fn the_stand_in_gpu_has_a_state() {
    live(|room| {
        let demo = demo(room, &["--gpu"], &["--loops", "5"]);
        demo.done.exited(0).said("Stand-in GPU: 1.00 GB in use at first");
        let lines: Vec<_> = demo.trace.of_type("device").collect();
        assert!(lines.len() >= 2, "at the start and at the end: {lines:?}");
        assert_eq!(lines[0]["gpu_name"], "Stand-in GPU");
    });
}

#[test]
fn threads_and_children_are_counted_too() {
    live(|room| {
        let demo = demo(room, &[], &["--threads", "4", "--fork", "--loops", "30"]);
        demo.agrees(true, true, |_| true);
        assert_eq!(demo.trace.process_events("fork").len(), 1);
        assert_eq!(demo.trace.process_events("exit").len(), 2);
        let mut tids: Vec<u32> = demo.trace.calls.iter().map(|call| call.tid).collect();
        tids.sort_unstable();
        tids.dedup();
        assert!(tids.len() >= 8, "four threads in each of two processes: {tids:?}");
    });
}

#[test]
fn one_api_only() {
    live(|room| {
        demo(room, &["--api", "driver"], &["--loops", "5"]).agrees(true, false, |_| true);
        demo(room, &["--api", "runtime"], &["--loops", "5"]).agrees(false, true, |_| true);
    });
}

#[test]
fn some_functions_only() {
    live(|room| {
        let fits = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().matches(name);
        demo(room, &["--only", "cuLaunch*"], &["--loops", "5"]).agrees(true, true, |n| fits("cuLaunch*", n));
        demo(room, &["--skip", "*Get*"], &["--loops", "5"]).agrees(true, true, |n| !fits("*Get*", n));
        let both = ["--only", "cuda*", "--only", "cuMem*", "--skip", "cuda*Async", "--skip", "cuMemFree*"];
        demo(room, &both, &["--loops", "5"]).agrees(true, true, |n| {
            (fits("cuda*", n) || fits("cuMem*", n)) && !fits("cuda*Async", n) && !fits("cuMemFree*", n)
        });
    });
}

#[test]
fn the_exit_status_is_the_programs_own() {
    live(|room| {
        let demo = demo(room, &[], &["--loops", "1", "--exit", "9"]);
        demo.done.exited(9);
        demo.trace.is_whole();
        let exits = demo.trace.process_events("exit");
        assert_eq!(exits.last().expect("an end")["status"], 9);
    });
}

/// Two recordings, one with a needless cudaMalloc in the loop: how they differ, and a budget that one of them meets.
#[test]
fn a_needless_allocation_is_found_by_comparing() {
    live(|room| {
        let (before, after) = (room.text("before.jsonl"), room.text("after.jsonl"));
        let demo = ["demo", "-o"];
        room.run(room.gpurec(&[&demo[..], &[&before, "--", "--loops", "10"]].concat())).exited(0);
        room.run(room.gpurec(&[&demo[..], &[&after, "--", "--loops", "10", "--needless"]].concat()))
            .exited(0);
        let done = room.run(room.gpurec(&["diff", &before, &after]));
        let text = done.exited(0).text();
        let first = text.lines().skip_while(|line| !line.trim_start().starts_with("Calls")).nth(1).unwrap();
        assert!(first.ends_with(" cudaMalloc"), "{text}");
        let threshold = "cudaMalloc.calls=10%";
        room.run(room.gpurec(&["diff", "--fail-over", threshold, &before, &after])).exited(1);
        room.run(room.gpurec(&["diff", "--fail-over", threshold, &before, &before])).exited(0);
        let budget = "cudaMalloc.calls==0 after 32 launches";
        room.run(room.gpurec(&["check", "--assert", budget, &before])).exited(0);
        room.run(room.gpurec(&["check", "--assert", budget, &after])).exited(1);
    });
}
