//! Names of host stubs that were registered before the recording began: the symbol at the stub's address, from the
//! file that the process has mapped there. In: a process and an address. Out: the symbol as in the file, or that
//! there is none, or that it is not known now.
//!
//! Helper processes look the names up (crate::files), because this thread has rings to empty. It waits for each
//! process's names for a fixed time in all, and after that for a small part of the elapsed time. A process that has a
//! thousand names gets them; one that starts kernels without names ten thousand times a second does not slow the
//! others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::files::{Ask, Files, Found, Side};
use gpurec_cuda::semantics::{Names, Stub};
use gpurec_trace::bounds::BytesLeft;

/// More names than a program has kernels, fewer than a hostile program could make gpurec look up.
const MOST: usize = 100_000;
/// Bytes of all known names, and the overhead of each.
const MOST_KNOWN: usize = 16 << 20;
const EACH: usize = 48;
/// The most processes that are remembered. There are more only if records of process exits were lost.
const MOST_PROCESSES: usize = 4096;
/// How long to wait for a process's names at first, and 1/PART of the time since the first.
const AT_FIRST: Duration = Duration::from_millis(100);
const PART: u32 = 50;

pub struct Stubs {
    side: Side,
    processes: HashMap<u32, Process>,
    /// The number of all names.
    count: usize,
    names: BytesLeft<MOST_KNOWN>,
}

struct Process {
    /// By address.
    known: HashMap<u64, Option<String>>,
    /// When waiting for its names began, and the time spent on it.
    since: Instant,
    waited: Duration,
}

impl Stubs {
    pub fn new(files: Option<Files>) -> Stubs {
        Stubs { side: Side::new(files), processes: HashMap::new(), count: 0, names: BytesLeft::default() }
    }
}

impl Names for Stubs {
    fn stub(&mut self, pid: u32, address: u64) -> Stub {
        let now = Instant::now();
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&pid) {
            (self.processes, self.count, self.names) = (HashMap::new(), 0, BytesLeft::default());
        }
        let new = || Process { known: HashMap::new(), since: now, waited: Duration::ZERO };
        let process = self.processes.entry(pid).or_insert_with(new);
        if let Some(name) = process.known.get(&address) {
            return name.clone().map_or(Stub::Unknown, Stub::Named);
        }
        let left = left(now - process.since, process.waited);
        if left.is_zero() {
            return Stub::NotNow;
        }
        let found = self.side.ask(&Ask::Symbol { pid, address }, left);
        process.waited += now.elapsed();
        let Some(Found::Symbol(name)) = found else { return Stub::NotNow };
        if self.count < MOST && self.names.take(bytes(name.as_deref())) {
            self.count += 1;
            process.known.insert(address, name.clone());
        }
        name.map_or(Stub::Unknown, Stub::Named)
    }

    fn gone(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.count -= process.known.len();
        self.names.give_back(process.known.values().map(|name| bytes(name.as_deref())).sum());
    }
}

/// Bytes of a name, or of the fact that there is none.
fn bytes(name: Option<&str>) -> usize {
    EACH + name.map_or(0, str::len)
}

/// The time that may still be spent waiting.
fn left(since: Duration, waited: Duration) -> Duration {
    (AT_FIRST + since / PART).saturating_sub(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cost_a_part_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(left(ms(0), ms(0)), ms(100));
        assert_eq!(left(ms(0), ms(130)), ms(0));
        assert_eq!(left(ms(5000), ms(130)), ms(70));
        let mut without = Stubs::new(None);
        assert!(matches!(without.stub(1, 2), Stub::NotNow));
    }

    #[test]
    fn another_program_has_other_names() {
        let mut stubs = Stubs::new(None);
        let named = |name: Option<&str>| HashMap::from([(2, name.map(str::to_owned))]);
        let process = |name| Process { known: named(name), since: Instant::now(), waited: Duration::ZERO };
        stubs.processes.extend([(1, process(Some("add"))), (7, process(None))]);
        stubs.count = 2;
        assert!(matches!(stubs.stub(1, 2), Stub::Named(name) if name == "add"));
        assert!(matches!(stubs.stub(7, 2), Stub::Unknown));
        stubs.gone(1);
        assert_eq!(stubs.count, 1);
        assert!(matches!(stubs.stub(1, 2), Stub::NotNow), "its PID came back");
    }
}
