//! Builds the stand-in CUDA libraries and the demo program (C) for embedding.
//!
//! In: `functions.tsv` and the C files beside this file. Out: `OUT_DIR/demo/` with
//! `libcuda.so.1`, `libcudart.so.13` and `program`. Part of the crate's build
//! script, which includes this file as a module and calls [`build`].
//! May not read anything outside the source tree.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{env, fs};

/// Builds into `out_dir/demo`, or ends the build with one sentence that says why not.
pub fn build(out_dir: &Path) {
    if let Err(error) = try_build(out_dir) {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn try_build(out_dir: &Path) -> Result<(), String> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("src/demo");
    let out = out_dir.join("demo");
    fs::create_dir_all(&out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    for part in ["build.rs", "functions.tsv", "common", "driver", "runtime", "program"] {
        println!("cargo::rerun-if-changed={}", root.join(part).display());
    }
    let compiler = compiler()?;
    let functions = functions(&root)?;
    let driver = Library::DRIVER.start(&root, &out, &compiler, &functions)?;
    let runtime = Library::RUNTIME.start(&root, &out, &compiler, &functions)?;
    finish(driver, "libcuda.so.1")?;
    finish(runtime, "libcudart.so.13")?;
    let program = start_program(&root, &out, &compiler)?;
    finish(program, "program")
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set: run this through cargo"))
}

/// The C compiler for the target: CC_target or CC if set, else the usual name.
fn compiler() -> Result<String, String> {
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    let own = format!("CC_{}", target.replace('-', "_"));
    for name in [own.as_str(), "CC"] {
        println!("cargo::rerun-if-env-changed={name}");
        if let Ok(compiler) = env::var(name)
            && !compiler.is_empty()
        {
            return Ok(compiler);
        }
    }
    let arch = |triple: &str| triple.split('-').next().unwrap_or_default().to_owned();
    if arch(&target) == arch(&host) {
        return Ok("cc".into());
    }
    Ok(format!("{}-linux-gnu-gcc", arch(&target)))
}

struct Function {
    library: String,
    name: String,
    prologue: String,
}

fn functions(root: &Path) -> Result<Vec<Function>, String> {
    let path = root.join("functions.tsv");
    let text = read(&path)?;
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut columns = line.split('\t').map(str::to_owned);
            match (columns.next(), columns.next(), columns.next()) {
                (Some(library), Some(name), Some(prologue)) => Ok(Function { library, name, prologue }),
                _ => Err(format!("{} has a line with too few columns: {line}", path.display())),
            }
        })
        .collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

struct Library {
    /// As in functions.tsv, and the folder of the C files.
    name: &'static str,
    soname: &'static str,
    /// The version node of its symbols; the real libcuda has none.
    node: &'static str,
    exports: &'static str,
    counts_suffix: &'static str,
}

impl Library {
    const DRIVER: Library = Library {
        name: "driver",
        soname: "libcuda.so.1",
        node: "",
        exports: "cu*; standin_calls;",
        counts_suffix: ".cuda",
    };
    const RUNTIME: Library = Library {
        name: "runtime",
        soname: "libcudart.so.13",
        node: "libcudart.so.13",
        exports: "cuda*; __cuda*; standin_calls;",
        counts_suffix: ".cudart",
    };

    fn start(
        &self,
        root: &Path,
        out: &Path,
        compiler: &str,
        functions: &[Function],
    ) -> Result<Child, String> {
        let mut sources = c_files(&root.join(self.name))?;
        let implemented = implemented(&sources)?;
        sources.extend(c_files(&root.join("common"))?);
        let mine: Vec<&Function> = functions.iter().filter(|f| f.library == self.name).collect();
        let entries = out.join(format!("{}.S", self.name));
        write(&entries, &assembly(&mine, &implemented)?)?;
        let script = out.join(format!("{}.map", self.name));
        write(&script, &format!("{} {{ global: {} local: *; }};\n", self.node, self.exports))?;

        let mut command = command(compiler, root);
        command
            .args(["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs"])
            .arg(format!("-DSTANDIN_SUFFIX=\"{}\"", self.counts_suffix))
            .arg(format!("-Wl,-soname,{}", self.soname))
            .arg(format!("-Wl,--version-script={}", script.display()))
            // Not RUNPATH: with RPATH the stand-in driver is found even where
            // LD_LIBRARY_PATH leads to a real one.
            .args(["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN"])
            .args(sources)
            .arg(entries)
            .args(["-ldl", "-o"])
            .arg(out.join(self.soname));
        spawn(command, compiler)
    }
}

fn start_program(root: &Path, out: &Path, compiler: &str) -> Result<Child, String> {
    let mut command = command(compiler, root);
    command
        .args(["-fPIE", "-pie", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN"])
        // The link finds the runtime, which finds the driver by itself when it runs.
        .args(c_files(&root.join("program"))?)
        .arg(out.join("libcudart.so.13"))
        .arg("-o")
        .arg(out.join("program"));
    spawn(command, compiler)
}

fn command(compiler: &str, root: &Path) -> Command {
    // CC may carry flags, as in "ccache gcc".
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command
        .args(words)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        // Exact results on every machine, and no paths of this one.
        .arg("-ffp-contract=off")
        .arg(format!("-ffile-prefix-map={}=.", root.display()))
        .args(["-Wl,--build-id=sha1", "-Wl,-z,noexecstack"]);
    command
}

fn spawn(mut command: Command, compiler: &str) -> Result<Child, String> {
    command.spawn().map_err(|e| {
        format!(
            "cannot run the C compiler `{compiler}` ({e}): install gcc or clang (Debian: apt install gcc libc6-dev), or name one in CC"
        )
    })
}

fn finish(mut child: Child, what: &str) -> Result<(), String> {
    let status = child.wait().map_err(|e| format!("cannot wait for the C compiler: {e}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the C compiler could not build the demo's {what} ({status}): its own words are above"))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn c_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    files.sort();
    Ok(files)
}

/// Functions with behaviour of their own: lines of the C files that begin with
/// `DRIVER(name)`, `RUNTIME(name)`, `RUNTIME_AS(type, name)` or an alias of these.
fn implemented(sources: &[PathBuf]) -> Result<HashMap<String, ()>, String> {
    let mut names = HashMap::new();
    for path in sources {
        for line in read(path)?.lines() {
            let Some((keyword, rest)) = line.split_once('(') else {
                continue;
            };
            let inside = rest.split(')').next().unwrap_or_default();
            let name = match keyword {
                "DRIVER" | "RUNTIME" => inside,
                "DRIVER_ALIAS" | "RUNTIME_ALIAS" => inside.split(',').next().unwrap_or_default(),
                "RUNTIME_AS" => inside.rsplit(", ").next().unwrap_or_default(),
                _ => continue,
            };
            names.insert(name.to_owned(), ());
        }
    }
    Ok(names)
}

/// The entry of each exported function, and the tables that C code sees.
fn assembly(functions: &[&Function], implemented: &HashMap<String, ()>) -> Result<String, String> {
    for name in implemented.keys() {
        if !functions.iter().any(|f| &f.name == name) {
            return Err(format!(
                "{name} is written in C but is not in functions.tsv: one of the two is misspelt"
            ));
        }
    }
    let arm = variable("CARGO_CFG_TARGET_ARCH")? == "aarch64";
    let mut text = String::from("    .text\n");
    for (index, function) in functions.iter().enumerate() {
        let body = implementation(&function.name, implemented);
        let entry = if arm { arm_entry(index, &body) } else { x86_entry(index, &function.prologue, &body)? };
        let name = &function.name;
        let _ = write!(
            text,
            "    .globl {name}\n    .type {name}, %function\n    .p2align 4\n{name}:\n.Lentry{index}:\n    .cfi_startproc\n{entry}    .cfi_endproc\n    .size {name}, .-{name}\n"
        );
    }
    text.push_str("    .section .rodata\n");
    for (index, function) in functions.iter().enumerate() {
        let _ = writeln!(text, ".Lname{index}: .asciz \"{}\"", function.name);
    }
    let count = functions.len();
    text.push_str("    .section .data.rel.ro, \"aw\"\n    .p2align 3\n");
    text.push_str("    .globl standin_functions\n    .hidden standin_functions\nstandin_functions:\n");
    for index in 0..count {
        let _ = writeln!(text, "    .quad .Lname{index}, .Lentry{index}");
    }
    let _ = writeln!(
        text,
        "    .globl standin_function_count\n    .hidden standin_function_count\nstandin_function_count: .quad {count}"
    );
    let _ = writeln!(
        text,
        "    .bss\n    .p2align 6\n    .globl standin_counts\n    .hidden standin_counts\nstandin_counts: .zero {}",
        8 * count
    );
    text.push_str("    .section .note.GNU-stack, \"\", %progbits\n");
    Ok(text)
}

/// `_ptsz` and `_ptds` do what the function without them does; what is not
/// written in C returns 0.
fn implementation(name: &str, implemented: &HashMap<String, ()>) -> String {
    let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    if implemented.contains_key(name) {
        format!("impl_{name}")
    } else if implemented.contains_key(plain) {
        format!("impl_{plain}")
    } else {
        "standin_default".into()
    }
}

/// Counts and goes on to the C function, all registers and the stack as they
/// came. The first instructions are those of real libraries:
/// `push` libcuda 580 and libcudart, `cmp-je` libcuda 535 (compare a global with
/// a 32-bit constant, return error 4 if the driver is shut down), the rest rarer.
/// The constants are STANDIN_DOWN and STANDIN_UP of driver.h.
fn x86_entry(index: usize, prologue: &str, body: &str) -> Result<String, String> {
    let count = format!("    lock incq standin_counts+{}(%rip)\n", 8 * index);
    let push = format!(
        "    push %rbp\n    .cfi_adjust_cfa_offset 8\n    mov %rsp, %rbp\n{count}    pop %rbp\n    .cfi_adjust_cfa_offset -8\n    jmp {body}\n"
    );
    let compare = |global: &str, constant: &str, jump: &str| {
        format!(
            "    cmpl ${constant}, {global}(%rip)\n    {jump} .Ldown{index}\n{count}    jmp *.Lgo{index}(%rip)\n.Ldown{index}:\n{count}    mov $4, %eax\n    ret\n    .pushsection .data.rel.ro, \"aw\"\n    .p2align 3\n.Lgo{index}: .quad {body}\n    .popsection\n"
        )
    };
    Ok(match prologue {
        "push" => push,
        "endbr" => format!("    endbr64\n{push}"),
        "sub" => format!(
            "    sub $24, %rsp\n    .cfi_adjust_cfa_offset 24\n{count}    add $24, %rsp\n    .cfi_adjust_cfa_offset -24\n    jmp {body}\n"
        ),
        "cmp-je" => compare("standin_down", "0x321cba00", "je"),
        "cmp-jne" => compare("standin_up", "0x1badb002", "jne"),
        other => return Err(format!("functions.tsv names an unknown prologue: {other}")),
    })
}

/// One kind of entry. x9 to x11 are free at a call, arguments stay where they are.
fn arm_entry(index: usize, body: &str) -> String {
    format!(
        "    stp x29, x30, [sp, #-16]!\n    .cfi_adjust_cfa_offset 16\n    mov x29, sp\n    adrp x9, standin_counts+{at}\n    add x9, x9, :lo12:standin_counts+{at}\n1:  ldxr x10, [x9]\n    add x10, x10, #1\n    stxr w11, x10, [x9]\n    cbnz w11, 1b\n    ldp x29, x30, [sp], #16\n    .cfi_adjust_cfa_offset -16\n    b {body}\n",
        at = 8 * index
    )
}
