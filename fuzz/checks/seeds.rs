//! What the fuzzer begins with.
//! In: a folder.
//! Out: a folder for each target with a few small valid inputs, generated each time: files from the machine's own
//! compiler, records from the wire's structs, lines of the committed traces, small traces that are crafted against
//! readers, budgets as in docs/gates.md. None of it is NVIDIA's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpurec::wire;

#[path = "../../crates/analysis/src/ranks/made/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod job;

#[path = "../../crates/analysis/examples/crafted/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod crafted;

/// The longest input; the limit on those of the fuzzer is a little higher.
const ROOM: usize = 7500;

pub fn seeds(folder: &Path) {
    elf(&made(folder, "elf"));
    records(&made(folder, "records"));
    random(&made(folder, "pair"), 12, 1200);
    random(&made(folder, "ioctl"), 12, 600);
    jsonl(&made(folder, "jsonl"));
    budget(&made(folder, "budget"));
    python(&made(folder, "python"));
    native(&made(folder, "native"));
    gpu(&made(folder, "gpu"));
    ranks(&made(folder, "ranks"));
}

fn made(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

fn put(folder: &Path, name: &str, first: u8, bytes: &[u8]) {
    fs::write(folder.join(name), [&[first], bytes].concat()).unwrap();
}

const CODE: &str = r#"
__attribute__((section(".nv_fatbin"), used)) static const char code[16] = {1};
int cudaMalloc(int n) { return n > 3; }
int cudaLaunchKernel(int n) { return n ? cudaMalloc(n - 1) : 2; }
int cudaFree(int n) __attribute__((alias("cudaMalloc")));
int cuInit(int n) { return n == 7 ? cudaMalloc(n) : 0; }
int cuMemAlloc_v2(int *n) { return *n; }
int cuData = 3;
__attribute__((visibility("hidden"))) int cuHidden(void) { return 1; }
__asm__(".pushsection .probes, \"aw\"\ncounter: .2byte 0\n.popsection\nplace: nop\n"
    ".pushsection .note.stapsdt, \"\", \"note\"\n.4byte 8, 1f - 0f, 3\n.asciz \"stapsdt\"\n"
    "0: .8byte place, 0, counter\n.asciz \"pytorch\"\n.asciz \"malloc\"\n"
    ".asciz \"-8@%rax -1@%dl 8@$5 -8@-56(%rbp)\"\n1: .balign 4\n.popsection\n");
#ifdef __x86_64__
/* A better place for a probe a little behind the entry, and one that is another function's. */
__asm__(".globl cuFurther, cuOuter, cuInner\n.type cuFurther, @function\n.type cuOuter, @function\n"
    ".type cuInner, @function\ncuFurther: test %edi, %edi\npush %rbx\npop %rbx\nret\n.size cuFurther, 5\n"
    "cuOuter: test %edi, %edi\ncuInner: push %rbx\npop %rbx\nret\n.size cuOuter, 5\n.size cuInner, 3\n");
#endif
"#;

/// A call's record, a kernel's name, the kernel, and a copy with the same number.
fn gpu(folder: &Path) {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let record = |what: u64, first: u64, bytes: &[u8]| {
        let length = (16 + bytes.len() as u64).next_multiple_of(8);
        let mut all = [words(&[length | what << 32, first]), bytes.to_vec()].concat();
        all.resize(length as usize, 0);
        all
    };
    let cupti = |kind: u32, size: usize, fields: &[(usize, u32)]| {
        let mut bytes = vec![0; size];
        for (at, value) in [(0, kind)].iter().chain(fields) {
            bytes[*at..*at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    };
    let call = cupti(4, 40, &[(4, 307), (8, 110), (16, 120), (28, 1), (32, 5)]);
    let kernel = cupti(10, 160, &[(16, 500), (24, 600), (40, 1), (44, 1), (48, 7), (52, 2), (92, 5)]);
    let copy = cupti(1, 80, &[(4, 1), (8, 4096), (16, 700), (24, 800), (44, 5)]);
    let name = [words(&[4]), b"_Z1f".to_vec()].concat();
    let all = [record(1, 0, &call), record(2, 9, &name), record(1, 9, &kernel), record(1, 0, &copy)];
    for (at, part) in all.iter().enumerate() {
        fs::write(folder.join(format!("one-{at}")), [words(&[0]), part.clone()].concat()).unwrap();
    }
    fs::write(folder.join("all"), [words(&[0]), all.concat()].concat()).unwrap();
}

fn elf(folder: &Path) {
    let kinds: [(&str, u8, &[&str]); 6] = [
        ("runtime", 8, &["-shared", "-Wl,-soname,libcudart.so.12", "-Wl,--build-id=0x0123abcd"]),
        ("driver", 1, &["-shared", "-Wl,-soname,libcuda.so.1", "-Wl,--hash-style=sysv"]),
        ("plain", 10, &["-shared", "-Wl,--hash-style=gnu"]),
        ("static", 2, &["-Wl,-e,cudaMalloc", "-static"]),
        ("stripped", 2, &["-shared", "-s", "-Wl,--hash-style=gnu"]),
        ("object", 14, &["-c"]),
    ];
    compiled(folder, CODE, &kinds);
}

/// The same code, made a file in several ways: name, first byte, the compiler's arguments.
fn compiled(folder: &Path, code: &str, kinds: &[(&str, u8, &[&str])]) {
    let source = folder.join("source.c");
    for &(name, how, arguments) in kinds {
        fs::write(&source, code).unwrap();
        let output = folder.join("output");
        let done = Command::new("cc")
            .args(["-O1", "-fPIC", "-nostdlib", "-fno-asynchronous-unwind-tables"])
            .args(cfg!(target_arch = "x86_64").then_some("-fcf-protection=none"))
            .args(["-Wl,-z,max-page-size=512", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"])
            .args(arguments)
            .arg(&source)
            .arg("-o")
            .arg(&output)
            .status()
            .expect("cc is needed for the seeds");
        assert!(done.success(), "cc cannot make {name}");
        let bytes = fs::read(&output).unwrap();
        put(folder, name, how, &bytes);
        put(folder, &format!("{name}-without-sections"), how, &without_sections(bytes));
        fs::remove_file(output).unwrap();
    }
    fs::remove_file(source).unwrap();
}

const PYTHON: &str = r#"
__attribute__((section(".PyRuntime"), used)) char _PyRuntime[700] = { BYTES };
#if VERSION
const unsigned long Py_Version = VERSION;
#endif
extern int snprintf(char *, unsigned long, const char *, ...);
static char version[250];
const char *const folders = "/usr/lib/python3.10/";
const char *Py_GetVersion(void) { snprintf(version, 250, "%.80s", "3.9.18"); return version; }
"#;

/// First byte: what it is, and for tables which format.
fn python(folder: &Path) {
    let table = |offset: u32, table: &[u8]| [&7u32.to_le_bytes(), &offset.to_le_bytes(), table].concat();
    put(folder, "lnotab", 0, &table(8, &[0, 1, 4, 2, 2, 0xff, 255, 0, 1, 127, 0, 3]));
    put(folder, "ranges", 3, &table(8, &[2, 0, 4, 0x80, 0, 100, 2, 1, 2, 0xfe, 254, 0]));
    let locations = [0x80, 0x12, 0xd9, 5, 6, 0xe0, 5, 6, 0xf8, 0xe8, 0x47, 2, 0xf0, 0x50, 0x1f, 1, 2, 3];
    put(folder, "locations", 6, &table(8, &locations));
    let mut text: Vec<String> = Vec::new();
    for (minor, words) in [(13u8, 73), (14, 95), (15, 111)] {
        let mut head = b"xdebugpy".to_vec();
        head.extend((0x0300_00f0 | u64::from(minor) << 16).to_le_bytes());
        head.extend(0u64.to_le_bytes());
        (3..words).for_each(|_| head.extend(16u64.to_le_bytes()));
        put(folder, &format!("described-{minor}"), 1, &head);
        if minor == 13 {
            text = head.iter().map(u8::to_string).collect();
        }
    }
    let kinds: [(&str, u8, &[&str]); 5] = [
        ("shared", 2, &["-shared", "-Wl,--hash-style=gnu", "-DVERSION=0x030c01f0"]),
        ("sysv", 2, &["-shared", "-Wl,--hash-style=sysv", "-DVERSION=0"]),
        ("stripped", 2, &["-shared", "-s", "-Wl,--hash-style=gnu", "-DVERSION=0"]),
        (
            "static",
            2,
            &["-Wl,-e,Py_GetVersion", "-static", "-Wl,--unresolved-symbols=ignore-all", "-DVERSION=0"],
        ),
        ("without", 2, &["-shared", "-s", "-fvisibility=hidden", "-DVERSION=0"]),
    ];
    compiled(&made(folder, "old"), &PYTHON.replace("BYTES", "1"), &kinds);
    compiled(&made(folder, "new"), &PYTHON.replace("BYTES", &text.join(",")), &kinds[..3]);
}

/// The file as the loader sees it.
fn without_sections(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    bytes
}

fn head(kind: u16, flags: u16, ts: u64, tid: u32, seq: u32, probe: u32) -> wire::Head {
    wire::Head { ts, tid, seq, kind, flags, probe }
}

fn call(ts: u64, tid: u32, seq: u32, probe: u32, flags: u16, behind: &[u8]) -> Vec<u8> {
    let sp = 0x9000 - u64::from(seq) * 16;
    let head = head(wire::CALL, flags, ts, tid, seq, probe);
    let args = [0x1000, 0x40, 0x2000, 3, 4, 5];
    let payload = behind.len() as u16;
    [wire::bytes(&wire::Call { head, pid: 2, payload, words: 0, sp, args }), behind].concat()
}

fn returned(ts: u64, tid: u32, seq: u32, probe: u32, begin: u64, flags: u16, behind: &[u8]) -> Vec<u8> {
    let head = head(wire::RETURN, flags, ts, tid, seq, probe);
    let payload = behind.len() as u32;
    let mut bytes = wire::bytes(&wire::Return { head, begin, value: 0, payload, pad: 0 }).to_vec();
    if !behind.is_empty() {
        bytes.resize(size_of::<wire::Call>(), 0);
        bytes.extend(behind);
    }
    bytes
}

fn piece(state: u16, bytes: &[u8]) -> Vec<u8> {
    let mut piece = wire::bytes(&wire::Piece { state, length: bytes.len() as u16, late: 0 }).to_vec();
    piece.extend(bytes);
    piece.resize(piece.len().next_multiple_of(8), 0);
    piece
}

/// The probes' numbers are those of records.rs: 1 to 30 are functions, then the kernel-side probes.
fn records(folder: &Path) {
    let pointer = piece(wire::PIECE_READ, &0x7000_0000_u64.to_le_bytes());
    let text = piece(wire::PIECE_READ, b"_Z5saxpyfPfS_\0");
    let mut each = Vec::new();
    for probe in 1..=38 {
        let flags = if probe > 30 { wire::KERNEL } else { 0 };
        let behind = if probe % 2 == 0 { [pointer.clone(), text.clone()].concat() } else { Vec::new() };
        let ts = 2000 + u64::from(probe) * 100;
        let seq = probe * 2;
        let exit = if probe % 3 == 0 { &pointer[..] } else { &[] };
        each.push(vec![
            call(ts, 2, seq - 1, probe, flags, &behind),
            returned(ts + 50, 2, seq, probe, ts, flags, exit),
        ]);
    }
    each.push(others());
    for (at, some) in each.chunks(8).enumerate() {
        let mut bytes = Vec::new();
        for (ring, record) in some.concat().iter().enumerate() {
            bytes.push(ring as u8);
            bytes.extend((record.len() as u16).to_le_bytes());
            bytes.extend(record);
            if ring % 5 == 4 {
                bytes.extend([0, 0xff, 0xff]);
            }
        }
        fs::write(folder.join(format!("calls-{at}")), bytes).unwrap();
    }
}

fn others() -> Vec<Vec<u8>> {
    let of = |kind, flags, ts| head(kind, flags, ts, 2, 0, 36);
    let instant = wire::Instant {
        head: of(wire::INSTANT, wire::KERNEL, 9000),
        pid: 2,
        cpu: 1,
        duration: 30,
        args: [1; 6],
        payload: 0,
        pad: 0,
    };
    let block = wire::Block {
        head: of(wire::BLOCK, 0, 9050),
        pid: 2,
        operation: wire::ALLOC,
        known: 15,
        sp: 0x7000_0000,
        stack: 0,
        arguments: [0x7f00, 0, 512, 7],
    };
    let freed = wire::Block { head: of(wire::BLOCK, 0, 9060), operation: wire::FREE, known: 1, ..block };
    let mut command = [0; 4096];
    command[..4].copy_from_slice(b"a\0b\0");
    vec![
        wire::bytes(&instant).to_vec(),
        wire::bytes(&block).to_vec(),
        wire::bytes(&freed).to_vec(),
        wire::bytes(&wire::Fork { head: of(wire::FORK, 0, 9100), pid: 2, child: 3 }).to_vec(),
        wire::bytes(&wire::Exec { head: of(wire::EXEC, 0, 9200), pid: 2, length: 4, command }).to_vec(),
        wire::bytes(&wire::Exit { head: of(wire::EXIT, wire::PROCESS_ENDED, 9300), pid: 2, status: 256 })
            .to_vec(),
    ]
}

/// Seeds for the targets whose bytes are only choices.
fn random(folder: &Path, count: u64, length: usize) {
    for seed in 1..=count {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        fs::write(folder.join(format!("random-{seed}")), bytes).unwrap();
    }
}

/// Functions of several kinds of frames, with and without debug information, an index, and packed symbols.
fn native(folder: &Path) {
    const CODE: &str = r#"
int global;
static inline __attribute__((always_inline)) int inner(int n) { return n * global; }
int plain(int n) { return n ? plain(n - 1) + inner(n) : 1; }
int aligned(int n) { volatile int room[8] __attribute__((aligned(64))) = {n}; return plain(room[n & 7]); }
int variable(int n) { volatile char room[n]; room[0] = 1; return aligned(room[n / 2]); }
"#;
    let kinds: [(&str, &[&str]); 5] = [
        ("debug", &["-g", "-gz=none"]),
        ("indexed", &["-s"]),
        ("searched", &["-Wl,--no-eh-frame-hdr"]),
        ("pointers", &["-fno-omit-frame-pointer"]),
        ("packed", &["-s"]),
    ];
    let source = folder.join("source.c");
    let output = folder.join("output");
    for (at, (name, arguments)) in kinds.iter().enumerate() {
        fs::write(&source, CODE).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-fPIC", "-nostdlib", "-shared", "-fasynchronous-unwind-tables"]);
        compiler.args(["-Wl,-z,max-page-size=512", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"]);
        run(compiler.args(*arguments).arg(&source).arg("-o").arg(&output));
        if *name == "packed" {
            let symbols = folder.join("symbols");
            let packed = folder.join("symbols.xz");
            fs::copy(folder.join("searched"), &symbols).unwrap();
            run(Command::new("xz").arg("--force").arg(&symbols));
            let section = format!(".gnu_debugdata={}", packed.display());
            run(Command::new("objcopy").arg("--add-section").arg(section).arg(&output));
            fs::remove_file(packed).unwrap();
        }
        let bytes = fs::read(&output).unwrap();
        if *name == "searched" {
            fs::write(folder.join(name), &bytes).unwrap();
        }
        put(folder, &format!("{name}-{at}"), at as u8, &bytes);
        fs::remove_file(&output).unwrap();
    }
    fs::remove_file(folder.join("searched")).unwrap();
    fs::remove_file(source).unwrap();
}

fn run(command: &mut Command) {
    let done = command.status();
    assert!(done.is_ok_and(|status| status.success()), "{command:?} is needed for the seeds");
}

fn jsonl(folder: &Path) {
    let traces = [
        include_str!("../../crates/analysis/src/tests/kernel.jsonl"),
        include_str!("../../traces/torch_h200.jsonl"),
        include_str!("../../crates/analysis/src/golden/stacks_trace.txt"),
        include_str!("../../crates/analysis/src/tests/gpu.jsonl"),
    ];
    for (at, trace) in traces.iter().enumerate() {
        let lines: Vec<&str> = trace.lines().filter(|line| line.len() < 2500).collect();
        let header = lines.first().unwrap();
        for view in 0..16 {
            let from = 1 + view * 37 % (lines.len() - 6);
            let part = [&[*header], &lines[from..(from + 12).min(lines.len())]].concat().join("\n") + "\n";
            let first = (view + 16 * (at + view) % 48) as u8;
            put(folder, &format!("trace-{at}-{view}"), first, part.as_bytes());
        }
        let end = [*header, lines.last().unwrap()].join("\n") + "\n";
        let packed = zstd::encode_all(end.as_bytes(), 3).unwrap();
        put(folder, &format!("packed-{at}"), 0, &packed);
    }
    put(folder, "clocks", 0, (CLOCKS.join("\n") + "\n").as_bytes());
    each_crafted(|at, kind, trace| put(folder, kind, (at * 7) as u8, trace));
}

/// A small trace of each kind that is crafted against readers.
fn each_crafted(put: impl Fn(usize, &str, &[u8])) {
    for (at, kind) in crafted::all().enumerate() {
        let mut trace = Vec::new();
        kind.write(&mut trace, crafted::Size { items: 8, long: 60, seed: at as u64 }).unwrap();
        put(at, &format!("crafted-{}", kind.name), whole_lines(&trace, ROOM));
    }
}

/// The lines that fit.
fn whole_lines(trace: &[u8], most: usize) -> &[u8] {
    let part = &trace[..trace.len().min(most)];
    &part[..part.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)]
}

/// The clocks of a machine, in the header and in a `clock` line.
const CLOCKS: [&str; 2] = [
    r#"{"event_id":0,"ts":0.0,"type":"header","name":"gpurec","schema":1,"version":"0.1.0","start":"2026-11-21T05:00:00.000+00:00","host":"h","kernel":"6","user":"ada","clock":{"monotonic_ns":7,"realtime_ns":1792000000123456789,"error_ns":31,"boot_id":null,"ntp":null,"ptp":null}}"#,
    r#"{"event_id":1,"ts":0.1,"type":"clock","name":"clock","monotonic_ns":100000007,"realtime_ns":1792000000223456789,"error_ns":31,"boot_id":"4c1b","ntp":{"offset_ns":-1500,"max_error_ns":250000,"synchronized":true},"ptp":"/dev/ptp0"}"#,
];

fn budget(folder: &Path) {
    let gates = include_str!("../../docs/gates.md");
    let expressions = gates.split("# gate.txt\n").nth(1).and_then(|rest| rest.split("```").next());
    let metrics = gates.split("\n## Metrics\n").nth(1).expect("docs/gates.md has metrics");
    let mut all: Vec<&str> = expressions.expect("docs/gates.md has a budget").lines().collect();
    all.extend([
        "cuLaunchKernel.p99.9 <= 1.5ms after 10us before 2s",
        "function('cuMem*').bytes < 1_000MiB after 3 launches",
        "ioctl(\"NV_ESC_RM_CONTROL\").avg != 5us # why",
        "copies.H2D.rate >= 0.5GB/s",
        "calls/duration > 10/s",
        "memory.device.leaked/memory.allocated <= 50%",
    ]);
    for (at, expression) in all.iter().enumerate() {
        fs::write(folder.join(format!("readme-{at}")), expression).unwrap();
    }
    let names: Vec<&str> = metrics.split('`').skip(1).step_by(2).filter(|name| name.contains('.')).collect();
    for (at, name) in names.iter().enumerate().take(60) {
        fs::write(folder.join(format!("metric-{at}")), format!("{name} <= 1")).unwrap();
    }
}

/// The first lines of the traces of small jobs.
fn ranks(folder: &Path) {
    for seed in 0..24_u64 {
        let ranks = 2 + (seed % 2) as u32;
        let plan = job::Plan {
            seed,
            ranks,
            per_host: 1 + (seed / 2 % 2) as u32,
            steps: 1,
            launches: 0,
            skew_ns: 50_000_000,
            gpu: seed % 3 > 0,
            groups: seed % 4 == 0,
            mismatch: seed % 5 == 0,
            hang: true,
            ..job::Plan::default()
        };
        let (outputs, _) = job::Job::new(plan, |_| Ok(Vec::new())).unwrap().run().unwrap();
        let parts: Vec<&[u8]> =
            outputs.iter().map(|trace| whole_lines(trace, ROOM / ranks as usize)).collect();
        put(folder, &format!("job-{seed}"), (seed * 11) as u8, &parts.join(&0xff));
    }
    each_crafted(|at, kind, trace| put(folder, kind, 192 + (at % 64) as u8, trace));
}
