//! Compares the tables with the facts they were made from.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::layouts::{MAX_ENTRY, MAX_EXIT};
use super::super::names::Names;
use super::super::version::{Span, Version, choose};
use super::*;

fn names(version: &str) -> Arc<Names> {
    Names::of(Version::of(Some(version)))
}

fn shape(version: &str, family: Family, nr: u32) -> Shape {
    let shapes = Layouts::of(Some(version)).shapes();
    *shapes.iter().find(|s| s.family == family && s.nr == nr).unwrap()
}

#[test]
fn every_line_is_understood() {
    for table in
        [include_str!("../commands.txt"), include_str!("../classes.txt"), include_str!("../statuses.txt")]
    {
        for line in table.lines() {
            let span = line.split(' ').next_back().filter(|word| word.contains('-') && word.len() > 1);
            assert!(Span::parse(span).is_some(), "{line}");
        }
    }
    let layouts = Layouts::of(None);
    let lines = include_str!("../layouts.txt").lines();
    let numbers: HashSet<(char, u32)> = lines
        .map(|line| {
            let mut words = line.split(' ');
            let kind = words.next().unwrap().chars().next().unwrap();
            (kind, u32::from_str_radix(words.next().unwrap(), 16).unwrap())
        })
        .collect();
    for (kind, number) in &numbers {
        let row = match kind {
            'n' => layouts.escape(*number, 0),
            'u' => layouts.uvm(*number),
            'v' => layouts.heap(*number),
            _ => continue,
        };
        assert!(row.is_some(), "{kind} {number:x}");
    }
    assert_eq!(numbers.iter().filter(|(kind, _)| *kind == 'n').count(), 41);
    assert_eq!(numbers.iter().filter(|(kind, _)| *kind == 'u').count(), 77);
}

#[test]
fn every_line_became_a_row_with_all_its_fields() {
    for version in ["515.43.04", "535.183.01", "550.144.03", "575.64.05", "580.142", "590.48.01", "595.45.04"]
    {
        let layouts = Layouts::of(Some(version));
        for line in include_str!("../layouts.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = u32::from_str_radix(words[1], 16).unwrap();
            let row = match words[0] {
                "n" => layouts.escape(number, words[4].parse().unwrap()),
                "u" => layouts.uvm(number),
                "a" => layouts.alloc(words[2]),
                _ => layouts.heap(number),
            };
            let row = row.unwrap();
            assert_eq!(row.name, words[2]);
            let inside = |end: u16| end <= row.size || row.size == 0;
            assert!(row.fields.iter().all(|f| inside(f.end())), "{line}");
            assert!(row.status.is_none_or(|at| inside(at + 4)), "{line}");
        }
        assert_eq!(layouts.escape(0x2b, 48).unwrap().name, "NV_ESC_RM_ALLOC");
    }
}

#[test]
fn shapes_keep_their_promises() {
    for version in
        [None, Some("470.1"), Some("515.43.04"), Some("535.54.03"), Some("580.159.04"), Some("600")]
    {
        let shapes = Layouts::of(version).shapes();
        let keys: HashSet<_> = shapes.iter().map(|s| (s.family, s.nr)).collect();
        assert_eq!(keys.len(), shapes.len(), "one shape for a number");
        assert_eq!(shapes.len(), 41 + 77 + 1);
        for s in &shapes {
            assert!(s.entry <= MAX_ENTRY && s.exit <= MAX_EXIT, "{s:?}");
            assert!(s.second.is_none_or(|second| (1..=MAX_ENTRY).contains(&second.size)), "{s:?}");
        }
    }
}

/// Command words and offsets of the result in 580, from the facts.
#[test]
fn shapes_of_580_and_of_others() {
    let at = |nr| shape("580.159.04", Family::Nvidia, nr);
    let control = at(0x2a);
    assert_eq!((control.entry, control.exit, control.status, control.second), (28, 0, Some(28), None));
    let alloc = at(0x2b);
    assert_eq!((alloc.entry, alloc.exit, alloc.status), (40, 44, Some(40)));
    assert_eq!(alloc.second, Some(SecondPiece { at: 16, size: 136, inline: false }));
    let statuses =
        [(0x29, 12), (0x34, 24), (0x4e, 40), (0x4f, 24), (0x27, 40), (0x4a, 20), (0xda, 4), (0xd9, 2600)];
    for (nr, status) in statuses {
        assert_eq!(at(nr).status, Some(status), "{nr:x}");
    }
    for nr in [0xc8, 0xc9, 0xd2, 0xd6, 0x32] {
        assert_eq!(at(nr).status, None, "{nr:x}");
    }
    let dma = |version| shape(version, Family::Nvidia, 0x57).status;
    assert_eq!((dma("575.64.05"), dma("580.65.06"), dma("580.159.04")), (Some(48), Some(56), Some(56)));
    let unmap = |version| shape(version, Family::Nvidia, 0x58).status;
    assert_eq!((unmap("545.29.06"), unmap("550.40.07")), (Some(32), Some(40)));
}

/// The layouts of UVM that changed.
#[test]
fn uvm_by_version() {
    let status = |version, nr| shape(version, Family::Uvm, nr).status;
    assert_eq!((status("580.159.04", 0x22), status("590.44.01", 0x22)), (Some(16), Some(8)));
    assert_eq!((status("580.159.04", 0x1c), status("590.48.01", 0x1c)), (Some(24), Some(8)));
    assert_eq!((status("550.40.07", 0x21), status("550.54.14", 0x21)), (Some(1196), Some(9260)));
    assert_eq!((status("550.40.07", 0x44), status("550.40.53", 0x44)), (Some(1176), Some(9240)));
    assert_eq!((status("545.29.06", 0x2a), status("550.40.07", 0x2a)), (Some(32), Some(36)));
    assert_eq!(status("595.45.04", 0x36), Some(16), "a request that is gone keeps its last layout");
    let map = shape("580.159.04", Family::Uvm, 0x21);
    assert_eq!((map.entry, map.second), (24, Some(SecondPiece { at: 9240, size: 20, inline: true })));
    let map = shape("535.261.03", Family::Uvm, 0x21);
    assert_eq!((map.entry, map.second), (24, Some(SecondPiece { at: 1176, size: 20, inline: true })));
}

#[test]
fn versions_in_order() {
    let v = |text| Version::parse(text).unwrap();
    assert!(
        v("535.43.02") < v("535.179") && v("535.179") < v("535.183.01") && v("535.288.01") < v("550.40.07")
    );
    assert!(v("580") > v("580.159.04") && v("580") < v("590.44.01"));
    for text in ["", "x", "580.x", "580..1", "-1", "99999999999.1"] {
        assert_eq!(Version::parse(text), None, "{text}");
    }
    let span = |text| Span::parse(Some(text)).unwrap();
    let rows = [(span("520.1-530.1"), 'b'), (span("510.1-515.1"), 'a'), (span("515.1-515.1"), 'c')];
    let at = |version| choose(rows, v(version)).unwrap();
    assert_eq!((at("500.1"), at("510.1"), at("515.1"), at("516.1")), ('a', 'a', 'a', 'c'));
    assert_eq!((at("520.1"), at("600.1")), ('b', 'b'));
}

/// The numbers of entries equal those in the facts.
#[test]
fn how_many_there_are() {
    let commands = include_str!("../commands.txt").lines();
    let rows: Vec<(u32, Span)> = commands
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (u32::from_str_radix(words[0], 16).unwrap(), Span::parse(words.get(2).copied()).unwrap())
        })
        .collect();
    assert_eq!(rows.len(), 1942);
    assert_eq!(rows.iter().map(|r| r.0).collect::<HashSet<_>>().len(), 1872);
    let counts = [("515.43.04", 1152), ("535.183.01", 1418), ("550.144.03", 1504), ("570.211.01", 1591)];
    let counts = counts.into_iter().chain([("580.142", 1617), ("595.45.04", 1614)]);
    for (tag, wanted) in counts {
        let at = Version::parse(tag).unwrap();
        let here: HashSet<u32> =
            rows.iter().filter(|(_, s)| s.first <= at && at <= s.last).map(|(n, _)| *n).collect();
        // A span does not show a gap inside it.
        assert!((wanted..=wanted + 15).contains(&here.len()), "{tag}: {} of {wanted}", here.len());
        let names = names(tag);
        assert!(here.iter().all(|n| names.command(*n).is_some()));
    }
    assert_eq!(include_str!("../statuses.txt").lines().count(), 154);
}

#[test]
fn names_by_version() {
    let command = |version, number| names(version).command(number).unwrap().into_owned();
    assert_eq!(command("580.159.04", 0x2080_0102), "NV2080_CTRL_CMD_GPU_GET_INFO_V2");
    assert_eq!(command("580.159.04", 0xa06c_0101), "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE");
    assert_eq!(command("580.159.04", 0xc36f_0108), "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN");
    assert_eq!(command("525.60.13", 0x0000_0285), "NV0000_CTRL_CMD_PUSH_GSP_UCODE");
    assert_eq!(command("580.142", 0x0000_0285), "NV0000_CTRL_CMD_PUSH_UCODE_IMAGE");
    assert_eq!(command("535.43.02", 0x2080_3401), "NV2080_CTRL_CMD_ECC_GET_ECI_COUNTERS");
    assert_eq!(command("580.142", 0x2080_3401), "NV2080_CTRL_CMD_ECC_GET_VOLATILE_COUNTS");
    assert_eq!(command("580.142", 0x2080_132a), "NV2080_CTRL_CMD_FB_COMPBITCOPY_GET_COMPBITS");
    assert_eq!(command("580.142", 0x2080_8001), "GSS_LEGACY_0x20808001");
    assert_eq!(names("580.142").command(0x2080_1fff), None);
    let status = |version, number| names(version).status(number).into_owned();
    assert_eq!((status("580.142", 0), status("580.142", 0x51)), ("NV_OK".into(), "NV_ERR_NO_MEMORY".into()));
    assert_eq!(status("550.144.03", 0x81), "NV_ERR_NVSWITCH_FABRIC_NOT_READY");
    assert_eq!(status("580.142", 0x81), "NV_ERR_NVLINK_FABRIC_NOT_READY");
    assert_eq!(status("590.48.01", 0x8b), "NV_ERR_DMA_XFER_FAILED");
    assert_eq!(status("595.45.04", 0x8b), "NV_ERR_OPERATION_ABORTED");
    assert_eq!(
        (status("595.45.04", 0xffff), status("1.1", 0xfff1)),
        ("NV_ERR_GENERIC".into(), "0xfff1".into())
    );
    let class = |number| names("580.142").class(number).unwrap();
    assert_eq!((class(0x40).name, class(0x40).params), ("NV01_MEMORY_LOCAL_USER", Some("memory")));
    assert_eq!((class(0xc86f).name, class(0xc86f).params), ("HOPPER_CHANNEL_GPFIFO_A", Some("channel")));
    assert_eq!((class(0x41).name, class(0x00).name), ("NV01_ROOT_CLIENT", "NV01_ROOT"));
    assert_eq!((class(0xa06c).params, class(0x90f1).params), (Some("group"), Some("vaspace")));
    assert!(names("580.142").class(0xf00d).is_none());
}

#[test]
fn devices() {
    let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n235 nvidia-caps\n\
                236 nvidia-caps-imex-channels\n 507 nvidia-uvm\n508 nvidia-nvswitch\n510 nvidia-nvlink\nx y\n\n\
                Block devices:\n509 nvidia-uvm\n";
    let families = [
        (195, Family::Nvidia),
        (235, Family::Caps),
        (236, Family::Imex),
        (507, Family::Uvm),
        (508, Family::Nvswitch),
        (510, Family::Nvlink),
    ];
    assert_eq!(majors(text), families);
    assert_eq!(majors(""), [(195, Family::Nvidia)]);
    let name = |family, minor| Device { family, minor }.name().into_owned();
    let expected = [
        (Family::Nvidia, 255, "nvidiactl"),
        (Family::Nvidia, 254, "nvidia-modeset"),
        (Family::Nvidia, 3, "nvidia3"),
        (Family::Uvm, 0, "nvidia-uvm"),
        (Family::Uvm, 1, "nvidia-uvm-tools"),
        (Family::Caps, 2, "nvidia-cap2"),
        (Family::Imex, 7, "nvidia-caps-imex-channels/channel7"),
        (Family::Nvswitch, 0, "nvidia-nvswitch0"),
        (Family::Nvlink, 0, "nvidia-nvlink"),
    ];
    for (family, minor, wanted) in expected {
        assert_eq!(name(family, minor), wanted);
    }
}
