//! Traces that someone crafted to fill a reader's memory, to make it panic, or to make it compute for ever.
//!
//! In: the number of items, the length of a long text, and a seed. Out: lines that readers take, of a hundred kinds, the
//! same for the same seed. Not here: what the readers make of them (tests/read/crafted.rs).

mod calls;
mod job;
mod rare;
mod work;

use std::io::{Result, Write};

/// How large the traces are.
#[derive(Clone, Copy)]
pub struct Size {
    /// The number of whatever the kind has many of.
    pub items: u64,
    /// The bytes of a long text.
    pub long: usize,
    pub seed: u64,
}

pub struct Crafted {
    pub name: &'static str,
    write: fn(&mut Lines),
}

impl Crafted {
    pub fn write(&self, out: &mut dyn Write, size: Size) -> Result<()> {
        let state = (size.seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut lines = Lines { out, size, id: 0, ts_ns: 0, state, failed: None };
        (self.write)(&mut lines);
        lines.failed.map_or(Ok(()), Err)
    }
}

/// All kinds.
pub fn all() -> impl Iterator<Item = &'static Crafted> {
    [calls::KINDS, job::KINDS, work::KINDS, rare::KINDS].into_iter().flatten()
}

const fn kind(name: &'static str, write: fn(&mut Lines)) -> Crafted {
    Crafted { name, write }
}

/// Numbers that no recorder writes.
const ODD: [&str; 14] = [
    "0",
    "-1",
    "4294967295",
    "4294967296",
    "999999999",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "-1e308",
    "1e-308",
    "0.000000001",
];

/// A trace that is being written.
pub struct Lines<'a> {
    out: &'a mut dyn Write,
    size: Size,
    id: u64,
    ts_ns: u64,
    state: u64,
    failed: Option<std::io::Error>,
}

impl Lines<'_> {
    fn items(&self) -> u64 {
        self.size.items
    }

    /// The number of items that have a long text each: they make traces of the same size.
    fn few(&self) -> u64 {
        (self.size.items * 100 / self.size.long as u64).clamp(3, self.size.items)
    }

    fn long(&self) -> String {
        "x".repeat(self.size.long)
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn odd(&mut self) -> &'static str {
        ODD[(self.random() % ODD.len() as u64) as usize]
    }

    fn raw(&mut self, text: &str) {
        if let Err(error) = self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n")) {
            self.failed.get_or_insert(error);
        }
    }

    fn header(&mut self, rest: &str) {
        self.id = 1;
        self.raw(&format!(
            r#"{{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"","host":"h","kernel":"","user":""{rest}}}"#
        ));
    }

    /// Writes a line whose other keys are `rest`, and returns its number.
    fn line(&mut self, kind: &str, name: &str, rest: &str) -> u64 {
        if self.id == 0 {
            self.header("");
        }
        self.ts_ns += 1000;
        let ts = format!("{}.{:09}", self.ts_ns / 1_000_000_000, self.ts_ns % 1_000_000_000);
        self.at(&ts, kind, name, rest)
    }

    /// The same at any time.
    fn at(&mut self, ts: &str, kind: &str, name: &str, rest: &str) -> u64 {
        if self.id == 0 {
            self.header("");
        }
        let id = self.id;
        self.id += 1;
        self.raw(&format!(r#"{{"event_id":{id},"ts":{ts},"type":"{kind}","name":"{name}",{rest}}}"#));
        id
    }

    fn begin(&mut self, name: &str, (pid, tid): (u64, u64), rest: &str) -> u64 {
        self.line(
            "userspace",
            name,
            &format!(r#""phase":"B","pid":{pid},"tid":{tid},"depth":0,"args":{{}}{rest}"#),
        )
    }

    fn end(&mut self, begin: u64, name: &str, (pid, tid): (u64, u64), rest: &str) -> u64 {
        self.line(
            "userspace",
            name,
            &format!(
                r#""phase":"E","pid":{pid},"tid":{tid},"begin":{begin},"duration_us":1.000,"retval":0{rest}"#
            ),
        )
    }

    fn call(&mut self, name: &str, thread: (u64, u64), rest: &str) -> u64 {
        let begin = self.begin(name, thread, rest);
        self.end(begin, name, thread, "");
        begin
    }

    fn alloc(&mut self, (pid, tid): (u64, u64), ptr: u64, size: u64, rest: &str) {
        let begin = self.id.saturating_sub(2);
        self.line(
            "memory",
            "cuMemAlloc_v2",
            &format!(
                r#""pid":{pid},"tid":{tid},"begin":{begin},"op":"alloc","space":"device","ptr":"{ptr:#x}","size":{size}{rest}"#
            ),
        );
    }

    fn exec(&mut self, pid: u64, rest: &str) {
        self.line("process", "exec", &format!(r#""pid":{pid},"tid":{pid},"command":["train"]{rest}"#));
    }

    fn stack(&mut self, number: u64, frames: &str) {
        self.line("stack", "stack", &format!(r#""stack":{number},"pid":1,"frames":[{frames}]"#));
    }

    fn gpu(&mut self, name: &str, kind: &str, begin: Option<u64>, rest: &str) -> u64 {
        let begin = begin.map_or("null".to_owned(), |begin| begin.to_string());
        self.line(
            "gpu",
            name,
            &format!(
                r#""kind":"{kind}","source":"lane","pid":1,"stream":7,"device":0,"context":1,"correlation":1,"begin":{begin}{rest}"#
            ),
        )
    }

    fn finish(&mut self, rest: &str) {
        let events = self.id;
        self.line("end", "end", &format!(r#""events":{events},"lost":0,"complete":true{rest}"#));
    }
}

fn python(function: &str, file: &str, line: u64) -> String {
    format!(r#"{{"kind":"python","function":"{function}","file":"{file}","line":{line}}}"#)
}

fn native(function: &str, module: &str, offset: u64) -> String {
    format!(
        r#"{{"kind":"native","function":"{function}","module":"{module}","build_id":null,"offset":"{offset:#x}"}}"#
    )
}
