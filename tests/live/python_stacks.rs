//! `--stacks` against the truth: programs of Python (fixtures/programs/stacks.py, shapes.py, embed.c) print their own
//! stack at each CUDA call, and the trace must have the same functions, files and lines.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::needs;
use crate::pythons::{LIBRARY, PROGRAMS, check, compare, pythons};
use crate::room::{Room, live};

/// GPUREC_TEST_STACKS: stacks that are compared for each interpreter.
const STACKS: &str = "500";

#[test]
fn python_frames_are_those_that_the_program_prints() {
    live(|room| {
        let stacks = std::env::var("GPUREC_TEST_STACKS").unwrap_or_else(|_| STACKS.to_owned());
        for python in pythons() {
            let program = format!("{PROGRAMS}/stacks.py");
            compare(room, &python.command, &[&python.command, &program, "1", &stacks, LIBRARY]);
        }
    });
}

/// All of them in one recording.
fn compare_all(room: &Room, what: &str, commands: &[String]) {
    assert!(!commands.is_empty(), "{what}");
    let script = commands.iter().map(|command| format!("{command} || exit 1\n")).collect::<String>();
    compare(room, what, &["sh", "-c", &script]);
}

#[test]
fn several_interpreters_in_a_process() {
    live(|room| {
        let commands = pythons()
            .into_iter()
            .map(|python| format!("{} {PROGRAMS}/shapes.py {LIBRARY} interpreters", python.command));
        compare_all(room, "interpreters", &commands.collect::<Vec<_>>());
    });
}

/// A program of C loads libpython, calls from threads of its own, and has a second interpreter.
#[test]
fn an_interpreter_inside_a_program() {
    live(|room| {
        let embed = room.compile("embed.c", "embed", &[]);
        let commands = pythons().into_iter().filter_map(|python| {
            let library = python.library?;
            Some(format!(
                "PYTHONPATH={PROGRAMS} PYTHONDONTWRITEBYTECODE=1 {} {embed} {} {LIBRARY}",
                python.with,
                library.display()
            ))
        });
        let commands: Vec<_> = commands.collect();
        if commands.is_empty() {
            needs::skip("no interpreter has a libpython3.x.so: scripts/pythons fetches some");
            return;
        }
        compare_all(room, "embedded", &commands);
    });
}

/// The interpreter is in its own file, with its symbols and without. Its modules need the exported ones.
#[test]
#[ignore = "slow; an embedded interpreter is tested anyway: scripts/test --full"]
fn a_program_with_a_static_interpreter() {
    live(|room| {
        let config = |word: &[&str]| {
            let said = Command::new("python3-config").args(word).output().ok()?;
            said.status.success().then(|| String::from_utf8(said.stdout).unwrap().trim().to_owned())
        };
        let (Some(folder), Some(flags)) = (config(&["--configdir"]), config(&["--ldflags", "--embed"]))
        else {
            needs::skip("there is no python3-config: apt-get install python3-dev");
            return;
        };
        let library = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
        let library = library.into_iter().find(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("libpython") && name.ends_with(".a") && !name.contains("pic")
        });
        let library = library.unwrap_or_else(|| panic!("{folder} has no libpython3.x.a: python3-dev"));
        let others =
            flags.split_whitespace().filter(|flag| flag.starts_with("-l") && !flag.contains("python"));
        let others: Vec<&str> = others.collect();
        let library = library.to_str().unwrap();
        let flags =
            [&["-DLINKED", "-rdynamic", library], &others[..], &["-lm", "-lz", "-lexpat", "-lutil"]].concat();
        let embed = room.compile("embed.c", "static", &flags);
        let stripped = room.text("stripped");
        fs::copy(&embed, &stripped).unwrap();
        assert!(Command::new("strip").arg(&stripped).status().unwrap().success());
        let run =
            |program: &str| format!("PYTHONPATH={PROGRAMS} PYTHONDONTWRITEBYTECODE=1 {program} - {LIBRARY}");
        compare_all(room, "static", &[run(&embed), run(&stripped)]);
    });
}

#[test]
fn one_python_becomes_another() {
    live(|room| {
        let pythons = pythons();
        let program = format!("{PROGRAMS}/shapes.py {LIBRARY}");
        // From the last on backwards: each command ends with the next.
        let last = format!("{} {program} calls 90000000", pythons[0].command);
        let chain =
            pythons.iter().rev().enumerate().fold(last, |rest, (n, python)| {
                format!("{} {program} exec {} {rest}", python.command, n + 1)
            });
        compare_all(room, "exec", &[chain]);
    });
}

#[test]
fn processes_that_run_already() {
    live(|room| {
        let (go, file) = (room.text("go"), room.text("attached.jsonl"));
        let program = format!("{PROGRAMS}/shapes.py");
        let mut running: Vec<_> = pythons()
            .iter()
            .map(|python| room.target(&[&python.command, &program, LIBRARY, "wait", &go]))
            .collect();
        running.iter_mut().for_each(|one| one.wait_for_stdout("waits"));
        let pids: Vec<String> = running.iter().map(|one| one.pid().to_string()).collect();
        let pids = pids.join(",");
        let recorder = room.start(room.gpurec(&["--stacks", "-o", &file, "--pid", &pids]));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        let printed: String = running.into_iter().map(|one| one.done().exited(0).text()).collect();
        check("--pid", &recorder.done(), &printed, &file);
    });
}

#[test]
fn a_virtual_environment() {
    live(|room| {
        let folder = room.text("venv");
        let words = ["-m", "venv", "--without-pip", "--copies", &folder];
        let made = Command::new("python3").args(words).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let python = format!("{folder}/bin/python");
        assert!(!Path::new(&python).is_symlink());
        compare(room, "venv", &[&python, &format!("{PROGRAMS}/shapes.py"), LIBRARY, "calls", "1"]);
    });
}
