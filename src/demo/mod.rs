//! The stand-in CUDA libraries and the program that `gpurec demo` records.
//!
//! In: nothing; the files are built from the C files of fixtures/cuda and embedded. Out: [`unpack`], a folder that only
//! this user and root can change, with a program that runs without a GPU or a driver. Dropping the value removes the
//! folder. Not here: recording. `run` only passes the unpacked program to the recorder, and the trace to `open`.
//!
//! The stand-ins export the real names, begin their functions with the real instructions, and count every call: with
//! STANDIN_COUNTS=FILE (`%p` is the process id) each process writes FILE.cuda and FILE.cudart, the exact counts that
//! tests compare with.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::folder;
use crate::process::identity::invoking_user;
use crate::process::rights::as_caller;
use crate::record::{self, Config, Target};

mod open;
#[cfg(test)]
mod tests;

const PROGRAM: &str = "gpurec-demo";
const FILES: [(&str, &[u8]); 5] = [
    ("libcuda.so.1", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcuda.so.1"))),
    ("libcudart.so.13", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcudart.so.13"))),
    (PROGRAM, include_bytes!(concat!(env!("OUT_DIR"), "/demo/program"))),
    // For --gpu: the stand-ins for NVIDIA's profiling library and for NVML.
    ("libcupti.so.13", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libcupti.so.13"))),
    ("libnvidia-ml.so.1", include_bytes!(concat!(env!("OUT_DIR"), "/demo/libnvidia-ml.so.1"))),
];

/// The unpacked files. Dropping it removes the folder.
#[derive(Debug)]
pub struct DemoFolder {
    pub dir: PathBuf,
    pub program: PathBuf,
}

/// Writes the libraries and the program to a new folder. Call it with the rights of the user who runs the program.
pub fn unpack() -> Result<DemoFolder> {
    let dir = folder::make(&format!("{PROGRAM}-"), nix::unistd::geteuid().as_raw(), usize::MAX)?;
    let unpacked = DemoFolder { program: dir.join(PROGRAM), dir };
    for (name, bytes) in FILES {
        let path = unpacked.dir.join(name);
        write(&path, bytes).with_context(|| {
            format!("cannot write {}: free some space there or set TMPDIR to another folder", path.display())
        })?;
    }
    Ok(unpacked)
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(bytes)?;
    // The umask may have taken bits that another user needs.
    file.set_permissions(Permissions::from_mode(0o700))
}

impl DemoFolder {
    /// The command line that runs the program with these arguments. The program and the runtime search their own folder
    /// for libraries first (RPATH).
    pub fn command(&self, args: &[OsString]) -> Vec<OsString> {
        [&[self.program.clone().into_os_string()], args].concat()
    }
}

/// `gpurec demo`: records the program. With `opens`, it makes a page of the recording and opens it in a browser.
pub fn run(config: Config, args: &[OsString], opens: bool) -> Result<u8> {
    let trace = config.output.clone().unwrap_or_else(open::newest);
    let caller = opens.then(open::Caller::find);
    let status = record(config, args)?;
    if let Some(caller) = caller {
        open::show(&trace, caller)?;
    }
    Ok(status)
}

fn record(config: Config, args: &[OsString]) -> Result<u8> {
    // The parent folder may be writable for others, so do this without root's rights.
    let unpacked = as_caller(&invoking_user(), unpack)
        .context("cannot unpack the demo as the user who called sudo")??;
    let nvml = Some(unpacked.dir.clone());
    record::run(&Config { target: Target::Command(unpacked.command(args)), nvml, ..config })
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        // A failure here cannot be handled, and nothing depends on it.
        let _ = as_caller(&invoking_user(), || fs::remove_dir_all(&self.dir));
    }
}
