//! The stacks of a recording. In: functions and frames as BPF read them. Out: each distinct stack once, as a line of
//! the trace, and the number by which calls refer to it. Pure. Not here: native symbols.
//!
//! The memory for what programs send is bounded: beyond the limits stacks are counted and left out. The entries of a
//! program are removed when it ends, because each of BPF's keys and numbers belongs to one program.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::merge::{PythonEntry, merge};
use super::{native, python};
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::hash::Map;
use gpurec_trace::{Frame, Stack};

/// Bytes of all functions' texts and tables of lines.
const MOST_CODE: usize = 128 << 20;
/// Bytes of a function without these.
const EACH: usize = 128;
/// The most stacks of running programs that have a number, and the most keys of them.
const MOST_STACKS: usize = 1 << 20;
const MOST_KEYS: usize = 2 << 20;

/// A part of a Python function.
pub struct CodePart<'a> {
    pub pid: u32,
    /// BPF's number of the function.
    pub code: u64,
    /// `PY_VERSION_HEX`.
    pub version: u32,
    pub first_line: i32,
    pub first_traceable: u32,
    /// The characters of a text, and how Python stores them.
    pub name: (&'a [u8], u32),
    pub file: (&'a [u8], u32),
    /// Bytes of the whole table of lines, and a part of it.
    pub lines: u32,
    pub at: u32,
    pub part: &'a [u8],
}

/// A frame of a Python function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PythonFrame {
    /// BPF's number of the function.
    pub code: u64,
    /// As the interpreter holds it.
    pub position: u32,
    pub owner: u8,
    /// The interpreter was entered here: outer Python frames belong to outer native ones.
    pub is_entry: bool,
}

/// A stack, innermost frame first.
pub struct Frames<'a> {
    /// The functions at each return address.
    pub calls: &'a [Vec<native::Frame>],
    pub python: &'a [PythonFrame],
    /// Outer frames are missing.
    pub cut: bool,
}

struct Function {
    version: u32,
    name: Arc<str>,
    file: Arc<str>,
    first_line: i32,
    first_traceable: u32,
    lines: Vec<u8>,
    /// Bytes of the whole table.
    all: usize,
}

impl Function {
    fn bytes(&self) -> usize {
        EACH + self.name.len() + self.file.len() + self.all
    }
}

/// What the tables have of one program.
#[derive(Default)]
struct Program {
    functions: Vec<u64>,
    keys: Vec<u64>,
    contents: Vec<u64>,
}

#[derive(Default)]
pub struct Table {
    programs: Map<u32, Program>,
    functions: Map<u64, Function>,
    numbers: Map<u64, u64>,
    /// The numbers of stacks by what they consist of: BPF may give one several keys.
    contents: Map<u64, u64>,
    /// The number of the next stack.
    next: u64,
    room: BytesLeft<MOST_CODE>,
    /// Number of stacks whose outer frames are missing.
    pub cut: u64,
    /// Number of calls whose stack is not known.
    pub missing: u64,
}

impl Table {
    pub fn add(&mut self, part: &CodePart) {
        if part.at == 0 {
            let (name, file) =
                (python::text(part.name.0, part.name.1), python::text(part.file.0, part.file.1));
            let function = Function {
                version: part.version,
                name: name.into(),
                file: file.into(),
                first_line: part.first_line,
                first_traceable: part.first_traceable,
                lines: part.part.to_vec(),
                all: part.lines as usize,
            };
            if self.functions.contains_key(&part.code) || !self.room.take(function.bytes()) {
                return;
            }
            self.programs.entry(part.pid).or_default().functions.push(part.code);
            self.functions.insert(part.code, function);
        } else if let Some(function) = self.functions.get_mut(&part.code)
            && function.lines.len() == part.at as usize
            && function.lines.len() + part.part.len() <= function.all
        {
            function.lines.extend_from_slice(part.part);
        }
    }

    /// Whether a stack with this key has a number.
    pub fn knows(&self, key: u64) -> bool {
        self.numbers.contains_key(&key)
    }

    /// Gives a stack a number. Returns its line if no other has the same frames.
    pub fn stack(&mut self, pid: u32, key: u64, stack: &Frames) -> Option<Stack<'static>> {
        let python = stack.python.iter();
        let python = python.map(|frame| PythonEntry { frame: self.frame(frame), is_entry: frame.is_entry });
        let frames = merge(stack.calls, python.collect(), stack.cut);
        // By names: after an exec the same addresses may be other functions.
        let content = self.contents.hasher().hash_one((pid, &frames, stack.cut));
        let known = self.contents.get(&content).copied();
        if self.numbers.len() >= MOST_KEYS || (known.is_none() && self.contents.len() >= MOST_STACKS) {
            return None;
        }
        let number = known.unwrap_or(self.next);
        let program = self.programs.entry(pid).or_default();
        program.keys.push(key);
        self.numbers.insert(key, number);
        if known.is_some() {
            return None;
        }
        program.contents.push(content);
        self.contents.insert(content, number);
        self.next += 1;
        self.cut += u64::from(stack.cut);
        Some(Stack { stack: number, pid, frames, cut: stack.cut })
    }

    /// The program has ended, or another one has taken its process.
    pub fn gone(&mut self, pid: u32) {
        let Some(program) = self.programs.remove(&pid) else { return };
        for code in program.functions {
            let bytes = self.functions.remove(&code).map_or(0, |function| function.bytes());
            self.room.give_back(bytes);
        }
        program.keys.iter().for_each(|key| _ = self.numbers.remove(key));
        program.contents.iter().for_each(|content| _ = self.contents.remove(content));
    }

    /// The number of the stack with this key.
    pub fn number(&mut self, key: u64) -> Option<u64> {
        let number = self.numbers.get(&key).copied();
        self.missing += u64::from(number.is_none());
        number
    }

    /// None for a frame that has not begun: tracebacks leave it out too.
    fn frame(&self, frame: &PythonFrame) -> Option<Frame<'static>> {
        let Some(function) = self.functions.get(&frame.code) else {
            return Some(Frame::Python {
                function: Cow::Borrowed("?"),
                file: Cow::Borrowed("?"),
                line: None,
            });
        };
        let offset = python::offset(function.version, frame.position);
        if python::is_incomplete(function.version, frame.owner, offset, function.first_traceable) {
            return None;
        }
        // A table that did not come whole would give a wrong line.
        let line = (function.lines.len() == function.all)
            .then(|| {
                python::line(
                    python::Format::of(function.version),
                    &function.lines,
                    function.first_line,
                    offset,
                )
            })
            .flatten();
        Some(Frame::Python {
            function: Cow::Owned(function.name.to_string()),
            file: Cow::Owned(function.file.to_string()),
            line,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(pid: u32, code: u64) -> CodePart<'static> {
        CodePart {
            pid,
            code,
            version: 0x030b_00f0,
            first_line: 1,
            first_traceable: 0,
            name: (b"step", 0),
            file: (b"train.py", 0),
            lines: 0,
            at: 0,
            part: &[],
        }
    }

    #[test]
    fn programs_that_come_and_go_leave_nothing() {
        let mut table = Table::default();
        let cut = |cut| Frames { calls: &[], python: &[], cut };
        for run in 0..1000u64 {
            // A PID is used again; keys and numbers of functions are not.
            let pid = (run % 7) as u32;
            table.add(&part(pid, run));
            let first = table.stack(pid, 3 * run, &cut(false)).unwrap();
            assert_eq!((first.stack, table.stack(pid, 3 * run + 1, &cut(false))), (2 * run, None));
            assert_eq!(table.stack(pid, 3 * run + 2, &cut(true)).unwrap().stack, 2 * run + 1);
            assert_eq!(table.number(3 * run + 1), Some(2 * run));
            table.gone(pid);
            assert_eq!(table.number(3 * run + 1), None);
        }
        assert!(table.functions.is_empty() && table.numbers.is_empty() && table.contents.is_empty());
        assert!(table.programs.is_empty() && table.room.take(MOST_CODE));
    }
}
