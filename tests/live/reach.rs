//! The attach scope: a process that is not recorded pays nothing for the hooks as long as only one process has them,
//! and no call is missed or recorded twice when other processes need them too.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::needs::{backends, single_uprobes_only};
use crate::room::{Room, live_nvidia};
use crate::run::Started;

const CALL: &str = "cuDriverGetVersion";
/// How often each step of fixtures/programs/reach.c calls it.
const CALLS: u64 = 2000;

/// Single uprobes take long to attach and to detach, so there is one of them.
fn options() -> &'static [&'static str] {
    if single_uprobes_only() { &["--only", CALL] } else { &[] }
}

/// A process that has the library open and is not recorded, and the code of a function in it.
struct Bystander<'a> {
    process: Started<'a>,
    memory: File,
    address: u64,
    before: Vec<u8>,
}

impl<'a> Bystander<'a> {
    fn new(room: &'a Room, program: &str, library: &str) -> Bystander<'a> {
        let mut process = room.target(&[program, library, library, "bystander"]);
        process.wait_for_stdout("\n");
        let address = u64::from_str_radix(process.stdout().trim().trim_start_matches("0x"), 16).unwrap();
        let memory = File::open(format!("/proc/{}/mem", process.pid())).unwrap();
        let mut bystander = Bystander { process, memory, address, before: Vec::new() };
        bystander.before = bystander.code();
        bystander
    }

    fn code(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        self.memory.read_exact_at(&mut bytes, self.address).unwrap();
        bytes
    }

    fn is_untouched(&self) -> bool {
        self.code() == self.before
    }
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
            program: room.compile("reach.c", "reach", &["-pthread"]),
            library: copy("one"),
            other: copy("two"),
        }
    }

    fn words<'a>(&'a self, what: &'a str) -> [&'a str; 4] {
        [&self.program, &self.library, &self.other, what]
    }
}

/// Records until a process reports by a file that it is in the middle; reads the code, then lets the process end.
fn code_in_the_middle(room: &Room, stage: &Stage, command: &str) -> bool {
    let bystander = Bystander::new(room, &stage.program, &stage.library);
    let (file, here, go) = (room.text("m.jsonl"), room.text("here"), room.text("go"));
    for old in [&here, &go] {
        let _ = fs::remove_file(old);
    }
    let script = format!("{command}; : > {here}; until [ -e {go} ]; do sleep 0.01; done");
    let recording = room.start(room.gpurec(&[options(), &["-o", &file, "--", "sh", "-c", &script]].concat()));
    crate::room::eventually("the middle", || Path::new(&here).exists());
    let untouched = bystander.is_untouched();
    fs::write(&go, "").unwrap();
    recording.done().exited(0);
    assert!(bystander.is_untouched(), "the hooks are gone");
    bystander.process.kill();
    untouched
}

#[test]
fn who_is_not_recorded_is_not_touched_while_one_process_is() {
    live_nvidia(|room, libraries| {
        let stage = Stage::new(room, libraries);
        let once = stage.words("once").join(" ");
        let bystander = Bystander::new(room, &stage.program, &stage.library);
        let narrow = backends().contains(&"uprobe.session");
        // The processes run one after the other, and the hooks move with them.
        assert_eq!(code_in_the_middle(room, &stage, &format!("{once}; {once}; {once}")), narrow);
        assert!(bystander.is_untouched());
        // Children of a process that has hooks: from then on the hooks are for all processes.
        let forks = stage.words("forks").join(" ");
        assert!(!code_in_the_middle(room, &stage, &forks));
        bystander.process.kill();
    });
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
