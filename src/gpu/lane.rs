//! The way of the injected library into the command and its children. In: the library's bytes, the command's
//! environment. Out: a folder of the user's own with the library and a socket, at which each process that loads the
//! library gets its ring (door.rs).
//!
//! The library connects to the socket next to it, so that it needs no name of gpurec's and works in other network and
//! PID namespaces. The user may have put the folder on a file system that other hosts share, so its name says whose it
//! is.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

use super::door::{self, Rings};
use super::ring::Wanted;
use super::shape;
use crate::process::folder;
use crate::process::identity::Identity;
use crate::process::proc::Env;
use crate::process::rights::as_caller;

/// The driver loads the library that this variable names.
pub const VARIABLE: &str = "CUDA_INJECTION64_PATH";

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libgpurec_gpu.so"));
const NAME: &str = "libgpurec_gpu.so";
/// As in the library's link.rs.
const SOCKET: &str = "gpu";
/// The beginning of the folder's name. The host, its boot and six random characters follow.
const FOLDER: &str = "gpurec-gpu-";
/// Characters of the host's name and of its boot's id in the folder's name.
const HOST: usize = 12;
const BOOT: usize = 8;
/// A socket's path has room for 107 bytes.
const LONGEST_PLACE: usize = 107 - "//".len() - FOLDER.len() - HOST - BOOT - "--XXXXXX".len() - SOCKET.len();

/// How much is recorded of graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Each kernel of a graph.
    Nodes,
    /// One record for each launch of a graph.
    Graphs,
    /// Only what another client of CUPTI is given.
    Tap,
}

impl Choice {
    pub const ALL: [Choice; 3] = [Choice::Nodes, Choice::Graphs, Choice::Tap];

    pub fn name(self) -> &'static str {
        match self {
            Choice::Nodes => "nodes",
            Choice::Graphs => "graphs",
            Choice::Tap => "tap",
        }
    }
}

/// Whether a call launches a kernel or a graph, by CUPTI's number of the function.
pub fn launches(is_driver: bool, function: u32) -> bool {
    let all = if is_driver { shape::DRIVER_LAUNCHES } else { shape::RUNTIME_LAUNCHES };
    all.iter().any(|launch| u32::from(*launch) == function)
}

/// The folder and the socket. Dropping it removes both.
pub struct Lane {
    folder: PathBuf,
    user: Identity,
    socket: Option<OwnedFd>,
    wanted: Wanted,
}

impl Lane {
    /// Made with the user's rights, in a folder that is theirs alone.
    pub fn prepare(user: &Identity, choice: Choice, lossless: bool) -> Result<Lane> {
        let (folder, socket) = as_caller(user, || make(user.uid))?.context("the GPU's library")?;
        let wanted = Wanted { graphs: choice == Choice::Graphs, lossless };
        Ok(Lane { folder, user: user.clone(), socket: Some(socket), wanted })
    }

    /// Puts the variable into the command's environment. Returns what is there already, if it is set.
    pub fn add_to(&self, env: &mut Env) -> Result<(), String> {
        if let Some((_, value)) = env.iter().find(|(name, value)| name == VARIABLE && !value.is_empty()) {
            return Err(value.to_string_lossy().into_owned());
        }
        env.retain(|(name, _)| name != VARIABLE);
        env.push((VARIABLE.into(), self.folder.join(NAME).into_os_string()));
        Ok(())
    }

    /// Gives rings to the processes that ask for one, until the result is dropped. `is_recorded`: by its PID.
    pub fn serve(&mut self, is_recorded: impl Fn(u32) -> bool + Send + 'static) -> io::Result<Rings> {
        let socket = self.socket.take().ok_or(io::ErrorKind::AlreadyExists)?;
        door::open(socket, self.wanted, self.user.uid, is_recorded)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What cannot be removed stays; it is in a folder for temporary files.
        let folder = &self.folder;
        let _ = as_caller(&self.user, || remove(folder));
    }
}

fn make(uid: u32) -> Result<(PathBuf, OwnedFd)> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = name_of(&host, &boot);
    let folder = folder::make(&name, uid, LONGEST_PLACE)?;
    let filled = write_library(&folder)
        .with_context(|| format!("cannot write a library into {}", folder.display()))
        .and_then(|()| listen_in(&folder));
    let socket = filled.inspect_err(|_| remove(&folder))?;
    if let Some(place) = folder.parent().filter(|_| !boot.is_empty()) {
        remove_left(place, &name, uid);
    }
    Ok((folder, socket))
}

/// The folder's name without its last six characters.
fn name_of(host: &str, boot: &str) -> String {
    let plain = |text: &str, most: usize| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).take(most).collect()
    };
    let host = host.split('.').next().unwrap_or_default();
    format!("{FOLDER}{}-{}-", plain(host, HOST), plain(boot, BOOT))
}

/// Removes the folders of this user's recorders that were killed: no process listens there any more. A recorder of
/// another host, or of another boot, has another name: no socket of another host answers here.
fn remove_left(place: &Path, name: &str, uid: u32) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let is_ours = |entry: &fs::DirEntry| {
        entry.file_name().as_encoded_bytes().starts_with(name.as_bytes())
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == uid)
    };
    for folder in entries.flatten().filter(is_ours).map(|entry| entry.path()) {
        let connected = UnixDatagram::unbound().and_then(|own| own.connect(folder.join(SOCKET)));
        if connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            remove(&folder);
        }
    }
}

/// Removes what `make` makes, and nothing else.
fn remove(folder: &Path) {
    let _ = fs::remove_file(folder.join(NAME));
    let _ = fs::remove_file(folder.join(SOCKET));
    let _ = fs::remove_dir(folder);
}

fn write_library(folder: &Path) -> io::Result<()> {
    let path = folder.join(NAME);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o500).open(path)?;
    file.write_all(LIBRARY)?;
    file.set_permissions(Permissions::from_mode(0o500))
}

fn listen_in(folder: &Path) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listening = || -> nix::Result<OwnedFd> {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&folder.join(SOCKET))?)?;
        listen(&fd, Backlog::new(64)?)?;
        Ok(fd)
    };
    listening().with_context(|| format!("cannot listen in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::door::{Answer, Connected};
    use crate::process::identity::invoking_user;
    use libloading::os::unix::{Library, RTLD_NOW, Symbol};

    /// The library, called as the driver calls it. Here there is no CUPTI that initialises.
    #[test]
    fn the_library_gets_its_ring_and_says_why_it_is_off() {
        let mut lane = Lane::prepare(&invoking_user(), Choice::Graphs, true).unwrap();
        let mut env: Env = vec![("PATH".into(), "/bin".into()), (VARIABLE.into(), "".into())];
        lane.add_to(&mut env).unwrap();
        assert_eq!(env.len(), 2);
        let (_, path) = env.pop().unwrap();
        assert_eq!(lane.add_to(&mut vec![(VARIABLE.into(), "/x.so".into())]), Err("/x.so".to_owned()));
        let rings = lane.serve(|pid| pid == std::process::id()).unwrap();
        // SAFETY: no other test of this process uses the variable.
        unsafe { std::env::set_var(VARIABLE, &path) };
        // SAFETY: our own library, which stays loaded.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | libc::RTLD_NODELETE) }.unwrap();
        // SAFETY: its prototype.
        let initialise: Symbol<unsafe extern "C" fn() -> i32> =
            unsafe { library.get(b"InitializeInjection") }.unwrap();
        // SAFETY: as the driver does.
        assert_eq!(unsafe { initialise() }, 1);
        let ring = |answer| if let Answer::Ring(connected) = answer { Some(connected) } else { None };
        let connected: Vec<Connected> = rings.come().filter_map(ring).collect();
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].pid, std::process::id());
        let facts = connected[0].ring.facts();
        assert_eq!(facts.state, crate::gpu::ring::state::OFF, "{facts:?}");
        // SAFETY: as above. The second call does nothing.
        assert_eq!(unsafe { initialise() }, 1);
        assert_eq!(rings.come().count(), 0);
        let folder = Path::new(&path).parent().unwrap().to_owned();
        drop((rings, lane));
        assert!(!folder.exists());
    }

    #[test]
    fn folders_of_this_hosts_killed_recorders_are_removed() {
        // As above.
        let place = nix::unistd::mkdtemp(&std::env::temp_dir().join("gpurec-test-XXXXXX")).unwrap();
        let folder = |name: &str| {
            let folder = place.join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (host, boot) = ("node-1.cluster", "4c1b4a1e-9d5b-4b0e");
        let name = name_of(host, boot);
        let named = |name: String| folder(&format!("{name}abcdef"));
        let (used, left) = (folder(&format!("{name}used00")), folder(&format!("{name}left00")));
        let others = [
            named(name_of("node-2.cluster", boot)),
            named(name_of(host, "5c1b4a1e-9d5b-4b0e")),
            named(FOLDER.to_owned()),
            named("other".to_owned()),
        ];
        let socket = listen_in(&used).unwrap();
        [&left].into_iter().chain(&others).for_each(|folder| drop(listen_in(folder).unwrap()));
        let uid = nix::unistd::geteuid().as_raw();
        remove_left(&place, &name, uid + 1);
        assert!(left.exists(), "another user's");
        remove_left(&place, &name, uid);
        assert_eq!([&used, &left].map(|folder| folder.exists()), [true, false]);
        drop(socket);
        remove_left(&place, &name, uid);
        assert!(!used.exists() && others.iter().all(|folder| folder.exists()));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn the_longest_name_leaves_room_for_the_place() {
        let name = name_of(&"h".repeat(64), "4c1b4a1e-9d5b-4b0e-8d5f-0b1c2d3e4f50");
        assert_eq!(name, "gpurec-gpu-hhhhhhhhhhhh-4c1b4a1e-");
        assert_eq!(LONGEST_PLACE + format!("/{name}XXXXXX/{SOCKET}").len(), 107);
        assert_eq!(name_of("a/../b\n", "\0"), "gpurec-gpu-a--");
    }

    #[test]
    fn the_library_needs_no_other() {
        let elf = goblin::elf::Elf::parse(LIBRARY).unwrap();
        assert!(elf.libraries.is_empty(), "{:?}", elf.libraries);
        let exports = elf.dynsyms.iter().filter(|symbol| !symbol.is_import() && symbol.st_value != 0);
        let names: Vec<&str> = exports.filter_map(|symbol| elf.dynstrtab.get_at(symbol.st_name)).collect();
        assert_eq!(names, ["InitializeInjection"]);
        assert!(elf.verneed.is_none(), "it needs versions of symbols");
        assert!(LIBRARY.len() < 64 << 10, "{} bytes", LIBRARY.len());
    }
}
