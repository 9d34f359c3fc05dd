//! Damaged files: each byte of a program's tables is changed, and nothing but an answer may come of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::program::{Folder, output};
use crate::stacks::native::module::Module;

const SOURCE: &str =
    "int g; int f(int n) { g += n; return n ? f(n - 1) * 2 : g; } int main(void) { return f(3); }";

#[test]
fn damaged_files_are_answered() {
    let folder = Folder::new();
    let [source, path] = ["a.c", "a"].map(|name| folder.file(name));
    std::fs::write(&source, SOURCE).unwrap();
    let flags = ["-O2", "-g", "-nostdlib", "-shared", "-fPIC", "-Wl,-z,noseparate-code"];
    output(Command::new("cc").args(flags).arg(&source).arg("-o").arg(&path));
    let good = std::fs::read(&path).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let look = || {
        let mut module = Module::read(&file);
        let addresses = (0..good.len() as u64).step_by(64).filter_map(|offset| module.address(offset));
        let addresses: Vec<u64> = addresses.collect();
        let found = addresses.iter().filter(|address| {
            let frames = module.frames(&file, **address);
            module.row(&file, **address).is_some() && frames[0].function.is_some() && frames[0].line.is_some()
        });
        found.count()
    };
    let found = look();
    assert!(found > 0, "no function in {} bytes", good.len());
    for (at, byte) in good.iter().enumerate().step_by(7) {
        for other in [0, 0xff, byte ^ 0x80, byte.wrapping_add(1)] {
            file.write_all_at(&[other], at as u64).unwrap();
            look();
        }
        file.write_all_at(&[*byte], at as u64).unwrap();
    }
    for length in (0..good.len()).rev().step_by(97) {
        file.set_len(length as u64).unwrap();
        look();
    }
}
