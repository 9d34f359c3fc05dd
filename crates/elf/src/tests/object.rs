//! What unwinding and naming need of a file, compared with what hooking finds in it.

use std::collections::HashMap;
use std::fs::File;

use super::super::{Object, bytes, function_symbols};
use super::Folder;

#[test]
fn functions_are_where_hooking_finds_them() {
    let folder = Folder::new();
    let source = "int first(int n) { return n; } __attribute__((weak)) int second(void) { return 2; } \
        __attribute__((noinline, used)) static int third(void) { return 3; } int main(void) { return first(second()) + third(); }";
    for arguments in [&["-pie", "-fPIE", "-g"][..], &["-no-pie", "-g"]] {
        let path = folder.compile("object", "c", source, arguments);
        let file = File::open(path).unwrap();
        let object = Object::read(&file).unwrap();
        let table = object.full.unwrap();
        let mut found = HashMap::new();
        object
            .code(&file, table, &mut |code| _ = found.insert(table.name(&file, code.name).unwrap(), code))
            .unwrap();
        for symbol in function_symbols(&file) {
            let code = found[&symbol.name];
            assert_eq!(object.address_of(symbol.offset), Some(code.address), "{}", symbol.name);
            assert!(code.end > code.address, "{}", symbol.name);
            let entry = bytes(&file, symbol.offset, 1).unwrap();
            assert_eq!(object.at(&file, code.address, 1), Some(entry), "{}", symbol.name);
        }
        let rank = |name: &str| (found[name].rank, found[name].sized);
        assert_eq!([rank("first"), rank("second"), rank("third")], [(0, true), (1, true), (2, true)]);
        assert!(object.unwind_index.is_some() && object.dynamic.is_some());
        assert!(object.section(".debug_info").is_some() && object.section(".text").is_none());
        assert_eq!(object.address_of(u64::MAX), None);
        assert_eq!(object.at(&file, u64::MAX, 8), None);
    }
}

/// A library in the place of NVIDIA's: its SONAME says nothing, but its file has the name.
#[test]
fn a_driver_by_the_name_of_its_file() {
    let folder = Folder::new();
    let text = super::assembly("cuInit", "ret");
    let flags = ["-shared", "-nostdlib", "-Wl,-soname,libshim.so.1"];
    let path = folder.compile("libcuda.so.1", "assembler", &text, &flags);
    let found = super::image(&path);
    assert_eq!((found.kind, found.functions.len()), (crate::Kind::Driver, 1));
    assert_eq!(found.soname.as_deref(), Some("libshim.so.1"));
}
