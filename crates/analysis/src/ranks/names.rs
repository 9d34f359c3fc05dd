//! Names by number, the same in all traces of a job: the threads that read them share the table. In: texts. Out: numbers
//! and the texts again. Not here: what a name is of.

use std::sync::{Arc, Mutex, PoisonError};

use gpurec_trace::bounds::{LONGEST_NAME, short};
use gpurec_trace::hash::Map;

/// Limit on distinct names of a job. Those beyond it share the number `OTHERS`.
const MOST: usize = 1 << 19;
pub const OTHERS: u32 = 0;

#[derive(Clone)]
pub struct Names(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    numbers: Map<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Default for Names {
    fn default() -> Self {
        let names = Names(Arc::default());
        names.number("(others)");
        names
    }
}

impl Names {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn number(&self, text: &str) -> u32 {
        let mut table = self.table();
        if let Some(number) = table.numbers.get(text) {
            return *number;
        }
        if table.texts.len() >= MOST {
            return OTHERS;
        }
        let number = table.texts.len() as u32;
        let kept: Arc<str> = short(text, LONGEST_NAME).into();
        table.texts.push(kept.clone());
        table.numbers.insert(kept, number);
        number
    }

    pub fn text(&self, number: u32) -> String {
        self.table().texts.get(number as usize).map(|text| text.to_string()).unwrap_or_default()
    }
}

/// The names that one trace has used: it asks the shared table once for each.
pub struct OwnNames {
    shared: Names,
    known: Map<Box<str>, u32>,
}

impl OwnNames {
    pub fn new(shared: Names) -> OwnNames {
        OwnNames { shared, known: Map::default() }
    }

    #[inline]
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = self.shared.number(text);
        if number != OTHERS {
            self.known.insert(text.into(), number);
        }
        number
    }
}
