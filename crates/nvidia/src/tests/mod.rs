//! Hand-made payloads, in the layout of libcuda and the driver.

mod hostile;
mod objects;
mod requests;
mod tables;

use super::layouts::{SecondPiece, Shape};
use super::*;
use gpurec_trace::Value;

pub const CTL: Device = Device { family: Family::Nvidia, minor: 255 };
pub const UVM: Device = Device { family: Family::Uvm, minor: 0 };

/// A structure of `size` bytes with these values in it.
pub fn bytes(size: usize, words: &[(usize, u32)], longs: &[(usize, u64)]) -> Vec<u8> {
    let mut made = vec![0; size];
    for (at, word) in words {
        made[*at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    for (at, long) in longs {
        made[*at..at + 8].copy_from_slice(&long.to_le_bytes());
    }
    made
}

/// An escape whose size is its payload's.
pub fn escape(nr: u32, payload: &[u8]) -> Ioctl<'_> {
    let size = payload.len() as u32;
    let cmd = 0xc000_4600 | (size << 16) | nr;
    Ioctl { device: CTL, cmd, nr, size, wrapped: false, payload: Some(payload), second: None }
}

pub fn uvm(cmd: u32, payload: &[u8]) -> Ioctl<'_> {
    let (nr, size) = (cmd & 0xff, 0);
    Ioctl { device: UVM, cmd, nr, size, wrapped: false, payload: Some(payload), second: None }
}

/// "name=value name=value".
pub fn show(args: &[Arg]) -> String {
    let shown = args.iter().map(|a| match &a.value {
        Value::Hex(n) => format!("{}={n:#x}", a.name),
        Value::Number(n) => format!("{}={n}", a.name),
        Value::Signed(n) => format!("{}={n}", a.name),
        Value::Bool(b) => format!("{}={b}", a.name),
        Value::Text(t) => format!("{}={t}", a.name),
        other => format!("{}={other:?}", a.name),
    });
    shown.collect::<Vec<_>>().join(" ")
}

pub fn begin(decoder: &mut Decoder, ioctl: &Ioctl) -> String {
    let begun = decoder.begin(ioctl);
    let unknown = if begun.unknown { " (unknown)" } else { "" };
    format!("{}{unknown} {}", begun.request, show(&begun.detail)).trim_end().to_string()
}

/// Begins and ends an ioctl that returns 0; `after` is its payload at the end, `status` what BPF read.
pub fn whole(decoder: &mut Decoder, ioctl: &Ioctl, after: &[u8], status: Option<u32>) -> String {
    let begun = decoder.begin(ioctl);
    let done = decoder.end(&begun.pending, 0, Some(after), status);
    let status = done.status.unwrap_or("-".into());
    format!("{} {} -> {status} {}", begun.request, show(&begun.detail), show(&done.out))
        .trim_end()
        .to_string()
}
