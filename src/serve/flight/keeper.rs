//! The thread that keeps what dumps need from the time before the ring, and that writes dumps. In: segments. Out:
//! traces; messages to the user. An error here does not end the recording: gpurec reports it, and the next dump tries
//! again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::dump::{Dumper, Ending, Written};
use super::kept::read;
use super::ring::{Entry, Job, Segment};
use super::state::State;
use crate::output::Output;
use crate::output::series::Series;
use crate::pipeline::observer::{Cause, DumpRequest};
use crate::ui;
use gpurec_trace::Dump;

/// Prints a message to the user while the recording runs.
pub type Say = Box<dyn Fn(String) + Send>;

/// The path of the last dump of a recording.
pub type LastDump = Arc<Mutex<Option<PathBuf>>>;

pub struct Keeper {
    series: Series,
    /// The most bytes of all dumps together.
    keep: u64,
    state: State,
    say: Say,
    quiet: bool,
    last: LastDump,
    /// A message has reported that the disk is full.
    is_full: bool,
}

/// Starts the thread. It ends when the sender is dropped; its result is that of the dump at the recording's end.
pub fn start(
    series: Series,
    keep: u64,
    say: Say,
    quiet: bool,
    last: LastDump,
) -> io::Result<(Sender<Job>, JoinHandle<io::Result<()>>)> {
    let (sender, jobs) = unbounded();
    let keeper = Keeper { series, keep, state: State::default(), say, quiet, last, is_full: false };
    let thread = std::thread::Builder::new().name("gpurec-flight".into());
    Ok((sender, thread.spawn(move || keeper.run(&jobs))?))
}

impl Keeper {
    fn run(mut self, jobs: &Receiver<Job>) -> io::Result<()> {
        give_way();
        let mut result = Ok(());
        for job in jobs {
            match job {
                Job::Forget(segment) => self.forget(&segment),
                Job::Skipped => self.state.damaged = Some("the recording was faster".to_owned()),
                Job::Full(error) if self.is_full => drop(error),
                Job::Full(error) => {
                    self.is_full = true;
                    (self.say)(format!(
                        "the flight recorder cannot write its segments ({error}): it keeps up to 64 MB of them in memory, which may be less than --last gives; free some space"
                    ));
                }
                Job::Dump { request, segments, from_ns } => {
                    let is_end = request.cause.event == "end";
                    let written = self.dump(*request, segments, from_ns);
                    if is_end {
                        result = written;
                    }
                }
            }
        }
        result
    }

    /// Keeps what later dumps need from the segment.
    fn forget(&mut self, segment: &Segment) {
        let state = &mut self.state;
        let read = segment.each(|entry| {
            match entry {
                Entry::Line(text) => match read(text) {
                    Some(line) => state.add(&line, text),
                    None => return Err(io::Error::other("a line of it is damaged")),
                },
                Entry::Died(call) => state.died(call),
            }
            Ok(())
        });
        if let Err(error) = read {
            self.state.damaged = Some(error.to_string());
        }
    }

    fn dump(&mut self, request: DumpRequest, segments: Vec<Arc<Segment>>, from_ns: u64) -> io::Result<()> {
        let DumpRequest { cause: Cause { event, because, reply }, ts_ns, reasons, stops, gpu, suppressed } =
            request;
        let dump = Dump { event: event.to_owned(), because: because.clone(), suppressed, ..Dump::default() };
        let written = self.series.begin(event).and_then(|(part, output)| {
            let ending = Ending { dump: Dump { number: part.number, ..dump }, ts_ns, reasons, stops, gpu };
            match self.write(output, ending, segments, from_ns) {
                Ok(Written { out, lines, from_ns, to_ns }) => {
                    let path = self.series.finish(part, out)?;
                    Ok((path, Written { out: (), lines, from_ns, to_ns }))
                }
                Err(error) => {
                    self.series.abandon(part);
                    Err(error)
                }
            }
        });
        match written {
            Ok((path, written)) => {
                self.wrote(&path, event, &because, &written);
                *self.last.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(path.clone());
                if let Some(reply) = reply {
                    reply(Ok(path));
                }
                Ok(())
            }
            Err(error) => {
                if event != "end" {
                    (self.say)(format!(
                        "the flight recorder could not write a dump ({error}); the recording continues: free some space, and ask for one with gpurec dump {}",
                        std::process::id()
                    ));
                }
                if let Some(reply) = reply {
                    reply(Err(format!("the dump could not be written: {error}")));
                }
                Err(error)
            }
        }
    }

    fn write(
        &self,
        output: Output,
        ending: Ending,
        segments: Vec<Arc<Segment>>,
        from_ns: u64,
    ) -> io::Result<Written<Output>> {
        let mut dumper = Dumper::new(self.state.clone(), from_ns, output);
        // Each is dropped once it is read, which frees its space if it has left the ring.
        for segment in segments {
            segment.each(|entry| match entry {
                Entry::Line(text) => dumper.text(text),
                Entry::Died(call) => {
                    dumper.died(call);
                    Ok(())
                }
            })?;
        }
        dumper.finish(ending)
    }

    fn wrote(&self, path: &Path, event: &str, because: &str, written: &Written<()>) {
        let deleted = self.series.keep(self.keep);
        if self.quiet || event == "end" {
            return;
        }
        let seconds = written.to_ns.saturating_sub(written.from_ns) as f64 / 1e9;
        (self.say)(format!(
            "wrote {}: {} lines, the last {seconds:.1} s, because {}",
            ui::name(path),
            written.lines,
            ui::clean(because),
        ));
        match deleted {
            Ok(0) => {}
            Ok(count) => (self.say)(format!("deleted the oldest dumps ({count}): --keep limits their size")),
            Err(error) => (self.say)(format!("cannot delete old dumps for --keep: {error}")),
        }
    }
}

/// Gives the thread a lower priority than the recorder and the recorded programs.
fn give_way() {
    // SAFETY: plain integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}
