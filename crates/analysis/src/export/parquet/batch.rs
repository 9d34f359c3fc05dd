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

/// The values of a column. Until `fill`, columns are longer or shorter than the batch; what they lack is null. Most have
/// no value at all.
pub enum Cells {
    Numbers { values: Vec<i64>, levels: Vec<i16> },
    Texts { bytes: Vec<u8>, places: Vec<Span>, levels: Vec<i16>, known: Known },
    Flags(Vec<bool>),
}

/// Where a text lies in the bytes of its column: from, to.
type Span = (u32, u32);

/// Texts of the column, by hash: a text that comes again is not stored again. Those that share a place replace each other.
#[derive(Default)]
pub struct Known {
    spans: Vec<Span>,
    /// Texts that were new since it grew.
    new: usize,
}

/// Small columns have small tables.
const FEW_KNOWN: usize = 1 << 6;
const KNOWN: usize = 1 << 11;

impl Known {
    /// Where the text lies in `bytes`, to which it is added unless it is there.
    #[inline]
    fn place(&mut self, bytes: &mut Vec<u8>, text: &[u8]) -> Span {
        if self.new >= self.spans.len() && self.spans.len() < KNOWN {
            let more = (self.spans.len() * 4).clamp(FEW_KNOWN, KNOWN);
            self.clear();
            self.spans.resize(more, (0, 0));
        }
        // chunk.rs takes the texts long before they have 4 GiB.
        let from = bytes.len() as u32;
        let span = (from, from + text.len() as u32);
        let places = self.spans.len().max(1);
        if let Some(known) = self.spans.get_mut(hash(text) as usize % places) {
            let (known_from, known_to) = *known;
            if bytes.get(known_from as usize..known_to as usize) == Some(text) {
                return *known;
            }
            *known = span;
            self.new += 1;
        }
        bytes.extend_from_slice(text);
        span
    }

    fn clear(&mut self) {
        self.spans.fill((0, 0));
        self.new = 0;
    }
}

/// Sixteen bytes at a time. A trace that makes texts collide gets a larger file, nothing else.
#[inline]
fn hash(text: &[u8]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(MIX).rotate_left(29);
    let (pairs, rest) = text.as_chunks::<16>();
    let (mut even, mut odd) = (text.len() as u64, MIX);
    for pair in pairs {
        let pair = u128::from_le_bytes(*pair);
        (even, odd) = (add(even, pair as u64), add(odd, (pair >> 64) as u64));
    }
    // The last two words overlap, or are a part of what came before.
    let (words, few) = rest.as_chunks::<8>();
    if let Some(word) = words.first() {
        even = add(even, u64::from_le_bytes(*word));
    }
    let last = match text.last_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => few.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    add(add(even, odd), last)
}

/// A column grows by this many rows at once, or is twice as long if it has fewer.
const GROW: usize = 1 << 10;
const LEAST: usize = 1 << 4;

/// Makes room for the value of a row.
#[cold]
#[inline(never)]
fn grow<T: Clone>(values: &mut Vec<T>, row: usize, none: T) {
    let step = (row + 1).next_power_of_two().clamp(LEAST, GROW);
    values.resize((row / step + 1) * step, none);
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
                known.clear();
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
            grow(values, row, 0);
            grow(levels, row, 0);
        }
        if let (Some(value), Some(level)) = (values.get_mut(row), levels.get_mut(row)) {
            (*value, *level) = (number, 1);
        }
        true
    }

    /// The bytes that the text takes.
    #[inline(always)]
    fn set_text(&mut self, row: usize, text: &[u8]) -> Option<usize> {
        let Cells::Texts { bytes, places, levels, known } = self else { return None };
        if places.len() <= row {
            grow(places, row, (0, 0));
            grow(levels, row, 0);
        }
        let before = bytes.len();
        let span = known.place(bytes, text);
        if let (Some(place), Some(level)) = (places.get_mut(row), levels.get_mut(row)) {
            (*place, *level) = (span, 1);
        }
        Some(bytes.len() - before)
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

    /// Whether it has that many whole rows, and more of them than of open calls, which have to be moved.
    #[inline]
    pub fn is_full(&self, rows: usize) -> bool {
        self.whole_rows() >= rows.max(self.open)
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
    pub fn text(&mut self, row: usize, column: usize, text: &[u8]) -> bool {
        let written = self.columns.get_mut(column).and_then(|cells| cells.set_text(row, text));
        self.bytes += written.unwrap_or(0);
        written.is_some()
    }

    /// Returns false if the column has no flags.
    #[inline(always)]
    pub fn flag(&mut self, row: usize, column: usize, is: bool) -> bool {
        let Some(Cells::Flags(flags)) = self.columns.get_mut(column) else { return false };
        if flags.len() <= row {
            grow(flags, row, false);
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
        let open = self.calls.iter().enumerate().filter(|(_, call)| **call != WHOLE);
        let open: Vec<usize> = open.map(|(row, _)| row).collect();
        for row in &open {
            let (row, Some(call)) = (*row, self.calls.get(*row)) else { continue };
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
                            kept.text(to, column, text);
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
                Cells::Numbers { values, levels } => (remove(values, &open), remove(levels, &open)),
                Cells::Texts { places, levels, .. } => (remove(places, &open), remove(levels, &open)),
                Cells::Flags(flags) => (remove(flags, &open), ()),
            };
        }
        remove(&mut self.calls, &open);
        self.open = 0;
    }
}

/// Removes the values of these rows, which are in order. A column without a value has none.
fn remove<T: Copy>(values: &mut Vec<T>, rows: &[usize]) {
    if values.is_empty() {
        return;
    }
    let ends = rows.iter().skip(1).copied().chain([values.len()]);
    let mut to = rows.first().copied().unwrap_or(values.len());
    for (row, end) in rows.iter().zip(ends) {
        values.copy_within(row + 1..end, to);
        to += end - row - 1;
    }
    values.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the rows that stay, and of those that move.
    fn moved(open: &[usize]) -> (Vec<Option<i64>>, Vec<Option<i64>>) {
        let (mut batch, mut kept) = (Batch::new(Table::Calls), Batch::new(Table::Calls));
        for row in 0..5 {
            let at = if open.contains(&row) { batch.open(row as u32) } else { batch.row() };
            batch.number(at, 0, row as i64);
            batch.text(at, 4, format!("call {row}").as_bytes());
        }
        batch.move_open(&mut kept, |call, row| assert_eq!(open[row], call as usize));
        for (batch, rows) in [(&batch, batch.rows()), (&kept, kept.rows())] {
            for row in 0..rows {
                let text = batch.columns[0].number(row).map(|number| format!("call {number}"));
                assert_eq!(batch.columns[4].text(row), text.as_deref().map(str::as_bytes));
            }
        }
        let numbers = |batch: &Batch| (0..batch.rows()).map(|row| batch.columns[0].number(row)).collect();
        (numbers(&batch), numbers(&kept))
    }

    #[test]
    fn rows_of_open_calls_move_and_the_others_close_up() {
        for open in [&[][..], &[0], &[4], &[1, 2], &[0, 2, 4], &[0, 1, 2, 3, 4]] {
            let some = |is_open: bool| {
                (0..5).filter(move |row| open.contains(row) == is_open).map(|row| Some(row as i64)).collect()
            };
            assert_eq!(moved(open), (some(false), some(true)), "{open:?}");
        }
    }

    #[test]
    fn a_text_that_comes_again_is_not_stored_again() {
        let text = b"abcdefghijklmnopqrstuvwxyz0123456789";
        for length in 1..text.len() {
            let mut batch = Batch::new(Table::Calls);
            let first = batch.row();
            batch.text(first, 4, &text[..length]);
            let again = batch.row();
            batch.text(again, 4, &text[..length]);
            assert_eq!(batch.bytes, length);
            assert_eq!(batch.columns[4].text(again), Some(&text[..length]));
        }
    }
}
