//! One dump: a trace of a part of a recording. In: the state at a line, and the lines from there on. Out: the lines of
//! a trace, from header to end, with new event_ids. Pure. Not here: where the lines are kept, and the file.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use super::kept::read;
use super::state::State;
use crate::pipeline::stops::Recent;
use gpurec_analysis::Summary;
use gpurec_trace::hash::Map;
use gpurec_trace::{self as trace, Body, Finish, GpuAccount, InFlight, Incomplete, Line, LineWriter, Reason};

/// What the end line says.
pub struct Ending {
    pub dump: trace::Dump,
    pub ts_ns: u64,
    /// Why the recording is not complete so far.
    pub reasons: Vec<Reason>,
    pub stops: Recent,
    /// The account of the whole recording so far.
    pub gpu: Option<GpuAccount>,
}

pub struct Dumper<W: Write> {
    state: State,
    out: LineWriter<W>,
    summary: Summary,
    /// Lines from here on, in nanoseconds since the start, are the period.
    from_ns: u64,
    /// The event_id of the period's first line. None: it has not begun.
    first: Option<u64>,
    /// The new event_id of the next line.
    next: u64,
    /// The new event_ids of carried calls.
    carried: Map<u64, u64>,
    /// The event_id of a line of the period, and what is added to it and to those that follow.
    shifts: Vec<(u64, i64)>,
    /// Lines of the period that are left out.
    left_out: HashSet<u64>,
    /// The stacks written so far.
    stacks: HashSet<u64>,
    /// By new event_id.
    open: Map<u64, Running>,
    names: HashSet<Arc<str>>,
    last_ns: u64,
    lost: u64,
    /// References that could not be kept.
    unresolved: u64,
}

/// A call that has not ended.
struct Running {
    pid: u32,
    tid: u32,
    ts_ns: u64,
    name: Arc<str>,
    died_ns: Option<u64>,
}

/// A dump that has been written.
pub struct Written<W> {
    pub out: W,
    pub lines: u64,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// The most calls that the end line lists.
const LISTED: usize = 16_384;

impl<W: Write> Dumper<W> {
    /// `state` is the state before the first line that `text` takes.
    pub fn new(state: State, from_ns: u64, out: W) -> Dumper<W> {
        Dumper {
            state,
            out: LineWriter::new(out),
            summary: Summary::new(),
            from_ns,
            first: None,
            next: 0,
            carried: Map::default(),
            shifts: Vec::new(),
            left_out: HashSet::new(),
            stacks: HashSet::new(),
            open: Map::default(),
            names: HashSet::new(),
            last_ns: 0,
            lost: 0,
            unresolved: 0,
        }
    }

    /// Takes a line of the recording, without its line feed.
    pub fn text(&mut self, text: &[u8]) -> io::Result<()> {
        let Some(line) = read(text) else {
            return Err(io::Error::other("the flight recorder cannot read a line of its own"));
        };
        if self.first.is_none() {
            // The effects of a call belong to its end.
            let is_effect = matches!(line.body, Body::Memory(_) | Body::Transfer(_));
            if line.ts_ns < self.from_ns || is_effect || matches!(line.body, Body::Header(_)) {
                self.state.add(&line, text);
                return Ok(());
            }
            self.begin(line.event_id)?;
        }
        self.line(line, text)
    }

    /// The thread of an open call has ended.
    pub fn died(&mut self, call: u64) {
        if self.first.is_none() {
            self.state.died(call);
        } else if let Some(call) = self.id(call).and_then(|call| self.open.get_mut(&call)) {
            call.died_ns = Some(self.last_ns);
        }
    }

    /// Writes the carried lines.
    fn begin(&mut self, first: u64) -> io::Result<()> {
        let state = std::mem::take(&mut self.state);
        self.from_ns = self.from_ns.max(state.last_ns);
        state.carry(|mut line| {
            let id = line.event_id;
            self.refer_to_stack(&state, &mut line.body, line.ts_ns)?;
            self.resolve(&mut line.body);
            if matches!(line.body, Body::Begin(_) | Body::KernelBegin(_)) {
                self.carried.insert(id, self.next);
            }
            self.write(line)
        })?;
        self.state = state;
        self.first = Some(first);
        self.shift(first);
        Ok(())
    }

    /// Maps this event_id to `next`, and those after it to the numbers after `next`.
    fn shift(&mut self, from: u64) {
        self.shifts.push((from, (self.next as i64).wrapping_sub(from as i64)));
    }

    /// The new event_id of a line that the dump contains.
    fn id(&self, old: u64) -> Option<u64> {
        if self.first.is_none_or(|first| old < first) {
            return self.carried.get(&old).copied();
        }
        let at = self.shifts.partition_point(|(from, _)| *from <= old).checked_sub(1)?;
        let (_, shift) = self.shifts.get(at)?;
        (!self.left_out.contains(&old)).then_some(old.wrapping_add_signed(*shift))
    }

    /// A line of the period.
    fn line(&mut self, line: Line, text: &[u8]) -> io::Result<()> {
        let old = line.event_id;
        if let Body::Stack(stack) = &line.body {
            self.state.add(&line, text);
            // A known stack is written before the first line that refers to it, like a carried one.
            if self.state.stack_line(stack.stack).is_some() {
                self.leave_out(old);
                return Ok(());
            }
            self.stacks.insert(stack.stack);
        }
        let mut line = line;
        if stack_of(&line.body).is_some_and(|stack| !self.stacks.contains(&stack)) {
            let state = std::mem::take(&mut self.state);
            let written = self.refer_to_stack(&state, &mut line.body, line.ts_ns);
            self.state = state;
            if written? {
                self.shift(old);
            }
        }
        if self.resolve(&mut line.body) {
            return self.write(line);
        }
        self.unresolved += 1;
        self.leave_out(old);
        Ok(())
    }

    fn leave_out(&mut self, old: u64) {
        self.left_out.insert(old);
        self.shift(old + 1);
    }

    /// Writes the line of the stack to which a line refers, if there is none yet. Returns whether it did.
    fn refer_to_stack(&mut self, state: &State, body: &mut Body, ts_ns: u64) -> io::Result<bool> {
        let Some(number) = stack_of(body).filter(|number| !self.stacks.contains(number)) else {
            return Ok(false);
        };
        let Some(Line { body: stack, .. }) = state.stack_line(number).and_then(|line| line.line()) else {
            drop_stack(body);
            self.unresolved += 1;
            return Ok(false);
        };
        self.stacks.insert(number);
        self.put(Line { event_id: self.next, ts_ns, body: stack })?;
        Ok(true)
    }

    /// Renumbers the lines that a line refers to. False: one of them is missing, and the line means nothing without it.
    fn resolve(&self, body: &mut Body) -> bool {
        let must = |id: &mut u64| self.id(*id).map(|new| *id = new).is_some();
        let may = |id: &mut Option<u64>| *id = id.and_then(|old| self.id(old));
        match body {
            Body::Begin(begin) => may(&mut begin.parent),
            Body::KernelBegin(begin) => may(&mut begin.parent),
            Body::Instant(instant) => may(&mut instant.parent),
            Body::Memory(memory) => may(&mut memory.begin),
            Body::Block(block) => may(&mut block.begin),
            Body::Gpu(gpu) => may(&mut gpu.begin),
            Body::End(end) => return must(&mut end.begin),
            Body::KernelEnd(end) => return must(&mut end.begin),
            Body::Transfer(transfer) => return must(&mut transfer.begin),
            Body::Collective(it) => return must(&mut it.begin),
            _ => {}
        }
        true
    }

    /// Writes a line whose references are already renumbered.
    fn write(&mut self, line: Line) -> io::Result<()> {
        match &line.body {
            Body::Begin(begin) if begin.no_return.is_none() => {
                self.opens((begin.pid, begin.tid), line.ts_ns, &begin.name);
            }
            Body::KernelBegin(begin) => self.opens((begin.pid, begin.tid), line.ts_ns, &begin.name),
            Body::End(end) => _ = self.open.remove(&end.begin),
            Body::KernelEnd(end) => _ = self.open.remove(&end.begin),
            Body::Lost(lost) => self.lost = self.lost.saturating_add(lost.count),
            _ => {}
        }
        self.put(Line { event_id: self.next, ..line })
    }

    fn opens(&mut self, (pid, tid): (u32, u32), ts_ns: u64, name: &str) {
        let name = self.names.get(name).cloned().unwrap_or_else(|| {
            let new: Arc<str> = name.into();
            self.names.insert(new.clone());
            new
        });
        self.open.insert(self.next, Running { pid, tid, ts_ns, name, died_ns: None });
    }

    fn put(&mut self, line: Line) -> io::Result<()> {
        self.next += 1;
        if !matches!(line.body, Body::Gpu(_)) {
            self.last_ns = self.last_ns.max(line.ts_ns);
        }
        self.summary.add(&line);
        if let Some(end) = line.end_of_unwatched() {
            self.summary.add(&end);
        }
        self.out.write(&line)
    }

    /// Writes the end line.
    pub fn finish(mut self, ending: Ending) -> io::Result<Written<W>> {
        if self.first.is_none() {
            self.begin(self.state.next_id)?;
        }
        let ts_ns = ending.ts_ns.max(self.last_ns);
        let (in_flight, more) = self.in_flight(ts_ns);
        let of_state = [
            (self.state.lost > 0).then_some(Incomplete::EarlierLost { count: self.state.lost }),
            self.state.damaged.take().map(|error| Incomplete::RingDamaged { error }),
            Some(self.state.unfollowed + self.unresolved)
                .filter(|count| *count > 0)
                .map(|count| Incomplete::NotCarried { count }),
            (more > 0).then_some(Incomplete::MoreInFlight { count: more }),
        ];
        ending.reasons.into_iter().for_each(|reason| self.summary.incomplete(reason));
        of_state.into_iter().flatten().for_each(|reason| self.summary.incomplete(reason));
        let stops = ending.stops.since(self.from_ns);
        self.summary.recorder_knows(&in_flight, stops, None, 0);
        let gpu = ending.gpu.filter(|_| self.is_whole());
        gpu.iter().for_each(|account| self.summary.recorder_knows_of_gpu(account.clone()));
        let dump = trace::Dump { from_ns: self.from_ns, ..ending.dump };
        self.summary.of_dump(&dump);
        let figures = self.summary.finish(ts_ns);
        let finish = Finish {
            events: self.next,
            lost: self.lost,
            in_flight,
            complete: figures.complete,
            incomplete_because: figures.incomplete_because.clone(),
            incomplete_codes: figures.incomplete_codes.clone(),
            stops,
            gpu,
            dump: Some(dump),
            summary: figures.to_json(),
        };
        let (lines, from_ns) = (self.next + 1, self.from_ns);
        self.out.write(&Line { event_id: self.next, ts_ns, body: Body::Finish(Box::new(finish)) })?;
        Ok(Written { out: self.out.into_inner()?, lines, from_ns, to_ns: ts_ns })
    }

    /// Whether the period began with the recording, so that it has the line after the header.
    fn is_whole(&self) -> bool {
        self.first == Some(1)
    }

    /// The calls that have not ended, up to the limit of the end line, and the number of the others.
    fn in_flight(&self, ts_ns: u64) -> (Vec<InFlight>, u64) {
        let mut ids: Vec<&u64> = self.open.keys().collect();
        ids.sort_unstable();
        let more = ids.len().saturating_sub(LISTED);
        ids.truncate(LISTED);
        let listed = ids.into_iter().filter_map(|id| {
            let call = self.open.get(id)?;
            Some(InFlight {
                pid: call.pid,
                tid: call.tid,
                name: call.name.to_string(),
                begin: *id,
                duration_ns: call.died_ns.unwrap_or(ts_ns).saturating_sub(call.ts_ns),
                died: call.died_ns.is_some(),
            })
        });
        (listed.collect(), more as u64)
    }
}

/// The stack to which a line refers.
fn stack_of(body: &Body) -> Option<u64> {
    match body {
        Body::Begin(begin) => begin.stack,
        Body::Block(block) => block.stack,
        Body::Memory(memory) => memory.stack,
        _ => None,
    }
}

fn drop_stack(body: &mut Body) {
    match body {
        Body::Begin(begin) => begin.stack = None,
        Body::Block(block) => block.stack = None,
        Body::Memory(memory) => memory.stack = None,
        _ => {}
    }
}
