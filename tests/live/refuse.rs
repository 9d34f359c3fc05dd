//! System calls that fail at will.
//! In: a command, the numbers of system calls, and a rule that is asked before each of them.
//! Out: the command runs, and what the rule refuses fails with an errno, as Linux itself would report it: a seccomp
//! filter hands these calls to a thread of the test.
//! The rule is asked for the command's children, too. It may also do something before the call continues.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::room::Room;
use crate::run::Started;

const SECCOMP_SET_MODE_FILTER: libc::c_long = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: libc::c_long = 8;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7fc0_0000;
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;
const GOES_ON: u32 = 1;

/// A system call that waits for its answer; Linux's struct seccomp_notif.
#[repr(C)]
#[derive(Default)]
pub struct Call {
    id: u64,
    pub tid: u32,
    flags: u32,
    pub number: i32,
    arch: u32,
    at: u64,
    pub args: [u64; 6],
}

#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

impl Call {
    /// Bytes of the caller's memory; none if they cannot be read.
    pub fn memory(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let memory = File::open(format!("/proc/{}/mem", self.tid));
        match memory.and_then(|memory| memory.read_exact_at(&mut bytes, address)) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    pub fn number_at(&self, address: u64) -> u64 {
        self.memory(address, 8).try_into().map_or(0, u64::from_ne_bytes)
    }

    /// A path, or another text that ends with a zero.
    pub fn text(&self, address: u64) -> String {
        // It may end at the end of its page.
        let whole = [256, 64, 16].into_iter().map(|length| self.memory(address, length));
        let bytes = whole.into_iter().find(|bytes| !bytes.is_empty()).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    }

    /// Returns whether gpurec itself made the call, in its first thread.
    pub fn is_by_the_recorder(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.tid)).unwrap_or_default();
        let has = |line: &str| status.lines().any(|one| one == line);
        has("Name:\tgpurec") && has(&format!("Tgid:\t{}", self.tid))
    }

    /// Returns whether this is bpf() with this command.
    pub fn is_bpf(&self, command: u64) -> bool {
        i64::from(self.number) == libc::SYS_bpf && self.args[0] == command
    }

    /// The program's name, if this is a bpf() that loads one.
    pub fn program(&self) -> String {
        if self.is_bpf(BPF_PROG_LOAD) { self.text(self.args[1] + 48) } else { String::new() }
    }

    /// The link type, if this call attaches a program, else 0.
    pub fn link_type(&self) -> u32 {
        if self.is_bpf(BPF_LINK_CREATE) { self.number_at(self.args[1] + 8) as u32 } else { 0 }
    }

    /// The offsets in a file at which this call hooks functions, if it does.
    pub fn places(&self) -> Vec<u64> {
        let attributes = self.args[usize::from(i64::from(self.number) == libc::SYS_bpf)];
        if i64::from(self.number) == libc::SYS_perf_event_open {
            // perf_event_attr.type: uprobes have one that is made at boot; and .probe_offset.
            let is_uprobe = self.number_at(attributes) as u32 > PERF_TYPE_BREAKPOINT;
            return is_uprobe.then(|| self.number_at(attributes + 64)).into_iter().collect();
        }
        let kind = self.number_at(attributes + 8) as u32;
        if !self.is_bpf(BPF_LINK_CREATE) || !UPROBE_MULTI.contains(&kind) {
            return Vec::new();
        }
        let (list, count) = (self.number_at(attributes + 24), self.number_at(attributes + 48) as u32);
        (0..u64::from(count)).map(|i| self.number_at(list + 8 * i)).collect()
    }
}

/// The last static type; dynamic types, such as that of uprobes, are greater.
const PERF_TYPE_BREAKPOINT: u32 = 5;
pub const BPF_MAP_CREATE: u64 = 0;
pub const BPF_PROG_LOAD: u64 = 5;
pub const BPF_LINK_CREATE: u64 = 28;
/// A link type: a BTF tracepoint.
pub const BPF_TRACE_RAW_TP: u32 = 23;
/// BPF_TRACE_UPROBE_MULTI, BPF_TRACE_UPROBE_SESSION.
const UPROBE_MULTI: [u32; 2] = [48, 57];

impl Room {
    /// The rule returns an errno, or none if the call may continue.
    pub fn start_refusing(
        &self,
        mut command: Command,
        calls: &[libc::c_long],
        rule: impl FnMut(&Call) -> Option<i32> + Send + 'static,
    ) -> Started<'_> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let filter = filter(calls);
        let install = move || install(&filter, theirs.as_raw_fd());
        // SAFETY: what the closure does is safe after a fork: system calls, on memory made before.
        unsafe { command.pre_exec(install) };
        // The thread starts first: the command would wait for it at its very first call.
        std::thread::spawn(move || serve(&receive(&ours), rule));
        self.start(command)
    }
}

fn filter(calls: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let step = |code: u32, jt: usize, k: u32| libc::sock_filter { code: code as u16, jt: jt as u8, jf: 0, k };
    let mut steps = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    steps.extend(calls.iter().enumerate().map(|(i, call)| step(jump, calls.len() - i, *call as u32)));
    steps.push(step(libc::BPF_RET | libc::BPF_K, 0, SECCOMP_RET_ALLOW));
    steps.push(step(libc::BPF_RET | libc::BPF_K, 0, SECCOMP_RET_USER_NOTIF));
    steps
}

fn install(filter: &[libc::sock_filter], to: RawFd) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: a filter that is alive, and a new descriptor, which goes away with this process's exec.
    unsafe {
        let listener = libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        if listener < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let fds = [listener as RawFd];
        let sent = sendmsg::<()>(
            to,
            &[IoSlice::new(b"x")],
            &[ControlMessage::ScmRights(&fds)],
            MsgFlags::empty(),
            None,
        );
        libc::close(listener as RawFd);
        sent?;
    }
    Ok(())
}

fn receive(from: &UnixStream) -> OwnedFd {
    let (mut byte, mut room) = ([0], nix::cmsg_space!(RawFd));
    let mut word = [IoSliceMut::new(&mut byte)];
    let message =
        recvmsg::<()>(from.as_raw_fd(), &mut word, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
    let fds = message.cmsgs().unwrap().find_map(|one| match one {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    // SAFETY: a descriptor just received, which nothing else owns.
    unsafe { OwnedFd::from_raw_fd(fds.expect("the listener")) }
}

/// Answers until no process with the filter is left.
fn serve(listener: &OwnedFd, mut rule: impl FnMut(&Call) -> Option<i32>) {
    let fd = listener.as_raw_fd();
    loop {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut poll, 1, -1) } < 0 || poll.revents & libc::POLLIN == 0 {
            if poll.revents & libc::POLLHUP != 0 {
                return;
            }
            continue;
        }
        let mut call = Call::default();
        // SAFETY: Linux's own struct, zeroed as it requires. The call fails if the caller has been killed.
        if unsafe { libc::ioctl(fd, NOTIF_RECV, &raw mut call) } < 0 {
            continue;
        }
        let refused = rule(&call);
        let answer = Answer {
            id: call.id,
            value: 0,
            error: -refused.unwrap_or(0),
            flags: if refused.is_none() { GOES_ON } else { 0 },
        };
        // SAFETY: as above.
        unsafe { libc::ioctl(fd, NOTIF_SEND, &raw const answer) };
    }
}
