//! Pictures of the committed traces, and cases that are easy to draw wrong.

use super::*;
use crate::golden::{self, TRACES, WIDTH};

const PLAIN: Style = Style { width: WIDTH, text_width: WIDTH, colour: false };

fn picture(file: &Path, config: &TimelineConfig, style: &Style) -> String {
    draw(file, config, style).unwrap().0
}

#[test]
fn golden_texts() {
    for (name, file) in TRACES {
        let text = picture(&golden::path(file), &TimelineConfig::default(), &PLAIN);
        golden::check(&format!("timeline_{name}"), &text);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
    let gpu = golden::path(crate::views::tests::GPU_TRACE);
    golden::check("timeline_gpu", &picture(&gpu, &TimelineConfig::default(), &PLAIN));
    let window = TimelineConfig {
        from: Some(Duration::from_millis(2710)),
        to: Some(Duration::from_millis(2732)),
        ..TimelineConfig::default()
    };
    golden::check("timeline_torch_window", &picture(&golden::path(TRACES[1].1), &window, &PLAIN));
}

/// Removing the colours from coloured output gives the plain output.
#[test]
fn colours_change_nothing_but_the_colour() {
    let file = golden::path(TRACES[0].1);
    let plain = picture(&file, &TimelineConfig::default(), &PLAIN);
    let coloured =
        picture(&file, &TimelineConfig::default(), &Style { width: WIDTH, text_width: WIDTH, colour: true });
    let mut stripped = String::new();
    for part in coloured.split('\x1b') {
        stripped.push_str(if stripped.is_empty() { part } else { part.split_once('m').unwrap().1 });
    }
    assert!(coloured.contains('\x1b') && !plain.contains('\x1b'));
    assert_eq!(stripped, plain);
}

#[test]
fn every_width_and_window_has_its_picture() {
    for (_, file) in TRACES {
        for width in [NARROWEST, 77, 100, 333, WIDEST] {
            let text = picture(
                &golden::path(file),
                &TimelineConfig::default(),
                &Style { width, text_width: width, colour: false },
            );
            let picture = text.lines().take_while(|line| !line.starts_with("cuda"));
            assert!(picture.into_iter().skip(1).all(|line| line.chars().count() <= width), "{width}: {text}");
            let axis = text.lines().find(|line| line.contains('└')).unwrap().chars().count();
            assert!(axis <= width && axis * 100 >= width * 85, "{axis} of {width}");
        }
    }
    let file = golden::path(TRACES[0].1);
    let after = TimelineConfig { from: Some(Duration::from_secs(1000)), ..TimelineConfig::default() };
    assert_eq!(picture(&file, &after, &PLAIN), "Nothing happened in this time.\n");
    let no_thread = TimelineConfig { tids: vec![1], ..TimelineConfig::default() };
    assert_eq!(picture(&file, &no_thread, &PLAIN), "These threads made no CUDA call in this time.\n");
    let one = TimelineConfig { tids: vec![19901], ..TimelineConfig::default() };
    let text = picture(&file, &one, &PLAIN);
    assert!(text.contains("tid 19901") && !text.contains("tid 19898"), "{text}");
}

/// The picture contains all calls and their whole time, at any width.
#[test]
fn nothing_is_lost_on_the_way_to_the_columns() {
    for columns in [1, 7, 91, 500] {
        for (_, file) in TRACES {
            let mut lanes = Lanes::new(None, None, &[], columns);
            read::each(&golden::path(file), &Only::default(), |line| lanes.line(line)).unwrap();
            lanes.finish();
            let figures = crate::summary_of(&golden::path(file), &Only::default()).unwrap();
            let calls: u64 = lanes.lanes.values().map(|lane| lane.calls).sum();
            assert_eq!(calls, figures.cuda_calls + figures.other_calls);
            for lane in lanes.lanes.values() {
                let of_cells = lane.cells.iter().fold(0, |sum, cell| sum + cell.calls_ns());
                assert_eq!(of_cells, lane.calls_ns);
                assert_eq!(lane.cells.iter().map(|cell| cell.calls).sum::<u64>(), lane.calls);
            }
        }
    }
}

#[test]
fn a_window_that_ends_before_it_begins_is_refused() {
    let (from, to) = (Some(Duration::from_secs(2)), Some(Duration::from_secs(1)));
    let config = TimelineConfig { from, to, ..TimelineConfig::default() };
    assert!(timeline(&config).unwrap_err().is::<Usage>());
}

/// 100 us: a call from 10 to 90, an ioctl in it from 20 to 60, off the CPU from 30 to 50, an interrupt at 70; a
/// launch inside the call from 80 to 85; an interrupt in another program at 95.
const LAYERS: &str = r#"{"event_id":0,"ts":0.000000000,"type":"header","name":"gpurec","schema":1,"version":"0","start":"","host":"","kernel":"","user":"","hooks":{}}
{"event_id":1,"ts":0.000000000,"type":"process","name":"exec","pid":7,"tid":7,"command":["python3","train.py"]}
{"event_id":2,"ts":0.000010000,"type":"userspace","name":"cudaMalloc","phase":"B","pid":7,"tid":7,"depth":0,"args":{}}
{"event_id":3,"ts":0.000020000,"type":"kernel","name":"nvidia_ioctl","phase":"B","pid":7,"tid":7,"depth":1,"parent":2,"device":"nvidiactl","cmd":"0x1","request":"NV_ESC_RM_ALLOC"}
{"event_id":4,"ts":0.000050000,"type":"scheduler","name":"off_cpu","pid":7,"tid":7,"depth":2,"parent":3,"cpu":0,"duration_us":20.000,"args":{"state":"sleeping"}}
{"event_id":5,"ts":0.000060000,"type":"kernel","name":"nvidia_ioctl","phase":"E","pid":7,"tid":7,"begin":3,"duration_us":40.000,"retval":0}
{"event_id":6,"ts":0.000070000,"type":"scheduler","name":"nvidia_irq","pid":7,"tid":7,"depth":1,"cpu":0,"duration_us":2.000,"args":{"irq":41}}
{"event_id":7,"ts":0.000080000,"type":"userspace","name":"cuLaunchKernel","phase":"B","pid":7,"tid":7,"depth":1,"parent":2,"args":{}}
{"event_id":8,"ts":0.000085000,"type":"userspace","name":"cuLaunchKernel","phase":"E","pid":7,"tid":7,"begin":7,"duration_us":5.000,"retval":0}
{"event_id":9,"ts":0.000090000,"type":"userspace","name":"cudaMalloc","phase":"E","pid":7,"tid":7,"begin":2,"duration_us":80.000,"retval":0}
{"event_id":10,"ts":0.000095000,"type":"scheduler","name":"nvidia_irq","pid":0,"tid":0,"depth":0,"cpu":1,"duration_us":2.000,"args":{"irq":41}}
{"event_id":11,"ts":0.000096000,"type":"userspace","name":"cudaStreamSynchronize","phase":"B","pid":7,"tid":7,"depth":0,"args":{}}
{"event_id":12,"ts":0.000100000,"type":"process","name":"exit","pid":7,"tid":7,"status":0}
{"event_id":13,"ts":0.000110000,"type":"end","name":"end","events":13,"lost":0,"in_flight":[],"complete":true,"summary":{}}
"#;

#[test]
fn layers_lie_over_one_another() {
    let file = std::env::temp_dir().join(format!("gpurec-timeline-{}.jsonl", std::process::id()));
    std::fs::write(&file, LAYERS).unwrap();
    golden::check("timeline_layers", &picture(&file, &TimelineConfig::default(), &PLAIN));
    let mut lanes = Lanes::new(None, None, &[], 50);
    read::each(&file, &Only::default(), |line| lanes.line(line)).unwrap();
    lanes.finish();
    let all = lanes.lanes[&(7, 7)].cells.iter().fold(lanes::Cell::default(), |sum, cell| sum.join(*cell));
    // The launch inside is not the allocation's time; the call in flight lasts until the exit, not until the end.
    assert_eq!(all.by_sort, [5_000, 4_000, 0, 75_000, 0, 0]);
    assert_eq!((all.below[0], all.below[1], all.interrupts, all.calls), (40_000, 20_000, 1, 3));
    _ = std::fs::remove_file(&file);
}

#[test]
fn a_lane_names_its_call_sites() {
    let file = std::env::temp_dir().join(format!("gpurec-timeline-sites-{}.jsonl", std::process::id()));
    std::fs::write(&file, crate::stacks::tests::training(true)).unwrap();
    golden::check("timeline_stacks", &picture(&file, &TimelineConfig::default(), &PLAIN));
    _ = std::fs::remove_file(&file);
}

/// The busiest thread is drawn even if it comes last.
#[test]
fn the_busiest_threads_are_drawn_whenever_they_come() {
    let mut lines = String::new();
    let mut id = 0;
    let mut call = |tid: u32, at_us: u64, us: u64| {
        let (begin, end) = (at_us * 1000, (at_us + us) * 1000);
        lines.push_str(&format!(
            "{{\"event_id\":{id},\"ts\":0.{begin:09},\"type\":\"userspace\",\"name\":\"cudaMalloc\",\"phase\":\"B\",\"pid\":7,\"tid\":{tid},\"depth\":0,\"args\":{{}}}}\n\
             {{\"event_id\":{},\"ts\":0.{end:09},\"type\":\"userspace\",\"name\":\"cudaMalloc\",\"phase\":\"E\",\"pid\":7,\"tid\":{tid},\"begin\":{id},\"duration_us\":{us}.000,\"retval\":0}}\n",
            id + 1
        ));
        id += 2;
    };
    for tid in 0..200 {
        call(1000 + tid, u64::from(tid) * 2, 1);
    }
    call(5000, 500, 400);
    let file = std::env::temp_dir().join(format!("gpurec-busiest-{}.jsonl", std::process::id()));
    std::fs::write(&file, &lines).unwrap();
    let text = picture(&file, &TimelineConfig::default(), &PLAIN);
    assert!(text.contains("tid 5000: 1 call"), "{text}");
    assert!(text.contains("and 193 threads that are not drawn: --tid 1007 shows the busiest"), "{text}");
    // A pipe cannot be read twice: the text says so.
    let mut lanes = Lanes::new(None, None, &[], PLAIN.columns());
    read::each(&file, &Only::default(), |line| lanes.line(line)).unwrap();
    lanes.finish();
    let text = draw::picture(&lanes, &PLAIN, false);
    assert!(
        text.contains("and 193 threads that are not drawn: --tid 5000 shows the busiest, 44.4 % of"),
        "{text}"
    );
    _ = std::fs::remove_file(&file);
}

/// Sums of long overlapping spans equal the sums one by one, and the cost does not grow with their length.
#[test]
fn spans_that_overlap_are_summed() {
    let file = std::env::temp_dir().join(format!("gpurec-overlap-{}.jsonl", std::process::id()));
    let mut lines = String::from(
        "{\"event_id\":1,\"ts\":0.000000001,\"type\":\"userspace\",\"name\":\"cudaMalloc\",\"phase\":\"B\",\"pid\":7,\"tid\":7,\"depth\":0,\"args\":{}}\n",
    );
    for i in 0..20_000u64 {
        let ts_ns = 1_000_000 + i;
        lines.push_str(&format!(
            "{{\"event_id\":{},\"ts\":0.{ts_ns:09},\"type\":\"scheduler\",\"name\":\"off_cpu\",\"pid\":7,\"tid\":7,\"depth\":1,\"parent\":1,\"cpu\":0,\"duration_us\":900.000,\"args\":{{\"state\":\"sleeping\"}}}}\n",
            i + 2
        ));
    }
    std::fs::write(&file, lines).unwrap();
    let mut lanes = Lanes::new(None, None, &[], WIDEST);
    read::each(&file, &Only::default(), |line| lanes.line(line)).unwrap();
    lanes.finish();
    let off_cpu: u64 = lanes.lanes[&(7, 7)].cells.iter().map(|cell| cell.below[1]).sum();
    assert_eq!(off_cpu, 20_000 * 900_000);
    _ = std::fs::remove_file(&file);
}
