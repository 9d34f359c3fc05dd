//! Which functions of a file to hook, and at which offsets.
//!
//! In: an open file that a traced process has mapped executable, and which functions the caller wants. Out: each
//! function with the file offset of its probe, and a reason for each one that gets no probe. Not here: attaching,
//! paths, processes.
//!
//! The file is read with `pread` and never mapped, because its owner may truncate it at any moment. The target is
//! stopped meanwhile, so a file without CUDA must be dismissed in microseconds. No number in the file is trusted: every
//! count and size is checked against the file's length.

mod data;
mod file;
mod layout;
mod merge;
mod nccl;
mod object;
mod runtime;
mod site;
mod static_probes;
mod symbols;
#[cfg(test)]
mod tests;
mod unhookable;

use std::fs::File;

use gpurec_trace::bounds::BytesLeft;
use gpurec_trace::{HookError, Reason};
use layout::{Layout, Machine};
use serde::{Deserialize, Serialize};

pub use data::{Data, Place};
pub use object::{Code, Object, Piece, SymbolTable, bytes};
pub use static_probes::{
    Argument, Memory, Place as ArgumentPlace, Register, StaticProbe, StaticProbes, static_probes,
};

/// Which functions to look for.
pub enum Want<'a> {
    /// All of CUDA: the functions of the driver and the runtime, and of a runtime linked into the file itself.
    Cuda,
    /// NCCL's functions, also of an NCCL linked into the file itself: there only those that the closure knows.
    Nccl(&'a dyn Fn(&str) -> bool),
    /// Every exported function whose name the closure accepts.
    Matching(&'a dyn Fn(&str) -> bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Driver,
    Runtime,
    /// The CUDA runtime linked into a program or library.
    StaticRuntime,
    /// NCCL, or a file that it is linked into.
    Nccl,
    Other,
    /// A library that only has static probes.
    Allocator,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    pub kind: Kind,
    pub soname: Option<String>,
    /// In hexadecimal.
    pub build_id: Option<String>,
    /// Sorted by their entries.
    pub functions: Vec<Function>,
    pub not_hooked: Vec<UnhookedFunction>,
    /// The wanted static probes. `read` looks for none.
    pub static_probes: Vec<StaticProbe>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    /// Other names for the same code.
    pub aliases: Vec<String>,
    /// File offset of the symbol.
    pub entry: u64,
    /// File offset of the probe: the entry, or an instruction a little further on that Linux can emulate.
    pub site: u64,
    /// Whether Linux emulates the instruction at `site`; it single-steps all others, which costs several times more.
    pub emulated: bool,
    /// The instruction at `site`.
    pub instruction: String,
}

impl Image {
    /// True if there is nothing to hook.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.static_probes.is_empty()
    }

    /// The image of a library that has static probes, and no wanted function.
    pub fn of_static_probes(found: StaticProbes) -> Image {
        let StaticProbes { soname, build_id, list, not_hooked } = found;
        let kind = Kind::Allocator;
        Image { kind, soname, build_id, functions: Vec::new(), not_hooked, static_probes: list }
    }

    /// The same image, if none of its static probes may be hooked.
    pub fn without_hooks(mut self, why: &HookError) -> Image {
        let names = self.static_probes.drain(..).map(|probe| probe.full_name());
        let mut names: Vec<String> = names.collect();
        names.dedup();
        self.not_hooked.extend(names.iter().map(|name| UnhookedFunction::new(name, why.clone(), false)));
        self
    }

    /// The image of a requested file that has none of the wanted functions.
    pub fn without_functions(self) -> Image {
        Image { functions: Vec::new(), not_hooked: Vec::new(), ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnhookedFunction {
    pub name: String,
    pub reason: Reason,
    /// It is a function, so its calls are not seen.
    pub is_code: bool,
}

impl UnhookedFunction {
    pub fn new(name: &str, why: HookError, is_code: bool) -> UnhookedFunction {
        UnhookedFunction { name: name.to_owned(), reason: why.into(), is_code }
    }
}

/// The most entries that are listed; one more row counts the rest.
const LISTED: usize = 256;
const LISTED_BYTES: usize = 32 << 10;

/// Limits a list of unhooked functions to a size that may be kept and written.
pub fn few(all: &mut Vec<UnhookedFunction>) {
    let mut left: BytesLeft<LISTED_BYTES> = BytesLeft::default();
    let fit = |one: &&UnhookedFunction| left.take(one.name.len() + one.reason.text.len());
    let kept = all.iter().take(LISTED).take_while(fit).count();
    let more = all.len() - kept;
    if more > 0 {
        all.truncate(kept);
        all.shrink_to_fit();
        all.push(UnhookedFunction::new(&format!("({more} more functions)"), HookError::NotListed, false));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("this is not an ELF file, so it holds no function to hook")]
    NotElf,
    /// Code of another machine, or 32-bit code; names which.
    #[error("this is {0}; gpurec hooks only this machine's own 64-bit code")]
    Foreign(String),
    #[error("this ELF file is damaged: {0}; fetch or build it again")]
    Malformed(String),
    #[error("this file cannot be read: {0}")]
    Io(#[source] std::io::Error),
}

/// The entry of a function of any name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Offset in the file.
    pub offset: u64,
    pub name: String,
}

/// The functions of a file that still have names, by offset: for finding the function of an address. Empty if the file
/// cannot be read.
pub fn function_symbols(file: &File) -> Vec<Symbol> {
    let symbols = || {
        let layout = Layout::read(file, Machine::here()?).ok()?;
        symbols::functions(&layout).ok()
    };
    symbols().unwrap_or_default()
}

/// The linker's name for a library; none if the file is not a library or has no name.
pub fn soname(file: &File) -> Option<String> {
    Layout::read(file, Machine::here()?).ok()?.soname().ok().flatten()
}

const PAGE: u64 = 4096;

/// Where a file's executable segment is mapped from and to: offset and address of its first page.
pub fn code_segment(file: &File) -> Option<(u64, u64)> {
    let (offset, address) = Layout::read(file, Machine::here()?).ok()?.code()?;
    Some((offset & !(PAGE - 1), address & !(PAGE - 1)))
}

/// Reads `file`. `runtime_name` returns whether a name belongs to the CUDA runtime. `None`: the file has nothing
/// wanted.
pub fn read(
    file: &File,
    file_name: &str,
    want: &Want,
    runtime_name: &dyn Fn(&str) -> bool,
) -> Result<Option<Image>, FileError> {
    let Some(machine) = Machine::here() else {
        return Err(FileError::Foreign("code for a machine that gpurec does not support".to_owned()));
    };
    read_on(machine, file, file_name, want, runtime_name)
}

fn read_on(
    machine: Machine,
    file: &File,
    file_name: &str,
    want: &Want,
    runtime_name: &dyn Fn(&str) -> bool,
) -> Result<Option<Image>, FileError> {
    let layout = Layout::read(file, machine)?;
    let soname = layout.soname()?;
    // A library in the place of NVIDIA's may have a SONAME of its own.
    let kind = match kind_of(soname.as_deref().unwrap_or(file_name)) {
        Kind::Other => kind_of(file_name),
        kind => kind,
    };
    let (kind, mut candidates) = match (want, kind) {
        (Want::Matching(accepts), _) => (kind, symbols::exported(&layout, accepts)?),
        (Want::Nccl(known), _) => match nccl::find(&layout, kind == Kind::Nccl, known)? {
            Some(candidates) => (Kind::Nccl, candidates),
            None => return Ok(None),
        },
        (Want::Cuda, Kind::Driver) => (kind, symbols::exported(&layout, &|name| name.starts_with("cu"))?),
        (Want::Cuda, Kind::Runtime) => (kind, symbols::exported(&layout, &is_runtime_prefixed)?),
        (Want::Cuda, _) => match runtime::find(&layout, runtime_name)? {
            Some(candidates) => (Kind::StaticRuntime, candidates),
            None => return Ok(None),
        },
    };
    if kind == Kind::Other && candidates.list.is_empty() {
        return Ok(None);
    }
    let is_stripped = kind == Kind::StaticRuntime && candidates.list.is_empty();
    let stripped =
        is_stripped.then(|| UnhookedFunction::new("CUDA runtime (static)", HookError::Stripped, false));
    let too_many = candidates.too_many();
    let (functions, refused) = merge::functions(&layout, candidates.list)?;
    // These come first, because the end of a long list is only counted.
    let not_hooked = stripped.into_iter().chain(too_many).chain(refused).collect();
    let build_id = layout.build_id()?;
    Ok(Some(Image { kind, soname, build_id, functions, not_hooked, static_probes: Vec::new() }))
}

fn is_runtime_prefixed(name: &str) -> bool {
    name.starts_with("cuda") || name.starts_with("__cuda")
}

/// The kind of a library, by its name. Wheels rename some: `libcudart.HASH.so.12`, `libcudart-HASH.so.12`.
pub fn kind_of(name: &str) -> Kind {
    let name = name.rsplit('/').next().unwrap_or(name);
    if name.starts_with("libcuda.so") {
        return Kind::Driver;
    }
    if name.strip_prefix("libnccl").is_some_and(is_nccl_ending) {
        return Kind::Nccl;
    }
    match name.strip_prefix("libcudart") {
        Some(rest) if rest.starts_with(['.', '-']) && rest.contains(".so") => Kind::Runtime,
        _ => Kind::Other,
    }
}

/// Not of NCCL's plugins, such as libnccl-net.so.
fn is_nccl_ending(rest: &str) -> bool {
    let hash = rest.strip_prefix(['.', '-']).and_then(|rest| rest.split_once(".so")).map(|(hash, _)| hash);
    rest.starts_with(".so") || hash.is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
