//! What gpurec knows of CPython. In: bytes of an interpreter's file, line tables. Out: where the fields lie that BPF
//! reads, the line of an instruction. Not here: reading processes.

mod find;
mod frames;
mod layout;
mod lines;
#[cfg(test)]
mod tests;

use std::fs::File;

use serde::{Deserialize, Serialize};

pub use find::{Found, find};
pub use frames::{is_incomplete, offset, text};
#[cfg(test)]
pub use layout::{COOKIE, DESCRIPTION, Unfit, instruction};
pub use layout::{Layout, NONE, release};
pub use lines::{Format, line};

/// A Python interpreter in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interpreter {
    /// The address of `_PyRuntime` in the file.
    pub runtime: u64,
    /// The first page of the executable segment: its offset in the file and its address.
    pub offset: u64,
    pub segment: u64,
    pub layout: Layout,
}

/// The interpreter in a file. The error is a sentence.
pub fn interpreter(file: &File) -> Result<Option<Interpreter>, String> {
    let (runtime, layout) = match find(file) {
        Found::None => return Ok(None),
        Found::Python { runtime, layout } => (runtime, layout),
        Found::Refused(why) => return Err(why),
    };
    let segment = gpurec_elf::code_segment(file);
    Ok(segment.map(|(offset, segment)| Interpreter { runtime, offset, segment, layout }))
}
