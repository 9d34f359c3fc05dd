//! Call sites that appeared or are gone. In: the sums by call site of two recordings. Out: rows, the heaviest first. A
//! site that only moved to another line, as all below an edit do, is neither.

use serde_json::{Value, json};

use crate::measure::Measurements;
use crate::page::Page;
use crate::stacks::{CallRole, Place, Sum};
use crate::table::{Cell, Table, long, number, text};

#[derive(Default)]
pub struct SiteChanges {
    pub appeared: Vec<Row>,
    pub gone: Vec<Row>,
}

pub struct Row {
    pub role: CallRole,
    pub place: Place,
    pub sum: Sum,
}

/// None unless both recordings have the stacks of all calls.
pub fn changes([before, after]: &[Measurements; 2]) -> Option<SiteChanges> {
    let (before, after) = (before.sites.as_ref()?, after.sites.as_ref()?);
    let rows = |all: &std::collections::BTreeMap<(CallRole, Place), Sum>,
                others: &std::collections::BTreeMap<(CallRole, Place), Sum>| {
        let mut rows: Vec<Row> = all
            .iter()
            .filter(|(key, _)| !others.contains_key(key))
            .map(|((role, place), sum)| Row { role: *role, place: place.clone(), sum: *sum })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.sum.weight(row.role.weight()), row.sum.calls)));
        rows
    };
    let (mut appeared, mut gone) = (rows(after, before), rows(before, after));
    appeared.retain(|new| {
        let is_it = |old: &Row| {
            let place =
                |row: &Row| (row.role, row.place.file.clone(), row.place.function.clone(), row.sum.calls);
            place(old) == place(new)
        };
        let moved = gone.iter().position(is_it);
        moved.map(|at| gone.remove(at)).is_none()
    });
    Some(SiteChanges { appeared, gone })
}

impl SiteChanges {
    pub fn print(&self, page: &mut Page, top: usize) {
        for (title, rows) in
            [("\nCall sites that appeared:", &self.appeared), ("\nCall sites that are gone:", &self.gone)]
        {
            if rows.is_empty() {
                continue;
            }
            page.line(title);
            let bytes =
                |row: &Row| if row.sum.bytes > 0 { Cell::Bytes(row.sum.bytes) } else { Cell::Missing };
            page.table(&Table::of(
                "sites",
                rows.iter().take(top),
                &[
                    (number("Calls", "calls"), &|row: &Row| Cell::Count(row.sum.calls)),
                    (number("Host time (ms)", "time_ns"), &|row| Cell::Millis(row.sum.ns)),
                    (number("Bytes", "bytes"), &bytes),
                    (text("Role", "role"), &|row| row.role.name().into()),
                    (long("Call site", "call_site"), &|row| Cell::Text(row.place.text.clone())),
                ],
            ));
            page.more(rows.len(), top, "call sites");
        }
    }

    pub fn json(&self) -> Value {
        let rows = |rows: &[Row]| -> Vec<Value> {
            let row = |row: &Row| {
                json!({
                    "role": row.role.name(),
                    "call_site": row.place.text,
                    "file": row.place.file,
                    "function": row.place.function,
                    "line": row.place.line,
                    "calls": row.sum.calls,
                    "time_ns": row.sum.ns,
                    "bytes": row.sum.bytes,
                })
            };
            rows.iter().map(row).collect()
        };
        json!({ "appeared": rows(&self.appeared), "gone": rows(&self.gone) })
    }
}
