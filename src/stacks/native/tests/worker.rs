//! What requests rest on: their messages, and mappings that are as listed.

use crate::process::maps::{self, Mapping};
use crate::stacks::native::{Frame, Registers, Stack, Unwound};

#[test]
fn a_mapping_that_is_gone_is_known_to_be() {
    let own = std::process::id();
    let mapped = maps::executable_memory(own).unwrap();
    let mapping = mapped.files.first().unwrap();
    assert!(maps::find_still_mapped(own, mapping).is_ok());
    let mut other = mapping.clone();
    other.end += 4096;
    assert!(maps::find_still_mapped(own, &other).is_err());
    let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
    assert!(maps::find_still_mapped(own, &other).is_err());
    let code = a_mapping_that_is_gone_is_known_to_be as fn() as usize as u64;
    assert!(mapped.file_at(code).is_some() && !mapped.is_other(code));
    assert_eq!(mapped.files, maps::executable_mappings(own).unwrap());
}

#[test]
fn messages_keep_bytes_and_frames() {
    let stack = Stack {
        registers: Registers { ip: 1, sp: u64::MAX, bp: 3, others: None },
        base: u64::MAX,
        bytes: (0..=255).collect(),
        replaced: vec![(8, 9)],
    };
    let text = serde_json::to_string(&stack).unwrap();
    let back: Stack = serde_json::from_str(&text).unwrap();
    assert_eq!((back.bytes, back.registers, back.replaced), (stack.bytes, stack.registers, stack.replaced));
    for bad in ["0", "0g", "é"] {
        serde_json::from_str::<Stack>(&text.replacen("000102", bad, 1)).unwrap_err();
    }
    let frame = Frame { function: Some("a\u{1}b".to_owned()), line: Some(7), ..Frame::default() };
    let text = serde_json::to_string(&vec![frame.clone()]).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Frame>>(&text).unwrap(), [frame]);
    assert_eq!(Unwound::default().cut, None);
}
