//! The writer thread: takes full buffers and writes them. In: bytes in whole lines. Out: the output file, or another
//! destination. A slow disk makes the worker wait, so the rings fill, and BPF counts what is lost there. This module
//! drops nothing.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::observer::DumpRequest;
use crate::output::Output;
use gpurec_trace::LineWriter;

/// The most buffers in the queue to the writer: 32 MiB, so that a short pause of the disk does not fill the rings.
const WAITING: usize = 128;
/// The most buffers kept for reuse: few, so that their memory stays in the cache.
const KEPT: usize = 16;

enum Work {
    Bytes(Vec<u8>),
    /// Lines that another thread is still formatting.
    Later(Slot),
    Flush,
    Died(u64, u64),
    Dump(Box<DumpRequest>),
}

/// Where a thread puts the lines that it has formatted.
pub type Slot = Receiver<io::Result<Vec<u8>>>;

/// Where the lines go.
pub trait Destination: Send {
    fn write(&mut self, lines: &[u8]) -> io::Result<()>;
    /// Called once a second or more often. Afterwards everything written so far can be read.
    fn flush(&mut self) -> io::Result<()>;
    /// The thread of an open call ended before the line with that event_id.
    fn died(&mut self, _before: u64, _call: u64) {}
    fn dump(&mut self, _request: DumpRequest) {}
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl Destination for Output {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.write_all(lines)
    }

    fn flush(&mut self) -> io::Result<()> {
        Write::flush(self)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Output::finish(*self)
    }
}

/// The worker's end. A write here returns the error of an earlier write in the writer thread, not its own.
pub struct Handoff {
    work: Sender<Work>,
    written: Receiver<Vec<u8>>,
    failed: Arc<AtomicBool>,
}

pub struct Writer {
    thread: JoinHandle<io::Result<()>>,
    failed: Arc<AtomicBool>,
}

pub fn start(output: Box<dyn Destination>) -> io::Result<(Handoff, Writer)> {
    let (sender, receiver) = bounded(WAITING);
    let (back, written) = bounded(KEPT);
    let failed = Arc::new(AtomicBool::new(false));
    let flag = failed.clone();
    let thread = thread::Builder::new().name("gpurec-write".into()).spawn(move || {
        let result = write_all(output, &receiver, &back);
        flag.store(result.is_err(), Ordering::Release);
        result
    })?;
    Ok((Handoff { work: sender, written, failed: failed.clone() }, Writer { thread, failed }))
}

fn write_all(
    mut output: Box<dyn Destination>,
    work: &Receiver<Work>,
    back: &Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut flushed = Instant::now();
    for item in work {
        match item {
            Work::Bytes(bytes) => {
                output.write(&bytes)?;
                let _ = back.try_send(bytes);
            }
            Work::Later(slot) => {
                let bytes = slot.recv().map_err(|_| io::Error::other("a formatting thread panicked"))??;
                output.write(&bytes)?;
                let _ = back.try_send(bytes);
            }
            // A compressed stream pays for each flush, and gpurec promises only one per second.
            Work::Flush if flushed.elapsed().as_millis() >= 500 => {
                output.flush()?;
                flushed = Instant::now();
            }
            Work::Flush => {}
            Work::Died(before, call) => output.died(before, call),
            Work::Dump(request) => output.dump(*request),
        }
    }
    output.finish()
}

impl Writer {
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until everything is written. The worker's end must be dropped before.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")))
    }
}

impl Handoff {
    fn send(&self, work: Work) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) || self.work.send(work).is_err() {
            return Err(io::Error::other("the writer thread has stopped"));
        }
        Ok(())
    }

    pub fn lines(self) -> LineWriter<Handoff> {
        LineWriter::giving(self, Handoff::take)
    }

    /// Exchanges a full buffer for an empty one.
    fn take(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        let empty = self.empty().unwrap_or_else(|| Vec::with_capacity(buffer.capacity()));
        self.send(Work::Bytes(std::mem::replace(buffer, empty)))
    }

    /// A buffer that was used before.
    pub fn empty(&self) -> Option<Vec<u8>> {
        let mut empty = self.written.try_recv().ok()?;
        empty.clear();
        Some(empty)
    }

    /// The place of lines that come into `slot` is here.
    pub fn later(&self, slot: Slot) -> io::Result<()> {
        self.send(Work::Later(slot))
    }

    pub fn died(&self, before: u64, call: u64) -> io::Result<()> {
        self.send(Work::Died(before, call))
    }

    pub fn dump(&self, request: DumpRequest) -> io::Result<()> {
        self.send(Work::Dump(Box::new(request)))
    }
}

impl Write for Handoff {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(&mut bytes.to_vec())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(Work::Flush)
    }
}
