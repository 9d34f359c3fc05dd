//! The user's tracepoints: `irq:irq_handler_entry`, or a glob of both parts. In: the description of an event in
//! tracefs. Out: its fields, and the values of a hit's bytes.
//! Pure, except for the two queries of tracefs at the top.

use std::borrow::Cow;

use anyhow::{Result, bail};
use glob::Pattern;

use crate::probe::tracepoint;
use gpurec_trace::{Arg, Value, lossy};

/// Size of the fields that every event begins with; they are not shown.
const COMMON: usize = 8;
/// Number of fields shown, as with functions.
const SHOWN: usize = 6;
/// More tracepoints than this are a mistake in the pattern.
const MOST: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `category:event`.
    pub name: String,
    pub fields: Vec<Field>,
    /// Bytes after the common ones that hold all fields, if all have a fixed place.
    pub size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    name: String,
    offset: usize,
    size: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Pointer,
    Text,
    /// Elsewhere in the event: four bytes give its offset and length.
    TextElsewhere,
    Bytes,
}

/// Does the name mean a tracepoint and not a function?
pub fn is_event(name: &str) -> bool {
    name.contains(':')
}

/// The tracepoints that a name or a glob means.
pub fn find(wanted: &str) -> Result<Vec<Event>> {
    let names = if wanted.contains(['*', '?', '[']) { matching(wanted)? } else { vec![wanted.to_owned()] };
    names.iter().map(|name| event(name)).collect()
}

fn matching(wanted: &str) -> Result<Vec<String>> {
    let Ok(pattern) = Pattern::new(wanted) else { bail!("{wanted} is not a pattern; use *, ? and [a-z]") };
    let found: Vec<String> = tracepoint::all()?.into_iter().filter(|name| pattern.matches(name)).collect();
    match found.len() {
        0 => bail!("no tracepoint matches it; `gpurec probes --kernel 'irq:*'` lists those of a category"),
        1..=MOST => Ok(found),
        count => {
            bail!("{count} tracepoints match it, and gpurec takes {MOST} at most; give a narrower pattern")
        }
    }
}

fn event(name: &str) -> Result<Event> {
    let parts = name.split_once(':');
    match parts.filter(|(category, event)| [category, event].iter().all(|part| is_part(part))) {
        Some((category, event)) => Ok(parse(name, &tracepoint::format(category, event)?)),
        None => bail!("{name} is not CATEGORY:EVENT; `gpurec probes --kernel '*:*'` lists all tracepoints"),
    }
}

fn is_part(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

fn parse(name: &str, format: &str) -> Event {
    let fields: Vec<Field> = format.lines().filter_map(field).filter(|f| f.offset >= COMMON).collect();
    let elsewhere = fields.iter().any(|f| f.kind == Kind::TextElsewhere);
    let end = fields.iter().map(|f| f.offset + f.size).max().unwrap_or(COMMON);
    // The data after the fixed part has no fixed size.
    let size = if elsewhere { usize::MAX } else { end - COMMON };
    Event { name: name.to_owned(), fields: fields.into_iter().take(SHOWN).collect(), size }
}

/// A line such as `field:const char * name; offset:16; size:8; signed:0;`.
fn field(line: &str) -> Option<Field> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<usize>().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")? == 1);
    let (kind, name) = declaration.rsplit_once([' ', '\t', '*'])?;
    let is_text = kind.contains("char");
    let kind = match declaration.starts_with("__data_loc") {
        true if is_text => Kind::TextElsewhere,
        false if name.contains('[') && is_text => Kind::Text,
        is_elsewhere if is_elsewhere || name.contains('[') => Kind::Bytes,
        _ if declaration.contains('*') => Kind::Pointer,
        _ if signed => Kind::Signed,
        _ => Kind::Unsigned,
    };
    let name = name.split('[').next()?.to_owned();
    Some(Field { name, offset, size, kind })
}

impl Event {
    /// Decodes a hit's fields from its bytes. Fields that were not read are left out.
    pub fn args(&self, bytes: &[u8]) -> Vec<Arg<'static>> {
        let shown =
            |field: &Field| Some(Arg { name: Cow::Owned(field.name.clone()), value: field.value(bytes)? });
        self.fields.iter().filter_map(shown).collect()
    }
}

impl Field {
    fn value(&self, bytes: &[u8]) -> Option<Value<'static>> {
        let raw = bytes.get(self.offset - COMMON..)?.get(..self.size)?;
        Some(match self.kind {
            Kind::Signed => Value::Signed(signed(raw)?),
            Kind::Unsigned => Value::Number(unsigned(raw)?),
            Kind::Pointer => Value::Hex(unsigned(raw)?),
            Kind::Text => text(raw),
            Kind::TextElsewhere => {
                let place = unsigned(raw)? as usize;
                let (offset, length) = (place & 0xffff, place >> 16);
                text(bytes.get(offset.checked_sub(COMMON)?..)?.get(..length)?)
            }
            Kind::Bytes => return None,
        })
    }
}

fn unsigned(raw: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..raw.len()).filter(|_| raw.len().is_power_of_two())?.copy_from_slice(raw);
    Some(u64::from_le_bytes(word))
}

fn signed(raw: &[u8]) -> Option<i64> {
    let number = unsigned(raw)?;
    let above = 64 - 8 * raw.len() as u32;
    Some((number << above) as i64 >> above)
}

fn text(raw: &[u8]) -> Value<'static> {
    let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
    Value::Text(lossy(raw.get(..end).unwrap_or_default()).into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IRQ: &str = "name: irq_handler_entry
ID: 101
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;

print fmt: \"irq=%d name=%s\", REC->irq, __get_str(name)
";
    const SWITCH: &str = "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:const void * where;\toffset:32;\tsize:8;\tsigned:0;
";

    fn shown(args: &[Arg]) -> Vec<(String, String)> {
        args.iter().map(|arg| (arg.name.to_string(), format!("{:?}", arg.value))).collect()
    }

    #[test]
    fn a_text_elsewhere_in_the_event_is_found() {
        let event = parse("irq:irq_handler_entry", IRQ);
        let mut bytes = vec![0; 8];
        bytes[..4].copy_from_slice(&7i32.to_ne_bytes());
        bytes[4..].copy_from_slice(&(16u32 | 7 << 16).to_ne_bytes());
        bytes.extend_from_slice(b"nvidia\0");
        let args = event.args(&bytes);
        assert_eq!(args[0].value, Value::Signed(7));
        assert_eq!(args[1].value, Value::Text("nvidia".into()));
        assert_eq!(event.args(&bytes[..8]).len(), 1, "a text that was not read is left out");
    }

    #[test]
    fn fixed_fields_have_their_kinds_and_the_event_its_size() {
        let event = parse("sched:x", SWITCH);
        assert_eq!(event.size, 32);
        let mut bytes = vec![0; 32];
        bytes[..3].copy_from_slice(b"one");
        bytes[16..20].copy_from_slice(&(-3i32).to_ne_bytes());
        bytes[24..32].copy_from_slice(&0xff00u64.to_ne_bytes());
        let expected = [("prev_comm", "Text(\"one\")"), ("prev_pid", "Signed(-3)"), ("where", "Hex(65280)")];
        assert_eq!(
            shown(&event.args(&bytes)),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn hostile_bytes_give_no_field_and_no_panic() {
        let event = parse("irq:irq_handler_entry", IRQ);
        for place in [0u32, 3, u32::MAX, 0xffff_0008, 12 | 60000 << 16] {
            let mut bytes = vec![0; 8];
            bytes[4..].copy_from_slice(&place.to_ne_bytes());
            assert!(event.args(&bytes).len() <= 2);
        }
        assert!(event.args(&[]).is_empty());
    }
}
