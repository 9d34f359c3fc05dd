//! A CUDA runtime linked into a program or library. In: a layout and the runtime's names. Out: its functions, or that
//! it is present but stripped, or nothing. This runs for every file that a process maps, so it must dismiss files
//! without CUDA early.

use goblin::elf::Sym;
use memchr::memmem::Finder;

use super::file::Source;
use super::layout::Layout;
use super::symbols::{self, Candidates, Table, candidate, is_defined};
use super::{FileError, Kind, is_runtime_prefixed, kind_of};

/// A runtime has all of these; a program's own function with the name of a runtime function comes without them.
const ESSENTIAL: [&str; 4] =
    ["__cudaRegisterFatBinary", "cudaLaunchKernel", "cudaMalloc", "cudaGetDeviceCount"];
const PIECE: u64 = 256 << 10;
const NEEDLE: &[u8] = b"cuda";

/// None: the file has no runtime. An empty list: it has one, but no names of its functions.
pub fn find(layout: &Layout, runtime_name: &dyn Fn(&str) -> bool) -> Result<Option<Candidates>, FileError> {
    if let Some(table) = symbols::full_table(layout)?
        && mentions_cuda(layout, table)?
    {
        let (functions, _) = functions(layout, table, runtime_name)?;
        if holds_runtime(&functions) {
            return Ok(Some(functions));
        }
    }
    if !has_device_code(layout)? || layout.needs(&|name| kind_of(name) == Kind::Runtime)? {
        return Ok(None);
    }
    without_symbols(layout, runtime_name)
}

/// The file has device code, does not need the shared runtime and has no symbols: the runtime's functions may still be
/// exported, or may be in another library.
fn without_symbols(
    layout: &Layout,
    runtime_name: &dyn Fn(&str) -> bool,
) -> Result<Option<Candidates>, FileError> {
    if let Some(table) = symbols::dynamic_table(layout)? {
        let (functions, imports) = functions(layout, table, runtime_name)?;
        if holds_runtime(&functions) {
            return Ok(Some(functions));
        }
        if imports {
            return Ok(None);
        }
    }
    Ok(Some(Candidates::default()))
}

fn mentions_cuda(layout: &Layout, table: Table) -> Result<bool, FileError> {
    Source::bounded(table.names_size, "symbol names")?;
    let finder = Finder::new(NEEDLE);
    let mut done = 0;
    while done < table.names_size {
        let from = table.names.saturating_add(done);
        // A name may span two pieces.
        let size = (PIECE + NEEDLE.len() as u64).min(table.names_size - done);
        if finder.find(&layout.file.exact(from, size, "symbol names")?).is_some() {
            return Ok(true);
        }
        done += PIECE;
    }
    Ok(false)
}

/// The runtime's functions in `table`, and whether it imports any.
fn functions(
    layout: &Layout,
    table: Table,
    runtime_name: &dyn Fn(&str) -> bool,
) -> Result<(Candidates, bool), FileError> {
    let accepts = |name: &str| is_runtime_prefixed(name) && runtime_name(name);
    let names = symbols::names(layout, table)?;
    let mut found = Candidates::default();
    let mut imports = false;
    symbols::walk(layout, table, &mut |symbol: Sym| {
        if !is_prefixed(&names, &symbol) {
            return;
        }
        if !is_defined(&symbol) {
            imports |= candidate(&names, symbol, &accepts).is_some();
        } else if symbols::may_be_function(layout, &symbol)
            && let Some(candidate) = candidate(&names, symbol, &accepts)
        {
            found.add(candidate);
        }
    })?;
    Ok((found, imports))
}

/// Checks only the first bytes of a name: tables hold millions of names.
fn is_prefixed(names: &[u8], symbol: &Sym) -> bool {
    names.get(symbol.st_name..).is_some_and(|name| name.starts_with(b"cuda") || name.starts_with(b"__cuda"))
}

fn holds_runtime(functions: &Candidates) -> bool {
    functions.list.iter().any(|function| ESSENTIAL.contains(&function.name.as_str()))
}

/// nvcc puts kernels into sections with these names, which survive stripping.
pub fn has_device_code(layout: &Layout) -> Result<bool, FileError> {
    layout.has_section(&[".nv_fatbin", ".nvFatBinSegment"])
}
