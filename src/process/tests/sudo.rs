//! Tests with the real sudo, called by a user created for the test.

use super::super::environment::user_environment;
use super::super::identity::invoking_user;
use super::super::launch::{GatedCommand, Launch, start};
use super::{helper_args, root};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A user with a second group who may use sudo; removed at the end.
struct TestUser {
    name: String,
    group: String,
    rule: PathBuf,
}

fn ran(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|o| o.status.success())
}

impl TestUser {
    fn new(use_pty: bool) -> Option<TestUser> {
        if !ran("sudo", &["--version"]) || !ran("sh", &["-c", "command -v useradd su"]) {
            eprintln!("SKIPPED the test of sudo: install sudo and passwd (apt-get install sudo passwd)");
            return None;
        }
        let name = format!("roomt{}", std::process::id());
        let user = TestUser {
            group: format!("{name}g"),
            rule: PathBuf::from(format!("/etc/sudoers.d/{name}")),
            name,
        };
        assert!(ran("groupadd", &[&user.group]));
        assert!(ran(
            "useradd",
            &["-M", "-d", "/var/empty/its", "-s", "/bin/bash", "-G", &user.group, &user.name]
        ));
        let pty = if use_pty { "use_pty" } else { "!use_pty" };
        let rule = format!("Defaults:{0} {pty}\n{0} ALL=(root) NOPASSWD:SETENV: ALL\n", user.name);
        fs::write(&user.rule, rule).expect("a rule for sudo");
        Some(user)
    }

    fn id(&self, flag: &str) -> String {
        let output = Command::new("id").args([flag, &self.name]).output();
        let output = output.expect("id").stdout;
        String::from_utf8_lossy(&output).trim().to_string()
    }

    /// Runs the helper below in place of gpurec: `before sudo after HELPER`.
    fn gpurec(&self, before: &str, after: &str) -> String {
        let program = std::env::current_exe().expect("our own path");
        let args = helper_args("sudo::helper_under_sudo").join(" ");
        let line = format!("{before} sudo {after} {} {args}", program.display());
        let output =
            Command::new("su").args(["-s", "/bin/bash", &self.name, "-c", &line]).output().expect("su");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        // Under a pty, lines end in CR LF.
        text.replace('\r', "")
    }
}

impl Drop for TestUser {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.rule);
        ran("userdel", &[&self.name]);
        ran("groupdel", &[&self.group]);
    }
}

/// A stand-in for gpurec: prints what it finds, and its child prints its own identity and environment.
#[test]
#[ignore = "a helper process of the test below"]
fn helper_under_sudo() {
    let who = invoking_user();
    let (env, source) = user_environment(&who);
    println!("\nT:source={source}");
    let report = "echo T:uid=$(id -u); echo T:groups=$(id -G); echo T:path=$PATH; \
        for v in HOME USER VIRTUAL_ENV LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES SUDO_UID SUDO_COMMAND; \
        do eval echo \"T:$v=\\$$v\"; done";
    let launch = Launch {
        command: ["sh", "-c", report].map(Into::into).to_vec(),
        identity: Some(who),
        env,
        ..Launch::default()
    };
    let exit = start(&launch).and_then(GatedCommand::go).expect("runs").wait();
    assert_eq!(exit.code(), 0);
}

fn reported(text: &str, name: &str) -> String {
    let prefix = format!("T:{name}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_string()
}

fn under_sudo(use_pty: bool) {
    let Some(user) = TestUser::new(use_pty) else {
        return;
    };
    let venv = "HOME=/var/empty/hers VIRTUAL_ENV=/x LD_LIBRARY_PATH=/x/lib PATH=/x/bin:$PATH";
    for after in ["CUDA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1 timeout 60"] {
        let text = user.gpurec(&format!("CUDA_VISIBLE_DEVICES=0 {venv}"), after);
        let source = reported(&text, "source");
        assert!(source.contains("sudo ("), "{source}");
        assert_eq!(reported(&text, "uid"), user.id("-u"));
        assert_eq!(reported(&text, "groups"), user.id("-G"));
        assert!(reported(&text, "path").starts_with("/x/bin:"));
        assert_eq!(reported(&text, "HOME"), "/var/empty/hers");
        assert_eq!(reported(&text, "USER"), user.name);
        assert_eq!(reported(&text, "VIRTUAL_ENV"), "/x");
        assert_eq!(reported(&text, "LD_LIBRARY_PATH"), "/x/lib");
        assert_eq!(reported(&text, "CUDA_VISIBLE_DEVICES"), "1");
        assert_eq!(reported(&text, "SUDO_UID"), "");
        assert_eq!(reported(&text, "SUDO_COMMAND"), "");
    }
    // If the chain to sudo is cut (by a daemon in between, here a double fork), the command still runs as the user,
    // with at least their home.
    // The pause: setsid has to end first.
    let after = r#"sh -c '(setsid -f sh -c "sleep 0.5; exec \"\$0\" \"\$@\"" "$@") | cat' sh"#;
    let text = user.gpurec("VIRTUAL_ENV=/x", after);
    assert!(reported(&text, "source").contains("own environment"));
    assert_eq!(reported(&text, "uid"), user.id("-u"));
    assert_eq!(reported(&text, "HOME"), "/var/empty/its");
    assert_eq!(reported(&text, "SUDO_UID"), "");
}

/// One test for both cases, because useradd and userdel lock each other out.
#[test]
fn the_person_who_typed_sudo() {
    if !root("the_person_who_typed_sudo") {
        return;
    }
    under_sudo(false);
    under_sudo(true);
}
