//! One value, or a structure of values: its number of bytes and how it is shown. Not here: which structures there are
//! (layout.rs).

use std::borrow::Cow;
use std::fmt::Write;

use super::names;
use gpurec_trace::{Arg, List, Value};

/// A type, with what is needed to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An unsigned number of N bytes; the next three take N too.
    Unsigned(u8),
    Signed(u8),
    /// A pointer or a handle.
    Hex(u8),
    Float(u8),
    /// An enumeration, by the name of its type. Shown as the constant's name, or as the number if it has none.
    Named(&'static str),
    Enum(&'static [names::Constant]),
    Flags(u8, &'static [names::Flag]),
    /// Three 32-bit numbers.
    Dim3,
    Uuid,
    /// N bytes that are only compared.
    Opaque(u8),
    Struct(&'static Layout),
}

/// A structure, or the part of it that is worth reading.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name in the headers, without `struct`.
    pub name: &'static str,
    pub bytes: u16,
    pub fields: &'static [Field],
}

#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Empty for the only field of a structure that is shown as that field.
    pub name: &'static str,
    pub offset: u16,
    pub item: Item,
}

pub(super) const fn f(name: &'static str, offset: u16, item: Item) -> Field {
    Field { name, offset, item }
}

impl Item {
    pub fn bytes(self) -> u16 {
        match self {
            Item::Unsigned(n) | Item::Signed(n) | Item::Hex(n) | Item::Float(n) | Item::Flags(n, _) => {
                n.into()
            }
            Item::Opaque(n) => n.into(),
            Item::Named(_) | Item::Enum(_) => 4,
            Item::Dim3 => 12,
            Item::Uuid => 16,
            Item::Struct(layout) => layout.bytes,
        }
    }

    /// The value in a register or a stack word, whose upper bytes are undefined if the type is smaller.
    #[inline]
    pub fn in_word(self, word: u64) -> Value<'static> {
        match self {
            Item::Unsigned(n) => Value::Number(low(word, n)),
            Item::Hex(n) => Value::Hex(low(word, n)),
            Item::Signed(n) => signed(word, n),
            Item::Float(4) => Value::Float(f32::from_bits(word as u32).into()),
            Item::Float(_) => Value::Float(f64::from_bits(word)),
            Item::Named(of) => constant(names::constants(of), word),
            Item::Enum(constants) => constant(constants, word),
            Item::Flags(n, set) => flags(set, low(word, n)),
            Item::Dim3 | Item::Uuid | Item::Opaque(_) | Item::Struct(_) => {
                self.in_bytes(&word.to_le_bytes()).unwrap_or(Value::Null)
            }
        }
    }

    /// The value at the beginning of `bytes`. `None`: there are too few bytes.
    pub fn in_bytes(self, bytes: &[u8]) -> Option<Value<'static>> {
        let bytes = bytes.get(..usize::from(self.bytes()))?;
        Some(match self {
            Item::Dim3 => dim3(dimensions(bytes)?),
            Item::Uuid => Value::Text(Cow::Owned(uuid(bytes))),
            Item::Opaque(_) => Value::Text(Cow::Owned(digits(bytes))),
            Item::Struct(layout) => structure(layout, bytes)?,
            _ => self.in_word(little(bytes)),
        })
    }
}

fn low(word: u64, bytes: u8) -> u64 {
    match bytes {
        1 => word & 0xff,
        2 => word & 0xffff,
        4 => word & 0xffff_ffff,
        _ => word,
    }
}

/// The number as the reader of a trace returns it: unsigned unless it is negative.
fn signed(word: u64, bytes: u8) -> Value<'static> {
    let number = sign_extended(word, bytes);
    match u64::try_from(number) {
        Ok(number) => Value::Number(number),
        Err(_) => Value::Signed(number),
    }
}

fn sign_extended(word: u64, bytes: u8) -> i64 {
    match bytes {
        1 => (word as i8).into(),
        2 => (word as i16).into(),
        4 => (word as i32).into(),
        _ => word as i64,
    }
}

/// The integer in a word: see `Signature::value`.
pub fn integer(item: Item, word: u64) -> u64 {
    match item {
        Item::Signed(n) => sign_extended(word, n) as u64,
        Item::Named(_) | Item::Enum(_) => sign_extended(word, 4) as u64,
        Item::Unsigned(n) | Item::Hex(n) | Item::Flags(n, _) => low(word, n),
        _ => word,
    }
}

fn constant(constants: &[names::Constant], word: u64) -> Value<'static> {
    let code = word as i32;
    match constants.binary_search_by_key(&code, |c| c.code).ok().and_then(|at| constants.get(at)) {
        Some(known) => Value::Text(Cow::Borrowed(known.name)),
        None => signed(word, 4),
    }
}

/// The names of the bits that are set, joined by `|`; the number if one of the bits has no name.
fn flags(set: &[names::Flag], number: u64) -> Value<'static> {
    if let Some(exact) = set.iter().find(|f| f.bit == number) {
        return Value::Text(Cow::Borrowed(exact.name));
    }
    let known = set.iter().fold(0, |bits, f| bits | f.bit);
    if set.is_empty() || number & !known != 0 {
        return Value::Number(number);
    }
    let set_bits = set.iter().filter(|f| f.bit != 0 && number & f.bit == f.bit);
    Value::Text(Cow::Owned(set_bits.map(|f| f.name).collect::<Vec<_>>().join("|")))
}

pub fn dim3(of: [u32; 3]) -> Value<'static> {
    Value::Array(List::Owned(of.map(|n| Value::Number(n.into())).to_vec()))
}

/// Three 32-bit numbers.
pub fn dimensions(bytes: &[u8]) -> Option<[u32; 3]> {
    Some([u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?])
}

pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b))
}

fn structure(layout: &'static Layout, bytes: &[u8]) -> Option<Value<'static>> {
    let value = |offset: u16, item: Item| item.in_bytes(bytes.get(usize::from(offset)..)?);
    if let [only] = layout.fields
        && only.name.is_empty()
    {
        return value(only.offset, only.item);
    }
    let fields = layout
        .fields
        .iter()
        .map(|f| Some(Arg { name: Cow::Borrowed(f.name), value: value(f.offset, f.item)? }));
    Some(Value::Object(List::Owned(fields.collect::<Option<_>>()?)))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

fn uuid(bytes: &[u8]) -> String {
    let mut text = digits(bytes);
    for at in [20, 16, 12, 8] {
        if text.len() > at {
            text.insert(at, '-');
        }
    }
    text
}
