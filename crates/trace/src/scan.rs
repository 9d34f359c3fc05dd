//! Skips over JSON as gpurec writes it: printable ASCII without escapes and without blanks, which `plain` checks for a
//! whole line at once. Text that is different, malformed, or unusual (an exponent, seventeen digits, deep nesting)
//! yields `None`: never an error, and never a wrong result.

use memchr::memmem::Finder;

/// The deepest nesting of a value.
const DEEPEST: u32 = 16;

/// The value 1 in each of eight bytes.
const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * LOW;

/// The line as text if it is printable ASCII without escapes.
pub fn plain(line: &[u8]) -> Option<&str> {
    // Has no branches, so it processes sixteen bytes or more at a time.
    let odd = line.iter().fold(false, |odd, byte| odd | !(0x20..0x80).contains(byte) | (*byte == b'\\'));
    // SAFETY: all of it is ASCII. (A second check took 5 % of a summary's time.)
    if odd { None } else { Some(unsafe { std::str::from_utf8_unchecked(line) }) }
}

/// A position in a line.
pub struct Scan<'a> {
    text: &'a str,
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    /// Starts at the beginning of a text that is `plain`.
    pub fn new(text: &'a str) -> Scan<'a> {
        Scan { text, rest: text.as_bytes() }
    }

    pub fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether only the brace that closes the line follows.
    pub fn ends(&self) -> bool {
        self.rest == b"}"
    }

    /// Whether a brace closes what follows.
    pub fn is_closed(&self) -> bool {
        self.rest.last() == Some(&b'}')
    }

    /// Whether what follows contains a text.
    pub fn has(&self, what: &Finder) -> bool {
        what.find(self.rest).is_some()
    }

    /// Skips over everything up to a text, and over that.
    pub fn skip_past(&mut self, what: &Finder) -> Option<()> {
        let found = what.find(self.rest)?;
        self.rest = self.rest.get(found + what.needle().len()..)?;
        Some(())
    }

    /// The number of bytes that follow.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The byte after `what`, if that comes next.
    #[inline(always)]
    pub fn peek(&self, what: &str) -> Option<u8> {
        self.rest.strip_prefix(what.as_bytes())?.first().copied()
    }

    /// Skips over `what`, if it comes next.
    #[inline(always)]
    pub fn eat(&mut self, what: &str) -> bool {
        match self.rest.strip_prefix(what.as_bytes()) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Like `eat`, for use with `?`.
    #[inline(always)]
    pub fn must(&mut self, what: &str) -> Option<()> {
        self.eat(what).then_some(())
    }

    /// The string up to its closing quote, which is skipped too. The opening quote was skipped before.
    #[inline]
    pub fn string(&mut self) -> Option<&'a str> {
        let length = quote(self.rest)?;
        let from = self.place();
        self.rest = self.rest.get(length + 1..)?;
        self.text.get(from..from + length)
    }

    /// A number of at most sixteen digits.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        let (value, digits) = digits(self.rest);
        let leading = digits > 1 && self.rest.first() == Some(&b'0');
        if digits == 0 || leading || digits > 16 {
            return None;
        }
        self.rest = self.rest.get(digits..)?;
        Some(value)
    }

    pub fn number32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Nanoseconds from seconds with nine decimals.
    #[inline]
    pub fn seconds(&mut self) -> Option<u64> {
        let whole = self.number()?;
        self.must(".")?;
        let (value, digits) = digits(self.rest);
        if digits != 9 {
            return None;
        }
        self.rest = self.rest.get(9..)?;
        whole.checked_mul(1_000_000_000)?.checked_add(value)
    }

    /// Nanoseconds from microseconds with three decimals. Values above 2^49 are left to the parser of doubles, which
    /// rounds them.
    #[inline]
    pub fn micros(&mut self) -> Option<u64> {
        let whole = self.number()?;
        self.must(".")?;
        let (value, digits) = digits(self.rest);
        if digits != 3 {
            return None;
        }
        self.rest = self.rest.get(3..)?;
        let ns = whole.checked_mul(1000)?.checked_add(value)?;
        (ns < 1 << 49).then_some(ns)
    }

    /// A pointer, as `json::hex` writes it.
    #[inline]
    pub fn hex(&mut self) -> Option<u64> {
        self.must("\"0x")?;
        super::value::parse_hex_digits(self.string()?)
    }

    pub fn triple(&mut self) -> Option<[u32; 3]> {
        self.must("[")?;
        let x = self.number32()?;
        self.must(",")?;
        let y = self.number32()?;
        self.must(",")?;
        let z = self.number32()?;
        self.must("]")?;
        Some([x, y, z])
    }

    /// The text of a well-formed object.
    #[inline]
    pub fn object(&mut self) -> Option<&'a str> {
        self.must("{")?;
        let from = self.place().checked_sub(1)?;
        self.members(DEEPEST)?;
        self.text.get(from..self.place())
    }

    /// The text of any well-formed value.
    pub fn value(&mut self) -> Option<&'a str> {
        let from = self.place();
        self.step(DEEPEST)?;
        self.text.get(from..self.place())
    }

    fn place(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    fn members(&mut self, deep: u32) -> Option<()> {
        if self.eat("}") {
            return Some(());
        }
        loop {
            self.must("\"")?;
            self.string()?;
            self.must(":")?;
            self.step(deep)?;
            if !self.eat(",") {
                return self.must("}");
            }
        }
    }

    fn items(&mut self, deep: u32) -> Option<()> {
        if self.eat("]") {
            return Some(());
        }
        loop {
            self.step(deep)?;
            if !self.eat(",") {
                return self.must("]");
            }
        }
    }

    fn step(&mut self, deep: u32) -> Option<()> {
        match self.rest.first()? {
            b'"' => {
                self.must("\"")?;
                self.string().map(drop)
            }
            b'0'..=b'9' => self.decimal(),
            b'-' => {
                self.must("-")?;
                self.decimal()
            }
            b'{' => {
                self.must("{")?;
                self.members(deep.checked_sub(1)?)
            }
            b'[' => {
                self.must("[")?;
                self.items(deep.checked_sub(1)?)
            }
            b't' => self.must("true"),
            b'f' => self.must("false"),
            _ => self.must("null"),
        }
    }

    fn decimal(&mut self) -> Option<()> {
        self.number()?;
        if self.eat(".") {
            let (_, digits) = digits(self.rest);
            if digits == 0 || digits > 16 {
                return None;
            }
            self.rest = self.rest.get(digits..)?;
        }
        Some(())
    }
}

/// The position of the next quote. Most strings are short, and a call of memchr costs more than this loop.
#[inline]
fn quote(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let others = u64::from_le_bytes(*chunk) ^ (u64::from(b'"') * LOW);
        let found = others.wrapping_sub(LOW) & !others & HIGH;
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    bytes.get(at..)?.iter().position(|byte| *byte == b'"').map(|found| at + found)
}

/// The number that the leading digits make, and the number of digits; seventeen means "too many".
#[inline]
fn digits(bytes: &[u8]) -> (u64, usize) {
    match eight(bytes) {
        (first, 8) => many(first, bytes),
        known => known,
    }
}

/// The number of more than seven digits, of which the first eight are already parsed.
#[inline(never)]
fn many(first: u64, bytes: &[u8]) -> (u64, usize) {
    const POWERS: [u64; 9] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let rest = bytes.get(8..).unwrap_or_default();
    let (second, more) = eight(rest);
    let longer = more == 8 && rest.get(8).is_some_and(u8::is_ascii_digit);
    let power = POWERS.get(more).copied().unwrap_or(1);
    (first * power + second, 8 + more + usize::from(longer))
}

/// Like `digits`, for at most eight.
#[inline]
fn eight(bytes: &[u8]) -> (u64, usize) {
    let Some(chunk) = bytes.first_chunk() else { return few(bytes) };
    // Digits become 0 to 9; adding 118 to anything above carries into the highest bit.
    let values = u64::from_le_bytes(*chunk) ^ (u64::from(b'0') * LOW);
    let others = (values.wrapping_add(118 * LOW) | values) & HIGH;
    let count = others.trailing_zeros() / 8;
    if count == 0 {
        return (0, 0);
    }
    // The first digit has the highest weight and is in the lowest byte: shift out what follows, so that zeros come
    // first.
    let n = values << (8 * (8 - count));
    let n = (n.wrapping_mul(10).wrapping_add(n >> 8)) & 0x00ff_00ff_00ff_00ff;
    let n = (n.wrapping_mul(100).wrapping_add(n >> 16)) & 0x0000_ffff_0000_ffff;
    let n = (n.wrapping_mul(10_000).wrapping_add(n >> 32)) & 0xffff_ffff;
    (n, count as usize)
}

/// Like `eight`, near the end of a line.
fn few(bytes: &[u8]) -> (u64, usize) {
    let mut value = 0;
    let mut count = 0;
    for byte in bytes.iter().take_while(|byte| byte.is_ascii_digit()) {
        value = value * 10 + u64::from(byte - b'0');
        count += 1;
    }
    (value, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_every_length_with_anything_after_them() {
        let all = "98765432109876543210";
        for length in 0..=all.len() {
            for after in ["", ",", "}", ".5", "/", ":", "a,\"pid\":12345", "\x7f and so on"] {
                let text = format!("{}{after}", &all[..length]);
                let (value, count) = digits(text.as_bytes());
                assert_eq!(count, length.min(17), "{text}");
                if length <= 16 {
                    assert_eq!(value, all[..length].parse().unwrap_or(0), "{text}");
                }
            }
        }
    }

    #[test]
    fn the_first_quote_is_found_wherever_it_is() {
        for before in 0..40 {
            for after in 0..20 {
                let text = format!("{}\"{}", "#".repeat(before), "\"!#".repeat(after));
                assert_eq!(quote(text.as_bytes()), Some(before));
            }
            assert_eq!(quote("!".repeat(before).as_bytes()), None);
        }
    }

    #[test]
    fn only_what_json_allows_is_a_value() {
        let whole = |text: &'static str| {
            let mut scan = Scan::new(text);
            scan.value().filter(|_| scan.at_end()).is_some()
        };
        for good in
            ["0", "-1", "1.5", "\"\"", "{}", "[]", "[1,{\"a\":[null,true,false]}]", "{\"a\":\"b\",\"c\":-2}"]
        {
            assert!(whole(good), "{good}");
        }
        for bad in [
            "", "01", "-", "1.", ".5", "+1", "\"", "{", "[1,]", "[,1]", "{\"a\"}", "{a:1}", "nul", "True",
            "[1 ]",
        ] {
            assert!(!whole(bad), "{bad}");
        }
        // These are well-formed but left to the other parser.
        for odd in ["1e3", "12345678901234567", "[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]"] {
            assert!(!whole(odd), "{odd}");
        }
    }

    #[test]
    fn plain_is_printable_ascii_without_escapes() {
        assert_eq!(plain(b"a b~\x7f"), Some("a b~\x7f"));
        for odd in ["\\", "\u{e9}", "\t", "\0", "a\nb"] {
            assert_eq!(plain(odd.as_bytes()), None, "{odd:?}");
        }
        assert_eq!(plain(b"\xff"), None);
    }
}
