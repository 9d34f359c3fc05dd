//! A table filled column by column. In: the rows of a view and, for each column, its head, key, unit and value. Out: a
//! `Table`. Not here: what the rows are, and their order.

use crate::table::{Cell, Column, Table};

pub struct Listing<R> {
    rows: Vec<R>,
    table: Table,
}

/// The value of a cell; None leaves the cell empty.
pub trait Number {
    fn number(self) -> Option<u64>;
}

impl Number for u64 {
    fn number(self) -> Option<u64> {
        Some(self)
    }
}

impl Number for u32 {
    fn number(self) -> Option<u64> {
        Some(self.into())
    }
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> Option<u64> {
        self.and_then(N::number)
    }
}

/// None for 0, so that a column of rare values is easy to scan.
pub fn positive(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

impl<R> Listing<R> {
    /// `what` is the plural noun for rows.
    pub fn new(key: &'static str, what: &'static str, rows: impl IntoIterator<Item = R>) -> Self {
        Listing::at_most(usize::MAX, key, what, rows)
    }

    /// With the first `most` rows: a row takes ten times as much memory as what it is made of.
    pub fn at_most(
        most: usize,
        key: &'static str,
        what: &'static str,
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        let mut rows = rows.into_iter();
        let first: Vec<R> = rows.by_ref().take(most).collect();
        let mut table = Table::new(key, what, &[]);
        table.rows.resize(first.len(), Vec::new());
        table.more(rows.count() as u64);
        Listing { rows: first, table }
    }

    pub fn cell<C: Into<Cell>>(mut self, column: Column, value: impl Fn(&R) -> C) -> Self {
        self.table.columns.push(column);
        for (row, cells) in self.rows.iter().zip(&mut self.table.rows) {
            cells.push(value(row).into());
        }
        self
    }

    pub fn count<N: Number>(self, column: Column, value: impl Fn(&R) -> N) -> Self {
        self.cell(column, |row| value(row).number().map(Cell::Count))
    }

    pub fn micros<N: Number>(self, column: Column, value: impl Fn(&R) -> N) -> Self {
        self.cell(column, |row| value(row).number().map(Cell::Micros))
    }

    pub fn millis<N: Number>(self, column: Column, value: impl Fn(&R) -> N) -> Self {
        self.cell(column, |row| value(row).number().map(Cell::Millis))
    }

    pub fn at<N: Number>(self, column: Column, value: impl Fn(&R) -> N) -> Self {
        self.cell(column, |row| value(row).number().map(Cell::At))
    }

    pub fn bytes<N: Number>(self, column: Column, value: impl Fn(&R) -> N) -> Self {
        self.cell(column, |row| value(row).number().map(Cell::Bytes))
    }

    /// A part and its whole.
    pub fn share(self, column: Column, value: impl Fn(&R) -> Option<(u64, u64)>) -> Self {
        self.cell(column, |row| value(row).map(|(part, whole)| Cell::Share(part.into(), whole.into())))
    }

    /// A part and its whole, as a bar of `width` characters.
    pub fn bar(self, column: Column, width: usize, value: impl Fn(&R) -> (u64, u64)) -> Self {
        self.cell(column, |row| {
            let (part, whole) = value(row);
            Cell::Bar(part.into(), whole.into(), width)
        })
    }

    /// Marks a distribution: every row is shown, whatever the limit.
    pub fn whole(mut self) -> Self {
        self.table = self.table.whole();
        self
    }

    /// Adds to the number of rows that are left out.
    pub fn more(mut self, count: u64) -> Self {
        self.table.more(count);
        self
    }
}

impl<R> From<Listing<R>> for Table {
    fn from(listing: Listing<R>) -> Table {
        listing.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::number;

    #[test]
    fn rows_beyond_the_limit_are_counted() {
        let listing = Listing::at_most(2, "rows", "rows", [5u64, 6, 7]).count(number("N", "n"), |n| *n);
        let page = Table::from(listing).page(9);
        assert_eq!((page["rows"].as_array().map(Vec::len), page["more"].as_u64()), (Some(2), Some(1)));
    }
}
