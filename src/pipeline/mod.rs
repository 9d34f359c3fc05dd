//! From the rings to trace lines. In: the rings, and the recorder's own messages (such as libraries hooked). Out:
//! lines to the writer, figures to the summary.
//!
//! ring → decode → order → pair → sink; each is a file here. The first does I/O, the last writes; the three between
//! are pure and can be fed from a file of records. One thread does all of it, but under load: then helpers decode, and
//! make lines of what was paired (reading.rs, sink/sharing.rs). Not here: libbpf, any action on a process.

mod account;
mod beneath;
mod blocks;
mod call_parts;
pub mod call_stacks;
mod clock_ticks;
pub mod decode;
pub mod gpu;
pub mod handoff;
pub mod helpers;
mod made_ring;
pub mod messages;
pub mod observer;
pub mod order;
pub mod pair;
mod pause;
mod processes;
mod reading;
pub mod replay;
pub mod sink;
mod sleeps;
pub mod stops;
mod stubs;
#[cfg(test)]
pub mod tests;
pub mod worker;
