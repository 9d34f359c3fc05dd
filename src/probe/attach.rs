//! Hooks in one library: attached in bulk, detached in bulk. In: a file and the places in it. Out: links.
//! Not here: what a place means.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use libbpf_rs::libbpf_sys::{
    BPF_F_UPROBE_MULTI_RETURN, BPF_TRACE_UPROBE_MULTI, bpf_link_create, bpf_link_create_opts,
    bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 as UprobeMulti,
};
use libbpf_rs::{Object, ProgramMut, UprobeOpts};

use super::aside::without_signals;
use super::objects::find_program;
use super::shield::{Hook, shielded};
use crate::errno;
use crate::host::Backend;
use crate::process::fds;
use crate::ui;
use gpurec_trace::HookError;

/// Number of threads that detach at the same time. Each waits for Linux, which releases all waiting threads when a
/// grace period ends: 1,019 links took 1,237 ms with 64 threads, 138 ms with this number.
const DETACHERS: usize = 1024;
const DETACHERS_STACK: usize = 64 << 10;

/// After this number of refused single places the rest is not tried: each try costs time, and if Linux refuses
/// everything there may be a thousand places.
const MOST_REFUSED: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub offset: u64,
    pub cookie: u64,
    /// File offset of a counter that Linux raises while the place is hooked (USDT's semaphore).
    pub counter: Option<u64>,
}

impl Place {
    /// The number of its function, which its cookie begins with (capture.rs).
    pub fn probe(&self) -> u32 {
        self.cookie as u32
    }
}

const BLOCKS: &[(&str, u32)] = &[("block", 0)];

/// Loaded programs, and how they are attached to places.
#[derive(Clone, Copy)]
pub struct Programs<'a> {
    object: &'a Object,
    /// With the flags of their links.
    list: &'static [(&'static str, u32)],
    /// The type of a link to many places; None: each place has links of its own.
    bulk: Option<u32>,
}

impl Programs<'_> {
    /// Those at the functions whose calls are recorded.
    pub fn of_calls(object: &Object, backend: Backend) -> Programs<'_> {
        Programs { object, list: (backend.row().programs)(), bulk: backend.row().bulk }
    }

    /// The one at the static probes of PyTorch's allocator, which have no return.
    pub fn of_blocks(object: &Object, backend: Backend) -> Programs<'_> {
        let bulk = backend.row().bulk.map(|_| BPF_TRACE_UPROBE_MULTI);
        Programs { object, list: BLOCKS, bulk }
    }
}

impl Programs<'_> {
    /// Each place has links of its own.
    pub fn is_single(&self) -> bool {
        self.bulk.is_none()
    }

    pub fn are_of_blocks(&self) -> bool {
        self.list == BLOCKS
    }
}

/// Attaches all places or none, in every process that maps the file: BPF decides which is traced.
pub fn attach(programs: &Programs, file: &File, places: &[Place]) -> Result<Vec<Hook>> {
    let Programs { object, list, bulk } = *programs;
    let programs = list.iter();
    let programs: Vec<(ProgramMut, u32)> =
        programs.map(|(name, flags)| Ok((find_program(object, name)?, *flags))).collect::<Result<_>>()?;
    match bulk {
        Some(kind) => {
            programs.iter().map(|(program, flags)| multi(program, file, places, kind, *flags)).collect()
        }
        None => single(&programs, file, places),
    }
}

/// A place that Linux refused, by its index among the places.
#[derive(Debug, PartialEq)]
pub struct RefusedPlace {
    pub index: usize,
    pub why: HookError,
}

/// The result of attaching: links, each with the range of its places.
#[derive(Debug, PartialEq)]
pub struct Parts<L> {
    pub taken: Vec<(Range<usize>, Vec<L>)>,
    pub refused: Vec<RefusedPlace>,
}

/// Attaches all places that Linux accepts: if it refuses a list, bisection finds the refused ones. An error if it
/// accepts none.
/// `each`: attaches each place by itself, so that each can be detached by itself.
pub(super) fn attach_parts<L>(
    places: usize,
    each: bool,
    attach: &mut dyn FnMut(Range<usize>) -> Result<Vec<L>>,
) -> Result<Parts<L>> {
    let mut parts = Parts { taken: Vec::new(), refused: Vec::new() };
    // A stack: the last one is next.
    let mut waiting: Vec<Range<usize>> = if each {
        (0..places).rev().map(|i| i..i + 1).collect()
    } else {
        std::iter::once(0..places).collect()
    };
    let mut last = String::new();
    while let Some(part) = waiting.pop() {
        if parts.refused.len() >= MOST_REFUSED {
            let why = HookError::NotTried { count: MOST_REFUSED, last: last.clone() };
            parts.refused.extend(part.map(|index| RefusedPlace { index, why: why.clone() }));
            continue;
        }
        match attach(part.clone()) {
            Ok(links) => parts.taken.push((part, links)),
            Err(error) if part.len() == 1 => {
                let why = refusal(&error);
                last = why.to_string();
                parts.refused.push(RefusedPlace { index: part.start, why });
            }
            Err(_) => {
                let middle = part.start + part.len() / 2;
                waiting.extend([middle..part.end, part.start..middle]);
            }
        }
    }
    match parts.refused.first() {
        Some(first) if parts.taken.is_empty() => Err(first.why.clone().into()),
        _ => Ok(parts),
    }
}

/// A path through our own descriptor: the examined file is the hooked file, even if its path now names another file or
/// is in another mount namespace.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Makes the system call directly: libbpf's own function allocates memory.
fn multi(program: &ProgramMut, file: &File, places: &[Place], kind: u32, flags: u32) -> Result<Hook> {
    let path = CString::new(path_of(file))?;
    let offsets: Vec<_> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> = places.iter().map(|place| place.cookie).collect();
    let counters: Vec<_> = places.iter().map(|place| place.counter.unwrap_or(0)).collect();
    let has_counters = places.iter().any(|place| place.counter.is_some());
    let mut options =
        bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() };
    let multi = UprobeMulti {
        flags,
        cnt: u32::try_from(places.len())?,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        cookies: cookies.as_ptr(),
        ref_ctr_offsets: if has_counters { counters.as_ptr() } else { std::ptr::null() },
        ..Default::default()
    };
    options.__bindgen_anon_1.uprobe_multi = multi;
    let program = program.as_fd().as_raw_fd();
    let mut made = None;
    shielded(&mut || {
        // SAFETY: what the options point to outlives the call.
        made.get_or_insert_with(|| unsafe { bpf_link_create(program, 0, kind, &options) });
    });
    match made {
        // SAFETY: the descriptor is new and has no other owner.
        Some(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into()),
        error => {
            let error = io::Error::from_raw_os_error(error.map_or(libc::EINTR, |error| -error));
            Err(anyhow::Error::from(error).context("failed to attach uprobe multi"))
        }
    }
}

/// As libbpf wants it.
const EVERY_PROCESS: i32 = -1;

fn single(programs: &[(ProgramMut, u32)], file: &File, places: &[Place]) -> Result<Vec<Hook>> {
    let path = PathBuf::from(path_of(file));
    let mut links = Vec::with_capacity(places.len() * programs.len());
    for place in places {
        for (program, flags) in programs {
            let retprobe = *flags == BPF_F_UPROBE_MULTI_RETURN;
            let ref_ctr_offset = place.counter.unwrap_or(0) as usize;
            let options =
                UprobeOpts { cookie: place.cookie, retprobe, ref_ctr_offset, ..UprobeOpts::default() };
            let link = program.attach_uprobe_with_opts(EVERY_PROCESS, &path, place.offset as usize, options);
            match link {
                Ok(link) => links.push(link.into()),
                Err(error) => {
                    detach(links);
                    return Err(error.into());
                }
            }
        }
    }
    Ok(links)
}

/// The kernel's refusal of one place.
fn refusal(error: &anyhow::Error) -> HookError {
    match errno::of(error) {
        Some(libc::EMFILE) => fds::too_few(),
        _ => HookError::Kernel { error: ui::with_remedy(format!("{error:#}"), true) },
    }
}

/// Detaches in another thread, because Linux takes time to remove a hook.
pub fn detach_aside(links: Vec<Hook>) {
    // If no thread can be started, the links are dropped here.
    let _ = without_signals(|| std::thread::Builder::new().spawn(move || detach(links)));
}

/// Detaches. Each link waits for Linux, so threads wait for all of them at the same time. Returns seconds.
pub fn detach<L: Send>(links: Vec<L>) -> f64 {
    let start = Instant::now();
    let threads = links.len().min(DETACHERS);
    let mut shares: Vec<Vec<L>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, link) in links.into_iter().enumerate() {
        shares[i % threads].push(link);
    }
    std::thread::scope(|scope| {
        for share in shares {
            // If no thread can be started, the share is dropped here.
            let thread = std::thread::Builder::new().stack_size(DETACHERS_STACK);
            let _ = thread.spawn_scoped(scope, move || drop(share));
        }
    });
    start.elapsed().as_secs_f64()
}
