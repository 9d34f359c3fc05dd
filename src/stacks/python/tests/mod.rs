mod find;
mod layout;
mod lines;

use std::process::Command;

/// The interpreters that scripts/pythons has in the folder GPUREC_PYTHONS; else the one of this machine, if it has one.
pub fn interpreters() -> Vec<Vec<String>> {
    let Some(folder) = std::env::var_os("GPUREC_PYTHONS") else {
        let found = Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success());
        return if found { vec![vec!["python3".to_owned()]] } else { Vec::new() };
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/pythons");
    let output = Command::new(script).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let commands = text.lines().filter_map(|line| line.split_once('\t'));
    commands.map(|(_, command)| command.split(' ').map(str::to_owned).collect()).collect()
}
