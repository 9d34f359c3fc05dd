//! A recorder that its caller has stopped (SIGSTOP), or a trace without a reader: no process of another user waits
//! longer than some seconds for it, and the trace says what that missed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::disorder::X;
use crate::room::{Process, Room, eventually, live, within};
use crate::run::Started;
use crate::trace::Trace;
use crate::truth::Truth;
use crate::user::{User, as_user};

/// The guardian's deadline, and the time to notice it.
const DEADLINE: Duration = Duration::from_secs(8);

fn is_stopped(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.state == 'T')
}

/// Each thread stops when it next leaves a system call.
fn has_stopped_whole(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| is_stopped(thread.file_name().to_str().unwrap().parse().unwrap()))
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

/// A process of root's that loads one library after the other once the gate opens.
struct LoadingProcess<'a> {
    target: Started<'a>,
    gate: PathBuf,
    begun: String,
}

impl LoadingProcess<'_> {
    fn new(room: &Room) -> LoadingProcess<'_> {
        let x = X::new(room);
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let library = room.compile("few.c", "libcuda.so.1", &flags);
        let number = room.number();
        let (gate, begun) = (room.path(&format!("gate-{number}")), room.text(&format!("begun-{number}")));
        mkfifo(&gate, Mode::S_IRWXU).unwrap();
        let mut words = vec![x.program.clone(), "load-slowly".to_owned(), begun.clone()];
        for i in 0..300 {
            let copy = room.text(&format!("copy-{i}.so"));
            fs::copy(&library, &copy).unwrap();
            words.push(copy);
        }
        let script = format!("read go < {}; exec {}", gate.display(), words.join(" "));
        let target = room.target(&["sh", "-c", &script]);
        LoadingProcess { target, gate, begun }
    }

    /// Stops the recorder until its target waits for it.
    fn hold(&self, recorder: u32) {
        fs::write(&self.gate, "go\n").unwrap();
        eventually("the target's beginning", || fs::exists(&self.begun).unwrap());
        send(recorder, Signal::SIGSTOP);
        // A thread of it may be about to resume the target.
        eventually("the recorder's stop", || has_stopped_whole(recorder));
        eventually("the target waits", || is_stopped(self.target.pid()));
    }

    /// Records the target with a recorder that is stopped.
    fn held_recording<'a>(&self, room: &'a Room, file: &str) -> Started<'a> {
        let pid = self.target.pid().to_string();
        let recording = room.start(room.gpurec(&["-o", file, "--pid", &pid]));
        room.wait_until_recording(file);
        self.hold(recording.pid());
        recording
    }
}

fn recorder(room: &Room) -> u32 {
    let mut found = None;
    eventually("the recorder", || {
        found = room.processes().into_iter().find(|process| process.name == "gpurec");
        found.is_some()
    });
    found.unwrap().pid
}

/// Takes what a program gets from who starts it: late timers, one processor, little processor time, the first place when
/// memory runs out.
const HARSH: &str = "import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(29, ctypes.c_ulong(10**8))
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
open(\"/proc/self/oom_score_adj\", \"w\").write(\"1000\")
os.execvp(sys.argv[1], sys.argv[1:])";

fn is_unhindered(pid: u32) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    assert_eq!(read("timerslack_ns").trim(), "50000");
    let id = Pid::from_raw(pid as i32);
    let cpus = nix::sched::sched_getaffinity(id).unwrap();
    assert_eq!(cpus, nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap());
    // SAFETY: plain integers.
    assert_eq!(unsafe { nix::libc::sched_getscheduler(pid as i32) }, nix::libc::SCHED_OTHER);
    // These two only with CAP_SYS_RESOURCE, which root in a container may lack.
    if fs::write("/proc/self/oom_score_adj", "-1").is_ok() {
        fs::write("/proc/self/oom_score_adj", "0").unwrap();
        assert_eq!(read("oom_score_adj").trim(), "-1000");
        let limits = read("limits");
        let time = limits.lines().find(|line| line.starts_with("Max cpu time")).unwrap();
        assert!(time.contains("unlimited"), "{time}");
    }
}

#[test]
fn a_person_who_stops_the_recorder_stops_nobody_else_for_long() {
    as_user(|room, user| {
        user.may_run("!use_pty", env!("CARGO_BIN_EXE_gpurec"));
        let loading = LoadingProcess::new(room);
        let file = user.home.join("t.jsonl");
        // gpurec's arguments name this test's folder.
        let words = format!("-o {} --pid {}", file.display(), loading.target.pid());
        let line = format!("python3 -c '{HARSH}' sudo $GPUREC {words}");
        let recording = room.start(user.command(room, &line));
        room.wait_until_recording(file.to_str().unwrap());
        let recorder = recorder(room);
        let guardian = room.processes().into_iter().find(|process| process.name == "gpurec-guard").unwrap();
        is_unhindered(guardian.pid);
        loading.hold(recorder);
        eventually("the guardian", || !is_stopped(loading.target.pid()));
        send(recorder, Signal::SIGCONT);
        // sudo and su stop themselves when their child is stopped. They may have ended by now.
        for process in room.processes().iter().filter(|one| ["sudo", "su"].contains(&one.name.as_str())) {
            let _ = kill(Pid::from_raw(process.pid as i32), Signal::SIGCONT);
        }
        loading.target.done().exited(0);
        recording.done().exited(0);
        let trace = Trace::checked(room, file.to_str().unwrap());
        assert!(trace.reason("resumed").contains("guardian"), "{:?}", trace.reasons());
    });
}

#[test]
#[ignore = "slow, and much as lossless::a_target_that_somebody_else_stops_stays_stopped: scripts/test --full"]
fn who_is_stopped_by_somebody_else_too_stays_stopped() {
    live(|room| {
        let loading = LoadingProcess::new(room);
        let (file, pid) = (room.text("t.jsonl"), loading.target.pid());
        let recording = loading.held_recording(room, &file);
        // This stop waits behind gpurec's own stop.
        send(pid, Signal::SIGSTOP);
        std::thread::sleep(DEADLINE);
        assert!(is_stopped(pid), "the guardian resumed it");
        recording.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_secs(1));
        assert!(is_stopped(pid), "the recorder resumed it");
        send(pid, Signal::SIGCONT);
        loading.target.done().exited(0);
        recording.done().exited(0);
        Trace::checked(room, &file);
    });
}

/// Once the guardian has resumed the process, a later stop is not gpurec's.
#[test]
#[ignore = "slow, and much as a_person_who_stops_the_recorder_stops_nobody_else_for_long: scripts/test --full"]
fn the_recorder_that_comes_back_ends_no_later_stop() {
    live(|room| {
        let loading = LoadingProcess::new(room);
        let (file, pid) = (room.text("t.jsonl"), loading.target.pid());
        let recording = loading.held_recording(room, &file);
        eventually("the guardian", || !is_stopped(pid));
        send(pid, Signal::SIGSTOP);
        eventually("the other stop", || is_stopped(pid));
        recording.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_secs(1));
        assert!(is_stopped(pid), "the recorder resumed it");
        send(pid, Signal::SIGCONT);
        loading.target.done().exited(0);
        recording.done().exited(0);
        assert!(!Trace::checked(room, &file).complete());
    });
}

const RING: &str = "1";
const THREADS: u64 = 4;
const CALLS: u64 = 100_000;
/// More calls than the recorder's queue to the writer holds.
const MANY: u64 = 4 * CALLS;

/// A pipe for the trace in the user's home, without a reader for now.
fn pipe(user: &User) -> PathBuf {
    let pipe = user.home.join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let home = fs::metadata(&user.home).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&home);
    std::os::unix::fs::chown(&pipe, Some(owner), None).unwrap();
    pipe
}

/// Reads the trace from now on, to its end.
fn read(room: &Room, mut from: fs::File, recording: Started) -> Trace {
    let file = room.text(&format!("read-{}.jsonl", room.number()));
    std::io::copy(&mut from, &mut fs::File::create(&file).unwrap()).unwrap();
    recording.done().exited(0);
    Trace::checked(room, &file)
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
}

#[test]
#[ignore = "slow, and much as through_sudo_lossless_takes_no_process_of_another_user: scripts/test --full"]
fn through_sudo_lossless_makes_only_the_persons_own_wait() {
    as_user(|room, user| {
        open_to_all(&room.dir);
        let pipe = pipe(user);
        let line = format!(
            "sudo $GPUREC -q --lossless --ring {RING} --only cuDriverGetVersion -o {} --",
            pipe.display()
        );
        // The user's own processes wait as long as the pipe has no reader.
        let own = Truth::new(room, 3, THREADS, MANY, false);
        let recording = room.start_unchecked(user.command(room, &format!("{line} {}", own.words.join(" "))));
        let from = fs::File::open(&pipe).unwrap();
        eventually("it waits", || own.pid().is_some_and(is_stopped));
        std::thread::sleep(DEADLINE);
        assert!(own.pid().is_some_and(is_stopped), "the guardian resumed it, while the recorder is there");
        let trace = read(room, from, recording);
        assert!(trace.complete() && trace.lost() == 0, "{}", trace.end["incomplete_because"]);
        // What sudo runs for the user in the recording does not wait, and the trace says what it lost.
        let roots = Truth::new(room, 4, THREADS, MANY, false);
        let line = format!("{line} sudo {}", roots.words.join(" "));
        let recording = room.start_unchecked(user.command(room, &line));
        let from = fs::File::open(&pipe).unwrap();
        eventually("root's own end", || roots.has_finished());
        let trace = read(room, from, recording);
        assert!(!trace.complete() && trace.lost() > 0);
    });
}

#[test]
fn through_sudo_lossless_takes_no_process_of_another_user() {
    as_user(|room, user| {
        let target = room.target(&["sleep", "1000"]);
        let line = format!("sudo $GPUREC --lossless --duration 0.2 -o t.jsonl --pid {}", target.pid());
        user.types(room, &line).exited(2).said("is another user's").one_sentence();
        let line = "sleep 1000 & sudo $GPUREC --lossless --duration 0.2 -o t.jsonl --pid $!; kill $!";
        user.types(room, line).exited(0);
        target.signal(Signal::SIGTERM);
        target.done();
    });
}

#[test]
fn a_paused_target_goes_on_when_the_recorder_is_held() {
    live(|room| {
        let file = room.text("t.jsonl");
        let truth = Truth::new(room, 5, THREADS, 1 << 20, false);
        let recording = room.start(truth.recording(room, &["--ring", RING, "--lossless"], &file));
        eventually("the target's first call", || truth.pid().is_some());
        recording.signal(Signal::SIGSTOP);
        eventually("the target waits", || is_stopped(truth.pid().unwrap()));
        eventually("it goes on", || truth.has_finished());
        recording.signal(Signal::SIGCONT);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        let (_, lost) = truth.holds(&trace, THREADS);
        assert!(!trace.complete() && lost > 0);
    });
}

/// A session's control groups belong to its user, who may freeze them with every process in them.
#[test]
fn the_guardian_is_in_no_control_group_of_the_persons() {
    const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    struct Group(PathBuf);
    impl Drop for Group {
        fn drop(&mut self) {
            let gone = || fs::remove_dir(&self.0).is_ok();
            // A failure here is not reported: the test may be failing already.
            within(DEADLINE, gone);
        }
    }
    as_user(|room, user| {
        let is_version_2 = |path: &&&str| fs::exists(format!("{path}/cgroup.procs")).unwrap();
        let Some(top) = HIERARCHIES.iter().find(is_version_2) else { return };
        let group = Group(Path::new(top).join(&user.name));
        fs::create_dir(&group.0).unwrap();
        let words = format!("sudo $GPUREC -q -o {} -- sleep 1000", user.home.join("t.jsonl").display());
        let person = user.command(room, &words);
        let mut command = room.command("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
        command.args(["-c", &script, "sh"]).arg(person.get_program()).args(person.get_args());
        let recording = room.start_unchecked(command);
        let group_of = |name: &str| {
            let found = room.processes().into_iter().find(|process| process.name == name)?;
            let text = fs::read_to_string(format!("/proc/{}/cgroup", found.pid)).ok()?;
            text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
        };
        eventually("the guardian's way out", || group_of("gpurec-guard").as_deref() == Some("/"));
        assert!(group_of("gpurec").unwrap().ends_with(&user.name));
        send(recorder(room), Signal::SIGTERM);
        recording.done().exited(143);
    });
}
