//! `report idle`: when the GPUs did nothing, and what the host did meanwhile.
//!
//! A gap is a time between the first work of a device and its last in which nothing runs there. The view attributes a
//! gap to the thread whose work ends it, since that thread was late: each part of the gap goes to what the thread did
//! then, up to the return of the call that submitted the work, and the rest to the way from there to the GPU.
//!
//! Lines of GPU work come late, so the view keeps what each thread did (`Log`) until the gaps of that time are known.

use std::collections::{BTreeMap, VecDeque};

use super::idle_text::{Cause, Gap, Spot, Sums};
use super::*;
use crate::gpu::Waits;
use crate::gpu::busy::{Busy, MOST_WAITING, Span};
use crate::recent::Recent;
use gpurec_cuda::FunctionTraits;
use gpurec_trace::hash::Map;
use gpurec_trace::{Gpu, Instant, KernelBegin, Value};

/// Limits on threads and devices, on what all threads did until it is settled, and on gaps listed.
const MOST_THREADS: usize = 65_536;
const MOST_DEVICES: usize = 64;
const MOST_PARTS: usize = 1 << 20;
const LISTED: usize = 1000;

pub const KIND: Kind =
    kind::<Idle>("idle", "when the GPU did nothing, and what the host did meanwhile (--gpu)")
        .table("longest", 10)
        .figures(&[
            shows(
                "gpu.idle_ns",
                "how long the GPU was idle",
                &["busy_ns", "idle_ns", "gaps_count", "waited_gaps", "waited_gap_ns"],
            ),
            shows("cuda_calls", "what the host did meanwhile", &[]),
        ]);

#[derive(Default)]
struct Idle {
    listed: usize,
    functions: Functions,
    /// Each with its call site.
    calls: Calls<Option<Site>>,
    threads: Map<Thread, usize>,
    logs: Vec<Log>,
    /// Number of parts in all logs.
    parts: usize,
    submitted: Recent<Submission>,
    waits: Waits,
    devices: BTreeMap<u32, Device>,
    sums: Sums,
}

#[derive(Clone, Copy)]
struct Submission {
    log: u32,
    site: Option<Site>,
    returned_ns: Option<u64>,
}

/// Some work of a device.
#[derive(Clone, Copy)]
struct Work {
    by: Option<Origin>,
    name: u32,
}

/// The call that submitted some work: the log of its thread, when it returned, and its call site.
#[derive(Clone, Copy)]
struct Origin {
    log: u32,
    returned_ns: u64,
    site: Option<Site>,
}

#[derive(Default)]
struct Device {
    busy: Busy<Work>,
    last: Option<(u64, Work)>,
}

/// What a thread did, without gaps: each part lasts to the beginning of the next, the last one to `upto_ns`.
#[derive(Default)]
struct Log {
    thread: Thread,
    parts: VecDeque<Part>,
    upto_ns: u64,
    /// The beginning of its first part, before which others may be gone, and that of the very first.
    since_ns: u64,
    first_ns: u64,
    /// The innermost open call or span.
    innermost: Option<u64>,
    /// The last outermost call, if it waited for the GPU.
    waited_in: Option<u32>,
    /// The call site of the last call that had one.
    site: Option<Site>,
}

struct Part {
    from_ns: u64,
    cause: Cause,
    spot: Spot,
}

impl Log {
    /// Whether its first parts are gone.
    fn is_cut(&self) -> bool {
        self.since_ns > self.first_ns
    }

    /// A call with a call site begins: the time since the last such call lies between the two.
    fn calls_at(&mut self, site: Site) {
        for part in self.parts.iter_mut().rev() {
            let Spot::Between(_, next @ None) = &mut part.spot else { break };
            *next = Some(site);
        }
        self.site = Some(site);
    }

    /// The call in which the thread was at that time, and its call site.
    fn call_at(&self, ns: u64) -> Option<(u32, Option<Site>)> {
        // A call that ends exactly then counts.
        let upto = self.parts.partition_point(|part| part.from_ns <= ns);
        let mut last = self.parts.range(..upto).rev().take(2);
        last.find_map(|part| Some((part.cause.function()?, part.spot.site_of_call())))
    }

    /// Where the time before a thread's first call is shown: before that call.
    fn before_first(&self) -> Spot {
        Spot::Between(None, self.parts.front().and_then(|part| part.spot.site()))
    }
}

impl View for Idle {
    fn configure(&mut self, config: &ReportConfig) {
        self.listed = config.top.unwrap_or(LISTED).clamp(1, LISTED);
    }

    fn line(&mut self, line: &Line, context: &Context) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin, context.stacks.site_of(line.event_id)),
            Body::End(end) => self.end(line, end),
            Body::KernelBegin(begin) => self.span_begins(line, begin),
            Body::KernelEnd(end) => self.ends(line.ts_ns, end.begin, end.duration_ns),
            Body::Instant(instant) => self.instant(line.ts_ns, instant),
            Body::Transfer(transfer) if transfer.direction == "D2H" => {
                if let Some(ns) = transfer.duration_ns {
                    let thread = (transfer.pid, transfer.tid);
                    self.waits.add(thread, line.ts_ns.saturating_sub(ns), line.ts_ns);
                }
            }
            Body::Process(process) => _ = self.calls.process(line.ts_ns, process),
            Body::Gpu(gpu) => self.work(line.ts_ns, gpu),
            _ => {}
        }
        if self.parts > MOST_PARTS {
            self.settle();
        }
    }

    fn finish(&mut self, context: &Context) -> Report {
        for number in self.devices.keys().copied().collect::<Vec<_>>() {
            let rest = self.devices.get(&number).map(|device| device.busy.rest()).unwrap_or_default();
            rest.iter().for_each(|span| self.span(number, span));
            self.sums.late += self.devices.get(&number).map_or(0, |device| device.busy.late());
        }
        self.sums.report(&self.functions, &context.stacks)
    }

    fn of_figures(&mut self, _: &Figures, _: &Context) -> Option<Report> {
        None
    }
}

impl Idle {
    fn log(&mut self, thread: Thread, ts_ns: u64) -> Option<usize> {
        if let Some(known) = self.threads.get(&thread) {
            return Some(*known);
        }
        if self.logs.len() >= MOST_THREADS {
            return None;
        }
        let index = self.logs.len();
        self.logs.push(Log { thread, upto_ns: ts_ns, since_ns: ts_ns, first_ns: ts_ns, ..Log::default() });
        self.threads.insert(thread, index);
        Some(index)
    }

    fn begin(&mut self, line: &Line, begin: &Begin, site: Option<Site>) {
        let function = self.functions.index(&begin.name);
        let Some(log) = self.log((begin.pid, begin.tid), line.ts_ns) else { return };
        self.changes(log, line.ts_ns);
        let call = Call::new(line.event_id, line.ts_ns, begin, function, site);
        self.calls.begin(call, self.functions.bit(function));
        self.logs[log].innermost = Some(line.event_id);
        if let Some(site) = site {
            self.logs[log].calls_at(site);
        }
        if self.functions.traits(function).is_some_and(FunctionTraits::submits) {
            self.submitted.push(line.event_id, Submission { log: log as u32, site, returned_ns: None });
        }
    }

    fn span_begins(&mut self, line: &Line, begin: &KernelBegin) {
        let Some(log) = self.log((begin.pid, begin.tid), line.ts_ns) else { return };
        self.changes(log, line.ts_ns);
        let function = self.functions.index(&request(begin));
        let span = Call::span(line.event_id, line.ts_ns, begin, function, None);
        self.calls.begin(span, 0);
        self.logs[log].innermost = Some(line.event_id);
    }

    fn end(&mut self, line: &Line, end: &End) {
        if let Some(call) = self.submitted.get_mut(end.begin) {
            call.returned_ns = Some(line.ts_ns);
        }
        self.ends(line.ts_ns, end.begin, end.duration_ns);
    }

    fn ends(&mut self, ts_ns: u64, begin: u64, duration_ns: Option<u64>) {
        let Some(call) = self.calls.get(begin) else { return };
        let (thread, id) = (call.thread(), call.id);
        let log = self.threads.get(&thread).copied();
        // The cause of the time up to here is seen while the call is still open.
        if let Some(log) = log.filter(|log| self.logs[*log].innermost == Some(id)) {
            self.changes(log, ts_ns);
        }
        let Some(call) = self.calls.end(begin, duration_ns) else { return };
        let waits = self.functions.role(call.function) == Some(Role::Sync);
        if waits && !call.has_inside(Role::Sync.bit()) && !call.is_span && duration_ns.is_some() {
            self.waits.add(thread, call.ts_ns, ts_ns);
        }
        let Some(log) = log else { return };
        let log = &mut self.logs[log];
        log.innermost = call.parent;
        if call.parent.is_none() && !call.is_span {
            let waited = waits || call.has_inside(Role::Sync.bit());
            log.waited_in = waited.then_some(call.function as u32);
        }
    }

    fn instant(&mut self, ts_ns: u64, instant: &Instant) {
        if instant.name != crate::driver::OFF_CPU {
            return;
        }
        let Some(log) = self.threads.get(&(instant.pid, instant.tid)).copied() else { return };
        let from_ns = ts_ns.saturating_sub(instant.duration_ns.unwrap_or(0));
        self.changes(log, from_ns);
        let state = match instant.args.as_ref().and_then(|args| args.get("state")) {
            Some(Value::Text(state)) => self.functions.index(&state),
            _ => self.functions.index("unknown"),
        };
        let (cause, spot) = self.now(log);
        let function = cause.function();
        self.add_part(log, ts_ns, Cause::OffCpu(function, state as u32), spot);
    }

    /// The time of a thread up to now goes to what it did.
    fn changes(&mut self, log: usize, ts_ns: u64) {
        let (cause, spot) = self.now(log);
        self.add_part(log, ts_ns, cause, spot);
    }

    fn add_part(&mut self, log: usize, upto_ns: u64, cause: Cause, spot: Spot) {
        let log = &mut self.logs[log];
        if upto_ns > log.upto_ns {
            if log.parts.capacity() == 0 {
                // A trace may have very many threads of one call each.
                log.parts.reserve_exact(2);
            }
            log.parts.push_back(Part { from_ns: log.upto_ns, cause, spot });
            log.upto_ns = upto_ns;
            self.parts += 1;
        }
    }

    /// What a thread does, by its open calls, and where: at the outermost call that has a call site.
    fn now(&self, log: usize) -> (Cause, Spot) {
        let log = &self.logs[log];
        let around = || self.calls.around(log.innermost);
        let site = around().filter_map(|call| call.of).last();
        let spot = site.map_or(Spot::Between(log.site, None), Spot::At);
        let function = around().filter(|call| !call.is_span).last().map(|call| call.function as u32);
        let cause = match (around().find(|call| call.is_span), function) {
            (Some(span), function) => Cause::Driver(function, span.function as u32),
            (None, Some(function)) => Cause::Call(function),
            (None, None) => Cause::Own(log.waited_in),
        };
        (cause, spot)
    }

    fn work(&mut self, ts_ns: u64, gpu: &Gpu) {
        let name = self.functions.index(&gpu.name) as u32;
        let call = gpu.begin.and_then(|begin| self.submitted.get(begin).copied());
        let by = call.map(|call| {
            let of_delay = gpu.queued_ns.map(|ns| ts_ns.saturating_add_signed(ns.saturating_neg()));
            let returned_ns = of_delay.or(call.returned_ns).unwrap_or(ts_ns);
            Origin { log: call.log, returned_ns, site: call.site }
        });
        if self.devices.len() >= MOST_DEVICES && !self.devices.contains_key(&gpu.device) {
            return;
        }
        self.sums.work += 1;
        let most = MOST_WAITING / (self.devices.len() + 1);
        let device = self.devices.entry(gpu.device).or_default();
        let mut settled = Vec::new();
        let to_ns = ts_ns.saturating_add(gpu.duration_ns);
        device.busy.add(ts_ns, to_ns, Work { by, name }, most, |span| settled.push(span));
        settled.iter().for_each(|span| self.span(gpu.device, span));
    }

    /// A span of work is final, and so is the gap before it.
    fn span(&mut self, number: u32, span: &Span<Work>) {
        self.sums.busy_ns = self.sums.busy_ns.saturating_add(span.to_ns - span.from_ns);
        let Some(device) = self.devices.get_mut(&number) else { return };
        let last = device.last.replace((span.to_ns, span.last));
        let Some((since_ns, after)) = last.filter(|(since, _)| *since < span.from_ns) else { return };
        let by = span.first.by.and_then(|by| Some((self.logs.get(by.log as usize)?, by)));
        let (mut waited_ns, mut wait) = (0, None);
        if let Some((log, by)) = by
            && by.returned_ns > since_ns
            && self.waits.covers(log.thread, since_ns)
        {
            waited_ns = by.returned_ns.min(span.from_ns) - since_ns;
            wait = log.call_at(since_ns);
        }
        let gap = Gap {
            device: number,
            since_ns,
            ns: span.from_ns - since_ns,
            thread: by.map(|(log, _)| log.thread),
            after: after.name,
            before: span.first.name,
            waited_ns,
            wait,
            causes: causes(by, since_ns, span.from_ns),
        };
        self.sums.add(gap, self.listed);
    }

    /// Settles the older half of what threads did, with the gaps of that time.
    fn settle(&mut self) {
        let mut times: Vec<u64> =
            self.logs.iter().flat_map(|log| log.parts.iter().map(|part| part.from_ns)).collect();
        let middle = times.len() / 2;
        let Some((_, horizon_ns, _)) = (middle < times.len()).then(|| times.select_nth_unstable(middle))
        else {
            return;
        };
        let horizon_ns = *horizon_ns + 1;
        for number in self.devices.keys().copied().collect::<Vec<_>>() {
            let mut settled = Vec::new();
            if let Some(device) = self.devices.get_mut(&number) {
                device.busy.settle_before(horizon_ns, |span| settled.push(span));
            }
            settled.iter().for_each(|span| self.span(number, span));
        }
        for log in &mut self.logs {
            let gone = log.parts.partition_point(|part| part.from_ns < horizon_ns);
            log.parts.drain(..gone);
            self.parts -= gone;
            log.since_ns = log.parts.front().map_or(log.upto_ns, |part| part.from_ns);
        }
    }
}

/// The name of an ioctl by what it asks for, or of another function of the driver.
fn request(begin: &KernelBegin) -> String {
    let Some(ioctl) = &begin.ioctl else { return begin.name.to_string() };
    match ioctl.detail.get("command").or_else(|| ioctl.detail.get("class")) {
        Some(Value::Text(detail)) => format!("{} {detail}", ioctl.request),
        _ => ioctl.request.to_string(),
    }
}

/// Splits a gap into parts that add up to all of it, each with the place in the code.
fn causes(by: Option<(&Log, Origin)>, since_ns: u64, to_ns: u64) -> Vec<(Cause, Spot, u64)> {
    let Some((log, by)) = by else { return vec![(Cause::Unknown, Spot::NONE, to_ns - since_ns)] };
    let submits = by.site.map_or(Spot::NONE, Spot::At);
    if by.returned_ns <= since_ns {
        return vec![(Cause::Queued, submits, to_ns - since_ns)];
    }
    let until_ns = by.returned_ns.min(to_ns);
    let mut sums: Map<(Cause, Spot), u64> = Map::default();
    let mut add = |cause, spot, ns: u64| {
        if ns > 0 {
            *sums.entry((cause, spot)).or_default() += ns;
        }
    };
    let mut at_ns = since_ns;
    if at_ns < log.since_ns {
        // Before its first call the thread was in its own code, unless that time is settled.
        let before_ns = log.since_ns.min(until_ns) - at_ns;
        match log.is_cut() {
            true => add(Cause::Unknown, Spot::NONE, before_ns),
            false => add(Cause::Own(None), log.before_first(), before_ns),
        }
        at_ns += before_ns;
    }
    let first = log.parts.partition_point(|part| part.from_ns <= at_ns).saturating_sub(1);
    for at in first..log.parts.len() {
        let part = &log.parts[at];
        let end_ns = log.parts.get(at + 1).map_or(log.upto_ns, |next| next.from_ns).min(until_ns);
        if part.from_ns >= until_ns {
            break;
        }
        if end_ns > at_ns {
            add(part.cause, part.spot, end_ns - at_ns);
            at_ns = end_ns;
        }
    }
    add(Cause::Own(None), Spot::Between(log.site, None), until_ns.saturating_sub(at_ns));
    add(Cause::Latency, submits, to_ns - until_ns);
    sums.into_iter().map(|((cause, spot), ns)| (cause, spot, ns)).collect()
}
