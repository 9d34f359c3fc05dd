//! Turns events into figures, one event at a time. Memory grows with the number of functions and libraries seen, of
//! running processes and of their open calls, not with the length of the recording.

mod cost;
mod ended;
mod outcome;
mod processes;
pub(super) mod unfinished;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::asked;
use super::budget::Budget;
use super::categories::Categories;
use super::devices::Devices;
use super::driver::{Driver, Within};
use super::errors::Errors;
use super::failures::{FailureTally, InnerFailures};
use super::figures::{Figures, Finding, Function, ProcessFigures, Sleep, SyncFunction};
use super::gpu::GpuWork;
use super::gpu::nvml::Nvml;
use super::habits::{FinishedCall, Habits};
use super::kernels::{Kernels, Shape};
use super::left_out::LeftOut;
use super::memory::Memories;
use super::stacks::{Gaps, Stacks};
use super::tally::{OTHER_SYNC, Role, Tally};
use super::transfers::Transfers;
use super::unknown::{About, DAMAGED, NO_END, unknown};
use super::usage::Usage;
use cost::Prices;
use ended::Ended;
use gpurec_cuda::{Api, FunctionTraits};
use gpurec_trace::bounds::{BytesLeft, COMMANDS, Entries, MOST_LIVE, MOST_OPEN, Sums};
use gpurec_trace::hash::Map;
use gpurec_trace::tree::{self, Call, Calls};
use gpurec_trace::{Begin, Body, Dump, End, EndKind, Finish, GpuAccount, Header, InFlight, Line, Notes};
use gpurec_trace::{Incomplete, Reason, Reasons, Stops};
use serde::Deserialize;

pub use cost::PaidCalls;

/// Limit on distinct processes and threads; a trace exceeds it only if a program forks without end.
const MOST: usize = 65_536;

/// Limits on bytes of function names, listed library data, and probes that lost events.
const FUNCTION_NAMES: usize = 16 << 20;
const LIBRARIES: usize = 8 << 20;
const LOST: usize = 8 << 20;
const STEPPED: usize = 4 << 20;
/// Bytes that an entry takes in addition to its text.
const EACH: usize = 64;

/// Number of processes that the figures list.
const LISTED_PROCESSES: usize = 100;
/// Number of suspends that the figures list; the others are only counted.
const LISTED_SLEEPS: usize = 8;

/// What the summary keeps of an open call.
#[derive(Default)]
pub(crate) struct Open {
    /// The cost of recording the calls inside.
    nested_ns: u64,
    kernel: Option<usize>,
    shape: Shape,
    /// Device of a launch.
    device: Option<u32>,
    /// The context that the call is about to make current in its thread.
    context: Option<u64>,
    /// Bytes that the call requests.
    asked: Option<u64>,
    /// How long the call had been open when its thread ended.
    died_after_ns: Option<u64>,
    /// Failures inside the call.
    failed: Option<Box<InnerFailures>>,
    /// Activity of nvidia.ko inside the call, if there was any.
    pub(super) within: Option<Box<Within>>,
}

impl Open {
    /// The time in the driver, and off the CPU.
    fn in_driver(&self) -> (u64, u64) {
        self.within.as_ref().map_or((0, 0), |within| (within.kernel_ns, within.off_cpu_ns))
    }
}

#[derive(Default)]
pub struct Summary {
    /// A launch beyond the limit must still count as a launch, so those functions share entries by role.
    pub(super) functions: Entries<Tally, MOST, FUNCTION_NAMES>,
    pub(crate) open: Calls<Open>,
    pub(super) driver: Driver,
    calls_by_thread: Sums<(u32, u32), PaidCalls, MOST>,
    pub(super) processes: BTreeMap<u32, ProcessFigures>,
    /// Index by path and build id.
    by_library: Map<(Box<str>, Option<String>), usize>,
    /// Room left for library data, and for commands.
    libraries_left: BytesLeft<LIBRARIES>,
    commands_left: BytesLeft<COMMANDS>,
    lost_left: BytesLeft<LOST>,
    because: Reasons,
    pub(super) failures: FailureTally,
    pub(super) prices: Option<Prices>,
    /// Functions whose hooks Linux single-steps.
    stepped: HashSet<Box<str>>,
    stepped_left: BytesLeft<STEPPED>,
    last_ns: u64,
    /// In a dump of the flight recorder: where its period begins.
    from_ns: u64,
    dump: Option<Dump>,
    ended: bool,
    /// Calls that died are counted and forgotten when there are many.
    settles_dead: bool,
    /// The recorder's own list, which is more exact: the exit of a thread has no line.
    recorder_in_flight: Option<Vec<InFlight>>,
    /// The figures of the `end` line, for a trace without events.
    stored: Option<Box<Figures>>,
    pub(super) memories: Memories,
    pub(super) transfers: Transfers,
    pub(super) stacks: Stacks,
    pub(super) devices: Devices,
    gpu: GpuWork,
    nvml: Nvml,
    pub(super) kernels: Kernels,
    errors: Errors,
    habits: Habits,
    categories: Categories,
    budget: Budget,
    about: About,
    /// True if the recorded processes may have run before the recording. `begun` has those that started during it.
    attaches: bool,
    begun: BTreeSet<u32>,
    ended_processes: Ended,
    /// The call that ended last and its duration: lines about its consequences follow right after its end.
    last_call: Option<(u64, u64)>,
    /// Sums by process, if something reads them during the recording.
    usage: Option<Box<Usage>>,
    pub(super) figures: Figures,
}

impl Summary {
    pub fn new() -> Summary {
        Summary::default()
    }

    pub fn add(&mut self, line: &Line) {
        if !matches!(line.body, Body::Finish(_)) {
            self.memories.at(line.event_id);
        }
        self.stacks.line(line);
        self.gpu.line(line);
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::Header(header) => self.header(header),
            Body::Process(process) => self.process(line, process),
            Body::Lost(lost) => {
                self.figures.lost = self.figures.lost.saturating_add(lost.count);
                for (probe, count) in &lost.by_probe {
                    self.lost(probe, *count);
                }
            }
            Body::Budget(budget) => {
                self.budget.add(line.ts_ns, budget);
                self.usage.iter_mut().for_each(|usage| usage.budget(line.ts_ns, budget));
            }
            Body::Suspend(suspend) => {
                let sleeps = self.figures.sleeps.get_or_insert_default();
                sleeps.count += 1;
                sleeps.total_ns = sleeps.total_ns.saturating_add(suspend.slept_ns);
                if sleeps.first.len() < LISTED_SLEEPS {
                    sleeps.first.push(Sleep { at_ns: line.ts_ns, slept_ns: suspend.slept_ns });
                }
            }
            Body::Finish(finish) => self.finished(finish),
            Body::Memory(memory) => {
                self.habits.holds(memory);
                let took = memory.begin.map_or(0, |begin| self.took(begin));
                self.memories.add(line.ts_ns, memory, Some(took), &self.stacks);
                self.devices.memory(memory);
                self.measure_memory(memory);
            }
            Body::Transfer(transfer) => {
                self.habits.copied(self.without_cost(transfer.pid, transfer.tid, line.ts_ns), transfer);
                let launches = self.habits.launches(transfer.pid);
                let site = self.stacks.site_of(transfer.begin);
                self.transfers.add(transfer, self.took(transfer.begin), launches, site);
                self.devices.moved(transfer);
                self.of(transfer.pid).for_each(|sums| sums.copied(&transfer.direction, transfer.size));
                self.measure_device(transfer.pid, transfer.on.device);
                if let (Some(ns), "D2H") = (transfer.duration_ns, transfer.direction.as_ref()) {
                    self.waited((transfer.pid, transfer.tid), line.ts_ns.saturating_sub(ns), line.ts_ns);
                }
            }
            Body::KernelBegin(begin) => self.driver.began(line.event_id, line.ts_ns, begin),
            Body::KernelEnd(end) => self.kernel_end(end),
            Body::Instant(instant) => self.instant(instant),
            Body::Xid(xid) => {
                self.driver.xid(line.ts_ns, xid);
                self.usage.iter_mut().for_each(|usage| usage.xid(xid));
            }
            Body::Gpu(gpu) => self.gpu.add(line.ts_ns, gpu),
            Body::Device(device) => {
                self.nvml.add(line.ts_ns, device);
                self.usage.iter_mut().for_each(|usage| usage.device(line.ts_ns, device));
            }
            Body::Clock(_) | Body::Stack(_) | Body::Block(_) | Body::Collective(_) | Body::Unknown(_) => {}
        }
        self.last_ns = self.last_ns.max(line.ts_ns);
    }

    /// Adds the recorder's own reason for an incomplete recording. Lost events come as events and need no reason here.
    pub fn incomplete(&mut self, reason: impl Into<Reason>) {
        self.because.add(reason);
    }

    fn lost(&mut self, probe: &str, count: u64) {
        let by_probe = &mut self.figures.lost_by_probe;
        let known = by_probe.contains_key(probe) || self.lost_left.take(EACH + probe.len());
        let sum = by_probe.entry(if known { probe } else { "(others)" }.to_owned()).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Takes what only the recorder knows: calls that did not return, how long it stopped the processes, of that the
    /// time for --lossless, and the number of launches that had no time for a look-up of their names.
    pub fn recorder_knows(
        &mut self,
        in_flight: &[InFlight],
        stops: Option<Stops>,
        pauses: Option<Stops>,
        unnamed_launches: u64,
    ) {
        self.recorder_in_flight = Some(in_flight.to_vec());
        (self.figures.stops, self.figures.pauses) = (stops, pauses);
        self.figures.unnamed_launches = unnamed_launches;
    }

    /// Whether calls have no stacks now, for --budget.
    pub fn stacks_are_given_up(&self) -> bool {
        self.budget.stacks_are_given_up()
    }

    /// Takes what only the recorder knows of call stacks.
    pub fn recorder_knows_of_stacks(&mut self, gaps: Gaps) {
        self.stacks.recorder = gaps;
    }

    /// Takes the recorder's account of GPU work.
    pub fn recorder_knows_of_gpu(&mut self, account: GpuAccount) {
        self.gpu.account(account);
    }

    fn waited(&mut self, thread: (u32, u32), from_ns: u64, to_ns: u64) {
        if self.gpu.is_on() {
            self.gpu.waited(thread, from_ns, to_ns);
        }
    }

    /// Whether `add` reads the arguments of a function's `Begin`. They may be left out otherwise.
    pub fn reads_args(traits: &FunctionTraits) -> bool {
        traits.allocates() || Errors::reads_context(traits)
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.function(&begin.name);
        let Some(tally) = self.functions.get(function) else { return };
        let (traits, role, stepped) = (&tally.traits, tally.role, tally.stepped);
        let context = Errors::context_of(traits, begin);
        let asked = if traits.allocates() { asked::bytes(traits, &begin.args) } else { None };
        if self.gpu.is_on() && traits.submits() {
            let site = self.stacks.site_of(line.event_id);
            self.gpu.submits(line.event_id, (begin.pid, begin.tid), site);
        }
        match traits.api {
            Api::Other => self.figures.other_calls += 1,
            Api::Driver | Api::Runtime => self.figures.cuda_calls += 1,
        }
        let paid = self.calls_by_thread.of((begin.pid, begin.tid));
        if paid.calls == 0 {
            self.ended_processes.meets((begin.pid, begin.tid));
        }
        paid.calls += 1;
        paid.stepped += u64::from(stepped);
        if let Some(usage) = &mut self.usage {
            usage.called((begin.pid, begin.tid), line.ts_ns, traits.api, stepped);
        }
        let launch = begin.launch.as_ref();
        if launch.is_some() {
            self.memories.launched(begin.pid, line.ts_ns);
        }
        let device = launch.and_then(|launch| launch.on.device);
        // A node added to a graph is not launched yet.
        let launch = launch.filter(|_| role == Some(Role::KernelLaunch));
        let kernel = launch.and_then(|launch| self.kernels.index(launch));
        let shape = launch.map_or((None, None), |launch| (launch.grid, launch.block));
        let open = Open { kernel, shape, device, context, asked, ..Open::default() };
        let call = Call::new(line.event_id, line.ts_ns, begin, function, open);
        self.open.begin(call, role.map_or(0, Role::bit));
    }

    fn end(&mut self, line: &Line, end: &End) {
        let (functions, prices) = (&self.functions, &self.prices);
        let mut open = self.open.end_in(end.begin, end.duration_ns, |call, caller| {
            let stepped = functions.get(call.function).is_some_and(|tally| tally.stepped);
            let own_ns = prices.as_ref().map_or(0, |prices| prices.of(stepped));
            let nested_ns = call.of.nested_ns.saturating_add(own_ns);
            caller.of.nested_ns = caller.of.nested_ns.saturating_add(nested_ns);
        });
        let function = match &open {
            Some(open) => open.function,
            None => {
                self.figures.unmatched_ends += u64::from(!self.open.was_left_out());
                self.function(&end.name)
            }
        };
        if end.ended == EndKind::Unwound {
            self.figures.unwound_calls += 1;
        }
        self.outcome(line, end, function, open.as_mut());
        self.measure_failures();
        let Some(tally) = self.functions.get_mut(function) else {
            return;
        };
        if let Some(ns) = end.duration_ns {
            if self.gpu.is_on() && tally.traits.submits() {
                let nested_ns = open.as_ref().map_or(0, |open| open.of.nested_ns);
                let own_ns = self.prices.as_ref().map_or(0, |prices| prices.of(tally.stepped));
                self.gpu.returned(end.begin, ns.saturating_sub(nested_ns.saturating_add(own_ns)));
            }
            tally.add(ns);
            tally.paused_ns = tally.paused_ns.saturating_add(end.paused_ns);
            let inside_ns = open.as_ref().map_or(0, |open| open.inside_ns);
            tally.own_ns = tally.own_ns.saturating_add(ns.saturating_sub(inside_ns));
            self.last_call = Some((end.begin, ns));
            if let Some(open) = &open {
                let (kernel_ns, off_cpu_ns) = open.of.in_driver();
                tally.add_inside(open.of.nested_ns, kernel_ns, off_cpu_ns);
            }
        }
        let role = tally.role;
        if let (Some(open), Some(ns)) = (&mut open, end.duration_ns) {
            self.maybe_slow(end, open, ns);
        }
        let succeeded = tree::succeeded(end);
        match role {
            Some(role) if open.as_ref().is_some_and(|open| open.has_inside(role.bit())) => {}
            Some(Role::KernelLaunch) if succeeded => self.launched(end, open.as_ref()),
            Some(Role::GraphLaunch) if succeeded => {
                self.figures.graph_launches += 1;
                self.of(end.pid).for_each(|sums| sums.graph_launches += 1);
                let device = open.as_ref().and_then(|open| self.device_of(open));
                self.devices.launched(end.pid, device, true);
                self.measure_device(end.pid, device);
                self.habits.launched(end.pid);
                self.errors.launched(end.pid, end.tid, None);
            }
            Some(Role::Sync) => {
                let sync = &mut self.figures.sync;
                sync.calls += 1;
                sync.total_ns = sync.total_ns.saturating_add(end.duration_ns.unwrap_or(0));
                self.measure_wait(end);
                if let Some(open) = &open {
                    self.waited((end.pid, end.tid), open.ts_ns, line.ts_ns);
                }
            }
            _ => {}
        }
        if end.error.is_none() && end.ended == EndKind::Returned {
            if role == Some(Role::Sync) {
                self.errors.synchronised(end, function, line.ts_ns);
            }
            if let Some(tally) = self.functions.get(function).filter(|tally| tally.traits.switches()) {
                self.errors.switched(&tally.traits, end, open.as_ref().and_then(|open| open.of.context));
            }
        }
        if end.ended == EndKind::Returned && open.is_some_and(|open| open.parent.is_none()) {
            self.outermost(end, function, line.ts_ns);
        }
    }

    fn outermost(&mut self, end: &End, function: usize, at_ns: u64) {
        let Some(tally) = self.functions.get(function) else { return };
        let ns = end.duration_ns.unwrap_or(0);
        self.categories.add(tally.category, ns);
        let error = end.error.as_deref();
        let site = self.stacks.site_of(end.begin);
        let role = tally.call_role;
        self.habits.add(&FinishedCall {
            pid: end.pid,
            tid: end.tid,
            function,
            tally,
            error,
            ns,
            at_ns: self.without_cost(end.pid, end.tid, at_ns),
            site,
        });
        self.measure_call(end, function, role, site);
    }

    fn took(&self, begin: u64) -> u64 {
        self.last_call.filter(|(last, _)| *last == begin).map_or(0, |(_, ns)| ns)
    }

    fn function(&mut self, name: &str) -> usize {
        let new = |kept| Tally::new(name, kept, self.stepped.contains(name));
        self.functions.number(Some(name), new, Tally::is_like)
    }

    fn header(&mut self, header: &Header) {
        self.prices = Prices::of_header(header);
        self.driver.header(header);
        self.budget.header(header);
        self.about.left_out = LeftOut::of(header);
        self.measure_options();
        self.attaches = header.all || header.pids.is_some();
        for (layer, hooks) in &header.hooks {
            if !hooks.refused.is_empty() {
                self.figures.refused.insert(layer.clone(), hooks.refused.clone());
            }
        }
    }

    /// Makes this the summary of a dump: it has the lines of a period, and carried ones from before.
    pub fn of_dump(&mut self, dump: &Dump) {
        self.from_ns = dump.from_ns;
        self.dump = Some(dump.clone());
    }

    fn finished(&mut self, finish: &Finish) {
        self.ended = true;
        if let Some(dump) = &finish.dump {
            self.of_dump(dump);
        }
        self.figures.lost = self.figures.lost.max(finish.lost);
        finish.reasons().for_each(|reason| self.incomplete(reason));
        if !finish.complete && finish.incomplete_because.is_empty() && finish.lost == 0 {
            self.incomplete(Incomplete::Recorder);
        }
        let pauses = Stops::deserialize(&finish.summary["pauses"]).ok();
        let unnamed = finish.summary["unnamed_launches"].as_u64().unwrap_or(0);
        self.recorder_knows(&finish.in_flight, finish.stops, pauses, unnamed);
        if let Some(account) = &finish.gpu {
            self.gpu.account(account.clone());
        }
        self.stored = Figures::from_json(&finish.summary).ok().map(Box::new);
    }

    /// The figures of a recording that ends at `at_ns`, the ts of its `end` line.
    pub fn finish(&self, at_ns: u64) -> Figures {
        let mut figures = self.figures.clone();
        figures.duration_ns = at_ns.saturating_sub(self.from_ns);
        figures.budget = self.budget.finish(at_ns);
        self.reasons(&mut figures);
        figures.complete = figures.incomplete_because.is_empty();
        figures.in_flight = self.recorder_in_flight.clone().unwrap_or_else(|| self.in_flight(at_ns));
        let with_kernel = self.driver.seen;
        let open = self.unfinished(&mut figures);
        let all = self.functions.iter().enumerate().map(|(at, tally)| open.get(&at).unwrap_or(tally));
        let (others, named): (Vec<&Tally>, Vec<_>) = all.partition(|tally| tally.is_other);
        let mut merged: Vec<Tally> = Vec::new();
        for tally in others {
            match merged.iter_mut().find(|known| known.name == tally.name) {
                Some(known) => known.merge(tally),
                None => merged.push(tally.clone()),
            }
        }
        let all = named.into_iter().chain(&merged);
        figures.functions = all.filter_map(|tally| tally.figures(with_kernel)).collect();
        figures.failures =
            self.failures.finish(self.open.iter().filter_map(|open| open.of.failed.as_deref()), &|site| {
                self.stacks.text(site)
            });
        figures.kernel_space = self.driver.finish(|function| self.name_of(function));
        figures.driver_errors = self.driver.errors();
        figures.functions.sort_by(|a, b| (b.total_ns, &a.name).cmp(&(a.total_ns, &b.name)));
        figures.sync.by_function = sync_functions(&figures.functions);
        figures.memory = self.memories.finish(at_ns);
        figures.transfers = self.transfers.finish();
        figures.stacks = self.stack_figures(&figures.in_flight);
        figures.devices = self.devices.finish();
        figures.gpu = self.gpu.finish();
        figures.nvml = self.nvml.finish();
        (figures.kernels, figures.more_kernels) = self.kernels.finish();
        figures.error_windows = self.errors.finish();
        figures.findings = self.findings(at_ns);
        self.list_processes(&mut figures);
        figures.attached = self.attaches && figures.processes.iter().any(|process| process.ran_before);
        figures.cost = self.cost();
        let about = About { earlier_frees: self.memories.earlier_frees, ..self.about.clone() };
        figures.unknown = unknown(&figures, &about);
        figures.notes.extend(self.dump.as_ref().map(|dump| {
            let (at, because) = (super::text::seconds(dump.from_ns), &dump.because);
            format!("this is a part of a recording, from {at} s on: the flight recorder wrote it because {because}")
        }));
        figures
    }

    /// The recorder's reasons, and those that follow from the lines.
    fn reasons(&self, figures: &mut Figures) {
        let mut all = self.because.clone();
        let count = self.open.left_out() + self.driver.open.left_out();
        if count > 0 {
            all.add(Incomplete::NotFollowed { count, most: MOST_OPEN });
        }
        if self.memories.unfollowed > 0 {
            all.add(Incomplete::MemoryNotFollowed { count: self.memories.unfollowed, most: MOST_LIVE });
        }
        if figures.lost > 0 {
            let was = if figures.lost == 1 { "event was" } else { "events were" };
            all.add(Incomplete::Lost { events: format!("{} {was}", figures.lost) });
        }
        if let Some(budget) = &figures.budget {
            all.add(Incomplete::Budget { reason: budget.reason() });
        }
        all.all().into_iter().for_each(|reason| figures.incomplete(reason));
    }

    fn findings(&self, whole_ns: u64) -> Vec<Finding> {
        let mut all = self.memories.findings(self.categories.but_init_ns());
        all.extend(self.kernels.findings(|pid| self.habits.waited_ns(pid), &self.stacks));
        all.extend(self.transfers.findings(whole_ns, &self.stacks));
        all.extend(self.gpu.findings(whole_ns, &self.stacks));
        // These findings rely on the absence of calls.
        if !self.budget.left_out() && self.about.left_out.is_none() {
            all.extend(self.habits.findings(|function| self.name_of(function), whole_ns, &self.stacks));
        }
        all
    }

    /// The figures of a file that was read to its end.
    pub(super) fn of_file(&self, notes: &Notes) -> Figures {
        let end_ns = notes.window.map_or(self.last_ns, |(_, to)| self.last_ns.min(to));
        let mut figures = self.finish(end_ns);
        figures.is_part = notes.part.is_some();
        // A recording with --summary-only has figures and no events.
        if self.functions.iter().next().is_none()
            && self.driver.is_empty()
            && !figures.is_part
            && let Some(stored) = &self.stored
        {
            figures = (**stored).clone();
        }
        if let Some((from, to)) = notes.window {
            let [from, to] = [from, to].map(|at| at.saturating_sub(self.from_ns));
            figures.duration_ns = figures.duration_ns.min(to).saturating_sub(from);
        }
        let broken = if self.ended { DAMAGED } else { NO_END };
        let is_whole = self.ended && notes.is_whole();
        if !is_whole || notes.part_cuts_memory {
            let broken = (!is_whole).then_some(broken);
            let about = About { broken, ..About::of_part(notes) };
            for (figure, reason) in unknown(&figures, &about) {
                figures.unknown.entry(figure).or_insert(reason);
            }
        }
        figures.complete &= is_whole;
        figures.notes.extend(notes.sentences());
        figures
    }

    pub(super) fn name_of(&self, function: usize) -> &str {
        self.functions.get(function).map_or("?", |tally| &tally.name)
    }
}

fn sync_functions(functions: &[Function]) -> Vec<SyncFunction> {
    let is_sync = |name: &str| Role::of(&FunctionTraits::of(name)) == Some(Role::Sync) || name == OTHER_SYNC;
    let sync = functions.iter().filter(|f| is_sync(&f.name)).cloned();
    sync.map(|Function { name, calls, total_ns, unfinished, .. }| SyncFunction {
        name,
        calls,
        total_ns,
        unfinished,
    })
    .collect()
}
