//! The table of a frequent line: one row for each key makes the field, what the writer writes, what both readers read,
//! and what exports show.
//!
//! In: `line_schema!` with the fields of a struct, their keys and codecs. Out: the struct and its `Group`. Not here:
//! which lines there are (event.rs), and the keys that every line has (writer.rs, fast.rs, parse.rs).

use std::borrow::Cow;

use serde::de::Error;
use serde_json::{Result as Parsed, from_str};

use super::args::Args;
use super::enums::{EndKind, GpuKind, GpuSource, Kind, Op, Retval};
use super::json;
use super::scan::Scan;
use super::value::{Text, Value};

/// A key of a line.
#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// What precedes its value in a line. Empty: it is not in the line.
    pub(super) before: &'static str,
    /// Whether it is one of the details of the event, which exports show.
    pub is_detail: bool,
}

/// A value, on its way to a line or to an export.
#[derive(Clone, Copy)]
pub enum Datum<'a> {
    Number(u64),
    Signed(i64),
    Hex(u64),
    /// Nanoseconds, written as microseconds.
    Micros(u64),
    SignedMicros(i64),
    Null,
    Text(&'a str),
    Triple([u32; 3]),
    Bool(bool),
    Args(&'a Args<'a>),
    /// The text of any other value.
    Json(&'a str),
}

impl Datum<'_> {
    #[inline(always)]
    pub fn write_json(self, out: &mut Vec<u8>) {
        match self {
            Datum::Number(n) => json::number(out, n),
            Datum::Signed(n) => json::signed(out, n),
            Datum::Hex(n) => json::hex(out, n),
            Datum::Micros(ns) => json::micros(out, ns),
            Datum::SignedMicros(ns) => json::signed_micros(out, ns),
            Datum::Null => out.extend_from_slice(b"null"),
            Datum::Text(text) => json::string(out, text),
            Datum::Triple(numbers) => json::triple(out, numbers),
            Datum::Bool(true) => out.extend_from_slice(b"true"),
            Datum::Bool(false) => out.extend_from_slice(b"false"),
            Datum::Args(args) => args.write_json(out),
            Datum::Json(text) => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// Takes the keys of a line, in order.
pub trait Sink {
    fn put(&mut self, key: Key, value: Datum);
}

/// Gives the values of a line's keys, which a reader asks for in the order of the writer.
pub trait Source<'a>: Sized {
    type Error;

    /// The `type` of the line.
    fn line_type(&self) -> &str;
    fn name(&mut self) -> Result<Cow<'a, str>, Self::Error>;
    /// `B`, `E`, or none if the line has no phase.
    fn phase(&mut self) -> Result<Option<u8>, Self::Error>;
    fn get<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<T, Self::Error>;
    /// Skips a value that follows from others.
    fn skip<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<(), Self::Error>;
    /// Changes with each key found.
    fn place(&self) -> usize;
    /// Whether no key follows for certain.
    fn is_over(&self) -> bool;
    fn error(why: &'static str) -> Self::Error;

    fn kind(&self) -> Result<Kind, Self::Error> {
        Kind::of(self.line_type()).ok_or_else(|| Self::error("it has no type"))
    }
}

/// Fields with keys of their own: a line, or a part of one.
pub trait Group<'a>: Sized {
    fn show(&self, to: &mut impl Sink);
    fn read<S: Source<'a>>(from: &mut S) -> Result<Self, S::Error>;
}

/// A part that is there if one of its keys is.
impl<'a, G: Group<'a>> Group<'a> for Option<G> {
    #[inline(always)]
    fn show(&self, to: &mut impl Sink) {
        if let Some(group) = self {
            group.show(to);
        }
    }

    #[inline(always)]
    fn read<S: Source<'a>>(from: &mut S) -> Result<Self, S::Error> {
        if from.is_over() {
            return Ok(None);
        }
        let before = from.place();
        let group = G::read(from)?;
        Ok((from.place() != before).then_some(group))
    }
}

impl<'a> Group<'a> for EndKind {
    #[inline(always)]
    fn show(&self, to: &mut impl Sink) {
        match self {
            EndKind::Returned => {}
            EndKind::Unwound => to.put(key!("unwound" detail), Datum::Bool(true)),
            EndKind::Lost => to.put(key!("lost" detail), Datum::Bool(true)),
            EndKind::NotWatched => to.put(key!(head no_return), Datum::Bool(true)),
        }
    }

    #[inline(always)]
    fn read<S: Source<'a>>(from: &mut S) -> Result<Self, S::Error> {
        let unwound = from.get::<Plain, bool>(key!("unwound"))?;
        let lost = from.get::<Plain, bool>(key!("lost"))?;
        Ok(if unwound {
            EndKind::Unwound
        } else if lost {
            EndKind::Lost
        } else {
            EndKind::Returned
        })
    }
}

/// How a value of a type is written and read.
pub trait Codec<'a, T> {
    /// None: the line does not have the key.
    fn datum(value: &T) -> Option<Datum<'_>>;
    /// Reads what the writer writes. None: it is something else.
    fn scan(scan: &mut Scan<'a>) -> Option<T>;
    /// Reads the text of a value from any program. None: as if the key were absent.
    fn parse(text: &'a str) -> Parsed<Option<T>>;
    /// The value if the key is absent. None: the key must be there.
    fn absent() -> Option<T> {
        None
    }
}

/// As JSON has it.
pub struct Plain;
/// An address or a handle.
pub struct Hex;
/// Nanoseconds, in microseconds.
pub struct Micros;
/// The same, left out if it is 0.
pub struct NonZeroMicros;
/// True or false, where `Plain` leaves out false.
pub struct Always;
/// Arguments, left out if there are none.
pub struct NonEmpty;
/// Always written; a line that lacks it has the default.
pub struct OrDefault;
/// A handle, in the same way.
pub struct HexOrDefault;
/// Written as null if there is none.
pub struct OrNull;

macro_rules! codec {
    ($codec:ty, $type:ty: |$it:ident| $datum:expr, |$scan:ident| $scanned:expr, |$text:ident| $parsed:expr $(, $absent:expr)?) => {
        impl<'a> Codec<'a, $type> for $codec {
            #[inline(always)]
            fn datum<'b>($it: &'b $type) -> Option<Datum<'b>> {
                $datum
            }
            #[inline(always)]
            fn scan($scan: &mut Scan<'a>) -> Option<$type> {
                $scanned
            }
            fn parse($text: &'a str) -> Parsed<Option<$type>> {
                $parsed
            }
            $(fn absent() -> Option<$type> { Some($absent) })?
        }
    };
}

codec!(Plain, u32: |n| Some(Datum::Number((*n).into())), |scan| scan.number32(), |text| from_str(text));
codec!(Plain, u64: |n| Some(Datum::Number(*n)), |scan| scan.number(), |text| from_str(text));
codec!(Plain, [u32; 3]: |numbers| Some(Datum::Triple(*numbers)), |scan| scan.triple(), |text| from_str(text));
codec!(Plain, Cow<'a, str>: |text| Some(Datum::Text(text)), |scan| {
    scan.must("\"")?;
    scan.string().map(Cow::Borrowed)
}, |text| from_str::<Text>(text).map(|text| Some(text.0)));
codec!(Plain, bool: |is| is.then_some(Datum::Bool(true)), |scan| {
    scan.must("true").map(|()| true)
}, |text| from_str(text).map(Some), false);
codec!(Always, bool: |is| Some(Datum::Bool(*is)), |scan| {
    Some(scan.eat("true") || { scan.must("false")?; false })
}, |text| from_str(text).map(Some), false);
codec!(Plain, Args<'a>: |args| Some(Datum::Args(args)), |scan| {
    scan.object().map(Args::json)
}, |text| from_str(text).map(Some), Args::default());
codec!(NonEmpty, Args<'a>: |args| (!args.is_empty()).then_some(Datum::Args(args)), |scan| {
    Plain::scan(scan)
}, |text| Plain::parse(text), Args::default());
codec!(Hex, u64: |n| Some(Datum::Hex(*n)), |scan| scan.hex(), |text| match from_str(text)? {
    Value::Hex(n) | Value::Number(n) => Ok(Some(n)),
    Value::Null => Ok(None),
    _ => Err(Error::custom("a pointer is neither hex nor a number")),
});
codec!(Micros, u64: |ns| Some(Datum::Micros(*ns)), |scan| scan.micros(), |text| {
    let us: Option<f64> = from_str(text)?;
    Ok(us.map(|us| (us * 1e3).round() as u64))
});
codec!(Micros, i64: |ns| Some(Datum::SignedMicros(*ns)), |scan| {
    let negative = scan.eat("-");
    let ns = i64::try_from(scan.micros()?).ok()?;
    match (negative, ns) {
        // The writer writes 0 without a sign.
        (true, 0) => None,
        (true, ns) => Some(-ns),
        (false, ns) => Some(ns),
    }
}, |text| {
    let us: Option<f64> = from_str(text)?;
    Ok(us.map(|us| (us * 1e3).round() as i64))
});
codec!(NonZeroMicros, u64: |ns| (*ns > 0).then_some(Datum::Micros(*ns)), |scan| {
    scan.micros()
}, |text| Micros::parse(text), 0);
codec!(Plain, Op: |op| Some(Datum::Text(op.name())), |scan| {
    scan.must("\"")?;
    Op::of(scan.string()?)
}, |text| {
    let Text(name) = from_str(text)?;
    Op::of(&name).map(Some).ok_or_else(|| Error::custom("its op is neither alloc nor free"))
});
codec!(Plain, GpuKind: |kind| Some(Datum::Text(kind.name())), |scan| {
    scan.must("\"")?;
    GpuKind::of(scan.string()?)
}, |text| {
    let Text(name) = from_str(text)?;
    let unknown = || Error::custom("its kind is none of kernel, copy, set and graph");
    GpuKind::of(&name).map(Some).ok_or_else(unknown)
});
codec!(Plain, GpuSource: |source| Some(Datum::Text(source.name())), |scan| {
    scan.must("\"")?;
    GpuSource::of(scan.string()?)
}, |text| {
    let Text(name) = from_str(text)?;
    GpuSource::of(&name).map(Some).ok_or_else(|| Error::custom("its source is neither lane nor tap"))
});
codec!(Plain, Retval: |retval| Some(match retval {
    Retval::Number(n) => Datum::Signed(*n),
    Retval::Pointer(p) => Datum::Hex(*p),
}), |scan| retval(scan), |text| Ok(match from_str(text)? {
    Value::Hex(p) => Some(Retval::Pointer(p)),
    Value::Signed(n) => Some(Retval::Number(n)),
    Value::Number(n) => i64::try_from(n).ok().map(Retval::Number),
    _ => None,
}));

codec!(OrDefault, u32: |n| Plain::datum(n), |scan| Plain::scan(scan), |text| from_str(text).map(Some), 0);
codec!(OrDefault, Cow<'a, str>: |text| Plain::datum(text), |scan| {
    Plain::scan(scan)
}, |text| Plain::parse(text), Cow::default());
codec!(HexOrDefault, u64: |n| Hex::datum(n), |scan| Hex::scan(scan), |text| Hex::parse(text), 0);

codec!(OrNull, Option<u64>: |number| Some(number.map_or(Datum::Null, Datum::Number)), |scan| {
    if scan.eat("null") { Some(None) } else { scan.number().map(Some) }
}, |text| from_str(text).map(Some), None);

fn retval(scan: &mut Scan) -> Option<Retval> {
    if scan.peek("\"").is_some() {
        return scan.hex().map(Retval::Pointer);
    }
    let negative = scan.eat("-");
    let number = i64::try_from(scan.number()?).ok()?;
    match (negative, number) {
        // JSON reads -0 as a double.
        (true, 0) => None,
        (true, n) => Some(Retval::Number(-n)),
        (false, n) => Some(Retval::Number(n)),
    }
}

impl<'a, C: Codec<'a, T>, T> Codec<'a, Option<T>> for C {
    #[inline(always)]
    fn datum(value: &Option<T>) -> Option<Datum<'_>> {
        value.as_ref().and_then(C::datum)
    }
    #[inline(always)]
    fn scan(scan: &mut Scan<'a>) -> Option<Option<T>> {
        C::scan(scan).map(Some)
    }
    fn parse(text: &'a str) -> Parsed<Option<Option<T>>> {
        C::parse(text).map(Some)
    }
    #[inline(always)]
    fn absent() -> Option<Option<T>> {
        Some(None)
    }
}

/// A key: its name, then `detail` if exports show it. `head` alone is a field that the beginning of every line has, and
/// `head NAME` one that exports show under that name. A key that depends on the fields before it is in parentheses.
macro_rules! key {
    ($name:literal) => {
        $crate::schema::Key { name: $name, before: concat!(",\"", $name, "\":"), is_detail: false }
    };
    ($name:literal detail) => {
        $crate::schema::Key { name: $name, before: concat!(",\"", $name, "\":"), is_detail: true }
    };
    (head $name:ident) => {
        $crate::schema::Key { name: stringify!($name), before: "", is_detail: true }
    };
    (($key:expr)) => {
        $key
    };
}

/// Each field is `name: Type as Codec = key`. Without a codec it is `Plain`; without a key the field is a group with
/// keys of its own. `computed` is a method whose value follows the fields.
macro_rules! line_schema {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$doc:meta])* $field:ident: $type:ty $(as $codec:ty)? $(= $key:tt $($more:ident)?)?,)*
        }
        $(computed $computed:ident: $result:ty = $last:tt $($detail:ident)?;)?
    )*) => {$(
        $(#[$meta])*
        pub struct $name $(<$life>)? {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl<'a> $crate::schema::Group<'a> for $name $(<$life>)? {
            #[inline(always)]
            #[allow(unused_variables)] // what the head of the line has
            fn show(&self, to: &mut impl $crate::schema::Sink) {
                let $name { $($field),* } = self;
                $(line_schema!(@show to $field [$type] [$($codec)?] $([$key $($more)?])?);)*
                $(
                    let value = self.$computed();
                    line_schema!(@show to (&value) [$result] [] [$last $($detail)?]);
                )?
            }

            #[inline(always)]
            fn read<S: $crate::schema::Source<'a>>(from: &mut S) -> Result<Self, S::Error> {
                $(let $field = line_schema!(@read from $field [$type] [$($codec)?] $([$key $($more)?])?);)*
                $(from.skip::<$crate::schema::Plain, $result>(key!($last))?;)?
                Ok($name { $($field),* })
            }
        }
    )*};
    (@show $to:ident $value:tt [$type:ty] []) => { $crate::schema::Group::show($value, $to) };
    (@show $to:ident $value:tt [$type:ty] [] [head]) => {};
    (@show $to:ident $value:tt [$type:ty] [] [$($key:tt)+]) => {
        line_schema!(@show $to $value [$type] [$crate::schema::Plain] [$($key)+])
    };
    (@show $to:ident $value:tt [$type:ty] [$codec:ty] [$($key:tt)+]) => {
        if let Some(datum) = <$codec as $crate::schema::Codec<$type>>::datum($value) {
            $crate::schema::Sink::put($to, key!($($key)+), datum);
        }
    };
    (@read $from:ident $field:ident [$type:ty] []) => {
        <$type as $crate::schema::Group>::read($from)?
    };
    (@read $from:ident $field:ident [$type:ty] [] [head $($name:ident)?]) => { $from.$field()? };
    (@read $from:ident $field:ident [$type:ty] [] [$($key:tt)+]) => {
        $from.get::<$crate::schema::Plain, $type>(key!($($key)+))?
    };
    (@read $from:ident $field:ident [$type:ty] [$codec:ty] [$($key:tt)+]) => {
        $from.get::<$codec, $type>(key!($($key)+))?
    };
}

pub(super) use {key, line_schema};
