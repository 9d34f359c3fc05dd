//! The program gpurec-read: the same answers as gpurec's own, and its exit statuses.

use std::path::Path;
use std::process::{Command, Output};

fn read(words: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpurec-read"));
    command.args(words).current_dir(root).env_remove("COLUMNS").output().unwrap()
}

#[test]
fn it_answers_as_gpurec_does() {
    let done = read(&["--width", "100", "summary", "traces/torch_h200.jsonl"]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text == include_str!("../src/golden/summary_torch.txt"), "{text}");
}

#[test]
fn its_exit_statuses_are_gpurecs() {
    let of = |words: &[&str]| read(words).status.code();
    assert_eq!(of(&["check", "--assert", "launches>0", "traces/torch_h200.jsonl"]), Some(0));
    assert_eq!(of(&["check", "--budget", "launches>5000", "traces/torch_h200.jsonl"]), Some(1));
    assert_eq!(of(&["check", "--assert", "lunches>0", "traces/torch_h200.jsonl"]), Some(2));
    assert_eq!(of(&["summary", "traces/none.jsonl"]), Some(125));
    assert_eq!(of(&["ranks", "traces/none.jsonl"]), Some(125));
    assert_eq!(of(&["ranks", "traces/torch_h200.jsonl"]), Some(1));
    assert_eq!(of(&["ranks"]), Some(2));
}
