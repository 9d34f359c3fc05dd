//! `--live`: one readable line a call, on standard error. In: lines of the trace. Out:
//! TIME(ms) PROCESS PID EVENT DETAILS. A call is shown when it ends, with what it did.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use crate::target::proc;
use crate::trace::{Body, End, Ended, Line, Process, Retval};

#[derive(Default)]
pub struct Live {
    buffer: String,
    names: HashMap<u32, String>,
}

impl Live {
    pub fn new() -> Live {
        let mut live = Live::default();
        live.row("TIME(ms)", "PROCESS", "PID", "EVENT", "DETAILS");
        live
    }

    pub fn line(&mut self, line: &Line) {
        let time = format!("{}.{:03}", line.ts_ns / 1_000_000, line.ts_ns / 1000 % 1000);
        let (pid, event, details) = match &line.body {
            Body::End(end) => (end.pid, end.name.as_ref(), call(end)),
            Body::Process(Process::Exec(p)) => {
                self.names.remove(&p.pid);
                (p.pid, "exec", p.command.join(" "))
            }
            Body::Process(Process::Fork(p)) => (p.pid, "fork", format!("child {}", p.child)),
            Body::Process(Process::Exit(p)) => (p.pid, "exit", format!("{:?}", p.status)),
            Body::Process(Process::Library(p)) => {
                (p.pid, "library", format!("{} ({} functions)", p.path, p.functions))
            }
            Body::Lost(lost) => (0, "LOST", format!("{} records", lost.count)),
            _ => return,
        };
        let name = self.name(pid);
        self.row(&time, &name, &pid.to_string(), event, &details);
    }

    /// What a terminal can't take is lost to it, never to the trace.
    pub fn flush(&mut self) {
        let _ = io::stderr().lock().write_all(self.buffer.as_bytes());
        self.buffer.clear();
    }

    fn row(&mut self, time: &str, process: &str, pid: &str, event: &str, details: &str) {
        let clean: String = details.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(self.buffer, "{time:>12} {process:<16} {pid:>8} {event:<32} {clean}");
        if self.buffer.len() > 1 << 16 {
            self.flush();
        }
    }

    fn name(&mut self, pid: u32) -> String {
        let read = || proc::stat(pid).map_or_else(|_| "?".to_owned(), |stat| stat.comm);
        let name = self.names.entry(pid).or_insert_with(read);
        name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

fn call(end: &End) -> String {
    let mut text = match end.duration_ns {
        Some(ns) => format!("{}.{:03} us", ns / 1000, ns % 1000),
        None => "its return was lost".to_owned(),
    };
    match (&end.error, end.retval, end.ended) {
        (Some(error), _, _) => _ = write!(text, "  {error}"),
        (None, Some(Retval::Number(0)) | None, Ended::Returned) => {}
        (None, Some(Retval::Number(n)), _) => _ = write!(text, "  = {n}"),
        (None, Some(Retval::Pointer(p)), _) => _ = write!(text, "  = {p:#x}"),
        (None, None, Ended::Unwound) => text.push_str("  left without returning"),
        (None, None, Ended::Lost) => {}
    }
    text
}
