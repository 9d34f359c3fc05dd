//! What serde_json writes for the same line. serde_json cannot keep a fixed number of decimals, so times are inserted
//! afterwards.

use super::*;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

#[derive(Serialize)]
struct Hot<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    phase: &'a str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Object<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cooperative: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_return: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    carried: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_us: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_us: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retval: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<Object<'a>>,
    #[serde(rename = "args", skip_serializing_if = "Option::is_none")]
    late: Option<Object<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unwound: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<bool>,
}

/// Keeps the given order, which serde_json::Value does not.
pub struct Object<'a>(Vec<(&'a str, Any<'a>)>);

pub enum Any<'a> {
    Hex(u64),
    Value(&'a Value<'a>),
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Any<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Any::Hex(n) | Any::Value(Value::Hex(n)) => to.serialize_str(&format!("{n:#x}")),
            Any::Value(Value::Null) => to.serialize_unit(),
            Any::Value(Value::Bool(b)) => to.serialize_bool(*b),
            Any::Value(Value::Number(n)) => to.serialize_u64(*n),
            Any::Value(Value::Signed(n)) => to.serialize_i64(*n),
            Any::Value(Value::Float(n)) => to.serialize_f64(*n),
            Any::Value(Value::Text(t)) => to.serialize_str(t),
            Any::Value(Value::Array(items)) => to.collect_seq(items.iter().map(Any::Value)),
            Any::Value(Value::Object(items)) => object(items).serialize(to),
        }
    }
}

fn object<'a>(args: &'a [Arg<'a>]) -> Object<'a> {
    let pair = |arg: &'a Arg| (arg.name.as_ref(), Any::Value(&arg.value));
    Object(args.iter().map(pair).collect())
}

pub fn of_args<'a>(args: &'a Args<'a>) -> Object<'a> {
    match args {
        Args::Raw(raw) => {
            let names = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];
            let hex = raw.iter().map(|n| Any::Hex(*n));
            Object(names.into_iter().zip(hex).collect())
        }
        Args::Named(args) => object(args),
        Args::Json(_) => unreachable!("only a reader makes one"),
    }
}

#[derive(Serialize)]
struct OfMemory<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    op: &'a str,
    space: &'a str,
    ptr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_allocated: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    earlier: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    runtime: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    carried: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<u64>,
}

#[derive(Serialize)]
struct OfTransfer<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    pid: u32,
    tid: u32,
    begin: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    direction: &'a str,
    size: u64,
    r#async: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pageable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_us: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_sec: Option<u64>,
}

#[derive(Serialize)]
struct OfBlock<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u64>,
    op: &'a str,
    ptr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<u64>,
}

#[derive(Serialize)]
struct OfCollective<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    pid: u32,
    tid: u32,
    begin: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nranks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redop: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pseq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u64>,
}

#[derive(Serialize)]
struct OfGpu<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    kind: &'a str,
    source: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<u64>,
    stream: u32,
    device: u32,
    context: u32,
    correlation: u32,
    begin: Option<u64>,
    duration_us: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_us: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u64>,
}

fn collective(event_id: u64, c: &Collective) -> String {
    let collective = OfCollective {
        event_id,
        ts: "TS",
        r#type: "collective",
        name: &c.name,
        pid: c.pid,
        tid: c.tid,
        begin: c.begin,
        comm: c.comm.as_deref(),
        rank: c.rank,
        nranks: c.nranks,
        seq: c.seq,
        op: &c.op,
        count: c.count,
        dtype: c.dtype.as_deref(),
        bytes: c.bytes,
        stream: c.stream.map(|stream| format!("{stream:#x}")),
        root: c.root,
        redop: c.redop.as_deref(),
        peer: c.peer,
        pseq: c.pseq,
        group: c.group,
    };
    serde_json::to_string(&collective).unwrap()
}

fn gpu(event_id: u64, g: &Gpu) -> String {
    let gpu = OfGpu {
        event_id,
        ts: "TS",
        r#type: "gpu",
        name: &g.name,
        kind: g.kind.name(),
        source: g.source.name(),
        pid: g.pid,
        device: g.device,
        context: g.context,
        stream: g.stream,
        correlation: g.correlation,
        begin: g.begin,
        duration_us: "DURATION",
        queued_us: g.queued_ns.map(|_| "QUEUED"),
        grid: g.grid,
        block: g.block,
        registers: g.registers,
        shared: g.shared,
        direction: g.direction.as_deref(),
        size: g.size,
        graph: g.graph,
        node: g.node,
    };
    let queued = g.queued_ns.unwrap_or(0);
    let sign = if queued < 0 { "-" } else { "" };
    serde_json::to_string(&gpu).unwrap().replacen("\"DURATION\"", &micros(g.duration_ns), 1).replacen(
        "\"QUEUED\"",
        &format!("{sign}{}", micros(queued.unsigned_abs())),
        1,
    )
}

pub fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn effect(line: &Line) -> Option<String> {
    let event_id = line.event_id;
    Some(match &line.body {
        Body::Memory(m) => {
            let is_free = m.op == Op::Free;
            let memory = OfMemory {
                event_id,
                ts: "TS",
                r#type: "memory",
                name: &m.name,
                pid: m.pid,
                tid: m.tid,
                begin: m.begin,
                device: m.on.device,
                context: m.on.context.map(|context| format!("{context:#x}")),
                op: if is_free { "free" } else { "alloc" },
                space: &m.space,
                ptr: format!("{:#x}", m.ptr),
                size: m.size.filter(|_| !is_free),
                freed: m.size.filter(|_| is_free),
                total_allocated: m.total_allocated,
                earlier: m.earlier,
                missed: m.missed,
                runtime: m.runtime,
                carried: m.carried,
                stack: m.stack,
            };
            serde_json::to_string(&memory).unwrap()
        }
        Body::Transfer(t) => {
            let transfer = OfTransfer {
                event_id,
                ts: "TS",
                r#type: "transfer",
                name: &t.name,
                pid: t.pid,
                tid: t.tid,
                begin: t.begin,
                device: t.on.device,
                context: t.on.context.map(|context| format!("{context:#x}")),
                direction: &t.direction,
                size: t.size,
                r#async: t.is_async,
                partial: t.partial,
                pageable: t.pageable,
                duration_us: t.duration_ns.map(|_| "DURATION"),
                bytes_per_sec: t.bytes_per_sec(),
            };
            let duration = micros(t.duration_ns.unwrap_or(0));
            serde_json::to_string(&transfer).unwrap().replacen("\"DURATION\"", &duration, 1)
        }
        Body::Block(b) => {
            let block = OfBlock {
                event_id,
                ts: "TS",
                r#type: "block",
                name: &b.name,
                pid: b.pid,
                tid: b.tid,
                begin: b.begin,
                op: b.op.name(),
                ptr: format!("{:#x}", b.ptr),
                size: b.size,
                device: b.device,
                stream: b.stream.map(|stream| format!("{stream:#x}")),
                stack: b.stack,
            };
            serde_json::to_string(&block).unwrap()
        }
        Body::Collective(c) => collective(event_id, c),
        Body::Gpu(g) => gpu(event_id, g),
        _ => return None,
    })
}

pub fn line(line: &Line) -> String {
    let ns = line.ts_ns;
    let ts = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    effect(line)
        .or_else(|| by_serde_kernel::line(line))
        .unwrap_or_else(|| call(line))
        .replacen("\"TS\"", &ts, 1)
        + "\n"
}

fn call(line: &Line) -> String {
    let mut hot = Hot {
        event_id: line.event_id,
        ts: "TS",
        r#type: "userspace",
        name: "",
        phase: "B",
        pid: 0,
        tid: 0,
        depth: None,
        parent: None,
        args: None,
        stack: None,
        kernel: None,
        grid: None,
        block: None,
        shared: None,
        stream: None,
        cluster: None,
        cooperative: None,
        nodes: None,
        device: None,
        context: None,
        no_return: None,
        carried: false,
        begin: None,
        duration_us: None,
        paused_us: None,
        retval: None,
        error: None,
        out: None,
        late: None,
        unwound: None,
        lost: None,
    };
    let (mut duration, mut paused) = (String::new(), String::new());
    match &line.body {
        Body::Begin(b) => {
            hot.name = &b.name;
            (hot.pid, hot.tid) = (b.pid, b.tid);
            hot.depth = Some(b.depth);
            hot.parent = b.parent;
            hot.no_return = b.no_return.as_deref();
            hot.carried = b.carried;
            hot.args = Some(of_args(&b.args));
            hot.stack = b.stack;
            if let Some(l) = &b.launch {
                hot.kernel = l.kernel.as_deref();
                (hot.grid, hot.block, hot.cluster) = (l.grid, l.block, l.cluster);
                (hot.shared, hot.nodes) = (l.shared, l.nodes);
                hot.stream = l.stream.map(|s| format!("{s:#x}"));
                hot.cooperative = l.cooperative.then_some(true);
                hot.device = l.on.device;
                hot.context = l.on.context.map(|context| format!("{context:#x}"));
            }
        }
        Body::End(e) => {
            hot.name = &e.name;
            hot.phase = "E";
            (hot.pid, hot.tid) = (e.pid, e.tid);
            hot.begin = Some(e.begin);
            if let Some(ns) = e.duration_ns {
                duration = micros(ns);
                hot.duration_us = Some("DURATION");
            }
            if e.paused_ns > 0 {
                paused = micros(e.paused_ns);
                hot.paused_us = Some("PAUSED");
            }
            hot.retval = e.retval.map(|r| match r {
                Retval::Number(n) => json!(n),
                Retval::Pointer(p) => json!(format!("{p:#x}")),
            });
            hot.error = e.error.as_deref();
            hot.out = e.out.as_ref().map(of_args);
            hot.late = e.late.as_ref().map(of_args);
            hot.unwound = (e.ended == EndKind::Unwound).then_some(true);
            hot.lost = (e.ended == EndKind::Lost).then_some(true);
        }
        _ => unreachable!(),
    }
    let text = serde_json::to_string(&hot).unwrap().replacen("\"DURATION\"", &duration, 1);
    text.replacen("\"PAUSED\"", &paused, 1)
}
