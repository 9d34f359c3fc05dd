//! JSON appended to a buffer by hand, byte for byte what serde_json writes,
//! except that times have a fixed number of decimals.

use super::value::{Arg, Value};

const HUNDRED_MILLIONS: u64 = 100_000_000;

/// Makes eight digits at once and shifts the leading zeros out. A piece of a fixed size is copied without a call of
/// memmove; with itoa and whole texts, whose length varies, a line took 6 % longer from ring to file.
#[inline]
pub fn number(out: &mut Vec<u8>, n: u64) {
    // Many numbers of a trace have one digit.
    if n < 10 {
        out.push(b'0' + n as u8);
    } else {
        digits(out, n);
    }
}

fn digits(out: &mut Vec<u8>, n: u64) {
    if n >= HUNDRED_MILLIONS {
        number(out, n / HUNDRED_MILLIONS);
        out.extend_from_slice(&decimal8(n % HUNDRED_MILLIONS));
        return;
    }
    let digits = u64::from_le_bytes(decimal8(n));
    // The lowest byte is the first digit.
    let zeros = (digits & 0x0f0f_0f0f_0f0f_0f0f).trailing_zeros() / 8;
    short(out, digits >> (8 * zeros), 8 - zeros as usize);
}

/// Writes the lowest `length` bytes of a word.
fn short(out: &mut Vec<u8>, word: u64, length: usize) {
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(out.len() - (8 - length));
}

/// Eight decimal digits of a number below 10^8: halves, quarters, digits, all in one register.
fn decimal8(n: u64) -> [u8; 8] {
    let n = (n / 10_000) | ((n % 10_000) << 32);
    let hundreds = ((n * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let n = hundreds | ((n - 100 * hundreds) << 16);
    let tens = ((n * 103) >> 10) & 0x000f_000f_000f_000f;
    let n = tens | ((n - 10 * tens) << 8);
    (n + 0x3030_3030_3030_3030).to_le_bytes()
}

pub fn signed(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    number(out, n.unsigned_abs());
}

/// `"0x1f"`: a string, because JSON numbers lose bits past 2^53.
pub fn hex(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(b"\"0x");
    hex_digits(out, n);
}

/// The digits and the closing quote. All sixteen digits are made at once and the leading zeros shifted out: digit by
/// digit, a line took a third longer.
pub fn hex_digits(out: &mut Vec<u8>, n: u64) {
    let digits = (67 - (n | 1).leading_zeros()) / 4;
    let all = (u128::from(hex8((n >> 32) as u32)) << 64) | u128::from(hex8(n as u32));
    out.extend_from_slice(&(all << (8 * (16 - digits))).to_be_bytes());
    out.truncate(out.len() - (16 - digits as usize));
    out.push(b'"');
}

/// Eight hex digits as ASCII, the first in the highest byte.
fn hex8(n: u32) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let n = u64::from(n);
    let n = ((n << 16) | n) & 0x0000_ffff_0000_ffff;
    let n = ((n << 8) | n) & 0x00ff_00ff_00ff_00ff;
    let n = ((n << 4) | n) & 0x0f0f_0f0f_0f0f_0f0f;
    // A digit above nine carries into the fifth bit when six is added.
    let letters = ((n + 6 * LOW) >> 4) & LOW;
    n + u64::from(b'0') * LOW + letters * u64::from(b'a' - b'0' - 10)
}

/// Nanoseconds as seconds with nine decimals.
pub fn seconds(out: &mut Vec<u8>, ns: u64) {
    number(out, ns / 1_000_000_000);
    let rest = ns % 1_000_000_000;
    out.extend_from_slice(&[b'.', b'0' + (rest / HUNDRED_MILLIONS) as u8]);
    out.extend_from_slice(&decimal8(rest % HUNDRED_MILLIONS));
}

/// Nanoseconds as microseconds with three decimals.
pub fn micros(out: &mut Vec<u8>, ns: u64) {
    number(out, ns / 1000);
    let rest = ns % 1000;
    let digit = |n: u64| b'0' + (n % 10) as u8;
    out.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10), digit(rest)]);
}

/// The same for a time before another.
pub fn signed_micros(out: &mut Vec<u8>, ns: i64) {
    if ns < 0 {
        out.push(b'-');
    }
    micros(out, ns.unsigned_abs());
}

pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    // Names rarely need an escape.
    let start = out.len();
    if !plain(out, text.as_bytes()) {
        out.truncate(start);
        escaped(out, text);
    }
    out.push(b'"');
}

/// Copies eight bytes at a time, for the same reason as `number`. False if one of them needs an escape.
fn plain(out: &mut Vec<u8>, text: &[u8]) -> bool {
    let mut odd = 0;
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        odd |= needs_escape(u64::from_le_bytes(*word));
        out.extend_from_slice(word);
    }
    let word = tail(rest);
    odd |= needs_escape(word | BLANKS.unbounded_shl(8 * rest.len() as u32));
    short(out, word, rest.len());
    odd == 0
}

/// Fewer than eight bytes as a word.
fn tail(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap where there are fewer than eight bytes.
        (Some(first), Some(last)) => {
            let last = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
            u64::from(u32::from_le_bytes(*first)) | last
        }
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Fills a word up with bytes that need no escape.
const BLANKS: u64 = 0x2020_2020_2020_2020;

/// Not 0 if a byte of the word is a quote, a backslash or below a blank.
fn needs_escape(word: u64) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    // A byte below n borrows when n is subtracted from it. The first of these is never wrong.
    let below = |word: u64, n: u8| word.wrapping_sub(LOW * u64::from(n)) & !word;
    let quote = below(word ^ (LOW * u64::from(b'"')), 1);
    let backslash = below(word ^ (LOW * u64::from(b'\\')), 1);
    (below(word, 0x20) | quote | backslash) & 0x8080_8080_8080_8080
}

#[cold]
fn escaped(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

/// The items, separated by commas.
#[inline]
fn list<T>(out: &mut Vec<u8>, items: &[T], each: impl Fn(&mut Vec<u8>, &T)) {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        each(out, item);
    }
}

/// `[1,2,3]`.
pub fn triple(out: &mut Vec<u8>, numbers: [u32; 3]) {
    out.push(b'[');
    list(out, &numbers, |out, n| number(out, (*n).into()));
    out.push(b']');
}

pub fn value(out: &mut Vec<u8>, of: &Value) {
    match of {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => number(out, *n),
        Value::Signed(n) => signed(out, *n),
        Value::Float(n) => float(out, *n),
        Value::Hex(n) => hex(out, *n),
        Value::Text(text) => string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            list(out, items, value);
            out.push(b']');
        }
        Value::Object(items) => object(out, items),
    }
}

/// Numbers that are not finite become null, as in serde_json.
fn float(out: &mut Vec<u8>, n: f64) {
    let text = serde_json::to_string(&n).unwrap_or_else(|_| "null".to_string());
    out.extend_from_slice(text.as_bytes());
}

pub fn object(out: &mut Vec<u8>, items: &[Arg]) {
    out.push(b'{');
    list(out, items, |out, item| {
        string(out, &item.name);
        out.push(b':');
        value(out, &item.value);
    });
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        let powers = (0..20).map(|power| 10u64.pow(power));
        let around = powers.flat_map(|n| [n - 1, n, n + 1, n.wrapping_mul(7) / 3]);
        for n in
            around.chain([0, 42, u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 63, 100_000_000_000_000_001])
        {
            let mut out = b"x".to_vec();
            number(&mut out, n);
            assert_eq!(out, format!("x{n}").as_bytes());
            out.clear();
            signed(&mut out, n as i64);
            assert_eq!(out, (n as i64).to_string().as_bytes());
        }
    }

    /// Tests each byte at each position of texts of each length.
    #[test]
    fn strings_as_serde_writes_them() {
        let mut texts: Vec<String> =
            (0..40).map(|length| "cuStreamWaitEvent_é".chars().cycle().take(length).collect()).collect();
        for length in 1..20 {
            for at in 0..length {
                for byte in 0..=0x7fu8 {
                    let mut text = vec![b'a'; length];
                    text[at] = byte;
                    texts.push(String::from_utf8(text).unwrap());
                }
            }
        }
        texts.push("\u{0} é \"\u{10ffff}\\".repeat(5));
        texts.extend((0..12).map(|length| "\u{80}".repeat(length)));
        for text in texts {
            let mut out = b"x".to_vec();
            string(&mut out, &text);
            assert_eq!(out[1..], *serde_json::to_vec(&text).unwrap(), "{text:?}");
        }
    }

    #[test]
    fn hex_of_every_length() {
        for shift in 0..64 {
            for n in [u64::MAX >> shift, 1 << shift, 0x9abc_def0_1234_5678 >> shift, 0] {
                let mut out = Vec::new();
                hex(&mut out, n);
                assert_eq!(out, format!("\"{n:#x}\"").as_bytes());
            }
        }
    }
}
