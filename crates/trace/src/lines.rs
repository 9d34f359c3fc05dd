//! Splits bytes into lines, which it lends from the read buffer. A line longer than `LONGEST` is skipped in the same
//! buffer, so memory is bounded for any file.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

/// The size of one read: large enough that few lines span two reads.
const READ: usize = 256 * 1024;

/// The writer writes no longer line, and the reader accepts none.
pub const LONGEST: usize = 16 << 20;

/// The parts of a line longer than this are counted, since each part takes many times its bytes when it is parsed.
const LONG: usize = 256 << 10;
const MOST_OBJECTS: usize = 1 << 16;
const MOST_VALUES: usize = 2 << 20;

/// Whether a line is allowed in a trace.
pub fn fits(line: &[u8]) -> bool {
    if line.len() <= LONG {
        return true;
    }
    let (mut objects, mut values) = (0, 0);
    for at in memchr::memchr3_iter(b'{', b'[', b',', line) {
        match line.get(at) {
            Some(b',') => values += 1,
            _ => objects += 1,
        }
    }
    line.len() <= LONGEST && objects <= MOST_OBJECTS && values <= MOST_VALUES
}

pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// What has been read and not lent yet.
    unread: Range<usize>,
}

/// The next item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A line, without its line feed.
    Line(Range<usize>),
    /// The text after the last line feed.
    Rest(Range<usize>),
    TooLong,
    End,
}

impl<R: Read> Lines<R> {
    pub fn new(input: R) -> Self {
        Lines { input, buffer: vec![0; READ], unread: 0..0 }
    }

    /// The text of a range that `advance` returned last.
    pub fn text(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    pub fn advance(&mut self) -> io::Result<Next> {
        let mut searched = 0;
        loop {
            let unread = self.buffer.get(self.unread.clone()).unwrap_or_default();
            let rest = unread.get(searched..).unwrap_or_default();
            if let Some(found) = memchr::memchr(b'\n', rest) {
                let start = self.unread.start;
                let end = start + searched + found;
                self.unread.start = end + 1;
                return Ok(Next::Line(start..end));
            }
            searched = unread.len();
            if searched >= LONGEST {
                return self.step_over();
            }
            if self.fill()? == 0 {
                let rest = std::mem::replace(&mut self.unread, 0..0);
                return Ok(if rest.is_empty() { Next::End } else { Next::Rest(rest) });
            }
        }
    }

    /// Reads more behind the unread bytes, which it moves to the front if there is no room.
    fn fill(&mut self) -> io::Result<usize> {
        if self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            if self.unread.end == self.buffer.len() {
                self.buffer.resize((self.buffer.len() * 2).min(LONGEST + READ), 0);
            }
        }
        let free = self.buffer.get_mut(self.unread.end..).unwrap_or_default();
        let count = read(&mut self.input, free)?;
        self.unread.end += count;
        Ok(count)
    }

    /// Skips to the end of a line that is too long.
    fn step_over(&mut self) -> io::Result<Next> {
        loop {
            self.unread = 0..0;
            if self.fill()? == 0 {
                return Ok(Next::TooLong);
            }
            let unread = self.buffer.get(self.unread.clone()).unwrap_or_default();
            if let Some(found) = memchr::memchr(b'\n', unread) {
                self.unread.start = found + 1;
                return Ok(Next::TooLong);
            }
        }
    }
}

fn read(input: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns at most N bytes per read.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = self.1.min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    fn all(input: impl Read) -> Vec<String> {
        let mut lines = Lines::new(input);
        let mut all = Vec::new();
        loop {
            let next = lines.advance().unwrap();
            let shown = |range| String::from_utf8(lines.text(range).to_vec()).unwrap();
            all.push(match next {
                Next::Line(range) => shown(range),
                Next::Rest(range) => format!("rest {}", shown(range)),
                Next::TooLong => "too long".to_string(),
                Next::End => return all,
            });
        }
    }

    #[test]
    fn a_line_of_very_many_parts_does_not_fit() {
        let of = |part: &str, length: usize| part.repeat(length / part.len());
        for part in ["{},", "[[],", "0,"] {
            assert!(fits(of(part, LONG).as_bytes()) && !fits(of(part, LONGEST).as_bytes()), "{part}");
        }
        assert!(fits(&vec![b'x'; LONGEST]) && !fits(&vec![b'x'; LONGEST + 1]));
    }

    #[test]
    fn lines_are_the_same_however_they_are_read() {
        let text: String =
            (0..3000).map(|n| format!("{}\n", "x".repeat(n % 997))).collect::<String>() + "end";
        let expected: Vec<String> = text.split('\n').map(str::to_owned).collect();
        for most in [1, 7, 997, READ - 1, READ, usize::MAX] {
            let mut lines = all(Slow(text.as_bytes(), most));
            assert_eq!(lines.pop().as_deref(), Some("rest end"));
            assert_eq!(lines, expected[..expected.len() - 1]);
        }
        assert!(all(&b""[..]).is_empty());
        assert_eq!(all(&b"\n\na\n"[..]), ["", "", "a"]);
    }

    #[test]
    fn a_line_that_is_too_long_takes_no_more_memory_than_the_longest() {
        let fits = LONGEST - 1;
        let input =
            |length: usize| b"first\n".chain(io::repeat(b'x').take(length as u64)).chain(&b"\nlast\n"[..]);
        let mut lines = Lines::new(input(100 << 20));
        assert!(matches!(lines.advance().unwrap(), Next::Line(_)));
        assert_eq!(lines.advance().unwrap(), Next::TooLong);
        let Next::Line(last) = lines.advance().unwrap() else { panic!("a line follows") };
        assert_eq!(lines.text(last), b"last");
        assert_eq!(lines.advance().unwrap(), Next::End);
        assert!(lines.buffer.capacity() <= 2 * LONGEST);
        let long = all(input(fits));
        assert_eq!((long[1].len(), long[2].as_str()), (fits, "last"));
        assert_eq!(all(io::repeat(0).take(2 * LONGEST as u64)), ["too long"]);
    }
}
