//! `seeds FOLDER`: writes the first inputs of each target.

// Links the coverage functions that it has.
use libfuzzer_sys as _;

fn main() {
    let folder = std::env::args_os().nth(1).expect("give a folder");
    gpurec_fuzz::seeds(folder.as_ref());
}
