//! The device and context of trace lines, from a program that knows them.
//! In: programs/devices.c, with the stand-in libraries and two devices.
//! Out: each allocation, free, copy and launch has the device and context that the program prints, and none where no
//! recorded call shows them.

use std::fs;

use serde_json::Value;

use crate::room::{Room, live};
use crate::trace::{Trace, text_of};

const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");

fn compiled(room: &Room) -> String {
    let (driver, runtime) = (format!("{LIBRARIES}/libcuda.so.1"), format!("{LIBRARIES}/libcudart.so.13"));
    room.compile("devices.c", "devices", &[&runtime, &driver, &format!("-Wl,-rpath,{LIBRARIES}")])
}

/// Returns the lines as the program prints them. For a launch, the driver API's call has the device.
fn told(file: &str) -> Vec<String> {
    let lines = text_of(file.as_ref());
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told = |line: Value| {
        let kind = match line["type"].as_str()? {
            "memory" => line["op"].as_str()?,
            "transfer" => "copy",
            "userspace" if line["phase"] == "B" && line["name"] == "cuLaunchKernel" => "launch",
            _ => return None,
        };
        let device = line.get("device").map_or("-".to_owned(), |device| device.as_u64().unwrap().to_string());
        let context = line.get("context").map_or("-", |context| context.as_str().unwrap());
        Some(format!("{kind} {device} {context}"))
    };
    lines.filter_map(told).collect()
}

fn expected(said: &str) -> Vec<String> {
    let kinds = ["alloc ", "free ", "copy ", "launch "];
    said.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).map(str::to_owned).collect()
}

#[test]
fn two_devices_contexts_streams_and_threads() {
    live(|room| {
        let (program, file) = (compiled(room), room.text("t.jsonl"));
        let mut recording = room.gpurec(&["-o", &file, "--", &program]);
        recording.env("STANDIN_DEVICES", "2");
        let done = room.run(recording);
        done.exited(0).said("By device, as each process numbers them:");
        let expected = expected(&done.text());
        assert_eq!(expected.len(), 15, "{}", done.text());
        assert_eq!(told(&file), expected);
        let trace = Trace::checked(room, &file);
        let devices = &trace.end["summary"]["devices"];
        let of = |at: usize, key: &str| devices[at][key].as_u64().unwrap();
        assert_eq!((of(0, "device"), of(1, "device"), devices.as_array().unwrap().len()), (0, 1, 2));
        assert_eq!((of(0, "launches"), of(1, "launches")), (2, 3));
        assert_eq!((of(0, "transfers"), of(1, "transfers")), (1, 2));
        assert_eq!((of(0, "held_bytes"), of(1, "held_bytes")), (1 << 20, 0));
        assert_eq!(of(1, "peak_bytes"), (2 << 20) + 8192);

        // With the runtime alone gpurec knows its devices, but no contexts.
        let mut recording = room.gpurec(&["--api", "runtime", "-o", &file, "--", &program]);
        recording.env("STANDIN_DEVICES", "2");
        room.run(recording).exited(0);
        let alone = told(&file);
        assert!(alone.iter().all(|line| line.ends_with(" -")), "{alone:?}");
        assert_eq!(alone[..4], ["alloc 0 -", "alloc 1 -", "copy 0 -", "copy 1 -"]);

        // Without the calls that set the context, gpurec writes neither.
        for skip in ["cuCtxSetCurrent", "cuCtxPushCurrent"] {
            let words = ["--api", "driver", "--skip", skip, "-o", &file, "--", &program];
            let mut recording = room.gpurec(&words);
            recording.env("STANDIN_DEVICES", "2");
            room.run(recording).exited(0);
            let told = told(&file);
            assert!(!told.is_empty() && told.iter().all(|line| line.ends_with(" - -")), "{skip}: {told:?}");
        }
    });
}

#[test]
fn of_a_running_process_what_is_current_is_not_known_until_a_call_says_it() {
    live(|room| {
        let (program, file, go) = (compiled(room), room.text("t.jsonl"), room.text("go"));
        let mut command = room.command(&program);
        command.arg(&go).env("STANDIN_DEVICES", "2");
        let mut target = room.start(command);
        target.wait_for_stdout("ready");
        let recording = room.start(room.gpurec(&["-o", &file, "--pid", &target.pid().to_string()]));
        room.wait_until_recording(&file);
        fs::write(&go, "").unwrap();
        let done = target.done();
        let expected = expected(&done.exited(0).text());
        recording.done().exited(0);
        assert_eq!(expected.len(), 6);
        assert_eq!(told(&file), expected);
        Trace::checked(room, &file);
    });
}
