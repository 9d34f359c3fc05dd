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
const MOST_PROCESSES: usize = 4096;
/// How long to wait for a process's names at first, and 1/PART of the time since the first.
const AT_FIRST: Duration = Duration::from_millis(100);
const PART: u32 = 50;

pub struct Stubs {
    side: Side,
    known: HashMap<(u32, u64), Option<String>>,
    names: BytesLeft<MOST_KNOWN>,
    /// When waiting for a process's names began, and the time spent on it.
    spent: HashMap<u32, (Instant, Duration)>,
}

impl Stubs {
    pub fn new(files: Option<Files>) -> Stubs {
        Stubs {
            side: Side::new(files),
            known: HashMap::new(),
            names: BytesLeft::default(),
            spent: HashMap::new(),
        }
    }
}

impl Names for Stubs {
    fn stub(&mut self, pid: u32, address: u64) -> Stub {
        if let Some(name) = self.known.get(&(pid, address)) {
            return name.clone().map_or(Stub::Unknown, Stub::Named);
        }
        let now = Instant::now();
        if self.spent.len() >= MOST_PROCESSES {
            self.spent.clear();
        }
        let (since, waited) = self.spent.entry(pid).or_insert((now, Duration::ZERO));
        let left = left(now - *since, *waited);
        if left.is_zero() {
            return Stub::NotNow;
        }
        let found = self.side.ask(&Ask::Symbol { pid, address }, left);
        *waited += now.elapsed();
        let Some(Found::Symbol(name)) = found else { return Stub::NotNow };
        let bytes = EACH + name.as_ref().map_or(0, String::len);
        if self.known.len() < MOST && self.names.take(bytes) {
            self.known.insert((pid, address), name.clone());
        }
        name.map_or(Stub::Unknown, Stub::Named)
    }
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
}
