//! Takes records from the rings through the whole pipeline to the lines of a trace.
//! In: bytes, cut into records of several rings.
//! Out: panics unless bytes after a record change nothing in it, a truncated record is rejected, every record that is
//! left out is counted, and the output is a trace (lines.rs).

use std::path::PathBuf;
use std::task::Poll;
use std::time::SystemTime;

use super::lines;
use gpurec::output;
use gpurec::pipeline::decode::{Item, What, decode, pieces};
use gpurec::pipeline::handoff;
use gpurec::pipeline::order::Order;
use gpurec::pipeline::pair::Pairing;
use gpurec::pipeline::sink::Lines;
use gpurec::probe::{Beneath, Probe};
use gpurec_cuda as cuda;
use gpurec_trace::Body;

const RINGS: usize = 4;
/// This length means that the ring was read to its end.
const READ: usize = 0xffff;

/// Functions of every kind that is decoded in its own way.
const NAMES: [&str; 38] = [
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuGraphLaunch",
    "cuModuleGetFunction",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cudaMalloc",
    "cudaFree",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy3D_v2",
    "cuMemcpyBatchAsync",
    "cudaMemcpyAsync",
    "cuMemsetD32_v2",
    "cuMemCreate",
    "cuMemMap",
    "cuMemRelease",
    "cuCtxCreate_v2",
    "cuCtxSetCurrent",
    "__cudaRegisterFunction",
    "cudaGetErrorString",
    "cuStreamSynchronize",
    "ncclAllReduce",
    "ncclCommInitRank",
    "ncclCommInitAll",
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommDestroy",
    "ncclSend",
    "ncclGroupStart",
    "ncclGroupEnd",
];

pub fn records(data: &[u8]) {
    let mut play = Play::new();
    let mut rest = data;
    while let [ring, low, high, bytes @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let record = if length == READ { &[] } else { &bytes[..length.min(bytes.len())] };
        rest = &bytes[record.len()..];
        play.record(usize::from(*ring) % RINGS, length, record);
    }
    play.end();
}

struct Play {
    order: Order,
    pairing: Pairing,
    lines: Lines,
    writer: handoff::Writer,
    path: PathBuf,
    latest: u64,
}

impl Play {
    fn new() -> Play {
        let path = std::env::temp_dir().join(format!("gpurec-fuzz-{}.jsonl", std::process::id()));
        let output = output::open(Some(&path), SystemTime::UNIX_EPOCH, Default::default()).unwrap();
        let (handoff, writer) = handoff::start(Box::new(output)).unwrap();
        let mut lines = Lines::new(Some(handoff.lines()), None, 1000);
        lines.line(0, Body::Header(Box::default()));
        lines.add_probes(&probes());
        let (order, pairing) = (Order::new(RINGS), Pairing::default());
        Play { order, pairing, lines, writer, path, latest: 0 }
    }

    fn record(&mut self, ring: usize, length: usize, bytes: &[u8]) {
        if length == READ {
            // Any ring, at any time, even a time that no clock would give. Some rings are not read to their ends.
            for ring in 0..RINGS {
                match self.latest >> ring & 1 {
                    0 => self.order.complete(ring, self.latest),
                    _ => self.order.has_more(ring),
                }
            }
            let (pairing, lines) = (&mut self.pairing, &mut self.lines);
            self.order.release(&mut |item| {
                pairing.feed(item, lines);
                Poll::Ready(())
            });
            return;
        }
        let Some(item) = decode(bytes) else { return };
        judge(bytes, &item);
        self.latest = item.ts;
        self.order.queue(ring).push(fold(item));
    }

    fn end(mut self) {
        let (pairing, lines) = (&mut self.pairing, &mut self.lines);
        self.order.release_all(&mut |item| {
            pairing.feed(item, lines);
            Poll::Ready(())
        });
        let in_flight: Vec<u64> =
            self.lines.in_flight(&self.pairing.in_flight()).0.iter().map(|call| call.begin).collect();
        self.lines.flush();
        assert!(self.lines.failed.is_none());
        drop(self.lines);
        self.writer.join().unwrap();
        lines::judge(&std::fs::read(&self.path).unwrap(), &in_flight);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn probes() -> Vec<Probe> {
    use Beneath::*;
    let beneath = [Ioctl, Open, Close, Mmap, Poll, Irq, OffCpu, Xid];
    let function = |name: &&str| (name.to_string(), cuda::signature(name, None), None);
    let all = NAMES.iter().map(function);
    let all = all.chain(beneath.into_iter().map(|what| (format!("{what:?}"), None, Some(what))));
    (1..).zip(all).map(|(id, (name, signature, beneath))| Probe { id, name, signature, beneath }).collect()
}

fn judge(bytes: &[u8], item: &Item) {
    assert_eq!(item.ts.to_ne_bytes(), bytes[..8]);
    assert_eq!(item.tid.to_ne_bytes(), bytes[8..12]);
    let longer = [bytes, &[0xff; 40]].concat();
    assert_eq!(decode(&longer).as_ref(), Some(item), "what lies behind a record is not in it");
    if let What::Return { pieces, .. } | What::Instant { pieces, .. } = &item.what
        && !pieces.is_empty()
    {
        let at = if matches!(item.what, What::Return { .. }) { 40 } else { 88 };
        let length = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let start = if at == 40 { 88 } else { 96 };
        assert_eq!(bytes[start..start + length], **pieces);
    }
    let held = match &item.what {
        What::Call { captured, .. } => {
            captured.payload().stack().count() * 8 + captured.pieces().map(length).sum::<usize>()
        }
        What::Return { pieces: all, .. } | What::Instant { pieces: all, .. } => pieces(all).map(length).sum(),
        What::Exec { command, .. } => command.len(),
        What::Stack { frames, .. } => frames.native.len() * 8 + frames.python.len() * 16,
        What::Unwind(unwind) => unwind.bytes.len(),
        What::Code(code) => code.name.len() + code.file.len() + code.part.len(),
        What::Fork { .. } | What::Exit { .. } | What::Block(_) | What::Mapped(_) => 0,
    };
    assert!(held <= bytes.len(), "{held} bytes out of {}", bytes.len());
}

fn length(piece: cuda::raw::Piece) -> usize {
    match piece {
        cuda::raw::Piece::Bytes { bytes, .. } => bytes.len(),
        cuda::raw::Piece::Null | cuda::raw::Piece::Unreadable => 0,
    }
}

/// Folds the numbers to a few threads and processes, so that they meet, and to numbers that no process has, so that
/// nothing is found in /proc.
fn fold(mut item: Item) -> Item {
    let few = |number: u32| if number == 0 { 0 } else { 0x7000_0000 + number % 5 };
    item.tid = few(item.tid);
    match &mut item.what {
        What::Call { pid, .. } | What::Instant { pid, .. } | What::Exit { pid, .. } => *pid = few(*pid),
        What::Fork { pid, child } => (*pid, *child) = (few(*pid), few(*child)),
        What::Exec { pid, old_tid, .. } => (*pid, *old_tid) = (few(*pid), few(*old_tid)),
        What::Stack { pid, .. } => *pid = few(*pid),
        What::Unwind(unwind) => unwind.pid = few(unwind.pid),
        What::Block(block) => block.pid = few(block.pid),
        What::Mapped(mapped) => mapped.pid = few(mapped.pid),
        What::Return { .. } | What::Code(_) => {}
    }
    item
}
