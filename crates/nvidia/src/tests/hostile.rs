//! No bytes make the decoder fail or take long.

use std::time::Instant;

use super::*;

/// A small generator of numbers that repeats its sequence.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ (self.0 >> 29)
    }
    pub fn below(&mut self, end: u32) -> u32 {
        ((self.next() >> 32) % u64::from(end.max(1))) as u32
    }
    fn bytes(&mut self, most: u32) -> Vec<u8> {
        let small = self.below(2) == 0;
        let count = self.below(most + 1);
        // Small numbers produce handles that recur, and classes and functions that exist.
        (0..count).map(|at| if small && at % 4 != 0 { 0 } else { self.next() as u8 }).collect()
    }
    fn maybe(&mut self, most: u32) -> Option<Vec<u8>> {
        (self.below(8) != 0).then(|| self.bytes(most))
    }
}

const FAMILIES: [Family; 6] =
    [Family::Nvidia, Family::Uvm, Family::Caps, Family::Imex, Family::Nvswitch, Family::Nvlink];

fn one(d: &mut Decoder, shape: &Shape, random: &mut Random) {
    let payload = random.maybe(300);
    let mut second = random.maybe(300);
    if random.below(4) == 0 {
        second = None;
    }
    let size = if random.below(2) == 0 {
        random.next() as u32
    } else {
        payload.as_ref().map_or(0, |p| p.len() as u32)
    };
    let ioctl = Ioctl {
        device: Device {
            family: shape.family,
            minor: if random.below(4) == 0 { 254 } else { random.below(256) },
        },
        cmd: if shape.family == Family::Uvm { shape.nr } else { random.next() as u32 },
        nr: shape.nr,
        size,
        wrapped: random.below(2) == 0,
        payload: payload.as_deref(),
        second: second.as_deref(),
    };
    let begun = d.begin(&ioctl);
    assert!(!begun.request.is_empty() && !ioctl.device.name().is_empty());
    let returned = [0, 0, 0, -22, i64::MIN, 5][random.below(6) as usize];
    let status = [Some(0), Some(0), None, Some(random.next() as u32)][random.below(4) as usize];
    let after = random.maybe(80);
    let done = d.end(&begun.pending, returned, after.as_deref(), status);
    assert!(returned >= 0 || (done.status.is_none() && done.out.is_empty()));
}

#[test]
fn random_bytes_through_every_request() {
    let mut random = Random(42);
    for version in [None, Some("515.43.04"), Some("535.261.03"), Some("580.159.04"), Some("590.48.01")] {
        let mut d = Decoder::new(version);
        let shapes = Layouts::of(version).shapes();
        for _ in 0..200 {
            for shape in &shapes {
                one(&mut d, shape, &mut random);
            }
        }
    }
}

#[test]
fn random_numbers() {
    let mut random = Random(43);
    let mut d = Decoder::new(Some("580.159.04"));
    for _ in 0..50_000 {
        let family = FAMILIES[random.below(6) as usize];
        let nr = if random.below(2) == 0 { random.below(256) } else { random.next() as u32 };
        let shape = Shape { family, nr, entry: 0, second: None, exit: 0, status: None };
        one(&mut d, &shape, &mut random);
    }
}

/// Every length of every payload, of equal bytes.
#[test]
fn every_length() {
    let mut d = Decoder::new(Some("580.159.04"));
    for shape in Layouts::of(Some("580.159.04")).shapes() {
        for fill in [0, 0xff, 0x41] {
            let bytes = vec![fill; 256];
            for length in 0..=256 {
                let device = Device { family: shape.family, minor: 255 };
                let payload = Some(&bytes[..length]);
                let ioctl =
                    Ioctl { device, cmd: shape.nr, payload, second: payload, ..escape(shape.nr, &bytes) };
                let begun = d.begin(&ioctl);
                d.end(&begun.pending, 0, Some(&bytes[..length.min(64)]), Some(0));
            }
        }
    }
}

/// A chain of objects, each under the previous one, freed at once.
#[test]
fn a_deep_tree() {
    let mut h = super::super::handles::Handles::new(300_000);
    h.add_client(1, 0x41);
    for object in 2..200_000 {
        h.add(1, object - 1, object, Some(0x40));
    }
    assert_eq!(h.len(), 199_999);
    h.remove(1, 2);
    assert_eq!(h.len(), 1);
}

/// A decoding takes about a microsecond; the bound leaves room for a slow machine and an unoptimised build.
#[test]
fn quick() {
    let mut d = Decoder::new(Some("580.159.04"));
    let control = bytes(32, &[(0, 1), (4, 2), (8, 0x2080_0102), (24, 564)], &[]);
    let alloc = bytes(48, &[(0, 1), (4, 2), (8, 3), (12, 0x40)], &[(16, 0x7000)]);
    let params = bytes(136, &[], &[(64, 1 << 20)]);
    let tail = bytes(20, &[(12, 1), (16, 3)], &[]);
    let head = [1; 24];
    let ioctls = [
        escape(0x2a, &control),
        Ioctl { second: Some(&params), ..escape(0x2b, &alloc) },
        Ioctl { second: Some(&tail), ..uvm(33, &head) },
        uvm(27, &params),
    ];
    let mut best = f64::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..250 {
            for ioctl in &ioctls {
                let begun = d.begin(ioctl);
                std::hint::black_box(d.end(&begun.pending, 0, None, Some(0)));
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    println!("{best:.0} ns for begin and end of an ioctl");
    assert!(best < 20_000.0, "{best} ns");
}
