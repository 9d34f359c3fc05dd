//! `clock` lines and the header's `clock` hold two clocks at one moment. These readings must agree with the test's own
//! and with the times of the trace.
//! In: gpu.c, the stand-in libraries. Out: the readings of each trace, compared.

use serde_json::Value;

use crate::gpu::program;
use crate::room::live;
use crate::trace::Trace;

/// The clocks at the start and at the end, by which traces of several machines are aligned.
#[test]
fn the_clocks_are_in_the_first_line_and_at_both_ends() {
    live(|room| {
        let program = program(room, "gpu.c");
        let words = [program.as_str(), "1", "1", "50"];
        let recorded = |options: &[&str], rank: Option<&str>| {
            let file = room.text(&format!("clocks-{}.jsonl", room.number()));
            let mut command = room.gpurec(&[options, &["-o", &file, "--"], &words].concat());
            command.env_remove("RANK").envs(rank.map(|rank| ("RANK", rank)));
            let before = realtime_ns();
            room.run(command).exited(0);
            (Trace::checked(room, &file), before, realtime_ns())
        };
        for (options, rank, has_lines) in [
            (&["--gpu"][..], None, true),
            (&["--gpu=tap", "--summary-only"], None, true),
            (&[], Some("3"), true),
            (&[], Some("general"), false),
        ] {
            let (trace, before, after) = recorded(options, rank);
            let first = Clock::of(&trace.header["clock"]);
            assert!((before..=after).contains(&first.realtime), "{first:?}: {before} to {after}");
            let lines: Vec<&Value> = trace.of_type("clock").collect();
            assert_eq!(lines.len(), if has_lines { 2 } else { 0 }, "{options:?} {rank:?}");
            let clocks: Vec<Clock> = lines.iter().map(|line| Clock::of(line)).collect();
            for (line, clock) in lines.iter().zip(&clocks) {
                assert_eq!(ts_ns(line), clock.monotonic - first.monotonic, "{line}");
                // The test assumes that no program sets the clock meanwhile; NTP may slew it by 500 ppm.
                let apart = (clock.realtime - first.realtime).abs_diff(clock.monotonic - first.monotonic);
                let slewed = (clock.monotonic - first.monotonic) / 2000;
                assert!(apart <= clock.error + first.error + slewed, "{first:?} {clock:?}");
                assert_eq!(clock.boot, first.boot);
            }
            if let [start, end] = &lines[..] {
                let calls = trace.calls.iter().map(|call| call.ts);
                assert!(calls.min().is_none_or(|call| ts_ns(start) <= call), "{start}");
                assert_eq!(end["ts"], trace.end["ts"], "the last one is written at the end");
            }
        }
    });
}

fn ts_ns(line: &Value) -> u64 {
    (line["ts"].as_f64().unwrap() * 1e9).round() as u64
}

#[derive(Debug)]
struct Clock {
    monotonic: u64,
    realtime: u64,
    error: u64,
    boot: String,
}

impl Clock {
    fn of(value: &Value) -> Clock {
        let number = |key: &str| value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"));
        assert!(value["ntp"]["synchronized"].is_boolean() && value["ntp"]["offset_ns"].is_i64(), "{value}");
        assert!(value["ntp"]["max_error_ns"].is_u64() && value.get("ptp").is_some(), "{value}");
        Clock {
            monotonic: number("monotonic_ns"),
            realtime: number("realtime_ns"),
            error: number("error_ns"),
            boot: value["boot_id"].as_str().unwrap().to_owned(),
        }
    }
}

fn realtime_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}
