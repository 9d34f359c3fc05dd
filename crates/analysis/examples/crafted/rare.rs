//! The driver's lines, lines that are seldom, odd numbers, and JSON that is deep or wide.

use super::{Crafted, Lines, kind};

/// Lines of every type with the keys that have numbers, as `{}`.
const NUMBERS: &[(&str, &str, &str)] = &[
    (
        "process",
        "exec",
        r#""pid":{},"tid":{},"command":["a"],"rank":{},"local_rank":{},"world_size":{},"job":"j""#,
    ),
    ("process", "found", r#""pid":{},"tid":{},"comm":"a","rank":{},"local_rank":{},"world_size":{}"#),
    ("process", "fork", r#""pid":{},"tid":{},"child":{}"#),
    ("process", "exit", r#""pid":{},"tid":{},"status":{}"#),
    ("process", "library", r#""pid":{},"tid":{},"path":"/a","functions":{}"#),
    (
        "userspace",
        "cuLaunchKernel",
        r#""phase":"B","pid":{},"tid":{},"depth":{},"parent":{},"args":{"a":{}},"stack":{},"kernel":"k","grid":[{},{},{}],"block":[{},{},{}],"shared":{},"stream":{},"nodes":{},"device":{},"context":{}"#,
    ),
    (
        "userspace",
        "cuLaunchKernel",
        r#""phase":"E","pid":{},"tid":{},"begin":{},"duration_us":{},"paused_us":{},"retval":{},"out":{"a":{}}"#,
    ),
    (
        "memory",
        "cudaMalloc",
        r#""pid":{},"tid":{},"begin":{},"device":{},"op":"alloc","space":"device","ptr":{},"size":{},"total_allocated":{},"stack":{}"#,
    ),
    (
        "memory",
        "cudaFree",
        r#""pid":{},"tid":{},"begin":{},"op":"free","space":"device","ptr":{},"freed":{},"total_allocated":{}"#,
    ),
    (
        "transfer",
        "cudaMemcpy",
        r#""pid":{},"tid":{},"begin":{},"device":{},"direction":"H2D","size":{},"async":false,"duration_us":{},"bytes_per_sec":{}"#,
    ),
    (
        "block",
        "pytorch:malloc",
        r#""pid":{},"tid":{},"begin":{},"op":"alloc","ptr":{},"size":{},"device":{},"stream":{},"stack":{}"#,
    ),
    (
        "collective",
        "ncclAllReduce",
        r#""pid":{},"tid":{},"begin":{},"comm":"c","rank":{},"nranks":{},"seq":{},"op":"AllReduce","count":{},"bytes":{},"root":{},"group":{}"#,
    ),
    (
        "collective",
        "ncclSend",
        r#""pid":{},"tid":{},"begin":{},"comm":"c","rank":{},"nranks":{},"op":"Send","count":{},"peer":{},"pseq":{}"#,
    ),
    (
        "kernel",
        "nvidia_ioctl",
        r#""phase":"B","pid":{},"tid":{},"depth":{},"parent":{},"device":"nvidia0","cmd":{},"request":"R""#,
    ),
    (
        "kernel",
        "nvidia_ioctl",
        r#""phase":"E","pid":{},"tid":{},"begin":{},"duration_us":{},"retval":{},"status":"NV_OK""#,
    ),
    ("scheduler", "off_cpu", r#""pid":{},"tid":{},"depth":{},"parent":{},"cpu":{},"duration_us":{}"#),
    (
        "gpu",
        "k",
        r#""kind":"kernel","source":"lane","pid":{},"registers":{},"shared":{},"stream":{},"device":{},"context":{},"correlation":{},"begin":{},"duration_us":{},"queued_us":{},"graph":{},"node":{}"#,
    ),
    (
        "device",
        "device",
        r#""device":{},"used_bytes":{},"utilization":{},"memory_utilization":{},"sm_clock_mhz":{},"power_w":{},"temperature_c":{},"ecc_errors":{}"#,
    ),
    (
        "clock",
        "clock",
        r#""monotonic_ns":{},"realtime_ns":{},"error_ns":{},"boot_id":"b","ntp":{"offset_ns":{},"max_error_ns":{},"synchronized":true},"ptp":null"#,
    ),
    ("xid", "xid", r#""pid":{},"tid":{},"xid":{},"message":"m","device":"d""#),
    ("lost", "lost", r#""count":{},"by_probe":{"p":{}}"#),
    (
        "budget",
        "budget",
        r#""action":"give_up","function":"f","probe":{},"level":"unhooked","before":"recorded","counted":{},"pid":{},"tid":{},"percent":{},"hits_per_sec":{}"#,
    ),
    ("suspend", "suspend", r#""slept_us":{}"#),
    (
        "stack",
        "stack",
        r#""stack":{},"pid":{},"frames":[{"kind":"python","function":"f","file":"a","line":{}}]"#,
    ),
];

/// Each number is one of those a recorder writes, except some.
fn numbers(it: &mut Lines, all_odd: bool) {
    for i in 0..it.items() {
        let (kind, name, keys) = NUMBERS[(i % NUMBERS.len() as u64) as usize];
        let parts: Vec<&str> = keys.split("{}").collect();
        let odd = it.random() % parts.len() as u64;
        let mut text = parts[0].to_owned();
        for (at, part) in parts.iter().enumerate().skip(1) {
            match all_odd || at as u64 == odd {
                true => text += it.odd(),
                false => text += &(it.random() % 9).to_string(),
            }
            text += part;
        }
        let ts = if all_odd { it.odd().to_owned() } else { format!("{}.5", i / 100) };
        it.at(&ts, kind, name, &text);
    }
    if all_odd {
        let n = || "18446744073709551615";
        it.finish(&format!(r#","stops":{{"count":{0},"total_ns":{0}}},"dump":{{"number":{0},"event":"e","because":"b","from_ns":{0},"suppressed":{0}}}"#, n()));
    }
}

/// The figures of an `end` line, with this number of rows in each table.
fn figures(it: &mut Lines, row: impl Fn(u64) -> String, tables: &[&str]) {
    let rows: Vec<String> = (0..it.items().min(40_000)).map(row).collect();
    let tables: Vec<String> = tables.iter().map(|name| format!(r#""{name}":[{}]"#, rows.join(","))).collect();
    it.finish(&format!(
        r#","in_flight":[],"summary":{{"cuda_calls":18446744073709551615,"duration_ns":18446744073709551615,"kernel_launches":1,{}}}"#,
        tables.join(",")
    ));
}

pub const KINDS: &[Crafted] = &[
    kind("driver-requests", |it| {
        for i in 0..it.items() {
            let begin = it.line("kernel", "nvidia_ioctl", &format!(
                r#""phase":"B","pid":{0},"tid":{i},"depth":0,"device":"nvidia{i}","cmd":"{i:#x}","request":"R{i}","detail":{{"command":"C{i}","class":"K{i}"}}"#, i % 1000
            ));
            it.line("kernel", "nvidia_ioctl", &format!(
                r#""phase":"E","pid":{0},"tid":{i},"begin":{begin},"duration_us":2.000,"retval":0,"status":"NV_ERR_{i}""#, i % 1000
            ));
        }
    }),
    kind("driver-open", |it| {
        for i in 0..it.items() {
            it.line(
                "kernel",
                "nvidia_ioctl",
                &format!(
                    r#""phase":"B","pid":1,"tid":{i},"depth":0,"device":"nvidia0","cmd":"0x1","request":"R""#
                ),
            );
        }
    }),
    kind("driver-functions", |it| {
        for i in 0..it.items() {
            let begin = it.line(
                "scheduler",
                &format!("f{i}"),
                &format!(r#""phase":"B","pid":1,"tid":{i},"depth":0,"args":{{"a":{i}}},"thread":"t{i}""#),
            );
            it.line(
                "scheduler",
                &format!("f{i}"),
                &format!(
                    r#""phase":"E","pid":1,"tid":{i},"begin":{begin},"duration_us":2.000,"error":"E{i}""#
                ),
            );
        }
    }),
    kind("driver-instants", |it| {
        for i in 0..it.items() {
            it.line(
                "scheduler",
                &format!("tracepoint:{i}"),
                &format!(r#""pid":1,"tid":{i},"cpu":{i},"duration_us":1.000,"args":{{"k{i}":{i}}}"#),
            );
            it.line(
                "scheduler",
                "off_cpu",
                &format!(r#""pid":{i},"tid":{i},"parent":{i},"duration_us":1e15"#),
            );
        }
    }),
    kind("driver-long", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line("kernel", "nvidia_ioctl", &format!(
                r#""phase":"B","pid":1,"tid":{i},"depth":0,"device":"d{i}{long}","cmd":"0x1","request":"R{i}{long}","detail":{{"command":"{i}{long}"}}"#
            ));
        }
    }),
    kind("xids", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line(
                "xid",
                "xid",
                &format!(r#""pid":{i},"tid":{i},"xid":{i},"message":"{i}{long}","device":"{i}{long}""#),
            );
        }
    }),
    kind("budgets", |it| {
        for i in 0..it.items() {
            it.line("budget", "budget", &format!(
                r#""action":"{}","function":"f{}","probe":{},"level":"unhooked","before":"recorded","counted":{i},"pid":1,"tid":1,"percent":1e308,"hits_per_sec":{i}"#,
                ["give_up", "take_back"][(i / 50_000 % 2) as usize], i % 50_000, i % 4_000_000
            ));
        }
    }),
    kind("lost", |it| {
        for i in 0..it.items() {
            it.line(
                "lost",
                "lost",
                &format!(r#""count":18446744073709551615,"by_probe":{{"p{i}":18446744073709551615}}"#),
            );
        }
    }),
    kind("suspends", |it| {
        for _ in 0..it.items() {
            it.line("suspend", "suspend", r#""slept_us":18446744073709551"#);
        }
    }),
    kind("dump-carried", |it| {
        for i in 0..it.items() {
            it.begin("cuInit", (1, i), r#","carried":true"#);
            it.alloc((1, i), 16 * i, 8, &format!(r#","carried":true,"stack":{i}"#));
        }
        it.finish(r#","dump":{"number":18446744073709551615,"event":"error","because":"b","from_ns":18446744073709551615,"suppressed":18446744073709551615}"#);
    }),
    kind("numbers", |it| numbers(it, false)),
    kind("numbers-all-odd", |it| numbers(it, true)),
    kind("header-long", |it| {
        let (long, rows) = (it.long(), it.few());
        let refused: Vec<String> =
            (0..rows).map(|i| format!(r#"{{"name":"f{i}","reason":"{i}{long}","code":"c{i}"}}"#)).collect();
        let refused = refused.join(",");
        let refused = &refused[..refused[..refused.len().min(12 << 20)].rfind("},{").map_or(0, |at| at + 1)];
        it.header(&format!(
            r#","command":["{long}"],"options":{{"only":["{long}"],"skip":["a{long}"]}},"hooks":{{"userspace":{{"backend":"{long}","attached":18446744073709551615,"refused":[{refused}]}}}},"ns_per_call":18446744073709551615,"ns_per_call_by_site":{{"b":{{"emulated":18446744073709551615}}}}"#
        ));
        for i in 0..it.items() {
            it.call("cudaMalloc", (1, i), "");
        }
    }),
    kind("reasons", |it| {
        it.call("cudaMalloc", (1, 1), "");
        let all: Vec<String> = (0..it.items().min(100_000))
            .map(|i| format!(r#""reason {i} of some length, which nothing shortens""#))
            .collect();
        let all = all.join(",");
        for _ in 0..3 {
            it.finish(&format!(r#","in_flight":[],"incomplete_because":[{all}],"incomplete_codes":[{all}]"#));
        }
    }),
    kind("unknown-reasons", |it| {
        let all: Vec<String> = (0..it.items().min(60_000))
            .map(|i| format!(r#""processes.{i}.peak_device_bytes":"why {i}""#))
            .collect();
        it.call("cudaMalloc", (1, 1), "");
        it.finish(&format!(r#","in_flight":[],"summary":{{"unknown":{{{}}}}}"#, all.join(",")));
    }),
    kind("figures-functions", |it| {
        figures(
            it,
            |i| {
                format!(
                    r#"{{"name":"f{i}","calls":18446744073709551615,"total_ns":18446744073709551615,"avg_ns":1,"med_ns":1,"min_ns":1,"max_ns":1,"stddev_ns":1,"pid":{i},"tid":{i}}}"#
                )
            },
            &["functions", "threads", "kernels", "processes"],
        )
    }),
    kind("figures-any", |it| {
        figures(
            it,
            |i| format!(r#"{{"a{i}":[{i}]}}"#),
            &["by_category", "transfers", "streams", "devices", "findings", "libraries"],
        )
    }),
    kind("deep", |it| {
        for i in 0..it.items() / 200 + 1 {
            let deep = 5000;
            it.line(
                "userspace",
                "cudaMalloc",
                &format!(
                    r#""phase":"B","pid":1,"tid":{i},"depth":0,"args":{{"a":{}{}}}"#,
                    "[".repeat(deep),
                    "]".repeat(deep)
                ),
            );
            it.line("new", "new", &format!(r#""a":{}1{}"#, r#"{"a":"#.repeat(deep), "}".repeat(deep)));
        }
    }),
    kind("wide", |it| {
        let keys: Vec<String> =
            (0..(it.items() / 2).min(130_000)).map(|i| format!(r#""k{i}":{i}"#)).collect();
        let keys = keys.join(",");
        for i in 0..8 {
            it.line(
                "userspace",
                "cudaMalloc",
                &format!(r#""phase":"B","pid":1,"tid":{i},"depth":0,"args":{{{keys}}}"#),
            );
            it.line(
                "end",
                "end",
                &format!(r#""events":1,"lost":0,"complete":true,"summary":{{{keys}}},{keys}"#),
            );
        }
    }),
    kind("more-keys", |it| {
        for i in 0..it.items() {
            it.call("cudaMalloc", (1, 1), &format!(r#","new{i}":{i},"job":{i},"row{i}":[{{"a":null}}]"#));
        }
    }),
    kind("types", |it| {
        for i in 0..it.items() {
            it.line(&format!("type{i}"), &format!("name{i}"), &format!(r#""pid":{i}"#));
        }
    }),
    kind("empty-and-broken", |it| {
        it.call("cudaMalloc", (1, 1), "");
        for i in 0..it.items() {
            let text =
                ["", "{}", "{", "null", "\u{0}", "[]", r#"{"event_id":"#, "\u{fffd}"][(i % 8) as usize];
            it.raw(text);
        }
    }),
];
