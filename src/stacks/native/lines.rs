//! Files, lines and inlined functions, from a file's DWARF. In: its debug sections. Out: the functions at an address,
//! innermost first. Files without DWARF, with more of it than MOST, or with compressed DWARF have no lines; their
//! functions come from the symbols.

use std::fs::File;
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};

use super::demangle::readable;
use super::{Frame, MOST_INLINED, bounded};
use gpurec_elf::{Object, bytes};

/// Bytes of the debug sections of one file.
const MOST: u64 = 96 << 20;

type Reader = EndianArcSlice<LittleEndian>;

pub struct Lines {
    context: addr2line::Context<Reader>,
    held: usize,
}

impl Lines {
    pub fn read(object: &Object, file: &File) -> Option<Lines> {
        object.section(SectionId::DebugInfo.name())?;
        object.section(SectionId::DebugAbbrev.name())?;
        let mut left = MOST;
        let dwarf = Dwarf::load(|id| -> Result<Reader, ()> {
            let piece = object.section(id.name()).filter(|_| is_read(id));
            let read = piece.map_or(Some(Vec::new()), |piece| {
                left = left.checked_sub(piece.size)?;
                bytes(file, piece.offset, piece.size)
            });
            Ok(Reader::new(Arc::from(read.ok_or(())?), LittleEndian))
        });
        let context = addr2line::Context::from_dwarf(dwarf.ok()?).ok()?;
        // What is parsed takes about as much again.
        let held = usize::try_from(2 * (MOST - left)).unwrap_or(usize::MAX);
        Some(Lines { context, held })
    }

    pub fn frames(&self, address: u64) -> Vec<Frame> {
        let mut found = Vec::new();
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else { return found };
        while found.len() < MOST_INLINED
            && let Ok(Some(frame)) = frames.next()
        {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location;
            found.push(Frame {
                function: name.map(|name| readable(&name)),
                file: location.as_ref().and_then(|l| l.file).map(|file| bounded(file.to_owned())),
                line: location.and_then(|location| location.line).filter(|line| *line > 0),
                inlined: true,
                ..Frame::default()
            });
        }
        // More were inlined than are kept: which one was called is not known.
        if found.len() == MOST_INLINED && !matches!(frames.next(), Ok(None)) {
            return Vec::new();
        }
        if let Some(called) = found.last_mut() {
            called.inlined = false;
        }
        found
    }

    /// The memory that it takes.
    pub fn held(&self) -> usize {
        self.held
    }
}

/// The sections that lines need.
fn is_read(id: SectionId) -> bool {
    use SectionId as Id;
    matches!(
        id,
        Id::DebugAbbrev
            | Id::DebugAddr
            | Id::DebugAranges
            | Id::DebugInfo
            | Id::DebugLine
            | Id::DebugLineStr
            | Id::DebugRanges
            | Id::DebugRngLists
            | Id::DebugStr
            | Id::DebugStrOffsets
    )
}
