//! Parses one line into an event. Keys and types that a newer gpurec added are skipped and counted, never an error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::args::Args;
use super::event::{
    Begin, Body, End, Ended, Header, Launch, Line, Memory, Op, Process, Retval, SCHEMA, Transfer, Unknown,
    Where,
};
use super::kernel::{Instant, Ioctl, KernelBegin, KernelEnd, Kind};
use super::value::{Text, Value};

/// An event, and the number of unknown keys in its line.
pub struct Parsed<'a> {
    pub line: Line<'a>,
    pub unknown_keys: u64,
}

/// Parses a line of any program, or of a newer gpurec.
pub fn any_order(text: &[u8]) -> Result<Parsed<'_>, String> {
    let exact_ts = exact_ts(text);
    let fields = read_fields(text, exact_ts.is_some()).map_err(why)?;
    let event_id = fields.event_id.ok_or("it has no event_id")?;
    let ts_ns = exact_ts.or(fields.ts.map(to_ns)).ok_or("it has no ts")?;
    let kind = fields.kind.as_deref().ok_or("it has no type")?;
    let (body, unknown_keys) = match kind {
        "userspace" => {
            let unknown_keys = fields.unknown_keys;
            (call(fields)?, unknown_keys)
        }
        "kernel" | "scheduler" => {
            let unknown_keys = fields.unknown_keys;
            (driver(fields)?, unknown_keys)
        }
        "memory" => (Body::Memory(memory(fields, text)?), 0),
        "transfer" => (Body::Transfer(transfer(fields, text)?), 0),
        _ => (cold(text, fields)?, 0),
    };
    Ok(Parsed { line: Line { event_id, ts_ns, body }, unknown_keys })
}

/// `type` comes third in a line that gpurec wrote, so the meaning of the keys after it is known. In other lines, whose
/// keys some program may have sorted, this looks for it first.
fn read_fields(text: &[u8], ours: bool) -> serde_json::Result<Fields<'_>> {
    #[derive(serde::Deserialize)]
    struct Type<'a> {
        #[serde(borrow)]
        r#type: Option<Cow<'a, str>>,
    }
    let mut keys = Keys::Other;
    if !ours && let Some(kind) = serde_json::from_slice::<Type>(text)?.r#type {
        keys = Keys::of(&kind);
    }
    let mut from = serde_json::Deserializer::from_slice(text);
    let fields = FieldsVisitor(keys).deserialize(&mut from)?;
    from.end()?;
    Ok(fields)
}

fn call(fields: Fields) -> Result<Body, String> {
    let name = fields.name.ok_or("it has no name")?;
    let pid = fields.pid.ok_or("it has no pid")?;
    let tid = fields.tid.ok_or("it has no tid")?;
    match fields.phase.as_deref() {
        Some("B") => Ok(Body::Begin(Begin {
            name,
            pid,
            tid,
            depth: fields.depth.unwrap_or(0),
            parent: fields.parent,
            args: fields.args.unwrap_or_default(),
            launch: fields.launch,
            no_return: fields.no_return,
        })),
        Some("E") => Ok(Body::End(End {
            name,
            pid,
            tid,
            begin: fields.begin.ok_or("it has no begin")?,
            duration_ns: fields.duration_us.map(|us| (us * 1e3).round() as u64),
            paused_ns: fields.paused_us.map_or(0, |us| (us * 1e3).round() as u64),
            retval: fields.retval,
            error: fields.error,
            out: fields.out,
            late: fields.args,
            ended: fields.ended,
        })),
        _ => Err("its phase is neither B nor E".to_string()),
    }
}

/// A line of `--kernel`.
fn driver(fields: Fields) -> Result<Body, String> {
    let kind = fields.kind.as_deref().and_then(Kind::of).ok_or("it has no type")?;
    let name = fields.name.ok_or("it has no name")?;
    let pid = fields.pid.ok_or("it has no pid")?;
    let tid = fields.tid.ok_or("it has no tid")?;
    let keys = fields.driver.map(|keys| *keys).unwrap_or_default();
    let (depth, parent, args) = (fields.depth.unwrap_or(0), fields.parent, fields.args);
    let duration_ns = fields.duration_us.map(|us| (us * 1e3).round() as u64);
    Ok(match fields.phase.as_deref() {
        Some("B") => {
            let ioctl = keys.request.map(|request| Ioctl {
                device: keys.device.unwrap_or_default(),
                cmd: keys.cmd,
                request,
                detail: keys.detail.unwrap_or_default(),
                unknown: keys.unknown,
            });
            let thread = keys.thread;
            Body::KernelBegin(KernelBegin { kind, name, pid, tid, depth, parent, ioctl, args, thread })
        }
        Some("E") => Body::KernelEnd(KernelEnd {
            kind,
            name,
            pid,
            tid,
            begin: fields.begin.ok_or("it has no begin")?,
            duration_ns,
            retval: fields.retval,
            status: keys.status,
            error: fields.error,
            out: fields.out,
            ended: fields.ended,
        }),
        None => {
            Body::Instant(Instant { kind, name, pid, tid, depth, parent, cpu: keys.cpu, duration_ns, args })
        }
        Some(_) => return Err("its phase is neither B nor E".to_string()),
    })
}

/// A pointer: a hex string, or a number if another program wrote it.
struct Pointer(u64);

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::Hex(n) | Value::Number(n) => Ok(Pointer(n)),
            _ => Err(serde::de::Error::custom("a pointer is neither hex nor a number")),
        }
    }
}

#[derive(serde::Deserialize)]
struct MemoryKeys<'a> {
    pid: u32,
    tid: u32,
    begin: u64,
    device: Option<u32>,
    context: Option<Pointer>,
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    space: Cow<'a, str>,
    ptr: Pointer,
    size: Option<u64>,
    freed: Option<u64>,
    total_allocated: Option<u64>,
    #[serde(default)]
    earlier: bool,
    #[serde(default)]
    missed: bool,
    #[serde(default)]
    runtime: bool,
}

fn memory<'a>(fields: Fields<'a>, text: &'a [u8]) -> Result<Memory<'a>, String> {
    let keys: MemoryKeys = serde_json::from_slice(text).map_err(why)?;
    let (op, size) = match keys.op.as_ref() {
        "alloc" => (Op::Alloc, keys.size),
        "free" => (Op::Free, keys.freed),
        _ => return Err("its op is neither alloc nor free".to_string()),
    };
    Ok(Memory {
        name: fields.name.ok_or("it has no name")?,
        pid: keys.pid,
        tid: keys.tid,
        begin: keys.begin,
        on: Where { device: keys.device, context: keys.context.map(|context| context.0) },
        op,
        space: keys.space,
        ptr: keys.ptr.0,
        size,
        total_allocated: keys.total_allocated,
        earlier: keys.earlier,
        missed: keys.missed,
        runtime: keys.runtime,
    })
}

#[derive(serde::Deserialize)]
struct TransferKeys<'a> {
    pid: u32,
    tid: u32,
    begin: u64,
    device: Option<u32>,
    context: Option<Pointer>,
    #[serde(borrow)]
    direction: Cow<'a, str>,
    size: u64,
    #[serde(rename = "async", default)]
    is_async: bool,
    #[serde(default)]
    partial: bool,
    #[serde(default)]
    pageable: bool,
    duration_us: Option<f64>,
}

fn transfer<'a>(fields: Fields<'a>, text: &'a [u8]) -> Result<Transfer<'a>, String> {
    let keys: TransferKeys = serde_json::from_slice(text).map_err(why)?;
    Ok(Transfer {
        name: fields.name.ok_or("it has no name")?,
        pid: keys.pid,
        tid: keys.tid,
        begin: keys.begin,
        on: Where { device: keys.device, context: keys.context.map(|context| context.0) },
        direction: keys.direction,
        size: keys.size,
        partial: keys.partial,
        is_async: keys.is_async,
        pageable: keys.pageable,
        duration_ns: keys.duration_us.map(|us| (us * 1e3).round() as u64),
    })
}

/// Parses the rare types: reads the line again as its own type.
fn cold<'a>(text: &'a [u8], fields: Fields<'a>) -> Result<Body<'a>, String> {
    fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
        serde_json::from_slice(text).map_err(why)
    }
    let name = fields.name.unwrap_or_default();
    let kind = fields.kind.unwrap_or_default();
    Ok(match (kind.as_ref(), name.as_ref()) {
        ("header", _) => Body::Header(read(text).or_else(|reason| newer_header(text).ok_or(reason))?),
        ("process", "exec") => Body::Process(Process::Exec(read(text)?)),
        ("process", "found") => Body::Process(Process::Found(read(text)?)),
        ("process", "fork") => Body::Process(Process::Fork(read(text)?)),
        ("process", "exit") => Body::Process(Process::Exit(read(text)?)),
        ("process", "library") => Body::Process(Process::Library(read(text)?)),
        ("xid", _) => Body::Xid(read(text)?),
        ("lost", _) => Body::Lost(read(text)?),
        ("budget", _) => Body::Budget(read(text)?),
        ("suspend", _) => Body::Suspend(read(text)?),
        ("end", _) => Body::Finish(read(text)?),
        _ => Body::Unknown(Unknown { kind, name }),
    })
}

/// A header of a newer gpurec. Only the fact that it is newer matters.
fn newer_header(text: &[u8]) -> Option<Box<Header>> {
    #[derive(serde::Deserialize)]
    struct Schema {
        schema: u32,
    }
    let Schema { schema } = serde_json::from_slice(text).ok()?;
    (schema > SCHEMA).then(|| Box::new(Header { schema, ..Header::default() }))
}

/// The error without the parser's line count: its input has only one line.
fn why(error: serde_json::Error) -> String {
    let said = error.to_string();
    match said.split_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} in column {column}"),
        None => said,
    }
}

fn to_ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// The time as this program writes it, digit by digit, because a double holds nanoseconds exactly for 26 days only.
/// None if another program wrote it.
fn exact_ts(text: &[u8]) -> Option<u64> {
    let rest = text.strip_prefix(b"{\"event_id\":")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut rest = rest.get(digits..)?.strip_prefix(b",\"ts\":")?.iter();
    let mut ns = 0u64;
    let mut decimals = None;
    for byte in rest.by_ref() {
        match (byte, decimals) {
            (b'0'..=b'9', _) => {
                ns = ns.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                decimals = decimals.map(|d| d + 1);
            }
            (b'.', None) => decimals = Some(0),
            (b',', Some(9)) => return Some(ns),
            _ => return None,
        }
    }
    None
}

/// The keys of the frequent lines, in any order.
#[derive(Default)]
struct Fields<'a> {
    event_id: Option<u64>,
    ts: Option<f64>,
    kind: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    phase: Option<Cow<'a, str>>,
    pid: Option<u32>,
    tid: Option<u32>,
    depth: Option<u32>,
    parent: Option<u64>,
    args: Option<Args<'a>>,
    launch: Option<Launch<'a>>,
    out: Option<Args<'a>>,
    begin: Option<u64>,
    duration_us: Option<f64>,
    paused_us: Option<f64>,
    retval: Option<Retval>,
    error: Option<Cow<'a, str>>,
    ended: Ended,
    no_return: Option<Cow<'a, str>>,
    /// Boxed, so that calls do not carry them.
    driver: Option<Box<DriverKeys<'a>>>,
    keys: Keys,
    unknown_keys: u64,
}

/// The meaning of a line's keys.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Keys {
    Call,
    Kernel,
    /// The line is read again as its own type.
    #[default]
    Other,
}

impl Keys {
    fn of(kind: &str) -> Keys {
        match kind {
            "userspace" => Keys::Call,
            "kernel" | "scheduler" => Keys::Kernel,
            _ => Keys::Other,
        }
    }
}

/// The keys that only lines of `--kernel` have.
#[derive(Default)]
struct DriverKeys<'a> {
    device: Option<Cow<'a, str>>,
    cmd: u64,
    request: Option<Cow<'a, str>>,
    detail: Option<Args<'a>>,
    unknown: bool,
    thread: Option<Cow<'a, str>>,
    status: Option<Cow<'a, str>>,
    cpu: Option<u32>,
}

impl<'a> Fields<'a> {
    fn launched(&mut self) -> &mut Launch<'a> {
        self.launch.get_or_insert_default()
    }

    fn driver(&mut self) -> &mut DriverKeys<'a> {
        self.driver.get_or_insert_default()
    }
}

struct FieldsVisitor(Keys);

impl<'de> DeserializeSeed<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Fields<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields { keys: self.0, ..Fields::default() };
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "event_id" => fields.event_id = Some(map.next_value()?),
                "ts" => fields.ts = Some(map.next_value()?),
                "type" => {
                    let Text(kind) = map.next_value()?;
                    fields.keys = Keys::of(&kind);
                    fields.kind = Some(kind);
                }
                "name" => fields.name = Some(map.next_value::<Text>()?.0),
                _ if fields.keys != Keys::Other => call_key(&mut fields, &key, &mut map)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

fn call_key<'de, A: MapAccess<'de>>(
    fields: &mut Fields<'de>,
    key: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    match key {
        "phase" => fields.phase = Some(map.next_value::<Text>()?.0),
        "pid" => fields.pid = Some(map.next_value()?),
        "tid" => fields.tid = Some(map.next_value()?),
        "depth" => fields.depth = Some(map.next_value()?),
        "parent" => fields.parent = map.next_value()?,
        "args" => fields.args = Some(map.next_value()?),
        "begin" => fields.begin = Some(map.next_value()?),
        "duration_us" => fields.duration_us = map.next_value()?,
        "paused_us" => fields.paused_us = map.next_value()?,
        "retval" => fields.retval = retval(map.next_value()?),
        "error" => fields.error = Some(map.next_value::<Text>()?.0),
        "unwound" if map.next_value()? => fields.ended = Ended::Unwound,
        "lost" if map.next_value()? => fields.ended = Ended::Lost,
        "unwound" | "lost" => {}
        "no_return" => fields.no_return = Some(map.next_value::<Text>()?.0),
        "out" => fields.out = Some(map.next_value()?),
        "kernel" => fields.launched().kernel = Some(map.next_value::<Text>()?.0),
        "grid" => fields.launched().grid = map.next_value()?,
        "block" => fields.launched().block = map.next_value()?,
        "shared" => fields.launched().shared = map.next_value()?,
        "stream" => fields.launched().stream = Some(map.next_value::<Pointer>()?.0),
        "cluster" => fields.launched().cluster = map.next_value()?,
        "cooperative" => fields.launched().cooperative = map.next_value()?,
        "nodes" => fields.launched().nodes = map.next_value()?,
        _ if fields.keys == Keys::Kernel => driver_key(fields, key, map)?,
        "device" => fields.launched().on.device = map.next_value()?,
        "context" => fields.launched().on.context = Some(map.next_value::<Pointer>()?.0),
        _ => unknown_key(fields, map)?,
    }
    Ok(())
}

fn driver_key<'de, A: MapAccess<'de>>(
    fields: &mut Fields<'de>,
    key: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    match key {
        "device" => fields.driver().device = Some(map.next_value::<Text>()?.0),
        "cmd" => fields.driver().cmd = map.next_value::<Pointer>()?.0,
        "request" => fields.driver().request = Some(map.next_value::<Text>()?.0),
        "detail" => fields.driver().detail = Some(map.next_value()?),
        "unknown" => fields.driver().unknown = map.next_value()?,
        "thread" => fields.driver().thread = Some(map.next_value::<Text>()?.0),
        "status" => fields.driver().status = Some(map.next_value::<Text>()?.0),
        "cpu" => fields.driver().cpu = map.next_value()?,
        _ => unknown_key(fields, map)?,
    }
    Ok(())
}

fn unknown_key<'de, A: MapAccess<'de>>(fields: &mut Fields<'de>, map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>()?;
    fields.unknown_keys += 1;
    Ok(())
}

fn retval(value: Value) -> Option<Retval> {
    match value {
        Value::Hex(p) => Some(Retval::Pointer(p)),
        Value::Signed(n) => Some(Retval::Number(n)),
        Value::Number(n) => i64::try_from(n).ok().map(Retval::Number),
        _ => None,
    }
}
