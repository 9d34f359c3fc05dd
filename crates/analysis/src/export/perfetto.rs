//! Perfetto's own format: a sequence of TracePackets with TrackEvents. In: events with their place. Out: protocol
//! buffers. Each trace is its own packet sequence with its own interned text, which its first packet resets; a packet
//! carries the text that is new in it. A track's descriptor precedes its events. Times are nanoseconds on the trace
//! clock, and one snapshot gives the wall clock at 0. Packets are in the order of the trace. A slice that is known only
//! at its end, such as an interrupt, begins before events already written; readers sort by time.

use super::annotate::Annotator;
use super::details;
use super::intern::{CATEGORIES, EVENTS, Interned};
use super::object::Object;
use super::proto;
use super::sink::{At, Cause, Linked, Sink, Source, name};
use super::tracks::{Process, Track};
use gpurec_trace::{Datum, Line};

const PACKET: u32 = 1;

/// Fields of TracePacket.
const CLOCK_SNAPSHOT: u32 = 6;
const TIMESTAMP: u32 = 8;
const SEQUENCE: u32 = 10;
const TRACK_EVENT: u32 = 11;
const INTERNED_DATA: u32 = 12;
const SEQUENCE_FLAGS: u32 = 13;
const TRACK_DESCRIPTOR: u32 = 60;
const FIRST_PACKET: u32 = 87;

const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// Fields of TrackEvent.
const EVENT_CATEGORY_IID: u32 = 3;
const EVENT_ANNOTATION: u32 = 4;
const EVENT_TYPE: u32 = 9;
const EVENT_NAME_IID: u32 = 10;
const EVENT_TRACK: u32 = 11;
const EVENT_CATEGORY: u32 = 22;
const EVENT_NAME: u32 = 23;
const EVENT_COUNTER_VALUE: u32 = 30;
const EVENT_FLOW: u32 = 47;

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// Fields of TrackDescriptor.
const TRACK_UUID: u32 = 1;
const TRACK_NAME: u32 = 2;
const TRACK_PROCESS: u32 = 3;
const TRACK_THREAD: u32 = 4;
const TRACK_PARENT: u32 = 5;
const TRACK_COUNTER: u32 = 8;

const CLOCK_REALTIME: u64 = 1;
const CLOCK_BOOTTIME: u64 = 6;
const UNIT_SIZE_BYTES: u64 = 3;

pub struct Perfetto {
    out: Vec<u8>,
    sequence: u64,
    first: bool,
    names: Interned,
    categories: Interned,
    annotator: Annotator,
    /// JSON of the current event.
    json: Vec<u8>,
}

/// An event without its annotations.
struct Event<'a> {
    kind: u64,
    ts_ns: u64,
    uuid: u64,
    name: Option<(&'a str, &'a str)>,
    flow: Option<u64>,
    value: Option<u64>,
}

impl Perfetto {
    pub fn new() -> Perfetto {
        Perfetto {
            out: Vec::new(),
            sequence: 0,
            first: true,
            names: Interned::new(EVENTS),
            categories: Interned::new(CATEGORIES),
            annotator: Annotator::new(),
            json: Vec::new(),
        }
    }

    /// Opens a packet of this trace's sequence.
    fn packet(&mut self) -> proto::Opened {
        let packet = proto::open(&mut self.out, PACKET);
        proto::uint(&mut self.out, SEQUENCE, self.sequence);
        let flags = if self.first { STATE_CLEARED } else { NEEDS_STATE };
        proto::uint(&mut self.out, SEQUENCE_FLAGS, flags);
        if self.first {
            proto::uint(&mut self.out, FIRST_PACKET, 1);
            self.first = false;
        }
        packet
    }

    /// Writes an event with the annotations in `self.json`.
    fn event(&mut self, event: &Event) {
        let packet = self.packet();
        let out = &mut self.out;
        proto::uint(out, TIMESTAMP, event.ts_ns);
        let content = proto::open(out, TRACK_EVENT);
        proto::uint(out, EVENT_TYPE, event.kind);
        proto::uint(out, EVENT_TRACK, event.uuid);
        let entries = &mut self.annotator.entries;
        if let Some((name, category)) = event.name {
            match self.names.number(name, entries) {
                Some(number) => proto::uint(out, EVENT_NAME_IID, number),
                None => proto::bytes(out, EVENT_NAME, name.as_bytes()),
            }
            match self.categories.number(category, entries) {
                Some(number) => proto::uint(out, EVENT_CATEGORY_IID, number),
                None => proto::bytes(out, EVENT_CATEGORY, category.as_bytes()),
            }
        }
        if let Some(flow) = event.flow {
            proto::fixed64(out, EVENT_FLOW, flow);
        }
        if let Some(value) = event.value {
            proto::uint(out, EVENT_COUNTER_VALUE, value.min(i64::MAX as u64));
        }
        self.annotator.object(out, EVENT_ANNOTATION, &self.json);
        self.json.clear();
        proto::close(out, content);
        if !self.annotator.entries.is_empty() {
            proto::bytes(out, INTERNED_DATA, &self.annotator.entries);
            self.annotator.entries.clear();
        }
        proto::close(out, packet);
    }

    /// Writes the descriptor of a track; `content` writes what identifies it.
    fn descriptor(&mut self, uuid: u64, parent: Option<u64>, content: impl FnOnce(&mut Vec<u8>)) {
        let packet = self.packet();
        let out = &mut self.out;
        let track = proto::open(out, TRACK_DESCRIPTOR);
        proto::uint(out, TRACK_UUID, uuid);
        if let Some(parent) = parent {
            proto::uint(out, TRACK_PARENT, parent);
        }
        content(out);
        proto::close(out, track);
        proto::close(out, packet);
    }
}

impl Sink for Perfetto {
    type Held = ();

    fn source(&mut self, source: &Source) {
        self.sequence = source.index as u64 + 1;
        self.first = true;
        self.names.clear();
        self.categories.clear();
        self.annotator.clear();
    }

    fn clock(&mut self, wall_ns: u64) {
        let out = &mut self.out;
        let packet = proto::open(out, PACKET);
        proto::uint(out, TIMESTAMP, 0);
        let snapshot = proto::open(out, CLOCK_SNAPSHOT);
        for (clock, at) in [(CLOCK_BOOTTIME, 0), (CLOCK_REALTIME, wall_ns)] {
            let reading = proto::open(out, 1);
            proto::uint(out, 1, clock);
            proto::uint(out, 2, at);
            proto::close(out, reading);
        }
        proto::uint(out, 2, CLOCK_BOOTTIME);
        proto::close(out, snapshot);
        proto::close(out, packet);
    }

    fn process(&mut self, process: &Process) {
        self.descriptor(process.uuid, None, |out| {
            let descriptor = proto::open(out, TRACK_PROCESS);
            proto::uint(out, 1, process.pid.into());
            for word in &process.command {
                proto::bytes(out, 2, word.as_bytes());
            }
            proto::bytes(out, 6, process.name.as_bytes());
            proto::close(out, descriptor);
        });
    }

    fn track(&mut self, track: Track, parent: u64, name: &str, is_thread: bool) {
        self.descriptor(track.uuid, Some(parent), |out| {
            if !is_thread {
                return proto::bytes(out, TRACK_NAME, name.as_bytes());
            }
            let descriptor = proto::open(out, TRACK_THREAD);
            proto::uint(out, 1, track.pid.into());
            proto::uint(out, 2, track.tid.into());
            proto::bytes(out, 5, name.as_bytes());
            proto::close(out, descriptor);
        });
    }

    fn counter_track(&mut self, uuid: u64, process: &Process, name: &str) {
        self.descriptor(uuid, Some(process.uuid), |out| {
            proto::bytes(out, TRACK_NAME, name.as_bytes());
            let counter = proto::open(out, TRACK_COUNTER);
            proto::uint(out, 3, UNIT_SIZE_BYTES);
            proto::close(out, counter);
        });
    }

    fn begin(&mut self, at: At, line: &Line, _rank: Option<u32>, linked: Linked) {
        details::write(&mut self.json, line);
        // One flow connects a call and its ioctls, in the order in which it makes them.
        let flow = match linked {
            Linked::No => None,
            Linked::Out(call) => Some(call),
            Linked::In(flow) => Some(flow.call),
        };
        let name = Some((name(line), line.body.head().0));
        let uuid = at.track.uuid;
        self.event(&Event { kind: SLICE_BEGIN, ts_ns: at.ts_ns, uuid, name, flow, value: None });
    }

    fn end(&mut self, at: At, line: &Line, _held: ()) {
        details::write(&mut self.json, line);
        self.event(&Event::nameless(SLICE_END, at.ts_ns, at.track.uuid));
    }

    /// A call in flight stays open, which the format allows.
    fn close(&mut self, at: At, _held: (), cause: Cause) {
        if cause != Cause::InFlight {
            let mut said = Object::new(&mut self.json);
            said.put(cause.name(), Datum::Bool(true));
            said.end();
            self.event(&Event::nameless(SLICE_END, at.ts_ns, at.track.uuid));
        }
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, _rank: Option<u32>) {
        details::write(&mut self.json, line);
        let kind = if duration_ns.is_some() { SLICE_BEGIN } else { INSTANT };
        let ts_ns = at.ts_ns.saturating_sub(duration_ns.unwrap_or(0));
        let name = Some((name(line), line.body.head().0));
        self.event(&Event { kind, ts_ns, uuid: at.track.uuid, name, flow: None, value: None });
        if duration_ns.is_some() {
            self.event(&Event::nameless(SLICE_END, at.ts_ns, at.track.uuid));
        }
    }

    fn counter(&mut self, ts_ns: u64, uuid: u64, _pid: u32, _name: &str, value: u64) {
        let value = Some(value);
        self.event(&Event { kind: COUNTER, ts_ns, uuid, name: None, flow: None, value });
    }

    fn note(&mut self, at: At, text: &str) {
        let mut said = Object::new(&mut self.json);
        said.put("note", Datum::Text(text));
        said.end();
        let (name, uuid) = (Some(("note", "note")), at.track.uuid);
        self.event(&Event { kind: INSTANT, ts_ns: at.ts_ns, uuid, name, flow: None, value: None });
    }

    fn finish(&mut self) {}

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}

impl Event<'_> {
    fn nameless(kind: u64, ts_ns: u64, uuid: u64) -> Event<'static> {
        Event { kind, ts_ns, uuid, name: None, flow: None, value: None }
    }
}
