//! The outcome of a call: its own failure, and those inside it.

use super::{Open, Summary};
use gpurec_cuda::Api;
use gpurec_trace::tree::Call;
use gpurec_trace::{End, Ended, Line};

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
            if end.ended == Ended::Returned && api != Api::Other {
                return self.failures.handled(inside);
            }
            let caller = self.caller(parent);
            let within = caller.and_then(|caller| self.open.get_mut(caller)).map(|open| &mut open.of.failed);
            return self.failures.undecided(inside, within);
        }
        let failed = self.failures.failed(end, line.ts_ns, (function, asked), inside);
        let caller = self.caller(parent).and_then(|caller| self.open.get_mut(caller));
        if caller.is_some_and(|caller| self.failures.waits(&mut caller.of.failed, &failed)) {
            return;
        }
        if self.failures.seen(&failed) {
            let cause = self.failures.cause_of(&failed);
            let (kernels, functions) = (&self.kernels, &self.functions);
            let name = |known: usize| functions.get(known).map(|tally| tally.name.to_string());
            let kernel = |kernel: usize| kernels.name(kernel).to_owned();
            self.errors.failed(end, line.ts_ns, cause, kernel, |known| name(known).unwrap_or_default());
        }
    }

    /// The enclosing CUDA call of another call: how a --lib library handles a failure is unknown.
    fn caller(&self, parent: Option<u64>) -> Option<u64> {
        let api = |open: &Call<Open>| self.functions.get(open.function).map(|tally| tally.traits.api);
        let mut around = self.open.around(parent);
        around.find(|open| api(open).is_some_and(|api| api != Api::Other)).map(|open| open.id)
    }
}
