mod bad;
mod brief;
mod by_serde;
mod by_serde_kernel;
mod fast;
mod format;
mod kernel;
mod random;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Write};

use serde_json::json;

use super::reader::ReadError;
use super::*;
use random::Random;

pub fn written(lines: &[Line]) -> Vec<u8> {
    let mut writer = LineWriter::new(Vec::new());
    for line in lines {
        writer.write(line).unwrap();
    }
    writer.into_inner().unwrap()
}

fn read_all(bytes: &[u8]) -> (Vec<String>, Notes) {
    let mut reader = Reader::new(bytes);
    let mut lines = Vec::new();
    while let Some(line) = reader.next().unwrap() {
        lines.push(format!("{line:?}"));
    }
    (lines, reader.notes().clone())
}

#[test]
fn hot_lines_are_what_serde_json_writes() {
    let mut random = Random(42);
    for _ in 0..20_000 {
        let line = random.line();
        let text = String::from_utf8(written(std::slice::from_ref(&line))).unwrap();
        assert_eq!(text, by_serde::line(&line));
    }
}

#[test]
fn what_is_written_is_read() {
    let mut random = Random(43);
    let first = Line { event_id: 0, ts_ns: 0, body: Body::Header(Box::new(header())) };
    for _ in 0..5_000 {
        let line = random.line();
        let bytes = written(&[first.clone(), line.clone()]);
        let mut reader = Reader::new(&bytes[..]);
        reader.next().unwrap();
        let read = reader.next().unwrap().unwrap();
        // Texts that look like pointers come back as pointers, so the comparison uses the written form; if there are no
        // texts, it compares the values themselves.
        assert_eq!(written(std::slice::from_ref(&read)), written(&[line]));
    }
}

fn header() -> Header {
    Header {
        schema: SCHEMA,
        version: "0.1.0".into(),
        start: "2026-11-21T03:04:05.000+00:00".into(),
        host: "node7".into(),
        kernel: "6.18.0".into(),
        driver: Some("580.159.04".into()),
        command: Some(vec!["python".into(), "a \"b\".py".into()]),
        user: "ada".into(),
        options: json!({"kernel": false}),
        hooks: BTreeMap::from([(
            "userspace".to_string(),
            Layer {
                backend: "uprobe.session".into(),
                attached: 1089,
                by_backend: BTreeMap::from([("kprobe".to_string(), 3)]),
                hooks: vec![
                    HookEntry {
                        name: "rm_ioctl".into(),
                        backend: "kprobe".into(),
                        how: "kprobe".into(),
                        symbol: None,
                        note: None,
                    },
                    HookEntry {
                        name: "nvidia_ioctl".into(),
                        backend: "fentry".into(),
                        how: "fentry".into(),
                        symbol: Some("x.isra.0".into()),
                        note: Some("a part of it".into()),
                    },
                ],
                ..Layer::default()
            },
        )]),
        ns_per_call: Some(970),
        clock: Some(clock()),
        ..Header::default()
    }
}

fn stack() -> Stack<'static> {
    Stack {
        stack: 7,
        pid: 7,
        frames: vec![
            Frame::Native {
                function: Some("at::empty<\"x\">".into()),
                module: "/opt/libtorch.so".into(),
                build_id: Some("ab12".into()),
                offset: 0x1f,
                file: Some("/src/empty.cpp".into()),
                line: Some(12),
            },
            Frame::Native {
                function: None,
                module: "/opt/stripped.so".into(),
                build_id: None,
                offset: u64::MAX,
                file: None,
                line: None,
            },
            Frame::Python { function: "größe".into(), file: "/home/ada/train.py".into(), line: Some(88) },
            Frame::Python { function: "<module>".into(), file: "<string>".into(), line: None },
        ],
        cut: true,
    }
}

fn clock() -> Clock {
    Clock {
        monotonic_ns: 86_400_000_000_007,
        realtime_ns: 1_792_000_000_123_456_789,
        error_ns: 31,
        boot_id: Some("4c1b4a1e-9d5b-4b0e-8d5f-0b1c2d3e4f50".into()),
        ntp: Some(Ntp { offset_ns: -1500, max_error_ns: 250_000, synchronized: true }),
        ptp: Some("/dev/ptp0".into()),
    }
}

fn device() -> Device {
    Device {
        device: 0,
        uuid: Some("GPU-12ab".into()),
        gpu_name: Some("NVIDIA H200".into()),
        used_bytes: Some(u64::MAX),
        processes: Some(vec![
            DeviceProcess { pid: 7, bytes: Some(1 << 40) },
            DeviceProcess { pid: 8, bytes: None },
        ]),
        utilization: Some(100),
        memory_utilization: Some(3),
        sm_clock_mhz: Some(1980),
        power_w: Some(612.125),
        temperature_c: Some(71),
        throttle: Some(vec!["sw_power_cap".into()]),
        ecc_errors: Some(0),
    }
}

/// One line of every kind that is written through serde.
fn cold_lines() -> Vec<Line<'static>> {
    let refused =
        RefusedHook { name: "cuFoo".into(), reason: "it is data".into(), code: "not_a_function".into() };
    let library = Library {
        pid: 7,
        tid: 8,
        path: "/opt/libcudart \u{fffd}.so".into(),
        build_id: Some("ab12".into()),
        functions: 446,
        not_hooked: vec![refused],
        single_stepped: vec!["cuInit".into()],
    };
    let process = |p| Body::Process(p);
    let exit = |status| process(Process::Exit(Exit { pid: 7, tid: 7, status }));
    let bodies = vec![
        Body::Header(Box::new(header())),
        process(Process::Exec(Exec {
            pid: 7,
            tid: 7,
            command: vec!["python".into(), "".into()],
            rank: Some(3),
            local_rank: Some(1),
            world_size: Some(8),
            job: Some("a job".into()),
        })),
        process(Process::Fork(Fork { pid: 7, tid: 8, child: 9 })),
        process(Process::Library(library)),
        exit(ExitStatus::Code(255)),
        exit(ExitStatus::Signal(9)),
        exit(ExitStatus::Signal(40)),
        Body::Lost(Lost { count: u64::MAX, by_probe: BTreeMap::from([("cuInit".to_string(), u64::MAX)]) }),
        Body::Budget(Budget {
            action: Action::GiveUp,
            function: "cudaGetDevice".into(),
            probe: 3,
            level: Level::Counted,
            before: Level::Recorded,
            counted: u64::MAX,
            why: Some(Why { pid: 7, tid: 8, percent: 37.2, hits_per_sec: 210_000 }),
        }),
        Body::Budget(Budget {
            action: Action::End,
            function: "cudaGetDevice".into(),
            probe: 3,
            level: Level::Unhooked,
            before: Level::Unhooked,
            counted: 0,
            why: None,
        }),
        Body::Suspend(Suspend { slept_ns: 30_012_345_678_901 }),
        Body::Stack(stack()),
        Body::Device(Box::new(device())),
        Body::Device(Box::new(Device { device: 1, ..Device::default() })),
        Body::Clock(Box::new(clock())),
        Body::Clock(Box::new(Clock { ntp: None, ptp: None, boot_id: None, ..clock() })),
        Body::Finish(Box::new(Finish {
            events: 8,
            lost: 1,
            in_flight: vec![InFlight {
                pid: 7,
                tid: 8,
                name: "cuCtxSynchronize".into(),
                begin: 3,
                duration_ns: 12_345_678,
                died: true,
            }],
            complete: false,
            incomplete_because: vec!["1 event was lost".into()],
            incomplete_codes: vec!["lost".into()],
            stops: Some(Stops { count: 3, total_ns: 12_345_678 }),
            gpu: Some(GpuAccount {
                launches: 9,
                api: 9,
                delivered: 8,
                dropped: 1,
                reasons: vec![GpuReason { code: "dropped".into(), count: 1 }],
                overhead: vec![GpuOverhead { code: "buffer_flush".into(), count: 2, total_ns: 3000 }],
                ..GpuAccount::default()
            }),
            dump: Some(Dump {
                number: 2,
                event: "hang".into(),
                because: "cuCtxSynchronize has been open for 30 s".into(),
                from_ns: 12_345_678,
                suppressed: 1,
            }),
            summary: json!({"cuda_calls": 3}),
        })),
    ];
    let line = |(i, body)| Line { event_id: i as u64, ts_ns: i as u64 * 1_000_000_007, body };
    bodies.into_iter().enumerate().map(line).collect()
}

#[test]
fn cold_lines_come_back_as_they_were() {
    let lines = cold_lines();
    let (read, notes) = read_all(&written(&lines));
    let expected: Vec<String> = lines.iter().map(|line| format!("{line:?}")).collect();
    assert_eq!(read, expected);
    assert_eq!(notes, Notes::default());
}

#[test]
fn cold_lines_have_the_keys_of_the_contract() {
    let text = String::from_utf8(written(&cold_lines())).unwrap();
    let values: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (i, value) in values.iter().enumerate() {
        assert_eq!(value["event_id"], i as u64);
        assert!(value["ts"].is_number() && value["type"].is_string() && value["name"].is_string());
    }
    assert_eq!(values[0]["name"], "gpurec");
    assert_eq!(values[0]["command"][1], "a \"b\".py");
    assert_eq!(
        values[4],
        json!({"event_id": 4, "ts": 4.000000028, "type": "process", "name": "exit", "pid": 7, "tid": 7, "status": 255})
    );
    assert_eq!((&values[5]["status"], &values[5]["signal"]), (&json!(137), &json!("SIGKILL")));
    assert_eq!(values[6]["signal"], "SIG40");
    let budget = &values[8];
    assert_eq!((&budget["type"], &budget["name"]), (&json!("budget"), &json!("budget")));
    assert_eq!((&budget["action"], &budget["function"]), (&json!("give_up"), &json!("cudaGetDevice")));
    assert_eq!((&budget["before"], &budget["level"]), (&json!("recorded"), &json!("counted")));
    assert_eq!((&budget["percent"], &budget["tid"]), (&json!(37.2), &json!(8)));
    assert!(values[9]["percent"].is_null() && values[9]["pid"].is_null());
    let suspend = json!({"event_id": 10, "ts": values[10]["ts"], "type": "suspend", "name": "suspend", "slept_us": 30_012_345_678.901});
    assert_eq!(values[10], suspend);
    let native = json!({"kind": "native", "function": null, "module": "/opt/stripped.so", "build_id": null, "offset": "0xffffffffffffffff"});
    let python = json!({"kind": "python", "function": "<module>", "file": "<string>", "line": null});
    assert_eq!((&values[11]["frames"][1], &values[11]["frames"][3]), (&native, &python));
    assert_eq!((&values[11]["name"], &values[11]["cut"]), (&json!("stack"), &json!(true)));
    let processes = json!([{"pid": 7, "bytes": 1u64 << 40}, {"pid": 8, "bytes": null}]);
    assert_eq!((&values[12]["name"], &values[12]["processes"]), (&json!("device"), &processes));
    let bare =
        json!({"event_id": 13, "ts": values[13]["ts"], "type": "device", "name": "device", "device": 1});
    assert_eq!(values[13], bare, "what NVML does not say has no key");
    let exact = "\"monotonic_ns\":86400000000007,\"realtime_ns\":1792000000123456789,\"error_ns\":31,";
    assert_eq!(text.matches(exact).count(), 3, "in the header and in both lines");
    assert_eq!(values[0]["clock"]["ntp"], values[14]["ntp"]);
    let ntp = json!({"offset_ns": -1500, "max_error_ns": 250_000, "synchronized": true});
    assert_eq!((&values[14]["ntp"], &values[14]["ptp"]), (&ntp, &json!("/dev/ptp0")));
    let bare = &values[15];
    assert!(["ntp", "ptp", "boot_id"].iter().all(|key| bare.get(key) == Some(&json!(null))), "{bare}");
    assert_eq!(values[16]["in_flight"][0]["duration_us"], 12345.678);
    assert_eq!(values[16]["gpu"]["reasons"], json!([{"code": "dropped", "count": 1}]));
    assert!(text.starts_with("{\"event_id\":0,\"ts\":0.000000000,\"type\":\"header\""));
}

#[test]
fn times_are_exact_at_the_extremes() {
    for ts_ns in [0, 1, 999_999_999, 1 << 53, u64::MAX - 1, u64::MAX] {
        let line = Line {
            event_id: u64::MAX,
            ts_ns,
            body: Body::End(End {
                name: "cuInit".into(),
                pid: u32::MAX,
                tid: u32::MAX,
                begin: u64::MAX,
                duration_ns: Some(u64::MAX),
                paused_ns: 0,
                retval: Some(Retval::Number(i64::MIN)),
                error: None,
                out: None,
                late: None,
                ended: EndKind::Returned,
            }),
        };
        let bytes = written(std::slice::from_ref(&line));
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains("\"duration_us\":18446744073709551.615,"));
        assert!(text.contains("\"retval\":-9223372036854775808"));
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(reader.next().unwrap().unwrap().ts_ns, ts_ns);
    }
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let line = Line {
        event_id: 0,
        ts_ns: 0,
        body: Body::Unknown(Unknown {
            kind: "x".into(),
            name: lossy(b"k\xff\xc3ernel"),
            ..Unknown::default()
        }),
    };
    let text = String::from_utf8(written(&[line])).unwrap();
    assert!(text.contains("\"k\u{fffd}\u{fffd}ernel\""), "{text}");
}

#[test]
fn lines_written_by_other_programs_are_read_too() {
    let text = r#"{"event_id": 0, "name": "gpurec", "type": "userspace", "pid": 1, "tid": 2,
        "ts": 1.5e-7, "phase": "E", "begin": 3, "duration_us": 1e3, "retval": "0x1f"}"#;
    let mut reader_text = text.replace('\n', "");
    reader_text.push('\n');
    let mut reader = Reader::new(reader_text.as_bytes());
    let line = reader.next().unwrap().unwrap();
    assert_eq!(line.ts_ns, 150);
    let Body::End(end) = line.body else { panic!("{line:?}") };
    assert_eq!(end.duration_ns, Some(1_000_000));
    assert_eq!(end.retval, Some(Retval::Pointer(31)));
}

#[test]
fn a_cut_trace_is_read_up_to_the_cut() {
    let whole = written(&cold_lines());
    let starts: Vec<usize> =
        std::iter::once(0).chain((1..whole.len()).filter(|i| whole[i - 1] == b'\n')).collect();
    for length in 0..starts[1] - 1 {
        let error = Reader::new(&whole[..length]).next().unwrap_err();
        assert!(matches!(error, ReadError::Empty | ReadError::CutAtOnce) || length < 20, "{length}: {error}");
    }
    for length in starts[1] - 1..whole.len() {
        let (lines, notes) = read_all(&whole[..length]);
        let begun = starts.iter().filter(|s| **s < length).count();
        // A line that lacks only its line feed is whole.
        let all = whole[length] == b'\n' || starts.contains(&length);
        assert_eq!(lines.len(), begun - usize::from(!all), "{length}");
        match notes.cut {
            Some(cut) => assert_eq!(cut.line, begun as u64, "{length}"),
            None => assert_eq!(length + 1, whole.len()),
        }
    }
}

#[test]
fn odd_lines_are_reported_and_stepped_over() {
    let mut bytes = Vec::new();
    writeln!(bytes, r#"{{"event_id":1,"ts":0.1,"type":"aura","name":"x","new":[1]}}"#).unwrap();
    bytes.extend_from_slice(b"{\"event_id\":2,\"ts\":0.1,\"type\":\"\xff\"}\n");
    writeln!(bytes, "half a line").unwrap();
    writeln!(bytes, r#"{{"event_id":5,"ts":0.1,"type":"userspace","name":"cuInit","phase":"B","pid":1,"tid":1,"depth":0,"args":{{}},"mood":{{"a":1}}}}"#).unwrap();
    let (lines, notes) = read_all(&bytes);
    assert_eq!(lines.len(), 4);
    assert!(notes.header_missing && !notes.is_whole());
    assert_eq!((notes.bad_lines, notes.unknown_keys), (2, 1));
    assert_eq!(notes.first_bad.as_ref().unwrap().line, 2);
    assert_eq!(notes.missing_events, 3);
    assert_eq!(notes.cut.as_ref().unwrap().line, 4);
}

#[test]
fn a_newer_schema_is_reported() {
    let mut newer = header();
    newer.schema = SCHEMA + 1;
    let line = Line { event_id: 0, ts_ns: 0, body: Body::Header(Box::new(newer)) };
    let (_, notes) = read_all(&written(&[line]));
    assert_eq!(notes.newer_schema, Some(SCHEMA + 1));
    assert!(notes.sentences()[0].contains("schema 2"));
}

#[test]
fn what_is_no_trace_is_refused() {
    let refused = |bytes: &[u8]| Reader::new(bytes).next().unwrap_err().to_string();
    assert!(refused(b"").contains("empty"));
    assert!(refused(b"hello\nworld\n").contains("not a gpurec trace"));
    assert!(refused(b"{\"a\":1}\n").contains("no event_id"));
    assert!(refused(&[0u8; 4096]).contains("not a gpurec trace"));
    assert!(refused(b"{\"event_id\":0,\"ts\":0.0").contains("empty"));
}

#[test]
fn only_whole_lines_reach_the_output() {
    struct Checked(usize);
    impl Write for Checked {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            assert!(bytes.is_empty() || bytes.ends_with(b"\n"));
            self.0 += 1;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = LineWriter::new(Checked(0));
    let mut random = Random(44);
    for _ in 0..20_000 {
        writer.write(&random.line()).unwrap();
    }
    assert!(writer.into_inner().unwrap().0 > 10);
}
