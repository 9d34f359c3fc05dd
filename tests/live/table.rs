//! The table, row by row: each function of crates/cuda/src/table.txt has a stand-in, which is called with known values
//! in every register, on the stack and behind every pointer. The recording must have exactly those values.
//! The test computes what it expects from the row's own words, with none of the recorder's code; a C compiler gives the
//! offsets of structure fields (programs/layouts.c). x86-64 only.
#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::needs::backends_for_many;
use crate::room::{Room, live};
use crate::trace::{Trace, text_of};

/// As in programs/table.c.
const AREAS: u64 = 0x2000_0000_0000;
const BETWEEN: u64 = 0x10_0000;
/// How many pieces of a call's memory BPF reads at entry, and at its return.
const MOST_READS: usize = 4;

/// The stand-ins' libraries; the first field is a row's api, as in table.txt.
const LIBRARIES: [(&str, u32, &str); 4] = [
    ("d", 1, "libcuda.so.1"),
    ("r", 13, "libcudart.so.13"),
    ("r", 12, "libcudart.so.12"),
    ("r", 11, "libcudart.so.11.0"),
];

struct Row {
    name: String,
    majors: Option<(u32, u32)>,
    api: String,
    /// None: nothing is known.
    params: Option<String>,
}

struct Field {
    name: String,
    offset: usize,
    kind: String,
}

/// Everything that the expectation is computed from.
struct Facts {
    rows: Vec<Row>,
    layouts: HashMap<String, Vec<Field>>,
    enums: HashMap<String, BTreeMap<i32, String>>,
}

fn own_file(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

impl Facts {
    fn new(room: &Room) -> Facts {
        let printed = Command::new(room.compile("layouts.c", "layouts", &[])).output().unwrap().stdout;
        let mut layouts: HashMap<String, Vec<Field>> = HashMap::new();
        for line in String::from_utf8(printed).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let field = Field {
                name: words[1].to_owned(),
                offset: words[2].parse().unwrap(),
                kind: words[3].to_owned(),
            };
            layouts.entry(words[0].to_owned()).or_default().push(field);
        }
        let mut enums: HashMap<String, BTreeMap<i32, String>> = HashMap::new();
        for line in own_file("crates/cuda/src/enums.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            enums
                .entry(words[0].to_owned())
                .or_default()
                .insert(words[1].parse().unwrap(), words[2].to_owned());
        }
        let rows = own_file("crates/cuda/src/table.txt").lines().map(Row::parse).collect();
        Facts { rows, layouts, enums }
    }

    fn at(&self, layout: &str, field: &str) -> usize {
        self.layouts[layout].iter().find(|f| f.name == field).unwrap().offset
    }

    /// The rows that a library of this major version has: the number in the file, and the row.
    fn rows_of(&self, api: &str, major: u32) -> impl Iterator<Item = (usize, &Row)> {
        self.rows.iter().enumerate().filter(move |(_, row)| {
            row.api == api && row.majors.is_none_or(|(low, high)| (low..=high).contains(&major))
        })
    }

    /// A row's parameters, or those of the row it refers to.
    fn params<'a>(&'a self, row: &'a Row, major: u32) -> Option<&'a str> {
        let params = row.params.as_deref()?;
        let Some(base) = params.strip_prefix('=') else { return Some(params) };
        self.rows_of(&row.api, major).find(|(_, r)| r.name == base)?.1.params.as_deref()
    }
}

impl Row {
    fn parse(line: &str) -> Row {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let (name, majors) = words[0].split_once('@').map_or((words[0], None), |(name, majors)| {
            let (low, high) = majors.split_once('-').unwrap_or((majors, majors));
            (name, Some((low.parse().unwrap(), high.parse().unwrap())))
        });
        let params = words.get(5).copied().unwrap_or_default();
        let params = (params != "?").then(|| params.to_owned());
        Row { name: name.to_owned(), majors, api: words[1].to_owned(), params }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

/// One call: its input and the expected output.
struct Call {
    library: usize,
    name: String,
    words: [u64; 22],
    pokes: Vec<(u64, Vec<u8>)>,
    args: Map<String, Value>,
    out: Map<String, Value>,
}

struct Maker<'a> {
    facts: &'a Facts,
    random: Random,
}

impl Maker<'_> {
    fn call(&mut self, library: usize, name: &str, params: Option<&str>) -> Call {
        let words = std::array::from_fn(|_| self.random.next() | 1 << 63);
        let (args, out) = (Map::new(), Map::new());
        let mut call = Call { library, name: name.to_owned(), words, pokes: Vec::new(), args, out };
        let Some(params) = params else {
            call.args = (0..6).map(|i| (format!("arg{i}"), hex(call.words[i]))).collect();
            return call;
        };
        let params: Vec<[&str; 3]> = params.split(' ').filter(|p| !p.is_empty()).map(split).collect();
        let mut reads = [0; 2];
        for (i, [name, kind, place]) in params.iter().enumerate() {
            self.param(&mut call, &mut reads, i, name, kind, place);
        }
        self.counts(&mut call, &params);
        call
    }

    /// Sets the counts of lists, which have three elements.
    fn counts(&mut self, call: &mut Call, params: &[[&str; 3]]) {
        let lists = params.iter().filter_map(|p| p[1].strip_prefix("array=")?.split_once(','));
        for (_, count) in lists {
            let [name, kind, place] = params[count.parse::<usize>().unwrap()];
            assert_eq!(kind, "usize", "{name}");
            call.words[place.parse::<usize>().unwrap()] = 3;
            call.args.insert(name.to_owned(), json!(3));
        }
    }

    fn param(
        &mut self,
        call: &mut Call,
        reads: &mut [usize; 2],
        i: usize,
        name: &str,
        kind: &str,
        place: &str,
    ) {
        let (what, detail) = kind.split_once('=').unwrap_or((kind, ""));
        if place == "v" {
            call.args.insert(name.to_owned(), Value::Null);
            return;
        }
        if !matches!(what, "cstr" | "name" | "in" | "inout" | "array" | "out") {
            let (bytes, value) = self.value(kind);
            self.put(call, place, &bytes);
            call.args.insert(name.to_owned(), value);
            return;
        }
        // The parameter has an area of its own, now and then at the end of a page.
        let offset = match self.random.below(3) {
            0 => 4096 * (1 + self.random.below(8)) - self.random.below(20),
            _ => self.random.below(40_000),
        };
        let pointer = AREAS + i as u64 * BETWEEN + offset;
        call.words[place.parse::<usize>().unwrap()] = pointer;
        let (bytes, value) = self.behind(call, name, what, detail, pointer);
        call.pokes.push((pointer, bytes));
        let (entry, exit) = (what != "out", what == "out" || what == "inout");
        let mut is_read = |side: usize| {
            reads[side] += 1;
            reads[side] <= MOST_READS
        };
        let shown = if entry && is_read(0) { value.clone() } else { hex(pointer) };
        call.args.insert(name.to_owned(), shown);
        if exit && is_read(1) {
            call.out.insert(name.to_owned(), value);
        }
        reads[0] += usize::from(detail.to_lowercase().contains("launchconfig"));
    }

    /// The memory behind a pointer, and how the trace shows it.
    fn behind(
        &mut self,
        call: &mut Call,
        name: &str,
        what: &str,
        detail: &str,
        pointer: u64,
    ) -> (Vec<u8>, Value) {
        match (what, detail) {
            ("cstr", _) | ("out", "chars") => self.text(call, name, 200),
            ("name", _) => self.text(call, name, 4000),
            ("out", "text") => {
                let most = if call.name.contains("GetName") { 4000 } else { 200 };
                let (text, value) = self.text(call, name, most);
                call.pokes.push((pointer + 8192, text));
                ((pointer + 8192).to_le_bytes().to_vec(), value)
            }
            ("array", _) => {
                let (bytes, values): (Vec<_>, Vec<_>) =
                    (0..3).map(|_| self.value(detail.split(',').next().unwrap())).unzip();
                (bytes.concat(), json!(values))
            }
            (_, "CUlaunchConfig" | "cudaLaunchConfig_t") => self.launch(call, detail, pointer),
            _ => self.value(detail),
        }
    }

    fn text(&mut self, call: &Call, name: &str, most: u64) -> (Vec<u8>, Value) {
        let mut text = format!("{} \"{name}\" größe\n", call.name);
        let length = text.len() as u64 + self.random.below(most - text.len() as u64);
        while (text.len() as u64) < length {
            text.push(char::from(b'!' + self.random.below(90) as u8));
        }
        ([text.as_bytes(), b"\0behind the end"].concat(), json!(text))
    }

    /// A configuration with three attributes that the trace shows, and one that it does not.
    fn launch(&mut self, call: &mut Call, layout: &str, pointer: u64) -> (Vec<u8>, Value) {
        let (mut bytes, mut value) = self.value(layout);
        bytes.resize(56, 0);
        let list = pointer + 4096;
        let (attrs, count) = (self.facts.at("attributes", "attrs"), self.facts.at("attributes", "count"));
        bytes[attrs..attrs + 8].copy_from_slice(&list.to_le_bytes());
        bytes[count..count + 4].copy_from_slice(&4u32.to_le_bytes());
        let (each, at) = (self.facts.at("attributes", "each"), self.facts.at("attributes", "value"));
        let cluster = [self.random.below(99) as u32, 2, 3];
        let priority = -(self.random.below(5) as i32);
        let mut attributes = vec![0; 4 * each];
        let all: [(u32, [u32; 3]); 4] =
            [(1, [77; 3]), (4, cluster), (2, [1, 0, 0]), (8, [priority as u32, 0, 0])];
        for (one, (id, words)) in attributes.chunks_mut(each).zip(all) {
            one[..4].copy_from_slice(&id.to_le_bytes());
            for (slot, word) in one[at..].chunks_mut(4).zip(words) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
        }
        call.pokes.push((list, attributes));
        for (name, one) in
            [("cluster", json!(cluster)), ("cooperative", json!(true)), ("priority", json!(priority))]
        {
            value[name] = one;
        }
        (bytes, value)
    }

    /// A value of a kind that is no pointer to something known: its bytes, and how the trace shows it.
    fn value(&mut self, kind: &str) -> (Vec<u8>, Value) {
        let word = self.random.next() | 1 << 63;
        let bytes = word.to_le_bytes();
        let low = |n: usize| bytes[..n].to_vec();
        match kind {
            "ptr" | "handle" | "devptr" | "fnptr" => (low(8), hex(word)),
            "devptr32" => (low(4), hex(word & 0xffff_ffff)),
            "u64" | "size" | "dim" | "usize" | "flags64" => (low(8), json!(word)),
            "u32" | "flags" => (low(4), json!(word as u32)),
            "u16" => (low(2), json!(word as u16)),
            "u8" => (low(1), json!(word as u8)),
            "i32" | "device" => (low(4), json!(word as i32)),
            "f32" => {
                let number = (word >> 40) as f32 / 8.0;
                (number.to_le_bytes().to_vec(), json!(f64::from(number)))
            }
            "f64" => {
                let number = (word >> 30) as f64 / -8.0;
                (number.to_le_bytes().to_vec(), json!(number))
            }
            "dim3" => {
                let all = [word as u32, (word >> 32) as u32, self.random.next() as u32];
                (all.map(u32::to_le_bytes).concat(), json!(all))
            }
            "uuid" => self.digits(16, &[4, 6, 8, 10]),
            "opaque" => self.digits(64, &[]),
            _ => self.composed(kind),
        }
    }

    fn composed(&mut self, kind: &str) -> (Vec<u8>, Value) {
        let (what, detail) = kind.split_once('=').unwrap_or((kind, kind));
        if what == "flags" {
            let flags = self.random.below(8) as u32;
            return (flags.to_le_bytes().to_vec(), flags_shown(detail, flags));
        }
        match self.facts.layouts.contains_key(detail) {
            true => self.structure(detail),
            false => self.constant(detail),
        }
    }

    /// One of the constants, or a number that is none.
    fn constant(&mut self, of: &str) -> (Vec<u8>, Value) {
        let known =
            self.facts.enums.get(of).map(|known| known.iter().collect::<Vec<_>>()).unwrap_or_default();
        if known.is_empty() || self.random.below(4) == 0 {
            let code = self.random.next() as i32 | 1 << 30;
            assert!(known.iter().all(|(one, _)| **one != code));
            return (code.to_le_bytes().to_vec(), json!(code));
        }
        let (code, name) = known[self.random.below(known.len() as u64) as usize];
        (code.to_le_bytes().to_vec(), json!(name))
    }

    /// Random bytes, with a value of its own in each field.
    fn structure(&mut self, layout: &str) -> (Vec<u8>, Value) {
        let facts = self.facts;
        let fields = &facts.layouts[layout];
        let size = fields.iter().find(|f| f.kind == "size").map_or(0, |f| f.offset);
        let mut bytes = Vec::new();
        let mut shown = Map::new();
        for field in fields.iter().filter(|f| f.kind != "size") {
            let (value, json) = self.value(&field.kind);
            if field.name == "-" {
                return (value, json);
            }
            bytes.resize(bytes.len().max(field.offset + value.len()), 0x99);
            bytes[field.offset..field.offset + value.len()].copy_from_slice(&value);
            shown.insert(field.name.clone(), json);
        }
        bytes.resize(bytes.len().max(size), 0x99);
        (bytes, Value::Object(shown))
    }

    fn digits(&mut self, count: usize, dashes: &[usize]) -> (Vec<u8>, Value) {
        let bytes: Vec<u8> = (0..count).map(|_| self.random.next() as u8).collect();
        let mut text = String::new();
        for (i, byte) in bytes.iter().enumerate() {
            text.push_str(if dashes.contains(&i) { "-" } else { "" });
            write!(text, "{byte:02x}").unwrap();
        }
        (bytes, json!(text))
    }

    /// Puts a value into its registers or stack words; the bits above a narrow value stay as they are: noise.
    fn put(&mut self, call: &mut Call, place: &str, bytes: &[u8]) {
        let place = place.split('|').next().unwrap();
        let words: Vec<usize> = match (place.split_once('+'), place.split_once('/')) {
            (Some((first, second)), _) => vec![first.parse().unwrap(), second.parse().unwrap()],
            (_, Some((first, size))) => {
                let first: usize = first.parse().unwrap();
                (first..first + size.parse::<usize>().unwrap().div_ceil(8)).collect()
            }
            _ => vec![place.parse().unwrap()],
        };
        assert!(bytes.len() <= 8 * words.len(), "{place} of {}", call.name);
        for (word, part) in words.iter().zip(bytes.chunks(8)) {
            let mut whole = call.words[*word].to_le_bytes();
            whole[..part.len()].copy_from_slice(part);
            call.words[*word] = u64::from_le_bytes(whole);
        }
    }
}

fn split(param: &str) -> [&str; 3] {
    let parts: Vec<&str> = param.split(':').collect();
    [parts[0], parts[1], parts[2].split('|').next().unwrap()]
}

fn hex(word: u64) -> Value {
    json!(format!("{word:#x}"))
}

/// The names that the headers give the lowest flags.
fn flags_shown(set: &str, flags: u32) -> Value {
    let (zero, names): (&str, &[&str]) = match set {
        "stream" => ("DEFAULT", &["NON_BLOCKING"]),
        "event" => ("DEFAULT", &["BLOCKING_SYNC", "DISABLE_TIMING", "INTERPROCESS"]),
        "hostalloc" => ("DEFAULT", &["PORTABLE", "DEVICEMAP", "WRITECOMBINED"]),
        "hostregister" => ("DEFAULT", &["PORTABLE", "DEVICEMAP", "IOMEMORY", "READ_ONLY"]),
        "attach" => ("", &["GLOBAL", "HOST", "SINGLE"]),
        "context" => ("SCHED_AUTO", &["SCHED_SPIN", "SCHED_YIELD", "SCHED_BLOCKING_SYNC"]),
        other => panic!("unknown flags: {other}"),
    };
    if flags >= 1 << names.len() {
        return json!(flags);
    }
    let set: Vec<&str> = (0..names.len()).filter(|bit| flags & 1 << bit != 0).map(|bit| names[bit]).collect();
    if flags == 0 { json!(zero) } else { json!(set.join("|")) }
}

/// Puts each function at an address of its own, with an ordinary beginning.
pub fn build(room: &Room, soname: &str, names: &BTreeSet<String>) -> String {
    let mut source = String::from(".text\n");
    for name in names {
        write!(
            source,
            ".globl {name}\n.type {name}, @function\n.p2align 4\n{name}:\npush %rbp\nmov %rsp, %rbp\n\
             xor %eax, %eax\npop %rbp\nret\n.size {name}, . - {name}\n"
        )
        .unwrap();
    }
    source += ".section .note.GNU-stack,\"\",@progbits\n";
    let (input, output) = (room.text(&format!("{soname}.s")), room.text(soname));
    fs::write(&input, source).unwrap();
    let soname = format!("-Wl,-soname,{soname}");
    let built =
        Command::new("cc").args(["-shared", "-nostdlib", &soname, "-o", &output, &input]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    output
}

fn plan_of(calls: &[Call]) -> Vec<u8> {
    let mut plan = Vec::new();
    for call in calls {
        plan.extend((call.library as u32).to_le_bytes());
        plan.extend((call.pokes.len() as u32).to_le_bytes());
        let mut name = call.name.clone().into_bytes();
        assert!(name.len() < 80);
        name.resize(80, 0);
        plan.extend(name);
        plan.extend(call.words.iter().flat_map(|word| word.to_le_bytes()));
        for (address, bytes) in &call.pokes {
            plan.extend(address.to_le_bytes());
            plan.extend((bytes.len() as u64).to_le_bytes());
            plan.extend(bytes);
            plan.resize(plan.len().next_multiple_of(8), 0);
        }
    }
    plan
}

/// The program, the libraries, and the calls of every row that `wanted` accepts.
struct Stage {
    words: Vec<String>,
    calls: Vec<Call>,
    rows: BTreeSet<usize>,
    of: usize,
}

fn stage(room: &Room, seed: u64, wanted: impl Fn(&str) -> bool) -> Stage {
    let facts = Facts::new(room);
    let mut maker = Maker { facts: &facts, random: Random(seed) };
    let (mut calls, mut rows, mut words) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (library, (api, major, soname)) in LIBRARIES.iter().enumerate() {
        let mut names = BTreeSet::new();
        // Older libraries have the rows that differ between majors, and the rows that refer to those.
        let newest = library < 2;
        for (number, row) in facts.rows_of(api, *major).filter(|(_, row)| wanted(&row.name)) {
            let base = row.params.as_deref().and_then(|p| p.strip_prefix('='));
            let differs = |name: &str| facts.rows.iter().any(|r| r.name == name && r.majors.is_some());
            if !newest && !differs(&row.name) && !base.is_some_and(differs) {
                continue;
            }
            let params = facts.params(row, *major);
            if row.params.is_some() && params.is_none() {
                // The row that it refers to is not in this major, so neither is this one.
                continue;
            }
            names.insert(row.name.clone());
            rows.insert(number);
            calls.push(maker.call(library, &row.name, params));
        }
        words.push(build(room, soname, &names));
    }
    let plan = room.text("plan");
    fs::write(&plan, plan_of(&calls)).unwrap();
    words.splice(0..0, [room.compile("table.c", "table", &[]), plan]);
    let of = facts.rows.len();
    Stage { words, calls, rows, of }
}

impl Stage {
    fn recorded(&self, room: &Room, options: &[&str], backend: &str) {
        let file = room.text(&format!("{backend}.jsonl"));
        let mut words = vec!["--backend", backend, "-o", &file];
        words.extend(options);
        words.push("--");
        words.extend(self.words.iter().map(String::as_str));
        let done = room.run(room.gpurec(&words));
        done.exited(0);
        assert_eq!(done.text(), format!("{} calls\n", self.calls.len()));
        let trace = Trace::checked(room, &file);
        trace.by(backend).is_whole();
        let lines = text_of(Path::new(&file));
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_phase =
            |phase: &str| -> Vec<&Value> { lines.iter().filter(|line| line["phase"] == phase).collect() };
        let (begins, ends) = (of_phase("B"), of_phase("E"));
        assert_eq!((begins.len(), ends.len()), (self.calls.len(), self.calls.len()));
        let mut wrong = Vec::new();
        for (call, (begin, end)) in self.calls.iter().zip(begins.iter().zip(&ends)) {
            assert_eq!((&begin["name"], &end["name"]), (&json!(call.name), &json!(call.name)));
            let out = end.get("out").cloned().unwrap_or(json!({}));
            compare(&mut wrong, call, "args", &begin["args"], &call.args);
            compare(&mut wrong, call, "out", &out, &call.out);
        }
        let count = wrong.len();
        wrong.truncate(20);
        assert!(wrong.is_empty(), "{backend}: {count} wrong:\n{}", wrong.join("\n"));
    }
}

fn compare(wrong: &mut Vec<String>, call: &Call, what: &str, found: &Value, expected: &Map<String, Value>) {
    // Traces have one spelling of a name, where the headers have two (`flags`, `Flags`).
    let in_one_way = |all: &Map<String, Value>| -> Map<String, Value> {
        all.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect()
    };
    let (found, expected) = (in_one_way(found.as_object().unwrap()), in_one_way(expected));
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for name in names.into_iter().filter(|name| found.get(*name) != expected.get(*name)) {
        let one = |of: &Map<String, Value>| of.get(name).map_or("nothing".to_owned(), Value::to_string);
        let library = LIBRARIES[call.library].2;
        wrong.push(format!(
            "{library} {} {what}.{name}: expected {}, found {}",
            call.name,
            one(&expected),
            one(&found)
        ));
    }
}

#[test]
fn every_row_comes_out_with_what_went_in() {
    live(|room| {
        for (seed, backend) in (11..).zip(backends_for_many()) {
            let stage = stage(room, seed, |_| true);
            assert_eq!(stage.rows.len(), stage.of, "rows walked");
            stage.recorded(room, &[], backend);
            println!("{backend}: {} rows of {}, {} calls", stage.rows.len(), stage.of, stage.calls.len());
        }
    });
}

#[test]
fn single_uprobes_capture_the_same() {
    live(|room| {
        let names =
            ["cuLaunchKernel", "cuMemcpy3D_v2", "cudaLaunchKernelExC", "cudaMemset3D", "cuFuncGetName"];
        let stage = stage(room, 13, |name| names.contains(&name));
        assert_eq!(stage.calls.len(), names.len());
        let only: Vec<&str> = names.iter().flat_map(|name| ["--only", name]).collect();
        stage.recorded(room, &only, "uprobe");
    });
}
