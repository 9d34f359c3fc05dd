//! Interpreters: those at hand, and small files that look like one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::interpreters;
use super::layout::of_3_14;
use crate::stacks::python::{Found, Layout, find, release};

/// Writes version, the address of _PyRuntime, and its own mapped files.
const SELF: &str = r#"
import ctypes, sys
print(sys.hexversion, ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")))
seen = set()
for line in open("/proc/self/maps"):
    words = line.split(maxsplit=5)
    if len(words) == 6 and words[5].startswith("/") and words[2] == "00000000" and words[5] not in seen:
        seen.add(words[5])
        print(words[0].split("-")[0], words[5], end="")
"#;

#[test]
fn interpreters_at_hand_are_found() {
    for command in interpreters() {
        let output = Command::new(&command[0]).args(&command[1..]).args(["-c", SELF]).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, files) = text.split_once('\n').unwrap();
        let (version, runtime) = head.split_once(' ').unwrap();
        let (version, address): (u32, u64) = (version.parse().unwrap(), runtime.parse().unwrap());
        let mut found = Vec::new();
        for line in files.lines() {
            let (base, path) = line.split_once(' ').unwrap();
            let base = u64::from_str_radix(base, 16).unwrap();
            match find(&File::open(path).unwrap()) {
                Found::None => {}
                // A program that is not relocated says where it is itself.
                Found::Python { runtime, layout } if runtime == address || base + runtime == address => {
                    found.push((path.to_owned(), layout));
                }
                other => panic!("{path}: {other:x?}, and _PyRuntime is at {address:x}"),
            }
        }
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(release(found[0].1.version), release(version), "{found:?}");
        println!("{} {:?}", found[0].0, found[0].1);
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gpurec-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// What `find` says of a file made of `source`.
    fn found(&self, source: &str, arguments: &[&str]) -> Found {
        let output = self.0.join("made");
        fs::write(self.0.join("made.c"), source).unwrap();
        let made = Command::new("cc")
            .args(["-O1", "-nostdlib", "-fPIC", "-o"])
            .arg(&output)
            .arg(self.0.join("made.c"))
            .args(arguments)
            .status();
        assert!(made.unwrap().success());
        find(&File::open(&output).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

/// `_PyRuntime` in a section of its own, with these bytes.
fn runtime(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!(
        r#"__attribute__((section(".PyRuntime"), used)) char _PyRuntime[4096] = {{{}}};"#,
        bytes.join(",")
    )
}

fn version(found: Found) -> Option<u32> {
    match found {
        Found::Python { layout, .. } => Some(layout.version),
        Found::None => None,
        Found::Refused(why) => panic!("{why}"),
    }
}

const OLD: &str = r#"
char _PyRuntime[600] = {1};
extern int snprintf(char *, unsigned long, const char *, ...);
extern const char *Py_GetCompiler(void);
static char version[250];
const char *Py_GetVersion(void)
{
    snprintf(version, sizeof version, "%.80s (%.80s)", "3.10.13+", Py_GetCompiler());
    return version;
}
"#;

#[test]
fn versions_are_read_wherever_they_are() {
    let folder = Folder::new("find");
    let shared = ["-shared", "-Wl,--hash-style=gnu"];
    assert_eq!(version(folder.found(OLD, &shared)), Some(0x030a_0df0));
    assert_eq!(version(folder.found(OLD, &["-shared", "-s", "-Wl,--hash-style=sysv"])), Some(0x030a_0df0));
    let new = format!("{} const unsigned long Py_Version = 0x030c01f0;", runtime(&[1]));
    assert_eq!(version(folder.found(&new, &shared)), Some(0x030c_01f0));
    let described = runtime(&of_3_14());
    let expected = Layout::described(&of_3_14()).unwrap().unwrap();
    match folder.found(&described, &shared) {
        Found::Python { runtime, layout } => assert_eq!((runtime % 16, layout), (0, expected)),
        other => panic!("{other:?}"),
    }
    // A program that embeds Python, without any symbol.
    let program = format!("{described} void _start(void) {{ for (;;); }}");
    let hidden = ["-s", "-pie", "-Wl,-dynamic-linker,/lib64/ld-linux-x86-64.so.2"];
    assert_eq!(version(folder.found(&program, &hidden)), Some(expected.version));
    let program = format!(
        r#"{} const char *const folders = "/usr/lib\0lib/python3.11/x\0xpython3.9"; void _start(void) {{ for (;;); }}"#,
        runtime(&[1])
    );
    assert_eq!(version(folder.found(&program, &hidden)), Some(0x030b_00f0));
}

#[test]
fn what_is_no_interpreter_is_none_and_what_lies_is_refused() {
    let folder = Folder::new("find-none");
    let shared = ["-shared"];
    assert_eq!(folder.found("int PyInit_x(void) { return 1; }", &shared), Found::None);
    // As libpython3.so is: it needs the other.
    assert_eq!(
        folder.found("extern char _PyRuntime[]; char *x(void) { return _PyRuntime; }", &shared),
        Found::None
    );
    assert_eq!(find(&File::open("/dev/null").unwrap()), Found::None);
    let refused = |source: &str| matches!(folder.found(source, &shared), Found::Refused(_));
    assert!(refused("char _PyRuntime[600] = {1};"));
    assert!(refused("char _PyRuntime[600] = {1}; const unsigned long Py_Version = 0x030e00f0;"));
    assert!(refused("char _PyRuntime[600] = {1}; const unsigned long Py_Version = 0x030800f0;"));
    let mut objects_too_large = of_3_14();
    objects_too_large[400] = 32;
    assert!(refused(&runtime(&objects_too_large)));
    let ambiguous = format!(r#"{} const char *const two = "/python3.9/\0/python3.11/";"#, runtime(&[1]));
    assert!(refused(&ambiguous));
}
