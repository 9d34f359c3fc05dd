//! Helpers of the tests: small ELF files built with the machine's own compiler, and short ways to read them.

mod hostile;
#[cfg(target_arch = "x86_64")]
mod no_probe;
mod object;
mod real;
#[cfg(target_arch = "x86_64")]
mod rules;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{FileError, Function, Image, Want, read};

/// A temporary folder that is removed with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpurec-elf-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Compiles `source` (C, or assembly when `language` is "assembler") with `arguments` into `name`.
    pub fn compile(&self, name: &str, language: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let (input, output) = (self.path(&format!("{name}.source")), self.path(name));
        std::fs::write(&input, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-x", language]).arg(&input).args(["-x", "none"]).args(arguments);
        let done = cc.arg("-o").arg(&output).output().expect("cc is needed for these tests");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        output
    }

    /// A libcuda made of assembly.
    pub fn driver(&self, assembly: &str) -> PathBuf {
        let arguments = ["-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-Wl,--build-id=0x0123abcd"];
        self.compile("libcuda.so.1", "assembler", assembly, &arguments)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Some names of the CUDA runtime; a real caller passes all of them.
pub fn runtime_name(name: &str) -> bool {
    ["cudaLaunchKernel", "cudaMalloc", "cudaFree", "__cudaRegisterFatBinary", "cudaGetDeviceCount"]
        .contains(&name)
}

pub fn read_path(path: &Path) -> Result<Option<Image>, FileError> {
    let file = File::open(path).unwrap();
    read(&file, path.file_name().unwrap().to_str().unwrap(), &Want::Cuda, &runtime_name)
}

pub fn image(path: &Path) -> Image {
    read_path(path).unwrap().expect("an image")
}

pub fn function<'i>(image: &'i Image, name: &str) -> &'i Function {
    let found = image.functions.iter().find(|function| function.name == name);
    found.unwrap_or_else(|| panic!("no function {name} in {image:#?}"))
}

/// An assembly function.
pub fn assembly(name: &str, body: &str) -> String {
    format!(".globl {name}\n.type {name}, @function\n{name}:\n{body}\n.size {name}, . - {name}\n")
}
