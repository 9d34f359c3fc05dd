//! A terminal that a test drives: tmux, with a shell that leaves the terminal's modes alone.
//! In: keys.
//! Out: the screen as a user sees it, and the state of the terminal.

use std::process::{Command, Output};

use crate::needs;
use crate::room::{Room, eventually};
use crate::user::ran;

pub fn has_tmux() -> bool {
    if !needs::program("tmux") && std::env::var("CI").as_deref() == Ok("true") {
        ran("apt-get", &["install", "-y", "--no-install-recommends", "tmux"]);
    }
    needs::program("tmux") || needs::skip("it needs tmux: apt-get install tmux")
}

pub struct Tmux<'a> {
    room: &'a Room,
    socket: String,
}

impl<'a> Tmux<'a> {
    pub fn new(room: &'a Room, width: u32, height: u32) -> Tmux<'a> {
        let tmux = Tmux { room, socket: room.text("tmux") };
        let size = ["-x", &width.to_string(), "-y", &height.to_string()].map(str::to_owned);
        let [x, width, y, height] = size.each_ref().map(String::as_str);
        tmux.tell(&["new-session", "-d", x, width, y, height, "sh"]);
        eventually("a prompt", || !tmux.screen().join("").is_empty());
        tmux
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command: Command = self.room.command("tmux");
        // A server of its own, without a configuration file.
        command.args(["-f", "/dev/null", "-S", &self.socket]).env("ENV", "/dev/null").args(words);
        command.output().unwrap()
    }

    fn tell(&self, words: &[&str]) {
        let output = self.ask(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Presses keys, in tmux's names.
    pub fn press(&self, keys: &[&str]) {
        self.tell(&[&["send-keys"], keys].concat());
    }

    /// Types a line for the shell.
    pub fn enter(&self, line: &str) {
        self.tell(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    pub fn resize(&self, width: u32, height: u32) {
        self.tell(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// The lines of the screen, without spaces at their ends.
    pub fn screen(&self) -> Vec<String> {
        let output = self.ask(&["capture-pane", "-p"]);
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until some line has the text; returns the screen.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> Vec<String> {
        let mut screen = Vec::new();
        eventually(&format!("{text:?} on the screen"), || {
            screen = self.screen();
            screen.iter().any(|line| line.contains(text))
        });
        screen
    }

    /// The alternate screen, and a visible cursor.
    pub fn state(&self) -> (bool, bool) {
        let output = self.ask(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let (alternate, cursor) = text.trim().split_once(' ').unwrap();
        (alternate == "1", cursor == "1")
    }

    /// The modes of the terminal, as `stty -g` prints them.
    pub fn modes(&self) -> String {
        let output = self.ask(&["display-message", "-p", "#{pane_tty}"]);
        let tty = String::from_utf8(output.stdout).unwrap();
        let output = Command::new("stty").args(["-g", "-F", tty.trim()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.ask(&["kill-server"]);
    }
}
