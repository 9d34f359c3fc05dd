//! A user who may run gpurec as root, and nothing else, opens with `sudo gpurec` only what they could open without
//! sudo. Each case checks the message that they get.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use crate::room::{Room, live};
use crate::trace::Trace;
use crate::user::{User, as_user, ran};

const NOBODY: Option<u32> = Some(65534);

/// Runs the body with a user whose sudo rule allows gpurec alone, and a folder of root's that every user may read.
fn with_gpurec_alone(body: impl Fn(&Room, &User, &Path)) {
    as_user(|room, user| {
        user.may_run("use_pty", env!("CARGO_BIN_EXE_gpurec"));
        let roots = room.path(&format!("roots-{}", user.name));
        fs::create_dir(&roots).unwrap();
        fs::write(roots.join("passwd"), "old").unwrap();
        fs::write(roots.join("secret"), "launches < hunter2").unwrap();
        fs::set_permissions(roots.join("secret"), Permissions::from_mode(0o600)).unwrap();
        body(room, user, &roots);
        assert_eq!(fs::read(roots.join("passwd")).unwrap(), b"old");
        assert!(!roots.join("new").exists());
    });
}

fn refused(room: &Room, user: &User, line: &str, why: &str) {
    user.types(room, line).exited(125).said(why).one_sentence();
    assert!(!user.home.join("ran").exists(), "{line} ran its command");
}

#[test]
fn what_root_may_write_and_the_person_not_is_left_alone() {
    with_gpurec_alone(|room, user, roots| {
        let home = &user.home;
        symlink(roots.join("passwd"), home.join("link")).unwrap();
        symlink(roots.join("new"), home.join("dangling")).unwrap();
        symlink(roots, home.join("folder")).unwrap();
        lchown(home.join("link"), Some(home.metadata().unwrap().uid()), None).unwrap();
        fs::hard_link(roots.join("passwd"), home.join("hard")).unwrap();
        assert!(ran("mkfifo", &["-m", "600", roots.join("fifo").to_str().unwrap()]));
        let roots = roots.display();
        for output in [
            &format!("{roots}/passwd"),
            &format!("{roots}/new"),
            &format!("{roots}/fifo"),
            "/etc/gpurec-live-test",
            "/dev/kmsg",
            "/proc/sys/kernel/core_pattern",
            "link",
            "hard",
            "folder/passwd",
            "folder/new",
        ] {
            refused(room, user, &format!("sudo $GPUREC -o {output} -- touch ran"), "you may not write");
        }
        // root's processes give the user no more access than their own.
        for output in ["/proc/1/root/etc/gpurec-live-test", "/proc/1/cwd/t"] {
            refused(
                room,
                user,
                &format!("sudo $GPUREC -o {output} -- touch ran"),
                "Permission denied; give -o",
            );
        }
        refused(room, user, "sudo $GPUREC -o dangling -- touch ran", "give -o");
        assert!(!Path::new("/etc/gpurec-live-test").exists());
    });
}

#[test]
fn what_is_theirs_is_written() {
    with_gpurec_alone(|room, user, _| {
        let line = "mkfifo -m 600 fifo; cat fifo >got & sudo $GPUREC -q -o fifo -- true; wait";
        user.types(room, line).exited(0);
        Trace::checked(room, user.home.join("got").to_str().unwrap());
        user.types(room, "sudo $GPUREC -q -o /dev/null -- true").exited(0);
        user.types(room, "ln -s mine.jsonl own; echo >mine.jsonl; sudo $GPUREC -q -o own -- true").exited(0);
        Trace::checked(room, user.home.join("mine.jsonl").to_str().unwrap());
        user.types(room, "umask 077; sudo $GPUREC -q -o new.jsonl -- true").exited(0);
        let new = user.home.join("new.jsonl");
        user.owns(&new);
        assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o600);
    });
}

#[test]
fn the_folder_of_traces_may_be_no_way_elsewhere() {
    with_gpurec_alone(|room, user, roots| {
        let traces = user.home.join("traces");
        symlink(roots, &traces).unwrap();
        let line = "sudo $GPUREC -- touch ran";
        lchown(&traces, Some(user.home.metadata().unwrap().uid()), None).unwrap();
        refused(room, user, line, "you may not write");
        // The user may write there, but another user made the link.
        let open = room.path(&format!("open-{}", user.name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        fs::remove_file(&traces).unwrap();
        symlink(&open, &traces).unwrap();
        lchown(&traces, NOBODY, None).unwrap();
        refused(room, user, line, "is a symbolic link");
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    });
}

#[test]
fn latest_is_replaced_and_never_followed() {
    with_gpurec_alone(|room, user, roots| {
        let traces = user.home.join("traces");
        user.types(room, "sudo $GPUREC -q -- true").exited(0);
        let latest = traces.join("latest");
        fs::remove_file(&latest).unwrap();
        symlink(roots.join("passwd"), &latest).unwrap();
        lchown(&latest, NOBODY, None).unwrap();
        user.types(room, "sudo $GPUREC -q -- true").exited(0);
        user.owns(&latest);
        assert!(fs::read_link(&latest).unwrap().as_os_str().as_bytes().starts_with(b"trace_"));
        // In a folder such as /tmp a user cannot remove another user's link: gpurec writes the trace, and says so.
        fs::remove_file(&latest).unwrap();
        symlink(roots.join("passwd"), &latest).unwrap();
        lchown(&latest, NOBODY, None).unwrap();
        std::os::unix::fs::chown(&traces, Some(0), None).unwrap();
        fs::set_permissions(&traces, Permissions::from_mode(0o1777)).unwrap();
        let done = user.types(room, "sudo $GPUREC -- true");
        done.exited(0).said("traces/latest").said("=== TRACE SUMMARY ===");
        assert_eq!(fs::read_link(&latest).unwrap(), roots.join("passwd"));
    });
}

#[test]
fn what_only_root_may_read_is_not_shown() {
    with_gpurec_alone(|room, user, roots| {
        user.types(room, "sudo $GPUREC -q -o t.jsonl -- true").exited(0);
        let secret = roots.join("secret");
        let secret = secret.display();
        for (line, status) in [
            (format!("check --budget {secret} t.jsonl"), 2),
            (format!("summary {secret}"), 125),
            (format!("report api {secret}"), 125),
            (format!("diff {secret} t.jsonl"), 125),
            (format!("probes --lib {secret}"), 125),
            (format!("export --format csv -o {}/new t.jsonl", roots.display()), 125),
            (format!("export --format csv -o {}/passwd t.jsonl", roots.display()), 125),
        ] {
            let done = user.types(room, &format!("sudo $GPUREC {line}"));
            done.exited(status).said("Permission denied").one_sentence();
            assert!(!done.stderr.contains("hunter") && done.stdout.is_empty(), "{}", done.stderr);
        }
        user.types(room, "sudo $GPUREC export --format csv -o t.csv t.jsonl").exited(0);
        user.owns(&user.home.join("t.csv"));
    });
}

/// Checks that messages do not reveal whether a name exists in a folder that is closed to the user.
#[test]
fn no_message_tells_what_lies_in_a_closed_folder() {
    with_gpurec_alone(|room, user, roots| {
        let closed = roots.join("closed");
        fs::create_dir_all(closed.join("folder")).unwrap();
        fs::write(closed.join("file"), "").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        let shown = closed.display().to_string();
        for line in [
            "sudo $GPUREC NAME",
            "sudo $GPUREC report NAME x",
            "sudo $GPUREC -- NAME",
            "sudo $GPUREC -o NAME -- true",
            "sudo $GPUREC -o NAME/t -- true",
            "sudo $GPUREC --lib NAME -- true",
            "sudo $GPUREC probes --lib NAME",
            "sudo $GPUREC summary NAME",
            "sudo $GPUREC check --budget NAME NAME",
            "sudo $GPUREC --pid $$ --lib NAME --duration 0.1",
            "sudo TMPDIR=NAME $GPUREC demo",
            "cd ..; PWD=NAME/../../.. sudo $GPUREC -q -o /dev/null -- printenv PWD",
        ] {
            let told = |name: &str| {
                let done = user.types(room, &line.replace("NAME", &format!("{shown}/{name}")));
                format!("{}{}", done.text(), done.stderr).replace(&format!("closed/{name}"), "closed/NAME")
            };
            let none = told("none");
            assert!(!none.contains("not found") || line.contains("-- NAME"), "{none}");
            for name in ["file", "folder"] {
                assert_eq!(told(name), none, "{line}: {name}");
            }
        }
    });
}

/// A process names the places of its wheels in its environment and by links: `--all` looks no further than the user
/// could.
#[test]
fn no_trace_tells_what_lies_in_a_closed_folder() {
    with_gpurec_alone(|room, user, roots| {
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let built = room.compile("few.c", "libcuda.so.1", &flags);
        let closed = roots.join("closed");
        fs::create_dir_all(&closed).unwrap();
        for (place, mode) in [(closed.join("lib"), 0o644), (roots.join("unreadable"), 0o600)] {
            fs::copy(&built, &place).unwrap();
            fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        let wheel = "venv/lib/python3.11/site-packages/nvidia/a/lib";
        let make = format!(
            "set -e; mkdir -p venv/bin {wheel}; cp /bin/sleep venv/bin/python3; cp {built} {wheel}/libown.so; \
             ln -s {0}/closed/lib {wheel}/libclosed.so; ln -s {0}/unreadable {wheel}/libunreadable.so",
            roots.display()
        );
        let record = "venv/bin/python3 100 & until grep -q python3 /proc/$!/comm; do sleep 0.05; done; \
                      sudo $GPUREC -q --all --duration 2 -o t.jsonl; kill $!";
        user.types(room, &format!("{make}; {record}")).exited(0);
        let text = fs::read_to_string(user.home.join("t.jsonl")).unwrap();
        assert!(text.contains("libown.so"), "their own is hooked: {text}");
        assert!(!text.contains("libclosed.so") && !text.contains("libunreadable.so"), "{text}");
    });
}

/// Where Linux hides addresses from the user, gpurec's root rights do not reveal them.
#[test]
fn no_address_of_the_kernel_is_told() {
    const RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";
    struct Restriction(String);
    impl Drop for Restriction {
        fn drop(&mut self) {
            let _ = fs::write(RESTRICT, &self.0);
        }
    }
    with_gpurec_alone(|room, user, _| {
        let _before = Restriction(fs::read_to_string(RESTRICT).unwrap());
        let is_told = |text: &str| text.contains("0xffff");
        let list =
            |glob: &str| user.types(room, &format!("sudo $GPUREC probes --kernel '{glob}'")).exited(0).text();
        let roots = |glob: &str| room.run(room.gpurec(&["probes", "--kernel", glob])).exited(0).text();
        fs::write(RESTRICT, "1").unwrap();
        assert!(!is_told(&list("vfs_*")) && list("vfs_*").contains("vfs_read"));
        assert!(!is_told(&list("irq:*")));
        assert!(is_told(&roots("vfs_*")), "root sees them");
        let line = "sudo $GPUREC -v --hook vfs_fsync --hook irq:softirq_entry -o t.jsonl -- true";
        let said = user.types(room, line).stderr;
        let header = fs::read_to_string(user.home.join("t.jsonl")).unwrap();
        assert!(!is_told(&said) && !is_told(header.lines().next().unwrap()), "{said}{header}");
    });
}

#[test]
fn gpurec_alone_is_no_root_shell() {
    with_gpurec_alone(|room, user, _| {
        // Not even for commands that they may run as root anyway: sudo checks a path, and another file may be there
        // when it is executed. Nor does gpurec believe the user's own variables when they say that root called.
        user.may_run("use_pty", &format!("{}, /usr/bin/id", env!("CARGO_BIN_EXE_gpurec")));
        let line =
            "ln -sfn /usr/bin bin; export SUDO_UID=0 DOAS_USER=root PKEXEC_UID=0; sudo $GPUREC --as-root -q";
        for command in ["touch ran", "bin/id", "id"] {
            user.types(room, &format!("{line} -o t.jsonl -- {command}")).exited(2).one_sentence();
        }
        assert!(!user.home.join("ran").exists() && !user.home.join("t.jsonl").exists());
        user.types(room, "sudo env -u SUDO_UID $GPUREC -q -o t.jsonl -- touch ran").exited(1);
        assert!(!user.home.join("ran").exists());
        // A command cut off from sudo is treated the same.
        let script = "#!/bin/sh\n(setsid -f \"$@\") | cat\n";
        let away = room.path(&format!("away-{}", user.name));
        fs::write(&away, script).unwrap();
        fs::set_permissions(&away, Permissions::from_mode(0o755)).unwrap();
        user.may_run("!use_pty", away.to_str().unwrap());
        let line = format!("sudo {} $GPUREC --as-root -q -o t.jsonl -- touch ran", away.display());
        user.types(room, &line).said("root itself calls gpurec").one_sentence();
        assert!(!user.home.join("ran").exists());
    });
}

/// A hook can end a program through whose functions an exception passes.
#[test]
fn gpurec_alone_hooks_no_function_in_processes_of_others() {
    with_gpurec_alone(|room, user, _| {
        let target = room.target(&["sleep", "1000"]);
        let others = format!("--pid {}", target.pid());
        for words in ["--all --duration 0.1", &others, "--backend uprobe.multi -- true"] {
            let line = format!("sudo $GPUREC -q -o t.jsonl --lib libc.so.6:getenv {words}");
            user.types(room, &line).exited(2).said("--lib could end programs of other users").one_sentence();
        }
        assert!(!user.home.join("t.jsonl").exists());
        user.types(room, "sudo $GPUREC -q -o t.jsonl --lib libc.so.6:getenv -- true").exited(0);
        target.signal(nix::sys::signal::Signal::SIGTERM);
        target.done();
    });
}

#[test]
fn roots_own_traces_are_for_root_alone() {
    live(|room| {
        room.run(room.gpurec(&["-q", "-o", "t.jsonl", "--", "true"])).exited(0);
        assert_eq!(room.cwd().join("t.jsonl").metadata().unwrap().mode() & 0o777, 0o600);
    });
}
