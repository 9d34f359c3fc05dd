//! Reads files of the recorded processes in separate processes.
//!
//! A target chooses what it maps, and a file can block its reader: a FUSE server that does not answer, a network that
//! is gone. No signal ends such a wait. So the recorder never opens or reads a target's file itself: it asks a worker,
//! waits for a limited time, and abandons a worker that does not answer.
//!
//! In: a thread and the file it mapped; or a process, for its mappings, its rank, the symbol at an address or the calls
//! of a stack. Out: the functions to hook in a file, with a descriptor that allows hooking the file but not reading it
//! or waiting for it. Three parts: `look` does the work, in a worker; `process` starts and ends workers, in a process that touches no
//! file; `pool` and `side` send requests from the recorder. Not here: which process is stopped, what is attached.

pub mod allocator;
mod look;
mod message;
mod mount;
mod pool;
mod process;
pub mod select;
mod side;
#[cfg(test)]
mod tests;

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::job::Job;
use crate::process::maps::{Mapping, as_text};
use crate::stacks::Mapped;
use crate::stacks::native::{Frame, Stack, Unwound};
use crate::stacks::python::Interpreter;
use gpurec_elf::Image;
use gpurec_trace as trace;
use gpurec_trace::Reason;

pub use pool::{Event, Gone, LATE, Pool};
pub use process::Files;
pub use side::Side;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// The functions to hook in a file. `again`: even if this worker has reported the file before.
    File { tid: u32, place: Place, again: bool },
    /// The files that a process executes.
    Maps { pid: u32 },
    /// The paths of libraries that a process may load: those in an interpreter's wheels, or those that the linker
    /// finds.
    Early { of: Early },
    /// The name of the symbol at an address.
    Symbol { pid: u32, address: u64 },
    /// Opens the files of mappings, so that they are there when their processes have ended.
    Mapped { all: Vec<(u32, Mapped)> },
    /// All code that a process has mapped from files.
    Code { pid: u32 },
    /// Reads the symbols of a process's code, so that later requests are answered at once.
    Prepare { pid: u32 },
    /// The calls of a thread, from its registers and a copy of its stack. `mapped`: what is known of where its code is;
    /// the rest is looked up.
    Unwind { pid: u32, stack: Box<Stack>, mapped: Vec<Mapped> },
    /// The functions at known return addresses.
    Frames { pid: u32, addresses: Vec<u64>, mapped: Vec<Mapped> },
    /// The process's place in a distributed job.
    Job { pid: u32 },
    /// The process's name, command line and user.
    Process { pid: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Place {
    /// The program itself.
    Program,
    /// A file that a thread has just mapped, by a descriptor that it may have closed since. The inode is the one that
    /// Linux uses internally.
    Mapped {
        address: u64,
        inode: u64,
        fd: i32,
    },
    Listed(Mapping),
    /// A file that no process has mapped yet.
    Path(String),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Early {
    Linker,
    Process(u32),
}

impl Place {
    /// Any file that is mapped at the address: BPF could not identify it.
    fn is_any_file(&self) -> bool {
        matches!(self, Place::Mapped { inode: 0, .. })
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Not the final answer: the worker is about to open a file whose file system may block it.
    Opening(#[serde(with = "as_text")] PathBuf),
    Found(Found),
}

/// A worker's result.
#[derive(Debug, Serialize, Deserialize)]
pub enum Found {
    /// The file has no wanted function.
    Nothing,
    /// This worker has already reported what to hook in this file.
    Known(FileId),
    Wants(Box<Wants>),
    /// The file looked wanted, but it cannot be read or must not be hooked.
    NotHooked {
        #[serde(with = "as_text")]
        path: PathBuf,
        reason: Reason,
    },
    /// A Python interpreter, with no wanted function in its file.
    Python(Box<Interpreter>),
    /// An interpreter whose frames cannot be read, for this reason.
    NoPython(String),
    NotOpened(Unopened),
    Maps(Result<Vec<Mapping>, String>),
    Early(Vec<String>),
    Symbol(Option<String>),
    /// For each mapping whether its file is open.
    Opened(Vec<bool>),
    Code(Option<Vec<Mapped>>),
    Prepared,
    Unwound(Unwound),
    /// One list for each address.
    Frames(Vec<Vec<Frame>>),
    Job(Job),
    Process(Option<Box<trace::Found>>),
    /// There is no worker, for this reason.
    Refused(String),
}

/// A file with wanted functions.
#[derive(Debug, Serialize, Deserialize)]
pub struct Wants {
    pub key: FileId,
    #[serde(with = "as_text")]
    pub path: PathBuf,
    pub image: Image,
    /// For hooking the file: O_PATH, so closing it never blocks. None: gpurec had no free descriptor for it.
    #[serde(skip)]
    pub handle: Option<File>,
    /// None: any use of the file beyond hooking could wait for a server.
    pub stamp: Option<Stamp>,
}

/// When a file was last written, and its length, both taken before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp(i64, i64, u64);

impl Stamp {
    pub fn of(meta: &Metadata) -> Stamp {
        Stamp(meta.mtime(), meta.mtime_nsec(), meta.size())
    }
}

/// Why a file could not be opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unopened {
    pub said: String,
    /// The file of that name is gone, or another file has replaced it.
    pub not_found: bool,
    /// The process no longer has it mapped.
    pub unmapped: bool,
    /// The file cannot be a library: a device, for example.
    pub no_library: bool,
}

impl Unopened {
    fn new(error: &io::Error, unmapped: bool) -> Unopened {
        let device = matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV));
        Unopened {
            said: error.to_string(),
            not_found: error.kind() == io::ErrorKind::NotFound,
            unmapped,
            no_library: device || error.kind() == io::ErrorKind::Other,
        }
    }
}

/// Device and inode, as stat() reports them. While a file has hooks, no other file can get the same pair.
pub type FileId = (u64, u64);
