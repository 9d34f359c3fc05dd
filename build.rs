// Builds a skeleton of every bpf/*.bpf.c, the demo's stand-in libraries, the library that --gpu injects, and the
// program that asks NVML. In: bpf/, fixtures/cuda/, crates/inject/, crates/nvml/, clang and a C compiler. Out:
// OUT_DIR/*.skel.rs, OUT_DIR/*.bpf.o, OUT_DIR/demo/, OUT_DIR/libgpurec_gpu.so, OUT_DIR/gpurec-nvml. Downloads nothing,
// and reads nothing outside the tree except the compilers' own files.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

#[path = "crates/apart.rs"]
mod apart;
#[path = "fixtures/cuda/build.rs"]
mod demo;

const OBJECTS: [&str; 7] = ["base", "process", "cuda", "stacks", "block", "block_stacks", "driver"];

pub fn main() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // The fuzz crate includes this file and runs it in this directory too.
    let here = env::current_dir()?;
    println!("cargo:rerun-if-changed={}", here.join("build.rs").display());
    println!("cargo:rerun-if-changed={}", here.join("bpf").display());
    demo::build(&out);
    apart::build(&out);
    for object in OBJECTS {
        skeleton(object, &out)?;
    }
    Ok(())
}

fn skeleton(object: &str, out: &Path) -> Result<()> {
    let arch = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => bail!("gpurec runs on x86-64 and AArch64, not on {other}"),
    };
    let mut builder = SkeletonBuilder::new();
    builder
        .source(format!("bpf/{object}.bpf.c"))
        .clang_args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-Wno-unused-parameter",
            "-mcpu=v3",
            &format!("-D__TARGET_ARCH_{arch}"),
            "-Ibpf",
        ])
        .obj(out.join(format!("{object}.bpf.o")));
    builder.build().and_then(|()| builder.generate(out.join(format!("{object}.skel.rs")))).with_context(
        || format!("cannot compile bpf/{object}.bpf.c (is clang installed? apt-get install clang)"),
    )?;
    Ok(())
}
