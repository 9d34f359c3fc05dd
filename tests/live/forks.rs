//! Processes that come from each other, by fork and by exec: no call is missed or recorded twice.

use std::fs;
use std::path::Path;

use crate::needs::single_uprobes_only;
use crate::room::{Room, live_nvidia};

const CALL: &str = "cuDriverGetVersion";
/// How often each step of fixtures/programs/forks.c calls it.
const CALLS: u64 = 2000;

/// Single uprobes take long to attach and to detach, so there is one of them.
fn options() -> &'static [&'static str] {
    if single_uprobes_only() { &["--only", CALL] } else { &[] }
}

struct Stage {
    program: String,
    library: String,
    other: String,
}

impl Stage {
    /// Makes copies of our own, which no other process has open.
    fn new(room: &Room, libraries: &Path) -> Stage {
        let copy = |name: &str| {
            let folder = room.path(name);
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("libcuda.so.1");
            fs::copy(libraries.join("libcuda.so.1"), &path).unwrap();
            path.to_str().unwrap().to_owned()
        };
        Stage {
            program: room.compile("forks.c", "forks", &["-pthread"]),
            library: copy("one"),
            other: copy("two"),
        }
    }

    fn words<'a>(&'a self, what: &'a str) -> [&'a str; 4] {
        [&self.program, &self.library, &self.other, what]
    }
}

#[test]
fn calls_of_processes_that_come_from_each_other_are_told_once() {
    live_nvidia(|room, libraries| {
        let stage = Stage::new(room, libraries);
        for _ in 0..3 {
            let (done, trace) = room.record(options(), &stage.words("forks"));
            done.exited(0);
            trace.is_whole().has_calls(&[(CALL, 6 * CALLS)]);
        }
        let once = stage.words("once").join(" ");
        let (done, trace) =
            room.record(options(), &["sh", "-c", &format!("{once} & {once} & {once} & wait")]);
        done.exited(0);
        trace.is_whole().has_calls(&[(CALL, 3 * CALLS)]);
        let (done, trace) = room.record(options(), &["sh", "-c", &format!("{once}; {once}; {once}")]);
        done.exited(0);
        trace.is_whole().has_calls(&[(CALL, 3 * CALLS)]);
    });
}

#[test]
fn a_process_whose_first_thread_is_gone_is_seen_on() {
    live_nvidia(|room, libraries| {
        let stage = Stage::new(room, libraries);
        for what in ["executes", "ends"] {
            let (done, trace) = room.record(options(), &stage.words(what));
            done.exited(0);
            trace.is_whole().has_calls(&[(CALL, 2 * CALLS)]);
        }
    });
}
