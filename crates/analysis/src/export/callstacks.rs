//! InternTable call stacks of Perfetto's format. In: stacks. Out: the number of a stack, and the entries that define its
//! frames where they are new. The frames have no mapping: a trace tells the function, the file and the line already.

use super::proto;
use crate::stacks::{Site, Stacks};
use gpurec_trace::hash::Map;
use gpurec_trace::{Frame, last_part};

/// Fields of InternedData.
const FUNCTION_NAMES: u32 = 5;
const FRAMES: u32 = 6;
const CALLSTACKS: u32 = 7;
const SOURCE_PATHS: u32 = 18;

/// Fields of Frame and Callstack, after the number.
const FUNCTION_NAME_ID: u32 = 2;
const SOURCE_PATH_IID: u32 = 5;
const LINE_NUMBER: u32 = 6;
const FRAME_IDS: u32 = 2;

#[derive(Default)]
pub struct Callstacks {
    stacks: Map<u64, u64>,
    frames: Map<Site, u64>,
}

impl Callstacks {
    /// None for a stack that was not kept. New entries go to `entries`.
    pub fn number(&mut self, stack: u64, stacks: &Stacks, entries: &mut Vec<u8>) -> Option<u64> {
        if let Some(known) = self.stacks.get(&stack) {
            return Some(*known);
        }
        let known = stacks.frames.stack(stack).filter(|known| !known.frames.is_empty())?;
        let frames: Vec<u64> =
            known.frames.iter().rev().map(|site| self.frame(*site, stacks, entries)).collect();
        let number = self.stacks.len() as u64 + 1;
        self.stacks.insert(stack, number);
        let entry = proto::open(entries, CALLSTACKS);
        proto::uint(entries, 1, number);
        frames.iter().for_each(|frame| proto::uint(entries, FRAME_IDS, *frame));
        proto::close(entries, entry);
        Some(number)
    }

    fn frame(&mut self, site: Site, stacks: &Stacks, entries: &mut Vec<u8>) -> u64 {
        if let Some(known) = self.frames.get(&site) {
            return *known;
        }
        let number = self.frames.len() as u64 + 1;
        self.frames.insert(site, number);
        let Some(frame) = stacks.frame(site) else { return number };
        let (function, file, line) = match frame {
            Frame::Python { function, file, line } => (function.to_string(), Some(file), *line),
            Frame::Native { function: Some(function), file, line, .. } => {
                (function.to_string(), file.as_ref(), *line)
            }
            Frame::Native { module, offset, .. } => {
                (format!("{}+{offset:#x}", last_part(module)), None, None)
            }
        };
        // A frame's name and path are its own entries, of the same number.
        text(entries, FUNCTION_NAMES, number, &function);
        if let Some(file) = file {
            text(entries, SOURCE_PATHS, number, file);
        }
        let entry = proto::open(entries, FRAMES);
        proto::uint(entries, 1, number);
        proto::uint(entries, FUNCTION_NAME_ID, number);
        if file.is_some() {
            proto::uint(entries, SOURCE_PATH_IID, number);
        }
        if let Some(line) = line {
            proto::uint(entries, LINE_NUMBER, line.into());
        }
        proto::close(entries, entry);
        number
    }
}

fn text(entries: &mut Vec<u8>, field: u32, number: u64, text: &str) {
    let entry = proto::open(entries, field);
    proto::uint(entries, 1, number);
    proto::bytes(entries, 2, text.as_bytes());
    proto::close(entries, entry);
}
