//! Decodes ioctls.
//! In: a version of the driver module, and ioctls with what was read of them, one after another.
//! Out: panics unless an answer comes, every key and every name in it is valid, a failed ioctl has no result, and the
//! lines that it makes are JSON.

use arbitrary::{Arbitrary, Unstructured};

use gpurec_nvidia::{Decoder, Device, Family, Ioctl};
use gpurec_trace::{Arg, Args, List};

const VERSIONS: [Option<&str>; 5] =
    [None, Some("515.43.04"), Some("535.261.03"), Some("580.159.04"), Some("590.48.01")];
const FAMILIES: [Family; 6] =
    [Family::Nvidia, Family::Uvm, Family::Caps, Family::Imex, Family::Nvswitch, Family::Nvlink];

/// How many bytes BPF reads at most.
const ENTRY: usize = 256;
const EXIT: usize = 64;

#[derive(Arbitrary, Debug)]
struct Call<'a> {
    family: u8,
    minor: u8,
    cmd: u32,
    /// None: the numbers are those of the command word.
    wrapped: Option<(u32, u32)>,
    payload: Option<&'a [u8]>,
    second: Option<&'a [u8]>,
    after: Option<&'a [u8]>,
    status: Option<u32>,
    returned: i32,
}

pub fn ioctl(data: &[u8]) {
    let mut bytes = Unstructured::new(data);
    let Ok(version) = bytes.arbitrary::<u8>() else { return };
    let mut decoder = Decoder::new(VERSIONS[usize::from(version) % VERSIONS.len()]);
    while !bytes.is_empty() {
        let Ok(call) = bytes.arbitrary::<Call>() else { return };
        one(&mut decoder, &call);
    }
    assert_eq!(decoder.forgotten(), 0, "there are never so many objects in one input");
}

fn one(decoder: &mut Decoder, call: &Call) {
    let family = FAMILIES[usize::from(call.family) % FAMILIES.len()];
    let minor = if call.minor % 4 == 0 { 255 } else { u32::from(call.minor) };
    // As in BPF: for nvidia-uvm the whole word is the number.
    let of_word = match family {
        Family::Uvm => (call.cmd, 0),
        _ => (call.cmd & 0xff, call.cmd >> 16 & 0x3fff),
    };
    let (nr, size) = call.wrapped.unwrap_or(of_word);
    let cut = |bytes: Option<&'_ [u8]>, most| bytes.map(|b| b[..b.len().min(most)].to_vec());
    let (payload, second) = (cut(call.payload, ENTRY), cut(call.second, ENTRY));
    let begun = decoder.begin(&Ioctl {
        device: Device { family, minor },
        cmd: call.cmd,
        nr,
        size,
        wrapped: call.wrapped.is_some(),
        payload: payload.as_deref(),
        second: second.as_deref(),
    });
    assert!(!begun.request.is_empty());
    assert!(begun.unknown || !begun.request.starts_with("0x"), "{} is a number", begun.request);
    judge(begun.detail);
    let after = cut(call.after, EXIT);
    let done = decoder.end(&begun.pending, call.returned.into(), after.as_deref(), call.status);
    assert!(call.returned >= 0 || (done.status.is_none() && done.out.is_empty()));
    assert!(done.status.is_none_or(|status| !status.is_empty()));
    judge(done.out);
}

fn judge(args: Vec<Arg<'static>>) {
    let names: Vec<String> = args.iter().map(|arg| arg.name.to_string()).collect();
    for (at, name) in names.iter().enumerate() {
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        assert!(plain && !name.is_empty(), "a key {name:?}");
        assert!(!names[..at].contains(name), "the key {name} twice in {names:?}");
    }
    let mut json = Vec::new();
    Args::Named(List::Owned(args)).write_json(&mut json);
    let read: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(read.as_object().map(|o| o.len()), Some(names.len()), "{read}");
}
