//! The destination of an export. In: a buffer that the caller fills. Out: a file or standard output. It creates the
//! file only when there is something to write, so that an unreadable trace does not destroy an older export. The file
//! is opened with the invoking user's rights, which main has taken on.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use anyhow::Result;
use zstd::stream::write::Encoder;

use crate::Usage;
use crate::ui;

/// Size from which the buffer is written out.
const BUFFER: usize = 256 * 1024;

pub struct Output {
    path: Option<PathBuf>,
    to: Option<To>,
    /// Characters that control a terminal become escapes: names and arguments are written as the trace has them.
    pub is_json: bool,
}

enum To {
    Plain(Box<dyn Write>),
    /// Compressed if the file name says so, as for a trace.
    Zstd(Encoder<'static, File>),
}

impl Output {
    pub fn new(path: Option<&Path>, inputs: &[PathBuf]) -> Result<Output> {
        let to = match path {
            Some(path) => fs::metadata(path).ok().and_then(|about| identity(&about)),
            None => standard(stdout()),
        };
        if to.is_some() && inputs.iter().any(|input| of_input(input) == to) {
            let what = path.map_or("standard output".to_owned(), ui::name);
            let text = format!("{what} is the trace to convert: give -o another file");
            return Err(Usage(text).into());
        }
        Ok(Output { path: path.map(Path::to_path_buf), to: None, is_json: false })
    }

    /// Writes the buffer out if it is full.
    pub fn take(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if buffer.len() < BUFFER {
            return Ok(());
        }
        self.write(buffer)
    }

    pub fn finish(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.write(buffer)?;
        let done = match self.to.take() {
            Some(To::Zstd(to)) => to.finish().map(drop),
            Some(To::Plain(mut to)) => to.flush(),
            None => Ok(()),
        };
        done.map_err(|error| self.explained(error))
    }

    fn write(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if self.is_json {
            ui::safe_json_lines(buffer);
        }
        let to = match &mut self.to {
            Some(to) => to,
            None => self.to.insert(open(self.path.as_deref())?),
        };
        let written = match to {
            To::Plain(to) => to.write_all(buffer),
            To::Zstd(to) => to.write_all(buffer),
        };
        written.map_err(|error| self.explained(error))?;
        buffer.clear();
        Ok(())
    }

    fn explained(&self, error: io::Error) -> io::Error {
        match &self.path {
            Some(path) => explain(path, &error),
            None => error,
        }
    }
}

fn open(path: Option<&Path>) -> io::Result<To> {
    let Some(path) = path else { return Ok(To::Plain(Box::new(stdout().lock()))) };
    // Permissions as for a trace: the content about processes is only for their owner.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(|error| explain(path, &error))?;
    empty(&file).map_err(|error| explain(path, &error))?;
    let packs = path.extension().is_some_and(|extension| extension == "zst");
    Ok(if packs {
        To::Zstd(Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?)
    } else {
        To::Plain(Box::new(file))
    })
}

/// Empties a regular file, unless gpurec writes it now: a recorder has its trace locked.
fn empty(file: &File) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    #[cfg(unix)]
    {
        // SAFETY: a descriptor of ours, and plain integers.
        let locked =
            unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(file), libc::LOCK_EX | libc::LOCK_NB) };
        let error = io::Error::last_os_error();
        // Some file systems have no locks.
        if locked != 0 && error.kind() == io::ErrorKind::WouldBlock {
            return Err(io::Error::new(error.kind(), "another gpurec is writing it"));
        }
    }
    file.set_len(0)
}

fn explain(path: &Path, error: &io::Error) -> io::Error {
    let text = format!("{} cannot be written ({error}): give -o another place", ui::name(path));
    io::Error::new(error.kind(), text)
}

/// The identity of a file. None for anything but a regular file, since reading and writing that at once does no harm.
#[cfg(unix)]
fn identity(about: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    about.is_file().then(|| (about.dev(), about.ino()))
}

fn of_input(input: &Path) -> Option<(u64, u64)> {
    if input == Path::new("-") {
        return standard(stdin());
    }
    fs::metadata(input).ok().and_then(|about| identity(&about))
}

#[cfg(unix)]
fn standard(fd: impl std::os::fd::AsFd) -> Option<(u64, u64)> {
    let fd = fd.as_fd().try_clone_to_owned().ok()?;
    identity(&File::from(fd).metadata().ok()?)
}

/// On other systems a shell locks the file to which it redirects.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

#[cfg(not(unix))]
fn standard<T>(_: T) -> Option<(u64, u64)> {
    None
}
