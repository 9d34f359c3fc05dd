//! The command line: exit statuses, what gpurec prints and where, what it writes and where.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::disorder::X;
use crate::needs::{backends, is_single};
use crate::room::{Process, Room, eventually, live};
use crate::trace::Trace;

/// Asserts that nothing was recorded, the command did not run, and one sentence says why.
pub fn refused(room: &Room, status: i32, words: &[&str], why: &str) {
    let done = room.run(room.gpurec(words));
    done.exited(status).said(why).one_sentence();
    assert!(done.stdout.is_empty(), "{}", done.text());
    assert!(!room.path("ran").exists(), "{words:?} ran its command");
    let left: Vec<_> = fs::read_dir(room.cwd()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{words:?} left {left:?}");
}

#[test]
fn the_commands_status_is_passed_on() {
    live(|room| {
        for (script, status) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
        {
            let (done, trace) = room.record(&[], &["sh", "-c", script]);
            done.exited(status);
            trace.is_whole();
            assert_eq!(trace.process_events("exit").last().unwrap()["status"], status);
        }
    });
}

#[test]
fn a_command_that_cannot_be_run() {
    live(|room| {
        let file = |name: &str, mode: u32, text: &str| {
            fs::write(room.path(name), text).unwrap();
            fs::set_permissions(room.path(name), fs::Permissions::from_mode(mode)).unwrap();
            room.text(name)
        };
        refused(room, 127, &["--", "no-such-command-anywhere"], "not found");
        refused(room, 127, &["--", &room.text("none")], "not found");
        refused(room, 126, &["--", &file("plain", 0o644, "text")], "not executable");
        refused(room, 126, &["--", &room.text("")], "is a directory");
    });
}

#[test]
fn an_interpreter_that_is_missing() {
    live(|room| {
        let script = room.path("script");
        fs::write(&script, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let done = room.run(room.gpurec(&["-o", &room.text("t"), "--", &room.text("script")]));
        done.exited(126).said("interpreter").one_sentence();
    });
}

#[test]
fn usage_errors_are_two() {
    live(|room| {
        for words in [
            &[][..],
            &["--"],
            &["--", ""],
            &["--nonsense"],
            &["--pid", "1", "--", "true"],
            &["--pid", "x"],
            &["--only", "[", "--", "true"],
            &["--lib", "libx.so:[", "--", "true"],
            &["--duration", "0", "--", "true"],
            &["--ring", "0", "--", "true"],
            &["-q", "-v", "--", "true"],
        ] {
            let done = room.run(room.gpurec(words));
            assert_eq!(done.status.code(), Some(2), "{words:?}: {}", done.stderr);
            assert!(!done.stderr.is_empty() && done.stdout.is_empty());
        }
        assert!(fs::read_dir(room.cwd()).unwrap().next().is_none(), "nothing is written");
    });
}

#[test]
fn processes_that_cannot_be_recorded() {
    live(|room| {
        let mut ended = Command::new("true").spawn().unwrap();
        eventually("a zombie", || Process::of(ended.id()).is_some_and(|p| p.state == 'Z'));
        let pid = ended.id().to_string();
        refused(room, 125, &["--pid", &pid], "zombie");
        ended.wait().unwrap();
        refused(room, 125, &["--pid", &pid], "no process");
        refused(room, 125, &["--pid", "0"], "no process");
        if Process::of(2).is_some_and(|p| p.name == "kthreadd") {
            refused(room, 125, &["--pid", "2"], "kernel thread");
        }
        // The first process may belong to another container.
        if fs::read_link("/proc/1/exe").is_err() {
            refused(room, 125, &["-p", "1"], "not even by root");
        }
    });
}

#[test]
fn a_process_that_ends_ends_the_recording() {
    live(|room| {
        let file = room.text("trace.jsonl");
        let script = format!("echo ready; while [ ! -e {} ]; do sleep 0.02; done; exit 3", room.text("go"));
        let mut target = room.target(&["sh", "-c", &script]);
        target.wait_for_stdout("ready");
        let recording = room.start(room.gpurec(&["--pid", &target.pid().to_string(), "-o", &file]));
        room.wait_until_recording(&file);
        fs::write(room.path("go"), "").unwrap();
        let pid = target.pid();
        target.done().exited(3);
        recording.done().exited(0);
        let trace = Trace::checked(room, &file);
        trace.is_whole();
        let exit = trace.process_events("exit").into_iter().find(|line| line["pid"] == pid).cloned();
        assert_eq!(exit.expect("its end")["status"], 3);
    });
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_the_command_runs() {
    live(|room| {
        let ran = format!("touch {}", room.text("ran"));
        fs::write(room.path("file"), "").unwrap();
        for (output, why) in [
            (room.text("none/t.jsonl"), "does not exist"),
            (room.text("file/t.jsonl"), "is not a folder"),
            (room.text("tmp"), "is a folder"),
            ("/proc/t.jsonl".to_owned(), "cannot write"),
        ] {
            refused(room, 125, &["-o", &output, "--", "sh", "-c", &ran], why);
        }
        fs::write(room.cwd().join("traces"), "in the way").unwrap();
        let done = room.run(room.gpurec(&["--", "sh", "-c", &ran]));
        done.exited(125).one_sentence();
        assert!(!room.path("ran").exists());
    });
}

#[test]
fn the_trace_on_standard_output_in_whole_lines() {
    live(|room| {
        let x = X::new(room);
        let quiet = room.gpurec(&["-q", "--lib", &x.lib(), "-o", "-", "--", &x.program, "leaf", "1000"]);
        let done = room.run(quiet);
        assert_eq!(done.exited(0).stderr, "");
        Trace::parsed(&done.text()).is_whole().has_calls(&[("x_leaf", 1000)]);

        let script = format!("echo one; {} leaf 2000; echo two; exit 4", x.program);
        let done = room.run(room.gpurec(&["--lib", &x.lib(), "-o", "-", "--", "sh", "-c", &script]));
        done.exited(4).said("=== TRACE SUMMARY ===");
        let text = done.text();
        Trace::parsed(&text).is_whole().has_calls(&[("x_leaf", 2000)]);
        // The command's own standard output is its standard error.
        assert!(done.stderr.starts_with("one\n") && done.stderr.contains("\ntwo\n"), "{}", done.stderr);
    });
}

#[test]
fn a_reader_that_leaves_early() {
    live(|room| {
        let x = X::new(room);
        let line = format!(
            "{} -q --lib {} -o - -- {} leaf 50000 | head -n 1; echo ${{PIPESTATUS[0]}}",
            env!("CARGO_BIN_EXE_gpurec"),
            x.lib(),
            x.program
        );
        let mut command = room.command("bash");
        command.args(["-c", &line]);
        let done = room.run(command);
        let text = done.exited(0).text();
        let (first, status) = text.trim_end().split_once('\n').expect("two lines");
        assert_eq!(serde_json::from_str::<Value>(first).unwrap()["type"], "header");
        assert!(["0", "125"].contains(&status), "{status}: {}", done.stderr);
    });
}

#[test]
fn a_compressed_trace() {
    live(|room| {
        let (x, file) = (X::new(room), room.text("t.jsonl.zst"));
        let done = room.run(room.gpurec(&["--lib", &x.lib(), "-o", &file, "--", &x.program, "leaf", "5000"]));
        done.exited(0);
        assert!(fs::read(&file).unwrap().starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
        Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 5000)]);
    });
}

#[test]
fn a_program_that_never_uses_cuda() {
    live(|room| {
        let (done, trace) = room.record(&[], &["sh", "-c", "echo hello; exit 3"]);
        done.exited(3).said("No CUDA library was loaded.");
        assert_eq!(done.text(), "hello\n");
        trace.is_whole().has_calls(&[]);
        let header = &trace.header;
        assert_eq!(header["command"], serde_json::json!(["sh", "-c", "echo hello; exit 3"]));
        assert_eq!(header["user"], "root");
        for key in ["version", "start", "host", "kernel"] {
            assert!(header[key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {header}");
        }
        assert!(header["schema"].is_u64() && header["ns_per_call"].is_u64(), "{header}");
    });
}

#[test]
fn the_default_file_and_the_latest() {
    live(|room| {
        let traces = room.cwd().join("traces");
        for count in 1..=2 {
            room.run(room.gpurec(&["--", "sh", "-c", &format!("exit {count}")])).exited(count);
            let latest = fs::read_link(traces.join("latest")).unwrap();
            let name = latest.to_str().unwrap();
            assert!(name.starts_with("trace_2") && name.ends_with(".jsonl"), "{name}");
            let trace = Trace::checked(room, traces.join("latest").to_str().unwrap());
            assert_eq!(trace.process_events("exit")[0]["status"], count);
            assert_eq!(fs::read_dir(&traces).unwrap().count(), count as usize + 1);
        }
        let done = room.run(room.gpurec(&["summary"]));
        assert!(done.exited(0).text().starts_with("=== TRACE SUMMARY ==="));
    });
}

#[test]
fn the_recording_ends_and_the_command_runs_on() {
    live(|room| {
        let (file, go) = (room.text("t.jsonl"), room.text("go"));
        let script = format!("while [ ! -e {go} ]; do sleep 0.02; done; echo end; exit 5");
        let options = ["--duration", "0.2", "-o", &file, "--", "sh", "-c", &script];
        let mut recording = room.start(room.gpurec(&options));
        eventually("the end of the recording", || recording.stderr().contains("runs on"));
        let trace = Trace::checked(room, &file);
        assert!(trace.process_events("exit").iter().all(|line| line["status"] != 5));
        assert!(recording.is_running());
        fs::write(&go, "").unwrap();
        let done = recording.done();
        assert_eq!(done.exited(5).text(), "end\n");
    });
}

#[test]
fn a_summary_only() {
    live(|room| {
        let x = X::new(room);
        let lib = x.lib();
        let options = ["--summary-only", "--lib", &lib];
        let (done, trace) = room.record(&options, &[&x.program, "callback", "100"]);
        done.exited(0).said("Calls into other libraries: 400");
        assert!(trace.calls.is_empty());
        assert_eq!(trace.end["summary"]["other_calls"], 400);
        assert!(trace.complete());
        let file = room.text("figures.jsonl");
        let words = [&options[..], &["-q", "-o", &file, "--", &x.program, "leaf", "5"]].concat();
        room.run(room.gpurec(&words)).exited(0);
        // Readers that show events claim nothing about a trace without any.
        let picture = room.run(room.gpurec(&["timeline", &file]));
        assert!(picture.exited(1).stdout.starts_with(b"Not known: "));
        for format in ["csv", "chrome", "perfetto"] {
            let words = ["export", "--format", format, "-o", &room.text(format), &file];
            room.run(room.gpurec(&words)).exited(0).said("the trace has no events, only figures");
        }
        let done = room.run(room.gpurec(&[&options[..], &["--", &x.program, "leaf", "5"]].concat()));
        done.exited(0).said("Calls into other libraries: 5");
        assert!(fs::read_dir(room.cwd()).unwrap().next().is_none(), "no file unless asked for");
    });
}

#[test]
fn how_much_is_said() {
    live(|room| {
        let x = X::new(room);
        let say = |option: &str| {
            let options = [option, "--lib", &x.lib(), "-o", &room.text("t"), "--", &x.program, "tail", "4"];
            let done = room.run(room.gpurec(&options));
            done.exited(0);
            done.stderr
        };
        assert_eq!(say("-q"), "");
        let verbose = say("-v");
        for part in ["attached 13 functions of", "detached 13 functions in", " ms", "stops of", "hooks by"] {
            assert!(verbose.contains(part), "no {part:?} in {verbose}");
        }
        let live = say("--live");
        assert!(live.lines().next().unwrap().trim_start().starts_with("TIME(ms)"), "{live}");
        let rows: Vec<&str> = live
            .lines()
            .filter(|line| line.split_whitespace().next().is_some_and(|word| word.parse::<f64>().is_ok()))
            .filter(|line| line.contains(" x_") && line.contains(" us"))
            .filter(|line| line.split_whitespace().nth(1) == Some("x"))
            .collect();
        assert_eq!(rows.len(), 20, "a line a call: {live}");
    });
}

#[test]
fn a_small_ring_and_a_burst_add_up() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let options = ["--backend", backend, "--ring", "1", "--lib", &format!("{}:x_leaf", x.library)];
            let made = if is_single(backend) { 100_000 } else { 300_000 };
            let (done, trace) = room.record(&options, &[&x.program, "leaf", &made.to_string()]);
            done.exited(0);
            adds_up(&trace, made);
        }
    });
}

#[test]
fn losses_are_told_and_add_up() {
    live(|room| {
        let x = X::new(room);
        for backend in backends() {
            let (file, go) = (room.text(&format!("{backend}.jsonl")), room.text(&format!("go-{backend}")));
            let mut target = room.target(&[&x.program, "wait-then-leaf", &go, "50000"]);
            target.wait_for_stdout("inside");
            let (lib, pid) = (format!("{}:x_leaf", x.library), target.pid().to_string());
            let options = ["--backend", backend, "--ring", "1", "--lib", &lib, "--pid", &pid, "-o", &file];
            let recording = room.start(room.gpurec(&options));
            room.wait_until_recording(&file);
            // Nothing empties the rings now, and the target must not be affected.
            recording.signal(nix::sys::signal::Signal::SIGSTOP);
            fs::write(&go, "").unwrap();
            target.done().exited(0);
            recording.signal(nix::sys::signal::Signal::SIGCONT);
            let done = recording.done();
            done.exited(0);
            let trace = Trace::checked(room, &file);
            adds_up(&trace, 50_000);
            assert!(trace.lost() > 0 && !trace.complete());
            assert!(trace.calls.len() > 1000, "what found room is there: {}", trace.calls.len());
            done.said("lost");
        }
    });
}

/// Asserts that recorded and lost calls add up to all that were made, and likewise their returns.
fn adds_up(trace: &Trace, made: u64) {
    let lost = |name: &str| -> u64 {
        trace.of_type("lost").filter_map(|line| line["by_probe"][name].as_u64()).sum()
    };
    let recorded = trace.calls.len() as u64;
    assert_eq!(recorded + lost("x_leaf"), made, "calls: recorded {recorded}");
    let lost_ends = trace.ends().filter(|end| end.lost).count() as u64;
    assert_eq!(lost_ends + trace.in_flight().len() as u64, lost("x_leaf (return)"), "returns");
    assert_eq!(trace.complete(), trace.lost() == 0);
    assert!(trace.ends().all(|end| !end.unwound));
}
