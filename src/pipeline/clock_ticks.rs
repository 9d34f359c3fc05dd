//! When a `clock` line is due: at the start, every ten seconds, and after a suspend, which moves one clock against the
//! other. The recorder adds the last line, at the very end of the recording. In: the time. Out: yes or no. Pure.

const EVERY_NS: u64 = 10_000_000_000;

#[derive(Default)]
pub struct ClockTicks {
    last: Option<u64>,
}

impl ClockTicks {
    /// True: a line is due. The caller writes it now.
    pub fn is_due(&mut self, now: u64) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_sub(last) >= EVERY_NS);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }

    /// Makes a line due at the next call.
    pub fn restart(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_line_is_due_at_the_start_and_every_ten_seconds() {
        let mut ticks = ClockTicks::default();
        let due = (0..350u64).filter(|tenth| ticks.is_due(5 * S + tenth * S / 10)).collect::<Vec<_>>();
        assert_eq!(due, [0, 100, 200, 300]);
        // The worker was delayed for half a minute.
        let late = 5 * S + 72 * S;
        assert!(ticks.is_due(late) && !ticks.is_due(late + 9 * S) && ticks.is_due(late + 10 * S));
    }

    #[test]
    fn a_suspend_makes_one_due() {
        let mut ticks = ClockTicks::default();
        assert!(ticks.is_due(S) && !ticks.is_due(2 * S));
        ticks.restart();
        assert!(ticks.is_due(2 * S) && !ticks.is_due(11 * S) && ticks.is_due(12 * S));
    }
}
