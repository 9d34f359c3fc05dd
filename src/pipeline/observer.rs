//! The observers of the lines while they are written: the rows of `--live`, and the events of the flight recorder. The
//! recorder supplies them; the pipeline knows neither the screen nor dumps.

use std::path::PathBuf;

use super::stops::Recent;
use gpurec_trace::{End, GpuAccount, InFlight, Line, Reason};

pub trait Rows: Send {
    /// `hurry`: the rings fill, so output that is only for the user has to wait.
    fn line(&mut self, line: &Line, hurry: bool);
    /// A call that has not returned, at nanoseconds since the start.
    fn still(&mut self, now_ns: u64, call: &InFlight);
    fn flush(&mut self);
}

/// The events for which the flight recorder writes a dump. Times are nanoseconds since the start.
pub trait Alarms: Send {
    fn line(&mut self, line: &Line);
    /// A call that no recorded call encloses has failed.
    fn failed(&mut self, end: &End);
    /// Called several times a second, with the library calls that have not returned.
    fn look(&mut self, now_ns: u64, open: &mut dyn Iterator<Item = InFlight>);
    /// A signal that requests a dump.
    fn signalled(&mut self, cause: Cause);
    /// A dump that is due, and the number of events since the last dump that get none of their own.
    fn due(&mut self, now_ns: u64) -> Option<(Cause, u64)>;
    /// The number of events since the last dump.
    fn left(&self) -> u64;
}

/// Receives the path of a dump, or the reason why there is none.
pub type Reply = Box<dyn FnOnce(Result<PathBuf, String>) + Send>;

/// Why a dump is written.
pub struct Cause {
    /// The word in its name.
    pub event: &'static str,
    /// A clause that can follow "because": "cuMemAlloc_v2 failed with ...".
    pub because: String,
    pub reply: Option<Reply>,
}

impl Cause {
    pub fn new(event: &'static str, because: String) -> Cause {
        Cause { event, because, reply: None }
    }
}

/// What a dump needs besides the lines so far.
pub struct DumpRequest {
    pub cause: Cause,
    pub ts_ns: u64,
    /// Why the recording is not complete so far, except losses.
    pub reasons: Vec<Reason>,
    pub stops: Recent,
    /// Of the whole recording so far.
    pub gpu: Option<GpuAccount>,
    pub suppressed: u64,
}
