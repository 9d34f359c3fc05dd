//! Native stacks: from a thread's registers and a copy of its stack to functions, files and lines.
//!
//! In: registers and stack bytes, or addresses, and the process that they are of. Out: frames, innermost first, and why
//! deeper ones are missing. It reads files that the process has mapped, so it runs in a worker of `files`, and nothing
//! that a file or a stack says is trusted: sizes, steps and depths have limits, and an address without a rule ends the
//! stack. Not here: Python frames, and the order of native and Python frames.

mod demangle;
mod expression;
mod jit;
mod lines;
mod module;
mod opened;
mod process;
mod registers;
mod rows;
mod rule;
mod symbols;
#[cfg(test)]
pub mod tests;
mod unwind;

use serde::{Deserialize, Serialize};

use crate::process::Pid;
use crate::process::maps::{self, Mapping};
use crate::stacks::{Mapped, MappedFile};
use module::Modules;
use opened::OpenedFiles;
use process::Processes;
pub use rule::{FrameBase, Shortcut, follow};
#[cfg(fuzzing)]
pub use {module::Module, unwind::Lookup, unwind::walk};

/// The most calls of a stack, and the most frames of a call: those that the compiler inlined, and the call's own.
pub const MOST_CALLS: usize = 256;
pub const MOST_INLINED: usize = 64;
/// The most bytes of a stack that are unwound.
pub const MOST_COPIED: usize = 256 << 10;
/// The longest function, module and file names, and the bytes of all that one answer names.
const LONGEST: usize = 4096;
const MOST_TEXT: usize = 1 << 20;

/// A thread's registers at the end of a call: as its caller finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registers {
    /// The address that the call returns to.
    pub ip: u64,
    /// The stack pointer after the return: the place of the return address, plus 8.
    pub sp: u64,
    pub bp: u64,
    /// rbx, r12, r13, r14 and r15, which some functions find their frame by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<[u64; 5]>,
}

/// What is known of a thread's stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stack {
    pub registers: Registers,
    /// The address of the first byte.
    pub base: u64,
    #[serde(with = "as_hex")]
    pub bytes: Vec<u8>,
    /// Places of return addresses that Linux has replaced for a return probe, and the original addresses.
    pub replaced: Vec<(u64, u64)>,
}

/// A function on a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled, without the parameters' types. None: the file does not say.
    pub function: Option<String>,
    /// The path that the process mapped. None: code that is in no file.
    pub module: Option<String>,
    /// In hexadecimal.
    pub build_id: Option<String>,
    /// The address as the file's own tables and `addr2line` count it; the address itself in code that is in no file. It
    /// is the one that the call returns to, so that the call itself is in front of it.
    pub offset: u64,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// The compiler put this function into the next one.
    pub inlined: bool,
}

/// One call on a stack: functions that were inlined, and the one that was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub address: u64,
    /// The stack pointer at that address.
    pub sp: u64,
    /// Innermost first, at least one.
    pub frames: Vec<Frame>,
    /// How BPF finds the caller without a copy of the stack.
    pub shortcut: Shortcut,
}

/// Why the outer calls of a stack are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// They are beyond the bytes that were copied.
    Copied,
    /// A return address is in no executable memory: Linux has replaced it, or the stack changed meanwhile.
    NotCode,
    /// Code without an unwind table: written in assembly, or made at run time.
    NoTable,
    /// The file cannot be opened.
    NotOpened,
    /// A table or the stack contradicts itself.
    Damaged,
    /// There are more than MOST_CALLS calls.
    Deep,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwound {
    /// Innermost first.
    pub calls: Vec<Call>,
    /// None: the last call is the thread's first.
    pub cut: Option<Cut>,
}

/// What a worker keeps between requests.
#[derive(Default)]
pub struct Native {
    processes: Processes,
    opened: OpenedFiles,
    modules: Modules,
}

/// The code that a process has mapped now. What only Linux knows of the files is left out.
pub fn code(pid: Pid) -> Option<Vec<Mapped>> {
    let mappings = maps::executable_mappings(pid).ok()?.into_iter().map(|mapping| {
        let Mapping { start, end, offset, dev, inode, .. } = mapping;
        let file = MappedFile { inode, device: dev, generation: 0, changed: 0, size: 0 };
        Mapped { start, end, offset, file }
    });
    Some(mappings.collect())
}

impl Native {
    /// Opens the file of a mapping, to have it when the process has ended.
    pub fn open(&mut self, pid: Pid, mapped: &Mapped) -> bool {
        self.opened.open(pid, mapped).is_some()
    }

    /// Reads the symbols of all files that the process has mapped as code now.
    pub fn prepare(&mut self, pid: Pid) {
        for mapped in code(pid).unwrap_or_default() {
            if let Some(opened) = self.opened.open(pid, &mapped) {
                self.modules.ask(opened.key, &opened.file, |module| module.prepare(&opened.file));
            }
        }
    }

    /// `mapped`: what is known of where the process had its code at that time.
    pub fn unwind(&mut self, pid: Pid, stack: &Stack, mapped: &[Mapped]) -> Unwound {
        let mut memory = self.processes.request(pid, mapped, &mut self.opened);
        let (steps, cut) = unwind::walk(stack, &mut |address| memory.row(&mut self.modules, address));
        let mut left = MOST_TEXT;
        let calls = steps.into_iter().map(|step| {
            let frames = memory.frames(&mut self.modules, step.address, step.exact);
            let row = memory.row(&mut self.modules, step.address.wrapping_sub(u64::from(!step.exact)));
            // BPF looks a rule up by a return address.
            let shortcut = if step.exact { Shortcut::Stop } else { Shortcut::of(&row) };
            Call { address: step.address, sp: step.sp, frames: within(frames, &mut left), shortcut }
        });
        Unwound { calls: calls.collect(), cut }
    }

    /// The frames of known return addresses, one list for each address.
    pub fn frames(&mut self, pid: Pid, addresses: &[u64], mapped: &[Mapped]) -> Vec<Vec<Frame>> {
        let mut memory = self.processes.request(pid, mapped, &mut self.opened);
        let mut left = MOST_TEXT;
        let known = addresses.iter().take(MOST_CALLS);
        known.map(|address| within(memory.frames(&mut self.modules, *address, false), &mut left)).collect()
    }
}

/// Leaves out names once the answer has too many bytes of them.
fn within(mut frames: Vec<Frame>, left: &mut usize) -> Vec<Frame> {
    for frame in &mut frames {
        for text in [&mut frame.function, &mut frame.module, &mut frame.file] {
            let length = text.as_ref().map_or(0, String::len);
            match left.checked_sub(length) {
                Some(rest) => *left = rest,
                None => *text = None,
            }
        }
    }
    frames
}

/// The beginning of a text that may be too long to keep.
fn bounded(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// Bytes in a message: JSON lists of numbers are several times as long and slow.
mod as_hex {
    use std::borrow::Cow;

    use gpurec_trace::bytes::hex;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let digit = |byte: u8| (byte as char).to_digit(16);
        let byte = |two: &[u8]| Some((digit(*two.first()?)? << 4 | digit(*two.get(1)?)?) as u8);
        let bytes = text.as_bytes().chunks(2).map(byte).collect::<Option<_>>();
        bytes.ok_or_else(|| D::Error::custom("not hexadecimal"))
    }
}
