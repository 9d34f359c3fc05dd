//! Which libcupti to use. In: what the process has mapped, and the environment. Out: candidates, the best first: one
//! that is loaded; one beside the loaded CUDA runtime, which is of the same toolkit; one of a toolkit's folder; whatever
//! the dynamic linker finds.

use core::ffi::{c_char, c_void};

use crate::system;

const NAMES: [&[u8]; 2] = [b"libcupti.so.13", b"libcupti.so.12"];
/// From the folder of libcudart: the same, that of the other wheel, that of a toolkit.
const BESIDE: [&[u8]; 4] =
    [b"", b"../../cuda_cupti/lib/", b"../extras/CUPTI/lib64/", b"../../../extras/CUPTI/lib64/"];
const FOLDERS: [&[u8]; 6] = [
    b"/usr/local/cuda/extras/CUPTI/lib64/",
    b"/usr/local/cuda/lib64/",
    b"/usr/local/cuda-13/extras/CUPTI/lib64/",
    b"/usr/local/cuda-12/extras/CUPTI/lib64/",
    b"/opt/cuda/extras/CUPTI/lib64/",
    b"/usr/lib/x86_64-linux-gnu/",
];
const LONGEST: usize = 4096;

struct Path {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Path {
    fn of(parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path { bytes: [0; LONGEST], length: 0 };
        for part in parts {
            for byte in *part {
                // The last byte stays 0.
                *path.bytes.get_mut(path.length).filter(|_| path.length < LONGEST - 1)? = *byte;
                path.length += 1;
            }
        }
        Some(path)
    }

    fn open(&self, flags: i32) -> *mut c_void {
        // SAFETY: a terminated string.
        unsafe { system::dlopen(self.bytes.as_ptr().cast::<c_char>(), flags) }
    }
}

/// Calls `each` with one library after the other until it says that it is the right one.
pub fn libraries(each: &mut dyn FnMut(*mut c_void) -> bool) -> bool {
    let mut loaded = |parts: &[&[u8]], flags: i32| {
        let library = Path::of(parts).map_or(core::ptr::null_mut(), |path| path.open(flags));
        !library.is_null() && each(library)
    };
    if NAMES.iter().any(|name| loaded(&[name], system::LAZY | system::ONLY_IF_LOADED)) {
        return true;
    }
    let mut folder = [0u8; LONGEST];
    if let Some(length) = runtime_folder(&mut folder) {
        let folder = folder.get(..length).unwrap_or_default();
        for beside in BESIDE {
            if NAMES.iter().any(|name| loaded(&[folder, beside, name], system::LAZY)) {
                return true;
            }
        }
    }
    for variable in [c"CUDA_HOME", c"CUDA_PATH"] {
        // SAFETY: a terminated string.
        let home = unsafe { text(system::getenv(variable.as_ptr())) };
        if let Some(home) = home
            && NAMES.iter().any(|name| loaded(&[home, b"/extras/CUPTI/lib64/", name], system::LAZY))
        {
            return true;
        }
    }
    for folder in FOLDERS {
        if NAMES.iter().any(|name| loaded(&[folder, name], system::LAZY)) {
            return true;
        }
    }
    NAMES.iter().any(|name| loaded(&[name], system::LAZY))
}

unsafe fn text<'a>(at: *const c_char) -> Option<&'a [u8]> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller gives a terminated string.
    Some(unsafe { core::slice::from_raw_parts(at.cast(), system::strlen(at)) })
}

/// The folder of a mapped libcudart, with its slash: its length.
fn runtime_folder(to: &mut [u8; LONGEST]) -> Option<usize> {
    // SAFETY: a terminated string.
    let fd = unsafe { system::open(c"/proc/self/maps".as_ptr(), system::OPEN_READ) };
    if fd < 0 {
        return None;
    }
    let mut chunk = [0u8; 4096];
    let (mut line, mut found) = (Line { bytes: [0; LONGEST], length: 0 }, None);
    'file: loop {
        // SAFETY: a buffer of that length.
        let got = unsafe { system::read(fd, chunk.as_mut_ptr().cast(), chunk.len()) };
        if got <= 0 {
            break;
        }
        for byte in chunk.iter().take(got as usize) {
            if *byte != b'\n' {
                line.push(*byte);
                continue;
            }
            if let Some(folder) = line.folder_of(b"libcudart") {
                for (to, from) in to.iter_mut().zip(folder) {
                    *to = *from;
                }
                found = Some(folder.len());
                break 'file;
            }
            line.length = 0;
        }
    }
    // SAFETY: its own descriptor.
    unsafe { system::close(fd) };
    found
}

struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        if let Some(to) = self.bytes.get_mut(self.length) {
            *to = byte;
            self.length += 1;
        }
    }

    /// The folder in the line, if the file's name begins so.
    fn folder_of(&self, name: &[u8]) -> Option<&[u8]> {
        let line = self.bytes.get(..self.length)?;
        let begin = line.iter().position(|byte| *byte == b'/')?;
        let end = line.iter().rposition(|byte| *byte == b'/')? + 1;
        line.get(end..)?.starts_with(name).then_some(line.get(begin..end)?)
    }
}
