//! Rows of one table, column by column, that are not encoded yet.
//!
//! In: values by row and column, also for a row that was begun before others. Out: whole columns for chunk.rs. A row
//! whose call has not ended stays when the others are taken. Not here: which columns there are, and the format.

use super::columns::{Kind, Table};

/// Marks a row that is whole.
const WHOLE: u32 = u32::MAX;

pub struct Batch {
    pub columns: Vec<Cells>,
    /// For each row the number by which its call is known, or `WHOLE`.
    calls: Vec<u32>,
    open: usize,
    /// Bytes of all distinct texts.
    pub bytes: usize,
}

/// The values of a column. Columns are shorter than the batch if their last values are null; most have no value at all.
pub enum Cells {
    Numbers { values: Vec<i64>, levels: Vec<i16> },
    Texts { bytes: Vec<u8>, places: Vec<Span>, levels: Vec<i16>, known: Known },
    Flags(Vec<bool>),
}

/// Where a text lies in the bytes of its column: from, to.
type Span = (u32, u32);

/// Texts of the column, by hash: a text that comes again is not stored again. Those that share a place replace each other.
#[derive(Default)]
pub struct Known(Vec<Span>);

/// Must be a power of two.
const KNOWN: usize = 1 << 12;

impl Known {
    /// Where the text at the end of `bytes` lies, which is removed if it was there before.
    #[inline]
    fn place(&mut self, bytes: &mut Vec<u8>, from: usize) -> Span {
        if self.0.is_empty() {
            self.0.resize(KNOWN, (0, 0));
        }
        let new = bytes.get(from..).unwrap_or_default();
        // chunk.rs takes the texts long before they have 4 GiB.
        let span = (from as u32, bytes.len() as u32);
        let Some(known) = self.0.get_mut(hash(new) as usize % KNOWN) else { return span };
        let (known_from, known_to) = *known;
        if bytes.get(known_from as usize..known_to as usize) == Some(new) {
            bytes.truncate(from);
            return *known;
        }
        *known = span;
        span
    }
}

/// Eight bytes at a time. A trace that makes texts collide gets a larger file, nothing else.
#[inline]
fn hash(text: &[u8]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(MIX).rotate_left(29);
    let (words, rest) = text.as_chunks::<8>();
    let hash = words.iter().fold(text.len() as u64, |hash, word| add(hash, u64::from_le_bytes(*word)));
    let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    add(add(hash, last), 0)
}

impl Cells {
    fn new(kind: Kind) -> Cells {
        match kind {
            Kind::Rising | Kind::Number => Cells::Numbers { values: Vec::new(), levels: Vec::new() },
            Kind::Name | Kind::Text => {
                let known = Known::default();
                Cells::Texts { bytes: Vec::new(), places: Vec::new(), levels: Vec::new(), known }
            }
            Kind::Flag => Cells::Flags(Vec::new()),
        }
    }

    /// Makes the column as long as the batch, unless it has no value.
    fn fill(&mut self, rows: usize) {
        match self {
            Cells::Numbers { values, levels } if !levels.is_empty() => {
                values.resize(rows, 0);
                levels.resize(rows, 0);
            }
            Cells::Texts { places, levels, .. } if !levels.is_empty() => {
                places.resize(rows, (0, 0));
                levels.resize(rows, 0);
            }
            Cells::Flags(flags) => flags.resize(rows, false),
            Cells::Numbers { .. } | Cells::Texts { .. } => {}
        }
    }

    /// Removes all values, and keeps the memory.
    fn clear(&mut self) {
        match self {
            Cells::Numbers { values, levels } => {
                values.clear();
                levels.clear();
            }
            Cells::Texts { bytes, places, levels, known } => {
                *known = Known::default();
                bytes.clear();
                places.clear();
                levels.clear();
            }
            Cells::Flags(flags) => flags.clear(),
        }
    }

    pub fn text(&self, row: usize) -> Option<&[u8]> {
        let Cells::Texts { bytes, places, levels, .. } = self else { return None };
        let (from, to) = *places.get(row)?;
        (*levels.get(row)? == 1).then(|| bytes.get(from as usize..to as usize)).flatten()
    }

    pub fn number(&self, row: usize) -> Option<i64> {
        let Cells::Numbers { values, levels } = self else { return None };
        (*levels.get(row)? == 1).then(|| values.get(row).copied()).flatten()
    }

    #[inline(always)]
    fn set_number(&mut self, row: usize, number: i64) -> bool {
        let Cells::Numbers { values, levels } = self else { return false };
        if values.len() <= row {
            values.resize(row + 1, 0);
            levels.resize(row + 1, 0);
        }
        if let (Some(value), Some(level)) = (values.get_mut(row), levels.get_mut(row)) {
            (*value, *level) = (number, 1);
        }
        true
    }

    #[inline(always)]
    fn set_text(&mut self, row: usize, write: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
        let Cells::Texts { bytes, places, levels, known } = self else { return None };
        if places.len() <= row {
            places.resize(row + 1, (0, 0));
            levels.resize(row + 1, 0);
        }
        let from = bytes.len();
        write(bytes);
        let span = known.place(bytes, from);
        if let (Some(place), Some(level)) = (places.get_mut(row), levels.get_mut(row)) {
            (*place, *level) = (span, 1);
        }
        Some(bytes.len() - from)
    }
}

impl Batch {
    pub fn new(table: Table) -> Batch {
        let columns = table.columns().map(|column| Cells::new(column.kind)).collect();
        Batch { columns, calls: Vec::new(), open: 0, bytes: 0 }
    }

    pub fn rows(&self) -> usize {
        self.calls.len()
    }

    pub fn whole_rows(&self) -> usize {
        self.calls.len() - self.open
    }

    /// A row that is whole when the next one begins.
    pub fn row(&mut self) -> usize {
        self.calls.push(WHOLE);
        self.calls.len() - 1
    }

    /// The row of a call that has begun.
    pub fn open(&mut self, call: u32) -> usize {
        self.calls.push(call);
        self.open += 1;
        self.calls.len() - 1
    }

    pub fn end(&mut self, row: usize) {
        if let Some(call) = self.calls.get_mut(row)
            && *call != WHOLE
        {
            *call = WHOLE;
            self.open -= 1;
        }
    }

    /// Returns false if the column has no numbers.
    #[inline(always)]
    pub fn number(&mut self, row: usize, column: usize, number: i64) -> bool {
        self.columns.get_mut(column).is_some_and(|cells| cells.set_number(row, number))
    }

    /// Returns false if the column has no texts.
    #[inline(always)]
    pub fn text(&mut self, row: usize, column: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let written = self.columns.get_mut(column).and_then(|cells| cells.set_text(row, write));
        self.bytes += written.unwrap_or(0);
        written.is_some()
    }

    /// Returns false if the column has no flags.
    #[inline(always)]
    pub fn flag(&mut self, row: usize, column: usize, is: bool) -> bool {
        let Some(Cells::Flags(flags)) = self.columns.get_mut(column) else { return false };
        if flags.len() <= row {
            flags.resize(row + 1, false);
        }
        if let Some(flag) = flags.get_mut(row) {
            *flag = is;
        }
        true
    }

    /// Removes all rows, and keeps the memory.
    pub fn clear(&mut self) {
        self.columns.iter_mut().for_each(Cells::clear);
        self.calls.clear();
        (self.open, self.bytes) = (0, 0);
    }

    /// Moves the rows of open calls to an empty batch, in their order. `moved` gets each call and its new row. Every
    /// column of what stays has the same length, or no value.
    pub fn move_open(&mut self, kept: &mut Batch, mut moved: impl FnMut(u32, usize)) {
        let rows = self.rows();
        self.columns.iter_mut().for_each(|cells| cells.fill(rows));
        if self.open == 0 {
            return;
        }
        let is_open: Vec<bool> = self.calls.iter().map(|call| *call != WHOLE).collect();
        for (row, call) in self.calls.iter().enumerate().filter(|(_, call)| **call != WHOLE) {
            let to = kept.open(*call);
            moved(*call, to);
            for (column, cells) in self.columns.iter().enumerate() {
                match cells {
                    Cells::Numbers { .. } => {
                        if let Some(number) = cells.number(row) {
                            kept.number(to, column, number);
                        }
                    }
                    Cells::Texts { .. } => {
                        if let Some(text) = cells.text(row) {
                            kept.text(to, column, |out| out.extend_from_slice(text));
                        }
                    }
                    Cells::Flags(flags) => {
                        kept.flag(to, column, flags.get(row).copied().unwrap_or(false));
                    }
                }
            }
        }
        for cells in &mut self.columns {
            match cells {
                Cells::Numbers { values, levels } => (retain(values, &is_open), retain(levels, &is_open)),
                Cells::Texts { places, levels, .. } => (retain(places, &is_open), retain(levels, &is_open)),
                Cells::Flags(flags) => (retain(flags, &is_open), ()),
            };
        }
        retain(&mut self.calls, &is_open);
        self.open = 0;
    }
}

/// Keeps the values of rows that are not open.
fn retain<T>(values: &mut Vec<T>, is_open: &[bool]) {
    let mut rows = is_open.iter();
    values.retain(|_| !rows.next().copied().unwrap_or(false));
}
