//! Compares what is read in brief with the whole lines: where the brief parser has a result, both say the same.

use super::super::brief::{self, Brief};
use super::super::fast;
use super::*;
use crate::{CallBegin, CallEnd, GpuWork};

/// Whether the brief parser had a result.
fn agrees(text: &[u8]) -> bool {
    let Some(found) = brief::line(text) else { return false };
    let line =
        fast::line(text).unwrap_or_else(|| panic!("not read whole: {}", String::from_utf8_lossy(text)));
    match (found, &line.body) {
        (Brief::Begin(it), Body::Begin(begin)) => {
            assert_eq!((it, &begin.no_return), (CallBegin::of(&line, begin), &None));
        }
        (Brief::End(it), Body::End(end)) => assert_eq!(it, CallEnd::of(&line, end)),
        (Brief::Work(it), Body::Gpu(gpu)) => assert_eq!(it, GpuWork::of(&line, gpu)),
        _ => panic!("of another kind: {line:?}"),
    }
    true
}

#[test]
fn what_is_read_in_brief_is_what_the_line_says() {
    let mut random = Random(47);
    let (mut brief, mut all) = (0, 0);
    for _ in 0..50_000 {
        let text = super::fast::ours(&mut random);
        let line = fast::line(&text);
        if line.is_some_and(|line| matches!(line.body, Body::Begin(_) | Body::End(_) | Body::Gpu(_))) {
            all += 1;
            brief += u32::from(agrees(&text));
        }
    }
    assert!(all > 1000 && brief * 4 > all, "{brief} of {all}");
}

#[test]
fn of_real_traces_most_calls_are_read_in_brief() {
    for trace in [
        include_str!("../../../analysis/src/tests/gpu.jsonl"),
        include_str!("../../../../traces/torch_h200.jsonl"),
    ] {
        let is_frequent =
            |line: &&str| line.contains("\"type\":\"userspace\"") || line.contains("\"type\":\"gpu\"");
        let frequent: Vec<&str> = trace.lines().filter(is_frequent).collect();
        let brief = frequent.iter().filter(|line| agrees(line.as_bytes())).count();
        assert!(brief * 2 > frequent.len(), "{brief} of {}", frequent.len());
    }
}

#[test]
fn calls_whose_end_is_not_watched_or_not_plain_are_read_whole() {
    let head = r#"{"event_id":3,"ts":1.000000007,"type":"userspace","name":"f","phase""#;
    let begin = |rest: &str| format!(r#"{head}:"B","pid":1,"tid":2,"depth":0,"args":{{"a":"0x1f"}}{rest}}}"#);
    for rest in ["", r#","stack":4"#, r#","kernel":"k","stream":"0x1""#, r#","parent":2"#] {
        let text = begin(rest);
        let is_in_order = !rest.contains("parent");
        assert_eq!(agrees(text.as_bytes()), is_in_order, "{text}");
    }
    assert!(!agrees(begin(r#","no_return":"why""#).as_bytes()));
    assert!(!agrees(begin(r#","kernel":"k","no_return":"why","carried":true"#).as_bytes()));
    let end = |rest: &str| format!(r#"{head}:"E","pid":1,"tid":2,"begin":1{rest}}}"#);
    assert!(agrees(end(r#","duration_us":1.500,"retval":0"#).as_bytes()));
    for rest in [r#","retval":2,"error":"e""#, r#","unwound":true"#, r#","duration_us":1.500,"retval":-1"#] {
        assert!(!agrees(end(rest).as_bytes()), "{rest}");
    }
    assert!(brief::line(b"{\"event_id\":3").is_none() && brief::line("é".as_bytes()).is_none());
    let text = begin("");
    let Some(Brief::Begin(call)) = brief::line(text.as_bytes()) else { panic!("{text}") };
    assert_eq!((call.arg("a"), call.arg("b")), (Some(Value::Hex(31)), None));
}

/// Both ways of reading a file leave the same notes.
#[test]
fn notes_are_the_same() {
    let mut random = Random(48);
    for _ in 0..300 {
        let lines: Vec<Line> = (0..random.below(40)).map(|_| random.line()).collect();
        let mut bytes = written(&lines);
        let length = bytes.len() as u64;
        if length > 0 && random.below(2) == 0 {
            bytes.truncate(random.below(length) as usize);
        }
        let (whole, notes) = {
            let mut reader = Reader::new(&bytes[..]);
            let mut count = 0;
            let end = loop {
                match reader.next() {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => break None,
                    Err(error) => break Some(error.to_string()),
                }
            };
            ((count, end), reader.notes().clone())
        };
        let mut reader = Reader::new(&bytes[..]);
        let mut count = 0;
        let end = loop {
            match reader.pass_brief(|_| ()) {
                Ok(Some(_)) => count += 1,
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        assert_eq!(((count, end), reader.notes()), (whole, &notes));
    }
}
