//! A table's rows in JSON, one at a time: a document of many rows is never in memory as a whole.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Cell, Table};

/// A row by the keys of its columns.
pub struct RowObject<'a> {
    keys: Rc<BTreeMap<&'static str, usize>>,
    row: &'a [Cell],
}

impl Serialize for RowObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let cells = self.keys.iter().filter_map(|(key, at)| Some((key, self.row.get(*at)?.json())));
        to.collect_map(cells)
    }
}

impl Table {
    /// Each row as an object, with its keys in order.
    pub fn objects(&self) -> impl Iterator<Item = RowObject<'_>> {
        let keys: BTreeMap<&'static str, usize> =
            self.columns.iter().enumerate().map(|(at, column)| (column.key, at)).collect();
        let keys = Rc::new(keys);
        self.rows.iter().map(move |row| RowObject { keys: keys.clone(), row })
    }

    pub fn json(&self) -> Vec<Value> {
        self.objects().map(|object| json!(object)).collect()
    }
}
