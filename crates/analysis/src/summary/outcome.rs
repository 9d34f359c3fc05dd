//! The outcome of a call: its own failure, those inside it, and its launch by kernel and by device.

use super::{Open, Summary};
use gpurec_cuda::Api;
use gpurec_trace::tree::Call;
use gpurec_trace::{End, EndKind, Line};

impl Summary {
    /// `open` has what is known of the call since its begin.
    pub(super) fn outcome(&mut self, line: &Line, end: &End, function: usize, open: Option<&mut Call<Open>>) {
        let (asked, parent, inside) = match open {
            Some(open) => (open.of.asked, open.parent, open.of.failed.take()),
            None => (None, None, None),
        };
        let Some(tally) = self.functions.get_mut(function) else { return };
        tally.errors += u64::from(end.error.is_some());
        let api = tally.traits.api;
        if end.error.is_none() {
            if inside.is_none() {
                return;
            }
            if end.ended == EndKind::Returned && api != Api::Other {
                return self.failures.handled(inside);
            }
            let caller = self.caller(parent);
            let within = caller.and_then(|caller| self.open.get_mut(caller)).map(|open| &mut open.of.failed);
            return self.failures.undecided(inside, within);
        }
        let site = self.stacks.site_of(end.begin);
        let failed = self.failures.failed(end, line.ts_ns, (function, asked, site), inside);
        let caller = self.caller(parent).and_then(|caller| self.open.get_mut(caller));
        if caller.is_some_and(|caller| self.failures.defer(&mut caller.of.failed, &failed)) {
            return;
        }
        if self.failures.count(&failed) {
            let cause = self.failures.cause_of(&failed);
            let (kernels, functions) = (&self.kernels, &self.functions);
            let function = |at: usize| functions.get(at).map_or("?", |tally| &tally.name);
            self.errors.failed(end, line.ts_ns, cause, |kernel| kernels.name(kernel), function);
        }
    }

    /// The enclosing CUDA call of another call: how a --lib library handles a failure is unknown.
    fn caller(&self, parent: Option<u64>) -> Option<u64> {
        let api = |open: &Call<Open>| self.functions.get(open.function).map(|tally| tally.traits.api);
        let mut around = self.open.around(parent);
        around.find(|open| api(open).is_some_and(|api| api != Api::Other)).map(|open| open.id)
    }

    /// Records a successful launch, at the innermost level that shows it.
    pub(super) fn launched(&mut self, end: &End, open: Option<&Call<Open>>) {
        self.figures.kernel_launches += 1;
        self.habits.launched(end.pid);
        let device = open.and_then(|open| self.device_of(open));
        self.devices.launched(end.pid, device, false);
        self.measure_device(end.pid, device);
        let Some(open) = open else { return self.measure_launch(end.pid, None) };
        let launch = self.open.or_above(open, |open| Some((open.kernel?, open.shape)));
        let (kernel, shape) = launch.map_or((None, open.of.shape), |(kernel, shape)| (Some(kernel), shape));
        self.kernels.launched(kernel, shape);
        self.measure_launch(end.pid, kernel);
        let at_ns = self.without_cost(end.pid, end.tid, open.ts_ns);
        self.kernels.at(end.pid, end.tid, at_ns, self.stacks.site_of(end.begin));
        self.errors.launched(end.pid, end.tid, kernel);
    }

    pub(super) fn device_of(&self, open: &Call<Open>) -> Option<u32> {
        self.open.or_above(open, |open| open.device)
    }
}
