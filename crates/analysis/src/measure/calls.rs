//! Calls by function and launches by kernel. In: the lines of a trace or of a part of it. Out: one `Sample` for each
//! name. Memory use grows with the number of names and of open calls.

use std::collections::HashMap;

use super::names;
use super::sample::{Durations, Sample};
use super::value::Value;
use gpurec_cuda as cuda;
use gpurec_trace::bounds::Names;
use gpurec_trace::tree::{self, Call};
use gpurec_trace::{Begin, Body, End, Gpu, GpuKind, InFlight, Line};

/// Limit on distinct names; the rest share one.
pub(super) const MOST: usize = 131_072;
/// Limit on bytes of names, for functions and for kernels each.
const NAMES: usize = 64 << 20;
const OTHERS: &str = "(others)";

/// A kernel's handle differs from run to run, so it cannot serve as a name.
pub const NAMELESS: &str = "(kernels without a name)";

/// The role of launches in the call tree.
const LAUNCH: u8 = 1;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Function,
    /// Launches of a kernel.
    Kernel,
    /// Its runs on the GPU.
    Gpu,
    /// The delay of all kernels, which has no name.
    Queue,
}

/// Names whose percentiles an expression needs, and the limits that it compares them with.
#[derive(Clone, Debug)]
pub struct Want {
    pub of: Of,
    pub pattern: String,
    pub limits: Vec<Value>,
}

#[derive(Default)]
pub struct Samples {
    by_name: Names<MOST, NAMES>,
    pub list: Vec<Sample>,
    others: Option<usize>,
}

#[derive(Default)]
pub struct Calls {
    pub functions: Samples,
    pub kernels: Samples,
    /// Runs of kernels on the GPU, and the delays before them.
    pub gpu: Samples,
    pub queue: Sample,
    /// Number of calls of the second function made directly by the first.
    pub inside: HashMap<(usize, usize), u64>,
    /// Launches that succeeded so far.
    pub launches: u64,
    launch_functions: Vec<bool>,
    /// With the kernel of a launch.
    open: tree::Calls<Option<usize>>,
    last: Option<LastCall>,
    wants: Vec<Want>,
}

/// The call that ended last: lines about its consequences follow right after its end.
struct LastCall {
    begin: u64,
    function: usize,
    parent: Option<u64>,
}

impl Samples {
    pub fn get(&self, name: &str) -> Option<&Sample> {
        let others = || self.others.filter(|_| name == OTHERS);
        self.list.get(self.by_name.get(name).or_else(others)?)
    }

    pub fn push(&mut self, sample: Sample) {
        self.by_name.add(&sample.name, self.list.len());
        self.list.push(sample);
    }

    fn index(&mut self, name: &str, durations: impl Fn(&str) -> Option<Box<Durations>>) -> usize {
        if let Some(known) = self.by_name.get(name) {
            return known;
        }
        let index = self.list.len();
        let kept = self.by_name.add(name, index);
        if kept.is_none() {
            if let Some(known) = self.others {
                return known;
            }
            self.others = Some(index);
        }
        let name = kept.unwrap_or_else(|| OTHERS.into());
        self.list.push(Sample { durations: durations(&name), name, ..Sample::default() });
        index
    }
}

impl Calls {
    pub fn new(wants: Vec<Want>) -> Calls {
        let queue = Sample { durations: durations(&wants, Of::Queue, ""), ..Sample::default() };
        Calls { wants, queue, ..Calls::default() }
    }

    pub fn add(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::Memory(memory) => {
                if let Some(begin) = memory.begin {
                    self.bytes(begin, &memory.name, memory.size.unwrap_or(0));
                }
            }
            Body::Transfer(transfer) => self.bytes(transfer.begin, &transfer.name, transfer.size),
            Body::Gpu(gpu) if gpu.kind == GpuKind::Kernel => self.ran(gpu),
            _ => {}
        }
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.function(&begin.name);
        let is_launch = self.is_launch(function);
        if let Some(sample) = self.functions.list.get_mut(function) {
            sample.began(line.event_id, line.ts_ns, (begin.pid, begin.tid));
        }
        if let Some(caller) = begin.parent.and_then(|parent| self.open.get(parent)) {
            let pair = (caller.function, function);
            if self.inside.len() < MOST || self.inside.contains_key(&pair) {
                *self.inside.entry(pair).or_default() += 1;
            }
        }
        let mut kernel = None;
        if is_launch {
            let name = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
            // A handle that has no name yet may have one on the level above.
            kernel = name.filter(|name| !name.starts_with("0x")).map(|name| self.kernel(name));
        }
        let call = Call::new(line.event_id, line.ts_ns, begin, function, kernel);
        self.open.begin(call, if is_launch { LAUNCH } else { 0 });
    }

    fn end(&mut self, line: &Line, end: &End) {
        let open = self.open.end(end.begin, end.duration_ns);
        let function = open.as_ref().map_or_else(|| self.function(&end.name), |open| open.function);
        if let Some(sample) = self.functions.list.get_mut(function) {
            if open.is_none() && !self.open.was_left_out() {
                // The begin was lost; the call still counts.
                sample.began(line.event_id, line.ts_ns, (end.pid, end.tid));
            }
            if let Some(ns) = end.duration_ns {
                sample.took(ns);
            }
            sample.errors += u64::from(end.error.is_some());
        }
        let parent = open.as_ref().and_then(|open| open.parent);
        self.last = Some(LastCall { begin: end.begin, function, parent });
        let is_innermost = !open.as_ref().is_some_and(|open| open.has_inside(LAUNCH));
        if tree::succeeded(end) && self.is_launch(function) && is_innermost {
            self.launched(line, end, open.as_ref());
        }
    }

    fn launched(&mut self, line: &Line, end: &End, open: Option<&Call<Option<usize>>>) {
        self.launches += 1;
        let kernel = open.and_then(|open| self.open.or_above(open, |kernel| *kernel));
        let kernel = kernel.unwrap_or_else(|| self.kernel(NAMELESS));
        let Some(sample) = self.kernels.list.get_mut(kernel) else { return };
        let ts_ns = line.ts_ns.saturating_sub(end.duration_ns.unwrap_or(0));
        sample.began(end.begin, ts_ns, (end.pid, end.tid));
        if let Some(ns) = end.duration_ns {
            sample.took(ns);
        }
    }

    /// Counts a run of a kernel.
    fn ran(&mut self, gpu: &Gpu) {
        let wants = &self.wants;
        let kernel = self.gpu.index(&gpu.name, |name| durations(wants, Of::Gpu, name));
        if let Some(sample) = self.gpu.list.get_mut(kernel) {
            sample.calls += 1;
            sample.took(gpu.duration_ns);
        }
        if let Some(ns) = gpu.queued_ns.filter(|_| gpu.graph.is_none()) {
            self.queue.calls += 1;
            self.queue.took(u64::try_from(ns).unwrap_or(0));
        }
    }

    /// Counts calls that have not returned, with their time so far.
    pub fn unfinished(&mut self, in_flight: &[InFlight]) {
        for call in in_flight {
            let function = self.open.get(call.begin).map(|open| open.function);
            if let Some(sample) = function.and_then(|function| self.functions.list.get_mut(function)) {
                sample.took(call.duration_ns);
            }
        }
    }

    /// Adds bytes to every enclosing call: the program called cudaMalloc, though cuMemAlloc_v2 inside it allocated the
    /// memory.
    fn bytes(&mut self, begin: u64, name: &str, bytes: u64) {
        let last = self.last.as_ref().filter(|last| last.begin == begin);
        let (function, parent) = match last {
            Some(last) => (last.function, last.parent),
            None => (self.function(name), None),
        };
        let mut functions = vec![function];
        functions.extend(self.open.around(parent).map(|open| open.function));
        // A recursive function gets the bytes once.
        functions.sort_unstable();
        functions.dedup();
        for function in functions {
            if let Some(sample) = self.functions.list.get_mut(function) {
                sample.bytes = sample.bytes.saturating_add(bytes);
            }
        }
    }

    fn is_launch(&self, function: usize) -> bool {
        self.launch_functions.get(function).copied().unwrap_or(false)
    }

    fn function(&mut self, name: &str) -> usize {
        let wants = &self.wants;
        let index = self.functions.index(name, |name| durations(wants, Of::Function, name));
        if index == self.launch_functions.len() {
            self.launch_functions.push(cuda::is_kernel_launch(name));
        }
        index
    }

    fn kernel(&mut self, name: &str) -> usize {
        let wants = &self.wants;
        self.kernels.index(name, |name| durations(wants, Of::Kernel, name))
    }
}

fn durations(wants: &[Want], of: Of, name: &str) -> Option<Box<Durations>> {
    let matches = if of == Of::Function { names::fits_function } else { names::fits_kernel };
    let fits = |want: &&Want| want.of == of && matches(&want.pattern, name);
    let fitting: Vec<&Want> = wants.iter().filter(fits).collect();
    let limits: Vec<Value> = fitting.iter().flat_map(|want| want.limits.iter().copied()).collect();
    (!fitting.is_empty()).then(|| Box::new(Durations::new(&limits)))
}
