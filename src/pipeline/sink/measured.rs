//! Sums by process, for what reads them during the recording. In: processes that the summary has sums of. Out: their names
//! and cgroups, and how long gpurec stopped each. Not here: the sums.

use super::Lines;
use crate::process::proc;

impl Lines {
    /// Names the processes that have just made their first call: a program may end at any moment.
    pub(super) fn identify(&mut self) {
        while let Some(pid) = self.summary.newcomer() {
            self.summary.identify(pid, proc::comm(pid), proc::cgroup(pid));
        }
    }

    /// gpurec itself had stopped the process.
    pub fn stopped(&mut self, pid: u32, from: u64, to: u64) {
        let ns = self.stops.add(pid, from, to);
        self.summary.stopped(pid, ns);
    }
}
