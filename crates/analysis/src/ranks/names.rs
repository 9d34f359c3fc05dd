//! Names by number, the same in all traces of a job: the threads that read them share the table. In: texts. Out: numbers
//! and the texts again. Not here: what a name is of.

use std::sync::{Arc, Mutex, PoisonError};

use gpurec_trace::bounds::{BytesLeft, LONGEST_NAME, short};
use gpurec_trace::hash::Map;

/// Limits on distinct names of a job, and on their bytes. Those beyond share the number `OTHERS`.
const MOST: usize = 1 << 18;
const BYTES: usize = 24 << 20;
/// What a name takes in addition to its text.
const EACH: usize = 32;
pub const OTHERS: u32 = 0;

#[derive(Clone)]
pub struct Names(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    numbers: Map<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    left: BytesLeft<BYTES>,
}

impl Default for Names {
    fn default() -> Self {
        let names = Names(Arc::default());
        names.number(crate::figures::OTHERS);
        names
    }
}

impl Names {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn number(&self, text: &str) -> u32 {
        self.kept(text).map_or(OTHERS, |(number, _)| number)
    }

    /// The number of a name, and its text, which all owners share.
    fn kept(&self, text: &str) -> Option<(u32, Arc<str>)> {
        let mut table = self.table();
        if let Some((text, number)) = table.numbers.get_key_value(text) {
            return Some((*number, text.clone()));
        }
        let text = short(text, LONGEST_NAME);
        if table.texts.len() >= MOST || !table.left.take(text.len() + EACH) {
            return None;
        }
        let number = table.texts.len() as u32;
        let kept: Arc<str> = text.into();
        table.texts.push(kept.clone());
        table.numbers.insert(kept.clone(), number);
        Some((number, kept))
    }

    pub fn text(&self, number: u32) -> String {
        self.shared(number).to_string()
    }

    pub fn shared(&self, number: u32) -> Arc<str> {
        self.table().texts.get(number as usize).cloned().unwrap_or_else(|| "".into())
    }
}

/// The names that one trace has used: it asks the shared table once for each.
pub struct OwnNames {
    shared: Names,
    known: Map<Arc<str>, u32>,
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
        let Some((number, text)) = self.shared.kept(text) else { return OTHERS };
        self.known.insert(text, number);
        number
    }
}
