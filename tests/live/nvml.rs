//! `device` lines: with `--gpu` the trace has the answers of the stand-in for NVML at the start, each second and at the
//! end. A library that is missing, old, failing or hanging harms no recording. The library has the rights of the user
//! alone.
//! In: the stand-in, whose values follow from the device and the number of requests. Out: the lines, compared with
//! them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::gpu::program;
use crate::room::{Room, eventually, live};
use crate::run::Done;
use crate::trace::Trace;
use crate::user::as_user;

const LIBRARIES: &str = concat!(env!("OUT_DIR"), "/demo");
const SOURCE: &str = "../cuda/nvml/nvml.c";

/// Compiles a stand-in for another version of NVML. Returns its folder.
fn other_nvml(room: &Room, flags: &[&str]) -> String {
    let folder = room.text("nvml");
    fs::create_dir(&folder).unwrap();
    let shared = ["-std=gnu11", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"];
    room.compile(SOURCE, "nvml/libnvidia-ml.so.1", &[&shared[..], flags].concat());
    folder
}

/// `folder`: where the loader finds NVML. `knobs`: the stand-in's variables.
fn record(
    room: &Room,
    folder: &str,
    knobs: &[(&str, &str)],
    options: &[&str],
    words: &[&str],
) -> (Done, Trace) {
    let file = room.text(&format!("nvml-{}.jsonl", room.number()));
    let mut command = room.gpurec(&[options, &["-o", &file, "--"], words].concat());
    command.env("LD_LIBRARY_PATH", folder);
    command.envs(knobs.iter().map(|(name, value)| (format!("STANDIN_NVML_{name}"), *value)));
    (room.run(command), Trace::checked(room, &file))
}

fn of_device(trace: &Trace, device: u64) -> Vec<&Value> {
    trace.of_type("device").filter(|line| line["device"] == device).collect()
}

/// The stand-in's answer to request `n`, from 0.
fn expected(device: u64, n: u64) -> Value {
    let reasons = [
        json!([]),
        json!(["sw_power_cap"]),
        json!(["sw_power_cap", "hw_thermal_slowdown"]),
        json!(["gpu_idle"]),
        json!(["0x10000000000"]),
    ];
    let mut line = json!({
        "type": "device",
        "name": "device",
        "device": device,
        "uuid": format!("GPU-00000000-0000-0000-0000-{device:012}"),
        "used_bytes": ((device + 1) << 30) + (n << 20),
        "processes": [],
        "utilization": 10 + n,
        "memory_utilization": (10 + n) / 2,
        "sm_clock_mhz": 1980 - 15 * n,
        "power_w": (200_000 + 125 * n) as f64 / 1e3,
        "temperature_c": 40 + n,
        "throttle": reasons[n as usize % 5],
        "ecc_errors": device,
    });
    if n == 0 {
        line["gpu_name"] = json!("Stand-in GPU");
    }
    line
}

/// Without the keys of every line.
fn own_keys(line: &Value) -> Value {
    let mut line = line.clone();
    let keys = line.as_object_mut().unwrap();
    ["event_id", "ts"].iter().for_each(|key| _ = keys.remove(*key));
    // A whole number of watts is written without a point.
    if let Some(watts) = keys.get("power_w").and_then(Value::as_f64) {
        keys.insert("power_w".to_owned(), json!(watts));
    }
    line
}

#[test]
fn each_device_is_described_once_a_second() {
    live(|room| {
        let words = ["/bin/sh", "-c", &format!("{} 1 1 50 && sleep 2.5", program(room, "gpu.c"))];
        for options in ["--gpu", "--gpu=graphs", "--gpu=tap"] {
            let (done, trace) = record(room, LIBRARIES, &[("DEVICES", "2")], &[options], &words);
            done.exited(0).said("GPUs, as NVML saw them once a second:").said("clocks lowered in ");
            trace.is_whole();
            for device in [0, 1] {
                let lines = of_device(&trace, device);
                assert!((4..=8).contains(&lines.len()), "start, two seconds, end: {lines:?}");
                for (n, line) in lines.iter().enumerate() {
                    assert_eq!(own_keys(line), expected(device, n as u64));
                }
                assert_eq!(lines[0]["ts"], 0.0, "before anything is recorded");
            }
            let first = trace.calls.first().map_or(u64::MAX, |call| call.id);
            assert!(trace.of_type("device").take(2).all(|line| line["event_id"].as_u64().unwrap() < first));
        }
        let (_, trace) = record(room, LIBRARIES, &[], &[], &words);
        assert_eq!(trace.of_type("device").count(), 0, "without --gpu NVML is not asked");
    });
}

#[test]
fn memory_that_was_held_at_the_start_is_reported_and_not_counted() {
    live(|room| {
        let target = room.target(&[&program(room, "gpu.c"), "1", "1", "100000000"]);
        let pid = target.pid().to_string();
        let file = room.text("pid.jsonl");
        let mut command = room.gpurec(&["--gpu", "--pid", &pid, "--duration", "0.3", "-o", &file]);
        let held = format!("{pid}:{},4000000:1048576,4000001:0", 5u64 << 30);
        command.env("LD_LIBRARY_PATH", LIBRARIES).env("STANDIN_NVML_PROCESSES", &held);
        let done = room.run(command);
        done.exited(0);
        done.said(&format!("pid {pid} held 5.00 GB on device 0 at the start; memory held at exit does not"));
        done.said("not recorded: 1 process that held 1.00 MB at the start");
        target.kill();
        let trace = Trace::checked(room, &file);
        let lines = of_device(&trace, 0);
        let pid: u32 = pid.parse().unwrap();
        let expected = json!([{"pid": pid, "bytes": 5u64 << 30}, {"pid": 4_000_000, "bytes": 1 << 20}, {"pid": 4_000_001, "bytes": null}]);
        assert!(lines.len() >= 2 && lines.iter().all(|line| line["processes"] == expected), "{lines:?}");
        let held = trace.end["summary"]["memory"]["held"]["bytes"].as_u64().unwrap_or(0);
        assert!(held < 1 << 30, "{}", trace.end["summary"]["memory"]);
    });
}

/// Other versions of the library lack functions, and functions fail.
#[test]
fn a_value_that_nvml_does_not_return_is_missing() {
    live(|room| {
        let words = [&*program(room, "gpu.c"), "1", "1", "50"];
        let without = |keys: &[&str], n| {
            let mut line = expected(0, n);
            keys.iter().for_each(|key| _ = line.as_object_mut().unwrap().remove(*key));
            line
        };
        let first = |folder: &str, knobs: &[(&str, &str)]| {
            let (done, trace) = record(room, folder, knobs, &["--gpu"], &words);
            done.exited(0);
            trace.is_whole();
            own_keys(of_device(&trace, 0)[0])
        };
        let folder = other_nvml(room, &["-DWITHOUT_POWER"]);
        assert_eq!(first(&folder, &[]), without(&["power_w"], 0));
        fs::remove_dir_all(folder).unwrap();
        // An old version has other functions: the used memory includes what the driver reserves.
        let mut old = expected(0, 0);
        old["used_bytes"] = json!((1u64 << 30) + (512 << 20));
        assert_eq!(first(&other_nvml(room, &["-DOLD"]), &[]), old);
        for (function, keys) in [
            ("nvmlDeviceGetTemperature", &["temperature_c"][..]),
            ("nvmlDeviceGetUtilizationRates", &["utilization", "memory_utilization"]),
            ("nvmlDeviceGetName", &["gpu_name"]),
            ("nvmlDeviceGetComputeRunningProcesses_v3", &["processes"]),
            ("nvmlDeviceGetCurrentClocksEventReasons", &["throttle"]),
        ] {
            assert_eq!(first(LIBRARIES, &[("FAIL", &format!("{function}:3"))]), without(keys, 0));
        }
    });
}

#[test]
fn without_an_answer_there_are_no_lines_and_no_messages() {
    live(|room| {
        let words = [&*program(room, "gpu.c"), "1", "1", "50"];
        let folder = room.text("broken");
        fs::create_dir(&folder).unwrap();
        let broken = format!("{folder}/libnvidia-ml.so.1");
        fs::write(&broken, "no library").unwrap();
        for (folder, knobs) in [
            (&*folder, &[][..]),
            (LIBRARIES, &[("FAIL", "nvmlInit_v2:9")]),
            (LIBRARIES, &[("FAIL", "nvmlDeviceGetCount_v2:999")]),
            (LIBRARIES, &[("FAIL", "nvmlDeviceGetHandleByIndex_v2:15")]),
            (LIBRARIES, &[("DEVICES", "0")]),
        ] {
            let (done, trace) = record(room, folder, knobs, &["--gpu"], &words);
            done.exited(0);
            trace.is_whole();
            assert_eq!(trace.of_type("device").count(), 0);
            for line in done.stderr.lines().filter(|line| line.starts_with("gpurec: ")) {
                assert!(line.contains("--gpu uses CUPTI"), "{line}");
            }
        }
        // The driver is loaded later. The first line has the name all the same.
        let words = ["/bin/sh", "-c", &format!("{} && sleep 1.3", words.join(" "))];
        let (_, trace) = record(room, LIBRARIES, &[("FAIL", "nvmlInit_v2:9:1")], &["--gpu"], &words);
        let lines = of_device(&trace, 0);
        assert!(lines[0]["ts"].as_f64().unwrap() > 0.5 && lines[0]["gpu_name"].is_string(), "{lines:?}");
        assert_eq!(own_keys(lines[0]), expected(0, 0));
    });
}

/// A call into the driver may never return.
#[test]
fn a_library_that_hangs_delays_no_recording() {
    live(|room| {
        let words = [&*program(room, "gpu.c"), "1", "1", "50"];
        for (hang, lines) in
            [("nvmlInit_v2", 0), ("nvmlDeviceGetPowerUsage", 0), ("nvmlDeviceGetPowerUsage:1", 1)]
        {
            let (done, trace) = record(room, LIBRARIES, &[("HANG", hang)], &["--gpu"], &words);
            done.exited(0);
            trace.is_whole();
            assert_eq!(trace.of_type("device").count(), lines, "{hang}");
        }
        // The hanging process also ends when gpurec is killed. The room checks that no process is left.
        let file = room.text("killed.jsonl");
        let words = ["--gpu", "-o", &file, "--", "sleep", "30"];
        let mut command = room.gpurec(&words);
        command.env("LD_LIBRARY_PATH", LIBRARIES).env("STANDIN_NVML_HANG", "nvmlDeviceGetName");
        let started = room.start(command);
        room.wait_until_recording(&file);
        let named = |name: &str| room.processes().into_iter().find(|process| process.name == name);
        assert!(named("gpurec-nvml").is_some());
        started.kill();
        eventually("the end of the process that asks", || named("gpurec-nvml").is_none());
        let sleep = named("sleep").expect("the command runs on");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleep.pid as i32), nix::sys::signal::SIGKILL)
            .unwrap();
        // The killed gpurec left its folder, and the next recording removes it.
        record(room, LIBRARIES, &[], &["--gpu"], &["true"]);
    });
}

/// With --all gpurec records every process but its own. The test looks for calls of NVML's functions, because the
/// ioctls of NVML need a driver.
#[test]
fn gpurecs_own_calls_of_nvml_are_not_recorded() {
    live(|room| {
        let file = room.text("all.jsonl");
        let nvml = format!("{LIBRARIES}/libnvidia-ml.so.1:nvml*");
        let mut command = room.gpurec(&["--all", "--gpu", "--lib", &nvml, "--duration", "2.2", "-o", &file]);
        command.env("LD_LIBRARY_PATH", LIBRARIES);
        room.run(command).exited(0);
        let trace = Trace::checked(room, &file);
        assert!(of_device(&trace, 0).len() >= 3);
        let calls: BTreeSet<&str> = trace.calls.iter().map(|call| call.name.as_str()).collect();
        assert!(!calls.iter().any(|name| name.starts_with("nvml")), "{calls:?}");
        let processes = trace.of_type("process").filter(|line| line["path"].is_null());
        let names: Vec<&str> = processes.filter_map(|line| line["comm"].as_str()).collect();
        assert!(!names.contains(&"gpurec-nvml"), "{names:?}");
    });
}

/// The library may come from a folder of the user, so it must have no right that the user lacks.
#[test]
fn through_sudo_the_library_runs_as_the_user() {
    const LIBRARY: &str = "cp /proc/self/status $HOME/status-of-nvml";
    as_user(|room, user| {
        let source = room.path("own.c");
        let code = "#include <stdlib.h>\n__attribute__((constructor)) static void own(void) { system(getenv(\"OWN\")); }\n";
        fs::write(&source, code).unwrap();
        let folder = user.home.join("lib");
        fs::create_dir(&folder).unwrap();
        let library = folder.join("libnvidia-ml.so.1");
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-Wno-unused-result"];
        // Absolute paths, so `compile` does not look in the folders of the fixtures and of the room.
        room.compile(source.to_str().unwrap(), library.to_str().unwrap(), &flags);
        let line = format!(
            "export OWN='{LIBRARY}' LD_LIBRARY_PATH={}; sudo $GPUREC --gpu -o t.jsonl -- true",
            folder.display()
        );
        let done = user.types(room, &line);
        done.exited(0);
        let status = user.home.join("status-of-nvml");
        eventually("the library has run", || status.exists());
        user.owns(&status);
        let status = fs::read_to_string(status).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        let ids: BTreeSet<&str> = field("Uid:").split_whitespace().collect();
        assert!(ids.len() == 1 && !ids.contains("0"), "{ids:?}");
    });
}
