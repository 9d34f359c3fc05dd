//! Process exits during open calls. An exit itself searches nothing: lookups resolve the open calls later, since a
//! trace may have as many exits as open calls.

use super::hash::Map;

/// Number of unresolved exits that may accumulate, even with few open calls.
const WAITING: usize = 1024;

#[derive(Default)]
pub struct Deaths {
    /// Times of exits by process, each with the total number of exits before it.
    ends: Map<u32, Vec<(u64, u64)>>,
    waiting: usize,
    /// Number of calls that were open after they were last resolved.
    resolved: usize,
    seen: u64,
}

/// For a call: the number of exits before it began, or the time at which its process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Since(u64),
    Died(u64),
}

impl Life {
    pub fn died_ns(self) -> Option<u64> {
        match self {
            Life::Since(_) => None,
            Life::Died(ns) => Some(ns),
        }
    }
}

impl Deaths {
    pub fn born(&self) -> Life {
        Life::Since(self.seen)
    }

    /// Records an exit. Returns whether the caller should now resolve its open calls: the unresolved exits are then at
    /// least as many as the calls that are open since before them, so that the cost stays constant for each exit and
    /// each call.
    pub fn died(&mut self, pid: u32, ts_ns: u64) -> bool {
        self.ends.entry(pid).or_default().push((self.seen, ts_ns));
        self.seen += 1;
        self.waiting += 1;
        self.waiting >= self.resolved.max(WAITING)
    }

    /// Whether and when the process of a call ended.
    pub fn of(&self, pid: u32, life: Life) -> Life {
        let Life::Since(before) = life else { return life };
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        let first = ends.partition_point(|(at, _)| *at < before);
        ends.get(first).map_or(life, |(_, ns)| Life::Died(*ns))
    }

    /// Drops the exits: all calls are resolved, and this number of them stays open.
    pub fn reported(&mut self, open: usize) {
        self.ends.clear();
        self.waiting = 0;
        self.resolved = open;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_died_with_the_first_end_after_it() {
        let mut deaths = Deaths::default();
        let first = deaths.born();
        deaths.died(1, 10);
        deaths.died(2, 20);
        let second = deaths.born();
        deaths.died(1, 30);
        assert_eq!(deaths.of(1, first), Life::Died(10));
        assert_eq!((deaths.of(1, second), deaths.of(2, second)), (Life::Died(30), second));
        assert_eq!(deaths.of(1, Life::Died(5)).died_ns(), Some(5));
        deaths.reported(3000);
        assert_eq!(deaths.of(1, second), second);
        let due = (0..5000).filter(|_| deaths.died(1, 1)).count();
        assert_eq!(due, 2001, "from the 3000th on, until they are reported");
    }
}
