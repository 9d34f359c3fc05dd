//! Static probes (USDT): places that a library's authors marked for tracers, in its section .note.stapsdt.
//!
//! In: an open file, and the provider whose probes are wanted. Out: each place, the counter that a tracer must raise
//! there, and where its arguments are; a reason for each place that cannot be hooked. The file's code and symbols are
//! not read. Not here: what a probe means (argument.rs has the form of arguments), attaching.

mod argument;

use std::fs::File;

use goblin::elf::program_header::PF_W;
use goblin::elf::section_header::SHT_NOTE;

use super::file::text;
use super::layout::{Layout, Machine, is_named};
use super::{FileError, UnhookedFunction};
pub use argument::{Argument, Memory, Place, Register};
use gpurec_trace::HookError;
use gpurec_trace::bounds::short;
use gpurec_trace::bytes::{u32_at, u64_at};
use serde::{Deserialize, Serialize};

/// Real files have a few hundred bytes; a C library has some thousands.
const MOST_BYTES: u64 = 1 << 20;
/// The most places of one provider.
const MOST: usize = 256;
/// The most arguments of a probe that its authors' macros allow.
const MOST_ARGUMENTS: usize = 12;
/// Bytes of a name, or of arguments, in a message.
const SHOWN: usize = 256;

const NOTE_TYPE: u32 = 3;
const OWNER: &[u8] = b"stapsdt\0";
/// Bytes of the counter.
const COUNTER: u64 = 2;

/// One place of a probe; a probe may have several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticProbe {
    pub provider: String,
    pub name: String,
    /// File offset of the instruction.
    pub site: u64,
    /// File offset of its counter: the program passes by while it is 0. None: the probe is always on.
    pub counter: Option<u64>,
    /// None: in a form that gpurec does not read.
    pub arguments: Vec<Option<Argument>>,
}

impl StaticProbe {
    /// `pytorch:malloc`
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// The probes of a file.
#[derive(Debug, Default)]
pub struct StaticProbes {
    pub soname: Option<String>,
    /// In hexadecimal.
    pub build_id: Option<String>,
    pub list: Vec<StaticProbe>,
    pub not_hooked: Vec<UnhookedFunction>,
}

/// The probes of a provider. None: the file has none.
pub fn static_probes(file: &File, provider: &str) -> Result<Option<StaticProbes>, FileError> {
    let Some(machine) = Machine::here() else {
        return Err(FileError::Foreign("code for a machine that gpurec does not support".to_owned()));
    };
    let layout = Layout::read(file, machine)?;
    let Some(sections) = find(&layout)? else { return Ok(None) };
    let bytes = layout.file.exact(sections.notes.0, sections.notes.1, "notes of static probes")?;
    let mut found = StaticProbes::default();
    for note in notes(&bytes).filter(|note| note.provider == provider) {
        if found.list.len() + found.not_hooked.len() >= MOST {
            break;
        }
        match probe(&layout, &note, sections.base) {
            Ok(probe) => found.list.push(probe),
            Err(why) => {
                let name = short(&format!("{}:{}", note.provider, note.name), SHOWN);
                found.not_hooked.push(UnhookedFunction::new(&name, why, false));
            }
        }
    }
    if found.list.is_empty() && found.not_hooked.is_empty() {
        return Ok(None);
    }
    (found.soname, found.build_id) = (layout.soname()?, layout.build_id()?);
    Ok(Some(found))
}

struct Sections {
    /// File offset and size.
    notes: (u64, u64),
    /// The address of .stapsdt.base: notes have the one that it had when they were written.
    base: Option<u64>,
}

fn find(layout: &Layout) -> Result<Option<Sections>, FileError> {
    let Some(names) = layout.section_names()? else { return Ok(None) };
    let section = |wanted: &str| {
        let mut all = layout.sections.iter();
        all.find(|section| is_named(&names, section, wanted))
    };
    let Some(notes) = section(".note.stapsdt").filter(|notes| notes.sh_type == SHT_NOTE) else {
        return Ok(None);
    };
    if notes.sh_size > MOST_BYTES {
        let kib = notes.sh_size >> 10;
        return Err(FileError::Malformed(format!("its notes of static probes would take {kib} KiB")));
    }
    let base = section(".stapsdt.base").map(|base| base.sh_addr);
    Ok(Some(Sections { notes: (notes.sh_offset, notes.sh_size), base }))
}

/// A note as the file has it.
#[derive(Debug, PartialEq)]
struct Note<'b> {
    site: u64,
    base: u64,
    counter: u64,
    provider: &'b str,
    name: &'b str,
    arguments: &'b str,
}

/// The notes up to the first that is damaged. Others than those of static probes are left out.
fn notes(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        loop {
            let (owner_size, size, kind) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?);
            let rest = bytes.get(12..)?;
            let owner = rest.get(..owner_size as usize)?;
            let rest = rest.get(padded(owner_size)?..)?;
            let content = rest.get(..size as usize)?;
            // The last note may end without its padding.
            bytes = rest.get(padded(size)?..).unwrap_or_default();
            if kind == NOTE_TYPE
                && owner == OWNER
                && let Some(note) = note(content)
            {
                return Some(note);
            }
        }
    })
}

fn padded(size: u32) -> Option<usize> {
    usize::try_from(size.checked_next_multiple_of(4)?).ok()
}

fn note(content: &[u8]) -> Option<Note<'_>> {
    let (site, base, counter) = (u64_at(content, 0)?, u64_at(content, 8)?, u64_at(content, 16)?);
    let mut texts = content.get(24..)?;
    let mut next = || {
        let found = text(texts)?;
        texts = texts.get(found.len() + 1..)?;
        Some(found)
    };
    Some(Note { site, base, counter, provider: next()?, name: next()?, arguments: next()? })
}

/// Checks that everything is where a hook may be.
fn probe(layout: &Layout, note: &Note, base: Option<u64>) -> Result<StaticProbe, HookError> {
    // A tool may have moved the file to other addresses since.
    let moved = base.filter(|_| note.base != 0).map_or(0, |base| base.wrapping_sub(note.base));
    let (site, left) = layout.locate_code(note.site.wrapping_add(moved))?;
    let instruction = layout.file.exact(site, left.min(4), "code").map_err(|_| HookError::NoCode)?;
    if !is_nop(layout.machine, &instruction) {
        return Err(HookError::NoNop);
    }
    let counter = match note.counter {
        0 => None,
        address => Some(counter(layout, address.wrapping_add(moved)).ok_or(HookError::NoCounter)?),
    };
    let arguments = words(note.arguments).take(MOST_ARGUMENTS);
    let arguments = arguments.map(|word| Argument::parse(layout.machine, word));
    Ok(StaticProbe {
        provider: short(note.provider, SHOWN),
        name: short(note.name, SHOWN),
        site,
        counter,
        arguments: arguments.collect(),
    })
}

/// Arguments are separated by spaces, which may also be inside brackets: `8@[sp, 8] -4@x0`.
fn words(arguments: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let words = arguments.split(move |c| {
        inside = match c {
            '[' => true,
            ']' => false,
            _ => inside,
        };
        c == ' ' && !inside
    });
    words.filter(|word| !word.is_empty())
}

/// Linux raises the counter in memory that the process may write to.
fn counter(layout: &Layout, address: u64) -> Option<u64> {
    let is_its = |segment: &&goblin::elf::ProgramHeader| {
        segment.p_flags & PF_W != 0
            && address.checked_sub(segment.p_vaddr).is_some_and(|from| from < segment.p_filesz)
    };
    layout.segments().iter().find(is_its)?;
    let (offset, left) = layout.locate(address, false)?;
    (left >= COUNTER).then_some(offset)
}

/// The authors' macros put an instruction there that does nothing. A hook anywhere else could change what the program
/// does.
fn is_nop(machine: Machine, bytes: &[u8]) -> bool {
    match machine {
        // nop, its form with a prefix, and its long forms
        Machine::X86_64 => matches!(bytes, [0x90, ..] | [0x66, 0x90, ..] | [0x0f, 0x1f, ..]),
        Machine::Aarch64 => bytes == [0x1f, 0x20, 0x03, 0xd5],
    }
}

#[cfg(test)]
mod tests;
