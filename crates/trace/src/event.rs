//! The events of a trace, one variant for each kind of line.
//!
//! `Begin`, `End` and what kernel.rs has are written millions of times: they
//! borrow what they name. The others are rare and written through serde; the names of their
//! fields are the keys of the trace.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::args::Args;
use super::budget::Budget;
use super::kernel::{Instant, KernelBegin, KernelEnd, Xid};

/// The version of the schema. Keys may be added under the same number; it
/// grows when a reader of the old one would be misled.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// Counts from 0, the header, by 1.
    pub event_id: u64,
    /// Nanoseconds since the recording began.
    pub ts_ns: u64,
    pub body: Body<'a>,
}

impl Line<'_> {
    /// The end that follows a call whose return is not watched, for readers that count calls where they end. It is no
    /// line of the trace.
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
    /// A type this version does not know: of a newer gpurec.
    Unknown(Unknown<'a>),
}

/// A call into a library began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin<'a> {
    pub name: Cow<'a, str>,
    pub pid: u32,
    pub tid: u32,
    /// How many calls of this thread enclose this one.
    pub depth: u32,
    /// The event_id of the call that encloses this one.
    pub parent: Option<u64>,
    pub args: Args<'a>,
    /// Of a launch, and of what puts a kernel into a graph.
    pub launch: Option<Launch<'a>>,
    /// Why its return is not watched: it has no `End`, and encloses nothing.
    pub no_return: Option<Cow<'a, str>>,
}

/// Which GPU, as the process numbers them, and which of its contexts; none where the calls that were seen do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    pub device: Option<u32>,
    pub context: Option<u64>,
}

/// What a launch starts. A graph launch has only `stream`, `nodes` and `on`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Demangled; the handle in hex where no name is known yet.
    pub kernel: Option<Cow<'a, str>>,
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub shared: Option<u64>,
    pub stream: Option<u64>,
    pub cluster: Option<[u32; 3]>,
    pub cooperative: bool,
    /// How many nodes the graph has, if known.
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
    /// Of the duration, how long gpurec itself had stopped the process.
    pub paused_ns: u64,
    pub retval: Option<Retval>,
    /// The name of the error, only if the call failed.
    pub error: Option<Cow<'a, str>>,
    /// What the call wrote through its pointers.
    pub out: Option<Args<'a>>,
    /// Arguments that could not be read where the call began.
    pub late: Option<Args<'a>>,
    pub ended: Ended,
}

/// Memory was got or given back.
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
    /// The address, or the handle where there is none.
    pub ptr: u64,
    /// Of this allocation; none if it could not be read.
    pub size: Option<u64>,
    /// Live bytes of the process in that space, after this; none if not all of its allocations are known.
    pub total_allocated: Option<u64>,
    /// It was allocated before the recording began.
    pub earlier: bool,
    /// The call that freed it was not seen: the address was given out again.
    pub missed: bool,
    /// An allocation that the program asked for through the CUDA runtime: this call is its,
    /// or lies inside one of its. What libraries take from the driver themselves is not.
    pub runtime: bool,
}

impl Memory<'_> {
    /// Live bytes in its space after this, where `before` were. Of memory from before the recording nothing is in them.
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
    /// H2D, D2H, D2D, H2H, P2P, set; unknown if nobody can tell.
    pub direction: Cow<'a, str>,
    pub size: u64,
    /// The list of sizes was longer than what is read: `size` is a part.
    pub partial: bool,
    /// The call may return before the copy is done.
    pub is_async: bool,
    /// The host's side is known to be memory that CUDA has not pinned.
    pub pageable: bool,
    /// Only of a copy that the call waited for.
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
    /// A pointer or a handle, or a register nothing is known about.
    Pointer(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ended {
    #[default]
    Returned,
    /// Left by longjmp or an exception: it has no return value.
    Unwound,
    /// Its end was not recorded: neither return value nor duration is known.
    Lost,
    /// Its return was not watched. No line says so: it follows from `Begin::no_return`.
    NotWatched,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown<'a> {
    pub kind: Cow<'a, str>,
    pub name: Cow<'a, str>,
}

/// What happened to a process.
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
    /// RANK, LOCAL_RANK, SLURM_PROCID… as the process has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A process that was running already, or that `--all` has noticed: what is known of it, before its first line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    /// Empty where it could not be read.
    #[serde(default)]
    pub command: Vec<String>,
    /// The number where it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Its id, if the cgroup has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

impl Process<'_> {
    /// What a process is called from here on, and its rank: its command line, or its short name in brackets.
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

/// How a process ended, written as a shell says it: `status` is N or 128+N,
/// and `signal` the name of what killed it.
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

/// Linux's signals from 1 on, also where a trace is read on another system.
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
    /// How many functions are hooked in it.
    pub functions: u64,
    #[serde(default)]
    pub not_hooked: Vec<Refused>,
    /// Of those hooked, the functions whose hooks the kernel single-steps, which costs several times more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub single_stepped: Vec<String>,
}

/// A hook that was asked for and is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub schema: u32,
    pub version: String,
    /// RFC 3339.
    pub start: String,
    pub host: String,
    pub kernel: String,
    /// The NVIDIA driver's version; null where there is none.
    #[serde(default)]
    pub driver: Option<String>,
    /// One of `command`, `pids` and `all` says what is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    pub user: String,
    /// The options given, by name.
    #[serde(default)]
    pub options: serde_json::Value,
    /// By layer: `userspace`, `kernel`.
    #[serde(default)]
    pub hooks: BTreeMap<String, Layer>,
    /// What recording one call costs the thread that makes it, in nanoseconds.
    #[serde(default)]
    pub ns_per_call: Option<u64>,
    /// The same by backend and kind of site: EMULATED and those after it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ns_per_call_by_site: BTreeMap<String, BTreeMap<String, u64>>,
    /// With --budget: what a call costs that is only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_counted: Option<u64>,
}

/// Kinds of a hook's site, in `Header::ns_per_call_by_site`: the kernel emulates the instruction there, or single-steps
/// it. Cold: the processor's caches have other things in them, as after other work.
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
    /// How many hooks each backend has, where they differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_backend: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hooked>,
}

/// A hook that was asked for by name, and how it was had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooked {
    pub name: String,
    pub how: String,
    /// What is hooked, if it is not called as it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// What is to be said about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub count: u64,
    #[serde(default)]
    pub by_probe: BTreeMap<String, u64>,
}

/// The machine was suspended, and all times of a trace stood still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspend {
    #[serde(rename = "slept_us", with = "micros")]
    pub slept_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// How many lines came before this one.
    pub events: u64,
    pub lost: u64,
    #[serde(default)]
    pub in_flight: Vec<InFlight>,
    pub complete: bool,
    /// Why the recording is not complete, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_because: Vec<String>,
    /// gpurec's own stops of the recorded processes. None in traces of versions that did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops: Option<Stops>,
    /// The figures printed, by the names `report` gives them.
    #[serde(default)]
    pub summary: serde_json::Value,
}

/// How often gpurec itself stopped processes, and how long together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stops {
    pub count: u64,
    pub total_ns: u64,
}

/// A call begun and not returned when the recording ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The event_id of its `Begin`.
    pub begin: u64,
    /// For how long: until the end of the recording, or of the process.
    #[serde(rename = "duration_us", with = "micros")]
    pub duration_ns: u64,
    /// Whether its process ended inside it.
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
