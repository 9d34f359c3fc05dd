//! A thread's registers and stack bytes. In: what BPF copied. Out: the value of a register, or of a word of the stack, if
//! it is known. Not here: what they mean.

use super::{Cut, MOST_COPIED, Registers, Stack};
use gpurec_trace::bytes::u64_at;

/// Registers by their number in DWARF for x86-64.
pub const REGISTERS: usize = 17;
pub const RBX: usize = 3;
pub const RBP: usize = 6;
pub const RSP: usize = 7;
pub const RIP: usize = 16;
/// A function leaves these as they were, unless a rule says otherwise.
pub const KEPT: [usize; 6] = [RBX, RBP, 12, 13, 14, 15];

pub type Known = [Option<u64>; REGISTERS];

pub fn known(registers: &Registers) -> Known {
    let mut known = [None; REGISTERS];
    known[RIP] = Some(registers.ip);
    known[RSP] = Some(registers.sp);
    known[RBP] = Some(registers.bp);
    if let Some([rbx, r12, r13, r14, r15]) = registers.others {
        for (number, value) in [(RBX, rbx), (12, r12), (13, r13), (14, r14), (15, r15)] {
            known[number] = Some(value);
        }
    }
    known
}

/// The bytes of a stack, with the original return addresses.
pub struct Copied {
    base: u64,
    bytes: Vec<u8>,
}

impl Copied {
    pub fn new(stack: &Stack) -> Copied {
        let mut bytes = stack.bytes.get(..MOST_COPIED).unwrap_or(&stack.bytes).to_vec();
        for (place, original) in &stack.replaced {
            let at = place.checked_sub(stack.base).and_then(|at| usize::try_from(at).ok());
            if let Some(slot) = at.and_then(|at| bytes.get_mut(at..at.checked_add(8)?)) {
                slot.copy_from_slice(&original.to_le_bytes());
            }
        }
        Copied { base: stack.base, bytes }
    }

    pub fn read(&self, address: u64) -> Result<u64, Cut> {
        let at = address.checked_sub(self.base).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| u64_at(&self.bytes, at)).ok_or(Cut::Copied)
    }
}
