//! One value, or a structure of values: its number of bytes and how it is shown. Not here: which structures there are
//! (layout.rs).

use std::borrow::Cow;

use super::names::Constant;
use gpurec_trace::bytes::{digest, hex, little_endian, u32_at, uuid};
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
    /// Shown as the constant's name, or as the number if it has none.
    Enum(&'static [Constant]),
    /// 32 bits.
    Flags(&'static [Constant]),
    /// Three 32-bit numbers.
    Dim3,
    Uuid,
    /// N bytes that are only compared.
    Opaque(u8),
    /// The same, of which only a digest is shown.
    Digest(u8),
    Struct(&'static Layout),
}

/// A structure, or the part of it that is worth reading.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name in the headers, without `struct`.
    pub name: &'static str,
    pub bytes: u16,
    pub fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Empty for the only field of a structure that is shown as that field.
    pub name: &'static str,
    pub offset: u16,
    pub item: Item,
}

impl Item {
    pub fn bytes(self) -> u16 {
        match self {
            Item::Unsigned(n)
            | Item::Signed(n)
            | Item::Hex(n)
            | Item::Float(n)
            | Item::Opaque(n)
            | Item::Digest(n) => n.into(),
            Item::Enum(_) | Item::Flags(_) => 4,
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
            Item::Signed(n) => sign_extended(word, n).into(),
            Item::Float(4) => Value::Float(f32::from_bits(word as u32).into()),
            Item::Float(_) => Value::Float(f64::from_bits(word)),
            Item::Enum(constants) => constant(constants, word),
            Item::Flags(set) => flags(set, low(word, 4)),
            Item::Dim3 | Item::Uuid | Item::Opaque(_) | Item::Digest(_) | Item::Struct(_) => {
                self.in_bytes(&word.to_le_bytes()).unwrap_or(Value::Null)
            }
        }
    }

    /// The value at the beginning of `bytes`. `None`: there are too few bytes.
    pub fn in_bytes(self, bytes: &[u8]) -> Option<Value<'static>> {
        let bytes = bytes.get(..usize::from(self.bytes()))?;
        Some(match self {
            Item::Dim3 => dim3(dimensions(bytes, 0)?),
            Item::Uuid => Value::Text(Cow::Owned(uuid(bytes))),
            Item::Opaque(_) => Value::Text(Cow::Owned(hex(bytes))),
            Item::Digest(_) => Value::Text(Cow::Owned(format!("{:016x}", digest(bytes)))),
            Item::Struct(layout) => structure(layout, bytes)?,
            _ => self.in_word(little_endian(bytes)),
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
        Item::Enum(_) => sign_extended(word, 4) as u64,
        Item::Unsigned(n) | Item::Hex(n) => low(word, n),
        Item::Flags(_) => low(word, 4),
        _ => word,
    }
}

fn constant(constants: &[Constant], word: u64) -> Value<'static> {
    let code = word as i32;
    match constants.binary_search_by_key(&code, |c| c.code).ok().and_then(|at| constants.get(at)) {
        Some(known) => Value::Text(Cow::Borrowed(known.name)),
        None => i64::from(code).into(),
    }
}

/// The names of the bits that are set, joined by `|`; the number if one of the bits has no name.
fn flags(set: &[Constant], number: u64) -> Value<'static> {
    let bits = number as i32;
    if let Some(exact) = set.iter().find(|f| f.code == bits) {
        return Value::Text(Cow::Borrowed(exact.name));
    }
    let known = set.iter().fold(0, |known, f| known | f.code);
    if set.is_empty() || bits & !known != 0 {
        return Value::Number(number);
    }
    let set_bits = set.iter().filter(|f| f.code != 0 && bits & f.code == f.code);
    Value::Text(Cow::Owned(set_bits.map(|f| f.name).collect::<Vec<_>>().join("|")))
}

pub fn dim3(of: [u32; 3]) -> Value<'static> {
    Value::Array(List::Owned(of.map(|n| Value::Number(n.into())).to_vec()))
}

/// The three 32-bit numbers of a grid or block.
pub fn dimensions(bytes: &[u8], at: usize) -> Option<[u32; 3]> {
    Some([u32_at(bytes, at)?, u32_at(bytes, at + 4)?, u32_at(bytes, at + 8)?])
}

fn structure(layout: &'static Layout, bytes: &[u8]) -> Option<Value<'static>> {
    let value = |offset: u16, item: Item| item.in_bytes(bytes.get(usize::from(offset)..)?);
    if let [only] = layout.fields.as_slice()
        && only.name.is_empty()
    {
        return value(only.offset, only.item);
    }
    let fields = layout.fields.iter().map(|f| Some(Arg::new(f.name, value(f.offset, f.item)?)));
    Some(Value::Object(List::Owned(fields.collect::<Option<_>>()?)))
}
