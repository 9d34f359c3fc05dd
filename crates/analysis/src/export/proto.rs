//! Appends protocol buffers to a buffer: the small part of the wire format that Perfetto's traces use. In: field
//! numbers and values. Out: bytes, with lengths as short as possible. Not here: the meaning of fields.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn tag(out: &mut Vec<u8>, field: u32, wire: u64) {
    varint(out, (u64::from(field) << 3) | wire);
}

pub fn uint(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, VARINT);
    varint(out, value);
}

/// For the types int32 and int64: a negative number is encoded as a large one.
pub fn int(out: &mut Vec<u8>, field: u32, value: i64) {
    uint(out, field, value as u64);
}

pub fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed64(out, field, value.to_bits());
}

pub fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    tag(out, field, LENGTH);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Where the content of an open message begins.
pub struct MessageStart(usize);

/// Opens a message, until `close`. It reserves one byte for the length, which suffices for most.
pub fn open(out: &mut Vec<u8>, field: u32) -> MessageStart {
    tag(out, field, LENGTH);
    out.push(0);
    MessageStart(out.len())
}

pub fn close(out: &mut Vec<u8>, opened: MessageStart) {
    let length = out.len() - opened.0;
    if length < 0x80 {
        if let Some(room) = out.get_mut(opened.0 - 1) {
            *room = length as u8;
        }
        return;
    }
    let mut digits = [0; 10];
    let mut count = 0;
    let mut rest = length as u64;
    for digit in &mut digits {
        *digit = rest as u8 & 0x7f;
        rest >>= 7;
        count += 1;
        if rest == 0 {
            break;
        }
        *digit |= 0x80;
    }
    out.splice(opened.0 - 1..opened.0, digits.into_iter().take(count));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                varint(&mut out, value);
                let read = out.iter().rev().fold(0, |n, byte| (n << 7) | u64::from(byte & 0x7f));
                assert_eq!(read, value);
                assert_eq!(out.len() as u32, (64 - (value | 1).leading_zeros()).div_ceil(7));
                assert_eq!(out.iter().filter(|byte| **byte < 0x80).count(), 1);
            }
        }
    }

    #[test]
    fn messages_of_every_length() {
        for length in [0, 1, 127, 128, 129, 16_383, 16_384, 300_000] {
            let content = vec![7; length];
            let (mut opened, mut whole) = (b"before".to_vec(), b"before".to_vec());
            let message = open(&mut opened, 11);
            opened.extend_from_slice(&content);
            close(&mut opened, message);
            bytes(&mut whole, 11, &content);
            assert_eq!(opened, whole);
        }
    }

    #[test]
    fn a_negative_number_has_ten_bytes() {
        let mut out = Vec::new();
        int(&mut out, 4, -1);
        assert_eq!(out, [0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    }
}
