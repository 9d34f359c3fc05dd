//! A flood of connections to --metrics from this machine.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::sys::signal::Signal;

use crate::metrics::{ask, port_of};
use crate::room::live;

const REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Connections that each thread of the flood keeps open.
const KEPT: usize = 100;
const SCRAPES: usize = 100;

#[test]
fn a_flood_of_connections_keeps_no_scrape_from_its_answer() {
    live(|room| {
        // What clients send before they wait: nothing, a part of a request, or a whole one, whose answer they do not read.
        for sent in ["", "GET /metrics HTTP/1.1\r\n", REQUEST] {
            let target = room.target(&["sleep", "600"]);
            let pid = target.pid().to_string();
            let recording = room.start(room.gpurec(&["--pid", &pid, "--metrics", "127.0.0.1:0"]));
            let port = port_of(&recording);
            let (is_over, connected) = (AtomicBool::new(false), AtomicU64::new(0));
            let flood = || {
                let mut kept = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                    let _ = stream.write_all(sent.as_bytes());
                    kept.push_back(stream);
                    connected.fetch_add(1, Ordering::Relaxed);
                    if kept.len() > KEPT {
                        kept.pop_front();
                    }
                }
            };
            let answered = thread::scope(|scope| {
                (0..4).for_each(|_| drop(scope.spawn(flood)));
                let is_answered = || ask(port, REQUEST).is_some_and(|answer| answer.status == 200);
                let answered = (0..SCRAPES).filter(|_| is_answered()).count();
                is_over.store(true, Ordering::Relaxed);
                answered
            });
            println!("{sent:?}: {answered} of {SCRAPES} scrapes, {connected:?} connections");
            assert_eq!(answered, SCRAPES, "{sent:?}");
            recording.signal(Signal::SIGTERM);
            recording.done().exited(0);
            target.kill();
        }
    });
}
