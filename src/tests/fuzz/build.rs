// The recorder's own build script, run in its folder: the sources that lib.rs takes in need what it makes.

use std::env;
use std::path::Path;

#[path = "../../../build.rs"]
mod recorder;

fn main() -> anyhow::Result<()> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../..").canonicalize()?;
    env::set_current_dir(&root)?;
    // SAFETY: nothing else runs in this process yet.
    unsafe { env::set_var("CARGO_MANIFEST_DIR", &root) };
    recorder::main()
}
