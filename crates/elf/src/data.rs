//! Data that a file keeps for others to find. In: an open file, names. Out: where symbols and sections of these names
//! are, and bytes at addresses. A name that no symbol has costs a few reads, whatever the size of the file.

use std::fs::File;

use goblin::elf::Sym;
use goblin::elf::program_header::PT_INTERP;
use goblin::elf::section_header::SHT_NULL;

use super::FileError;
use super::file::text;
use super::layout::{CTX, Layout, Machine, is_named, malformed};
use super::symbols::{self, SYMBOL, Table, is_defined};
use gpurec_trace::bytes::u32_at;

/// The most symbols of one hash that are looked at; tables of linkers have a handful.
const LONGEST_CHAIN: u64 = 1024;
/// The names of .symtab that are searched.
const MOST_NAMES: u64 = 64 << 20;

/// An address range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: u64,
    pub size: u64,
}

pub struct Data<'f> {
    layout: Layout<'f>,
}

impl<'f> Data<'f> {
    pub fn read(file: &'f File) -> Result<Self, FileError> {
        let none = || FileError::Foreign("code for a machine that gpurec does not support".to_owned());
        Ok(Self { layout: Layout::read(file, Machine::here().ok_or_else(none)?)? })
    }

    /// Whether it is a program, not a library.
    pub fn is_program(&self) -> bool {
        self.layout.segments().iter().any(|segment| segment.p_type == PT_INTERP)
    }

    /// A section that is in memory.
    pub fn section(&self, name: &str) -> Option<Place> {
        let names = self.layout.section_names().ok()??;
        let mut sections = self.layout.sections.iter();
        let section =
            sections.find(|section| section.sh_type != SHT_NULL && is_named(&names, section, name))?;
        (section.sh_addr != 0).then_some(Place { address: section.sh_addr, size: section.sh_size })
    }

    /// Up to `size` bytes of the file that are at an address; none if there are none.
    pub fn bytes(&self, place: Place) -> Option<Vec<u8>> {
        let (offset, left) = self.layout.locate(place.address, false)?;
        let bytes = self.layout.file.at_most(offset, place.size.min(left), "data").ok()?;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// A defined symbol that the dynamic linker would find.
    pub fn exported(&self, name: &str) -> Option<Place> {
        let table = symbols::dynamic_table(&self.layout).ok()??;
        match self.layout.dynamic.gnu_hash {
            Some(hash) => self.by_hash(table, hash, name),
            None => self.by_name(table, name),
        }
    }

    /// A defined symbol of .symtab, which a stripped file lacks. Its time grows with the size of the table.
    pub fn unexported(&self, name: &str) -> Option<Place> {
        self.by_name(symbols::full_table(&self.layout).ok()??, name)
    }

    fn by_name(&self, table: Table, name: &str) -> Option<Place> {
        if table.names_size > MOST_NAMES {
            return None;
        }
        let names = symbols::names(&self.layout, table).ok()?;
        let wanted = [name.as_bytes(), b"\0"].concat();
        memchr::memmem::find(&names, &wanted)?;
        let mut found = None;
        let mut each = |symbol: Sym| {
            if is_defined(&symbol)
                && names.get(symbol.st_name..).is_some_and(|rest| rest.starts_with(&wanted))
            {
                found = Some(place(&symbol));
            }
        };
        symbols::walk(&self.layout, table, &mut each).ok()?;
        found
    }

    fn by_hash(&self, table: Table, address: u64, name: &str) -> Option<Place> {
        let file = &self.layout.file;
        let (offset, _) = self.layout.locate(address, false)?;
        let head = file.exact(offset, 16, "hash table").ok()?;
        let (buckets, first, bloom) = (u32_at(&head, 0)?, u32_at(&head, 4)?, u32_at(&head, 8)?);
        let hash = gnu_hash(name);
        let buckets_at = offset.checked_add(16 + u64::from(bloom) * 8)?;
        let bucket_at = buckets_at.checked_add(u64::from(hash.checked_rem(buckets)?) * 4)?;
        let bucket = u32_at(&file.exact(bucket_at, 4, "hash table").ok()?, 0)?;
        let chain_at = u64::from(bucket.checked_sub(first)?) * 4 + u64::from(buckets) * 4;
        let chain = file.at_most(buckets_at.checked_add(chain_at)?, LONGEST_CHAIN * 4, "hash table").ok()?;
        for (index, word) in (u64::from(bucket)..).zip(chain.chunks_exact(4)) {
            let word = u32_at(word, 0)?;
            if word | 1 == hash | 1
                && let Some(symbol) = self.symbol(table, index, name)
            {
                return Some(symbol);
            }
            if word & 1 == 1 {
                break;
            }
        }
        None
    }

    /// The symbol at an index, if it is defined and has the name.
    fn symbol(&self, table: Table, index: u64, name: &str) -> Option<Place> {
        let file = &self.layout.file;
        let at = table.symbols.checked_add(index.checked_mul(SYMBOL)?)?;
        let bytes = file.exact(at, SYMBOL, "symbol").ok()?;
        let symbol = Sym::parse(&bytes, 0, 1, CTX).map_err(malformed).ok()?.pop()?;
        let name_at = table.names.checked_add(symbol.st_name as u64)?;
        let found = file.exact(name_at, name.len() as u64 + 1, "symbol name").ok()?;
        (is_defined(&symbol) && text(&found) == Some(name)).then(|| place(&symbol))
    }
}

fn place(symbol: &Sym) -> Place {
    Place { address: symbol.st_value, size: symbol.st_size }
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}
