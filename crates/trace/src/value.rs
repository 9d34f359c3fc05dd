//! The values of arguments, written and read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub struct Arg<'a> {
    pub name: Cow<'a, str>,
    pub value: Value<'a>,
}

impl<'a> Arg<'a> {
    pub fn new(name: &'static str, value: Value<'a>) -> Arg<'a> {
        Arg { name: Cow::Borrowed(name), value }
    }
}

/// A value. In a file a pointer is a string of that form, so a string such as "0x1f" is read as a pointer; both are
/// written in the same way.
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

/// A list that the recorder borrows and the reader owns. (`Cow<[T]>` cannot be nested in the type it lists.)
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

impl<'a> Value<'a> {
    /// A string from a file, where pointers are strings too.
    pub fn of_text(text: &'a str) -> Value<'a> {
        parse_hex(text).map_or(Value::Text(Cow::Borrowed(text)), Value::Hex)
    }

    /// The same value, borrowed.
    pub fn lent(&self) -> Value<'_> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(b) => Value::Bool(*b),
            Value::Number(n) => Value::Number(*n),
            Value::Signed(n) => Value::Signed(*n),
            Value::Float(n) => Value::Float(*n),
            Value::Hex(n) => Value::Hex(*n),
            Value::Text(text) => Value::Text(Cow::Borrowed(text)),
            Value::Array(items) => Value::Array(List::Borrowed(items)),
            Value::Object(items) => Value::Object(List::Borrowed(items)),
        }
    }
}

/// The number as the reader of a trace returns it: unsigned unless it is negative.
impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        u64::try_from(number).map_or(Value::Signed(number), Value::Number)
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Bool(it) => write!(f, "{it}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::Signed(n) => write!(f, "{n}"),
            Value::Float(n) => write!(f, "{n}"),
            Value::Hex(n) => write!(f, "{n:#x}"),
            Value::Text(text) => f.write_str(text),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(Value::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Value::Object(items) => write!(f, "{{{}}}", shown(items)),
        }
    }
}

/// `name=value`, separated by commas.
pub(super) fn shown(args: &[Arg]) -> String {
    let pairs = args.iter().map(|arg| format!("{}={}", arg.name, arg.value));
    pairs.collect::<Vec<_>>().join(", ")
}

/// The number in a string that `json::hex` wrote; none for any other string.
pub(super) fn parse_hex(text: &str) -> Option<u64> {
    parse_hex_digits(text.strip_prefix("0x")?)
}

/// Accepts lower case, no leading zeros, and no more digits than a u64 has.
pub(super) fn parse_hex_digits(digits: &str) -> Option<u64> {
    let leading = digits.len() > 1 && digits.starts_with('0');
    if digits.is_empty() || digits.len() > 16 || leading {
        return None;
    }
    let mut value = 0;
    for byte in digits.bytes() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        value = (value << 4) | u64::from(digit);
    }
    Some(value)
}

pub(super) fn next_pair<'de, A: MapAccess<'de>>(
    map: &mut A,
) -> Result<Option<(Cow<'de, str>, Value<'de>)>, A::Error> {
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
        Ok(Value::of_text(text))
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

/// A string borrowed from the line wherever it has no escapes. serde's own `Cow<str>` never borrows when it is a key.
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
