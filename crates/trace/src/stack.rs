//! The line of a call stack: written once for each distinct stack, before the first line that refers to it.
//!
//! In: frames, innermost first. Out: the same, with no more frames than a reader keeps. Not here: where a stack comes
//! from, and what a view makes of it.

use std::borrow::Cow;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::bounds::short;
use super::rare::details;

/// The most frames of one stack that a reader keeps. The recorder writes fewer.
pub const MOST_FRAMES: usize = 256;

/// What lines about all stacks (`lost`) name in the place of a function. No function has a space in its name.
pub const CALL_STACKS: &str = "call stacks";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written<'a>", bound(deserialize = "'de: 'a"))]
pub struct Stack<'a> {
    /// Counts from 0.
    pub stack: u64,
    pub pid: u32,
    /// The innermost first.
    pub frames: Vec<Frame<'a>>,
    /// Deeper frames are missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

details! { it: Stack<'_> => stack, pid, frames = it.frames.iter().map(Frame::text).collect::<Vec<_>>(),
cut = it.cut.then_some(true) }

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", from = "AnyFrame<'a>", bound(deserialize = "'de: 'a"))]
pub enum Frame<'a> {
    Python {
        function: Cow<'a, str>,
        file: Cow<'a, str>,
        /// None: not known.
        line: Option<u32>,
    },
    Native {
        /// Demangled; none if no symbol covers the address.
        function: Option<Cow<'a, str>>,
        /// The path of the mapped file.
        module: Cow<'a, str>,
        build_id: Option<Cow<'a, str>>,
        /// The address within the file.
        #[serde(serialize_with = "hex")]
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        line: Option<u32>,
    },
}

fn hex<S: serde::Serializer>(offset: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{offset:#x}"))
}

impl Frame<'_> {
    /// `train.py:88 load_batch`, `at::empty (libtorch.so)` or `libfoo.so+0x1f`: paths are cut to their last part.
    pub fn text(&self) -> String {
        match self {
            Frame::Python { function, file, line } => format!("{} {function}", place(file, *line)),
            Frame::Native { function: Some(function), file: Some(file), line, .. } => {
                format!("{} {function}", place(file, *line))
            }
            Frame::Native { function: Some(function), module, .. } => {
                format!("{function} ({})", last_part(module))
            }
            Frame::Native { function: None, module, offset, .. } => {
                format!("{}+{offset:#x}", last_part(module))
            }
        }
    }

    /// The bytes of its texts.
    pub fn bytes(&self) -> usize {
        let of = |text: &Option<Cow<str>>| text.as_ref().map_or(0, |text| text.len());
        match self {
            Frame::Python { function, file, .. } => function.len() + file.len(),
            Frame::Native { function, module, build_id, file, .. } => {
                of(function) + module.len() + of(build_id) + of(file)
            }
        }
    }

    /// The frame with shorter texts of its own.
    pub fn shortened(&self, most: usize) -> Frame<'static> {
        let cut = |text: &str| Cow::Owned(short(text, most));
        let part = |text: &Option<Cow<str>>| text.as_deref().map(cut);
        match self {
            Frame::Python { function, file, line } => {
                Frame::Python { function: cut(function), file: cut(file), line: *line }
            }
            Frame::Native { function, module, build_id, offset, file, line } => Frame::Native {
                function: part(function),
                module: cut(module),
                build_id: part(build_id),
                offset: *offset,
                file: part(file),
                line: *line,
            },
        }
    }
}

/// `train.py:88`.
fn place(file: &str, line: Option<u32>) -> String {
    let file = last_part(file);
    line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}

/// The last part of a path. The file of some code is no path: `<string>`.
pub fn last_part(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// A stack as a line has it, which any program may have written.
#[derive(Deserialize)]
struct Written<'a> {
    stack: u64,
    pid: u32,
    #[serde(borrow)]
    frames: Bounded<'a>,
    #[serde(default)]
    cut: bool,
}

impl<'a> From<Written<'a>> for Stack<'a> {
    fn from(Written { stack, pid, frames, cut }: Written<'a>) -> Self {
        Stack { stack, pid, frames: frames.kept, cut: cut || frames.more }
    }
}

/// At most `MOST_FRAMES` frames, and whether there were more.
struct Bounded<'a> {
    kept: Vec<Frame<'a>>,
    more: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Bounded<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Frames<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Frames<'a> {
            type Value = Bounded<'a>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a list of frames")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bounded<'a>, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < MOST_FRAMES {
                    match seq.next_element::<Frame<'a>>()? {
                        Some(frame) => kept.push(frame),
                        None => return Ok(Bounded { kept, more: false }),
                    }
                }
                let mut more = false;
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    more = true;
                }
                Ok(Bounded { kept, more })
            }
        }
        from.deserialize_seq(Frames(std::marker::PhantomData))
    }
}

/// A frame with the keys of every kind. One of a kind that a newer gpurec added is shown by what it has.
#[derive(Deserialize)]
struct AnyFrame<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    function: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    file: Option<Cow<'a, str>>,
    #[serde(default)]
    line: Option<u32>,
    #[serde(default, borrow)]
    module: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    build_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    offset: Option<Cow<'a, str>>,
}

impl<'a> From<AnyFrame<'a>> for Frame<'a> {
    fn from(any: AnyFrame<'a>) -> Self {
        let AnyFrame { kind, function, file, line, module, build_id, offset } = any;
        if kind == "python" {
            return Frame::Python {
                function: function.unwrap_or(Cow::Borrowed("?")),
                file: file.unwrap_or(Cow::Borrowed("?")),
                line,
            };
        }
        let offset = offset.and_then(|text| super::value::parse_hex(&text)).unwrap_or(0);
        Frame::Native { function, module: module.unwrap_or(Cow::Borrowed("?")), build_id, offset, file, line }
    }
}
