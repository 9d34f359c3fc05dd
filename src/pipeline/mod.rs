//! From the rings to lines. In: the rings, and what the recorder has to say itself
//! (libraries hooked). Out: lines to the writer and figures to the summary.
//!
//! ring → decode → order → pair → sink; each is a file here. The first is I/O, the last
//! writes; the three between are pure and can be fed from a file of records.
//! What may not be done here: talk to libbpf, act on a process.

mod beneath;
pub mod decode;
pub mod handoff;
pub mod messages;
pub mod observer;
pub mod order;
pub mod pair;
pub mod sink;
mod sleeps;
mod stops;
mod stubs;
mod taken;
#[cfg(test)]
mod tests;
mod whose;
pub mod worker;
