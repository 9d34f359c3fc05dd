//! How many bytes an allocation asks for.

use super::args::{In, Out};
use crate::traits::Size;
use gpurec_trace::bytes::{u32_at, u64_at};

/// The size known at entry; some functions return it only at exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedSize {
    Unknown,
    Bytes(u64),
    /// Rows of at least `width` bytes. `in_structure`: the call writes their width into a cudaPitchedPtr.
    Rows {
        width: u64,
        rows: u64,
        in_structure: bool,
    },
    Array {
        bytes: u64,
        element: u64,
    },
}

impl RequestedSize {
    pub fn of(size: Size, call: &In) -> RequestedSize {
        asked(size, call).unwrap_or(RequestedSize::Unknown)
    }

    /// The bytes of the allocation and, for an array, the bytes of one element.
    pub fn at_return(self, out: &Out) -> (Option<u64>, u64) {
        match self {
            RequestedSize::Unknown => (None, 0),
            RequestedSize::Bytes(bytes) => (Some(bytes), 0),
            RequestedSize::Rows { width, rows, in_structure } => {
                let pitch = match in_structure {
                    true => out.bytes(0).and_then(|(bytes, _)| u64_at(bytes, 8)),
                    false => out.number(1),
                };
                (Some(pitch.unwrap_or(width).saturating_mul(rows)), 0)
            }
            RequestedSize::Array { bytes, element } => (Some(bytes), element),
        }
    }
}

fn asked(size: Size, call: &In) -> Option<RequestedSize> {
    let described = || Some([field(call, 0)?, field(call, 8)?, field(call, 16)?]);
    let extent = || Some([call.stack(0)?, call.stack(1)?, call.stack(2)?]);
    Some(match size {
        Size::Unknown => RequestedSize::Unknown,
        Size::Param(param) => RequestedSize::Bytes(call.value(param)?),
        Size::Pitch => {
            RequestedSize::Rows { width: call.value(2)?, rows: call.value(3)?, in_structure: false }
        }
        Size::Extent => {
            let [width, height, depth] = extent()?;
            RequestedSize::Rows {
                width,
                rows: height.max(1).saturating_mul(depth.max(1)),
                in_structure: true,
            }
        }
        Size::Array2D => array(of_format(call, 16)?, [field(call, 0)?, field(call, 8)?, 1], 1),
        Size::Array3D => array(of_format(call, 24)?, described()?, 1),
        Size::Levels(levels) => array(of_format(call, 24)?, described()?, call.value(levels)?),
        Size::Plane => array(of_channels(call)?, [call.value(2)?, call.value(3)?, 1], 1),
        Size::Volume => array(of_channels(call)?, extent()?, 1),
        Size::VolumeLevels(levels) => array(of_channels(call)?, extent()?, call.value(levels)?),
    })
}

fn field(call: &In, offset: usize) -> Option<u64> {
    u64_at(call.structure(1)?, offset)
}

/// The bytes of an array. A side of zero means that the array lacks that dimension. Each level has half the sides of
/// the previous one.
fn array(element: u64, sides: [u64; 3], levels: u64) -> RequestedSize {
    let mut sides = sides.map(|side| side.max(1));
    let mut bytes = 0u64;
    for _ in 0..levels.clamp(1, 64) {
        let elements = sides.iter().fold(1u64, |product, side| product.saturating_mul(*side));
        bytes = bytes.saturating_add(elements.saturating_mul(element));
        sides = sides.map(|side| (side / 2).max(1));
    }
    RequestedSize::Array { bytes, element }
}

/// The bytes of an element, from a CUarray_format and the number of channels after it.
fn of_format(call: &In, offset: usize) -> Option<u64> {
    let descriptor = call.structure(1)?;
    let channel = match u32_at(descriptor, offset)? {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        // Compressed and planar formats have no whole number of bytes per element.
        _ => return None,
    };
    Some(u64::from(u32_at(descriptor, offset + 4)?).saturating_mul(channel))
}

/// The bytes of an element, from a cudaChannelFormatDesc: the bits of each of four channels.
fn of_channels(call: &In) -> Option<u64> {
    let descriptor = call.structure(1)?;
    let mut bits = 0u64;
    for offset in [0, 4, 8, 12] {
        bits += u64::from(u32_at(descriptor, offset)?);
    }
    Some(bits / 8)
}
