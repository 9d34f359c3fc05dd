//! Everything that gpurec writes to standard error while it records: rows of --live, reports of --interval, the
//! status line, single messages. In: texts, from the recording threads. Out: standard error, written by a thread of
//! its own. The recording threads never wait here: if the queue is full, the text is returned or counted. After the
//! recording, texts wait for a reader until a signal comes.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use super::status::{ERASE, Status, Totals};
use crate::process::terminal::{is_writable, without_waiting};
use crate::ui;

/// Texts in the queue. Those of --live are `live::CHUNK` long.
const WAITING: usize = 256;

/// The number of bytes that a pipe accepts without blocking once poll reports it as writable.
const PIECE: usize = 4096;

/// At the end: how long a reader may pause, and how long it may take in total, before the rest is dropped.
const PAUSE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(50);

/// The time between two attempts to write.
const AGAIN: Duration = Duration::from_millis(5);

/// An entry of the queue.
enum Entry {
    Text {
        text: String,
        rows: u64,
    },
    Status(Totals),
    /// The last one.
    Over,
}

/// The sending end of the queue, for the recording threads.
#[derive(Clone)]
pub struct Voice {
    queue: Sender<Entry>,
    losses: Arc<RowLosses>,
}

/// Rows of --live that were not shown.
#[derive(Default)]
struct RowLosses {
    /// Those that no NOT_SHOWN row has reported yet.
    unreported: AtomicU64,
    all: AtomicU64,
}

/// The event name of the row that reports dropped rows.
pub const NOT_SHOWN: &str = "NOT_SHOWN";

impl Voice {
    /// Returns the text if the queue is full.
    pub fn say(&self, text: String, rows: u64) -> Result<(), String> {
        match self.queue.try_send(Entry::Text { text, rows }) {
            Err(TrySendError::Full(Entry::Text { text, .. })) => Err(text),
            // The screen thread has ended.
            _ => Ok(()),
        }
    }

    pub fn has_room(&self) -> bool {
        !self.queue.is_full()
    }

    /// A dropped status does not matter: the next one replaces it.
    pub fn status(&self, totals: Totals) {
        let _ = self.queue.try_send(Entry::Status(totals));
    }

    pub fn drop_rows(&self, rows: u64) {
        self.losses.add(rows);
    }

    /// Takes the number of rows not reported yet, for the caller to report.
    pub fn take_dropped(&self) -> u64 {
        self.losses.unreported.swap(0, Ordering::Relaxed)
    }

    /// A voice and a function that receives its texts, without a screen.
    #[cfg(test)]
    pub fn with_ear(room: usize) -> (Voice, impl Fn() -> Option<String>) {
        let (queue, ear) = bounded(room);
        let hear = move || match ear.try_recv() {
            Ok(Entry::Text { text, .. }) => Some(text),
            _ => None,
        };
        (Voice { queue, losses: Arc::default() }, hear)
    }
}

impl RowLosses {
    fn add(&self, rows: u64) {
        self.unreported.fetch_add(rows, Ordering::Relaxed);
        self.all.fetch_add(rows, Ordering::Relaxed);
    }
}

pub struct Screen {
    voice: Voice,
    over: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    /// Messages that found the queue full. They are written at the end.
    late: Vec<String>,
    finished: bool,
    /// Nothing is left to write.
    is_silent: bool,
    stderr: Arc<OwnedFd>,
}

/// Standard error, if possible without waits for a terminal. Call this while gpurec has the rights to open the
/// terminal once more.
pub fn stderr() -> io::Result<OwnedFd> {
    let stderr = io::stderr();
    let opened =
        Some(&stderr).filter(|stderr| stderr.is_terminal()).map(|stderr| without_waiting(stderr.as_fd()));
    match opened {
        Some(Ok(new)) => Ok(new),
        _ => stderr.as_fd().try_clone_to_owned(),
    }
}

impl Screen {
    /// `is_covered`: a view covers the terminal, so texts wait for the end.
    pub fn start(stderr: OwnedFd, status: Option<Status>, is_covered: bool) -> io::Result<Screen> {
        let (queue, entries) = bounded(WAITING);
        let (ending, ended) = bounded(0);
        let voice = Voice { queue, losses: Arc::default() };
        let over = Arc::new(AtomicBool::new(false));
        let stderr = Arc::new(stderr);
        let mut painter = Painter {
            entries,
            status,
            drawn: None,
            kept: is_covered.then(Vec::new),
            out: Out::new(stderr.clone(), over.clone()),
            losses: voice.losses.clone(),
        };
        thread::Builder::new().name("gpurec-screen".into()).spawn(move || {
            painter.run();
            drop(ending);
        })?;
        Ok(Screen { voice, over, ended, late: Vec::new(), finished: false, is_silent: false, stderr })
    }

    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Writes a message of gpurec's own.
    pub fn line(&mut self, sentence: &str) {
        if let Err(text) = self.voice.say(ui::clean_lines(&format!("gpurec: {sentence}\n")), 0) {
            self.late.push(text);
        }
    }

    /// Shows everything that can be shown, and erases the status line.
    pub fn finish(&mut self) {
        if self.finished {
            return;
        }
        self.finished = true;
        self.over.store(true, Ordering::Release);
        // If the queue is full, the thread is busy and reads the flag later.
        let _ = self.voice.queue.try_send(Entry::Over);
        // The thread may hang in a write: then gpurec continues without it.
        let _ = self.ended.recv_timeout(PATIENCE + PAUSE);
    }

    /// Writes messages after the recording: those that found the queue full, and this text. A terminal may take nothing
    /// for as long as its user likes (Ctrl-S), until `leave` is set.
    pub fn last_words(&mut self, text: &str, leave: &Arc<AtomicBool>) {
        self.finish();
        self.is_silent = true;
        let mut words: String = self.late.drain(..).collect();
        match self.voice.losses.all.load(Ordering::Relaxed) {
            0 => {}
            n => words.push_str(&format!(
                "gpurec: --live left out {n} {}, because standard error was too slow; send it to a file: 2>FILE\n",
                if n == 1 { "row" } else { "rows" }
            )),
        }
        words.push_str(text);
        Out::new(self.stderr.clone(), leave.clone()).write(&ui::clean_lines(&words));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.is_silent {
            self.last_words("", &Arc::new(AtomicBool::new(true)));
        }
    }
}

/// The state of the screen thread.
struct Painter {
    entries: Receiver<Entry>,
    status: Option<Status>,
    /// The status line that is on the screen.
    drawn: Option<String>,
    /// Texts that wait for the end, because a view covers the terminal.
    kept: Option<Vec<String>>,
    out: Out,
    losses: Arc<RowLosses>,
}

impl Painter {
    fn run(&mut self) {
        // With `stty tostop`, a background job that writes to the terminal is stopped by SIGTTOU, and the recording
        // threads with it. A thread that blocks the signal can write.
        let mut set = SigSet::empty();
        set.add(Signal::SIGTTOU);
        let _ = set.thread_block();
        let mut patience = LOOK;
        loop {
            match self.entries.recv_timeout(patience) {
                // Shows what is queued already, and waits for nothing more.
                Ok(Entry::Over) => patience = Duration::ZERO,
                Ok(entry) => self.show(entry),
                Err(RecvTimeoutError::Timeout) if !self.out.is_over() => {}
                Err(_) => break,
            }
        }
        if self.drawn.is_some() {
            self.out.write(ERASE);
        }
        for text in self.kept.take().into_iter().flatten() {
            self.out.write(&text);
        }
    }

    fn show(&mut self, entry: Entry) {
        match entry {
            Entry::Text { text, .. } if self.kept.is_some() => {
                self.kept
                    .iter_mut()
                    .filter(|kept| kept.len() < WAITING)
                    .for_each(|kept| kept.push(text.clone()));
            }
            Entry::Text { text, rows } => {
                let status = self.drawn.as_deref().unwrap_or_default();
                let erase = if status.is_empty() { "" } else { ERASE };
                // In one write if possible, so that no other output comes between.
                let left = self.out.write(&format!("{erase}{text}{status}"));
                if rows > 0 && !left.is_empty() {
                    let left = String::from_utf8_lossy(&left);
                    let left = left.lines().filter(|row| !row.contains(NOT_SHOWN)).count() as u64;
                    self.losses.add(left.min(rows));
                }
            }
            Entry::Over => {}
            Entry::Status(totals) => {
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

/// Standard error, without std's lock: a thread that hangs in a write must not block the recording threads.
struct Out {
    stderr: Arc<OwnedFd>,
    over: Arc<AtomicBool>,
    over_since: Option<Instant>,
    /// The reader has closed it, or reads too slowly at the end.
    gone: bool,
}

impl Out {
    fn new(stderr: Arc<OwnedFd>, over: Arc<AtomicBool>) -> Out {
        Out { stderr, over, over_since: None, gone: false }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns what was not written.
    fn write(&mut self, text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes();
        let mut moved = Instant::now();
        while !bytes.is_empty() && !self.gone {
            let written = match is_writable(self.stderr.as_fd(), LOOK) {
                true => nix::unistd::write(&self.stderr, piece(bytes)),
                false => Err(Errno::EAGAIN),
            };
            match written {
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    moved = Instant::now();
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    self.gone = self.is_over() && moved.elapsed() > PAUSE;
                    // `poll` can promise room for one byte where a line feed needs two.
                    thread::sleep(AGAIN);
                }
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

/// The part to write at once: whole lines, if there is one.
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
