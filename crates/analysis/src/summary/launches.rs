//! Successful launches by kernel and by device.

use super::{Open, Summary};
use gpurec_trace::End;
use gpurec_trace::tree::Call;

impl Summary {
    /// Records a successful launch, at the innermost level that shows it.
    pub(super) fn launched(&mut self, end: &End, open: Option<&Call<Open>>) {
        self.figures.kernel_launches += 1;
        self.habits.launched(end.pid);
        let Some(open) = open else {
            self.kernels.launched(None, (None, None));
            self.devices.launched(end.pid, None, false);
            return;
        };
        self.devices.launched(end.pid, self.device_of(open), false);
        let launch = self.open.or_above(open, |open| Some((open.kernel?, open.shape)));
        let (kernel, shape) = launch.map_or((None, open.of.shape), |(kernel, shape)| (Some(kernel), shape));
        self.kernels.launched(kernel, shape);
        self.kernels.at(end.pid, end.tid, open.ts_ns);
        self.errors.launched(end.pid, end.tid, kernel);
    }

    pub(super) fn device_of(&self, open: &Call<Open>) -> Option<u32> {
        self.open.or_above(open, |open| open.device)
    }
}
