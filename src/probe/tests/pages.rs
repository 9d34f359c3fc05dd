//! The programs at calls never wait for a page of the target. In: the built BPF object. Out: proof that it calls no
//! helper that waits, which the verifier would allow in a sleepable program.

/// A program that waits for a target's page delays every other user of uprobes on the machine (bpf/capture.h).
#[test]
fn no_program_at_a_call_can_wait_for_a_page() {
    const CUDA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cuda.bpf.o"));
    /// bpf_copy_from_user and bpf_copy_from_user_task.
    const WAIT: [i32; 2] = [148, 191];
    let object = goblin::elf::Elf::parse(CUDA).unwrap();
    let mut helpers = Vec::new();
    for section in object.section_headers.iter().filter(|section| section.is_executable()) {
        // An instruction has eight bytes: opcode, registers, an offset, a number.
        for instruction in CUDA[section.file_range().unwrap()].as_chunks::<8>().0 {
            let [0x85, registers, _, _, number @ ..] = *instruction else { continue };
            if registers >> 4 == 0 {
                helpers.push(i32::from_le_bytes(number));
            }
        }
    }
    assert!(helpers.len() > 50, "{}", helpers.len());
    assert!(!helpers.iter().any(|helper| WAIT.contains(helper)), "{helpers:?}");
    let names: Vec<&str> = object.syms.iter().filter_map(|one| object.strtab.get_at(one.st_name)).collect();
    assert!(names.iter().any(|name| name.starts_with("bpf_session_cookie")), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("copy_from_user")), "{names:?}");
}
