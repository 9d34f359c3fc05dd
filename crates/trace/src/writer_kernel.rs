//! The frequent lines of `--kernel`, formatted by hand into the writer's buffer.

use super::args::Args;
use super::event::{Ended, Line};
use super::json;
use super::kernel::{Instant, Ioctl, KernelBegin, KernelEnd, Kind};
use super::writer::{place, retval};

pub fn begin(out: &mut Vec<u8>, line: &Line, begin: &KernelBegin) {
    head(out, line, begin.kind, &begin.name);
    thread(out, b",\"phase\":\"B\",\"pid\":", begin.pid, begin.tid);
    nesting(out, begin.depth, begin.parent);
    if let Some(asked) = &begin.ioctl {
        ioctl(out, asked);
    }
    optional(out, b",\"args\":", begin.args.as_ref());
    if let Some(name) = &begin.thread {
        out.extend_from_slice(b",\"thread\":");
        json::string(out, name);
    }
    out.push(b'}');
}

pub fn end(out: &mut Vec<u8>, line: &Line, end: &KernelEnd) {
    head(out, line, end.kind, &end.name);
    thread(out, b",\"phase\":\"E\",\"pid\":", end.pid, end.tid);
    out.extend_from_slice(b",\"begin\":");
    json::number(out, end.begin);
    duration(out, end.duration_ns);
    retval(out, end.retval);
    if let Some(status) = &end.status {
        out.extend_from_slice(b",\"status\":");
        json::string(out, status);
    }
    if let Some(error) = &end.error {
        out.extend_from_slice(b",\"error\":");
        json::string(out, error);
    }
    optional(out, b",\"out\":", end.out.as_ref());
    match end.ended {
        Ended::Returned | Ended::NotWatched => {}
        Ended::Unwound => out.extend_from_slice(b",\"unwound\":true"),
        Ended::Lost => out.extend_from_slice(b",\"lost\":true"),
    }
    out.push(b'}');
}

pub fn instant(out: &mut Vec<u8>, line: &Line, instant: &Instant) {
    head(out, line, instant.kind, &instant.name);
    thread(out, b",\"pid\":", instant.pid, instant.tid);
    nesting(out, instant.depth, instant.parent);
    if let Some(cpu) = instant.cpu {
        out.extend_from_slice(b",\"cpu\":");
        json::number(out, u64::from(cpu));
    }
    duration(out, instant.duration_ns);
    optional(out, b",\"args\":", instant.args.as_ref());
    out.push(b'}');
}

fn head(out: &mut Vec<u8>, line: &Line, kind: Kind, name: &str) {
    place(out, line);
    out.extend_from_slice(b",\"type\":\"");
    out.extend_from_slice(kind.name().as_bytes());
    out.extend_from_slice(b"\",\"name\":");
    json::string(out, name);
}

fn thread(out: &mut Vec<u8>, before: &[u8], pid: u32, tid: u32) {
    out.extend_from_slice(before);
    json::number(out, u64::from(pid));
    out.extend_from_slice(b",\"tid\":");
    json::number(out, u64::from(tid));
}

fn nesting(out: &mut Vec<u8>, depth: u32, parent: Option<u64>) {
    out.extend_from_slice(b",\"depth\":");
    json::number(out, u64::from(depth));
    if let Some(parent) = parent {
        out.extend_from_slice(b",\"parent\":");
        json::number(out, parent);
    }
}

fn ioctl(out: &mut Vec<u8>, ioctl: &Ioctl) {
    out.extend_from_slice(b",\"device\":");
    json::string(out, &ioctl.device);
    out.extend_from_slice(b",\"cmd\":");
    json::hex(out, ioctl.cmd);
    out.extend_from_slice(b",\"request\":");
    json::string(out, &ioctl.request);
    if !ioctl.detail.is_empty() {
        optional(out, b",\"detail\":", Some(&ioctl.detail));
    }
    if ioctl.unknown {
        out.extend_from_slice(b",\"unknown\":true");
    }
}

fn duration(out: &mut Vec<u8>, ns: Option<u64>) {
    if let Some(ns) = ns {
        out.extend_from_slice(b",\"duration_us\":");
        json::micros(out, ns);
    }
}

fn optional(out: &mut Vec<u8>, before: &[u8], values: Option<&Args>) {
    if let Some(values) = values {
        out.extend_from_slice(before);
        values.write_json(out);
    }
}
