//! A table for a spreadsheet or a dataframe: one row for each call, with begin and end, and one for every other event.
//! In: events with their place. Out: CSV as in RFC 4180, with a header. The row of a call appears when the call ends.
//! pids are those of the trace; the column `file` distinguishes traces.

use std::ops::Range;

use super::details;
use super::sink::{At, Cause, Links, Sink, Source, stack_of_call};
use crate::stacks::Stacks;
use crate::ui;
use gpurec_trace::{self as trace, Body, Datum, End, KernelEnd, Key, Line, json};

const HEADER: &str = "file,event_id,start_s,duration_us,type,name,pid,tid,rank,depth,parent,kernel,grid,block,shared,stream,device,context,request,cmd,detail,args,stack,site,retval,status,error,out,ended,begin,cpu,op,space,ptr,size,total_allocated,async,more\n";

/// The column of a key, counted from the process on. Keys are constants, so the compiler finds it.
#[inline(always)]
fn column(key: &str) -> Option<usize> {
    Some(match key {
        "pid" => 0,
        "tid" => 1,
        "depth" => 3,
        "parent" => 4,
        "kernel" => 5,
        "grid" => 6,
        "block" => 7,
        "shared" => 8,
        "stream" => 9,
        "device" => 10,
        "context" => 11,
        "request" => 12,
        "cmd" => 13,
        "detail" => 14,
        "args" => 15,
        "retval" => 18,
        "status" => 19,
        "error" => 20,
        "out" => 21,
        "unwound" | "lost" | "no_return" => ENDED,
        "begin" => 23,
        "cpu" => 24,
        "op" | "direction" => 25,
        "space" => 26,
        "ptr" => 27,
        "size" | "freed" => 28,
        "total_allocated" => 29,
        "async" => 30,
        _ => return None,
    })
}

const RANK: usize = 2;
const ENDED: usize = 22;

/// The columns of a call's begin after the rank, in pieces in which every line has its keys in order of the columns;
/// those of its end; those of everything except calls.
const BEGIN: [Range<usize>; 3] = [RANK + 1..5, 5..13, 13..16];
/// The stack and its call site: of a call inside one with a stack, that of the outer one.
const STACK: usize = 16;
const SITE: usize = 17;
const END: Range<usize> = 18..23;
const OTHER: Range<usize> = 23..31;

#[derive(Default)]
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
#[derive(Default)]
pub struct Row {
    text: Vec<u8>,
    /// Where to insert its duration, and when it began.
    at: usize,
    begin_ns: u64,
}

/// Writes the cells of some columns. A key of another column, or of one already written, is left out.
struct Cells<'a> {
    out: &'a mut Vec<u8>,
    scratch: &'a mut Vec<u8>,
    columns: Range<usize>,
}

impl Cells<'_> {
    #[inline(always)]
    fn put(&mut self, column: usize, value: Datum) {
        if self.columns.contains(&column) {
            self.skip_to(column);
            self.cell(value);
            self.skip_to(column + 1);
        }
    }

    fn skip_to(&mut self, column: usize) {
        self.out.resize(self.out.len() + column - self.columns.start, b',');
        self.columns.start = column;
    }

    #[inline(always)]
    fn cell(&mut self, value: Datum) {
        let out = &mut *self.out;
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
            Datum::Null => {}
            Datum::Args(_) | Datum::Json(_) => {
                self.scratch.clear();
                value.write_json(self.scratch);
                quoted(out, self.scratch);
            }
            value => value.write_json(out),
        }
    }
}

impl trace::Sink for Cells<'_> {
    #[inline(always)]
    fn put(&mut self, key: Key, value: Datum) {
        match column(key.name) {
            Some(ENDED) => self.put(ENDED, Datum::Text(key.name)),
            Some(column) => self.put(column, value),
            None => {}
        }
    }
}

impl Csv {
    pub fn new() -> Csv {
        Csv { out: HEADER.into(), ..Csv::default() }
    }

    /// Writes a row up to its start time; the duration comes next.
    fn start(file: &[u8], out: &mut Vec<u8>, event_id: u64, ts_ns: u64) {
        out.extend_from_slice(file);
        json::number(out, event_id);
        out.push(b',');
        json::seconds(out, ts_ns);
        out.push(b',');
    }

    /// Writes what follows the duration, up to the arguments of a call and from where it was made.
    fn begun(
        &mut self,
        out: &mut Vec<u8>,
        line: &Line,
        (pid, tid): (u32, u32),
        rank: Option<u32>,
        stacks: &Stacks,
    ) {
        let (kind, name) = line.body.head();
        out.push(b',');
        out.extend_from_slice(kind.as_bytes());
        out.push(b',');
        text(out, name);
        let mut cells = Cells { out, scratch: &mut self.scratch, columns: 0..RANK + 1 };
        line.body.show(&mut cells);
        // A line without these keys belongs to this thread.
        cells.put(0, Datum::Number(pid.into()));
        cells.put(1, Datum::Number(tid.into()));
        if let Some(rank) = rank {
            cells.put(RANK, Datum::Number(rank.into()));
        }
        cells.skip_to(RANK + 1);
        for columns in BEGIN {
            self.cells(out, line, columns);
        }
        let stack = stack_of_call(line, stacks);
        let mut cells = Cells { out, scratch: &mut self.scratch, columns: STACK..SITE + 1 };
        if let Some(stack) = stack {
            cells.put(STACK, Datum::Number(stack));
            if let Some(site) = stacks.site(stack) {
                cells.put(SITE, Datum::Text(&stacks.text(site)));
            }
        }
        cells.skip_to(SITE + 1);
    }

    fn cells(&mut self, out: &mut Vec<u8>, line: &Line, columns: Range<usize>) {
        let end = columns.end;
        let mut cells = Cells { out, scratch: &mut self.scratch, columns };
        line.body.show(&mut cells);
        cells.skip_to(end);
    }

    /// Completes a row with the outcome of the call.
    fn finish_row(&mut self, held: Row, end_ns: Option<u64>, outcome: impl FnOnce(&mut Cells)) {
        let (before, after) = held.text.split_at_checked(held.at).unwrap_or_default();
        self.out.extend_from_slice(before);
        if let Some(ns) = end_ns {
            json::micros(&mut self.out, ns.saturating_sub(held.begin_ns));
        }
        self.out.extend_from_slice(after);
        let mut cells = Cells { out: &mut self.out, scratch: &mut self.scratch, columns: END };
        outcome(&mut cells);
        cells.skip_to(OTHER.end);
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
    type CallState = Row;

    fn held(&self) -> usize {
        self.held
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn source(&mut self, source: &Source) {
        self.file.clear();
        text(&mut self.file, source.file);
    }

    fn begin(&mut self, at: At, line: &Line, rank: Option<u32>, _: Links, stacks: &Stacks) -> Row {
        let mut row = self.spare.pop().unwrap_or_default();
        Csv::start(&self.file, &mut row, line.event_id, at.ts_ns);
        let duration_at = row.len();
        self.begun(&mut row, line, (0, 0), rank, stacks);
        self.held += row.len();
        Row { text: row, at: duration_at, begin_ns: at.ts_ns }
    }

    fn end(&mut self, at: At, line: &Line, held: Row) {
        if let Body::End(End { duration_ns, .. }) | Body::KernelEnd(KernelEnd { duration_ns, .. }) =
            &line.body
        {
            self.finish_row(held, duration_ns.map(|_| at.ts_ns), |cells| line.body.show(cells));
        }
    }

    fn close(&mut self, _at: At, held: Row, cause: Cause) {
        self.finish_row(held, None, |cells| cells.put(ENDED, Datum::Text(cause.name())));
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, rank: Option<u32>, stacks: &Stacks) {
        let (mut duration_ns, mut start_ns, mut thread, mut more) = (duration_ns, at.ts_ns, (0, 0), false);
        match &line.body {
            Body::Memory(memory) => more = memory.missed || memory.runtime || memory.carried,
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
        self.begun(&mut out, line, thread, rank, stacks);
        self.cells(&mut out, line, END.start..OTHER.end);
        if more {
            self.scratch.clear();
            details::write(&mut self.scratch, line);
            quoted(&mut out, &self.scratch);
        }
        out.push(b'\n');
        self.out = out;
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
