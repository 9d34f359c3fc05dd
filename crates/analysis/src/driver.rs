//! Turns lines of `--kernel` into figures. Memory grows with the number of names seen and of open spans. Not here:
//! which CUDA call encloses a span; beneath.rs, which has both, decides that.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::driver_figures::{
    DriverErrors, KernelSpace, OffCpu, OffCpuState, SlowCall, SlowRequest, XidFigures,
};
use super::rows::{Rows, Sort};
use gpurec_trace::bounds::{LONGEST_NAME, Sums, short};
use gpurec_trace::tree::{Call, Calls};
use gpurec_trace::{Header, Instant, KernelBegin, Kind, Value, Xid};

/// The name of an instant for time off the CPU.
pub const OFF_CPU: &str = "off_cpu";

/// Limits on listed Xids, on listed slow calls, and on listed requests of a slow call.
const XIDS: usize = 100;
const SLOWEST: usize = 10;
const REQUESTS: usize = 10;

/// Limit on distinct requests of one open call.
const TOLD_APART: usize = 256;

/// Limit on distinct states of a thread off the CPU.
const STATES: usize = 64;

/// What is kept of an open driver span.
pub struct Span {
    pub is_ioctl: bool,
    /// An ioctl inside it has already been counted.
    pub has_ioctl: bool,
    pub off_cpu_ns: u64,
}

/// Driver activity inside one CUDA call.
#[derive(Default)]
pub struct Within {
    pub kernel_ns: u64,
    pub off_cpu_ns: u64,
    /// The longest nested call that has its own entry in the list.
    pub covered_ns: u64,
    requests: Sums<usize, (u64, u64), TOLD_APART>,
}

impl Within {
    pub fn took(&mut self, row: usize, ns: u64) {
        let (calls, total) = self.requests.of(row);
        *calls += 1;
        *total = total.saturating_add(ns);
    }
}

/// One of the slowest calls.
pub struct Slow {
    pub function: usize,
    /// Without the names, and what `within` has.
    pub call: SlowCall,
    pub within: Option<Box<Within>>,
}

#[derive(Default)]
pub struct Driver {
    /// The recording was made with --kernel.
    pub seen: bool,
    pub open: Calls<Span>,
    pub rows: Rows,
    /// The longest first.
    slowest: Vec<Slow>,
    figures: KernelSpace,
}

impl Driver {
    pub fn header(&mut self, header: &Header) {
        let Some(layer) = header.hooks.get("kernel") else { return };
        self.seen = true;
        self.figures.hooks.clone_from(&layer.by_backend);
        if layer.by_backend.is_empty() && layer.attached > 0 {
            self.figures.hooks.insert(layer.backend.clone(), layer.attached);
        }
    }

    /// Whether no line of --kernel was seen, whatever the header says.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.figures.off_cpu == OffCpu::default() && self.figures.xid_count == 0
    }

    pub fn began(&mut self, event_id: u64, ts_ns: u64, begin: &KernelBegin) {
        self.count(begin.kind);
        let row = match &begin.ioctl {
            Some(ioctl) => {
                self.figures.ioctls += 1;
                self.figures.unknown_ioctls += u64::from(ioctl.unknown);
                self.rows.request(&begin.name, ioctl)
            }
            None => self.rows.named(Sort::Function, &begin.name),
        };
        self.rows.began(row);
        let span = Span { is_ioctl: begin.ioctl.is_some(), has_ioctl: false, off_cpu_ns: 0 };
        self.open.begin(Call::span(event_id, ts_ns, begin, row, span), 0);
    }

    pub fn unmatched(&mut self) {
        self.seen = true;
        self.figures.unmatched_ends += u64::from(!self.open.was_left_out());
    }

    pub fn ioctl_ended(&mut self, ns: u64, failed: bool) {
        self.figures.ioctl_ns = self.figures.ioctl_ns.saturating_add(ns);
        self.figures.failed_ioctls += u64::from(failed);
    }

    /// Counts an interrupt or a tracepoint. Of time off the CPU it counts only the line.
    pub fn instant(&mut self, instant: &Instant) {
        self.count(instant.kind);
        if instant.name == OFF_CPU {
            return;
        }
        // The name of a tracepoint is category:event.
        let sort = if instant.name.contains(':') { Sort::Tracepoint } else { Sort::Interrupt };
        let row = self.rows.named(sort, &instant.name);
        self.rows.began(row);
        if let Some(ns) = instant.duration_ns {
            self.rows.took(row, ns);
        }
    }

    pub fn off_cpu(&mut self, instant: &Instant, ns: u64, in_call: bool) {
        let off = &mut self.figures.off_cpu;
        if !in_call {
            off.outside_count += 1;
            off.outside_ns = off.outside_ns.saturating_add(ns);
            return;
        }
        off.count += 1;
        off.total_ns = off.total_ns.saturating_add(ns);
        let state = match instant.args.as_ref().and_then(|args| args.get("state")) {
            Some(Value::Text(state)) => state,
            _ => Cow::Borrowed("unknown"),
        };
        if let Some(known) = off.by_state.iter_mut().find(|known| known.state == state) {
            known.count += 1;
            known.total_ns = known.total_ns.saturating_add(ns);
        } else if off.by_state.len() < STATES && state.len() < LONGEST_NAME {
            off.by_state.push(OffCpuState { state: state.into_owned(), count: 1, total_ns: ns });
        }
    }

    /// Does not set `seen`: a recording may look for Xids and for nothing else in nvidia.ko.
    pub fn xid(&mut self, ts_ns: u64, xid: &Xid) {
        self.figures.xid_count += 1;
        if self.figures.xids.len() < XIDS {
            self.figures.xids.push(XidFigures {
                ts_ns,
                pid: xid.pid,
                tid: xid.tid,
                xid: xid.xid,
                device: short(&xid.device, LONGEST_NAME),
                message: short(&xid.message, LONGEST_NAME),
            });
        }
    }

    fn count(&mut self, kind: Kind) {
        self.seen = true;
        self.figures.scheduler_calls += u64::from(kind == Kind::Scheduler);
    }

    /// Whether a call of this duration is among the slowest so far.
    pub fn is_slow(&self, ns: u64) -> bool {
        self.slowest.len() < SLOWEST || self.slowest.last().is_some_and(|least| ns > least.call.duration_ns)
    }

    pub fn slow(&mut self, slow: Slow) {
        let at = self.slowest.partition_point(|known| known.call.duration_ns >= slow.call.duration_ns);
        self.slowest.insert(at, slow);
        self.slowest.truncate(SLOWEST);
    }

    pub fn name(&self, row: usize) -> &str {
        self.rows.get(row).map_or("", |row| &row.name)
    }

    /// None without --kernel. `function` gives the name of a CUDA function.
    pub fn finish<'a>(&self, function: impl Fn(usize) -> &'a str) -> Option<KernelSpace> {
        if !self.seen {
            return None;
        }
        let mut figures = self.figures.clone();
        (figures.requests, figures.more_requests) = self.rows.requests();
        (figures.functions, figures.more_functions) = self.rows.of(Sort::Function);
        figures.interrupts = self.rows.of(Sort::Interrupt).0;
        figures.tracepoints = self.rows.of(Sort::Tracepoint).0;
        figures.off_cpu.by_state.sort_by(|a, b| (b.total_ns, &a.state).cmp(&(a.total_ns, &b.state)));
        figures.slowest =
            self.slowest.iter().map(|slow| self.slow_call(slow, function(slow.function))).collect();
        Some(figures)
    }

    /// Xids of a recording without --kernel.
    pub fn errors(&self) -> Option<DriverErrors> {
        let KernelSpace { xid_count, xids, .. } = &self.figures;
        let is_all = !self.seen && *xid_count > 0;
        is_all.then(|| DriverErrors { xid_count: *xid_count, xids: xids.clone() })
    }

    fn slow_call(&self, slow: &Slow, function: &str) -> SlowCall {
        let mut call = SlowCall { function: function.to_owned(), ..slow.call.clone() };
        let Some(within) = &slow.within else { return call };
        (call.kernel_ns, call.off_cpu_ns) = (within.kernel_ns, within.off_cpu_ns);
        (call.more_calls, call.more_ns) = within.requests.others;
        let mut rows: Vec<_> = within.requests.by_key.iter().collect();
        rows.sort_by_key(|(row, (_, ns))| (Reverse(*ns), **row));
        for (index, (calls, total_ns)) in rows {
            match self.rows.get(*index).filter(|_| call.requests.len() < REQUESTS) {
                Some(row) => call.requests.push(SlowRequest {
                    request: if row.sort == Sort::Request { &row.request } else { &row.name }.to_string(),
                    detail: row.detail.as_deref().map(str::to_owned),
                    calls: *calls,
                    total_ns: *total_ns,
                }),
                None => {
                    call.more_calls += calls;
                    call.more_ns = call.more_ns.saturating_add(*total_ns);
                }
            }
        }
        call
    }
}
