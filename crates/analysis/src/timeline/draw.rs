//! Draws lanes as text. In: lanes. Out: the lines of the picture and its legend.

use super::lanes::{COPIES, Cell, DRIVER, KERNELS, Lane, Lanes, OFF_CPU, SORTS, Sort};
use crate::shorten::middle_cut;
use crate::text::{clean, duration, percent, plural, shortened};
use crate::views::calls::Thread;
use crate::views::plot::{self, Columns};

/// Default number of lanes.
const SHOWN: usize = 8;

/// Number of call sites named below a lane.
const SITES: usize = 3;

/// Columns before the picture, for the name of the row.
const MARGIN: usize = 9;

const RESET: &str = "\x1b[0m";

pub struct Style {
    pub width: usize,
    /// Width of lines outside the picture.
    pub text_width: usize,
    pub colour: bool,
}

impl Style {
    pub fn columns(&self) -> usize {
        self.width.saturating_sub(MARGIN).max(1)
    }
}

/// Which kinds of rows the picture has, so that the legend explains only those.
#[derive(Default)]
struct RowKinds {
    sorts: [bool; SORTS.len()],
    driver: bool,
    off_cpu: bool,
    interrupts: bool,
    sites: bool,
    streams: bool,
}

/// A lane whose cells are merged into columns.
struct DrawnLane<'a> {
    name: String,
    lane: &'a Lane,
    cells: Vec<Cell>,
}

/// The number of threads to show.
pub fn shown(chosen: bool) -> usize {
    if chosen { usize::MAX } else { SHOWN }
}

pub fn picture(lanes: &Lanes, style: &Style, chosen: bool) -> String {
    let mut text = String::new();
    let Some(scale) = lanes.scale.filter(|scale| lanes.last_ns > scale.start_ns) else {
        return "Nothing happened in this time.\n".to_owned();
    };
    let buckets = scale.bucket(lanes.last_ns - 1) + 1;
    let (columns, each) = Columns::new(scale.start_ns, scale.bucket_ns, buckets, style.columns());
    let all = lanes.busiest();
    if all.is_empty() {
        let threads = if chosen { "These threads made no" } else { "No" };
        return format!("{threads} CUDA call in this time.\n");
    }
    let mut shown: Vec<_> = all.iter().filter(|(_, lane)| lane.drawn).collect();
    shown.truncate(self::shown(chosen));
    let span_ns = lanes.last_ns - scale.start_ns;
    let (length, start, column) = (duration(span_ns), at(scale.start_ns), duration(columns.column_ns));
    push(&mut text, &format!("{length} from {start}, a column is {column}"));
    let mut used = RowKinds::default();
    for ((pid, tid), lane) in &shown {
        let command =
            lanes.commands.get(pid).map(|command| format!("  {}", clean(command))).unwrap_or_default();
        let name = format!("pid {pid} tid {tid}");
        let drawn = DrawnLane { name, lane, cells: joined(&lane.cells, each, columns.count) };
        push(&mut text, "");
        push(&mut text, &drawn.title(span_ns, &command, style.text_width));
        drawn.rows(&mut text, &columns, style, &mut used);
        if let Some(sites) = sites(lanes, lane) {
            used.sites = true;
            push(&mut text, &shortened(&row("at", &sites), style.text_width));
        }
    }
    used.streams = streams(&mut text, lanes, (&columns, each), span_ns, style);
    if lanes.elsewhere.cells.iter().any(|cell| cell.interrupts > 0) {
        used.interrupts = true;
        push(&mut text, "\nInterrupts in threads that make no CUDA call");
        let cells = joined(&lanes.elsewhere.cells, each, columns.count);
        push(&mut text, &row("irq", &interrupts(&cells)));
    }
    let [ticks, labels] = columns.axis();
    push(&mut text, &format!("{:>w$}└{ticks}", "", w = MARGIN - 1));
    push(&mut text, &format!("{:>MARGIN$}{labels}", ""));
    for (ts_ns, xid) in &lanes.xids {
        push(&mut text, &format!("Xid {xid}, an error of the driver's, at {}", at(*ts_ns)));
    }
    hidden(&mut text, lanes, &all, &shown, span_ns);
    legend(&mut text, &used, style);
    text
}

/// A lane for each of the busiest streams. Returns whether there are any.
fn streams(
    text: &mut String,
    lanes: &Lanes,
    (columns, each): (&Columns, usize),
    span_ns: u64,
    style: &Style,
) -> bool {
    let all = lanes.busiest_streams();
    for (key, lane) in all.iter().take(SHOWN) {
        let (work, share) = (plural(lane.calls, "record"), percent(lane.calls_ns.into(), span_ns.into()));
        push(text, "");
        let (device, pid, stream) = (key.device, key.pid, key.stream);
        let title = format!("GPU {device} stream {stream} of pid {pid}: {work}, {share} % of the time");
        push(text, &shortened(&title, style.text_width));
        let name = format!("stream {stream}");
        let drawn = DrawnLane { name, lane, cells: joined(&lane.cells, each, columns.count) };
        for (layer, name) in [(KERNELS, "gpu"), (COPIES, "copies")] {
            if layer == KERNELS || drawn.cells.iter().any(|cell| cell.below(layer) > 0) {
                drawn.levels(text, name, columns, |cell| cell.below(layer));
            }
        }
    }
    if all.len() > SHOWN {
        push(text, &format!("and {} with less GPU time", plural((all.len() - SHOWN) as u64, "stream")));
    }
    !all.is_empty()
}

/// States which threads are not shown, and how to see the busiest of them.
fn hidden(
    text: &mut String,
    lanes: &Lanes,
    all: &[(&Thread, &Lane)],
    shown: &[&(&Thread, &Lane)],
    span_ns: u64,
) {
    let is_shown = |thread: &Thread| shown.iter().any(|(known, _)| *known == thread);
    let mut others = all.iter().filter(|(thread, _)| !is_shown(thread));
    if let Some(((_, tid), lane)) = others.next() {
        let count = plural(1 + others.count() as u64, "thread");
        let least = shown.last().map_or(0, |(_, least)| least.calls_ns);
        if lane.calls_ns < least {
            push(text, &format!("and {count} with less time in CUDA: --tid shows them"));
        } else {
            let share = percent(lane.calls_ns.into(), span_ns.into());
            let busiest = format!("--tid {tid} shows the busiest, {share} % of the time in CUDA");
            push(text, &format!("and {count} that are not drawn: {busiest}"));
        }
    }
    if lanes.uncounted > 0 {
        let calls = plural(lanes.uncounted, "call");
        push(text, &format!("and {calls} of further threads, whose time is not known: --tid shows them"));
    }
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// The call sites in which a thread spent most of its time in CUDA.
fn sites(lanes: &Lanes, lane: &Lane) -> Option<String> {
    let mut sites = lane.sites.clone();
    sites.sort_by_key(|(site, ns)| (std::cmp::Reverse(*ns), *site));
    let part = |(site, ns): &(_, u64)| {
        format!("{} {} %", clean(&lanes.stacks.text(*site)), percent((*ns).into(), lane.calls_ns.into()))
    };
    let parts: Vec<String> = sites.iter().take(SITES).map(part).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn at(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1000)
}

fn joined(cells: &[Cell], each: usize, count: usize) -> Vec<Cell> {
    let join = |cells: &[Cell]| cells.iter().fold(Cell::default(), |sum, cell| sum.join(*cell));
    let mut all: Vec<Cell> = cells.chunks(each.max(1)).map(join).collect();
    all.resize(count, Cell::default());
    all
}

fn row(name: &str, cells: &str) -> String {
    format!("{name:>w$} │{cells}", w = MARGIN - 2).trim_end().to_owned()
}

/// A character for a share of a column, or of the largest column. A non-zero share is always visible.
fn level(part: u64, whole: u64) -> char {
    if part == 0 {
        return ' ';
    }
    let eighths = (u128::from(part) * 8).div_ceil(u128::from(whole.max(1)));
    usize::try_from(eighths)
        .ok()
        .and_then(|eighths| plot::LEVELS.get(eighths.clamp(1, 8) - 1))
        .copied()
        .unwrap_or('█')
}

fn interrupts(cells: &[Cell]) -> String {
    let most = cells.iter().map(|cell| cell.interrupts).max().unwrap_or(0);
    cells.iter().map(|cell| level(cell.interrupts, most)).collect()
}

impl DrawnLane<'_> {
    /// Shortens the command to fit, but keeps part of it.
    fn title(&self, span_ns: u64, command: &str, width: usize) -> String {
        const LEAST: usize = 20;
        let most = self.cells.iter().map(|cell| cell.calls).max().unwrap_or(0);
        let calls = plural(self.lane.calls, "call");
        let share = percent(self.lane.calls_ns.into(), span_ns.into());
        let long =
            format!("{}: {calls} (up to {most} in a column), {share} % of the time in CUDA", self.name);
        let short = format!("{}: {calls}, {share} % in CUDA", self.name);
        let room = LEAST.min(command.chars().count());
        let title = if long.chars().count() + room <= width { long } else { short };
        let command = middle_cut(command, width.saturating_sub(title.chars().count()).max(room));
        shortened(&format!("{title}{command}"), width)
    }

    fn rows(&self, text: &mut String, columns: &Columns, style: &Style, used: &mut RowKinds) {
        let most = self.cells.iter().map(|cell| cell.calls).max().unwrap_or(0);
        push(text, &row("cuda", &self.letters(columns, style, used)));
        self.levels(text, "busy", columns, Cell::calls_ns);
        let calls: String = self.cells.iter().map(|cell| level(cell.calls, most)).collect();
        push(text, &row("calls", &calls));
        for (layer, name, used) in
            [(DRIVER, "driver", &mut used.driver), (OFF_CPU, "off cpu", &mut used.off_cpu)]
        {
            if self.cells.iter().any(|cell| cell.below(layer) > 0) {
                *used = true;
                self.levels(text, name, columns, |cell| cell.below(layer));
            }
        }
        if self.cells.iter().any(|cell| cell.interrupts > 0) {
            used.interrupts = true;
            push(text, &row("irq", &interrupts(&self.cells)));
        }
    }

    fn levels(&self, text: &mut String, name: &str, columns: &Columns, of: impl Fn(&Cell) -> u64) {
        let cells: String = self.cells.iter().map(|cell| level(of(cell), columns.column_ns)).collect();
        push(text, &row(name, &cells));
    }

    /// The letter of the category that took most of the column; a point where there was nothing between two calls.
    fn letters(&self, columns: &Columns, style: &Style, used: &mut RowKinds) -> String {
        let is_used = |cell: &Cell| cell.calls_ns() > 0 || cell.calls > 0;
        let first = self.cells.iter().position(is_used).unwrap_or(0);
        let last = self.cells.iter().rposition(is_used).unwrap_or(0);
        let mut letters = String::new();
        let mut colour = "";
        for (at, cell) in self.cells.iter().enumerate() {
            let most = cell
                .by_sort
                .iter()
                .zip(SORTS)
                .enumerate()
                .max_by_key(|(index, (ns, _))| (**ns, std::cmp::Reverse(*index)));
            let (wanted, letter) = match most {
                Some((index, (ns, sort))) if *ns > 0 => {
                    if let Some(seen) = used.sorts.get_mut(index) {
                        *seen = true;
                    }
                    let half = cell.calls_ns().saturating_mul(2) >= columns.column_ns;
                    (sort.colour, if half { sort.letter } else { sort.letter.to_ascii_lowercase() })
                }
                _ if at > first && at < last => ("", '·'),
                _ => ("", ' '),
            };
            if style.colour && wanted != colour {
                letters.push_str(if wanted.is_empty() { RESET } else { wanted });
                colour = wanted;
            }
            letters.push(letter);
        }
        if !colour.is_empty() {
            letters.push_str(RESET);
        }
        letters
    }
}

fn legend(text: &mut String, used: &RowKinds, style: &Style) {
    let sorts: Vec<String> = SORTS
        .iter()
        .zip(used.sorts)
        .filter(|(_, used)| *used)
        .map(|(Sort { letter, name, colour }, _)| {
            let (begin, end) = if style.colour { (*colour, RESET) } else { ("", "") };
            format!("{begin}{letter}{end} {name}")
        })
        .collect();
    push(text, "");
    push(text, &format!("cuda     what took most of the column: {}", sorts.join(", ")));
    push(text, "         capital: calls fill half of the column or more; small: less; ·: no call");
    for (is_used, line) in [
        (true, "busy     how much of the column is CUDA calls: █ all of it, ▁ an eighth or less"),
        (true, "calls    how many calls began, as a share of the most in a column of the lane"),
        (used.sites, "at       the call sites with most of the thread's time in CUDA calls"),
        (
            used.streams,
            "gpu      how much of the column kernels and graphs ran in the stream; copies: copies and sets",
        ),
        (used.driver, "driver   how much of the column is ioctls and functions of the driver"),
        (used.off_cpu, "off cpu  how much of it the thread was off the CPU in CUDA calls"),
        (
            used.interrupts,
            "irq      interrupts of the driver, as a share of the most in a column of the lane",
        ),
    ] {
        if is_used {
            push(text, line);
        }
    }
}
