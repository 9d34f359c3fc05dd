//! The ends of processes, for calls that are open meanwhile. Nothing is looked for at an end: what
//! was open is found when somebody asks, since a trace may have as many ends as open calls.

use gpurec_trace::hash::Map;

/// Ends that may wait to be told to the calls, however few those are.
const WAITING: usize = 1024;

#[derive(Default)]
pub struct Deaths {
    /// When a process ended, and after how many ends of any.
    ends: Map<u32, Vec<(u64, u64)>>,
    waiting: usize,
    seen: u64,
}

/// Of a call: how many ends there were before it, or when its process ended in it.
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

    /// A process ended. Whether it is time to tell the calls, `open` of which are: then the ends
    /// that wait are as many, so telling costs each of them no more than a look.
    pub fn died(&mut self, pid: u32, ts_ns: u64, open: usize) -> bool {
        self.ends.entry(pid).or_default().push((self.seen, ts_ns));
        self.seen += 1;
        self.waiting += 1;
        self.waiting >= open.max(WAITING)
    }

    /// What became of a call.
    pub fn of(&self, pid: u32, life: Life) -> Life {
        let Life::Since(before) = life else { return life };
        let ends = self.ends.get(&pid).map_or(&[][..], Vec::as_slice);
        let first = ends.partition_point(|(at, _)| *at < before);
        ends.get(first).map_or(life, |(_, ns)| Life::Died(*ns))
    }

    /// All calls have been told.
    pub fn told(&mut self) {
        self.ends.clear();
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_died_with_the_first_end_after_it() {
        let mut deaths = Deaths::default();
        let first = deaths.born();
        deaths.died(1, 10, 0);
        deaths.died(2, 20, 0);
        let second = deaths.born();
        deaths.died(1, 30, 0);
        assert_eq!(deaths.of(1, first), Life::Died(10));
        assert_eq!((deaths.of(1, second), deaths.of(2, second)), (Life::Died(30), second));
        assert_eq!(deaths.of(1, Life::Died(5)).died_ns(), Some(5));
        deaths.told();
        assert_eq!(deaths.of(1, second), second);
        let due = (0..5000).filter(|_| deaths.died(1, 1, 3000)).count();
        assert_eq!(due, 2001, "from the 3000th on, until they are told");
    }
}
