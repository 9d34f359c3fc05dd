//! The processes that gpurec deals with: the user who called sudo, the program launched for them, the processes it
//! attaches to.
//!
//! In: the command line, gpurec's own environment, /proc. Out: an identity and an environment, a child that waits at a
//! gate, signals as values, open files of libraries that a process has mapped.
//!
//! Not here: BPF, ELF reading, printing. No input that another process controls (its name, its maps, its environment)
//! may make this module panic or follow a path that it has not verified.

pub mod attach;
pub mod capabilities;
pub mod cgroup;
mod child;
pub mod environment;
pub mod fds;
pub mod folder;
pub mod guardian;
pub mod identity;
pub mod job;
pub mod launch;
pub mod limits;
pub mod maps;
pub mod proc;
pub mod rights;
pub mod signals;
pub mod stops;
pub mod terminal;
#[cfg(test)]
mod tests;

/// A process id, in the type that BPF's records use.
pub type Pid = u32;
