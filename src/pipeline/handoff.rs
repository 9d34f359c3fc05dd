//! The writer thread: takes full buffers and writes them. In: bytes in whole lines. Out: the output file. A slow disk
//! makes the worker wait, so the rings fill, and BPF counts what is lost there. This module drops nothing.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::output::Output;
use gpurec_trace::LineWriter;

/// The most buffers in the queue to the writer: 32 MiB, which a disk that pauses for a moment fills before the rings do.
const WAITING: usize = 128;
/// The most that are kept for reuse: few, so that their memory stays in the cache.
const KEPT: usize = 16;

enum Work {
    Bytes(Vec<u8>),
    Flush,
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

pub fn start(output: Output) -> io::Result<(Handoff, Writer)> {
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

fn write_all(mut output: Output, work: &Receiver<Work>, back: &Sender<Vec<u8>>) -> io::Result<()> {
    let mut flushed = Instant::now();
    for item in work {
        match item {
            Work::Bytes(bytes) => {
                output.write_all(&bytes)?;
                let _ = back.try_send(bytes);
            }
            // A compressed stream pays for each flush, and gpurec promises only one per second.
            Work::Flush if flushed.elapsed().as_millis() >= 500 => {
                output.flush()?;
                flushed = Instant::now();
            }
            Work::Flush => {}
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
        let mut empty = self.written.try_recv().unwrap_or_else(|_| Vec::with_capacity(buffer.capacity()));
        empty.clear();
        self.send(Work::Bytes(std::mem::replace(buffer, empty)))
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
