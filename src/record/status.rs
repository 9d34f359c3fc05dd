//! The status line: one line on a terminal, redrawn in place. In: totals, twice a second. Out: its text.
//!
//! The target writes to the terminal directly, possibly in the middle of a line, and gpurec cannot know when. So two
//! writers never share the terminal. This is decided once, at the start: a launched command has gpurec's own standard
//! error, so it gets no status line; nor do processes of --pid whose output goes to this terminal.
//! Rejected alternatives: a scroll region or saving the cursor (a sequence of gpurec's inside one of the target's
//! breaks both), and a terminal of its own for the command (it would no longer run as without gpurec).

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use super::Target;
use crate::process::proc;
use gpurec_analysis as analysis;

/// Returns to the beginning of the line and erases it.
pub const ERASE: &str = "\r\x1b[K";

/// How often it is drawn.
pub const EVERY: Duration = Duration::from_millis(500);

/// The totals of the recording so far.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub at_ns: u64,
    pub events: u64,
    pub lost: u64,
    /// The cost of recording for the thread that paid most.
    pub cost_ns: u64,
    /// Calls have no stacks now, for --budget.
    pub no_stacks: bool,
}

pub struct Status {
    /// The open trace file, for its size. Another file may have its name by now.
    file: Option<File>,
    before: Totals,
    cpu_before: Duration,
}

impl Status {
    /// None if there is no terminal for it, or the target writes to that terminal.
    pub fn new(target: &Target, file: Option<File>, trace_on_stdout: bool) -> Option<Status> {
        let stderr = io::stderr();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if dumb || !stderr.is_terminal() || (trace_on_stdout && io::stdout().is_terminal()) {
            return None;
        }
        let mut terminals = terminals_above();
        terminals.push(nix::sys::stat::fstat(stderr.as_fd()).ok()?.st_rdev);
        let is_shared = match target {
            Target::Command(_) => true,
            Target::Pids(pids) => pids.iter().any(|pid| writes_to(*pid, &terminals)),
            Target::All => false,
        };
        (!is_shared).then(|| Status { file, before: Totals::default(), cpu_before: cpu_time() })
    }

    /// The line, at most as long as the terminal is wide. None while gpurec is in the background.
    pub fn line(&mut self, totals: &Totals) -> Option<String> {
        let cpu = cpu_time();
        let passed = Duration::from_nanos(totals.at_ns.saturating_sub(self.before.at_ns));
        let size = self.file.as_ref().and_then(|file| file.metadata().ok());
        let parts = parts(&Figures {
            totals,
            new_events: totals.events.saturating_sub(self.before.events),
            passed,
            cpu: cpu.saturating_sub(self.cpu_before),
            bytes: size.map(|about| about.len()),
        });
        if passed > Duration::ZERO {
            self.before = totals.clone();
            self.cpu_before = cpu;
        }
        in_foreground().then(|| fitted(&parts, analysis::width_of_errors()))
    }
}

/// What the line says.
struct Figures<'a> {
    totals: &'a Totals,
    new_events: u64,
    passed: Duration,
    cpu: Duration,
    bytes: Option<u64>,
}

/// The parts of the line, the most important first.
fn parts(figures: &Figures) -> Vec<String> {
    let totals = figures.totals;
    let rate = u128::from(figures.new_events) * 1_000_000_000 / figures.passed.as_nanos().max(1);
    let tenths = |part: u128, whole: u128| {
        let permille = (part * 1000).checked_div(whole).unwrap_or(0);
        format!("{}.{} %", permille / 10, permille % 10)
    };
    let mut parts = vec![
        format!("gpurec: {}.{} s", totals.at_ns / 1_000_000_000, totals.at_ns / 100_000_000 % 10),
        format!("{rate} events/s"),
        format!("{} lost", totals.lost),
    ];
    if totals.no_stacks {
        parts.push("no call stacks (--budget)".to_owned());
    }
    if let Some(bytes) = figures.bytes {
        let tenths = (u128::from(bytes) * 10) >> 20;
        parts.push(format!("{}.{} MB", tenths / 10, tenths % 10));
    }
    parts.push(format!("cost {} of a thread", tenths(totals.cost_ns.into(), totals.at_ns.into())));
    parts.push(format!("recorder {} of a CPU", tenths(figures.cpu.as_nanos(), figures.passed.as_nanos())));
    parts
}

/// As many parts as fit in a line. The last column stays free, because a terminal may wrap there.
fn fitted(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { " | " };
        if line.len() + between.len() + part.len() >= width {
            break;
        }
        line.push_str(between);
        line.push_str(part);
    }
    line
}

/// gpurec's own CPU time, all threads together.
fn cpu_time() -> Duration {
    let id = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    nix::time::clock_gettime(id).map_or(Duration::ZERO, Duration::from)
}

/// False for a background job, which must not draw on the terminal.
fn in_foreground() -> bool {
    let stderr = io::stderr();
    // If it is not gpurec's controlling terminal, gpurec is not a background job of it.
    nix::unistd::tcgetpgrp(stderr.as_fd()).map_or(true, |group| group == nix::unistd::getpgrp())
}

/// The controlling terminals of gpurec's ancestors, as device numbers: under sudo the user's own is one of them.
fn terminals_above() -> Vec<u64> {
    let mut found = Vec::new();
    let mut pid = std::process::id();
    // Bounded, because /proc may change meanwhile. No process has 64 ancestors.
    for _ in 0..64 {
        let Ok(bytes) = fs::read(format!("/proc/{pid}/stat")) else { break };
        let Some(stat) = proc::parse_stat(&bytes) else { break };
        found.extend(terminal_in(&bytes));
        if stat.ppid <= 1 {
            break;
        }
        pid = stat.ppid;
    }
    found
}

/// Field 7 of /proc/PID/stat, as st_rdev has it.
fn terminal_in(stat: &[u8]) -> Option<u64> {
    let close = memchr::memrchr(b')', stat)?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let number: i32 = rest.split_ascii_whitespace().nth(4)?.parse().ok()?;
    let number = number as u32;
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    (number != 0).then(|| libc::makedev(major, minor))
}

/// True if the process's standard output or error is one of the terminals.
fn writes_to(pid: u32, terminals: &[u64]) -> bool {
    ["1", "2"].iter().any(|fd| {
        let path = format!("/proc/{pid}/fd/{fd}");
        // Any other file may be on a server that does not answer.
        let is_device = fs::read_link(&path).is_ok_and(|to| to.starts_with("/dev"));
        is_device && nix::sys::stat::stat(path.as_str()).is_ok_and(|stat| terminals.contains(&stat.st_rdev))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(totals: &Totals) -> Figures<'_> {
        Figures {
            totals,
            new_events: 22_560,
            passed: Duration::from_millis(500),
            cpu: Duration::from_millis(15),
            bytes: Some(129_449_000),
        }
    }

    #[test]
    fn what_matters_fits_on_any_terminal() {
        let totals =
            Totals { at_ns: 12_345_678_901, events: 500_000, cost_ns: 150_000_000, ..Totals::default() };
        let parts = parts(&figures(&totals));
        assert_eq!(
            fitted(&parts, 120),
            "gpurec: 12.3 s | 45120 events/s | 0 lost | 123.4 MB | cost 1.2 % of a thread | recorder 3.0 % of a CPU"
        );
        assert_eq!(
            fitted(&parts, 80),
            "gpurec: 12.3 s | 45120 events/s | 0 lost | 123.4 MB | cost 1.2 % of a thread"
        );
        assert_eq!(fitted(&parts, 30), "gpurec: 12.3 s");
        let totals = Totals { no_stacks: true, ..totals.clone() };
        let without = super::parts(&figures(&totals));
        assert_eq!(
            fitted(&without, 80),
            "gpurec: 12.3 s | 45120 events/s | 0 lost | no call stacks (--budget) | 123.4 MB"
        );
        for width in 0..200 {
            assert!(fitted(&parts, width).len() < width.max(1));
        }
    }

    #[test]
    fn nothing_recorded_is_no_division_by_nothing() {
        let totals = Totals::default();
        let none = Figures { passed: Duration::ZERO, cpu: Duration::ZERO, new_events: 0, ..figures(&totals) };
        assert!(parts(&none).join(" ").starts_with("gpurec: 0.0 s 0 events/s"));
    }

    #[test]
    fn the_terminal_of_a_process_is_a_device_number() {
        let stat = b"1234 (a) R 1 b) S 1 1234 1234 34819 1234 4194304 1 2";
        assert_eq!(terminal_in(stat), Some(libc::makedev(136, 3)));
        assert_eq!(terminal_in(b"1 (x) S 0 1 1 0 -1 1"), None);
        assert_eq!(terminal_in(b"1 (x) S"), None);
    }

    #[test]
    fn a_process_that_writes_to_a_terminal_is_known() {
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let number = nix::sys::stat::fstat(&null).unwrap().st_rdev;
        let sleep =
            || std::process::Command::new("sleep").arg("60").stdout(null.try_clone().unwrap()).spawn();
        let mut child = sleep().unwrap();
        assert!(writes_to(child.id(), &[number]));
        assert!(!writes_to(child.id(), &[libc::makedev(511, 77)]));
        assert!(!writes_to(u32::MAX, &[number]));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
