//! Figures from the lines of `--kernel`.
//!
//! kernel.jsonl is a hand-made recording that follows the schema: contexts, allocations and a wait with their driver
//! activity, and activity outside any call.

use super::*;

const TRACE: &str = include_str!("kernel.jsonl");

fn kernel_of(figures: &Figures) -> &KernelSpace {
    figures.kernel_space.as_ref().unwrap()
}

fn function<'a>(figures: &'a Figures, name: &str) -> &'a figures::Function {
    figures.functions.iter().find(|f| f.name == name).unwrap()
}

impl Script {
    fn kernel_begin(
        &mut self,
        name: &'static str,
        parent: Option<u64>,
        ioctl: Option<Ioctl<'static>>,
    ) -> u64 {
        self.push(
            0,
            Body::KernelBegin(KernelBegin {
                kind: Kind::Kernel,
                name: name.into(),
                pid: 100,
                tid: 100,
                depth: 0,
                parent,
                ioctl,
                args: None,
                thread: None,
                carried: false,
            }),
        )
    }

    fn ioctl(&mut self, request: &str, command: Option<&str>, parent: Option<u64>) -> u64 {
        let value = |text: &str| Value::Text(Cow::Owned(text.to_owned()));
        let detail = command.map(|c| vec![Arg { name: "command".into(), value: value(c) }]);
        let ioctl = Ioctl {
            device: "nvidiactl".into(),
            cmd: 0xc020_462a,
            request: Cow::Owned(request.to_owned()),
            detail: Args::Named(List::Owned(detail.unwrap_or_default())),
            unknown: request.starts_with("0x"),
        };
        self.kernel_begin("nvidia_ioctl", parent, Some(ioctl))
    }

    fn kernel_end(&mut self, begin: u64, ns: u64, status: Option<&'static str>) {
        let Line { body: Body::KernelBegin(b), ts_ns, .. } = self.lines[begin as usize].clone() else {
            panic!()
        };
        self.push(
            ns,
            Body::KernelEnd(KernelEnd {
                kind: b.kind,
                name: b.name,
                pid: b.pid,
                tid: b.tid,
                begin,
                duration_ns: Some(self.ns + ns - ts_ns),
                retval: Some(Retval::Number(0)),
                status: status.map(Cow::Borrowed),
                error: None,
                out: None,
                ended: EndKind::Returned,
            }),
        );
    }

    fn off_cpu(&mut self, parent: Option<u64>, ns: u64) {
        self.push(
            ns,
            Body::Instant(Instant {
                kind: Kind::Scheduler,
                name: "off_cpu".into(),
                pid: 100,
                tid: 100,
                depth: 0,
                parent,
                cpu: None,
                duration_ns: Some(ns),
                args: None,
            }),
        );
    }
}

#[test]
fn the_trace_made_by_hand_is_true_to_the_schema() {
    let mut reader = Reader::new(TRACE.as_bytes());
    let mut writer = LineWriter::new(Vec::new());
    while let Some(line) = reader.next().unwrap() {
        writer.write(&line).unwrap();
    }
    assert_eq!(reader.notes().sentences(), Vec::<String>::new());
    let written = String::from_utf8(writer.into_inner().unwrap()).unwrap();
    for (written, line) in written.lines().zip(TRACE.lines()) {
        assert_eq!(written, line);
    }
    assert_eq!(written.len(), TRACE.len());
    let end: serde_json::Value = serde_json::from_str(TRACE.lines().last().unwrap()).unwrap();
    let figures = of_file(TRACE.as_bytes());
    assert_eq!(end["summary"], figures.to_json(), "{}", figures.to_json());
}

#[test]
fn live_and_from_the_file_are_the_same_with_the_kernel_too() {
    let mut reader = Reader::new(TRACE.as_bytes());
    let mut summary = Summary::new();
    let mut end = None;
    while let Some(line) = reader.next().unwrap() {
        match line.body {
            Body::Finish(_) => end = Some(line.ts_ns),
            _ => summary.add(&line),
        }
    }
    let live = summary.finish(end.unwrap());
    assert_eq!(live, of_file(TRACE.as_bytes()));
    assert_eq!(Figures::from_json(&live.to_json()).unwrap(), live);
}

#[test]
fn the_text_of_the_kernel_is_as_agreed() {
    golden::check("kernel", &crate::text::print(&of_file(TRACE.as_bytes()), golden::WIDTH));
}

#[test]
fn the_block_comes_with_the_option_or_with_lines() {
    let block = |script: Script| {
        let (live, bytes) = script.finish();
        assert_eq!(of_file(&bytes), live);
        let printed = crate::text::print(&live, UNBOUNDED);
        assert_eq!(
            printed.contains("  Driver (us)"),
            live.kernel_space.is_some() && !live.functions.is_empty()
        );
        printed.contains("KERNEL SPACE (nvidia.ko):\n  IOCTL calls: ")
    };
    assert!(!block(rich()));
    let mut asked = rich();
    let Body::Header(header) = &mut asked.lines[0].body else { panic!() };
    header.hooks.insert("kernel".into(), Layer::default());
    assert!(block(asked));
    let mut seen = rich();
    let ioctl = seen.ioctl("NV_ESC_RM_FREE", None, None);
    seen.kernel_end(ioctl, 1_234_567, Some("NV_OK"));
    let (figures, _) = seen.finish();
    let text =
        "KERNEL SPACE (nvidia.ko):\n  IOCTL calls: 1\n  Total IOCTL time: 1.235 ms\n  Scheduler calls: 0\n";
    assert!(crate::text::print(&figures, 100).contains(text));
}

/// `--metrics` and `--dump-on xid` hook the report of errors alone.
#[test]
fn an_xid_does_not_say_that_anything_else_was_looked_at() {
    let mut s = rich();
    let xid = Xid { pid: 0, tid: 0, xid: 79, message: "GPU lost".into(), device: "0000:01:00".into() };
    s.push(0, Body::Xid(xid));
    let (live, bytes) = s.finish();
    assert_eq!(of_file(&bytes), live);
    assert_eq!(live.kernel_space, None);
    assert_eq!(live.xids().map(|(count, first)| (count, first[0].xid)), Some((1, 79)));
    let printed = crate::text::print(&live, UNBOUNDED);
    assert!(!printed.contains("KERNEL SPACE") && !printed.contains("IOCTL"), "{printed}");
    assert!(printed.contains("Errors that the driver reported (Xid): 1\n"), "{printed}");
    assert_eq!(Figures::from_json(&live.to_json()).unwrap(), live);
}

#[test]
fn only_the_topmost_span_counts_and_every_call_around_it_has_it() {
    let mut s = Script::new();
    let outer = s.begin("cudaMalloc", None);
    let inner = s.begin("cuMemAlloc_v2", Some(outer));
    let ioctl = s.ioctl("NV_ESC_RM_ALLOC", None, Some(inner));
    let function = s.kernel_begin("rm_ioctl", Some(ioctl), None);
    s.kernel_end(function, 700, None);
    s.kernel_end(ioctl, 300, Some("NV_OK"));
    s.end(inner, 50, 0);
    let open = s.kernel_begin("nvidia_open", Some(outer), None);
    s.kernel_end(open, 10, None);
    s.end(outer, 50, 0);
    let alone = s.ioctl("NV_ESC_RM_FREE", None, None);
    s.kernel_end(alone, 5, Some("NV_OK"));
    let (live, bytes) = s.finish();
    assert_eq!(function_ns(&live, "cuMemAlloc_v2"), 1000);
    assert_eq!(function_ns(&live, "cudaMalloc"), 1010);
    assert_eq!((kernel_of(&live).ioctls, kernel_of(&live).ioctl_ns), (2, 1005));
    assert_eq!(of_file(&bytes), live);
}

fn function_ns(figures: &Figures, name: &str) -> u64 {
    function(figures, name).kernel_ns.unwrap()
}

/// The user's own hook around an ioctl takes nothing away from its request.
#[test]
fn an_ioctl_is_reported_whatever_is_around_it() {
    let mut s = Script::new();
    let call = s.begin("cuInit", None);
    let around = s.kernel_begin("ksys_ioctl", Some(call), None);
    let ioctl = s.ioctl("NV_ESC_CARD_INFO", None, Some(around));
    s.kernel_end(ioctl, 800, Some("NV_OK"));
    s.kernel_end(around, 200, None);
    s.end(call, 100, 0);
    let figures = s.finish().0;
    let slow = &kernel_of(&figures).slowest[0];
    assert_eq!((slow.kernel_ns, slow.requests.len()), (1000, 1));
    assert_eq!((slow.requests[0].request.as_str(), slow.requests[0].total_ns), ("NV_ESC_CARD_INFO", 800));
}

#[test]
fn requests_are_kept_apart_by_command_and_come_by_total_time() {
    let mut s = Script::new();
    for (command, ns, status) in [
        ("A", 10, "NV_OK"),
        ("B", 100, "NV_ERR_NOT_SUPPORTED"),
        ("A", 30, "NV_WARN_NOTHING_TO_DO"),
        ("0x20801234", 5, "0x99"),
    ] {
        let ioctl = s.ioctl("NV_ESC_RM_CONTROL", Some(command), None);
        s.kernel_end(ioctl, ns, Some(status));
    }
    let unknown = s.ioctl("0x123", None, None);
    s.kernel_end(unknown, 1, None);
    let (live, bytes) = s.finish();
    let kernel = kernel_of(&live);
    let rows: Vec<_> = kernel
        .requests
        .iter()
        .map(|r| {
            (r.detail.as_deref().unwrap_or(&r.request), r.calls, r.total_ns, r.avg_ns, r.max_ns, r.failed)
        })
        .collect();
    let expected = [
        ("B", 1, 100, 100, 100, 1),
        ("A", 2, 40, 20, 30, 0),
        ("0x20801234", 1, 5, 5, 5, 1),
        ("0x123", 1, 1, 1, 1, 0),
    ];
    assert_eq!(rows, expected);
    assert_eq!(kernel.requests[1].statuses, BTreeMap::from([("NV_WARN_NOTHING_TO_DO".to_owned(), 1)]));
    assert_eq!((kernel.failed_ioctls, kernel.unknown_ioctls), (2, 1));
    assert_eq!(of_file(&bytes), live);
}

#[test]
fn time_off_the_cpu_belongs_to_the_calls_around_it() {
    let mut s = Script::new();
    let call = s.begin("cuCtxSynchronize", None);
    s.off_cpu(Some(call), 400);
    let ioctl = s.ioctl("NV_ESC_RM_FREE", None, Some(call));
    s.off_cpu(Some(ioctl), 50);
    s.kernel_end(ioctl, 10, Some("NV_OK"));
    s.end(call, 10, 0);
    let alone = s.ioctl("NV_ESC_RM_FREE", None, None);
    s.off_cpu(Some(alone), 7);
    s.kernel_end(alone, 10, Some("NV_OK"));
    let (live, bytes) = s.finish();
    let kernel = kernel_of(&live);
    let off = &kernel.off_cpu;
    assert_eq!((off.count, off.total_ns, off.outside_count, off.outside_ns), (2, 450, 1, 7));
    assert_eq!(off.by_state[0].state, "unknown");
    assert_eq!(function(&live, "cuCtxSynchronize").off_cpu_ns, Some(450));
    assert_eq!(function_ns(&live, "cuCtxSynchronize"), 60);
    assert_eq!(kernel.requests[0].off_cpu_ns, 57);
    assert_eq!(kernel.scheduler_calls, 3);
    assert_eq!(of_file(&bytes), live);
}

#[test]
fn of_nested_calls_the_one_that_took_the_time_is_listed() {
    let mut s = Script::new();
    s.ioctl("NV_ESC_RM_FREE", None, None);
    for i in 0..30 {
        s.call("cuMemAlloc_v2", 100 + i, 0);
    }
    // All of its time is in one nested call, and that one's in another.
    let a = s.begin("cudaFree", None);
    let b = s.begin("cudaSetDevice", Some(a));
    let c = s.begin("cuDevicePrimaryCtxRetain", Some(b));
    s.end(c, 1_000_000, 0);
    s.end(b, 1000, 0);
    s.end(a, 1000, 0);
    // Half of the time in each of two.
    let a = s.begin("cudaMemcpy", None);
    for _ in 0..2 {
        let b = s.begin("cuMemcpyHtoD_v2", Some(a));
        s.end(b, 500_000, 0);
    }
    s.end(a, 1000, 0);
    s.call("ncclAllReduce", 9_000_000, 0);
    let figures = s.finish().0;
    let listed: Vec<&str> = kernel_of(&figures).slowest.iter().map(|c| c.function.as_str()).collect();
    assert_eq!(listed.len(), 10);
    assert_eq!(
        listed[..5],
        ["cudaMemcpy", "cuDevicePrimaryCtxRetain", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2", "cuMemAlloc_v2"]
    );
    let slowest: Vec<u64> = kernel_of(&figures).slowest[4..].iter().map(|c| c.duration_ns).collect();
    assert_eq!(slowest, [129, 128, 127, 126, 125, 124]);
}

#[test]
fn a_call_with_many_requests_keeps_what_matters() {
    let mut s = Script::new();
    let call = s.begin("cuInit", None);
    for i in 0..1000u64 {
        let command = format!("C{i}");
        let ioctl = s.ioctl("NV_ESC_RM_CONTROL", Some(&command), Some(call));
        s.kernel_end(ioctl, if i == 200 { 90_000 } else { 10 }, Some("NV_OK"));
    }
    s.end(call, 10, 0);
    let (live, bytes) = s.finish();
    let slow = &kernel_of(&live).slowest[0];
    assert_eq!(slow.requests[0].detail.as_deref(), Some("C200"));
    assert_eq!((slow.requests.len() as u64 + slow.more_calls, slow.kernel_ns), (1000, 90_000 + 999 * 10));
    let listed: u64 = slow.requests.iter().map(|r| r.total_ns).sum();
    assert_eq!(listed + slow.more_ns, slow.kernel_ns);
    assert_eq!((kernel_of(&live).requests.len(), kernel_of(&live).more_requests), (500, 500));
    assert_eq!(of_file(&bytes), live);
    assert!(crate::text::print(&live, 100).contains("and 975 more requests"));
}

#[test]
fn what_did_not_come_back_is_in_flight() {
    let mut s = Script::new();
    let call = s.begin("cuCtxSynchronize", None);
    let ioctl = s.ioctl("NV_ESC_RM_FREE", None, Some(call));
    let (live, bytes) = s.finish();
    let flying: Vec<(&str, u64)> = live.in_flight.iter().map(|f| (f.name.as_str(), f.begin)).collect();
    assert_eq!(flying, [("cuCtxSynchronize", call), ("nvidia_ioctl", ioctl)]);
    assert_eq!(of_file(&bytes), live);
}

/// A file may contain anything: cycles of parents must not be followed forever.
#[test]
fn odd_lines_do_no_harm() {
    let mut s = Script::new();
    let selfish = s.ioctl("NV_ESC_RM_FREE", None, Some(1));
    s.kernel_end(selfish, 10, None);
    let later = s.ioctl("NV_ESC_RM_FREE", None, Some(5));
    s.kernel_end(later, 10, None);
    s.kernel_end(later, 10, None);
    let mut parent = None;
    for _ in 0..1000 {
        parent = Some(s.begin("cuInit", parent));
    }
    let deep = s.ioctl("NV_ESC_RM_FREE", None, parent);
    s.off_cpu(Some(deep), u64::from(u32::MAX));
    s.kernel_end(deep, 10, None);
    let (live, bytes) = s.finish();
    let kernel = kernel_of(&live);
    assert_eq!((kernel.ioctls, kernel.unmatched_ends), (3, 1));
    // The reader of a file also checks facts that a recorder guarantees.
    let read = of_file(&bytes);
    assert_eq!(read.notes, ["line 6 ends a call that did not begin in its thread"]);
    assert_eq!(read.unknown["kernel_launches"], "the trace is damaged");
    let (notes, unknown) = (read.notes.clone(), read.unknown.clone());
    assert!(!read.complete && read == Figures { complete: false, notes, unknown, ..live.clone() });
    crate::text::print(&live, 0);
}

#[test]
fn many_refusals_are_reported_by_reason() {
    let mut s = rich();
    let Body::Header(header) = &mut s.lines[0].body else { panic!() };
    let mut refused: Vec<RefusedHook> =
        (0..50).map(|i| refused(&format!("rm_function_{i}"), "kprobes are off in this kernel")).collect();
    refused.extend((0..30).map(|i| super::refused(&format!("odd_{i}"), &format!("reason {i:02}"))));
    header.hooks.insert("kernel".into(), Layer { refused, ..Layer::default() });
    let printed = crate::text::print(&s.finish().0, 100);
    let section: Vec<&str> =
        printed.split("Not hooked:\n").nth(1).unwrap().split("\n\n").next().unwrap().lines().collect();
    assert!(section[0].starts_with("  50 in the kernel (rm_function_0, rm_function_1, "), "{section:?}");
    assert!(section.iter().any(|line| line.contains("kprobes are off in this kernel")));
    assert!(section.last().unwrap().contains("13 more for 13 other reasons"), "{section:?}");
    assert!(section.len() < 30);
}

#[test]
fn xids_are_listed_up_to_a_hundred() {
    let mut s = Script::new();
    for i in 0..150 {
        let xid = Xid {
            pid: 0,
            tid: 0,
            xid: 79,
            message: "fell off\x1b[2J the bus\n".into(),
            device: "0000:3b:00.0".into(),
        };
        s.push(i, Body::Xid(xid));
    }
    let (live, bytes) = s.finish();
    assert_eq!(live.xids().map(|(count, first)| (count, first.len())), Some((150, 100)));
    assert_eq!(of_file(&bytes), live);
    let printed = crate::text::print(&live, 100);
    assert!(printed.contains("(Xid): 150\n  0.000000000 s  Xid 79 on 0000:3b:00.0: fell off"), "{printed}");
    assert!(!printed.contains('\x1b') && printed.contains("and 135 more Xids"));
}
