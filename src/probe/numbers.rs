//! The numbers by which BPF identifies hooked functions, from 1. In: a function's name, and its signature if known.
//! Out: its number. The same function in another file has the same number, so that a process that loads a library again
//! and again, as a new file each time, does not use the numbers up. Numbers are never freed.

use std::cell::Cell;
use std::collections::HashMap;

use super::calibrate;
use crate::wire;
use gpurec_cuda::Signature;
use gpurec_elf::UnhookedFunction;
use gpurec_trace::HookError;
use gpurec_trace::bounds::{BytesLeft, short};

/// Bytes of all names together: an average of 256 for each possible number.
const NAMES: usize = 4 << 20;

/// Bytes of the name of a function that is not hooked.
const SHOWN: usize = 256;

pub struct Numbers {
    /// The Linux-side hooks take their numbers from this counter too.
    pub next: Cell<u32>,
    names: BytesLeft<NAMES>,
    known: HashMap<(String, Option<*const Signature>), u32>,
}

impl Numbers {
    pub fn new() -> Numbers {
        Numbers {
            next: Cell::new(calibrate::COOKIE as u32 + 1),
            names: BytesLeft::default(),
            known: HashMap::new(),
        }
    }

    /// None if no number is left.
    pub fn of(&mut self, name: &str, signature: Option<&'static Signature>) -> Option<u32> {
        // A function of the same name with another signature has other arguments to read.
        let key = (name.to_owned(), signature.map(std::ptr::from_ref));
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let number = self.next.get();
        if number >= wire::MAX_PROBES || !self.names.take(name.len()) {
            return None;
        }
        self.next.set(number + 1);
        self.known.insert(key, number);
        Some(number)
    }
}

/// There is no number for a further function.
pub fn too_many() -> HookError {
    HookError::Beyond { most: wire::MAX_PROBES - 1, mib: NAMES >> 20 }
}

/// The report of a function that got no number.
pub fn refusal(name: &str) -> UnhookedFunction {
    UnhookedFunction::new(&short(name, SHOWN), too_many(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_elf as elf;

    #[test]
    fn a_function_has_one_number_in_all_files() {
        let mut numbers = Numbers::new();
        let (old, new) = (gpurec_cuda::signature("cuMemAlloc_v2", Some(1)), None);
        assert!(old.is_some());
        let first = numbers.of("cuMemAlloc_v2", old);
        assert_eq!(numbers.of("cuMemAlloc_v2", old), first);
        let others = [numbers.of("cuMemAlloc_v2", new), numbers.of("cuMemFree_v2", None)];
        assert_eq!(others, [first.map(|n| n + 1), first.map(|n| n + 2)]);
        assert_eq!(numbers.of("cuMemAlloc_v2", old), first);
    }

    #[test]
    fn names_are_bounded_in_all_files_together() {
        let mut numbers = Numbers::new();
        let long = |i: usize| format!("{i:04000}");
        let given = (0..5000).filter(|i| numbers.of(&long(*i), None).is_some()).count();
        assert_eq!(given, NAMES / 4000);
        assert!(numbers.of(&long(0), None).is_some(), "it is known");
        let one = refusal(&long(given));
        assert!(one.reason.text.contains("gpurec hooks 16383 functions at most") && one.name.len() < 300);
        let mut all = vec![one; 100_000];
        elf::few(&mut all);
        let rest = all.last().unwrap();
        let listed = all.len() - 1;
        assert!((50..=256).contains(&listed), "{listed}");
        assert_eq!(rest.name, format!("({} more functions)", 100_000 - listed));
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
