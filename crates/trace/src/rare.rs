//! The rare lines, written and read by serde: the names of their fields are the keys of the trace. What exports show of
//! a line follows its struct.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::gpu::GpuAccount;
use super::reason::{Reason, reasons};
use super::schema::{Datum, Key, Sink};

/// What exports show of a rare line.
pub trait Details {
    fn details(&self, to: &mut impl Sink);
}

/// The keys of an export: fields of the struct, or values made of it.
macro_rules! details {
    ($it:ident: $type:ty => $($key:ident $(= $value:expr)?),+) => {
        impl $crate::rare::Details for $type {
            fn details(&self, to: &mut impl $crate::schema::Sink) {
                let $it = self;
                $($crate::rare::detail(to, stringify!($key), &details!(@ $it $key $($value)?));)+
            }
        }
    };
    (@ $it:ident $key:ident) => { $it.$key };
    (@ $it:ident $key:ident $value:expr) => { $value };
}

pub(super) use details;

/// A value of `None` has no key.
pub(super) fn detail(to: &mut impl Sink, name: &'static str, value: &impl Serialize) {
    let text = serde_json::to_string(value).unwrap_or_default();
    if text != "null" && !text.is_empty() {
        to.put(Key { name, before: "", is_detail: true }, Datum::Json(&text));
    }
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub pid: u32,
    pub tid: u32,
    pub command: Vec<String>,
    /// RANK, LOCAL_RANK, SLURM_PROCID… in the environment of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The rank among those on its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// The name or number that the launcher gives the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

details! { it: Exec => pid, tid, command, rank, local_rank, world_size, job }

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
    /// As in `Exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

details! { it: Found => pid, tid, comm, command, user, cgroup, container, rank, local_rank, world_size, job }

impl Process<'_> {
    /// The process and the thread.
    pub fn thread(&self) -> (u32, u32) {
        match self {
            Process::Exec(Exec { pid, tid, .. })
            | Process::Found(Found { pid, tid, .. })
            | Process::Fork(Fork { pid, tid, .. })
            | Process::Exit(Exit { pid, tid, .. })
            | Process::Library(Library { pid, tid, .. }) => (*pid, *tid),
        }
    }

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

details! { it: Fork => pid, tid, child }

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub pid: u32,
    pub tid: u32,
    #[serde(flatten)]
    pub status: ExitStatus,
}

details! { it: Exit => pid, tid, ended = it.status }

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
    pub not_hooked: Vec<RefusedHook>,
    /// The hooked functions whose hooks Linux single-steps, which costs several times more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub single_stepped: Vec<String>,
}

details! { it: Library<'_> => pid, tid, path, build_id, functions, not_hooked }

/// A hook that was requested but could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedHook {
    pub name: String,
    pub reason: String,
    /// The code of the reason; empty in older traces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
}

impl RefusedHook {
    pub fn new(name: &str, reason: Reason) -> RefusedHook {
        RefusedHook { name: name.to_owned(), reason: reason.text, code: reason.code }
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
    /// The clocks when the recording began. None in older traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

details! { it: Clock => monotonic_ns, realtime_ns, error_ns, boot_id, ntp, ptp }

details! { it: Header => version, start, host, kernel, driver, user, command }

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
    pub refused: Vec<RefusedHook>,
    /// The number of hooks of each backend, if there are several backends.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_backend: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookEntry>,
}

/// A hook that was requested by name, and the backend it got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookEntry {
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

/// The driver reported an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid<'a> {
    pub pid: u32,
    pub tid: u32,
    pub xid: u32,
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    #[serde(borrow)]
    pub device: Cow<'a, str>,
}

details! { it: Xid<'_> => xid, message, device, pid, tid }

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub count: u64,
    #[serde(default)]
    pub by_probe: BTreeMap<String, u64>,
}

details! { it: Lost => count, by_probe }

/// The machine was suspended; the clock of the trace did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspend {
    #[serde(rename = "slept_us", with = "micros")]
    pub slept_ns: u64,
}

details! { it: Suspend => slept_ns }

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
    /// The account of GPU work. None if none was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuAccount>,
    /// Only in a dump of the flight recorder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Dump>,
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

details! { it: Finish => events, lost, in_flight = it.in_flight.len(), complete,
incomplete_because = (!it.incomplete_because.is_empty()).then_some(&it.incomplete_because),
incomplete_codes = (!it.incomplete_codes.is_empty()).then_some(&it.incomplete_codes), gpu, dump }

/// Why the flight recorder wrote this dump, and where its period begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The dump's number in the recording, from 1.
    pub number: u64,
    /// The kind of event; the file's name has the same word.
    pub event: String,
    /// The reason, as a sentence.
    pub because: String,
    /// When the period begins, in nanoseconds since the recording began. Lines from before it are carried.
    pub from_ns: u64,
    /// The number of events that came too soon after the previous dump to get one of their own.
    #[serde(default)]
    pub suppressed: u64,
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
