//! What gpurec says on standard error while it records: rows of --live, reports of --interval, the status
//! line, a sentence now and then. In: texts, from the threads that record. Out: standard error, written by a
//! thread of its own.
//! Whoever records never waits here: a text that finds the queue full is given back or counted. Once the
//! recording is over, gpurec speaks directly again.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

use super::status::{ERASE, Status, Totals};
use crate::ui;

/// Texts on their way; of --live each is `live::CHUNK` long.
const WAITING: usize = 256;

/// What a pipe that polls as writable takes without making the writer wait.
const PIECE: usize = 4096;

/// At the end: how long a reader may pause, and how long it may take in all, until the rest is left.
const PAUSE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(50);

enum Said {
    Text {
        text: String,
        rows: u64,
    },
    Status(Totals),
    /// Nothing comes after this.
    Over,
}

/// The recorder's end.
#[derive(Clone)]
pub struct Voice {
    queue: Sender<Said>,
    missed: Arc<Missed>,
}

/// Rows of --live that nobody saw.
#[derive(Default)]
struct Missed {
    /// Those that no row has told of yet.
    untold: AtomicU64,
    all: AtomicU64,
}

/// The row that tells of rows that were left out.
pub const NOT_SHOWN: &str = "NOT_SHOWN";

impl Voice {
    /// Gives the text back if there is no room.
    pub fn say(&self, text: String, rows: u64) -> Result<(), String> {
        match self.queue.try_send(Said::Text { text, rows }) {
            Err(TrySendError::Full(Said::Text { text, .. })) => Err(text),
            // Nobody listens any more.
            _ => Ok(()),
        }
    }

    pub fn has_room(&self) -> bool {
        !self.queue.is_full()
    }

    /// The next one says it again.
    pub fn status(&self, totals: Totals) {
        let _ = self.queue.try_send(Said::Status(totals));
    }

    pub fn missed(&self, rows: u64) {
        self.missed.add(rows);
    }

    /// For whoever tells of them.
    pub fn take_missed(&self) -> u64 {
        self.missed.untold.swap(0, Ordering::Relaxed)
    }

    /// A voice and what hears it, without a screen.
    #[cfg(test)]
    pub fn with_ear(room: usize) -> (Voice, impl Fn() -> Option<String>) {
        let (queue, ear) = bounded(room);
        let hear = move || match ear.try_recv() {
            Ok(Said::Text { text, .. }) => Some(text),
            _ => None,
        };
        (Voice { queue, missed: Arc::default() }, hear)
    }
}

impl Missed {
    fn add(&self, rows: u64) {
        self.untold.fetch_add(rows, Ordering::Relaxed);
        self.all.fetch_add(rows, Ordering::Relaxed);
    }
}

pub struct Screen {
    voice: Voice,
    over: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    /// Sentences that found no room: said at the end.
    late: Vec<String>,
    finished: bool,
}

impl Screen {
    pub fn start(status: Option<Status>) -> io::Result<Screen> {
        let (queue, said) = bounded(WAITING);
        let (ending, ended) = bounded(0);
        let voice = Voice { queue, missed: Arc::default() };
        let over = Arc::new(AtomicBool::new(false));
        let mut painter = Painter {
            said,
            status,
            drawn: None,
            out: Out { over: over.clone(), over_since: None, gone: false },
            missed: voice.missed.clone(),
        };
        thread::Builder::new().name("gpurec-screen".into()).spawn(move || {
            painter.run();
            drop(ending);
        })?;
        Ok(Screen { voice, over, ended, late: Vec::new(), finished: false })
    }

    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// A sentence of gpurec's.
    pub fn line(&mut self, sentence: &str) {
        if let Err(text) = self.voice.say(ui::clean_lines(&format!("gpurec: {sentence}\n")), 0) {
            self.late.push(text);
        }
    }

    /// Everything that can be shown is shown, the status line is gone, standard error is the caller's.
    pub fn finish(&mut self) {
        if self.finished {
            return;
        }
        self.finished = true;
        self.over.store(true, Ordering::Release);
        // Where there is no room for it, the thread is busy and will see for itself.
        let _ = self.voice.queue.try_send(Said::Over);
        // It may hang in a write: then it is left there.
        let _ = self.ended.recv_timeout(PATIENCE + PAUSE);
        for text in self.late.drain(..) {
            ui::text(&text);
        }
        match self.voice.missed.all.load(Ordering::Relaxed) {
            0 => {}
            1 => ui::say("1 row of --live was not shown: standard error took them too slowly"),
            n => ui::say(&format!("{n} rows of --live were not shown: standard error took them too slowly")),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The thread.
struct Painter {
    said: Receiver<Said>,
    status: Option<Status>,
    /// The status line that is on the screen.
    drawn: Option<String>,
    out: Out,
    missed: Arc<Missed>,
}

impl Painter {
    fn run(&mut self) {
        // A job in the background that writes to a terminal is stopped if the terminal says so (stty tostop), and
        // with it those who record. Who has the signal blocked just writes.
        let mut set = SigSet::empty();
        set.add(Signal::SIGTTOU);
        let _ = set.thread_block();
        let mut patience = LOOK;
        loop {
            match self.said.recv_timeout(patience) {
                // What was said before is shown, and whatever is there; nothing more is waited for.
                Ok(Said::Over) => patience = Duration::ZERO,
                Ok(said) => self.show(said),
                Err(RecvTimeoutError::Timeout) if !self.out.is_over() => {}
                Err(_) => break,
            }
        }
        if self.drawn.is_some() {
            self.out.write(ERASE);
        }
    }

    fn show(&mut self, said: Said) {
        match said {
            Said::Text { text, rows } => {
                let status = self.drawn.as_deref().unwrap_or_default();
                let erase = if status.is_empty() { "" } else { ERASE };
                // In one write as far as can be, so that nothing comes between.
                let left = self.out.write(&format!("{erase}{text}{status}"));
                if rows > 0 && !left.is_empty() {
                    let left = String::from_utf8_lossy(&left);
                    let left = left.lines().filter(|row| !row.contains(NOT_SHOWN)).count() as u64;
                    self.missed.add(left.min(rows));
                }
            }
            Said::Over => {}
            Said::Status(totals) => {
                let line = self.status.as_mut().and_then(|status| status.line(&totals));
                let text = match (&line, &self.drawn) {
                    (None, None) => return,
                    (None, Some(_)) => ERASE.to_owned(),
                    (Some(line), _) => format!("{ERASE}{line}"),
                };
                self.drawn = line;
                self.out.write(&text);
            }
        }
    }
}

/// Standard error, without std's lock: somebody who hangs in it must not stop those who record.
struct Out {
    over: Arc<AtomicBool>,
    over_since: Option<Instant>,
    /// Nobody reads any more, or too slowly at the end.
    gone: bool,
}

impl Out {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Gives back what was not written.
    fn write(&mut self, text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes();
        let mut moved = Instant::now();
        while !bytes.is_empty() && !self.gone {
            if !writable() {
                self.gone = self.is_over() && (moved.elapsed() > PAUSE || self.long_over());
                continue;
            }
            match nix::unistd::write(io::stderr().as_fd(), piece(bytes)) {
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    moved = Instant::now();
                }
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(_) => self.gone = true,
            }
            self.gone |= self.long_over();
        }
        bytes.to_vec()
    }

    fn long_over(&mut self) -> bool {
        self.is_over() && self.over_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }
}

fn writable() -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let limit = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
    // An error or a hang-up is for the write to find.
    matches!(poll(&mut fds, limit), Ok(n) if n > 0)
}

/// What is written at once: whole lines, if there is one.
fn piece(bytes: &[u8]) -> &[u8] {
    let Some(head) = bytes.get(..PIECE) else { return bytes };
    match memchr::memrchr(b'\n', head) {
        Some(at) => head.get(..=at).unwrap_or(head),
        None => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_that_a_pipe_takes() {
        let text = "a line of some length\n".repeat(1000);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let piece = piece(rest);
            assert!(piece.len() <= PIECE && piece.ends_with(b"\n"));
            rest = &rest[piece.len()..];
        }
        assert_eq!(piece(&[b'x'; 5000]).len(), PIECE);
    }

    #[test]
    fn a_full_queue_gives_the_text_back() {
        let (voice, hear) = Voice::with_ear(1);
        assert!(voice.has_room() && voice.say("one".into(), 1).is_ok());
        assert!(!voice.has_room());
        assert_eq!(voice.say("two".into(), 1), Err("two".to_owned()));
        assert_eq!(hear().as_deref(), Some("one"));
        assert!(voice.say("three".into(), 1).is_ok());
    }
}
