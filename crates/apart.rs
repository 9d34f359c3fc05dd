//! Builds the files that gpurec embeds but that run outside its process: the library that `--gpu` injects, and the
//! program that asks NVML. In: crates/inject, crates/nvml, the Rust compiler that builds gpurec. Out:
//! `OUT_DIR/libgpurec_gpu.so`, `OUT_DIR/gpurec-nvml`. Part of gpurec's build script, which includes this file as a
//! module and calls [`build`].
//!
//! These are not crates of the workspace, because they need other options of the compiler: they have no standard
//! library, and use the C library and the loader of other programs, also where gpurec itself is a static binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

struct Part {
    /// The folder in crates/.
    folder: &'static str,
    name: &'static str,
    file: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
}

const INJECTED: Part = Part {
    folder: "inject",
    name: "gpurec_gpu",
    file: "libgpurec_gpu.so",
    what: "the library that --gpu injects",
    arguments: &["-Wl,-soname,libgpurec_gpu.so"],
};

/// A shared library that has an entry point and names a loader can be executed.
const NVML: Part = Part {
    folder: "nvml",
    name: "gpurec_nvml",
    file: "gpurec-nvml",
    what: "the program that asks NVML",
    // Nothing refers to the section that names the loader, so the linker would remove it.
    arguments: &["-Wl,-e,gpurec_nvml_start", "-Wl,--no-gc-sections", "-Wl,--no-as-needed"],
};

/// Stands in for NVIDIA's library when the program is linked: an empty library with its name, so that the build needs
/// no NVIDIA file and the program needs no particular version.
const NVML_LIBRARY: Part = Part {
    folder: "nvml",
    name: "libnvidia_ml",
    file: "libnvidia-ml.so.1",
    what: "an empty library",
    arguments: &["-Wl,-soname,libnvidia-ml.so.1"],
};

/// Builds into `out_dir`, or ends the build with a one-sentence reason.
pub fn build(out_dir: &Path) {
    if let Err(error) = try_build(out_dir) {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn try_build(out_dir: &Path) -> Result<(), String> {
    INJECTED.build(out_dir, "src/lib.rs", None)?;
    let named = out_dir.join("named");
    fs::create_dir_all(&named).map_err(|error| format!("cannot create {}: {error}", named.display()))?;
    let library = NVML_LIBRARY.build(&named, "src/empty.rs", None)?;
    NVML.build(out_dir, "src/lib.rs", Some(&library)).map(drop)
}

impl Part {
    /// Returns the file's path.
    fn build(&self, out_dir: &Path, source: &str, needs: Option<&Path>) -> Result<PathBuf, String> {
        let variable =
            |name: &str| env::var(name).map_err(|_| format!("{name} is not set: run this through cargo"));
        let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("crates").join(self.folder);
        println!("cargo::rerun-if-changed={}", root.display());
        let out = out_dir.join(self.file);
        let (target, host) = (variable("TARGET")?, variable("HOST")?);
        let mut command = Command::new(variable("RUSTC")?);
        command.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", self.name]);
        command.args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "strip=symbols", "-C", "debuginfo=0"]);
        // It takes the C library's functions from what its process has loaded, so it depends on no version of one.
        let all = ["-nostdlib", "-nostartfiles", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1"];
        let all = all.iter().chain(self.arguments).map(|argument| argument.to_string());
        for argument in all.chain(needs.map(|path| path.display().to_string())) {
            command.arg("-C").arg(format!("link-arg={argument}"));
        }
        if target != host {
            command.args(["--target", &target]);
            let arch = |triple: &str| triple.split('-').next().unwrap_or_default().to_owned();
            if arch(&target) != arch(&host) {
                command.arg("-C").arg(format!("linker={}-linux-gnu-gcc", arch(&target)));
            }
        }
        if target.contains("musl") {
            // Otherwise this target makes no shared libraries.
            command.args(["-C", "target-feature=-crt-static"]);
        }
        command.arg(format!("--remap-path-prefix={}=.", root.display()));
        command.arg(root.join(source)).arg("-o").arg(&out);
        let status = command.status().map_err(|error| format!("cannot run the Rust compiler: {error}"))?;
        if !status.success() || fs::metadata(&out).is_err() {
            return Err(format!("{} could not be built ({status}): the reason is above", self.what));
        }
        Ok(out)
    }
}
