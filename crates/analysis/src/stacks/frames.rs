//! The frames and stacks of a trace, each kept once. In: `stack` lines. Out: frames by number, and the call site of a
//! stack. Not here: which calls have a stack.

use gpurec_trace::bounds::{BytesLeft, LONGEST_NAME};
use gpurec_trace::hash::Map;
use gpurec_trace::{Frame, Stack};
use std::num::NonZeroU32;

/// Limits on distinct stacks, on the frames of all of them, on distinct frames, and on the bytes of their texts.
pub const MOST_STACKS: usize = 1 << 18;
const ALL_FRAMES: usize = 1 << 23;
const FRAMES_APART: usize = 1 << 17;
const TEXTS: usize = 24 << 20;
/// Bytes that a frame takes in addition to its texts.
const EACH: usize = 128;

/// The number of a frame, from 1. A call site is a frame.
pub type Site = NonZeroU32;

#[derive(Default)]
pub struct Frames {
    all: Vec<Frame<'static>>,
    by_frame: Map<Frame<'static>, Site>,
    stacks: Map<u64, Known>,
    texts_left: BytesLeft<TEXTS>,
    frames_left: BytesLeft<ALL_FRAMES>,
    /// Number of stacks that did not fit, and of stacks whose deeper frames are missing.
    pub left_out: u64,
    pub cut: u64,
}

/// A stack that was kept.
pub struct Known {
    /// The innermost first.
    pub frames: Box<[Site]>,
    pub site: Option<Site>,
    pub cut: bool,
}

impl Frames {
    pub fn add(&mut self, stack: &Stack) {
        self.cut += u64::from(stack.cut);
        let fits = self.stacks.len() < MOST_STACKS || self.stacks.contains_key(&stack.stack);
        if !fits || !self.frames_left.take(stack.frames.len()) {
            self.left_out += 1;
            return;
        }
        let frames: Box<[Site]> = stack.frames.iter().filter_map(|frame| self.number(frame)).collect();
        let site = call_site(&stack.frames).and_then(|at| frames.get(at).copied());
        self.stacks.insert(stack.stack, Known { frames, site, cut: stack.cut });
    }

    /// The number of a frame. Those beyond the limits share one.
    fn number<'a>(&mut self, frame: &Frame<'a>) -> Option<Site> {
        // A shared reference to the table may take a frame of any lifetime.
        let known: &Map<Frame<'a>, Site> = &self.by_frame;
        if let Some(number) = known.get(frame) {
            return Some(*number);
        }
        let bytes = frame.bytes();
        let fits = self.all.len() < FRAMES_APART && bytes <= LONGEST_NAME;
        let own = if fits && self.texts_left.take(EACH + 2 * bytes) {
            frame.shortened(LONGEST_NAME)
        } else {
            let others = others();
            if let Some(number) = self.by_frame.get(&others) {
                return Some(*number);
            }
            others
        };
        let number = Site::new(u32::try_from(self.all.len() + 1).ok()?)?;
        self.all.push(own.clone());
        self.by_frame.insert(own, number);
        Some(number)
    }

    pub fn stack(&self, number: u64) -> Option<&Known> {
        self.stacks.get(&number)
    }

    /// How many stacks were kept.
    pub fn count(&self) -> usize {
        self.stacks.len()
    }

    pub fn frame(&self, number: Site) -> Option<&Frame<'static>> {
        self.all.get(number.get() as usize - 1)
    }

    pub fn text(&self, number: Site) -> String {
        self.frame(number).map_or_else(|| "?".to_owned(), Frame::text)
    }
}

/// Stands for the frames beyond the limits.
fn others() -> Frame<'static> {
    Frame::Python { function: "(others)".into(), file: "?".into(), line: None }
}

/// The frame of a stack that its user would change: the innermost Python frame outside of installed packages and the
/// standard library; else the innermost Python frame; else the innermost native frame with a name; else the innermost
/// frame. All views name the call sites that this chooses.
pub fn call_site(frames: &[Frame]) -> Option<usize> {
    let own = |frame: &Frame| matches!(frame, Frame::Python { file, .. } if !is_installed(file));
    let python = |frame: &Frame| matches!(frame, Frame::Python { .. });
    let named = |frame: &Frame| matches!(frame, Frame::Native { function: Some(_), .. });
    let first = |fits: &dyn Fn(&Frame) -> bool| frames.iter().position(fits);
    first(&own).or_else(|| first(&python)).or_else(|| first(&named)).or(if frames.is_empty() {
        None
    } else {
        Some(0)
    })
}

/// Whether a Python file is of an installed package or of the standard library: below a folder site-packages,
/// dist-packages or lib*/python3*, or frozen into the interpreter.
fn is_installed(file: &str) -> bool {
    let mut before = "";
    for part in file.split('/') {
        let is_python = part.starts_with("python3");
        if matches!(part, "site-packages" | "dist-packages") || is_python && before.starts_with("lib") {
            return true;
        }
        before = part;
    }
    file.starts_with("<frozen ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(file: &str, function: &'static str) -> Frame<'static> {
        Frame::Python { function: function.into(), file: file.to_owned().into(), line: Some(1) }
    }

    fn native(function: Option<&'static str>) -> Frame<'static> {
        let function = function.map(Into::into);
        Frame::Native { function, module: "/l.so".into(), build_id: None, offset: 1, file: None, line: None }
    }

    #[test]
    fn the_call_site_is_what_its_user_would_change() {
        let torch = || python("/usr/lib/python3/dist-packages/torch/nn.py", "forward");
        let library = || python("/usr/lib/python3.11/threading.py", "run");
        let own = || python("/home/ada/python3/train.py", "load_batch");
        let site = |frames: &[Frame]| call_site(frames);
        assert_eq!(site(&[native(Some("a")), torch(), own(), own()]), Some(2));
        assert_eq!(site(&[native(Some("a")), torch(), library()]), Some(1), "all of it is installed");
        assert_eq!(site(&[native(None), native(Some("a"))]), Some(1));
        assert_eq!((site(&[native(None), native(None)]), site(&[])), (Some(0), None));
        for installed in [
            "<frozen importlib._bootstrap>",
            "/venv/lib/python3.13t/site-packages/x.py",
            "/opt/conda/lib/python312.zip/os.py",
            "/usr/lib64/python3.12/os.py",
        ] {
            let expected = !installed.contains("python312");
            assert_eq!(is_installed(installed), expected || installed.contains("lib/python3"), "{installed}");
        }
        for own in ["<string>", "train.py", "/home/ada/python3.11/train.py", "/srv/site-packages.py", ""] {
            assert!(!is_installed(own), "{own}");
        }
    }

    #[test]
    fn frames_are_kept_once_and_what_is_beyond_the_limits_is_counted() {
        let mut frames = Frames::default();
        let stack = |number: u64, frames: Vec<Frame<'static>>| Stack {
            stack: number,
            pid: 1,
            frames,
            ..Stack::default()
        };
        for number in 0..3 {
            frames.add(&stack(number, vec![python("a.py", "f"), python("a.py", "g")]));
        }
        assert_eq!((frames.all.len(), frames.count(), frames.left_out), (2, 3, 0));
        let long = "x".repeat(LONGEST_NAME + 1);
        let long = Frame::Python { function: long.into(), file: "a.py".into(), line: None };
        frames.add(&stack(3, vec![long.clone(), long, python("a.py", "f")]));
        let known = frames.stack(3).unwrap();
        let texts: Vec<String> = known.frames.iter().map(|frame| frames.text(*frame)).collect();
        assert_eq!(texts, ["? (others)", "? (others)", "a.py:1 f"]);
        for number in 4..MOST_STACKS as u64 + 10 {
            frames.add(&stack(number, vec![python("a.py", "f")]));
        }
        assert_eq!((frames.count(), frames.left_out), (MOST_STACKS, 10));
    }
}
