//! From call to call, outwards. In: registers, stack bytes, and the rule of each address. Out: the calls that the rules
//! lead to, and why they end. Pure: the caller finds the rules.

use std::sync::Arc;

use super::expression::evaluate;
use super::registers::{Copied, KEPT, Known, REGISTERS, RIP, RSP, known};
use super::rows::{Base, Row, Rule};
use super::{Cut, MOST_CALLS, Stack};

/// A call on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub address: u64,
    pub sp: u64,
    /// A signal interrupted the thread at this address; all others are the address behind a call.
    pub exact: bool,
}

/// What an address says about its caller.
pub enum Lookup {
    Row(Arc<Row>),
    /// It is code, but the caller cannot be found.
    Ends(Cut),
    /// It is no code.
    NotCode,
}

pub fn walk(stack: &Stack, rule: &mut dyn FnMut(u64) -> Lookup) -> (Vec<Step>, Option<Cut>) {
    let copied = Copied::new(stack);
    let mut known = known(&stack.registers);
    let mut exact = false;
    let mut steps = Vec::new();
    loop {
        let (Some(address), Some(sp)) = (known[RIP], known[RSP]) else { return (steps, Some(Cut::Damaged)) };
        // The call may be the last instruction of its function.
        let row = match rule(if exact { address } else { address.wrapping_sub(1) }) {
            Lookup::NotCode => return (steps, Some(Cut::NotCode)),
            found if steps.len() < MOST_CALLS => {
                steps.push(Step { address, sp, exact });
                match found {
                    Lookup::Row(row) => row,
                    Lookup::Ends(cut) => return (steps, Some(cut)),
                    Lookup::NotCode => unreachable!("an arm above returns"),
                }
            }
            _ => return (steps, Some(Cut::Deep)),
        };
        match caller(&row, &known, &copied) {
            Ok(Some(next)) => known = next,
            Ok(None) => return (steps, None),
            Err(cut) => return (steps, Some(cut)),
        }
        exact = row.signal;
    }
}

/// The registers of the caller. None: there is no caller.
fn caller(row: &Row, known: &Known, copied: &Copied) -> Result<Option<Known>, Cut> {
    let sp = known[RSP].ok_or(Cut::Damaged)?;
    let cfa = match &row.cfa {
        Base::Register(number, offset) => {
            let from = known.get(usize::from(*number)).copied().flatten().ok_or(Cut::NoTable)?;
            from.wrapping_add_signed(*offset)
        }
        Base::Expression(bytes) => evaluate(bytes, None, known, copied)?,
    };
    // A signal may have switched to another stack, which the copy does not hold.
    if !row.signal && (cfa <= sp || cfa % 8 != 0) {
        return Err(Cut::Damaged);
    }
    // The outermost function says that it has no return address.
    if row.rule(RIP).is_none() {
        return Ok(None);
    }
    let mut next = [None; REGISTERS];
    for number in KEPT {
        next[number] = known[number];
    }
    next[RSP] = Some(cfa);
    for (number, rule) in &row.rules {
        let number = usize::from(*number);
        let value = match rule {
            Rule::Undefined => None,
            Rule::Same => known.get(number).copied().flatten(),
            Rule::At(offset) => saved(copied, cfa.wrapping_add_signed(*offset), number)?,
            Rule::Is(offset) => Some(cfa.wrapping_add_signed(*offset)),
            Rule::Register(other) => known.get(usize::from(*other)).copied().flatten(),
            Rule::AtExpression(bytes) => saved(copied, evaluate(bytes, Some(cfa), known, copied)?, number)?,
            Rule::IsExpression(bytes) => Some(evaluate(bytes, Some(cfa), known, copied)?),
        };
        if let Some(slot) = next.get_mut(number) {
            *slot = value;
        }
    }
    match next[RIP] {
        // The first function of a thread may have this instead of a rule.
        Some(0) => Ok(None),
        Some(_) => Ok(Some(next)),
        None => Err(Cut::Damaged),
    }
}

/// A register that is not in the copy is not known, but without a return address nothing is.
fn saved(copied: &Copied, place: u64, number: usize) -> Result<Option<u64>, Cut> {
    match copied.read(place) {
        Ok(value) => Ok(Some(value)),
        Err(cut) if number == RIP => Err(cut),
        Err(_) => Ok(None),
    }
}
