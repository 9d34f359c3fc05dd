//! `gpurec top`, and the processes in `--interval`.
//! In: a program that launches, copies, fails and waits at a steady pace and writes down how often, and one that hangs; tmux.
//! Out: the figures on the screen and in JSON are the program's own, and the terminal is afterwards what it was before.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::room::{PATIENCE, Room, eventually, live, slow, within};
use crate::run::Started;
use crate::tmux::{Tmux, has_tmux};

const MIB: u64 = 1 << 20;
const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");

/// A shell that starts both programs once the recording has begun, so that it sees all their memory.
struct Programs<'a> {
    room: &'a Room,
    shell: Started<'a>,
    paced: u32,
}

impl<'a> Programs<'a> {
    fn new(room: &'a Room) -> Programs<'a> {
        let runtime = format!("{LIBRARIES}/libcudart.so.13");
        let flags = [runtime.as_str(), &format!("-Wl,-rpath,{LIBRARIES}")];
        let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/cuda/program/kernels.c");
        let paced = room.compile("paced.c", "paced", &[&[kernels], &flags[..]].concat());
        let hang = room.compile("hang.c", "hang", &flags);
        let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", room.text("go"));
        let line = format!(
            "({wait}; exec {paced} 20) & p=$!; ({wait}; exec {hang} 300 300) & h=$!; echo $p > {}; \
             trap 'kill $p $h' TERM; wait; wait",
            room.text("paced.pid"),
        );
        let shell = room.target(&["sh", "-c", &line]);
        let mut paced = None;
        eventually("the number of the process", || {
            paced = fs::read_to_string(room.path("paced.pid")).ok().and_then(|text| text.trim().parse().ok());
            paced.is_some()
        });
        Programs { room, shell, paced: paced.unwrap() }
    }

    /// With these variables the stand-in for NVML knows the paced program.
    fn nvml(&self) -> [(&str, String); 2] {
        let held = format!("{}:{}", self.paced, 700 * MIB);
        [("LD_LIBRARY_PATH", LIBRARIES.to_owned()), ("STANDIN_NVML_PROCESSES", held)]
    }

    fn pid(&self) -> String {
        self.shell.pid().to_string()
    }

    fn go(&self) {
        fs::write(self.room.path("go"), "").unwrap();
    }

    /// The lines that the paced program has written.
    fn written(&self) -> Vec<Period> {
        let text = self.shell.stdout();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(Period::of).collect()
    }

    /// How much happened in this time, by the program.
    fn between(&self, from_ns: u64, to_ns: u64) -> Period {
        let written = self.written();
        let at = |ns| *written.iter().take_while(|period| period.at_ns <= ns).last().unwrap_or(&written[0]);
        let (from, to) = (at(from_ns), at(to_ns));
        Period {
            at_ns: to.at_ns - from.at_ns,
            launches: to.launches - from.launches,
            copied: to.copied - from.copied,
            failed: to.failed - from.failed,
        }
    }

    fn end(self) {
        self.go();
        self.shell.signal(Signal::SIGTERM);
        self.shell.done();
    }
}

/// What the paced program has done so far.
#[derive(Clone, Copy, Debug)]
struct Period {
    at_ns: u64,
    launches: u64,
    copied: u64,
    failed: u64,
}

impl Period {
    fn of(line: &str) -> Period {
        let mut words = line.split(' ').map(|word| word.parse().unwrap());
        let mut next = || words.next().unwrap();
        Period { at_ns: next(), launches: next(), copied: next(), failed: next() }
    }
}

/// Three periods more or less, because gpurec and the program do not begin a second at the same moment, and a fifth,
/// because the pace varies on a busy machine.
#[track_caller]
fn is_about(shown: f64, own: f64, period: f64, what: &str) {
    assert!((shown - own).abs() <= 3.0 * period + own * 0.2, "{what}: {shown} shown, {own} by the program");
}

fn time_of(document: &Value) -> u64 {
    gpurec_trace::time::nanoseconds(document["time"].as_str().unwrap()).unwrap() as u64
}

fn documents(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn process<'a>(document: &'a Value, comm: &str) -> Option<&'a Value> {
    document["processes"].as_array()?.iter().find(|process| process["comm"] == comm)
}

#[test]
fn the_figures_are_those_of_the_program() {
    live(|room| {
        let programs = Programs::new(room);
        let mut command = room.gpurec(&["top", "--json", "--pid", &programs.pid()]);
        command.envs(programs.nvml());
        let mut top = room.start_unchecked(command);
        eventually("the first document", || !documents(&top.stdout()).is_empty() || !top.is_running());
        assert!(
            documents(&top.stdout())[0]["processes"].as_array().unwrap().is_empty(),
            "none has called yet"
        );
        programs.go();
        eventually("four seconds of both programs", || {
            documents(&top.stdout()).iter().filter(|document| process(document, "hang").is_some()).count()
                >= 4
        });
        top.signal(Signal::SIGTERM);
        let done = top.done();
        done.exited(0);
        assert!(done.stderr.is_empty(), "{}", done.stderr);
        let documents = documents(&done.text());
        let whole = documents.iter().filter(|document| process(document, "paced").is_some()).skip(1);
        let mut compared = 0;
        for document in whole {
            let paced = process(document, "paced").unwrap();
            let interval = document["interval_sec"].as_f64().unwrap();
            let now = time_of(document);
            let own = programs.between(now - (interval * 1e9) as u64, now);
            let rate = |key: &str| paced[key].as_f64().unwrap() * interval;
            is_about(rate("launches_per_sec"), own.launches as f64, 3.0, "launches");
            is_about(rate("copied_bytes_per_sec"), own.copied as f64, 65536.0, "bytes copied");
            let failed = programs.between(0, now).failed + 1;
            is_about(paced["failed"].as_f64().unwrap(), failed as f64, 1.0, "failed calls");
            assert_eq!(paced["held_bytes"], 4 * MIB, "{paced}");
            assert_eq!(paced["held_by_space"]["device"], 3 * MIB, "{paced}");
            assert_eq!(paced["nvml_bytes"], 700 * MIB, "{paced}");
            assert_eq!((&paced["rank"], &paced["user"]), (&Value::Null, &"root".into()), "{paced}");
            assert_eq!(paced["devices"], serde_json::json!([0]), "{paced}");
            let share = |key: &str| paced[key].as_f64().unwrap();
            if slow() == 1 {
                assert!((0.2..0.9).contains(&share("sync_share")), "{paced}");
            }
            assert!(share("call_share") >= share("sync_share") && share("call_share") <= 1.0, "{paced}");
            assert_eq!(document["lost"], 0);
            compared += 1;
        }
        assert!(compared >= 2, "{}", done.text());
        // A wait without an end is a call in flight, and a whole second of waiting each second.
        let hang = process(documents.last().unwrap(), "hang").unwrap();
        assert_eq!(hang["in_flight"][0]["name"], "cudaDeviceSynchronize", "{hang}");
        assert!(hang["in_flight"][0]["duration_us"].as_f64().unwrap() >= 1e6, "{hang}");
        assert!(hang["sync_share"].as_f64().unwrap() > 0.98, "{hang}");

        let once = room.run(room.gpurec(&["top", "--once", "--pid", &programs.pid()]));
        once.exited(0);
        let text = once.text();
        let row = text.lines().find(|line| line.ends_with(" paced")).unwrap_or_else(|| panic!("{text}"));
        // It ran before this recording, so what it holds is not known.
        assert!(row.contains(" +0 B ") && text.contains("memory held not known"), "{text}");
        programs.end();
    });
}

/// A number of a process's row: it ends where its title does.
fn cell<'a>(screen: &'a [String], comm: &str, title: &str) -> &'a str {
    let titles = screen.iter().find(|line| line.contains(" LAUNCH/s ")).unwrap();
    let row = screen.iter().find(|line| line.ends_with(&format!(" {comm}"))).unwrap();
    let end =
        titles.find(&format!("{title} ")).unwrap_or_else(|| panic!("no {title}: {titles}")) + title.len();
    row[..end].rsplit(' ').next().unwrap()
}

/// `12.3k`, `1.20M`.
fn number(text: &str) -> f64 {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        unit => panic!("{unit}"),
    };
    digits.parse::<f64>().unwrap_or_else(|_| panic!("{text:?} is no number")) * unit
}

#[test]
fn a_screen_in_both_sizes() {
    live(|room| {
        if !has_tmux() {
            return;
        }
        let programs = Programs::new(room);
        let tmux = Tmux::new(room, 80, 24);
        let gpurec = env!("CARGO_BIN_EXE_gpurec");
        let env = programs.nvml().map(|(name, value)| format!("{name}={value}")).join(" ");
        tmux.enter(&format!("{env} NO_COLOR=1 {gpurec} top --stacks --pid {}", programs.pid()));
        tmux.wait_for("No process has called CUDA");
        programs.go();
        tmux.wait_for(" hang");
        tmux.wait_for("cudaDeviceSynchronize open for ");
        for (width, height) in [(80, 24), (200, 60)] {
            tmux.resize(width, height);
            eventually("the last line in its place", || {
                let screen = tmux.screen();
                screen.len() == height as usize && screen.last().unwrap().starts_with(" q quit")
            });
            // A whole second in this size.
            std::thread::sleep(std::time::Duration::from_millis(1200));
            let (screen, now) = (tmux.screen(), programs.written().last().unwrap().at_ns);
            println!("{}", screen.join("\n"));
            assert!(screen.iter().all(|line| line.chars().count() <= width as usize));
            assert!(
                screen[0].starts_with(" gpurec top  ") && screen[0].contains("  2 processes  "),
                "{screen:#?}"
            );
            assert!(screen[2].starts_with(" 0 events lost"), "{screen:#?}");
            let own = programs.between(now - 2_000_000_000, now);
            let per_second = |count: u64| count as f64 * 1e9 / own.at_ns as f64;
            let shown = |title| number(cell(&screen, "paced", title));
            is_about(shown("LAUNCH/s"), per_second(own.launches), 6.0, "launches");
            is_about(shown("COPY/s"), per_second(own.copied), 131_072.0, "bytes copied");
            let failed = programs.between(0, now).failed as f64;
            assert!((failed - 200.0..=failed + 2.0).contains(&shown("FAIL")), "{failed}: {screen:#?}");
            let row = screen.iter().find(|line| line.ends_with(" paced")).unwrap();
            assert!(row.contains(" 4.00 MB ") && row.contains(" 700 MB "), "{row}");
            assert!(screen.iter().any(|line| line.starts_with(" GPU 0: ")), "{screen:#?}");
            assert!(number(cell(&screen, "hang", "SYNC%")) > 98.0, "{screen:#?}");
        }
        keys(&tmux);
        tmux.press(&["q"]);
        eventually("the screen that was there before", || tmux.state() == (false, true));
        programs.end();
    });
}

/// Sorts, filters, pauses, and opens the details of the paced program.
fn keys(tmux: &Tmux) {
    tmux.press(&["s"]);
    tmux.wait_for("sorted by COPY/s");
    let order = || -> Vec<bool> {
        let screen = tmux.screen();
        let rows = screen.iter().filter(|line| line.ends_with(" paced") || line.ends_with(" hang"));
        rows.map(|line| line.ends_with(" paced")).collect()
    };
    eventually("the one that copies first", || order() == [true, false]);
    tmux.press(&["r"]);
    eventually("and last", || order() == [false, true]);
    tmux.press(&["/", "p", "a", "c", "e", "Enter"]);
    eventually("one process", || order() == [true]);
    tmux.press(&["Escape"]);
    eventually("both", || order().len() == 2);
    tmux.press(&["p"]);
    let paused = tmux.wait_for("PAUSED");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(tmux.screen(), paused);
    tmux.press(&["p", "h"]);
    tmux.wait_for("pause the view");
    tmux.press(&["Escape", "End", "Enter"]);
    let details = tmux.wait_for("paced (pid ");
    assert!(details.iter().any(|line| line.contains("cudaErrorMemoryAllocation")), "{details:#?}");
    let rate = |screen: &[String], name: &str| {
        let line = screen.iter().find(|line| line.contains(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    eventually("twice the launches", || {
        let screen = tmux.screen();
        let rates = rate(&screen, "layernorm(float*").zip(rate(&screen, "gelu<4>(float*"));
        rates.is_some_and(|(two, one)| one > 0.0 && (1.7..2.3).contains(&(two / one)))
    });
    let sites = tmux.wait_for("paced.c:");
    let site =
        |function: &str| sites.iter().any(|line| line.contains(function) && line.contains(" paced.c:"));
    assert!(site("cudaLaunchKernel") || site("cudaMalloc"), "{sites:#?}");
    println!("{}", sites.join("\n"));
    tmux.press(&["Escape"]);
    eventually("the list", || order().len() == 2);
}

/// However it ends, nothing of the view is left.
#[test]
fn the_terminal_is_what_it_was() {
    live(|room| {
        if !has_tmux() {
            return;
        }
        let tmux = Tmux::new(room, 80, 24);
        let gpurec = env!("CARGO_BIN_EXE_gpurec");
        let before = (tmux.modes(), tmux.state());
        assert_eq!(before.1, (false, true));
        for how in ["q", "C-c", "TERM", "HUP", "KILL", "parent", "target"] {
            let parent = room.path(&format!("parent-{how}"));
            let mut target = Some(room.target(&["sleep", "600"]));
            let pid = target.as_ref().unwrap().pid();
            let line = format!("sh -c 'echo $$ > {}; {gpurec} top --pid {pid}; :'", parent.display());
            tmux.enter(&line);
            tmux.wait_for("No process has called CUDA");
            assert_eq!(tmux.state(), (true, false), "{how}");
            assert_ne!(tmux.modes(), before.0, "{how}");
            let recorders = || -> Vec<u32> {
                let all = room.processes();
                all.iter().filter(|process| process.name == "gpurec").map(|process| process.pid).collect()
            };
            let recorder = recorders();
            let [recorder] = recorder.as_slice() else { panic!("{how}: {:?}", room.processes()) };
            let signal = |signal| kill(Pid::from_raw(*recorder as i32), signal).unwrap();
            match how {
                "q" | "C-c" => tmux.press(&[how]),
                "TERM" => signal(Signal::SIGTERM),
                "HUP" => signal(Signal::SIGHUP),
                "KILL" => signal(Signal::SIGKILL),
                "target" => drop(target.take().map(Started::kill)),
                _ => {
                    let pid = fs::read_to_string(parent).unwrap().trim().parse().unwrap();
                    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                }
            }
            let is_same = || (tmux.modes(), tmux.state()) == before;
            assert!(
                within(PATIENCE, is_same),
                "{how}: {:?} {:?} before: {before:?}",
                tmux.modes(),
                tmux.state()
            );
            eventually("the end of gpurec", || recorders().is_empty());
            target.take().map(Started::kill);
            tmux.enter("clear");
        }
    });
}

/// The reports of `--interval` have the wall clock, rates, and a row for each process.
#[test]
fn reports_by_process() {
    live(|room| {
        let file = room.text("t.jsonl");
        let words = ["demo", "--interval", "0.4", "--json", "-o", &file, "--", "--loops", "500"];
        let done = room.run(room.gpurec(&words));
        done.exited(0);
        let documents = documents(&done.stderr);
        assert!(documents.len() >= 2, "{}", done.stderr);
        let counted = |document: &Value| {
            let rate = document["total"]["launches_per_sec"].as_f64().unwrap();
            (rate * document["interval_sec"].as_f64().unwrap()).round() as u64
        };
        let trace = crate::trace::Trace::checked(room, &file);
        let summary = &trace.end["summary"];
        let all = |key: &str| summary[key].as_u64().unwrap();
        let most = all("kernel_launches") + all("graph_launches");
        let shown: u64 = documents.iter().map(counted).sum();
        assert!(shown > most / 4 && shown <= most, "{shown} of {most}");
        let last = documents.last().unwrap();
        // A report that comes after the program's end lists no process.
        let process = documents.iter().rev().find_map(|document| process(document, "gpurec-demo"));
        let process = process.unwrap_or_else(|| panic!("{last}"));
        assert!(process["held_bytes"].as_u64().unwrap() >= 8 * MIB, "{process}");
        assert_eq!((&last["lost"], &last["reports_skipped"]), (&0.into(), &0.into()));
        let mut before = 0.0;
        for document in &documents {
            let ts = document["ts"].as_f64().unwrap();
            assert!(ts > before && document["events"].as_u64().unwrap() > 0, "{document}");
            before = ts;
        }
    });
}
