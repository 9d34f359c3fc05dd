//! The command is what it would be without gpurec: its descriptors, rights, signals, limits and environment.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::room::{Room, live};
use crate::user::as_user;

/// Prints all that a process inherits from its parent. The shell's own variables depend on nothing else.
const TELL: &str = "ls -l /proc/self/fd | sed 's/.* \\([0-9]* -> \\)/\\1/; /\\/proc\\//d; s/pipe:.*/pipe/; s/out-[0-9]*/out/; s/err-[0-9]*/err/'; \
    grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Cap...|SigBlk|SigIgn|Cpus_allowed)' /proc/self/status; \
    cat /proc/self/limits /proc/self/oom_score_adj /proc/self/timerslack_ns; \
    umask; pwd; nice; ps -o sched=,sid= -p $$ | sed 's/[0-9]*$//'; env | grep -v '^_=' | sort";

/// Starts the command from a process with unusual settings of everything.
fn odd(mut command: Command) -> Command {
    let settings = || {
        // SAFETY: system calls on constants and memory of this closure.
        unsafe {
            libc::umask(0o27);
            libc::nice(3);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            let mut blocked = std::mem::zeroed();
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGUSR2);
            libc::sigaddset(&mut blocked, libc::SIGRTMIN() + 3);
            libc::sigprocmask(libc::SIG_BLOCK, &blocked, std::ptr::null_mut());
            let files = libc::rlimit { rlim_cur: 333, rlim_max: 4444 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 8192 });
            libc::dup2(1, 7);
        }
        fs::write("/proc/self/oom_score_adj", "100")
    };
    // SAFETY: what the closure does is safe after a fork: system calls, and a small write.
    unsafe { command.pre_exec(settings) };
    command
}

fn told(room: &Room, command: Command) -> String {
    let done = room.run(command);
    let text = done.exited(0).text();
    assert!(text.contains("CapBnd") && text.contains("Max open files"), "{text}");
    text
}

/// Asserts that both texts are the same, except for lines that have one of these words.
#[track_caller]
fn same(with: &str, without: &str, but: &[&str]) {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !but.iter().any(|word| line.contains(word)));
        lines.map(str::to_owned).collect()
    };
    let (with, without) = (lines(with), lines(without));
    let differing: Vec<_> = with.iter().zip(&without).filter(|(one, other)| one != other).collect();
    assert!(differing.is_empty() && with.len() == without.len(), "{differing:#?} in {with:#?}");
}

#[test]
fn the_command_is_as_without_gpurec() {
    live(|room| {
        let plain = |words: &[&str]| {
            let mut command = room.command(words[0]);
            command.args(&words[1..]).env("ODD", "a b\nc");
            command
        };
        let words = ["sh", "-c", TELL];
        let recorded = |options: &[&str]| {
            let gpurec = [env!("CARGO_BIN_EXE_gpurec"), "-o", "t.jsonl"];
            plain(&[&gpurec, options, &["--"], &words].concat())
        };
        same(&told(room, recorded(&[])), &told(room, plain(&words)), &[]);
        let without = told(room, odd(plain(&words)));
        assert!(without.contains("7 -> ") && without.contains("333"), "{without}");
        same(&told(room, odd(recorded(&[]))), &without, &[]);
        same(&told(room, odd(recorded(&["--kernel", "--live", "--budget", "5"]))), &without, &[]);
    });
}

/// By sudo the command is as it would be without sudo, except for what sudo itself takes: its terminal's descriptors.
/// (sudo also sets a TERM where there is none.)
#[test]
fn the_command_of_a_person_is_as_without_sudo() {
    as_user(|room, user| {
        fs::write(room.path("tell"), TELL).unwrap();
        let told = |before: &str| {
            // sudo allows no core dumps, and has other limits of its own while it runs.
            let limits =
                "ulimit -S -c 4096; ulimit -n 555; ulimit -s 4096; ulimit -S -u 4000; ulimit -S -v 40000000";
            let settings = format!("export ODD='a b' TERM=xterm; umask 027; {limits}");
            // The shell must not become sudo: the shell's limits are what counts.
            let line = format!("{settings}; {before} sh {}; exit $?", room.text("tell"));
            user.types(room, &line).exited(0).text().replace('\r', "")
        };
        let without = told("");
        // sudo gives up its right to raise the limit for good, and only this capability gives it back.
        let may_raise = has_sys_resource();
        let core = if may_raise { " -> " } else { "Max core file size" };
        same(&told("sudo $GPUREC -q -o t.jsonl --"), &without, &[" -> ", core]);
        assert!(without.contains("4194304 ") && without.contains(" 4000 "), "{without}");
    });
}

fn has_sys_resource() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() >> 24 & 1 == 1
}
