//! `--kernel` on a machine without the driver module: what gpurec sees without one, what it says of the rest, and the
//! user's own hooks. tests/vm and real GPUs test it with a driver module.

use serde_json::Value;

use crate::room::{Room, live};
use crate::trace::Trace;

fn lines(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn refusal<'a>(header: &'a Value, name: &str) -> Option<&'a str> {
    let refused = header["hooks"]["kernel"]["refused"].as_array().unwrap();
    refused.iter().find(|one| one["name"] == name).and_then(|one| one["reason"].as_str())
}

fn record(room: &Room, words: &[&str]) -> (Vec<Value>, String) {
    let file = room.text("kernel.jsonl");
    let mut all = vec!["--kernel", "-o", &file];
    all.extend(words);
    let done = room.run(room.gpurec(&all));
    done.exited(0);
    Trace::checked(room, &file).is_whole();
    (lines(&file), done.stderr)
}

#[test]
fn without_a_driver_the_header_says_what_is_missing() {
    live(|room| {
        let (lines, said) = record(room, &["--", "true"]);
        let layer = &lines[0]["hooks"]["kernel"];
        assert!(layer["backend"].as_str().unwrap().contains("tracepoint"), "{layer}");
        let hooks: Vec<&str> =
            layer["hooks"].as_array().unwrap().iter().filter_map(|hook| hook["name"].as_str()).collect();
        for name in ["nvidia_ioctl", "nvidia_open", "nvidia_close", "nvidia_mmap", "nvidia_poll", "off_cpu"] {
            assert!(hooks.contains(&name), "{name} is not among {hooks:?}");
        }
        if !std::path::Path::new("/sys/module/nvidia").exists() {
            let reason = refusal(&lines[0], "rm_ioctl").unwrap();
            assert!(reason.contains("not loaded"), "{reason}");
            assert!(refusal(&lines[0], "xid").unwrap().contains("not loaded"));
            assert!(said.contains("is not loaded"), "{said}");
        }
        assert!(said.contains("KERNEL SPACE (nvidia.ko):\n  IOCTL calls: 0\n"), "{said}");
    });
}

#[test]
fn a_device_that_cannot_be_opened_is_told_with_its_error() {
    live(|room| {
        let (lines, _) = record(room, &["--", "sh", "-c", "cat /dev/nvidia-that-is-not-there; true"]);
        let of = |phase: &str| {
            lines.iter().find(|line| line["name"] == "nvidia_open" && line["phase"] == phase).unwrap()
        };
        assert_eq!(of("B")["args"]["path"], "/dev/nvidia-that-is-not-there");
        assert_eq!((&of("E")["retval"], &of("E")["error"]), (&(-2).into(), &"ENOENT".into()));
        assert_eq!(of("E")["begin"], of("B")["event_id"]);
    });
}

#[test]
fn waiting_inside_a_call_is_told_from_working() {
    live(|room| {
        let file = room.text("kernel.jsonl");
        let done = room.run(room.gpurec(&["demo", "--kernel", "-o", &file, "--", "--loops", "20"]));
        done.exited(0);
        Trace::checked(room, &file).is_whole();
        let lines = lines(&file);
        let off: Vec<&Value> = lines.iter().filter(|line| line["name"] == "off_cpu").collect();
        assert!(!off.is_empty(), "the stand-in GPU is waited for asleep");
        for one in &off {
            let parent = &lines[one["parent"].as_u64().unwrap() as usize];
            assert_eq!((&parent["phase"], &parent["tid"]), (&"B".into(), &one["tid"]), "{one}");
            assert!(one["duration_us"].as_f64().unwrap() > 0.0);
            assert_eq!(one["depth"].as_u64().unwrap(), parent["depth"].as_u64().unwrap() + 1);
        }
        assert!(off.iter().any(|one| one["args"]["state"] == "sleeping"));
        done.said("Off the CPU inside CUDA calls:");
        assert_eq!(lines.last().unwrap()["summary"]["kernel_space"]["scheduler_calls"], off.len());
    });
}

#[test]
fn tracepoints_of_the_users_own_show_their_fields() {
    live(|room| {
        let words = [
            "--hook",
            "sched:sched_process_exec",
            "--hook",
            "syscalls:sys_enter_getpp*",
            "--",
            "sh",
            "-c",
            "true; exec true",
        ];
        let (lines, _) = record(room, &words);
        let exec: Vec<&Value> =
            lines.iter().filter(|line| line["name"] == "sched:sched_process_exec").collect();
        assert_eq!(exec.len(), 2, "the shell and what it becomes");
        assert!(exec[0]["args"]["filename"].as_str().unwrap().ends_with("sh"), "{}", exec[0]);
        assert!(exec[1]["args"]["filename"].as_str().unwrap().ends_with("true"), "{}", exec[1]);
        assert_eq!(exec[0]["pid"], exec[1]["args"]["pid"]);
        let names = lines[0]["hooks"]["kernel"]["hooks"].to_string();
        assert!(names.contains("syscalls:sys_enter_getppid"), "{names}");
    });
}

#[test]
fn hooks_that_are_not_to_be_had_are_a_sentence_each() {
    live(|room| {
        let words = [
            "--hook",
            "vfs_read",
            "--hook",
            "no_such_function",
            "--hook",
            "no*such*either",
            "--hook",
            "*",
            "--hook",
            "irq:no_such_event",
            "--hook",
            "__schedule",
            "--",
            "true",
        ];
        let (lines, said) = record(room, &words);
        for (name, word) in [
            ("no_such_function", "no function"),
            ("no*such*either", "match"),
            ("*", "at most"),
            ("irq:no_such_event", "no tracepoint"),
        ] {
            let reason = refusal(&lines[0], name).unwrap_or_else(|| panic!("{name} is not refused"));
            assert!(reason.contains(word), "{name}: {reason}");
        }
        let hooks = lines[0]["hooks"]["kernel"]["hooks"].to_string();
        match refusal(&lines[0], "vfs_read") {
            // Where the machine lets no program hook a function, each backend has its reason.
            Some(reason) => {
                for backend in ["fentry", "kprobe.multi", "kprobe"] {
                    assert!(reason.contains(backend), "{reason}");
                }
            }
            None => assert!(hooks.contains("vfs_read"), "{hooks}"),
        }
        assert!(said.contains("no_such_function"), "{said}");
        assert!(refusal(&lines[0], "__schedule").is_some());
    });
}

#[test]
fn groups_are_checked_and_hooks_imply_the_kernel() {
    live(|room| {
        let done = room.run(room.gpurec(&["--kernel=nonsense", "--", "true"]));
        done.exited(2);
        done.said("--kernel: nonsense");
        let file = room.text("hook.jsonl");
        let words = ["--hook", "sched:sched_process_exit", "-o", &file, "--", "true"];
        room.run(room.gpurec(&words)).exited(0);
        assert!(lines(&file)[0]["hooks"]["kernel"].is_object());
    });
}

#[test]
fn what_can_be_hooked_is_listed() {
    live(|room| {
        let list = |glob: &str| {
            let done = room.run(room.gpurec(&["probes", "--kernel", glob]));
            done.exited(0);
            String::from_utf8(done.stdout).unwrap()
        };
        let events = list("irq:irq_handler_*");
        assert!(
            events.contains("irq:irq_handler_entry") && events.contains("irq:irq_handler_exit"),
            "{events}"
        );
        assert!(list("vfs_rea?").contains("vfs_read"));
        let done = room.run(room.gpurec(&["probes", "--kernel", "no_such_function_at_all"]));
        done.exited(125);
    });
}
