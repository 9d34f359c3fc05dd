//! Reads what a process says of its Python: line tables, debug offsets, the interpreter's file.
//! In: a choice of these, and bytes.
//! Out: panics unless an answer comes whatever they say, offsets are small, refusals are sentences, and a line that is found
//! does not depend on what follows in the table.

use super::{choice, with_file};
use gpurec::stacks::python::{Format, Found, Layout, NONE, find, line};

/// No field of an object lies further from its beginning; those of the interpreter's state are looked at apart.
const FARTHEST: u32 = 4096 + 16;
const FARTHEST_STATE: u32 = 16 << 20;

pub fn python(data: &[u8]) {
    let (how, bytes) = choice(data);
    match how % 3 {
        0 => lines(how, bytes),
        1 => {
            if let Some(described) = Layout::described(bytes) {
                match described {
                    Ok(layout) => judge(&layout),
                    Err(unfit) => assert!(!unfit.to_string().is_empty()),
                }
            }
        }
        _ => with_file(bytes, |scratch| {
            // A file may have any size and still consist of a hole.
            let hole = (how >> 4).checked_sub(6).map_or(0, |size| 1u64 << (4 * size));
            scratch.file.set_len(bytes.len() as u64 + hole).unwrap();
            match find(&scratch.file) {
                Found::None => {}
                Found::Python { layout, .. } => judge(&layout),
                Found::Refused(why) => assert!(!why.is_empty()),
            }
        }),
    }
}

fn judge(layout: &Layout) {
    let state = [layout.interpreters_head, layout.interpreter_next, layout.threads_head];
    assert!(state.iter().all(|offset| *offset < FARTHEST_STATE), "{layout:?}");
    let objects = [
        layout.thread_next,
        layout.thread_id,
        layout.thread_frame,
        layout.cframe_frame,
        layout.frame_code,
        layout.frame_previous,
        layout.frame_instruction,
        layout.frame_owner,
        layout.thread_base_frame,
        layout.code_filename,
        layout.code_name,
        layout.code_firstlineno,
        layout.code_linetable,
        layout.code_adaptive,
        layout.first_traceable,
        layout.unicode_state,
        layout.unicode_length,
        layout.ascii_data,
        layout.unicode_data,
        layout.bytes_size,
        layout.bytes_data,
    ];
    assert!(objects.iter().all(|offset| *offset < FARTHEST || *offset == NONE), "{layout:?}");
}

fn lines(how: u8, bytes: &[u8]) {
    let Some((head, table)) = bytes.split_at_checked(8) else { return };
    let word = |at: usize| i32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let format = [Format::Lnotab, Format::Ranges, Format::Locations][usize::from(how / 3 % 3)];
    let (first, offset) = (word(0), word(4));
    let found = line(format, table, first, offset.into());
    if offset < 0 {
        assert_eq!(found, u32::try_from(first).ok());
    }
    // A line further on in the table changes nothing.
    let longer = [table, &[0x80; 2]].concat();
    if format != Format::Lnotab && found.is_some() {
        assert_eq!(line(format, &longer, first, offset.into()), found);
    }
}
