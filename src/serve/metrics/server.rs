//! The HTTP server of `--metrics`: one thread, a bounded number of connections. In: connections. Out: an answer for
//! each. A client that is slow, or sends nothing, keeps its place until its time is over or another client needs the
//! place. Clients without a whole request have places of their own, so they take none from clients with one. Not here:
//! what a request means (http), what an answer contains (text).
//!
//! Written by hand, because there are only two paths, and the HTTP crates bring an executor or a thread per connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::Backlog;

use super::PATIENCE;
use super::families::Points;
use super::http::{self, Asked, Request, Status};
use super::labels::Pods;
use super::text::{self, Format};
use crate::serve::state::{Asker, State};

/// The most connections without a whole request. The newest stay: under a flood, a client has time to send its request
/// until as many others have come.
const WITHOUT_REQUEST: usize = 256;

/// The most connections that read their answers, which are in memory meanwhile.
const READING: usize = 32;

/// The most bytes of the answers that are being read. Clients that get the same text share it. One answer may be larger
/// if it is the only one.
const MOST_BYTES: usize = 64 << 20;

/// An answer of at most this size fits into the buffer of its socket, so it takes no memory here and does not count.
const SMALL: usize = 4 << 10;

/// A client has at least this long to read its answer before gpurec closes its connection to answer another client.
const PROMPT: Duration = Duration::from_secs(2);

/// The most connections at once. Those that wait for an answer all get one, in `PATIENCE`.
const MOST: usize = 512;

/// The most connections that are accepted before the requests of all are read.
const AT_ONCE: usize = 64;

/// How many connections wait in Linux to be accepted: as many as Linux allows by default.
const BACKLOG: i32 = 4096;

/// How long a client may take to send its request, and to read its answer.
const REQUEST: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// A copy of the sums serves all requests within this time.
const FRESH: Duration = Duration::from_millis(20);

/// How long to leave the port alone after Linux refused a connection, as when no descriptor is left.
const REST: Duration = Duration::from_millis(200);

const TICK: u16 = 500;

struct Connection {
    stream: TcpStream,
    phase: Phase,
    /// When the client must be done with the phase.
    until: Instant,
}

enum Phase {
    Reads(Vec<u8>),
    /// For a copy of the sums.
    Waits {
        what: Asked,
        has_body: bool,
    },
    Writes {
        head: Vec<u8>,
        body: Arc<str>,
        written: usize,
    },
    Done,
}

pub fn start(listener: TcpListener, asker: Asker, pods: Arc<Pods>) -> io::Result<()> {
    // The standard library's queue has room for 128.
    nix::sys::socket::listen(&listener, Backlog::new(BACKLOG)?)?;
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let server = Server {
        listener,
        asker,
        pods,
        wake,
        waker,
        connections: Vec::new(),
        pending: None,
        last: None,
        rest: None,
    };
    thread::Builder::new().name("gpurec-metrics".into()).spawn(move || server.run())?;
    Ok(())
}

struct Server {
    listener: TcpListener,
    asker: Asker,
    pods: Arc<Pods>,
    /// Readable when the answer to `pending` is there.
    wake: UnixStream,
    waker: UnixStream,
    connections: Vec<Connection>,
    pending: Option<Receiver<Arc<State>>>,
    last: Option<Copy>,
    /// No connection is accepted until then.
    rest: Option<Instant>,
}

/// The last copy of the sums, and its texts.
struct Copy {
    at: Instant,
    state: Arc<State>,
    texts: Vec<(Format, Arc<str>)>,
}

impl Server {
    fn run(mut self) {
        loop {
            self.wait();
            self.accept();
            let mut connections = std::mem::take(&mut self.connections);
            connections.iter_mut().for_each(|one| one.read());
            self.answer(&mut connections);
            connections.iter_mut().for_each(|one| one.write());
            let now = Instant::now();
            connections.retain(|one| !matches!(one.phase, Phase::Done) && one.until > now);
            self.connections = connections;
            self.close_oldest(WITHOUT_REQUEST, |phase| matches!(phase, Phase::Reads(_)));
            self.close_oldest(READING, |phase| matches!(phase, Phase::Writes { .. }));
        }
    }

    /// Of the connections in a phase only the newest stay, which are the last.
    fn close_oldest(&mut self, most: usize, is_in: impl Fn(&Phase) -> bool) {
        let count = self.connections.iter().filter(|one| is_in(&one.phase)).count();
        let mut surplus = count.saturating_sub(most);
        self.connections.retain(|one| {
            let goes = surplus > 0 && is_in(&one.phase);
            surplus -= usize::from(goes);
            !goes
        });
    }

    fn has_room(&self) -> bool {
        self.rest.is_none() && self.connections.len() < MOST
    }

    fn wait(&mut self) {
        let now = Instant::now();
        self.rest = self.rest.filter(|rest| *rest > now);
        let first = self.connections.iter().map(|one| one.until).chain(self.rest).min();
        let left = first.map_or(TICK.into(), |until| until.saturating_duration_since(now).as_millis() + 1);
        let listens = if self.has_room() { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(self.listener.as_fd(), listens),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
        ];
        let ready =
            self.connections.iter().filter_map(|one| Some(PollFd::new(one.stream.as_fd(), one.waits_for()?)));
        fds.extend(ready);
        // An error here is an interruption by a signal, after which the loop checks everything again.
        let _ = poll(&mut fds, PollTimeout::from(u16::try_from(left).unwrap_or(TICK).min(TICK)));
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            if !self.has_room() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.meet(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => self.rest = Some(Instant::now() + REST),
            }
        }
    }

    fn meet(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_ok() {
            let phase = Phase::Reads(Vec::new());
            self.connections.push(Connection { stream, phase, until: Instant::now() + REQUEST });
        }
    }

    fn answer(&mut self, connections: &mut [Connection]) {
        let mut bytes = [0; 64];
        while matches!(self.wake.read(&mut bytes), Ok(read) if read > 0) {}
        match self.pending.as_ref().map(Receiver::try_recv) {
            Some(Ok(state)) => {
                self.pending = None;
                self.last = Some(Copy { at: Instant::now(), state, texts: Vec::new() });
            }
            Some(Err(TryRecvError::Disconnected)) => {
                self.pending = None;
                connections.iter_mut().for_each(Connection::give_up);
            }
            Some(Err(TryRecvError::Empty)) | None => {}
        }
        let now = Instant::now();
        // All connections use the same `now`, because making a large text can take longer than `FRESH`.
        self.last.take_if(|copy| now.saturating_duration_since(copy.at) >= FRESH);
        for at in 0..connections.len() {
            let Some(one) = connections.get_mut(at) else { continue };
            let Phase::Waits { what, has_body } = one.phase else { continue };
            match self.last.as_mut() {
                Some(copy) => {
                    let (kind, body) = copy.answer(what, &self.pods);
                    let has_room = !has_body || make_room(connections, &body, now);
                    let (status, kind, body) = match has_room {
                        true => (Status::Ok, kind, body),
                        false => (Status::Busy, PLAIN, Status::Busy.text().into()),
                    };
                    if let Some(one) = connections.get_mut(at) {
                        one.sends(status, kind, body, has_body);
                    }
                }
                // The thread that empties the rings has not answered in time.
                None if one.until.saturating_duration_since(now) <= ANSWER.saturating_sub(PATIENCE) => {
                    one.give_up();
                }
                None if self.pending.is_some() => {}
                None => {
                    self.pending = self.asker.ask(Some(&self.waker));
                    if self.pending.is_none() {
                        one.give_up();
                    }
                }
            }
        }
    }
}

/// Whether there is memory to send a text. Makes room by closing connections, the oldest first, whose clients have had
/// `PROMPT` to read their answers.
fn make_room(connections: &mut [Connection], text: &Arc<str>, now: Instant) -> bool {
    if text.len() <= SMALL {
        return true;
    }
    let is_other = |one: &Connection| one.large_body().is_some_and(|body| !Arc::ptr_eq(body, text));
    loop {
        let others = connections.iter().filter(|one| is_other(one)).filter_map(Connection::large_body);
        let mut others: Vec<&Arc<str>> = others.collect();
        others.sort_unstable_by_key(|body| body.as_ptr());
        others.dedup_by_key(|body| body.as_ptr());
        let bytes: usize = others.iter().map(|body| body.len()).sum();
        if bytes == 0 || bytes + text.len() <= MOST_BYTES {
            return true;
        }
        let had_time = |one: &&mut Connection| {
            is_other(one) && one.until.saturating_duration_since(now) + PROMPT <= ANSWER
        };
        let Some(oldest) = connections.iter_mut().filter(had_time).min_by_key(|one| one.until) else {
            return false;
        };
        oldest.phase = Phase::Done;
    }
}

impl Copy {
    fn answer(&mut self, what: Asked, pods: &Pods) -> (&'static str, Arc<str>) {
        let Asked::Metrics(format) = what else { return (PLAIN, Status::Ok.text().into()) };
        let known = self.texts.iter().find(|(known, _)| *known == format);
        let text = known.map(|(_, text)| text.clone()).unwrap_or_else(|| {
            let text: Arc<str> = text::write(&Points::of(&self.state, pods), format).into();
            self.texts.push((format, text.clone()));
            text
        });
        (format.content_type(), text)
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl Connection {
    fn large_body(&self) -> Option<&Arc<str>> {
        match &self.phase {
            Phase::Writes { body, .. } => Some(body).filter(|body| body.len() > SMALL),
            _ => None,
        }
    }

    /// None while the answer is made: a client that left would wake `poll` again and again.
    fn waits_for(&self) -> Option<PollFlags> {
        match self.phase {
            Phase::Reads(_) => Some(PollFlags::POLLIN),
            Phase::Writes { .. } => Some(PollFlags::POLLOUT),
            Phase::Waits { .. } | Phase::Done => None,
        }
    }

    fn read(&mut self) {
        let Phase::Reads(request) = &mut self.phase else { return };
        let mut bytes = [0; 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return self.phase = Phase::Done,
                Ok(read) => request.extend_from_slice(bytes.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.phase = Phase::Done,
            }
            match http::parse(request) {
                Request::Partial => {}
                Request::Refused(status) => return self.sends(status, PLAIN, status.text().into(), true),
                Request::Get { what, has_body } => {
                    self.until = Instant::now() + ANSWER;
                    return self.phase = Phase::Waits { what, has_body };
                }
            }
        }
    }

    fn give_up(&mut self) {
        if let Phase::Waits { has_body, .. } = self.phase {
            self.sends(Status::Unavailable, PLAIN, Status::Unavailable.text().into(), has_body);
        }
    }

    fn sends(&mut self, status: Status, kind: &str, body: Arc<str>, has_body: bool) {
        let head = http::head(status, kind, body.len()).into_bytes();
        let body = if has_body { body } else { "".into() };
        self.until = Instant::now() + ANSWER;
        self.phase = Phase::Writes { head, body, written: 0 };
    }

    fn write(&mut self) {
        let Phase::Writes { head, body, written } = &mut self.phase else { return };
        loop {
            let rest = match head.get(*written..).filter(|rest| !rest.is_empty()) {
                Some(rest) => rest,
                None => body.as_bytes().get(*written - head.len()..).unwrap_or_default(),
            };
            if rest.is_empty() {
                // Otherwise a client that is still sending could get a reset instead of the answer.
                let _ = self.stream.shutdown(Shutdown::Write);
                return self.phase = Phase::Done;
            }
            match self.stream.write(rest) {
                Ok(0) => return self.phase = Phase::Done,
                Ok(sent) => *written += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.phase = Phase::Done,
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use std::time::SystemTime;

    use super::*;
    use crate::serve::state::channel;
    use gpurec_analysis::usage::Snapshot;

    const SCRAPE: Phase = Phase::Waits { what: Asked::Metrics(Format::Prometheus), has_body: true };

    fn server() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (wake, waker) = UnixStream::pair().unwrap();
        wake.set_nonblocking(true).unwrap();
        let asker = channel(SystemTime::now()).0;
        let (connections, pods) = (Vec::new(), Arc::default());
        Server { listener, asker, pods, wake, waker, connections, pending: None, last: None, rest: None }
    }

    fn connection(server: &Server, phase: Phase) -> (Connection, TcpStream) {
        let client = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        let stream = server.listener.accept().unwrap().0;
        (Connection { stream, phase, until: Instant::now() + ANSWER }, client)
    }

    /// A copy with a text of that size, which does not become old during the test.
    fn copy(size: usize) -> Option<Copy> {
        let now = SystemTime::now();
        let state = Arc::new(State { usage: Snapshot::default(), start: now, now, dropped: None });
        let texts = vec![(Format::Prometheus, "x".repeat(size).into())];
        Some(Copy { at: Instant::now() + Duration::from_secs(3600), state, texts })
    }

    /// Clients that never read, with all times under control.
    struct Clients {
        server: Server,
        connections: Vec<Connection>,
        streams: Vec<TcpStream>,
    }

    impl Clients {
        fn new() -> Clients {
            Clients { server: server(), connections: Vec::new(), streams: Vec::new() }
        }

        /// More clients ask, and the text has that size.
        fn ask(&mut self, phases: Vec<Phase>, size: usize) -> Vec<usize> {
            for phase in phases {
                let (one, stream) = connection(&self.server, phase);
                self.connections.push(one);
                self.streams.push(stream);
            }
            self.server.last = copy(size);
            self.server.answer(&mut self.connections);
            self.connections.iter_mut().for_each(|one| one.until = Instant::now() + 100 * ANSWER);
            let size = |one: &Connection| match &one.phase {
                Phase::Writes { body, .. } => body.len(),
                _ => 0,
            };
            self.connections.iter().map(size).collect()
        }
    }

    #[test]
    fn the_bytes_of_answers_are_bounded() {
        let mut clients = Clients::new();
        let (large, busy) = (MOST_BYTES * 2 / 5, Status::Busy.text().len());
        // Two texts fit, whatever the number of their clients.
        clients.ask(vec![SCRAPE, SCRAPE], large);
        clients.ask(vec![SCRAPE, SCRAPE], large);
        assert_eq!(clients.ask(vec![SCRAPE, SCRAPE], large), [large, large, large, large, busy, busy]);
        clients.connections.truncate(4);
        let head = Phase::Waits { what: Asked::Metrics(Format::Prometheus), has_body: false };
        let health = Phase::Waits { what: Asked::Health, has_body: true };
        assert_eq!(clients.ask(vec![head, health], large), [large, large, large, large, 0, 3]);
        assert_eq!(clients.ask(vec![SCRAPE], SMALL), [large, large, large, large, 0, 3, SMALL]);
        clients.connections.truncate(4);
        // All have had time to read. Those of the first text have had the most, and it is in memory until both are left.
        for (one, more) in clients.connections.iter_mut().zip([1, 1, 0, 0]) {
            one.until = Instant::now() + ANSWER - PROMPT - Duration::from_secs(more);
        }
        assert_eq!(clients.ask(vec![SCRAPE], large), [0, 0, large, large, large]);
    }

    #[test]
    fn one_answer_may_have_any_size() {
        assert_eq!(Clients::new().ask(vec![SCRAPE, SCRAPE], MOST_BYTES + 1), [MOST_BYTES + 1; 2]);
    }
}
