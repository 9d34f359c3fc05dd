//! Turns events into lines. The kinds that are written millions of times are formatted into one buffer, key by key;
//! the rare ones are written through serde.

use std::io::{self, Write};

use super::enums::Kind;
use super::event::{Body, Line};
use super::json;
use super::lines::{LONGEST, fits};
use super::rare::{Exec, Found, Process};
use super::reason::Incomplete;
use super::schema::{Datum, Group, Key, Sink};
use crate::bounds::{LONGEST_NAME, short};

/// The buffer is written out when it holds this much, or at `flush`.
const BUFFER: usize = 256 * 1024;

/// Writes whole lines only: each write to `out` ends at the end of a line. The writer flushes by itself only when the
/// buffer is full: the recorder calls `flush` at least once a second, and at the end.
pub struct LineWriter<W: Write> {
    out: W,
    buffer: Vec<u8>,
    /// Writes the contents of the buffer to the output.
    take: fn(&mut W, &mut Vec<u8>) -> io::Result<()>,
}

impl<W: Write> LineWriter<W> {
    pub fn new(out: W) -> Self {
        LineWriter::giving(out, |out, buffer| out.write_all(buffer))
    }

    /// `take` writes the full buffer. It may also swap it for an empty one, which saves a copy of every line.
    pub fn giving(out: W, take: fn(&mut W, &mut Vec<u8>) -> io::Result<()>) -> Self {
        LineWriter {
            out,
            take,
            // Has room for the line that fills it, so that it does not grow.
            buffer: Vec::with_capacity(BUFFER + 16 * 1024),
        }
    }

    pub fn write(&mut self, line: &Line) -> io::Result<()> {
        append_line(&mut self.buffer, line)?;
        if self.buffer.len() >= BUFFER {
            self.drain()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.out.flush()
    }

    /// The output, after writing everything buffered.
    pub fn drained(&mut self) -> io::Result<&mut W> {
        self.drain()?;
        Ok(&mut self.out)
    }

    /// Returns the output, after writing everything buffered.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn drain(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        // Clears the buffer even after an error: the same lines must not be written twice.
        let result = (self.take)(&mut self.out, &mut self.buffer);
        self.buffer.clear();
        result
    }
}

/// Appends a line with its line feed, or nothing after an error.
pub fn append_line(buffer: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    let start = buffer.len();
    if let Err(error) = append(buffer, line) {
        buffer.truncate(start);
        return Err(error);
    }
    // Without the line feed, as the reader sees it.
    let written = buffer.get(start..buffer.len().saturating_sub(1)).unwrap_or_default();
    if !fits(written) {
        buffer.truncate(start);
        append(buffer, &smaller(line))?;
    }
    Ok(())
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
        Body::Stack(stack) => {
            stack.cut |= stack.frames.len() > WORDS;
            stack.frames.truncate(WORDS);
            stack.frames = stack.frames.iter().map(|frame| frame.shortened(LONGEST_NAME)).collect();
        }
        Body::Process(Process::Exec(Exec { command, .. }) | Process::Found(Found { command, .. })) => {
            command.truncate(WORDS);
            command.iter_mut().for_each(|word| *word = short(word, LONGEST_NAME));
        }
        _ => {}
    }
    Line { body, ..*line }
}

/// The type and the name of a frequent line, up to the value of the name: one piece, since each costs time.
macro_rules! of_type {
    ($type:literal) => {
        concat!(",\"type\":\"", $type, "\",\"name\":")
    };
}

fn append(out: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    let of_kind = |kind| match kind {
        Kind::Kernel => of_type!("kernel"),
        Kind::Scheduler => of_type!("scheduler"),
    };
    match &line.body {
        Body::Begin(it) => frequent(out, line, of_type!("userspace"), &it.name, it),
        Body::End(it) => frequent(out, line, of_type!("userspace"), &it.name, it),
        Body::Memory(it) => frequent(out, line, of_type!("memory"), &it.name, it),
        Body::Transfer(it) => frequent(out, line, of_type!("transfer"), &it.name, it),
        Body::Block(it) => frequent(out, line, of_type!("block"), &it.name, it),
        Body::Collective(it) => frequent(out, line, of_type!("collective"), &it.name, it),
        Body::KernelBegin(it) => frequent(out, line, of_kind(it.kind), &it.name, it),
        Body::KernelEnd(it) => frequent(out, line, of_kind(it.kind), &it.name, it),
        Body::Instant(it) => frequent(out, line, of_kind(it.kind), &it.name, it),
        Body::Gpu(it) => frequent(out, line, of_type!("gpu"), &it.name, it),
        body => rare(out, line, body)?,
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

#[inline(always)]
fn frequent<'a>(out: &mut Vec<u8>, line: &Line, of_type: &str, name: &str, rest: &impl Group<'a>) {
    place(out, line);
    out.extend_from_slice(of_type.as_bytes());
    json::string(out, name);
    rest.show(&mut LineSink(out));
}

/// The first two keys, which every line has.
fn place(out: &mut Vec<u8>, line: &Line) {
    out.extend_from_slice(b"{\"event_id\":");
    json::number(out, line.event_id);
    out.extend_from_slice(b",\"ts\":");
    json::seconds(out, line.ts_ns);
}

struct LineSink<'a>(&'a mut Vec<u8>);

impl Sink for LineSink<'_> {
    #[inline(always)]
    fn put(&mut self, key: Key, value: Datum) {
        if !key.before.is_empty() {
            self.0.extend_from_slice(key.before.as_bytes());
            value.write_json(self.0);
        }
    }
}

fn rare(out: &mut Vec<u8>, line: &Line, body: &Body) -> io::Result<()> {
    place(out, line);
    let (kind, name) = body.head();
    out.extend_from_slice(b",\"type\":");
    json::string(out, kind);
    out.extend_from_slice(b",\"name\":");
    json::string(out, name);
    // The body is an object with at least one key; its keys follow the head's.
    let brace = out.len();
    body.write_rare(out)?;
    if let Some(first) = out.get_mut(brace) {
        *first = b',';
        out.pop();
    }
    Ok(())
}
