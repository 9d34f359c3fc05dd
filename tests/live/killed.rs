//! gpurec killed without warning (SIGKILL), at random instants, while what it records loads libraries. Every process
//! runs on and ends as it should, none stays stopped, and nothing stays loaded in Linux.
//! GPUREC_TEST_KILLS says how often (20).

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use libbpf_rs::query::{LinkInfoIter, ProgInfoIter};
use nix::sys::signal::Signal;

use crate::disorder::X;
use crate::needs::single_uprobes_only;
use crate::room::{Room, eventually, live, live_nvidia, within};
use crate::run::Started;

const LIBRARIES: usize = 60;
/// Time for what outlives gpurec to finish: much longer than it takes.
const AFTERWARDS: Duration = Duration::from_secs(10);

struct Stage<'a> {
    room: &'a Room,
    x: X,
    libraries: Vec<String>,
    /// What was loaded before.
    programs: Vec<u32>,
    links: Vec<u32>,
}

#[test]
fn gpurec_is_killed_while_libraries_are_loaded() {
    live(|room| {
        let x = X::new(room);
        let copy = |i| {
            let copy = room.text(&format!("copy-{i}.so"));
            fs::copy(&x.library, &copy).unwrap();
            copy
        };
        let libraries = (0..LIBRARIES).map(copy).collect();
        let (programs, links) = (programs(), links());
        let stage = Stage { room, x, libraries, programs, links };
        let kills = std::env::var("GPUREC_TEST_KILLS").map_or(20, |text| text.parse().unwrap());
        for round in 0..kills {
            match round % 3 {
                0 => stage.a_command(round, true),
                1 => stage.a_command(round, false),
                _ => stage.a_running_process(round),
            }
        }
    });
}

fn programs() -> Vec<u32> {
    ProgInfoIter::default().map(|program| program.id).collect()
}

fn links() -> Vec<u32> {
    LinkInfoIter::default().map(|link| link.id).collect()
}

/// A random number of microseconds below the limit.
fn random(limit: u64) -> Duration {
    Duration::from_micros(RandomState::new().build_hasher().finish() % limit)
}

impl Stage<'_> {
    /// The words of a program that loads the libraries and reports its start in a file; a slow one can be attached to.
    fn words<'a>(&'a self, how: &'a str, start: &'a str) -> Vec<&'a str> {
        let mut words = vec![self.x.program.as_str(), how, start];
        words.extend(self.libraries.iter().map(String::as_str));
        words
    }

    /// Kills gpurec at any instant, or only after the command has begun to load.
    fn a_command(&self, round: u32, begun: bool) {
        let start = self.room.text(&format!("start-{round}"));
        let (lib, file) = (self.x.lib(), self.room.text(&format!("{round}.jsonl")));
        let words = [vec!["--lib", &lib, "-o", &file, "--"], self.words("load", &start)].concat();
        let recording = self.room.start(self.room.gpurec(&words));
        if begun {
            eventually("the command's beginning", || fs::exists(&start).unwrap());
        }
        let waited = random(if begun { 60_000 } else { 400_000 });
        std::thread::sleep(waited);
        recording.signal(Signal::SIGKILL);
        let said = recording.stdout_file();
        recording.done();
        self.nothing_is_left(round, waited);
        // If gpurec was killed before it started the command, the command never starts.
        if fs::exists(&start).unwrap() {
            has_loaded(&said, round);
        }
    }

    fn a_running_process(&self, round: u32) {
        let start = self.room.text(&format!("start-{round}"));
        let target = self.room.target(&self.words("load-slowly", &start));
        eventually("the target's beginning", || fs::exists(&start).unwrap());
        let recording = self.attach(&target, round);
        let waited = random(400_000);
        std::thread::sleep(waited);
        recording.signal(Signal::SIGKILL);
        recording.done();
        let said = target.stdout_file();
        target.done().exited(0);
        self.nothing_is_left(round, waited);
        has_loaded(&said, round);
    }

    fn attach(&self, target: &Started, round: u32) -> Started<'_> {
        let (lib, file) = (self.x.lib(), self.room.text(&format!("{round}.jsonl")));
        let pid = target.pid().to_string();
        self.room.start(self.room.gpurec(&["--lib", &lib, "-o", &file, "--pid", &pid]))
    }

    /// Asserts that no process of the test is left, stopped or running, no guardian, no BPF program and no BPF link.
    fn nothing_is_left(&self, round: u32, waited: Duration) {
        let gone = within(AFTERWARDS, || self.room.processes().is_empty());
        assert!(gone, "round {round}, killed after {waited:?}: {:?}", self.room.processes());
        let more = |now: Vec<u32>, before: &[u32], held: &str| {
            let held = held_by_processes(held);
            now.into_iter().any(|id| !before.contains(&id) && !held.contains(&id))
        };
        let clean =
            || !more(programs(), &self.programs, "prog_id:") && !more(links(), &self.links, "link_id:");
        assert!(within(AFTERWARDS, clean), "round {round}: BPF programs or links are left");
    }
}

/// A thread that a SIGKILL has reached can no longer remove a breakpoint from another process.
#[test]
fn gpurec_is_killed_while_hooks_come_and_go() {
    live_nvidia(|room, libraries| {
        // The library is large, so that both attaching and detaching take time.
        let library = room.text("libcuda.so.1");
        fs::copy(libraries.join("libcuda.so.1"), &library).unwrap();
        let target = room.target(&["env", &format!("LD_PRELOAD={library}"), "sleep", "1000"]);
        let pid = target.pid();
        eventually("the library", || !code(pid, &library).is_empty());
        let before = code(pid, &library);
        for round in 0..12 {
            let file = room.text(&format!("{round}.jsonl"));
            // Linux takes a tenth of a second for each single uprobe.
            let only = if single_uprobes_only() { "cuMemcpy*" } else { "cu*" };
            let words = ["-o", &file, "--only", only, "--pid", &pid.to_string()];
            let recording = room.start(room.gpurec(&words));
            let waited = if round % 2 == 0 {
                room.wait_until_recording(&file);
                std::thread::sleep(Duration::from_millis(300));
                recording.signal(Signal::SIGINT);
                // Afterwards it waits 5 ms for the last returns.
                Duration::from_millis(5) + random(10_000)
            } else {
                Duration::from_millis(100) + random(300_000)
            };
            std::thread::sleep(waited);
            recording.signal(Signal::SIGKILL);
            recording.done();
            let restored = within(AFTERWARDS, || code(pid, &library) == before);
            assert!(restored, "round {round}, killed after {waited:?}: the target has breakpoints");
        }
        target.signal(Signal::SIGTERM);
        target.done();
    });
}

/// The code of a library as a process has it.
fn code(pid: u32, library: &str) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut code = Vec::new();
    for line in maps.lines().filter(|line| line.ends_with(library) && line.contains(" r-xp ")) {
        let (start, rest) = line.split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = (address(start), address(rest.split_once(' ').unwrap().0));
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).unwrap();
        code.extend(bytes);
    }
    code
}

/// What a process holds open ends with that process: such as other recordings on the same machine.
fn held_by_processes(key: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.filter_map(|one| fs::read_dir(one.path().join("fdinfo")).ok()).flatten();
    let texts = descriptors.filter_map(|one| fs::read_to_string(one.ok()?.path()).ok());
    texts
        .filter_map(|text| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok()))
        .collect()
}

fn has_loaded(said: &Path, round: u32) {
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(said, "loaded\n", "round {round}: to its end");
}
