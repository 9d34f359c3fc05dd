//! Turns events into lines. The kinds that are written millions of times are formatted by hand into one buffer; the
//! rare ones are written through serde.

use std::io::{self, Write};

use serde::Serialize;

use super::args::MAX_RAW;
use super::event::{Begin, Body, End, Ended, Launch, Line, Memory, Op, Process, Retval, Transfer, Where};
use super::json;
use super::lines::{LONGEST, fits};
use super::reason::Incomplete;
use super::writer_kernel;
use crate::bounds::{LONGEST_NAME, short};

/// The buffer is written out when it holds this much, or at `flush`.
const BUFFER: usize = 256 * 1024;

/// Writes whole lines only: each write to `out` ends at the end of a line. The writer flushes by itself only when the
/// buffer is full: the recorder calls `flush` at least once a second, and at the end.
pub struct LineWriter<W: Write> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> LineWriter<W> {
    pub fn new(out: W) -> Self {
        LineWriter {
            out,
            // Has room for the line that fills it, so that it does not grow.
            buffer: Vec::with_capacity(BUFFER + 16 * 1024),
        }
    }

    pub fn write(&mut self, line: &Line) -> io::Result<()> {
        let start = self.buffer.len();
        if let Err(error) = append(&mut self.buffer, line) {
            self.buffer.truncate(start);
            return Err(error);
        }
        // Without the line feed, as the reader sees it.
        let written = self.buffer.get(start..self.buffer.len().saturating_sub(1)).unwrap_or_default();
        if !fits(written) {
            self.buffer.truncate(start);
            append(&mut self.buffer, &smaller(line))?;
        }
        if self.buffer.len() >= BUFFER {
            self.drain()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.out.flush()
    }

    /// Returns the output, after writing everything buffered.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn drain(&mut self) -> io::Result<()> {
        // Clears the buffer even after an error: the same lines must not be written twice.
        let result = self.out.write_all(&self.buffer);
        self.buffer.clear();
        result
    }
}

/// The line with less content. Only a malicious target produces lines of this size.
fn smaller<'a>(line: &Line<'a>) -> Line<'a> {
    const WORDS: usize = 64;
    let mut body = line.body.clone();
    match &mut body {
        Body::Finish(finish) => {
            finish.in_flight.clear();
            let why = Incomplete::LongEnd { mib: LONGEST >> 20 };
            finish.incomplete_because = vec![why.to_string()];
            finish.incomplete_codes = vec![why.code().to_owned()];
            (finish.complete, finish.summary) = (false, serde_json::Value::Null);
        }
        Body::Lost(lost) => lost.by_probe = [("(others)".to_owned(), lost.count)].into(),
        Body::Process(Process::Library(library)) => {
            library.not_hooked.clear();
            library.single_stepped.clear();
        }
        Body::Process(Process::Exec(exec)) => {
            exec.command.truncate(WORDS);
            exec.command.iter_mut().for_each(|word| *word = short(word, LONGEST_NAME));
        }
        Body::Process(Process::Found(found)) => {
            found.command.truncate(WORDS);
            found.command.iter_mut().for_each(|word| *word = short(word, LONGEST_NAME));
        }
        _ => {}
    }
    Line { body, ..*line }
}

fn append(out: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    match &line.body {
        Body::Begin(begin) => append_begin(out, line, begin),
        Body::End(end) => append_end(out, line, end),
        Body::Memory(memory) => append_memory(out, line, memory),
        Body::Transfer(transfer) => append_transfer(out, line, transfer),
        Body::KernelBegin(begin) => writer_kernel::begin(out, line, begin),
        Body::KernelEnd(end) => writer_kernel::end(out, line, end),
        Body::Instant(instant) => writer_kernel::instant(out, line, instant),
        Body::Xid(xid) => cold(out, line, "xid", "xid", xid)?,
        Body::Header(header) => cold(out, line, "header", "gpurec", header)?,
        Body::Process(Process::Exec(p)) => cold(out, line, "process", "exec", p)?,
        Body::Process(Process::Found(p)) => cold(out, line, "process", "found", p)?,
        Body::Process(Process::Fork(p)) => cold(out, line, "process", "fork", p)?,
        Body::Process(Process::Exit(p)) => cold(out, line, "process", "exit", p)?,
        Body::Process(Process::Library(p)) => cold(out, line, "process", "library", p)?,
        Body::Lost(lost) => cold(out, line, "lost", "lost", lost)?,
        Body::Budget(budget) => cold(out, line, "budget", "budget", budget)?,
        Body::Suspend(suspend) => cold(out, line, "suspend", "suspend", suspend)?,
        Body::Finish(finish) => cold(out, line, "end", "end", finish)?,
        Body::Unknown(unknown) => {
            head(out, line, &unknown.kind, &unknown.name);
            out.push(b'}');
        }
    }
    out.push(b'\n');
    Ok(())
}

/// The first two keys, which every line has.
pub(super) fn place(out: &mut Vec<u8>, line: &Line) {
    out.extend_from_slice(b"{\"event_id\":");
    json::number(out, line.event_id);
    out.extend_from_slice(b",\"ts\":");
    json::seconds(out, line.ts_ns);
}

fn head(out: &mut Vec<u8>, line: &Line, kind: &str, name: &str) {
    place(out, line);
    out.extend_from_slice(b",\"type\":");
    json::string(out, kind);
    out.extend_from_slice(b",\"name\":");
    json::string(out, name);
}

/// The head of a call's lines, in few pieces: each piece costs a few nanoseconds.
fn call(out: &mut Vec<u8>, line: &Line, name: &str, phase: &[u8; 19], pid: u32, tid: u32) {
    place(out, line);
    out.extend_from_slice(b",\"type\":\"userspace\",\"name\":");
    json::string(out, name);
    out.extend_from_slice(phase);
    json::number(out, u64::from(pid));
    out.extend_from_slice(b",\"tid\":");
    json::number(out, u64::from(tid));
}

fn cold(out: &mut Vec<u8>, line: &Line, kind: &str, name: &str, body: &impl Serialize) -> io::Result<()> {
    head(out, line, kind, name);
    // The body is an object with at least one key; its keys follow the head's.
    let brace = out.len();
    serde_json::to_writer(&mut *out, body)?;
    if let Some(first) = out.get_mut(brace) {
        *first = b',';
    }
    Ok(())
}

fn append_begin(out: &mut Vec<u8>, line: &Line, begin: &Begin) {
    let phase = b",\"phase\":\"B\",\"pid\":";
    call(out, line, &begin.name, phase, begin.pid, begin.tid);
    out.extend_from_slice(b",\"depth\":");
    json::number(out, u64::from(begin.depth));
    if let Some(parent) = begin.parent {
        out.extend_from_slice(b",\"parent\":");
        json::number(out, parent);
    }
    out.extend_from_slice(b",\"args\":");
    begin.args.write_json(out);
    if let Some(started) = &begin.launch {
        launch(out, started);
    }
    if let Some(why) = &begin.no_return {
        out.extend_from_slice(b",\"no_return\":");
        json::string(out, why);
    }
    out.push(b'}');
}

fn launch(out: &mut Vec<u8>, launch: &Launch) {
    if let Some(kernel) = &launch.kernel {
        out.extend_from_slice(b",\"kernel\":");
        json::string(out, kernel);
    }
    if let Some(grid) = launch.grid {
        out.extend_from_slice(b",\"grid\":");
        triple(out, grid);
    }
    if let Some(block) = launch.block {
        out.extend_from_slice(b",\"block\":");
        triple(out, block);
    }
    if let Some(bytes) = launch.shared {
        out.extend_from_slice(b",\"shared\":");
        json::number(out, bytes);
    }
    if let Some(stream) = launch.stream {
        out.extend_from_slice(b",\"stream\":");
        json::hex(out, stream);
    }
    if let Some(cluster) = launch.cluster {
        out.extend_from_slice(b",\"cluster\":");
        triple(out, cluster);
    }
    if launch.cooperative {
        out.extend_from_slice(b",\"cooperative\":true");
    }
    if let Some(nodes) = launch.nodes {
        out.extend_from_slice(b",\"nodes\":");
        json::number(out, nodes);
    }
    on(out, launch.on);
}

fn on(out: &mut Vec<u8>, on: Where) {
    if let Some(device) = on.device {
        out.extend_from_slice(b",\"device\":");
        json::number(out, device.into());
    }
    if let Some(context) = on.context {
        out.extend_from_slice(b",\"context\":");
        json::hex(out, context);
    }
}

fn triple(out: &mut Vec<u8>, [x, y, z]: [u32; 3]) {
    out.push(b'[');
    json::number(out, x.into());
    out.push(b',');
    json::number(out, y.into());
    out.push(b',');
    json::number(out, z.into());
    out.push(b']');
}

/// The common beginning of lines that follow from a call.
fn effect(out: &mut Vec<u8>, line: &Line, kind: &str, name: &str, pid: u32, tid: u32, begin: u64) {
    head(out, line, kind, name);
    out.extend_from_slice(b",\"pid\":");
    json::number(out, u64::from(pid));
    out.extend_from_slice(b",\"tid\":");
    json::number(out, u64::from(tid));
    out.extend_from_slice(b",\"begin\":");
    json::number(out, begin);
}

fn append_memory(out: &mut Vec<u8>, line: &Line, memory: &Memory) {
    effect(out, line, "memory", &memory.name, memory.pid, memory.tid, memory.begin);
    on(out, memory.on);
    let (op, size): (&[u8], &[u8]) = match memory.op {
        Op::Alloc => (b",\"op\":\"alloc\",\"space\":", b",\"size\":"),
        Op::Free => (b",\"op\":\"free\",\"space\":", b",\"freed\":"),
    };
    out.extend_from_slice(op);
    json::string(out, &memory.space);
    out.extend_from_slice(b",\"ptr\":");
    json::hex(out, memory.ptr);
    if let Some(bytes) = memory.size {
        out.extend_from_slice(size);
        json::number(out, bytes);
    }
    if let Some(total) = memory.total_allocated {
        out.extend_from_slice(b",\"total_allocated\":");
        json::number(out, total);
    }
    if memory.earlier {
        out.extend_from_slice(b",\"earlier\":true");
    }
    if memory.missed {
        out.extend_from_slice(b",\"missed\":true");
    }
    if memory.runtime {
        out.extend_from_slice(b",\"runtime\":true");
    }
    out.push(b'}');
}

fn append_transfer(out: &mut Vec<u8>, line: &Line, transfer: &Transfer) {
    effect(out, line, "transfer", &transfer.name, transfer.pid, transfer.tid, transfer.begin);
    on(out, transfer.on);
    out.extend_from_slice(b",\"direction\":");
    json::string(out, &transfer.direction);
    out.extend_from_slice(b",\"size\":");
    json::number(out, transfer.size);
    out.extend_from_slice(if transfer.is_async {
        b",\"async\":true"
    } else {
        b",\"async\":false" as &[u8]
    });
    if transfer.partial {
        out.extend_from_slice(b",\"partial\":true");
    }
    if transfer.pageable {
        out.extend_from_slice(b",\"pageable\":true");
    }
    if let Some(ns) = transfer.duration_ns {
        out.extend_from_slice(b",\"duration_us\":");
        json::micros(out, ns);
    }
    if let Some(rate) = transfer.bytes_per_sec() {
        out.extend_from_slice(b",\"bytes_per_sec\":");
        json::number(out, rate);
    }
    out.push(b'}');
}

fn append_end(out: &mut Vec<u8>, line: &Line, end: &End) {
    let phase = b",\"phase\":\"E\",\"pid\":";
    call(out, line, &end.name, phase, end.pid, end.tid);
    out.extend_from_slice(b",\"begin\":");
    json::number(out, end.begin);
    if let Some(ns) = end.duration_ns {
        out.extend_from_slice(b",\"duration_us\":");
        json::micros(out, ns);
    }
    if end.paused_ns > 0 {
        out.extend_from_slice(b",\"paused_us\":");
        json::micros(out, end.paused_ns);
    }
    retval(out, end.retval);
    if let Some(error) = &end.error {
        out.extend_from_slice(b",\"error\":");
        json::string(out, error);
    }
    if let Some(written) = &end.out {
        out.extend_from_slice(b",\"out\":");
        written.write_json(out);
    }
    if let Some(late) = &end.late {
        out.extend_from_slice(b",\"args\":");
        late.write_json(out);
    }
    match end.ended {
        Ended::Returned | Ended::NotWatched => {}
        Ended::Unwound => out.extend_from_slice(b",\"unwound\":true"),
        Ended::Lost => out.extend_from_slice(b",\"lost\":true"),
    }
    out.push(b'}');
}

pub(super) fn retval(out: &mut Vec<u8>, retval: Option<Retval>) {
    match retval {
        Some(Retval::Number(n)) => {
            out.extend_from_slice(b",\"retval\":");
            json::signed(out, n);
        }
        Some(Retval::Pointer(p)) => {
            out.extend_from_slice(b",\"retval\":");
            json::hex(out, p);
        }
        None => {}
    }
}

pub(super) fn raw(out: &mut Vec<u8>, registers: &[u64]) {
    const BEFORE: [&[u8; 11]; MAX_RAW] = [
        b"{\"arg0\":\"0x",
        b",\"arg1\":\"0x",
        b",\"arg2\":\"0x",
        b",\"arg3\":\"0x",
        b",\"arg4\":\"0x",
        b",\"arg5\":\"0x",
    ];
    if registers.is_empty() {
        out.push(b'{');
    }
    for (before, value) in BEFORE.iter().zip(registers) {
        out.extend_from_slice(*before);
        json::hex_digits(out, *value);
    }
    out.push(b'}');
}
