//! Problems found in a trace.
//!
//! In: the reader's findings. Out: sentences for users, and whether the figures are those of a whole recording. Not
//! here: errors that stop the reading.

use super::event::SCHEMA;
use super::nesting::NestingError;

/// A line, and a remark about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub line: u64,
    pub reason: String,
}

/// A number of lines, and the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCount {
    pub count: u64,
    pub first_line: u64,
}

impl LineCount {
    fn add(&mut self, line: u64) {
        if self.count == 0 {
            self.first_line = line;
        }
        self.count += 1;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    pub header_missing: bool,
    /// The schema of the trace, if it is newer than this program's.
    pub newer_schema: Option<u32>,
    /// The number of lines and keys of types that this version does not know.
    pub unknown_lines: u64,
    pub unknown_keys: u64,
    /// Lines that are not events, and the first of them.
    pub bad_lines: u64,
    pub first_bad: Option<Place>,
    /// The number of missing events, judged by event_id.
    pub missing_events: u64,
    /// Lines whose event_id or time is not above that of an earlier line.
    pub disorder: LineCount,
    /// Ends without a begin, and ends that are not nested in the enclosing call.
    pub unmatched_ends: LineCount,
    pub crossed_ends: LineCount,
    pub cut: Option<Place>,
    /// The line from which on the file is not part of this trace.
    pub unread: Option<Place>,
    /// The part of the trace that the figures cover, if the user selected one; and its time window.
    pub part: Option<String>,
    /// The trace has no process, thread or rank of that part.
    pub is_absent: bool,
    pub window: Option<(u64, u64)>,
    /// Memory that the part's processes hold may have been allocated outside of the part.
    pub part_cuts_memory: bool,
    /// Memory of the part may be freed outside of it.
    pub part_cuts_frees: bool,
}

impl Notes {
    pub(super) fn disorder(&mut self, line: u64) {
        self.disorder.add(line);
    }

    pub(super) fn odd(&mut self, odd: NestingError, line: u64) {
        match odd {
            NestingError::NoBegin => self.unmatched_ends.add(line),
            NestingError::Crossed => self.crossed_ends.add(line),
        }
    }

    /// Whether every line of the recording was present and understood.
    pub fn is_whole(&self) -> bool {
        let counts = [self.bad_lines, self.missing_events, self.disorder.count];
        let ends = [self.unmatched_ends.count, self.crossed_ends.count];
        let reported = self.cut.is_some() || self.unread.is_some() || self.newer_schema.is_some();
        !self.header_missing && !reported && counts.iter().chain(&ends).all(|count| *count == 0)
    }

    /// The notes as sentences for users.
    pub fn sentences(&self) -> Vec<String> {
        let mut said = Vec::new();
        said.extend(self.part.clone());
        if let Some(schema) = self.newer_schema {
            said.push(format!(
                "the trace has schema {schema} and this gpurec knows {SCHEMA}, so figures may be missing or wrong: \
                 use the gpurec that wrote it, or a newer one"
            ));
        }
        if self.header_missing {
            said.push("the trace has no header: its beginning is missing".to_string());
        }
        self.lines(&mut said);
        if let Some(cut) = &self.cut {
            said.push(format!("the trace is cut at line {}: {}", cut.line, cut.reason));
        }
        if let Some(unread) = &self.unread {
            let Place { line, reason } = unread;
            said.push(format!(
                "{reason} at line {line}, and gpurec read nothing from there on: to read that part as a trace of its \
                 own, save it with tail -n +{line}"
            ));
        }
        said
    }

    fn lines(&self, said: &mut Vec<String>) {
        if let Some(Place { line, reason }) = &self.first_bad {
            said.push(match self.bad_lines {
                1 => format!("line {line} is no event and was skipped: {reason}"),
                n => format!("{n} lines are no events and were skipped; the first is line {line}: {reason}"),
            });
        }
        match self.missing_events {
            0 => {}
            1 => said.push("1 event is missing: its event_id was skipped".to_string()),
            n => said.push(format!("{n} events are missing: their event_ids were skipped")),
        }
        let mut counted = |what: LineCount, one: &str, more: &str| match what.count {
            0 => {}
            1 => said.push(format!("line {} {one}", what.first_line)),
            n => said.push(format!("{n} lines {more}; the first is line {}", what.first_line)),
        };
        counted(
            self.disorder,
            "is out of order: its event_id or its time is not above the line before",
            "are out of order: their event_id or their time is not above the line before",
        );
        counted(
            self.unmatched_ends,
            "ends a call that did not begin in its thread",
            "end calls that did not begin in their thread",
        );
        counted(
            self.crossed_ends,
            "ends a call before a call inside it has ended",
            "end calls before a call inside them has ended",
        );
        if self.unknown_lines > 0 || self.unknown_keys > 0 {
            said.push(format!(
                "{} lines of unknown type and {} unknown keys were skipped",
                self.unknown_lines, self.unknown_keys
            ));
        }
    }
}
