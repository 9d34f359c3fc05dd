//! GPUprobe's published cases with the stand-in libraries, exactly: 8 MiB that are not freed, launches by kernel name,
//! copies with direction, bytes and bandwidth. The program has its symbols; every backend records it.

use serde_json::Value;

use crate::figures::figure;
use crate::needs::{backends, is_single};
use crate::room::{Room, live};
use crate::trace::Trace;

const FEW: [&str; 10] = [
    "__cudaRegister*",
    "cudaMalloc",
    "cudaFree",
    "cudaMemcpy",
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpy?to?_v2",
    "cu*GetFunction",
];

fn program(room: &Room) -> String {
    // The stand-ins as the build made them; each finds the other in its own folder.
    let libraries = concat!(env!("OUT_DIR"), "/demo");
    let runtime = format!("{libraries}/libcudart.so.13");
    room.compile("cases.c", "cases", &[&runtime, &format!("-Wl,-rpath,{libraries}")])
}

#[test]
fn the_published_cases() {
    live(|room| {
        let program = program(room);
        for backend in backends() {
            let file = room.text(&format!("{backend}.jsonl"));
            let mut words = vec!["--backend", backend, "-o", &file];
            if is_single(backend) {
                // Single hooks take long to remove, so only those that the cases need are attached.
                words.extend(FEW.iter().flat_map(|only| ["--only", only]));
            }
            let done = room.run(room.gpurec(&[&words[..], &["--", &program]].concat()));
            done.exited(0);
            let trace = Trace::checked(room, &file);
            let text = std::fs::read_to_string(&file).unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            trace.by(backend).is_whole();
            let figures = &trace.end["summary"];
            // With few functions gpurec does not know what others did, but what it saw is the same.
            let is_known = !is_single(backend);
            assert_eq!(*figure(figures, "kernel_launches"), 2000);
            for peak in ["peak_device_bytes", "peak_runtime_bytes"] {
                let (process, seen) = (&figures["processes"][0], &figures["seen"]);
                let bytes = if is_known { &process[peak] } else { &seen[format!("processes.0.{peak}")] };
                assert_eq!(*bytes, 24 << 20, "{peak}");
            }
            if is_known {
                done.said("Memory held at exit: 8388608 bytes (8.00 MB) in 1 allocation\n");
                done.said("Memory allocations: 3\n");
                done.said("Total memory allocated: 25165824 bytes (24.00 MB)\n");
            } else {
                done.said("Memory held at exit: not known (")
                    .said("Leaks: not known (")
                    .said("Memory allocations: not known (")
                    .said("; 3 seen)\n");
            }

            let memory: Vec<&Value> = trace.of_type("memory").collect();
            let allocated = memory.iter().filter(|m| m["op"] == "alloc").map(|m| m["size"].as_u64().unwrap());
            assert_eq!(allocated.collect::<Vec<_>>(), [8 << 20; 3]);
            let last = memory.last().unwrap();
            let total = if is_known { Value::from(8 << 20) } else { Value::Null };
            assert_eq!((&last["op"], &last["total_allocated"]), (&"free".into(), &total));

            let copies: Vec<&Value> = trace.of_type("transfer").collect();
            assert_eq!(copies.len(), 2, "{copies:?}");
            for (copy, direction, size) in [(copies[0], "H2D", 4 << 20), (copies[1], "D2H", 2 << 20)] {
                assert_eq!((&copy["direction"], &copy["size"]), (&direction.into(), &size.into()));
                assert_eq!(copy["async"], false);
                let seconds = copy["duration_us"].as_f64().unwrap() / 1e6;
                let rate = copy["bytes_per_sec"].as_f64().unwrap();
                assert!((rate - f64::from(size) / seconds).abs() <= 1.0, "{copy}");
            }
            for level in ["cudaLaunchKernel", "cuLaunchKernel"] {
                for (kernel, block) in [("kernelA(int*)", 32), ("kernelB(int*)", 64)] {
                    let fits = |line: &&Value| {
                        line["name"] == level && line["kernel"] == kernel && line["block"][0] == block
                    };
                    assert_eq!(lines.iter().filter(fits).count(), 1000, "{level} {kernel}");
                }
            }
        }
    });
}
