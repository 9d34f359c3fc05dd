//! What the GPUs did, from the lines of GPU work.
//!
//! In: `gpu` lines, late and in any order, and the calls that submit work or wait for it. Out: figures: when each device
//! was busy and idle, the time of kernels, streams and copies, delays, and findings. Memory is bounded: by the numbers
//! of devices, streams and kernel names, by the calls that are kept until their work is reported (`Recent`), and by the
//! spans that wait for earlier ones (`Busy`). A trace without such lines costs nothing.

pub mod busy;
pub mod figures;
mod findings;
pub mod nvml;
pub mod text;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::figures::{OTHERS, truncate};
use crate::recent::{Recent, announces};
use crate::spread::Spread;
use crate::stacks::{Places, Site};
use busy::{Busy, MOST_WAITING, Span};
use figures::{
    GpuCopyFigures, GpuDeviceFigures, GpuFigures, GpuKernelFigures, GpuStreamFigures, QueueFigures,
};
use gpurec_trace::bounds::{Entries, entry};
use gpurec_trace::hash::Map;
use gpurec_trace::{Gpu, GpuAccount, GpuKind, Line};

/// Limits on devices, whose work beyond it counts only in the sums; on streams; on kernels and bytes of their names; on
/// directions.
const MOST_DEVICES: usize = 64;
const MOST_STREAMS: usize = 65_536;
const MOST_KERNELS: usize = 65_536;
const NAMES: usize = 16 << 20;
const DIRECTIONS: usize = 64;

/// Number of kernels and streams that the figures list.
const LISTED: usize = 100;

/// Limits on threads whose waits are kept, and on the waits of all: several for each span that waits for earlier ones.
const MOST_THREADS: usize = 65_536;
const MOST_WAITS: usize = 1 << 20;

#[derive(Default)]
pub struct GpuWork {
    /// Calls are followed.
    is_on: bool,
    seen: GpuFigures,
    devices: BTreeMap<u32, DeviceWork>,
    streams: Map<StreamKey, Sum>,
    other_streams: Sum,
    kernels: Entries<KernelWork, MOST_KERNELS, NAMES>,
    copies: Entries<GpuCopyFigures, DIRECTIONS, { DIRECTIONS * 64 }>,
    queue: Spread,
    submitted: Recent<Submission>,
    waits: Waits,
    short: ShortKernels,
}

/// A stream, by CUPTI's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    pub device: u32,
    pub pid: u32,
    pub context: u32,
    pub stream: u32,
}

impl StreamKey {
    pub fn of(gpu: &Gpu) -> StreamKey {
        StreamKey { device: gpu.device, pid: gpu.pid, context: gpu.context, stream: gpu.stream }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    work: u64,
    time_ns: u64,
}

impl Sum {
    fn add(&mut self, ns: u64) {
        self.work += 1;
        self.time_ns = self.time_ns.saturating_add(ns);
    }
}

struct KernelWork {
    name: Arc<str>,
    times: Spread,
    queue: Spread,
}

/// A call that submits work.
#[derive(Clone, Copy)]
struct Submission {
    thread: (u32, u32),
    /// Without gpurec's own cost; none until it returns.
    duration_ns: Option<u64>,
    site: Option<Site>,
}

/// Which thread submitted some work, and when its call returned.
#[derive(Clone, Copy)]
struct Origin {
    thread: (u32, u32),
    returned_ns: u64,
}

/// Kernels that ran for less time than the call that launched them took.
#[derive(Default)]
struct ShortKernels {
    /// Kernels whose call is known.
    known: u64,
    count: u64,
    call_ns: u64,
    kernel_ns: u64,
    sites: Places,
}

#[derive(Default)]
struct DeviceWork {
    sum: Sum,
    all: Busy<Option<Origin>>,
    /// Without copies between the host and the device.
    computing: Busy<()>,
    settled: Settled,
    copies: u64,
}

/// Sums over spans, in the order of time.
#[derive(Clone, Default)]
struct Settled {
    first_ns: Option<u64>,
    last_ns: u64,
    busy_ns: u64,
    computing_ns: u64,
    idle_ns: u64,
    gaps: u64,
    longest_gap_ns: u64,
    waited_gaps: u64,
    waited_gap_ns: u64,
}

impl Settled {
    fn span(&mut self, span: &Span<Option<Origin>>, waits: &Waits) {
        let since = self.first_ns.map(|_| self.last_ns);
        self.first_ns.get_or_insert(span.from_ns);
        self.busy_ns = self.busy_ns.saturating_add(span.to_ns - span.from_ns);
        self.last_ns = span.to_ns;
        let Some((since, ns)) = since.map(|since| (since, span.from_ns.saturating_sub(since))) else {
            return;
        };
        if ns == 0 {
            return;
        }
        self.gaps += 1;
        self.idle_ns = self.idle_ns.saturating_add(ns);
        self.longest_gap_ns = self.longest_gap_ns.max(ns);
        if let Some(origin) = span.first.filter(|origin| origin.returned_ns > since)
            && waits.covers(origin.thread, since)
        {
            self.waited_gaps += 1;
            let until = origin.returned_ns.min(span.from_ns);
            self.waited_gap_ns = self.waited_gap_ns.saturating_add(until - since);
        }
    }
}

/// The last waits of threads.
#[derive(Default)]
pub struct Waits {
    by_thread: Map<(u32, u32), VecDeque<(u64, u64)>>,
    count: usize,
}

impl Waits {
    pub fn add(&mut self, thread: (u32, u32), from_ns: u64, to_ns: u64) {
        let Some(waits) = entry(&mut self.by_thread, thread, MOST_THREADS) else { return };
        let mut to_ns = to_ns;
        // A copy that waited is around the wait in it.
        while let Some((_, inner_ns)) = waits.back().filter(|(inner_ns, _)| *inner_ns >= from_ns) {
            to_ns = to_ns.max(*inner_ns);
            waits.pop_back();
            self.count -= 1;
        }
        if self.count >= MOST_WAITS {
            self.count -= usize::from(waits.pop_front().is_some());
        }
        if self.count < MOST_WAITS {
            waits.push_back((from_ns, to_ns));
            self.count += 1;
        }
    }

    /// Drops the waits of a process's threads.
    fn fold(&mut self, pid: u32, tids: &[u32]) {
        for waits in tids.iter().filter_map(|tid| self.by_thread.remove(&(pid, *tid))) {
            self.count -= waits.len();
        }
    }

    /// Whether the thread was in a wait at that time.
    pub fn covers(&self, thread: (u32, u32), ns: u64) -> bool {
        let Some(waits) = self.by_thread.get(&thread) else { return false };
        let next = waits.partition_point(|(from, _)| *from <= ns);
        next.checked_sub(1).and_then(|at| waits.get(at)).is_some_and(|(_, to)| ns <= *to)
    }
}

impl GpuWork {
    /// Every line, before what follows from it.
    #[inline]
    pub fn line(&mut self, line: &Line) {
        self.is_on = self.is_on || announces(line);
    }

    /// Whether calls must be reported.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A call began that submits work.
    pub fn submits(&mut self, id: u64, thread: (u32, u32), site: Option<Site>) {
        self.submitted.push(id, Submission { thread, duration_ns: None, site });
    }

    /// The call took `ns` without gpurec's own cost.
    pub fn returned(&mut self, id: u64, ns: u64) {
        if let Some(call) = self.submitted.get_mut(id) {
            call.duration_ns = Some(ns);
        }
    }

    /// A thread has waited for the GPU.
    pub fn waited(&mut self, thread: (u32, u32), from_ns: u64, to_ns: u64) {
        self.waits.add(thread, from_ns, to_ns);
    }

    pub fn add(&mut self, ts_ns: u64, gpu: &Gpu) {
        let ns = gpu.duration_ns;
        let call = gpu.begin.and_then(|begin| self.submitted.get(begin).copied());
        self.seen.time_ns = self.seen.time_ns.saturating_add(ns);
        self.seen.unmatched += u64::from(gpu.begin.is_none());
        match gpu.kind {
            GpuKind::Kernel => {
                self.seen.kernel_count += 1;
                self.kernel(gpu, call.as_ref());
            }
            GpuKind::Copy => self.seen.copy_count += 1,
            GpuKind::Set => self.seen.set_count += 1,
            GpuKind::Graph => self.seen.graph_count += 1,
        }
        if let GpuKind::Copy | GpuKind::Set = gpu.kind {
            self.copied(gpu);
        }
        entry(&mut self.streams, StreamKey::of(gpu), MOST_STREAMS).unwrap_or(&mut self.other_streams).add(ns);
        self.on_device(ts_ns, gpu, call.as_ref());
    }

    fn kernel(&mut self, gpu: &Gpu, call: Option<&Submission>) {
        let new = |name: Option<Arc<str>>| KernelWork {
            name: name.unwrap_or_else(|| OTHERS.into()),
            times: Spread::default(),
            queue: Spread::default(),
        };
        let index = self.kernels.number(Some(&gpu.name), new, |_, _| true);
        let Some(kernel) = self.kernels.get_mut(index) else { return };
        kernel.times.add(gpu.duration_ns);
        // A node of a graph waits for those before it.
        if let Some(ns) = gpu.queued_ns.filter(|_| gpu.graph.is_none()) {
            let delay = u64::try_from(ns).unwrap_or(0);
            kernel.queue.add(delay);
            self.queue.add(delay);
            self.seen.queue.get_or_insert_default().early += u64::from(ns < 0);
        }
        if let Some((call_ns, site)) = call.and_then(|call| Some((call.duration_ns?, call.site)))
            && gpu.graph.is_none()
        {
            self.short.known += 1;
            if gpu.duration_ns < call_ns {
                self.short.count += 1;
                self.short.call_ns = self.short.call_ns.saturating_add(call_ns);
                self.short.kernel_ns = self.short.kernel_ns.saturating_add(gpu.duration_ns);
                self.short.sites.add(site);
            }
        }
    }

    fn copied(&mut self, gpu: &Gpu) {
        let set = (gpu.kind == GpuKind::Set).then_some("set");
        let name = set.or(gpu.direction.as_deref()).unwrap_or("unknown");
        let new = |name: Option<Arc<str>>| GpuCopyFigures {
            direction: name.as_deref().unwrap_or(OTHERS).to_owned(),
            ..GpuCopyFigures::default()
        };
        let index = self.copies.number(Some(name).filter(|name| name.len() < 32), new, |_, _| true);
        let Some(copies) = self.copies.get_mut(index) else { return };
        copies.count += 1;
        copies.bytes = copies.bytes.saturating_add(gpu.size.unwrap_or(0));
        copies.total_ns = copies.total_ns.saturating_add(gpu.duration_ns);
    }

    fn on_device(&mut self, ts_ns: u64, gpu: &Gpu, call: Option<&Submission>) {
        let most = MOST_WAITING / (self.devices.len() + 1);
        let to_ns = ts_ns.saturating_add(gpu.duration_ns);
        let queued = gpu.queued_ns.unwrap_or(0);
        let origin = call.map(|call| Origin {
            thread: call.thread,
            returned_ns: ts_ns.saturating_add_signed(queued.saturating_neg()),
        });
        let has_room = self.devices.len() < MOST_DEVICES || self.devices.contains_key(&gpu.device);
        if !has_room {
            return;
        }
        let device = self.devices.entry(gpu.device).or_default();
        device.sum.add(gpu.duration_ns);
        let (settled, waits) = (&mut device.settled, &self.waits);
        device.all.add(ts_ns, to_ns, origin, most, |span| settled.span(&span, waits));
        if is_host_copy(gpu) {
            device.copies += 1;
        } else {
            let computing = &mut device.settled.computing_ns;
            device.computing.add(ts_ns, to_ns, (), most, |span| add_span(computing, &span));
        }
    }

    /// The time in which each device was busy so far.
    pub fn busy_ns(&mut self) -> Vec<(u32, u64)> {
        let busy = |device: &mut DeviceWork| device.settled.busy_ns.saturating_add(device.all.waiting_ns());
        self.devices.iter_mut().map(|(number, device)| (*number, busy(device))).collect()
    }

    /// The process ended, and has no figures of its own any more. `tids`: its threads.
    pub fn fold(&mut self, pid: u32, tids: &[u32]) {
        self.waits.fold(pid, tids);
    }

    pub fn account(&mut self, account: GpuAccount) {
        self.seen.account = Some(account);
    }

    /// None if there is no line of GPU work, and no account of any.
    pub fn finish(&self) -> Option<GpuFigures> {
        let mut figures = self.seen.clone();
        if self.devices.is_empty() && figures.account.is_none() {
            return None;
        }
        for (number, device) in &self.devices {
            let settled = device.settled(&self.waits);
            figures.busy_ns = figures.busy_ns.saturating_add(settled.busy_ns);
            figures.idle_ns = figures.idle_ns.saturating_add(settled.idle_ns);
            figures.waited_gaps += settled.waited_gaps;
            figures.waited_gap_ns = figures.waited_gap_ns.saturating_add(settled.waited_gap_ns);
            figures.late += device.all.late();
            figures.devices.push(GpuDeviceFigures {
                device: *number,
                work: device.sum.work,
                time_ns: device.sum.time_ns,
                busy_ns: settled.busy_ns,
                idle_ns: settled.idle_ns,
                gaps: settled.gaps,
                longest_gap_ns: settled.longest_gap_ns,
                first_ns: settled.first_ns.unwrap_or(0),
                last_ns: settled.last_ns,
                only_copies_ns: settled.busy_ns.saturating_sub(settled.computing_ns),
            });
        }
        figures.streams = self.stream_figures();
        figures.more_streams = truncate(&mut figures.streams, LISTED);
        figures.kernels = self.kernels.iter().filter_map(KernelWork::figures).collect();
        figures.kernels.sort_by(|a, b| (b.total_ns, &a.name).cmp(&(a.total_ns, &b.name)));
        figures.more_kernels = truncate(&mut figures.kernels, LISTED);
        figures.copies = self.copies.iter().cloned().collect();
        figures.copies.sort_by(|a, b| (b.bytes, &a.direction).cmp(&(a.bytes, &b.direction)));
        if let (Some(queue), Some(times)) = (&mut figures.queue, self.queue.statistics()) {
            let permille = |share| self.queue.permille(share).unwrap_or(0);
            *queue = QueueFigures {
                count: times.count,
                early: queue.early,
                avg_ns: times.avg_ns,
                p50_ns: permille(500),
                p99_ns: permille(990),
                max_ns: times.max_ns,
            };
        }
        Some(figures)
    }

    fn stream_figures(&self) -> Vec<GpuStreamFigures> {
        let figures = |(key, sum): (&StreamKey, &Sum)| GpuStreamFigures {
            device: key.device,
            pid: key.pid,
            context: key.context,
            stream: key.stream,
            work: sum.work,
            time_ns: sum.time_ns,
        };
        let mut streams: Vec<GpuStreamFigures> = self.streams.iter().map(figures).collect();
        let key = |it: &GpuStreamFigures| (it.device, it.pid, it.context, it.stream);
        streams.sort_by(|a, b| b.time_ns.cmp(&a.time_ns).then(key(a).cmp(&key(b))));
        streams
    }
}

/// Whether it is a copy between the host and a device, which need not keep kernels from running.
fn is_host_copy(gpu: &Gpu) -> bool {
    gpu.kind == GpuKind::Copy && matches!(gpu.direction.as_deref(), Some("H2D" | "D2H"))
}

fn add_span<T>(sum: &mut u64, span: &Span<T>) {
    *sum = sum.saturating_add(span.to_ns - span.from_ns);
}

impl DeviceWork {
    fn settled(&self, waits: &Waits) -> Settled {
        let mut settled = self.settled.clone();
        self.all.rest().iter().for_each(|span| settled.span(span, waits));
        self.computing.rest().iter().for_each(|span| add_span(&mut settled.computing_ns, span));
        settled
    }
}

impl KernelWork {
    fn figures(&self) -> Option<GpuKernelFigures> {
        let queued = self.queue.statistics().map(|times| times.med_ns);
        Some(GpuKernelFigures::new(self.name.to_string(), self.times.statistics()?, queued))
    }
}
