//! The thread that empties the rings. It polls every few milliseconds, so the target never pays for waking it. In:
//! rings, messages of the recorder. Out: lines; at the end, the contents of the `end` line.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::clock_ticks::ClockTicks;
use super::decode::Item;
use super::gpu::{self, Gpu};
use super::messages::{
    Coming, Message, MessageKind, is_of_blocks, touches_collectives, touches_contexts, touches_memory,
    write_until,
};
use super::observer::{Cause, DumpRequest};
use super::order::{Order, Release, Released};
use super::pair::Pairing;
use super::pause::Pause;
use super::reading::{self, Read, Rings};
use super::sink::Lines;
use super::sleeps::{Reading, Sleeps};
use crate::clock::monotonic_ns;
use crate::host;
use crate::nvml::Sample;
use crate::probe::LossCounters;
use crate::probe::pauses::Pauses;
use crate::ring::{Level, Ring};
use crate::wire::{self, LostTotal};
use gpurec_analysis::{Figures, Gaps};
use gpurec_trace::{self as trace, Body, Finish, GpuSource, Header, Incomplete, Reason, Reasons};

/// How long to wait for what a stack needs.
const PAUSE: Duration = Duration::from_millis(2);
const FLUSH: Duration = Duration::from_millis(500);
/// How often rows are sent to the user's screen.
const SHOW: Duration = Duration::from_millis(100);
/// The most processes with unexamined files to remember.
const MOST_NOT_EXAMINED: usize = 65_536;
/// How often a ring is read again at the end, for a record that is still being written.
const LAST_LOOKS: u32 = 500;

/// The state of the recording, shared by all threads.
#[derive(Default)]
pub struct State {
    step: AtomicU8,
    /// When the hooks stopped recording; 0 before.
    cut: AtomicU64,
}

impl State {
    const DRAIN: u8 = 1;
    const STOP: u8 = 2;

    /// Sets the end of the recording, whatever is still to be read.
    pub fn cut(&self, ts: u64) {
        self.cut.store(ts, Ordering::SeqCst);
    }

    /// Every hook is gone: reads what is left, then ends.
    pub fn drain(&self) {
        self.step.fetch_max(Self::DRAIN, Ordering::SeqCst);
    }

    /// Ends without reading the rest.
    pub fn stop(&self) {
        self.step.fetch_max(Self::STOP, Ordering::SeqCst);
    }
}

/// What shows figures during the recording: the reports of `--interval`, the status line, metrics. The recorder
/// supplies it.
pub trait Watch: Send {
    fn is_due(&self) -> bool;
    fn show(&mut self, lines: &mut Lines, at_ns: u64, lost: u64);
    /// The recording is over: nothing follows.
    fn end(&mut self, _lines: &mut Lines, _at_ns: u64, _lost: u64) {}
}

pub struct Worker {
    rings: Rings,
    order: Order,
    pairing: Pairing,
    lines: Lines,
    messages: Receiver<Message>,
    waiting: VecDeque<Message>,
    coming: Coming,
    /// Requested dumps, and the time up to which each must have all records.
    asked: VecDeque<(u64, Cause)>,
    loss: LossCounters,
    lost_before: LostTotal,
    /// The losses that the trace reports already: of each probe's calls (2 × id) and returns (2 × id + 1).
    reported: HashMap<u32, u64>,
    lost: u64,
    undecoded: u64,
    /// The first library that could not be hooked, and how many there are: their calls are not in the trace.
    not_hooked: Option<(String, u64)>,
    reasons: Reasons,
    /// Processes with files that were not examined.
    not_examined: HashSet<u32>,
    /// Number of records without the memory that should have been read with them.
    cut: u64,
    /// Processes that wait until the rings are empty: the worker resumes them.
    pub pauses: Option<Arc<Pauses>>,
    state: Arc<State>,
    pub watches: Vec<Box<dyn Watch>>,
    /// With --gpu.
    pub gpu: Option<Gpu>,
    /// The account of GPU work, once the recording is over.
    gpu_account: Option<trace::GpuAccount>,
    /// `clock` lines are written, even if no rank is known.
    pub writes_clocks: bool,
    clock_ticks: ClockTicks,
    /// Samples of NVML: with --gpu, --metrics or --otlp.
    pub devices: Option<Receiver<Sample>>,
    sleeps: Sleeps,
    /// Everything older than this has been read and counted.
    known_to: u64,
    pause: Pause,
    /// The rings were left unread at the end.
    abandoned: bool,
}

/// What is to be done after the rings were read once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// The next one, at once.
    Busy,
    /// A stack waits for what is not known yet.
    Waits,
    Idle,
}

/// The result of a recording.
pub struct Outcome {
    pub figures: Figures,
    pub failed: Option<io::Error>,
    pub hint: Option<String>,
}

impl Worker {
    pub fn new(
        rings: Vec<Ring>,
        lines: Lines,
        messages: Receiver<Message>,
        loss: LossCounters,
        state: Arc<State>,
    ) -> Worker {
        let order = Order::new(rings.len());
        let room = rings.iter().map(Ring::size).max().unwrap_or(0);
        let lost_before = loss.before;
        Worker {
            rings: Rings::new(rings),
            order,
            pairing: Pairing::default(),
            lines,
            messages,
            waiting: VecDeque::new(),
            coming: Coming::default(),
            asked: VecDeque::new(),
            loss,
            lost_before,
            reported: HashMap::new(),
            lost: 0,
            undecoded: 0,
            not_hooked: None,
            reasons: Reasons::default(),
            not_examined: HashSet::new(),
            cut: 0,
            pauses: None,
            state,
            watches: Vec::new(),
            gpu: None,
            gpu_account: None,
            writes_clocks: false,
            clock_ticks: ClockTicks::default(),
            devices: None,
            sleeps: Sleeps::default(),
            known_to: 0,
            pause: Pause::new(room),
            abandoned: false,
        }
    }

    pub fn run(mut self, header: Header) -> Outcome {
        reading::go_first();
        // The first sample is from before the recording.
        self.receive_samples();
        self.look_at_clocks();
        self.lines.line(0, Body::Header(Box::new(header)));
        self.lines.flush();
        let mut flushed = Instant::now();
        let mut shown = Instant::now();
        let mut last_looks = 0;
        loop {
            let state = self.state.step.load(Ordering::SeqCst);
            if state == State::STOP {
                self.take_back();
                self.abandoned = self.rings.is_left();
                break;
            }
            let round = self.round();
            if flushed.elapsed() >= FLUSH {
                self.write_losses();
                self.lines.flush();
                flushed = Instant::now();
            }
            if shown.elapsed() >= SHOW {
                if self.state.cut.load(Ordering::SeqCst) == 0 {
                    self.lines.still(self.pairing.open_calls(), monotonic_ns());
                    self.lines.look_for_hangs(self.pairing.open_calls(), monotonic_ns());
                }
                self.lines.show();
                self.look_at_clocks();
                shown = Instant::now();
            }
            self.show_watch();
            if state == State::DRAIN && round == Round::Idle {
                // A thread that was preempted in a hook may still be writing a record.
                let unfinished = self.rings.is_left();
                last_looks += 1;
                if !unfinished || last_looks > LAST_LOOKS {
                    self.abandoned = unfinished;
                    break;
                }
            }
            match round {
                Round::Busy => {}
                Round::Waits => self.lines.stacks.wait(PAUSE),
                // A request to a watch ends the pause.
                Round::Idle => std::thread::park_timeout(self.pause.time()),
            }
        }
        self.finish()
    }

    /// Reports the clocks when that is due, and a suspend when it is noticed: a moment after the machine resumed.
    fn look_at_clocks(&mut self) {
        if let Some(slept_ns) = self.sleeps.look(Reading::now()) {
            let what = MessageKind::Slept(trace::Suspend { slept_ns });
            self.waiting.push_back(Message { ts: monotonic_ns(), pid: 0, what });
            self.clock_ticks.restart();
        }
        // The recorder itself reports them at the end of the recording.
        if self.has_clocks()
            && self.state.cut.load(Ordering::SeqCst) == 0
            && self.clock_ticks.is_due(monotonic_ns())
        {
            self.waiting.push_back(Message::clock(host::clock::now()));
        }
    }

    /// The times of ranks, which may run on several machines, are compared on one clock.
    fn has_clocks(&self) -> bool {
        self.writes_clocks || self.lines.processes.has_rank
    }

    /// Reports to the watches, but not after the recording ended: removing hooks may take long. The sums are
    /// those at `known_to`: at a later time, a call whose return has not been read yet would count as open.
    fn show_watch(&mut self) {
        if self.state.cut.load(Ordering::SeqCst) != 0 {
            return;
        }
        if self.watches.iter().any(|watch| watch.is_due()) {
            self.write_losses();
            let at = self.lines.since_start(self.known_to);
            let due = self.watches.iter_mut().filter(|watch| watch.is_due());
            due.for_each(|watch| watch.show(&mut self.lines, at, self.lost));
        }
    }

    /// Reads every ring once, and writes what is complete.
    fn round(&mut self) -> Round {
        if let Some(gpu) = &mut self.gpu {
            gpu.meet(&mut self.lines);
        }
        let now = monotonic_ns();
        self.lines.hurry = self.rings.levels().iter().any(Level::fills);
        let read = self.rings.read(&mut self.order, now, self.lines.helpers());
        let (records, mut more) = (read.records, read.has_more);
        self.note(read);
        // What the helpers read now comes in the next round.
        self.lines.share(if self.rings.is_ahead() { usize::MAX } else { records });
        // A paused process resumes while its records are still being written. If writing blocks, this thread blocks
        // too, and then so does a process that fills the rings again.
        if let Some(pauses) = &self.pauses
            && self.rings.levels().iter().all(|level| level.waiting() <= pauses.low)
        {
            let lines = &mut self.lines;
            pauses.resume_all(&mut |pause| lines.stopped(pause.pid, pause.from, pause.to));
        }
        // The recorder sends these before it resumes a stopped process, and so before any call that this makes
        // possible.
        self.receive();
        let released = self.release(false);
        self.known_to = self.known_to.max(now.min(released.to));
        // Later messages wait until all records before them are written.
        write_until(now.min(released.to), &mut self.waiting, &mut self.lines);
        if let Some(gpu) = &mut self.gpu {
            gpu.release(released.to, &mut self.lines);
            more |= gpu.read();
        } else {
            self.lines.gpu_expire(now, false, GpuSource::Tap);
            gpu::close_tapped(now.min(released.to), &mut self.lines);
        }
        self.dump_what_is_due(now.min(released.to));
        // Pauses stay short with GPU work, which has rings of its own, and with stacks, which are read from running
        // programs.
        let is_awaited = self.pauses.is_some() || self.gpu.is_some() || self.lines.stacks.is_on();
        self.pause.after(records, is_awaited);
        match released.stopped {
            Release::PutOff if !more => Round::Waits,
            Release::Done if !more && records <= 1000 => Round::Idle,
            _ => Round::Busy,
        }
    }

    /// Takes what the helpers have read or are reading.
    fn take_back(&mut self) {
        let read = self.rings.take_back(&mut self.order, None);
        self.note(read);
    }

    fn note(&mut self, read: Read) {
        self.undecoded += read.undecoded;
        self.cut += read.cut;
        self.lines.stacks.open(read.mapped);
    }

    /// Writes the dumps that were requested up to `to`, and the dump for an event if one is due.
    fn dump_what_is_due(&mut self, to: u64) {
        while self.asked.front().is_some_and(|(at, _)| *at <= to)
            && let Some((_, cause)) = self.asked.pop_front()
        {
            // Nobody waits for the answer to a signal, so it may wait for its turn.
            match &mut self.lines.alarms {
                Some(alarms) if cause.reply.is_none() => alarms.signalled(cause),
                _ => self.dump(cause, 0),
            }
        }
        let now = self.lines.since_start(monotonic_ns());
        if let Some((cause, suppressed)) = self.lines.alarms.as_mut().and_then(|alarms| alarms.due(now)) {
            self.dump(cause, suppressed);
        }
    }

    fn dump(&mut self, cause: Cause, suppressed: u64) {
        self.write_losses();
        let at = match self.state.cut.load(Ordering::SeqCst) {
            0 => monotonic_ns(),
            cut => cut,
        };
        let (ts_ns, reasons) = (self.lines.since_start(at), self.incomplete());
        let (stops, gpu) = (self.lines.recent_stops(), self.gpu_so_far());
        self.lines.dump(DumpRequest { cause, ts_ns, reasons, stops, gpu, suppressed });
    }

    fn gpu_so_far(&self) -> Option<trace::GpuAccount> {
        let of_rings = || self.gpu.as_ref().map(|gpu| gpu.so_far(&self.lines));
        self.gpu_account.clone().or_else(of_rings).or_else(|| gpu::tapped(&self.lines))
    }

    fn receive(&mut self) {
        let has_clocks = self.has_clocks();
        self.receive_samples();
        for message in self.messages.try_iter() {
            match message.what {
                MessageKind::Names(probes) => self.lines.add_probes(&probes),
                MessageKind::Missed(why) => self.reasons.add(why),
                MessageKind::NotExamined if self.not_examined.len() < MOST_NOT_EXAMINED => {
                    _ = self.not_examined.insert(message.pid)
                }
                MessageKind::NotExamined => self.reasons.add(Incomplete::ManyFilesGone),
                MessageKind::Dump(cause) => self.asked.push_back((message.ts, cause)),
                // At once: the calls that it interrupted have not ended yet.
                MessageKind::Stopped { from } => self.lines.stopped(message.pid, from, message.ts),
                MessageKind::Coming(_, ref probes) => {
                    self.lines.add_probes(probes);
                    self.coming.waiting.push(message);
                }
                MessageKind::Hooked(_) if self.coming.has_line(&message) => {}
                MessageKind::Clock(_) if !has_clocks => {}
                _ => {
                    if let MessageKind::Failed { path, .. } = &message.what {
                        self.coming.has_line(&message);
                        let path = path.display().to_string();
                        self.not_hooked.get_or_insert((path, 0)).1 += 1;
                    }
                    self.waiting.push_back(message);
                }
            }
        }
    }

    /// The last sample is taken after the recording's end; it gets the time of the end, so that the trace becomes no
    /// longer.
    fn receive_samples(&mut self) {
        let end = Some(self.state.cut.load(Ordering::SeqCst)).filter(|cut| *cut != 0);
        for (ts, device) in self.devices.iter().flat_map(Receiver::try_iter) {
            let ts = ts.min(end.unwrap_or(ts));
            self.waiting.push_back(Message { ts, pid: 0, what: MessageKind::Device(device) });
        }
    }

    /// Puts an item off while what its line needs is not known. `all`: also what is not complete.
    fn release(&mut self, all: bool) -> Released {
        let (pairing, lines, waiting) = (&mut self.pairing, &mut self.lines, &mut self.waiting);
        let coming = &mut self.coming;
        let mut each = |item: &Item| {
            ready!(lines.stacks.prepare(item));
            write_until(item.ts, waiting, lines);
            coming.write_before(item, lines);
            pairing.feed(item, lines);
            Poll::Ready(())
        };
        if all { self.order.release_all(&mut each) } else { self.order.release(&mut each) }
    }

    /// Writes a `lost` line for what was lost since the last one.
    fn write_losses(&mut self) {
        let Ok(total) = self.loss.total() else { return };
        self.receive();
        let too_deep = std::mem::take(&mut self.pairing.too_deep);
        if wire::bytes(&total) == wire::bytes(&self.lost_before) && too_deep.is_empty() {
            return;
        }
        let mut by_probe = BTreeMap::new();
        for (id, count) in too_deep {
            by_probe.insert(format!("{} (return)", self.lines.probe_name(id)), count);
        }
        for id in self.lines.probe_ids() {
            let Ok(lost) = self.loss.of_probe(id) else { continue };
            for (key, name, count) in [
                (id * 2, self.lines.probe_name(id).to_owned(), lost.calls),
                (id * 2 + 1, format!("{} (return)", self.lines.probe_name(id)), lost.returns),
            ] {
                let new = count - self.reported.insert(key, count).unwrap_or(0);
                if new > 0 {
                    *by_probe.entry(name).or_insert(0) += new;
                }
            }
        }
        let before = std::mem::replace(&mut self.lost_before, total);
        for (name, count, before) in [
            ("process: fork", total.fork, before.fork),
            ("process: exec", total.exec, before.exec),
            ("process: exit", total.exit, before.exit),
            ("process: library", total.file, before.file),
            (trace::CALL_STACKS, total.stack, before.stack),
        ] {
            if count > before {
                by_probe.insert(name.to_owned(), count - before);
            }
        }
        let count = by_probe.values().sum();
        if count > 0 {
            self.lost += count;
            if by_probe.keys().any(|probe| is_of_blocks(probe)) {
                self.lines.blocks.forget();
            }
            // A call whose stack was lost is in the trace.
            if by_probe.keys().any(|probe| probe != trace::CALL_STACKS && !is_of_blocks(probe)) {
                self.lines.meaning.calls_missing();
            }
            if by_probe.keys().any(|probe| touches_memory(probe)) {
                self.lines.meaning.memory_missing();
            }
            if by_probe.keys().any(|probe| touches_contexts(probe)) {
                self.lines.meaning.contexts_missing();
            }
            if by_probe.keys().any(|probe| touches_collectives(probe)) {
                self.lines.meaning.collectives_missing();
            }
            self.lines.line(0, Body::Lost(trace::Lost { count, by_probe }));
        }
    }

    fn finish(mut self) -> Outcome {
        self.take_back();
        self.receive();
        self.clock_ticks.restart();
        self.look_at_clocks();
        while self.release(true).stopped == Release::PutOff {
            self.lines.stacks.wait(PAUSE);
        }
        write_until(u64::MAX, &mut self.waiting, &mut self.lines);
        self.gpu_account = match self.gpu.take() {
            Some(mut gpu) => Some(gpu.finish(&mut self.lines)),
            None => {
                self.lines.gpu_expire(0, true, GpuSource::Tap);
                gpu::tapped(&self.lines)
            }
        };
        if let Some(account) = &self.gpu_account {
            self.lines.summary().recorder_knows_of_gpu(account.clone());
        }
        self.write_losses();
        let cut = match self.state.cut.load(Ordering::SeqCst) {
            0 => monotonic_ns(),
            cut => cut,
        };
        self.last_dumps();
        let now = self.lines.now_is(cut);
        self.watches.iter_mut().for_each(|watch| watch.end(&mut self.lines, now, self.lost));
        let (in_flight, more) = self.lines.in_flight(&self.pairing.in_flight());
        if more > 0 {
            self.reasons.add(Incomplete::MoreInFlight { count: more });
        }
        let pauses = self.pauses.as_ref().map(|pauses| pauses.so_far());
        let pauses = pauses.map(|(count, total_ns)| trace::Stops { count, total_ns });
        let (stops, unnamed) = (self.lines.stops.all, self.lines.meaning.unnamed());
        self.lines.summary().recorder_knows(&in_flight, Some(stops), pauses, unnamed);
        let (missing, unnamed) = (self.lines.stacks.table.missing, self.lines.stacks.unnamed);
        self.lines.summary().recorder_knows_of_stacks(Gaps { missing, unnamed });
        for reason in self.incomplete() {
            self.lines.summary().incomplete(reason);
        }
        let figures = self.lines.summary().finish(now);
        let finish = Finish {
            events: self.lines.written_so_far(),
            lost: self.lost,
            in_flight,
            complete: figures.complete,
            incomplete_because: figures.incomplete_because.clone(),
            incomplete_codes: figures.incomplete_codes.clone(),
            stops: Some(stops),
            gpu: figures.gpu.as_ref().and_then(|gpu| gpu.account.clone()),
            dump: None,
            summary: figures.to_json(),
        };
        // Each dump has its own end line.
        if self.lines.alarms.is_none() {
            self.lines.line(0, Body::Finish(Box::new(finish)));
        }
        self.lines.flush();
        let hint = self.pairing.killed.and_then(|killed| killed.hint(|probe| self.lines.probe_name(probe)));
        Outcome { figures, failed: self.lines.failed.take(), hint }
    }

    /// Writes the requested dumps, and the dump of the recording's end.
    fn last_dumps(&mut self) {
        if self.lines.alarms.is_some() {
            self.dump_what_is_due(u64::MAX);
            let left = self.lines.alarms.as_ref().map_or(0, |alarms| alarms.left());
            self.dump(Cause::new("end", "the recording ended".to_owned()), left);
        }
    }

    /// The reasons why the trace is not complete, except losses, which the summary knows.
    fn incomplete(&mut self) -> Vec<Reason> {
        let gone = self.files_gone();
        let counted = |count, reason: fn(u64) -> Incomplete| (count > 0).then(|| reason(count));
        let not_hooked = self.not_hooked.as_ref().map(|(first, count)| match count {
            1 => Incomplete::NotHooked { path: first.clone() },
            count => Incomplete::SeveralNotHooked { count: *count, first: first.clone() },
        });
        let first = [
            self.abandoned.then_some(Incomplete::Unread),
            counted(self.undecoded, |count| Incomplete::Undecoded { count }),
            not_hooked,
            counted(self.cut, |count| Incomplete::Cut { count }),
            (self.lost > 0 && self.pauses.is_some()).then_some(Incomplete::NotPaused),
        ];
        let last = [
            counted(self.lines.returns_missed, |count| Incomplete::DriverReturns { count }),
            counted(self.lines.below.forgotten(), |count| Incomplete::ForgottenObjects { count }),
            counted(self.pairing.elsewhere, |count| Incomplete::OtherStack { count }),
            self.pairing.left.reason(|probe| self.lines.probe_name(probe)),
            self.pairing.killed.and_then(|killed| killed.reason()),
            counted(self.pairing.orphans, |count| Incomplete::Orphans { count }),
            self.lines.failed.as_ref().map(|error| Incomplete::NotWritten { error: error.to_string() }),
        ];
        let forgotten = gone.into_iter().chain(self.lines.meaning.forgotten());
        let last = forgotten.chain(last.into_iter().flatten());
        let first = first.into_iter().flatten().map(Reason::from);
        first.chain(self.reasons.all()).chain(last.map(Reason::from)).collect()
    }

    /// A process that makes calls uses CUDA: the files it had mapped could include a CUDA runtime.
    fn files_gone(&mut self) -> Option<Incomplete> {
        let summary = self.lines.summary();
        let mut all: Vec<u32> =
            self.not_examined.iter().copied().filter(|pid| summary.has_calls(*pid)).collect();
        all.sort_unstable();
        let pids: Vec<String> = all.iter().take(10).map(u32::to_string).collect();
        (!all.is_empty()).then(|| Incomplete::FilesGone { count: all.len(), pids: pids.join(", ") })
    }
}
