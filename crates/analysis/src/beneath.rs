//! Adds the events of `--kernel` (ioctls, driver functions, ...) to the CUDA calls that contain them.
//!
//! The parent of a line is the span or call that encloses it, and so on outwards: first driver spans, then calls. Every
//! enclosing call gets the event, since its time contains it.

use super::driver::{OFF_CPU, Slow, Within};
use super::driver_figures::SlowCall;
use super::summary::{Open, Summary};
use gpurec_cuda::Api;
use gpurec_trace::tree::Call;
use gpurec_trace::{End, Instant, KernelEnd};

impl Summary {
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
        let (call, is_outermost) = self.outside(span.parent, ioctl, 0);
        if end.duration_ns.is_none() {
            return;
        }
        // An ioctl always counts. Of other spans only the outermost counts.
        let counts = !span.of.has_ioctl && (span.of.is_ioctl || is_outermost);
        self.each_call(call, |within| {
            if is_outermost {
                within.kernel_ns = within.kernel_ns.saturating_add(ns);
            }
            if counts {
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
        let (call, _) = self.outside(instant.parent, false, ns);
        let in_call = self.each_call(call, |within| within.off_cpu_ns = within.off_cpu_ns.saturating_add(ns));
        self.driver.off_cpu(instant, ns, in_call);
    }

    /// Walks outwards through the enclosing driver spans, and updates each. Returns the nearest call around them, and
    /// whether there were none.
    fn outside(&mut self, parent: Option<u64>, ioctl: bool, off_cpu_ns: u64) -> (Option<u64>, bool) {
        let mut is_outermost = true;
        let call = self.driver.open.each_around(parent, |span| {
            span.of.has_ioctl |= ioctl;
            span.of.off_cpu_ns = span.of.off_cpu_ns.saturating_add(off_cpu_ns);
            is_outermost = false;
        });
        (call, is_outermost)
    }

    /// Applies `change` to a call and to all calls around it. Returns whether there was a call.
    fn each_call(&mut self, call: Option<u64>, mut change: impl FnMut(&mut Within)) -> bool {
        let mut is_any = false;
        self.open.each_around(call, |open| {
            change(open.of.within.get_or_insert_default());
            is_any = true;
        });
        is_any
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
            let (pid, tid, begin) = (end.pid, end.tid, end.begin);
            let (ts_ns, duration_ns) = (open.ts_ns, ns);
            let call = SlowCall { pid, tid, begin, ts_ns, duration_ns, ..SlowCall::default() };
            self.driver.slow(Slow { function: open.function, call, within: open.of.within.take() });
        }
    }
}
