//! A table for a spreadsheet or a dataframe: one row for each call, with begin and end, and one for every other event.
//! In: events with their place. Out: CSV as in RFC 4180, with a header. The row of a call appears when the call ends.
//! pids are those of the trace; the column `file` distinguishes traces.

use std::borrow::Cow;

use super::details;
use super::sink::{At, Cause, Linked, Sink, Source, category, function};
use super::tracks::{Process, Track};
use crate::ui;
use gpurec_trace::{self as trace, Args, Body, Ended, Ioctl, Launch, Line, Op, Retval, Where, json};

const COLUMNS: &str = "file,event_id,start_s,duration_us,type,name,pid,tid,rank,depth,parent,\
kernel,grid,block,shared,stream,device,context,request,cmd,detail,args,\
retval,status,error,out,ended,begin,cpu,op,space,ptr,size,total_allocated,async,more\n";

/// Numbers of columns that apply only to a launch, to work on a device, to an ioctl, to the end of a call, and to
/// everything except calls.
const LAUNCH: usize = 5;
const PLACE: usize = 2;
const IOCTL: usize = 3;
const END: usize = 5;
const OTHER: usize = 9;

pub struct Csv {
    out: Vec<u8>,
    file: Vec<u8>,
    scratch: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Bytes of the rows of open calls.
    held: usize,
}

/// Number of row buffers kept for reuse, and the largest size that is kept.
const SPARE: usize = 1024;
const LARGEST_SPARE: usize = 4096;

/// The row of a call that has not ended.
pub struct Row {
    text: Vec<u8>,
    /// Where to insert its duration, and when it began.
    at: usize,
    begin_ns: u64,
}

impl Csv {
    pub fn new() -> Csv {
        Csv {
            out: COLUMNS.as_bytes().to_vec(),
            file: Vec::new(),
            scratch: Vec::new(),
            spare: Vec::new(),
            held: 0,
        }
    }

    /// Writes a row up to its start time; the duration comes next.
    fn start(file: &[u8], out: &mut Vec<u8>, event_id: Option<u64>, ts_ns: u64) {
        out.extend_from_slice(file);
        if let Some(event_id) = event_id {
            json::number(out, event_id);
        }
        out.push(b',');
        json::seconds(out, ts_ns);
        out.push(b',');
    }

    /// Completes a row with the outcome of the call.
    fn finish_row(
        &mut self,
        held: Row,
        end_ns: Option<u64>,
        ending: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>),
    ) {
        let (before, after) = held.text.split_at_checked(held.at).unwrap_or_default();
        self.out.extend_from_slice(before);
        if let Some(ns) = end_ns {
            json::micros(&mut self.out, ns.saturating_sub(held.begin_ns));
        }
        self.out.extend_from_slice(after);
        ending(&mut self.out, &mut self.scratch);
        empty(&mut self.out, OTHER);
        end_row(&mut self.out);
        let mut text = held.text;
        self.held = self.held.saturating_sub(text.len());
        if self.spare.len() < SPARE && text.capacity() <= LARGEST_SPARE {
            text.clear();
            self.spare.push(text);
        }
    }
}

fn end_row(out: &mut [u8]) {
    if let Some(last) = out.last_mut() {
        *last = b'\n';
    }
}

fn empty(out: &mut Vec<u8>, cells: usize) {
    out.resize(out.len() + cells, b',');
}

fn number(out: &mut Vec<u8>, n: Option<u64>) {
    if let Some(n) = n {
        json::number(out, n);
    }
    out.push(b',');
}

fn hex(out: &mut Vec<u8>, n: Option<u64>) {
    if let Some(n) = n {
        out.extend_from_slice(b"0x");
        json::hex_digits(out, n);
        // Removes the closing quote of the JSON form.
        out.pop();
    }
    out.push(b',');
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(ui::csv(text).as_bytes());
    out.push(b',');
}

/// Writes a JSON document as a quoted field. Without special characters it copies whole pieces.
fn quoted(out: &mut Vec<u8>, mut text: &[u8]) {
    if text.iter().any(|byte| !matches!(byte, b' '..=b'~')) {
        return out.extend_from_slice(ui::csv_json(&String::from_utf8_lossy(text)).as_bytes());
    }
    out.push(b'"');
    while let Some(at) = memchr::memchr(b'"', text) {
        let (before, after) = text.split_at(at + 1);
        out.extend_from_slice(before);
        out.push(b'"');
        text = after;
    }
    out.extend_from_slice(text);
    out.push(b'"');
}

/// `1x2x3`.
fn triple(out: &mut Vec<u8>, numbers: Option<[u32; 3]>) {
    for (i, n) in numbers.iter().flatten().enumerate() {
        if i > 0 {
            out.push(b'x');
        }
        json::number(out, u64::from(*n));
    }
    out.push(b',');
}

fn args(out: &mut Vec<u8>, scratch: &mut Vec<u8>, args: Option<&Args>) {
    if let Some(args) = args.filter(|args| !args.is_empty()) {
        scratch.clear();
        args.write_json(scratch);
        quoted(out, scratch);
    }
    out.push(b',');
}

fn launch(out: &mut Vec<u8>, launch: Option<&Launch>) {
    let Some(launch) = launch else { return empty(out, LAUNCH + PLACE) };
    text(out, launch.kernel.as_deref().unwrap_or(""));
    triple(out, launch.grid);
    triple(out, launch.block);
    number(out, launch.shared);
    hex(out, launch.stream);
    place(out, launch.on);
}

/// The device and the context. For an ioctl the device is a file.
fn place(out: &mut Vec<u8>, on: Where) {
    number(out, on.device.map(u64::from));
    hex(out, on.context);
}

fn ioctl(out: &mut Vec<u8>, scratch: &mut Vec<u8>, ioctl: Option<&Ioctl>) {
    let Some(ioctl) = ioctl else { return empty(out, PLACE + IOCTL) };
    text(out, &ioctl.device);
    empty(out, 1);
    text(out, &ioctl.request);
    hex(out, Some(ioctl.cmd));
    args(out, scratch, Some(&ioctl.detail));
}

/// The columns from the type to the parent.
#[derive(Default)]
struct Who {
    pid: u32,
    tid: u32,
    rank: Option<u32>,
    depth: Option<u32>,
    parent: Option<u64>,
}

fn who(out: &mut Vec<u8>, line: &Line, who: &Who) {
    out.extend_from_slice(category(line).as_bytes());
    out.push(b',');
    text(out, function(line));
    number(out, Some(who.pid.into()));
    number(out, Some(who.tid.into()));
    number(out, who.rank.map(u64::from));
    number(out, who.depth.map(u64::from));
    number(out, who.parent);
}

fn process_of(process: &trace::Process) -> (u32, u32) {
    match process {
        trace::Process::Exec(exec) => (exec.pid, exec.tid),
        trace::Process::Found(found) => (found.pid, found.tid),
        trace::Process::Fork(fork) => (fork.pid, fork.tid),
        trace::Process::Exit(exit) => (exit.pid, exit.tid),
        trace::Process::Library(library) => (library.pid, library.tid),
    }
}

/// The columns for the end of a call.
struct Ending<'a> {
    retval: Option<Retval>,
    status: Option<&'a Cow<'a, str>>,
    error: Option<&'a Cow<'a, str>>,
    out: Option<&'a Args<'a>>,
    ended: Ended,
}

fn ending(out: &mut Vec<u8>, scratch: &mut Vec<u8>, end: &Ending) {
    match end.retval {
        Some(Retval::Number(n)) => {
            json::signed(out, n);
            out.push(b',');
        }
        Some(Retval::Pointer(p)) => hex(out, Some(p)),
        None => out.push(b','),
    }
    text(out, end.status.map_or("", |text| text));
    text(out, end.error.map_or("", |text| text));
    args(out, scratch, end.out);
    out.extend_from_slice(match end.ended {
        Ended::Returned => b",",
        Ended::Unwound => b"unwound,",
        Ended::Lost => b"lost,",
        Ended::NotWatched => b"no_return,",
    });
}

/// The columns for events that are not calls.
#[derive(Default)]
struct Other<'a> {
    begin: Option<u64>,
    cpu: Option<u32>,
    /// alloc, free, or the direction of a copy.
    op: &'a str,
    space: &'a str,
    ptr: Option<u64>,
    size: Option<u64>,
    total_allocated: Option<u64>,
    is_async: Option<bool>,
    on: Where,
}

fn other(out: &mut Vec<u8>, other: &Other) {
    number(out, other.begin);
    number(out, other.cpu.map(u64::from));
    text(out, other.op);
    text(out, other.space);
    hex(out, other.ptr);
    number(out, other.size);
    number(out, other.total_allocated);
    text(out, other.is_async.map_or("", |is_async| if is_async { "true" } else { "false" }));
}

impl Sink for Csv {
    type Held = Row;

    fn held(&self) -> usize {
        self.held
    }

    fn source(&mut self, source: &Source) {
        self.file.clear();
        text(&mut self.file, source.file);
    }

    fn clock(&mut self, _wall_ns: u64) {}
    fn process(&mut self, _process: &Process) {}
    fn track(&mut self, _track: Track, _parent: u64, _name: &str, _is_thread: bool) {}
    fn counter_track(&mut self, _uuid: u64, _process: &Process, _name: &str) {}

    fn begin(&mut self, at: At, line: &Line, rank: Option<u32>, _linked: Linked) -> Row {
        let mut row = self.spare.pop().unwrap_or_default();
        let out = &mut row;
        Csv::start(&self.file, out, Some(line.event_id), at.ts_ns);
        let duration_at = out.len();
        out.push(b',');
        let scratch = &mut self.scratch;
        match &line.body {
            Body::Begin(call) => {
                let (depth, parent) = (Some(call.depth), call.parent);
                who(out, line, &Who { pid: call.pid, tid: call.tid, rank, depth, parent });
                launch(out, call.launch.as_ref());
                empty(out, IOCTL);
                args(out, scratch, Some(&call.args));
            }
            Body::KernelBegin(call) => {
                let (depth, parent) = (Some(call.depth), call.parent);
                who(out, line, &Who { pid: call.pid, tid: call.tid, rank, depth, parent });
                empty(out, LAUNCH);
                ioctl(out, scratch, call.ioctl.as_ref());
                args(out, scratch, call.args.as_ref());
            }
            _ => {}
        }
        self.held += row.len();
        Row { text: row, at: duration_at, begin_ns: at.ts_ns }
    }

    fn end(&mut self, at: At, line: &Line, held: Row) {
        let (duration_ns, end) = match &line.body {
            Body::End(end) => {
                let (retval, error, ended) = (end.retval, end.error.as_ref(), end.ended);
                let out = end.out.as_ref();
                (end.duration_ns, Ending { retval, status: None, error, out, ended })
            }
            Body::KernelEnd(end) => {
                let (retval, error, ended) = (end.retval, end.error.as_ref(), end.ended);
                let (status, out) = (end.status.as_ref(), end.out.as_ref());
                (end.duration_ns, Ending { retval, status, error, out, ended })
            }
            _ => return,
        };
        let until_ns = duration_ns.map(|_| at.ts_ns);
        self.finish_row(held, until_ns, |out, scratch| ending(out, scratch, &end));
    }

    fn close(&mut self, _at: At, held: Row, cause: Cause) {
        self.finish_row(held, None, |out, _| {
            empty(out, END - 1);
            text(out, cause.name());
        });
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, rank: Option<u32>) {
        let Csv { out, file, scratch, .. } = self;
        let (mut who_is, mut rest, mut more) = (Who { rank, ..Who::default() }, Other::default(), false);
        let (mut duration_ns, mut start_ns, mut given) = (duration_ns, at.ts_ns, None);
        match &line.body {
            Body::Memory(memory) => {
                (who_is.pid, who_is.tid) = (memory.pid, memory.tid);
                rest = Other {
                    begin: Some(memory.begin),
                    op: if memory.op == Op::Alloc { "alloc" } else { "free" },
                    space: &memory.space,
                    ptr: Some(memory.ptr),
                    size: memory.size,
                    total_allocated: memory.total_allocated,
                    on: memory.on,
                    ..rest
                };
                more = memory.missed || memory.runtime;
            }
            Body::Transfer(transfer) => {
                (who_is.pid, who_is.tid) = (transfer.pid, transfer.tid);
                let (begin, size) = (Some(transfer.begin), Some(transfer.size));
                let op = transfer.direction.as_ref();
                rest = Other { begin, op, size, is_async: Some(transfer.is_async), on: transfer.on, ..rest };
                more = transfer.partial || transfer.pageable;
                duration_ns = transfer.duration_ns;
            }
            Body::Instant(instant) => {
                (who_is.pid, who_is.tid) = (instant.pid, instant.tid);
                (who_is.depth, who_is.parent) = (Some(instant.depth), instant.parent);
                (rest.cpu, given) = (instant.cpu, instant.args.as_ref());
            }
            Body::Xid(xid) => {
                (who_is.pid, who_is.tid) = (xid.pid, xid.tid);
                more = true;
            }
            Body::Process(process) => {
                (who_is.pid, who_is.tid) = process_of(process);
                more = true;
            }
            _ => more = true,
        }
        if let Some(ns) = duration_ns {
            start_ns = start_ns.saturating_sub(ns);
        }
        Csv::start(file, out, Some(line.event_id), start_ns);
        if duration_ns.is_some() {
            json::micros(out, at.ts_ns - start_ns);
        }
        out.push(b',');
        who(out, line, &who_is);
        empty(out, LAUNCH);
        place(out, rest.on);
        empty(out, IOCTL);
        args(out, scratch, given);
        empty(out, END);
        other(out, &rest);
        if more {
            scratch.clear();
            details::write(scratch, line);
            quoted(out, scratch);
        }
        out.push(b',');
        end_row(out);
    }

    fn counter(&mut self, _ts_ns: u64, _uuid: u64, _pid: u32, _name: &str, _value: u64) {}
    fn note(&mut self, _at: At, _text: &str) {}
    fn finish(&mut self) {}

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
