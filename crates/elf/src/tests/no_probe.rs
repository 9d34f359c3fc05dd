//! Functions at which a probe would see no call, or more calls than there are: gpurec hooks none of them, and each
//! counts as code whose calls are not seen.

use std::path::Path;

use super::{Folder, assembly, function, image};
use crate::{Image, PAGE};

/// Asserts that each function has no probe for a reason with this text, and that `cuFine` has one.
#[track_caller]
fn refused(image: &Image, names: &[&str], why: &str) {
    let hooked: Vec<_> = image.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(hooked, ["cuFine"]);
    let refused: Vec<_> = image.not_hooked.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(refused, names);
    for one in &image.not_hooked {
        assert!(one.is_code && one.reason.text.contains(why), "{one:?}");
    }
}

fn fine() -> String {
    assembly("cuFine", "push %rbp\npop %rbp\nret")
}

#[test]
fn a_loop_at_the_entry() {
    let folder = Folder::new();
    let leaf = assembly("cuLeaf", "1: dec %edi\njnz 1b\nret");
    let emulated = assembly("cuPush", "1: nop\ndec %edi\njz 2f\njmp 1b\n2: ret");
    let far = assembly("cuWide", &format!("1: dec %edi\n{}jnz 1b\nret", "add %rax, %rdx\n".repeat(60)));
    let open = ".globl cuUnsized\n.type cuUnsized, @function\ncuUnsized: dec %edi\njnz cuUnsized\nret\n";
    let image = image(&folder.driver(&[fine(), leaf, emulated, far, open.to_owned()].concat()));
    refused(&image, &["cuLeaf", "cuPush", "cuUnsized", "cuWide"], "begins with a loop");
}

#[test]
fn no_loop_at_the_entry() {
    let folder = Folder::new();
    let after = assembly("cuAfter", "endbr64\n1: dec %edi\njnz 1b\nret");
    // A recursive call is a call.
    let calls = assembly("cuCalls", "1: dec %edi\njz 2f\ncall 1b\n2: ret");
    // The jump belongs to the next function.
    let open =
        ".globl cuOpen\n.type cuOpen, @function\ncuOpen: dec %edi\njz 1f\nret\n1: ret\nother: jmp cuOpen\n";
    let image = image(&folder.driver(&[fine(), after, calls, open.to_owned()].concat()));
    assert!(image.not_hooked.is_empty(), "{:?}", image.not_hooked);
    let after = function(&image, "cuAfter");
    assert_eq!((after.site, image.functions.len()), (after.entry, 4));
}

#[test]
fn code_without_a_type() {
    let folder = Folder::new();
    let text = format!("{}.globl cuBare\ncuBare: ret\n", fine());
    refused(&image(&folder.driver(&text)), &["cuBare"], "not marked as a function");
    // In a program with a runtime of its own.
    let runtime = format!("{}{}", assembly("cudaMalloc", "ret"), ".globl cudaFree\ncudaFree: ret\n");
    let program = folder.compile("program", "assembler", &runtime, &["-shared", "-nostdlib"]);
    let found = image(&program);
    let refused: Vec<_> = found.not_hooked.iter().map(|one| (one.name.as_str(), one.is_code)).collect();
    assert_eq!((found.functions.len(), refused), (1, vec![("cudaFree", true)]));
}

#[test]
fn code_that_can_be_written_to() {
    let folder = Folder::new();
    let text =
        format!("{}.section .patched,\"awx\",@progbits\n{}", fine(), assembly("cuPatched", "push %rbp\nret"));
    refused(&image(&folder.driver(&text)), &["cuPatched"], "writable");
}

#[test]
fn code_that_the_loader_changes() {
    let folder = Folder::new();
    let text = format!("{}{}", fine(), assembly("cuChanged", "movabs $cuFine, %rax\nret"));
    let flags = ["-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-Wl,-z,notext"];
    let found = image(&folder.compile("libcuda.so.1", "assembler", &text, &flags));
    let refused: Vec<_> = found.not_hooked.iter().map(|one| (one.name.as_str(), one.is_code)).collect();
    assert_eq!((found.functions.len(), refused), (0, vec![("cuChanged", true), ("cuFine", true)]));
    assert!(found.not_hooked[0].reason.text.contains("text relocations"));
}

/// A segment may be larger in memory than in the file, and be filled by the program.
#[test]
fn code_that_is_not_in_the_file() {
    let folder = Folder::new();
    let text = format!("{}.balign {PAGE}\n{}", fine(), assembly("cuMissing", "push %rbp\nret"));
    let path = folder.driver(&text);
    cut_code(&path);
    refused(&image(&path), &["cuMissing"], "missing from the file");
}

/// The executable segment ends in the file a page after its beginning.
fn cut_code(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let (headers, count) = (0x40, usize::from(bytes[0x38]));
    let code =
        (0..count).map(|i| headers + i * 56).find(|at| bytes[*at] == 1 && bytes[at + 4] & 1 == 1).unwrap();
    bytes[code + 32..code + 40].copy_from_slice(&PAGE.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}
