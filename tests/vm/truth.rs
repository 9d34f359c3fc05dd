//! What the stand-in driver module counted.
//! In: the text of standin_counts.
//! Out: how often each request came, with what result.

use std::collections::BTreeMap;

/// A request as the driver module saw it. `detail`: the RM command or class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub device: String,
    pub nr: u32,
    pub detail: Option<u32>,
    /// None if the driver module did not take the request.
    pub status: Option<u32>,
    pub returned: i64,
    pub wrapped: bool,
}

#[derive(Default)]
pub struct Truth {
    pub requests: BTreeMap<Request, u64>,
    /// By module and name.
    pub functions: BTreeMap<String, u64>,
    pub events: BTreeMap<String, u64>,
    /// By device and operation: open, close, mmap, poll.
    pub files: BTreeMap<(String, String), u64>,
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

impl Truth {
    pub fn read(text: &str) -> Truth {
        let mut truth = Truth::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let count = || words.last().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
            match words[..] {
                ["ioctl", device, nr, detail, status, returned, how, _] => {
                    let request = Request {
                        device: device.to_owned(),
                        nr: hex(nr).unwrap(),
                        detail: hex(detail),
                        status: hex(status),
                        returned: returned.parse().unwrap(),
                        wrapped: how == "wrapped",
                    };
                    truth.requests.insert(request, count());
                }
                ["function", _, name, _] => *truth.functions.entry(name.to_owned()).or_default() += count(),
                ["event", name, _] => drop(truth.events.insert(name.to_owned(), count())),
                ["file", device, what, _] => {
                    truth.files.insert((device.to_owned(), what.to_owned()), count());
                }
                ["process", ..] => {}
                _ => panic!("the driver counts something unknown: {line}"),
            }
        }
        truth
    }

    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}
