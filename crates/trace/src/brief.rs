//! Reads of the most frequent lines only what a reader of many traces asks for: which call began or ended, when and in
//! which thread, and what ran on the GPU. In: the text of a line, as the writer writes it. Out: these facts, or `None`:
//! then the whole line is to be read (fast.rs, parse.rs), which says the same about it (tests/brief.rs). Text behind the
//! facts is not checked to be JSON. Not here: any other line.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::args::{self, Args};
use super::enums::{GpuKind, GpuSource};
use super::event::{Begin, End, Gpu, Line};
use super::scan::{Scan, plain};
use super::tree::succeeded;
use super::value::Value;

/// A line of which only some facts are read, if it is one of the frequent ones.
pub enum Brief<'a> {
    Begin(CallBegin<'a>),
    End(CallEnd<'a>),
    Work(GpuWork<'a>),
    Other(&'a Line<'a>),
}

/// A call into a library began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallBegin<'a> {
    pub event_id: u64,
    pub ts_ns: u64,
    pub name: &'a str,
    pub pid: u32,
    pub tid: u32,
    pub parent: Option<u64>,
    pub stack: Option<u64>,
    args: BriefArgs<'a>,
}

#[derive(Clone, Copy, Debug)]
enum BriefArgs<'a> {
    Text(&'a str),
    Read(&'a Args<'a>),
}

/// A call into a library ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd<'a> {
    pub event_id: u64,
    pub ts_ns: u64,
    pub name: &'a str,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of its begin.
    pub begin: u64,
    pub duration_ns: Option<u64>,
    pub succeeded: bool,
}

/// Something ran on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuWork<'a> {
    pub event_id: u64,
    /// Its start.
    pub ts_ns: u64,
    pub name: &'a str,
    pub kind: GpuKind,
    pub pid: u32,
    /// The event_id of the call that submitted it.
    pub begin: Option<u64>,
    pub duration_ns: u64,
}

impl<'a> CallBegin<'a> {
    /// Of a line that was read whole.
    pub fn of(line: &Line, begin: &'a Begin<'a>) -> CallBegin<'a> {
        CallBegin {
            event_id: line.event_id,
            ts_ns: line.ts_ns,
            name: &begin.name,
            pid: begin.pid,
            tid: begin.tid,
            parent: begin.parent,
            stack: begin.stack,
            args: BriefArgs::Read(&begin.args),
        }
    }

    /// The value of a named argument.
    pub fn arg(&self, name: &str) -> Option<Value<'a>> {
        match self.args {
            BriefArgs::Text(text) => args::in_text(text, name),
            BriefArgs::Read(args) => args.get(name),
        }
    }
}

impl PartialEq for BriefArgs<'_> {
    fn eq(&self, other: &Self) -> bool {
        let text = |args: &BriefArgs| {
            let mut text = Vec::new();
            match args {
                BriefArgs::Text(json) => Args::json(json).write_json(&mut text),
                BriefArgs::Read(args) => args.write_json(&mut text),
            }
            text
        };
        text(self) == text(other)
    }
}

impl<'a> CallEnd<'a> {
    /// Of a line that was read whole.
    pub fn of(line: &Line, end: &'a End<'a>) -> CallEnd<'a> {
        CallEnd {
            event_id: line.event_id,
            ts_ns: line.ts_ns,
            name: &end.name,
            pid: end.pid,
            tid: end.tid,
            begin: end.begin,
            duration_ns: end.duration_ns,
            succeeded: succeeded(end),
        }
    }
}

impl<'a> GpuWork<'a> {
    /// Of a line that was read whole.
    pub fn of(line: &Line, gpu: &'a Gpu<'a>) -> GpuWork<'a> {
        GpuWork {
            event_id: line.event_id,
            ts_ns: line.ts_ns,
            name: &gpu.name,
            kind: gpu.kind,
            pid: gpu.pid,
            begin: gpu.begin,
            duration_ns: gpu.duration_ns,
        }
    }
}

static NO_RETURN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"no_return\""));
static SUBMITTED_BY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(",\"begin\":"));

pub fn line(text: &[u8]) -> Option<Brief<'_>> {
    let mut scan = Scan::new(plain(text)?);
    scan.must("{\"event_id\":")?;
    let event_id = scan.number()?;
    scan.must(",\"ts\":")?;
    let ts_ns = scan.seconds()?;
    if scan.eat(",\"type\":\"gpu\",\"name\":\"") {
        return work(scan, event_id, ts_ns).map(Brief::Work);
    }
    scan.must(",\"type\":\"userspace\",\"name\":\"")?;
    let name = scan.string()?;
    if scan.eat(",\"phase\":\"E\",\"pid\":") {
        return end(scan, event_id, ts_ns, name).map(Brief::End);
    }
    scan.must(",\"phase\":\"B\",\"pid\":")?;
    begin(scan, event_id, ts_ns, name).map(Brief::Begin)
}

#[inline(always)]
fn begin<'a>(mut scan: Scan<'a>, event_id: u64, ts_ns: u64, name: &'a str) -> Option<CallBegin<'a>> {
    let pid = scan.number32()?;
    scan.must(",\"tid\":")?;
    let tid = scan.number32()?;
    scan.must(",\"depth\":")?;
    scan.number32()?;
    let parent = if scan.eat(",\"parent\":") { Some(scan.number()?) } else { None };
    scan.must(",\"args\":")?;
    let args = BriefArgs::Text(scan.object()?);
    let stack = if scan.eat(",\"stack\":") { Some(scan.number()?) } else { None };
    // What it launches may follow.
    let launches = || scan.peek(",\"kernel\":").is_some() || scan.peek(",\"stream\":").is_some();
    let is_launch = || launches() && scan.is_closed() && !scan.has(&NO_RETURN);
    if !(scan.ends() || is_launch()) {
        return None;
    }
    Some(CallBegin { event_id, ts_ns, name, pid, tid, parent, stack, args })
}

#[inline(always)]
fn end<'a>(mut scan: Scan<'a>, event_id: u64, ts_ns: u64, name: &'a str) -> Option<CallEnd<'a>> {
    let pid = scan.number32()?;
    scan.must(",\"tid\":")?;
    let tid = scan.number32()?;
    scan.must(",\"begin\":")?;
    let begin = scan.number()?;
    let duration_ns = if scan.eat(",\"duration_us\":") { Some(scan.micros()?) } else { None };
    if scan.eat(",\"retval\":") {
        scan.number()?;
    }
    // Other keys may say that it failed.
    scan.ends().then_some(CallEnd { event_id, ts_ns, name, pid, tid, begin, duration_ns, succeeded: true })
}

#[inline(always)]
fn work(mut scan: Scan, event_id: u64, ts_ns: u64) -> Option<GpuWork> {
    let name = scan.string()?;
    scan.must(",\"kind\":\"")?;
    let kind = GpuKind::of(scan.string()?)?;
    scan.must(",\"source\":\"")?;
    GpuSource::of(scan.string()?)?;
    scan.must(",\"pid\":")?;
    let pid = scan.number32()?;
    // Only numbers lie between.
    scan.skip_past(&SUBMITTED_BY)?;
    let begin = if scan.eat("null") { None } else { Some(scan.number()?) };
    scan.must(",\"duration_us\":")?;
    let duration_ns = scan.micros()?;
    scan.is_closed().then_some(GpuWork { event_id, ts_ns, name, kind, pid, begin, duration_ns })
}
