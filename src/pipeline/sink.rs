//! Paired calls → lines. In: begins, ends and process events in order. Out: each as a line with its event_id, to the
//! file, the summary and, with --live, the user. Everything that needs a function's name or meaning is looked up once
//! per probe.

mod batch;
mod drafts;
mod dumps;
mod facts;
mod gpu;
mod measured;
mod sharing;
mod still;
mod tap;
mod unreturned;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::account::Totals;
use super::beneath::Below;
use super::blocks::Blocks;
use super::call_parts::{self, CallParts};
use super::call_stacks::CallStacks;
use super::decode::{Captured, Item, What};
use super::handoff::Handoff;
use super::observer::{Alarms, Rows};
use super::pair::{Open, Outcome, Sink};
use super::processes::{self, Processes};
use super::stops::Stops;
use super::stubs::Stubs;
use crate::files::{Ask, Files, Found, Side};
use crate::gpu::join::Join;
use crate::probe::{Probe, RuleTable};
use crate::process::job::Job;
use gpurec_analysis::Summary;
use gpurec_cuda::raw::Piece;
use gpurec_cuda::semantics::{BeginKeys, CallRef, Effect, Meaning};
use gpurec_trace::hash::Map;
use gpurec_trace::{self, Arg, Args, Body, EndKind, Line, LineWriter, List, Op, Process, Retval};

use batch::Place;
use drafts::{BeginDraft, EndDraft};
use facts::Facts;
use sharing::Sharing;
use tap::{NO_LINE, Tapped, Tapping};
use unreturned::Unreturned;

/// How long to wait for a program's rank, and in addition for all of them together. The rank is in the program's memory,
/// which may be anywhere.
const RANK: Duration = Duration::from_millis(20);
const RANKS: Duration = Duration::from_secs(5);

/// The most open calls, of up to 8 KiB each, whose unreadable arguments are kept for a second read at the return.
const MOST_UNREAD: usize = 4096;

pub struct Lines {
    probes: Vec<Arc<Facts>>,
    /// None with --summary-only.
    writer: Option<LineWriter<Handoff>>,
    /// None while another thread adds lines to it.
    summary: Option<Box<Summary>>,
    sharing: Sharing,
    pub meaning: Meaning,
    pub(super) below: Below,
    ranks: Side,
    pub stacks: CallStacks,
    pub(super) blocks: Blocks,
    /// Which call submitted which work of the GPU, and what the tap knows.
    pub gpu: Join,
    /// The account of programs that have ended.
    pub gpu_totals: Totals,
    pub tapping: Tapping,
    /// Processes that have ended, or run another program, and perhaps had work on the GPU.
    pub gpu_gone: Vec<(u32, u64)>,
    pub(super) processes: Processes,
    /// A buffer that is reused from call to call.
    effects: Vec<Effect>,
    live: Option<Box<dyn Rows>>,
    /// With a flight recorder.
    pub alarms: Option<Box<dyn Alarms>>,
    /// The rings fill: output that is only for the user has to wait.
    pub hurry: bool,
    /// False with --summary-only: calls are counted, not written.
    pub write_calls: bool,
    next_id: u64,
    /// The event_id of the next line of the file.
    written_ids: u64,
    /// Beginning of the recording, and time of the last line, in CLOCK_MONOTONIC ns.
    start: u64,
    last: u64,
    /// Open calls with arguments that could not be read at the entry.
    unread: Map<u64, Captured>,
    /// Calls whose threads ended before they returned.
    died: Unreturned,
    pub stops: Stops,
    /// Number of returns of Linux and driver functions that never came.
    pub returns_missed: u64,
    /// When `--live` last looked for calls that do not return.
    looked: u64,
    /// The first write error. Nothing is written after it.
    pub failed: Option<io::Error>,
}

impl Lines {
    pub fn new(writer: Option<LineWriter<Handoff>>, live: Option<Box<dyn Rows>>, start: u64) -> Lines {
        Lines {
            probes: Vec::new(),
            writer,
            summary: Some(Box::default()),
            sharing: Sharing::new(1),
            meaning: Meaning::new(Box::new(Stubs::new(None))),
            below: Below::new(crate::host::driver_version().as_deref()),
            ranks: Side::new(None),
            stacks: CallStacks::new(Side::new(None), None, false),
            blocks: Blocks::default(),
            gpu: Join::default(),
            gpu_totals: Totals::default(),
            tapping: Tapping::default(),
            gpu_gone: Vec::new(),
            processes: Processes::default(),
            effects: Vec::new(),
            live,
            alarms: None,
            hurry: false,
            write_calls: true,
            next_id: 0,
            written_ids: 0,
            start,
            last: start,
            unread: Map::default(),
            died: Unreturned::default(),
            stops: Stops::default(),
            returns_missed: 0,
            looked: start,
            failed: None,
        }
    }

    /// Lets helper processes read kernel names and ranks, which only the processes themselves and their files
    /// contain.
    pub fn asking(self, files: &Files) -> Lines {
        let names = Box::new(Stubs::new(Some(files.clone())));
        let ranks = Side::new(Some(files.clone())).with_slack(RANKS);
        Lines { meaning: Meaning::new(names), ranks, ..self }
    }

    /// Calls have stacks: `rules` is where BPF looks for how to unwind them.
    pub fn with_stacks(self, side: Side, rules: RuleTable, has_reports: bool) -> Lines {
        Lines { stacks: CallStacks::new(side, Some(rules), has_reports), ..self }
    }

    /// Leaves these processes and their children out of the trace.
    pub fn leaving_out(self, own: impl IntoIterator<Item = u32>) -> Lines {
        Lines { processes: Processes::without(own), ..self }
    }

    fn job_of(&mut self, pid: u32) -> Job {
        match self.ranks.ask(&Ask::Job { pid }, RANK) {
            Some(Found::Job(job)) => job,
            _ => Job::default(),
        }
    }

    /// Adds probes. Their ids are in order, from 1.
    pub fn add_probes(&mut self, probes: &[Probe]) {
        // An id that is taken again means another function in the lines before.
        self.pass_on();
        for probe in probes {
            let id = probe.id as usize;
            if self.probes.len() <= id {
                self.probes.resize_with(id + 1, || Arc::new(Facts::none()));
            }
            self.probes[id] = Arc::new(Facts::of(probe));
        }
        self.sharing.learn(&self.probes);
    }

    pub fn probe_name(&self, id: u32) -> &str {
        self.probes.get(id as usize).map_or("?", |facts| &facts.name)
    }

    pub fn probe_ids(&self) -> impl Iterator<Item = u32> + use<> {
        1..self.probes.len() as u32
    }

    /// Writes a line at `ts`, or at the last line's time if that is later.
    pub fn line(&mut self, ts: u64, body: Body) -> u64 {
        if let Some(pid) = processes::process_of(&body) {
            self.meet(ts, pid);
        }
        if let Body::Process(process) = &body {
            self.processes.know(process);
        }
        self.write(ts, body)
    }

    /// Writes a `found` line before the first line of a process whose start was not seen.
    fn meet(&mut self, ts: u64, pid: u32) {
        if self.processes.is_new(pid)
            && let Some(Found::Process(Some(about))) = self.ranks.ask(&Ask::Process { pid }, RANK)
        {
            let found = Process::Found(*about);
            self.processes.know(&found);
            self.write(ts, Body::Process(found));
        }
    }

    fn write(&mut self, ts: u64, body: Body) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let ts_ns = match body {
            // It comes late.
            Body::Gpu(_) => ts.saturating_sub(self.start),
            _ => self.now_is(ts),
        };
        let mut line = Line { event_id: id, ts_ns, body };
        batch::count(self.summary(), &line);
        let end = line.end_of_unwatched();
        for line in [Some(&line), end.as_ref()].into_iter().flatten() {
            if let Some(live) = &mut self.live {
                live.line(line, self.hurry);
            }
            if let Some(alarms) = &mut self.alarms {
                alarms.line(line);
            }
        }
        self.identify();
        let frequent = matches!(
            line.body,
            Body::Begin(_)
                | Body::End(_)
                | Body::Memory(_)
                | Body::Transfer(_)
                | Body::Block(_)
                | Body::Collective(_)
                | Body::Stack(_)
                | Body::KernelBegin(_)
                | Body::KernelEnd(_)
                | Body::Instant(_)
                | Body::Gpu(_)
        );
        if let (Some(writer), None, true) = (&mut self.writer, &self.failed, self.write_calls || !frequent) {
            // The same id as in memory, unless the file leaves calls out.
            line.event_id = self.written_ids;
            self.written_ids += 1;
            if self.sharing.is_on {
                self.failed = self.sharing.batch.counted_line(&line).err();
                self.counts_itself();
            } else {
                self.failed = writer.write(&line).err();
            }
        }
        id
    }

    /// Writes the line of a call that begins.
    fn begins(&mut self, call: &Open, facts: Option<&Facts>, captured: &Captured, keys: BeginKeys) -> u64 {
        let draft = BeginDraft {
            probe: call.probe,
            pid: call.pid,
            tid: call.tid,
            depth: call.depth,
            parent: call.parent,
            args: captured.args,
            stack: call.stack.and_then(|key| self.stacks.table.number(key)),
            is_elsewhere: call.origin.elsewhere,
        };
        let payload = captured.payload();
        if !self.sharing.is_on {
            return draft.with(facts, payload, keys.launch(), true, |body| self.line(call.ts, body));
        }
        self.meet(call.ts, call.pid);
        let place = self.place(call.ts);
        self.sharing.batch.begins(place, draft, payload, keys);
        self.drafted();
        place.id
    }

    /// Writes the line of a call that ended. `late`: arguments that could be read only now.
    fn ends(
        &mut self,
        ts: u64,
        depth: u32,
        draft: EndDraft,
        facts: Option<&Facts>,
        pieces: &[u8],
        late: Option<Args>,
    ) {
        if self.sharing.is_on && late.is_none() {
            let place = self.place(ts);
            self.sharing.batch.ends(place, draft, pieces);
            self.drafted();
            return;
        }
        draft.with(facts, pieces, late, |body| {
            if let Body::End(end) = &body {
                self.failed(depth, end);
            }
            self.line(ts, body);
        });
    }

    /// Writes a line about what a call did.
    fn effect(&mut self, ts: u64, body: Body<'static>) {
        if !self.sharing.is_on {
            self.line(ts, body);
            return;
        }
        let Place { id, ts_ns } = self.place(ts);
        self.sharing.batch.line(Line { event_id: id, ts_ns, body });
        self.drafted();
    }

    /// Number of lines so far, written or only counted.
    pub fn count(&self) -> u64 {
        self.next_id
    }

    /// Converts CLOCK_MONOTONIC ns to time since the beginning.
    pub fn since_start(&self, ts: u64) -> u64 {
        ts.saturating_sub(self.start)
    }

    /// Shows the latest rows to the user.
    pub fn show(&mut self) {
        if let Some(live) = &mut self.live {
            live.flush();
        }
    }

    pub fn written_so_far(&self) -> u64 {
        self.written_ids
    }

    /// Advances the time without a line. Returns the time since the beginning.
    pub fn now_is(&mut self, ts: u64) -> u64 {
        self.last = self.last.max(ts);
        self.last - self.start
    }

    pub fn flush(&mut self) {
        self.show();
        self.pass_on();
        if let (Some(writer), None) = (&mut self.writer, &self.failed) {
            self.failed = writer.flush().err();
        }
    }

    /// Writes the lines about a returned call's effects.
    fn follow(
        &mut self,
        ts: u64,
        call: &Open,
        facts: &Facts,
        pieces: &[u8],
        retval: Option<Retval>,
        duration: u64,
    ) {
        let Some(role) = &facts.role else { return };
        let status = match retval {
            Some(Retval::Number(code)) if !facts.traits.is_in_progress(code as i32) => code as i32,
            _ => 0,
        };
        let mut effects = std::mem::take(&mut self.effects);
        let call = call.reference();
        call_parts::with_exit(pieces, |exit| {
            self.meaning.end(Some(role), facts.signature, &call, exit, status, duration, &mut effects);
        });
        for effect in effects.drain(..) {
            let body = match effect {
                Effect::Memory(memory) => Body::Memory(memory),
                Effect::Transfer(transfer) => Body::Transfer(transfer),
                Effect::Collective(collective) => Body::Collective(*collective),
            };
            self.effect(ts, body);
        }
        self.effects = effects;
    }

    /// Arguments that could be read only at the call's return, if there are any.
    fn late<'a>(
        &mut self,
        call: &Open,
        facts: &Facts,
        captured: &Captured,
        taken: &'a CallParts,
    ) -> Option<Vec<Arg<'a>>> {
        let signature = facts.signature?;
        let entry = taken.as_entry(captured.args);
        let call = call.reference();
        self.meaning.late(facts.role.as_ref(), Some(signature), &call, &entry);
        let at_begin = CallParts::entry(captured.payload());
        let (mut before, mut now) = (Vec::new(), Vec::new());
        signature.args(&at_begin.as_entry(captured.args), &mut before);
        signature.args(&entry, &mut now);
        let is_news = |arg: &Arg| arg.name != "unreadable" && !before.contains(arg);
        now.retain(is_news);
        (!now.is_empty()).then_some(now)
    }
}

impl Sink for Lines {
    fn begin(&mut self, call: &Open, captured: &Captured) -> u64 {
        let probes = std::mem::take(&mut self.probes);
        let facts = probes.get(call.probe as usize).map(Arc::as_ref);
        if let Some((what, name)) = facts.and_then(Facts::beneath) {
            let body = self.below.begin(what, name, self.next_id, call, captured);
            let id = self.line(call.ts, body);
            if call.origin.elsewhere {
                // BPF sets this flag only for calls of a library.
                let mut call = *call;
                call.id = id;
                let end = self.below.end(what, name, call.ts, &call, Outcome::Lost, &[]);
                self.line(call.ts, end);
            }
            self.probes = probes;
            return id;
        }
        if let Some(tapped) = facts.and_then(|facts| facts.tapped) {
            self.tap(tapped, call, captured);
            if tapped == Tapped::Record {
                self.probes = probes;
                return NO_LINE;
            }
        }
        let role = facts.and_then(|facts| facts.role.as_ref());
        let call_ref = CallRef { id: self.next_id, ..call.reference() };
        let noted = role.map_or_else(BeginKeys::default, |role| {
            call_parts::with_entry(captured.payload(), captured.args, |entry| {
                let signature = facts.and_then(|facts| facts.signature);
                self.meaning.begin(Some(role), signature, &call_ref, entry)
            })
        });
        let id = self.begins(call, facts, captured, noted);
        self.gpu_begin(call, facts, id);
        if call.origin.elsewhere {
            self.meaning.forget(&call_ref);
        } else if self.unread.len() < MOST_UNREAD && captured.pieces().any(|piece| piece == Piece::Unreadable)
        {
            self.unread.insert(id, captured.clone());
        }
        self.probes = probes;
        id
    }

    fn end(&mut self, ts: u64, call: &Open, outcome: Outcome, pieces: &[u8]) {
        let probes = std::mem::take(&mut self.probes);
        let facts = probes.get(call.probe as usize).map(Arc::as_ref);
        if let Some((what, name)) = facts.and_then(Facts::beneath) {
            self.returns_missed += u64::from(outcome == Outcome::Lost);
            let body = self.below.end(what, name, ts, call, outcome, pieces);
            self.line(ts, body);
            self.probes = probes;
            return;
        }
        if call.id == NO_LINE {
            self.probes = probes;
            return;
        }
        let (ended, retval) = match outcome {
            Outcome::Returned(value) => (EndKind::Returned, facts.and_then(|f| f.retval(value))),
            Outcome::Unwound => (EndKind::Unwound, None),
            Outcome::Lost => (EndKind::Lost, None),
        };
        self.gpu_end(ts, call, facts, outcome, retval);
        let unread = if self.unread.is_empty() { None } else { self.unread.remove(&call.id) };
        let entry = unread.as_ref().map(|captured| CallParts::late(captured, pieces));
        let late = entry.as_ref().and_then(|taken| self.late(call, facts?, unread.as_ref()?, taken));
        let late = late.as_ref().map(|list| Args::Named(List::Borrowed(list)));
        let duration = ts.saturating_sub(call.ts);
        let is_lost = outcome == Outcome::Lost;
        let draft = EndDraft {
            probe: call.probe,
            pid: call.pid,
            tid: call.tid,
            begin: call.id,
            duration_ns: (!is_lost).then_some(duration),
            paused_ns: if is_lost { 0 } else { self.stops.within(call.pid, call.ts, ts) },
            retval,
            ended,
        };
        self.ends(ts, call.depth, draft, facts, pieces, late);
        match facts {
            Some(facts) if ended == EndKind::Returned => {
                self.follow(ts, call, facts, pieces, retval, duration)
            }
            _ => self.meaning.forget(&call.reference()),
        }
        self.probes = probes;
    }

    fn stack(&mut self, item: &Item) {
        if let Some(line) = self.stacks.add(item) {
            self.line(item.ts, line);
        }
    }

    fn block(&mut self, item: &Item, within: Option<u64>) {
        let What::Block(hit) = &item.what else { return };
        let mut facts = hit.facts;
        match hit.op {
            Op::Alloc => self.blocks.handed_out(hit.pid, hit.ptr, facts),
            Op::Free => facts = self.blocks.taken_back(hit.pid, hit.ptr),
        }
        let stack = hit.stack.and_then(|key| self.stacks.table.number(key));
        let probes = std::mem::take(&mut self.probes);
        let name = probes.get(hit.probe as usize).map_or("?", |facts| facts.name.as_str());
        self.line(
            item.ts,
            Body::Block(gpurec_trace::Block {
                pid: hit.pid,
                tid: item.tid,
                begin: within,
                name: name.into(),
                op: hit.op,
                ptr: hit.ptr,
                size: facts.size,
                device: facts.device,
                stream: facts.stream,
                stack,
            }),
        );
        self.probes = probes;
    }

    fn instant(&mut self, item: &Item, within: Option<&Open>) {
        let What::Instant { probe, .. } = item.what else { return };
        let probes = std::mem::take(&mut self.probes);
        if let Some((what, name)) = probes.get(probe as usize).and_then(|facts| facts.beneath())
            && let Some(body) = self.below.instant(what, name, item, within)
        {
            self.line(item.ts, body);
        }
        self.probes = probes;
    }

    fn died(&mut self, ts: u64, call: &Open) {
        if call.id == NO_LINE {
            return;
        }
        self.unread.remove(&call.id);
        self.meaning.forget(&call.reference());
        self.below.forget(call);
        if self.alarms.is_none() {
            self.died.add(self.one_in_flight(ts, call, true));
        } else {
            self.died_unlisted(call);
        }
        self.summary().died(call.id, ts.saturating_sub(call.ts));
    }

    fn process(&mut self, item: &Item) {
        let tid = item.tid;
        if self.processes.is_own(&item.what) {
            return;
        }
        self.stacks.follow(&item.what);
        let process = match &item.what {
            What::Fork { pid, child } => {
                self.meaning.process_forked(*pid, *child);
                Process::Fork(gpurec_trace::Fork { pid: *pid, tid, child: *child })
            }
            What::Exec { pid, command, cut, .. } => {
                self.meaning.process_execed(*pid);
                self.gpu_ended(*pid, item.ts);
                self.blocks.gone(*pid);
                processes::exec(*pid, tid, processes::words(command, *cut), self.job_of(*pid))
            }
            What::Exit { pid, status, process: true, .. } => {
                self.meaning.process_exited(*pid);
                self.gpu_ended(*pid, item.ts);
                self.blocks.gone(*pid);
                self.stops.gone(*pid);
                Process::Exit(gpurec_trace::Exit { pid: *pid, tid, status: processes::exit_status(*status) })
            }
            What::Exit { pid, .. } => return self.meaning.thread_exited(*pid, tid),
            _ => return,
        };
        self.line(item.ts, Body::Process(process));
    }
}
