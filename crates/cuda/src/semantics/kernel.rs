//! Names of kernels, from handles and host stubs, as readable text.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use cpp_demangle::{DemangleOptions, DemangleWrite, ParseOptions, Symbol};

use gpurec_trace::bounds::{BytesLeft, Room, Share};
use gpurec_trace::hash::Map;

/// The longest name that is shown: names of templates can grow without limit.
const LONGEST: usize = 4096;

/// Bytes of all names together, of all processes: a hundred thousand names of some 1,300 bytes each.
const NAMES: usize = 144 << 20;
/// Bytes that a name takes besides its text, and bytes of a handle in a table.
const EACH: usize = 64;
const HANDLE: usize = 32;

/// Looks up the symbol at an address of a process.
pub trait Names {
    fn stub(&mut self, pid: u32, address: u64) -> Stub;

    /// The program of a process has ended.
    fn gone(&mut self, _pid: u32) {}
}

/// The host stub at an address.
pub enum Stub {
    /// The symbol, as the file spells it.
    Named(String),
    Unknown,
    /// The lookup would take too long now; a later one may succeed.
    NotNow,
}

/// For a recorder that cannot look up addresses.
impl Names for () {
    fn stub(&mut self, _: u32, _: u64) -> Stub {
        Stub::Unknown
    }
}

/// The name of a kernel, or the text that is shown in place of one.
pub struct KernelName {
    /// The symbol as the program has it.
    symbol: Box<[u8]>,
    cut: bool,
    /// The readable text, made when it is first shown: a program registers very many kernels and launches few. None: there
    /// was no room for it.
    text: OnceLock<Option<Arc<str>>>,
}

impl KernelName {
    fn of_text(text: String) -> Arc<KernelName> {
        let text = OnceLock::from(Some(text.into()));
        Arc::new(KernelName { symbol: Box::default(), cut: false, text })
    }
}

/// Every name, stored once.
#[derive(Default)]
pub struct KernelNames {
    /// Keyed by two hashes of the symbol: 128 bits with seeds of their own, so that no two names collide.
    names: Map<u128, Arc<KernelName>>,
    seeds: [RandomState; 2],
    left: BytesLeft<NAMES>,
    /// The number of names that did not fit.
    pub beyond: u64,
}

/// What is known of one process's kernels.
pub struct Kernels {
    share: Share,
    /// By address of the host stub. A fork keeps these.
    stubs: Arc<Map<u64, Arc<KernelName>>>,
    /// By CUfunction, CUkernel and cudaKernel_t.
    handles: Map<u64, Arc<KernelName>>,
    /// Functions that were looked up without a result, with the text that is shown for them.
    unknown: Map<u64, Arc<KernelName>>,
}

impl KernelNames {
    /// None: there is no room for the name.
    pub fn name(&mut self, bytes: &[u8], cut: bool) -> Option<Arc<KernelName>> {
        // A string includes its terminating zero if that was read.
        let bytes = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let [high, low] = self.seeds.each_ref().map(|seed| u128::from(seed.hash_one((bytes, cut))));
        let key = high << 64 | low;
        if let Some(known) = self.names.get(&key) {
            return Some(known.clone());
        }
        // Only a part of such a long one is shown.
        let text = (bytes.len() > LONGEST).then(|| readable(bytes, cut));
        if !self.left.take(EACH + text.as_ref().map_or(bytes.len(), String::len)) {
            self.beyond += 1;
            return None;
        }
        let symbol = || KernelName { symbol: bytes.into(), cut, text: OnceLock::new() };
        let name = text.map_or_else(|| Arc::new(symbol()), KernelName::of_text);
        self.names.insert(key, name.clone());
        Some(name)
    }

    /// The text of a name. The symbol itself if there is no room for its readable text.
    pub fn text(&mut self, name: &KernelName) -> Arc<str> {
        let text = name.text.get_or_init(|| {
            let text = readable(&name.symbol, name.cut);
            let fits = self.left.take(text.len());
            self.beyond += u64::from(!fits);
            fits.then(|| text.into())
        });
        text.clone().unwrap_or_else(|| String::from_utf8_lossy(&name.symbol).into())
    }
}

impl Kernels {
    pub fn new(room: &Room) -> Kernels {
        Kernels {
            share: Share::new(room),
            stubs: Arc::default(),
            handles: Map::default(),
            unknown: Map::default(),
        }
    }

    /// The child shares its parent's table as long as it registers no stubs of its own.
    pub fn of_child(&self, room: &Room) -> Kernels {
        Kernels { stubs: self.stubs.clone(), ..Kernels::new(room) }
    }

    pub fn register(&mut self, stub: u64, name: Arc<KernelName>) {
        self.forget(stub);
        let shared = Arc::strong_count(&self.stubs) > 1;
        let bytes = HANDLE * if shared { self.stubs.len() + 1 } else { 1 };
        if (self.stubs.contains_key(&stub) && !shared) || self.share.take(bytes) {
            Arc::make_mut(&mut self.stubs).insert(stub, name);
        }
    }

    pub fn handle(&mut self, handle: u64, name: Arc<KernelName>) {
        self.forget(handle);
        if handle != 0 {
            self.share.insert(&mut self.handles, HANDLE, handle, name);
        }
    }

    fn forget(&mut self, handle: u64) {
        self.share.remove(&mut self.unknown, HANDLE + EACH, &handle);
    }

    pub fn known(&self, function: u64) -> Option<&Arc<KernelName>> {
        self.handles.get(&function).or_else(|| self.stubs.get(&function))
    }

    /// The name of an unknown function, which is its handle. Calls `ask` once, or again as long as it returns None
    /// ("not now").
    pub fn look_up(
        &mut self,
        function: u64,
        ask: impl FnOnce() -> Option<Option<Arc<KernelName>>>,
    ) -> (Arc<KernelName>, bool) {
        if let Some(shown) = self.unknown.get(&function) {
            return (shown.clone(), false);
        }
        let handle = || KernelName::of_text(format!("{function:#x}"));
        let shown = match ask() {
            Some(Some(name)) => {
                self.register(function, name.clone());
                return (name, true);
            }
            None => return (handle(), false),
            Some(None) => handle(),
        };
        self.share.insert(&mut self.unknown, HANDLE + EACH, function, shown.clone());
        (shown, false)
    }
}

/// The demangled name, or the text itself if it cannot be demangled; a truncated name ends in `…`.
pub fn readable(bytes: &[u8], cut: bool) -> String {
    let text = demangled(bytes).unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
    let text = text.replacen("__device_stub__", "", 1);
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end == text.len() && !cut {
        return text;
    }
    format!("{}…", text.get(..end).unwrap_or_default())
}

fn demangled(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(b"_Z") {
        return None;
    }
    let limits = ParseOptions::default().recursion_limit(128);
    let symbol = Symbol::new_with_options(bytes, &limits).ok()?;
    let full = print(&symbol, DemangleOptions::default())?;
    // Other tools omit the return type of the function that contains a lambda. They keep that of the kernel itself
    // where the symbol has one, and a kernel always returns void.
    let bare = print(&symbol, DemangleOptions::default().no_return_type())?;
    const RETURNS: &str = "void ";
    let text = if full.starts_with(RETURNS) && !bare.starts_with(RETURNS) {
        RETURNS.to_owned() + &bare
    } else {
        bare
    };
    Some(without_empty_packs(literals(&text)))
}

fn print<T: AsRef<[u8]>>(symbol: &Symbol<T>, options: DemangleOptions) -> Option<String> {
    let mut text = BoundedText(String::new());
    match symbol.structured_demangle(&mut text, &options.recursion_limit(128)) {
        Ok(()) => Some(text.0),
        // The name was longer than what is shown; otherwise the output cannot be trusted.
        Err(_) => (text.0.len() > LONGEST).then_some(text.0),
    }
}

/// Rewrites `(unsigned long)3` as c++filt and the profilers do: `3ul`. In a demangled name a cast in front of a number
/// is always a literal.
fn literals(text: &str) -> String {
    const SUFFIXES: [(&str, &str); 5] = [
        ("(unsigned int)", "u"),
        ("(unsigned long)", "ul"),
        ("(unsigned long long)", "ull"),
        ("(long)", "l"),
        ("(long long)", "ll"),
    ];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('(') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let literal = SUFFIXES.iter().find_map(|(cast, suffix)| {
            let after = from.strip_prefix(cast)?;
            let digits = after.strip_prefix('-').unwrap_or(after);
            let length = digits.bytes().take_while(u8::is_ascii_digit).count();
            (length > 0)
                .then(|| after.split_at(after.len() - digits.len() + length))
                .map(|(n, rest)| (n, suffix, rest))
        });
        match literal {
            Some((number, suffix, after)) => {
                out.push_str(number);
                out.push_str(suffix);
                rest = after;
            }
            None => {
                out.push('(');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// Removes the comma that the demangler writes before an empty parameter pack at the end of a list. Other tools write
/// that comma only where another argument follows.
fn without_empty_packs(mut text: String) -> String {
    const EMPTY: [(&str, &str); 2] = [(", >", ">"), (", )", ")")];
    while let Some((empty, nothing)) = EMPTY.iter().find(|(empty, _)| text.contains(empty)) {
        text = text.replace(empty, nothing);
    }
    text
}

/// Limits the output: substitutions double, so a few bytes can expand to terabytes.
struct BoundedText(String);

impl DemangleWrite for BoundedText {
    fn write_string(&mut self, s: &str) -> fmt::Result {
        self.0.push_str(s);
        if self.0.len() > LONGEST { Err(fmt::Error) } else { Ok(()) }
    }
}
