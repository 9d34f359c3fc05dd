//! The `stackFrames` of Chrome's format: a tree in which each frame names the one around it. In: stacks. Out: the
//! number of a stack's innermost frame, and at the end all frames.

use super::object::Object;
use crate::stacks::{Site, Stacks};
use gpurec_trace::hash::Map;
use gpurec_trace::{Datum, Frame, last_part};

#[derive(Default)]
pub struct StackFrames {
    /// By the number of the frame around it (0: none) and the frame.
    numbers: Map<(u64, Site), u64>,
    innermost: Map<u64, u64>,
    next: u64,
    out: Vec<u8>,
}

impl StackFrames {
    /// The stacks of another trace have the same numbers.
    pub fn next_source(&mut self) {
        self.numbers.clear();
        self.innermost.clear();
    }

    /// None for a stack that was not kept.
    pub fn innermost(&mut self, stack: u64, stacks: &Stacks) -> Option<u64> {
        if let Some(known) = self.innermost.get(&stack) {
            return Some(*known);
        }
        let mut around = 0;
        for site in stacks.frames.stack(stack)?.frames.iter().rev() {
            around = self.number(around, *site, stacks);
        }
        if around == 0 {
            return None;
        }
        self.innermost.insert(stack, around);
        Some(around)
    }

    fn number(&mut self, around: u64, site: Site, stacks: &Stacks) -> u64 {
        if let Some(known) = self.numbers.get(&(around, site)) {
            return *known;
        }
        self.next += 1;
        self.numbers.insert((around, site), self.next);
        self.out.extend_from_slice(if self.out.is_empty() { b"\n\"" } else { b",\n\"" });
        self.out.extend_from_slice(self.next.to_string().as_bytes());
        self.out.extend_from_slice(b"\":");
        let mut object = Object::new(&mut self.out);
        let module = match stacks.frame(site) {
            Some(Frame::Native { module, .. }) => last_part(module),
            _ => "python",
        };
        object.put("category", Datum::Text(module));
        object.put("name", Datum::Text(&stacks.text(site)));
        if around > 0 {
            object.put("parent", Datum::Text(&around.to_string()));
        }
        object.end();
        self.next
    }

    /// Nothing for traces without stacks.
    pub fn write(&self, out: &mut Vec<u8>) {
        if !self.out.is_empty() {
            out.extend_from_slice(b",\"stackFrames\":{");
            out.extend_from_slice(&self.out);
            out.extend_from_slice(b"}");
        }
    }
}
