//! Work on the GPU, times and clocks.

use super::{Crafted, kind};

pub const KINDS: &[Crafted] = &[
    kind("gpu-streams", |it| {
        for i in 0..it.items() {
            let begin = it.call("cuLaunchKernel", (1, 1), "");
            it.line("gpu", "k", &format!(
                r#""kind":"kernel","source":"lane","pid":{},"stream":{i},"device":{},"context":{i},"correlation":{i},"begin":{begin},"duration_us":5.000,"queued_us":1.000"#,
                i % 500, i % 100
            ));
        }
    }),
    kind("gpu-devices", |it| {
        for i in 0..it.items() {
            it.line("gpu", "k", &format!(
                r#""kind":"kernel","source":"tap","pid":1,"stream":1,"device":{},"context":1,"correlation":1,"begin":null,"duration_us":5.000"#,
                4_294_967_295 - i
            ));
        }
    }),
    kind("gpu-names", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.gpu(&format!("k{i}{long}"), "kernel", None, r#","duration_us":1.000"#);
        }
    }),
    kind("gpu-graphs", |it| {
        for i in 0..it.items() {
            let begin = it.call("cuGraphLaunch", (1, 1), "");
            for node in 0..2 {
                it.gpu(
                    "k",
                    "kernel",
                    Some(begin),
                    &format!(r#","duration_us":1.000,"graph":{i},"node":{}"#, u64::MAX - node),
                );
            }
        }
    }),
    kind("gpu-directions", |it| {
        for i in 0..it.items() {
            it.gpu(
                "memcpy",
                "copy",
                None,
                &format!(r#","duration_us":1.000,"direction":"d{i}","size":{}"#, u64::MAX - i),
            );
        }
    }),
    kind("gpu-times", |it| {
        for i in 0..it.items() {
            let ts = [0u64, 1, 1 << 30, 18_446_744_072, 9_223_372_036][(it.random() % 5) as usize];
            let us = [0u64, 1, 1 << 40, u64::MAX / 1000, 9_000_000_000_000_000][(it.random() % 5) as usize];
            let queued = [-9_000_000_000_000_000i64, -1, 0, 9_000_000_000_000_000][(i % 4) as usize];
            it.at(&format!("{ts}.{:09}", i % 1_000_000_000), "gpu", "k", &format!(
                r#""kind":"kernel","source":"lane","pid":1,"stream":{},"device":{},"context":1,"correlation":1,"begin":{},"duration_us":{us}.000,"queued_us":{queued}.000"#,
                i % 9, i % 3, i % 100
            ));
        }
    }),
    kind("gpu-backwards", |it| {
        for i in 0..it.items() {
            let us = (it.items() - i) * 20;
            it.at(&format!("{}.{:06}000", us / 1_000_000, us % 1_000_000), "gpu", "k",
                r#""kind":"kernel","source":"lane","pid":1,"stream":1,"device":0,"context":1,"correlation":1,"begin":null,"duration_us":3.000"#);
        }
    }),
    kind("gpu-pauses", |it| {
        for i in 0..it.items() {
            it.call("cudaDeviceSynchronize", (1, i % 50_000), "");
            it.ts_ns += 20_000_000;
            it.gpu("k", "kernel", Some(it.id), r#","duration_us":1.000"#);
        }
    }),
    kind("gpu-overlaps", |it| {
        for i in 0..it.items() {
            it.line("gpu", "k", &format!(
                r#""kind":"kernel","source":"lane","pid":1,"stream":1,"device":0,"context":1,"correlation":1,"begin":null,"duration_us":{}.000"#,
                1_000_000_000 + i
            ));
        }
    }),
    kind("gpu-account", |it| {
        it.gpu("k", "kernel", None, r#","duration_us":1.000"#);
        let all: Vec<String> = (0..it.items() / 20)
            .map(|i| format!(r#"{{"code":"c{i}","count":{},"total_ns":{}}}"#, u64::MAX, u64::MAX))
            .collect();
        let all = all.join(",");
        it.finish(&format!(r#","gpu":{{"launches":{0},"api":{0},"delivered":{0},"dropped":{0},"unmatched":{0},"before":{0},"reasons":[{all}],"overhead":[{all}]}}"#, u64::MAX));
    }),
    kind("times-far", |it| {
        for i in 0..it.items() {
            let begin = it.begin("cudaMalloc", (1, i % 100), "");
            it.ts_ns += 100_000_000_000_000 / it.items().max(1);
            it.end(begin, "cudaMalloc", (1, i % 100), "");
        }
        it.at(
            "18446744073.709551615",
            "userspace",
            "cuInit",
            r#""phase":"B","pid":1,"tid":1,"depth":0,"args":{}"#,
        );
    }),
    kind("times-back", |it| {
        for i in 0..it.items() {
            let ts = it.random() % 10_000_000_000;
            it.at(
                &format!("{ts}.5"),
                "userspace",
                "cuInit",
                &format!(
                    r#""phase":"{}","pid":1,"tid":{},"depth":0,"begin":{},"args":{{}},"duration_us":1e300"#,
                    ["B", "E"][(i % 2) as usize],
                    i % 5,
                    i
                ),
            );
        }
    }),
    kind("clocks", |it| {
        for i in 0..it.items() {
            let (a, b) = (it.random(), it.random());
            it.line("clock", "clock", &format!(
                r#""monotonic_ns":{a},"realtime_ns":{b},"error_ns":{a},"boot_id":"{i}","ntp":{{"offset_ns":-9223372036854775808,"max_error_ns":{b},"synchronized":true}},"ptp":"/dev/ptp{i}""#
            ));
        }
    }),
    kind("clocks-at-the-ends", |it| {
        it.header(r#","clock":{"monotonic_ns":18446744073709551615,"realtime_ns":18446744073709551615,"error_ns":18446744073709551615,"boot_id":"b","ntp":null,"ptp":null}"#);
        for i in 0..it.items() {
            it.call("cudaMalloc", (1, 1), "");
            it.line(
                "clock",
                "clock",
                &format!(
                    r#""monotonic_ns":{},"realtime_ns":0,"error_ns":0,"boot_id":"b","ntp":null,"ptp":null"#,
                    i % 2
                ),
            );
        }
    }),
    kind("devices", |it| {
        for i in 0..it.items() {
            it.line("device", "device", &format!(
                r#""device":{i},"uuid":"GPU-{i}","gpu_name":"n{i}","used_bytes":18446744073709551615,"processes":[{{"pid":{i},"bytes":18446744073709551615}}],"utilization":4294967295,"power_w":1e308,"throttle":["t{i}"]"#
            ));
        }
    }),
    kind("devices-processes", |it| {
        let all: Vec<String> = (0..it.items() / 4).map(|i| format!(r#"{{"pid":{i},"bytes":{i}}}"#)).collect();
        for device in 0..4 {
            it.line(
                "device",
                "device",
                &format!(r#""device":{device},"used_bytes":1,"processes":[{}]"#, all.join(",")),
            );
        }
    }),
];
