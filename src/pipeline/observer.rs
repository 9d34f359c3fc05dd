//! Observers of the lines while they are written: the rows of `--live`, and the reports of `--interval` with the
//! status line. The recorder supplies them; the pipeline does not know the screen.

use gpurec_trace::{InFlight, Line};

use super::sink::Lines;

pub trait Rows: Send {
    /// `hurry`: the rings fill, so output that is only for the user has to wait.
    fn line(&mut self, line: &Line, hurry: bool);
    /// A call that has not returned, at nanoseconds since the start.
    fn still(&mut self, now_ns: u64, call: &InFlight);
    fn flush(&mut self);
}

pub trait Watch: Send {
    /// Whether a report and the status line are due.
    fn due(&mut self) -> (bool, bool);
    fn report(&mut self, lines: &Lines, at_ns: u64, lost: u64);
    fn status(&self, lines: &Lines, at_ns: u64, lost: u64);
}
