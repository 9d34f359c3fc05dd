//! Calls that do not return: a program that hangs.
//! In: a program that waits for seconds in cudaDeviceSynchronize.
//! Out: its wait is shown while it lasts and after the end.

use serde_json::Value;

use crate::room::{Room, live};
use crate::trace::Trace;

fn hang(room: &Room) -> String {
    let libraries = concat!(env!("OUT_DIR"), "/demo");
    let runtime = format!("{libraries}/libcudart.so.13");
    room.compile("hang.c", "hang", &[&runtime, &format!("-Wl,-rpath,{libraries}")])
}

/// `--live` shows a row when the wait has been open for a second, and at every doubling.
#[test]
fn a_wait_is_shown_while_it_lasts() {
    live(|room| {
        let (program, file) = (hang(room), room.text("t.jsonl"));
        let words = ["--live", "--interval", "1.5", "-o", &file, "--", program.as_str(), "5", "60"];
        let done = room.run(room.gpurec(&words));
        let said = done.exited(0).stderr.clone();
        for function in ["cudaDeviceSynchronize", "cuCtxSynchronize"] {
            let is_row =
                |line: &&str| line.contains(function) && line.contains(" so far, unfinished, in thread ");
            let seconds = |line: &str| {
                let us = line.split(" us so far").next().unwrap().rsplit(' ').next().unwrap();
                us.parse::<f64>().unwrap() / 1e6
            };
            let rows: Vec<f64> = said.lines().filter(is_row).map(seconds).collect();
            let due = rows.iter().zip([1.0, 2.0, 4.0]).all(|(at, due)| (due..due + 0.9).contains(at));
            assert!(rows.len() == 3 && due, "{function}: {rows:?}\n{said}");
        }
        assert!(said.contains("\nCalls open for a second or longer: 1\n"), "{said}");
        let sync = Trace::checked(room, &file).end["summary"]["sync"].clone();
        assert!(
            sync["total_ns"].as_u64().unwrap() > 4_900_000_000 && sync.get("unfinished").is_none(),
            "{sync}"
        );
    });
}

/// A wait that never ends counts as time that the program spent, though no line has its return.
#[test]
fn a_wait_that_never_ends_counts() {
    live(|room| {
        let (program, file) = (hang(room), room.text("t.jsonl"));
        let done = room.run(room.gpurec(&["-o", &file, "--", program.as_str(), "30", "2"]));
        let waited = "Time blocked in synchronisation: ";
        done.exited(128 + libc::SIGALRM).said(waited).said(" in 1 call, 1 of them unfinished\n");
        let trace = Trace::checked(room, &file);
        let sync = &trace.end["summary"]["sync"];
        let ns = sync["total_ns"].as_u64().unwrap();
        assert!((1_500_000_000..6_000_000_000).contains(&ns), "{sync}");
        assert_eq!((&sync["calls"], &sync["unfinished"]), (&1.into(), &1.into()));
        let report = |name: &str| -> Value {
            let done = room.run(room.gpurec(&["report", name, "--json", &file]));
            serde_json::from_slice(&done.exited(0).stdout).unwrap()
        };
        let waits = report("sync");
        assert_eq!((&waits["waited_ns"], &waits["unfinished"]), (&sync["total_ns"], &1.into()), "{waits}");
        assert_eq!(waits["waiters"][0]["call"], "cudaDeviceSynchronize");
        let api = report("api");
        assert_eq!(api["functions"][0]["name"], "cudaDeviceSynchronize");
        assert_eq!(api["functions"][0]["unfinished"], 1);
        assert_eq!(report("errors")["unfinished"][0]["end"], "its process ended in it");
        let check = |assertion| room.run(room.gpurec(&["check", "--assert", assertion, &file]));
        check("sync.time<1s").exited(1);
        check("cudaDeviceSynchronize.max<1s").exited(1);
    });
}
