//! --lossless: the target waits when a ring fills, nothing is lost, and no process stays stopped at the end of the
//! recording or when the recorder dies. A stop by another process stays in force.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::needs::backends;
use crate::room::{Process, Room, eventually, live};
use crate::run::Started;
use crate::trace::Trace;
use crate::truth::Truth;
use crate::unharmed::OddPrograms;

/// All rings together, in MiB; a call and its return are 160 bytes or more.
const RING: &str = "1";
/// A target is paused when half of one CPU's ring is full; its lines take at least twice as much.
const ITS_SHARE: u64 = 256 << 10;
const THREADS: u64 = 8;
const BURST: u64 = 10 * (1 << 20) / 160;

fn is_stopped(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.state == 'T')
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

/// A recording with --lossless that is stopped until its target waits for it.
fn waited_for<'a>(room: &'a Room, truth: &Truth, backend: &str, file: &str) -> (Started<'a>, u32) {
    let options = ["--backend", backend, "--ring", RING, "--lossless"];
    let recording = room.start(truth.recording(room, &options, file));
    eventually("the target's first call", || truth.pid().is_some());
    recording.signal(Signal::SIGSTOP);
    let target = truth.pid().unwrap();
    eventually("the target waits", || is_stopped(target));
    (recording, target)
}

#[track_caller]
fn nothing_is_lost(truth: &Truth, trace: &Trace) {
    let (recorded, lost) = truth.holds(trace, THREADS);
    assert_eq!(lost, 0, "{}", trace.end["summary"]["lost_by_probe"]);
    assert!(trace.complete() && recorded > 0, "{}", trace.end["incomplete_because"]);
    let pauses = &trace.end["summary"]["pauses"];
    assert!(pauses["count"].as_u64() > Some(0) && pauses["total_ns"].as_u64() > Some(0), "{pauses}");
}

#[test]
fn a_burst_ten_times_the_ring_is_recorded_whole() {
    live(|room| {
        for backend in backends() {
            let file = room.text(&format!("{backend}.jsonl"));
            let truth = Truth::new(room, 1, THREADS, BURST / THREADS, false);
            let (recording, _) = waited_for(room, &truth, backend, &file);
            recording.signal(Signal::SIGCONT);
            let done = recording.done();
            done.exited(0).said("Paused for --lossless: ");
            assert_eq!(done.text(), "finished\n");
            nothing_is_lost(&truth, Trace::checked(room, &file).by(backend));
        }
    });
}

/// A signal comes every few hundred microseconds, and its handler calls too.
#[test]
fn a_burst_in_a_storm_of_signals_is_recorded_whole() {
    live(|room| {
        let file = room.text("t.jsonl");
        let truth = Truth::new(room, 2, THREADS, BURST / THREADS, true);
        let (recording, _) = waited_for(room, &truth, backends()[0], &file);
        recording.signal(Signal::SIGCONT);
        recording.done().exited(0);
        nothing_is_lost(&truth, &Trace::checked(room, &file));
    });
}

/// The reader takes nothing for a while, as a slow disk does.
#[test]
fn several_processes_wait_for_a_slow_reader() {
    live(|room| {
        // The recorder's own queue holds much more than the rings, and is full too.
        let (pipe, file) = (room.path("pipe"), room.path("t.jsonl"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let both = [3, 4].map(|seed| Truth::new(room, seed, 4, 120_000, false));
        let [first, second] = both.each_ref().map(|truth| truth.words.join(" "));
        let script = format!("{first} & {second}; wait $!");
        let words = ["-q", "--lossless", "--ring", RING, "--only", "cuDriverGetVersion", "-o"];
        let mut command = room.gpurec(&words);
        command.arg(&pipe).args(["--", "sh", "-c", &script]);
        let recording = room.start_unchecked(command);
        let mut options = fs::OpenOptions::new();
        let mut from = options.read(true).custom_flags(0).open(&pipe).unwrap();
        eventually("both wait", || both.iter().all(|truth| truth.pid().is_some_and(is_stopped)));
        std::io::copy(&mut from, &mut fs::File::create(&file).unwrap()).unwrap();
        recording.done().exited(0);
        let trace = Trace::checked(room, file.to_str().unwrap());
        assert!(trace.complete() && trace.lost() == 0, "{}", trace.end["incomplete_because"]);
        let made: u64 = both.iter().map(|truth| truth.made()[0].ended).sum();
        trace.has_calls(&[("cuDriverGetVersion", made)]);
    });
}

#[test]
fn a_paused_target_goes_on_when_gpurec_is_killed() {
    live(|room| {
        for backend in backends() {
            let truth = Truth::new(room, 5, THREADS, BURST / THREADS, false);
            let (recording, _) = waited_for(room, &truth, backend, &room.text("t.jsonl"));
            let stdout = recording.stdout_file();
            recording.kill();
            eventually("the target's own end", || room.processes().is_empty());
            assert_eq!(fs::read_to_string(stdout).unwrap(), "finished\n");
            assert!(truth.has_finished());
        }
    });
}

#[test]
fn a_paused_target_goes_on_when_the_recording_ends() {
    live(|room| {
        let (file, truth) = (room.text("t.jsonl"), Truth::new(room, 6, 2, 1 << 40, false));
        let mut target = room.start(truth.command(room));
        eventually("its first call", || truth.pid().is_some());
        let pid = target.pid().to_string();
        let options =
            ["--ring", RING, "--lossless", "--only", "cuDriverGetVersion", "--pid", &pid, "-o", &file];
        let recording = room.start(room.gpurec(&options));
        room.wait_until_recording(&file);
        recording.signal(Signal::SIGSTOP);
        eventually("it waits", || is_stopped(target.pid()));
        recording.signal(Signal::SIGINT);
        recording.signal(Signal::SIGCONT);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        assert!(trace.complete() && trace.lost() == 0, "{}", trace.end["incomplete_because"]);
        let made = || truth.made()[0].begun;
        let before = made();
        eventually("it goes on", || made() > before + 1000);
        assert!(target.is_running());
        target.kill();
    });
}

#[test]
fn a_target_that_somebody_else_stops_stays_stopped() {
    live(|room| {
        let file = room.text("t.jsonl");
        let truth = Truth::new(room, 7, THREADS, BURST / THREADS, false);
        let (recording, target) = waited_for(room, &truth, backends()[0], &file);
        signal(target, Signal::SIGSTOP);
        recording.signal(Signal::SIGCONT);
        let made = || truth.made().iter().map(|made| made.begun).sum::<u64>();
        // The rings are empty once their share of the target's calls is in the file.
        eventually("the file", || fs::metadata(&file).is_ok_and(|about| about.len() > ITS_SHARE));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let before = made();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(is_stopped(target) && made() == before, "it was let go");
        signal(target, Signal::SIGCONT);
        recording.done().exited(0);
        nothing_is_lost(&truth, &Trace::checked(room, &file));
    });
}

/// A debugger such as gdb would take the stop for its own. So its program is not paused, and what it loses is counted.
#[test]
fn a_target_in_a_debugger_is_not_stopped() {
    live(|room| {
        let odd = OddPrograms::new(room);
        for backend in backends() {
            let file = room.text(&format!("{backend}.jsonl"));
            let mut truth = Truth::new(room, 8, THREADS, 8 * BURST / THREADS, false);
            // gpurec stops no debugged program at a new library either, so another program loads the library first.
            let script = format!(
                "LD_PRELOAD={} /bin/true; exec {} traced {}",
                truth.words[1],
                odd.program,
                truth.words.join(" ")
            );
            truth.words = ["sh", "-c", &script].map(str::to_owned).to_vec();
            let options = ["--backend", backend, "--ring", RING, "--lossless"];
            let recording = room.start(truth.recording(room, &options, &file));
            eventually("the target's first call", || truth.pid().is_some());
            recording.signal(Signal::SIGSTOP);
            let begun = || truth.made().iter().map(|made| made.begun).sum::<u64>();
            let before = begun();
            eventually("calls beyond the rings", || begun() > before + BURST);
            recording.signal(Signal::SIGCONT);
            let done = recording.done();
            assert_eq!(done.exited(0).text(), "finished\ncontinued 0 stopped 0 status 0\n");
            let trace = Trace::checked(room, &file);
            let (recorded, lost) = truth.holds(trace.by(backend), THREADS);
            assert!(recorded > 0 && lost > 0 && !trace.complete());
            trace.reason("not_paused");
        }
    });
}

#[test]
fn nobody_is_paused_under_all() {
    live(|room| {
        let done = room.run(room.gpurec(&["--all", "--lossless", "--duration", "1"]));
        done.exited(2).said("--lossless").one_sentence();
    });
}
