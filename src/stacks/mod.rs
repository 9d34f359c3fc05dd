//! Call stacks of recorded threads. In: what BPF read and copied of a thread. Out: frames with names, and each distinct
//! stack once. Not here: which calls get a stack, and what reports make of them.

mod mapped;
mod merge;
pub mod native;
pub mod python;
mod table;

pub use mapped::{Mapped, MappedFile, Mappings};
pub use table::{CodePart, Frames, PythonFrame, Table};
