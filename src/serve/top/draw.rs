//! How the view looks. In: the model, and the size of the terminal. Out: lines for ratatui, in ASCII. No information is
//! shown by colour alone. Not here: what is shown, and the terminal.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::Place;
use super::model::{Model, Open};
use crate::ui::clean;
use gpurec_analysis::activity::columns::{self, PROCESS};
use gpurec_analysis::activity::{HELD_UNKNOWN, MEMORY_UNSEEN, Row, Spaces};
use gpurec_analysis::short_size;
use gpurec_analysis::table::Table;
use gpurec_trace::{Device, time};

const HELP: &[(&str, &str)] = &[
    ("Up, Down", "select a process; also PgUp, PgDn, Home, End"),
    ("Enter", "open its details (threads, kernels, call sites), or close them"),
    ("s, S", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    ("/", "filter by PID, name, user, container or rank; Esc: show all"),
    ("p", "pause the view; the recording runs on"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("GPU", "NVML's number; if NVML does not list the process, its own number"),
    ("HELD", "allocated and not freed; +N: since the recording began, because"),
    ("", "what was allocated earlier was not seen"),
    ("NVML", "memory of the process, as NVML reports it"),
    ("LAUNCH/s", "launches of kernels and graphs"),
    ("COPY/s", "bytes copied and set, a second"),
    ("SYNC%", "time in calls that wait for the GPU, of the thread with the most"),
    ("CUDA%", "time in CUDA calls, of the thread with the most"),
    ("OVH%", "time that recording costs, of the thread with the most"),
    ("FAIL", "failed calls since the recording began"),
];

/// Whether text has colours.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub has_colour: bool,
}

impl Look {
    fn coloured(self, colour: Color) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.has_colour { bold.fg(colour) } else { bold }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws the whole screen. Sets the length of a page in the model.
pub fn draw(frame: &mut Frame, model: &mut Model, place: &Place, look: Look) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut lines = head(model, place, look, height);
    let body = height.saturating_sub(lines.len() + 1);
    model.page = body.saturating_sub(1);
    let mut shown = match model.open {
        Open::List => list(model, width, body),
        Open::Details => details(model, place, width, body),
        Open::Help => help(),
    };
    shown.resize(body, Line::default());
    lines.extend(shown);
    lines.truncate(height.saturating_sub(1));
    lines.push(foot(model, width));
    for (line, y) in lines.iter().zip(area.y..area.bottom()) {
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

/// The host, totals, lost events, and as many devices as there is room for.
fn head(model: &Model, place: &Place, look: Look, height: usize) -> Vec<Line<'static>> {
    let activity = &model.activity;
    let mut first = vec![Span::styled(" gpurec top", BOLD)];
    if model.is_paused {
        first.push(Span::styled("  PAUSED", look.coloured(Color::Yellow)));
    }
    first.push(Span::raw(format!(
        "  {}  recording for {}  {}  {}",
        clock(model.now),
        span(model.recorded().as_secs()),
        activity.processes(),
        clean(&place.host),
    )));
    let filter = match model.filter.as_str() {
        "" => String::new(),
        filter => format!("; filter: {}", clean(filter)),
    };
    let lost = if activity.lost > 0 { look.coloured(Color::Red) } else { Style::new() };
    let mut lines = vec![
        Line::from(first),
        Line::raw(format!(" {}", columns::total(activity))),
        Line::from(vec![
            Span::styled(format!(" {}", columns::lost(activity)), lost),
            Span::raw(format!("; sorted by {}", column(model))),
            Span::raw(if model.is_reversed { ", reversed" } else { "" }),
            Span::raw(filter),
        ]),
    ];
    // The help needs the whole height of a terminal with 24 lines.
    let room = if model.open == Open::Help { 0 } else { height / 8 };
    lines.extend(activity.devices.iter().take(room).map(|device| Line::raw(format!(" {}", state(device)))));
    if activity.devices.len() > room && room > 0 {
        lines.pop();
        let more = activity.devices.len() - room + 1;
        lines.push(Line::raw(format!(" and {more} more GPUs")));
    }
    lines
}

/// `GPU 0: 61 % busy, 12.0 GB used, 312 W, 64 C`.
fn state(device: &Device) -> String {
    let parts = [
        device.utilization.map(|percent| format!("{percent} % busy")),
        device.used_bytes.map(|bytes| format!("{} used", short_size(bytes))),
        device.power_w.map(|watts| format!("{watts:.0} W")),
        device.temperature_c.map(|celsius| format!("{celsius} C")),
        device.throttle.as_ref().filter(|why| !why.is_empty()).map(|why| {
            format!("clocks lowered: {}", why.iter().map(|why| clean(why)).collect::<Vec<_>>().join(", "))
        }),
    ];
    format!("GPU {}: {}", device.device, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn list(model: &Model, width: usize, height: usize) -> Vec<Line<'static>> {
    let rows = model.rows();
    if rows.is_empty() {
        let why = match model.activity.rows.len() {
            0 if !model.is_measured => "Measuring the first second.".to_owned(),
            0 => "No process has called CUDA since the recording began.".to_owned(),
            n => format!("None of {n} processes matches the filter."),
        };
        return vec![Line::default(), Line::raw(format!(" {why}"))];
    }
    let selected = model.selected().map(|row| row.pid);
    let mut texts = columns::processes(&rows).text(width).into_iter();
    let titles = titles(&texts.next().unwrap_or_default(), model, width);
    let (mut lines, mut at) = (Vec::new(), 0..0);
    for (row, text) in rows.iter().zip(texts) {
        let begin = lines.len();
        if Some(row.pid) == selected {
            lines.push(Line::styled(
                padded(&format!(">{}", text.get(1..).unwrap_or_default()), width),
                REVERSED,
            ));
        } else {
            lines.push(Line::raw(text));
        }
        lines.extend(
            row.long_calls()
                .into_iter()
                .map(|call| Line::styled(format!("         {}", columns::open_call(call)), BOLD)),
        );
        if Some(row.pid) == selected {
            at = begin..lines.len();
        }
    }
    let height = height.saturating_sub(1);
    let first = at.end.saturating_sub(height).min(at.start);
    let mut shown = vec![titles];
    shown.extend(lines.into_iter().skip(first).take(height));
    shown
}

/// The titles of the columns. The title of the sort column is marked.
fn titles(text: &str, model: &Model, width: usize) -> Line<'static> {
    let text = padded(text, width);
    let sorted = column(model);
    let is_word = |at: &usize| {
        let (before, after) = (text.get(..*at), text.get(at + sorted.len()..));
        before.is_some_and(|t| t.ends_with(' ')) && after.is_none_or(|t| t.is_empty() || t.starts_with(' '))
    };
    let found = text.match_indices(sorted).map(|(at, _)| at).find(is_word);
    let marked = REVERSED.add_modifier(Modifier::BOLD).add_modifier(Modifier::UNDERLINED);
    match found {
        Some(at) => {
            let (before, rest) = text.split_at(at);
            let (word, after) = rest.split_at(sorted.len());
            let span = |text: &str, style| Span::styled(text.to_owned(), style);
            Line::from(vec![span(before, REVERSED), span(word, marked), span(after, REVERSED)])
        }
        None => Line::styled(text, REVERSED),
    }
}

/// The title of the sort column.
fn column(model: &Model) -> &'static str {
    PROCESS.get(model.sort).map_or("", |column| column.head)
}

fn details(model: &mut Model, place: &Place, width: usize, height: usize) -> Vec<Line<'static>> {
    let Some(row) = model.selected().cloned() else { return Vec::new() };
    let mut lines = facts(&row);
    let mut section = |title: String, table: Option<Table>, otherwise: &str| {
        lines.push(Line::default());
        lines.push(Line::styled(format!(" {title}"), BOLD));
        match table.filter(|table| !table.is_empty()) {
            Some(table) => {
                let shown = table.rows.len() + 1;
                lines.extend(table.text(width).into_iter().take(shown).map(Line::raw));
            }
            None => lines.push(Line::raw(format!("  {otherwise}"))),
        }
    };
    let detail = model.activity.detail.as_ref().filter(|detail| detail.pid == row.pid);
    let (known, passed_ns) = (detail.is_some(), row.passed_ns);
    section(format!("Threads: {}", row.threads.len()), Some(columns::threads(&row)), "none");
    let none = if known { "none" } else { "measuring" };
    section("Kernels".to_owned(), detail.map(|detail| columns::kernels(detail, passed_ns)), none);
    let sites = detail.filter(|_| place.has_stacks).map(|detail| columns::sites(detail, passed_ns));
    let no_sites = if place.has_stacks { none } else { "not recorded: start `gpurec top --stacks`" };
    section("Call sites".to_owned(), sites, no_sites);
    model.scroll = model.scroll.min(lines.len().saturating_sub(height));
    lines.into_iter().skip(model.scroll).take(height).collect()
}

/// Facts about the process: its name, memory, rates, failed calls and open calls.
fn facts(row: &Row) -> Vec<Line<'static>> {
    let named = [
        row.user.as_ref().map(|user| format!("user {}", clean(user))),
        row.rank.map(|rank| format!("rank {rank}")),
        Some(row.gpus()).filter(|gpus| !gpus.is_empty()).map(|gpus| format!("GPU {gpus}")),
    ];
    let named = named.into_iter().flatten().map(|part| format!(", {part}")).collect::<String>();
    let mut lines = vec![Line::styled(format!(" {} (pid {}){named}", clean(&row.comm), row.pid), BOLD)];
    if let Some(container) = &row.container {
        lines.push(Line::raw(format!(" container {}", clean(container))));
    }
    let spaces = |held: &Spaces| match held.as_slice() {
        [] => "none".to_owned(),
        held => joined(held.iter().map(|(space, bytes)| format!("{space} {}", short_size(*bytes)))),
    };
    let held = match (&row.held, &row.held_since) {
        (Some(held), _) => spaces(held),
        (None, Some(held)) => format!("{} since the recording began; {HELD_UNKNOWN}", spaces(held)),
        (None, None) => format!("not known: {MEMORY_UNSEEN}"),
    };
    lines.push(Line::raw(format!(" memory held: {held}")));
    if !row.nvml.is_empty() {
        let of = |(device, bytes): &(u32, Option<u64>)| {
            format!("{} on GPU {device}", bytes.map_or("an unknown size".to_owned(), short_size))
        };
        lines.push(Line::raw(format!(" by NVML: {}", joined(row.nvml.iter().map(of)))));
    }
    let rates = columns::rates(&row.new, row.passed_ns);
    lines.push(Line::raw(format!(" {rates}, of graphs {}", columns::graphs(row))));
    let failed = joined(row.failed.iter().map(|(error, count)| format!("{} {count}", clean(error))));
    let failed = if failed.is_empty() { "none".to_owned() } else { failed };
    lines.push(Line::raw(format!(" failed calls: {failed}")));
    lines.extend(
        row.long_calls().into_iter().map(|call| Line::styled(format!(" {}", columns::open_call(call)), BOLD)),
    );
    lines
}

fn help() -> Vec<Line<'static>> {
    let line = |(key, what): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {key:<9}  "), BOLD), Span::raw(*what)])
    };
    let mut lines = vec![Line::default()];
    lines.extend(HELP.iter().map(line));
    lines
}

fn foot(model: &Model, width: usize) -> Line<'static> {
    if model.edits_filter {
        let text = format!(" filter: {}_   Enter: keep  Esc: show all", clean(&model.filter));
        return Line::styled(padded(&text, width), REVERSED);
    }
    let keys = match model.open {
        Open::List => "q quit  Enter details  s/S sort  r reverse  / filter  p pause  h help",
        Open::Details => "q quit  Esc back  Up/Down scroll  p pause  h help",
        Open::Help => "q quit  Esc back",
    };
    Line::styled(padded(&format!(" {keys}"), width), REVERSED)
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Pads a text to the end of the line, so that the whole line has its style.
fn padded(text: &str, width: usize) -> String {
    format!("{text:<width$}")
}

/// `14:03:22`, in the local time zone.
fn clock(at: SystemTime) -> String {
    time::rfc3339(at).get(11..19).unwrap_or_default().to_owned()
}

/// `12 s`, `3 min 4 s`, `2 h 3 min`.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
