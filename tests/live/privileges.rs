//! The capabilities. Those that README.md lists suffice without root, a recording keeps these and no others, and a user
//! who lacks one reads which.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::needs::single_uprobes_only;
use crate::room::{Room, eventually, live, slow};
use crate::trace::Trace;
use crate::user::as_user;

const OF_OWN: [&str; 4] = ["bpf", "perfmon", "kill", "dac_read_search"];

/// The capabilities, each with what gpurec says where it is missing. Single uprobes take one that covers the first two.
fn of_own() -> Vec<(&'static str, &'static str)> {
    let hooks: &[_] = if single_uprobes_only() {
        &[("sys_admin", "CAP_BPF and CAP_PERFMON")]
    } else {
        &[("bpf", "CAP_BPF"), ("perfmon", "CAP_PERFMON")]
    };
    [hooks, &[("kill", "CAP_KILL"), ("dac_read_search", "CAP_DAC_READ_SEARCH")]].concat()
}

fn of_own_but(missing: Option<&str>) -> Vec<&'static str> {
    of_own().iter().map(|(cap, _)| *cap).filter(|cap| Some(*cap) != missing).collect()
}

/// Runs gpurec as the user nobody, with these capabilities and no others, and with what systemd gives: tracefs, where
/// it is not mounted, and as many files as single uprobes take.
fn with_capabilities(room: &Room, caps: &[&str], words: &[&str]) -> Command {
    let sets = caps.iter().fold("-all".to_owned(), |sets, cap| format!("{sets},+{cap}"));
    let script = "ulimit -n 65536 2> /dev/null; { [ -e /sys/kernel/tracing/events ] || mount -t tracefs -o mode=700 nodev /sys/kernel/tracing; } && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps $0 --ambient-caps $0 --bounding-set $0 -- \"$@\"";
    let mut command = room.command("unshare");
    command.args(["-m", "sh", "-c", script, &sets, env!("CARGO_BIN_EXE_gpurec")]).args(words);
    command
}

/// Debian's Linux starts with level 3, where CAP_PERFMON is not enough.
/// In: a check that gpurec says so.
/// Out: level 2, until this is dropped.
struct ParanoidLevel(String);

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

impl ParanoidLevel {
    fn new(room: &Room, words: &[&str]) -> ParanoidLevel {
        let before = fs::read_to_string(PARANOID).unwrap();
        let level: i32 = before.trim().parse().unwrap();
        if level > 2 && !single_uprobes_only() {
            let done = room.run(with_capabilities(room, &of_own_but(None), words));
            done.exited(125).said(&format!("kernel.perf_event_paranoid is {level}, ")).one_sentence();
            fs::write(PARANOID, "2").unwrap();
        }
        ParanoidLevel(before)
    }
}

impl Drop for ParanoidLevel {
    fn drop(&mut self) {
        let _ = fs::write(PARANOID, &self.0);
    }
}

#[test]
fn these_suffice_without_root() {
    live(|room| {
        let file = room.path("tmp/t.jsonl");
        let file = file.to_str().unwrap();
        let words = ["demo", "-o", file, "--", "--loops", "2"];
        let _lowered = ParanoidLevel::new(room, &words);
        room.run(with_capabilities(room, &of_own_but(None), &words)).exited(0);
        assert!(Trace::checked(room, file).is_whole().calls.len() > 100);
        fs::remove_file(file).unwrap();
        for (missing, names) in of_own() {
            let done = room.run(with_capabilities(room, &of_own_but(Some(missing)), &words));
            done.exited(125).said(&format!("it lacks {names};")).one_sentence();
        }
        if single_uprobes_only() {
            let done = room.run(with_capabilities(room, &OF_OWN, &words));
            done.exited(125).said("uprobe: gpurec lacks CAP_SYS_ADMIN").one_sentence();
        }
        assert!(!fs::exists(file).unwrap());
    });
}

/// A process of root's, which gpurec stops whenever it executes a program for the first time, and resumes.
#[test]
fn these_suffice_for_processes_of_others() {
    live(|room| {
        let file = room.path("tmp/t.jsonl");
        let file = file.to_str().unwrap();
        let copies =
            "n=0; while sleep 0.05; do n=$((n+1)); cp /bin/true copy$n; ./copy$n && echo ran$n; done";
        let mut target = room.target(&["sh", "-c", copies]);
        target.wait_for_stdout("ran2");
        let pid = target.pid().to_string();
        let words = ["--pid", &pid, "-o", file, "--duration", "1"];
        let done = room.run(with_capabilities(room, &of_own_but(None), &words));
        done.exited(125).said("CAP_SYS_PTRACE").one_sentence();
        let _lowered = ParanoidLevel::new(room, &["-o", file, "--", "true"]);
        let all = [of_own_but(None).as_slice(), &["sys_ptrace"]].concat();
        let before = target.stdout().lines().count();
        room.run(with_capabilities(room, &all, &words)).exited(0);
        let after = target.stdout().lines().count();
        assert!(after > before + 3, "it ran {before} programs before and {after} after");
        let trace = Trace::checked(room, file);
        assert!(!trace.is_whole().process_events("exec").is_empty());
        fs::remove_file(file).unwrap();
        target.signal(Signal::SIGTERM);
        target.done();
    });
}

/// The lines of /proc/PID/status of each thread that begin with one of these words.
fn statuses(pid: u32, words: &[&str]) -> Vec<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let read = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    read.map(|text| {
        words
            .iter()
            .map(|word| {
                let line = text.lines().find_map(|line| line.strip_prefix(&format!("{word}:")));
                line.unwrap_or_else(|| panic!("no {word} in {text}"))
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    })
    .collect()
}

const LOOKED_AT: [&str; 8] = ["Uid", "Gid", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// Asserts that every thread of a recorder runs as `id`, with these capabilities if this machine's root has them.
#[track_caller]
fn has_kept(pid: u32, id: u32, caps: &[u32]) {
    let own = statuses(std::process::id(), &["CapPrm"]).remove(0).remove(0);
    let own = u64::from_str_radix(&own, 16).unwrap();
    let kept = format!("{:016x}", caps.iter().fold(0, |set, cap| set | 1u64 << cap) & own);
    let none = "0".repeat(16);
    let ids = vec![id.to_string(); 4].join(" ");
    let expected = [ids.as_str(), &ids, "1", &none, &kept, &kept, &kept, &none];
    // The thread that removes the calibration's hooks may have more for a moment.
    eventually("the rights of every thread", || statuses(pid, &LOOKED_AT).iter().all(|one| one == &expected));
}

const SYS_ADMIN: u32 = 21;
const KEPT_BY_ALL: [u32; 7] = [2, 5, 19, 23, 38, 39, 40];

fn kept() -> Vec<u32> {
    let more: &[u32] = if single_uprobes_only() { &[SYS_ADMIN] } else { &[] };
    [&KEPT_BY_ALL, more].concat()
}

const KEPT_OF_GUARDIAN: [u32; 2] = [5, 39];
const KEPT_OF_READERS: [u32; 3] = [2, 19, 40];

/// How many seconds `sleep` takes: until the test has looked at it.
fn a_while() -> String {
    (30 * slow()).to_string()
}

#[test]
fn root_keeps_only_what_recording_needs() {
    live(|room| {
        for (option, more) in
            [("-v", &[][..]), ("--kernel", &[SYS_ADMIN, 34]), ("--backend=uprobe", &[SYS_ADMIN])]
        {
            let file = room.text(&format!("t{option}.jsonl"));
            let started = room.start(room.gpurec(&[option, "-o", &file, "--", "sleep", &a_while()]));
            room.wait_until_recording(&file);
            has_kept(started.pid(), 0, &[&kept(), more].concat());
            let mut guardian = None;
            eventually("the guardian", || {
                guardian = room.processes().into_iter().find(|process| process.name == "gpurec-guard");
                guardian.is_some()
            });
            has_kept(guardian.unwrap().pid, 0, &KEPT_OF_GUARDIAN);
            let mut sleep = None;
            eventually("the command", || {
                sleep = room.processes().into_iter().find(|process| process.name == "sleep");
                sleep.is_some()
            });
            let plain = statuses(std::process::id(), &LOOKED_AT).remove(0);
            assert_eq!(statuses(sleep.unwrap().pid, &LOOKED_AT), [plain], "the command's");
            started.signal(Signal::SIGTERM);
            started.done().exited(143);
        }
    });
}

#[test]
fn by_sudo_the_recorder_is_no_root() {
    as_user(|room, user| {
        let file = user.home.join("t.jsonl");
        let file = file.to_str().unwrap();
        let line = format!("sudo $GPUREC -q -o {file} -- sh -c 'echo $PPID; exec sleep {}'", a_while());
        let mut started = room.start(user.command(room, &line));
        started.wait_for_stdout("\n");
        let pid: u32 = started.stdout().trim().parse().unwrap();
        let id = std::os::unix::fs::MetadataExt::uid(&user.home.metadata().unwrap());
        room.wait_until_recording(file);
        has_kept(pid, id, &kept());
        // The readers are forked from the recorder, so they share its command line.
        let of_name = |name: &str| -> Vec<u32> {
            let of_this = |pid: u32| {
                fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.contains(file))
            };
            let found = room.processes().into_iter().filter(|one| one.name == name && of_this(one.pid));
            found.map(|one| one.pid).collect()
        };
        let readers = of_name("gpurec-files");
        assert!(!readers.is_empty());
        readers.into_iter().for_each(|reader| has_kept(reader, id, &KEPT_OF_READERS));
        // The user cannot signal the guardian, which resumes processes.
        let guardian = of_name("gpurec-guard").remove(0);
        has_kept(guardian, 0, &KEPT_OF_GUARDIAN);
        for signal in ["STOP", "KILL"] {
            user.types(room, &format!("kill -{signal} {guardian}")).exited(1);
        }
        // Neither gdb nor other processes of the user may look into it.
        let mode = fs::metadata(format!("/proc/{pid}/mem")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&mode), 0, "{:o}", mode.permissions().mode());
        user.types(room, &format!("cat /proc/{pid}/environ")).exited(1);
        // But the user may end it, like any program of theirs.
        user.types(room, &format!("kill -TERM {pid}")).exited(0);
        started.done();
    });
}
