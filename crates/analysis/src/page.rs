//! A page of text for the user. In: lines, sentences, tables and lists. Out: text, with prose and lists wrapped to the
//! width of the page. Not here: which sections a page has.

use crate::prose;
use crate::shorten::middle_cut;
use crate::table::Table;
use crate::ui::clean_lines;

pub struct Page {
    text: String,
    width: usize,
}

impl Page {
    pub fn new(width: usize) -> Page {
        Page { text: String::new(), width: width.max(40) }
    }

    pub fn into_text(self) -> String {
        self.text
    }

    pub fn table(&mut self, table: &Table) {
        for line in table.text(self.width) {
            self.line(&line);
        }
    }

    /// Names are already escaped; this catches any that the code missed, so that none controls the terminal.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&clean_lines(line));
        self.text.push('\n');
    }

    pub fn section(&mut self, title: &str) {
        self.text.push('\n');
        self.wrapped("", title);
    }

    /// Wraps words into lines: the first begins with `first`, the others have the same indentation.
    pub fn wrapped(&mut self, first: &str, words: &str) {
        self.text.push_str(&clean_lines(&prose::wrapped(first, words, self.width)));
    }

    /// A sentence below a section.
    pub fn note(&mut self, words: &str) {
        self.wrapped("  ", words);
    }

    /// The counts that are not 0.
    pub fn counts(&mut self, counts: &[(&str, u64)]) {
        for (what, count) in counts.iter().filter(|(_, count)| *count > 0) {
            self.line(&format!("  {what}: {count}"));
        }
    }

    /// A line for each of the first `most`, and the number of others, of which `more` are not among the items.
    pub fn list<T>(&mut self, items: &[T], most: usize, more: u64, what: &str, line: impl Fn(&T) -> String) {
        items.iter().take(most).for_each(|item| self.line(&line(item)));
        self.more(items.len() + more as usize, most.min(items.len()), what);
    }

    /// A line that ends with a command. Only the command is cut, and only if it does not fit on a line of its own.
    pub fn with_command(&mut self, line: &str, command: &str) {
        const INDENT: usize = 5;
        if line.chars().count() + 2 + command.chars().count() <= self.width || command.is_empty() {
            return self.line(format!("{line}  {command}").trim_end());
        }
        self.note(line.trim_start());
        let command = middle_cut(command, self.width - INDENT);
        self.line(&format!("{:INDENT$}{command}", ""));
    }

    pub fn more(&mut self, total: usize, shown: usize, what: &str) {
        if total > shown {
            self.line(&format!("  and {} more {what}", total - shown));
        }
    }
}
