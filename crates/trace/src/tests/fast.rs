//! Compares the fast parser of lines with the general one: where the fast one has a result, both are equal.

use super::super::fast;
use super::super::parse::any_order;
use super::*;

/// Whether the fast parser had a result.
fn agree(text: &[u8]) -> bool {
    let Some(fast) = fast::line(text) else { return false };
    let shown = || String::from_utf8_lossy(text).into_owned();
    let slow = any_order(text).unwrap_or_else(|e| panic!("{e}, and yet it was read: {}", shown()));
    assert_eq!(fast, slow.line, "{}", shown());
    assert!(slow.unknown.is_empty(), "{}", shown());
    // Text that it keeps is written unchanged.
    assert_eq!(written(std::slice::from_ref(&fast)), [text, b"\n"].concat(), "{}", shown());
    true
}

/// A line whose texts need no escape, as nearly all lines.
pub fn ours(random: &mut Random) -> Vec<u8> {
    let mut text = written(&[random.line()]);
    text.pop();
    let plain: Vec<u8> = String::from_utf8_lossy(&text).replace('\\', "/").into_bytes();
    plain.into_iter().map(|byte| if byte < 0x80 { byte } else { b'x' }).collect()
}

#[test]
fn lines_of_every_kind_are_read_the_same() {
    let mut random = Random(45);
    let (mut fast, mut all) = (0, 0);
    for _ in 0..20_000 {
        let text = ours(&mut random);
        // Without the backslash, an escaped quote ends its string and the line is invalid.
        if any_order(&text).is_ok() {
            all += 1;
            fast += u32::from(
                written(&[any_order(&text).unwrap().line]) == [&text[..], b"\n"].concat() && agree(&text),
            );
        }
    }
    assert!(fast > 1000 && fast * 10 > all, "{fast} of {all}");
}

/// Parts of other lines, so that mutations produce nearly valid lines.
const PARTS: [&str; 29] = [
    "0",
    "1",
    "-",
    "-0",
    ".",
    "e5",
    "00",
    "99999999999999999999",
    "\"",
    "\\",
    "\\u0041",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\t",
    "\u{e9}",
    "null",
    "true",
    ",\"lost\":true",
    ",\"unwound\":true",
    ",\"parent\":null",
    ",\"begin\":null",
    "\"0x\"",
    "0x",
    ",\"mood\":1",
];

fn mutate(random: &mut Random, text: &mut Vec<u8>) {
    for _ in 0..=random.below(2) {
        let at = random.below(text.len() as u64 + 1) as usize;
        let to = (at + random.below(6) as usize).min(text.len());
        let part = PARTS[random.below(PARTS.len() as u64) as usize].bytes();
        match random.below(4) {
            0 => drop(text.drain(at..to)),
            1 => drop(text.splice(at..at, part)),
            2 => drop(text.splice(at..to, part)),
            _ if at < text.len() => text[at] = random.next() as u8,
            _ => {}
        }
    }
}

#[test]
fn mutated_lines_are_read_the_same_or_left_to_the_other() {
    let mut random = Random(46);
    let traces = [
        include_str!("../../../analysis/src/tests/kernel.jsonl"),
        include_str!("../../../../traces/torch_h200.jsonl"),
    ];
    let lines: Vec<&str> =
        traces.iter().flat_map(|trace| trace.lines()).filter(|line| line.len() < 2000).collect();
    let mut read = 0;
    for round in 0..200_000 {
        let mut text = match round % 2 {
            0 => lines[random.below(lines.len() as u64) as usize].as_bytes().to_vec(),
            _ => ours(&mut random),
        };
        mutate(&mut random, &mut text);
        let Some(fast) = fast::line(&text) else { continue };
        let shown = || String::from_utf8_lossy(&text).into_owned();
        let slow = any_order(&text).unwrap_or_else(|e| panic!("{e}, and yet it was read: {}", shown()));
        assert_eq!(fast, slow.line, "{}", shown());
        assert!(slow.unknown.is_empty(), "{}", shown());
        read += 1;
    }
    assert!(read > 10_000, "{read}");
}

#[test]
fn real_traces_need_the_other_for_rare_lines_only() {
    for trace in [
        include_str!("../../../analysis/src/tests/kernel.jsonl"),
        include_str!("../../../../traces/torch_h200.jsonl"),
    ] {
        let slow: Vec<&str> = trace.lines().filter(|line| !agree(line.as_bytes())).collect();
        let frequent = ["userspace", "kernel", "scheduler", "memory", "transfer"];
        let frequent =
            |line: &&&str| frequent.iter().any(|kind| line.contains(&format!("\"type\":\"{kind}\"")));
        let odd: Vec<&&str> = slow.iter().filter(frequent).collect();
        assert!(odd.len() * 100 <= trace.lines().count(), "{odd:#?}");
    }
}

#[test]
fn arguments_are_found_in_the_text() {
    let text = r#"{"event_id":1,"ts":0.000000001,"type":"userspace","name":"f","phase":"B","pid":1,"tid":1,"depth":0,"args":{"a":"0x1f","b":{"a":[1,{"c":2}]},"c":-5,"d":1.50,"e":null,"f":"text","arg0":true,"a":7}}"#;
    let line = fast::line(text.as_bytes()).unwrap();
    let Body::Begin(begin) = &line.body else { panic!("{line:?}") };
    let args = &begin.args;
    assert_eq!((args.get("a"), args.first()), (Some(Value::Hex(31)), Some(Value::Hex(31))));
    assert_eq!((args.get("c"), args.get("d")), (Some(Value::Signed(-5)), Some(Value::Float(1.5))));
    assert_eq!((args.get("e"), args.get("f")), (Some(Value::Null), Some(Value::Text("text".into()))));
    assert_eq!((args.get("arg0"), args.get("g")), (Some(Value::Bool(true)), None));
    assert!(matches!(args.get("b"), Some(Value::Object(b)) if b.len() == 1));
    let slow = any_order(text.as_bytes()).unwrap().line;
    let Body::Begin(slow) = &slow.body else { panic!("{slow:?}") };
    for name in ["a", "b", "c", "d", "e", "f", "arg0", "g"] {
        assert_eq!(slow.args.get(name), args.get(name), "{name}");
    }
    let mut copied = Vec::new();
    args.write_json(&mut copied);
    assert!(text.contains(std::str::from_utf8(&copied).unwrap()) && copied.ends_with(b"\"a\":7}"));
    assert!(!args.is_empty() && args.parsed().get("d") == Some(Value::Float(1.5)));
}

#[test]
fn registers_have_names() {
    let args = Args::raw(&[1, 2]);
    assert_eq!((args.get("arg1"), args.get("arg2")), (Some(Value::Hex(2)), None));
    assert_eq!(args.first(), Some(Value::Hex(1)));
}
