//! Programs as sequences of calls: some waste time in a way that `report waste` must name, and the others do not. In:
//! the calls with their durations, and the committed traces of PyTorch on an H200. Out: findings.

use serde_json::Value;

use super::*;

type Program = fn(&mut Script);

const US: u64 = 1000;
const MS: u64 = 1_000_000;
const MB: u64 = 1 << 20;

/// Actions of a program.
impl Script {
    /// Time on the host without a call.
    fn host(&mut self, ns: u64) {
        self.ns += ns;
    }

    fn kernels(&mut self, count: usize) {
        for _ in 0..count {
            let outer = self.begin("cudaLaunchKernel", None);
            let inner = self.launch("k", Some(outer));
            self.end(inner, 2 * US, 0);
            self.end(outer, 500, 0);
        }
    }

    /// A copy through the runtime: (runtime function, driver function, direction).
    fn moves(&mut self, by: (&'static str, &'static str, &'static str), size: u64, ns: u64, pageable: bool) {
        let (runtime, driver, direction) = by;
        let outer = self.begin(runtime, None);
        let begin = self.begin(driver, Some(outer));
        self.end(begin, ns, 0);
        let is_async = driver.contains("Async");
        self.push(
            0,
            Body::Transfer(Transfer {
                name: driver.into(),
                pid: 100,
                tid: 100,
                begin,
                on: Where::default(),
                direction: direction.into(),
                size,
                partial: false,
                is_async,
                pageable,
                duration_ns: (!is_async).then_some(ns),
            }),
        );
        self.end(outer, 500, 0);
    }

    fn up(&mut self, size: u64) {
        self.moves(UP, size, 3 * US, false);
    }

    fn down(&mut self, size: u64) {
        self.moves(DOWN, size, 3 * US, false);
    }

    /// As PyTorch's `.item()` does.
    fn item(&mut self, ns: u64) {
        self.down(4);
        self.wait("cudaStreamSynchronize", ns);
    }

    fn wait(&mut self, name: &'static str, ns: u64) {
        self.call(name, ns, 0);
    }

    fn alloc(&mut self, space: &'static str, size: u64, ns: u64) {
        let name = if space == "device" { "cuMemAlloc_v2" } else { "cuMemHostAlloc" };
        self.takes(name, Op::Alloc, space, size, ns);
    }

    fn free(&mut self, space: &'static str, size: u64, ns: u64) {
        let name = if space == "device" { "cuMemFree_v2" } else { "cuMemFreeHost" };
        self.takes(name, Op::Free, space, size, ns);
    }

    fn takes(&mut self, name: &'static str, op: Op, space: &'static str, size: u64, ns: u64) {
        let begin = self.begin(name, None);
        self.end(begin, ns, 0);
        let (total_allocated, ptr) = (Some(0), 0x1000 + size);
        let (earlier, missed, runtime) = (false, false, false);
        let (name, space, size) = (name.into(), space.into(), Some(size));
        let (pid, tid) = (100, 100);
        let on = Where::default();
        self.push(
            0,
            Body::Memory(Memory {
                name,
                pid,
                tid,
                begin: Some(begin),
                on,
                op,
                space,
                ptr,
                size,
                total_allocated,
                earlier,
                missed,
                runtime,
                carried: false,
                stack: None,
            }),
        );
    }
}

const UP: (&str, &str, &str) = ("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "H2D");
const DOWN: (&str, &str, &str) = ("cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2", "D2H");
const BLOCKING_DOWN: (&str, &str, &str) = ("cudaMemcpy", "cuMemcpyDtoH_v2", "D2H");

const CLEAN: [(&str, Program); 20] = [
    ("PyTorch: training, a batch from pageable memory and loss.item() each step", |s| {
        for _ in 0..50 {
            s.moves(UP, MB / 8, 40 * US, true);
            s.wait("cudaStreamSynchronize", 20 * US);
            s.kernels(60);
            s.item(900 * US);
        }
    }),
    ("PyTorch: training with pinned batches, loss.item() every tenth step", |s| {
        s.alloc("host", MB, 500 * US);
        for step in 0..100 {
            s.up(MB);
            s.kernels(60);
            if step % 10 == 9 {
                s.item(8 * MS);
            }
        }
    }),
    ("PyTorch: batches to the device, a synchronisation for the clock, loss.item()", |s| {
        for _ in 0..100 {
            s.up(MB);
            s.kernels(30);
            s.wait("cudaDeviceSynchronize", 700 * US);
            s.item(10 * US);
            s.host(80 * US);
        }
    }),
    ("PyTorch: generation, the next token copied back each step", |s| {
        for _ in 0..200 {
            s.kernels(40);
            s.item(300 * US);
        }
    }),
    ("tokens by a graph, which copies the result back", |s| {
        for _ in 0..300 {
            s.call("cudaGraphLaunch", 8 * US, 0);
            s.wait("cudaStreamSynchronize", 900 * US);
        }
    }),
    ("long kernels with a wait after each", |s| {
        for _ in 0..100 {
            s.kernels(1);
            s.wait("cudaDeviceSynchronize", 10 * MS);
        }
    }),
    ("iterations until a flag in managed memory says that it is enough", |s| {
        s.takes("cuMemAllocManaged", Op::Alloc, "managed", 4096, 30 * US);
        for _ in 0..300 {
            s.kernels(2);
            s.wait("cudaDeviceSynchronize", 60 * US);
        }
        s.moves(BLOCKING_DOWN, MB, 90 * US, false);
    }),
    ("iterations until a flag in pinned memory says that it is enough", |s| {
        s.alloc("host", 64, 30 * US);
        s.call("cudaHostGetDevicePointer", US, 0);
        for _ in 0..300 {
            s.kernels(1);
            s.wait("cudaStreamSynchronize", 60 * US);
        }
    }),
    ("two buffers in turn, with a wait for the event of the one to be filled", |s| {
        s.alloc("host", 2 * MB, 500 * US);
        for _ in 0..200 {
            s.wait("cudaEventSynchronize", 300 * US);
            s.up(MB);
            s.kernels(3);
            s.call("cudaEventRecord", US, 0);
        }
    }),
    ("one buffer that is filled again after each wait", |s| {
        for _ in 0..200 {
            s.up(MB);
            s.kernels(3);
            s.wait("cudaStreamSynchronize", 300 * US);
            s.host(10 * US);
        }
    }),
    ("halos sent by MPI after each step", |s| {
        for _ in 0..200 {
            s.kernels(4);
            s.wait("cudaStreamSynchronize", 300 * US);
            s.host(150 * US);
        }
    }),
    ("results by a blocking copy", |s| {
        for _ in 0..200 {
            s.kernels(3);
            s.moves(BLOCKING_DOWN, MB, 400 * US, false);
        }
    }),
    ("a wait before a blocking copy, which would wait as long", |s| {
        for _ in 0..200 {
            s.kernels(3);
            s.wait("cudaDeviceSynchronize", 400 * US);
            s.moves(BLOCKING_DOWN, 4096, 20 * US, true);
        }
    }),
    ("kernels timed by events", |s| {
        for _ in 0..200 {
            s.call("cudaEventRecord", US, 0);
            s.kernels(1);
            s.call("cudaEventRecord", US, 0);
            s.wait("cudaEventSynchronize", 200 * US);
            s.call("cudaEventElapsedTime", US, 0);
        }
    }),
    ("a host far ahead of its GPU", |s| {
        s.kernels(5000);
        s.wait("cudaDeviceSynchronize", 900 * MS);
    }),
    ("weights loaded from pageable memory, then inference", |s| {
        for _ in 0..200 {
            s.moves(UP, 4 * MB, 400 * US, true);
            s.wait("cudaStreamSynchronize", 10 * US);
        }
        for _ in 0..100 {
            s.kernels(30);
            s.item(500 * US);
        }
    }),
    ("the same buffers for each of six phases", |s| {
        for _ in 0..6 {
            (1..4).for_each(|size| s.alloc("device", size * MB, 100 * US));
            for _ in 0..100 {
                s.kernels(5);
                s.item(100 * US);
            }
            (1..4).for_each(|size| s.free("device", size * MB, 100 * US));
        }
    }),
    ("a workspace for each of twenty epochs", |s| {
        for _ in 0..20 {
            s.alloc("device", 64 * MB, 20 * US);
            s.kernels(50);
            s.item(50 * MS);
            s.free("device", 64 * MB, 20 * US);
        }
    }),
    ("a pool that grows while it warms up, and allocations from it", |s| {
        (1..30).for_each(|size| s.alloc("device", size * 2 * MB, 200 * US));
        for _ in 0..300 {
            s.takes("cuMemAllocAsync", Op::Alloc, "pool", MB, US);
            s.kernels(3);
            s.item(100 * US);
            s.takes("cuMemFreeAsync", Op::Free, "pool", MB, US);
        }
    }),
    ("work for a host function, and a wait for it", |s| {
        for _ in 0..200 {
            s.kernels(3);
            s.call("cudaLaunchHostFunc", 2 * US, 0);
            s.wait("cudaStreamSynchronize", 200 * US);
        }
    }),
];

const NEEDLESS: &str = "cudaDeviceSynchronize waits though nothing is copied to the host";

/// Each with what it wastes.
const PLANTED: [(&str, Program, &str); 11] = [
    (
        "a wait after each kernel",
        single_launches,
        "cudaStreamSynchronize waits for a single cudaLaunchKernel",
    ),
    (
        "PyTorch: torch.cuda.synchronize() after each layer, loss.item() each step",
        |s| {
            s.alloc("host", 64, 30 * US);
            for _ in 0..30 {
                s.up(MB);
                for _ in 0..24 {
                    s.kernels(8);
                    s.wait("cudaDeviceSynchronize", 80 * US);
                    s.host(15 * US);
                }
                s.kernels(3);
                s.item(40 * US);
            }
        },
        NEEDLESS,
    ),
    (
        "a wait between two halves of a step",
        |s| {
            for _ in 0..100 {
                s.kernels(4);
                s.wait("cudaDeviceSynchronize", 200 * US);
                s.kernels(4);
                s.moves(BLOCKING_DOWN, MB, 300 * US, false);
            }
        },
        NEEDLESS,
    ),
    (
        "PyTorch: .item() of one element after the other",
        |s| {
            s.kernels(5);
            (0..500).for_each(|_| s.item(12 * US));
        },
        "cudaStreamSynchronize waits for a single cudaMemcpyAsync",
    ),
    (
        "few pairs of cudaMalloc and cudaFree that take most of the time",
        |s| {
            for _ in 0..6 {
                s.alloc("device", 512 * MB, 3 * MS);
                s.kernels(2);
                s.item(200 * US);
                s.free("device", 512 * MB, 2 * MS);
            }
        },
        "gives back 536870912 bytes of device memory and allocates them again",
    ),
    (
        "pairs of another size each time",
        |s| {
            for size in 1..30 {
                s.alloc("device", size * MB, MS);
                s.kernels(2);
                s.item(200 * US);
                s.free("device", size * MB, MS);
            }
        },
        "gives back device memory of many sizes and allocates it again",
    ),
    (
        "a buffer for each step",
        |s| {
            for _ in 0..100 {
                s.alloc("device", MB, 40 * US);
                s.kernels(20);
                s.item(800 * US);
                s.free("device", MB, 60 * US);
            }
        },
        "gives back 1048576 bytes of device memory and allocates them again",
    ),
    (
        "pinned memory for each step",
        |s| {
            for _ in 0..50 {
                s.alloc("host", MB, 300 * US);
                s.up(MB);
                s.kernels(5);
                s.item(300 * US);
                s.free("host", MB, 200 * US);
            }
        },
        "gives back 1048576 bytes of host memory and allocates them again",
    ),
    (
        "each batch from pageable memory",
        |s| {
            for _ in 0..50 {
                s.moves(UP, 4 * MB, 700 * US, true);
                s.wait("cudaStreamSynchronize", 20 * US);
                s.kernels(20);
                s.item(500 * US);
            }
        },
        "pageable host memory, again and again",
    ),
    (
        "thousands of kernels that end before the next is launched",
        |s| {
            for _ in 0..30 {
                s.kernels(100);
                s.item(15 * US);
            }
        },
        "tiny launches",
    ),
    (
        "launches that fail, and no call asks",
        |s| {
            s.kernels(5);
            (0..3).for_each(|_| s.call("cudaLaunchKernel", US, 98));
            s.wait("cudaDeviceSynchronize", US);
        },
        "launches failed and the program did not check",
    ),
];

fn single_launches(s: &mut Script) {
    for _ in 0..200 {
        s.kernels(1);
        s.call("cudaGetLastError", 100, 0);
        s.wait("cudaStreamSynchronize", 30 * US);
    }
}

fn found(bytes: &[u8]) -> Vec<String> {
    of_file(bytes).findings.into_iter().map(|finding| finding.what).collect()
}

fn of_program(program: Program) -> Vec<String> {
    let mut script = Script::new();
    program(&mut script);
    found(&script.finish().1)
}

/// Replays a committed trace as if it had been recorded completely, and repeats the calls of its steady part `times`
/// times.
fn replay(name: &str, steady: &[&str], times: u64) -> Vec<u8> {
    let bytes = std::fs::read(golden::path(&format!("traces/{name}"))).unwrap();
    let bytes = if name.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
    let text = String::from_utf8(bytes).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.retain(|line| line["type"] != "end");
    lines[0].as_object_mut().unwrap().remove("options");
    let last = lines.last().unwrap().clone();
    // The steady part: calls of these names and their nested calls.
    let mut kept = std::collections::BTreeSet::new();
    let of_steady = |line: &&Value| {
        let id = line["event_id"].as_u64().unwrap();
        let is_one = match line["phase"].as_str() {
            Some("B") if line["depth"] == 0 => steady.contains(&line["name"].as_str().unwrap()),
            Some("B") => line["parent"].as_u64().is_some_and(|parent| kept.contains(&parent)),
            _ => line["begin"].as_u64().is_some_and(|begin| kept.contains(&begin)),
        };
        if is_one && line["phase"] == "B" {
            kept.insert(id);
        }
        is_one && line["type"] != "memory"
    };
    let part: Vec<Value> = lines.iter().filter(of_steady).cloned().collect();
    let (mut id, mut ts) = (last["event_id"].as_u64().unwrap() + 1, last["ts"].as_f64().unwrap());
    for _ in 0..times {
        let mut renamed = BTreeMap::new();
        let mut before = part[0]["ts"].as_f64().unwrap();
        for line in &part {
            let mut line = line.clone();
            // Gaps left by calls that are not repeated are shortened.
            let at = line["ts"].as_f64().unwrap();
            ts += (at - before).min(30e-6);
            before = at;
            renamed.insert(line["event_id"].as_u64().unwrap(), id);
            for key in ["begin", "parent"] {
                if let Some(old) = line[key].as_u64() {
                    line[key] = renamed[&old].into();
                }
            }
            line["event_id"] = id.into();
            line["ts"] = ts.into();
            lines.push(line);
            id += 1;
        }
    }
    let end = serde_json::json!({"event_id": id, "ts": ts + 0.001, "type": "end", "name": "end", "events": id,
        "lost": 0, "in_flight": [], "complete": true, "incomplete_because": [], "summary": {}});
    lines.push(end);
    lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
}

#[test]
fn waste_finds_what_is_planted_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, program) in CLEAN {
        let found = of_program(program);
        if !found.is_empty() {
            wrong.push(format!("clean: {name}: {found:?}"));
        }
    }
    for (name, program, expected) in PLANTED {
        let found = of_program(program);
        if found.len() != 1 || !found[0].contains(expected) {
            wrong.push(format!("planted: {name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn waste_is_not_found_in_pytorch_on_an_h200() {
    let steady = ["cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"];
    for times in [0, 1, 50] {
        let bytes = replay("torch_h200.jsonl", &steady, times);
        let figures = of_file(&bytes);
        assert!(figures.kernel_launches > 10 * times && figures.complete, "{times}: {figures:?}");
        assert_eq!(found(&bytes), [""; 0], "{times}");
        assert_eq!(figures.memory.leaks.count, 0, "{times}");
    }
    // With thousands of kernels of a layer this small, the host spends its time on launches.
    let [tiny] = &found(&replay("torch_h200.jsonl", &steady, 500))[..] else { panic!() };
    assert!(tiny.contains("tiny launches"), "{tiny}");
    assert_eq!(found(&replay("context_h200.jsonl.zst", &[], 0)), [""; 0]);
}

/// Two threads process twelve tokens and one processes ten, with a wait after each layer.
#[test]
fn waste_finds_the_wait_after_each_layer_of_the_demo() {
    for (file, waits) in [("demo.jsonl.zst", 192), ("needless_before.jsonl.zst", 80)] {
        let figures = of_file(&replay(file, &[], 0));
        let [finding] = &figures.findings[..] else { panic!("{file}: {:?}", figures.findings) };
        assert!(finding.what.contains(NEEDLESS), "{finding:?}");
        // Some waits took 2 ms or longer.
        assert!(finding.times * 2 >= waits && finding.times <= waits, "{finding:?}");
    }
}
