//! What metrics need to know of each process besides its sums. In: processes that have sums in the summary. Out: their
//! names and cgroups, and for how long gpurec stopped each. Not here: the sums.

use super::Lines;
use crate::process::proc;
use gpurec_analysis::usage::{ByLinux, Snapshot};

impl Lines {
    /// Names the processes that have just made their first call. It is done at once, because a process may end at any
    /// moment.
    pub(super) fn identify(&mut self) {
        // Metrics do not name users.
        let names_users = self.summary().follows_processes();
        let user_of = |pid| if names_users { proc::user(pid) } else { None };
        while let Some(pid) = self.summary().newcomer() {
            let by_linux = ByLinux { comm: proc::comm(pid), cgroup: proc::cgroup(pid), user: user_of(pid) };
            self.summary().identify(pid, by_linux);
        }
    }

    /// The sums at `at_ns`, with details of one process. None if they are not measured.
    pub fn snapshot(&mut self, at_ns: u64, detail: Option<u32>) -> Option<Snapshot> {
        let mut snapshot = self.summary().snapshot(at_ns, detail)?;
        for process in &mut snapshot.processes {
            process.held = self.meaning.held(process.pid);
            process.held_since = self.meaning.held_since(process.pid);
        }
        Some(snapshot)
    }

    /// Counts a stop of the process by gpurec itself.
    pub fn stopped(&mut self, pid: u32, from: u64, to: u64) {
        let ns = self.stops.add(pid, from, to);
        self.summary().stopped(pid, ns);
    }
}
