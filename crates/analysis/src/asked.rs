//! The number of bytes that an allocation requested, from its arguments: it explains why an allocation failed.

use gpurec_cuda::FunctionTraits;
use gpurec_cuda::traits::{Alloc, Kind, Size};
use gpurec_trace::{Args, Value};

/// The requested bytes of a failed call; None if it was not an allocation.
pub fn bytes_of(name: &str, bytes: Option<u64>) -> Option<u64> {
    bytes.filter(|_| FunctionTraits::of(name).allocates())
}

pub fn bytes(traits: &FunctionTraits, args: &Args) -> Option<u64> {
    let number = |name: &str| match args.get(name)? {
        Value::Number(bytes) => Some(bytes),
        _ => None,
    };
    if let Some(Kind::Alloc(Alloc { size: Size::Pitch, .. })) = traits.kind {
        let width = number("WidthInBytes").or_else(|| number("width"))?;
        let height = number("Height").or_else(|| number("height"))?;
        return Some(width.saturating_mul(height));
    }
    // For an array the arguments give the numbers of elements, but not their size.
    number("bytesize").or_else(|| number("size"))
}
