//! The observer of the lines while they are written: the rows of `--live`. The recorder supplies it; the pipeline does
//! not know the screen.

use gpurec_trace::{InFlight, Line};

pub trait Rows: Send {
    /// `hurry`: the rings fill, so output that is only for the user has to wait.
    fn line(&mut self, line: &Line, hurry: bool);
    /// A call that has not returned, at nanoseconds since the start.
    fn still(&mut self, now_ns: u64, call: &InFlight);
    fn flush(&mut self);
}
