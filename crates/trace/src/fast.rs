//! Parses the frequent lines exactly as writer.rs and writer_kernel.rs write them: the same keys in the same order.
//! Returns `None` for everything else and leaves it to parse.rs, which reads any order and explains errors. Where both
//! have a result, the results are equal (tests/fast.rs); this parser is several times as fast.

use std::borrow::Cow;

use super::args::Args;
use super::event::{Begin, Body, End, Ended, Launch, Line, Memory, Op, Retval, Transfer, Where};
use super::kernel::{Instant, Ioctl, KernelBegin, KernelEnd, Kind};
use super::scan::{Scan, plain};

pub fn line(text: &[u8]) -> Option<Line<'_>> {
    let mut scan = Scan::new(plain(text)?);
    scan.must(b"{\"event_id\":")?;
    let event_id = scan.number()?;
    scan.must(b",\"ts\":")?;
    let ts_ns = scan.seconds()?;
    scan.must(b",\"type\":\"")?;
    let body = body(&mut scan)?;
    scan.must(b"}")?;
    scan.at_end().then_some(Line { event_id, ts_ns, body })
}

#[inline(always)]
fn body<'a>(scan: &mut Scan<'a>) -> Option<Body<'a>> {
    let kind = scan.string()?;
    scan.must(b",\"name\":\"")?;
    let name = scan.string()?;
    match kind {
        "userspace" => call(scan, name),
        "kernel" => driver(scan, Kind::Kernel, name),
        "scheduler" => driver(scan, Kind::Scheduler, name),
        "memory" => memory(scan, name).map(Body::Memory),
        "transfer" => transfer(scan, name).map(Body::Transfer),
        _ => None,
    }
}

/// The process and thread of a line: `,"pid":7,"tid":8`.
#[inline(always)]
fn thread(scan: &mut Scan) -> Option<(u32, u32)> {
    scan.must(b",\"pid\":")?;
    let pid = scan.number32()?;
    scan.must(b",\"tid\":")?;
    Some((pid, scan.number32()?))
}

#[inline(always)]
fn nesting(scan: &mut Scan) -> Option<(u32, Option<u64>)> {
    scan.must(b",\"depth\":")?;
    let depth = scan.number32()?;
    let parent = if scan.eat(b",\"parent\":") { Some(scan.number()?) } else { None };
    Some((depth, parent))
}

#[inline(always)]
fn call<'a>(scan: &mut Scan<'a>, name: &'a str) -> Option<Body<'a>> {
    if scan.eat(b",\"phase\":\"B\"") {
        let (pid, tid) = thread(scan)?;
        let (depth, parent) = nesting(scan)?;
        scan.must(b",\"args\":")?;
        let args = Args::json(scan.object()?);
        let launch = launch(scan)?;
        let no_return = None;
        return Some(Body::Begin(Begin {
            name: name.into(),
            pid,
            tid,
            depth,
            parent,
            args,
            launch,
            no_return,
        }));
    }
    scan.must(b",\"phase\":\"E\"")?;
    let (pid, tid) = thread(scan)?;
    scan.must(b",\"begin\":")?;
    let begin = scan.number()?;
    let duration_ns = duration(scan)?;
    let paused_ns = if scan.eat(b",\"paused_us\":") { scan.micros()? } else { 0 };
    let retval = retval(scan)?;
    let error = if scan.eat(b",\"error\":\"") { Some(scan.string()?.into()) } else { None };
    let (out, late, ended) = (out(scan)?, args(scan)?, ended(scan));
    let name = name.into();
    Some(Body::End(End { name, pid, tid, begin, duration_ns, paused_ns, retval, error, out, late, ended }))
}

/// An absent launch is `Some(None)`.
#[inline(always)]
fn launch<'a>(scan: &mut Scan<'a>) -> Option<Option<Launch<'a>>> {
    if scan.ends() {
        return Some(None);
    }
    let kernel = if scan.eat(b",\"kernel\":\"") { Some(scan.string()?.into()) } else { None };
    let grid = if scan.eat(b",\"grid\":") { Some(triple(scan)?) } else { None };
    let block = if scan.eat(b",\"block\":") { Some(triple(scan)?) } else { None };
    let shared = if scan.eat(b",\"shared\":") { Some(scan.number()?) } else { None };
    let stream = if scan.eat(b",\"stream\":") { Some(scan.hex()?) } else { None };
    let cluster = if scan.eat(b",\"cluster\":") { Some(triple(scan)?) } else { None };
    let cooperative = scan.eat(b",\"cooperative\":true");
    let nodes = if scan.eat(b",\"nodes\":") { Some(scan.number()?) } else { None };
    let on = on(scan)?;
    Some(Some(Launch { kernel, grid, block, shared, stream, cluster, cooperative, nodes, on }))
}

fn on(scan: &mut Scan) -> Option<Where> {
    let device = if scan.eat(b",\"device\":") { Some(scan.number32()?) } else { None };
    let context = if scan.eat(b",\"context\":") { Some(scan.hex()?) } else { None };
    Some(Where { device, context })
}

fn triple(scan: &mut Scan) -> Option<[u32; 3]> {
    scan.must(b"[")?;
    let x = scan.number32()?;
    scan.must(b",")?;
    let y = scan.number32()?;
    scan.must(b",")?;
    let z = scan.number32()?;
    scan.must(b"]")?;
    Some([x, y, z])
}

#[inline(always)]
fn duration(scan: &mut Scan) -> Option<Option<u64>> {
    Some(if scan.eat(b",\"duration_us\":") { Some(scan.micros()?) } else { None })
}

fn retval(scan: &mut Scan) -> Option<Option<Retval>> {
    if !scan.eat(b",\"retval\":") {
        return Some(None);
    }
    if scan.is_string() {
        return Some(Some(Retval::Pointer(scan.hex()?)));
    }
    let negative = scan.eat(b"-");
    let number = i64::try_from(scan.number()?).ok()?;
    match (negative, number) {
        // JSON reads -0 as a double.
        (true, 0) => None,
        (true, n) => Some(Some(Retval::Number(-n))),
        (false, n) => Some(Some(Retval::Number(n))),
    }
}

fn out<'a>(scan: &mut Scan<'a>) -> Option<Option<Args<'a>>> {
    Some(if scan.eat(b",\"out\":") { Some(Args::json(scan.object()?)) } else { None })
}

fn args<'a>(scan: &mut Scan<'a>) -> Option<Option<Args<'a>>> {
    Some(if scan.eat(b",\"args\":") { Some(Args::json(scan.object()?)) } else { None })
}

fn ended(scan: &mut Scan) -> Ended {
    if scan.eat(b",\"unwound\":true") {
        Ended::Unwound
    } else if scan.eat(b",\"lost\":true") {
        Ended::Lost
    } else {
        Ended::Returned
    }
}

#[inline(always)]
fn driver<'a>(scan: &mut Scan<'a>, kind: Kind, name: &'a str) -> Option<Body<'a>> {
    let name = Cow::Borrowed(name);
    if scan.eat(b",\"phase\":\"B\"") {
        let (pid, tid) = thread(scan)?;
        let (depth, parent) = nesting(scan)?;
        let ioctl = ioctl(scan)?;
        let args = args(scan)?;
        let thread = if scan.eat(b",\"thread\":\"") { Some(scan.string()?.into()) } else { None };
        return Some(Body::KernelBegin(KernelBegin {
            kind,
            name,
            pid,
            tid,
            depth,
            parent,
            ioctl,
            args,
            thread,
        }));
    }
    if !scan.eat(b",\"phase\":\"E\"") {
        let (pid, tid) = thread(scan)?;
        let (depth, parent) = nesting(scan)?;
        let cpu = if scan.eat(b",\"cpu\":") { Some(scan.number32()?) } else { None };
        let (duration_ns, args) = (duration(scan)?, args(scan)?);
        return Some(Body::Instant(Instant { kind, name, pid, tid, depth, parent, cpu, duration_ns, args }));
    }
    let (pid, tid) = thread(scan)?;
    scan.must(b",\"begin\":")?;
    let begin = scan.number()?;
    let duration_ns = duration(scan)?;
    let retval = retval(scan)?;
    let status = if scan.eat(b",\"status\":\"") { Some(scan.string()?.into()) } else { None };
    let error = if scan.eat(b",\"error\":\"") { Some(scan.string()?.into()) } else { None };
    let (out, ended) = (out(scan)?, ended(scan));
    Some(Body::KernelEnd(KernelEnd {
        kind,
        name,
        pid,
        tid,
        begin,
        duration_ns,
        retval,
        status,
        error,
        out,
        ended,
    }))
}

#[inline(always)]
fn ioctl<'a>(scan: &mut Scan<'a>) -> Option<Option<Ioctl<'a>>> {
    if !scan.eat(b",\"device\":\"") {
        return Some(None);
    }
    let device = scan.string()?.into();
    scan.must(b",\"cmd\":")?;
    let cmd = scan.hex()?;
    scan.must(b",\"request\":\"")?;
    let request = scan.string()?.into();
    let detail = if scan.eat(b",\"detail\":") { Args::json(scan.object()?) } else { Args::default() };
    let unknown = scan.eat(b",\"unknown\":true");
    Some(Some(Ioctl { device, cmd, request, detail, unknown }))
}

/// The common part of lines that follow from a call.
fn effect(scan: &mut Scan) -> Option<(u32, u32, u64)> {
    let (pid, tid) = thread(scan)?;
    scan.must(b",\"begin\":")?;
    Some((pid, tid, scan.number()?))
}

#[inline(always)]
fn memory<'a>(scan: &mut Scan<'a>, name: &'a str) -> Option<Memory<'a>> {
    let (pid, tid, begin) = effect(scan)?;
    let on = on(scan)?;
    let op = if scan.eat(b",\"op\":\"alloc\"") { Op::Alloc } else { Op::Free };
    if op == Op::Free {
        scan.must(b",\"op\":\"free\"")?;
    }
    scan.must(b",\"space\":\"")?;
    let space = scan.string()?.into();
    scan.must(b",\"ptr\":")?;
    let ptr = scan.hex()?;
    let has_size = match op {
        Op::Alloc => scan.eat(b",\"size\":"),
        Op::Free => scan.eat(b",\"freed\":"),
    };
    let size = if has_size { Some(scan.number()?) } else { None };
    let total_allocated = if scan.eat(b",\"total_allocated\":") { Some(scan.number()?) } else { None };
    let earlier = scan.eat(b",\"earlier\":true");
    let missed = scan.eat(b",\"missed\":true");
    let runtime = scan.eat(b",\"runtime\":true");
    let name = name.into();
    Some(Memory {
        name,
        pid,
        tid,
        begin,
        on,
        op,
        space,
        ptr,
        size,
        total_allocated,
        earlier,
        missed,
        runtime,
    })
}

#[inline(always)]
fn transfer<'a>(scan: &mut Scan<'a>, name: &'a str) -> Option<Transfer<'a>> {
    let (pid, tid, begin) = effect(scan)?;
    let on = on(scan)?;
    scan.must(b",\"direction\":\"")?;
    let direction = scan.string()?.into();
    scan.must(b",\"size\":")?;
    let size = scan.number()?;
    let is_async = scan.eat(b",\"async\":true");
    if !is_async {
        scan.must(b",\"async\":false")?;
    }
    let partial = scan.eat(b",\"partial\":true");
    let pageable = scan.eat(b",\"pageable\":true");
    let duration_ns = duration(scan)?;
    if scan.eat(b",\"bytes_per_sec\":") {
        scan.number()?;
    }
    let name = name.into();
    Some(Transfer { name, pid, tid, begin, on, direction, size, partial, is_async, pageable, duration_ns })
}
