//! What naming and unwinding an address need of a file. In: an open file. Out: where its segments, unwind index, symbol
//! tables and debug sections are, kept without the file; and pieces of it, read when they are asked for. Not here: what
//! an unwind table or debug information says.

use std::fs::File;

use goblin::elf::program_header::{PF_X, PT_GNU_EH_FRAME, PT_LOAD};
use goblin::elf::section_header::{SHF_EXECINSTR, SHT_NOBITS};
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use goblin::elf::{SectionHeader, Sym};

use super::FileError;
use super::file::{Source, text};
use super::layout::{Layout, Machine};
use super::symbols::{self, Table};

const SHF_COMPRESSED: u64 = 0x800;
/// Real files have some forty.
const MOST_KNOWN: usize = 64;
const LONGEST_NAME: u64 = 4096;
/// Of a section that is known; real ones have some twenty bytes.
const LONGEST_KNOWN: usize = 64;

/// A piece of the file, and where it is in memory, relative to the file's own base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub offset: u64,
    pub size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    piece: Piece,
    executable: bool,
}

#[derive(Debug)]
struct Section {
    name: String,
    piece: Piece,
    compressed: bool,
}

/// A symbol table of the file.
#[derive(Clone, Copy)]
pub struct SymbolTable(Table);

pub struct Object {
    /// In hexadecimal.
    pub build_id: Option<String>,
    /// .eh_frame_hdr
    pub unwind_index: Option<Piece>,
    /// .symtab, which a stripped file lacks, and the dynamic symbols.
    pub full: Option<SymbolTable>,
    pub dynamic: Option<SymbolTable>,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    /// The end of each executable section, by index; 0 for others.
    ends: Vec<u64>,
}

/// A function, or a label in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub address: u64,
    /// Of a label without a size the end of its section.
    pub end: u64,
    pub sized: bool,
    /// Where its name is in the table's names.
    pub name: u32,
    /// Among names of one address the lowest is shown: functions before labels, global before weak before local.
    pub rank: u8,
}

impl Object {
    pub fn read(file: &File) -> Result<Object, FileError> {
        let Some(machine) = Machine::here() else {
            return Err(FileError::Foreign("code for a machine that gpurec does not support".to_owned()));
        };
        let layout = Layout::read(file, machine)?;
        let segments = layout.segments().iter().filter(|segment| segment.p_type == PT_LOAD);
        let segments = segments.map(|segment| Segment {
            piece: Piece {
                address: segment.p_vaddr,
                offset: segment.p_offset,
                size: segment.p_filesz.min(segment.p_memsz),
            },
            executable: segment.p_flags & PF_X != 0,
        });
        let index = layout.segments().iter().find(|segment| segment.p_type == PT_GNU_EH_FRAME);
        Ok(Object {
            build_id: layout.build_id()?,
            unwind_index: index.map(|index| Piece {
                address: index.p_vaddr,
                offset: index.p_offset,
                size: index.p_filesz,
            }),
            full: symbols::full_table(&layout).ok().flatten().map(SymbolTable),
            dynamic: symbols::dynamic_table(&layout).ok().flatten().map(SymbolTable),
            segments: segments.collect(),
            sections: sections(&layout).unwrap_or_default(),
            ends: layout.sections.iter().map(end_of_code).collect(),
        })
    }

    /// The address of a byte of the file, if it is executed.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let mut within = self.segments.iter().filter(|segment| segment.executable).map(|s| s.piece);
        within.find_map(|piece| {
            let from = offset.checked_sub(piece.offset).filter(|from| *from < piece.size)?;
            piece.address.checked_add(from)
        })
    }

    /// Up to `size` bytes at an address, as the file has them; fewer at the end of a segment.
    pub fn at(&self, file: &File, address: u64, size: u64) -> Option<Vec<u8>> {
        let mut pieces = self.segments.iter().map(|segment| segment.piece);
        let (piece, from) = pieces.find_map(|piece| {
            let from = address.checked_sub(piece.address).filter(|from| *from < piece.size)?;
            Some((piece, from))
        })?;
        Source::new(file).ok()?.at_most(piece.offset.checked_add(from)?, size.min(piece.size - from), "").ok()
    }

    /// A section by its name. None: it is not there, or it is compressed.
    pub fn section(&self, name: &str) -> Option<Piece> {
        let found = self.sections.iter().find(|section| section.name == name)?;
        (!found.compressed).then_some(found.piece)
    }

    /// Calls `each` for the functions and labels of a table.
    pub fn code(&self, file: &File, table: SymbolTable, each: &mut dyn FnMut(Code)) -> Result<(), FileError> {
        let layout = Layout::read(file, Machine::here().ok_or(FileError::NotElf)?)?;
        symbols::walk(&layout, table.0, &mut |symbol| {
            if let Some(code) = self.code_of(&symbol) {
                each(code);
            }
        })
    }

    fn code_of(&self, symbol: &Sym) -> Option<Code> {
        let section_end = self.ends.get(symbol.st_shndx).copied().unwrap_or(0);
        let kind = match symbol.st_type() {
            STT_FUNC | STT_GNU_IFUNC => 0,
            STT_NOTYPE if section_end > 0 => 4,
            _ => return None,
        };
        let binding = match symbol.st_bind() {
            STB_GLOBAL => 0,
            STB_WEAK => 1,
            _ => 2,
        };
        if !symbols::is_defined(symbol) || symbol.st_name == 0 {
            return None;
        }
        Some(Code {
            address: symbol.st_value,
            end: match symbol.st_size {
                0 => section_end,
                size => symbol.st_value.saturating_add(size),
            },
            sized: symbol.st_size > 0,
            name: u32::try_from(symbol.st_name).ok()?,
            rank: kind + binding,
        })
    }
}

impl SymbolTable {
    /// The name at a place of the table's names.
    pub fn name(&self, file: &File, at: u32) -> Option<String> {
        let size = self.0.names_size.checked_sub(at.into())?.min(LONGEST_NAME);
        let bytes = bytes(file, self.0.names.checked_add(at.into())?, size)?;
        text(&bytes).filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

/// Exactly that piece of a file, unless it is larger than any in a real file.
pub fn bytes(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    Source::new(file).ok()?.exact(offset, size, "").ok()
}

fn end_of_code(section: &SectionHeader) -> u64 {
    let is_code = section.sh_flags & u64::from(SHF_EXECINSTR) != 0;
    if is_code { section.sh_addr.saturating_add(section.sh_size) } else { 0 }
}

fn is_known(name: &str) -> bool {
    name.starts_with(".debug_") || matches!(name, ".gnu_debugdata" | ".eh_frame")
}

fn sections(layout: &Layout) -> Option<Vec<Section>> {
    let names = layout.section_names().ok()??;
    let named = layout.sections.iter().filter(|section| section.sh_type != SHT_NOBITS);
    let known = named.filter_map(|section| {
        // A million sections may share a name of many megabytes.
        let name = names.get(section.sh_name..)?;
        let name = text(name.get(..LONGEST_KNOWN).unwrap_or(name)).filter(|name| is_known(name))?;
        let piece = Piece { address: section.sh_addr, offset: section.sh_offset, size: section.sh_size };
        let compressed = section.sh_flags & SHF_COMPRESSED != 0;
        Some(Section { name: name.to_owned(), piece, compressed })
    });
    Some(known.take(MOST_KNOWN).collect())
}
