//! What gpurec writes to standard error while it records: --live, --interval, the status line.
//! In: files, a pipe without a reader, terminals.
//! Out: every row that the trace has, or a count of those left out; and a terminal that ends up as if there had been no
//! status line.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::disorder::X;
use crate::room::{Room, eventually, live, slow};
use crate::trace::{Trace, text_of};

fn lines_of(file: &str) -> Vec<Value> {
    text_of(file.as_ref()).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The columns of a row: TIME(ms), PROCESS, PID, EVENT, DETAILS.
struct Row<'a> {
    process: &'a str,
    pid: &'a str,
    event: &'a str,
    details: &'a str,
}

fn rows(stderr: &str) -> Vec<Row<'_>> {
    let mut lines = stderr.lines().skip_while(|line| !line.starts_with("    TIME(ms) PROCESS "));
    assert!(lines.next().is_some(), "no column titles: {stderr}");
    lines
        .take_while(|line| !line.starts_with("=== TRACE"))
        // Removing single uprobes takes long, and gpurec says so between the rows.
        .filter(|line| !line.starts_with("gpurec: "))
        .map(|line| {
            let at = |from: usize, to: usize| line.get(from..to.min(line.len())).unwrap_or("").trim();
            let time = at(0, 12);
            assert!(time.is_empty() || time.parse::<f64>().is_ok(), "no time: {line}");
            Row { process: at(13, 29), pid: at(30, 38), event: at(39, 71), details: at(71, usize::MAX) }
        })
        .collect()
}

/// The event of a row that counts the rows left out.
const NOT_SHOWN: &str = "NOT_SHOWN";

/// What --live should have shown, by event.
fn expected(trace: &[Value]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in trace {
        let event = match line["type"].as_str().unwrap() {
            "header" | "end" => continue,
            "memory" => line["op"].as_str().unwrap(),
            "transfer" if line["direction"] == "set" => "set",
            "transfer" => "copy",
            "lost" => "LOST",
            _ if line["phase"] == "B" => continue,
            _ => line["name"].as_str().unwrap(),
        };
        // The next column cuts off a name that is longer than its column.
        *counts.entry(event.chars().take(32).collect()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn every_line_of_the_trace_has_its_row() {
    live(|room| {
        let file = room.text("t.jsonl");
        let done = room.run(room.gpurec(&["demo", "--kernel", "--live", "-o", &file, "--", "--loops", "5"]));
        done.exited(0);
        let trace = lines_of(&file);
        let rows = rows(&done.stderr);
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let (left_out, shown): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.event == NOT_SHOWN);
        for row in &shown {
            *counts.entry(row.event.to_owned()).or_insert(0) += 1;
            // A call's effects share its row.
            for effect in row.details.split("  ").skip(1).filter_map(|part| part.split(' ').next()) {
                if let "alloc" | "free" | "copy" | "set" = effect {
                    *counts.entry(effect.to_owned()).or_insert(0) += 1;
                }
            }
        }
        let expected = expected(&trace);
        if slow() > 1 && !left_out.is_empty() {
            // An emulated machine shows rows more slowly than they come; the rest must equal the count that gpurec
            // gives.
            let told = |row: &&Row| row.details.split(' ').next().unwrap().parse::<u64>().unwrap();
            let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
            assert_eq!(sum(&counts) + left_out.iter().map(told).sum::<u64>(), sum(&expected));
            assert!(counts.iter().all(|(event, count)| Some(count) <= expected.get(event)), "{counts:?}");
        } else {
            assert_eq!(counts, expected, "rows by event, and lines of the trace");
        }
        let pid = trace.iter().find(|line| line["name"] == "cudaMalloc").unwrap()["pid"].to_string();
        let of = |event: &str| rows.iter().find(|row| row.event == event && row.pid == pid).unwrap();
        let launch = of("cuLaunchKernel");
        assert_eq!(launch.process, "gpurec-demo");
        let begin = trace.iter().find(|line| line["name"] == "cuLaunchKernel").unwrap();
        let grid: Vec<String> = begin["grid"].as_array().unwrap().iter().map(Value::to_string).collect();
        let shape = format!("{} grid {}", begin["kernel"].as_str().unwrap(), grid.join("x"));
        assert!(launch.details.contains(&shape), "{} does not say {shape}", launch.details);
        let first = |op: &str| trace.iter().find(|line| line["op"] == op).unwrap();
        for op in ["alloc", "free"] {
            let ptr = first(op)["ptr"].as_str().unwrap();
            let row = rows.iter().find(|row| row.details.contains(&format!("  {op} ")));
            assert!(row.is_some_and(|row| row.details.contains(ptr)), "no row says {op} {ptr}");
        }
        let copy = rows.iter().find(|row| row.details.contains("  copy ")).unwrap();
        assert!(copy.details.contains(" bytes  H2D  "), "{}", copy.details);
        // The demo asks for 64 TiB.
        let failed = rows.iter().find(|row| row.details.contains("cudaErrorMemoryAllocation")).unwrap();
        assert!(
            failed.event == "cudaMalloc" && failed.details.contains("size=70368744177664"),
            "{}",
            failed.details
        );
        assert!(failed.details.ends_with("asked for 70368744177664 bytes (64.00 TB)"), "{}", failed.details);
        assert!(of("off_cpu").details.contains("us") && of("off_cpu").details.contains("state "));
    });
}

/// Neither the recorder nor the target waits for the pipe, the trace is whole, and gpurec counts what it did not show.
#[test]
fn a_pipe_that_nobody_reads_holds_nobody_up() {
    live(|room| {
        let (x, file) = (X::new(room), room.text("t.jsonl"));
        let lib = format!("{}:x_leaf", x.library);
        let mut command =
            room.gpurec(&["--live", "--lib", &lib, "-o", &file, "--", &x.program, "leaf", "100000"]);
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let mut child = command.spawn().unwrap();
        drop(command);
        eventually("the end of the trace", || {
            let bytes = fs::read(&file).unwrap_or_default();
            let last = &bytes[bytes.len().saturating_sub(100_000)..];
            bytes.ends_with(b"\n") && memchr::memmem::find(last, b"\"type\":\"end\"").is_some()
        });
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        let trace = Trace::checked(room, &file);
        trace.is_whole().has_calls(&[("x_leaf", 100_000)]);
        let shown = rows(&said).iter().filter(|row| row.event != "NOT_SHOWN").count() as u64;
        let told = said.lines().find(|line| line.starts_with("gpurec: --live ")).expect("a count");
        let told: u64 = told.split(' ').find_map(|word| word.parse().ok()).unwrap();
        let all: u64 = expected(&lines_of(&file)).values().sum();
        assert_eq!(shown + told, all, "shown, not shown");
        assert!(shown > 0 && told > 50_000, "{shown} shown, {told} not");
        crate::figures::printed_is_read(room, &file, &said);
    });
}

/// As with `2>&1 | head -1` and a full disk: the recording and the command's own end are as ever.
#[test]
fn standard_error_that_goes_takes_nothing_with_it() {
    live(|room| {
        let x = X::new(room);
        let lib = format!("{}:x_leaf", x.library);
        let script = format!("{} leaf 20000; exit 7", x.program);
        for full in [false, true] {
            for options in [&["--live"][..], &["--live", "--interval", "0.1", "-v"], &["-v"]] {
                let file = room.text(&format!("t-{}.jsonl", room.number()));
                let words = [options, &["--lib", &lib, "-o", &file, "--", "sh", "-c", &script]].concat();
                let mut command = room.gpurec(&words);
                let (reader, writer) = std::io::pipe().unwrap();
                command.stdin(Stdio::null());
                if full {
                    let full = || File::options().write(true).open("/dev/full").unwrap();
                    command.stdout(full()).stderr(full());
                } else {
                    command.stdout(writer.try_clone().unwrap()).stderr(writer);
                }
                let mut child = command.spawn().unwrap();
                drop(command);
                let mut line = String::new();
                if !full {
                    BufReader::with_capacity(1, reader).read_line(&mut line).unwrap();
                    assert!(!line.is_empty());
                }
                assert_eq!(child.wait().unwrap().code(), Some(7), "{options:?} after {line:?}");
                Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 20_000)]);
            }
        }
    });
}

/// With `stty tostop`, a background process that writes to the terminal is stopped.
#[test]
fn a_terminal_does_not_stop_a_recorder_in_the_background() {
    live(|room| {
        let x = X::new(room);
        let (lib, file) = (format!("{}:x_leaf", x.library), room.text("t.jsonl"));
        let terminal = Terminal::new();
        let gpurec = env!("CARGO_BIN_EXE_gpurec");
        let record = format!("{gpurec} -q --live --lib {lib} -o {file} -- {} leaf 2000", x.program);
        let script = format!("stty tostop; set -m; {record} & wait $!; echo ended $?");
        let mut shell = room.command("setsid");
        shell.args(["--ctty", "--wait", "sh", "-c", &script]);
        shell.env("TERM", "xterm").stdin(terminal.slave.try_clone().unwrap());
        shell.stdout(terminal.slave.try_clone().unwrap()).stderr(terminal.slave.try_clone().unwrap());
        let mut child = shell.spawn().unwrap();
        drop(shell);
        eventually("the end of the recording", || terminal.so_far().contains("ended "));
        assert!(child.wait().unwrap().success());
        let written = terminal.all();
        assert!(written.contains("ended 0") && written.contains(" x_leaf "), "{written}");
        Trace::checked(room, &file).is_whole().has_calls(&[("x_leaf", 2000)]);
    });
}

#[test]
fn running_totals() {
    live(|room| {
        let file = room.text("t.jsonl");
        let words = ["demo", "--interval", "0.2", "-o", &file, "--", "--loops", "1000"];
        let done = room.run(room.gpurec(&words));
        done.exited(0);
        let trace = lines_of(&file);
        let reports: Vec<&str> = done.stderr.split("=== gpurec at ").skip(1).collect();
        assert!(reports.len() >= 3, "{}", done.stderr);
        let last = trace.last().unwrap()["event_id"].as_u64().unwrap();
        let mut before = (0.0, 0);
        for report in &reports {
            let mut words = report.split(' ');
            let at: f64 = words.next().unwrap().parse().unwrap();
            let events: u64 = words.nth(1).unwrap().parse().unwrap();
            assert!(at > before.0 && events >= before.1 && events <= last, "{report}");
            before = (at, events);
            for part in [
                "Memory held: ",
                "Launches by kernel:",
                "Copies by direction:",
                " 0 lost ===",
                " launches/s, ",
                " gpurec-demo\n",
            ] {
                assert!(report.contains(part), "no {part}: {report}");
            }
        }
        // What the report calls held was allocated, with this size and at this address.
        let (middle, mut addresses) = (reports[reports.len() / 2], 0);
        for line in middle.lines().filter(|line| line.contains(" old, by ")) {
            let mut words = line.split_whitespace();
            let (ptr, size): (&str, u64) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            let known = trace.iter().any(|l| l["op"] == "alloc" && l["ptr"] == ptr && l["size"] == size);
            assert!(known, "{line}");
            addresses += 1;
        }
        assert!(addresses > 0, "{middle}");
        assert!(middle.contains(" H2D ") && middle.contains("matmul("), "{middle}");
        let header = &trace[0]["options"];
        assert_eq!(header["interval"], 0.2);
    });
}

/// A terminal, and what was written to it.
struct Terminal {
    slave: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    fn new() -> Terminal {
        let size = nix::pty::Winsize { ws_row: 50, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(&size, None).unwrap();
        // The programs get the terminal as their output or not at all.
        for fd in [&pty.master, &pty.slave] {
            let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
            nix::fcntl::fcntl(fd, flags).unwrap();
        }
        let written = Arc::new(Mutex::new(Vec::new()));
        let (told, mut master) = (written.clone(), File::from(pty.master));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // EIO once no process has it open any more.
            while let Ok(n) = master.read(&mut buffer) {
                told.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Terminal { slave: pty.slave, written, reader }
    }

    fn spawn(&self, mut command: Command, kind: &str) -> Child {
        command.env("TERM", kind).stdin(Stdio::null());
        command.stdout(self.slave.try_clone().unwrap()).stderr(self.slave.try_clone().unwrap());
        command.spawn().unwrap()
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    fn all(self) -> String {
        drop(self.slave);
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }
}

/// Returns what the user sees at the end.
fn screen(written: &str) -> String {
    let mut rows = vec![Vec::new()];
    let (mut column, mut rest) = (0, written);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let row: &mut Vec<char> = rows.last_mut().unwrap();
        match c {
            '\r' => column = 0,
            '\n' => rows.push(Vec::new()),
            '\x1b' => {
                rest = rest.strip_prefix("[K").expect("no other sequence is used");
                row.truncate(column);
            }
            c => {
                row.resize(row.len().max(column + 1), ' ');
                row[column] = c;
                column += 1;
            }
        }
    }
    let rows: Vec<String> = rows.into_iter().map(|row| row.into_iter().collect()).collect();
    rows.join("\n")
}

const STATUS: &str = " events/s | ";

/// Records a process that runs elsewhere, on a terminal of gpurec's own.
fn attached(room: &Room, options: &[&str], dumb: bool) -> (String, String) {
    let x = X::new(room);
    let number = room.number();
    let (file, go) = (room.text(&format!("t-{number}.jsonl")), room.text(&format!("go-{number}")));
    let mut target = room.target(&[&x.program, "wait", &go]);
    target.wait_for_stdout("inside");
    let (lib, pid) = (x.lib(), target.pid().to_string());
    let terminal = Terminal::new();
    let command = room.gpurec(&[options, &["--lib", &lib, "-o", &file, "--pid", &pid]].concat());
    let mut recording = terminal.spawn(command, if dumb { "dumb" } else { "xterm" });
    room.wait_until_recording(&file);
    if dumb || options.contains(&"-q") {
        std::thread::sleep(std::time::Duration::from_millis(1200));
    } else {
        eventually("the status line, again", || terminal.so_far().matches(STATUS).count() >= 3);
    }
    fs::write(&go, "").unwrap();
    target.done().exited(0);
    assert!(recording.wait().unwrap().success());
    (terminal.all(), file)
}

#[test]
fn a_status_line_is_drawn_over_itself_and_leaves_nothing() {
    live(|room| {
        let (written, file) = attached(room, &[], false);
        let line = written.split('\r').find(|part| part.contains(STATUS)).unwrap();
        for part in ["gpurec: ", " s | ", " 0 lost | ", " MB | cost ", " % of a thread"] {
            assert!(line.contains(part), "no {part:?} in {line:?}");
        }
        assert!(line.len() < 100 + "\x1b[K".len());
        let screen = screen(&written);
        assert!(!screen.contains(STATUS) && !screen.contains('\x1b'), "{screen}");
        assert!(screen.starts_with("=== TRACE SUMMARY ==="), "{screen:?}");
        crate::figures::printed_is_read_at(room, &file, &screen, "100");
    });
}

#[test]
fn the_status_line_goes_out_of_the_way_of_rows_and_reports() {
    live(|room| {
        let (written, file) = attached(room, &["--live", "--interval", "0.3"], false);
        let screen = screen(&written);
        assert!(!screen.contains(STATUS), "{screen}");
        assert!(screen.starts_with("    TIME(ms) PROCESS "), "{screen}");
        let soon = if slow() > 1 { "" } else { "0." };
        assert!(screen.contains(&format!("\n=== gpurec at {soon}")), "{screen}");
        crate::figures::printed_is_read_at(room, &file, &screen, "100");
    });
}

#[test]
fn no_status_line_where_it_would_disturb() {
    live(|room| {
        for (options, dumb) in [(&["-q"][..], false), (&[], true)] {
            let (written, _) = attached(room, options, dumb);
            assert!(!written.contains(STATUS) && !written.contains('\x1b'), "{written}");
        }
        // The command shares this terminal: it writes half a line, waits, and writes the rest.
        let terminal = Terminal::new();
        let file = room.text("t.jsonl");
        let script = "printf half; sleep 1.3; echo ' a line'; exit 3";
        let mut child = terminal.spawn(room.gpurec(&["-o", &file, "--", "sh", "-c", script]), "xterm");
        assert_eq!(child.wait().unwrap().code(), Some(3));
        let written = terminal.all();
        assert!(!written.contains('\x1b'), "{written}");
        assert!(written.starts_with("half a line\r\n=== TRACE SUMMARY ==="), "{written}");
        crate::figures::printed_is_read(room, &file, &screen(&written));
    });
}

/// A process of --pid writes to the terminal on which gpurec runs.
#[test]
fn no_status_line_on_the_terminal_of_the_process() {
    live(|room| {
        let terminal = Terminal::new();
        let (file, go) = (room.text("t.jsonl"), room.text("go"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("while [ ! -e {go} ]; do sleep 0.05; done; echo over")]);
        let mut target = terminal.spawn(shell, "xterm");
        let pid = target.id().to_string();
        // As wide as a pipe, so that the summary is the same there.
        let words = ["--width", "100000", "-o", &file, "--pid", &pid];
        let mut recording = terminal.spawn(room.gpurec(&words), "xterm");
        room.wait_until_recording(&file);
        std::thread::sleep(std::time::Duration::from_millis(1200));
        fs::write(&go, "").unwrap();
        assert!(target.wait().unwrap().success() && recording.wait().unwrap().success());
        let screen = screen(&terminal.all());
        assert!(!screen.contains(STATUS), "{screen}");
        assert!(screen.contains("over\n"), "{screen}");
    });
}
