//! Terminals that take nothing: Ctrl-S, or an ssh whose other end is gone.
//! In: a pty whose output is suspended.
//! Out: gpurec ends by one signal, and the terminal is afterwards what it was before.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{FlowArg, tcflow, tcgetattr};
use nix::unistd::Pid;

use crate::room::{eventually, live, within};

/// Much longer than gpurec waits for a terminal.
const AT_MOST: Duration = Duration::from_secs(30);

struct Pty {
    master: File,
    slave: OwnedFd,
    text: String,
}

impl Pty {
    fn new() -> Pty {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        fcntl(&pty.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Pty { master: pty.master.into(), slave: pty.slave, text: String::new() }
    }

    fn start(&self, mut command: Command) -> Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        command.spawn().unwrap()
    }

    fn wait_for(&mut self, text: &str) {
        eventually(&format!("{text:?} on the terminal"), || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = self.master.read(&mut bytes) {
                self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
            self.text.contains(text)
        });
    }
}

#[test]
fn a_terminal_that_takes_nothing_keeps_nothing_from_its_end() {
    live(|room| {
        let file = room.text("t.jsonl");
        for (words, shown, last) in [
            (&["top"][..], "quit", Some("\x1b[?1049l")),
            (&["-o", &file], " events/s", None),
            (&["-q", "-o", &file], "", None),
        ] {
            let target = room.target(&["sleep", "600"]);
            let mut pty = Pty::new();
            let before = tcgetattr(&pty.slave).unwrap();
            let pid = target.pid().to_string();
            let mut gpurec = pty.start(room.gpurec(&[words, &["--pid", &pid]].concat()));
            match shown {
                "" => room.wait_until_recording(&file),
                shown => pty.wait_for(shown),
            }
            tcflow(&pty.slave, FlowArg::TCOOFF).unwrap();
            kill(Pid::from_raw(gpurec.id() as i32), Signal::SIGTERM).unwrap();
            let has_ended = within(AT_MOST, || gpurec.try_wait().unwrap().is_some());
            let _ = gpurec.kill();
            tcflow(&pty.slave, FlowArg::TCOON).unwrap();
            assert!(has_ended, "{words:?} runs on");
            assert_eq!(gpurec.wait().unwrap().code(), Some(0), "{words:?}");
            // The guardian may write the rest, which waited for the terminal.
            last.into_iter().for_each(|last| pty.wait_for(last));
            let after = || tcgetattr(&pty.slave).unwrap();
            eventually("the modes that were there before", || after() == before);
            target.kill();
            let _ = std::fs::remove_file(&file);
        }
    });
}
