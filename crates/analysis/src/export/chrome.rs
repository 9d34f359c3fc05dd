//! Chrome's trace event format, as JSON, for chrome://tracing, Perfetto and other readers of it. In: events with their
//! place. Out: one object, with one event a line. Times are microseconds with three decimals, so they are exact. A call
//! that is open at the end gets an end, since the format requires one.

use super::details;
use super::object::Object;
use super::sink::{At, Cause, Link, Links, Sink, Source, WorkLink, name, stack_of};
use super::stack_frames::StackFrames;
use super::tracks::{Process, Space, Track};
use crate::stacks::Stacks;
use gpurec_trace::{Datum, Line, json};

#[derive(Default)]
pub struct Chrome {
    out: Vec<u8>,
    any: bool,
    processes: u64,
    wall_ns: Option<u64>,
    notes: Vec<String>,
    file: String,
    frames: StackFrames,
}

impl Chrome {
    pub fn new() -> Chrome {
        Chrome { out: b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[".to_vec(), ..Chrome::default() }
    }

    fn next(&mut self) {
        self.out.extend_from_slice(if self.any { b",\n" } else { b"\n" });
        self.any = true;
    }

    /// Writes the keys of an event up to those that depend on its phase.
    fn event(&mut self, name: &str, category: &str, phase: &[u8], ts_ns: u64, track: Track) {
        self.next();
        self.out.extend_from_slice(b"{\"name\":");
        json::string(&mut self.out, name);
        self.out.extend_from_slice(b",\"cat\":\"");
        self.out.extend_from_slice(category.as_bytes());
        self.out.extend_from_slice(b"\",");
        self.place(phase, ts_ns, track);
    }

    fn place(&mut self, phase: &[u8], ts_ns: u64, track: Track) {
        let out = &mut self.out;
        out.extend_from_slice(b"\"ph\":\"");
        out.extend_from_slice(phase);
        out.extend_from_slice(b"\",\"ts\":");
        json::micros(out, ts_ns);
        out.extend_from_slice(b",\"pid\":");
        json::number(out, track.pid.into());
        out.extend_from_slice(b",\"tid\":");
        json::number(out, track.tid.into());
    }

    fn details(&mut self, line: &Line) {
        let before = self.out.len();
        self.out.extend_from_slice(b",\"args\":");
        if details::write(&mut self.out, line) {
            self.out.truncate(before);
        }
        self.out.push(b'}');
    }

    /// Ends an event with one detail.
    fn args(&mut self, key: &str, value: Datum) {
        self.out.extend_from_slice(b",\"args\":");
        let mut args = Object::new(&mut self.out);
        args.put(key, value);
        args.end();
        self.out.push(b'}');
    }

    fn metadata(&mut self, what: &str, Track { pid, tid, .. }: Track, key: &str, value: Datum) {
        self.next();
        let mut object = Object::new(&mut self.out);
        object.put("name", Datum::Text(what));
        object.put("ph", Datum::Text("M"));
        object.put("pid", Datum::Number(pid.into()));
        object.put("tid", Datum::Number(tid.into()));
        let mut inner = Object::new(object.key("args"));
        inner.put(key, value);
        inner.end();
        object.end();
    }

    fn flow(&mut self, what: &str, phase: &[u8], At { ts_ns, track }: At, id: u64) {
        self.event(what, "flow", phase, ts_ns, track);
        self.out.extend_from_slice(b",\"id\":");
        json::number(&mut self.out, id);
        self.out.push(b'}');
    }
}

impl Sink for Chrome {
    type CallState = ();

    fn source(&mut self, source: &Source) {
        self.file = source.file.to_owned();
        self.frames.next_source();
    }

    fn clock(&mut self, wall_ns: u64) {
        self.wall_ns = Some(wall_ns);
    }

    fn process(&mut self, process: &Process) {
        self.processes += 1;
        let whole = Track { uuid: 0, pid: process.pid, tid: 0 };
        self.metadata("process_name", whole, "name", Datum::Text(&process.name));
        self.metadata("process_sort_index", whole, "sort_index", Datum::Number(self.processes));
    }

    fn track(&mut self, track: Track, _parent: u64, name: &str, _is_thread: bool) {
        self.metadata("thread_name", track, "name", Datum::Text(name));
        self.metadata("thread_sort_index", track, "sort_index", Datum::Number(track.uuid));
    }

    fn is_json(&self) -> bool {
        true
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn begin(&mut self, at: At, line: &Line, _rank: Option<u32>, links: Links, stacks: &Stacks) {
        self.event(name(line), line.body.head().0, b"B", at.ts_ns, at.track);
        if let Some(innermost) = stack_of(line).and_then(|stack| self.frames.innermost(stack, stacks)) {
            self.out.extend_from_slice(b",\"sf\":");
            json::number(&mut self.out, innermost);
        }
        self.details(line);
        if let Link::In { ioctl, from_ns, .. } = links.ioctl {
            // The arrow starts at the begin of the call, where the ioctl has not begun yet.
            self.flow("ioctl", b"s", At { ts_ns: from_ns, ..at }, ioctl);
            self.flow("ioctl", b"f\",\"bp\":\"e", at, ioctl);
        }
    }

    fn end(&mut self, at: At, line: &Line, _held: ()) {
        self.next();
        self.out.push(b'{');
        self.place(b"E", at.ts_ns, at.track);
        self.details(line);
    }

    fn close(&mut self, at: At, _held: (), cause: Cause) {
        self.next();
        self.out.push(b'{');
        self.place(b"E", at.ts_ns, at.track);
        self.args(cause.name(), Datum::Bool(true));
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, _rank: Option<u32>, _: &Stacks) {
        match duration_ns {
            Some(ns) => {
                // The event ends at `at`. If it began before the recording, its slice begins with the recording.
                let start_ns = at.ts_ns.saturating_sub(ns);
                self.event(name(line), line.body.head().0, b"X", start_ns, at.track);
                self.out.extend_from_slice(b",\"dur\":");
                json::micros(&mut self.out, at.ts_ns - start_ns);
            }
            None => self.event(name(line), line.body.head().0, b"i\",\"s\":\"t", at.ts_ns, at.track),
        }
        self.details(line);
    }

    fn work(
        &mut self,
        at: At,
        line: &Line,
        duration_ns: u64,
        link: Option<WorkLink>,
        _rank: Option<u32>,
        _: &Stacks,
    ) {
        self.event(name(line), line.body.head().0, b"X", at.ts_ns, at.track);
        self.out.extend_from_slice(b",\"dur\":");
        json::micros(&mut self.out, duration_ns);
        self.details(line);
        if let Some(link) = link {
            self.flow("gpu", b"s", link.from, link.id);
            // The arrow ends inside the slice: at its very start chrome://tracing takes the slice that ends there.
            let within = At { ts_ns: at.ts_ns.saturating_add(duration_ns.min(1)), ..at };
            self.flow("gpu", b"f\",\"bp\":\"e", within, link.id);
        }
    }

    fn counter(&mut self, ts_ns: u64, space: &Space, pid: u32) {
        self.event(&space.name, "memory", b"C", ts_ns, Track { uuid: 0, pid, tid: 0 });
        self.args("bytes", Datum::Number(space.live));
    }

    fn note(&mut self, at: At, text: &str) {
        self.notes.push(format!("{}: {text}", self.file));
        self.event("note", "note", b"i\",\"s\":\"t", at.ts_ns, at.track);
        self.args("note", Datum::Text(text));
    }

    fn finish(&mut self) {
        self.out.extend_from_slice(b"\n]");
        self.frames.write(&mut self.out);
        self.out.extend_from_slice(b",\"otherData\":");
        let mut data = Object::new(&mut self.out);
        data.put("made_by", Datum::Text(concat!("gpurec ", env!("CARGO_PKG_VERSION"))));
        // As text: the number has more digits than a JSON number can hold.
        if let Some(ns) = self.wall_ns {
            data.put("wall_clock_at_0_ns", Datum::Text(&ns.to_string()));
        }
        data.put("notes", Datum::Json(&serde_json::json!(self.notes).to_string()));
        data.end();
        self.out.extend_from_slice(b"}\n");
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}
