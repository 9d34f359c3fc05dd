//! The events of a trace, one variant for each kind of line.
//!
//! `Begin`, `End` and the events in kernel.rs are written millions of times: they borrow their names. The others are
//! rare and written through serde; the names of their fields are the keys of the trace.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::args::Args;
use super::budget::Budget;
use super::kernel::{Instant, KernelBegin, KernelEnd, Xid};
use super::reason::{Reason, reasons};

/// The version of the schema. Keys may be added under the same number; the number grows when a new trace would mislead
/// a reader of the old schema.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// Counts up by 1 from 0, which is the header.
    pub event_id: u64,
    /// Nanoseconds since the recording began.
    pub ts_ns: u64,
    pub body: Body<'a>,
}

impl Line<'_> {
    /// The end of a call whose return is not watched, for readers that count calls where they end. It is not a line of
    /// the trace.
    pub fn end_of_unwatched(&self) -> Option<Line<'static>> {
        let Body::Begin(begin) = &self.body else { return None };
        begin.no_return.as_ref()?;
        let end = End {
            name: begin.name.clone().into_owned().into(),
            pid: begin.pid,
            tid: begin.tid,
            begin: self.event_id,
            duration_ns: None,
            paused_ns: 0,
            retval: None,
            error: None,
            out: None,
            late: None,
            ended: Ended::NotWatched,
        };
        Some(Line { event_id: self.event_id, ts_ns: self.ts_ns, body: Body::End(end) })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    Header(Box<Header>),
    Process(Process<'a>),
    Begin(Begin<'a>),
    End(End<'a>),
    Memory(Memory<'a>),
    Transfer(Transfer<'a>),
    KernelBegin(KernelBegin<'a>),
    KernelEnd(KernelEnd<'a>),
    Instant(Instant<'a>),
    Xid(Xid<'a>),
    Lost(Lost),
    Budget(Budget),
    Suspend(Suspend),
    Finish(Box<Finish>),
    /// A type that this version does not know: a newer gpurec wrote it.
    Unknown(Unknown<'a>),
}

/// A call into a library began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin<'a> {
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// The number of calls of this thread that enclose this one.
    pub depth: u32,
    /// The event_id of the call that encloses this one.
    pub parent: Option<u64>,
    pub args: Args<'a>,
    /// Only for launches and for calls that put a kernel into a graph.
    pub launch: Option<Launch<'a>>,
    /// Why its return is not watched: the call has no `End` and encloses nothing.
    pub no_return: Option<Cow<'a, str>>,
}

/// The GPU, as the process numbers them, and the context; none if the recorded calls do not show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    pub device: Option<u32>,
    pub context: Option<u64>,
}

/// What a launch starts. A graph launch has only `stream`, `nodes` and `on`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Demangled; the handle in hex if the name is not known yet.
    pub kernel: Option<Cow<'a, str>>,
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub shared: Option<u64>,
    pub stream: Option<u64>,
    pub cluster: Option<[u32; 3]>,
    pub cooperative: bool,
    /// The number of nodes in the graph, if known.
    pub nodes: Option<u64>,
    pub on: Where,
}

/// A call into a library ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End<'a> {
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of the call's `Begin`.
    pub begin: u64,
    pub duration_ns: Option<u64>,
    /// The part of the duration for which gpurec itself had stopped the process.
    pub paused_ns: u64,
    pub retval: Option<Retval>,
    /// The name of the error; only if the call failed.
    pub error: Option<Cow<'a, str>>,
    /// What the call wrote through its pointers.
    pub out: Option<Args<'a>>,
    /// Arguments that could not be read when the call began.
    pub late: Option<Args<'a>>,
    pub ended: Ended,
}

/// Memory was allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory<'a> {
    /// The call that did it.
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of the call's `Begin`.
    pub begin: u64,
    pub on: Where,
    pub op: Op,
    /// device, managed, host, pool, virtual, array, ipc.
    pub space: Cow<'a, str>,
    /// The address, or the handle of memory without an address.
    pub ptr: u64,
    /// The size of this allocation; none if it could not be read.
    pub size: Option<u64>,
    /// Live bytes of the process in that space after this; none if some of its allocations are unknown.
    pub total_allocated: Option<u64>,
    /// The memory was allocated before the recording began.
    pub earlier: bool,
    /// The call that freed it was not seen: the driver gave out the address again.
    pub missed: bool,
    /// The program made this allocation through the CUDA runtime: the call is a runtime call or is inside one. False
    /// for memory that libraries allocate from the driver themselves.
    pub runtime: bool,
}

impl Memory<'_> {
    /// Live bytes in its space after this event, if there were `before` bytes before it. Neither count includes memory
    /// from before the recording.
    pub fn after(&self, before: u64) -> u64 {
        let size = self.size.unwrap_or(0);
        self.total_allocated.unwrap_or_else(|| match self.op {
            Op::Alloc => before.saturating_add(size),
            Op::Free => before.saturating_sub(size),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Alloc,
    Free,
}

/// Memory was copied or set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// The call that did it.
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// The event_id of the call's `Begin`.
    pub begin: u64,
    pub on: Where,
    /// H2D, D2H, D2D, H2H, P2P, set; unknown if the calls do not show the direction.
    pub direction: Cow<'a, str>,
    pub size: u64,
    /// The list of sizes was longer than what was read, so `size` is only a part.
    pub partial: bool,
    /// The call may return before the copy is done.
    pub is_async: bool,
    /// The host side is known to be memory that CUDA has not pinned.
    pub pageable: bool,
    /// Only for a copy that the call waited for.
    pub duration_ns: Option<u64>,
}

impl Transfer<'_> {
    pub fn bytes_per_sec(&self) -> Option<u64> {
        let ns = self.duration_ns.filter(|ns| *ns > 0)?;
        u64::try_from(u128::from(self.size) * 1_000_000_000 / u128::from(ns)).ok()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retval {
    /// A status or a count.
    Number(i64),
    /// A pointer or a handle, or a register of unknown type.
    Pointer(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ended {
    #[default]
    Returned,
    /// Ended by longjmp or an exception: it has no return value.
    Unwound,
    /// Its end was not recorded: return value and duration are unknown.
    Lost,
    /// Its return was not watched. No line contains this: it follows from `Begin::no_return`.
    NotWatched,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown<'a> {
    pub kind: Cow<'a, str>,
    pub name: Cow<'a, str>,
}

/// An event of a process: it started, ended, or mapped a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process<'a> {
    Exec(Exec),
    Found(Found),
    Fork(Fork),
    Exit(Exit),
    Library(Library<'a>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub pid: u32,
    pub tid: u32,
    pub command: Vec<String>,
    /// RANK, LOCAL_RANK, SLURM_PROCID… in the environment of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A process that was already running, or that `--all` noticed: its properties, before its first line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    /// Empty if it could not be read.
    #[serde(default)]
    pub command: Vec<String>,
    /// The number if the user has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The container's id, if the cgroup has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

impl Process<'_> {
    /// The name of the process from here on, and its rank. The name is the command line, or the short name in brackets.
    pub fn named(&self) -> Option<(u32, Vec<String>, Option<u32>)> {
        match self {
            Process::Exec(exec) => Some((exec.pid, exec.command.clone(), exec.rank)),
            Process::Found(found) if found.command.is_empty() => {
                Some((found.pid, vec![format!("[{}]", found.comm)], found.rank))
            }
            Process::Found(found) => Some((found.pid, found.command.clone(), found.rank)),
            Process::Fork(_) | Process::Exit(_) | Process::Library(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub pid: u32,
    pub tid: u32,
    pub child: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub pid: u32,
    pub tid: u32,
    #[serde(flatten)]
    pub status: ExitStatus,
}

/// How a process ended, written in a shell's convention: `status` is N or 128+N, and `signal` is the name of the signal
/// that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ShellStatus", from = "ShellStatus")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

#[derive(Serialize, Deserialize)]
struct ShellStatus {
    status: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
}

impl From<ExitStatus> for ShellStatus {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Code(code) => ShellStatus { status: code, signal: None },
            ExitStatus::Signal(number) => {
                ShellStatus { status: number.saturating_add(128), signal: Some(signal_name(number)) }
            }
        }
    }
}

impl From<ShellStatus> for ExitStatus {
    fn from(shell: ShellStatus) -> Self {
        match shell.signal {
            Some(_) => ExitStatus::Signal(shell.status.saturating_sub(128)),
            None => ExitStatus::Code(shell.status),
        }
    }
}

/// `SIGSEGV`; real-time signals have no name and are `SIG40`.
pub fn signal_name(number: i32) -> String {
    let name = usize::try_from(number).ok().and_then(|number| SIGNALS.get(number.wrapping_sub(1)));
    match name {
        Some(name) => format!("SIG{name}"),
        None => format!("SIG{number}"),
    }
}

/// Linux's signals from 1 on, so that a trace can be read on another system too.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library<'a> {
    pub pid: u32,
    pub tid: u32,
    #[serde(borrow)]
    pub path: Cow<'a, str>,
    #[serde(default)]
    pub build_id: Option<String>,
    /// The number of functions hooked in it.
    pub functions: u64,
    #[serde(default)]
    pub not_hooked: Vec<Refused>,
    /// The hooked functions whose hooks Linux single-steps, which costs several times more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub single_stepped: Vec<String>,
}

/// A hook that was requested but could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub name: String,
    pub reason: String,
    /// The code of the reason; empty in older traces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
}

impl Refused {
    pub fn new(name: &str, reason: Reason) -> Refused {
        Refused { name: name.to_owned(), reason: reason.text, code: reason.code }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub schema: u32,
    pub version: String,
    /// RFC 3339.
    pub start: String,
    pub host: String,
    pub kernel: String,
    /// The NVIDIA driver's version; null if there is no driver.
    #[serde(default)]
    pub driver: Option<String>,
    /// Exactly one of `command`, `pids` and `all` is present: the target of the recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    pub user: String,
    /// The options of the command line, by name.
    #[serde(default)]
    pub options: serde_json::Value,
    /// By layer: `userspace`, `kernel`.
    #[serde(default)]
    pub hooks: BTreeMap<String, Layer>,
    /// The cost of recording one call for the thread that makes it, in nanoseconds.
    #[serde(default)]
    pub ns_per_call: Option<u64>,
    /// The same by backend and kind of site: EMULATED and the constants after it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ns_per_call_by_site: BTreeMap<String, BTreeMap<String, u64>>,
    /// With --budget: the cost of a call that is only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_counted: Option<u64>,
}

/// Kinds of a hook's site, in `Header::ns_per_call_by_site`: Linux emulates the instruction there, or single-steps it.
/// Cold means that the processor's caches hold other data, as after other work.
pub const EMULATED: &str = "emulated";
pub const SINGLE_STEPPED: &str = "single_stepped";
pub const EMULATED_COLD: &str = "emulated_cold";
pub const SINGLE_STEPPED_COLD: &str = "single_stepped_cold";

/// How one layer is hooked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub backend: String,
    pub attached: u64,
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// The number of hooks of each backend, if there are several backends.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_backend: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hooked>,
}

/// A hook that was requested by name, and the backend it got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooked {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// The same, for readers of older versions.
    pub how: String,
    /// The hooked symbol, if it differs from the requested name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// A remark about the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub count: u64,
    #[serde(default)]
    pub by_probe: BTreeMap<String, u64>,
}

/// The machine was suspended; the clock of the trace did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspend {
    #[serde(rename = "slept_us", with = "micros")]
    pub slept_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// The number of lines before this one.
    pub events: u64,
    pub lost: u64,
    #[serde(default)]
    pub in_flight: Vec<InFlight>,
    pub complete: bool,
    /// Why the recording is not complete, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_because: Vec<String>,
    /// The code of each reason, in the same order. Older traces have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_codes: Vec<String>,
    /// gpurec's own stops of the recorded processes. None in traces of versions that did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops: Option<Stops>,
    /// The figures that were printed, by their names in `report`.
    #[serde(default)]
    pub summary: serde_json::Value,
}

impl Finish {
    /// Why the recording is not complete.
    pub fn reasons(&self) -> impl Iterator<Item = Reason> {
        reasons(&self.incomplete_because, &self.incomplete_codes)
    }
}

/// How often and for how long gpurec itself stopped processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stops {
    pub count: u64,
    pub total_ns: u64,
}

/// A call that had not returned when the recording ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The event_id of its `Begin`.
    pub begin: u64,
    /// Its duration up to the end of the recording or of the process.
    #[serde(rename = "duration_us", with = "micros")]
    pub duration_ns: u64,
    /// Whether its process ended during the call.
    pub died: bool,
}

/// Nanoseconds written as microseconds. Exact below 2^51 ns, which is 26 days.
mod micros {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ns: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*ns as f64 / 1e3)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        f64::deserialize(from).map(|us| (us * 1e3).round() as u64)
    }
}
