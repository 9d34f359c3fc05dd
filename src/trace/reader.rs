//! Lines to events, from plain or zstd-compressed bytes. A recording that was
//! killed leaves a last line that is cut, or a compressed frame without its
//! end: everything before it is read, and the cut is told.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::event::{Body, Line, SCHEMA, Unknown};
use super::parse::{Parsed, parse};

const BUFFER: usize = 256 * 1024;

/// Longer than any line gpurec writes; keeps a file of zeroes out of memory.
const LONGEST_LINE: u64 = 64 * 1024 * 1024;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

#[derive(Debug)]
pub enum ReadError {
    /// The first line is no event: something else than a trace.
    NotATrace {
        line: u64,
        reason: String,
    },
    Empty,
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ReadError::NotATrace { line, reason } => write!(
                f,
                "this is not a gpurec trace (line {line}: {reason}); give a .jsonl or .jsonl.zst file that gpurec wrote"
            ),
            ReadError::Empty => f.write_str(
                "the trace is empty: the recording was killed before its first write; record again",
            ),
            ReadError::Io(error) => {
                write!(f, "the trace cannot be read ({error}); check the file and its disk")
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// Where and why a trace stops short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub line: u64,
    pub reason: String,
}

/// What was odd in a trace; all of it is told, none of it stops the reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    pub header_missing: bool,
    /// The schema of the trace, if newer than this program's.
    pub newer_schema: Option<u32>,
    /// Lines of a type, and keys, that this version does not know.
    pub unknown_lines: u64,
    pub unknown_keys: u64,
    /// Lines that are no event, and the first of them.
    pub bad_lines: u64,
    pub first_bad: Option<Cut>,
    /// Events missing by their event_id.
    pub missing_events: u64,
    pub cut: Option<Cut>,
}

impl Notes {
    /// Whether every line of the recording was there and was understood.
    pub fn is_whole(&self) -> bool {
        let Notes { header_missing, bad_lines, missing_events, cut, .. } = self;
        !header_missing && *bad_lines == 0 && *missing_events == 0 && cut.is_none()
    }

    /// In sentences, for a person.
    pub fn sentences(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(schema) = self.newer_schema {
            said.push(format!(
                "the trace has schema {schema} and this gpurec knows {SCHEMA}: use the gpurec that wrote it, or a newer one"
            ));
        }
        if self.header_missing {
            said.push("the trace has no header: its beginning is missing".to_string());
        }
        if let Some(bad) = &self.first_bad {
            said.push(format!(
                "{} lines are no events and were skipped; the first is line {}: {}",
                self.bad_lines, bad.line, bad.reason
            ));
        }
        if self.missing_events > 0 {
            said.push(format!("{} events are missing, going by event_id", self.missing_events));
        }
        if self.unknown_lines > 0 || self.unknown_keys > 0 {
            said.push(format!(
                "{} lines of unknown type and {} unknown keys were skipped",
                self.unknown_lines, self.unknown_keys
            ));
        }
        if let Some(cut) = &self.cut {
            said.push(format!("the trace is cut at line {}: {}", cut.line, cut.reason));
        }
        said
    }
}

pub struct Reader<R: BufRead> {
    input: R,
    text: Vec<u8>,
    seen: Seen,
}

/// Where the reader is, apart from the line it lends.
#[derive(Default)]
struct Seen {
    /// Of the line lent last, from 1.
    number: u64,
    next_event: Option<u64>,
    ts_ns: u64,
    finished: bool,
    notes: Notes,
}

impl<R: BufRead> Reader<R> {
    pub fn new(input: R) -> Self {
        Reader { input, text: Vec::with_capacity(4096), seen: Seen::default() }
    }

    /// What was odd so far; everything, once `next` has said `None`.
    pub fn notes(&self) -> &Notes {
        &self.seen.notes
    }

    /// The next event, or `None` at the end. It borrows from the reader. A
    /// line that is no event comes as `Unknown` without a type.
    #[allow(clippy::should_implement_trait)] // an iterator cannot lend
    pub fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        let Reader { input, text, seen } = self;
        if seen.notes.cut.is_some() || !fill(input, text, seen)? {
            return Ok(None);
        }
        let (body, whole) = match text.strip_suffix(b"\n") {
            Some(body) => (body, true),
            None => (text.as_slice(), false),
        };
        match parse(body) {
            Ok(parsed) => {
                seen.accept(&parsed);
                Ok(Some(parsed.line))
            }
            Err(_) if !whole && (seen.number > 1 || body.starts_with(b"{\"event_id\"")) => {
                seen.cut("the line ends in the middle");
                Ok(None)
            }
            Err(reason) if seen.number == 1 => Err(ReadError::NotATrace { line: 1, reason }),
            Err(reason) => Ok(Some(seen.reject(reason))),
        }
    }
}

/// Reads one line into `text`; false at the end of the trace.
fn fill(input: &mut impl BufRead, text: &mut Vec<u8>, seen: &mut Seen) -> Result<bool, ReadError> {
    text.clear();
    seen.number += 1;
    match input.take(LONGEST_LINE).read_until(b'\n', text) {
        Ok(0) if seen.number == 1 => Err(ReadError::Empty),
        Ok(0) => {
            seen.number -= 1;
            if !seen.finished {
                seen.cut("no end line follows, so the recording was killed or still runs");
            }
            Ok(false)
        }
        Ok(_) => Ok(true),
        // A compressed trace without its end.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            seen.cut("the compressed data end in the middle");
            Ok(false)
        }
        Err(error) => Err(ReadError::Io(error)),
    }
}

impl Seen {
    fn accept(&mut self, parsed: &Parsed) {
        let line = &parsed.line;
        if let Some(expected) = self.next_event {
            self.notes.missing_events += line.event_id.saturating_sub(expected);
        }
        self.next_event = Some(line.event_id.saturating_add(1));
        self.ts_ns = line.ts_ns;
        self.notes.unknown_keys += parsed.unknown_keys;
        match &line.body {
            Body::Header(header) if header.schema > SCHEMA => {
                self.notes.newer_schema = Some(header.schema);
            }
            Body::Header(_) => {}
            _ if self.number == 1 => self.notes.header_missing = true,
            Body::Unknown(_) => self.notes.unknown_lines += 1,
            Body::Finish(_) => self.finished = true,
            _ => {}
        }
    }

    fn reject(&mut self, reason: String) -> Line<'static> {
        self.notes.bad_lines += 1;
        let line = self.number;
        self.notes.first_bad.get_or_insert(Cut { line, reason });
        Line {
            event_id: self.next_event.unwrap_or(0),
            ts_ns: self.ts_ns,
            body: Body::Unknown(Unknown { kind: Cow::Borrowed(""), name: Cow::Borrowed("") }),
        }
    }

    fn cut(&mut self, reason: &str) {
        self.notes.cut = Some(Cut { line: self.number, reason: reason.to_string() });
    }
}

/// Opens a trace; `-` is standard input. Compression is told by the first
/// bytes, not by the name.
pub fn open(path: &Path) -> Result<Reader<Box<dyn BufRead>>, ReadError> {
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(ReadError::Io)?)
    };
    let mut plain = BufReader::with_capacity(BUFFER, source);
    let compressed = plain.fill_buf().map_err(ReadError::Io)?.starts_with(&ZSTD_MAGIC);
    let input: Box<dyn BufRead> = if compressed {
        let decoder = zstd::stream::read::Decoder::with_buffer(plain).map_err(ReadError::Io)?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
    } else {
        Box::new(plain)
    };
    Ok(Reader::new(input))
}
