//! Symbol tables. In: a layout and the wanted names. Out: the symbols, not yet checked. Tables are read in pieces.

use goblin::elf::section_header::{SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::{STB_LOCAL, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STV_HIDDEN, STV_INTERNAL};
use goblin::elf::{SectionHeader, Sym};

use super::file::{Source, text};
use super::layout::{CTX, Layout, malformed};
use super::{FileError, Symbol, UnhookedFunction};
use gpurec_trace::HookError;
use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::bytes::u32_at;

pub const SYMBOL: u64 = 24;
const PIECE: u64 = 8192;
const LONGEST_NAME: usize = 4096;
/// More hooks than this in one file are an accident or an attack, not a recording.
const MOST_HOOKS: usize = 1 << 16;
/// The bytes of their names: many symbols may share one long name.
pub const MOST_HOOKED_NAMES: usize = 8 << 20;
/// The same for all functions of a file; EACH is what a function takes besides its name.
pub const MOST_NAMES: usize = 64 << 20;
pub const EACH: usize = 48;

pub struct Candidate {
    pub name: String,
    pub symbol: Sym,
}

/// The wanted symbols, up to the limits.
#[derive(Default)]
pub struct Candidates {
    pub list: Vec<Candidate>,
    names: BytesLeft<MOST_HOOKED_NAMES>,
    /// The first symbol that did not fit, and the number of such symbols.
    beyond: Option<(String, u64)>,
}

impl Candidates {
    pub fn add(&mut self, candidate: Candidate) {
        if let Some((_, count)) = &mut self.beyond {
            *count += 1;
        } else if self.list.len() < MOST_HOOKS && self.names.take(candidate.name.len()) {
            self.list.push(candidate);
        } else {
            self.beyond = Some((candidate.name, 1));
        }
    }

    /// An entry for the symbols that were left out.
    pub fn too_many(&mut self) -> Option<UnhookedFunction> {
        let (name, count) = self.beyond.take()?;
        let mib = MOST_HOOKED_NAMES >> 20;
        let why = HookError::BeyondFile { more: count - 1, most: MOST_HOOKS, mib };
        Some(UnhookedFunction::new(&name, why, false))
    }
}

/// Where a symbol table and its names are in the file.
#[derive(Clone, Copy)]
pub struct Table {
    pub symbols: u64,
    pub count: u64,
    pub names: u64,
    pub names_size: u64,
}

/// The symbol table that `section` describes; its names are in the section that it links to.
fn table_of(layout: &Layout, section: &SectionHeader) -> Result<Table, FileError> {
    let names = layout
        .sections
        .get(section.sh_link as usize)
        .ok_or_else(|| FileError::Malformed("a symbol table has no names".to_owned()))?;
    if section.sh_entsize != SYMBOL {
        return Err(FileError::Malformed("a symbol table has entries of a wrong size".to_owned()));
    }
    Ok(Table {
        symbols: section.sh_offset,
        count: section.sh_size / SYMBOL,
        names: names.sh_offset,
        names_size: names.sh_size,
    })
}

/// .symtab, which a stripped file lacks.
pub fn full_table(layout: &Layout) -> Result<Option<Table>, FileError> {
    let full = layout.sections.iter().find(|section| section.sh_type == SHT_SYMTAB);
    full.map(|section| table_of(layout, section)).transpose()
}

/// The dynamic symbol table, from the section headers or, in a file without them, found as the loader finds it.
pub fn dynamic_table(layout: &Layout) -> Result<Option<Table>, FileError> {
    match layout.sections.iter().find(|section| section.sh_type == SHT_DYNSYM) {
        Some(section) => table_of(layout, section).map(Some),
        None => loaders_table(layout),
    }
}

fn loaders_table(layout: &Layout) -> Result<Option<Table>, FileError> {
    let place = layout.dynamic.symbols.and_then(|address| layout.locate(address, false));
    let (Some((symbols, _)), Some((names, names_size))) = (place, layout.dynamic_strings()) else {
        return Ok(None);
    };
    let count = match (layout.dynamic.hash, layout.dynamic.gnu_hash) {
        (Some(hash), _) => count_by_hash(layout, hash)?,
        (None, Some(hash)) => count_by_gnu_hash(layout, hash)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(Table { symbols, count, names, names_size }))
}

fn count_by_hash(layout: &Layout, address: u64) -> Result<u64, FileError> {
    let (offset, _) = layout.locate(address, false).ok_or_else(no_hash)?;
    let head = layout.file.exact(offset, 8, "hash table")?;
    u32_at(&head, 4).map(u64::from).ok_or_else(no_hash)
}

/// The table does not contain the number of symbols: finds the last chain and follows it to its end mark.
fn count_by_gnu_hash(layout: &Layout, address: u64) -> Result<u64, FileError> {
    let (offset, _) = layout.locate(address, false).ok_or_else(no_hash)?;
    let head = layout.file.exact(offset, 16, "hash table")?;
    let (Some(buckets), Some(first), Some(bloom)) = (u32_at(&head, 0), u32_at(&head, 4), u32_at(&head, 8))
    else {
        return Err(no_hash());
    };
    let buckets_at = offset + 16 + u64::from(bloom) * 8;
    let chains_at = buckets_at + u64::from(buckets) * 4;
    let heads = layout.file.exact(buckets_at, u64::from(buckets) * 4, "hash table")?;
    let last = heads.chunks_exact(4).filter_map(|word| u32_at(word, 0)).max().unwrap_or(0);
    if last < first {
        return Ok(first.into());
    }
    let mut count = u64::from(last);
    loop {
        Source::bounded(count * SYMBOL, "symbol table")?;
        let piece = layout.file.at_most(chains_at + (count - u64::from(first)) * 4, 4096, "hash table")?;
        if piece.len() < 4 {
            return Err(FileError::Malformed("its hash table has no end".to_owned()));
        }
        for word in piece.chunks_exact(4) {
            count += 1;
            if u32_at(word, 0).is_some_and(|word| word & 1 == 1) {
                return Ok(count);
            }
        }
    }
}

fn no_hash() -> FileError {
    FileError::Malformed("its hash table lies outside the file".to_owned())
}

/// Calls `each` for every symbol of `table`.
pub fn walk(layout: &Layout, table: Table, each: &mut dyn FnMut(Sym)) -> Result<(), FileError> {
    Source::bounded(table.count.saturating_mul(SYMBOL), "symbol table")?;
    let mut done = 0;
    while done < table.count {
        let count = PIECE.min(table.count - done);
        let start =
            done.checked_mul(SYMBOL).and_then(|from| from.checked_add(table.symbols)).unwrap_or(u64::MAX);
        let bytes = layout.file.exact(start, count * SYMBOL, "symbol table")?;
        Sym::parse(&bytes, 0, count as usize, CTX).map_err(malformed)?.into_iter().for_each(&mut *each);
        done += count;
    }
    Ok(())
}

pub fn names(layout: &Layout, table: Table) -> Result<Vec<u8>, FileError> {
    layout.file.exact(table.names, table.names_size, "symbol names")
}

pub fn name<'n>(names: &'n [u8], symbol: &Sym) -> Option<&'n str> {
    let rest = names.get(symbol.st_name..)?;
    text(rest.get(..LONGEST_NAME).unwrap_or(rest)).filter(|name| !name.is_empty())
}

pub fn is_defined(symbol: &Sym) -> bool {
    symbol.st_shndx != 0
}

/// Functions, and code without a type, which may be a function.
pub fn may_be_function(layout: &Layout, symbol: &Sym) -> bool {
    match symbol.st_type() {
        STT_FUNC | STT_GNU_IFUNC => true,
        STT_NOTYPE => layout.locate(symbol.st_value, true).is_some(),
        _ => false,
    }
}

/// The exported, defined symbols whose names `accepts` takes.
pub fn exported(layout: &Layout, accepts: &dyn Fn(&str) -> bool) -> Result<Candidates, FileError> {
    let mut found = Candidates::default();
    let Some(table) = dynamic_table(layout)? else {
        return Ok(found);
    };
    let names = names(layout, table)?;
    walk(layout, table, &mut |symbol| {
        if is_defined(&symbol)
            && is_visible(&symbol)
            && let Some(candidate) = candidate(&names, symbol, accepts)
        {
            found.add(candidate);
        }
    })?;
    Ok(found)
}

pub fn candidate(names: &[u8], symbol: Sym, accepts: &dyn Fn(&str) -> bool) -> Option<Candidate> {
    let name = name(names, &symbol).filter(|name| accepts(name))?.to_owned();
    Some(Candidate { name, symbol })
}

fn is_visible(symbol: &Sym) -> bool {
    symbol.st_bind() != STB_LOCAL && !matches!(symbol.st_visibility(), STV_HIDDEN | STV_INTERNAL)
}

/// Every defined function of .symtab, or of .dynsym in a file that has no other, by offset.
pub fn functions(layout: &Layout) -> Result<Vec<Symbol>, FileError> {
    let table = match full_table(layout)? {
        Some(table) => Some(table),
        None => dynamic_table(layout)?,
    };
    let Some(table) = table else { return Ok(Vec::new()) };
    let strings = names(layout, table)?;
    let mut found = Vec::new();
    let mut held = 0;
    walk(layout, table, &mut |symbol| {
        if !is_defined(&symbol) || symbol.st_type() != STT_FUNC || held > MOST_NAMES {
            return;
        }
        if let (Some(name), Some((offset, 1..))) =
            (name(&strings, &symbol), layout.locate(symbol.st_value, true))
        {
            held += EACH + name.len();
            found.push(Symbol { offset, name: name.to_owned() });
        }
    })?;
    found.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    found.dedup_by_key(|symbol| symbol.offset);
    Ok(found)
}
