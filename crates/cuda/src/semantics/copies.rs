//! How many bytes a copy moves, and between which kinds of memory.

use super::args::In;
use super::ledger::{Ledger, Place};
use crate::traits::{Amount, Copy, Operand, Set, Table, Way};
use gpurec_trace::bytes::{u32_at, u64_at};

/// The bytes that a call moves in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    pub direction: &'static str,
    pub size: u64,
    /// The list of sizes was longer than what was read, so `size` is only a part.
    pub partial: bool,
    /// The host side is known not to be pinned.
    pub pageable: bool,
    /// The call may return before the copy is done.
    pub is_async: bool,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Device(Option<i32>),
    /// Whether it is pinned; none if unknown.
    Host(Option<bool>),
    Unknown,
}

pub struct Copies<'a> {
    pub ledger: &'a Ledger,
    /// The process was seen from its beginning, so CUDA did not allocate what is not in the ledger.
    pub whole: bool,
    /// The same of host memory.
    pub whole_host: bool,
}

const SET: &str = "set";

impl Copies<'_> {
    pub fn of(&self, copy: &Copy, call: &In) -> Vec<Movement> {
        let moved = match copy.amount {
            Amount::Batch => return self.batch(call).unwrap_or_default(),
            Amount::Bytes(param) => call.value(param).and_then(|size| self.plain(copy, call, size)),
            Amount::Product(width, height) => call
                .value(width)
                .zip(call.value(height))
                .and_then(|(width, height)| self.plain(copy, call, width.saturating_mul(height))),
            Amount::Rows => call.structure(0).and_then(|bytes| self.rows(copy, bytes)),
            Amount::Box => call.structure(0).and_then(|bytes| self.driver_box(copy, bytes)),
            Amount::RuntimeBox | Amount::PeerBox => {
                call.structure(0).and_then(|bytes| self.runtime_box(copy, bytes))
            }
        };
        moved.into_iter().collect()
    }

    fn plain(&self, copy: &Copy, call: &In, size: u64) -> Option<Movement> {
        let address = |operand| match operand {
            Operand::Param(param) => call.value(param),
            Operand::Device => None,
        };
        let way = match copy.way {
            Way::Kind(param) => of_kind(call.value(param)?),
            way => way,
        };
        Some(self.moved(copy, way, address(copy.src), address(copy.dst), size))
    }

    /// An address of `None` is an array or a symbol.
    fn moved(&self, copy: &Copy, way: Way, src: Option<u64>, dst: Option<u64>, size: u64) -> Movement {
        let host = |address: Option<u64>| Side::Host(address.and_then(|address| self.pinned(address)));
        let device = |address: Option<u64>| match address.map(|address| self.side(address)) {
            Some(Side::Device(device)) => Side::Device(device),
            _ => Side::Device(None),
        };
        let any = |address: Option<u64>| address.map_or(Side::Device(None), |address| self.side(address));
        let (src, dst) = match way {
            Way::HostToDevice => (host(src), device(dst)),
            Way::DeviceToHost => (device(src), host(dst)),
            Way::DeviceToDevice => (device(src), device(dst)),
            Way::Peer => return finished("P2P", Side::Unknown, size, copy.is_async),
            Way::Kind(0) => (host(src), host(dst)),
            Way::Kind(_) | Way::Pointers => (any(src), any(dst)),
        };
        between(src, dst, size, copy.is_async)
    }

    /// Reads a CUDA_MEMCPY2D.
    fn rows(&self, copy: &Copy, bytes: &[u8]) -> Option<Movement> {
        let size = u64_at(bytes, 112)?.saturating_mul(u64_at(bytes, 120)?);
        let src = self.of_type(u32_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?);
        let dst = self.of_type(u32_at(bytes, 72)?, u64_at(bytes, 80)?, u64_at(bytes, 88)?);
        Some(between(src, dst, size, copy.is_async))
    }

    /// Reads a CUDA_MEMCPY3D, whose peer form has the same offsets.
    fn driver_box(&self, copy: &Copy, bytes: &[u8]) -> Option<Movement> {
        let size =
            u64_at(bytes, 176)?.saturating_mul(u64_at(bytes, 184)?).saturating_mul(u64_at(bytes, 192)?);
        if copy.way == Way::Peer {
            return Some(finished("P2P", Side::Unknown, size, copy.is_async));
        }
        let src = self.of_type(u32_at(bytes, 32)?, u64_at(bytes, 40)?, u64_at(bytes, 48)?);
        let dst = self.of_type(u32_at(bytes, 120)?, u64_at(bytes, 128)?, u64_at(bytes, 136)?);
        Some(between(src, dst, size, copy.is_async))
    }

    /// Reads a cudaMemcpy3DParms; its width is in elements if an array takes part.
    fn runtime_box(&self, copy: &Copy, bytes: &[u8]) -> Option<Movement> {
        let peer = copy.amount == Amount::PeerBox;
        let (dst_at, dst_ptr, extent) = if peer { (72, 104, 144) } else { (64, 96, 128) };
        let (src_array, dst_array) = (u64_at(bytes, 0)?, u64_at(bytes, dst_at)?);
        let arrays = [src_array, dst_array].into_iter().filter(|array| *array != 0);
        let element =
            arrays.filter_map(|array| self.ledger.get(Table::Arrays, array)).map(|held| held.element);
        let size = [extent, extent + 8, extent + 16]
            .into_iter()
            .try_fold(element.max().unwrap_or(1).max(1), |size, at| {
                Some(size.saturating_mul(u64_at(bytes, at)?))
            })?;
        let way = if peer { Way::Peer } else { of_kind(u32_at(bytes, 152)?.into()) };
        let address = |array: u64, at| if array == 0 { u64_at(bytes, at) } else { None };
        Some(self.moved(copy, way, address(src_array, 32), address(dst_array, dst_ptr), size))
    }

    /// A batch, summed by direction.
    fn batch(&self, call: &In) -> Option<Vec<Movement>> {
        let (sizes, cut) = call.bytes(2)?;
        let count = call.value(3)?;
        let dsts = call.bytes(0).map_or(&[] as &[u8], |(bytes, _)| bytes);
        let srcs = call.bytes(1).map_or(&[] as &[u8], |(bytes, _)| bytes);
        let partial = cut || (sizes.len() / 8) as u64 != count;
        let mut all: Vec<Movement> = Vec::new();
        for offset in (0..sizes.len()).step_by(8) {
            let Some(size) = u64_at(sizes, offset) else { continue };
            let side =
                |list, offset| u64_at(list, offset).map_or(Side::Unknown, |address| self.side(address));
            let one = between(side(srcs, offset), side(dsts, offset), size, true);
            match all.iter_mut().find(|m| m.direction == one.direction) {
                Some(known) => {
                    known.size = known.size.saturating_add(size);
                    known.pageable |= one.pageable;
                }
                None => all.push(Movement { partial, ..one }),
            }
        }
        Some(all)
    }

    /// Reads a CUmemorytype.
    fn of_type(&self, kind: u32, host: u64, device: u64) -> Side {
        match kind {
            1 => Side::Host(self.pinned(host)),
            2 => match self.side(device) {
                Side::Device(device) => Side::Device(device),
                _ => Side::Device(None),
            },
            3 => Side::Device(None),
            4 => self.side(device),
            _ => Side::Unknown,
        }
    }

    /// Whether host memory is pinned. Managed memory is neither pinned nor pageable: it migrates by itself.
    fn pinned(&self, address: u64) -> Option<bool> {
        match self.ledger.place(address) {
            Place::Pinned => Some(true),
            Place::Unknown if self.whole_host => Some(false),
            _ => None,
        }
    }

    fn side(&self, address: u64) -> Side {
        match self.ledger.place(address) {
            Place::Device(device) => Side::Device(device),
            Place::Managed => Side::Device(None),
            Place::Pinned => Side::Host(Some(true)),
            Place::Unknown if self.whole => Side::Host(Some(false)),
            Place::Unknown => Side::Unknown,
        }
    }
}

/// The bytes that a memset writes.
pub fn set(set: &Set, call: &In) -> Vec<Movement> {
    let (first, second) = set.count;
    let size = call.value(first).and_then(|count| {
        let rows = second.map_or(Some(1), |param| call.value(param))?;
        Some(count.saturating_mul(rows).saturating_mul(set.element))
    });
    size.map(|size| finished(SET, Side::Unknown, size, true)).into_iter().collect()
}

/// Reads a cudaMemcpyKind. Host to host has no way of its own.
fn of_kind(kind: u64) -> Way {
    match kind {
        0 => Way::Kind(0),
        1 => Way::HostToDevice,
        2 => Way::DeviceToHost,
        3 => Way::DeviceToDevice,
        _ => Way::Pointers,
    }
}

fn between(src: Side, dst: Side, size: u64, is_async: bool) -> Movement {
    use Side::{Device, Host, Unknown};
    let (direction, host) = match (src, dst) {
        (Host(_), Device(_)) => ("H2D", src),
        (Device(_), Host(_)) => ("D2H", dst),
        (Host(_), Host(_)) => ("H2H", Unknown),
        (Device(Some(a)), Device(Some(b))) if a != b => ("P2P", Unknown),
        (Device(_), Device(_)) => ("D2D", Unknown),
        (Unknown, _) | (_, Unknown) => ("unknown", Unknown),
    };
    finished(direction, host, size, is_async)
}

/// Copies within devices and sets do not wait, whatever the function's name says.
fn finished(direction: &'static str, host: Side, size: u64, is_async: bool) -> Movement {
    let waits = matches!(direction, "H2D" | "D2H" | "H2H" | "unknown") && !is_async;
    Movement { direction, size, partial: false, pageable: host == Side::Host(Some(false)), is_async: !waits }
}
