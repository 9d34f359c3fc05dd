//! DWARF expressions in unwind rules: those of PLT entries, signal frames and functions that align their stack. In: the
//! expression, registers and stack bytes. Out: an address. A limit of steps ends loops.

use gimli::{
    Encoding, EndianSlice, Evaluation, EvaluationResult, Expression, Format, LittleEndian, Location, Value,
};

use super::Cut;
use super::registers::{Copied, Known};

pub type Bytes<'b> = EndianSlice<'b, LittleEndian>;

pub const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };

const MOST_STEPS: u32 = 1000;

/// `first` is on the stack when it begins: the frame's address, for the rule of a register.
pub fn evaluate(bytes: &[u8], first: Option<u64>, known: &Known, copied: &Copied) -> Result<u64, Cut> {
    let expression = Expression(Bytes::new(bytes, LittleEndian));
    let mut work: Evaluation<Bytes> = expression.evaluation(ENCODING);
    work.set_max_iterations(MOST_STEPS);
    if let Some(first) = first {
        work.set_initial_value(first);
    }
    let mut result = work.evaluate().map_err(|_| Cut::Damaged)?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = known.get(usize::from(register.0)).copied().flatten().ok_or(Cut::NoTable)?;
                work.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                work.resume_with_memory(Value::Generic(copied.read(address)?))
            }
            _ => return Err(Cut::NoTable),
        }
        .map_err(|_| Cut::Damaged)?;
    }
    match work.result().as_slice() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            _ => Err(Cut::NoTable),
        },
        _ => Err(Cut::Damaged),
    }
}
