//! Launches by every function that makes one.

use super::decoded::Launch;
use super::raw::{Entry, Piece};
use super::traits::Shape;
use super::*;
use gpurec_trace::Value;

fn bytes_of(words: &[(usize, u64, usize)], size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (at, value, width) in words {
        bytes[*at..at + width].copy_from_slice(&value.to_le_bytes()[..*width]);
    }
    bytes
}

const GRID: [(usize, u64, usize); 6] = [(0, 2, 4), (4, 3, 4), (8, 4, 4), (12, 32, 4), (16, 5, 4), (20, 6, 4)];

fn expected(function: u64, shared: u64, stream: u64) -> Launch {
    Launch { function, grid: [2, 3, 4], block: [32, 5, 6], shared, stream, cluster: None, cooperative: false }
}

#[test]
fn launches_of_both_apis() {
    let driver = |name: &str| {
        let entry = Entry {
            registers: [0xf, 2, 3, 4, 32, 5 | 0xabcd << 32],
            stack: &[6, 1024, 0x5, 1, 2],
            reads: &[],
        };
        signature(name, None).unwrap().launch(&entry)
    };
    assert_eq!(driver("cuLaunchKernel_ptsz"), Some(expected(0xf, 1024, 5)));
    assert_eq!(
        driver("cuLaunchCooperativeKernel"),
        Some(Launch { cooperative: true, ..expected(0xf, 1024, 5) })
    );
    for name in ["cudaLaunchKernel", "cudaLaunchKernel_ptsz", "__cudaLaunchKernel", "__cudaLaunchKernel_ptsz"]
    {
        let registers = [0xf, 3 << 32 | 2, 0xdead << 32 | 4, 5 << 32 | 32, 6, 0xa];
        let entry = Entry { registers, stack: &[1024, 5], reads: &[] };
        assert_eq!(signature(name, Some(13)).unwrap().launch(&entry), Some(expected(0xf, 1024, 5)), "{name}");
    }
    assert_eq!(driver("cuGraphLaunch"), None);
}

#[test]
fn launches_with_a_configuration_and_attributes() {
    for (name, shared) in [("cuLaunchKernelEx", 4), ("cudaLaunchKernelExC_ptsz", 8)] {
        let s = signature(name, Some(13)).unwrap();
        let rest = [(24, 1024, shared), (32, 5, 8), (40, 0x1000, 8), (48, 3, 4)];
        let config = bytes_of(&[GRID.as_slice(), &rest].concat(), 56);
        let attributes = bytes_of(
            &[
                (0, 4, 4),
                (8, 2, 4),
                (12, 1, 4),
                (16, 1, 4),
                (72, 2, 4),
                (80, 1, 4),
                (144, 8, 4),
                (152, 0xffff_fffe, 4),
            ],
            216,
        );
        let reads =
            [Piece::Bytes { bytes: &config, cut: false }, Piece::Bytes { bytes: &attributes, cut: false }];
        let entry = Entry { registers: [0x9, 0xf, 0, 0, 0, 0], stack: &[], reads: &reads };
        let launch = Launch { cluster: Some([2, 1, 1]), cooperative: true, ..expected(0xf, 1024, 5) };
        assert_eq!(s.launch(&entry), Some(launch), "{name}");
        let mut args = Vec::new();
        s.args(&entry, &mut args);
        let Value::Object(fields) = &args[0].value else { panic!("{args:?}") };
        let names: Vec<_> = fields.iter().map(|f| f.name.as_ref()).collect();
        assert_eq!(names, ["grid", "block", "shared", "stream", "cluster", "cooperative", "priority"]);
        assert_eq!(fields[2].value, Value::Number(1024));
        assert_eq!(fields[6].value, Value::Signed(-2));
        // No attributes at all.
        let reads = [reads[0], Piece::Null];
        let entry = Entry { reads: &reads, ..entry };
        assert_eq!(s.launch(&entry), Some(expected(0xf, 1024, 5)), "{name}");
    }
}

#[test]
fn shapes_of_launches_fit_the_rows() {
    let mut seen = 0;
    for signature in all() {
        let Some(shape) = signature.launch else { continue };
        let at = |i: usize| signature.params[i].name.to_lowercase();
        let right = match shape {
            Shape::Driver => {
                at(1) == "griddimx" && at(6) == "blockdimz" && at(7) == "sharedmembytes" && at(8) == "hstream"
            }
            Shape::Runtime => {
                at(1) == "griddim" && at(2) == "blockdim" && at(4) == "sharedmem" && at(5) == "stream"
            }
            Shape::Config | Shape::WideConfig => at(0) == "config" && ["f", "func"].contains(&at(1).as_str()),
        };
        assert!(right, "{}", signature.name);
        seen += 1;
    }
    assert_eq!(seen, 14);
}
