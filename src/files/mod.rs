//! Files of the processes that are recorded, read by processes of their own.
//!
//! A target chooses what it maps, and a file can make its reader wait: a FUSE server that does not answer, a network
//! that is gone. Such a wait ends by no signal. So the recorder opens and reads nothing of a target's itself: it asks a
//! worker, waits as long as it likes, and leaves a worker that does not come back.
//!
//! In: a thread and what it mapped; or a process, for its mappings, its rank, the symbol at an address. Out: what is to
//! be hooked in a file, with a descriptor by which the file can be hooked and neither read nor waited for.
//! Three parts: `look` does the work, in a worker; `process` starts workers and ends them, in a process that touches no
//! file; `pool` and `side` ask, in the recorder. Not here: which process is stopped, what is attached.

mod look;
mod message;
mod mount;
mod pool;
mod process;
pub mod select;
mod side;

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::maps::{Mapping, as_text};
use gpurec_elf::Image;
use gpurec_trace as trace;

pub use pool::{Event, Gone, LATE, Pool};
pub use process::Files;
pub use side::Side;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// What is to be hooked in a file. `again`: also if this worker has said it before.
    File { tid: u32, place: Place, again: bool },
    /// The files that a process executes.
    Maps { pid: u32 },
    /// Where libraries lie that a process may load: an interpreter's wheels, or what the linker finds.
    Early { of: Early },
    /// The name of what lies at an address.
    Symbol { pid: u32, address: u64 },
    /// Its number in a distributed job.
    Rank { pid: u32 },
    /// What it is called, whose it is.
    Process { pid: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Place {
    /// The program itself.
    Program,
    /// What a thread has just mapped, by a descriptor that it may have closed since. The inode is the kernel's.
    Mapped {
        address: u64,
        inode: u64,
        fd: i32,
    },
    Listed(Mapping),
    /// Mapped by nobody yet.
    Path(String),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Early {
    Linker,
    Process(u32),
}

impl Place {
    /// Whatever file is there, if any: BPF could not tell.
    fn is_any_file(&self) -> bool {
        matches!(self, Place::Mapped { inode: 0, .. })
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Not the last word: where the file lies may make its reader wait.
    Opening(#[serde(with = "as_text")] PathBuf),
    /// Nothing wanted is in it.
    Nothing,
    /// This worker has said before what is to be hooked in it.
    Known(FileId),
    /// Comes with a descriptor.
    Wanted(Box<Wanted>),
    /// It looked like something wanted, and was not to be read or must not be hooked.
    NotHooked {
        #[serde(with = "as_text")]
        path: PathBuf,
        reason: String,
    },
    NotOpened(Unopened),
    Maps(Result<Vec<Mapping>, String>),
    Early(Vec<String>),
    Symbol(Option<String>),
    Rank(Option<String>),
    Process(Option<Box<trace::Found>>),
    /// No worker, and why.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    key: FileId,
    #[serde(with = "as_text")]
    path: PathBuf,
    image: Image,
    stamp: Option<Stamp>,
}

/// When a file was written last, and how long it was then: taken before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp(i64, i64, u64);

impl Stamp {
    pub fn of(meta: &Metadata) -> Stamp {
        Stamp(meta.mtime(), meta.mtime_nsec(), meta.size())
    }
}

/// A file in which something is wanted.
#[derive(Debug)]
pub struct Wants {
    pub key: FileId,
    pub path: PathBuf,
    pub image: Image,
    /// For hooking it: O_PATH, so closing it waits for nothing.
    pub handle: File,
    /// None: whoever asks for more than the hooks would wait for a server.
    pub stamp: Option<Stamp>,
}

/// What a worker found.
#[derive(Debug)]
pub enum Found {
    Nothing,
    Known(FileId),
    Wants(Box<Wants>),
    NotHooked {
        path: PathBuf,
        reason: String,
    },
    NotOpened(Unopened),
    Maps(Result<Vec<Mapping>, String>),
    Early(Vec<String>),
    Symbol(Option<String>),
    Rank(Option<String>),
    Process(Option<Box<trace::Found>>),
    /// There was no worker to ask.
    Refused(String),
}

/// Why a file could not be opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unopened {
    pub said: String,
    /// The file of that name is gone, or is another one.
    pub not_found: bool,
    /// The process has it mapped no more.
    pub unmapped: bool,
    /// A device and the like.
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

/// Device and inode, as stat() has them. As long as it has hooks no other file can have the same.
pub type FileId = (u64, u64);
