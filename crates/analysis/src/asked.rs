//! How many bytes an allocation asked for, by its arguments: what a failed one is to be blamed on.

use gpurec_cuda::{self as cuda, Category, base_name};
use gpurec_trace::{Args, Value};

/// Whether a call takes memory of a size that its arguments tell.
pub fn allocates(category: Category) -> bool {
    matches!(category, Category::Alloc | Category::Managed | Category::Pool | Category::VirtualMemory)
}

/// Of a call that failed: none if it was not for memory.
pub fn bytes_of(name: &str, bytes: Option<u64>) -> Option<u64> {
    bytes.filter(|_| allocates(cuda::category(name)))
}

pub fn bytes(name: &str, args: &Args) -> Option<u64> {
    let number = |name: &str| match args.get(name)? {
        Value::Number(bytes) => Some(bytes),
        _ => None,
    };
    if base_name(name).ends_with("Pitch") {
        let width = number("WidthInBytes").or_else(|| number("width"))?;
        let height = number("Height").or_else(|| number("height"))?;
        return Some(width.saturating_mul(height));
    }
    // Of an array the sides are elements of a size that the arguments do not have.
    number("bytesize").or_else(|| number("size"))
}
