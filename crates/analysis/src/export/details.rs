//! The content of a line beyond its time, name and place, with the keys of the trace. Chrome's format has it as `args`,
//! Perfetto's as annotations. In: a line. Out: keys and values, or a JSON object. It keeps no state between lines.

use super::object::Object;
use gpurec_trace::{Body, Datum, Key, Line, Sink};

/// Passes each key that has a value to `put`.
#[inline(always)]
pub fn each(line: &Line, mut put: impl FnMut(&'static str, Datum)) {
    if !matches!(line.body, Body::End(_) | Body::KernelEnd(_)) {
        put("event_id", Datum::Number(line.event_id));
    }
    line.body.details(&mut Details(put));
}

/// Returns true if the object is empty.
pub fn write(out: &mut Vec<u8>, line: &Line) -> bool {
    let mut object = Object::new(out);
    each(line, |key, value| object.put(key, value));
    object.end()
}

struct Details<F>(F);

impl<F: FnMut(&'static str, Datum)> Sink for Details<F> {
    #[inline(always)]
    fn put(&mut self, key: Key, value: Datum) {
        let is_empty = match value {
            Datum::Args(args) => args.is_empty(),
            Datum::Null => true,
            _ => false,
        };
        if key.is_detail && !is_empty {
            (self.0)(key.name, value);
        }
    }
}
