//! The words of table.txt for what calls do. In: a word. Out: the kind that it stands for.

use super::{
    Alloc, Amount, Context, Copy, Free, Graph, Kind, Name, On, Operand, Pool, Set, Size, Space, Stream,
    Table, Way,
};
use crate::table::Shape;

/// Kinds without a parameter, by their word.
const PLAIN: [(&str, Kind); 45] = {
    use Context as C;
    use Graph as G;
    use Kind::{Capture, Context as InContext, Graph as InGraph, Launch, Name as Named, Pool as InPool};
    use Kind::{Global, Map, Retain, Stream as InStream, Unmap, Unseen};
    [
        ("retain", Retain),
        ("map", Map),
        ("unmap", Unmap),
        ("global", Global),
        ("unseen", Unseen { same: None }),
        ("capture:begin", Capture { begins: true }),
        ("capture:end", Capture { begins: false }),
        ("launch:driver", Launch(Some(Shape::Driver))),
        ("launch:runtime", Launch(Some(Shape::Runtime))),
        ("launch:config", Launch(Some(Shape::Config { wide_shared: false }))),
        ("launch:wide-config", Launch(Some(Shape::Config { wide_shared: true }))),
        ("launch:other", Launch(None)),
        ("context:destroy", InContext(C::Destroy)),
        ("context:set", InContext(C::Set)),
        ("context:push", InContext(C::Push)),
        ("context:pop", InContext(C::Pop)),
        ("context:current", InContext(C::Current)),
        ("context:retain", InContext(C::Retain)),
        ("context:release", InContext(C::Release)),
        ("context:reset", InContext(C::Reset)),
        ("context:device-reset", InContext(C::DeviceReset)),
        ("context:set-device", InContext(C::SetDevice)),
        ("context:device", InContext(C::Device { of: None })),
        ("context:get-device", InContext(C::GetDevice)),
        ("context:other", InContext(C::Other)),
        ("stream:create", InStream(Stream::Create)),
        ("stream:create-elsewhere", InStream(Stream::CreateElsewhere)),
        ("stream:destroy", InStream(Stream::Destroy)),
        ("stream:context", InStream(Stream::Context)),
        ("stream:device", InStream(Stream::Device)),
        ("pool:of-device", InPool(Pool::OfDevice)),
        ("pool:create", InPool(Pool::Create)),
        ("pool:destroy", InPool(Pool::Destroy)),
        ("name:get", Named(Name::Get)),
        ("name:alias", Named(Name::Alias)),
        ("name:asked", Named(Name::Asked)),
        ("name:register", Named(Name::Register)),
        ("graph:create", InGraph(G::Create)),
        ("graph:add", InGraph(G::Add)),
        ("graph:add-memory", InGraph(G::AddMemory)),
        ("graph:nodes", InGraph(G::Nodes)),
        ("graph:instantiate", InGraph(G::Instantiate)),
        ("graph:launch", InGraph(G::Launch)),
        ("graph:destroy", InGraph(G::Destroy)),
        ("graph:destroy-node", InGraph(G::DestroyNode)),
    ]
};

pub(super) fn kind(text: &str) -> Option<Kind> {
    let words: Vec<&str> = text.split(':').collect();
    Some(match words.as_slice() {
        ["alloc", of, within, bytes, on] => Kind::Alloc(Alloc {
            space: space(of)?,
            table: table(within)?,
            size: size(bytes)?,
            on: match *on {
                "current" => On::Current,
                "stream" => On::Stream,
                "pool" => On::Pool,
                "location" => On::Location,
                _ => On::Unknown,
            },
        }),
        ["free", within, of] => Kind::Free(Free { table: table(within)?, space: space(of) }),
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
        ["context", "create", device] => Kind::Context(Context::Create { device: device.parse().ok()? }),
        ["context", "device", of] => Kind::Context(Context::Device { of: Some(of.parse().ok()?) }),
        ["unseen", same] => Kind::Unseen { same: Some(same.parse().ok()?) },
        ["node", sort, does, params] => Kind::KernelNode {
            params: params.parse().ok()?,
            generic: *sort == "generic",
            adds: *does == "add",
        },
        _ => PLAIN.iter().find(|(word, _)| *word == text)?.1,
    })
}

fn space(word: &str) -> Option<Space> {
    Space::ALL.into_iter().find(|space| space.name() == word)
}

fn table(word: &str) -> Option<Table> {
    Some(match word {
        "addresses" => Table::Addresses,
        "registered" => Table::Registered,
        "arrays" => Table::Arrays,
        "handles" => Table::Handles,
        _ => return None,
    })
}

fn size(word: &str) -> Option<Size> {
    Some(match word {
        "unknown" => Size::Unknown,
        "pitch" => Size::Pitch,
        "extent" => Size::Extent,
        "array2d" => Size::Array2D,
        "array3d" => Size::Array3D,
        "plane" => Size::Plane,
        "volume" => Size::Volume,
        _ => match (word.strip_prefix("levels"), word.strip_prefix("volume-levels")) {
            (Some(levels), _) => Size::Levels(levels.parse().ok()?),
            (_, Some(levels)) => Size::VolumeLevels(levels.parse().ok()?),
            _ => Size::Param(word.parse().ok()?),
        },
    })
}

fn amount(word: &str) -> Option<Amount> {
    Some(match word {
        "rows" => Amount::Rows,
        "box" => Amount::Box,
        "runtime-box" => Amount::RuntimeBox { peer: false },
        "peer-box" => Amount::RuntimeBox { peer: true },
        "batch" => Amount::Batch,
        _ => match word.split_once('*') {
            Some((width, rows)) => Amount::Product(width.parse().ok()?, rows.parse().ok()?),
            None => Amount::Bytes(word.parse().ok()?),
        },
    })
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
