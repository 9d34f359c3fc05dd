//! Names addresses of a file, and unwinds a stack by the file's own rules.
//! In: a choice, and a file, whose bytes are also the stack.
//! Out: panics unless an answer comes whatever the file says: at least one function for each address, none with a name
//! or a depth beyond the limits, and calls whose frames lie one above the other.

use std::collections::HashSet;
use std::fs::File;

use super::{choice, with_file};
use gpurec::stacks::native::{Cut, Frame, Lookup, MOST_CALLS, MOST_INLINED, Module, Registers, Stack, walk};

const LONGEST: usize = 4100;
const BASE: u64 = 0x7ffc_0000_0000;
/// How many addresses of a file are looked up.
const MOST_ADDRESSES: usize = 48;

pub fn native(data: &[u8]) {
    let (how, bytes) = choice(data);
    with_file(bytes, |scratch| {
        let mut module = Module::read(&scratch.file);
        let step = 8 + usize::from(how % 16);
        let addresses = (0..bytes.len() as u64).step_by(step).filter_map(|offset| module.address(offset));
        let addresses: Vec<u64> = addresses.take(MOST_ADDRESSES).collect();
        for address in &addresses {
            named(&module.frames(&scratch.file, *address));
        }
        unwound(how, bytes, &addresses, &mut module, &scratch.file);
    });
}

fn named(frames: &[Frame]) {
    let (called, inlined) = frames.split_last().expect("no function");
    assert!(inlined.len() < MOST_INLINED && !called.inlined && inlined.iter().all(|frame| frame.inlined));
    for frame in frames {
        for text in [&frame.function, &frame.file] {
            assert!(text.as_ref().is_none_or(|text| text.len() < LONGEST), "{frame:?}");
        }
        let id = frame.build_id.as_deref().unwrap_or_default();
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}

/// Each address of the stack is one of the file's.
fn unwound(how: u8, bytes: &[u8], addresses: &[u64], module: &mut Module, file: &File) {
    let at = |place: usize| {
        bytes.get(place..).and_then(|rest| rest.first_chunk()).map_or(1, |b| u64::from_le_bytes(*b))
    };
    let sp = BASE + u64::from(how) * 8;
    let registers = Registers {
        ip: at(0),
        sp,
        bp: sp + at(64) % 4096,
        others: Some([at(8), at(16), sp, sp + 64, at(24)]),
    };
    let stack =
        Stack { registers, base: BASE, bytes: bytes.to_vec(), replaced: vec![(sp, at(32)), (at(40), 1)] };
    let mut signals = HashSet::new();
    let (steps, cut) = walk(&stack, &mut |address| {
        let Some(own) = addresses.get(address as usize % addresses.len().max(1)) else {
            return Lookup::NotCode;
        };
        match module.row(file, *own) {
            Some(row) => {
                if row.signal {
                    signals.insert(address);
                }
                Lookup::Row(row)
            }
            None => Lookup::Ends(Cut::NoTable),
        }
    });
    assert!(steps.len() <= MOST_CALLS && (cut.is_some() || !steps.is_empty()));
    let before = |step: u64, exact: bool| if exact { step } else { step.wrapping_sub(1) };
    for two in steps.windows(2) {
        let is_above = two[1].sp > two[0].sp;
        assert!(is_above || signals.contains(&before(two[0].address, two[0].exact)), "{two:?}");
    }
}
