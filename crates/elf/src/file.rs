//! Bounded reads of a file that may be hostile or shrinking. In: offset and size. Out: bytes, or why there are none.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use super::FileError;

/// The largest table that is read from a file.
const MOST: u64 = 256 << 20;

pub struct Source<'f> {
    file: &'f File,
    pub len: u64,
}

impl<'f> Source<'f> {
    /// Refuses all but regular files: reading a device may block or have side effects.
    pub fn new(file: &'f File) -> Result<Self, FileError> {
        let facts = file.metadata().map_err(FileError::Io)?;
        if !facts.is_file() {
            return Err(FileError::NotElf);
        }
        Ok(Self { file, len: facts.len() })
    }

    /// Exactly `size` bytes at `offset`; `what` names them in the error.
    pub fn exact(&self, offset: u64, size: u64, what: &str) -> Result<Vec<u8>, FileError> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        if !inside {
            return Err(FileError::Malformed(format!("its {what} would lie beyond its end")));
        }
        Self::bounded(size, what)?;
        let mut bytes = vec![0; size as usize];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(FileError::Malformed("it became shorter while it was read".to_owned()))
            }
            Err(error) => Err(FileError::Io(error)),
        }
    }

    /// Refuses tables larger than any in a real file, whether they are read at once or in pieces: a sparse file of any
    /// size costs nothing to make.
    pub fn bounded(size: u64, what: &str) -> Result<(), FileError> {
        if size > MOST {
            return Err(FileError::Malformed(format!("its {what} would take {} MiB", size >> 20)));
        }
        Ok(())
    }

    /// Up to `size` bytes at `offset`, fewer at the end of the file.
    pub fn at_most(&self, offset: u64, size: u64, what: &str) -> Result<Vec<u8>, FileError> {
        let left = self.len.saturating_sub(offset);
        self.exact(offset.min(self.len), size.min(left), what)
    }
}

/// The NUL-terminated text at the start of `bytes`.
pub fn text(bytes: &[u8]) -> Option<&str> {
    let end = memchr::memchr(0, bytes)?;
    std::str::from_utf8(bytes.get(..end)?).ok()
}
