//! Adds the events of `--kernel` (ioctls, driver functions, ...) to the CUDA calls that contain them.
//!
//! The parent of a line is the span or call that encloses it, and so on outwards: first driver spans, then calls. Every
//! enclosing call gets the event, since its time contains it.

use super::driver::{OFF_CPU, Slow, Within};
use super::summary::{Open, Summary};
use gpurec_cuda::Api;
use gpurec_trace::tree::Call;
use gpurec_trace::{End, Instant, KernelBegin, KernelEnd, Line, Xid};

/// The nearest call around a span, and how the search found it.
struct Outside {
    call: Option<u64>,
    /// No driver span encloses this one.
    topmost: bool,
}

impl Summary {
    pub(super) fn kernel_begin(&mut self, line: &Line, begin: &KernelBegin) {
        self.driver.began(line.event_id, line.ts_ns, begin);
    }

    pub(super) fn kernel_end(&mut self, end: &KernelEnd) {
        let Some(span) = self.driver.open.end(end.begin, end.duration_ns) else {
            self.driver.unmatched();
            return;
        };
        let failed = self.driver.rows.ended(span.function, end, span.of.off_cpu_ns);
        let ns = end.duration_ns.unwrap_or(0);
        if span.of.is_ioctl {
            self.driver.ioctl_ended(ns, failed);
        }
        let ioctl = span.of.is_ioctl || span.of.has_ioctl;
        let outside = self.outside(span.parent, ioctl, 0);
        if end.duration_ns.is_none() {
            return;
        }
        // An ioctl always counts. Of other spans only the outermost counts.
        let told = !span.of.has_ioctl && (span.of.is_ioctl || outside.topmost);
        self.tell(outside.call, |within| {
            if outside.topmost {
                within.kernel_ns = within.kernel_ns.saturating_add(ns);
            }
            if told {
                within.took(span.function, ns);
            }
        });
    }

    pub(super) fn instant(&mut self, instant: &Instant) {
        self.driver.instant(instant);
        if instant.name != OFF_CPU {
            return;
        }
        let ns = instant.duration_ns.unwrap_or(0);
        let outside = self.outside(instant.parent, false, ns);
        let told = self.tell(outside.call, |within| {
            within.off_cpu_ns = within.off_cpu_ns.saturating_add(ns);
        });
        self.driver.off_cpu(instant, ns, told);
    }

    pub(super) fn xid(&mut self, line: &Line, xid: &Xid) {
        self.driver.xid(line.ts_ns, xid);
    }

    /// Walks outwards through the enclosing driver spans, and updates each.
    fn outside(&mut self, parent: Option<u64>, ioctl: bool, off_cpu_ns: u64) -> Outside {
        let mut topmost = true;
        let call = self.driver.open.each_around(parent, |span| {
            span.of.has_ioctl |= ioctl;
            span.of.off_cpu_ns = span.of.off_cpu_ns.saturating_add(off_cpu_ns);
            topmost = false;
        });
        Outside { call, topmost }
    }

    /// Applies `what` to a call and to all calls around it. Returns whether there was a call.
    fn tell(&mut self, call: Option<u64>, mut what: impl FnMut(&mut Within)) -> bool {
        let mut told = false;
        self.open.each_around(call, |open| {
            what(open.of.within.get_or_insert_default());
            told = true;
        });
        told
    }

    /// Decides on return of a call whether it is one of the slowest. Of nested calls it lists the one that spent the
    /// time: it skips a call in which a nested call took nine tenths.
    pub(super) fn maybe_slow(&mut self, end: &End, open: &mut Call<Open>, ns: u64) {
        if !self.driver.seen || !self.driver.is_slow(ns) {
            return;
        }
        if self.functions.get(open.function).is_none_or(|tally| tally.traits.api == Api::Other) {
            return;
        }
        let covered_ns = open.of.within.as_ref().map_or(0, |within| within.covered_ns);
        let is_covered = u128::from(covered_ns) * 10 >= u128::from(ns) * 9 && covered_ns > 0;
        if let Some(outer) = open.parent.and_then(|id| self.open.get_mut(id)) {
            let within = outer.of.within.get_or_insert_default();
            within.covered_ns = within.covered_ns.max(if is_covered { covered_ns } else { ns });
        }
        if !is_covered {
            self.driver.slow(Slow {
                function: open.function,
                pid: end.pid,
                tid: end.tid,
                begin: end.begin,
                ts_ns: open.ts_ns,
                duration_ns: ns,
                within: open.of.within.take(),
            });
        }
    }
}
