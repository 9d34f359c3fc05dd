//! Successful launches by kernel and by device.

use super::{Open, Summary};
use gpurec_trace::End;

impl Summary {
    /// Records a successful launch, at the innermost level that shows it.
    pub(super) fn launched(&mut self, end: &End, open: Option<&Open>) {
        self.figures.kernel_launches += 1;
        self.habits.launched(end.pid);
        let Some(open) = open else {
            self.kernels.launched(None, (None, None));
            self.devices.launched(end.pid, None, false);
            return;
        };
        self.devices.launched(end.pid, self.device_of(open), false);
        // The level above may have read more.
        let outer = open.parent.and_then(|parent| self.open.get(&parent));
        let outer = outer.filter(|outer| outer.kernel.is_some() && open.kernel.is_none());
        let (kernel, shape) = outer.map_or((open.kernel, open.shape), |outer| (outer.kernel, outer.shape));
        self.kernels.launched(kernel, shape);
        self.kernels.at(end.pid, end.tid, open.ts_ns);
        self.errors.launched(end.pid, end.tid, kernel);
    }

    /// The level above may know the device, like other keys.
    pub(super) fn device_of(&self, open: &Open) -> Option<u32> {
        let outer = || open.parent.and_then(|parent| self.open.get(&parent)).and_then(|outer| outer.device);
        open.device.or_else(outer)
    }
}
