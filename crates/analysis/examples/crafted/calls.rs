//! Calls, allocations and stacks in great number.

use super::{Crafted, kind, native, python};

const LAUNCH: &str = "cuLaunchKernel";

pub const KINDS: &[Crafted] = &[
    kind("open-threads", |it| {
        for i in 0..it.items() {
            it.begin("cuInit", (i / 1000, i), "");
        }
    }),
    kind("open-processes", |it| {
        for i in 0..it.items() {
            it.begin("cudaDeviceSynchronize", (i, i), r#","stack":3"#);
        }
    }),
    kind("open-nested", |it| {
        let mut parent = it.begin("f", (1, 1), "");
        for i in 0..it.items() {
            let rest = format!(r#","parent":{parent}"#);
            parent = it.begin(&format!("f{}", i % 7), (1, 1), &rest);
        }
    }),
    kind("open-names", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.begin(&format!("cuda{i}{long}"), (1, i), "");
        }
    }),
    kind("open-arguments", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.line(
                "userspace",
                "cudaMalloc",
                &format!(r#""phase":"B","pid":1,"tid":{i},"depth":0,"args":{{"a":"{long}","b{i}":1}}"#),
            );
        }
    }),
    kind("open-kernels", |it| {
        let long = it.long();
        for i in 0..it.few() {
            let rest = format!(r#","kernel":"k{i}{long}","grid":[1,1,1],"block":[1,1,1]"#);
            it.begin(LAUNCH, (1, i), &rest);
        }
    }),
    kind("open-and-in-flight", |it| {
        let begins: Vec<u64> = (0..it.items()).map(|i| it.begin("cuInit", (1, i), "")).collect();
        let all: Vec<String> = begins
            .iter()
            .map(|id| {
                format!(
                    r#"{{"pid":1,"tid":{id},"name":"n{id}","begin":{id},"duration_us":1.0,"died":false}}"#
                )
            })
            .collect();
        for part in all.chunks(100_000) {
            it.finish(&format!(r#","in_flight":[{}]"#, part.join(",")));
        }
    }),
    kind("no-return", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.begin("cudaMalloc", (i, i), &format!(r#","no_return":"{i}{long}""#));
        }
    }),
    kind("ends-without-begins", |it| {
        for i in 0..it.items() {
            it.end(u64::MAX - i, &format!("f{i}"), (i, i), "");
        }
    }),
    kind("many-functions", |it| {
        for i in 0..it.items() {
            it.call(&format!("cudaFunction{i}"), (1, 1), "");
        }
    }),
    kind("many-long-functions", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.call(&format!("cuda{i}{long}"), (1, 1), "");
        }
    }),
    kind("many-threads", |it| {
        for i in 0..it.items() {
            it.call("cudaMalloc", (1, i), "");
        }
    }),
    kind("many-processes", |it| {
        for i in 0..it.items() {
            it.call("cudaStreamSynchronize", (i, i), "");
        }
    }),
    kind("many-functions-of-processes", |it| {
        for i in 0..it.items() {
            it.call(&format!("cudaFunction{}", i % 3000), (i % 4001, i), "");
        }
    }),
    kind("many-kernels", |it| {
        for i in 0..it.items() {
            let rest = format!(r#","kernel":"k{i}","grid":[{i},1,1],"block":[1,{i},1],"stream":"{i:#x}""#);
            it.call(LAUNCH, (1, i % 100), &rest);
        }
    }),
    kind("many-shapes", |it| {
        for i in 0..it.items() {
            let rest = format!(r#","kernel":"k{}","grid":[{i},{i},1],"block":[1,{i},1]"#, i % 5000);
            it.call(LAUNCH, (1, 1), &rest);
        }
    }),
    kind("many-errors", |it| {
        for i in 0..it.items() {
            let begin = it.begin("cudaMalloc", (i % 3000, i), "");
            it.end(begin, "cudaMalloc", (i % 3000, i), &format!(r#","error":"cudaError{i}""#));
        }
    }),
    kind("many-long-errors", |it| {
        let long = it.long();
        for i in 0..it.few() {
            let begin = it.begin("cudaMalloc", (i, i), "");
            it.end(begin, "cudaMalloc", (i, i), &format!(r#","error":"cudaError{i}{long}""#));
        }
    }),
    kind("many-durations", |it| {
        for i in 0..it.items() {
            let name = format!("f{}", i % 20_000);
            let begin = it.begin(&name, (1, 1), "");
            let us = 1u64 << (it.random() % 50);
            it.line(
                "userspace",
                &name,
                &format!(r#""phase":"E","pid":1,"tid":1,"begin":{begin},"duration_us":{us}.001,"retval":0"#),
            );
        }
    }),
    kind("many-directions", |it| {
        for i in 0..it.items() {
            let begin = it.call("cudaMemcpy", (i, i), "");
            it.line(
                "transfer",
                "cudaMemcpy",
                &format!(
                    r#""pid":{i},"tid":{i},"begin":{begin},"device":{i},"context":"{i:#x}","direction":"D{i}","size":{i},"async":false,"duration_us":0.001"#
                ),
            );
        }
    }),
    kind("allocs-live", |it| {
        for i in 0..it.items() {
            it.call("cuMemAlloc_v2", (1, 1), "");
            it.alloc((1, 1), 16 * (i + 1), 4096, "");
        }
    }),
    kind("allocs-sizes", |it| {
        for i in 0..it.items() {
            it.call("cudaMalloc", (1, 1), "");
            it.alloc((1, 1), 16 * (i + 1), i * 4097 + 1, r#","runtime":true"#);
        }
    }),
    kind("allocs-sites", |it| {
        for i in 0..it.items() {
            it.stack(i, &python(&format!("f{i}"), &format!("file{i}.py"), i));
            it.call("cuMemAlloc_v2", (1, 1), &format!(r#","stack":{i}"#));
            it.alloc((1, 1), 16 * (i + 1), i * 64, "");
        }
    }),
    kind("allocs-long-sites", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.stack(i, &python(&format!("f{i}{long}"), &format!("file{i}{long}.py"), i));
            it.call("cuMemAlloc_v2", (1, 1), &format!(r#","stack":{i}"#));
            it.alloc((1, 1), 16 * (i + 1), i * 64, "");
        }
    }),
    kind("allocs-processes", |it| {
        for i in 0..it.items() {
            it.call("cuMemAlloc_v2", (i, i), "");
            it.alloc((i, i), 16, 8, r#","total_allocated":8"#);
        }
    }),
    kind("allocs-again", |it| {
        for i in 0..it.items() {
            let (pid, size) = (i % 2000, 64 * (i % 30_000 + 1));
            it.call("cudaMalloc", (pid, pid), "");
            it.alloc((pid, pid), 0x1000, size, r#","runtime":true"#);
            it.line(
                "memory",
                "cudaFree",
                &format!(
                    r#""pid":{pid},"tid":{pid},"begin":{},"op":"free","space":"device","ptr":"0x1000","freed":{size}"#,
                    it.id
                ),
            );
        }
    }),
    kind("allocs-spaces", |it| {
        for i in 0..it.items() {
            it.line(
                "memory",
                &format!("alloc{i}"),
                &format!(
                    r#""pid":1,"tid":1,"begin":1,"device":{i},"context":"{i:#x}","op":"alloc","space":"s{i}","ptr":"{i:#x}","size":{i}"#
                ),
            );
        }
    }),
    kind("allocs-huge", |it| {
        for i in 0..it.items() {
            it.alloc((i % 100, 1), i, u64::MAX - i, &format!(r#","total_allocated":{}"#, u64::MAX));
        }
    }),
    kind("blocks", |it| {
        for i in 0..it.items() {
            it.stack(i, &python(&format!("f{i}"), "a.py", i));
            it.line(
                "block",
                "pytorch:malloc",
                &format!(
                    r#""pid":{},"tid":1,"op":"alloc","ptr":"{i:#x}","size":{i},"device":{i},"stream":"{i:#x}","stack":{i}"#,
                    i % 1000
                ),
            );
        }
    }),
    kind("stacksmany-distinct", |it| {
        for i in 0..it.items() {
            let frames = [python(&format!("f{i}"), "a.py", i), python("main", &format!("m{i}.py"), 1)];
            it.stack(i, &frames.join(","));
            it.call(LAUNCH, (1, 1), &format!(r#","stack":{i},"kernel":"k{}""#, i % 9));
        }
    }),
    kind("stacksmany-deep", |it| {
        for i in 0..it.items() / 100 {
            let frames: Vec<String> =
                (0..300).map(|at| python(&format!("f{}", (i + at) % 9000), "a.py", i + at)).collect();
            it.stack(i, &frames.join(","));
            it.call("cudaMalloc", (1, 1), &format!(r#","stack":{i}"#));
        }
    }),
    kind("stacksmany-long", |it| {
        let long = it.long();
        for i in 0..it.few() {
            it.stack(i, &native(&format!("f{i}{long}"), &format!("/lib/{i}{long}.so"), i));
            it.call(LAUNCH, (1, 1), &format!(r#","stack":{i}"#));
        }
    }),
    kind("stacksmany-roles", |it| {
        let names =
            [LAUNCH, "cudaMalloc", "cudaFree", "cudaMemcpy", "cudaDeviceSynchronize", "cudaGraphLaunch"];
        for i in 0..it.items() {
            it.stack(i, &native(&format!("f{i}"), "/lib/l.so", i));
            for name in names {
                it.call(name, (i % 300, i % 300), &format!(r#","stack":{i}"#));
            }
        }
    }),
    kind("stacksmany-open", |it| {
        for i in 0..it.items() {
            it.stack(i, &python(&format!("f{i}"), &format!("a{i}.py"), i));
            it.begin("cudaStreamSynchronize", (1, i), &format!(r#","stack":{i}"#));
        }
    }),
    kind("stacksmany-numbers", |it| {
        for i in 0..it.items() {
            it.stack(u64::MAX - i, &python("f", "a.py", i));
            it.call(LAUNCH, (1, 1), &format!(r#","stack":{}"#, u64::MAX - i));
        }
    }),
];
