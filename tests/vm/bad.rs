//! Faults of the Linux side, of the driver module or of the options: gpurec reports each in a sentence, and records the
//! rest.

use crate::compare::{Recording, text};
use crate::machine::{Machine, Visit};

impl Visit {
    /// The summary breaks a sentence into lines.
    fn says(&self, name: &str, sentence: &str) -> bool {
        let words: Vec<String> = self.text(name).split_whitespace().map(str::to_owned).collect();
        words.join(" ").contains(sentence)
    }
}

/// One machine records all of these under a name each.
#[test]
#[ignore = "faults: scripts/test --full"]
fn what_is_wrong_is_said_and_the_rest_is_recorded() {
    let Some(visit) = Machine::of("6.12").visit(include_str!("guest/bad.sh")) else { return };
    assert_eq!(visit.status, 0, "{visit}: {}", visit.text("output.txt"));
    hooks_that_are_not_to_be_had(&visit);
    own_hooks(&visit);
    groups(&visit);
    modules_that_come_and_go(&visit);

    let hidden = recording(&visit, "hidden");
    hidden.has_functions_as_counted();
    let running = Recording::read(&visit, "pid");
    running.is_complete();
    assert!(running.count("nvidia_poll") > 0 && running.hooked_by("kprobe.multi") > 30, "{visit}: --pid");
    assert!(visit.text("hooked_before").lines().count() > 30, "{visit}: {}", visit.text("killed.txt"));
    assert_eq!(visit.text("left_behind"), "", "{visit}: left behind by a gpurec that was killed");
}

/// Asserts for every fault that the recording is complete and has each ioctl.
fn recording(visit: &Visit, name: &str) -> Recording {
    let recording = Recording::read(visit, name);
    recording.is_complete();
    recording.has_what_the_driver_counted();
    recording.nests();
    recording
}

fn hooks_that_are_not_to_be_had(visit: &Visit) {
    for (name, hook, code, part) in [
        ("nothing", "nvidia_nosuch", "no_such_function", "nvidia_"),
        ("nothing", "zzz*", "no_such_function", ""),
        ("nothing", "nosuch:event", "failed", "nosuch:event"),
        ("many", "*", "too_many", "1000"),
        ("forbidden", "bpf_get_current_pid_tgid", "forbidden", "gpurec's own hooks"),
        ("forbidden", "do_int3", "forbidden", ""),
    ] {
        let recording = recording(visit, name);
        recording.has_functions_as_counted();
        let reason = recording.reason(hook);
        assert_eq!(recording.code(hook), code, "{visit}, {name}: {hook}: {reason}");
        assert!(reason.contains(part), "{visit}, {name}: {hook}: {reason}");
        assert!(
            visit.says(&format!("{name}.txt"), reason),
            "{visit}, {name}: the summary does not say: {reason}"
        );
    }
    assert!(visit.text("output.txt").contains("nonsense 2 "), "{visit}: {}", visit.text("output.txt"));
    assert!(visit.says("nonsense.txt", "--kernel: nonsense"), "{visit}: {}", visit.text("nonsense.txt"));
}

fn own_hooks(visit: &Visit) {
    let own = recording(visit, "own");
    own.has_functions_as_counted();
    for (name, arg) in [
        ("uvm_migrate", "length"),
        ("uvm_api_migrate", "length"),
        ("nvidia_mmap", "start"),
        ("irq:irq_handler_entry", "irq"),
        ("nv_add_mapping_context_to_file", "prot"),
    ] {
        let mut lines =
            // A mapping of nvidia-uvm is recorded as a system call, by its device.
            own.lines.iter().filter(|line| line["name"] == name && line["phase"] != "E" && line["args"]["device"].is_null()).peekable();
        assert!(lines.peek().is_some(), "{visit}: no line {name}");
        for line in lines {
            assert!(!line["args"][arg].is_null(), "{visit}: without {arg}: {line}");
        }
    }
    assert!(own.count("irq:irq_handler_entry") >= own.truth.events["interrupts"], "{visit}");
}

fn groups(visit: &Visit) {
    let (all, some) = (recording(visit, "all"), recording(visit, "some"));
    for one in [&all, &some] {
        one.has_functions_as_counted();
        one.has_ioctls_in_calls();
    }
    all.has_events_as_counted();
    assert!(all.hooked_by("kprobe.multi") > 50, "{visit}: {:?}", all.layer()["by_backend"]);
    for (name, wanted) in
        [("nv_alloc_pages", true), ("os_alloc_mem", true), ("uvm_push_end", true), ("nvidia_isr", false)]
    {
        assert_eq!(some.count(name) > 0, wanted, "{visit}: --kernel=memory,scheduler has {name}");
        assert!(all.count(name) > 0, "{visit}: --kernel=all has {name}");
    }
}

fn modules_that_come_and_go(visit: &Visit) {
    let absent = Recording::read(visit, "absent");
    absent.is_complete();
    let reason = absent.reason("nvidia_unlocked_ioctl");
    assert!(reason.contains("nvidia is not loaded"), "{visit}: {reason}");

    let line = |recording: &Recording, path: &str| {
        let mut of_modules = recording.lines.iter().filter(|line| text(line, "path").starts_with('['));
        of_modules.find(|line| text(line, "path").contains(path)).cloned()
    };
    let load = recording(visit, "load");
    let came = line(&load, "nvidia").unwrap_or_else(|| panic!("{visit}: nothing is said of nvidia's coming"));
    assert!(came["functions"].as_u64() > Some(30), "{visit}: {came}");
    // RM core functions cannot be hooked: gpurec says that too.
    assert!(came["not_hooked"].as_array().is_some_and(|list| list.len() > 10), "{visit}: {came}");
    assert!(load.count("nvidia_open") > 0 && load.count("uvm_migrate") > 0, "{visit}: hooks that came late");

    for name in ["unload", "unload_kprobe"] {
        let unload = Recording::read(visit, name);
        unload.is_complete();
        let went = line(&unload, "nvidia_modeset").unwrap_or_else(|| panic!("{visit}: {name} is not said"));
        assert!(text(&went["not_hooked"][0], "reason").contains("unloaded"), "{visit}: {went}");
        assert!(!unload.ioctls.is_empty(), "{visit}: {name}");
    }
}

#[test]
#[ignore = "faults: scripts/test --full"]
fn without_a_driver_the_rest_is_recorded() {
    // Lockdown to integrity permits all that gpurec needs, but no module without a signature.
    for words in ["", "lockdown=integrity"] {
        let machine = Machine::of("6.12").with_driver("none", "").with_words(words);
        let script = "gpurec --kernel -o /out/demo.jsonl -- ./program --loops 2 > /out/demo.txt 2>&1";
        let Some(visit) = machine.visit(script) else { return };
        assert_eq!(visit.status, 0, "{visit}: {}", visit.text("demo.txt"));
        assert!(visit.says("demo.txt", "the module nvidia is not loaded; load it first"), "{visit}");
        assert!(visit.text("demo.jsonl").contains("cuMemAlloc_v2"), "{visit}: no CUDA call");
    }
}

/// Neither machine can record anything: gpurec prints one sentence, and its status says so.
#[test]
#[ignore = "faults: scripts/test --full"]
fn a_kernel_that_cannot_be_had_is_told_in_a_sentence() {
    for (machine, sentence) in [
        (Machine::of("6.12").with_words("lockdown=confidentiality"), "lockdown"),
        (Machine::of("5.10").with_driver("none", ""), "Linux 6.1"),
    ] {
        let script = "gpurec --kernel -o /out/demo.jsonl -- ./program --loops 1 > /out/demo.txt 2>&1";
        let Some(visit) = machine.visit(script) else { continue };
        let said = visit.text("demo.txt");
        assert_eq!(visit.status, 125, "{visit}: {said}");
        assert!(said.contains(sentence) && said.lines().count() <= 4, "{visit}: {said}");
    }
}
