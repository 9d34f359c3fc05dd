//! Parses one line into an event. Keys and types that a newer gpurec added are skipped and counted, never an error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::event::{self, Body, Line, SCHEMA, Unknown};
use super::rare::Header;
use super::scan::{Scan, plain};
use super::schema::{Codec, Key, Plain, Source, key};
use super::value::Text;

/// An event, and the keys of a frequent line that this version does not know.
pub struct ParsedLine<'a> {
    pub line: Line<'a>,
    pub unknown: UnknownKeys<'a>,
}

/// Keys with the JSON text of their values.
pub type UnknownKeys<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// The keys of a line that have not been asked for, with the text of their values.
struct AnyOrder<'a> {
    text: &'a [u8],
    left: UnknownKeys<'a>,
    /// The number of keys found.
    found: usize,
    line_type: Cow<'a, str>,
    name: Option<Cow<'a, str>>,
}

/// Parses a line of any program, or of a newer gpurec.
pub fn any_order(text: &[u8]) -> Result<ParsedLine<'_>, String> {
    // A check of the whole text at once costs less than one of each value.
    let left = match std::str::from_utf8(text) {
        Ok(text) => keys(serde_json::Deserializer::from_str(text)),
        Err(_) => keys(serde_json::Deserializer::from_slice(text)),
    };
    let left = left.map_err(|error| why(&error, 0))?;
    let mut keys = AnyOrder { text, left, found: 0, line_type: Cow::Borrowed(""), name: None };
    let event_id = keys.get::<Plain, u64>(key!("event_id"))?;
    let ts_ns = keys.ts_ns()?;
    keys.line_type = keys.get::<Plain, Cow<str>>(key!("type"))?;
    keys.name = keys.get::<Plain, Option<Cow<str>>>(key!("name"))?;
    let (body, unknown) = match event::frequent(&mut keys)? {
        Some(body) => (body, keys.left),
        None => (rare(keys)?, Vec::new()),
    };
    Ok(ParsedLine { line: Line { event_id, ts_ns, body }, unknown })
}

fn keys<'a>(
    mut from: serde_json::Deserializer<impl serde_json::de::Read<'a>>,
) -> serde_json::Result<UnknownKeys<'a>> {
    let keys = from.deserialize_map(KeysVisitor)?;
    from.end().map(|()| keys)
}

fn rare(keys: AnyOrder) -> Result<Body, String> {
    let AnyOrder { text, line_type, name, .. } = keys;
    let name = name.unwrap_or_default();
    match event::rare(&line_type, &name, text) {
        Ok(Some(body)) => Ok(body),
        Ok(None) => {
            let text = String::from_utf8_lossy(text);
            Ok(Body::Unknown(Unknown { kind: line_type, name, text }))
        }
        Err(error) if line_type == "header" => newer_header(text).ok_or_else(|| why(&error, 0)),
        Err(error) => Err(why(&error, 0)),
    }
}

/// A header of a newer gpurec. Only the fact that it is newer matters.
fn newer_header(text: &[u8]) -> Option<Body<'_>> {
    #[derive(serde::Deserialize)]
    struct Schema {
        schema: u32,
    }
    let Schema { schema } = serde_json::from_slice(text).ok()?;
    (schema > SCHEMA).then(|| Body::Header(Box::new(Header { schema, ..Header::default() })))
}

/// The error without the parser's line count: its input has only one line. `before` bytes precede the input in it.
fn why(error: &serde_json::Error, before: usize) -> String {
    let said = error.to_string();
    match said.split_once(" at line 1 column ") {
        Some((what, _)) => format!("{what} in column {}", before + error.column()),
        None => said,
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = UnknownKeys<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut keys = Vec::with_capacity(16);
        while let Some((Text(key), value)) = map.next_entry()? {
            keys.push((key, value));
        }
        Ok(keys)
    }
}

impl<'a> AnyOrder<'a> {
    /// The last value of a key.
    fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let at = self.left.iter().rposition(|(key, _)| key == name)?;
        Some(self.left.swap_remove(at).1)
    }

    /// The time as this program writes it, digit by digit, because a double holds nanoseconds exactly for 26 days only.
    fn ts_ns(&mut self) -> Result<u64, String> {
        let text = self.take("ts").ok_or("it has no ts")?.get();
        let mut scan = Scan::new(text);
        match scan.seconds() {
            Some(ns) if scan.at_end() => Ok(ns),
            _ => {
                let seconds: f64 = serde_json::from_str(text).map_err(|error| self.why(text, &error))?;
                Ok((seconds * 1e9).round() as u64)
            }
        }
    }

    /// A value as this program writes it is read at once; of two results, both are equal (tests/fast.rs).
    fn value<C: Codec<'a, T>, T>(&self, text: &'a str) -> Result<Option<T>, String> {
        let scanned = plain(text.as_bytes()).and_then(|text| {
            let mut scan = Scan::new(text);
            C::scan(&mut scan).filter(|_| scan.at_end())
        });
        match scanned {
            None => C::parse(text).map_err(|error| self.why(text, &error)),
            scanned => Ok(scanned),
        }
    }

    /// An error in the text of a value.
    fn why(&self, value: &str, error: &serde_json::Error) -> String {
        why(error, (value.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize))
    }
}

impl<'a> Source<'a> for AnyOrder<'a> {
    type Error = String;

    fn line_type(&self) -> &str {
        &self.line_type
    }

    fn name(&mut self) -> Result<Cow<'a, str>, String> {
        self.name.take().ok_or_else(|| "it has no name".to_owned())
    }

    fn phase(&mut self) -> Result<Option<u8>, String> {
        let phase = self.get::<Plain, Option<Cow<str>>>(key!("phase"))?;
        Ok(phase.map(|phase| if let [letter] = phase.as_bytes() { *letter } else { 0 }))
    }

    fn get<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<T, String> {
        if let Some(raw) = self.take(key.name)
            && let Some(value) = self.value::<C, T>(raw.get())?
        {
            self.found += usize::from(raw.get() != "null");
            return Ok(value);
        }
        C::absent().ok_or_else(|| format!("it has no {}", key.name))
    }

    fn skip<C: Codec<'a, T>, T>(&mut self, key: Key) -> Result<(), String> {
        self.take(key.name);
        Ok(())
    }

    fn place(&self) -> usize {
        self.found
    }

    fn is_over(&self) -> bool {
        false
    }

    fn error(why: &'static str) -> String {
        why.to_owned()
    }
}
