//! NCCL, as a library or linked into a program or another library. In: a layout. Out: its functions, or nothing. This
//! runs for every file that a process maps, so it must dismiss files without NCCL early.

use goblin::elf::Sym;

use super::FileError;
use super::layout::Layout;
use super::runtime::has_device_code;
use super::symbols::{self, Candidates, Table, candidate, is_defined};

/// NCCL has all of these; a program's own function with such a name comes without them.
const ESSENTIAL: [&str; 2] = ["ncclCommInitRank", "ncclAllReduce"];

/// `known`: whether NCCL has a function of this name.
pub fn find(
    layout: &Layout,
    is_library: bool,
    known: &dyn Fn(&str) -> bool,
) -> Result<Option<Candidates>, FileError> {
    if is_library {
        let Some(table) = symbols::dynamic_table(layout)? else { return Ok(None) };
        return functions(layout, table, &is_prefixed).map(Some);
    }
    // NCCL brings GPU kernels of its own.
    if !has_device_code(layout)? {
        return Ok(None);
    }
    for table in [symbols::dynamic_table(layout)?, symbols::full_table(layout)?].into_iter().flatten() {
        let found = functions(layout, table, known)?;
        let has = |name: &&str| found.list.iter().any(|function| function.name == *name);
        if ESSENTIAL.iter().all(has) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Each function also has a name for profilers.
fn is_prefixed(name: &str) -> bool {
    name.strip_prefix('p').unwrap_or(name).starts_with("nccl")
}

fn functions(layout: &Layout, table: Table, accepts: &dyn Fn(&str) -> bool) -> Result<Candidates, FileError> {
    let names = symbols::names(layout, table)?;
    let mut found = Candidates::default();
    symbols::walk(layout, table, &mut |symbol: Sym| {
        // Tables hold millions of names.
        let begins = |start: &[u8]| names.get(symbol.st_name..).is_some_and(|name| name.starts_with(start));
        if is_defined(&symbol)
            && (begins(b"nccl") || begins(b"pnccl"))
            && symbols::may_be_function(layout, &symbol)
            && let Some(candidate) = candidate(&names, symbol, accepts)
        {
            found.add(candidate);
        }
    })?;
    Ok(found)
}
