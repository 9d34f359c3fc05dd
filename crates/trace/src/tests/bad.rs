//! Files that are not a trace, or only a part of one: the reader reads as far as possible and notes the line of each
//! problem.

use super::*;

const HEADER: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"","host":"","kernel":"","user":""}"#;

fn begin(id: u64, us: u64, tid: u32) -> String {
    format!(
        r#"{{"event_id":{id},"ts":0.{:09},"type":"userspace","name":"cuInit","phase":"B","pid":1,"tid":{tid},"depth":0,"args":{{}}}}"#,
        us * 1000
    )
}

fn end(id: u64, us: u64, tid: u32, begin: u64) -> String {
    format!(
        r#"{{"event_id":{id},"ts":0.{:09},"type":"userspace","name":"cuInit","phase":"E","pid":1,"tid":{tid},"begin":{begin},"duration_us":1.000,"retval":0}}"#,
        us * 1000
    )
}

fn last(id: u64, us: u64) -> String {
    format!(
        r#"{{"event_id":{id},"ts":0.{:09},"type":"end","name":"end","events":{id},"lost":0,"in_flight":[],"complete":true,"summary":{{}}}}"#,
        us * 1000
    )
}

fn read(lines: &[String]) -> (usize, Notes) {
    let text = lines.join("\n") + "\n";
    let (events, notes) = read_all(text.as_bytes());
    (events.len(), notes)
}

/// A whole trace of one call.
fn whole() -> Vec<String> {
    vec![HEADER.to_string(), begin(1, 1, 7), end(2, 2, 7, 1), last(3, 3)]
}

#[test]
fn nothing_is_said_of_a_whole_trace() {
    let mut lines = whole();
    assert_eq!(read(&lines), (4, Notes::default()));
    lines.insert(2, String::new());
    lines.push(" \r".into());
    assert_eq!(read(&lines), (4, Notes::default()), "blank lines hold nothing");
    assert!(Notes::default().is_whole() && Notes::default().sentences().is_empty());
}

#[test]
fn of_two_traces_in_one_file_the_first_is_read() {
    let lines = [whole(), whole()].concat();
    let (events, notes) = read(&lines);
    assert_eq!(events, 4);
    let unread = notes.unread.clone().unwrap();
    assert_eq!((unread.line, unread.reason.as_str()), (5, "another trace begins"));
    assert!(!notes.is_whole() && notes.cut.is_none());
    assert!(notes.sentences()[0].ends_with("tail -n +5"), "{:?}", notes.sentences());
    // The first recording was killed.
    let lines = [&whole()[..2], &whole()[..]].concat();
    let (events, notes) = read(&lines);
    assert_eq!((events, notes.unread.unwrap().line, notes.cut.unwrap().line), (2, 3, 3));
    // The second has lost its header.
    let lines = [&whole()[..], &whole()[1..]].concat();
    let (events, notes) = read(&lines);
    assert_eq!((events, notes.unread.unwrap().reason.as_str()), (4, "lines follow the end line"));
    assert_eq!(notes.missing_events, 0);
}

#[test]
fn lines_out_of_order_are_counted() {
    let lines = [HEADER.into(), begin(1, 5, 7), end(2, 4, 7, 1), begin(4, 6, 7), begin(3, 7, 8), last(5, 8)];
    let (events, notes) = read(&lines);
    assert_eq!(events, 6);
    assert_eq!((notes.disorder.count, notes.disorder.first_line), (2, 3));
    // The event came late and is not missing.
    assert_eq!(notes.missing_events, 0);
    assert!(!notes.is_whole());
    assert!(notes.sentences()[0].starts_with("2 lines are out of order"));
    let (_, notes) = read(&[HEADER.into(), begin(1, 1, 7), begin(1, 1, 7), last(5, 8)]);
    assert_eq!(
        (notes.disorder.count, notes.missing_events),
        (1, 2),
        "one twice, and three that are not there"
    );
}

/// The GPU does work later than the call that asks for it, and reports it later still.
#[test]
fn lines_of_gpu_work_may_come_late() {
    let gpu = |id: u64, us: u64| {
        format!(
            r#"{{"event_id":{id},"ts":0.{:09},"type":"gpu","name":"memcpy","kind":"copy","source":"lane","pid":1,"device":0,"context":1,"stream":7,"correlation":3,"begin":null,"duration_us":1.000}}"#,
            us * 1000
        )
    };
    let lines = [HEADER.into(), begin(1, 5, 7), gpu(2, 3), gpu(3, 1), end(4, 6, 7, 1), last(5, 8)];
    assert_eq!(read(&lines), (6, Notes::default()));
    let lines = [HEADER.into(), begin(1, 5, 7), gpu(2, 9), end(3, 4, 7, 1), gpu(3, 1), last(5, 8)];
    let (_, notes) = read(&lines);
    let found = (notes.disorder.count, notes.disorder.first_line);
    assert_eq!(
        found,
        (2, 4),
        "the end is before its begin, and the last has an event_id for the second time"
    );
}

#[test]
fn ends_without_a_begin_and_ends_that_cross_are_counted() {
    let lines = [HEADER.into(), end(1, 1, 7, 0), begin(2, 2, 7), end(3, 3, 8, 2), last(4, 4)];
    let (events, notes) = read(&lines);
    assert_eq!(events, 5);
    // The second end is in another thread.
    assert_eq!((notes.unmatched_ends.count, notes.unmatched_ends.first_line), (2, 2));
    assert!(!notes.is_whole());
    let calls =
        [begin(1, 1, 7), begin(2, 2, 7), begin(3, 3, 8), end(4, 4, 7, 1), end(5, 5, 8, 3), end(6, 6, 7, 2)];
    let (_, notes) = read(&[&[HEADER.to_string()], &calls[..], &[last(7, 7)]].concat());
    assert_eq!((notes.crossed_ends.count, notes.crossed_ends.first_line), (1, 5));
    assert_eq!(notes.unmatched_ends.count, 0);
    assert_eq!(notes.sentences(), ["line 5 ends a call before a call inside it has ended"]);
}

#[test]
fn calls_that_never_return_take_no_more_memory_than_a_bound() {
    let mut nesting = crate::nesting::Nesting::default();
    let body = |line: &str| crate::parse::any_order(line.as_bytes()).map(|p| format!("{:?}", p.line.body));
    assert!(body(&begin(1, 1, 7)).is_ok());
    let text = begin(1, 1, 7);
    let line = crate::fast::line(text.as_bytes()).unwrap();
    for id in 0..crate::bounds::MOST_OPEN as u64 + 10 {
        assert_eq!(nesting.add(id, &line.body), None);
    }
    let text = end(2, 2, 7, crate::bounds::MOST_OPEN as u64 + 5);
    let line = crate::fast::line(text.as_bytes()).unwrap();
    assert_eq!(nesting.add(0, &line.body), None, "an unknown call");
}

/// Ends in the order of their begins, in one thread: the search for a begin must not go through all open calls.
#[test]
fn ends_far_out_are_odd_and_cost_little() {
    use crate::nesting::{Nesting, NestingError};
    const CALLS: u64 = 200_000;
    let mut nesting = Nesting::default();
    let text = begin(1, 1, 7);
    let line = crate::fast::line(text.as_bytes()).unwrap();
    for id in 0..CALLS {
        assert_eq!(nesting.add(id, &line.body), None);
    }
    for id in 0..CALLS - 1 {
        let text = end(CALLS + id, CALLS + id, 7, id);
        let line = crate::fast::line(text.as_bytes()).unwrap();
        assert_eq!(nesting.add(CALLS + id, &line.body), Some(NestingError::Crossed), "{id}");
    }
    let text = end(1, 1, 7, CALLS - 1);
    let line = crate::fast::line(text.as_bytes()).unwrap();
    assert_eq!(nesting.add(2 * CALLS, &line.body), None, "the innermost");
    assert_eq!(nesting.add(2 * CALLS, &line.body), Some(NestingError::Crossed), "it has gone");
}

#[test]
fn a_line_of_100_megabytes_is_refused_and_the_next_is_read() {
    let before = format!("{HEADER}\n{}\n", begin(1, 1, 7));
    let after = format!("\n{}\n{}\n", end(3, 3, 7, 1), last(4, 4));
    let input = before.as_bytes().chain(std::io::repeat(b'x').take(100 << 20)).chain(after.as_bytes());
    let mut reader = Reader::new(input);
    let mut events = 0;
    while reader.next().unwrap().is_some() {
        events += 1;
    }
    let notes = reader.notes();
    assert_eq!((events, notes.bad_lines, notes.missing_events), (5, 1, 1));
    assert_eq!(notes.sentences()[0], "line 3 is no event and was skipped: it is longer than 16 MiB");
    let refused = Reader::new(std::io::repeat(0).take(100 << 20)).next().unwrap_err().to_string();
    assert!(refused.contains("line 1: it is longer than 16 MiB"), "{refused}");
}

#[test]
fn reasons_say_the_line_of_the_file_only() {
    let lines = [HEADER.into(), "{\"event_id\":1,\"ts\":0.1,oops}".into(), begin(2, 1, 7)];
    let (_, notes) = read(&lines);
    assert_eq!(notes.sentences()[0], "line 2 is no event and was skipped: key must be a string in column 24");
    let refused = Reader::new(&b"\n\nhello\n"[..]).next().unwrap_err().to_string();
    assert!(refused.contains("(line 3: expected value in column 1)"), "{refused}");
}

#[test]
fn of_a_newer_trace_what_is_known_is_read() {
    let header = HEADER.replace("\"schema\":1", "\"schema\":2,\"hooks\":[1,2],\"host\":{\"name\":\"a\"}");
    let call = begin(1, 1, 7).replace("\"depth\"", "\"mood\":[1],\"depth\"");
    let strange = r#"{"event_id":2,"ts":0.1,"type":"userspace","name":7,"phase":"B"}"#;
    let aura = r#"{"event_id":3,"ts":0.2,"type":"aura","name":"x"}"#;
    let (events, notes) = read(&[header, call, strange.into(), aura.into(), last(4, 300_000)]);
    assert_eq!((events, notes.newer_schema), (5, Some(2)));
    assert_eq!((notes.unknown_lines, notes.unknown_keys, notes.bad_lines), (1, 1, 1));
    assert_eq!(notes.first_bad.as_ref().unwrap().line, 3);
    assert!(!notes.is_whole() && notes.sentences()[0].contains("schema 2"), "{:?}", notes.sentences());
    // The same header under a known schema is an error.
    let header = HEADER.replace("\"host\":\"\"", "\"host\":{}") + "\n";
    assert!(Reader::new(header.as_bytes()).next().is_err());
}

/// Every file ends with a result or an error, and every line is accounted for.
#[test]
fn damaged_traces_are_read_without_a_panic() {
    let trace = include_bytes!("../../../../traces/torch_h200.jsonl");
    let mut random = Random(47);
    for round in 0..300 {
        let mut text = trace[..20_000].to_vec();
        for _ in 0..=random.below(20) {
            let at = random.below(text.len() as u64) as usize;
            let to = (at + random.below(300) as usize).min(text.len());
            match random.below(5) {
                0 => text.truncate(at),
                1 => drop(text.drain(at..to)),
                2 => text[at..to].reverse(),
                3 => text[at] = random.next() as u8,
                _ => {
                    let piece = text[at..to].to_vec();
                    text.extend(piece);
                }
            }
            if text.is_empty() {
                break;
            }
        }
        let mut reader = Reader::new(&text[..]);
        let mut events = 0;
        while let Ok(Some(_)) = reader.next() {
            events += 1;
        }
        assert!(events <= text.split(|b| *b == b'\n').count(), "{round}");
        let notes = reader.notes();
        assert!(notes.is_whole() || !notes.sentences().is_empty());
    }
}

/// Returns one byte per read, then this error.
struct Failing<'a>(&'a [u8], Option<i32>);

impl Read for Failing<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match (self.0.is_empty(), self.1) {
            (true, Some(errno)) => Err(std::io::Error::from_raw_os_error(errno)),
            _ => {
                let most = into.len().min(1);
                self.0.read(&mut into[..most])
            }
        }
    }
}

/// Compressed calls, with a flush after each `each` of them, as the recorder flushes once a second; and the length of
/// each part.
fn compressed(calls: u64, each: u64) -> (Vec<u8>, Vec<usize>) {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut lengths = Vec::new();
    writeln!(encoder, "{HEADER}").unwrap();
    for call in 0..calls {
        let id = 1 + 2 * call;
        writeln!(encoder, "{}\n{}", begin(id, id, 7), end(id + 1, id + 1, 7, id)).unwrap();
        if call % each == each - 1 {
            encoder.flush().unwrap();
            lengths.push(encoder.get_ref().len());
        }
    }
    (encoder.finish().unwrap(), lengths)
}

fn read_of(bytes: &[u8]) -> Result<(u64, Notes), ReadError> {
    let mut reader = crate::reader::reader_of(std::io::Cursor::new(bytes.to_vec()))?;
    let mut events = 0;
    while reader.next()?.is_some() {
        events += 1;
    }
    Ok((events, reader.notes().clone()))
}

#[test]
fn a_damaged_end_of_a_compressed_trace_is_a_cut() {
    const DAMAGED: &str = "the compressed data are damaged from here on";
    let (whole, lengths) = compressed(10_000, 1_000);
    assert_eq!(read_of(&whole).unwrap().0, 20_001);
    // Zeros after the end, as a file system leaves them when the machine crashed.
    let (events, notes) = read_of(&[&whole[..], &[0; 5000]].concat()).unwrap();
    assert_eq!((events, notes.cut.unwrap().reason.as_str()), (20_001, DAMAGED));
    // Zeros or ones in place of unwritten data, at any byte from the fifth part on.
    for at in [lengths[4] + 1, lengths[4] + 2, lengths[4] + 100, lengths[5] - 1] {
        for byte in [0, 0xff] {
            let damaged = [&whole[..at], &vec![byte; whole.len() - at][..]].concat();
            let (events, notes) = read_of(&damaged).unwrap();
            // Of the data flushed before, only what the decoder returned in the same request as the damage is lost.
            assert!(events > 10_000 - 200 && events < 13_000, "{at} {byte}: {events}");
            let cut = notes.cut.clone().unwrap();
            assert!(cut.line >= events && !notes.is_whole(), "{cut:?}");
        }
    }
    // Before the first event, damage is an error, not a cut.
    let error = read_of(&[&whole[..4], &[0xff; 100]].concat()).unwrap_err();
    assert!(matches!(error, ReadError::Io(_)), "{error}");
}

#[test]
fn a_disk_that_fails_is_an_error_and_no_cut() {
    let plain = whole().join("\n") + "\n";
    let (packed, _) = compressed(100, 100);
    for bytes in [plain.into_bytes(), packed] {
        let bytes: &'static [u8] = bytes.leak();
        let failing = Failing(&bytes[..bytes.len() - 1], Some(5));
        let mut reader = crate::reader::reader_of(failing).unwrap();
        let error = loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("read to the end"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("os error 5"), "{error}");
    }
}

#[test]
fn compression_is_recognised_however_slowly_the_first_bytes_come() {
    let (packed, _) = compressed(10, 100);
    let mut reader = crate::reader::reader_of(Failing(packed.leak(), None)).unwrap();
    let mut events = 0;
    while reader.next().unwrap().is_some() {
        events += 1;
    }
    assert_eq!(events, 21);
}

#[test]
fn a_file_without_an_event_is_refused_as_empty() {
    let (packed, _) = compressed(10, 100);
    let mut files: Vec<&[u8]> = [0, 4, 5, 12].iter().map(|length| &packed[..*length]).collect();
    files.extend([
        &HEADER.as_bytes()[..30],
        &HEADER.as_bytes()[..HEADER.len() - 1],
        b"\n\n",
        b"\n{\"event_id\":0",
    ]);
    for file in files {
        let error = read_of(file).unwrap_err();
        let is_empty = match file.starts_with(b"\x28\xb5\x2f\xfd") {
            true => matches!(error, ReadError::CutAtOnce),
            false => matches!(error, ReadError::Empty),
        };
        assert!(is_empty, "{}: {error}", file.len());
    }
    // A header alone is an event: the recording is empty, and cut.
    assert_eq!(read_of(HEADER.as_bytes()).unwrap().0, 1);
}

/// Found by scripts/fuzz: a number with more digits than a double has was read as a neighbouring number.
#[test]
fn a_number_is_read_as_the_nearest_that_there_is() {
    let text = br#"{"event_id":46,"ts":0.001173000,"type":"kernel","name":"irq:irq_handler_entry","pid":0,"tid":0,"depth":0,"cpu":1,"args":{"irq":555555555555555555555555555555555555555555555555555555555142}}"#;
    let line = super::super::parse::any_order(text).unwrap().line;
    let mut written = Vec::new();
    let mut writer = LineWriter::new(&mut written);
    writer.write(&line).and_then(|()| writer.flush()).unwrap();
    drop(writer);
    assert_eq!(super::super::parse::any_order(written.trim_ascii_end()).unwrap().line, line);
}

/// The reader accepts whatever the writer writes: the writer shortens a line that would be too long, and notes it.
#[test]
fn a_line_that_would_be_too_long_is_written_shorter() {
    let call =
        |i: u64| InFlight { pid: 1, tid: 1, name: "\u{1}".repeat(100), begin: i, duration_ns: 1, died: true };
    let finish = Finish { complete: true, in_flight: (0..30_000).map(call).collect(), ..Finish::default() };
    let names = (0..200_000).map(|i| (format!("{i:0100}"), 1)).collect();
    let lost = Lost { count: 200_000, by_probe: names };
    let mut writer = LineWriter::new(Vec::new());
    for (event_id, body) in [Body::Header(Box::default()), Body::Lost(lost), Body::Finish(Box::new(finish))]
        .into_iter()
        .enumerate()
    {
        writer.write(&Line { event_id: event_id as u64, ts_ns: 0, body }).unwrap();
    }
    let text = writer.into_inner().unwrap();
    let (events, notes) = read_all(&text);
    assert!(text.len() < 1 << 20 && notes.is_whole(), "{} bytes: {notes:?}", text.len());
    assert!(events[1].contains("(others)") && events[1].contains("200000"), "{}", events[1]);
    assert!(
        events[2].contains("would take more than 16 MiB") && events[2].contains("complete: false"),
        "{}",
        events[2]
    );
}

/// The frames of a line in the file, as the reader keeps them.
fn stack_of(frames: &str) -> Stack<'static> {
    let text = format!(
        r#"{{"event_id":0,"ts":0.000000000,"type":"stack","name":"stack","stack":3,"pid":1,"frames":[{frames}]}}"#
    );
    let parsed = super::super::parse::any_order(text.as_bytes()).unwrap();
    let Body::Stack(stack) = parsed.line.body else { panic!("a stack") };
    // The tests outlive the text.
    let frames = stack.frames.iter().map(|frame| frame.shortened(usize::MAX)).collect();
    Stack { frames, ..stack }
}

#[test]
fn frames_beyond_the_bound_are_cut_and_odd_ones_are_shown_by_what_they_have() {
    let frame = r#"{"kind":"python","function":"f","file":"a.py","line":1}"#;
    let of = |count: usize| stack_of(&vec![frame; count].join(","));
    assert_eq!((of(MOST_FRAMES).frames.len(), of(MOST_FRAMES).cut), (MOST_FRAMES, false));
    assert_eq!((of(100_000).frames.len(), of(100_000).cut), (MOST_FRAMES, true));
    assert_eq!((of(0).frames.len(), of(0).cut), (0, false));
    let odd = r#"{"kind":"java","function":"run","module":"/a/b.jar","new":[1]},{"kind":"native","offset":"zz"},{"kind":"python"}"#;
    let shown: Vec<String> = stack_of(odd).frames.iter().map(Frame::text).collect();
    assert_eq!(shown, ["run (b.jar)", "?+0x0", "? ?"]);
    for bad in [r#"{"function":"f"}"#, "3", "null", r#"{"kind":"python","line":-1}"#] {
        let text = format!(
            r#"{{"event_id":0,"ts":0.0,"type":"stack","name":"stack","stack":3,"pid":1,"frames":[{bad}]}}"#
        );
        assert!(super::super::parse::any_order(text.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_stack_that_would_be_too_long_is_written_shorter() {
    let frame = Frame::Python { function: "f".repeat(1 << 20).into(), file: "a.py".into(), line: None };
    let stack = Stack { frames: vec![frame; 64], ..Stack::default() };
    let mut writer = LineWriter::new(Vec::new());
    writer.write(&Line { event_id: 0, ts_ns: 0, body: Body::Stack(stack) }).unwrap();
    let text = writer.into_inner().unwrap();
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
    let (lines, _) = read_all(&text);
    assert!(lines[0].contains("Stack"), "{}", lines[0]);
}

/// A window of 128 MiB costs a reader that much memory, for each trace that it reads at once.
#[test]
fn a_large_window_is_refused_with_a_remedy() {
    let read = |window: u32| {
        let mut out = zstd::Encoder::new(Vec::new(), 1).unwrap();
        out.window_log(window).unwrap();
        std::io::Write::write_all(&mut out, b"{\"event_id\":0}\n").unwrap();
        let mut reader = crate::reader::reader_of(std::io::Cursor::new(out.finish().unwrap())).unwrap();
        reader.next().err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(read(23).contains("this is not a gpurec trace"), "{}", read(23));
    assert!(read(27).contains("a window of more than 8 MiB"), "{}", read(27));
}
