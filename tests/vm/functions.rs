//! Compares the hooks in nvidia.ko in a trace with the truth: what the header says of them, and how often their
//! functions were called.
//! In: a recording.
//! Out: panics that say what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::compare::{Recording, text};
use crate::machine::root;

/// Maps hooks to the names of their lines, where those differ from the function's name.
fn line_names() -> BTreeMap<String, String> {
    let table = fs::read_to_string(root().join("crates/nvidia/src/hooks.txt")).unwrap();
    let row = |line: &str| {
        let name = line.split(' ').next()?;
        let called = line.split(' ').find_map(|word| word.strip_prefix("line="))?;
        Some((name.to_owned(), called.to_owned()))
    };
    table.lines().filter(|line| !line.starts_with([' ', '#'])).filter_map(row).collect()
}

impl Recording {
    pub fn layer(&self) -> &Value {
        &self.lines[0]["hooks"]["kernel"]
    }

    pub fn hooks(&self) -> impl Iterator<Item = &Value> {
        self.layer()["hooks"].as_array().map(Vec::as_slice).unwrap_or_default().iter()
    }

    pub fn hooked_by(&self, backend: &str) -> u64 {
        self.layer()["by_backend"][backend].as_u64().unwrap_or(0)
    }

    fn refused(&self) -> impl Iterator<Item = &Value> {
        self.layer()["refused"].as_array().map(Vec::as_slice).unwrap_or_default().iter()
    }

    pub fn refusals(&self) -> Vec<(&str, &str)> {
        self.refused().map(|one| (text(one, "name"), text(one, "reason"))).collect()
    }

    /// Returns why a hook is missing; empty if the header gives no reason.
    pub fn reason(&self, name: &str) -> &str {
        self.refusals().into_iter().find(|(refused, _)| *refused == name).map_or("", |(_, reason)| reason)
    }

    /// The code of that reason.
    pub fn code(&self, name: &str) -> &str {
        self.refused().find(|one| text(one, "name") == name).map_or("", |one| text(one, "code"))
    }

    /// Counts lines of this name: beginnings, and lines that have no end of their own.
    pub fn count(&self, name: &str) -> u64 {
        let is = |line: &&Value| line["name"] == name && line["phase"] != "E";
        self.lines.iter().filter(is).count() as u64
    }

    /// Asserts that only the requested backend was used, or that gpurec refused it by its name where this Linux lacks
    /// it.
    pub fn keeps_to(&self, backend: &str, offered: bool) {
        let by: Vec<(&str, u64)> = ["fentry", "kprobe.session", "kprobe.multi", "kprobe"]
            .iter()
            .map(|name| (*name, self.hooked_by(name)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let about = &self.about;
        if offered && backend != "tracepoint" {
            assert!(
                by.len() == 1 && by[0].0 == backend && by[0].1 >= 30,
                "{about}: {by:?}, {:?}",
                self.refusals()
            );
        } else {
            assert_eq!(by, [], "{about}");
            let named = self.reason("nvidia_unlocked_ioctl");
            assert!(backend == "tracepoint" || named.contains(backend), "{about}: {:?}", self.refusals());
        }
    }

    /// Asserts that the trace has as many calls of each hooked function as the function counted itself.
    pub fn has_functions_as_counted(&self) {
        let names = line_names();
        let mut symbols: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for hook in self.hooks() {
            let name = text(hook, "name");
            // gpurec reads the driver's version itself, before it records.
            let line = names.get(name).map_or(name, String::as_str);
            // ioctls and errors are compared elsewhere; poll is recorded as a system call too.
            let compared = !line.ends_with("nvidia_ioctl")
                && !line.ends_with("_uvm_ioctl")
                && !line.ends_with("_modeset_ioctl")
                && name != "nv_report_error"
                && name != "nvidia_poll"
                && !name.starts_with("nv_procfs");
            if hook["how"] != "tracepoint" && compared {
                symbols.entry(line).or_default().insert(hook["symbol"].as_str().unwrap_or(name));
            }
        }
        let called = |symbol: &&str| self.truth.functions.get(*symbol).copied().unwrap_or(0);
        for (line, symbols) in &symbols {
            let expected: u64 = symbols.iter().map(called).sum();
            // Files of the other modules are recorded as system calls, which know a path or a device.
            let told = self.lines.iter().filter(|one| {
                let by_call = !one["args"]["path"].is_null() || !one["args"]["device"].is_null();
                one["name"] == **line && one["phase"] == "B" && by_call
            });
            let of_others = told.count() as u64;
            assert_eq!(
                self.count(line) - of_others,
                expected,
                "{}: {line}, calls of {symbols:?}",
                self.about
            );
            if *line == "nvidia_mmap" {
                let mapped = self.truth.files.get(&("nvidia-uvm".to_owned(), "mmap".to_owned()));
                assert_eq!(of_others, mapped.copied().unwrap_or(0), "{}: mappings of nvidia-uvm", self.about);
            }
        }
    }

    /// Compares interrupts, errors and faults, by whichever hook records them.
    pub fn has_events_as_counted(&self) {
        let truth = |event: &str| self.truth.events[event];
        let by_function =
            self.hooks().any(|hook| hook["name"] == "nvidia_isr" && hook["how"] != "tracepoint");
        let interrupts = if by_function { "nvidia_isr" } else { "nvidia_irq" };
        assert_eq!(self.count(interrupts), truth("interrupts"), "{}: {interrupts}", self.about);
        // The function gets a format, with its arguments in a way that no hook can read.
        let whole = self.hooks().any(|hook| hook["name"] == "xid");
        let xids = self.lines.iter().filter(|line| line["type"] == "xid" && line["xid"] == 31);
        let told = xids.filter(|line| !whole || text(line, "message").contains("MMU Fault"));
        assert_eq!(told.count() as u64, truth("xids"), "{}: Xids", self.about);
    }

    /// Asserts that a line of the first name is nested in one of the second, and so on.
    pub fn has_chain(&self, names: &[&str]) {
        let by_id: BTreeMap<u64, &Value> =
            self.lines.iter().filter_map(|line| Some((line["event_id"].as_u64()?, line))).collect();
        let climbs = |line: &&Value| {
            let (mut at, mut left) = (Some(*line), names.iter());
            let mut wanted = left.next();
            while let (Some(line), Some(name)) = (at, wanted) {
                if line["name"] == **name {
                    wanted = left.next();
                }
                at = line["parent"].as_u64().and_then(|id| by_id.get(&id)).copied();
            }
            wanted.is_none()
        };
        assert!(self.lines.iter().any(|line| climbs(&line)), "{}: no chain {names:?}", self.about);
    }
}
