//! The arguments of a call, as they are written and read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// How many registers carry arguments.
pub const MAX_RAW: usize = 6;

/// The names of arguments that nothing is known about.
pub(super) const RAW_NAMES: [&str; MAX_RAW] = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];

#[derive(Clone, Debug, PartialEq)]
pub enum Args<'a> {
    /// Registers of a call whose signature is not known: `arg0`, `arg1`…
    Raw(Raw),
    Named(List<'a, Arg<'a>>),
}

/// Up to six registers, held in place so that a call costs no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    registers: [u64; MAX_RAW],
    count: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Arg<'a> {
    pub name: Cow<'a, str>,
    pub value: Value<'a>,
}

/// A value. In a file a pointer is a string that looks like one, so a string
/// such as "0x1f" is read as a pointer; it is written the same either way.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Number(u64),
    Signed(i64),
    Float(f64),
    /// A pointer, a handle or a command word: `"0x1f"`.
    Hex(u64),
    Text(Cow<'a, str>),
    Array(List<'a, Value<'a>>),
    Object(List<'a, Arg<'a>>),
}

/// A list that the recorder borrows and the reader owns. (`Cow<[T]>` cannot
/// be nested in the type it lists.)
#[derive(Clone, Debug)]
pub enum List<'a, T> {
    #[allow(dead_code, reason = "for the recorder's named arguments")]
    Borrowed(&'a [T]),
    Owned(Vec<T>),
}

impl<T> Deref for List<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            List::Borrowed(items) => items,
            List::Owned(items) => items,
        }
    }
}

impl<T: PartialEq> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Raw {
    /// The first six of `registers`.
    pub fn new(registers: &[u64]) -> Raw {
        let mut raw = Raw::default();
        for value in registers.iter().take(MAX_RAW) {
            raw.push(*value);
        }
        raw
    }

    fn push(&mut self, value: u64) -> bool {
        let Some(slot) = self.registers.get_mut(usize::from(self.count)) else {
            return false;
        };
        *slot = value;
        self.count += 1;
        true
    }
}

impl Deref for Raw {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        self.registers.get(..usize::from(self.count)).unwrap_or(&self.registers)
    }
}

impl Default for Args<'_> {
    fn default() -> Self {
        Args::Raw(Raw::default())
    }
}

impl<'a> Args<'a> {
    pub fn raw(registers: &[u64]) -> Args<'a> {
        Args::Raw(Raw::new(registers))
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Args::Raw(raw) => raw.is_empty(),
            Args::Named(args) => args.is_empty(),
        }
    }

    /// The value of a named argument.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match self {
            Args::Raw(_) => None,
            Args::Named(List::Borrowed(args)) => args.iter().find(|arg| arg.name == name).map(|a| &a.value),
            Args::Named(List::Owned(args)) => args.iter().find(|arg| arg.name == name).map(|a| &a.value),
        }
    }
}

/// The number in a string written by `json::hex`, and in no other.
pub(super) fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let canonical = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        && (digits == "0" || !digits.starts_with('0'));
    if !canonical {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

impl<'de> Deserialize<'de> for Args<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ArgsVisitor)
    }
}

struct ArgsVisitor;

impl<'de> Visitor<'de> for ArgsVisitor {
    type Value = Args<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("arguments by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Args<'de>, A::Error> {
        let mut raw = Raw::default();
        while let Some((name, value)) = next_pair(&mut map)? {
            let expected = RAW_NAMES.get(usize::from(raw.count));
            if let Value::Hex(register) = value
                && expected == Some(&name.as_ref())
                && raw.push(register)
            {
                continue;
            }
            return named(raw, Arg { name, value }, map).map(|l| Args::Named(List::Owned(l)));
        }
        Ok(Args::Raw(raw))
    }
}

/// The list, once something came that is not the next raw register.
fn named<'de, A: MapAccess<'de>>(raw: Raw, other: Arg<'de>, mut map: A) -> Result<Vec<Arg<'de>>, A::Error> {
    let mut list: Vec<Arg> = RAW_NAMES
        .iter()
        .zip(raw.iter())
        .map(|(name, value)| Arg { name: Cow::Borrowed(*name), value: Value::Hex(*value) })
        .collect();
    list.push(other);
    while let Some((name, value)) = next_pair(&mut map)? {
        list.push(Arg { name, value });
    }
    Ok(list)
}

fn next_pair<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<(Cow<'de, str>, Value<'de>)>, A::Error> {
    match map.next_key::<Text>()? {
        Some(Text(name)) => Ok(Some((name, map.next_value()?))),
        None => Ok(None),
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(b))
    }
    fn visit_u64<E>(self, n: u64) -> Result<Value<'de>, E> {
        Ok(Value::Number(n))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Value<'de>, E> {
        Ok(Value::Signed(n))
    }
    fn visit_f64<E>(self, n: f64) -> Result<Value<'de>, E> {
        Ok(Value::Float(n))
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(match parse_hex(text) {
            Some(number) => Value::Hex(number),
            None => Value::Text(Cow::Borrowed(text)),
        })
    }
    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(match parse_hex(text) {
            Some(number) => Value::Hex(number),
            None => Value::Text(Cow::Owned(text.to_string())),
        })
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(List::Owned(items)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some((name, value)) = next_pair(&mut map)? {
            items.push(Arg { name, value });
        }
        Ok(Value::Object(List::Owned(items)))
    }
}

/// A string borrowed from the line wherever it has no escapes, which serde's
/// own `Cow<str>` never is when it is a key.
pub(super) struct Text<'a>(pub Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_string()))
    }
}
