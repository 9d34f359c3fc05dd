use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use goblin::elf::Elf;

use super::*;

mod library;

/// One row of functions.tsv.
struct Row {
    library: &'static str,
    name: &'static str,
    prologue: &'static str,
}

fn rows(library: &str) -> Vec<Row> {
    include_str!("../../fixtures/cuda/functions.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .map(|c| Row { library: c[0], name: c[1], prologue: c[2] })
        .filter(|row| row.library == library)
        .collect()
}

/// Only one test at a time writes or starts a program: a process that is forked while another test writes its program
/// keeps that file open for writing, and then the file cannot be executed (ETXTBSY).
pub static SPAWN: Mutex<()> = Mutex::new(());

fn unpacked() -> DemoFolder {
    let _guard = SPAWN.lock().unwrap();
    unpack().unwrap()
}

struct Run {
    output: Output,
    pid: u32,
    dir: DemoFolder,
}

fn run(args: &[&str]) -> Run {
    let dir = unpacked();
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let line = dir.command(&args);
    let mut command = Command::new(&line[0]);
    command
        .args(&line[1..])
        .env("STANDIN_COUNTS", dir.dir.join("counts-%p"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = {
        let _guard = SPAWN.lock().unwrap();
        command.spawn().unwrap()
    };
    let pid = child.id();
    Run { output: child.wait_with_output().unwrap(), pid, dir }
}

impl Run {
    fn text(&self) -> String {
        assert!(self.output.status.success(), "{:?}", self.output);
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    fn counts_of(&self, pid: u32, suffix: &str) -> HashMap<String, u64> {
        let path = self.dir.dir.join(format!("counts-{pid}.{suffix}"));
        fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect()
    }

    fn counts(&self, suffix: &str) -> HashMap<String, u64> {
        self.counts_of(self.pid, suffix)
    }
}

/// Computes the demo's model here, with the operations in the same order.
fn checksum(tokens: usize) -> u64 {
    const N: usize = 256;
    let mut random = 1u32;
    let weights: Vec<f32> = (0..8 * N * N)
        .map(|_| {
            random = random.wrapping_mul(1664525).wrapping_add(1013904223);
            ((random >> 16) as i32 - 32768) as f32 / 524288.0
        })
        .collect();
    let mut hash = 0xcbf29ce484222325u64;
    for token in 0..tokens {
        let mut x: Vec<f32> = (0..N).map(|i| ((token * 31 + i) % 17) as f32 / 17.0).collect();
        for matrix in weights.chunks(N * N) {
            let mean = x.iter().fold(0.0, |sum, v| sum + v) / N as f32;
            let squares = x.iter().fold(0.0, |sum, v| sum + (v - mean) * (v - mean));
            let scale = 1.0 / (1.0 + squares / N as f32);
            let mut y = vec![0f32; N];
            for (i, v) in x.iter_mut().enumerate() {
                *v = (*v - mean) * scale * (1.0 + i as f32 / N as f32);
                y.iter_mut().zip(&matrix[i * N..]).for_each(|(y, w)| *y += *v * w);
            }
            for (v, y) in x.iter_mut().zip(y) {
                *v += if y > 0.0 { y } else { y / (1.0 - y) };
            }
        }
        x.iter_mut().for_each(|v| *v = 1.0 / (1.0 + *v * *v));
        let sum = x.iter().fold(0.0, |sum, v| sum + v);
        for byte in x.iter().flat_map(|v| (v / sum).to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3);
        }
    }
    hash
}

#[test]
fn the_program_says_what_it_did() {
    let text = run(&[]).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], "Stand-in GPU: 8 layers, 2048 KiB of weights, 90 tokens on 1 thread");
    assert_eq!(lines[1], "asked for 64 TiB, went on without: out of memory");
    assert!(lines[2].starts_with("took 0.") || lines[2].starts_with("took 1."), "{text}");
    assert_eq!(lines[3], format!("checksum {:016x}", checksum(90)));
}

#[test]
fn runtime_calls_become_driver_calls_one_to_one() {
    let run = run(&["--loops", "10", "--burst", "1000"]);
    run.text();
    let (runtime, driver) = (run.counts("cudart"), run.counts("cuda"));
    let pairs = [
        ("cudaMalloc", "cuMemAlloc_v2"),
        ("cudaFree", "cuMemFree_v2"),
        ("cudaMemcpy", "cuMemcpyHtoD_v2"),
        ("cudaLaunchKernel", "cuLaunchKernel"),
        ("cudaDeviceSynchronize", "cuCtxSynchronize"),
        ("cudaStreamSynchronize", "cuStreamSynchronize"),
        ("cudaStreamWaitEvent", "cuStreamWaitEvent"),
        ("cudaEventRecord", "cuEventRecord"),
        ("cudaGraphLaunch", "cuGraphLaunch"),
        ("cudaGraphInstantiate", "cuGraphInstantiateWithFlags"),
        ("cudaMallocHost", "cuMemAllocHost_v2"),
        ("cudaMallocManaged", "cuMemAllocManaged"),
        ("cudaMallocAsync", "cuMemAllocAsync"),
        ("cudaFreeAsync", "cuMemFreeAsync"),
        ("cudaMemsetAsync", "cuMemsetD8Async"),
        ("cudaGetDevice", "cuCtxGetDevice_v2"),
    ];
    for (above, below) in pairs {
        assert_eq!(runtime[above], driver[below], "{above} and {below}");
    }
    assert_eq!(runtime["cudaGetDevice"], 1000);
    // 4 kernels and one unnecessary synchronisation per layer; softmax is captured once.
    assert_eq!(driver["cuLaunchKernel"], 10 * 8 * 4 + 1);
    assert_eq!(driver["cuCtxSynchronize"], 10 * 8);
    // 8 weights, x, one allocation that is never freed, and one that failed. All but the last two are freed, and so is
    // the managed one.
    assert_eq!(driver["cuMemAlloc_v2"], 11);
    assert_eq!(driver["cuMemFree_v2"], 10);
    assert_eq!(driver["cuInit"], 1);
    assert_eq!(driver["cuDevicePrimaryCtxRetain"], 1);
}

#[test]
fn threads_add_up_and_agree() {
    let run = run(&["--loops", "5", "--threads", "6"]);
    assert!(run.text().contains("5 tokens on 6 threads"));
    assert_eq!(run.counts("cuda")["cuLaunchKernel"], 6 * (5 * 8 * 4 + 1));
    assert_eq!(run.counts("cuda")["cuLibraryGetKernel"], 5);
}

#[test]
fn the_child_is_counted_apart() {
    let run = run(&["--loops", "5", "--fork"]);
    assert_eq!(run.text().lines().count(), 8);
    let children: Vec<u32> = fs::read_dir(&run.dir.dir)
        .unwrap()
        .filter_map(|e| {
            e.unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .strip_prefix("counts-")?
                .strip_suffix(".cuda")?
                .parse()
                .ok()
        })
        .filter(|pid| *pid != run.pid)
        .collect();
    assert_eq!(children.len(), 1);
    assert_eq!(run.counts("cuda"), run.counts_of(children[0], "cuda"));
    assert_eq!(run.counts("cudart"), run.counts_of(children[0], "cudart"));
}

#[test]
fn ways_to_end() {
    assert_eq!(run(&["--loops", "1", "--exit", "7"]).output.status.code(), Some(7));
    assert_eq!(run(&["--loops", "1", "--crash"]).output.status.signal(), Some(6));
    let wrong = run(&["--nonsense"]).output;
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("unknown flag --nonsense: use"));
    assert_eq!(run(&["--loops", "many"]).output.status.code(), Some(2));
}

#[test]
fn the_folder_is_private_and_goes() {
    let (one, two) = (unpacked(), unpacked());
    assert_ne!(one.dir, two.dir);
    for path in [&one.dir, &one.program, &one.dir.join("libcuda.so.1")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o700, "{}", path.display());
    }
    let dir = one.dir.clone();
    drop(one);
    assert!(!dir.exists());
    assert!(two.program.exists());
}

#[test]
fn small_and_without_paths_of_the_build() {
    let root = env!("CARGO_MANIFEST_DIR").as_bytes();
    for (name, bytes) in FILES {
        assert!(!bytes.windows(root.len()).any(|w| w == root), "{name} holds the path of its sources");
    }
    let total: usize = FILES.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(total < 1 << 20, "{total} bytes");
}

/// Exported functions: their names and the file offsets of their code.
fn exports(index: usize) -> HashMap<String, usize> {
    let elf = Elf::parse(FILES[index].1).unwrap();
    let text =
        elf.section_headers.iter().find(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".text")).unwrap();
    elf.dynsyms
        .iter()
        .filter(|s| s.is_function() && !s.is_import())
        .map(|s| {
            let name = elf.dynstrtab.get_at(s.st_name).unwrap().to_owned();
            (name, (s.st_value - text.sh_addr + text.sh_offset) as usize)
        })
        .collect()
}

#[test]
fn every_real_name_is_exported_and_no_other() {
    for (index, library) in ["driver", "runtime"].into_iter().enumerate() {
        let mut wanted: BTreeSet<String> = rows(library).iter().map(|r| r.name.to_owned()).collect();
        wanted.insert("standin_calls".into());
        if library == "driver" {
            wanted.insert("standin_seen_by".into());
        }
        assert_eq!(exports(index).into_keys().collect::<BTreeSet<_>>(), wanted);
    }
}

#[test]
fn names_and_versions_of_the_libraries() {
    for (index, soname) in ["libcuda.so.1", "libcudart.so.13"].into_iter().enumerate() {
        let elf = Elf::parse(FILES[index].1).unwrap();
        assert_eq!(elf.soname, Some(soname));
        let versions: Vec<&str> = elf
            .verdef
            .iter()
            .flat_map(|v| {
                v.iter().flat_map(|d| {
                    d.iter().map(|a| elf.dynstrtab.get_at(a.vda_name).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        // Real libcuda has no symbol versions; the runtime's node is its SONAME.
        assert_eq!(versions.contains(&"libcudart.so.13"), index == 1, "{versions:?}");
    }
    assert!(Elf::parse(FILES[2].1).unwrap().libraries.contains(&"libcudart.so.13"));
}

#[test]
fn debugger_variables_are_data() {
    let elf = Elf::parse(FILES[0].1).unwrap();
    let data: Vec<&str> = elf
        .dynsyms
        .iter()
        .filter(|s| s.st_type() == goblin::elf::sym::STT_OBJECT && !s.is_import())
        .map(|s| elf.dynstrtab.get_at(s.st_name).unwrap())
        .collect();
    assert!(data.contains(&"cudbgIpcFlag") && data.contains(&"cudbgSessionId"), "{data:?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn functions_begin_as_the_table_says() {
    for (index, library) in ["driver", "runtime"].into_iter().enumerate() {
        let (bytes, exports) = (FILES[index].1, exports(index));
        for row in rows(library) {
            let code = &bytes[exports[row.name]..][..12];
            let good = match row.prologue {
                "push" => code[0] == 0x55,
                "endbr" => code[..5] == [0xf3, 0x0f, 0x1e, 0xfa, 0x55],
                "sub" => code[..4] == [0x48, 0x83, 0xec, 24],
                // cmpl $imm32, disp32(%rip): ten bytes, then a short conditional jump.
                "cmp-je" => code[..2] == [0x81, 0x3d] && code[10] == 0x74,
                "cmp-jne" => code[..2] == [0x81, 0x3d] && code[10] == 0x75,
                other => panic!("unknown prologue {other}"),
            };
            assert!(good, "{} ({}) begins with {code:02x?}", row.name, row.prologue);
        }
    }
}
