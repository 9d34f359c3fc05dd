//! Builds the injected library for embedding. In: src/, the Rust compiler that builds gpurec. Out:
//! `OUT_DIR/libgpurec_gpu.so`. Part of gpurec's build script, which includes this file as a module and calls [`build`].
//!
//! No crate of the workspace: it is a library for C, without the standard library, whatever gpurec itself is built with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Builds into `out_dir`, or ends the build with a one-sentence reason.
pub fn build(out_dir: &Path) {
    if let Err(error) = try_build(out_dir) {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn try_build(out_dir: &Path) -> Result<(), String> {
    let variable =
        |name: &str| env::var(name).map_err(|_| format!("{name} is not set: run this through cargo"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("crates/inject");
    println!("cargo::rerun-if-changed={}", root.display());
    let out = out_dir.join("libgpurec_gpu.so");
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    let mut command = Command::new(variable("RUSTC")?);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "gpurec_gpu"]);
    command.args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "strip=symbols", "-C", "debuginfo=0"]);
    // Its functions come from what the process has loaded, so it needs no library, and no version of one.
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=sha1",
        "-Wl,-soname,libgpurec_gpu.so",
    ] {
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
    command.arg(root.join("src/lib.rs")).arg("-o").arg(&out);
    let status = command.status().map_err(|error| format!("cannot run the Rust compiler: {error}"))?;
    if !status.success() || fs::metadata(&out).is_err() {
        return Err(format!(
            "the library that --gpu injects could not be built ({status}): the reason is above"
        ));
    }
    Ok(())
}
