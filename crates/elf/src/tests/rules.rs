//! Which functions are found in which file, and where their probes go.

use std::fs::File;
use std::process::Command;

use super::super::layout::Machine;
use super::super::{FileError, Kind, Want, kind_of, read, read_on, site};
use super::{Folder, assembly, function, image, read_path, runtime_name};

/// (distance of the site from the entry, emulated, instruction)
fn probe(body: &str) -> (u64, bool, String) {
    let folder = Folder::new();
    let text = format!(".text\n{}.data\nword: .quad 0\n", assembly("cuTest", body));
    let image = image(&folder.driver(&text));
    let found = function(&image, "cuTest");
    (found.site - found.entry, found.emulated, found.instruction.clone())
}

#[track_caller]
fn expect(body: &str, distance: u64, emulated: bool) {
    let (at, cheap, instruction) = probe(body);
    assert_eq!((at, cheap), (distance, emulated), "{instruction} in\n{body}");
}

#[test]
fn an_emulated_entry_is_the_site() {
    assert_eq!(probe("push %rbp\npop %rbp\nret"), (0, true, "push %rbp".to_owned()));
    expect("push %r15\npop %r15\nret", 0, true);
    expect("nop\nret", 0, true);
    expect("call 1f\n1: ret", 0, true);
    expect("jmp .+2\nret", 0, true);
}

#[test]
fn harmless_instructions_are_stepped_over() {
    expect("endbr64\npush %rbx\npop %rbx\nret", 4, true);
    expect("cmpl $5, word(%rip)\nje 1f\nret\n1: ret", 7, true);
    expect("cmpl $0x12345678, word(%rip)\nje 1f\n.skip 300, 0x90\n1: ret", 10, true);
    expect("xor %r11d, %r11d\nlea 8(%rsp), %r10\ntest %edi, %edi\njne 1f\n1: ret", 10, true);
    expect("mov word(%rip), %r11\ntest %r11, %r11\njz 1f\n1: ret", 10, true);
    expect(".byte 0x0f, 0x1f, 0x40, 0x00\npush %rbp\npop %rbp\nret", 4, true);
    expect("movl %edi, %r10d\ncall 1f\n1: ret", 3, true);
}

#[test]
fn what_disturbs_the_call_is_not_stepped_over() {
    for first in [
        "sub $8, %rsp",
        "mov %rdi, %rax",
        "xor %edx, %edx",
        "mov %edi, %esi",
        "mov $1, %r9b",
        "mov %rdi, word(%rip)",
        "lock incl word(%rip)",
        "mov (%rdi), %r10",
        "mov 8(%rsp), %r10",
        "mov %fs:0x28, %r10",
        "pxor %xmm0, %xmm0",
        "cpuid",
        "rdtsc",
        "rep stosb",
        "fld1",
        "jmp *%rdi",
        "vzeroupper",
        "leave",
        "wrpkru",
    ] {
        // Linux accepts a probe on the first instruction, whatever the second is.
        expect(&format!("test %edi, %edi\n{first}\npush %rbp\npop %rbp\nret"), 0, false);
    }
}

#[test]
fn the_search_has_an_end() {
    expect(&format!("{}push %rbp\nret", "test %edi, %edi\n".repeat(8)), 16, true);
    expect(&format!("{}push %rbp\nret", "test %edi, %edi\n".repeat(9)), 0, false);
    let wide = ".byte 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n";
    expect(&format!("endbr64\n{}push %rbp\nret", wide.repeat(5)), 59, true);
    expect(&format!("endbr64\n{}push %rbp\nret", wide.repeat(6)), 0, false);
}

#[test]
fn a_branch_back_keeps_the_probe_at_the_entry() {
    expect("test %edi, %edi\n1: push %rax\ndec %edi\njnz 1b\nret", 0, false);
    expect("test %edi, %edi\n1: test %esi, %esi\npush %rax\ndec %edi\njnz 1b\nret", 0, false);
    expect("test %edi, %edi\npush %rax\n1: dec %edi\njnz 1b\nret", 2, true);
    // A recursive call is a call, and is seen once with either site.
    expect("test %edi, %edi\npush %rax\ncall cuTest@plt\npop %rax\nret", 2, true);
}

#[test]
fn prefixed_branches_are_not_taken_for_emulated() {
    for prefix in [0x2e, 0x3e] {
        let refused = format!(".byte {prefix}, 0x74, 0\nret");
        let folder = Folder::new();
        let text = format!("{}{}", assembly("cuBad", &refused), assembly("cuGood", "ret"));
        let image = image(&folder.driver(&text));
        assert_eq!(image.functions.len(), 1);
        assert!(image.not_hooked[0].reason.text.contains("kernel accepts no probe"), "{image:?}");
        expect(&format!("test %edi, %edi\n{refused}"), 0, false);
    }
}

/// What Linux refuses at the entry, tried on 6.18 with perf's uprobes; one such probe would fail all probes of a
/// library.
#[test]
fn what_the_kernel_refuses_gets_no_probe() {
    let refused =
        ["lock incl word(%rip)", "int3", "hlt", "vmovdqa %ymm0, %ymm1", "iretq", "notrack jmp *%rdi"];
    let taken = [
        "endbr64",
        "ud2",
        "vmovaps %ymm0, %ymm1",
        "mov %fs:0x28, %rax",
        "rep ret",
        "bnd jmp .+6",
        "pshufb %xmm0, %xmm1",
    ];
    let all = refused.iter().chain(&taken).enumerate();
    let text: String = all.map(|(i, body)| assembly(&format!("cu{i:02}"), &format!("{body}\nret"))).collect();
    let folder = Folder::new();
    let image = image(&folder.driver(&format!(".text\n{text}.data\nword: .quad 0\n")));
    let names: Vec<_> = image.not_hooked.iter().map(|not| not.name.clone()).collect();
    assert_eq!(names, (0..refused.len()).map(|i| format!("cu{i:02}")).collect::<Vec<_>>());
    // Linux refuses the padding that compilers use, but the instruction after it works as well.
    expect(".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\npush %rbp\nret", 10, true);
}

#[test]
fn a_function_without_a_size_is_probed_at_its_entry() {
    let folder = Folder::new();
    let text = ".globl cuOpen\n.type cuOpen, @function\ncuOpen: endbr64\npush %rbp\nret\n";
    let image = image(&folder.driver(text));
    let open = function(&image, "cuOpen");
    assert_eq!((open.site, open.emulated, open.instruction.as_str()), (open.entry, false, "endbr64"));
}

#[test]
fn no_two_functions_share_a_site() {
    let folder = Folder::new();
    let outer = assembly(
        "cuOuter",
        "test %edi, %edi\n.globl cuInner\n.type cuInner, @function\ncuInner: endbr64\npush %rbp\nret",
    );
    let image = image(&folder.driver(&format!("{outer}.size cuInner, . - cuInner\n")));
    let (outer, inner) = (function(&image, "cuOuter"), function(&image, "cuInner"));
    assert_eq!(outer.site, outer.entry);
    assert_eq!((inner.entry - outer.entry, inner.site - inner.entry), (2, 4));
}

#[test]
fn several_names_are_one_function() {
    let folder = Folder::new();
    let names = ["__cudaLong", "cuMemAlloc_v2", "cuMemAlloc", "cuMemAllob", "_cu"];
    let same: String = names[1..]
        .iter()
        .map(|name| format!(".globl {name}\n.type {name}, @function\n.set {name}, __cudaLong\n"))
        .collect();
    let image = image(&folder.driver(&format!("{}{same}", assembly("__cudaLong", "push %rbp\nret"))));
    assert_eq!(image.functions.len(), 1);
    let one = &image.functions[0];
    assert_eq!(one.name, "cuMemAllob");
    // In the driver, only names that begin with cu are requested.
    assert_eq!(one.aliases, ["cuMemAlloc", "cuMemAlloc_v2"]);
}

#[test]
fn what_is_no_function_gets_a_reason() {
    let folder = Folder::new();
    let text = format!(
        "{}.globl cuIndirect\n.type cuIndirect, @gnu_indirect_function\ncuIndirect: ret\n\
         .globl cuBare\ncuBare: ret\n\
         .globl cuAbsolute\n.type cuAbsolute, @function\n.set cuAbsolute, 0x1234\n\
         .hidden cuHidden\n.globl cuHidden\n.type cuHidden, @function\ncuHidden: ret\n\
         .globl other\n.type other, @function\nother: jmp cuImported@plt\n\
         .data\n.globl cuData\n.type cuData, @object\n.size cuData, 4\ncuData: .long 0\n\
         .globl cuMisplaced\n.type cuMisplaced, @function\ncuMisplaced: .long 0\n",
        assembly("cuFine", "ret")
    );
    let image = image(&folder.driver(&text));
    assert_eq!((image.kind, image.soname.as_deref()), (Kind::Driver, Some("libcuda.so.1")));
    assert_eq!(image.build_id.as_deref(), Some("0123abcd"));
    let hooked: Vec<_> = image.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(hooked, ["cuFine"]);
    let is_code: Vec<_> = image.not_hooked.iter().map(|not| not.is_code).collect();
    assert_eq!(is_code, [true, true, false, true, true]);
    let why: Vec<_> =
        image.not_hooked.iter().map(|not| (not.name.as_str(), not.reason.text.as_str())).collect();
    let names: Vec<_> = why.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["cuAbsolute", "cuBare", "cuData", "cuIndirect", "cuMisplaced"]);
    for ((name, reason), expected) in
        why.iter().zip(["absolute", "not marked", "data, not code", "indirect", "no executable part"])
    {
        assert!(reason.contains(expected), "{name}: {reason}");
    }
}

#[test]
fn libraries_are_known_by_name() {
    for driver in ["libcuda.so", "libcuda.so.1", "/usr/lib/libcuda.so.535.104.05"] {
        assert_eq!(kind_of(driver), Kind::Driver, "{driver}");
    }
    for runtime in
        ["libcudart.so", "libcudart.so.12", "libcudart.8f8e3d4f.so.12", "libcudart-a7b20f20.so.11.0"]
    {
        assert_eq!(kind_of(runtime), Kind::Runtime, "{runtime}");
    }
    for nccl in ["libnccl.so", "libnccl.so.2", "libnccl.so.2.27.3", "libnccl-8f8e3d4f.so.2"] {
        assert_eq!(kind_of(nccl), Kind::Nccl, "{nccl}");
    }
    for plugin in ["libnccl-net.so", "libnccl-tuner-x.so", "libncclutil.so", "libnccl_static.a"] {
        assert_eq!(kind_of(plugin), Kind::Other, "{plugin}");
    }
    for other in
        ["libcudadebugger.so.1", "libcudadevrt.so", "libcudart_static.so", "libcudnn.so.9", "libc.so.6", ""]
    {
        assert_eq!(kind_of(other), Kind::Other, "{other}");
    }
}

const C_LIBRARY: &str = "int cudaMalloc(void) { return 1; } int __cudaRegisterFatBinary(void) { return 2; } \
    int cuInit(void) { return 3; } int main(void) { return cudaMalloc() + __cudaRegisterFatBinary() + cuInit(); }";

#[test]
fn each_library_has_its_prefix_and_its_name_may_be_the_files() {
    let folder = Folder::new();
    let runtime = folder.compile("libcudart.so.12", "c", C_LIBRARY, &["-shared", "-fPIC"]);
    let found = image(&runtime);
    assert_eq!((found.kind, found.soname.clone(), found.functions.len()), (Kind::Runtime, None, 2));
    let driver =
        folder.compile("other.so", "c", C_LIBRARY, &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let found = image(&driver);
    assert_eq!((found.kind, found.functions.len()), (Kind::Driver, 2), "cuInit and cudaMalloc begin with cu");
}

#[test]
fn a_pattern_asks_for_any_exported_function() {
    let folder = Folder::new();
    let path = folder.compile("libany.so", "c", C_LIBRARY, &["-shared", "-fPIC"]);
    let file = File::open(&path).unwrap();
    let names = |accepts: &dyn Fn(&str) -> bool| {
        let found = read(&file, "libany.so", &Want::Matching(accepts), &runtime_name).unwrap();
        found.map(|image| image.functions.into_iter().map(|f| f.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&|name| name == "main").unwrap(), ["main"]);
    assert_eq!(names(&|name| name == "nowhere"), None);
}

#[test]
fn a_static_runtime_is_found_by_its_symbols() {
    let folder = Folder::new();
    let program = folder.compile("program", "c", C_LIBRARY, &[]);
    let found = image(&program);
    let names: Vec<_> = found.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!((found.kind, names.len()), (Kind::StaticRuntime, 2), "{names:?}");
    let stripped = folder.compile("stripped", "c", C_LIBRARY, &["-s"]);
    assert!(read_path(&stripped).unwrap().is_none());
}

#[test]
fn nccl_is_a_library_or_linked_in() {
    const CODE: &str = "int ncclAllReduce(void) { return 1; } int ncclCommInitRank(void) { return 2; } \
        int pncclAllReduce(void) __attribute__((alias(\"ncclAllReduce\"))); int ncclNew(void) { return 3; } \
        int ncclTable[4]; int main(void) { return ncclAllReduce() + ncclCommInitRank() + ncclNew(); }";
    const DEVICE: &str = "char code[8] __attribute__((section(\".nv_fatbin\"))) = \"x\";";
    let folder = Folder::new();
    let known = |name: &str| ["ncclAllReduce", "pncclAllReduce", "ncclCommInitRank"].contains(&name);
    let names = |path: &std::path::Path| {
        let (file, name) = (File::open(path).unwrap(), path.file_name().unwrap().to_str().unwrap());
        let image = read(&file, name, &Want::Nccl(&known), &runtime_name).unwrap()?;
        assert!(image.kind == Kind::Nccl && image.not_hooked.is_empty());
        let with_aliases = |f: crate::Function| [vec![f.name], f.aliases].concat();
        let mut names: Vec<String> = image.functions.into_iter().flat_map(with_aliases).collect();
        names.sort();
        Some(names)
    };
    let library = folder.compile("libnccl.so.2", "c", CODE, &["-shared", "-fPIC"]);
    let all = ["ncclAllReduce", "ncclCommInitRank", "ncclNew", "pncclAllReduce"];
    assert_eq!(names(&library).unwrap(), all);
    assert_eq!(names(&folder.compile("program", "c", CODE, &[])), None, "without device code");
    let with_kernels = format!("{CODE} {DEVICE}");
    let program = folder.compile("linked", "c", &with_kernels, &[]);
    assert_eq!(names(&program).unwrap(), ["ncclAllReduce", "ncclCommInitRank", "pncclAllReduce"]);
    assert_eq!(names(&folder.compile("stripped", "c", &with_kernels, &["-s"])), None);
}

#[test]
fn a_name_alone_makes_no_runtime() {
    let folder = Folder::new();
    let program = folder.compile(
        "own",
        "c",
        "int cudaFree(void) { return 1; } int main(void) { return cudaFree(); }",
        &[],
    );
    assert!(read_path(&program).unwrap().is_none());
    folder.compile("libcudart.so", "c", C_LIBRARY, &["-shared", "-fPIC"]);
    let caller = "int cudaMalloc(void); int main(void) { return cudaMalloc(); }";
    let linked =
        folder.compile("linked", "c", caller, &["-no-pie", folder.path("libcudart.so").to_str().unwrap()]);
    assert!(read_path(&linked).unwrap().is_none(), "an import is no runtime");
}

const DEVICE_CODE: &str = "__attribute__((section(\".nv_fatbin\"), used)) static const char code[64] = {1};";

#[test]
fn a_stripped_static_runtime_is_said() {
    let folder = Folder::new();
    let source = format!("{DEVICE_CODE} int main(void) {{ return 0; }}");
    let found = image(&folder.compile("stripped", "c", &source, &["-s"]));
    assert_eq!((found.kind, found.functions.len(), found.not_hooked.len()), (Kind::StaticRuntime, 0, 1));
    assert!(found.not_hooked[0].reason.text.contains("stripped"));
    // The same device code with the shared runtime is unambiguous, whether the file names the library or leaves it to
    // the process.
    folder.compile("libcudart.so", "c", C_LIBRARY, &["-shared", "-fPIC"]);
    let source = format!("{DEVICE_CODE} int cudaMalloc(void); int go(void) {{ return cudaMalloc(); }}");
    let library = folder.path("libcudart.so");
    let needs = folder.compile("needs", "c", &source, &["-s", "-shared", "-fPIC", library.to_str().unwrap()]);
    assert!(read_path(&needs).unwrap().is_none());
    let imports = folder.compile("imports", "c", &source, &["-s", "-shared", "-fPIC"]);
    assert!(read_path(&imports).unwrap().is_none());
    // Stripped but exported: its functions can still be hooked.
    let source = format!("{DEVICE_CODE} {C_LIBRARY}");
    let found = image(&folder.compile("exports", "c", &source, &["-s", "-shared", "-fPIC"]));
    assert_eq!((found.kind, found.functions.len()), (Kind::StaticRuntime, 2));
}

#[test]
fn a_library_without_sections_is_read_as_the_loader_does() {
    for style in ["sysv", "gnu"] {
        let folder = Folder::new();
        let style = format!("-Wl,--hash-style={style}");
        let arguments = ["-shared", "-fPIC", "-Wl,-soname,libcudart.so.12", &style];
        let path = folder.compile("libcudart.so.12", "c", C_LIBRARY, &arguments);
        let whole = image(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let bare = image(&path);
        assert_eq!(format!("{:?}", whole.functions), format!("{:?}", bare.functions));
        assert_eq!((bare.functions.len(), bare.build_id.is_some()), (2, true));
    }
}

#[test]
fn aarch64_is_probed_at_the_entry() {
    let folder = Folder::new();
    let text = assembly("cuTest", ".byte 0xfd, 0x7b, 0xbf, 0xa9\nendbr64\npush %rbp\nret");
    let path = folder.driver(&format!(".balign 4\n{text}"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[18] = 183;
    std::fs::write(&path, bytes).unwrap();
    let file = File::open(&path).unwrap();
    let found =
        read_on(Machine::Aarch64, &file, "libcuda.so.1", &Want::Cuda, &runtime_name).unwrap().unwrap();
    let test = function(&found, "cuTest");
    assert_eq!((test.site, test.emulated, test.instruction.as_str()), (test.entry, false, "fd7bbfa9"));
    if cfg!(target_arch = "x86_64") {
        assert!(matches!(read_path(&path), Err(FileError::Foreign(what)) if what.contains("AARCH64")));
    }
}

#[test]
fn other_files_are_refused_in_a_sentence() {
    let folder = Folder::new();
    let path = folder.path("text");
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    assert!(matches!(read_path(&path), Err(FileError::NotElf)));
    std::fs::write(&path, b"\x7fELF\x01\x01\x01").unwrap();
    assert!(matches!(read_path(&path), Err(FileError::Malformed(_))));
    std::fs::write(&path, [b"\x7fELF\x01\x01\x01".as_slice(), &[0; 80]].concat()).unwrap();
    let refused = read_path(&path).unwrap_err();
    assert!(refused.to_string().contains("32-bit"), "{refused}");
    assert!(matches!(read_path(std::path::Path::new("/dev/zero")), Err(FileError::NotElf)));
}

/// The offsets are right if the bytes there equal those that objdump shows at the symbol.
#[test]
fn offsets_agree_with_binutils() {
    let folder = Folder::new();
    let path = folder.compile("program", "c", C_LIBRARY, &["-no-pie", "-fcf-protection=full"]);
    let Ok(nm) = Command::new("nm").arg(&path).output() else {
        println!("skipped: there is no nm on this machine (package binutils)");
        return;
    };
    let found = image(&path);
    let listing = String::from_utf8(nm.stdout).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for function in &found.functions {
        let line = listing.lines().find(|line| line.ends_with(&format!(" {}", function.name))).unwrap();
        let address = u64::from_str_radix(&line[..16], 16).unwrap();
        // A non-PIE program is linked at 4 MiB with its file mapped from there.
        assert_eq!(address - 0x400000, function.entry);
        let code = &bytes[function.entry as usize..];
        assert_eq!(site::entry(&code[..16], address).unwrap().instruction, "endbr64");
    }
}
