//! `--live`: one readable row per event, on standard error. In: lines of the trace. Out: TIME(ms) PROCESS PID EVENT
//! DETAILS. A call gets one row, when it ends, with its duration, arguments, results and error. Its effects (memory,
//! copies) join the same row.
//!
//! The trace comes first: when the screen or the recorder cannot keep up, rows are dropped without being built, and a
//! row reports how many.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::screen::{NOT_SHOWN, Voice};
use crate::pipeline::observer::Rows;
use crate::process::proc;
use crate::ui::is_unsafe;
use gpurec_analysis::stacks::call_site;
use gpurec_analysis::{asked, size};
use gpurec_cuda as cuda;
use gpurec_trace::bounds;
use gpurec_trace::{
    Args, Begin, Body, Budget, CALL_STACKS, End, EndKind, ExitStatus, InFlight, Instant, KernelBegin,
    KernelEnd, Launch, Level, Line, Memory, Op, Process, Retval, Transfer, Value, signal_name,
};

/// The most open calls and ioctls to remember. Beyond this number, the ends of the rest must have been lost.
const MOST_OPEN: usize = 65_536;

/// The most stacks whose call sites are remembered.
const MOST_SITES: usize = 65_536;

/// The most process names to remember.
const MOST_NAMES: usize = 65_536;

/// The most bytes of a call's arguments or results in a row.
const LONGEST: usize = 400;

/// Bytes that are sent to the screen at once.
const CHUNK: usize = 16 << 10;

pub struct Live {
    voice: Voice,
    buffer: String,
    rows: u64,
    names: HashMap<u32, String>,
    /// The arguments of open calls and ioctls, by event_id.
    arguments: HashMap<u64, Arguments>,
    /// The call sites of stacks.
    sites: HashMap<u64, Arc<str>>,
    /// The call that has the last row in the buffer.
    last: Option<u64>,
}

/// A call's arguments, for an allocation the number of bytes requested, and the call site.
#[derive(Default)]
struct Arguments {
    text: String,
    bytes: Option<u64>,
    site: Option<Arc<str>>,
}

/// The process and event columns of a row.
struct Row<'a> {
    pid: Option<u32>,
    event: &'a str,
}

impl Rows for Live {
    /// With `hurry` set, it does only what later rows depend on.
    fn line(&mut self, line: &Line, hurry: bool) {
        self.remember(line, hurry);
        let Some(row) = row_of(&line.body) else { return };
        if self.follows(&line.body) {
            return;
        }
        if hurry || !self.has_room() {
            self.take(&line.body);
            self.voice.drop_rows(1);
            return;
        }
        self.report_dropped();
        self.row(Some(line.ts_ns), row, |live| live.details(&line.body));
        self.last = if let Body::End(end) = &line.body { Some(end.begin) } else { None };
    }

    /// A row for a call that has not returned: a program that hangs produces no other.
    fn still(&mut self, now_ns: u64, call: &InFlight) {
        if !self.has_room() {
            self.voice.drop_rows(1);
            return;
        }
        self.report_dropped();
        self.row(Some(now_ns), Row { pid: Some(call.pid), event: &call.name }, |live| {
            let so_far = duration(Some(call.duration_ns));
            let _ = write!(live.buffer, "{so_far} so far, unfinished, in thread {}", call.tid);
            if let Some(arguments) = live.arguments.get(&call.begin) {
                let _ = write!(live.buffer, "  {}", arguments.text);
                made_at(&mut live.buffer, arguments);
            }
        });
        self.last = None;
    }

    /// Sends the rows to the screen if it has room. If not, they stay, and newer ones are dropped.
    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        self.last = None;
        match self.voice.say(std::mem::take(&mut self.buffer), self.rows) {
            Ok(()) => self.rows = 0,
            Err(back) => self.buffer = back,
        }
    }
}

impl Live {
    pub fn new(voice: Voice) -> Live {
        let (mut buffer, names, arguments, sites) = Default::default();
        columns(&mut buffer, "TIME(ms)", "PROCESS", "PID", "EVENT");
        buffer.push_str("DETAILS\n");
        Live { voice, buffer, rows: 0, names, arguments, sites, last: None }
    }

    /// Appends a call's effect to its row, if that row is still in the buffer.
    fn follows(&mut self, body: &Body) -> bool {
        let begin = match body {
            Body::Memory(memory) => memory.begin,
            Body::Transfer(transfer) => Some(transfer.begin),
            _ => return false,
        };
        if begin.is_none() || self.last != begin {
            return false;
        }
        // Removing the line feed continues the row.
        self.buffer.pop();
        let from = self.buffer.len();
        let _ = write!(self.buffer, "  {} ", row_of(body).map_or("", |row| row.event));
        self.details(body);
        self.finish_row(from);
        self.rows -= 1;
        true
    }

    fn has_room(&mut self) -> bool {
        if self.buffer.len() >= CHUNK && self.voice.has_room() {
            self.flush();
        }
        self.buffer.len() < CHUNK
    }

    /// Keeps what later rows need from this line.
    fn remember(&mut self, line: &Line, hurry: bool) {
        match &line.body {
            Body::Begin(begin) if !hurry => {
                let site = self.site(begin);
                self.keep(line.event_id, Arguments { site, ..given(begin) });
            }
            Body::KernelBegin(begin) if !hurry => {
                if let Some(text) = requested(begin) {
                    self.keep(line.event_id, Arguments { text, ..Arguments::default() });
                }
            }
            Body::Stack(stack) if self.sites.len() < MOST_SITES => {
                if let Some(frame) = call_site(&stack.frames).and_then(|at| stack.frames.get(at)) {
                    self.sites.insert(stack.stack, bounds::short(&frame.text(), LONGEST).into());
                }
            }
            Body::Process(Process::Exec(exec)) => {
                // As Linux names it: a script by its own name, cut to 15 characters.
                let first = exec.command.first().map_or("", String::as_str);
                let base = first.rsplit('/').next().unwrap_or(first);
                let name = read_name(exec.pid).unwrap_or_else(|| base.chars().take(15).collect());
                self.know(exec.pid, name);
            }
            Body::Process(Process::Found(found)) => self.know(found.pid, found.comm.clone()),
            Body::Process(Process::Fork(fork)) => {
                let name = self.name(fork.pid);
                self.know(fork.child, name);
            }
            _ => {}
        }
    }

    /// The call site of a call: its own, or that of the call around it.
    fn site(&self, begin: &Begin) -> Option<Arc<str>> {
        let own = begin.stack.and_then(|stack| self.sites.get(&stack));
        own.or_else(|| self.arguments.get(&begin.parent?)?.site.as_ref()).cloned()
    }

    /// The arguments of a call that ends.
    fn take(&mut self, body: &Body) -> Option<Arguments> {
        match body {
            Body::End(end) => self.arguments.remove(&end.begin),
            Body::KernelEnd(end) => self.arguments.remove(&end.begin),
            _ => None,
        }
    }

    fn keep(&mut self, event_id: u64, arguments: Arguments) {
        let is_empty = arguments.text.is_empty() && arguments.site.is_none();
        if self.arguments.len() < MOST_OPEN && !is_empty {
            self.arguments.insert(event_id, arguments);
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.voice.take_dropped();
        if dropped == 0 {
            return;
        }
        self.row(None, Row { pid: None, event: NOT_SHOWN }, |live| {
            let _ = write!(live.buffer, "{dropped} rows: they came faster than they could be shown");
        });
        // This row does not come from the trace.
        self.rows -= 1;
    }

    fn details(&mut self, body: &Body) {
        let arguments = self.take(body);
        let to = &mut self.buffer;
        match body {
            Body::End(end) => call(to, end, &arguments.unwrap_or_default()),
            Body::KernelEnd(end) => {
                driver_call(to, end, arguments.map(|arguments| arguments.text).as_deref())
            }
            Body::Memory(one) => memory(to, one),
            Body::Transfer(one) => transfer(to, one),
            Body::Instant(one) => instant(to, one),
            Body::Xid(xid) => _ = write!(to, "{} on {}: {}", xid.xid, xid.device, xid.message),
            Body::Process(one) => process(to, one),
            Body::Budget(line) => budget(to, line),
            Body::Lost(lost) => _ = write!(to, "{} records", lost.count),
            Body::Suspend(one) => _ = write!(to, "the machine slept for {} ms", one.slept_ns / 1_000_000),
            _ => {}
        }
    }

    fn row(&mut self, ts_ns: Option<u64>, row: Row, details: impl FnOnce(&mut Live)) {
        let time = ts_ns.map(|ns| format!("{}.{:03}", ns / 1_000_000, ns / 1000 % 1000));
        let name = row.pid.map(|pid| self.name(pid));
        let pid = row.pid.map(|pid| pid.to_string());
        let [time, name, pid] = [time, name, pid].map(Option::unwrap_or_default);
        let from = self.buffer.len();
        columns(&mut self.buffer, &time, &name, &pid, row.event);
        details(self);
        self.finish_row(from);
    }

    /// Names and messages come from the recorded programs, and any file may be hooked, so a function's name may contain
    /// any character: none may act as a terminal command.
    fn finish_row(&mut self, from: usize) {
        if self.buffer.get(from..).is_some_and(|row| row.contains(is_unsafe)) {
            let plain = |c| if is_unsafe(c) { '?' } else { c };
            let clean: String = self.buffer.drain(from..).map(plain).collect();
            self.buffer.push_str(&clean);
        }
        self.buffer.truncate(self.buffer.trim_end_matches(' ').len());
        self.buffer.push('\n');
        self.rows += 1;
    }

    fn name(&mut self, pid: u32) -> String {
        if let Some(known) = self.names.get(&pid) {
            return known.clone();
        }
        let name = read_name(pid).unwrap_or_else(|| "?".to_owned());
        self.know(pid, name.clone());
        name
    }

    fn know(&mut self, pid: u32, name: String) {
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        self.names.insert(pid, name);
    }
}

impl Drop for Live {
    /// Counts the rows that found no room to the end: the screen reports them.
    fn drop(&mut self) {
        self.flush();
        self.voice.drop_rows(if self.buffer.is_empty() { 0 } else { self.rows });
    }
}

fn columns(to: &mut String, time: &str, process: &str, pid: &str, event: &str) {
    let _ = write!(to, "{time:>12} {process:<16} {pid:>8} {event:<32} ");
}

fn read_name(pid: u32) -> Option<String> {
    proc::stat(pid).ok().map(|stat| stat.comm)
}

/// None if the line has no row.
fn row_of<'a>(body: &'a Body) -> Option<Row<'a>> {
    let row = |pid: u32, event: &'a str| Some(Row { pid: Some(pid), event });
    match body {
        Body::End(end) => row(end.pid, &end.name),
        Body::KernelEnd(end) => row(end.pid, &end.name),
        Body::Instant(one) => row(one.pid, &one.name),
        Body::Memory(one) if one.op == Op::Alloc => row(one.pid, "alloc"),
        Body::Memory(one) => row(one.pid, "free"),
        Body::Transfer(one) if one.direction == "set" => row(one.pid, "set"),
        Body::Transfer(one) => row(one.pid, "copy"),
        Body::Xid(xid) => row(xid.pid, "XID"),
        Body::Process(Process::Exec(p)) => row(p.pid, "exec"),
        Body::Process(Process::Found(p)) => row(p.pid, "found"),
        Body::Process(Process::Fork(p)) => row(p.pid, "fork"),
        Body::Process(Process::Exit(p)) => row(p.pid, "exit"),
        Body::Process(Process::Library(p)) => row(p.pid, "library"),
        Body::Budget(line) => Some(Row { pid: line.why.map(|why| why.pid), event: "BUDGET" }),
        Body::Lost(_) => Some(Row { pid: None, event: "LOST" }),
        Body::Suspend(_) => Some(Row { pid: None, event: "SUSPEND" }),
        _ => None,
    }
}

fn given(begin: &Begin) -> Arguments {
    if let Some(launch) = &begin.launch {
        return Arguments { text: launched(launch), ..Arguments::default() };
    }
    Arguments {
        site: None,
        text: bounds::short(&begin.args.shown(), LONGEST),
        bytes: asked::bytes(&gpurec_cuda::FunctionTraits::of(&begin.name), &begin.args),
    }
}

fn launched(launch: &Launch) -> String {
    let mut text = cuda::kernel_text(launch.kernel.as_deref().unwrap_or("?")).to_owned();
    for (what, dims) in [("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)] {
        if let Some([x, y, z]) = dims {
            let _ = write!(text, " {what} {x}x{y}x{z}");
        }
    }
    if let Some(shared) = launch.shared.filter(|bytes| *bytes > 0) {
        let _ = write!(text, " shared {shared}");
    }
    if let Some(nodes) = launch.nodes {
        // A graph launch names no kernel.
        text = format!("graph of {nodes} nodes");
    }
    if let Some(stream) = launch.stream.filter(|stream| *stream > 0) {
        let _ = write!(text, " stream {stream:#x}");
    }
    text
}

fn requested(begin: &KernelBegin) -> Option<String> {
    let ioctl = begin.ioctl.as_ref()?;
    let mut text = ioctl.request.to_string();
    match ioctl.detail.get("command").or_else(|| ioctl.detail.get("class")) {
        Some(Value::Text(what)) => _ = write!(text, " {what}"),
        Some(Value::Hex(what)) => _ = write!(text, " {what:#x}"),
        Some(Value::Number(what)) => _ = write!(text, " {what}"),
        _ => {}
    }
    Some(text)
}

fn call(to: &mut String, end: &End, arguments: &Arguments) {
    to.push_str(&duration(end.duration_ns));
    let short = |args: &Args| bounds::short(&args.shown(), LONGEST);
    let out = end.out.as_ref().filter(|out| !out.is_empty()).map(|out| format!("-> {}", short(out)));
    let given = Some(&arguments.text).filter(|text| !text.is_empty()).cloned();
    for part in [given, end.late.as_ref().map(short), out].into_iter().flatten() {
        let _ = write!(to, "  {part}");
    }
    match (&end.error, end.retval, end.ended) {
        (Some(error), _, _) => {
            let _ = write!(to, "  {error}");
            if let Some(bytes) = asked::bytes_of(&end.name, arguments.bytes) {
                let _ = write!(to, ", asked for {bytes} bytes ({})", size(bytes));
            }
        }
        (None, Some(Retval::Number(0)) | None, EndKind::Returned) => {}
        (None, Some(Retval::Number(n)), _) => _ = write!(to, "  = {n}"),
        (None, Some(Retval::Pointer(p)), _) => _ = write!(to, "  = {p:#x}"),
        (None, None, EndKind::Unwound) => to.push_str("  left without returning"),
        (None, None, EndKind::Lost | EndKind::NotWatched) => {}
    }
    made_at(to, arguments);
}

fn made_at(to: &mut String, arguments: &Arguments) {
    if let Some(site) = &arguments.site {
        let _ = write!(to, "  at {site}");
    }
}

fn driver_call(to: &mut String, end: &KernelEnd, request: Option<&str>) {
    to.push_str(&duration(end.duration_ns));
    for said in [request, end.status.as_deref(), end.error.as_deref()].into_iter().flatten() {
        let _ = write!(to, "  {said}");
    }
    if end.ended == EndKind::Returned
        && let (None, Some(Retval::Number(n))) = (&end.status, end.retval)
        && n != 0
    {
        let _ = write!(to, "  = {n}");
    }
}

fn duration(duration_ns: Option<u64>) -> String {
    duration_ns
        .map_or_else(|| "its return was lost".to_owned(), |ns| format!("{}.{:03} us", ns / 1000, ns % 1000))
}

fn memory(to: &mut String, memory: &Memory) {
    match memory.size {
        Some(size) => _ = write!(to, "{size} bytes"),
        None => to.push_str("unknown size"),
    }
    let _ = write!(to, "  {} {:#x}", memory.space, memory.ptr);
    if let Some(total) = memory.total_allocated {
        let _ = write!(to, "  {total} bytes held");
    }
}

fn transfer(to: &mut String, transfer: &Transfer) {
    let least = if transfer.partial { "at least " } else { "" };
    let _ = write!(to, "{least}{} bytes", transfer.size);
    if transfer.direction != "set" {
        let _ = write!(to, "  {}", transfer.direction);
    }
    if let Some(rate) = transfer.bytes_per_sec() {
        let hundredths = rate / 10_000_000;
        let _ = write!(to, "  {}.{:02} GB/s", hundredths / 100, hundredths % 100);
    }
    if transfer.is_async {
        to.push_str("  asynchronous");
    }
    if transfer.pageable {
        to.push_str("  pageable");
    }
}

/// Details of an interrupt, time off the CPU, or a tracepoint.
fn instant(to: &mut String, instant: &Instant) {
    let duration = instant.duration_ns.map(|ns| duration(Some(ns)));
    let mut parts: Vec<String> = duration.into_iter().collect();
    parts.extend(instant.cpu.map(|cpu| format!("cpu {cpu}")));
    if let Some(args @ (Args::Named(_) | Args::Json(_))) = &instant.args {
        args.each(|name, value| parts.push(format!("{name} {value}")));
    }
    to.push_str(&parts.join("  "));
}

fn budget(to: &mut String, line: &Budget) {
    let level = match (line.function == CALL_STACKS, line.level) {
        (true, Level::Recorded) => "taken again".to_owned(),
        (true, _) => "not taken any more".to_owned(),
        (false, level) => format!("{level:?}").to_lowercase(),
    };
    let _ = write!(to, "{} {level}", line.function);
    if let Some(why) = &line.why {
        let _ = write!(to, "  {} % of thread {}  {} calls/s", why.percent, why.tid, why.hits_per_sec);
    }
}

fn process(to: &mut String, process: &Process) {
    let _ = match process {
        Process::Exec(exec) => write!(to, "{}", exec.command.join(" ")),
        Process::Found(found) => write!(to, "{}", found.command.join(" ")),
        Process::Fork(fork) => write!(to, "child {}", fork.child),
        Process::Exit(exit) => match exit.status {
            ExitStatus::Code(code) => write!(to, "status {code}"),
            ExitStatus::Signal(number) => write!(to, "killed by {}", signal_name(number)),
        },
        Process::Library(library) => write!(to, "{} ({} functions)", library.path, library.functions),
    };
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
