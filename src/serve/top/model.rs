//! What the view shows. In: samples and keys. Out: the listed processes in order, the selected process, and whether its
//! details are open. Pure. Not here: terminals, and how anything looks.

use std::time::{Duration, SystemTime};

use gpurec_analysis::activity::columns::{self, PROCESS};
use gpurec_analysis::activity::{Activity, Row};

/// Limit on the length of the filter.
const LONGEST_FILTER: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
    Char(char),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Continue,
    Quit,
}

/// What covers the list of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    #[default]
    List,
    Details,
    Help,
}

pub struct Model {
    pub activity: Activity,
    pub now: SystemTime,
    /// False before the first measured second.
    pub is_measured: bool,
    pub is_paused: bool,
    /// A column of `PROCESS`.
    pub sort: usize,
    pub is_reversed: bool,
    pub filter: String,
    pub edits_filter: bool,
    pub open: Open,
    /// The first line of the details that is shown.
    pub scroll: usize,
    /// The process that is selected, and its place in the list when it was last shown.
    selected: Option<u32>,
    place: usize,
    /// Lines of a page.
    pub page: usize,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            activity: Activity::default(),
            now: SystemTime::UNIX_EPOCH,
            is_measured: false,
            is_paused: false,
            sort: columns::by_launches(),
            is_reversed: false,
            filter: String::new(),
            edits_filter: false,
            open: Open::List,
            scroll: 0,
            selected: None,
            place: 0,
            page: 1,
        }
    }
}

impl Model {
    /// Shows a new sample, unless the view is paused.
    pub fn update(&mut self, activity: Activity, now: SystemTime, is_first: bool) {
        if self.is_paused {
            return;
        }
        self.is_measured = !is_first;
        (self.activity, self.now) = (activity, now);
        self.settle();
    }

    /// The processes that pass the filter, in order.
    pub fn rows(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let mut rows: Vec<&Row> = self.activity.rows.iter().filter(|row| passes(row, &filter)).collect();
        columns::sort(&mut rows, self.sort, self.is_reversed);
        rows
    }

    pub fn selected(&self) -> Option<&Row> {
        let pid = self.selected?;
        self.activity.rows.iter().find(|row| row.pid == pid)
    }

    /// The process whose details the next sample must have.
    pub fn wanted(&self) -> Option<u32> {
        self.selected
    }

    /// The time since the recording began.
    pub fn recorded(&self) -> Duration {
        Duration::from_nanos(self.activity.at_ns)
    }

    pub fn key(&mut self, key: Key) -> Next {
        if key == Key::Interrupt {
            return Next::Quit;
        }
        if self.edits_filter {
            self.edit(key);
        } else if key == Key::Char('q') {
            return Next::Quit;
        } else {
            self.command(key);
        }
        self.settle();
        Next::Continue
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Enter => self.edits_filter = false,
            Key::Escape => {
                self.edits_filter = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if !c.is_control() && self.filter.len() < LONGEST_FILTER => self.filter.push(c),
            _ => {}
        }
    }

    fn command(&mut self, key: Key) {
        let columns = PROCESS.len();
        match key {
            Key::Char('h' | '?') => {
                self.open = if self.open == Open::Help { Open::List } else { Open::Help };
            }
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('s' | '>') => self.sort = (self.sort + 1) % columns,
            Key::Char('S' | '<') => self.sort = (self.sort + columns - 1) % columns,
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('/') => (self.open, self.edits_filter) = (Open::List, true),
            Key::Enter | Key::Right if self.open == Open::List && self.selected.is_some() => {
                (self.open, self.scroll) = (Open::Details, 0);
            }
            Key::Enter | Key::Left if self.open != Open::List => self.open = Open::List,
            Key::Escape if self.open != Open::List => self.open = Open::List,
            Key::Escape => self.filter.clear(),
            _ => self.go(key),
        }
    }

    /// Moves the selection, or scrolls the details.
    fn go(&mut self, key: Key) {
        let page = self.page.max(2) - 1;
        let by = |at: usize| match key {
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => at.saturating_add(1),
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown => at.saturating_add(page),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => usize::MAX,
            _ => at,
        };
        match self.open {
            Open::Details => self.scroll = by(self.scroll),
            Open::Help => {}
            Open::List => {
                let to = by(self.place);
                let rows = self.rows();
                let to = to.min(rows.len().saturating_sub(1));
                let pid = rows.get(to).map(|row| row.pid);
                (self.place, self.selected) = (to, pid);
            }
        }
    }

    /// Keeps the selected process selected if it has moved. If it is no longer listed, selects the one at its place.
    fn settle(&mut self) {
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(row.pid) == self.selected);
        let at = at.unwrap_or(self.place.min(rows.len().saturating_sub(1)));
        let selected = rows.get(at).map(|row| row.pid);
        if self.open == Open::Details && selected != self.selected {
            self.open = Open::List;
        }
        (self.place, self.selected) = (at, selected);
    }
}

/// `filter` is in lower case.
fn passes(row: &Row, filter: &str) -> bool {
    let (pid, rank) = (row.pid.to_string(), row.rank.map(|rank| format!("rank {rank}")));
    let texts = [Some(&pid), Some(&row.comm), row.user.as_ref(), row.container.as_ref(), rank.as_ref()];
    texts.into_iter().flatten().any(|text| text.to_lowercase().contains(filter))
}
