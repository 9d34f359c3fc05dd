//! Turns lines into events, from plain or zstd-compressed bytes. A recording that was killed ends in a truncated line,
//! or in a compressed frame without its end: the reader returns everything before the cut and notes the cut. A file may
//! contain anything: the reader skips what is not an event, and notes that too.

use std::fs::File;
use std::io::{self, BufReader, Cursor, ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use super::brief::{self, Brief};
use super::event::{Body, Line, SCHEMA, Unknown};
use super::fast;
use super::lines::{LONGEST, Lines, Next, fits};
use super::nesting::Nesting;
use super::notes::{Notes, Place};
use super::parse::{ParsedLine, UnknownKeys, any_order};
use crate::bounds::{LONGEST_NAME, short};

/// The buffer for reading a compressed trace.
const READ_AHEAD: usize = 128 * 1024;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The largest window of a compressed trace, as a power of two: 8 MiB, as `zstd -19` makes it. `zstd --long` makes one of
/// 128 MiB, and some commands read a trace three times at once, or many traces.
const LARGEST_WINDOW: u32 = 23;

/// What zstd says of a larger one.
const WINDOW_TOO_LARGE: &str = "requires too much memory";

/// The size of one request to the decoder. Where the data are damaged, the error discards everything that the same
/// request has decoded.
const DECODED: usize = 16 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The first line is not an event, so the file is not a trace.
    #[error(
        "this is not a gpurec trace (line {line}: {reason}); give a .jsonl or .jsonl.zst file that gpurec wrote"
    )]
    NotATrace { line: u64, reason: String },
    #[error("the trace is empty: the recording was killed before its first write; record again")]
    Empty,
    /// A compressed trace that ends inside its first block.
    #[error(
        "the trace is cut in its first block, so nothing of it can be decompressed: the recording was killed at once, or the file was not copied whole; record or copy it again"
    )]
    CutAtOnce,
    #[error("{}", advice(.0))]
    Io(io::Error),
}

fn advice(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "there is no such file; check its name, and the folder that you are in".to_owned()
        }
        ErrorKind::IsADirectory => "this is a folder; name the traces in it, as in FOLDER/*.jsonl".to_owned(),
        ErrorKind::PermissionDenied => {
            format!("you may not read this trace ({error}); read it as its owner, or ask for a copy")
        }
        _ if error.to_string().contains(WINDOW_TOO_LARGE) => format!(
            "the trace is compressed with a window of more than {} MiB (zstd --long or --ultra); decompress it: zstd -d --long=31 FILE",
            (1 << LARGEST_WINDOW) >> 20
        ),
        _ => format!("the trace cannot be read ({error}); check the file and its disk"),
    }
}

/// A line as it is in the file.
#[derive(Default)]
pub struct Original<'a> {
    /// Empty if the line is not an event, or not in the file.
    pub text: &'a [u8],
    /// Keys of a frequent line that this version does not know. Those of a rare line are in its text.
    pub unknown: UnknownKeys<'a>,
}

pub struct Reader<R: Read> {
    lines: Lines<R>,
    seen: ReaderState,
}

/// The reader's state, apart from the line it lends.
#[derive(Default)]
struct ReaderState {
    /// The number of the line lent last, from 1.
    number: u64,
    /// The first event_id, the one after the highest, and the number of events.
    first_id: u64,
    next_id: u64,
    events: u64,
    ts_ns: u64,
    ended: bool,
    nesting: Nesting,
    notes: Notes,
    over: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> Self {
        Reader { lines: Lines::new(input), seen: ReaderState::default() }
    }

    /// The problems found so far; complete once `next` has returned `None`.
    pub fn notes(&self) -> &Notes {
        &self.seen.notes
    }

    /// The next event, or `None` at the end. It borrows from the reader. A line that is not an event is returned as
    /// `Unknown` without a type.
    #[allow(clippy::should_implement_trait)] // an iterator cannot lend
    pub fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        let Reader { lines, seen } = self;
        let line = match seen.text(lines)? {
            Found::Text(range, whole) => seen.whole(lines.text(range), whole)?,
            Found::Line(line) => line,
        };
        Ok(line.map(|(line, _)| line))
    }

    /// Passes the next event to `take`, with the line as it is in the file, for a view that keeps what this version
    /// does not know. `None` at the end. An event is large; here it is not moved, which took a tenth of an export's time.
    #[inline(always)]
    pub fn pass_next<T>(&mut self, take: impl FnOnce(&Line, &Original) -> T) -> Result<Option<T>, ReadError> {
        let Reader { lines, seen } = self;
        let line = match seen.text(lines)? {
            Found::Text(range, whole) => {
                let text = lines.text(range);
                if let Some(line) = &fast::line(text) {
                    let original = Original { text, unknown: Vec::new() };
                    return Ok(seen.accept(line).then(|| take(line, &original)));
                }
                seen.other(text, whole)?
            }
            Found::Line(line) => line,
        };
        Ok(line.map(|(line, original)| take(&line, &original)))
    }

    /// As `pass_next`, but of calls and GPU work only the facts in `Brief`, which takes half the time. What else these
    /// lines have is not checked.
    #[inline(always)]
    pub fn pass_brief<T>(&mut self, take: impl FnOnce(&Brief) -> T) -> Result<Option<T>, ReadError> {
        let Reader { lines, seen } = self;
        let line = match seen.text(lines)? {
            Found::Text(range, whole) => {
                let text = lines.text(range);
                if let Some(brief) = &brief::line(text) {
                    return Ok(seen.accept_brief(brief).then(|| take(brief)));
                }
                if let Some(line) = &fast::line(text) {
                    return Ok(seen.accept(line).then(|| take(&Brief::Other(line))));
                }
                seen.other(text, whole)?
            }
            Found::Line(line) => line,
        };
        Ok(line.map(|(line, _)| take(&Brief::Other(&line))))
    }
}

/// Lines about GPU work come when the GPU has done it, and have the time at which it started.
fn is_late(line: &Line) -> bool {
    matches!(line.body, Body::Gpu(_))
}

#[allow(clippy::large_enum_variant)] // it is moved once
enum Found {
    /// A line, and whether it ends in a line feed.
    Text(Range<usize>, bool),
    /// What to return.
    Line(Option<(Line<'static>, Original<'static>)>),
}

enum NextLine {
    /// The line, and whether it ends in a line feed.
    Line(Range<usize>, bool),
    TooLong,
}

impl ReaderState {
    fn text<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<Found, ReadError> {
        if self.over {
            return Ok(Found::Line(None));
        }
        let (range, whole) = match self.place(lines)? {
            Some(NextLine::Line(range, whole)) => (range, whole),
            Some(NextLine::TooLong) => {
                let why = format!("it is longer than {} MiB", LONGEST >> 20);
                return self.bad(why).map(Found::Line);
            }
            None => return Ok(Found::Line(None)),
        };
        if !fits(lines.text(range.clone())) {
            let why = "it has more parts than any line that gpurec writes";
            return self.bad(why.to_owned()).map(Found::Line);
        }
        Ok(Found::Text(range, whole))
    }

    /// The event of a text, if it belongs to this trace.
    #[inline]
    fn whole<'a>(
        &mut self,
        text: &'a [u8],
        whole: bool,
    ) -> Result<Option<(Line<'a>, Original<'a>)>, ReadError> {
        if let Some(line) = fast::line(text) {
            let original = Original { text, unknown: Vec::new() };
            return Ok(self.accept(&line).then_some((line, original)));
        }
        self.other(text, whole)
    }

    /// The same of a text that is not as the writer writes it.
    fn other<'a>(
        &mut self,
        text: &'a [u8],
        whole: bool,
    ) -> Result<Option<(Line<'a>, Original<'a>)>, ReadError> {
        match any_order(text) {
            Ok(ParsedLine { line, unknown }) => {
                self.notes.unknown_keys += unknown.len() as u64;
                Ok(self.accept(&line).then_some((line, Original { text, unknown })))
            }
            Err(_) if !whole && (self.number > 1 || text.starts_with(b"{\"event_id\"")) => {
                self.cut_short("the line ends in the middle")
            }
            Err(reason) => self.bad(reason),
        }
    }

    /// The next line that is not blank.
    fn place<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<Option<NextLine>, ReadError> {
        loop {
            self.number += 1;
            let (range, whole) = match lines.advance() {
                Ok(Next::Line(range)) => (range, true),
                Ok(Next::Rest(range)) => (range, false),
                Ok(Next::TooLong) => return Ok(Some(NextLine::TooLong)),
                Ok(Next::End) => return self.end(),
                // A compressed trace without its end.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    if self.events == 0 {
                        return Err(ReadError::CutAtOnce);
                    }
                    return self.cut_short("the compressed data end in the middle");
                }
                // An error of the decoder, not of the system: a machine that crashed left damaged data at the end.
                Err(error) if error.raw_os_error().is_none() && self.events > 0 => {
                    return self.cut_short("the compressed data are damaged from here on");
                }
                Err(error) => return Err(ReadError::Io(error)),
            };
            if !lines.text(range.clone()).trim_ascii().is_empty() {
                return Ok(Some(NextLine::Line(range, whole)));
            }
        }
    }

    fn end(&mut self) -> Result<Option<NextLine>, ReadError> {
        self.number -= 1;
        if self.events == 0 && self.notes.bad_lines == 0 {
            return Err(ReadError::Empty);
        }
        self.over = true;
        self.no_end_line();
        Ok(None)
    }

    fn no_end_line(&mut self) {
        if !self.ended {
            self.cut("no end line follows, so the recording was killed or still runs");
        }
    }

    /// Whether the line belongs to this trace.
    #[inline]
    fn accept(&mut self, line: &Line) -> bool {
        if !self.goes_on(matches!(line.body, Body::Header(_))) {
            return false;
        }
        self.order(line.event_id, line.ts_ns, is_late(line));
        match &line.body {
            Body::Header(header) if header.schema > SCHEMA => {
                self.notes.newer_schema = Some(header.schema);
            }
            Body::Header(_) => {}
            _ if self.events == 1 => self.notes.header_missing = true,
            Body::Unknown(_) => self.notes.unknown_lines += 1,
            Body::Finish(_) => self.ended = true,
            body => {
                if let Some(odd) = self.nesting.add(line.event_id, body) {
                    self.notes.odd(odd, self.number);
                }
            }
        }
        true
    }

    /// The same for a line that was read in brief.
    #[inline]
    fn accept_brief(&mut self, brief: &Brief) -> bool {
        let (event_id, ts_ns, is_late) = match brief {
            Brief::Begin(it) => (it.event_id, it.ts_ns, false),
            Brief::End(it) => (it.event_id, it.ts_ns, false),
            Brief::Work(it) => (it.event_id, it.ts_ns, true),
            Brief::Other(line) => return self.accept(line),
        };
        if !self.goes_on(false) {
            return false;
        }
        self.order(event_id, ts_ns, is_late);
        if self.events == 1 {
            self.notes.header_missing = true;
            return true;
        }
        let odd = match brief {
            Brief::Begin(it) => self.nesting.begin((it.pid, it.tid), event_id),
            Brief::End(it) => self.nesting.end((it.pid, it.tid), it.begin),
            _ => None,
        };
        if let Some(odd) = odd {
            self.notes.odd(odd, self.number);
        }
        true
    }

    /// False after the end line, and at a second header: the line belongs to another trace.
    #[inline]
    fn goes_on(&mut self, is_header: bool) -> bool {
        let goes_on = self.events == 0 || !(self.ended || is_header);
        if !goes_on {
            self.another(is_header);
        }
        goes_on
    }

    #[inline]
    fn order(&mut self, event_id: u64, ts_ns: u64, is_late: bool) {
        if self.events == 0 {
            self.first_id = event_id;
        } else if event_id < self.next_id || (ts_ns < self.ts_ns && !is_late) {
            self.notes.disorder(self.number);
        }
        self.events += 1;
        self.next_id = self.next_id.max(event_id.saturating_add(1));
        if !is_late {
            self.ts_ns = ts_ns;
        }
        self.notes.missing_events = (self.next_id - self.first_id).saturating_sub(self.events);
    }

    /// Stops at another trace in the same file. Its event_ids and times start again, so they would be mixed up with
    /// those of this trace.
    fn another(&mut self, header: bool) {
        self.no_end_line();
        let reason = if header { "another trace begins" } else { "lines follow the end line" };
        self.notes.unread = Some(Place { line: self.number, reason: reason.to_string() });
        self.over = true;
    }

    fn bad(&mut self, reason: String) -> Result<Option<(Line<'static>, Original<'static>)>, ReadError> {
        if self.events == 0 && self.notes.bad_lines == 0 {
            return Err(ReadError::NotATrace { line: self.number, reason });
        }
        let place = Place { line: self.number, reason: short(&reason, LONGEST_NAME) };
        self.notes.bad_lines += 1;
        self.notes.first_bad.get_or_insert(place);
        let body = Body::Unknown(Unknown::default());
        let line = Line { event_id: self.next_id, ts_ns: self.ts_ns, body };
        Ok(Some((line, Original::default())))
    }

    /// The file ends too early. Before the first event, the trace is empty.
    fn cut_short<T>(&mut self, reason: &str) -> Result<Option<T>, ReadError> {
        if self.events == 0 {
            return Err(ReadError::Empty);
        }
        self.cut(reason);
        Ok(None)
    }

    fn cut(&mut self, reason: &str) {
        let place = Place { line: self.number, reason: reason.to_string() };
        self.notes.cut.get_or_insert(place);
        self.over = true;
    }
}

/// Opens a trace; `-` is standard input. The first bytes show whether it is compressed, not the name.
pub fn open(path: &Path) -> Result<Reader<Box<dyn Read + Send>>, ReadError> {
    if path == Path::new("-") {
        reader_of(io::stdin())
    } else {
        reader_of(File::open(path).map_err(ReadError::Io)?)
    }
}

pub(super) fn reader_of(
    mut source: impl Read + Send + 'static,
) -> Result<Reader<Box<dyn Read + Send>>, ReadError> {
    let first = first_bytes(&mut source).map_err(ReadError::Io)?;
    let compressed = first == ZSTD_MAGIC;
    let whole = Cursor::new(first).chain(source);
    if !compressed {
        return Ok(Reader::new(Box::new(whole)));
    }
    let buffered = BufReader::with_capacity(READ_AHEAD, whole);
    let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered).map_err(ReadError::Io)?;
    decoder.window_log_max(LARGEST_WINDOW).map_err(ReadError::Io)?;
    Ok(Reader::new(Box::new(DecodedStream(decoder))))
}

/// The first bytes of the file, as many as the magic number has. A pipe may return them one by one.
fn first_bytes(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(ZSTD_MAGIC.len());
    // `read_to_end` continues after an interruption.
    source.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut first)?;
    Ok(first)
}

struct DecodedStream<R>(R);

impl<R: Read> Read for DecodedStream<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(DECODED);
        self.0.read(into.get_mut(..most).unwrap_or_default())
    }
}
