//! The most recent lines, as a ring of compressed segments. In: lines from the writer thread. Out: segments to the keeper:
//! those that are no longer recent, and for a dump all that are. Nothing here waits: the keeper has a thread of its own.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use zstd::stream::{read::Decoder, write::Encoder};

use super::Last;
use crate::output::own;
use crate::pipeline::observer::DumpRequest;

/// Fast rather than small: compression costs the recorder time for each line.
const LEVEL: i32 = 1;
/// The approximate number of segments in a ring; the most bytes of one before compression; the shortest time of one.
const SEGMENTS: u32 = 16;
const LARGEST: u64 = 16 << 20;
const SHORTEST: Duration = Duration::from_millis(500);

/// Limits of a ring for which only a duration is given.
pub const MOST_ON_DISK: u64 = 4 << 30;
pub const MOST_IN_MEMORY: u64 = 256 << 20;
/// How much longer than the ring's duration segments are kept. A dump is written some time after the moment for which it
/// is requested: at the end of a recording, after the hooks have been removed.
const LATE: Duration = Duration::from_secs(5);
/// The most bytes of segments that stay in memory because the disk has no room.
const SPARE: u64 = 64 << 20;
/// The largest window, as a power of two, that is decoded: more than `LEVEL` uses.
const WINDOW: u32 = 21;

/// Lines that follow each other.
pub struct Segment {
    data: Data,
    /// Compressed.
    bytes: u64,
    /// Before compression.
    raw: u64,
    /// When its last line had been written.
    until: Instant,
    /// The calls whose threads ended, each before the line with that event_id.
    died: Vec<(u64, u64)>,
}

enum Data {
    Memory(Vec<u8>),
    File { folder: Arc<OwnedFd>, name: String },
}

/// An entry of a segment, in the order of the recording.
pub enum Entry<'a> {
    /// A line without its line feed.
    Line(&'a [u8]),
    Died(u64),
}

pub enum Job {
    /// The segment is no longer recent.
    Forget(Arc<Segment>),
    /// A segment was dropped instead, because the keeper has too many to read already.
    Skipped,
    Dump {
        request: Box<DumpRequest>,
        segments: Vec<Arc<Segment>>,
        from_ns: u64,
    },
    /// A segment could not be written.
    Full(io::Error),
}

struct Open {
    encoder: Encoder<'static, Vec<u8>>,
    raw: u64,
    since: Instant,
    died: Vec<(u64, u64)>,
}

pub struct Ring {
    last: Last,
    late: Duration,
    /// Compressed bytes of all segments.
    most: u64,
    /// None: in memory.
    folder: Option<Arc<OwnedFd>>,
    open: Option<Open>,
    closed: VecDeque<Arc<Segment>>,
    bytes: u64,
    /// Segments that are no longer recent, until the keeper has read them.
    leaving: Vec<Weak<Segment>>,
    /// The number of segments so far, by which their files are named.
    count: u64,
    jobs: Sender<Job>,
}

impl Ring {
    /// `folder`: for the segments, and for nothing else.
    pub fn new(last: Last, folder: Option<OwnedFd>, jobs: Sender<Job>) -> Ring {
        let most = match (last, &folder) {
            (Last::Bytes(bytes), _) => bytes,
            (Last::Span(_), Some(_)) => MOST_ON_DISK,
            (Last::Span(_), None) => MOST_IN_MEMORY,
        };
        let (folder, closed) = (folder.map(Arc::new), VecDeque::new());
        let leaving = Vec::new();
        Ring { last, late: LATE, most, folder, open: None, closed, bytes: 0, leaving, count: 0, jobs }
    }

    /// Takes whole lines.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let open = self.opened()?;
        open.encoder.write_all(lines)?;
        open.raw += lines.len() as u64;
        self.look()
    }

    pub fn died(&mut self, before: u64, call: u64) {
        if let Ok(open) = self.opened() {
            open.died.push((before, call));
        }
    }

    /// Closes a segment that is full, and gives up those that are no longer recent.
    pub fn look(&mut self) -> io::Result<()> {
        let longest = match self.last {
            Last::Span(span) => (span / SEGMENTS).max(SHORTEST),
            Last::Bytes(_) => Duration::MAX,
        };
        let largest = (self.most / u64::from(SEGMENTS)).max(64 << 10);
        let is_full = self.open.as_ref().is_some_and(|open| {
            open.raw >= LARGEST
                || open.encoder.get_ref().len() as u64 >= largest
                || open.since.elapsed() >= longest
        });
        if is_full {
            self.close()?;
        }
        while self.closed.front().is_some_and(|oldest| self.is_old(oldest)) {
            self.forget_the_oldest();
        }
        Ok(())
    }

    fn is_old(&self, segment: &Segment) -> bool {
        let is_late = matches!(self.last, Last::Span(span) if segment.until.elapsed() > span + self.late);
        is_late || self.bytes > self.most
    }

    /// The keeper may be slower than the recording, as while it writes a dump: then segments wait for it, at most as
    /// many bytes as the ring has.
    fn forget_the_oldest(&mut self) {
        let Some(oldest) = self.closed.pop_front() else { return };
        self.bytes -= oldest.bytes;
        self.leaving.retain(|segment| segment.strong_count() > 0);
        let waiting: u64 = self.leaving.iter().filter_map(Weak::upgrade).map(|segment| segment.bytes).sum();
        let job = if waiting + oldest.bytes > self.most {
            Job::Skipped
        } else {
            self.leaving.push(Arc::downgrade(&oldest));
            Job::Forget(oldest)
        };
        let _ = self.jobs.send(job);
    }

    /// Hands all segments over for a dump.
    pub fn dump(&mut self, request: DumpRequest) {
        let span = match self.last {
            Last::Span(span) => u64::try_from(span.as_nanos()).unwrap_or(u64::MAX),
            Last::Bytes(_) => u64::MAX,
        };
        let from_ns = request.ts_ns.saturating_sub(span);
        if let Err(error) = self.close() {
            let _ = self.jobs.send(Job::Full(error));
        }
        let segments = self.closed.iter().cloned().collect();
        let _ = self.jobs.send(Job::Dump { request: Box::new(request), segments, from_ns });
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let encoder = Encoder::new(Vec::new(), LEVEL)?;
                Open { encoder, raw: 0, since: Instant::now(), died: Vec::new() }
            }
        };
        Ok(self.open.insert(open))
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let data = open.encoder.finish()?;
        self.count += 1;
        let (bytes, raw) = (data.len() as u64, open.raw);
        let (data, until) = (Data::Memory(data), Instant::now());
        let mut segment = Segment { data, bytes, raw, until, died: open.died };
        if let Some(folder) = self.folder.clone()
            && let Err(error) = segment.move_to(&folder, own::segment(self.count))
        {
            let _ = self.jobs.send(Job::Full(error));
        }
        self.bytes += bytes;
        self.closed.push_back(Arc::new(segment));
        while self.folder.is_some() && self.in_memory() > SPARE {
            self.forget_the_oldest();
        }
        Ok(())
    }

    fn in_memory(&self) -> u64 {
        let in_memory = self.closed.iter().filter(|segment| matches!(segment.data, Data::Memory(_)));
        in_memory.map(|segment| segment.bytes).sum()
    }
}

impl Segment {
    fn move_to(&mut self, folder: &Arc<OwnedFd>, name: String) -> io::Result<()> {
        let Data::Memory(bytes) = &self.data else { return Ok(()) };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&**folder, name.as_str(), flags, Mode::from_bits_truncate(0o600))?;
        let written = std::fs::File::from(file).write_all(bytes);
        if written.is_err() {
            let _ = unlinkat(&**folder, name.as_str(), UnlinkatFlags::NoRemoveDir);
        } else {
            self.data = Data::File { folder: folder.clone(), name };
        }
        written
    }

    fn read(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(match &self.data {
            Data::Memory(bytes) => Box::new(&bytes[..]),
            Data::File { folder, name } => Box::new(own::open(&**folder, OsStr::new(name))?.take(self.bytes)),
        })
    }

    /// Passes its lines, and between them the calls whose threads ended. A file that has changed costs no more memory
    /// and time than the segment itself, and is an error.
    pub fn each(&self, mut take: impl FnMut(Entry) -> io::Result<()>) -> io::Result<()> {
        let mut decoder = Decoder::new(self.read()?)?;
        decoder.window_log_max(WINDOW)?;
        let mut lines = BufReader::with_capacity(256 << 10, decoder.take(self.raw + 1));
        let (mut text, mut read) = (Vec::new(), 0);
        let mut died = self.died.iter().peekable();
        loop {
            text.clear();
            match lines.read_until(b'\n', &mut text)? {
                0 => break,
                bytes => read += bytes as u64,
            }
            let line = text.strip_suffix(b"\n").unwrap_or(&text);
            let id = if died.peek().is_some() { event_id(line) } else { 0 };
            while let Some((_, call)) = died.next_if(|(before, _)| *before <= id) {
                take(Entry::Died(*call))?;
            }
            take(Entry::Line(line))?;
        }
        if read != self.raw {
            return Err(io::Error::other("a segment of the flight recorder has changed"));
        }
        died.try_for_each(|(_, call)| take(Entry::Died(*call)))
    }
}

/// The event_id with which one of the recorder's own lines begins.
fn event_id(line: &[u8]) -> u64 {
    let digits = line
        .strip_prefix(b"{\"event_id\":")
        .unwrap_or_default()
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Data::File { folder, name } = mem::replace(&mut self.data, Data::Memory(Vec::new())) {
            let _ = unlinkat(&*folder, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::observer::Cause;
    use crate::pipeline::stops::Recent;
    use crossbeam_channel::{Receiver, unbounded};

    fn line(id: u64) -> String {
        format!(
            "{{\"event_id\":{id},\"ts\":0.5,\"text\":\"{:x}\"}}\n",
            id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        )
    }

    fn request() -> DumpRequest {
        let cause = Cause::new("dump", String::new());
        let (reasons, stops) = (Vec::new(), Recent::default());
        DumpRequest { cause, ts_ns: 3_000_000_000, reasons, stops, gpu: None, suppressed: 0 }
    }

    /// Calls whose threads ended (true), and event_ids of lines (false).
    type Entries = Vec<(bool, u64)>;

    fn read<'a>(segments: impl Iterator<Item = &'a Arc<Segment>>) -> Entries {
        let mut all = Vec::new();
        for segment in segments {
            let take = |entry: Entry| {
                all.push(match entry {
                    Entry::Line(text) => (false, event_id(text)),
                    Entry::Died(call) => (true, call),
                });
                Ok(())
            };
            segment.each(take).unwrap();
        }
        all
    }

    /// What was forgotten, what the dump after it has, and the dump's `from_ns`.
    fn jobs(jobs: &Receiver<Job>) -> (Entries, Entries, u64) {
        let (mut forgotten, mut dumped, mut from) = (Vec::new(), Vec::new(), 0);
        for job in jobs.try_iter() {
            match job {
                Job::Forget(segment) => forgotten.extend(read([&segment].into_iter())),
                Job::Dump { segments, from_ns, .. } => {
                    dumped.extend(read(segments.iter()));
                    from = from_ns;
                }
                Job::Skipped => panic!("a segment was skipped"),
                Job::Full(error) => panic!("{error}"),
            }
        }
        (forgotten, dumped, from)
    }

    #[test]
    fn every_line_is_in_the_ring_or_was_handed_over_before_it() {
        for bytes in [512 << 10, 1 << 20] {
            let (sender, receiver) = unbounded();
            let mut ring = Ring::new(Last::Bytes(bytes), None, sender);
            let (mut expected, mut forgotten) = (Vec::new(), Vec::new());
            for id in 0..200_000 {
                forgotten.extend(jobs(&receiver).0);
                if id % 1000 == 7 {
                    ring.died(id, id - 3);
                    expected.push((true, id - 3));
                }
                ring.write(line(id).as_bytes()).unwrap();
                expected.push((false, id));
            }
            ring.dump(request());
            assert!(ring.bytes <= bytes + bytes / 8, "{} of {bytes}", ring.bytes);
            let (last, dumped, from_ns) = jobs(&receiver);
            forgotten.extend(last);
            assert!(!forgotten.is_empty() && dumped.len() > 10_000 && from_ns == 0, "{}", dumped.len());
            assert!([forgotten, dumped].concat() == expected);
        }
    }

    #[test]
    fn segments_that_wait_for_the_keeper_are_bounded() {
        let (sender, receiver) = unbounded();
        let mut ring = Ring::new(Last::Bytes(1 << 20), None, sender);
        (0..400_000).for_each(|id| ring.write(line(id).as_bytes()).unwrap());
        let all: Vec<Job> = receiver.try_iter().collect();
        let waiting = all.iter().map(|job| if let Job::Forget(segment) = job { segment.bytes } else { 0 });
        let waiting: u64 = waiting.sum();
        assert!((1 << 19..=1 << 20).contains(&waiting), "{waiting}");
        let skipped = |jobs: &[Job]| jobs.iter().filter(|job| matches!(job, Job::Skipped)).count();
        assert!(skipped(&all) > 0);
        drop(all);
        (0..40_000).for_each(|id| ring.write(line(id).as_bytes()).unwrap());
        let all: Vec<Job> = receiver.try_iter().collect();
        assert!(skipped(&all) == 0 && all.len() > 1, "the keeper has read the others");
    }

    #[test]
    fn old_segments_go_and_their_files_with_them() {
        let folder = std::env::temp_dir().join(format!("gpurec-ring-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let files = || std::fs::read_dir(&folder).unwrap().count();
        let (sender, receiver) = unbounded();
        let opened = std::fs::File::open(&folder).unwrap().into();
        let mut ring = Ring::new(Last::Span(Duration::from_secs(1)), Some(opened), sender);
        ring.late = Duration::from_secs(2);
        ring.write(line(0).as_bytes()).unwrap();
        ring.died(1, 0);
        ring.dump(request());
        assert_eq!(files(), 1);
        let (forgotten, dumped, from_ns) = jobs(&receiver);
        assert_eq!((forgotten.len(), dumped, from_ns), (0, vec![(false, 0), (true, 0)], 2_000_000_000));
        std::thread::sleep(Duration::from_millis(1100));
        ring.look().unwrap();
        assert_eq!(files(), 1, "a dump of the last second may come late");
        std::thread::sleep(Duration::from_millis(2000));
        ring.look().unwrap();
        assert_eq!(jobs(&receiver).0, [(false, 0), (true, 0)]);
        assert_eq!(files(), 0, "its last reader has gone");
        ring.write(line(1).as_bytes()).unwrap();
        ring.dump(request());
        assert_eq!(files(), 1);
        drop((ring, receiver));
        assert_eq!(files(), 0);
        std::fs::remove_dir(&folder).unwrap();
    }

    /// What replaces a segment makes the dump fail, in little time and memory.
    #[test]
    fn a_segment_that_has_changed_is_an_error() {
        let folder = std::env::temp_dir().join(format!("gpurec-changed-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (sender, receiver) = unbounded();
        let opened = std::fs::File::open(&folder).unwrap().into();
        let mut ring = Ring::new(Last::Bytes(1 << 20), Some(opened), sender);
        ring.write(line(0).as_bytes()).unwrap();
        ring.dump(request());
        let Ok(Job::Dump { segments, .. }) = receiver.try_recv() else { panic!("no dump") };
        let file = folder.join("00000001.zst");
        let read = || {
            let mut bytes = 0;
            let read = segments[0].each(|entry| {
                bytes += if let Entry::Line(text) = entry { text.len() } else { 0 };
                Ok(())
            });
            assert!(bytes <= 1 + line(0).len(), "{bytes}");
            read
        };
        read().unwrap();
        let zeros = zstd::stream::encode_all(io::repeat(0).take(64 << 20), 1).unwrap();
        let wide = {
            let mut encoder = Encoder::new(Vec::new(), 1).unwrap();
            encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(27)).unwrap();
            encoder.write_all(line(0).as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        for content in
            [zeros, wide, zstd::stream::encode_all(&line(0).as_bytes()[1..], 1).unwrap(), Vec::new()]
        {
            std::fs::write(&file, content).unwrap();
            read().unwrap_err();
        }
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, Mode::from_bits_truncate(0o600)).unwrap();
        read().unwrap_err();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        read().unwrap_err();
        drop((ring, segments));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_the_disk_does_not_take_stays_in_memory() {
        let folder = std::env::temp_dir().join(format!("gpurec-gone-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let opened = std::fs::File::open(&folder).unwrap().into();
        std::fs::remove_dir(&folder).unwrap();
        let (sender, receiver) = unbounded();
        let mut ring = Ring::new(Last::Bytes(1 << 20), Some(opened), sender);
        for id in 0..100 {
            ring.write(line(id).as_bytes()).unwrap();
        }
        ring.dump(request());
        assert!(matches!(receiver.try_recv(), Ok(Job::Full(_))));
        let (forgotten, dumped, _) = jobs(&receiver);
        assert_eq!((forgotten.len(), dumped.len()), (0, 100));
    }
}
