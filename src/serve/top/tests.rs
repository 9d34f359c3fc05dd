//! The screens of the view, drawn without a terminal, and what keys do.

use std::time::{Duration, UNIX_EPOCH};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::draw::{Look, draw};
use super::model::{Key, Model, Next, Open};
use super::{Place, plain};
use gpurec_analysis::activity::{Activity, Counts, Detail, KernelRow, Row, SiteRow, ThreadRow};
use gpurec_analysis::usage::Times;
use gpurec_trace::Device;

const SECOND: u64 = 1_000_000_000;

fn row(pid: u32, comm: &str, launches: u64) -> Row {
    Row {
        pid,
        comm: comm.into(),
        user: Some("ann".into()),
        container: Some("3f2a9c41d7be0856".repeat(4)),
        rank: Some(pid % 8),
        devices: vec![0],
        nvml: vec![(3, Some(700 << 20))],
        held: Some(vec![("device", 512 << 20), ("host", 1 << 20)]),
        passed_ns: SECOND,
        new: Counts { launches, copied: 1_200_000_000, ..Counts::default() },
        failed: vec![("cudaErrorMemoryAllocation".into(), 3)],
        sync_ns: SECOND / 2,
        call_ns: SECOND / 4 * 3,
        cost_ns: SECOND / 100,
        threads: vec![ThreadRow { tid: pid, calls: 10, ..ThreadRow::default() }],
        ..Row::default()
    }
}

fn activity(processes: u32) -> Activity {
    let rows: Vec<Row> = (1..=processes).map(|n| row(1000 + n, "python", 10 * u64::from(n))).collect();
    let device = Device {
        device: 3,
        utilization: Some(61),
        used_bytes: Some(12 << 30),
        power_w: Some(312.4),
        ..Device::default()
    };
    let total = Counts { launches: 12_345, copied: 2_050_000_000, ..Counts::default() };
    Activity {
        at_ns: 75 * SECOND,
        passed_ns: SECOND,
        rows,
        total,
        failed: 3,
        devices: vec![device],
        ..Activity::default()
    }
}

fn model(activity: Activity) -> Model {
    let mut model = Model::default();
    model.update(activity, UNIX_EPOCH + Duration::from_secs(3600), false);
    model
}

fn place() -> Place {
    Place { host: "node\u{1b}[2J17".into(), has_stacks: false }
}

fn screen(model: &mut Model, width: u16, height: u16, has_colour: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, &place(), Look { has_colour })).unwrap();
    terminal
}

/// The lines of a screen, without spaces at their ends.
fn lines(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let terminal = screen(model, width, height, true);
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    cells.chunks(width.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
}

#[test]
fn eighty_by_twenty_four() {
    let mut model = model(activity(3));
    let lines = lines(&mut model, 80, 24);
    assert_eq!(lines.len(), 24);
    assert!(lines[0].ends_with("  recording for 1 min 15 s  3 processes  node\\u{1b}[2J17"), "{}", lines[0]);
    assert_eq!(lines[1], " 12.3k launches/s, 2.05 GB/s copied, 3 failed calls, 1.50 GB held");
    assert_eq!(lines[2], " 0 events lost; sorted by LAUNCH/s");
    assert_eq!(lines[3], " GPU 3: 61 % busy, 12.0 GB used, 312 W");
    let words: Vec<&str> = lines[4].split_whitespace().collect();
    for title in
        ["PID", "USER", "GPU", "HELD", "NVML", "LAUNCH/s", "COPY/s", "SYNC%", "CUDA%", "FAIL", "COMMAND"]
    {
        assert!(words.contains(&title), "{title}: {}", lines[4]);
    }
    assert!(lines[5].starts_with(">"), "the first is selected: {}", lines[5]);
    let cells: Vec<&str> = lines[5].trim_start_matches('>').split_whitespace().collect();
    assert_eq!(cells[..3], ["1003", "ann", "3"]);
    assert_eq!(cells[3..], ["513", "MB", "700", "MB", "30.0", "1.20G", "50.0", "75.0", "3", "python"]);
    assert!(lines[7].contains(" 1001 ") && lines[8].is_empty());
    assert!(lines[23].starts_with(" q quit"), "{}", lines[23]);
}

#[test]
fn two_hundred_by_sixty_has_all_columns() {
    let mut model = model(activity(30));
    let lines = lines(&mut model, 200, 60);
    assert_eq!(lines.len(), 60);
    for title in ["CONTAINER", "RANK", "OVH%"] {
        assert!(lines[4].contains(title), "{}", lines[4]);
    }
    assert!(lines[5].contains(" 3f2a9c41d7be ") && lines[5].ends_with(" python"), "{}", lines[5]);
    assert!(lines[34].contains(" 1001 "), "{}", lines[34]);
}

/// Every size draws something, and nothing panics.
#[test]
fn any_size() {
    for open in [Open::List, Open::Details, Open::Help] {
        let mut model = model(activity(5));
        model.open = open;
        for (width, height) in [(1, 1), (2, 3), (10, 5), (40, 6), (79, 23), (300, 100)] {
            assert_eq!(lines(&mut model, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn the_help_fits_into_24_lines_beside_many_devices() {
    let mut now = activity(3);
    now.devices = vec![now.devices[0].clone(); 8];
    let mut model = model(now);
    model.key(Key::Char('h'));
    let lines = lines(&mut model, 80, 24);
    assert!(lines.iter().any(|line| line.starts_with(" FAIL ")), "{lines:#?}");
}

#[test]
fn without_colour_only_modifiers_mark_text() {
    let mut lost = activity(2);
    (lost.lost, lost.new_lost) = (7, 2);
    let mut model = model(lost);
    model.key(Key::Char('p'));
    let terminal = screen(&mut model, 80, 24, false);
    let cells = terminal.backend().buffer().content();
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(cells.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)), "the selected process");
    let with = screen(&mut model, 80, 24, true);
    assert!(with.backend().buffer().content().iter().any(|cell| cell.fg == Color::Red), "lost events");
    let lines = lines(&mut model, 80, 24);
    assert!(lines[0].starts_with(" gpurec top  PAUSED  "), "{}", lines[0]);
    assert!(lines[2].starts_with(" 7 events lost, 2.00/s now"), "{}", lines[2]);
}

#[test]
fn a_call_that_is_open_for_long_has_a_line_of_its_own() {
    let mut now = activity(2);
    now.rows[0].threads[0].open = Some(("cuCtxSynchronize".into(), 12 * SECOND));
    let lines = lines(&mut model(now), 80, 24);
    assert!(lines[6].contains(" 1001 "), "{}", lines[6]);
    assert_eq!(lines[7].trim(), "cuCtxSynchronize open for 12.000 s in thread 1001");
}

#[test]
fn the_selection_follows_the_process() {
    let mut model = model(activity(50));
    assert_eq!(model.selected().unwrap().pid, 1050);
    lines(&mut model, 80, 24);
    (0..3).for_each(|_| _ = model.key(Key::Down));
    assert_eq!(model.selected().unwrap().pid, 1047);
    model.key(Key::Char('r'));
    assert_eq!((model.selected().unwrap().pid, model.rows()[0].pid), (1047, 1001));
    let shown = lines(&mut model, 80, 24);
    assert!(shown.iter().any(|line| line.starts_with(">") && line.contains(" 1047 ")), "{shown:?}");
    model.key(Key::End);
    assert_eq!(model.selected().unwrap().pid, 1050);
    model.key(Key::PageUp);
    assert_eq!(model.selected().unwrap().pid, 1050 - model.page as u32 + 1);
    model.key(Key::Home);
    assert_eq!(model.selected().unwrap().pid, 1001);
    // If it ends, the one at its place is selected.
    let mut without = activity(50);
    without.rows.remove(0);
    model.update(without, UNIX_EPOCH, false);
    assert_eq!(model.selected().unwrap().pid, 1002);
    model.update(Activity::default(), UNIX_EPOCH, false);
    assert!(
        model.selected().is_none() && lines(&mut model, 80, 24)[4].contains("No process has called CUDA")
    );
}

#[test]
fn filter_sort_and_pause() {
    let mut now = activity(3);
    now.rows[1].comm = "Trainer".into();
    let mut model = model(now);
    "/tRAIN".chars().for_each(|c| _ = model.key(Key::Char(c)));
    assert!(lines(&mut model, 80, 24)[23].starts_with(" filter: tRAIN_"));
    model.key(Key::Backspace);
    model.key(Key::Enter);
    assert_eq!(model.rows().iter().map(|row| row.pid).collect::<Vec<_>>(), [1002]);
    assert!(lines(&mut model, 80, 24)[2].ends_with("; filter: tRAI"));
    // q in the filter is a letter.
    model.key(Key::Char('/'));
    assert_eq!(model.key(Key::Char('q')), Next::Continue);
    assert!(lines(&mut model, 80, 24)[5].contains("None of 3 processes matches"));
    model.key(Key::Escape);
    assert_eq!(model.rows().len(), 3);
    let sorted = model.sort;
    model.key(Key::Char('s'));
    assert!(lines(&mut model, 80, 24)[2].ends_with("sorted by COPY/s"));
    model.key(Key::Char('S'));
    assert_eq!(model.sort, sorted);
    model.key(Key::Char('p'));
    model.update(activity(9), UNIX_EPOCH, false);
    assert_eq!(model.rows().len(), 3, "it is paused");
    model.key(Key::Char('p'));
    model.update(activity(9), UNIX_EPOCH, false);
    assert_eq!(model.rows().len(), 9);
    assert_eq!(model.key(Key::Char('q')), Next::Quit);
    assert_eq!(model.key(Key::Interrupt), Next::Quit);
}

#[test]
fn the_details_of_a_process() {
    let mut now = activity(1);
    let kernel = |n: u64| KernelRow { name: format!("_Z{n}"), launches: n, new: Some(n) };
    let site = SiteRow {
        site: "train.py:88 step".into(),
        function: "cuLaunchKernel".into(),
        times: Times { calls: 9, ns: 5 },
        new: Some(Times { calls: 4, ns: SECOND / 4 }),
    };
    now.detail = Some(Detail { pid: 1001, kernels: (0..40).map(kernel).collect(), sites: vec![site] });
    let mut model = model(now);
    model.key(Key::Enter);
    let shown = lines(&mut model, 80, 24);
    assert_eq!(shown[4], " python (pid 1001), user ann, rank 1, GPU 3");
    for text in [
        "container 3f2a9c41d7be0856",
        "memory held: device 512 MB, host 1.00 MB",
        "by NVML: 700 MB on GPU 3",
        "10.0 launches/s, 1.20 GB/s copied, of graphs 0",
        "failed calls: cudaErrorMemoryAllocation 3",
        "Threads: 1",
    ] {
        assert!(shown.iter().any(|line| line.contains(text)), "{text}: {shown:#?}");
    }
    model.key(Key::End);
    let end = lines(&mut model, 80, 24);
    assert!(end[22].contains("not recorded: start `gpurec top --stacks`"), "{end:#?}");
    model.key(Key::Home);
    assert_eq!(lines(&mut model, 80, 24), shown);
    let mut terminal = Terminal::new(TestBackend::new(100, 70)).unwrap();
    let with = Place { has_stacks: true, ..place() };
    terminal.draw(|frame| draw(frame, &mut model, &with, Look { has_colour: false })).unwrap();
    assert!(format!("{}", terminal.backend()).contains(" 4.00  25.0     9 cuLaunchKernel train.py:88 step"));
    model.key(Key::Escape);
    assert_eq!(model.open, Open::List);
    // A process that ends takes its details with it.
    model.key(Key::Enter);
    model.update(Activity::default(), UNIX_EPOCH, false);
    assert_eq!(model.open, Open::List);
}

#[test]
fn plain_text() {
    let mut now = activity(2);
    now.rows[0].threads[0].open = Some(("cuCtxSynchronize".into(), 2 * SECOND));
    let text = plain::text(&now, &place(), UNIX_EPOCH, 1000);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("gpurec top: node\\u{1b}[2J17 at 1970-01-01T")
            && lines[0].ends_with("75 s, 2 processes")
    );
    assert!(lines[1].ends_with(", 0 events lost"));
    assert!(lines[3].contains(" 1002 ann ") && lines[4].contains(" 1001 ann "), "{text}");
    assert_eq!(lines[5], "pid 1001: cuCtxSynchronize open for 2.000 s in thread 1001");
    assert!(text.ends_with("\n\n"));
}
