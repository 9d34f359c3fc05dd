//! One trace as rows: implements the interface of exports (../sink.rs) for the tables of the dataset.
//!
//! In: events in the order of the trace. Out: rows in the parts of the process's rank (parts.rs). A row of a call is
//! begun with its B and completed with its E, so rows are in the order in which calls began. Not here: columns, files.

use gpurec_trace::hash::Map;
use gpurec_trace::{Body, Datum, End, Header, KernelEnd, Line, LineWriter, Original, Stack, time};
use serde_json::{Map as Object, Value};

use super::columns::{
    Blocks, Calls, Collectives, Driver, EVENT_ID, Gpu, Layout, MONO, Memory, Meta, Other, Processes,
    Stacks as Frames, TRACE, TS, Table, Transfers,
};
use super::parts::{Parts, Place};
use super::values::{self, Row};
use crate::export::sink::{At, Cause, Links, Sink, Source, WorkLink, stack_of_call};
use crate::stacks::Stacks;

/// Limit on processes whose ranks are remembered, as for the other readers.
const MOST_PROCESSES: usize = 65_536;

/// Times of the host at time 0 of the trace.
#[derive(Default)]
struct Clocks {
    realtime_ns: i64,
    /// None: an older trace, which does not say.
    monotonic_ns: Option<i64>,
}

#[derive(Default)]
pub struct Rows {
    pub parts: Parts,
    header: Object<String, Value>,
    boot_id: Option<String>,
    finish: Option<Object<String, Value>>,
    /// The latest time of a row, which is that of the `end` line if there is one.
    end_ns: u64,
    /// The number of the trace in all tables.
    trace: i64,
    file: String,
    clocks: Clocks,
    /// The partition of each process.
    processes: Map<u32, usize>,
    last: Option<(u32, usize)>,
    rest: Vec<u8>,
    /// The keys of the line that this version does not know, as they go into `rest`; a rare line's are in its text. Of
    /// most lines there is nothing.
    unknown: Vec<u8>,
    text: Vec<u8>,
    /// Bytes of texts of open calls.
    held: usize,
    /// The interface wants one; nothing is written into it.
    buffer: Vec<u8>,
}

/// The row of a call that has begun; none if it has no row.
#[derive(Default)]
pub struct OpenRow {
    call: Option<u32>,
    bytes: usize,
}

impl Rows {
    pub fn new(parts: Parts) -> Rows {
        Rows { parts, ..Rows::default() }
    }

    /// Takes the line that `Walk` gets next as it is in the file.
    #[inline(always)]
    pub fn original(&mut self, line: &Line, original: &Original) {
        self.text.clear();
        self.unknown.clear();
        if !line.body.is_frequent() || !original.unknown.is_empty() {
            self.text.extend_from_slice(original.text);
        }
        for (key, value) in &original.unknown {
            values::keep(&mut self.unknown, key, Datum::Json(value.get()));
        }
    }

    /// The keys of a rare line: those of its type, and those that only its text has.
    fn keys(&self, known: impl serde::Serialize) -> Object<String, Value> {
        let Ok(Value::Object(mut keys)) = serde_json::to_value(known) else { return Object::new() };
        values::add_unknown(&mut keys, serde_json::from_slice(&self.text).unwrap_or_default());
        for of_all in ["event_id", "ts", "type", "name"] {
            keys.remove(of_all);
        }
        keys
    }

    /// The name of the file by which the trace is known, wherever it lies and however it is compressed.
    fn name(&self) -> &str {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or_default();
        name.strip_suffix(".zst").unwrap_or(name)
    }

    /// From now on the process has that partition.
    fn belongs(&mut self, pid: u32, partition: usize) {
        if self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&pid) {
            self.processes.insert(pid, partition);
        }
    }

    fn partition(&mut self, pid: u32) -> usize {
        if let Some((last, partition)) = self.last
            && last == pid
        {
            return partition;
        }
        let partition = self.processes.get(&pid).copied().unwrap_or(0);
        self.last = Some((pid, partition));
        partition
    }

    /// Adds a row with the columns that all tables have.
    #[inline(always)]
    fn row<L: Layout>(&mut self, pid: u32, line: &Line, ts_ns: u64, fill: impl FnOnce(&mut Row<L>)) {
        let partition = self.partition(pid);
        let place = self.parts.row(partition, L::TABLE);
        self.first(place, line.event_id, ts_ns, fill);
    }

    /// Fills a new row. Returns the bytes of its texts.
    #[inline(always)]
    fn first<L: Layout>(
        &mut self,
        place: Place,
        event_id: u64,
        ts_ns: u64,
        fill: impl FnOnce(&mut Row<L>),
    ) -> usize {
        self.end_ns = self.end_ns.max(ts_ns);
        let ts_ns = i64::try_from(ts_ns).unwrap_or(i64::MAX);
        let Some(batch) = self.parts.batch(place.partition, L::TABLE) else { return 0 };
        let before = batch.bytes;
        batch.number(place.row, TRACE, self.trace);
        batch.number(place.row, EVENT_ID, i64::try_from(event_id).unwrap_or(i64::MAX));
        batch.number(place.row, TS, self.clocks.realtime_ns.saturating_add(ts_ns));
        if let Some(monotonic_ns) = self.clocks.monotonic_ns {
            batch.number(place.row, MONO, monotonic_ns.saturating_add(ts_ns));
        }
        let mut row = Row::<L>::new(batch, place.row, &mut self.rest, &self.unknown, false);
        fill(&mut row);
        row.finish();
        batch.bytes.saturating_sub(before)
    }

    #[inline(always)]
    fn begun<L: Layout>(&mut self, at: At, pid: u32, line: &Line, fill: impl FnOnce(&mut Row<L>)) -> OpenRow {
        let partition = self.partition(pid);
        let (call, place) = self.parts.open(partition, L::TABLE);
        let bytes = self.first(place, line.event_id, at.ts_ns, |row: &mut Row<L>| {
            row.set("name", Datum::Text(line.body.head().1));
            line.body.show(row);
            fill(row);
        });
        self.held += bytes;
        OpenRow { call: Some(call), bytes }
    }

    #[inline(always)]
    fn ended<L: Layout>(&mut self, held: OpenRow, fill: impl FnOnce(&mut Row<L>)) {
        self.held = self.held.saturating_sub(held.bytes);
        let Some((call, place)) = held.call.and_then(|call| Some((call, self.parts.place(call)?))) else {
            return;
        };
        if let Some(batch) = self.parts.batch(place.partition, L::TABLE) {
            let mut row = Row::<L>::new(batch, place.row, &mut self.rest, &self.unknown, true);
            fill(&mut row);
            row.finish();
            batch.end(place.row);
        }
        self.parts.end(call);
    }

    fn header(&mut self, header: &Header) {
        let start = || time::nanoseconds(&header.start).unwrap_or(0);
        let number = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        self.clocks = match &header.clock {
            Some(clock) => Clocks {
                realtime_ns: number(clock.realtime_ns),
                monotonic_ns: Some(number(clock.monotonic_ns)),
            },
            None => Clocks { realtime_ns: start(), monotonic_ns: None },
        };
        let text = serde_json::to_string(header).unwrap_or_default();
        self.trace = fnv1a(text.bytes().chain(self.name().bytes()));
        self.parts.trace(self.trace, &header.host);
        self.header = self.keys(header);
        self.boot_id = header.clock.as_ref().and_then(|clock| clock.boot_id.clone());
    }

    fn process(&mut self, ts_ns: u64, line: &Line, process: &gpurec_trace::Process) {
        use gpurec_trace::Process;
        let keys = match process {
            Process::Exec(it) => self.keys(it),
            Process::Found(it) => self.keys(it),
            Process::Fork(it) => self.keys(it),
            Process::Exit(it) => self.keys(it),
            Process::Library(it) => self.keys(it),
        };
        let (pid, _) = process.thread();
        match process {
            Process::Fork(fork) => {
                let partition = self.partition(pid);
                self.belongs(fork.child, partition);
            }
            Process::Exec(_) | Process::Found(_) => {
                let rank = keys.get("rank").and_then(Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
                let partition = self.parts.partition(keys.get("job").and_then(Value::as_str), rank);
                self.belongs(pid, partition);
            }
            Process::Exit(_) | Process::Library(_) => {}
        }
        self.last = None;
        self.row::<Processes>(pid, line, ts_ns, |row| {
            row.set("name", Datum::Text(line.body.head().1));
            row.object(&keys);
        });
    }

    fn stack(&mut self, ts_ns: u64, line: &Line, stack: &Stack, stacks: &Stacks) {
        let known = stacks.frames.stack(stack.stack);
        let site = known.and_then(|known| {
            let site = known.site?;
            known.frames.iter().position(|frame| *frame == site)
        });
        let mut keys = self.keys(stack);
        let frames = keys.remove("frames").unwrap_or_default();
        let frames = frames.as_array().map(Vec::as_slice).unwrap_or_default();
        // A stack without frames has a row too.
        for at in 0..frames.len().max(1) {
            self.row::<Frames>(stack.pid, line, ts_ns, |row| {
                row.object(&keys);
                if let Some(Value::Object(keys)) = frames.get(at) {
                    row.set("frame", Datum::Number(at as u64));
                    row.set("is_site", Datum::Bool(site == Some(at)));
                    let mut keys = keys.clone();
                    if let Some(Value::String(offset)) = keys.remove("offset") {
                        let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap_or(0);
                        row.set("offset", Datum::Hex(offset));
                    }
                    row.object(&keys);
                }
            });
        }
    }

    /// A line that has no table of its own: whole, as JSON.
    fn kept(&mut self, line: &Line, (pid, tid): (Option<u32>, Option<u32>)) {
        let text = match &line.body {
            Body::Unknown(unknown) => unknown.text.as_bytes().to_vec(),
            // The end of a call, or a line that a part of a trace adds.
            _ if self.text.is_empty() => written(line),
            _ => self.text.clone(),
        };
        let (kind, name) = line.body.head();
        self.row::<Other>(pid.unwrap_or(0), line, line.ts_ns, |row| {
            row.set("type", Datum::Text(kind));
            row.set("name", Datum::Text(name));
            for (key, id) in [("pid", pid), ("tid", tid)] {
                if let Some(id) = id {
                    row.set(key, Datum::Number(id.into()));
                }
            }
            row.set("line", Datum::Text(String::from_utf8_lossy(&text).trim_end()));
        });
    }

    /// The row of the trace, in the partition of its only rank. `notes` are the reader's.
    pub fn meta(&mut self, notes: &[String], is_whole: bool) -> bool {
        let mut header = std::mem::take(&mut self.header);
        // The partition has it.
        header.remove("host");
        let finish = self.finish.take();
        let is_true = |finish: &Object<String, Value>| finish.get("complete") == Some(&Value::Bool(true));
        let complete = finish.as_ref().is_some_and(is_true) && is_whole;
        let boot_id = self.boot_id.take();
        let end_ns = i64::try_from(self.end_ns).unwrap_or(i64::MAX);
        let end_ts = self.clocks.realtime_ns.saturating_add(end_ns);
        let notes = serde_json::to_string(notes).unwrap_or_default();
        let file = std::mem::take(&mut self.file);
        let place = self.parts.row(0, Table::Meta);
        self.first(place, 0, 0, |row: &mut Row<Meta>| {
            row.set("file", Datum::Text(&file));
            row.object(&header);
            if let Some(boot_id) = &boot_id {
                row.set("boot_id", Datum::Text(boot_id));
            }
            row.set("ended", Datum::Bool(finish.is_some()));
            row.set("end_ts", Datum::Signed(end_ts));
            if let Some(finish) = &finish {
                row.object(finish);
            }
            row.set("complete", Datum::Bool(complete));
            row.set("notes", Datum::Text(&notes));
        });
        complete
    }
}

/// A hash that is the same in every version of gpurec.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> i64 {
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        as i64
}

/// The line as a trace has it.
fn written(line: &Line) -> Vec<u8> {
    let mut writer = LineWriter::new(Vec::new());
    // Memory takes every write.
    let _ = writer.write(line);
    writer.into_inner().unwrap_or_default()
}

/// The stack of a line about a call, and the site of it.
fn from_where<L: Layout>(row: &mut Row<L>, line: &Line, stacks: &Stacks) {
    let Some(stack) = stack_of_call(line, stacks) else { return };
    row.set("stack", Datum::Number(stack));
    if let Some(site) = stacks.site(stack) {
        row.set("site", Datum::Text(&stacks.text(site)));
    }
}

impl Sink for Rows {
    type CallState = OpenRow;

    fn held(&self) -> usize {
        self.held
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn source(&mut self, source: &Source) {
        self.file = source.file.to_owned();
        // Until the header says more.
        self.trace = fnv1a(self.name().bytes());
        self.parts.trace(self.trace, "");
    }

    fn begin(&mut self, at: At, line: &Line, _: Option<u32>, _: Links, stacks: &Stacks) -> OpenRow {
        match &line.body {
            Body::Begin(begin) => {
                self.begun::<Calls>(at, begin.pid, line, |row| from_where(row, line, stacks))
            }
            Body::KernelBegin(begin) => {
                let kind = begin.kind.name();
                self.begun::<Driver>(at, begin.pid, line, |row| row.set("type", Datum::Text(kind)))
            }
            _ => OpenRow::default(),
        }
    }

    fn end(&mut self, _: At, line: &Line, held: OpenRow) {
        // The end of an unwatched call is no line.
        let end_id = |ended: gpurec_trace::EndKind| {
            (ended != gpurec_trace::EndKind::NotWatched).then_some(Datum::Number(line.event_id))
        };
        match &line.body {
            Body::End(End { ended, .. }) => self.ended::<Calls>(held, |row| {
                end_id(*ended).into_iter().for_each(|id| row.set("end_event_id", id));
                line.body.show(row);
            }),
            Body::KernelEnd(KernelEnd { ended, .. }) => self.ended::<Driver>(held, |row| {
                end_id(*ended).into_iter().for_each(|id| row.set("end_event_id", id));
                line.body.show(row);
            }),
            _ => {}
        }
    }

    fn close(&mut self, _: At, held: OpenRow, cause: Cause) {
        let table = held.call.and_then(|call| self.parts.table(call));
        let ended = Datum::Text(cause.name());
        // The line is about another call.
        let unknown = std::mem::take(&mut self.unknown);
        match table {
            Some(Table::Driver) => self.ended::<Driver>(held, |row| row.set("ended", ended)),
            _ => self.ended::<Calls>(held, |row| row.set("ended", ended)),
        }
        self.unknown = unknown;
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, _: Option<u32>, stacks: &Stacks) {
        let shown = |ns: Option<u64>| at.ts_ns.saturating_sub(ns.unwrap_or(0));
        match &line.body {
            Body::Memory(it) => self.row::<Memory>(it.pid, line, at.ts_ns, |row| {
                line.body.show(row);
                from_where(row, line, stacks);
            }),
            Body::Transfer(it) => self.row::<Transfers>(it.pid, line, shown(it.duration_ns), |row| {
                line.body.show(row);
                from_where(row, line, stacks);
            }),
            Body::Block(it) => self.row::<Blocks>(it.pid, line, at.ts_ns, |row| {
                line.body.show(row);
                from_where(row, line, stacks);
            }),
            Body::Collective(it) => self.row::<Collectives>(it.pid, line, at.ts_ns, |row| {
                line.body.show(row);
                from_where(row, line, stacks);
            }),
            Body::Instant(it) => {
                self.row::<Driver>(it.pid, line, shown(it.duration_ns.or(duration_ns)), |row| {
                    row.set("type", Datum::Text(it.kind.name()));
                    row.set("name", Datum::Text(&it.name));
                    line.body.show(row);
                })
            }
            Body::Process(process) => self.process(at.ts_ns, line, process),
            Body::Header(header) => self.header(header),
            Body::Finish(finish) => {
                self.end_ns = line.ts_ns;
                self.finish = Some(self.keys(finish));
            }
            Body::Xid(xid) => self.kept(line, (Some(xid.pid), Some(xid.tid))),
            _ => self.kept(line, (None, None)),
        }
    }

    fn work(&mut self, at: At, line: &Line, _: u64, _: Option<WorkLink>, _: Option<u32>, stacks: &Stacks) {
        let Body::Gpu(it) = &line.body else { return };
        self.row::<Gpu>(it.pid, line, at.ts_ns, |row| {
            row.set("name", Datum::Text(&it.name));
            line.body.show(row);
            from_where(row, line, stacks);
        });
    }

    fn other(&mut self, line: &Line, stacks: &Stacks) {
        match &line.body {
            Body::Stack(stack) => self.stack(line.ts_ns, line, stack, stacks),
            Body::End(it) => self.kept(line, (Some(it.pid), Some(it.tid))),
            Body::KernelEnd(it) => self.kept(line, (Some(it.pid), Some(it.tid))),
            _ => self.kept(line, (None, None)),
        }
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}
