//! Which folders and files no other user can change or exchange. What gpurec writes to be loaded or executed later must
//! be in such a folder.

use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use nix::errno::Errno;
use nix::libc;
use nix::sys::statvfs::{FsFlags, statvfs};

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;

/// The path without symbolic links, if only root and this user can change what it leads to. Each folder of it, and the
/// last part itself, belongs to one of them. Where others may write to a folder, it is sticky: they can add names, but
/// cannot rename or remove those of root and the user.
///
/// Use the returned path from then on: a link in the given one may belong to another user.
pub fn guarded(path: &Path, uid: u32) -> io::Result<PathBuf> {
    let real = path.canonicalize()?;
    for part in real.ancestors() {
        if let Some(why) = weakness(part, uid)? {
            return Err(io::Error::other(format!("{} {why}", part.display())));
        }
    }
    Ok(real)
}

/// Why others can change or exchange what is in a folder, or the content of a file.
fn weakness(path: &Path, uid: u32) -> io::Result<Option<&'static str>> {
    let part = fs::symlink_metadata(path)?;
    let is_kept = part.is_dir() && part.mode() & STICKY != 0;
    Ok(if part.uid() != 0 && part.uid() != uid {
        Some("belongs to another user")
    } else if part.is_symlink() {
        Some("has become a symbolic link")
    } else if !is_kept && others_write(path, &part)? {
        Some("can be written by other users")
    } else {
        None
    })
}

/// A group with the number of its user is that user's own: where each user has such a group, as on Ubuntu, new folders
/// are writable for it. In the mode of a file with an access list the group's bits are the list's.
fn others_write(path: &Path, part: &Metadata) -> io::Result<bool> {
    if part.mode() & (GROUP_WRITES | ALL_WRITE) == GROUP_WRITES && part.gid() == part.uid() {
        return has_access_list(path);
    }
    Ok(part.mode() & (GROUP_WRITES | ALL_WRITE) != 0)
}

fn has_access_list(path: &Path) -> io::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both are strings; with length 0 Linux writes nothing.
    let size = unsafe {
        libc::lgetxattr(path.as_ptr(), c"system.posix_acl_access".as_ptr(), std::ptr::null_mut(), 0)
    };
    match Errno::last() {
        _ if size >= 0 => Ok(true),
        // There is none, or the file system has none.
        Errno::ENODATA | Errno::ENOTSUP => Ok(false),
        errno => Err(errno.into()),
    }
}

/// Makes a folder for this user alone, with six random characters at the end of its name, in the first of
/// XDG_RUNTIME_DIR, TMPDIR and /tmp that is guarded and executes files. `longest`: of the place's path. Call it with
/// the user's rights.
pub fn make(name: &str, uid: u32, longest: usize) -> Result<PathBuf> {
    let given = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(std::env::var_os);
    let given = given.filter(|place| !place.is_empty()).map(PathBuf::from);
    make_in(given.chain(["/tmp".into()]), name, uid, longest)
}

fn make_in(places: impl Iterator<Item = PathBuf>, name: &str, uid: u32, longest: usize) -> Result<PathBuf> {
    let mut failed = Vec::new();
    for place in places {
        match make_at(&place, name, uid, longest) {
            Ok(folder) => return Ok(folder),
            Err(error) => failed.push(format!("{}: {error}", place.display())),
        }
    }
    Err(anyhow!(
        "no folder for files that are executed ({}): set TMPDIR to a folder that only you and root can change",
        failed.join("; ")
    ))
}

fn make_at(place: &Path, name: &str, uid: u32, longest: usize) -> io::Result<PathBuf> {
    let place = guarded(place, uid)?;
    if place.as_os_str().len() > longest {
        return Err(io::Error::other(format!("longer than {longest} bytes")));
    }
    if statvfs(&place)?.flags().contains(FsFlags::ST_NOEXEC) {
        return Err(io::Error::other("mounted with noexec"));
    }
    // mkdtemp() replaces the six letters.
    let folder = nix::unistd::mkdtemp(&place.join(format!("{name}XXXXXX")))?;
    // Some file systems give a new folder another owner or mode.
    guarded(&folder, uid).inspect_err(|_| _ = fs::remove_dir(&folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::mount::{MsFlags, mount};

    use super::*;

    const NOBODY: u32 = 65534;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            Folder(nix::unistd::mkdtemp(&std::env::temp_dir().join("gpurec-test-XXXXXX")).unwrap())
        }

        fn make(&self, name: &str, mode: u32, uid: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir(&path).unwrap();
            self.change(&path, mode, uid);
            path
        }

        fn change(&self, path: &Path, mode: u32, uid: u32) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            if nix::unistd::geteuid().is_root() {
                chown(path, Some(uid), None).unwrap();
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[track_caller]
    fn refused(path: &Path, uid: u32, why: &str) {
        let error = guarded(path, uid).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = Folder::new();
        for (mode, is_good) in [(0o700, true), (0o755, true), (0o1777, true), (0o777, false), (0o772, false)]
        {
            let (outer, inner) = (format!("{mode:o}"), format!("{mode:o}/inner"));
            let outer = folder.make(&outer, mode, own());
            let inner = folder.make(&inner, 0o700, own());
            for path in [outer, inner] {
                match is_good {
                    true => assert_eq!(guarded(&path, own()).unwrap(), path.canonicalize().unwrap()),
                    false => refused(&path, own(), "can be written by other users"),
                }
            }
        }
        let file = folder.0.join("1777/page.html");
        fs::write(&file, "").unwrap();
        folder.change(&file, 0o644, own());
        assert!(guarded(&file, own()).is_ok());
        folder.change(&file, 0o1666, own());
        refused(&file, own(), "can be written by other users");
        refused(&folder.0.join("none"), own(), "No such file");
    }

    #[test]
    fn a_group_of_several_users_makes_a_folder_unsafe_and_the_users_own_does_not() {
        if own() != 0 {
            eprintln!("SKIPPED: it changes groups, which needs root");
            return;
        }
        let folder = Folder::new();
        let shared = folder.make("shared", 0o775, NOBODY);
        chown(&shared, None, Some(NOBODY)).unwrap();
        assert!(guarded(&shared, NOBODY).is_ok());
        chown(&shared, None, Some(NOBODY - 1)).unwrap();
        refused(&shared, NOBODY, "can be written by other users");
        chown(&shared, None, Some(NOBODY)).unwrap();
        // An entry for user 1, with the entries that each list has: kind, rights, number.
        let entries: [(u16, u16, u32); 5] =
            [(1, 7, u32::MAX), (2, 7, 1), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (kind, rights, number) in entries {
            list.extend(kind.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(number.to_le_bytes());
        }
        let path = CString::new(shared.as_os_str().as_bytes()).unwrap();
        let name = c"system.posix_acl_access".as_ptr();
        // SAFETY: strings, and a list with its length.
        if unsafe { libc::lsetxattr(path.as_ptr(), name, list.as_ptr().cast(), list.len(), 0) } == 0 {
            refused(&shared, NOBODY, "can be written by other users");
        } else {
            assert_eq!(Errno::last(), Errno::ENOTSUP);
        }
    }

    #[test]
    fn a_folder_of_another_user_is_refused_whatever_is_in_it() {
        if own() != 0 {
            eprintln!("SKIPPED: it changes owners, which needs root");
            return;
        }
        let folder = Folder::new();
        let theirs = folder.make("theirs", 0o700, NOBODY);
        let inner = folder.make("theirs/roots", 0o700, 0);
        let sticky = folder.make("sticky", 0o1777, 0);
        let of_theirs = folder.make("sticky/theirs", 0o1777, NOBODY);
        for path in [&theirs, &inner, &of_theirs] {
            refused(path, 0, "belongs to another user");
            refused(path, NOBODY - 1, "belongs to another user");
            assert!(guarded(path, NOBODY).is_ok(), "root's and their own folders");
        }
        // A link leads to a good place, and the place is returned, not the link.
        let link = theirs.join("link");
        symlink(&sticky, &link).unwrap();
        assert_eq!(guarded(&link, 0).unwrap(), sticky.canonicalize().unwrap());
        let link = sticky.join("link");
        symlink(&inner, &link).unwrap();
        refused(&link, 0, "belongs to another user");
    }

    /// In a mount namespace of this thread's own.
    #[test]
    fn a_place_where_nothing_can_be_executed_is_passed_over() {
        if own() != 0 {
            eprintln!("SKIPPED: it mounts a file system, which needs root");
            return;
        }
        let folder = Folder::new();
        let (inert, good) = (folder.make("inert", 0o700, 0), folder.make("good", 0o700, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let none = None::<&str>;
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(none, "/", none, private, none).unwrap();
                mount(Some("gpurec-test"), &inert, Some("tmpfs"), MsFlags::MS_NOEXEC, Some("mode=700"))
                    .unwrap();
                let make = |places: &[&PathBuf]| make_in(places.iter().copied().cloned(), "new-", 0, 200);
                let made = make(&[&inert, &good]).unwrap();
                assert_eq!(made.parent(), Some(good.canonicalize().unwrap().as_path()));
                let error = make(&[&inert]).unwrap_err().to_string();
                assert!(error.contains("inert: mounted with noexec"), "{error}");
                assert_eq!(fs::read_dir(&inert).unwrap().count(), 0);
            });
        });
    }

    #[test]
    fn the_first_good_place_is_taken() {
        let folder = Folder::new();
        let (open, good) = (folder.make("open", 0o777, own()), folder.make("good", 0o1777, own()));
        let places = |last: &Path| [folder.0.join("none"), open.clone(), last.to_owned()].into_iter();
        let made = make_in(places(&good), "new-", own(), 200).unwrap();
        assert_eq!(made.parent(), Some(good.canonicalize().unwrap().as_path()));
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        let error = make_in(places(&open), "new-", own(), 200).unwrap_err().to_string();
        for said in ["none: No such file", "can be written by other users", "set TMPDIR"] {
            assert!(error.contains(said), "{error}");
        }
        let error = make_in(places(&good), "new-", own(), 5).unwrap_err().to_string();
        assert!(error.contains("longer than 5 bytes"), "{error}");
    }
}
