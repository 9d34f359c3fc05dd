//! Runs `sudo gpurec` by the real sudo, from the shell of a user made for the test.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::needs;
use crate::room::{Room, live};
use crate::run::Done;
use crate::trace::Trace;

/// A user who may use sudo, with a home in the test's folder; removed at the end.
pub struct User {
    pub name: String,
    rule: PathBuf,
    pub home: PathBuf,
}

pub fn ran(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// On a machine made for tests a missing sudo is installed; on a person's own machine the test asks for it.
fn has_sudo() -> bool {
    if !needs::program("sudo") && std::env::var("CI").as_deref() == Ok("true") {
        ran("apt-get", &["install", "-y", "sudo"]);
    }
    let missing: Vec<&str> = ["sudo", "su", "useradd"].into_iter().filter(|p| !needs::program(p)).collect();
    missing.is_empty()
        || needs::skip(&format!("install {} (apt-get install sudo passwd)", missing.join(", ")))
}

impl User {
    fn new(room: &Room, pty: &str) -> User {
        let name = format!("live{}{}", std::process::id() % 100_000, room.number());
        let user =
            User { rule: PathBuf::from(format!("/etc/sudoers.d/{name}")), home: room.path(&name), name };
        let home = user.home.to_str().unwrap();
        assert!(ran("useradd", &["-m", "-d", home, "-s", "/bin/bash", &user.name]), "useradd");
        user.may_run(pty, "ALL");
        user
    }

    /// Allows commands by sudo, without a password.
    pub fn may_run(&self, pty: &str, commands: &str) {
        let rule = format!("Defaults:{0} {pty}\n{0} ALL=(root) NOPASSWD: {commands}\n", self.name);
        fs::write(&self.rule, rule).unwrap();
    }

    /// Runs a line in this user's shell, in which `$GPUREC` is the binary, and checks the recording.
    fn shell(&self, room: &Room, line: &str) -> Done {
        let done = self.types(room, line);
        self.check(room, line, &done);
        done
    }

    /// The same without the check.
    pub fn types(&self, room: &Room, line: &str) -> Done {
        room.run(self.command(room, line))
    }

    pub fn command(&self, room: &Room, line: &str) -> Command {
        let binary = env!("CARGO_BIN_EXE_gpurec");
        let line =
            format!("cd; GPUREC={binary}; export VIRTUAL_ENV=$HOME/venv PATH=$HOME/venv/bin:$PATH; {line}");
        let mut command = room.command("su");
        command.args(["-s", "/bin/bash", &self.name, "-c", &line]);
        command
    }

    /// Checks every recording (see `Recording::check`); here the shell started it.
    fn check(&self, room: &Room, line: &str, done: &Done) {
        let Some((_, words)) = line.split_once("sudo $GPUREC") else { return };
        let file =
            words.split_once("-o ").map_or("traces/latest", |(_, rest)| rest.split(' ').next().unwrap());
        let file = self.home.join(file);
        if words.contains(" -q ") {
            crate::figures::stored_is_read(room, file.to_str().unwrap());
        } else {
            // Under a pty lines end in CR LF.
            crate::figures::printed_is_read(room, file.to_str().unwrap(), &done.stderr.replace('\r', ""));
        }
    }

    pub fn owns(&self, path: &Path) {
        let home = self.home.metadata().unwrap();
        let about = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!((about.uid(), about.gid()), (home.uid(), home.gid()), "{}", path.display());
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.rule);
        ran("userdel", &[&self.name]);
        ran("groupdel", &[&self.name]);
    }
}

pub fn as_user(body: impl Fn(&Room, &User)) {
    live(|room| {
        if has_sudo() {
            for pty in ["!use_pty", "use_pty"] {
                body(room, &User::new(room, pty));
            }
        }
    });
}

#[test]
fn the_command_runs_as_the_person_who_typed_sudo() {
    as_user(|room, user| {
        let script = r#"id -un; echo "$VIRTUAL_ENV"; echo "${PATH%%:*}"; echo "$HOME"; exit 7"#;
        let done = user.shell(room, &format!("sudo $GPUREC -o mine.jsonl -- sh -c '{script}'"));
        done.exited(7).said("=== TRACE SUMMARY ===");
        let home = user.home.display();
        let expected =
            [user.name.clone(), format!("{home}/venv"), format!("{home}/venv/bin"), home.to_string()];
        // Under a pty lines end in CR LF.
        assert_eq!(done.text().replace('\r', "").lines().collect::<Vec<_>>(), expected);
        let file = user.home.join("mine.jsonl");
        user.owns(&file);
        let trace = Trace::checked(room, file.to_str().unwrap());
        assert_eq!(trace.is_whole().header["user"], user.name.as_str());
    });
}

#[test]
fn a_command_in_the_persons_own_path_is_found() {
    as_user(|room, user| {
        let make = "mkdir -p venv/bin; printf '#!/bin/sh\\nexit 5\\n' >venv/bin/only-mine; chmod +x venv/bin/only-mine";
        let done = user.shell(room, &format!("{make}; sudo $GPUREC -q -o t.jsonl -- only-mine"));
        assert_eq!(done.exited(5).stderr, "");
    });
}

#[test]
fn the_traces_belong_to_the_person() {
    as_user(|room, user| {
        user.shell(room, "sudo $GPUREC -- true").exited(0);
        let traces = user.home.join("traces");
        user.owns(&traces);
        user.owns(&traces.join("latest"));
        user.owns(&traces.join(fs::read_link(traces.join("latest")).unwrap()));
        // The user needs no root to read it.
        let done = user.shell(room, "$GPUREC summary");
        assert!(done.exited(0).text().starts_with("=== TRACE SUMMARY ==="));
    });
}

/// gpurec refuses this through sudo, also to a user who may run everything: the remedy takes a rule for more than
/// gpurec.
#[test]
fn as_root_only_where_root_itself_calls() {
    as_user(|room, user| {
        for words in ["--as-root -q -o t.jsonl -- touch ran", "demo --as-root"] {
            let done = user.types(room, &format!("sudo $GPUREC {words}"));
            done.exited(2).said("sudo env -u SUDO_UID gpurec ... -- COMMAND").one_sentence();
        }
        assert!(!user.home.join("ran").exists() && !user.home.join("t.jsonl").exists());
        for option in ["", "--as-root"] {
            let line = "sudo env -u SUDO_UID $GPUREC";
            let done = user.types(room, &format!("{line} {option} -q -o t.jsonl -- sh -c 'id -un; exit 7'"));
            assert_eq!(done.exited(7).text().replace('\r', ""), "root\n");
        }
    });
}

/// /etc/doas.conf belongs to the machine: an existing one is left alone.
#[test]
fn by_doas_it_is_the_same() {
    const RULES: &str = "/etc/doas.conf";
    as_user(|room, user| {
        if !needs::program("doas") || fs::exists(RULES).unwrap() {
            needs::skip(&format!("it needs opendoas, and no {RULES} of the machine's own"));
            return;
        }
        fs::write(RULES, format!("permit nopass {} as root\n", user.name)).unwrap();
        let refused = user.types(room, "doas $GPUREC --as-root -q -o t.jsonl -- touch ran");
        let person = user.types(room, "doas $GPUREC -q -o t.jsonl -- id -un");
        let root = user.types(room, "doas env -u DOAS_USER $GPUREC -q -o r.jsonl -- id -un");
        let unknown =
            user.types(room, "doas env DOAS_USER=no-such-user-here $GPUREC -q -o n.jsonl -- id -un");
        fs::remove_file(RULES).unwrap();
        unknown.exited(125).said("cannot look up the user no-such-user-here").one_sentence();
        refused.exited(2).said("doas env -u DOAS_USER gpurec ... -- COMMAND").one_sentence();
        assert_eq!(person.exited(0).text().trim(), user.name);
        assert_eq!(root.exited(0).text().trim(), "root");
    });
}

#[test]
fn the_demo_runs_as_the_person() {
    as_user(|room, user| {
        user.shell(room, "sudo $GPUREC demo -o demo.jsonl -- --loops 2").exited(0).said("Kernel launches: ");
        let trace = Trace::checked(room, user.home.join("demo.jsonl").to_str().unwrap());
        assert!(trace.is_whole().calls.len() > 100);
    });
}

#[test]
fn without_root_it_says_what_to_do() {
    as_user(|room, user| {
        let done = user.shell(room, "$GPUREC -- touch ran");
        done.exited(125).said("sudo").one_sentence();
        assert!(!user.home.join("ran").exists() && !user.home.join("traces").exists());
    });
}
