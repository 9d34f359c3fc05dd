//! A table for a spreadsheet or a dataframe: one row for each call, with begin and end, and one for every other event.
//! In: events with their place. Out: CSV as in RFC 4180, with a header. The row of a call appears when the call ends.
//! pids are those of the trace; the column `file` distinguishes traces.

use std::ops::Range;

use super::details;
use super::sink::{At, Cause, Linked, Sink, Source};
use super::tracks::{Process, Track};
use crate::ui;
use gpurec_trace::{self as trace, Body, Datum, End, KernelEnd, Key, Line, json};

/// The columns from the process on, by key of the trace. Before them are the file, event_id, start, duration, type and
/// name; after them is `more`.
const CELLS: [&str; 29] = [
    "pid",
    "tid",
    "rank",
    "depth",
    "parent",
    "kernel",
    "grid",
    "block",
    "shared",
    "stream",
    "device",
    "context",
    "request",
    "cmd",
    "detail",
    "args",
    "retval",
    "status",
    "error",
    "out",
    "ended",
    "begin",
    "cpu",
    "op",
    "space",
    "ptr",
    "size",
    "total_allocated",
    "async",
];

/// The columns of a call's begin, of its end, and of everything except calls.
const BEGIN: Range<usize> = 0..16;
const END: Range<usize> = 16..21;
const OTHER: Range<usize> = 21..29;

pub struct Csv {
    out: Vec<u8>,
    file: Vec<u8>,
    cells: Cells,
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

/// The texts of a row's cells, in any order.
#[derive(Default)]
struct Cells {
    text: Vec<u8>,
    at: [Range<usize>; CELLS.len()],
    scratch: Vec<u8>,
    /// The column after the last one, which is often the next: keys and columns have nearly the same order.
    next: usize,
}

impl Cells {
    fn clear(&mut self) {
        self.text.clear();
        self.at.fill(0..0);
        self.next = 0;
    }

    fn set(&mut self, column: &str, value: Datum) {
        let mut columns = (self.next..CELLS.len()).chain(0..self.next);
        let Some(at) = columns.find(|at| CELLS.get(*at) == Some(&column)) else { return };
        let start = self.text.len();
        self.cell(value);
        if let Some(range) = self.at.get_mut(at) {
            *range = start..self.text.len();
        }
        self.next = at + 1;
    }

    fn cell(&mut self, value: Datum) {
        let out = &mut self.text;
        match value {
            Datum::Hex(n) => {
                out.extend_from_slice(b"0x");
                json::hex_digits(out, n);
                // Removes the closing quote of the JSON form.
                out.pop();
            }
            Datum::Text(text) => out.extend_from_slice(ui::csv(text).as_bytes()),
            // `1x2x3`.
            Datum::Triple(numbers) => {
                for n in numbers {
                    json::number(out, n.into());
                    out.push(b'x');
                }
                out.pop();
            }
            Datum::Args(args) if args.is_empty() => {}
            Datum::Args(_) | Datum::Json(_) => {
                self.scratch.clear();
                value.write_json(&mut self.scratch);
                quoted(out, &self.scratch);
            }
            value => value.write_json(out),
        }
    }

    fn write(&self, out: &mut Vec<u8>, columns: Range<usize>) {
        for range in self.at.get(columns).unwrap_or_default() {
            out.extend_from_slice(self.text.get(range.clone()).unwrap_or_default());
            out.push(b',');
        }
    }
}

impl trace::Sink for Cells {
    fn put(&mut self, key: Key, value: Datum) {
        match (key.name, value) {
            ("unwound" | "lost" | "no_return", Datum::Bool(_)) => self.set("ended", Datum::Text(key.name)),
            ("freed", _) => self.set("size", value),
            ("direction", _) => self.set("op", value),
            (name, _) => self.set(name, value),
        }
    }
}

impl Csv {
    pub fn new() -> Csv {
        let columns = CELLS.join(",");
        let columns = format!("file,event_id,start_s,duration_us,type,name,{columns},more\n");
        Csv {
            out: columns.into_bytes(),
            file: Vec::new(),
            cells: Cells::default(),
            scratch: Vec::new(),
            spare: Vec::new(),
            held: 0,
        }
    }

    /// Writes a row up to its start time; the duration comes next.
    fn start(file: &[u8], out: &mut Vec<u8>, event_id: u64, ts_ns: u64) {
        out.extend_from_slice(file);
        json::number(out, event_id);
        out.push(b',');
        json::seconds(out, ts_ns);
        out.push(b',');
    }

    fn rank(&mut self, rank: Option<u32>) {
        if let Some(rank) = rank {
            self.cells.set("rank", Datum::Number(rank.into()));
        }
    }

    /// Writes what follows the duration, except `more`.
    fn columns(&self, out: &mut Vec<u8>, line: &Line, columns: Range<usize>) {
        let (kind, name) = line.body.head();
        out.push(b',');
        out.extend_from_slice(kind.as_bytes());
        out.push(b',');
        text(out, name);
        self.cells.write(out, columns);
    }

    /// Completes a row with the outcome of the call.
    fn finish_row(&mut self, held: Row, end_ns: Option<u64>) {
        let (before, after) = held.text.split_at_checked(held.at).unwrap_or_default();
        self.out.extend_from_slice(before);
        if let Some(ns) = end_ns {
            json::micros(&mut self.out, ns.saturating_sub(held.begin_ns));
        }
        self.out.extend_from_slice(after);
        self.cells.write(&mut self.out, END);
        self.out.resize(self.out.len() + OTHER.len(), b',');
        self.out.push(b'\n');
        let mut text = held.text;
        self.held = self.held.saturating_sub(text.len());
        if self.spare.len() < SPARE && text.capacity() <= LARGEST_SPARE {
            text.clear();
            self.spare.push(text);
        }
    }
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
        Csv::start(&self.file, &mut row, line.event_id, at.ts_ns);
        let duration_at = row.len();
        self.cells.clear();
        self.rank(rank);
        line.body.show(&mut self.cells);
        self.columns(&mut row, line, BEGIN);
        self.held += row.len();
        Row { text: row, at: duration_at, begin_ns: at.ts_ns }
    }

    fn end(&mut self, at: At, line: &Line, held: Row) {
        let (Body::End(End { duration_ns, .. }) | Body::KernelEnd(KernelEnd { duration_ns, .. })) =
            &line.body
        else {
            return;
        };
        self.cells.clear();
        line.body.show(&mut self.cells);
        self.finish_row(held, duration_ns.map(|_| at.ts_ns));
    }

    fn close(&mut self, _at: At, held: Row, cause: Cause) {
        self.cells.clear();
        self.cells.set("ended", Datum::Text(cause.name()));
        self.finish_row(held, None);
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, rank: Option<u32>) {
        let (mut duration_ns, mut start_ns, mut thread, mut more) = (duration_ns, at.ts_ns, (0, 0), false);
        match &line.body {
            Body::Memory(memory) => more = memory.missed || memory.runtime,
            Body::Transfer(transfer) => {
                more = transfer.partial || transfer.pageable;
                duration_ns = transfer.duration_ns;
            }
            Body::Instant(_) => {}
            Body::Xid(xid) => (thread, more) = ((xid.pid, xid.tid), true),
            Body::Process(process) => (thread, more) = (process.thread(), true),
            _ => more = true,
        }
        let mut out = std::mem::take(&mut self.out);
        if let Some(ns) = duration_ns {
            start_ns = start_ns.saturating_sub(ns);
        }
        Csv::start(&self.file, &mut out, line.event_id, start_ns);
        if duration_ns.is_some() {
            json::micros(&mut out, at.ts_ns - start_ns);
        }
        self.cells.clear();
        self.cells.set("pid", Datum::Number(thread.0.into()));
        self.cells.set("tid", Datum::Number(thread.1.into()));
        self.rank(rank);
        line.body.show(&mut self.cells);
        self.columns(&mut out, line, 0..CELLS.len());
        if more {
            self.scratch.clear();
            details::write(&mut self.scratch, line);
            quoted(&mut out, &self.scratch);
        }
        out.push(b'\n');
        self.out = out;
    }

    fn counter(&mut self, _ts_ns: u64, _uuid: u64, _pid: u32, _name: &str, _value: u64) {}
    fn note(&mut self, _at: At, _text: &str) {}
    fn finish(&mut self) {}

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
