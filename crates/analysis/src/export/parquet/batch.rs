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
    /// Bytes of all texts.
    pub bytes: usize,
}

/// The values of a column. Columns are shorter than the batch if their last values are null.
pub enum Cells {
    Numbers { values: Vec<i64>, levels: Vec<i16> },
    Texts { bytes: Vec<u8>, places: Vec<(u32, u32)>, levels: Vec<i16> },
    Flags(Vec<bool>),
}

impl Cells {
    fn new(kind: Kind) -> Cells {
        match kind {
            Kind::Rising | Kind::Number => Cells::Numbers { values: Vec::new(), levels: Vec::new() },
            Kind::Name | Kind::Text => {
                Cells::Texts { bytes: Vec::new(), places: Vec::new(), levels: Vec::new() }
            }
            Kind::Flag => Cells::Flags(Vec::new()),
        }
    }

    /// Makes the column as long as the batch.
    pub fn fill(&mut self, rows: usize) {
        match self {
            Cells::Numbers { values, levels } => {
                values.resize(rows, 0);
                levels.resize(rows, 0);
            }
            Cells::Texts { places, levels, .. } => {
                places.resize(rows, (0, 0));
                levels.resize(rows, 0);
            }
            Cells::Flags(flags) => flags.resize(rows, false),
        }
    }

    pub fn text(&self, row: usize) -> Option<&[u8]> {
        let Cells::Texts { bytes, places, levels } = self else { return None };
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
        let Cells::Texts { bytes, places, levels } = self else { return None };
        if places.len() <= row {
            places.resize(row + 1, (0, 0));
            levels.resize(row + 1, 0);
        }
        let from = bytes.len();
        write(bytes);
        if let (Some(place), Some(level)) = (places.get_mut(row), levels.get_mut(row)) {
            // chunk.rs takes the texts long before they have 4 GiB.
            (*place, *level) = ((from as u32, bytes.len() as u32), 1);
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

    /// Splits off the rows of open calls, in their order. `moved` gets each call and its new row. Every column of what
    /// stays has the same length.
    pub fn split_open(&mut self, table: Table, mut moved: impl FnMut(u32, usize)) -> Batch {
        let mut kept = Batch::new(table);
        let rows = self.rows();
        self.columns.iter_mut().for_each(|cells| cells.fill(rows));
        if self.open == 0 {
            return kept;
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
        kept
    }
}

/// Keeps the values of rows that are not open.
fn retain<T>(values: &mut Vec<T>, is_open: &[bool]) {
    let mut rows = is_open.iter();
    values.retain(|_| !rows.next().copied().unwrap_or(false));
}
