//! Rows of --live, built from trace lines in the order of the trace.

use super::*;
use crate::pipeline::observer::Rows;
use gpurec_trace::Reader;

const HEADER: &str = r#"{"event_id":0,"ts":0.1,"type":"header","name":"gpurec","schema":1,"version":"","start":"","host":"","kernel":"","user":""}"#;

/// The details of each row. The other columns fill the first 71 characters.
fn details(text: &str) -> Vec<&str> {
    text.lines().map(|row| row.get(71..).unwrap_or("").trim()).collect()
}

fn each_line(text: &str, mut take: impl FnMut(&Line)) {
    let mut reader = Reader::new(text.as_bytes());
    while let Some(line) = reader.next().unwrap() {
        take(&line);
    }
}

fn shown(lines: &[&str]) -> String {
    let (voice, hear) = Voice::with_ear(100);
    let mut live = Live::new(voice);
    each_line(&(HEADER.to_owned() + "\n" + &lines.join("\n") + "\n"), |line| live.line(line, false));
    assert!(live.arguments.is_empty());
    live.flush();
    std::iter::from_fn(hear).collect()
}

/// An ioctl and the driver function inside it, with their ends.
#[test]
fn the_end_of_an_ioctl_says_what_was_asked() {
    let text = shown(&[
        r#"{"event_id":1,"ts":0.1,"type":"kernel","name":"nvidia_ioctl","phase":"B","pid":4294967295,"tid":1,"depth":0,"device":"nvidiactl","cmd":"0x2a","request":"NV_ESC_RM_CONTROL","detail":{"command":"0x20801234"}}"#,
        r#"{"event_id":2,"ts":0.1,"type":"kernel","name":"rm_ioctl","phase":"B","pid":4294967295,"tid":1,"depth":1,"parent":1}"#,
        r#"{"event_id":3,"ts":0.1,"type":"kernel","name":"rm_ioctl","phase":"E","pid":4294967295,"tid":1,"begin":2,"duration_us":1.500,"retval":-22}"#,
        r#"{"event_id":4,"ts":0.1,"type":"kernel","name":"nvidia_ioctl","phase":"E","pid":4294967295,"tid":1,"begin":1,"duration_us":2.500,"retval":0,"status":"NV_ERR_NOT_SUPPORTED"}"#,
        r#"{"event_id":5,"ts":0.1,"type":"xid","name":"xid","pid":4294967295,"tid":1,"xid":31,"message":"a\nb","device":"0000:3b:00.0"}"#,
    ]);
    let expected = [
        "DETAILS",
        "1.500 us  = -22",
        "2.500 us  NV_ESC_RM_CONTROL 0x20801234  NV_ERR_NOT_SUPPORTED",
        "31 on 0000:3b:00.0: a?b",
    ];
    assert_eq!(details(&text), expected);
}

#[test]
fn a_launch_memory_copies_and_the_scheduler() {
    let text = shown(&[
        r#"{"event_id":1,"ts":0.1,"type":"process","name":"exec","pid":4294967295,"tid":1,"command":["/opt/train","--x"]}"#,
        r#"{"event_id":2,"ts":0.1,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{},"kernel":"gelu(float*)","grid":[64,1,1],"block":[128,2,1],"shared":48,"stream":"0x5"}"#,
        r#"{"event_id":3,"ts":0.1,"type":"userspace","name":"cuLaunchKernel","phase":"E","pid":4294967295,"tid":1,"begin":2,"duration_us":1.500,"retval":719,"error":"CUDA_ERROR_LAUNCH_FAILED"}"#,
        r#"{"event_id":4,"ts":0.1,"type":"memory","name":"cuMemAlloc_v2","pid":4294967295,"tid":1,"begin":2,"op":"alloc","space":"device","ptr":"0x302000000","size":1024,"total_allocated":4096}"#,
        r#"{"event_id":5,"ts":0.1,"type":"transfer","name":"cuMemcpyHtoD_v2","pid":4294967295,"tid":1,"begin":2,"direction":"H2D","size":262144,"async":false,"pageable":true,"duration_us":141.225,"bytes_per_sec":1856215259}"#,
        r#"{"event_id":6,"ts":0.1,"type":"scheduler","name":"off_cpu","pid":4294967295,"tid":1,"depth":0,"duration_us":12.250,"args":{"state":"sleeping"}}"#,
        r#"{"event_id":7,"ts":0.1,"type":"scheduler","name":"nvidia_isr","pid":0,"tid":0,"depth":0,"cpu":3,"duration_us":2.000}"#,
        r#"{"event_id":8,"ts":0.1,"type":"lost","name":"lost","count":7,"by_probe":{"x":7}}"#,
        r#"{"event_id":9,"ts":0.1,"type":"process","name":"exit","pid":4294967295,"tid":1,"status":139,"signal":"SIGSEGV"}"#,
    ]);
    let expected = "\x20   TIME(ms) PROCESS               PID EVENT                            DETAILS
     100.000 train            4294967295 exec                             /opt/train --x
     100.000 train            4294967295 cuLaunchKernel                   1.500 us  gelu(float*) grid 64x1x1 block 128x2x1 shared 48 stream 0x5  CUDA_ERROR_LAUNCH_FAILED  alloc 1024 bytes  device 0x302000000  4096 bytes held  copy 262144 bytes  H2D  1.85 GB/s  pageable
     100.000 train            4294967295 off_cpu                          12.250 us  sleeping
     100.000 ?                       0 nvidia_isr                       2.000 us  cpu 3
     100.000                           LOST                             7 records
     100.000 train            4294967295 exit                             killed by SIGSEGV
";
    assert_eq!(text, expected.replace("sleeping", "state sleeping"));
}

/// The row has the call's arguments, results, error and effects.
#[test]
fn a_call_is_one_row() {
    let text = shown(&[
        r#"{"event_id":1,"ts":0.1,"type":"process","name":"found","pid":4294967295,"tid":1,"comm":"serve","command":["/opt/serve"]}"#,
        r#"{"event_id":2,"ts":0.1,"type":"userspace","name":"cudaMalloc","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{"devPtr":"0x7ffc0010","size":1024}}"#,
        r#"{"event_id":3,"ts":0.1,"type":"userspace","name":"cudaMalloc","phase":"E","pid":4294967295,"tid":1,"begin":2,"duration_us":1.500,"retval":0,"out":{"devPtr":"0x302000000"}}"#,
        r#"{"event_id":4,"ts":0.1,"type":"memory","name":"cudaMalloc","pid":4294967295,"tid":1,"begin":2,"op":"alloc","space":"device","ptr":"0x302000000","size":1024,"total_allocated":4096}"#,
        r#"{"event_id":5,"ts":0.1,"type":"userspace","name":"cudaMalloc","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{"devPtr":"0x7ffc0010","size":70368744177664}}"#,
        r#"{"event_id":6,"ts":0.1,"type":"userspace","name":"cudaMalloc","phase":"E","pid":4294967295,"tid":1,"begin":5,"duration_us":2.500,"retval":2,"error":"cudaErrorMemoryAllocation"}"#,
    ]);
    let expected = [
        "DETAILS",
        "/opt/serve",
        "1.500 us  devPtr=0x7ffc0010, size=1024  -> devPtr=0x302000000  alloc 1024 bytes  device 0x302000000  4096 bytes held",
        "2.500 us  devPtr=0x7ffc0010, size=70368744177664  cudaErrorMemoryAllocation, asked for 70368744177664 bytes (64.00 TB)",
    ];
    assert_eq!(details(&text), expected);
    assert!(text.lines().skip(1).all(|row| row.contains(" serve ")), "{text}");
}

#[test]
fn what_cannot_be_shown_is_counted_and_reported() {
    let call = |id: u64| {
        format!(
            r#"{{"event_id":{id},"ts":0.1,"type":"userspace","name":"cuInit","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{{}},"kernel":"k","grid":[1,1,1]}}
{{"event_id":{},"ts":0.1,"type":"userspace","name":"cuInit","phase":"E","pid":4294967295,"tid":1,"begin":{id},"duration_us":1.500,"retval":0}}
"#,
            id + 1
        )
    };
    let many = 2_000;
    let text: String = (0..many).map(|i| call(1 + 2 * i)).collect();
    let (voice, hear) = Voice::with_ear(1);
    let mut live = Live::new(voice.clone());
    each_line(&format!("{HEADER}\n{text}"), |line| live.line(line, false));
    // One chunk is queued, one waits in the buffer, the other rows were never built.
    assert!(live.buffer.len() < CHUNK + 200 && live.arguments.is_empty());
    let mut seen: String = hear().unwrap();
    live.flush();
    seen += &hear().unwrap();
    each_line(&format!("{HEADER}\n{}", call(1)), |line| live.line(line, false));
    live.flush();
    seen += &hear().unwrap();
    let count = |text: &str| text.lines().filter(|row| row.contains(" cuInit ")).count() as u64;
    let reported: Vec<&str> = seen.lines().filter(|row| row.contains(" NOT_SHOWN ")).collect();
    assert_eq!(reported.len(), 1, "{seen}");
    let not_shown: u64 = details(reported[0])[0].split(' ').next().unwrap().parse().unwrap();
    assert_eq!(count(&seen) + not_shown, many + 1);
    assert!(not_shown > 1000);

    // With `hurry` no row is built; the rows are only counted.
    each_line(&format!("{HEADER}\n{}", call(1)), |line| live.line(line, true));
    drop(live);
    assert_eq!((voice.take_dropped(), hear()), (1, None));
}

/// A library given by --lib may export functions of any name, and a program may have any arguments.
#[test]
fn nothing_that_a_program_names_is_a_command_to_the_terminal() {
    let lines: Vec<String> = [r"x\u001b[31m", r"x\u009b31m\u202e", r"\u2066x\r\n\ufeff"]
        .iter()
        .enumerate()
        .flat_map(|(index, name)| {
            let id = 3 * index + 1;
            [
                format!(r#"{{"event_id":{id},"ts":0.1,"type":"userspace","name":"{name}","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{{}},"kernel":"{name}"}}"#),
                format!(r#"{{"event_id":{},"ts":0.1,"type":"userspace","name":"{name}","phase":"E","pid":4294967295,"tid":1,"begin":{id},"duration_us":1.500,"retval":0,"error":"{name}"}}"#, id + 1),
                format!(r#"{{"event_id":{},"ts":0.1,"type":"process","name":"exec","pid":4294967295,"tid":1,"command":["/a/{name}","{name}"]}}"#, id + 2),
            ]
        })
        .collect();
    let text = shown(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!text.contains(|c| c != '\n' && is_unsafe(c)), "{text:?}");
    assert_eq!(text.lines().count(), 1 + 6, "{text:?}");
    assert!(text.contains(" x?[31m ") && text.contains(" ?x??? "), "{text:?}");
}

/// Calls inside one with a stack were made from the same place.
#[test]
fn a_call_says_which_line_made_it() {
    let text = shown(&[
        r#"{"event_id":1,"ts":0.1,"type":"stack","name":"stack","stack":0,"pid":4294967295,"frames":[{"kind":"native","function":"f","module":"/l.so","build_id":null,"offset":"0x1"},{"kind":"python","function":"load\u001b","file":"/home/ada/train.py","line":88}]}"#,
        r#"{"event_id":2,"ts":0.1,"type":"userspace","name":"cudaFree","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{},"stack":0}"#,
        r#"{"event_id":3,"ts":0.1,"type":"userspace","name":"cuMemFree_v2","phase":"B","pid":4294967295,"tid":1,"depth":1,"parent":2,"args":{}}"#,
        r#"{"event_id":4,"ts":0.1,"type":"userspace","name":"cuMemFree_v2","phase":"E","pid":4294967295,"tid":1,"begin":3,"duration_us":1.500,"retval":0}"#,
        r#"{"event_id":5,"ts":0.1,"type":"userspace","name":"cudaFree","phase":"E","pid":4294967295,"tid":1,"begin":2,"duration_us":2.500,"retval":0}"#,
        r#"{"event_id":6,"ts":0.1,"type":"userspace","name":"cudaFree","phase":"B","pid":4294967295,"tid":1,"depth":0,"args":{}}"#,
        r#"{"event_id":7,"ts":0.1,"type":"userspace","name":"cudaFree","phase":"E","pid":4294967295,"tid":1,"begin":6,"duration_us":2.500,"retval":0}"#,
    ]);
    let expected =
        ["DETAILS", "1.500 us  at train.py:88 load?", "2.500 us  at train.py:88 load?", "2.500 us"];
    assert_eq!(details(&text), expected);
}
