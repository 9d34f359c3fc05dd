//! Who runs: the person who typed sudo, the program launched for them, the processes attached to.
//!
//! In: the command line's words, our own environment, /proc. Out: an identity and an environment, a
//! child that waits at a gate, signals as values, open files of libraries that a process has mapped.
//!
//! Not here: no BPF, no ELF reading, no printing. Nothing that another process can influence (its
//! name, its maps, its environment) may make this room panic or follow a path it has not verified.

pub mod attach;
pub mod capabilities;
mod child;
pub mod fds;
pub mod guardian;
pub mod identity;
pub mod launch;
pub mod limits;
pub mod maps;
pub mod proc;
pub mod rights;
pub mod signals;
pub mod stops;
#[cfg(test)]
mod tests;

/// A process id as the kernel's records carry it.
pub type Pid = u32;
