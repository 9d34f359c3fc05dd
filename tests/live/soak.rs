//! A long recording: 100,000 events a second, for as long as requested.
//! In: GPUREC_SOAK, seconds (scripts/test --full: 120; 5 by itself); GPUREC_SOAK_TO, the trace's name (soak.jsonl.zst; with
//! .jsonl it is not compressed: a gigabyte for each 40 seconds); GPUREC_SOAK_WITH, an option more (--kernel);
//! GPUREC_SOAK_OF, another binary.
//! Out: figures of gpurec's memory, which stays flat; nothing is lost, and every line is valid.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::room::{Room, live, slow};

/// programs/long.c: a turn is eight calls, one allocates, one frees: 18 lines.
const TURNS_A_SECOND: u64 = 5_600;
const LINES_A_TURN: u64 = 18;

/// How much more memory a recorder may hold at the end than in the beginning: where others leave it no CPU for a
/// moment, its queues fill, and keep what they took. In two minutes this is five bytes an event.
const FLAT_KB: u64 = 64 << 10;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn binary() -> String {
    variable("GPUREC_SOAK_OF").unwrap_or(env!("CARGO_BIN_EXE_gpurec").to_owned())
}

/// Ends gpurec, and its command with it, when this suite ends: an interrupted soak leaves nothing behind.
fn ends_with_us(command: &mut Command) {
    let end = || {
        // SAFETY: a system call on constants.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0) };
        Ok(())
    };
    // SAFETY: what the closure does is safe after a fork: a system call.
    unsafe { command.pre_exec(end) };
}

/// The memory that a process holds, in kB, without the rings: they are mapped whole, and their pages come as they are
/// used.
fn held_kb(pid: u32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut sum, mut counts) = (0, false);
    for line in smaps.lines() {
        if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
            // A mapping begins with its address, and not with the name of a figure.
            counts = !line.contains("bpf-map");
        } else if let (true, Some(rest)) = (counts, line.strip_prefix("Rss:")) {
            sum += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    sum
}

/// Samples the memory of the recorder, its guardian and its readers of files every second; each sample is their sum.
fn watched(room: &Room, gpurec: &mut Child, every: Duration, limit: Duration) -> Vec<u64> {
    let (began, mut samples) = (Instant::now(), Vec::new());
    while gpurec.try_wait().unwrap().is_none() {
        std::thread::sleep(every);
        let ours = room.processes().into_iter().filter(|process| process.name.starts_with("gpurec"));
        let held: Vec<u64> = ours.map(|process| held_kb(process.pid)).collect();
        // At the end of a recording one of them ends before the others.
        if held.len() >= 2 && held.iter().all(|kb| *kb > 0) {
            samples.push(held.iter().sum());
        }
        assert!(began.elapsed() < limit, "it does not end: {samples:?}");
    }
    samples
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Returns what the library itself counted.
fn counted(room: &Room) -> Vec<(String, u64)> {
    let text = fs::read_to_string(room.path("made.cuda")).expect("the library's own count");
    let line = |line: &str| {
        let (name, count) = line.split_once(' ').unwrap();
        (name.to_owned(), count.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Reads the trace again as a user would, line by line: numbers, times, nesting.
fn is_valid(room: &Room, file: &str, turns: u64) {
    let done = room.command(binary()).args(["summary", "--json", file]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let figures: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&figures["complete"], &figures["lost"]), (&Value::from(true), &Value::from(0)), "{figures}");
    assert_eq!(figures.get("notes"), None, "what the reader found odd");
    let mut recorded: Vec<(String, u64)> = figures["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap().to_owned(), row["calls"].as_u64().unwrap()))
        .collect();
    recorded.sort();
    let mut made = counted(room);
    made.retain(|(_, count)| *count > 0);
    made.sort();
    assert_eq!(recorded, made, "by name: recorded, and made");
    assert!(recorded.contains(&("cuMemFree_v2".to_owned(), turns)), "{recorded:?}");
    let leaks = &figures["memory"]["held"]["count"];
    assert_eq!(leaks, &Value::from(0), "all was freed");
}

#[test]
fn a_long_recording_takes_no_more_memory_than_a_short_one() {
    live(|room| {
        let seconds: u64 =
            variable("GPUREC_SOAK").map_or(5, |text| text.parse().expect("GPUREC_SOAK in seconds"));
        let turns = seconds * TURNS_A_SECOND;
        let file = room.text(&variable("GPUREC_SOAK_TO").unwrap_or("soak.jsonl.zst".to_owned()));
        let program = room.compile("long.c", "long", &[]);
        let library = concat!(env!("OUT_DIR"), "/demo/libcuda.so.1");
        let numbers = [turns, TURNS_A_SECOND].map(|number| number.to_string());
        let mut command = room.command(binary());
        command
            .args(["-o", &file])
            .args(variable("GPUREC_SOAK_WITH"))
            .args(["--", &program, "pace", library]);
        command.args(numbers);
        command.env("STANDIN_COUNTS", room.path("made"));
        let said = room.path("said");
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        command.stderr(fs::File::create(&said).unwrap());
        ends_with_us(&mut command);
        let began = Instant::now();
        let mut gpurec = command.spawn().unwrap();
        let every = Duration::from_secs(1).min(Duration::from_secs(seconds) / 40);
        let samples = watched(room, &mut gpurec, every, Duration::from_secs(3 * seconds + 120) * slow());
        let took = began.elapsed();
        let said = fs::read_to_string(said).unwrap();
        assert!(gpurec.wait().unwrap().success(), "{said}");
        assert!(said.contains(", complete\n"), "{said}");

        let quarter = samples.len() / 4;
        assert!(quarter >= 5, "too few samples: {samples:?}");
        let (first, last) = (median(&samples[..quarter]), median(&samples[samples.len() - quarter..]));
        let most = samples.iter().max().unwrap();
        println!(
            "soak: {} events in {:.1} s ({:.0} a second), {} bytes; held {first} kB in the first quarter, {last} kB in the last, {most} kB at most",
            turns * LINES_A_TURN,
            took.as_secs_f64(),
            (turns * LINES_A_TURN) as f64 / took.as_secs_f64(),
            fs::metadata(&file).unwrap().len(),
        );
        assert!(last <= first + FLAT_KB, "it grows: {samples:?}");
        let began = Instant::now();
        is_valid(room, &file, turns);
        println!("soak: read again in {:.1} s", began.elapsed().as_secs_f64());
    });
}
