//! What the traces of a job have in common: a rank's part in one collective. In and out: data. Not here: where it comes
//! from, and what follows from it.

/// The sides of a collective that has no direction.
pub const ALL: u32 = u32::MAX;

/// Which collective: the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub comm: u32,
    /// The sender and the receiver, or `ALL`.
    pub from: u32,
    pub to: u32,
    pub seq: u64,
}

impl Key {
    pub fn is_collective(&self) -> bool {
        self.from == ALL
    }
}

/// What a rank called. Names are numbers of `Names`; none: the trace does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct What {
    pub op: u32,
    pub count: Option<u64>,
    pub dtype: Option<u32>,
    pub root: Option<u32>,
    pub redop: Option<u32>,
}

/// The process that takes part: a trace and a PID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    pub trace: u32,
    pub pid: u32,
}

/// The number of functions kept of what a thread did before a collective.
pub const CALLS: usize = 4;

/// What a thread did from its last collective to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Is false at the first collective of a thread.
    pub is_known: bool,
    /// The outermost calls that took longest: the name and the time of each.
    pub calls: [(u32, u64); CALLS],
    /// The time between outermost calls.
    pub own_ns: u64,
    pub off_cpu_ns: u64,
    /// The request to nvidia.ko that took longest, and the time.
    pub ioctl: (u32, u64),
    /// The call site of the longest call; 0 if not known.
    pub site: u32,
}

/// In place of the rank in a communicator, where that is not known: the rank of the process in the job.
pub const IN_JOB: u32 = 1 << 31;

/// A rank's part. Times are those of the host's clock.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub who: Who,
    pub key: Key,
    /// The rank in the communicator, or with `IN_JOB` in the job; and the communicator's size.
    pub rank: u32,
    pub nranks: Option<u32>,
    pub what: What,
    /// The call site of the call; 0 if not known.
    pub site: u32,
    pub enqueued_ns: i64,
    /// When its kernel started.
    pub started_ns: Option<i64>,
    /// When its kernel ended, or the first wait for it.
    pub ended_ns: Option<i64>,
    pub before: Before,
}
