//! Frames and texts as CPython stores them. In: bytes and numbers from a process. Out: positions, names. Pure.

use std::borrow::Cow;

use super::layout::{GENERATOR, UNICODE_ASCII, UNICODE_KIND, release};

/// The first version whose frames may be incomplete.
const WITH_INCOMPLETE: (u8, u8) = (3, 11);
/// Bytes of a unit of instructions.
const UNIT: i64 = 2;
/// BPF reads no more bytes of a text.
const MOST_TEXT: usize = 1024;

/// The position of a frame, in bytes of its function's instructions; negative before the first.
pub fn offset(version: u32, position: u32) -> i64 {
    let position = i64::from(position as i32);
    match release(version) {
        (3, 10) => position * UNIT,
        _ => position,
    }
}

/// True if the frame has not begun. Tracebacks leave it out.
pub fn is_incomplete(version: u32, owner: u8, offset: i64, first_traceable: u32) -> bool {
    release(version) >= WITH_INCOMPLETE && owner != GENERATOR && offset < i64::from(first_traceable) * UNIT
}

/// A text from its characters and its state.
pub fn text(bytes: &[u8], state: u32) -> Cow<'_, str> {
    let width = (state & UNICODE_KIND) >> 2;
    let text = match width {
        1 if state & UNICODE_ASCII != 0 => String::from_utf8_lossy(bytes),
        1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        2 => characters(bytes.chunks_exact(2).map(|two| u32::from(two[0]) | u32::from(two[1]) << 8)),
        4 => characters(bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four))),
        _ => return Cow::Borrowed("?"),
    };
    if bytes.len() < MOST_TEXT { text } else { Cow::Owned(format!("{text}…")) }
}

fn characters(all: impl Iterator<Item = u32>) -> Cow<'static, str> {
    all.map(|one| char::from_u32(one).unwrap_or(char::REPLACEMENT_CHARACTER)).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_width() {
        assert_eq!(text(b"train", 0x65), "train");
        assert_eq!(text(&[b'm', 0xfc], 0x25), "mü");
        assert_eq!(text(&[0x42, 0x04, 0x00, 0xd8], 0x29), "т\u{fffd}");
        assert_eq!(text(&[0x00, 0xf6, 0x01, 0x00], 0x31), "😀");
        assert_eq!(text(b"x", 0), "?");
        assert!(text(&[b'a'; 1024], 0x65).ends_with("a…"));
    }

    #[test]
    fn positions_are_in_bytes() {
        assert_eq!(offset(0x0309_00f0, 6), 6);
        assert_eq!(offset(0x030a_00f0, 6), 12);
        assert_eq!(offset(0x030a_00f0, u32::MAX), -2);
        assert_eq!(offset(0x030d_00f0, 40), 40);
    }

    #[test]
    fn a_frame_that_has_not_begun_is_incomplete() {
        assert!(is_incomplete(0x030b_00f0, 0, 2, 2));
        assert!(!is_incomplete(0x030b_00f0, GENERATOR, 2, 2));
        assert!(!is_incomplete(0x030b_00f0, 0, 4, 2));
        assert!(!is_incomplete(0x030a_00f0, 0, -2, 0));
    }
}
