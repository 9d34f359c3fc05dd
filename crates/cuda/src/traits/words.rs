//! The words of table.txt for what calls do. In: a word. Out: the kind that it stands for.

use gpurec_trace::word;

use super::{Alloc, Amount, Context, Copy, Free, Kind, Nccl, Operand, Set, Size, Way};

pub(super) fn kind(text: &'static str) -> Option<Kind> {
    let words: Vec<&'static str> = text.split(':').collect();
    Some(match words.as_slice() {
        ["retain"] => Kind::Retain,
        ["map"] => Kind::Map,
        ["unmap"] => Kind::Unmap,
        ["global"] => Kind::Global,
        ["unseen"] => Kind::Unseen { same: None },
        ["unseen", same] => Kind::Unseen { same: Some(same.parse().ok()?) },
        ["alloc", space, table, bytes, on] => {
            Kind::Alloc(Alloc { space: word(space)?, table: word(table)?, size: size(bytes)?, on: word(on)? })
        }
        ["free", table, space] => Kind::Free(Free { table: word(table)?, space: word(space) }),
        ["copy", bytes, between, to, from] => Kind::Copy(Copy {
            amount: amount(bytes)?,
            way: way(between)?,
            dst: operand(to)?,
            src: operand(from)?,
            is_async: false,
        }),
        ["set", element, count] => {
            let (count, rows) = match count.split_once('*') {
                Some((count, rows)) => (count, Some(rows.parse().ok()?)),
                None => (*count, None),
            };
            Kind::Set(Set { count: (count.parse().ok()?, rows), element: element.parse().ok()? })
        }
        ["capture", edge] => Kind::Capture { begins: *edge == "begin" },
        // A launch of another kind has its arguments in places that are not known.
        ["launch", shape] => Kind::Launch(word(shape)),
        ["context", "create", device] => Kind::Context(Context::Create { device: device.parse().ok()? }),
        ["context", "device"] => Kind::Context(Context::Device { of: None }),
        ["context", "device", of] => Kind::Context(Context::Device { of: Some(of.parse().ok()?) }),
        ["context", does] => Kind::Context(word(does)?),
        ["stream", does] => Kind::Stream(word(does)?),
        ["pool", does] => Kind::Pool(word(does)?),
        ["name", does] => Kind::Name(word(does)?),
        ["graph", does] => Kind::Graph(word(does)?),
        ["node", sort, does, params] => Kind::KernelNode {
            params: params.parse().ok()?,
            generic: *sort == "generic",
            adds: *does == "add",
        },
        ["nccl", rest @ ..] => Kind::Nccl(nccl(rest)?),
        _ => return None,
    })
}

fn nccl(words: &[&'static str]) -> Option<Nccl> {
    Some(match words {
        ["collective", op] => Nccl::Collective(op),
        ["send"] => Nccl::Send,
        ["recv"] => Nccl::Receive,
        ["init"] => Nccl::Init,
        ["init-all"] => Nccl::InitAll,
        ["split"] => Nccl::Split,
        ["shrink"] => Nccl::Shrink,
        ["grow"] => Nccl::Grow,
        ["end"] => Nccl::End,
        ["group", edge] => Nccl::Group { begins: *edge == "start" },
        ["rank"] => Nccl::Rank,
        ["nranks"] => Nccl::Ranks,
        _ => return None,
    })
}

fn size(text: &str) -> Option<Size> {
    let levels = || text.strip_prefix("levels")?.parse().ok().map(Size::Levels);
    let volume_levels = || text.strip_prefix("volume-levels")?.parse().ok().map(Size::VolumeLevels);
    let param = text.parse().ok().map(Size::Param);
    param.or_else(levels).or_else(volume_levels).or_else(|| word(text))
}

fn amount(text: &str) -> Option<Amount> {
    let product = || {
        let (width, rows) = text.split_once('*')?;
        Some(Amount::Product(width.parse().ok()?, rows.parse().ok()?))
    };
    text.parse().ok().map(Amount::Bytes).or_else(product).or_else(|| word(text))
}

fn way(word: &str) -> Option<Way> {
    Some(match word {
        "h2d" => Way::HostToDevice,
        "d2h" => Way::DeviceToHost,
        "d2d" => Way::DeviceToDevice,
        "peer" => Way::Peer,
        "pointers" => Way::Pointers,
        _ => Way::Kind(word.strip_prefix("kind")?.parse().ok()?),
    })
}

fn operand(word: &str) -> Option<Operand> {
    if word == "device" { Some(Operand::Device) } else { word.parse().ok().map(Operand::Param) }
}
