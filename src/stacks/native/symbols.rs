//! The function at an address of a file. In: the file's symbol tables. Out: a name. Keeps only where names are, because a
//! large library has a hundred megabytes of them, and reads a name when it is wanted.

use std::fs::File;
use std::io::{Read, Write};

use nix::sys::memfd::{MFdFlags, memfd_create};

use gpurec_elf::{Code, Object, SymbolTable, bytes};

/// Of one table. libtorch_cpu has half a million.
const MOST_CODES: usize = 2 << 20;
/// How far back from an address its function is searched, past functions that end before it.
const MOST_BACK: usize = 64;
/// The packed symbols of a stripped library, unpacked. Those of Fedora's libpython take less than a megabyte.
const MOST_UNPACKED: u64 = 32 << 20;
const MOST_PACKED: u64 = 16 << 20;

#[derive(Default)]
pub struct Symbols {
    tables: Vec<Table>,
    /// .gnu_debugdata, unpacked into memory.
    unpacked: Option<File>,
}

struct Table {
    names: SymbolTable,
    is_unpacked: bool,
    /// By address.
    codes: Vec<Code>,
}

impl Symbols {
    pub fn read(object: &Object, file: &File) -> Symbols {
        let mut symbols = Symbols::default();
        // The dynamic symbols are a part of the full table.
        let whole = object.full.is_some_and(|full| symbols.add(object, file, full, false));
        if whole {
            return symbols;
        }
        if let Some(dynamic) = object.dynamic {
            symbols.add(object, file, dynamic, false);
        }
        if let Some(unpacked) = unpack(object, file)
            && let Ok(inner) = Object::read(&unpacked)
            && let Some(full) = inner.full
        {
            symbols.add(&inner, &unpacked, full, true);
            symbols.unpacked = Some(unpacked);
        }
        symbols
    }

    /// False: the table has nothing of use.
    fn add(&mut self, object: &Object, file: &File, names: SymbolTable, is_unpacked: bool) -> bool {
        let mut codes = Vec::new();
        let mut beyond = false;
        let all = object.code(file, names, &mut |code| match codes.len() {
            MOST_CODES.. => beyond = true,
            _ => codes.push(code),
        });
        // With a part of a table, an address could get the name of another function.
        if all.is_err() || beyond || codes.is_empty() {
            return false;
        }
        codes.shrink_to_fit();
        codes.sort_unstable_by_key(|code| (code.address, code.rank, code.name));
        self.tables.push(Table { names, is_unpacked, codes });
        true
    }

    /// The symbol of the function that has the address.
    pub fn name(&self, file: &File, address: u64) -> Option<String> {
        let named = |table: &Table| {
            let code = find(&table.codes, address)?;
            let file = if table.is_unpacked { self.unpacked.as_ref()? } else { file };
            table.names.name(file, code.name)
        };
        self.tables.iter().find_map(named)
    }

    /// The memory that it takes.
    pub fn held(&self) -> usize {
        let codes: usize = self.tables.iter().map(|table| table.codes.len() * size_of::<Code>()).sum();
        // The most that it may be.
        codes + self.unpacked.as_ref().map_or(0, |_| MOST_UNPACKED as usize)
    }
}

/// A function with a size that contains the address, or else the label in front of it.
fn find(codes: &[Code], address: u64) -> Option<&Code> {
    let after = codes.partition_point(|code| code.address <= address);
    let before = codes.get(..after)?.iter().rev();
    let mut found: Option<&Code> = None;
    let mut label: Option<&Code> = None;
    for code in before.take(MOST_BACK) {
        if found.is_some_and(|found| found.address != code.address) {
            break;
        }
        if code.sized && address < code.end {
            // Of several names, the one of the lowest rank comes last.
            found = Some(code);
        }
        let nearest = codes.get(after - 1)?.address;
        if !code.sized && code.address == nearest && address < code.end {
            label = Some(code);
        }
    }
    found.or(label)
}

fn unpack(object: &Object, file: &File) -> Option<File> {
    let packed = object.section(".gnu_debugdata").filter(|packed| packed.size <= MOST_PACKED)?;
    let packed = bytes(file, packed.offset, packed.size)?;
    let into = memfd_create("gpurec-symbols", MFdFlags::MFD_CLOEXEC).ok()?;
    let mut into = File::from(into);
    let mut reader = lzma_rust2::XzReader::new(packed.as_slice(), false);
    let mut piece = vec![0; 64 << 10];
    let mut left = MOST_UNPACKED;
    loop {
        match reader.read(&mut piece).ok()? {
            0 => return Some(into),
            read => {
                left = left.checked_sub(read as u64)?;
                into.write_all(piece.get(..read)?).ok()?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(address: u64, end: u64, sized: bool, name: u32, rank: u8) -> Code {
        Code { address, end, sized, name, rank }
    }

    #[test]
    fn an_address_belongs_to_the_function_around_it() {
        let codes = [
            code(0x100, 0x180, true, 1, 0),
            code(0x100, 0x180, true, 2, 2),
            code(0x110, 0x120, true, 3, 0),
            code(0x140, 0x1000, false, 4, 6),
            code(0x200, 0x300, false, 5, 4),
        ];
        let at = |address| find(&codes, address).map(|code| code.name);
        assert_eq!(at(0xff), None);
        assert_eq!([at(0x100), at(0x110), at(0x120)], [Some(1), Some(3), Some(1)]);
        assert_eq!([at(0x140), at(0x17f), at(0x180)], [Some(1), Some(1), Some(4)]);
        assert_eq!([at(0x200), at(0x2ff), at(0x300)], [Some(5), Some(5), None]);
    }
}
