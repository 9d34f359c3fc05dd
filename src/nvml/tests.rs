//! The program that asks NVML, with the stand-in for NVML.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::process::identity::invoking_user;

const STANDIN: &str = concat!(env!("OUT_DIR"), "/demo");
const LONG: Duration = Duration::from_secs(20);

/// Only one test at a time starts a process: a forked process inherits the descriptors that another test has just made,
/// and keeps them open until it executes its program.
static ALONE: Mutex<()> = Mutex::new(());

fn start(env: &[(&str, &str)]) -> Nvml {
    start_in(STANDIN, env)
}

/// `folder`: where the loader finds NVML.
fn start_in(folder: &str, env: &[(&str, &str)]) -> Nvml {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let env = [&[("LD_LIBRARY_PATH", folder)], env].concat();
    let env: Env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Nvml::start(&invoking_user(), &env).unwrap()
}

fn served(nvml: Nvml) -> (Sampling, Receiver<Sample>) {
    let (to, from) = channel();
    (nvml.serve(move |sample| to.send(sample).unwrap()).unwrap(), from)
}

#[test]
fn devices_are_sampled_at_the_start_and_at_the_end() {
    let mut nvml = start(&[("STANDIN_NVML_DEVICES", "3"), ("STANDIN_NVML_PROCESSES", "7:4096,8")]);
    assert_eq!(nvml.state(), &State::Waiting);
    nvml.wait(LONG);
    assert_eq!(nvml.state(), &State::Answers(3));
    let (sampling, samples) = served(nvml);
    sampling.last();
    drop(sampling);
    let all: Vec<Sample> = samples.iter().collect();
    assert!(all.is_sorted_by_key(|(ts, _)| *ts));
    let devices: Vec<u32> = all.iter().map(|(_, device)| device.device).collect();
    assert_eq!(devices, [0, 1, 2, 0, 1, 2]);
    let names = all.iter().filter(|(_, device)| device.gpu_name.as_deref() == Some("Stand-in GPU"));
    assert_eq!(names.count(), 3, "a name is in the first line of a device");
    assert!(all.iter().all(|(_, device)| device.uuid.is_some()));
    let held = all[0].1.processes.as_ref().unwrap();
    assert_eq!((held[0].pid, held[0].bytes, held[1].pid, held[1].bytes), (7, Some(4096), 8, None));
}

#[test]
fn a_missing_library_is_no_error() {
    let mut nvml = start_in("/nowhere", &[]);
    nvml.wait(LONG);
    if matches!(nvml.state(), State::Answers(_) | State::Refuses(_)) {
        // This machine has NVML.
        return;
    }
    assert_eq!(nvml.state(), &State::Gone);
    let (sampling, samples) = served(nvml);
    drop(sampling);
    assert_eq!(samples.iter().count(), 0);
}

#[test]
fn nvml_is_initialised_anew_until_that_succeeds() {
    let mut nvml = start(&[("STANDIN_NVML_FAIL", "nvmlInit_v2:9:2")]);
    for _ in 0..2 {
        nvml.wait(LONG);
        assert_eq!(nvml.state(), &State::Refuses("NVML answers 9 (Driver Not Loaded)".to_owned()));
        nvml.ask();
    }
    nvml.wait(LONG);
    assert_eq!(nvml.state(), &State::Answers(1));
}

#[test]
fn a_call_that_never_returns_does_not_delay_the_end() {
    let mut nvml = start(&[("STANDIN_NVML_HANG", "nvmlDeviceGetPowerUsage:1")]);
    nvml.wait(LONG);
    assert_eq!(nvml.state(), &State::Answers(1));
    let pid = nvml.pid();
    let (sampling, samples) = served(nvml);
    let since = Instant::now();
    sampling.last();
    drop(sampling);
    assert!(since.elapsed() < LONG, "{:?}", since.elapsed());
    assert_eq!(samples.iter().count(), 1);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn the_process_has_no_rights_but_the_users() {
    let mut nvml = start(&[]);
    nvml.wait(LONG);
    let status = std::fs::read_to_string(format!("/proc/{}/status", nvml.pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert_eq!(field("Name:"), "gpurec-nvml");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    let fds = std::fs::read_dir(format!("/proc/{}/fd", nvml.pid())).map(|fds| fds.count());
    // Only root can read this folder of another user's process.
    assert!(fds.is_err() || fds.is_ok_and(|count| count <= 3), "descriptors of gpurec");
}
