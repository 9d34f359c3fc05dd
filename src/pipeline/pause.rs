//! How long the thread that empties the rings waits between two rounds. In: the number of records of each round. Out:
//! the length of the pause. On a quiet machine, waking this thread is most of the recorder's cost. Pure.

use std::time::Duration;

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(8);
/// The size of a ring that the fastest burst of calls does not fill in a long pause.
const ROOMY: usize = 2 << 20;
/// Rounds with few records before a pause is long.
const CALM: u32 = 50;
const FEW: usize = 400;

pub struct Pause {
    calm: u32,
    is_roomy: bool,
}

impl Pause {
    /// `room`: the size of a CPU's ring.
    pub fn new(room: usize) -> Pause {
        Pause { calm: 0, is_roomy: room >= ROOMY }
    }

    /// After a round. `is_awaited`: a process may be waiting for this thread.
    pub fn after(&mut self, records: usize, is_awaited: bool) {
        self.calm = if records <= FEW && !is_awaited { self.calm.saturating_add(1) } else { 0 };
    }

    pub fn time(&self) -> Duration {
        if self.calm >= CALM && self.is_roomy { LONG } else { SHORT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_long_only_while_little_comes() {
        let mut pause = Pause::new(ROOMY);
        (0..CALM - 1).for_each(|_| pause.after(FEW, false));
        assert_eq!(pause.time(), SHORT);
        pause.after(0, false);
        assert_eq!(pause.time(), LONG);
        pause.after(FEW + 1, false);
        assert_eq!(pause.time(), SHORT);
        (0..2 * CALM).for_each(|_| pause.after(0, true));
        assert_eq!(pause.time(), SHORT);
        let mut pause = Pause::new(ROOMY - 1);
        (0..2 * CALM).for_each(|_| pause.after(0, false));
        assert_eq!(pause.time(), SHORT, "a burst could fill the ring");
    }
}
