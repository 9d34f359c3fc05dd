//! The state of the GPUs, from NVML. In: the user with whose rights NVML runs. Out: a `device` line for each device at
//! the start, once a second, and at the end.
//!
//! NVIDIA's library runs in a process of its own (`process`): it needs a C library that gpurec's static binary lacks,
//! it may hang in the driver, and the user may name the folder that it comes from. A separate thread waits for that
//! process; the thread that reads the rings never does. Without the library or without a driver there are no lines,
//! which is no error.
//! Not here: what the lines are for.

mod process;
mod reading;
#[path = "../../crates/nvml/src/shape.rs"]
#[allow(dead_code)]
mod shape;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use self::process::Process;
use self::reading::Packet;
use crate::clock::monotonic_ns;
use crate::process::identity::Identity;
use crate::process::proc::Env;
use gpurec_trace::Device;

const EVERY: Duration = Duration::from_secs(1);
/// How long the end of a recording waits for the last sample.
const LAST: Duration = Duration::from_millis(300);

/// Whether NVML answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not answered yet.
    Waiting,
    /// The number of devices in the last sample.
    Answers(usize),
    /// NVML cannot be initialised, for this reason.
    Refuses(String),
    /// There is no process: the library is missing, or has ended its process.
    Gone,
}

/// The state of a device and its time, in CLOCK_MONOTONIC ns.
pub type Sample = (u64, Box<Device>);

pub struct Nvml {
    process: Process,
    state: State,
    /// A request was sent, and the last packet of its answer has not come.
    is_asked: bool,
    /// The number of devices so far in the present sample.
    count: usize,
    ready: VecDeque<Sample>,
    /// Devices whose name a line already has.
    named: BTreeSet<u32>,
    packet: Box<[u8; size_of::<shape::Device>() + 1]>,
}

impl Nvml {
    /// Starts the process and asks for the first sample. Call this before any thread is started.
    pub fn start(user: &Identity, env: &Env) -> io::Result<Nvml> {
        let mut nvml = Nvml {
            process: Process::start(user, env)?,
            state: State::Waiting,
            is_asked: false,
            count: 0,
            ready: VecDeque::new(),
            named: BTreeSet::new(),
            packet: Box::new([0; _]),
        };
        nvml.ask();
        Ok(nvml)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Waits until the requested sample is whole, or no more packets can come, or the time is over.
    pub fn wait(&mut self, patience: Duration) {
        let since = Instant::now();
        while self.is_asked && since.elapsed() < patience {
            self.sleep(None, patience.saturating_sub(since.elapsed()));
            self.receive();
        }
    }

    /// Calls `give` with each sample until the result is dropped: here with those that have come already, later in a
    /// thread.
    pub fn serve(mut self, mut give: impl FnMut(Sample) + Send + 'static) -> io::Result<Sampling> {
        self.ready.drain(..).for_each(&mut give);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let over = EventFd::from_value_and_flags(0, flags)?;
        let over = Arc::new(Over { fd: over, is_set: AtomicBool::new(false), wants_last: false.into() });
        let theirs = over.clone();
        let thread = std::thread::Builder::new().name("gpurec-nvml".into());
        let thread = thread.spawn(move || serve(self, give, &theirs))?;
        Ok(Sampling { over, thread: Some(thread) })
    }

    fn ask(&mut self) {
        if self.state == State::Gone || self.is_asked {
            return;
        }
        match self.process.ask() {
            Ok(()) => (self.is_asked, self.count) = (true, 0),
            Err(_) => self.state = State::Gone,
        }
    }

    /// Reads all packets that have come, without waiting.
    fn receive(&mut self) {
        while let Some(length) = self.process.receive(&mut *self.packet) {
            match self.packet.get(..length).and_then(reading::read) {
                Some(Packet::Device(mut device)) if self.is_asked && self.count < shape::DEVICES => {
                    if !self.named.insert(device.device) {
                        device.gpu_name = None;
                    }
                    self.count += 1;
                    self.ready.push_back((monotonic_ns(), device));
                }
                Some(Packet::Last(result)) if self.is_asked => {
                    self.is_asked = false;
                    self.state = result.map_or_else(State::Refuses, |()| State::Answers(self.count));
                }
                // The process has ended, or it sends packets that gpurec's program never sends.
                _ => {
                    (self.is_asked, self.state) = (false, State::Gone);
                    return;
                }
            }
        }
    }

    fn sleep(&self, over: Option<&EventFd>, patience: Duration) {
        let mut fds: Vec<PollFd> = self
            .process
            .fd()
            .into_iter()
            .chain(over.map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let ms = patience.as_micros().div_ceil(1000);
        let _ = poll(&mut fds, PollTimeout::from(u16::try_from(ms).unwrap_or(u16::MAX)));
    }
}

struct Over {
    fd: EventFd,
    is_set: AtomicBool,
    wants_last: AtomicBool,
}

/// The thread that asks for samples. Dropping this value ends the thread and the process.
pub struct Sampling {
    over: Arc<Over>,
    thread: Option<JoinHandle<()>>,
}

impl Sampling {
    /// Asks for one more sample, the last. Does not wait for it; dropping the value does.
    pub fn last(&self) {
        self.over.wants_last.store(true, Ordering::SeqCst);
        self.end();
    }

    fn end(&self) {
        self.over.is_set.store(true, Ordering::SeqCst);
        // The write fails only if the counter is full, and a full counter wakes the thread too.
        let _ = self.over.fd.write(1);
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut nvml: Nvml, mut give: impl FnMut(Sample), over: &Over) {
    let mut next = Instant::now() + EVERY;
    while !over.is_set.load(Ordering::SeqCst) {
        nvml.ready.drain(..).for_each(&mut give);
        if nvml.state == State::Gone {
            return;
        }
        let now = Instant::now();
        if now >= next {
            // Does nothing while the previous request has no answer.
            nvml.ask();
            while next <= now {
                next += EVERY;
            }
        }
        nvml.sleep(Some(&over.fd), next.saturating_duration_since(now));
        nvml.receive();
    }
    if over.wants_last.load(Ordering::SeqCst) {
        let since = Instant::now();
        nvml.wait(LAST);
        nvml.ask();
        nvml.wait(LAST.saturating_sub(since.elapsed()));
    }
    nvml.ready.drain(..).for_each(&mut give);
}
