//! Processes, ranks and collectives.

use super::{Crafted, Lines, kind};

fn collective(it: &mut Lines, pid: u64, rest: &str) {
    let begin = it.begin("ncclAllReduce", (pid, pid), "");
    it.line(
        "collective",
        "ncclAllReduce",
        &format!(
            r#""pid":{pid},"tid":{pid},"begin":{begin},"op":"AllReduce","count":8,"dtype":"float32","bytes":32,"stream":"0x1"{rest}"#
        ),
    );
    it.end(begin, "ncclAllReduce", (pid, pid), "");
}

/// A collective of ranks that have such numbers.
fn world(it: &mut Lines, rank: &str, world_size: &str, nranks: &str) {
    for pid in 1..4 {
        let rank = if pid == 1 { "0" } else { rank };
        let rest = format!(r#","rank":{rank},"local_rank":{rank},"world_size":{world_size},"job":"j""#);
        it.exec(pid, &rest);
    }
    for seq in 0..9 {
        for pid in 1..4 {
            let rank = if pid == 1 { "0" } else { rank };
            collective(it, pid, &format!(r#","comm":"c","rank":{rank},"nranks":{nranks},"seq":{seq}"#));
        }
    }
    it.finish("");
}

pub const KINDS: &[Crafted] = &[
    kind("world-rank", |it| world(it, "999999999", "8", "8")),
    kind("world-size", |it| world(it, "1", "999999999", "8")),
    kind("world-nranks", |it| world(it, "1", "8", "999999999")),
    kind("world-all", |it| world(it, "999999999", "999999999", "999999999")),
    kind("world-most", |it| world(it, "4294967295", "4294967295", "4294967295")),
    kind("world-zero", |it| world(it, "0", "0", "0")),
    kind("world-apart", |it| {
        for i in 0..it.items() / 10 {
            let rank = i * 40_000 % (1 << 32);
            it.exec(i + 1, &format!(r#","rank":{rank},"world_size":4294967295"#));
            collective(it, i + 1, &format!(r#","comm":"c","rank":{rank},"nranks":4294967295,"seq":0"#));
        }
    }),
    kind("world-processes", |it| {
        let ranks = (it.items() / 30).max(4);
        for pid in 1..=ranks {
            it.exec(pid, &format!(r#","rank":{},"world_size":{ranks},"job":"j""#, pid - 1));
        }
        for i in 0..it.items() {
            let pid = i % ranks + 1;
            it.call("cudaMalloc", (pid, pid), "");
            it.alloc((pid, pid), 16 * i, 8, "");
            let (rank, seq) = (pid - 1, i / ranks);
            collective(it, pid, &format!(r#","comm":"c","rank":{rank},"nranks":{ranks},"seq":{seq}"#));
            it.line("gpu", "k", &format!(
                r#""kind":"kernel","source":"lane","pid":{pid},"stream":7,"device":0,"context":1,"correlation":1,"begin":null,"duration_us":1.000"#
            ));
        }
    }),
    kind("world-jobs", |it| {
        let jobs = (it.items() / 30).max(4);
        for i in 0..it.items() {
            let pid = i % jobs + 1;
            if i < jobs {
                it.exec(pid, &format!(r#","rank":{i},"world_size":8,"job":"job{i}""#));
            }
            it.call(&format!("f{i}"), (pid, pid), "");
        }
    }),
    kind("world-long-jobs", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.exec(i, &format!(r#","rank":{i},"world_size":8,"job":"j{i}{long}""#));
            it.call("cudaMalloc", (i, i), "");
        }
    }),
    kind("world-comms", |it| {
        for i in 0..it.items() {
            collective(it, i % 100, &format!(r#","comm":"c{i}","rank":{},"nranks":8,"seq":0"#, i % 8));
        }
    }),
    kind("world-long-comms", |it| {
        let long = it.long();
        for i in 0..it.few() {
            collective(it, i % 8, &format!(r#","comm":"c{i}{long}","rank":{},"nranks":8,"seq":0"#, i % 8));
        }
    }),
    kind("world-renamed", |it| {
        let last = it.items();
        for i in 1..=last {
            collective(it, i, &format!(r#","comm":"c","rank":{i},"nranks":99999999,"seq":0"#));
        }
        for i in 1..=last {
            let rank = last + i;
            collective(it, last, &format!(r#","comm":"c","rank":{rank},"nranks":99999999,"seq":{i}"#));
        }
    }),
    kind("world-hours", |it| {
        for i in 0..it.items() {
            collective(it, i % 100, &format!(r#","comm":"c{i}","rank":{},"nranks":8,"seq":0"#, i % 8));
        }
        for i in 0..it.items() {
            it.ts_ns += 7_300_000_000_000;
            collective(it, i % 100, &format!(r#","comm":"c","rank":{},"nranks":8,"seq":{i}"#, i % 8));
        }
    }),
    kind("world-clocks", |it| {
        for i in 0..10 * it.items() {
            it.line("clock", "clock", &format!(
                r#""monotonic_ns":{i},"realtime_ns":{i},"error_ns":1,"boot_id":"{i:0100}","ntp":null,"ptp":null"#
            ));
        }
    }),
    kind("world-open-collectives", |it| {
        for i in 0..it.items() {
            collective(it, 1, &format!(r#","comm":"c","rank":0,"nranks":4096,"seq":{i}"#));
        }
    }),
    kind("world-mismatches", |it| {
        for i in 0..it.items() {
            let (pid, seq) = (i % 16, i / 16);
            let begin = it.begin("ncclAllReduce", (pid, pid), "");
            it.line("collective", "ncclAllReduce", &format!(
                r#""pid":{pid},"tid":{pid},"begin":{begin},"comm":"c","rank":{pid},"nranks":16,"seq":{seq},"op":"op{i}","count":{i},"dtype":"d{i}","root":{pid},"redop":"r{i}""#
            ));
        }
    }),
    kind("world-peers", |it| {
        for i in 0..it.items() {
            let (pid, peer, op) = (i % 50, i * 7919 % (1 << 32), if i % 2 == 0 { "Send" } else { "Recv" });
            it.line("collective", "ncclSend", &format!(
                r#""pid":{pid},"tid":{pid},"begin":1,"comm":"c","rank":{pid},"nranks":64,"op":"{op}","count":1,"peer":{peer},"pseq":{i}"#
            ));
        }
    }),
    kind("world-sequences", |it| {
        for i in 0..it.items() {
            let seq = u64::MAX - it.random() % 1000;
            collective(it, i % 8, &format!(r#","comm":"c","rank":{},"nranks":8,"seq":{seq}"#, i % 8));
        }
    }),
    kind("world-groups", |it| {
        for i in 0..it.items() {
            let begin = it.begin("ncclGroupStart", (1, 1), "");
            it.end(begin, "ncclGroupStart", (1, 1), "");
            collective(
                it,
                1,
                &format!(r#","comm":"c{}","rank":0,"nranks":2,"seq":{i},"group":{begin}"#, i % 9),
            );
        }
    }),
    kind("processes-forks", |it| {
        let long = it.long();
        it.line("process", "exec", &format!(r#""pid":1,"tid":1,"command":["{long}"],"rank":5"#));
        for i in 2..it.items() {
            it.line("process", "fork", &format!(r#""pid":{},"tid":1,"child":{i}"#, i / 2));
            it.call("cudaMalloc", (i, i), "");
        }
    }),
    kind("processes-again", |it| {
        for i in 0..it.items() {
            it.exec(i % 7, &format!(r#","rank":{i},"world_size":{i},"job":"{i}""#));
            it.line("process", "exit", &format!(r#""pid":{},"tid":1,"status":{i}"#, i % 7));
        }
    }),
    kind("processes-long", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line("process", "exec", &format!(r#""pid":{i},"tid":{i},"command":["{i}","{long}"]"#));
            it.call("cudaMalloc", (i, i), "");
        }
    }),
    kind("processes-words", |it| {
        let words = vec![r#""a""#; 4096].join(",");
        for i in 0..it.items() / 400 + 1 {
            it.line("process", "exec", &format!(r#""pid":{i},"tid":{i},"command":[{words}]"#));
            it.call("cudaMalloc", (i, i), "");
        }
    }),
    kind("processes-found", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line("process", "found", &format!(
                r#""pid":{i},"tid":{i},"comm":"{long}","command":[],"user":"{long}","cgroup":"{i}{long}","container":"{long}","rank":{i},"job":"{long}""#
            ));
            it.call("cudaMalloc", (i, i), "");
        }
    }),
    kind("processes-exits", |it| {
        for i in 0..it.items() {
            it.call("cudaMalloc", (i, i), "");
            it.alloc((i, i), 16, 8, "");
            it.line(
                "process",
                "exit",
                &format!(r#""pid":{i},"tid":{i},"status":-2147483648,"signal":"SIGKILL""#),
            );
        }
    }),
    kind("libraries", |it| {
        for i in 0..it.items() {
            it.line("process", "library", &format!(
                r#""pid":{i},"tid":{i},"path":"/lib/{i}.so","build_id":"{i}","functions":18446744073709551615,"not_hooked":[{{"name":"f{i}","reason":"r{i}","code":"c{i}"}}]"#
            ));
        }
    }),
    kind("libraries-long", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line("process", "library", &format!(
                r#""pid":1,"tid":1,"path":"/lib/{i}{long}.so","build_id":"{i}{long}","functions":1,"not_hooked":[{{"name":"f{i}","reason":"{i}{long}","code":"c{i}"}}],"single_stepped":["{i}{long}"]"#
            ));
        }
    }),
];
