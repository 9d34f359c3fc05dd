//! The folders of a dataset, in which other users may be able to make names. In: the folder that the user gave, and
//! names in it. Out: folders and new files. Each folder is opened below the one before, without following a symbolic
//! link, so that no link leads gpurec to another place. Not here: which files are in them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ui;

pub struct Folder {
    /// Linux has a path for an open folder, whatever has its name by now.
    #[cfg(target_os = "linux")]
    opened: File,
    path: PathBuf,
}

impl Folder {
    /// The folder that the user named, through any link. Makes it if it is not there.
    pub fn given(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        Ok(Folder {
            #[cfg(target_os = "linux")]
            opened: File::open(path)?,
            path: path.to_path_buf(),
        })
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For operations on this name, which must not follow a link.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        #[cfg(target_os = "linux")]
        let folder =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.opened)));
        #[cfg(not(target_os = "linux"))]
        let folder = &self.path;
        folder.join(name)
    }

    /// The folder at a relative path in this one. Makes it if it is not there.
    pub fn make(&self, below: &Path) -> io::Result<Folder> {
        self.walk(below, |folder, name| match fs::create_dir(folder.at(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        })
    }

    /// None if it is not there.
    pub fn existing(&self, below: &Path) -> io::Result<Option<Folder>> {
        match self.walk(below, |_, _| Ok(())) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn walk(&self, below: &Path, prepare: impl Fn(&Folder, &Path) -> io::Result<()>) -> io::Result<Folder> {
        let mut folder = self.step(Path::new("."))?;
        for name in below.components().filter(|name| matches!(name, Component::Normal(_))) {
            prepare(&folder, name.as_ref())?;
            folder = folder.step(name.as_ref())?;
        }
        Ok(folder)
    }

    fn step(&self, name: &Path) -> io::Result<Folder> {
        let at = self.at(name);
        let path = if name == Path::new(".") { self.path.clone() } else { self.path.join(name) };
        if fs::symlink_metadata(&at)?.is_symlink() {
            let text =
                format!("{} is a symbolic link, and gpurec follows none in a dataset", ui::name(&path));
            return Err(io::Error::other(text));
        }
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Refuses a link that came after the check.
            let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(at)?;
            Ok(Folder { opened, path })
        }
        #[cfg(not(target_os = "linux"))]
        Ok(Folder { path })
    }

    /// Its names are on the disk afterwards.
    #[cfg(target_os = "linux")]
    pub fn sync(&self) -> io::Result<()> {
        self.opened.sync_all()
    }

    /// On some systems a folder cannot be opened as a file.
    #[cfg(not(target_os = "linux"))]
    pub fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is deleted on drop, unless it has another name by then.
pub struct Hidden {
    folder: Arc<Folder>,
    name: String,
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

impl Hidden {
    pub fn path(&self) -> PathBuf {
        self.folder.at(&self.name)
    }

    /// A file with a name that nothing else writes to: other threads, processes and machines may write into the folder
    /// too. Engines do not read names that begin with a dot.
    pub fn create(folder: &Arc<Folder>) -> io::Result<(File, Hidden)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!(".part-{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let mut options = OpenOptions::new();
            // Follows no link.
            options.write(true).create_new(true);
            // Permissions as for a trace.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.open(folder.at(&name)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                opened => return opened.map(|file| (file, Hidden { folder: folder.clone(), name })),
            }
        }
    }
}

/// Opens a regular file to read it. Follows no link and waits for nothing; anything else is an error.
pub fn regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}
