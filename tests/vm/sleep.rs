//! A machine that is suspended while gpurec records it: the trace says how long it slept, and no duration includes
//! that.

use crate::machine::Machine;

#[test]
#[ignore = "a machine that sleeps: scripts/test --full"]
fn a_machine_that_slept_is_told() {
    let machine = Machine::of("6.12").with_driver("none", "");
    let Some(visit) = machine.visit(include_str!("guest/sleep.sh")) else { return };
    let console = visit.text("console.txt").replace('\r', "");
    let after = |word: &str| -> Vec<&str> {
        console.lines().filter_map(|line| line.trim_end().strip_prefix(word)).collect()
    };
    assert_eq!(after("STATUS "), ["0"], "{visit}: {console}");
    let lines = after("LINE ");
    assert_eq!(lines.len(), 1, "{visit}: {console}");
    let line: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
    // The guest stays suspended for five seconds by a clock of whole seconds, or longer if it is emulated slowly.
    let slept_us = line["slept_us"].as_f64().expect("slept_us");
    assert!(slept_us > 3.5e6, "{visit}: {line}");
    let told = [
        format!("The machine slept: 1 time, {:.3} s in all", (slept_us / 1e3).floor() / 1e3),
        format!("  {:.3} s at {:.9}", (slept_us / 1e3).floor() / 1e3, line["ts"].as_f64().unwrap()),
        "  The clock of a trace stands still meanwhile: that time is in no duration.".to_owned(),
    ];
    let whole = |lines: Vec<&str>| {
        lines.into_iter().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(whole(after("SAID ")), told, "{visit}: as the recording said it");
    assert_eq!(whole(after("READ ")), told, "{visit}: of the file alone");
    assert!(console.contains("\"complete\":true"), "{visit}: {console}");
}
