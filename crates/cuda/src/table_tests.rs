//! Checks the table against the rules of both calling conventions, and reads every row with known values in every
//! place.

use std::collections::HashMap;

use super::item::Item;
use super::layout::LAYOUTS;
use super::raw::{Count, Entry, Exit, Piece, Place, Plan, Source, What};
use super::table::{Arch, Kind, MAX_READS, MAX_STACK_WORDS, signatures, written};
use super::*;
use gpurec_trace::{Arg, List, Value};

/// The parameters of each signature in the tables, as (name, kind), by function and order in the file, to compare with
/// the parsed ones.
fn kinds() -> HashMap<&'static str, Vec<Vec<(&'static str, &'static str)>>> {
    let mut of: HashMap<_, Vec<_>> = HashMap::new();
    let lines = include_str!("table.txt").lines().chain(include_str!("nccl.txt").lines());
    for line in lines.filter(|l| !l.contains(" =") && !l.ends_with(" ?")) {
        let mut words = line.split(' ');
        let name = words.next().unwrap().split('@').next().unwrap();
        let params = words.skip(4).map(|p| {
            let mut parts = p.split(':');
            (written(parts.next().unwrap()), parts.next().unwrap())
        });
        of.entry(name).or_default().push(params.collect());
    }
    of
}

fn kinds_of(signature: &Signature) -> Vec<(&'static str, &'static str)> {
    let kinds = kinds();
    let name = if kinds.contains_key(signature.name) {
        signature.name
    } else {
        without_stream_suffix(signature.name)
    };
    let same_names =
        |k: &&Vec<(&str, &str)>| k.iter().map(|k| k.0).eq(signature.params.iter().map(|p| p.name));
    kinds[name].iter().find(same_names).unwrap_or_else(|| panic!("{}", signature.name)).clone()
}

#[test]
fn every_row_with_parameters_becomes_a_signature() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let known = signatures(arch);
        for row in table::rows().iter().filter(|r| r.params.is_some()) {
            assert!(known.iter().any(|s| s.name == row.name), "{}", row.name);
        }
    }
    let without: Vec<_> = table::rows().iter().filter(|r| r.params.is_none()).map(|r| r.name).collect();
    assert_eq!(without, ["__cudaRegisterHostVar"]);
    let of = |api| table::rows().iter().filter(|r| r.function.api == api && r.params.is_some()).count();
    assert!(of(Api::Driver) >= 687 && of(Api::Runtime) >= 446, "{} {}", of(Api::Driver), of(Api::Runtime));
    assert!(all().count() > 1140);
}

#[test]
fn every_enumeration_and_structure_of_the_table_is_known() {
    for of_name in kinds().values().flatten().flatten() {
        let Some((_, detail)) = of_name.1.split_once('=') else { continue };
        let detail = detail.split(',').next().unwrap();
        let scalar = ["ptr", "handle", "devptr", "devptr32", "device", "chars", "text"].contains(&detail)
            || detail.starts_with(['u', 'i', 'f']) && detail[1..].parse::<u8>().is_ok();
        let known = scalar
            || of_name.1.starts_with("flags")
            || LAYOUTS.iter().any(|l| l.name == detail)
            || !names::constants(detail).is_empty();
        assert!(known, "{of_name:?}");
    }
}

#[test]
fn fields_are_inside_their_structures_and_have_names() {
    for layout in LAYOUTS.iter() {
        for field in &layout.fields {
            assert!(field.offset + field.item.bytes() <= layout.bytes, "{} {}", layout.name, field.name);
            if let Item::Enum(constants) = field.item {
                assert!(!constants.is_empty(), "{} {}", layout.name, field.name);
            }
        }
        assert!(layout.bytes <= 256, "{}", layout.name);
    }
}

/// The number of bytes of a parameter passed by value; `None` for a float.
fn bytes_by_value(kind: Kind) -> Option<u16> {
    match kind {
        Kind::Value(Item::Float(_)) => None,
        Kind::Value(Item::Struct(layout)) => Some(layout.bytes),
        _ => Some(8),
    }
}

fn register_or_stack(word: u8) -> Place {
    if word < 6 { Place::Register(word) } else { Place::Stack(word - 6) }
}

#[test]
fn places_follow_the_system_v_rules() {
    for signature in signatures(Arch::X86_64) {
        // A returned structure of more than 16 bytes takes the first register.
        let mut register = u8::from(signature.name == "cudaCreateChannelDesc");
        let mut stack = 0;
        for param in &signature.params {
            let expected = match bytes_by_value(param.kind) {
                None => Place::Vector,
                Some(bytes) => {
                    let words = bytes.div_ceil(8) as u8;
                    if words <= 2 && register + words <= 6 {
                        register += words;
                        if words == 2 {
                            Place::Pair(register - 2, register - 1)
                        } else {
                            Place::Register(register - 1)
                        }
                    } else {
                        stack += words;
                        if words == 1 {
                            Place::Stack(stack - 1)
                        } else {
                            Place::Block { word: stack - words, bytes }
                        }
                    }
                }
            };
            assert_eq!(param.place, expected, "{} {}", signature.name, param.name);
        }
    }
}

#[test]
fn places_follow_the_rules_of_aarch64() {
    for signature in signatures(Arch::Aarch64) {
        let mut word = 0;
        for param in &signature.params {
            let expected = match bytes_by_value(param.kind) {
                None => Place::Vector,
                Some(9..=16) => {
                    word += 2;
                    assert!(word <= 8, "{}", signature.name);
                    Place::Pair(word - 2, word - 1)
                }
                // A larger structure is a pointer to a copy, and is read.
                Some(bytes) => {
                    word += 1;
                    assert_eq!(param.entry.is_some() && matches!(param.kind, Kind::Value(_)), bytes > 16);
                    register_or_stack(word - 1)
                }
            };
            assert_eq!(param.place, expected, "{} {}", signature.name, param.name);
        }
    }
}

#[test]
fn plans_keep_their_limits() {
    for signature in [Arch::X86_64, Arch::Aarch64].into_iter().flat_map(signatures) {
        let Plan { stack_words, entry, exit, also } = &signature.plan;
        let name = signature.name;
        assert!(
            *stack_words <= MAX_STACK_WORDS && entry.len() <= MAX_READS && exit.len() <= MAX_READS,
            "{name}"
        );
        for (at, read) in entry.iter().chain(exit).enumerate() {
            let most = match read.what {
                What::Bytes(n) => (n, 256),
                What::Counted { count: Count::Word(word), each, max } => {
                    assert!(word < 6 + stack_words, "{name}");
                    (each * max, 512)
                }
                What::Counted { count: Count::Inside { read, .. }, each, max } => {
                    assert!(usize::from(read) < at, "{name}");
                    (each * max, 512)
                }
                What::Text(n) | What::TextThrough(n) => (n, 4096),
            };
            assert!(most.0 > 0 && most.0 <= most.1, "{name}");
            match read.from {
                Source::Word(word) => assert!(word < 6 || word < 6 + stack_words, "{name}"),
                Source::Inside { read, .. } => assert!(usize::from(read) < at, "{name}"),
            }
            assert!(usize::from(read.param) < signature.params.len(), "{name}");
        }
        assert_eq!(
            *also != 0,
            name.starts_with("ncclComm") && exit.iter().any(|r| is_handle(r, &signature)),
            "{name}"
        );
        assert!(!entry.iter().any(|r| matches!(r.what, What::TextThrough(_))), "{name}");
    }
}

/// A call that makes communicators may go on in the background.
fn is_handle(read: &raw::Read, signature: &Signature) -> bool {
    matches!(signature.params[usize::from(read.param)].name, "comm" | "newcomm")
}

/// Distinct values; their upper halves must not show in a smaller type.
fn word_value(word: usize) -> u64 {
    0xfedc_ba00_7000_0000 | (word as u64) << 32 | (word as u64) << 8 | 0x41
}

/// Bytes whose first word is `word_value(64 + read)`.
fn read_bytes(read: usize, what: What) -> Vec<u8> {
    match what {
        What::Text(_) | What::TextThrough(_) => format!("text {read}\0").into_bytes(),
        What::Bytes(n) => counted(read, n),
        What::Counted { each, .. } => counted(read, each * 2),
    }
}

fn counted(read: usize, bytes: u16) -> Vec<u8> {
    let words = (0..usize::from(bytes).div_ceil(8)).map(|at| word_value(64 + read * 64 + at));
    words.flat_map(u64::to_le_bytes).take(bytes.into()).collect()
}

/// How a scalar of a kind of table.txt is shown.
fn shown(kind: &str, word: u64) -> Option<Value<'static>> {
    Some(match kind {
        "ptr" | "handle" | "devptr" | "fnptr" => Value::Hex(word),
        "devptr32" => Value::Hex(word & 0xffff_ffff),
        "size" | "dim" | "usize" | "u64" | "flags64" => Value::Number(word),
        "u32" | "flags" | "i32" | "device" => Value::Number(word & 0xffff_ffff),
        "u16" => Value::Number(word & 0xffff),
        "u8" => Value::Number(word & 0xff),
        "f32" => Value::Float(f32::from_bits(word as u32).into()),
        "f64" => Value::Float(f64::from_bits(word)),
        _ if kind.starts_with("flags=") => Value::Number(word & 0xffff_ffff),
        _ if !names::constants(kind).is_empty() => Value::Number(word & 0xffff_ffff),
        _ => return None,
    })
}

/// The word at a place.
fn word_at(place: Place) -> u64 {
    word_value(match place {
        Place::Register(n) => n.into(),
        Place::Stack(n) => usize::from(n) + 6,
        Place::Pair(n, _) => n.into(),
        Place::Block { word, .. } => usize::from(word) + 6,
        Place::Vector => 99,
    })
}

struct Captured {
    registers: [u64; 6],
    stack: Vec<u64>,
    entry: Vec<Vec<u8>>,
    exit: Vec<Vec<u8>>,
}

impl Captured {
    fn of(signature: &Signature) -> Captured {
        let reads = |of: &[raw::Read]| of.iter().enumerate().map(|(at, r)| read_bytes(at, r.what)).collect();
        Captured {
            registers: std::array::from_fn(word_value),
            stack: (0..usize::from(signature.plan.stack_words)).map(|w| word_value(w + 6)).collect(),
            entry: reads(&signature.plan.entry),
            exit: reads(&signature.plan.exit),
        }
    }
}

fn whole(bytes: &[Vec<u8>]) -> Vec<Piece<'_>> {
    bytes.iter().map(|bytes| Piece::Bytes { bytes, cut: false }).collect()
}

#[test]
fn every_argument_of_every_row_comes_out_as_it_was_put_in() {
    for signature in all() {
        let captured = Captured::of(signature);
        let reads = whole(&captured.entry);
        let entry = Entry { registers: captured.registers, stack: &captured.stack, reads: &reads };
        let mut args = Vec::new();
        signature.args(&entry, &mut args);
        assert_eq!(args.len(), signature.params.len(), "{}", signature.name);
        let kinds = kinds_of(signature);
        for (at, (param, Arg { name, value })) in signature.params.iter().zip(&args).enumerate() {
            let (of, (expected_name, kind)) = (format!("{} {name} {value:?}", signature.name), kinds[at]);
            assert_eq!(name, expected_name, "{of}");
            let word = word_at(param.place);
            let expected = match kind.split_once('=') {
                _ if param.entry.is_some() => {
                    check_read(value, &captured.entry[usize::from(param.entry.unwrap())], kind, &of);
                    continue;
                }
                _ if kind == "float" => Value::Null,
                Some(("enum", of)) => shown(of, word).unwrap(),
                Some(("struct", "dim3")) => {
                    let second = word_value(usize::from(match param.place {
                        Place::Pair(_, second) => second,
                        _ => panic!("{of}"),
                    }));
                    let three = [word as u32, (word >> 32) as u32, second as u32];
                    Value::Array(List::Owned(three.map(|n| Value::Number(n.into())).to_vec()))
                }
                Some(("struct", _)) => {
                    assert!(!matches!(value, Value::Null), "{of}");
                    continue;
                }
                _ => shown(kind, word).unwrap_or(Value::Hex(word)),
            };
            assert_eq!(*value, expected, "{of}");
            if matches!(param.place, Place::Register(_) | Place::Stack(_)) {
                let number = signature.value(&entry, at).unwrap();
                assert!(matches!(*value, Value::Number(n) | Value::Hex(n) if n == number), "{of} {number:x}");
            }
        }
    }
}

fn check_read(value: &Value, bytes: &[u8], kind: &str, of: &str) {
    let first = gpurec_trace::bytes::u64_at(bytes, 0);
    match kind.split_once('=') {
        None => {
            let text = str::from_utf8(bytes).unwrap().trim_end_matches('\0');
            assert!(matches!(value, Value::Text(t) if t == text), "{of}");
        }
        Some(("array" | "outs", detail)) => {
            let Value::Array(items) = value else { panic!("{of}") };
            assert_eq!(items.len(), 2, "{of}");
            if let Some(expected) = shown(detail.split(',').next().unwrap(), first.unwrap()) {
                assert_eq!(items[0], expected, "{of}");
            }
        }
        Some((_, layout)) => check_structure(value, bytes, layout, of),
    }
}

/// Every field shows the number at its offset.
fn check_structure(value: &Value, bytes: &[u8], layout: &str, of: &str) {
    let layout = LAYOUTS.iter().find(|l| l.name == layout).unwrap();
    let Value::Object(fields) = value else {
        assert!(
            matches!(value, Value::Text(_) | Value::Array(_)) && layout.fields[0].name.is_empty(),
            "{of}"
        );
        return;
    };
    for (field, Arg { name, value }) in layout.fields.iter().zip(fields.iter()) {
        assert_eq!(name, field.name, "{of}");
        let at = usize::from(field.offset);
        let word = bytes[at..].iter().take(8).rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let low = word & 0xffff_ffff;
        let right = match (field.item, value) {
            (Item::Unsigned(8), Value::Number(n)) | (Item::Hex(8), Value::Hex(n)) => *n == word,
            (_, Value::Number(n)) => *n == low,
            (_, Value::Signed(n)) => *n == i64::from(low as i32),
            (Item::Dim3, Value::Array(three)) => three[0] == Value::Number(low),
            _ => false,
        };
        assert!(right, "{of}: {name} {value:?} {word:x}");
    }
}

#[test]
fn everything_that_every_row_writes_comes_out_as_it_was_put_in() {
    let mut seen = 0;
    for signature in all() {
        let captured = Captured::of(signature);
        let reads = whole(&captured.exit);
        let mut out = Vec::new();
        signature.out(&Exit { reads: &reads }, &mut out);
        assert_eq!(out.len(), signature.plan.exit.len(), "{}", signature.name);
        let kinds = kinds_of(signature);
        for ((read, bytes), Arg { name, value }) in signature.plan.exit.iter().zip(&captured.exit).zip(&out) {
            let (expected_name, kind) = kinds[usize::from(read.param)];
            let of = format!("{} {name} {value:?}", signature.name);
            assert_eq!(name, expected_name, "{of}");
            let detail = kind.split_once('=').unwrap().1;
            let word = bytes.iter().take(8).rev().fold(0, |w, b| w << 8 | u64::from(*b));
            match detail {
                "chars" | "text" => check_read(value, bytes, "text", &of),
                _ if kind.starts_with("outs=") => check_read(value, bytes, kind, &of),
                _ => match shown(detail, word) {
                    Some(expected) => assert_eq!(*value, expected, "{of}"),
                    None => check_structure(value, bytes, detail, &of),
                },
            }
            seen += 1;
        }
    }
    assert!(seen > 500, "{seen}");
}

#[test]
fn negative_numbers_enumerations_and_flags() {
    let args = |name: &str, registers: [u64; 6]| {
        let mut args = Vec::new();
        let entry = Entry { registers, stack: &[], reads: &[] };
        signature(name, Some(13)).unwrap().args(&entry, &mut args);
        args.into_iter().map(|a| a.value).collect::<Vec<_>>()
    };
    let text = |t: &'static str| Value::Text(t.into());
    let created = args("cuStreamCreateWithPriority", [0x10, 1, 0xffff_fffb, 0, 0, 0]);
    assert_eq!(created, [Value::Hex(0x10), text("NON_BLOCKING"), Value::Signed(-5)]);
    assert_eq!(args("cudaStreamCreateWithFlags", [0; 6]), [Value::Hex(0), text("DEFAULT")]);
    assert_eq!(args("cuMemHostAlloc", [1, 2, 3, 0, 0, 0])[2], text("PORTABLE|DEVICEMAP"));
    assert_eq!(args("cuMemHostAlloc", [1, 2, 0x80, 0, 0, 0])[2], Value::Number(0x80));
    assert_eq!(args("cudaMemcpy", [1, 2, 3, 2, 0, 0])[3], text("cudaMemcpyDeviceToHost"));
    assert_eq!(args("cudaMemcpy", [1, 2, 3, 77, 0, 0])[3], Value::Number(77));
    let attribute = args("cuDeviceGetAttribute", [1, 75, 0, 0, 0, 0]);
    assert_eq!(attribute[1], text("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"));
    let desc = args("cudaCreateChannelDesc", [0xdead, 8, 16, 24, 32, 1]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(desc[0], Value::Number(8));
        assert_eq!(desc[4], text("cudaChannelFormatKindUnsigned"));
    }
    let location = args("cudaMemPrefetchAsync", [1, 2, 3 << 32 | 1, 0, 0, 0]);
    let Value::Object(fields) = &location[2] else { panic!("{location:?}") };
    assert_eq!(fields[0].value, text("cudaMemLocationTypeDevice"));
    assert_eq!(fields[1].value, Value::Number(3));
}

#[test]
fn what_is_null_unreadable_or_cut_is_said() {
    let load = signature("cuModuleGetFunction", None).unwrap();
    let args = |piece: Piece<'static>| {
        let (mut args, reads) = (Vec::new(), [piece]);
        load.args(
            &Entry { registers: [1, 2, 3, 4, 5, 6], stack: &[], reads: Box::leak(Box::new(reads)) },
            &mut args,
        );
        (args[2].value.clone(), args.get(3).map(|a| (a.name.clone(), a.value.clone())))
    };
    let named =
        |name: &'static str| Some((name.into(), Value::Array(List::Owned(vec![Value::Text("name".into())]))));
    assert_eq!(args(Piece::Null), (Value::Null, None));
    assert_eq!(args(Piece::Unreadable), (Value::Null, named("unreadable")));
    let cut = Piece::Bytes { bytes: b"kern\xc3", cut: true };
    assert_eq!(args(cut), (Value::Text("kern…".into()), named("cut")));
    let bad = Piece::Bytes { bytes: b"k\xff\0rest", cut: false };
    assert_eq!(args(bad), (Value::Text("k\u{fffd}".into()), None));
    assert_eq!(load.plan.entry[0].what, What::Text(4096));

    let alloc = signature("cuMemAllocPitch_v2", None).unwrap();
    let mut out = Vec::new();
    alloc.out(&Exit { reads: &[Piece::Unreadable, Piece::Null] }, &mut out);
    assert_eq!(out[0].value, Value::Null);
    assert_eq!(out[1].value, Value::Null);
    assert_eq!(out[2].value, Value::Array(List::Owned(vec![Value::Text("dptr".into())])));

    // The stack could only be read in part.
    let launch = signature("cuLaunchKernel", None).unwrap();
    let entry = Entry { registers: [1; 6], stack: &[7, 8], reads: &[] };
    let mut args = Vec::new();
    launch.args(&entry, &mut args);
    assert_eq!(args[6].value, Value::Number(7));
    assert_eq!(args[8].value, Value::Null);
    let Value::Array(names) = &args[11].value else { panic!("{args:?}") };
    assert_eq!(names.len(), 3);
    assert_eq!(launch.launch(&entry), None);
}

#[test]
fn majors_choose_the_prototype() {
    let names = |name: &str, major| {
        let s = signature(name, major).unwrap();
        s.params.iter().map(|p| p.name).collect::<Vec<_>>()
    };
    assert_eq!(names("cudaMemPrefetchAsync", Some(12)), ["devPtr", "count", "dstDevice", "stream"]);
    assert_eq!(names("cudaMemPrefetchAsync", Some(13))[2], "location");
    assert_eq!(names("cudaMemPrefetchAsync_ptsz", Some(14))[2], "location");
    assert_eq!(names("cudaMemPrefetchAsync_ptsz", Some(11))[2], "dstDevice");
    assert_eq!(names("cudaMemPrefetchAsync", None), ["devPtr", "count"]);
    assert_eq!(names("cudaGraphInstantiate", None), ["pGraphExec", "graph"]);
    assert_eq!(names("cudaStreamGetCaptureInfo", Some(12)).len(), 3);
    assert_eq!(names("cuMemAlloc_v2", Some(1)), ["dptr", "bytesize"]);
    assert_eq!(names("cuGraphAddKernelNode", Some(1)).len(), 5);
    assert!(
        signature("cublasSgemm_v2", None).is_none() && signature("__cudaRegisterHostVar", None).is_none()
    );
    // A per-thread variant that the table lacks.
    assert_eq!(signature("cuInit_ptsz", None).unwrap().name, "cuInit");
}

#[test]
fn the_32_bit_entry_points_have_their_own_rows() {
    let kind = |name: &str, at: usize| signature(name, None).unwrap().params[at].kind;
    assert_eq!(kind("cuMemAlloc", 0), Kind::Out(Item::Hex(4)));
    assert_eq!(kind("cuMemAlloc", 1), Kind::Value(Item::Unsigned(4)));
    assert_eq!(kind("cuMemAlloc_v2", 0), Kind::Out(Item::Hex(8)));
    assert_eq!(kind("cuMemcpy2D", 0), Kind::Value(Item::Hex(8)));
    assert!(matches!(kind("cuMemcpy2D_v2", 0), Kind::In(_)));
}

/// Run by hand: cargo test --release -- --ignored --nocapture how_fast
#[test]
#[ignore = "a measurement, not a test: run it by hand in release"]
fn how_fast() {
    let registers = std::array::from_fn(word_value);
    let stack: Vec<u64> = (6..16).map(word_value).collect();
    for name in ["cuLaunchKernel", "cudaLaunchKernel", "cuMemAlloc_v2", "cudaMemcpyAsync"] {
        let s = signature(name, Some(13)).unwrap();
        let mut args = Vec::new();
        let start = std::time::Instant::now();
        for _ in 0..1_000_000 {
            args.clear();
            s.args(std::hint::black_box(&Entry { registers, stack: &stack, reads: &[] }), &mut args);
            std::hint::black_box(&args);
        }
        println!("{name}: args {} ns", start.elapsed().as_nanos() / 1_000_000);
        let start = std::time::Instant::now();
        for _ in 0..1_000_000 {
            std::hint::black_box(s.launch(std::hint::black_box(&Entry {
                registers,
                stack: &stack,
                reads: &[],
            })));
        }
        println!("{name}: launch {} ns", start.elapsed().as_nanos() / 1_000_000);
    }
    let start = std::time::Instant::now();
    println!("{} signatures in {:?}", signatures(Arch::X86_64).len(), start.elapsed());
}

#[test]
fn no_two_parameters_differ_only_in_case() {
    let mut names: std::collections::HashMap<String, &str> = Default::default();
    for param in all().flat_map(|signature| &signature.params) {
        let known = *names.entry(param.name.to_lowercase()).or_insert(param.name);
        assert_eq!(known, param.name);
    }
    assert!(names.len() > 300, "{}", names.len());
}
