//! A table as the HTML page has it. In: a table. Out: its columns, and rows of values; a cell whose text differs from its
//! value is both, so that the page sorts by one, shows the other, and formats no figure itself.

use serde_json::{Value, json};

use super::{Cell, Kind, Table};

impl Table {
    /// With at most this number of rows; `more` counts the others.
    pub fn page(&self, most: usize) -> Value {
        let column = |column: &super::Column| {
            let is_text = matches!(column.kind, Kind::Text | Kind::Long);
            json!({ "head": column.head, "key": column.key, "text": is_text })
        };
        let row = |row: &Vec<Cell>| row.iter().map(Cell::page).collect::<Value>();
        let left_out = self.rows.len().saturating_sub(most) as u64;
        json!({
            "key": self.key,
            "what": self.what,
            "more": self.more.saturating_add(left_out),
            "columns": self.columns.iter().map(column).collect::<Value>(),
            "rows": self.rows.iter().take(most).map(row).collect::<Value>(),
        })
    }
}

impl Cell {
    fn page(&self) -> Value {
        let text = self.text();
        match self {
            Cell::Missing | Cell::Dims(None) => Value::Null,
            Cell::Text(_) | Cell::Kernel(_) | Cell::Dims(_) => text.into(),
            Cell::Count(count) => json!(count),
            other => json!([other.json(), text]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Column, number, text};
    use super::*;

    #[test]
    fn a_cell_has_its_value_and_its_text() {
        const COLUMNS: &[Column] = &[text("Name", "name"), number("Took (ms)", "ns"), number("N", "n")];
        let mut table = Table::new("rows", "rows", COLUMNS);
        table.row(vec![Cell::Text("a\u{202e}b".to_owned()), Cell::Millis(1_500_000), Cell::Missing]);
        table.row(vec!["b".into(), Cell::Missing, Cell::Count(3)]);
        let page = table.page(1);
        assert_eq!(page["columns"][1], json!({ "head": "Took (ms)", "key": "ns", "text": false }));
        assert_eq!(page["rows"][0][1][0], json!(1_500_000));
        assert_eq!(page["rows"][0][1][1], json!(Cell::Millis(1_500_000).text()));
        assert_eq!((&page["rows"][0][2], &page["more"]), (&Value::Null, &json!(1)));
        assert!(!page.to_string().contains('\u{202e}'));
        assert_eq!(table.page(9)["rows"][1], json!(["b", null, 3]));
    }
}
