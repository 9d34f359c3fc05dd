//! The structure of an ELF file. In: a file. Out: its segments, sections, dynamic section, name and build id, each
//! bounded.

use std::fs::File;

use goblin::container::{Container, Ctx, Endian};
use goblin::elf::dynamic::{
    DF_TEXTREL, DT_FLAGS, DT_GNU_HASH, DT_HASH, DT_NEEDED, DT_NULL, DT_SONAME, DT_STRSZ, DT_STRTAB,
    DT_SYMTAB, DT_TEXTREL,
};
use goblin::elf::header::{
    EI_CLASS, EI_DATA, ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_AARCH64, EM_X86_64, ET_DYN, ET_EXEC, SIZEOF_IDENT,
    machine_to_str,
};
use goblin::elf::note::{NT_GNU_BUILD_ID, NoteDataIterator};
use goblin::elf::program_header::{PT_DYNAMIC, PT_LOAD, PT_NOTE};
use goblin::elf::section_header::{SHT_NOBITS, SHT_NOTE};
use goblin::elf::{Elf, Header, ProgramHeader, SectionHeader};

use super::FileError;
use super::file::{Source, text};
use gpurec_trace::HookError;
use gpurec_trace::bytes::{hex, u64_at};

pub const CTX: Ctx = Ctx { container: Container::Big, le: Endian::Little };

const HEADER: usize = 64;
const SEGMENT: u64 = 56;
const SECTION: u64 = 64;
/// One read usually fetches the header and all segments.
const FIRST_READ: u64 = 4096;
const LONGEST_NAME: u64 = 4096;
const MOST_DYNAMIC: u64 = 64 << 10;
const MOST_NOTES: u64 = 64 << 10;
const MOST_SECTIONS: u64 = 1 << 20;
/// Every look-up of an address searches all segments. Real files have about ten.
const MOST_SEGMENTS: u16 = 1024;
/// The number of note tables searched for a build id, which is in one of the first or nowhere.
const MOST_NOTE_TABLES: usize = 64;
const LONGEST_BUILD_ID: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    pub fn here() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else {
            None
        }
    }

    fn number(self) -> u16 {
        match self {
            Self::X86_64 => EM_X86_64,
            Self::Aarch64 => EM_AARCH64,
        }
    }
}

/// The dynamic section's entries in use; addresses, not file offsets.
#[derive(Default)]
pub struct Dynamic {
    soname: Option<u64>,
    needed: Vec<u64>,
    strings: Option<u64>,
    strings_size: u64,
    pub symbols: Option<u64>,
    pub hash: Option<u64>,
    pub gnu_hash: Option<u64>,
    /// The loader writes addresses into the code.
    text_relocations: bool,
}

pub struct Layout<'f> {
    pub file: Source<'f>,
    pub machine: Machine,
    pub dynamic: Dynamic,
    pub sections: Vec<SectionHeader>,
    /// The index of the section that holds the names of sections.
    names: usize,
    segments: Vec<ProgramHeader>,
}

impl<'f> Layout<'f> {
    pub fn read(file: &'f File, machine: Machine) -> Result<Self, FileError> {
        let file = Source::new(file)?;
        let head = file.at_most(0, FIRST_READ, "header")?;
        let header = header(&head, machine)?;
        let segments = segments(&file, &head, &header)?;
        let dynamic = dynamic(&file, &segments)?;
        let sections = sections(&file, &header)?;
        Ok(Self { file, machine, dynamic, sections, names: header.e_shstrndx.into(), segments })
    }

    /// File offset of `address`, and the number of file bytes that follow it in its segment.
    pub fn locate(&self, address: u64, executable: bool) -> Option<(u64, u64)> {
        let segment = self.segment_of(address, executable)?;
        let from = address - segment.p_vaddr;
        let offset = segment.p_offset.checked_add(from)?;
        let left = segment.p_filesz.saturating_sub(from);
        Some((offset, left.min(self.file.len.saturating_sub(offset))))
    }

    fn segment_of(&self, address: u64, executable: bool) -> Option<&ProgramHeader> {
        let inside = |segment: &&ProgramHeader| {
            segment.p_type == PT_LOAD
                && (!executable || segment.is_executable())
                && address.checked_sub(segment.p_vaddr).is_some_and(|from| from < segment.p_memsz)
        };
        self.segments.iter().find(inside)
    }

    /// The same of code, or why it can have no probe.
    pub fn locate_code(&self, address: u64) -> Result<(u64, u64), HookError> {
        let segment = self.segment_of(address, true).ok_or(HookError::NotExecutable)?;
        if segment.is_write() {
            return Err(HookError::Writable);
        }
        if self.dynamic.text_relocations {
            return Err(HookError::TextRelocations);
        }
        match self.locate(address, true) {
            Some((_, 0)) | None => Err(HookError::NoCode),
            Some(place) => Ok(place),
        }
    }

    /// The first executable segment: offset in the file and address.
    pub fn code(&self) -> Option<(u64, u64)> {
        let is_code = |segment: &&ProgramHeader| segment.p_type == PT_LOAD && segment.is_executable();
        let segment = self.segments.iter().find(is_code)?;
        Some((segment.p_offset, segment.p_vaddr))
    }

    pub fn segments(&self) -> &[ProgramHeader] {
        &self.segments
    }

    /// The names of sections, one after another.
    pub fn section_names(&self) -> Result<Option<Vec<u8>>, FileError> {
        let names = self.sections.get(self.names).filter(|names| names.sh_type != SHT_NOBITS);
        names.map(|names| self.file.exact(names.sh_offset, names.sh_size, "section names")).transpose()
    }

    /// Whether a section has one of these names.
    pub fn has_section(&self, wanted: &[&str]) -> Result<bool, FileError> {
        let Some(names) = self.section_names()? else { return Ok(false) };
        Ok(self.sections.iter().any(|section| wanted.iter().any(|wanted| is_named(&names, section, wanted))))
    }

    pub fn soname(&self) -> Result<Option<String>, FileError> {
        match self.dynamic.soname {
            Some(index) => self.dynamic_text(index),
            None => Ok(None),
        }
    }

    /// Whether `accepts` takes the name of a library that this file needs.
    pub fn needs(&self, accepts: &dyn Fn(&str) -> bool) -> Result<bool, FileError> {
        for index in &self.dynamic.needed {
            if self.dynamic_text(*index)?.is_some_and(|name| accepts(&name)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// File offset and size of the dynamic section's strings.
    pub fn dynamic_strings(&self) -> Option<(u64, u64)> {
        let (offset, left) = self.locate(self.dynamic.strings?, false)?;
        Some((offset, self.dynamic.strings_size.min(left)))
    }

    fn dynamic_text(&self, index: u64) -> Result<Option<String>, FileError> {
        let Some((offset, size)) = self.dynamic_strings() else {
            return Ok(None);
        };
        if index >= size {
            return Ok(None);
        }
        let bytes = self.file.exact(offset + index, (size - index).min(LONGEST_NAME), "names")?;
        Ok(text(&bytes).map(str::to_owned))
    }

    pub fn build_id(&self) -> Result<Option<String>, FileError> {
        let segments = self.segments.iter().filter(|segment| segment.p_type == PT_NOTE);
        let segments = segments.map(|segment| (segment.p_offset, segment.p_filesz, segment.p_align));
        let sections = self.sections.iter().filter(|section| section.sh_type == SHT_NOTE);
        let sections = sections.map(|section| (section.sh_offset, section.sh_size, section.sh_addralign));
        let tables = segments.take(MOST_NOTE_TABLES).chain(sections.take(MOST_NOTE_TABLES));
        for (offset, size, alignment) in tables {
            let bytes = self.file.at_most(offset, size.min(MOST_NOTES), "notes")?;
            if let Some(id) = build_id_in(&bytes, alignment) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }
}

/// Whether a section has the name. Reads no more of its name than that: a million sections may share a name of many
/// megabytes.
pub fn is_named(names: &[u8], section: &SectionHeader, wanted: &str) -> bool {
    let rest = names.get(section.sh_name..).and_then(|name| name.strip_prefix(wanted.as_bytes()));
    rest.is_some_and(|rest| rest.first() == Some(&0))
}

pub fn malformed(error: goblin::error::Error) -> FileError {
    FileError::Malformed(error.to_string())
}

fn header(head: &[u8], machine: Machine) -> Result<Header, FileError> {
    if !head.starts_with(ELFMAG) {
        return Err(FileError::NotElf);
    }
    if head.len() < HEADER.max(SIZEOF_IDENT) {
        return Err(FileError::Malformed("it ends within its header".to_owned()));
    }
    if head.get(EI_CLASS) != Some(&ELFCLASS64) {
        return Err(FileError::Foreign("32-bit code".to_owned()));
    }
    if head.get(EI_DATA) != Some(&ELFDATA2LSB) {
        return Err(FileError::Foreign("big-endian code".to_owned()));
    }
    let header = Elf::parse_header(head).map_err(malformed)?;
    if header.e_machine != machine.number() {
        let other = machine_to_str(header.e_machine).trim_start_matches("EM_");
        return Err(FileError::Foreign(format!("code for another machine ({other})")));
    }
    if !matches!(header.e_type, ET_EXEC | ET_DYN) {
        return Err(FileError::Malformed("it is neither a program nor a shared library".to_owned()));
    }
    Ok(header)
}

fn segments(file: &Source, head: &[u8], header: &Header) -> Result<Vec<ProgramHeader>, FileError> {
    let count = header.e_phnum;
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MOST_SEGMENTS {
        return Err(FileError::Malformed(format!("it claims {count} segments")));
    }
    if u64::from(header.e_phentsize) != SEGMENT {
        return Err(FileError::Malformed("its program headers have a wrong size".to_owned()));
    }
    let size = u64::from(count) * SEGMENT;
    let near = usize::try_from(header.e_phoff)
        .ok()
        .and_then(|start| head.get(start..start.checked_add(size as usize)?));
    let parsed = match near {
        Some(bytes) => ProgramHeader::parse(bytes, 0, count.into(), CTX),
        None => {
            ProgramHeader::parse(&file.exact(header.e_phoff, size, "program headers")?, 0, count.into(), CTX)
        }
    };
    parsed.map_err(malformed)
}

fn sections(file: &Source, header: &Header) -> Result<Vec<SectionHeader>, FileError> {
    let start = header.e_shoff;
    if start == 0 {
        return Ok(Vec::new());
    }
    if u64::from(header.e_shentsize) != SECTION {
        return Err(FileError::Malformed("its section headers have a wrong size".to_owned()));
    }
    let mut count = u64::from(header.e_shnum);
    if count == 0 {
        // More than 65,279 sections: the first section header has their number in its size field.
        let first = file.exact(start, SECTION, "first section header")?;
        count = u64_at(&first, 32).unwrap_or(0);
    }
    if count > MOST_SECTIONS {
        return Err(FileError::Malformed(format!("it claims {count} sections")));
    }
    let bytes = file.exact(start, count * SECTION, "section headers")?;
    SectionHeader::parse_from(&bytes, 0, count as usize, CTX).map_err(malformed)
}

fn dynamic(file: &Source, segments: &[ProgramHeader]) -> Result<Dynamic, FileError> {
    let mut found = Dynamic::default();
    let Some(segment) = segments.iter().find(|segment| segment.p_type == PT_DYNAMIC) else {
        return Ok(found);
    };
    let bytes = file.exact(segment.p_offset, segment.p_filesz.min(MOST_DYNAMIC), "dynamic section")?;
    for entry in bytes.chunks_exact(16) {
        let (Some(tag), Some(value)) = (u64_at(entry, 0), u64_at(entry, 8)) else {
            break;
        };
        match tag {
            DT_NULL => break,
            DT_SONAME => found.soname = Some(value),
            DT_NEEDED => found.needed.push(value),
            DT_STRTAB => found.strings = Some(value),
            DT_STRSZ => found.strings_size = value,
            DT_SYMTAB => found.symbols = Some(value),
            DT_HASH => found.hash = Some(value),
            DT_GNU_HASH => found.gnu_hash = Some(value),
            DT_TEXTREL => found.text_relocations = true,
            DT_FLAGS => found.text_relocations |= value & DF_TEXTREL != 0,
            _ => {}
        }
    }
    Ok(found)
}

fn build_id_in(data: &[u8], alignment: u64) -> Option<String> {
    let alignment = if alignment == 8 { 8 } else { 4 };
    let notes = NoteDataIterator { data, size: data.len(), offset: 0, ctx: (alignment, CTX) };
    let mut ids = notes.flatten().filter(|note| note.n_type == NT_GNU_BUILD_ID && note.name == "GNU");
    let id = ids.next()?.desc;
    (1..=LONGEST_BUILD_ID).contains(&id.len()).then(|| hex(id))
}
