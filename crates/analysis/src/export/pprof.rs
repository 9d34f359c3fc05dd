//! A profile for pprof, Pyroscope and speedscope: profile.proto, packed with gzip. In: calls with stacks. Out: a sample
//! for each stack and function with its values: calls, time on the host, bytes, and, if a trace has GPU work, the time
//! on the GPU of what the calls submitted. The function called is the innermost frame. Frames, functions, modules and
//! texts are written once.

use std::io::Write;

use super::proto;
use super::sink::{At, Cause, Links, Sink, Source};
use super::weights::{Held, Weights, no_stacks};
use crate::stacks::Stacks;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpurec_trace::hash::Map;
use gpurec_trace::{Frame, Line, last_part};

/// Fields of Profile.
const SAMPLE_TYPE: u32 = 1;
const SAMPLE: u32 = 2;
const MAPPING: u32 = 3;
const LOCATION: u32 = 4;
const FUNCTION: u32 = 5;
const STRING: u32 = 6;
const TIME_NANOS: u32 = 9;
const DURATION_NANOS: u32 = 10;
const DEFAULT_SAMPLE_TYPE: u32 = 14;

#[derive(Default)]
pub struct Pprof {
    /// The profile, without its texts.
    profile: Vec<u8>,
    out: Vec<u8>,
    samples: Samples,
    weights: Weights,
    texts: Numbers<Box<str>>,
    functions: Numbers<(u64, u64)>,
    locations: Numbers<(u64, u64, u64, u64)>,
    mappings: Numbers<(u64, u64)>,
    wall_ns: u64,
    last_ns: u64,
}

/// Samples are written at the end: all must have the same number of values, and the last trace may be the first that
/// has GPU work.
#[derive(Default)]
struct Samples {
    /// The frames of all samples, encoded as in a sample.
    locations: Vec<u8>,
    /// Of each sample the end of its frames in `locations`, and its values.
    each: Vec<(usize, [u64; VALUES.len()])>,
}

/// The values of a sample. The last one is left out if no trace has GPU work.
const VALUES: [(&str, &str); 4] =
    [("calls", "count"), ("time", "nanoseconds"), ("bytes", "bytes"), ("gpu", "nanoseconds")];

impl Samples {
    /// The number of values that the samples have.
    fn values(&self) -> usize {
        let has_gpu = self.each.iter().any(|(_, values)| values.last().is_some_and(|ns| *ns > 0));
        VALUES.len() - usize::from(!has_gpu)
    }

    fn write(&self, values: usize, to: &mut impl Write) -> std::io::Result<()> {
        let (mut sample, mut from) = (Vec::new(), 0);
        for (end, all) in &self.each {
            sample.clear();
            let message = proto::open(&mut sample, SAMPLE);
            proto::bytes(&mut sample, 1, self.locations.get(from..*end).unwrap_or_default());
            packed(&mut sample, 2, all.get(..values).unwrap_or_default());
            proto::close(&mut sample, message);
            to.write_all(&sample)?;
            from = *end;
        }
        Ok(())
    }
}

/// Numbers from 1, in the order of first occurrence.
struct Numbers<K>(Map<K, u64>);

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers(Map::default())
    }
}

impl<K: Eq + std::hash::Hash> Numbers<K> {
    /// The number, and whether it is new.
    fn of(&mut self, key: K) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        let number = *self.0.entry(key).or_insert(next);
        (number, number == next)
    }
}

impl Pprof {
    /// The number of a text in the table, whose first entry is the empty one.
    fn text(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(known) = self.texts.0.get(text) {
            return *known;
        }
        self.texts.of(text.into()).0
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, file) = (self.text(name), self.text(file));
        let (number, is_new) = self.functions.of((name, file));
        if is_new {
            let function = proto::open(&mut self.profile, FUNCTION);
            proto::uint(&mut self.profile, 1, number);
            proto::uint(&mut self.profile, 2, name);
            proto::uint(&mut self.profile, 3, name);
            proto::uint(&mut self.profile, 4, file);
            proto::close(&mut self.profile, function);
        }
        number
    }

    fn mapping(&mut self, module: &str, build_id: &str) -> u64 {
        let key = (self.text(module), self.text(build_id));
        let (number, is_new) = self.mappings.of(key);
        if is_new {
            let mapping = proto::open(&mut self.profile, MAPPING);
            proto::uint(&mut self.profile, 1, number);
            // The addresses are offsets in the file.
            proto::uint(&mut self.profile, 3, u64::MAX);
            proto::uint(&mut self.profile, 5, key.0);
            proto::uint(&mut self.profile, 6, key.1);
            // Functions are known as far as they can be: readers need not look for the file.
            (7..=9).for_each(|field| proto::uint(&mut self.profile, field, 1));
            proto::close(&mut self.profile, mapping);
        }
        number
    }

    fn location(&mut self, mapping: u64, address: u64, function: u64, line: u64) -> u64 {
        let (number, is_new) = self.locations.of((mapping, address, function, line));
        if is_new {
            let location = proto::open(&mut self.profile, LOCATION);
            proto::uint(&mut self.profile, 1, number);
            if mapping > 0 {
                proto::uint(&mut self.profile, 2, mapping);
                proto::uint(&mut self.profile, 3, address);
            }
            let content = proto::open(&mut self.profile, 4);
            proto::uint(&mut self.profile, 1, function);
            proto::uint(&mut self.profile, 2, line);
            proto::close(&mut self.profile, content);
            proto::close(&mut self.profile, location);
        }
        number
    }

    fn frame(&mut self, frame: &Frame) -> u64 {
        match frame {
            Frame::Python { function, file, line } => {
                let function = self.function(function, file);
                self.location(0, 0, function, line.unwrap_or(0).into())
            }
            Frame::Native { function, module, build_id, offset, file, line } => {
                let mapping = self.mapping(module, build_id.as_deref().unwrap_or_default());
                let name = function
                    .as_deref()
                    .map_or_else(|| format!("{}+{offset:#x}", last_part(module)), str::to_owned);
                let function = self.function(&name, file.as_deref().unwrap_or_default());
                self.location(mapping, *offset, function, line.unwrap_or(0).into())
            }
        }
    }

    fn value_type(&mut self, field: u32, name: &str, unit: &str) {
        let (name, unit) = (self.text(name), self.text(unit));
        let of = proto::open(&mut self.profile, field);
        proto::uint(&mut self.profile, 1, name);
        proto::uint(&mut self.profile, 2, unit);
        proto::close(&mut self.profile, of);
    }
}

impl Sink for Pprof {
    type CallState = Held;

    fn source(&mut self, _source: &Source) {}

    fn clock(&mut self, wall_ns: u64) {
        self.wall_ns = wall_ns;
    }

    fn has_times(&self) -> bool {
        false
    }

    fn takes_stacks(&self) -> bool {
        true
    }

    fn begin(&mut self, at: At, line: &Line, _: Option<u32>, _: Links, _: &Stacks) -> Held {
        self.last_ns = self.last_ns.max(at.ts_ns);
        self.weights.begin(at, line)
    }

    fn end(&mut self, at: At, line: &Line, held: Held) {
        self.last_ns = self.last_ns.max(at.ts_ns);
        self.weights.end(line, held);
    }

    fn close(&mut self, at: At, held: Held, cause: Cause) {
        self.weights.close(at, held, cause);
    }

    fn mark(&mut self, _: At, line: &Line, _: Option<u64>, _: Option<u32>, _: &Stacks) {
        self.weights.mark(line);
    }

    fn source_ends(&mut self, stacks: &Stacks) -> Option<String> {
        let rows = self.weights.source_ends();
        for row in &rows {
            let name = self.weights.function(row.function).to_owned();
            let function = self.function(&name, "");
            let called = self.location(0, 0, function, 0);
            proto::varint(&mut self.samples.locations, called);
            let frames = stacks.frames.stack(row.stack).map_or(&[][..], |known| &known.frames);
            for frame in frames.iter().filter_map(|site| stacks.frame(*site)) {
                let location = self.frame(frame);
                proto::varint(&mut self.samples.locations, location);
            }
            let values = [row.sum.calls, row.sum.ns, row.sum.bytes, row.sum.gpu_ns];
            self.samples.each.push((self.samples.locations.len(), values));
        }
        no_stacks(stacks)
    }

    fn finish(&mut self) {
        let values = self.samples.values();
        for (name, unit) in VALUES.iter().take(values) {
            self.value_type(SAMPLE_TYPE, name, unit);
        }
        proto::uint(&mut self.profile, TIME_NANOS, self.wall_ns);
        proto::uint(&mut self.profile, DURATION_NANOS, self.last_ns);
        let time = self.text("time");
        proto::uint(&mut self.profile, DEFAULT_SAMPLE_TYPE, time);
        let mut texts: Vec<(&Box<str>, &u64)> = self.texts.0.iter().collect();
        texts.sort_unstable_by_key(|(_, number)| **number);
        proto::bytes(&mut self.profile, STRING, b"");
        texts.iter().for_each(|(text, _)| proto::bytes(&mut self.profile, STRING, text.as_bytes()));
        let mut packed = GzEncoder::new(std::mem::take(&mut self.out), Compression::default());
        // Writing to memory does not fail.
        _ = packed.write_all(&self.profile).and_then(|()| self.samples.write(values, &mut packed));
        self.out = packed.finish().unwrap_or_default();
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}

/// Numbers of a repeated field, as one piece.
fn packed(out: &mut Vec<u8>, field: u32, numbers: &[u64]) {
    let content = proto::open(out, field);
    numbers.iter().for_each(|number| proto::varint(out, *number));
    proto::close(out, content);
}
