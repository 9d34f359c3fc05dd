//! `--otlp`: sends the metrics to a receiver of OTLP/HTTP. In: copies of the sums, every ten seconds and at the end.
//! Out: exports. If the receiver does not take them, `WAITING` of them wait; beyond that the oldest are dropped, and a
//! metric counts those. One thread; only the end of gpurec waits for it, for a bounded time.
//!
//! Only http: a library for TLS would make up half of the binary, and a collector on the same machine can add TLS.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::PATIENCE;
use super::families::Points;
use super::labels::Pods;
use super::otlp;
use crate::serve::state::{Asker, State, Teller};

const EVERY: Duration = Duration::from_secs(10);

/// The most exports that wait for the receiver.
const WAITING: usize = 8;

/// How long to wait after a failure: this, and twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Limits on the time of one exchange with the receiver, and of those at the end.
const CONNECT: Duration = Duration::from_secs(3);
const EXCHANGE: Duration = Duration::from_secs(10);
const AT_END: Duration = Duration::from_secs(5);

/// The most bytes of an answer.
const MOST_ANSWER: u64 = 64 << 10;

/// Where the receiver of `--otlp` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub url: String,
    /// Host and port, as in the URL.
    authority: String,
    path: String,
}

impl Endpoint {
    /// Without a path it is that of the specification.
    pub fn parse(url: &str) -> Result<Endpoint, String> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let rest = match scheme.as_deref() {
            Some("http") => url.get("http://".len()..).unwrap_or_default(),
            Some("https") => {
                return Err("gpurec supports http only: run a collector on this machine that sends by https, and give its address, such as http://127.0.0.1:4318".to_owned());
            }
            _ => return Err("must be a URL such as http://127.0.0.1:4318".to_owned()),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("gpurec sends no user and no password: leave out what is before the @".to_owned());
        }
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '#' | '"' | '<' | '>' | '\\');
        if authority.is_empty() || !rest.chars().all(is_plain) {
            return Err("must be a URL such as http://127.0.0.1:4318".to_owned());
        }
        let path = if matches!(path, "" | "/") { "/v1/metrics" } else { path };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Endpoint { url: url.to_owned(), authority: authority.to_owned(), path: format!("{slash}{path}") })
    }

    /// Host and port to connect to.
    fn address(&self) -> String {
        let has_port =
            self.authority.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.contains(']'));
        if has_port { self.authority.clone() } else { format!("{}:80", self.authority.trim_end_matches(':')) }
    }
}

/// What became of an export.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Taken,
    /// The receiver took it, except for some points.
    InPart(String),
    /// Another attempt may succeed, after this time if the receiver gave one.
    Later(String, Option<Duration>),
    Refused(String),
}

pub struct Pusher {
    ended: Receiver<()>,
}

impl Pusher {
    /// Waits until the last export is sent, for a bounded time.
    pub fn finish(self) {
        let _ = self.ended.recv_timeout(AT_END + EXCHANGE);
    }
}

pub fn start(
    endpoint: Endpoint,
    asker: Asker,
    teller: &mut Teller,
    pods: Arc<Pods>,
    say: Box<dyn Fn(&str) + Send>,
) -> io::Result<Pusher> {
    let (last, at_end) = bounded(1);
    let dropped = Arc::new(AtomicU64::new(0));
    (teller.last, teller.dropped) = (Some(last), Some(dropped.clone()));
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let sender = Sender {
        queue: Queue { waiting: VecDeque::new(), dropped },
        endpoint,
        pods,
        host,
        say,
        has_failed: false,
        failures: 0,
        not_before: None,
    };
    let (ending, ended) = bounded(0);
    thread::Builder::new().name("gpurec-otlp".into()).spawn(move || {
        sender.run(&asker, &at_end);
        drop(ending);
    })?;
    Ok(Pusher { ended })
}

struct Queue {
    waiting: VecDeque<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl Queue {
    /// If there is no room, drops the oldest: the newest has the sums of all.
    fn add(&mut self, export: Vec<u8>) {
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
            self.drop_one();
        }
        self.waiting.push_back(export);
    }

    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

struct Sender {
    endpoint: Endpoint,
    pods: Arc<Pods>,
    host: String,
    queue: Queue,
    say: Box<dyn Fn(&str) + Send>,
    /// A message has reported a failure.
    has_failed: bool,
    /// Since the last success.
    failures: u32,
    not_before: Option<Instant>,
}

impl Sender {
    fn run(mut self, asker: &Asker, at_end: &Receiver<Arc<State>>) {
        let mut next = Instant::now() + EVERY;
        loop {
            let wake =
                self.not_before.filter(|_| !self.queue.waiting.is_empty()).map_or(next, |at| at.min(next));
            match at_end.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(state) => return self.last(&state),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if next <= Instant::now() {
                next += EVERY;
                if let Some(state) = asker.ask(None).and_then(|answer| answer.recv_timeout(PATIENCE).ok()) {
                    self.queue.add(self.export(&state));
                }
                next = next.max(Instant::now());
            }
            self.send_all();
        }
    }

    fn export(&self, state: &State) -> Vec<u8> {
        otlp::export(&Points::of(state, &self.pods), state, &self.host)
    }

    /// Sends the waiting exports, until one fails.
    fn send_all(&mut self) {
        while self.not_before.is_none_or(|at| at <= Instant::now())
            && let Some(export) = self.queue.waiting.front()
        {
            let sent = send(&self.endpoint, export);
            self.not_before = self.pause(&sent).map(|pause| Instant::now() + pause);
            if self.not_before.is_none() {
                self.queue.waiting.pop_front();
            }
        }
    }

    /// How long to wait before the same export is sent again. None: it is not sent again.
    fn pause(&mut self, sent: &Sent) -> Option<Duration> {
        let url = &self.endpoint.url;
        let (sentence, pause) = match sent {
            Sent::Taken => {
                self.failures = 0;
                return None;
            }
            Sent::InPart(why) => (format!("{url} takes only a part of the metrics: {why}"), None),
            Sent::Refused(why) => {
                self.queue.drop_one();
                (format!("{url} refuses the metrics: {why}"), None)
            }
            Sent::Later(why, after) => {
                let doubled = PAUSE.saturating_mul(1 << self.failures.min(6)).min(LONGEST_PAUSE);
                self.failures += 1;
                let pause = after.map_or(doubled, |after| after.clamp(PAUSE, LONGEST_PAUSE));
                (format!("cannot send metrics to {url}: {why}; gpurec tries again"), Some(pause))
            }
        };
        if !std::mem::replace(&mut self.has_failed, true) {
            (self.say)(&sentence);
        }
        pause
    }

    /// Sends the last sums. They contain those of the waiting exports, which are dropped.
    fn last(mut self, state: &State) {
        let until = Instant::now() + AT_END;
        let export = self.export(state);
        for _ in &self.queue.waiting {
            self.queue.drop_one();
        }
        loop {
            let sent = send(&self.endpoint, &export);
            match self.pause(&sent) {
                Some(pause) if Instant::now() + pause < until => thread::sleep(pause),
                Some(_) => {
                    return (self.say)(&format!("{} did not take the last metrics", self.endpoint.url));
                }
                None => return,
            }
        }
    }
}

fn send(endpoint: &Endpoint, export: &[u8]) -> Sent {
    match exchange(endpoint, export) {
        Ok(answer) => judge(&answer),
        Err(error) => Sent::Later(error.to_string(), None),
    }
}

fn exchange(endpoint: &Endpoint, export: &[u8]) -> io::Result<Vec<u8>> {
    let until = Instant::now() + EXCHANGE;
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in endpoint.address().to_socket_addrs()?.take(4) {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return talk(stream, endpoint, export, until),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn talk(mut stream: TcpStream, endpoint: &Endpoint, export: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let left = |until: Instant| {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(Some(left)) }
    };
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gpurec/{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        endpoint.path,
        endpoint.authority,
        env!("CARGO_PKG_VERSION"),
        export.len()
    );
    for part in [head.as_bytes(), export] {
        for piece in part.chunks(64 << 10) {
            stream.set_write_timeout(left(until)?)?;
            stream.write_all(piece)?;
        }
    }
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    while (answer.len() as u64) < MOST_ANSWER && !is_whole(&answer) {
        stream.set_read_timeout(left(until)?)?;
        match stream.read(&mut bytes)? {
            0 => break,
            read => answer.extend_from_slice(bytes.get(..read).unwrap_or_default()),
        }
    }
    Ok(answer)
}

/// The head, and the body where its length is known.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default());
    let length = header(&head, "content-length").and_then(|length| length.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= (end + 4).saturating_add(length))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(known, _)| known.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

fn judge(answer: &[u8]) -> Sent {
    let end = memchr::memmem::find(answer, b"\r\n\r\n").unwrap_or(answer.len());
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default());
    let body = answer.get(end + 4..).unwrap_or_default();
    let line = head.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse::<u16>().ok());
    // One line, whatever the receiver says.
    let shown = |text: &str, most| crate::ui::clean(&text.chars().take(most).collect::<String>());
    let said = || shown(line, 100);
    match status {
        Some(200..=299) => {
            let partial = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
            let partial = &partial["partialSuccess"];
            let rejected = &partial["rejectedDataPoints"];
            let rejected = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0);
            match rejected {
                0 => Sent::Taken,
                rejected => {
                    let why = shown(partial["errorMessage"].as_str().unwrap_or_default(), 200);
                    Sent::InPart(format!("{rejected} points were rejected: {why}"))
                }
            }
        }
        // The statuses that the specification calls retryable.
        Some(429 | 502 | 503 | 504) => {
            let after = header(&head, "retry-after").and_then(|after| after.parse().ok());
            Sent::Later(said(), after.map(Duration::from_secs))
        }
        Some(_) => Sent::Refused(said()),
        None => Sent::Later("it does not answer in HTTP".to_owned(), None),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn urls() {
        for (url, address, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/metrics"),
            ("http://collector:4318/", "collector:4318", "/v1/metrics"),
            ("HTTP://collector", "collector:80", "/v1/metrics"),
            ("http://[::1]:4318/a/b?c=d", "[::1]:4318", "/a/b?c=d"),
            ("http://[::1]", "[::1]:80", "/v1/metrics"),
            ("http://a?b", "a:80", "/?b"),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!((endpoint.address().as_str(), endpoint.path.as_str()), (address, path), "{url}");
        }
        assert!(Endpoint::parse("https://a").unwrap_err().contains("collector"));
        for url in [
            "",
            "a",
            "a:4318",
            "http://",
            "http:///a",
            "ftp://a",
            "http://u:p@a",
            "http://a b",
            "http://a#b",
            "http://a\r\nX: y",
        ] {
            assert!(Endpoint::parse(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn answers() {
        let of = |text: &str| judge(text.as_bytes());
        assert_eq!(of("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), Sent::Taken);
        assert_eq!(of("HTTP/1.0 202 Accepted\r\n\r\n"), Sent::Taken);
        let partial = "HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedDataPoints\":\"3\",\"errorMessage\":\"old\"}}";
        assert!(matches!(of(partial), Sent::InPart(why) if why.contains('3') && why.contains("old")));
        let lines = partial.replace("old", "old\\ngpurec: all is lost\\u001b[2J");
        assert!(
            matches!(of(&lines), Sent::InPart(why) if why.ends_with("old\\ngpurec: all is lost\\u{1b}[2J"))
        );
        let later = of("HTTP/1.1 503 Busy\r\nretry-after: 7\r\n\r\n");
        assert_eq!(later, Sent::Later("HTTP/1.1 503 Busy".to_owned(), Some(Duration::from_secs(7))));
        assert!(matches!(of("HTTP/1.1 400 Bad\r\n\r\n"), Sent::Refused(_)));
        for text in ["", "SSH-2.0", "HTTP/1.1", "HTTP/1.1 2", "HTTP/1.1 abc"] {
            assert!(matches!(of(text), Sent::Later(_, None)), "{text}");
        }
        assert!(is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"));
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{") && !is_whole(b"HTTP/1.1 200"));
    }

    #[test]
    fn the_oldest_give_way_and_are_counted() {
        let dropped = Arc::new(AtomicU64::new(0));
        let mut queue = Queue { waiting: VecDeque::new(), dropped: dropped.clone() };
        (0..20).for_each(|n| queue.add(vec![n]));
        assert_eq!((queue.waiting.len(), dropped.load(Ordering::Relaxed)), (WAITING, 12));
        assert_eq!((queue.waiting.front(), queue.waiting.back()), (Some(&vec![12]), Some(&vec![19])));
    }
}
