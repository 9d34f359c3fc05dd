//! What ran on the GPU, and when. In: CUPTI's activity records, from the ring of the library that `--gpu` loads into
//! recorded processes. Out: each with the call that submitted it.
//! Not here: lines of the trace (pipeline), and CUPTI itself, which runs only in recorded processes (crates/inject).

pub mod clock;
pub mod cupti;
pub mod door;
pub mod join;
pub mod lane;
pub mod names;
mod numbers;
pub mod overhead;
pub mod refusal;
pub mod ring;
#[path = "../../crates/inject/src/shape.rs"]
#[allow(dead_code)]
mod shape;
pub mod tap;
