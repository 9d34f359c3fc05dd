//! Checks the wire structs against the C header, and the selection against small libraries that the tests compile.
//! Nothing is attached.

mod pages;
mod plans;

use std::fs::File;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use glob::Pattern;

use super::{capture, wire};
use crate::files::select::{ApiChoice, LibRule, Selection};
use gpurec_cuda::raw::{Count, Plan, Read, Source, What};
use gpurec_elf::{Image, Kind};

/// A folder of the test's own, deleted when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpurec-probe-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn compile(&self, name: &str, language: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let (input, output) = (self.0.join("source"), self.0.join(name));
        std::fs::create_dir_all(output.parent().unwrap()).unwrap();
        std::fs::write(&input, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-x", language]).arg(&input).args(["-x", "none"]).args(arguments);
        let done = cc.arg("-o").arg(&output).output().expect("cc is needed for these tests");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        output
    }

    /// A library with these functions; those that begin with `=` are data.
    fn library(&self, name: &str, soname: &str, symbols: &[&str]) -> PathBuf {
        let mut source = String::new();
        for (i, symbol) in symbols.iter().enumerate() {
            source += &match symbol.strip_prefix('=') {
                Some(data) => format!("int {data} = 7;\n"),
                None => format!("int {symbol}(int x) {{ return x * {i} + 5; }}\n"),
            };
        }
        let soname = format!("-Wl,-soname,{soname}");
        self.compile(name, "c", &source, &["-shared", "-fPIC", "-nostdlib", &soname])
    }

    fn driver(&self) -> PathBuf {
        let symbols = ["cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxCreate", "=cudbgData", "other_thing"];
        self.library("libcuda.so.1", "libcuda.so.1", &symbols)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn patterns(all: &[&str]) -> Vec<Pattern> {
    all.iter().map(|one| Pattern::new(one).unwrap()).collect()
}

fn selection(only: &[&str], skip: &[&str], api: ApiChoice, libs: &[&str]) -> Selection {
    let libs = libs.iter().map(|text| LibRule::parse(text).unwrap()).collect();
    Selection { only: patterns(only), skip: patterns(skip), api, libs, blocks: true, ..Selection::default() }
}

fn examine(selection: &Selection, path: &Path) -> Option<Image> {
    selection.examine(&File::open(path).unwrap(), path).unwrap()
}

/// Names of the functions to be hooked, sorted.
fn hooked(selection: &Selection, path: &Path) -> Vec<String> {
    let image = examine(selection, path);
    let mut names: Vec<String> = image.into_iter().flat_map(|i| i.functions).map(|f| f.name).collect();
    names.sort_unstable();
    names
}

fn not_hooked(selection: &Selection, path: &Path) -> Vec<String> {
    examine(selection, path).into_iter().flat_map(|i| i.not_hooked).map(|n| n.name).collect()
}

/// For each struct the size, and the offset of each field: Rust's values, and a C program that prints the header's.
macro_rules! layouts {
    ($($c:literal $rust:ident { $($field:ident),* })*) => {{
        let mut believed = Vec::new();
        let mut source = String::from("#include <stdio.h>\n#include <stddef.h>\n#include \"gpurec.h\"\n");
        source += "#define SIZE(s) printf(#s \" %zu\\n\", sizeof(struct s))\n";
        source += "#define AT(s, f) printf(#s \".\" #f \" %zu\\n\", offsetof(struct s, f))\n";
        source += "int main(void) {\n";
        $(
            believed.push(format!("{} {}", $c, size_of::<wire::$rust>()));
            source += &format!("SIZE({});\n", $c);
            $(
                let field = stringify!($field);
                believed.push(format!("{}.{field} {}", $c, offset_of!(wire::$rust, $field)));
                source += &format!("AT({}, {field});\n", $c);
            )*
        )*
        source += "return 0; }\n";
        (believed, source)
    }};
}

#[test]
fn every_struct_is_laid_out_as_the_header_says() {
    let (believed, source) = layouts! {
        "gpurec_head" Head { ts, tid, seq, kind, flags, probe }
        "gpurec_call" Call { head, pid, payload, words, sp, args }
        "gpurec_return" Return { head, begin, value, payload, pad }
        "gpurec_read" Read { kind, source, count, pad, source_offset, count_offset, size, each }
        "gpurec_capture" Capture { words, entry_reads, exit_reads, also, pad, entry, exit }
        "gpurec_piece" Piece { state, length, late }
        "gpurec_fork" Fork { head, pid, child }
        "gpurec_exit" Exit { head, pid, status }
        "gpurec_exec" Exec { head, pid, length, command }
        "gpurec_file" FileKey { inode, device, generation, changed, size }
        "gpurec_new_file" NewFile { head, pid, fd, address, file, name }
        "gpurec_lost" Lost { calls, returns }
        "gpurec_lost_total" LostTotal { calls, returns, fork, exec, exit, file, stack }
        "gpurec_config" Config {
            everyone, follow, call_limit, pause_at, near_size, far_size, far_at, secret, tick_ns, probe, scratches, budget,
            early_frames, recorder, pause_user, stacks, native
        }
        "gpurec_positions" Positions { head, pad, tail, pad2 }
        "gpurec_instant" Instant { head, pid, cpu, duration, args, payload, pad }
        "gpurec_hook" Hook { role, scope, entry_reads, exit_reads, context, pad, entry, exit }
        "gpurec_driver" Driver {
            ioctl, uvm_ioctl, modeset_ioctl, other_ioctl, open, close, mmap, poll, irq, off_cpu, xid, by_function
        }
        "gpurec_ioctl_key" IoctlKey { family, nr }
        "gpurec_ioctl_shape" IoctlShape {
            entry, exit, second_at, second_size, status, has_status, second_inline
        }
        "gpurec_stack" Stack { head, pid, natives, pythons, key, seed }
        "gpurec_block" Block { head, pid, operation, known, sp, stack, arguments }
        "gpurec_site" Site { operation, pad, arguments }
        "gpurec_argument" Argument { kind, size, is_signed, shift, base, index, value }
        "gpurec_unwind" Unwind { head, pid, size, seed, ip, sp, bp, has_registers }
        "gpurec_rule" Rule { kind, frame, bp, saves_bp }
        "gpurec_mapped" Mapped { head, pid, number, start, end, offset, file }
        "gpurec_frame" Frame { code, position, owner }
        "gpurec_code" Code {
            head, pid, version, code, first_line, first_traceable, lines, at, part, name, file, name_state,
            file_state
        }
        "gpurec_python" Python {
            version, interpreters_head, interpreter_next, threads_head, thread_next, thread_id, id_is_pthread,
            thread_frame, thread_from, thread_size, cframe_frame, frame_size, frame_code, frame_previous, frame_instruction, frame_owner, frame_entry,
            thread_base_frame, owner_limit, instruction_kind, code_mask, code_from, code_size, check_texts, code_filename, code_name,
            code_firstlineno, code_linetable, code_adaptive, code_first_traceable, unicode_length, unicode_state,
            ascii_data, unicode_data, bytes_size, bytes_data
        }
        "gpurec_python_at" PythonAt { runtime, layout, mappings, sent, pad }
        "gpurec_seen" Seen { from_code, layout, no_hooks }
        "gpurec_state" State { phase, kernel, may_pause }
        "gpurec_pulse" Pulse { alive_ns, stop_allowed }
    };
    let folder = Folder::new();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/bpf");
    let program = folder.compile("layout", "c", &source, &[include]);
    let said = Command::new(program).output().unwrap().stdout;
    let said: Vec<&str> = std::str::from_utf8(&said).unwrap().lines().collect();
    assert_eq!(believed, said);
}

#[test]
fn kinds_and_flags_are_those_of_the_header() {
    let folder = Folder::new();
    let names = [
        ("GPUREC_CALL", u32::from(wire::CALL)),
        ("GPUREC_RETURN", wire::RETURN.into()),
        ("GPUREC_FORK", wire::FORK.into()),
        ("GPUREC_EXEC", wire::EXEC.into()),
        ("GPUREC_EXIT", wire::EXIT.into()),
        ("GPUREC_CHAINED", wire::CHAINED.into()),
        ("GPUREC_PROCESS_ENDED", wire::PROCESS_ENDED.into()),
        ("GPUREC_CUT", wire::CUT.into()),
        ("GPUREC_STOPPED", wire::STOPPED.into()),
        ("GPUREC_PROGRAM", wire::PROGRAM.into()),
        ("GPUREC_WATCHED", wire::WATCHED.into()),
        ("GPUREC_CHANGEABLE", wire::CHANGEABLE.into()),
        ("GPUREC_LEFT_CALLS", wire::LEFT_CALLS.into()),
        ("GPUREC_PIECE_READ", wire::PIECE_READ.into()),
        ("GPUREC_PIECE_NULL", wire::PIECE_NULL.into()),
        ("GPUREC_PIECE_CUT", wire::PIECE_CUT.into()),
        ("GPUREC_READ_BYTES", wire::READ_BYTES.into()),
        ("GPUREC_READ_COUNTED", wire::READ_COUNTED.into()),
        ("GPUREC_READ_TEXT", wire::READ_TEXT.into()),
        ("GPUREC_READ_TEXT_THROUGH", wire::READ_TEXT_THROUGH.into()),
        ("GPUREC_INSIDE", wire::INSIDE.into()),
        ("GPUREC_READS", wire::READS as u32),
        ("GPUREC_WORDS", wire::WORDS.into()),
        ("GPUREC_KERNEL", wire::KERNEL.into()),
        ("GPUREC_KERNEL_THREAD", wire::KERNEL_THREAD.into()),
        ("GPUREC_WRAPPED", wire::WRAPPED.into()),
        ("GPUREC_INSTANT", wire::INSTANT.into()),
        ("GPUREC_TARGETS", wire::TARGETS.into()),
        ("GPUREC_DRIVER", wire::DRIVER.into()),
        ("GPUREC_EVERYBODY", wire::EVERYBODY.into()),
        ("GPUREC_FUNCTION", wire::ROLE_FUNCTION.into()),
        ("GPUREC_IOCTL", wire::ROLE_IOCTL.into()),
        ("GPUREC_IOCTL_INODE", wire::ROLE_IOCTL_INODE.into()),
        ("GPUREC_XID", wire::ROLE_XID.into()),
        ("GPUREC_TOP_HALF", wire::ROLE_TOP_HALF.into()),
        ("GPUREC_BY_FUNCTION", wire::BY_FUNCTION),
        ("GPUREC_SPECIAL_BY_FUNCTION", wire::SPECIAL_BY_FUNCTION),
        ("GPUREC_HOOK_PIECE", wire::HOOK_PIECE.into()),
        ("GPUREC_MAX_PROBES", wire::MAX_PROBES),
        ("GPUREC_MAX_CPUS", wire::MAX_CPUS),
        ("GPUREC_ENTRY", wire::ENTRY),
    ];
    let checks: String =
        names.iter().map(|(name, value)| format!("_Static_assert({name} == {value}, \"\");\n")).collect();
    let source = format!("#include \"gpurec.h\"\n{checks}int main(void) {{ return 0; }}\n");
    folder.compile("kinds", "c", &source, &[concat!("-I", env!("CARGO_MANIFEST_DIR"), "/bpf")]);
}

/// `bytes` gives every byte of a value, so none may be padding.
#[test]
fn no_struct_has_padding() {
    assert_eq!(size_of::<wire::Head>(), 8 + 4 + 4 + 2 + 2 + 4);
    let head = size_of::<wire::Head>();
    assert_eq!(size_of::<wire::Call>(), head + 4 + 4 + 8 + 6 * 8);
    assert_eq!(size_of::<wire::Return>(), head + 8 + 8 + 4 + 4);
    assert_eq!(size_of::<wire::Piece>(), 2 + 2 + 4);
    assert_eq!(size_of::<wire::Read>(), 4 + 4 * 2);
    assert_eq!(size_of::<wire::Capture>(), 8 + 8 * size_of::<wire::Read>());
    assert_eq!(size_of::<wire::Fork>(), head + 4 + 4);
    assert_eq!(size_of::<wire::Exit>(), head + 4 + 4);
    assert_eq!(size_of::<wire::Exec>(), head + 4 + 4 + 4096);
    assert_eq!(size_of::<wire::FileKey>(), 8 + 4 + 4 + 8 + 8);
    assert_eq!(size_of::<wire::NewFile>(), head + 4 + 4 + 8 + 32 + 32);
    assert_eq!(size_of::<wire::Lost>(), 16);
    assert_eq!(size_of::<wire::LostTotal>(), 56);
    assert_eq!(size_of::<wire::Config>(), 4 + 4 + 7 * 8 + 8 * 4);
    assert_eq!(size_of::<wire::Instant>(), head + 4 + 4 + 8 + 6 * 8 + 4 + 4);
    assert_eq!(size_of::<wire::Hook>(), 4 + 2 * 2 + 6 * size_of::<wire::Read>());
    assert_eq!(size_of::<wire::Driver>(), 12 * 4);
    assert_eq!(size_of::<wire::IoctlKey>(), 4 + 4);
    assert_eq!(size_of::<wire::IoctlShape>(), 6 * 2 + 4);
    assert_eq!(size_of::<wire::State>(), 3 * 4);
    assert_eq!(size_of::<wire::Pulse>(), 16);
    assert_eq!(size_of::<wire::Positions>(), 16 * 8);
}

#[test]
fn a_value_is_its_bytes_at_any_address() {
    let value = wire::Return {
        head: wire::Head { ts: 1, tid: 2, seq: 3, kind: 4, flags: 5, probe: 6 },
        begin: u64::MAX,
        value: 1 << 63,
        payload: u32::MAX,
        pad: 7,
    };
    let bytes = wire::bytes(&value);
    assert_eq!(bytes.len(), 48);
    for shift in 0..8 {
        let shifted = [&vec![0xff; shift][..], bytes, &[0xff; 3]].concat();
        let read: wire::Return = wire::read(&shifted[shift..]).unwrap();
        assert_eq!(wire::bytes(&read), bytes);
    }
    for length in 0..bytes.len() {
        assert!(wire::read::<wire::Return>(&bytes[..length]).is_none(), "{length}");
    }
}

fn wanted(from: Source, what: What) -> Read {
    Read { param: 0, from, what }
}

/// Words alone, entry reads alone or exit reads alone require a capture.
#[test]
fn words_or_reads_alone_are_captured() {
    let read = || vec![wanted(Source::Word(1), What::Bytes(8))];
    let plans = [
        Plan { stack_words: 1, ..Plan::default() },
        Plan { entry: read(), ..Plan::default() },
        Plan { exit: read(), ..Plan::default() },
    ];
    let reported = plans.map(|plan| capture::capture(&plan).unwrap());
    assert_eq!(reported.map(|c| (c.words, c.entry_reads, c.exit_reads)), [(1, 0, 0), (0, 1, 0), (0, 0, 1)]);
}

#[test]
fn a_cookie_says_what_little_is_wanted() {
    let out = |word, size| vec![wanted(Source::Word(word), What::Bytes(size))];
    let says = |plan: Plan| {
        let cookie = capture::cookie(7, Some(&plan));
        (cookie as u32, (cookie >> 32) as u8, (cookie >> 40) as u8, (cookie >> 48) as u16)
    };
    assert_eq!(capture::cookie(7, None), 7 | 1 << 32, "nothing is known of it: registers, and the value");
    assert_eq!(says(Plan::default()), (7, wire::WANTS_NOTHING, 0, 0));
    assert_eq!(says(Plan { exit: out(5, 64), ..Plan::default() }), (7, wire::WANTS_OUT, 5, 64));
    assert_eq!(says(Plan { stack_words: 6, ..Plan::default() }), (7, wire::WANTS_WORDS, 6, 0));
    let more = [
        Plan { exit: out(6, 8), ..Plan::default() },
        Plan { exit: out(0, 65), ..Plan::default() },
        Plan { exit: [out(0, 8), out(1, 8)].concat(), ..Plan::default() },
        Plan { stack_words: 1, exit: out(0, 8), ..Plan::default() },
        Plan { entry: out(0, 8), ..Plan::default() },
        Plan { stack_words: 7, ..Plan::default() },
        Plan { also: 7, exit: out(0, 8), ..Plan::default() },
    ];
    assert!(more.into_iter().all(|plan| says(plan) == (7, wire::WANTS_CAPTURE, 0, 0)));
}

#[test]
fn a_plan_never_asks_for_more_than_bpf_takes() {
    let many = || (0..9).map(|n| wanted(Source::Word(n), What::Bytes(8))).collect::<Vec<_>>();
    let reported =
        capture::capture(&Plan { stack_words: 200, entry: many(), exit: many(), also: 0 }).unwrap();
    assert_eq!((reported.words, reported.entry_reads, reported.exit_reads), (16, 4, 4));
    let huge = What::Counted { count: Count::Word(0), each: 60_000, max: 60_000 };
    let huge = Plan { entry: vec![wanted(Source::Word(1), huge)], ..Plan::default() };
    assert_eq!(capture::capture(&huge).unwrap().entry[0].size, u16::MAX);
}

/// Every plan of the table fits into the records.
#[test]
fn every_plan_of_the_table_fits() {
    let mut most = 0;
    for signature in gpurec_cuda::all() {
        let plan = &signature.plan;
        assert!(plan.stack_words <= wire::WORDS, "{}", signature.name);
        assert!(plan.entry.len() <= wire::READS && plan.exit.len() <= wire::READS, "{}", signature.name);
        let room = |reads: &[Read]| -> usize {
            let plan = Plan { entry: reads.to_vec(), ..Plan::default() };
            let reported = capture::capture(&plan).unwrap_or_default();
            assert!(reported.entry.iter().all(|read| read.size <= 4096), "{}", signature.name);
            reported.entry[..reads.len()].iter().map(|r| 8 + usize::from(r.size).next_multiple_of(8)).sum()
        };
        let all = (usize::from(plan.stack_words) * 8 + room(&plan.entry)).max(room(&plan.exit));
        assert!(all <= 8192, "{}: {all} bytes", signature.name);
        most = most.max(all);
    }
    assert!(most > 4096, "{most}");
}

#[test]
fn a_lib_rule_is_a_file_and_a_pattern() {
    let folder = Folder::new();
    let library = folder.library("libx.so", "libreal.so.3", &["xOne", "xTwo", "yOne"]);
    let path = library.to_str().unwrap();
    let all = ["xOne", "xTwo", "yOne"];
    for (text, expected) in [
        (path.to_owned(), &all[..]),
        (format!("{path}:*"), &all),
        (format!("{path}:x*"), &["xOne", "xTwo"]),
        (format!("{path}:?One"), &["xOne", "yOne"]),
        (format!("{path}:[!x]*"), &["yOne"]),
        (format!("{path}:xTwo"), &["xTwo"]),
        (format!("{path}:none*"), &[]),
        // By its file name, and by its SONAME.
        ("libx.so:x*".to_owned(), &["xOne", "xTwo"]),
        ("libreal.so.3:y*".to_owned(), &["yOne"]),
        ("libreal.so".to_owned(), &[]),
        ("libx".to_owned(), &[]),
    ] {
        assert_eq!(hooked(&selection(&[], &[], ApiChoice::All, &[&text]), &library), expected, "{text}");
    }
}

#[test]
fn a_path_names_a_file_and_not_every_file_of_that_name() {
    let folder = Folder::new();
    let named = folder.library("a/libx.so", "libx.so", &["xOne"]);
    let other = folder.library("b/libx.so", "libx.so", &["xOne"]);
    let link = folder.0.join("link.so");
    std::os::unix::fs::symlink(&named, &link).unwrap();
    let selection = selection(&[], &[], ApiChoice::All, &[link.to_str().unwrap()]);
    assert_eq!(hooked(&selection, &named), ["xOne"]);
    assert_eq!(hooked(&selection, &other), [""; 0]);
    assert!(selection.has_libs());
    assert_eq!(selection.lib_paths(), [link]);
}

#[test]
fn a_colon_in_a_folder_belongs_to_the_path() {
    let folder = Folder::new();
    let library = folder.library("pci:0000:01/libx.so", "libx.so", &["xOne", "yOne"]);
    let path = library.to_str().unwrap();
    let all = |text: &str| hooked(&selection(&[], &[], ApiChoice::All, &[text]), &library);
    assert_eq!(all(path), ["xOne", "yOne"]);
    assert_eq!(all(&format!("{path}:y*")), ["yOne"]);
}

#[test]
fn a_colon_in_the_name_of_a_file_that_exists_belongs_to_the_path() {
    let folder = Folder::new();
    let library = folder.library("lib:x.so", "libx.so", &["xOne", "yOne"]);
    let path = library.to_str().unwrap();
    assert_eq!(hooked(&selection(&[], &[], ApiChoice::All, &[&format!("{path}:y*")]), &library), ["yOne"]);
    let whole = LibRule::parse(path).map_err(|error| format!("{error:#}"));
    let libs = vec![whole.unwrap()];
    assert_eq!(hooked(&Selection { libs, ..Selection::default() }, &library), ["xOne", "yOne"]);
}

#[test]
fn bad_rules_are_refused_in_a_sentence() {
    for (text, said) in [
        ("libx.so:[a", "pattern"),
        ("libx.so:a**b", "pattern"),
        ("/no/such/libx.so", "cannot open it"),
        ("/no/such/libx.so:x*", "cannot open it"),
        ("./none.so", "cannot open it"),
    ] {
        let error = format!("{:#}", LibRule::parse(text).unwrap_err());
        assert!(error.contains(said) && error.contains("--lib"), "{text}: {error}");
    }
}

/// A rule that cannot match a file, or a function, is a typing error.
#[test]
fn a_rule_without_a_file_or_without_a_pattern_is_refused() {
    for text in ["", ":nccl*", "libnccl.so.2:"] {
        assert!(LibRule::parse(text).is_err(), "{text:?} was taken");
    }
}

#[test]
fn only_and_skip_choose_among_cuda_functions() {
    let folder = Folder::new();
    let driver = folder.driver();
    let all = ["cuCtxCreate", "cuInit", "cuMemAlloc_v2", "cuMemFree_v2"];
    let cases: [(&[&str], &[&str], &[&str]); 6] = [
        (&[], &[], &all),
        (&["cuMem*"], &[], &all[2..]),
        (&["cuMem*", "cuInit"], &[], &all[1..]),
        (&[], &["cuMem*"], &all[..2]),
        (&["cu*"], &["cuMem*", "*Create"], &["cuInit"]),
        (&["nothing"], &[], &[]),
    ];
    for (only, skip, expected) in cases {
        let selection = selection(only, skip, ApiChoice::All, &[]);
        assert_eq!(hooked(&selection, &driver), expected, "only {only:?} skip {skip:?}");
    }
    let data =
        |only: &[&str], skip: &[&str]| not_hooked(&selection(only, skip, ApiChoice::All, &[]), &driver);
    assert_eq!(data(&[], &[]), ["cudbgData"]);
    assert_eq!(data(&["cuMem*"], &[]), [""; 0], "what was not asked for is not missing");
    assert_eq!(data(&[], &["cudbg*"]), [""; 0]);
}

#[test]
fn api_chooses_the_library() {
    let folder = Folder::new();
    let driver = folder.driver();
    let runtime = folder.library("libcudart.so.12", "libcudart.so.12", &["cudaMalloc", "cudaFree"]);
    for (api, of_driver, of_runtime) in
        [(ApiChoice::All, 4, 2), (ApiChoice::Driver, 4, 0), (ApiChoice::Runtime, 0, 2)]
    {
        let selection = selection(&[], &[], api, &[]);
        assert_eq!(hooked(&selection, &driver).len(), of_driver, "{api:?}");
        assert_eq!(hooked(&selection, &runtime).len(), of_runtime, "{api:?}");
        assert_eq!(examine(&selection, &driver).is_some(), of_driver > 0);
    }
}

#[test]
fn what_was_not_asked_for_is_nothing() {
    let folder = Folder::new();
    let other = folder.library("libother.so", "libother.so", &["cuserid", "xOne"]);
    let text = folder.0.join("text.so");
    std::fs::write(&text, "no ELF\n").unwrap();
    for selection in [Selection::default(), selection(&[], &[], ApiChoice::All, &["libelse.so"])] {
        assert!(examine(&selection, &other).is_none());
        assert!(examine(&selection, &text).is_none());
    }
}

#[test]
fn a_file_that_was_asked_for_and_cannot_be_read_is_an_error() {
    let folder = Folder::new();
    let path = folder.0.join("libcuda.so.1");
    let whole = std::fs::read(folder.driver()).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 3]).unwrap();
    let error = Selection::default().examine(&File::open(&path).unwrap(), &path).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    let text = folder.0.join("text.so");
    std::fs::write(&text, "no ELF\n").unwrap();
    let named = selection(&[], &[], ApiChoice::All, &["text.so"]);
    let error = named.examine(&File::open(&text).unwrap(), &text).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("--lib") && error.contains("not an ELF file"), "{error}");
}

#[test]
fn lib_and_cuda_in_one_file_are_one_image() {
    let folder = Folder::new();
    let driver = folder.driver();
    let case = |only: &[&str], api, lib: &str| {
        let selection = selection(only, &[], api, &[lib]);
        (hooked(&selection, &driver), not_hooked(&selection, &driver))
    };
    let words = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let all = ["cuCtxCreate", "cuInit", "cuMemAlloc_v2", "cuMemFree_v2"];
    let with_other = words(&[&all[..], &["other_thing"]].concat());
    assert_eq!(case(&[], ApiChoice::All, "libcuda.so.1:other*"), (with_other.clone(), words(&["cudbgData"])));
    assert_eq!(case(&[], ApiChoice::All, "libcuda.so.1"), (with_other, words(&["cudbgData"])), "each once");
    // A --lib rule has its own pattern, so --only and --api do not apply to it.
    let few = words(&["cuInit", "other_thing"]);
    assert_eq!(case(&["cuInit"], ApiChoice::All, "libcuda.so.1:other*").0, few);
    assert_eq!(case(&[], ApiChoice::Runtime, "libcuda.so.1:cuMem*").0, words(&all[2..]));
    let image = examine(&selection(&[], &[], ApiChoice::All, &["libcuda.so.1:other*"]), &driver).unwrap();
    assert_eq!(image.kind, Kind::Driver);
}

#[test]
fn rules_for_one_file_add_up_and_name_each_thing_once() {
    let folder = Folder::new();
    let library = folder.library("libx.so", "libx.so", &["xOne", "xTwo", "yOne", "=xData"]);
    let selection = selection(&[], &[], ApiChoice::All, &["libx.so:x*", "libx.so:*One", "libx.so:xD*"]);
    assert_eq!(hooked(&selection, &library), ["xOne", "xTwo", "yOne"]);
    assert_eq!(not_hooked(&selection, &library), ["xData"]);
}

/// All names of one code address are one probe: a pattern that matches any of them selects it.
#[test]
fn only_finds_a_function_by_each_of_its_names() {
    let folder = Folder::new();
    let source = "int cuMemGet(int x) { return x + 1; }\n\
                  int cuMemGet_v2(int x) __attribute__((alias(\"cuMemGet\")));\n\
                  int cuInit(int x) { return x + 2; }\n";
    let arguments = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1"];
    let driver = folder.compile("libcuda.so.1", "c", source, &arguments);
    let only = |name: &str| hooked(&selection(&[name], &[], ApiChoice::All, &[]), &driver).len();
    assert_eq!((only("cuMemGet"), only("cuMemGet_v2"), only("cuMemGet*")), (1, 1, 1));
}

/// Two names of one address, but only one has a size: only one of the rules then finds the best place for the probe.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_function_is_never_hooked_twice() {
    let folder = Folder::new();
    let source = ".text\n.globl cuOne, xOne\n.type cuOne, @function\n.type xOne, @function\n\
                  cuOne:\nxOne:\ncmpl $5, word(%rip)\nje 1f\nnop\n1: ret\n.size xOne, . - xOne\n\
                  .data\nword: .quad 0\n";
    let arguments = ["-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1"];
    let driver = folder.compile("libcuda.so.1", "assembler", source, &arguments);
    let selection = selection(&[], &[], ApiChoice::All, &["libcuda.so.1:x*"]);
    let functions = examine(&selection, &driver).unwrap().functions;
    assert_eq!(functions.len(), 1, "{functions:#?}");
}

/// Attaches places in parts, where Linux refuses the `bad` ones. Returns the number attached, the refused places, and
/// the number of tries.
fn parts(places: usize, each: bool, bad: &[usize]) -> (usize, Vec<usize>, usize) {
    let mut tries = 0;
    let done = super::attach::attach_parts(places, each, &mut |part| {
        tries += 1;
        anyhow::ensure!(!part.clone().any(|place| bad.contains(&place)), "no");
        Ok(part.collect::<Vec<usize>>())
    });
    let Ok(done) = done else { return (0, (0..places).collect(), tries) };
    let mut taken: Vec<usize> = done.taken.into_iter().flat_map(|(_, links)| links).collect();
    let mut refused: Vec<usize> = done.refused.iter().map(|one| one.index).collect();
    let count = taken.len();
    taken.append(&mut refused.clone());
    taken.sort_unstable();
    assert_eq!(taken, (0..places).collect::<Vec<_>>(), "each place once");
    refused.sort_unstable();
    (count, refused, tries)
}

#[test]
fn what_is_refused_among_many_is_found_and_the_rest_attached() {
    assert_eq!(parts(1000, false, &[]), (1000, vec![], 1));
    let (taken, refused, tries) = parts(1000, false, &[17, 500, 999]);
    assert_eq!((taken, refused), (997, vec![17, 500, 999]));
    assert!(tries < 70, "{tries}");
    assert_eq!(parts(5, true, &[4]), (4, vec![4], 5));
    assert_eq!(parts(1, false, &[0]), (0, vec![0], 1));
}

#[test]
fn where_everything_is_refused_not_everything_is_tried() {
    let all: Vec<usize> = (0..1000).collect();
    for each in [false, true] {
        let (taken, refused, tries) = parts(1000, each, &all);
        assert!(taken == 0 && refused.len() == 1000 && tries < 50, "{tries}");
    }
    // Places that were attached before stay attached.
    let (taken, refused, _) = parts(1000, true, &all[100..]);
    assert_eq!((taken, refused.len()), (100, 900));
}
