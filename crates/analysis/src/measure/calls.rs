//! Calls by function and launches by kernel. In: the lines of a trace or of a part of it. Out: one `Sample` for each
//! name. Memory use grows with the number of names and of open calls.

use std::collections::HashMap;

use super::names;
use super::sample::{Durations, First, Sample};
use super::value::Value;
use gpurec_cuda as cuda;
use gpurec_trace::bounds::{MOST_OPEN, Names};
use gpurec_trace::{Begin, Body, End, Ended, InFlight, Line};

/// Limit on distinct names; the rest share one.
pub(super) const MOST: usize = 131_072;
/// Limit on bytes of names, for functions and for kernels each.
const NAMES: usize = 64 << 20;
const OTHERS: &str = "(others)";

/// A kernel's handle differs from run to run, so it cannot serve as a name.
pub const NAMELESS: &str = "(kernels without a name)";

/// Limit on steps outwards, since a malformed file may nest without end.
const DEEPEST: usize = 64;

/// Names whose percentiles an expression needs, and the limits that it compares them with.
#[derive(Clone, Debug)]
pub struct Want {
    pub kernel: bool,
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
    /// Number of calls of the second function made directly by the first.
    pub inside: HashMap<(usize, usize), u64>,
    /// Launches that succeeded so far.
    pub launches: u64,
    launch_functions: Vec<bool>,
    open: HashMap<u64, Open>,
    /// Open calls that began while the table was full.
    unfollowed: u64,
    last: Option<Last>,
    wants: Vec<Want>,
}

struct Open {
    function: usize,
    kernel: Option<usize>,
    parent: Option<u64>,
    /// Another launch is inside: that one counts.
    launches: bool,
}

/// The call that ended last: lines about its consequences follow right after its end.
struct Last {
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
        Calls { wants, ..Calls::default() }
    }

    pub fn add(&mut self, line: &Line) {
        match &line.body {
            Body::Begin(begin) => self.begin(line, begin),
            Body::End(end) => self.end(line, end),
            Body::Memory(memory) => self.bytes(memory.begin, &memory.name, memory.size.unwrap_or(0)),
            Body::Transfer(transfer) => self.bytes(transfer.begin, &transfer.name, transfer.size),
            _ => {}
        }
    }

    fn begin(&mut self, line: &Line, begin: &Begin) {
        let function = self.function(&begin.name);
        let is_launch = self.is_launch(function);
        if let Some(sample) = self.functions.list.get_mut(function) {
            sample.calls += 1;
            let (event_id, ts_ns) = (line.event_id, line.ts_ns);
            sample.first.get_or_insert(First { event_id, ts_ns, pid: begin.pid, tid: begin.tid });
        }
        if let Some(caller) = begin.parent.and_then(|parent| self.open.get(&parent)) {
            let pair = (caller.function, function);
            if self.inside.len() < MOST || self.inside.contains_key(&pair) {
                *self.inside.entry(pair).or_default() += 1;
            }
        }
        let mut kernel = None;
        if is_launch {
            self.tell_callers(begin.parent);
            let name = begin.launch.as_ref().and_then(|launch| launch.kernel.as_deref());
            // A handle that has no name yet may have one on the level above.
            kernel = name.filter(|name| !name.starts_with("0x")).map(|name| self.kernel(name));
        }
        if self.open.len() < MOST_OPEN {
            self.open.insert(line.event_id, Open { function, kernel, parent: begin.parent, launches: false });
        } else {
            self.unfollowed += 1;
        }
    }

    fn end(&mut self, line: &Line, end: &End) {
        let open = self.open.remove(&end.begin);
        let function = open.as_ref().map_or_else(|| self.function(&end.name), |open| open.function);
        if let Some(sample) = self.functions.list.get_mut(function) {
            if open.is_none() && self.unfollowed > 0 {
                self.unfollowed -= 1;
            } else if open.is_none() {
                // The begin was lost; the call still counts.
                sample.calls += 1;
                let (event_id, ts_ns) = (line.event_id, line.ts_ns);
                sample.first.get_or_insert(First { event_id, ts_ns, pid: end.pid, tid: end.tid });
            }
            if let Some(ns) = end.duration_ns {
                sample.took(ns);
            }
            sample.errors += u64::from(end.error.is_some());
        }
        let parent = open.as_ref().and_then(|open| open.parent);
        self.last = Some(Last { begin: end.begin, function, parent });
        let succeeded = end.error.is_none() && end.ended != Ended::Unwound;
        if succeeded && self.is_launch(function) && !open.as_ref().is_some_and(|open| open.launches) {
            self.launched(line, end, open.as_ref());
        }
    }

    fn launched(&mut self, line: &Line, end: &End, open: Option<&Open>) {
        self.launches += 1;
        let outer = open.and_then(|open| self.open.get(&open.parent?)).and_then(|outer| outer.kernel);
        let kernel = open.and_then(|open| open.kernel).or(outer);
        let kernel = kernel.unwrap_or_else(|| self.kernel(NAMELESS));
        let Some(sample) = self.kernels.list.get_mut(kernel) else { return };
        sample.calls += 1;
        let (event_id, ts_ns) = (end.begin, line.ts_ns.saturating_sub(end.duration_ns.unwrap_or(0)));
        sample.first.get_or_insert(First { event_id, ts_ns, pid: end.pid, tid: end.tid });
        if let Some(ns) = end.duration_ns {
            sample.took(ns);
        }
    }

    /// Counts calls that have not returned, with their time so far.
    pub fn unfinished(&mut self, in_flight: &[InFlight]) {
        for call in in_flight {
            let function = self.open.get(&call.begin).map(|open| open.function);
            if let Some(sample) = function.and_then(|function| self.functions.list.get_mut(function)) {
                sample.took(call.duration_ns);
            }
        }
    }

    /// Adds bytes to every enclosing call: the program called cudaMalloc, though cuMemAlloc_v2 inside it allocated the
    /// memory.
    fn bytes(&mut self, begin: u64, name: &str, bytes: u64) {
        let last = self.last.as_ref().filter(|last| last.begin == begin);
        let (function, mut parent) = match last {
            Some(last) => (last.function, last.parent),
            None => (self.function(name), None),
        };
        let mut told = vec![function];
        while let Some(open) = parent.and_then(|id| self.open.get(&id)).filter(|_| told.len() < DEEPEST) {
            parent = open.parent;
            told.push(open.function);
        }
        // A recursive function gets the bytes once.
        told.sort_unstable();
        told.dedup();
        for function in told {
            if let Some(sample) = self.functions.list.get_mut(function) {
                sample.bytes = sample.bytes.saturating_add(bytes);
            }
        }
    }

    fn tell_callers(&mut self, mut caller: Option<u64>) {
        while let Some(open) = caller.and_then(|id| self.open.get_mut(&id)) {
            if open.launches {
                return;
            }
            open.launches = true;
            caller = open.parent;
        }
    }

    fn is_launch(&self, function: usize) -> bool {
        self.launch_functions.get(function).copied().unwrap_or(false)
    }

    fn function(&mut self, name: &str) -> usize {
        let wants = &self.wants;
        let index = self.functions.index(name, |name| durations(wants, false, name));
        if index == self.launch_functions.len() {
            self.launch_functions.push(cuda::is_kernel_launch(name));
        }
        index
    }

    fn kernel(&mut self, name: &str) -> usize {
        let wants = &self.wants;
        self.kernels.index(name, |name| durations(wants, true, name))
    }
}

fn durations(wants: &[Want], kernel: bool, name: &str) -> Option<Box<Durations>> {
    let fits = |want: &&Want| {
        want.kernel == kernel
            && (if kernel {
                names::fits_kernel(&want.pattern, name)
            } else {
                names::fits_function(&want.pattern, name)
            })
    };
    let fitting: Vec<&Want> = wants.iter().filter(fits).collect();
    let limits: Vec<Value> = fitting.iter().flat_map(|want| want.limits.iter().copied()).collect();
    (!fitting.is_empty()).then(|| Box::new(Durations::new(&limits)))
}
