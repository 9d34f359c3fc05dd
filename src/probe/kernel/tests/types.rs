//! Tests type information: hand-made, of this machine, and cut at any byte.

use crate::host::btf::{Btf, Param, Proto, Type};

#[derive(Default)]
struct Maker {
    types: Vec<u8>,
    strings: Vec<u8>,
    first_string: u32,
}

impl Maker {
    fn new(first_string: u32) -> Maker {
        let strings = if first_string == 0 { vec![0] } else { Vec::new() };
        Maker { strings, first_string, ..Maker::default() }
    }

    fn text(&mut self, text: &str) -> u32 {
        let at = self.first_string + self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn kind(&mut self, name: &str, kind: u32, members: u32, word: u32) {
        let name = if name.is_empty() { 0 } else { self.text(name) };
        self.words(&[name, kind << 24 | members, word]);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        bytes.extend([24, 0, types, types, strings].iter().flat_map(|word: &u32| word.to_le_bytes()));
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}

/// int, struct path, const struct path *, and int vfs_open(const struct path *path, int flags).
fn base() -> Vec<u8> {
    let mut maker = Maker::new(0);
    maker.kind("int", 1, 0, 4);
    maker.words(&[1 << 24 | 32]);
    maker.kind("path", 4, 0, 24);
    maker.kind("", 10, 0, 2);
    maker.kind("", 2, 0, 3);
    maker.kind("", 13, 2, 1);
    let (path, flags) = (maker.text("path"), maker.text("flags"));
    maker.words(&[path, 4, flags, 1]);
    maker.kind("vfs_open", 12, 1, 5);
    maker.bytes()
}

/// A module's type information: void uvm_thing(struct path by value, int n, ...), with the types of the base.
fn module() -> Vec<u8> {
    let strings = u32::from_le_bytes(base()[20..24].try_into().expect("four bytes"));
    let mut maker = Maker::new(strings);
    maker.kind("", 13, 3, 0);
    let (path, n) = (maker.text("where"), maker.text("n"));
    maker.words(&[path, 2, n, 1, 0, 0]);
    maker.kind("uvm_thing", 12, 0, 7);
    maker.bytes()
}

fn param(name: &str, kind: Type) -> Param {
    Param { name: name.to_owned(), kind }
}

#[test]
fn functions_of_the_kernel_and_of_a_module() {
    let (base, module) = (base(), module());
    let base = Btf::parse(&base, None).expect("BTF");
    let functions = base.functions(|_| true);
    assert_eq!(
        functions["vfs_open"],
        Proto {
            params: vec![param("path", Type::Pointer), param("flags", Type::Signed(4))],
            variadic: false,
            returns: Type::Signed(4),
        }
    );
    assert!(base.has_function("vfs_open") && !base.has_function("vfs_close"));
    let module = Btf::parse(&module, Some(&base)).expect("BTF");
    let functions = module.functions(|_| true);
    assert_eq!(functions.len(), 1);
    assert_eq!(
        functions["uvm_thing"],
        Proto {
            params: vec![param("where", Type::Struct(24)), param("n", Type::Signed(4))],
            variadic: true,
            returns: Type::Void,
        }
    );
}

#[test]
fn structures_by_value_move_the_registers() {
    let proto = |returns, kinds: &[(&str, Type)]| Proto {
        params: kinds.iter().map(|(name, kind)| param(name, *kind)).collect(),
        variadic: false,
        returns,
    };
    let places = |proto: &Proto| -> Vec<(String, u8)> {
        proto.registers().into_iter().map(|(param, register)| (param.name.clone(), register)).collect()
    };
    let small = proto(Type::Void, &[("id", Type::Struct(4)), ("p", Type::Pointer)]);
    assert_eq!(places(&small), [("p".to_owned(), 1)]);
    let pair = proto(Type::Void, &[("id", Type::Struct(16)), ("p", Type::Pointer)]);
    assert_eq!(places(&pair), [("p".to_owned(), 2)]);
    let large = proto(Type::Void, &[("id", Type::Struct(32)), ("p", Type::Pointer)]);
    assert_eq!(places(&large), [("p".to_owned(), u8::from(cfg!(target_arch = "aarch64")))]);
    let hidden = proto(Type::Struct(24), &[("p", Type::Pointer)]);
    assert_eq!(places(&hidden), [("p".to_owned(), u8::from(cfg!(target_arch = "x86_64")))]);
    assert!(hidden.against_trampoline().is_some() && large.against_trampoline().is_some());
    assert!(small.against_trampoline().is_none());
    let eight: Vec<(&str, Type)> =
        ["a", "b", "c", "d", "e", "f", "g", "h"].map(|n| (n, Type::Pointer)).to_vec();
    assert_eq!(places(&proto(Type::Void, &eight)).len(), 6);
}

#[test]
fn cut_or_garbled_bytes_never_panic() {
    let (base, module) = (base(), module());
    for end in 0..base.len() {
        if let Some(btf) = Btf::parse(&base[..end], None) {
            btf.functions(|_| true);
        }
    }
    let whole = Btf::parse(&base, None).expect("BTF");
    for at in 0..module.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = module.clone();
            bytes[at] = value;
            if let Some(btf) = Btf::parse(&bytes, Some(&whole)) {
                btf.functions(|_| true);
                btf.has_enumerator("a", "b");
            }
        }
    }
    assert!(Btf::parse(b"", None).is_none());
    assert!(Btf::parse(b"not type information at all", None).is_none());
}

#[test]
fn this_machines_kernel() {
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else { return };
    let btf = Btf::parse(&bytes, None).expect("the kernel's own BTF");
    let functions = btf.functions(|name| name == "vfs_open" || name == "vfs_write");
    let names =
        |name: &str| -> Vec<&str> { functions[name].params.iter().map(|p| p.name.as_str()).collect() };
    assert_eq!(names("vfs_open"), ["path", "file"]);
    assert_eq!(names("vfs_write"), ["file", "buf", "count", "pos"]);
    assert!(btf.has_enumerator("bpf_attach_type", "BPF_TRACE_FENTRY"));
    assert!(!btf.has_enumerator("bpf_attach_type", "BPF_TRACE_NONSENSE"));
}
