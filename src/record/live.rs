//! `--live`: one readable line a call, on standard error. In: lines of the trace. Out:
//! TIME(ms) PROCESS PID EVENT DETAILS. A call is shown when it ends, with what it did.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use crate::target::proc;
use crate::trace::{Body, End, Ended, KernelBegin, KernelEnd, Line, Process, Retval, Value};

/// How many ioctls now open are remembered; more are only left by ends that were lost.
const MOST_OPEN: usize = 65_536;

#[derive(Default)]
pub struct Live {
    buffer: String,
    names: HashMap<u32, String>,
    /// What the ioctls now open ask for, by event_id.
    requests: HashMap<u64, String>,
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
            Body::KernelBegin(begin) => return self.asked(line.event_id, begin),
            Body::KernelEnd(end) => (end.pid, end.name.as_ref(), self.driver_call(end)),
            Body::Xid(xid) => (xid.pid, "XID", format!("{} on {}: {}", xid.xid, xid.device, xid.message)),
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

    fn asked(&mut self, event_id: u64, begin: &KernelBegin) {
        let Some(ioctl) = &begin.ioctl else { return };
        if self.requests.len() >= MOST_OPEN {
            return;
        }
        let mut text = ioctl.request.to_string();
        match ioctl.detail.get("command").or_else(|| ioctl.detail.get("class")) {
            Some(Value::Text(what)) => _ = write!(text, " {what}"),
            Some(Value::Hex(what)) => _ = write!(text, " {what:#x}"),
            Some(Value::Number(what)) => _ = write!(text, " {what}"),
            _ => {}
        }
        self.requests.insert(event_id, text);
    }

    fn driver_call(&mut self, end: &KernelEnd) -> String {
        let mut text = took(end.duration_ns);
        if let Some(request) = self.requests.remove(&end.begin) {
            _ = write!(text, "  {request}");
        }
        for said in [&end.status, &end.error].into_iter().flatten() {
            _ = write!(text, "  {said}");
        }
        if end.ended == Ended::Returned
            && let (None, Some(Retval::Number(n))) = (&end.status, end.retval)
            && n != 0
        {
            _ = write!(text, "  = {n}");
        }
        text
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
    let mut text = took(end.duration_ns);
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

fn took(duration_ns: Option<u64>) -> String {
    match duration_ns {
        Some(ns) => format!("{}.{:03} us", ns / 1000, ns % 1000),
        None => "its return was lost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Reader;

    /// Two ioctls, one inside the other's function, as their ends come.
    #[test]
    fn the_end_of_an_ioctl_says_what_was_asked() {
        let trace = concat!(
            r#"{"event_id":0,"ts":0.1,"type":"header","name":"gpurec","schema":1,"version":"","start":"","host":"","kernel":"","user":""}"#,
            "\n",
            r#"{"event_id":1,"ts":0.1,"type":"kernel","name":"nvidia_ioctl","phase":"B","pid":4294967295,"tid":1,"depth":0,"device":"nvidiactl","cmd":"0x2a","request":"NV_ESC_RM_CONTROL","detail":{"command":"0x20801234"}}"#,
            "\n",
            r#"{"event_id":2,"ts":0.1,"type":"kernel","name":"rm_ioctl","phase":"B","pid":4294967295,"tid":1,"depth":1,"parent":1}"#,
            "\n",
            r#"{"event_id":3,"ts":0.1,"type":"kernel","name":"rm_ioctl","phase":"E","pid":4294967295,"tid":1,"begin":2,"duration_us":1.500,"retval":-22}"#,
            "\n",
            r#"{"event_id":4,"ts":0.1,"type":"kernel","name":"nvidia_ioctl","phase":"E","pid":4294967295,"tid":1,"begin":1,"duration_us":2.500,"retval":0,"status":"NV_ERR_NOT_SUPPORTED"}"#,
            "\n",
            r#"{"event_id":5,"ts":0.1,"type":"xid","name":"xid","pid":4294967295,"tid":1,"xid":31,"message":"a\nb","device":"0000:3b:00.0"}"#,
            "\n",
        );
        let mut live = Live::new();
        let mut reader = Reader::new(trace.as_bytes());
        while let Some(line) = reader.next().unwrap() {
            live.line(&line);
        }
        let details: Vec<&str> = live.buffer.lines().map(|row| row.get(71..).unwrap_or("").trim()).collect();
        assert_eq!(
            details,
            [
                "DETAILS",
                "1.500 us  = -22",
                "2.500 us  NV_ESC_RM_CONTROL 0x20801234  NV_ERR_NOT_SUPPORTED",
                "31 on 0000:3b:00.0: a?b",
            ]
        );
        assert!(live.requests.is_empty());
    }
}
