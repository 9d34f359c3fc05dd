//! The process that asks NVML (crates/nvml). In: the user who called gpurec, and their environment. Out: a process with
//! the rights of that user alone, and a socket to it. It ends when this value is dropped, or when gpurec ends.
//!
//! The process loads a library from where the user's environment says, so it must have no right that the user lacks.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::shape;
use crate::process::guardian::detach;
use crate::process::identity::Identity;
use crate::process::proc::Env;
use crate::process::rights;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpurec-nvml"));
const NAME: &std::ffi::CStr = c"gpurec-nvml";

/// Variables that make the loader load other code into a program, or write files.
const LEFT_OUT: [&str; 4] = ["LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_PROFILE"];

/// How long gpurec waits for the process to end by itself, and again after SIGKILL. A process that waits in the driver
/// may not end even then.
const ENDS: Duration = Duration::from_millis(50);

pub struct Process {
    pid: libc::pid_t,
    /// None: closed, so that the process ends.
    socket: Option<OwnedFd>,
}

impl Process {
    /// Call this before any thread is started.
    pub fn start(user: &Identity, env: &Env) -> io::Result<Process> {
        let kind = SockType::SeqPacket;
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        let program = program()?;
        let env = env.iter().filter(|(name, _)| !LEFT_OUT.iter().any(|left_out| name == left_out));
        let env: Vec<CString> = env
            .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
            .collect();
        // SAFETY: the caller has no other threads; the child ends in `execute`.
        match unsafe { (libc::getpid(), libc::fork()) } {
            (parent, 0) => execute(parent, &theirs, &program, user, &env),
            (_, pid) if pid > 0 => Ok(Process { pid, socket: Some(ours) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Asks for a sample.
    pub fn ask(&self) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(socket.as_raw_fd(), &[shape::ASK], flags)?;
        Ok(())
    }

    /// The length of the next packet, if one has come; 0 if no more can come.
    pub fn receive(&self, to: &mut [u8]) -> Option<usize> {
        let socket = self.socket.as_ref()?;
        match recv(socket.as_raw_fd(), to, MsgFlags::MSG_DONTWAIT) {
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => None,
            Err(_) => Some(0),
            Ok(length) => Some(length),
        }
    }

    fn has_ended(&self) -> bool {
        // SAFETY: a child of ours, or an error without effect.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) != 0 }
    }

    fn ends_within(&self, patience: Duration) -> bool {
        const LOOK: Duration = Duration::from_millis(1);
        let looks = patience.as_millis() / LOOK.as_millis();
        (0..looks).any(|_| {
            let ended = self.has_ended();
            if !ended {
                std::thread::sleep(LOOK);
            }
            ended
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.socket = None;
        if self.ends_within(ENDS) {
            return;
        }
        // SAFETY: a child that was not reaped, so the number is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // If it still waits in the driver, it ends when the driver returns, and is reaped after gpurec's own end.
        self.ends_within(ENDS);
    }
}

/// The program, as a file in memory.
fn program() -> io::Result<OwnedFd> {
    let make = |flags: libc::c_uint| {
        // SAFETY: a terminated string and plain integers.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | flags) };
        // SAFETY: new, and no other's.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }).ok_or_else(io::Error::last_os_error)
    };
    // Linux before 6.3 does not know the flag, and executes such files without it.
    let fd = make(libc::MFD_EXEC).or_else(|_| make(0))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(PROGRAM)?;
    Ok(file.into())
}

/// In the child: becomes the program, or ends.
fn execute(parent: libc::pid_t, socket: &OwnedFd, program: &OwnedFd, user: &Identity, env: &[CString]) -> ! {
    detach(socket.as_raw_fd(), &[program.as_raw_fd()], NAME);
    let argv = [NAME.as_ptr(), std::ptr::null()];
    let mut envp: Vec<*const libc::c_char> = env.iter().map(|one| one.as_ptr()).collect();
    envp.push(std::ptr::null());
    if rights::keep_nothing(user).is_ok() {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain integers, valid descriptors, and lists that end with null. PDEATHSIG is set after the change of
        // the user, because that change clears it.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if libc::getppid() == parent && libc::dup2(socket.as_raw_fd(), 0) == 0 {
                let empty = c"".as_ptr();
                let fd = program.as_raw_fd();
                libc::syscall(
                    libc::SYS_execveat,
                    fd,
                    empty,
                    argv.as_ptr(),
                    envp.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
            }
        }
    }
    // SAFETY: ends this process without running gpurec's exit handlers.
    unsafe { libc::_exit(127) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_needs_nvml_alone() {
        let elf = goblin::elf::Elf::parse(PROGRAM).unwrap();
        assert_eq!(elf.libraries, ["libnvidia-ml.so.1"]);
        assert!(elf.interpreter.unwrap().contains("/ld-linux-"), "{:?}", elf.interpreter);
        assert!(elf.verneed.is_none(), "it needs versions of symbols");
        let imports: Vec<_> = elf.dynsyms.iter().filter(|symbol| symbol.is_import()).collect();
        let name = |symbol: &goblin::elf::Sym| elf.dynstrtab.get_at(symbol.st_name).unwrap();
        let weak = goblin::elf::sym::STB_WEAK;
        let is_nvml = |symbol: &&goblin::elf::Sym| name(symbol).starts_with("nvml");
        assert!(imports.len() > 15);
        for symbol in imports.iter().filter(|symbol| is_nvml(symbol)) {
            assert_eq!(symbol.st_bind(), weak, "{}: a library without it could not be used", name(symbol));
        }
        assert!(PROGRAM.len() < 64 << 10, "{} bytes", PROGRAM.len());
    }
}
