//! Compares the number of instructions that each verifier processed per program with the last one (verified.csv).
//! In: the output of `gpurec -v` in a machine.
//! Out: changes, printed; a panic where a number has grown by half. GPUREC_REWRITE=1 rewrites the rows of
//! the programs that were loaded; rows of programs that exist no longer are deleted by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::machine::root;

const SAID: &str = "instructions that the kernel's verifier went through: ";
/// Several machines report at the same time, and there is one file.
static FILE: Mutex<()> = Mutex::new(());

type Counts = BTreeMap<(String, String), u64>;

fn path() -> PathBuf {
    root().join("tests/vm/verified.csv")
}

fn parse(text: &str) -> Counts {
    let row = |line: &str| {
        let mut words = line.split(',');
        let key = (words.next()?.to_owned(), words.next()?.to_owned());
        Some((key, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// Reads the programs by name, each with the maximum over all recordings.
fn said(kernel: &str, texts: &[String]) -> Counts {
    let mut counts = Counts::new();
    let lists = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.split_once(SAID));
    for pair in lists.flat_map(|(_, list)| list.split(", ")) {
        let (name, count) = pair.rsplit_once(' ').unwrap();
        let most = counts.entry((kernel.to_owned(), name.to_owned())).or_default();
        *most = count.parse::<u64>().unwrap().max(*most);
    }
    counts
}

pub fn compare(kernel: &str, texts: &[String]) {
    let _alone = FILE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let now = said(kernel, texts);
    assert!(!now.is_empty(), "Linux {kernel}: gpurec -v does not say what the verifier did");
    let mut last = parse(&fs::read_to_string(path()).unwrap_or_default());
    for (key, count) in &now {
        let before = last.get(key).copied();
        if before != Some(*count) {
            println!("verifier of Linux {kernel}: {} {count}, the last time {before:?}", key.1);
        }
        let grown = before.is_some_and(|before| *count > before + before / 2);
        assert!(!grown, "Linux {kernel}: the verifier takes {count} for {}, it was {before:?}", key.1);
    }
    if std::env::var_os("GPUREC_REWRITE").is_some() {
        last.extend(now);
        let rows = last.iter().map(|((kernel, program), count)| format!("{kernel},{program},{count}\n"));
        fs::write(path(), format!("kernel,program,instructions\n{}", rows.collect::<String>())).unwrap();
    }
}
