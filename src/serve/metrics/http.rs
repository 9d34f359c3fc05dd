//! HTTP as far as a scrape needs it. In: the bytes of a request. Out: what it asks for, and the head of an answer.
//! Pure. Each connection has one request, so no request waits for another.

use super::text::Format;

/// The most bytes of a request.
pub const MOST: usize = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Metrics(Format),
    Health,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// More bytes must come.
    Partial,
    /// HEAD wants no body.
    Get {
        what: Asked,
        has_body: bool,
    },
    Refused(Status),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    Malformed,
    NotFound,
    NotAllowed,
    TooLarge,
    Unavailable,
    Busy,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::Malformed => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::NotAllowed => "405 Method Not Allowed",
            Status::TooLarge => "431 Request Header Fields Too Large",
            Status::Unavailable | Status::Busy => "503 Service Unavailable",
        }
    }

    /// The body of an answer without metrics.
    pub fn text(self) -> &'static str {
        match self {
            Status::Ok => "ok\n",
            Status::Malformed => "this is not an HTTP request\n",
            Status::NotFound => "only /metrics and /healthz exist\n",
            Status::NotAllowed => "only GET and HEAD are allowed\n",
            Status::TooLarge => "the request is too large\n",
            Status::Unavailable => "the recorder does not answer\n",
            Status::Busy => "other clients are still reading large answers: try again\n",
        }
    }
}

pub fn parse(bytes: &[u8]) -> Request {
    let Some(end) = end_of_head(bytes) else {
        return if bytes.len() >= MOST { Request::Refused(Status::TooLarge) } else { Request::Partial };
    };
    let head = bytes.get(..end).and_then(|head| std::str::from_utf8(head).ok());
    let Some(head) = head else { return Request::Refused(Status::Malformed) };
    let mut lines = head.split('\n').map(|line| line.trim_end_matches('\r'));
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words.as_slice() else { return Request::Refused(Status::Malformed) };
    if !version.starts_with("HTTP/1.") {
        return Request::Refused(Status::Malformed);
    }
    let has_body = match *method {
        "GET" => true,
        "HEAD" => false,
        _ => return Request::Refused(Status::NotAllowed),
    };
    let accept: Vec<&str> = lines.filter_map(accepts).collect();
    match path(target) {
        "/metrics" => Request::Get { what: Asked::Metrics(Format::accepted(&accept.join(","))), has_body },
        "/healthz" => Request::Get { what: Asked::Health, has_body },
        _ => Request::Refused(Status::NotFound),
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let crlf = memchr::memmem::find(bytes, b"\r\n\r\n");
    let lf = memchr::memmem::find(bytes, b"\n\n");
    [crlf, lf].into_iter().flatten().min()
}

fn accepts(line: &str) -> Option<&str> {
    let (name, value) = line.split_once(':')?;
    name.eq_ignore_ascii_case("accept").then_some(value.trim())
}

/// Without the query; a proxy sends the whole URL.
fn path(target: &str) -> &str {
    let after_host = target.strip_prefix("http://").map(|rest| rest.find('/').map_or("/", |at| &rest[at..]));
    after_host.unwrap_or(target).split('?').next().unwrap_or_default()
}

pub fn head(status: Status, content_type: &str, length: usize) -> String {
    let allow = if status == Status::NotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nX-Content-Type-Options: nosniff\r\n{allow}Connection: close\r\n\r\n",
        status.line()
    )
}

#[cfg(test)]
mod unit {
    use super::*;

    fn get(what: Asked) -> Request {
        Request::Get { what, has_body: true }
    }

    #[test]
    fn requests() {
        let metrics = Asked::Metrics(Format::Prometheus);
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", get(metrics)),
            ("GET /metrics?a=b HTTP/1.0\n\n", get(metrics)),
            ("GET http://a:9400/metrics HTTP/1.1\r\n\r\n", get(metrics)),
            ("GET /healthz HTTP/1.1\r\n\r\n", get(Asked::Health)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Request::Get { what: metrics, has_body: false }),
            (
                "GET /metrics HTTP/1.1\r\naCCept: text/plain;q=0.5\r\nAccept: application/openmetrics-text\r\n\r\n",
                get(Asked::Metrics(Format::OpenMetrics)),
            ),
            ("GET / HTTP/1.1\r\n\r\n", Request::Refused(Status::NotFound)),
            ("GET http://a HTTP/1.1\r\n\r\n", Request::Refused(Status::NotFound)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Request::Refused(Status::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Request::Refused(Status::NotAllowed)),
            ("GET /metrics\r\n\r\n", Request::Refused(Status::Malformed)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Request::Refused(Status::Malformed)),
            ("GET /metrics HTTP/2\r\n\r\n", Request::Refused(Status::Malformed)),
            ("\x16\x03\x01\n\n", Request::Refused(Status::Malformed)),
            ("", Request::Partial),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", Request::Partial),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse(b"\xff\xfe\n\n"), Request::Refused(Status::Malformed));
        assert_eq!(parse(&[b'x'; MOST]), Request::Refused(Status::TooLarge));
        assert_eq!(parse(&[b'x'; MOST - 1]), Request::Partial);
    }
}
