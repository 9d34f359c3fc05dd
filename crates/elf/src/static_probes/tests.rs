use std::fs::File;
use std::os::unix::fs::FileExt;

use super::super::tests::Folder;
use super::*;

/// As the macros of <sys/sdt.h> write a probe: `site`, `base` and `counter` are expressions.
pub fn note(site: &str, base: &str, counter: &str, texts: [&str; 3]) -> String {
    let texts = texts.map(|text| format!(".asciz \"{text}\"\n")).concat();
    format!(
        ".pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.4byte 1f - 0f, 3f - 2f, 3\n\
         0: .asciz \"stapsdt\"\n1: .balign 4\n2: .8byte {site}, {base}, {counter}\n{texts}\
         3: .balign 4\n.popsection\n"
    )
}

const BASE: &str = "_.stapsdt.base";
const ARGUMENTS: &str = if cfg!(target_arch = "x86_64") {
    "-8@%rax -1@%dl -8@%r14 -8@-56(%rbp)"
} else {
    "-8@x0 -1@w1 -8@x2 -8@[x29, -56]"
};

fn library(folder: &Folder, notes: &[String]) -> File {
    let assembly = format!(
        ".section .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n.weak {BASE}\n.hidden {BASE}\n\
         {BASE}: .space 1\n.section .probes, \"aw\"\n.balign 2\nfirst: .2byte 0\nsecond: .2byte 0\n.text\n\
         code: nop\nother: nop\nafter: ret\n.section .rodata\nconstant: .2byte 0\n{}",
        notes.concat()
    );
    let arguments = ["-shared", "-nostdlib", "-Wl,-soname,libc10_cuda.so", "-Wl,--build-id=0x0123abcd"];
    File::open(folder.compile("library", "assembler", &assembly, &arguments)).unwrap()
}

fn read(file: &File, provider: &str) -> StaticProbes {
    static_probes(file, provider).unwrap().expect("static probes")
}

fn bytes_at(file: &File, offset: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; size];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn the_places_of_a_provider() {
    let folder = Folder::new();
    let file = library(
        &folder,
        &[
            note("code", BASE, "first", ["pytorch", "malloc", ARGUMENTS]),
            note("code", BASE, "0", ["libc", "malloc", "8@%rax"]),
            note("other", BASE, "second", ["pytorch", "free", ""]),
            note("code", BASE, "0", ["pytorch", "always", "4@%xmm0"]),
        ],
    );
    let found = read(&file, "pytorch");
    assert_eq!(found.soname.as_deref(), Some("libc10_cuda.so"));
    assert_eq!(found.build_id.as_deref(), Some("0123abcd"));
    assert!(found.not_hooked.is_empty());
    let names: Vec<String> = found.list.iter().map(StaticProbe::full_name).collect();
    assert_eq!(names, ["pytorch:malloc", "pytorch:free", "pytorch:always"]);
    let [malloc, free, always] = &found.list[..] else { panic!("{found:#?}") };
    assert!(is_nop(Machine::here().unwrap(), &bytes_at(&file, malloc.site, 4)[..4]));
    assert!(free.site > malloc.site && always.site == malloc.site);
    assert_eq!(bytes_at(&file, malloc.counter.unwrap(), 4), [0; 4]);
    assert_eq!(malloc.counter.map(|at| at + 2), free.counter);
    assert_eq!((always.counter, &always.arguments[..]), (None, &[None][..]));
    assert!(free.arguments.is_empty());
    let sizes: Vec<_> = malloc.arguments.iter().flatten().map(|one| (one.size, one.signed)).collect();
    assert_eq!(sizes, [(8, true), (1, true), (8, true), (8, true)]);
    let memory = Place::Memory(Memory {
        base: Some(Register(if cfg!(target_arch = "x86_64") { 6 } else { 29 })),
        index: None,
        offset: -56,
    });
    assert_eq!(malloc.arguments[3].map(|one| one.place), Some(memory));
    assert!(static_probes(&file, "other").unwrap().is_none());
}

/// prelink, for example, changes addresses and not the notes.
#[test]
fn a_file_that_was_moved() {
    let folder = Folder::new();
    let moved = |label: &str| format!("{label} - 0x12340000");
    let file = library(
        &folder,
        &[
            note("code", BASE, "first", ["pytorch", "malloc", ""]),
            note(&moved("code"), &moved(BASE), &moved("first"), ["pytorch", "malloc", ""]),
        ],
    );
    let found = read(&file, "pytorch");
    assert_eq!(found.list.len(), 2, "{found:#?}");
    assert_eq!(found.list[0], found.list[1]);
}

#[test]
fn no_hook_where_it_would_harm() {
    let folder = Folder::new();
    let one = |name, site, counter| note(site, BASE, counter, ["pytorch", name, ""]);
    let file = library(
        &folder,
        &[
            one("code", "after", "first"),
            one("far", "code + 0x7fffffff", "first"),
            one("data", "first", "first"),
            one("constant", "code", "constant"),
            one("beyond", "code", "code + 0x7fffffff"),
        ],
    );
    let found = read(&file, "pytorch");
    assert!(found.list.is_empty());
    let codes: Vec<_> =
        found.not_hooked.iter().map(|one| (one.name.as_str(), one.reason.code.as_str())).collect();
    assert_eq!(
        codes,
        [
            ("pytorch:code", "no_instruction"),
            ("pytorch:far", "no_code"),
            ("pytorch:data", "no_code"),
            ("pytorch:constant", "no_code"),
            ("pytorch:beyond", "no_code"),
        ]
    );
    assert!(found.not_hooked.iter().all(|one| !one.is_code));
}

#[test]
fn a_file_with_very_many_places() {
    let folder = Folder::new();
    let notes: Vec<String> =
        (0..300).map(|_| note("code", BASE, "first", ["pytorch", "malloc", ARGUMENTS])).collect();
    assert_eq!(read(&library(&folder, &notes), "pytorch").list.len(), MOST);
}

fn encoded(owner: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [owner.len() as u32, content.len() as u32, kind] {
        bytes.extend(word.to_le_bytes());
    }
    for part in [owner, content] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

fn content(texts: &[u8]) -> Vec<u8> {
    let numbers = [0x10u64, 0x20, 0x30].map(u64::to_le_bytes).concat();
    [&numbers[..], texts].concat()
}

#[test]
fn damaged_notes_end_the_list() {
    let good = encoded(OWNER, NOTE_TYPE, &content(b"pytorch\0free\0-8@%rdi\0"));
    let expected = Note {
        site: 0x10,
        base: 0x20,
        counter: 0x30,
        provider: "pytorch",
        name: "free",
        arguments: "-8@%rdi",
    };
    assert_eq!(notes(&good).collect::<Vec<_>>(), [expected]);
    for other in [
        encoded(b"GNU\0", NOTE_TYPE, &content(b"a\0b\0c\0")),
        encoded(OWNER, 7, &content(b"a\0b\0c\0")),
        encoded(OWNER, NOTE_TYPE, &content(b"a\0b\0c")),
        encoded(OWNER, NOTE_TYPE, &content(b"a\0")),
        encoded(OWNER, NOTE_TYPE, &content(b"a\xff\0b\0c\0")),
        encoded(OWNER, NOTE_TYPE, b"short"),
        encoded(b"", NOTE_TYPE, b""),
    ] {
        let all = [other.as_slice(), &good].concat();
        assert_eq!(notes(&all).count(), 1, "what follows is read");
    }
    for size in [u32::MAX, u32::MAX - 2, 1 << 20] {
        for at in [0, 4] {
            let mut bytes = [good.as_slice(), &good].concat();
            bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
            assert_eq!(notes(&bytes).count(), 0);
        }
    }
    for length in 0..good.len() {
        assert!(notes(&good[..length]).count() <= 1);
    }
}

#[test]
fn arguments_are_separated_by_spaces() {
    let all = |text| words(text).collect::<Vec<_>>();
    assert_eq!(all("-8@%rax  4@$5 "), ["-8@%rax", "4@$5"]);
    assert_eq!(all("8@[sp, 8] -4@x0"), ["8@[sp, 8]", "-4@x0"]);
    assert_eq!(all("8@[sp, 8"), ["8@[sp, 8"]);
    assert!(all("").is_empty());
}
