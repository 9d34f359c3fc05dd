//! The number of bytes that an allocation requested, from its arguments: it explains why an allocation failed.

use gpurec_cuda::{self as cuda, Category, base_name};
use gpurec_trace::{Args, Value};

/// Whether a call allocates memory of a size that its arguments give.
pub fn allocates(category: Category) -> bool {
    matches!(category, Category::Alloc | Category::Managed | Category::Pool | Category::VirtualMemory)
}

/// The requested bytes of a failed call; None if it was not an allocation.
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
    // For an array the arguments give the numbers of elements, but not their size.
    number("bytesize").or_else(|| number("size"))
}
