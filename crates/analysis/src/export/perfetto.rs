//! Perfetto's own format: a sequence of TracePackets with TrackEvents. In: events with their place. Out: protocol
//! buffers. Each trace is its own packet sequence with its own interned text, which its first packet resets; a packet
//! carries the text that is new in it. A track's descriptor precedes its events. Times are nanoseconds on the trace
//! clock, and one snapshot gives the wall clock at 0. Packets are in the order of the trace. A slice that is known only
//! at its end, such as an interrupt, begins before events already written; readers sort by time.

use super::annotate::Annotator;
use super::callstacks::Callstacks;
use super::details;
use super::intern::{CATEGORIES, EVENTS, InternTable};
use super::proto;
use super::sink::{At, Cause, Link, Links, Sink, Source, WorkLink, name, stack_of};
use super::tracks::{Process, Space, Track};
use crate::stacks::Stacks;
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
const EVENT_CALLSTACK_IID: u32 = 56;

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

#[derive(Default)]
pub struct Perfetto {
    out: Vec<u8>,
    sequence: u64,
    first: bool,
    text: Text,
}

/// The interned text of a sequence.
#[derive(Default)]
struct Text {
    names: InternTable<EVENTS>,
    categories: InternTable<CATEGORIES>,
    annotator: Annotator,
    callstacks: Callstacks,
}

/// An event without its annotations.
#[derive(Default)]
struct Event<'a> {
    kind: u64,
    ts_ns: u64,
    uuid: u64,
    name: Option<(&'a str, &'a str)>,
    flows: [Option<u64>; 2],
    value: Option<u64>,
    callstack: Option<u64>,
}

impl Perfetto {
    /// Opens a packet of this trace's sequence.
    fn packet(&mut self) -> proto::MessageStart {
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

    /// Writes an event; `annotations` writes its annotations.
    fn event(&mut self, event: &Event, annotations: impl FnOnce(&mut Annotator, &mut Vec<u8>)) {
        let packet = self.packet();
        let (out, Text { names, categories, annotator, .. }) = (&mut self.out, &mut self.text);
        proto::uint(out, TIMESTAMP, event.ts_ns);
        let content = proto::open(out, TRACK_EVENT);
        proto::uint(out, EVENT_TYPE, event.kind);
        proto::uint(out, EVENT_TRACK, event.uuid);
        if let Some((name, category)) = event.name {
            let entries = &mut annotator.entries;
            names.put(out, (EVENT_NAME_IID, EVENT_NAME), name, entries);
            categories.put(out, (EVENT_CATEGORY_IID, EVENT_CATEGORY), category, entries);
        }
        for flow in event.flows.into_iter().flatten() {
            proto::fixed64(out, EVENT_FLOW, flow);
        }
        if let Some(callstack) = event.callstack {
            proto::uint(out, EVENT_CALLSTACK_IID, callstack);
        }
        if let Some(value) = event.value {
            proto::uint(out, EVENT_COUNTER_VALUE, value.min(i64::MAX as u64));
        }
        annotations(annotator, out);
        proto::close(out, content);
        if !annotator.entries.is_empty() {
            proto::bytes(out, INTERNED_DATA, &annotator.entries);
            annotator.entries.clear();
        }
        proto::close(out, packet);
    }

    /// Writes an event with the details of a line.
    fn detailed(&mut self, event: &Event, line: &Line) {
        self.event(event, |annotator, out| {
            details::each(line, |key, value| annotator.put(out, EVENT_ANNOTATION, key, value));
        });
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
    type CallState = ();

    fn source(&mut self, source: &Source) {
        self.sequence = source.index as u64 + 1;
        self.first = true;
        self.text = Text::default();
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

    fn takes_stacks(&self) -> bool {
        true
    }

    fn begin(&mut self, at: At, line: &Line, _rank: Option<u32>, links: Links, stacks: &Stacks) {
        // One flow connects a call and its ioctls, in the order in which it makes them.
        let ioctl = match links.ioctl {
            Link::No => None,
            Link::Out(call) | Link::In { call, .. } => Some(call),
        };
        let name = Some((name(line), line.body.head().0));
        let Text { callstacks, annotator, .. } = &mut self.text;
        let callstack =
            stack_of(line).and_then(|stack| callstacks.number(stack, stacks, &mut annotator.entries));
        self.detailed(
            &Event { name, flows: [ioctl, links.work], callstack, ..Event::new(SLICE_BEGIN, at) },
            line,
        );
    }

    fn end(&mut self, at: At, line: &Line, _held: ()) {
        self.detailed(&Event::new(SLICE_END, at), line);
    }

    /// A call in flight stays open, which the format allows.
    fn close(&mut self, at: At, _held: (), cause: Cause) {
        if cause != Cause::InFlight {
            self.event(&Event::new(SLICE_END, at), |annotator, out| {
                annotator.put(out, EVENT_ANNOTATION, cause.name(), Datum::Bool(true));
            });
        }
    }

    fn mark(&mut self, at: At, line: &Line, duration_ns: Option<u64>, _rank: Option<u32>, _: &Stacks) {
        let kind = if duration_ns.is_some() { SLICE_BEGIN } else { INSTANT };
        let ts_ns = at.ts_ns.saturating_sub(duration_ns.unwrap_or(0));
        let name = Some((name(line), line.body.head().0));
        self.detailed(&Event { name, ts_ns, ..Event::new(kind, at) }, line);
        if duration_ns.is_some() {
            self.event(&Event::new(SLICE_END, at), |_, _| {});
        }
    }

    /// One flow connects a call and its work, in the order in which it starts.
    fn work(
        &mut self,
        at: At,
        line: &Line,
        duration_ns: u64,
        link: Option<WorkLink>,
        _rank: Option<u32>,
        _: &Stacks,
    ) {
        let name = Some((name(line), line.body.head().0));
        let flows = [link.map(|link| link.flow), None];
        self.detailed(&Event { name, flows, ..Event::new(SLICE_BEGIN, at) }, line);
        let end = At { ts_ns: at.ts_ns.saturating_add(duration_ns), ..at };
        self.event(&Event::new(SLICE_END, end), |_, _| {});
    }

    fn counter(&mut self, ts_ns: u64, space: &Space, _pid: u32) {
        let event =
            Event { kind: COUNTER, ts_ns, uuid: space.uuid, value: Some(space.live), ..Event::default() };
        self.event(&event, |_, _| {});
    }

    fn note(&mut self, at: At, text: &str) {
        let name = Some(("note", "note"));
        self.event(&Event { name, ..Event::new(INSTANT, at) }, |annotator, out| {
            annotator.put(out, EVENT_ANNOTATION, "note", Datum::Text(text));
        });
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}

impl Event<'_> {
    fn new(kind: u64, at: At) -> Event<'static> {
        Event { kind, ts_ns: at.ts_ns, uuid: at.track.uuid, ..Event::default() }
    }
}
