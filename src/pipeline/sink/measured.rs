//! What metrics need to know of each process besides its sums. In: processes that have sums in the summary. Out: their
//! names and cgroups, and for how long gpurec stopped each. Not here: the sums.

use super::Lines;
use crate::process::proc;

impl Lines {
    /// Names the processes that have just made their first call. It is done at once, because a process may end at any
    /// moment.
    pub(super) fn identify(&mut self) {
        while let Some(pid) = self.summary.newcomer() {
            self.summary.identify(pid, proc::comm(pid), proc::cgroup(pid));
        }
    }

    /// Counts a stop of the process by gpurec itself.
    pub fn stopped(&mut self, pid: u32, from: u64, to: u64) {
        let ns = self.stops.add(pid, from, to);
        self.summary.stopped(pid, ns);
    }
}
