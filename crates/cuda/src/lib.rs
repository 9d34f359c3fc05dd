//! What the names and numbers of CUDA mean.
//!
//! In: a function's name, a return value, what was captured of a call. Out: the function's traits, the name of an error;
//! what to capture of a call, and the captured arguments by name and type. Not here: I/O, a clock, facts about the
//! machine. The data are in table.txt and nccl.txt, which scripts/tables makes, in errors.txt and nccl-enums.txt, and in
//! enums.txt, which scripts/cuda-table makes. Callers look up a function once and keep the result, so look-ups are
//! written for clarity; only `Signature::args` runs for every call.

mod decoded;
mod item;
#[cfg(test)]
mod launch_tests;
mod layout;
mod names;
pub mod raw;
pub mod semantics;
mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
pub mod traits;

use std::sync::LazyLock;

use gpurec_trace::word;
use serde::Deserialize;

use table::function;
pub use table::{Signature, all, function_names, signature};
pub use traits::FunctionTraits;

/// The library a function belongs to, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub enum Api {
    /// libcuda: `cuLaunchKernel`.
    #[serde(rename = "d")]
    Driver,
    /// libcudart, shared or static: `cudaMalloc`, `__cudaRegisterFunction`.
    #[serde(rename = "r")]
    Runtime,
    /// Anything else: `ncclAllReduce`, `cublasSgemm_v2`, `cudbgGetAPI`. Of these the table has only NCCL.
    #[serde(rename = "o")]
    Other,
}

/// What a function leaves in the return register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Returns {
    /// CUresult, cudaError_t or ncclResult_t: zero is success.
    Status,
    Pointer,
    Void,
    /// A number or a structure that is not a status, or an unknown type.
    Other,
}

/// The purpose of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    Alloc,
    Context,
    Error,
    Event,
    Free,
    Graph,
    Init,
    Ipc,
    Launch,
    Managed,
    Memcpy,
    Memset,
    Module,
    Occupancy,
    Pool,
    Query,
    Register,
    Stream,
    Sync,
    #[serde(rename = "vmm")]
    VirtualMemory,
    #[serde(rename = "-")]
    Other,
}

struct Error {
    api: Api,
    code: i32,
    name: &'static str,
}

/// Sorted by API and code.
static ERRORS: LazyLock<Vec<Error>> =
    LazyLock::new(|| include_str!("errors.txt").lines().filter_map(parse_error).collect());

fn parse_error(line: &'static str) -> Option<Error> {
    let mut words = line.split(' ');
    Some(Error { api: word(words.next()?)?, code: words.next()?.parse().ok()?, name: words.next()? })
}

/// The API that a name belongs to. A capital letter must follow the prefix, which excludes cublas, cudnn, cupti, cudbg
/// and the C library's cuserid; cuFile (GPUDirect Storage) is a library of its own.
pub fn api(name: &str) -> Api {
    let capital_after = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    if capital_after("cuda") || capital_after("__cuda") {
        Api::Runtime
    } else if capital_after("cu") && !name.starts_with("cuFile") {
        Api::Driver
    } else {
        Api::Other
    }
}

/// The name of a status in the API that returned it. Of other libraries only NCCL is known to return one.
pub fn error_name(api: Api, code: i32) -> Option<&'static str> {
    if api == Api::Other {
        let results = names::constants("ncclResult_t");
        return results.iter().find(|result| result.code == code).map(|result| result.name);
    }
    let at = ERRORS.binary_search_by_key(&(api, code), |e| (e.api, e.code)).ok()?;
    ERRORS.get(at).map(|e| e.name)
}

/// Whether libcudart has this function, as far as the table knows. This detects a static CUDA runtime among the symbols
/// of a program.
pub fn is_runtime_name(name: &str) -> bool {
    function(name).is_some_and(|f| f.api == Api::Runtime)
}

/// Whether NCCL has this function, as far as the table knows, under either of its two names.
pub fn is_nccl_name(name: &str) -> bool {
    let plain = name.strip_prefix('p').unwrap_or(name);
    plain.starts_with("nccl") && function(plain).is_some()
}

/// The purpose of a function.
pub fn category(name: &str) -> Category {
    FunctionTraits::of(name).category
}

/// Whether a pattern of --only or --skip matches a function: a name without its version matches all versions.
pub fn fits(pattern: &glob::Pattern, name: &str) -> bool {
    pattern.matches(name) || pattern.matches(base_name(name))
}

/// A kernel's name without its return type: every kernel returns void.
pub fn kernel_text(name: &str) -> &str {
    name.strip_prefix("void ").unwrap_or(name)
}

/// A name without its version and per-thread-stream suffixes:
/// `cuMemPrefetchAsync_v2_ptsz` is `cuMemPrefetchAsync`.
pub fn base_name(name: &str) -> &str {
    let name = without_stream_suffix(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.parse::<u8>().is_ok() => base,
        _ => name,
    }
}

fn without_stream_suffix(name: &str) -> &str {
    name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name)
}

/// Whether a call starts kernels on the GPU by itself.
pub fn is_kernel_launch(name: &str) -> bool {
    FunctionTraits::of(name).is_kernel_launch()
}

/// Whether a call starts a CUDA graph.
pub fn is_graph_launch(name: &str) -> bool {
    FunctionTraits::of(name).is_graph_launch()
}
