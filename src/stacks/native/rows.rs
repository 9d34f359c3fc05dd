//! The rules of .eh_frame: how to find a function's caller from an address in it. In: an open file and an address. Out:
//! the row of the unwind table for that address. Reads only the entries on the way, because a large library has
//! megabytes of them: .eh_frame_hdr is searched in the file, and one entry and its common part are read.

use std::fs::File;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameOffset, LittleEndian, RegisterRule, UnwindContext,
    UnwindExpression, UnwindSection,
};

use super::expression::Bytes;
use super::registers::RIP;
use gpurec_elf::{Object, Piece, bytes};
use gpurec_trace::bytes::{u32_at, u64_at};

/// The longest entry that is read. The longest of real libraries have a few kilobytes.
const LONGEST_ENTRY: u64 = 64 << 10;
const LONGEST_EXPRESSION: usize = 256;
/// The largest section without an index that is read.
const MOST_SCANNED: u64 = 16 << 20;

/// How to find the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub cfa: Base,
    /// By register.
    pub rules: Vec<(u8, Rule)>,
    /// The caller was interrupted by a signal.
    pub signal: bool,
}

/// The frame's own address: the stack pointer before the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Register(u8, i64),
    Expression(Box<[u8]>),
}

/// Where a register's earlier value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Undefined,
    Same,
    /// In memory, at this offset from the frame's address, in bytes.
    At(i64),
    Is(i64),
    Register(u8),
    AtExpression(Box<[u8]>),
    IsExpression(Box<[u8]>),
}

impl Row {
    pub fn rule(&self, register: usize) -> Option<&Rule> {
        let (_, rule) = self.rules.iter().find(|(number, _)| usize::from(*number) == register)?;
        (*rule != Rule::Undefined).then_some(rule)
    }

    /// Of a function that saves the frame pointer first and then sets it to its stack pointer.
    pub fn of_frame_pointer() -> Row {
        let rules = vec![(RIP as u8, Rule::At(-8)), (6, Rule::At(-16))];
        Row { cfa: Base::Register(6, 16), rules, signal: false }
    }

    /// The memory that it takes.
    pub fn held(&self) -> usize {
        size_of::<Row>() + self.rules.len() * (size_of::<(u8, Rule)>() + 8)
    }
}

/// Where entries are, of a file that does not say: a static program. By the address of their function.
pub type Entries = Vec<(u64, u64)>;

/// Reads the whole section.
pub fn entries(object: &Object, file: &File) -> Entries {
    let mut found = Vec::new();
    let Some(piece) = object.section(".eh_frame").filter(|piece| piece.size <= MOST_SCANNED) else {
        return found;
    };
    let Some(section) = bytes(file, piece.offset, piece.size) else { return found };
    let bases = BaseAddresses::default().set_eh_frame(piece.address);
    let mut frames = EhFrame::new(&section, LittleEndian);
    frames.set_address_size(8);
    let mut all = frames.entries(&bases);
    // The rest of a damaged section has no rules.
    while let Ok(Some(entry)) = all.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(fde) = partial.parse(EhFrame::cie_from_offset) {
            found.push((fde.initial_address(), piece.address.wrapping_add(fde.offset() as u64)));
        }
    }
    found.sort_unstable();
    found
}

/// The row for an address, as the file counts addresses. `scanned`: its entries, if the file has no index of them. None:
/// the file has no rule for it.
pub fn find(object: &Object, file: &File, scanned: &Entries, address: u64) -> Option<Row> {
    let entry = match object.unwind_index {
        Some(index) => search(file, index, address)?,
        None => scanned.get(scanned.partition_point(|(start, _)| *start <= address).checked_sub(1)?)?.1,
    };
    let (fde, reference) = read_entry(object, file, entry)?;
    let common = entry.checked_add(fde.head())?.checked_sub(reference)?;
    let (cie, zero) = read_entry(object, file, common)?;
    if zero != 0 {
        return None;
    }
    // A section of these two alone, at such a place that relative addresses in the entry are right.
    let start = cie.bytes.len();
    let head = fde.head() as usize;
    let mut section = cie.bytes;
    section.extend(fde.bytes);
    let back = u64::try_from(start).ok()?.checked_add(fde.head)?.to_le_bytes();
    let width = if fde.head == 12 { 8 } else { 4 };
    section.get_mut(start + head..start + head + width)?.copy_from_slice(back.get(..width)?);
    let base = entry.wrapping_sub(start as u64);
    row(&section, start, base, address)
}

/// An entry with its length, and how many bytes the length takes.
struct Entry {
    bytes: Vec<u8>,
    head: u64,
}

impl Entry {
    fn head(&self) -> u64 {
        self.head
    }
}

/// Also returns the number behind the length: of an FDE the distance to its CIE, of a CIE zero.
fn read_entry(object: &Object, file: &File, address: u64) -> Option<(Entry, u64)> {
    let first = object.at(file, address, 12)?;
    let short = u32_at(&first, 0)?;
    let (head, length) = if short == u32::MAX { (12, u64_at(&first, 4)?) } else { (4, u64::from(short)) };
    if length > LONGEST_ENTRY {
        return None;
    }
    let bytes = object.at(file, address, head + length)?;
    if bytes.len() as u64 != head + length {
        return None;
    }
    let reference = match head {
        12 => u64_at(&bytes, 12)?,
        _ => u32_at(&bytes, 4)?.into(),
    };
    Some((Entry { bytes, head }, reference))
}

/// The address of the last entry that begins at or before `address`.
fn search(file: &File, index: Piece, address: u64) -> Option<u64> {
    const VERSION: u8 = 1;
    const OMITTED: u8 = 0xff;
    /// Signed four bytes, relative to the index: the only form that linkers write and that can be searched.
    const SEARCHABLE: u8 = 0x3b;
    const EACH: u64 = 8;
    let head = bytes(file, index.offset, index.size.min(20))?;
    let [VERSION, start, count, SEARCHABLE, ..] = *head.as_slice() else { return None };
    let width = |form: u8| match form & 0x0f {
        0x03 | 0x0b => Some(4usize),
        0x04 | 0x0c => Some(8),
        _ => None,
    };
    let after = 4 + if start == OMITTED { 0 } else { width(start)? };
    let entries = match width(count)? {
        4 => u64::from(u32_at(&head, after)?),
        _ => u64_at(&head, after)?,
    };
    let table = (after + width(count)?) as u64;
    let entries = entries.min(index.size.checked_sub(table)? / EACH);
    let entry = |at: u64| {
        let bytes = bytes(file, index.offset.checked_add(table + at * EACH)?, EACH)?;
        let relative = |at| Some(index.address.wrapping_add_signed((u32_at(&bytes, at)? as i32).into()));
        Some((relative(0)?, relative(4)?))
    };
    let (mut low, mut high) = (0, entries);
    while low < high {
        let middle = low + (high - low) / 2;
        if entry(middle)?.0 <= address { low = middle + 1 } else { high = middle }
    }
    entry(low.checked_sub(1)?).map(|(_, entry)| entry)
}

fn row(section: &[u8], start: usize, base: u64, address: u64) -> Option<Row> {
    let bases = BaseAddresses::default().set_eh_frame(base);
    let mut frames = EhFrame::new(section, LittleEndian);
    frames.set_address_size(8);
    let fde = frames.fde_from_offset(&bases, EhFrameOffset(start), EhFrame::<Bytes>::cie_from_offset).ok()?;
    if !fde.contains(address) || usize::from(fde.cie().return_address_register().0) != RIP {
        return None;
    }
    let signal = fde.is_signal_trampoline();
    let mut context = UnwindContext::new();
    let found = fde.unwind_info_for_address(&frames, &bases, &mut context, address).ok()?;
    let expression = |expression: UnwindExpression<usize>| -> Option<Box<[u8]>> {
        let bytes = expression.get(&frames).ok()?.0.slice();
        (bytes.len() <= LONGEST_EXPRESSION).then(|| bytes.into())
    };
    let number = |register: gimli::Register| u8::try_from(register.0).ok();
    let cfa = match found.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Base::Register(number(*register)?, *offset),
        CfaRule::Expression(bytes) => Base::Expression(expression(*bytes)?),
    };
    let mut rules = Vec::new();
    for (register, rule) in found.registers() {
        let rule = match rule {
            RegisterRule::Undefined => Rule::Undefined,
            RegisterRule::SameValue => Rule::Same,
            RegisterRule::Offset(offset) => Rule::At(*offset),
            RegisterRule::ValOffset(offset) => Rule::Is(*offset),
            RegisterRule::Register(other) => Rule::Register(number(*other)?),
            RegisterRule::Expression(bytes) => Rule::AtExpression(expression(*bytes)?),
            RegisterRule::ValExpression(bytes) => Rule::IsExpression(expression(*bytes)?),
            _ => return None,
        };
        // Vector registers are of no use here.
        if register.0 <= RIP as u16 {
            rules.push((number(*register)?, rule));
        }
    }
    Some(Row { cfa, rules, signal })
}
