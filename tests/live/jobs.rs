//! Programs that wait for a process to stop (a shell with job control, sudo, su, script) must not take gpurec's stops
//! for the process's own: the shell would call the job suspended, the others would stop themselves for good.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::needs;
use crate::room::{Room, eventually, live, within};
use crate::trace::Trace;
use crate::unharmed::OddPrograms;

const LIB: &str = "libx.so.1:x_*";
const SHELL: [&str; 5] = ["bash", "--norc", "--noprofile", "--noediting", "-i"];
const CTRL_Z: &str = "\x1a";
const PROMPT: &str = "@ ";

/// Runs a program on a terminal of its own.
/// In: pairs of a text to wait for and a line to type after it; each wait starts after the text of the last one.
/// Out: what the terminal shows.
fn on_a_terminal(room: &Room, words: &[&str], typed: &[(&str, &str)]) -> String {
    let pair = nix::pty::openpty(None, None).unwrap();
    let mut command = room.command("setsid");
    command.args(["--ctty", "--wait"]).args(words).env("PS1", PROMPT).env("TERM", "dumb");
    let side = || Stdio::from(pair.slave.try_clone().unwrap());
    let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    drop(command);
    drop(pair.slave);
    let mut keys = File::from(pair.master);
    let mut screen = keys.try_clone().unwrap();
    let shown = Arc::new(Mutex::new(String::new()));
    let into = shown.clone();
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            into.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]).replace('\r', ""));
        }
    });
    let mut seen = 0;
    for (before, text) in typed {
        let found = || shown.lock().unwrap()[seen..].find(before).map(|at| seen + at + before.len());
        assert!(within(Duration::from_secs(30), || found().is_some()), "{before:?} in {:?}", shown.lock());
        seen = found().unwrap();
        keys.write_all(text.as_bytes()).unwrap();
    }
    eventually("the program's end", || child.try_wait().unwrap().is_some());
    reader.join().unwrap();
    drop(keys);
    shown.lock().unwrap().clone()
}

/// A trace line with this says that a library has hooks.
const HOOKED: &str = "\"name\":\"library\"";

/// A shell line that waits until the first library has hooks.
fn until_hooked(file: &str) -> String {
    format!("until grep -q '{HOOKED}' {file} 2>/dev/null; do sleep 0.02; done")
}

/// Ctrl-Z stops gpurec and its command together, `fg` resumes them, and libraries come after that.
#[test]
fn a_recording_that_its_shell_suspends() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (file, go, gpurec) = (room.text("t.jsonl"), room.text("go"), env!("CARGO_BIN_EXE_gpurec"));
        let record = format!(
            "{gpurec} -q --lib '{LIB}' -o {file} -- {} wait {go} {}\n",
            odd.program,
            odd.copies.join(" ")
        );
        // BPF stops no process while gpurec does not update its heartbeat: gpurec gets a moment to resume.
        let on = format!("(sleep 0.5; touch {go}) & fg %1\n");
        let typed = [
            (PROMPT, &*record),
            ("waiting\n", CTRL_Z),
            (PROMPT, &on),
            ("opened\n", "echo status $?; exit\n"),
        ];
        let shown = on_a_terminal(room, &SHELL, &typed);
        assert!(shown.contains("status 0\n") && shown.matches("Stopped").count() == 1, "{shown}");
        let trace = Trace::checked(room, &file);
        trace.is_whole().has_calls(&[("x_leaf", 1)]);
        assert_eq!(trace.process_events("library").len(), 4);
    });
}

/// The shell is recorded too: its jobs have only their own stops.
#[test]
fn a_shell_with_job_control_that_is_recorded() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let (file, go, copies) = (room.text("t.jsonl"), room.text("go"), odd.copies.join(" "));
        let words =
            [&[env!("CARGO_BIN_EXE_gpurec"), "-q", "--lib", LIB, "-o", &file, "--"], &SHELL[..]].concat();
        let first = format!("{} wait {go} {copies}\n", odd.program);
        let on = format!("{}; touch {go}; fg\n", until_hooked(&file));
        let again = format!("{} leaf 30; echo status $?\n", odd.x.program);
        let typed = [
            (PROMPT, &*first),
            ("waiting\n", CTRL_Z),
            (PROMPT, &on),
            ("opened\n", "echo status $?\n"),
            ("status 0\n", &again),
            ("status 0\n", "exit\n"),
        ];
        let shown = on_a_terminal(room, &words, &typed);
        assert_eq!(shown.matches("Stopped").count(), 1, "{shown}");
        let trace = Trace::checked(room, &file);
        assert_eq!(trace.lost(), 0);
        trace.has_calls(&[("x_leaf", 31)]);
        // Not stopped: at the first library, and at those that came after `fg`. Gone: the shell's other children, which
        // were about to execute their programs.
        let is_known = |code: &&str| ["not_stopped", "gone"].contains(code);
        assert!(!trace.complete() && trace.codes().iter().all(is_known), "{:?}", trace.reasons());
    });
}

/// The first program of a container is often such a shell. This one only waits while its job opens libraries: if another
/// child ended at that moment, it might see gpurec's stop (docs/recording.md).
#[test]
fn a_script_with_job_control_and_no_terminal() {
    live(|room| {
        let odd = OddPrograms::new(room);
        let file = room.text("t.jsonl");
        let (go, waits, hooked) = (room.text("go"), room.text("waits"), until_hooked(&file));
        let wait = format!("{} wait {go} {}", odd.program, odd.copies.join(" "));
        let script = format!(
            "set -m; {wait} & p=$!; {hooked}; : > {waits}; wait $p; echo status $?; {} leaf 20; echo status $?; jobs",
            odd.x.program
        );
        let words = ["--lib", LIB, "-o", &file, "--", "setsid", "bash", "-c", &script];
        let recording = room.start(room.gpurec(&words));
        eventually("the script waits", || room.path("waits").exists());
        std::thread::sleep(Duration::from_millis(500));
        fs::write(&go, "").unwrap();
        let done = recording.done();
        assert_eq!(done.exited(0).text(), "waiting\nopened\nstatus 0\nstatus 0\n");
        let trace = Trace::checked(room, &file);
        assert_eq!(trace.lost(), 0);
        // The last process is not stopped either, and may call before its hooks are in: then the trace says so.
        let calls = trace.counts()["x_leaf"];
        let all = calls == 21 || trace.codes().contains(&"not_stopped");
        assert!((1..=21).contains(&calls) && all, "{calls} calls, {:?}", trace.reasons());
    });
}

/// Makes sudo give its commands a terminal of their own, as it does from 1.9.14 on. No other test here uses sudo in a
/// way that this harms.
struct OwnTerminals;

impl OwnTerminals {
    const FILE: &str = "/etc/sudoers.d/gpurec-live-terminals";

    fn given() -> OwnTerminals {
        fs::write(OwnTerminals::FILE, "Defaults use_pty\n").unwrap();
        OwnTerminals
    }
}

impl Drop for OwnTerminals {
    fn drop(&mut self) {
        let _ = fs::remove_file(OwnTerminals::FILE);
    }
}

/// Each of these programs would stop itself.
#[test]
fn programs_that_stop_with_their_child() {
    live(|room| {
        assert!(needs::program("sudo") || needs::skip("install sudo"));
        let odd = OddPrograms::new(room);
        let copy = |i: usize| room.text(&format!("new-{i}.so"));
        let nsenter = "nsenter --pid=/proc/self/ns/pid --";
        let programs =
            ["runuser -u root --", "sudo -n", nsenter, "su root -c", "script -qec", "script -qec sudo"];
        let _pty = OwnTerminals::given();
        for (i, before) in programs.into_iter().enumerate() {
            fs::copy(&odd.x.library, copy(i)).unwrap();
            let (file, go) = (room.text(&format!("{i}.jsonl")), room.text(&format!("go-{i}")));
            let run = format!("{} wait {go} {}", odd.program, copy(i));
            let mut words = ["--lib", LIB, "-o", &file, "--"].map(str::to_owned).to_vec();
            words.extend(before.split(' ').map(str::to_owned));
            match before.split_once(' ').unwrap().0 {
                "script" if before.ends_with("sudo") => {
                    words.pop();
                    words.extend([format!("sudo -n {run}"), "/dev/null".to_owned()]);
                }
                "script" => words.extend([run, "/dev/null".to_owned()]),
                "su" => words.push(run),
                _ => words.extend(run.split(' ').map(str::to_owned)),
            }
            let mut recording = room.start(room.gpurec(&words));
            recording.wait_for_stdout("waiting");
            eventually("its first library's hooks", || fs::read_to_string(&file).unwrap().contains(HOOKED));
            fs::write(&go, "").unwrap();
            recording.wait_for_stdout("opened");
            recording.done().exited(0);
            Trace::checked(room, &file).has_calls(&[("x_leaf", 1)]);
        }
    });
}
