//! The content of a line beyond its time, name and place, as a JSON object with the keys of the trace. Chrome's format
//! has it as `args`; Perfetto's annotations are made from it. In: a line. Out: text. It keeps no state between lines.

use super::object::Object;
use gpurec_trace::{Body, Datum, Key, Line, Sink};

/// Returns true if the object is empty.
pub fn write(out: &mut Vec<u8>, line: &Line) -> bool {
    let mut object = Object::new(out);
    if !matches!(line.body, Body::End(_) | Body::KernelEnd(_)) {
        object.put("event_id", Datum::Number(line.event_id));
    }
    line.body.details(&mut Details(&mut object));
    object.end()
}

struct Details<'a, 'b>(&'a mut Object<'b>);

impl Sink for Details<'_, '_> {
    fn put(&mut self, key: Key, value: Datum) {
        let is_empty = matches!(value, Datum::Args(args) if args.is_empty());
        if key.is_detail && !is_empty {
            self.0.put(key.name, value);
        }
    }
}
