//! Traces that a test makes line by line, and what `ranks` says of them.

use super::*;

/// A trace that is made line by line, and has an end line that says it is complete.
pub struct Made {
    text: String,
    id: u64,
}

impl Made {
    pub fn new() -> Made {
        let header = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"node","kernel":"6","user":"ada","options":{},"hooks":{},"clock":{"monotonic_ns":5000,"realtime_ns":1790000000000000000,"error_ns":60,"boot_id":"b","ntp":null,"ptp":null}}"#;
        Made { text: format!("{header}\n"), id: 0 }
    }

    /// A line at a time in seconds, and its number.
    pub fn line(&mut self, at: f64, rest: &str) -> u64 {
        self.id += 1;
        self.text.push_str(&format!("{{\"event_id\":{},\"ts\":{at:.9},{rest}}}\n", self.id));
        self.id
    }

    pub fn rank(&mut self, pid: u32, rank: u32) {
        let exec = r#""type":"process","name":"exec""#;
        self.line(0.0, &format!(r#"{exec},"pid":{pid},"tid":{pid},"command":["a"],"rank":{rank}"#));
    }

    pub fn exit(&mut self, at: f64, pid: u32, status: &str) {
        self.line(at, &format!(r#""type":"process","name":"exit","pid":{pid},"tid":{pid},{status}"#));
    }

    pub fn begin(&mut self, at: f64, thread: (u32, u32), name: &str) -> u64 {
        self.begin_with(at, thread, name, "{}")
    }

    pub fn begin_with(&mut self, at: f64, (pid, tid): (u32, u32), name: &str, args: &str) -> u64 {
        let call = r#""type":"userspace""#;
        let thread = format!(r#""phase":"B","pid":{pid},"tid":{tid},"depth":0"#);
        self.line(at, &format!(r#"{call},"name":"{name}",{thread},"args":{args}"#))
    }

    pub fn call(&mut self, at: f64, pid: u32, name: &str) {
        self.call_with(at, pid, name, "{}", "");
    }

    /// `more`: keys of the end line.
    pub fn call_with(&mut self, at: f64, pid: u32, name: &str, args: &str, more: &str) {
        let begin = self.begin_with(at, (pid, pid), name, args);
        let end = format!(r#""phase":"E","pid":{pid},"tid":{pid},"begin":{begin},"duration_us":1.000"#);
        self.line(at, &format!(r#""type":"userspace","name":"{name}",{end},"retval":0{more}"#));
    }

    pub fn kernel(&mut self, at: f64, pid: u32, name: &str, us: u64) {
        let work = r#""type":"gpu","kind":"kernel","source":"lane","stream":1,"device":0,"context":1,"correlation":1,"begin":null,"queued_us":null"#;
        self.line(at, &format!(r#"{work},"name":"{name}","pid":{pid},"duration_us":{us}.000"#));
    }

    /// `rank`: in the communicator, which has `nranks`.
    pub fn collective(&mut self, at: f64, pid: u32, comm: &str, (rank, nranks): (u32, u32), seq: u64) {
        let what = r#""type":"collective","name":"ncclAllReduce","op":"AllReduce","begin":0"#;
        self.line(
            at,
            &format!(
                r#"{what},"pid":{pid},"tid":{pid},"comm":"{comm}","rank":{rank},"nranks":{nranks},"seq":{seq}"#
            ),
        );
    }

    pub fn end(&mut self, at: f64, reasons: &str) {
        let events = self.id + 1;
        let (kind, complete) =
            (r#""type":"end","name":"end","lost":0,"in_flight":[],"summary":{}"#, reasons.is_empty());
        let rest =
            format!(r#"{kind},"events":{events},"complete":{complete},"incomplete_because":[{reasons}]"#);
        self.line(at, &rest);
    }
}

pub fn report_of<const N: usize>(traces: [Made; N]) -> Report {
    let folder = Folder::new();
    for (number, trace) in traces.iter().enumerate() {
        fs::write(folder.file(&format!("{number}.jsonl")), &trace.text).unwrap();
    }
    let report = folder.report();
    assert_eq!((report.unread, report.ranks.iter().filter(|it| it.host != "node").count()), (0, 0));
    report
}
