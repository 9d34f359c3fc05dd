//! Layouts: of the versions before 3.13, and of descriptions as the binaries of 3.13.0, 3.14.10 and 3.15.2 hold them.

use crate::stacks::python::{COOKIE, DESCRIPTION, Layout, NONE, Unfit, instruction};

/// Where a description holds an offset, and the offset.
type Row = (usize, u64);

const HEX_3_13: u64 = 51_183_856;
const HEX_3_14: u64 = 51_251_952;
const HEX_3_15: u64 = 51_315_440;

const ROWS_3_13: [Row; 21] = [
    (40, 632),
    (64, 7264),
    (72, 7344),
    (168, 8),
    (184, 72),
    (200, 160),
    (232, 8),
    (240, 0),
    (248, 56),
    (264, 70),
    (280, 112),
    (288, 120),
    (304, 136),
    (312, 68),
    (344, 200),
    (352, 16),
    (520, 16),
    (528, 32),
    (544, 32),
    (552, 16),
    (560, 40),
];
const ROWS_3_14: [Row; 21] = [
    (40, 808),
    (64, 7272),
    (72, 7344),
    (192, 8),
    (208, 72),
    (224, 160),
    (256, 8),
    (264, 0),
    (272, 56),
    (288, 74),
    (320, 112),
    (328, 120),
    (344, 136),
    (352, 68),
    (384, 208),
    (400, 16),
    (600, 16),
    (608, 32),
    (624, 32),
    (632, 16),
    (640, 40),
];
const ROWS_3_15: [Row; 22] = [
    (40, 936),
    (64, 7264),
    (72, 7336),
    (192, 8),
    (208, 72),
    (216, 80),
    (248, 184),
    (320, 8),
    (328, 0),
    (336, 56),
    (352, 74),
    (384, 112),
    (392, 120),
    (408, 136),
    (416, 68),
    (448, 208),
    (464, 16),
    (696, 16),
    (704, 32),
    (720, 32),
    (728, 16),
    (736, 40),
];

/// `_PyRuntime` as far as gpurec reads it.
pub fn description(version: u64, free_threaded: u64, rows: &[Row]) -> Vec<u8> {
    let mut head = vec![0; DESCRIPTION];
    head[..8].copy_from_slice(COOKIE);
    for (at, value) in [(8, version), (16, free_threaded)].iter().chain(rows) {
        head[*at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    head
}

pub fn of_3_14() -> Vec<u8> {
    description(HEX_3_14, 0, &ROWS_3_14)
}

#[test]
fn descriptions_are_read_by_their_version() {
    let read = |version, rows: &[Row]| Layout::described(&description(version, 0, rows)).unwrap().unwrap();
    let (v13, v14, v15) =
        (read(HEX_3_13, &ROWS_3_13), read(HEX_3_14, &ROWS_3_14), read(HEX_3_15, &ROWS_3_15));
    assert_eq!((v13.interpreters_head, v14.interpreters_head, v15.interpreters_head), (632, 808, 936));
    assert_eq!((v13.thread_id, v14.thread_id, v15.thread_id), (160, 160, 184));
    assert_eq!((v13.frame_owner, v14.frame_owner, v15.frame_owner), (70, 74, 74));
    assert_eq!((v13.code_adaptive, v14.code_adaptive, v15.code_adaptive), (200, 208, 208));
    assert_eq!((v13.code_mask, v14.code_mask, v15.code_mask), (0, 3, 3));
    assert_eq!((v13.thread_base_frame, v14.thread_base_frame, v15.thread_base_frame), (NONE, NONE, 80));
    for layout in [v13, v14, v15] {
        let code = (layout.code_filename, layout.code_name, layout.code_linetable, layout.code_firstlineno);
        assert_eq!(code, (112, 120, 136, 68));
        assert_eq!((layout.thread_frame, layout.frame_previous, layout.frame_instruction), (72, 8, 56));
        assert_eq!((layout.ascii_data, layout.unicode_data, layout.bytes_data), (40, 56, 32));
        assert_eq!(layout.instruction_kind, instruction::CURRENT);
    }
    // As the header of 3.13 has it.
    assert_eq!(v13.first_traceable, 184);
}

#[test]
fn only_known_releases_have_a_layout() {
    assert_eq!(Layout::of(0x0309_12f0).unwrap().version, 0x0309_12f0);
    assert_eq!(Layout::of(0x0308_12f0), Err(Unfit::Unknown(3, 8)));
    assert_eq!(Layout::of(0x030c_00a5), Err(Unfit::PreRelease(3, 12)));
    assert!(Layout::of(0x030c_00c1).is_ok());
    // 3.13 describes itself.
    assert_eq!(Layout::of(0x030d_00f0), Err(Unfit::Unknown(3, 13)));
    let described =
        |version, free, rows: &[Row]| Layout::described(&description(version, free, rows)).unwrap();
    assert_eq!(described(0x0310_00f0, 0, &ROWS_3_15), Err(Unfit::Unknown(3, 16)));
    assert_eq!(described(0x030f_00b1, 0, &ROWS_3_15), Err(Unfit::PreRelease(3, 15)));
    assert_eq!(described(HEX_3_14, 1, &ROWS_3_14), Err(Unfit::FreeThreaded(3, 14)));
    assert_eq!(described(u64::MAX, 0, &ROWS_3_14), Err(Unfit::Damaged));
}

#[test]
fn damaged_descriptions_are_refused() {
    let head = of_3_14();
    assert_eq!(Layout::described(&head[..700]), Some(Err(Unfit::Damaged)));
    assert_eq!(Layout::described(&head[..20]), None);
    assert_eq!(Layout::described(b"xdebugpx12345678901234567890"), None);
    for (at, _) in ROWS_3_14 {
        let mut wrong = head.clone();
        wrong[at + 3] = 0x7f;
        assert_eq!(Layout::described(&wrong), Some(Err(Unfit::Damaged)), "{at}");
    }
}
