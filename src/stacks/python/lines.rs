//! The line of an instruction, as `PyCode_Addr2Line` finds it. In: a code object's first line and line table, and the
//! instruction's offset in bytes. Out: a line, or none where Python has none. The table may be anything: what it costs is
//! bounded by its length.

use super::layout::release;

/// How a version writes its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 3.9: `co_lnotab`, pairs of bytes: how far the next line is in the code, and in the source.
    Lnotab,
    /// 3.10: `co_linetable` of PEP 626, pairs of bytes: how long a range of code is, and how far its line is.
    Ranges,
    /// From 3.11: the location table (Objects/locations.md).
    Locations,
}

impl Format {
    /// Of a `PY_VERSION_HEX`.
    pub fn of(version: u32) -> Format {
        match release(version) {
            (3, 0..=9) => Format::Lnotab,
            (3, 10) => Format::Ranges,
            _ => Format::Locations,
        }
    }
}

/// `offset`: a negative one is before the first instruction, where Python reports the first line.
pub fn line(format: Format, table: &[u8], first_line: i32, offset: i64) -> Option<u32> {
    let first = i64::from(first_line);
    let line = match format {
        _ if offset < 0 => Some(first),
        Format::Lnotab => lnotab(table, first, offset),
        Format::Ranges => ranges(table, first, offset),
        Format::Locations => locations(table, first, offset),
    };
    // Some code has line 0, none a negative one.
    line.and_then(|line| u32::try_from(line).ok())
}

/// The last line reaches to the end of the code.
fn lnotab(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut at, mut line) = (0, first);
    for pair in table.chunks_exact(2) {
        let &[ahead, down] = pair else { break };
        at += i64::from(ahead);
        if at > offset {
            break;
        }
        line += i64::from(down as i8);
    }
    Some(line)
}

/// Instructions that belong to no line.
const NO_LINE: i8 = -128;

fn ranges(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut end, mut line) = (0, first);
    for pair in table.chunks_exact(2) {
        let &[length, down] = pair else { break };
        let down = down as i8;
        if down != NO_LINE {
            line += i64::from(down);
        }
        end += i64::from(length);
        if end > offset {
            return (down != NO_LINE).then_some(line);
        }
    }
    None
}

/// The first byte of an entry has the highest bit, the others of the entry have not.
const FIRST: u8 = 0x80;
/// The forms of an entry, of 16; the others stay on the line.
mod form {
    pub const NEXT_LINE: u8 = 11;
    pub const LINE_AFTER: u8 = 12;
    pub const NO_COLUMNS: u8 = 13;
    pub const LONG: u8 = 14;
    pub const NO_LINE: u8 = 15;
}

fn locations(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut end, mut line) = (0, first);
    let mut rest = table;
    while let Some((head, after)) = rest.split_first() {
        let length = after.iter().position(|byte| byte & FIRST != 0).unwrap_or(after.len());
        let (entry, next) = after.split_at(length);
        let form = head >> 3 & 0xf;
        line += match form {
            form::NEXT_LINE => 1,
            form::LINE_AFTER => 2,
            form::NO_COLUMNS | form::LONG => signed(entry),
            _ => 0,
        };
        end += (i64::from(head & 7) + 1) * 2;
        if end > offset {
            return (form != form::NO_LINE).then_some(line);
        }
        rest = next;
    }
    None
}

/// A number in pieces of six bits, lowest first; bit 6 says that another follows, the lowest bit of all is the sign.
fn signed(bytes: &[u8]) -> i64 {
    let (mut number, mut shift) = (0u32, 0);
    for byte in bytes {
        // C computes with 32 bits.
        number |= u32::from(byte & 0x3f).checked_shl(shift).unwrap_or(0);
        shift += 6;
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = i64::from(number >> 1);
    if number & 1 == 1 { -size } else { size }
}
