//! What serde_json writes for the lines of `--kernel`.

use super::by_serde::{Object, micros, of_args};
use super::*;
use serde::Serialize;

#[derive(Serialize)]
struct Hot<'a> {
    event_id: u64,
    ts: &'a str,
    r#type: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Object<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_us: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retval: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Object<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    carried: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<Object<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unwound: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

/// None if the line is of another kind.
pub fn line(line: &Line) -> Option<String> {
    let (kind, name, pid, tid) = match &line.body {
        Body::KernelBegin(b) => (b.kind, &b.name, b.pid, b.tid),
        Body::KernelEnd(e) => (e.kind, &e.name, e.pid, e.tid),
        Body::Instant(i) => (i.kind, &i.name, i.pid, i.tid),
        _ => return None,
    };
    let mut hot = Hot {
        event_id: line.event_id,
        ts: "TS",
        r#type: if kind == Kind::Kernel { "kernel" } else { "scheduler" },
        name,
        phase: None,
        pid,
        tid,
        depth: None,
        parent: None,
        device: None,
        cmd: None,
        request: None,
        detail: None,
        unknown: false,
        begin: None,
        cpu: None,
        duration_us: None,
        retval: None,
        status: None,
        error: None,
        args: None,
        thread: None,
        carried: false,
        out: None,
        unwound: false,
        lost: false,
    };
    let mut ns = None;
    match &line.body {
        Body::KernelBegin(b) => {
            hot.phase = Some("B");
            (hot.depth, hot.parent) = (Some(b.depth), b.parent);
            hot.args = b.args.as_ref().map(of_args);
            hot.thread = b.thread.as_deref();
            hot.carried = b.carried;
            if let Some(ioctl) = &b.ioctl {
                hot.device = Some(&ioctl.device);
                hot.cmd = Some(format!("{:#x}", ioctl.cmd));
                hot.request = Some(&ioctl.request);
                hot.detail = Some(of_args(&ioctl.detail)).filter(|_| !ioctl.detail.is_empty());
                hot.unknown = ioctl.unknown;
            }
        }
        Body::KernelEnd(e) => {
            hot.phase = Some("E");
            hot.begin = Some(e.begin);
            ns = e.duration_ns;
            hot.retval = e.retval.map(|r| match r {
                Retval::Number(n) => json!(n),
                Retval::Pointer(p) => json!(format!("{p:#x}")),
            });
            (hot.status, hot.error) = (e.status.as_deref(), e.error.as_deref());
            hot.out = e.out.as_ref().map(of_args);
            (hot.unwound, hot.lost) = (e.ended == EndKind::Unwound, e.ended == EndKind::Lost);
        }
        Body::Instant(i) => {
            (hot.depth, hot.parent, hot.cpu) = (Some(i.depth), i.parent, i.cpu);
            ns = i.duration_ns;
            hot.args = i.args.as_ref().map(of_args);
        }
        _ => {}
    }
    hot.duration_us = ns.map(|_| "DURATION");
    let duration = micros(ns.unwrap_or(0));
    Some(serde_json::to_string(&hot).unwrap().replacen("\"DURATION\"", &duration, 1))
}
