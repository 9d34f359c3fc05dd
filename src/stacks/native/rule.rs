//! The rows that BPF can follow. In: a row of an unwind table. Out: the same as a few numbers, or that BPF must stop
//! there; and what BPF finds when it follows them.

use serde::{Deserialize, Serialize};

use super::registers::{Copied, RIP, RSP};
use super::rows::{Base, Row, Rule};
use super::unwind::Lookup;
use super::{Cut, MOST_CALLS, Stack};

const RBP: usize = 6;
/// DW_OP_breg6, rbp plus a number, and DW_OP_deref, the word there.
const FROM_RBP: u8 = 0x76;
const DEREF: u8 = 0x06;

/// How to find the caller from a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortcut {
    /// By more than BPF follows.
    Stop,
    /// There is no caller.
    End,
    Frame {
        base: FrameBase,
        offset: i32,
        /// Where the caller's rbp is, from the frame's address, or for AtBp from rbp. None: it has not changed.
        bp: Option<i32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameBase {
    Sp,
    Bp,
    /// What the word at rbp plus the offset points to.
    AtBp,
}

impl Shortcut {
    pub(super) fn of(found: &Lookup) -> Shortcut {
        match found {
            Lookup::Row(row) => of_row(row).unwrap_or(Shortcut::Stop),
            Lookup::Ends(_) | Lookup::NotCode => Shortcut::Stop,
        }
    }
}

/// Unwinds a copied stack as BPF does once it has the rules. Out: the callers' return addresses, and whether outer ones
/// are missing. None: a rule is not known, or the copy makes no sense.
pub fn follow(stack: &Stack, rule: impl Fn(u64) -> Option<Shortcut>) -> Option<(Vec<u64>, bool)> {
    let copied = Copied::new(stack);
    let (mut ip, mut sp, mut bp) = (stack.registers.ip, stack.registers.sp, stack.registers.bp);
    let mut callers = Vec::new();
    while callers.len() < MOST_CALLS {
        let (base, offset, saved) = match rule(ip)? {
            Shortcut::Stop => return Some((callers, true)),
            Shortcut::End => return Some((callers, false)),
            Shortcut::Frame { base, offset, bp } => (base, i64::from(offset), bp),
        };
        let from = if base == FrameBase::Sp { sp } else { bp };
        let mut end = from.wrapping_add_signed(offset);
        if base == FrameBase::AtBp {
            end = copied.read(end).ok()?;
        }
        if end <= sp || end % 8 != 0 {
            return None;
        }
        match copied.read(end - 8) {
            Ok(0) => return Some((callers, false)),
            Ok(address) => ip = address,
            Err(Cut::Copied) => return Some((callers, true)),
            Err(_) => return None,
        }
        if let Some(saved) = saved {
            let from = if base == FrameBase::AtBp { bp } else { end };
            bp = copied.read(from.wrapping_add_signed(i64::from(saved))).ok()?;
        }
        sp = end;
        callers.push(ip);
    }
    Some((callers, true))
}

fn of_row(row: &Row) -> Option<Shortcut> {
    if row.signal {
        return None;
    }
    match row.rule(RIP) {
        None => return Some(Shortcut::End),
        Some(Rule::At(-8)) => {}
        Some(_) => return None,
    }
    let bp = row.rules.iter().find(|(number, _)| usize::from(*number) == RBP).map(|(_, rule)| rule);
    let (base, offset, bp) = match (&row.cfa, bp) {
        (Base::Register(number, offset), bp) => {
            let base = match usize::from(*number) {
                RSP => FrameBase::Sp,
                RBP => FrameBase::Bp,
                _ => return None,
            };
            let bp = match bp {
                None | Some(Rule::Same) => None,
                Some(Rule::At(offset)) => Some(*offset),
                Some(_) => return None,
            };
            (base, *offset, bp)
        }
        // A function that aligns its stack keeps there where its frame ends.
        (Base::Expression(bytes), Some(Rule::AtExpression(bp))) => {
            (FrameBase::AtBp, at_bp(bytes, &[DEREF])?, Some(at_bp(bp, &[])?))
        }
        _ => return None,
    };
    let bp = bp.map(i32::try_from).transpose().ok()?;
    Some(Shortcut::Frame { base, offset: i32::try_from(offset).ok()?, bp })
}

/// The number of an expression that begins at rbp.
fn at_bp(bytes: &[u8], then: &[u8]) -> Option<i64> {
    match *bytes {
        // A signed number of one byte: bit 6 is its sign.
        [FROM_RBP, one, ref rest @ ..] if one < 0x80 && rest == then => {
            Some(i64::from((one << 1) as i8 >> 1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cfa: Base, rules: Vec<(u8, Rule)>) -> Row {
        Row { cfa, rules, signal: false }
    }

    #[test]
    fn what_bpf_can_follow() {
        let ra = (RIP as u8, Rule::At(-8));
        let sp = row(Base::Register(7, 48), vec![ra.clone(), (6, Rule::At(-16))]);
        let frame = |base, offset, bp| Some(Shortcut::Frame { base, offset, bp });
        assert_eq!(of_row(&sp), frame(FrameBase::Sp, 48, Some(-16)));
        assert_eq!(of_row(&Row::of_frame_pointer()), frame(FrameBase::Bp, 16, Some(-16)));
        let aligned = |rules: &[(u8, Rule)]| {
            let cfa = Base::Expression([FROM_RBP, 0x78, DEREF].into());
            of_row(&row(cfa, [std::slice::from_ref(&ra), rules].concat()))
        };
        let saved = Rule::AtExpression([FROM_RBP, 0].into());
        assert_eq!(aligned(&[(6, saved)]), frame(FrameBase::AtBp, -8, Some(0)));
        assert_eq!(aligned(&[]), None);
        assert_eq!(
            of_row(&row(Base::Register(7, 8), vec![(RIP as u8, Rule::Undefined)])),
            Some(Shortcut::End)
        );
        assert_eq!(of_row(&row(Base::Register(3, 8), vec![ra.clone()])), None);
        assert_eq!(of_row(&row(Base::Register(7, 8), vec![ra.clone(), (6, Rule::Register(3))])), None);
        assert_eq!(of_row(&row(Base::Register(7, 8), vec![ra.clone(), (6, Rule::Undefined)])), None);
        assert_eq!(of_row(&row(Base::Register(7, 8), vec![ra.clone()])), frame(FrameBase::Sp, 8, None));
        assert_eq!(of_row(&Row { signal: true, ..sp }), None);
    }
}
