//! A capture plan in the form that BPF reads. In: a plan. Out: the words that the C header describes.

use super::*;

#[test]
fn a_plan_is_reported_to_bpf_word_for_word() {
    assert!(capture::capture(&Plan::default()).is_none(), "registers and the value need no entry");
    let plan = Plan {
        stack_words: 5,
        entry: vec![
            wanted(Source::Word(3), What::Bytes(56)),
            wanted(
                Source::Inside { read: 0, offset: 40 },
                What::Counted { count: Count::Inside { read: 2, offset: 48 }, each: 72, max: 4 },
            ),
            wanted(Source::Word(10), What::Text(4096)),
            wanted(Source::Word(0), What::Counted { count: Count::Word(7), each: 8, max: 64 }),
        ],
        exit: vec![wanted(Source::Word(6), What::TextThrough(256))],
        also: 7,
    };
    let reported = capture::capture(&plan).unwrap();
    assert_eq!((reported.words, reported.entry_reads, reported.exit_reads, reported.also), (5, 4, 1, 7));
    let of = |r: &wire::Read| (r.kind, r.source, r.source_offset, r.count, r.count_offset, r.size, r.each);
    let expected = [
        (wire::READ_BYTES, 3, 0, 0, 0, 56, 0),
        (wire::READ_COUNTED, wire::INSIDE, 40, wire::INSIDE | 2, 48, 288, 72),
        (wire::READ_TEXT, 10, 0, 0, 0, 4096, 0),
        (wire::READ_COUNTED, 0, 0, 7, 0, 512, 8),
    ];
    assert_eq!(reported.entry.each_ref().map(of), expected);
    let none = (0, 0, 0, 0, 0, 0, 0);
    assert_eq!(
        reported.exit.each_ref().map(of),
        [(wire::READ_TEXT_THROUGH, 6, 0, 0, 0, 256, 0), none, none, none]
    );
}
