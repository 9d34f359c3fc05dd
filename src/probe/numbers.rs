//! What BPF calls the hooked functions: a number each, from 1. In: a function's name, and what is known of it. Out: its
//! number; the same for the same function of another file, so that a process that loads a library again and again, as a
//! new file each time, does not use the numbers up. Numbers are never given back.

use std::cell::Cell;
use std::collections::HashMap;

use super::{calibrate, wire};
use crate::cuda::Signature;

pub struct Numbers {
    /// Also what the kernel's own hooks count on.
    pub next: Cell<u32>,
    known: HashMap<(String, Option<*const Signature>), u32>,
}

impl Numbers {
    pub fn new() -> Numbers {
        Numbers { next: Cell::new(calibrate::COOKIE as u32 + 1), known: HashMap::new() }
    }

    /// None if there are no more.
    pub fn of(&mut self, name: &str, signature: Option<&'static Signature>) -> Option<u32> {
        // A function of the same name that is called otherwise has other arguments to be read.
        let key = (name.to_owned(), signature.map(std::ptr::from_ref));
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let number = self.next.get();
        if number >= wire::MAX_PROBES {
            return None;
        }
        self.next.set(number + 1);
        self.known.insert(key, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_number_in_all_files() {
        let mut numbers = Numbers::new();
        let (old, new) = (crate::cuda::signature("cuMemAlloc_v2", Some(1)), None);
        assert!(old.is_some());
        let first = numbers.of("cuMemAlloc_v2", old);
        assert_eq!(numbers.of("cuMemAlloc_v2", old), first);
        let others = [numbers.of("cuMemAlloc_v2", new), numbers.of("cuMemFree_v2", None)];
        assert_eq!(others, [first.map(|n| n + 1), first.map(|n| n + 2)]);
        assert_eq!(numbers.of("cuMemAlloc_v2", old), first);
    }

    #[test]
    fn what_is_known_has_its_number_when_there_are_no_more() {
        let mut numbers = Numbers::new();
        let first = numbers.of("x", None);
        numbers.next.set(wire::MAX_PROBES);
        assert_eq!(numbers.of("y", None), None);
        assert_eq!(numbers.of("x", None), first);
    }
}
