//! The thread that empties the rings. It looks every few milliseconds by itself, so the
//! target never pays for waking it. In: rings, messages of the recorder. Out: lines; at
//! the end, what `end` says.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::decode::{self, Item, What};
use super::order::{self, Order};
use super::pair::Pairing;
use super::ring::{Ring, Stopped};
use super::sink::Lines;
use super::sleeps::{Reading, Sleeps};
use crate::probe::kernel::Change;
use crate::probe::pauses::Pauses;
use crate::probe::wire::{self, LostTotal};
use crate::probe::{Library, LossCounters, Probe};
use crate::record::watch::Watch;
use crate::report::Figures;
use crate::room::Sentences;
use crate::trace::{self, Body, Finish, Header, Process};

const PAUSE: Duration = Duration::from_millis(2);
const FLUSH: Duration = Duration::from_millis(500);
/// How often rows go to a person's screen.
const SHOW: Duration = Duration::from_millis(100);
/// How often a ring is looked at again at the end for a record that is still being written.
const LAST_LOOKS: u32 = 500;

/// What the recorder tells the worker between records.
pub struct Message {
    /// CLOCK_MONOTONIC ns: where among the records it belongs.
    pub ts: u64,
    pub pid: u32,
    pub what: Told,
}

pub enum Told {
    /// Probes that will be hit: told before they can be.
    Names(Vec<Probe>),
    /// A library that is being hooked: its calls may come before it is `Hooked`, or `Failed`.
    Coming(Library, Vec<Probe>),
    Hooked(Library),
    Failed {
        path: PathBuf,
        reason: String,
    },
    /// A module of the driver's came or went.
    Module(Change),
    /// Why hits are missing of which nobody knows how many.
    Missed(String),
    /// A function was given up for --budget, or taken back.
    Budget(trace::Budget),
    /// The machine was suspended.
    Slept(trace::Suspend),
}

/// How far the recording is, for all threads.
#[derive(Default)]
pub struct State {
    step: AtomicU8,
    /// When the hooks fell silent; 0 before.
    cut: AtomicU64,
}

impl State {
    const DRAIN: u8 = 1;
    const STOP: u8 = 2;

    /// The recording ends here, whatever is still to be read.
    pub fn cut(&self, ts: u64) {
        self.cut.store(ts, Ordering::SeqCst);
    }

    /// Every hook is gone: read what is left, then end.
    pub fn drain(&self) {
        self.step.fetch_max(Self::DRAIN, Ordering::SeqCst);
    }

    /// End without reading the rest.
    pub fn stop(&self) {
        self.step.fetch_max(Self::STOP, Ordering::SeqCst);
    }
}

pub struct Worker {
    rings: Vec<Ring>,
    order: Order,
    pairing: Pairing,
    lines: Lines,
    messages: Receiver<Message>,
    waiting: VecDeque<Message>,
    coming: Coming,
    loss: LossCounters,
    lost_before: LostTotal,
    told: HashMap<u32, u64>,
    told_other: HashMap<&'static str, u64>,
    lost: u64,
    undecoded: u64,
    /// Libraries that could not be hooked: their calls are not in the trace.
    not_hooked: Sentences,
    missed: Sentences,
    /// Records without the memory that was to be read with them.
    cut: u64,
    pauses: Option<Arc<Pauses>>,
    state: Arc<State>,
    watch: Option<Watch>,
    sleeps: Sleeps,
    /// The rings were left unread at the end.
    abandoned: bool,
}

/// What is left of a recording.
pub struct Outcome {
    pub figures: Figures,
    pub failed: Option<std::io::Error>,
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
        let lost_before = loss.before;
        Worker {
            rings,
            order,
            pairing: Pairing::default(),
            lines,
            messages,
            waiting: VecDeque::new(),
            coming: Coming::default(),
            loss,
            lost_before,
            told: HashMap::new(),
            told_other: HashMap::new(),
            lost: 0,
            undecoded: 0,
            not_hooked: Sentences::default(),
            missed: Sentences::default(),
            cut: 0,
            pauses: None,
            state,
            watch: None,
            sleeps: Sleeps::default(),
            abandoned: false,
        }
    }

    /// Lets go who waits for the rings to be emptied.
    pub fn letting_go(self, pauses: Option<Arc<Pauses>>) -> Worker {
        Worker { pauses, ..self }
    }

    /// With somebody who is told of it from time to time.
    pub fn watched_by(self, watch: Watch) -> Worker {
        Worker { watch: Some(watch), ..self }
    }

    pub fn run(mut self, header: Header) -> Outcome {
        go_first();
        self.look_at_clocks();
        self.lines.line(0, Body::Header(Box::new(header)));
        self.lines.flush();
        let mut flushed = Instant::now();
        let mut shown = Instant::now();
        let mut last_looks = 0;
        loop {
            let state = self.state.step.load(Ordering::SeqCst);
            if state == State::STOP {
                self.abandoned = self.rings.iter().any(|ring| ring.waiting() > 0);
                break;
            }
            let busy = self.round();
            if flushed.elapsed() >= FLUSH {
                self.tell_losses();
                self.lines.flush();
                flushed = Instant::now();
            }
            if shown.elapsed() >= SHOW {
                self.lines.show();
                self.look_at_clocks();
                shown = Instant::now();
            }
            self.tell_watch();
            if state == State::DRAIN && !busy {
                // A record may still be being written, by a thread that was preempted in it.
                let unfinished = self.rings.iter().any(|ring| ring.waiting() > 0);
                last_looks += 1;
                if !unfinished || last_looks > LAST_LOOKS {
                    self.abandoned = unfinished;
                    break;
                }
            }
            if !busy {
                std::thread::sleep(PAUSE);
            }
        }
        self.finish()
    }

    /// Told when it is noticed: a moment after the machine woke up.
    fn look_at_clocks(&mut self) {
        if let Some(slept_ns) = self.sleeps.look(Reading::now()) {
            let what = Told::Slept(trace::Suspend { slept_ns });
            self.waiting.push_back(Message { ts: monotonic_ns(), pid: 0, what });
        }
    }

    /// Not once the recording is over: hooks may take long to be removed.
    fn tell_watch(&mut self) {
        if self.state.cut.load(Ordering::SeqCst) != 0 {
            return;
        }
        let Some(mut watch) = self.watch.take() else { return };
        let (report, status) = watch.due();
        if report || status {
            self.tell_losses();
            let at = self.lines.since_start(monotonic_ns());
            if report {
                watch.report(&self.lines, at, self.lost);
            }
            if status {
                watch.status(&self.lines, at, self.lost);
            }
        }
        self.watch = Some(watch);
    }

    /// One look at every ring. Returns whether there was much to do.
    fn round(&mut self) -> bool {
        let now = monotonic_ns();
        let (mut records, mut more) = (0, false);
        self.lines.hurry = self.rings.iter().any(Ring::fills);
        for (i, ring) in self.rings.iter_mut().enumerate() {
            if !self.order.wants(i) {
                continue;
            }
            let (order, undecoded, cut) = (&mut self.order, &mut self.undecoded, &mut self.cut);
            let stopped = ring.read(order::PART, |bytes| {
                records += 1;
                *cut += u64::from(decode::is_cut(bytes));
                match decode::decode(bytes) {
                    Some(item) => order.push(i, item),
                    None => *undecoded += 1,
                }
            });
            match stopped {
                Stopped::Drained => self.order.complete(i, now),
                Stopped::Busy => self.order.is_held_up(i),
                Stopped::Many => self.order.has_more(i),
            }
            more |= stopped == Stopped::Many;
        }
        // It goes on while its records are written. If writing waits, so does this thread, and then
        // whoever fills the rings again.
        if let Some(pauses) = &self.pauses
            && self.rings.iter().all(|ring| ring.waiting() <= pauses.low)
        {
            pauses.let_go();
        }
        // Sent before a stopped process was let go: so before any call that it makes possible.
        self.receive();
        let told_to = self.release(Order::release);
        // What happened later is told when all before it is.
        tell_until(now.min(told_to), &mut self.waiting, &mut self.lines);
        more || records > 1000
    }

    fn receive(&mut self) {
        for message in self.messages.try_iter() {
            match message.what {
                Told::Names(probes) => self.lines.add_probes(&probes),
                Told::Missed(why) => self.missed.add(why),
                Told::Coming(_, ref probes) => {
                    self.lines.add_probes(probes);
                    self.coming.untold.push(message);
                }
                Told::Hooked(_) if self.coming.is_told(&message) => {}
                _ => {
                    if let Told::Failed { path, .. } = &message.what {
                        self.coming.is_told(&message);
                        self.not_hooked.add(path.display().to_string());
                    }
                    self.waiting.push_back(message);
                }
            }
        }
    }

    fn release<T>(&mut self, release: impl FnOnce(&mut Order, &mut dyn FnMut(Item)) -> T) -> T {
        let (pairing, lines, waiting) = (&mut self.pairing, &mut self.lines, &mut self.waiting);
        let coming = &mut self.coming;
        release(&mut self.order, &mut |item| {
            tell_until(item.ts, waiting, lines);
            coming.tell_before(&item, lines);
            pairing.feed(&item, lines);
        })
    }

    /// A `lost` line for what was lost since the last one.
    fn tell_losses(&mut self) {
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
                let new = count - self.told.insert(key, count).unwrap_or(0);
                if new > 0 {
                    *by_probe.entry(name).or_insert(0) += new;
                }
            }
        }
        let before = self.lost_before;
        for (name, count, before) in [
            ("process: fork", total.fork, before.fork),
            ("process: exec", total.exec, before.exec),
            ("process: exit", total.exit, before.exit),
            ("process: library", total.file, before.file),
        ] {
            let told = self.told_other.entry(name).or_insert(before);
            if count > *told {
                by_probe.insert(name.to_owned(), count - *told);
                *told = count;
            }
        }
        self.lost_before = total;
        let count = by_probe.values().sum();
        if count > 0 {
            self.lost += count;
            self.lines.calls_missing();
            self.lines.line(0, Body::Lost(trace::Lost { count, by_probe }));
        }
    }

    fn finish(mut self) -> Outcome {
        self.receive();
        self.look_at_clocks();
        self.release(Order::release_all);
        tell_until(u64::MAX, &mut self.waiting, &mut self.lines);
        self.tell_losses();
        let cut = match self.state.cut.load(Ordering::SeqCst) {
            0 => monotonic_ns(),
            cut => cut,
        };
        let now = self.lines.now_is(cut);
        let (in_flight, more) = self.lines.in_flight(&self.pairing.in_flight());
        if more > 0 {
            self.missed.add(format!(
                "{more} more calls had not returned than are listed as in flight: their begins have no end"
            ));
        }
        self.lines.summary.in_flight_is(&in_flight);
        if let Some(pauses) = &self.pauses {
            let (count, total_ns) = pauses.so_far();
            self.lines.summary.paused(count, total_ns);
        }
        self.lines.summary.unnamed(self.lines.unnamed());
        for reason in self.incomplete_because() {
            self.lines.summary.incomplete(&reason);
        }
        let figures = self.lines.summary.finish(now);
        let finish = Finish {
            events: self.lines.written_so_far(),
            lost: self.lost,
            in_flight,
            complete: figures.complete,
            incomplete_because: figures.incomplete_because.clone(),
            summary: figures.to_json(),
        };
        self.lines.line(0, Body::Finish(Box::new(finish)));
        self.lines.flush();
        Outcome { figures, failed: self.lines.failed.take() }
    }

    /// Besides losses, of which the summary knows.
    fn incomplete_because(&self) -> Vec<String> {
        let mut because = Vec::new();
        if self.abandoned {
            because.push("the recording was ended without reading what was left in the rings".to_owned());
        }
        if self.undecoded > 0 {
            because.push(format!("{} records could not be decoded", self.undecoded));
        }
        if let Some(first) = self.not_hooked.list().first() {
            because.push(match self.not_hooked.count() {
                1 => format!("{first} could not be hooked, its calls were not seen"),
                n => format!(
                    "{n} libraries could not be hooked, their calls were not seen: {first} and others"
                ),
            });
        }
        if self.cut > 0 {
            because.push(format!(
                "{} records are without the memory that was to be read with them: nothing was free to put it together in",
                self.cut
            ));
        }
        if self.lost > 0 && self.pauses.is_some() {
            because.push(
                "--lossless pauses only the processes that are recorded (through sudo, the caller's own), where they make calls: try a larger --ring"
                    .to_owned(),
            );
        }
        because.extend(self.missed.all());
        because.extend(self.lines.forgotten());
        if self.lines.returns_missed > 0 {
            because.push(format!(
                "{} returns of kernel functions were not seen: their ends say \"lost\"",
                self.lines.returns_missed
            ));
        }
        if self.lines.forgotten_objects() > 0 {
            because.push(format!(
                "{} objects of the driver were too many to remember: requests on them are shown without a class",
                self.lines.forgotten_objects()
            ));
        }
        if self.pairing.elsewhere > 0 {
            because.push(format!(
                "{} calls were made on another stack than an open call of their thread (a signal's, a coroutine's): their returns were not watched",
                self.pairing.elsewhere
            ));
        }
        if self.pairing.orphans > 0 {
            because.push(format!("{} returns came after their calls were closed", self.pairing.orphans));
        }
        if let Some(error) = &self.lines.failed {
            because.push(format!("the trace could not be written: {error}"));
        }
        because
    }
}

/// Libraries that are being hooked while who calls them is not stopped (--all). A call proves that one is.
#[derive(Default)]
struct Coming {
    untold: Vec<Message>,
    /// What is to be told no more, by time and process.
    told: Vec<(u64, u32)>,
}

impl Coming {
    fn tell_before(&mut self, item: &Item, lines: &mut Lines) {
        if self.untold.is_empty() {
            return;
        }
        let What::Call { probe, .. } = item.what else { return };
        // An earlier one is of another file that has a function of that name: they share a number.
        let is_of = |message: &Message| {
            matches!(&message.what, Told::Coming(_, probes) if probes.iter().any(|p| p.id == probe))
                && message.ts <= item.ts
        };
        if let Some(at) = self.untold.iter().position(is_of) {
            let message = self.untold.remove(at);
            self.told.push((message.ts, message.pid));
            tell(message, lines);
        }
    }

    /// It has been hooked, or not: was it told before?
    fn is_told(&mut self, end: &Message) -> bool {
        let key = (end.ts, end.pid);
        self.untold.retain(|message| (message.ts, message.pid) != key);
        let told = self.told.iter().position(|told| *told == key);
        told.map(|at| self.told.remove(at)).is_some()
    }
}

fn tell_until(ts: u64, waiting: &mut VecDeque<Message>, lines: &mut Lines) {
    while waiting.front().is_some_and(|message| message.ts <= ts) {
        if let Some(message) = waiting.pop_front() {
            tell(message, lines);
        }
    }
}

fn tell(message: Message, lines: &mut Lines) {
    let Message { ts, pid, what } = message;
    let refused =
        |name: &str, reason: &str| trace::Refused { name: name.to_owned(), reason: reason.to_owned() };
    let (path, build_id, functions, not_hooked) = match what {
        Told::Names(_) | Told::Missed(_) => return,
        Told::Budget(line) => {
            lines.calls_missing();
            lines.line(ts, Body::Budget(line));
            return;
        }
        Told::Slept(suspend) => {
            lines.line(ts, Body::Suspend(suspend));
            return;
        }
        Told::Coming(library, _) | Told::Hooked(library) => {
            let not_hooked = library.not_hooked.iter().map(|n| refused(&n.name, &n.reason)).collect();
            (library.path, library.build_id, library.functions as u64, not_hooked)
        }
        Told::Module(change) => {
            let went = refused(&change.modules, "the module was unloaded, its hooks are gone");
            let not_hooked = if change.came { change.refused } else { vec![went] };
            (format!("[{}]", change.modules).into(), None, change.hooked as u64, not_hooked)
        }
        Told::Failed { path, reason } => {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            (path, None, 0, vec![refused(&name, &reason)])
        }
    };
    let path = path.to_string_lossy().into_owned().into();
    let library = trace::Library { pid, tid: pid, path, build_id, functions, not_hooked };
    lines.line(ts, Body::Process(Process::Library(library)));
}

/// Threads that call as fast as they can would keep this one from emptying their rings:
/// it takes little time, but takes it first. Without the right to do so it goes on as it is.
fn go_first() {
    // SAFETY: plain integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

/// The clock that BPF's records have, also where a time namespace gives gpurec another one.
pub fn monotonic_ns() -> u64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    let ahead = *AHEAD.get_or_init(|| namespace_ns(&std::fs::read_to_string(OFFSETS).unwrap_or_default()));
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let ns = time.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64);
    ns.wrapping_sub(ahead as u64)
}

const OFFSETS: &str = "/proc/self/timens_offsets";

/// By how much the monotonic clock of a time namespace is ahead of the kernel's own.
pub(super) fn namespace_ns(offsets: &str) -> i64 {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"));
    let mut numbers =
        line.into_iter().flat_map(str::split_whitespace).map_while(|word| word.parse::<i64>().ok());
    let (seconds, ns) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}
