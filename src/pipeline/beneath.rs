//! Records from inside Linux → lines. In: calls, returns and instants that BPF saw beneath the program, with the
//! meaning of their probe. Out: the contents of the lines. `gpurec_nvidia` decodes requests; this file knows only the
//! wire's layout.

use std::borrow::Cow;
use std::collections::HashMap;

use nix::errno::Errno;

use super::decode::{self, Captured, Item, What};
use super::pair::{Open, Outcome};
use crate::probe::Beneath;
use crate::probe::kernel::Target;
use crate::process::proc;
use gpurec_cuda::raw::Piece;
use gpurec_nvidia::hooks::Returns;
use gpurec_nvidia::{self as nvidia, Decoder, Device, Family, PendingIoctl};
use gpurec_trace::{
    Arg, Args, Body, EndKind, Instant, Ioctl, KernelBegin, KernelEnd, Kind, List, Retval, Value, Xid, lossy,
};

/// The most pieces of memory behind a record.
const PIECES: usize = 4;

pub struct Below {
    decoder: Decoder,
    /// What the end of an ioctl needs from its begin, by the begin's id.
    pending: HashMap<u64, PendingIoctl>,
    /// Names of kernel threads.
    threads: HashMap<u32, String>,
}

impl Below {
    pub fn new(driver: Option<&str>) -> Below {
        Below { decoder: Decoder::new(driver), pending: HashMap::new(), threads: HashMap::new() }
    }

    /// `id` is the event_id that the line will get.
    pub fn begin<'a>(
        &mut self,
        what: &Beneath,
        name: &'a str,
        id: u64,
        call: &Open,
        captured: &Captured,
    ) -> Body<'a> {
        let mut begin = KernelBegin {
            kind: kind(what),
            name: name.into(),
            pid: call.pid,
            tid: call.tid,
            depth: call.depth,
            parent: call.parent,
            ioctl: None,
            args: None,
            thread: call.origin.kernel_thread.then(|| self.thread(call.tid)),
            carried: false,
        };
        match what {
            Beneath::Ioctl => begin.ioctl = Some(self.ioctl(id, call, captured)),
            _ => begin.args = arguments(what, captured),
        }
        Body::KernelBegin(begin)
    }

    pub fn end<'a>(
        &mut self,
        what: &Beneath,
        name: &'a str,
        ts: u64,
        call: &Open,
        outcome: Outcome,
        pieces: &[u8],
    ) -> Body<'a> {
        let mut end = KernelEnd {
            kind: kind(what),
            name: name.into(),
            pid: call.pid,
            tid: call.tid,
            begin: call.id,
            duration_ns: (outcome != Outcome::Lost).then_some(ts.saturating_sub(call.ts)),
            retval: None,
            status: None,
            error: None,
            out: None,
            ended: EndKind::Returned,
        };
        let pending = self.pending.remove(&call.id);
        let Outcome::Returned(value) = outcome else {
            end.ended = EndKind::Lost;
            return Body::KernelEnd(end);
        };
        let mut slots = [None; PIECES];
        let pieces = taken(decode::pieces(pieces), &mut slots);
        match what {
            Beneath::Ioctl => {
                number_or_errno(&mut end, value as i64);
                if let Some(pending) = pending {
                    let payload = pieces.first().copied().flatten();
                    let status = pieces.get(1).copied().flatten().and_then(|bytes| bytes.try_into().ok());
                    let done =
                        self.decoder.end(&pending, value as i64, payload, status.map(u32::from_ne_bytes));
                    (end.status, end.out) = (done.status, named(done.out));
                }
            }
            Beneath::Function(target) => self.returned(&mut end, target, value, pieces),
            Beneath::Open | Beneath::Close | Beneath::Poll => number_or_errno(&mut end, value as i64),
            Beneath::Mmap if errno(value as i64).is_some() => number_or_errno(&mut end, value as i64),
            _ => end.retval = Some(Retval::Pointer(value)),
        }
        Body::KernelEnd(end)
    }

    /// Number of driver objects whose class was forgotten because there were too many.
    pub fn forgotten(&self) -> u64 {
        self.decoder.forgotten()
    }

    pub fn forget(&mut self, call: &Open) {
        self.pending.remove(&call.id);
    }

    /// `within` is the innermost open call of its thread.
    pub fn instant<'a>(
        &mut self,
        what: &Beneath,
        name: &'a str,
        item: &Item,
        within: Option<&Open>,
    ) -> Option<Body<'a>> {
        let What::Instant { pid, cpu, duration, args, ref pieces, .. } = item.what else { return None };
        let mut slots = [None; PIECES];
        let pieces = taken(decode::pieces(pieces), &mut slots);
        let piece = |index: usize| pieces.get(index).copied().flatten();
        let (mut depth, mut parent, mut span) = (0, None, None);
        let args = match what {
            Beneath::Xid => return Some(Body::Xid(xid(pid, item.tid, args[0], piece(0), piece(1)))),
            Beneath::OffCpu => {
                // A thread outside every call was only leaving one: it gets no line.
                let within = within?;
                (depth, parent, span) = (within.depth + 1, Some(within.id), Some(duration));
                named(vec![text("state", state(args[0]))])
            }
            Beneath::Irq => {
                span = Some(duration);
                named(vec![number("irq", args[0])])
            }
            Beneath::Function(target) => {
                span = Some(duration);
                filled(target.args(&args, &[]))
            }
            Beneath::Event(event) => named(event.args(piece(0).unwrap_or_default())),
            _ => return None,
        };
        Some(Body::Instant(Instant {
            kind: kind(what),
            name: name.into(),
            pid,
            tid: item.tid,
            depth,
            parent,
            cpu: Some(cpu),
            duration_ns: span,
            args,
        }))
    }

    fn ioctl(&mut self, id: u64, call: &Open, captured: &Captured) -> Ioctl<'static> {
        let [device, cmd, _user, nr, size, _fd] = captured.args;
        let (number, minor) = (device as u32, (device >> 32) as u32);
        let Some(family) = family(number) else {
            let detail = Args::Named(List::Owned(Vec::new()));
            return Ioctl { device: "?".into(), cmd, request: "?".into(), detail, unknown: true };
        };
        let mut slots = [None; PIECES];
        let pieces = taken(captured.pieces(), &mut slots);
        let device = Device { family, minor };
        let begun = self.decoder.begin(&nvidia::Ioctl {
            device,
            cmd: cmd as u32,
            nr: nr as u32,
            size: size as u32,
            wrapped: call.origin.wrapped,
            payload: pieces.first().copied().flatten(),
            second: pieces.get(1).copied().flatten(),
        });
        self.pending.insert(id, begun.pending);
        Ioctl {
            device: device.name(),
            cmd: cmd & 0xffff_ffff,
            request: begun.request,
            detail: Args::Named(List::Owned(begun.detail)),
            unknown: begun.unknown,
        }
    }

    fn returned(&self, end: &mut KernelEnd, target: &Target, value: u64, pieces: &[Option<&[u8]>]) {
        match target.returns() {
            Returns::Void => {}
            Returns::Status => {
                end.retval = Some(Retval::Number((value as u32).into()));
                end.status = Some(self.decoder.status_name(value as u32));
            }
            Returns::Errno => number_or_errno(end, (value as i32).into()),
            Returns::Bool => end.retval = Some(Retval::Number((value as u8 != 0).into())),
            Returns::Number => end.retval = Some(Retval::Number(value as i64)),
            Returns::Pointer => end.retval = Some(Retval::Pointer(value)),
        }
        end.out = named(target.out(pieces));
    }

    fn thread(&mut self, tid: u32) -> Cow<'static, str> {
        let read = || proc::stat(tid).map_or_else(|_| "?".to_owned(), |stat| stat.comm);
        self.threads.entry(tid).or_insert_with(read).clone().into()
    }
}

fn number_or_errno(end: &mut KernelEnd, returned: i64) {
    (end.retval, end.error) = (Some(Retval::Number(returned)), errno(returned));
}

fn kind(what: &Beneath) -> Kind {
    match what {
        Beneath::Irq | Beneath::OffCpu => Kind::Scheduler,
        Beneath::Function(target) if target.hook.as_ref().is_some_and(|h| h.scheduler || h.top_half) => {
            Kind::Scheduler
        }
        _ => Kind::Kernel,
    }
}

fn family(number: u32) -> Option<Family> {
    [Family::Nvidia, Family::Uvm, Family::Caps, Family::Imex, Family::Nvswitch, Family::Nvlink]
        .into_iter()
        .find(|family| *family as u32 == number)
}

fn taken<'a, 'b>(
    pieces: impl Iterator<Item = Piece<'a>>,
    slots: &'b mut [Option<&'a [u8]>; PIECES],
) -> &'b [Option<&'a [u8]>] {
    let mut count = 0;
    for (slot, piece) in slots.iter_mut().zip(pieces) {
        *slot = match piece {
            Piece::Bytes { bytes, .. } => Some(bytes),
            Piece::Null | Piece::Unreadable => None,
        };
        count += 1;
    }
    slots.get(..count).unwrap_or_default()
}

fn arguments(what: &Beneath, captured: &Captured) -> Option<Args<'static>> {
    let args = captured.args;
    let device = || {
        let name = family(args[0] as u32)
            .map_or_else(|| "?".into(), |family| Device { family, minor: (args[0] >> 32) as u32 }.name());
        arg("device", Value::Text(name))
    };
    let list = match what {
        Beneath::Function(target) => {
            let mut slots = [None; PIECES];
            return filled(target.args(&args, taken(captured.pieces(), &mut slots)));
        }
        Beneath::Open => {
            let bytes: Vec<u8> = args.iter().skip(2).flat_map(|word| word.to_ne_bytes()).collect();
            vec![text("path", c_text(&bytes).into_owned()), hex("flags", args[1])]
        }
        Beneath::Close => vec![device(), number("fd", args[1])],
        Beneath::Mmap => vec![
            device(),
            hex("address", args[1]),
            number("length", args[2]),
            hex("prot", args[3]),
            hex("flags", args[4]),
            hex("offset", args[5]),
        ],
        Beneath::Poll => {
            vec![device(), number("fds", args[1]), arg("timeout_ms", Value::Signed(args[2] as i64))]
        }
        _ => return Some(Args::raw(&args)),
    };
    named(list)
}

/// None for an empty list.
fn filled(args: Args<'static>) -> Option<Args<'static>> {
    match args {
        Args::Named(list) if list.is_empty() => None,
        args => Some(args),
    }
}

fn named(list: Vec<Arg<'static>>) -> Option<Args<'static>> {
    (!list.is_empty()).then_some(Args::Named(List::Owned(list)))
}

fn arg(name: &'static str, value: Value<'static>) -> Arg<'static> {
    Arg { name: name.into(), value }
}

fn text(name: &'static str, value: impl Into<Cow<'static, str>>) -> Arg<'static> {
    arg(name, Value::Text(value.into()))
}

fn number(name: &'static str, value: u64) -> Arg<'static> {
    arg(name, Value::Number(value))
}

fn hex(name: &'static str, value: u64) -> Arg<'static> {
    arg(name, Value::Hex(value))
}

/// Up to the zero byte.
fn c_text(bytes: &[u8]) -> Cow<'_, str> {
    lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn xid(pid: u32, tid: u32, number: u64, message: Option<&[u8]>, device: Option<&[u8]>) -> Xid<'static> {
    let text = |bytes: Option<&[u8]>| c_text(bytes.unwrap_or_default()).trim_end().to_owned().into();
    Xid { pid, tid, xid: number as u32, message: text(message), device: text(device) }
}

/// Linux-internal return values: the call was interrupted, and is restarted or becomes EINTR. ERESTARTSYS to
/// ERESTARTNOHAND, and ERESTART_RESTARTBLOCK.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// A system call's failure, by name.
fn errno(returned: i64) -> Option<Cow<'static, str>> {
    if !(-4095..0).contains(&returned) || RESTARTS.contains(&returned) {
        return None;
    }
    match Errno::from_raw(-returned as i32) {
        Errno::UnknownErrno => Some(format!("errno {}", -returned).into()),
        errno => Some(format!("{errno:?}").into()),
    }
}

/// A task's state as the scheduler left it.
fn state(state: u64) -> &'static str {
    match state & 0xff {
        0 if state == 0 => "preempted",
        // 0: woken already when its state was read.
        0 | 1 => "sleeping",
        2 => "disk",
        4 => "stopped",
        8 => "traced",
        _ => "other",
    }
}
