//! Names of host stubs that were registered before the recording began: the symbol at the
//! stub's address, from the file that the process has mapped there. In: a process and an
//! address. Out: the symbol as the file has it, or None. Each file's table is read once.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::elf;
use crate::meaning::Names;
use crate::room::Left;
use crate::target::maps;

/// More than a program has kernels, less than a hostile one could make us look up.
const MOST: usize = 100_000;
/// Bytes of all files' symbols together, and of the names that were asked for.
const MOST_SYMBOLS: usize = 72 << 20;
const MOST_KNOWN: usize = 16 << 20;
/// Of each, besides its name.
const EACH: usize = 48;

#[derive(Default)]
pub struct Stubs {
    known: HashMap<(u32, u64), Option<String>>,
    files: HashMap<(u64, u64), Vec<elf::Symbol>>,
    symbols: Left<MOST_SYMBOLS>,
    names: Left<MOST_KNOWN>,
}

impl Names for Stubs {
    fn stub(&mut self, pid: u32, address: u64) -> Option<String> {
        if let Some(name) = self.known.get(&(pid, address)) {
            return name.clone();
        }
        let name = self.look_up(pid, address);
        let bytes = EACH + name.as_ref().map_or(0, String::len);
        if self.known.len() < MOST && self.names.take(bytes) {
            self.known.insert((pid, address), name.clone());
        }
        name
    }
}

impl Stubs {
    fn look_up(&mut self, pid: u32, address: u64) -> Option<String> {
        let mappings = maps::executable_mappings(pid).ok()?;
        let mapping = mappings.iter().find(|m| (m.start..m.end).contains(&address))?;
        let offset = address - mapping.start + mapping.offset;
        let file = maps::open_mapped(pid, mapping).ok()?;
        let symbols = self.symbols(&file)?;
        let at = symbols.binary_search_by_key(&offset, |symbol| symbol.offset).ok()?;
        symbols.get(at).map(|symbol| symbol.name.clone())
    }

    fn symbols(&mut self, file: &File) -> Option<&Vec<elf::Symbol>> {
        let meta = file.metadata().ok()?;
        let key = (meta.dev(), meta.ino());
        if !self.files.contains_key(&key) {
            let symbols = elf::function_symbols(file);
            // A program could map one large file after another.
            let bytes = EACH + symbols.iter().map(|symbol| EACH + symbol.name.len()).sum::<usize>();
            let symbols = if self.symbols.take(bytes) { symbols } else { Vec::new() };
            self.files.insert(key, symbols);
        }
        self.files.get(&key)
    }
}
