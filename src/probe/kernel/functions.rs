//! Hooks functions of Linux and nvidia.ko, each by the best backend that accepts it. In: targets with the backends that
//! may work. Out: links, the backend of each function, and the reasons for those that could not be hooked.
//! A refusal of one function says nothing about the others, unless the backend as a whole is refused.
//! Not here: which functions are wanted, what a hit means.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use anyhow::Result;
use libbpf_rs::libbpf_sys::{
    bpf_link_create, bpf_link_create_opts, bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 as KprobeMulti,
};
use libbpf_rs::{Link, Object};

use super::backends::RETURN;
use super::driver::{Driver, Hold, attach_trace, failed};
use super::{Backend, Target};
use crate::errno;
use crate::probe::objects::{Only, copies_at_functions, find_program};
use crate::probe::tracepoint;
use gpurec_trace::{HookEntry, HookError};

type Refusals = Vec<(Place, HookError)>;

/// A function to hook, with its probe number.
pub struct Place {
    pub target: Arc<Target>,
    pub probe: u32,
    /// The backends that failed, and why.
    tried: Vec<(Backend, HookError)>,
}

impl Place {
    pub fn new(target: Arc<Target>, probe: u32) -> Place {
        Place { target, probe, tried: Vec::new() }
    }

    /// The reasons against every backend; backends with the same reason are grouped.
    pub fn reason(&self, only: Option<Backend>) -> HookError {
        let known = self.target.backends.iter().filter_map(|(backend, why)| Some((*backend, why.as_ref()?)));
        let tried = self.tried.iter().map(|(backend, why)| (*backend, why));
        let mut reasons: Vec<(Vec<&str>, &HookError)> = Vec::new();
        for (backend, why) in known.chain(tried) {
            if backend == Backend::Tracepoint || only.is_some_and(|only| only != backend) {
                continue;
            }
            match reasons.iter_mut().find(|(_, known)| *known == why) {
                Some((backends, _)) => backends.push(backend.name()),
                None => reasons.push((vec![backend.name()], why)),
            }
        }
        if reasons.is_empty() {
            return HookError::NoBackendAllowed;
        }
        let reported: Vec<String> =
            reasons.iter().map(|(backends, why)| format!("{}: {why}", backends.join(", "))).collect();
        HookError::NoBackend { reasons: reported.join("; ") }
    }
}

/// Tries the backends from the best down. Returns the functions that every backend refused.
pub fn attach(driver: &mut Driver, mut places: Vec<Place>, only: Option<Backend>) -> Vec<Place> {
    let tried =
        |backend: &Backend| *backend != Backend::Tracepoint && only.is_none_or(|only| only == *backend);
    for backend in Backend::ALL.into_iter().filter(tried) {
        let may = |place: &Place| place.target.usable().any(|usable| usable == backend);
        let (now, mut later): (Vec<Place>, Vec<Place>) = places.into_iter().partition(may);
        if !now.is_empty() {
            let refused = match backend.row().bulk {
                _ if backend == Backend::Fentry => driver.fentry(now),
                Some(kind) => driver.bulk(backend, kind, now),
                None => driver.single(now),
            };
            for (mut place, reason) in refused {
                place.tried.push((backend, reason));
                later.push(place);
            }
        }
        places = later;
    }
    places
}

impl Driver {
    fn fentry(&mut self, places: Vec<Place>) -> Refusals {
        let mut refused: Refusals = Vec::new();
        let mut works = true;
        for place in places {
            if let (false, Some((_, why))) = (works, refused.last()) {
                let why = why.clone();
                refused.push((place, why));
                continue;
            }
            match self.one_fentry(&place) {
                Ok(()) => self.note_function(&place, Backend::Fentry),
                Err(error) => {
                    let errno = errno::of(&error);
                    // gpurec lacks the permission: the others need not be tried.
                    let denied = matches!(errno, Some(libc::EPERM | libc::EACCES));
                    works = !denied || self.attached.iter().any(|one| one.backend == Backend::Fentry);
                    let why = match errno {
                        Some(errno::ENOTSUPP) => HookError::ManyArguments,
                        _ => failed(&error),
                    };
                    refused.push((place, why));
                }
            }
        }
        refused
    }

    fn one_fentry(&mut self, place: &Place) -> Result<()> {
        let function = place.target.symbol.as_str();
        let programs: Vec<String> = (Backend::Fentry.row().programs)()
            .iter()
            .flat_map(|(name, _)| (0..copies_at_functions()).map(move |copy| format!("{name}_{copy}")))
            .collect();
        let names: Vec<&str> = programs.iter().map(String::as_str).collect();
        self.traced(&names, Some(Only { function, probe: place.probe }))
    }

    /// Loads programs that name their own function or tracepoint, and attaches them in this order.
    pub(super) fn traced(&mut self, programs: &[&str], only: Option<Only>) -> Result<()> {
        let object = self.load_more(programs, only)?;
        let attach = |name: &&str| attach_trace(&find_program(&object, name)?);
        let holds = programs.iter().map(attach).collect::<Result<Vec<_>>>()?;
        self.keep(object, holds);
        Ok(())
    }

    /// Attaches all in one link. If Linux refuses the list, halves are tried, down to the single function that it
    /// refuses.
    fn bulk(&mut self, backend: Backend, kind: u32, places: Vec<Place>) -> Refusals {
        let object = match self.load_programs(backend) {
            Ok(object) => object,
            Err(error) => return all_refused(places, &error),
        };
        let (mut refused, mut holds) = (Vec::new(), Vec::new());
        // A stack: the last one is next.
        let mut waiting = vec![places];
        while let Some(mut part) = waiting.pop() {
            match multi(&object, backend, kind, &part) {
                Ok(links) => {
                    holds.extend(links.into_iter().map(Hold::Fd));
                    part.iter().for_each(|place| self.note_function(place, backend));
                }
                Err(error) if part.len() == 1 || unsupported(&error) => {
                    refused.extend(all_refused(part, &error));
                }
                Err(_) => {
                    let second = part.split_off(part.len() / 2);
                    waiting.extend([second, part]);
                }
            }
        }
        self.keep(object, holds);
        refused
    }

    fn load_programs(&self, backend: Backend) -> Result<Object> {
        let programs: Vec<&str> = (backend.row().programs)().iter().map(|(name, _)| *name).collect();
        self.load_more(&programs, None)
    }

    fn single(&mut self, places: Vec<Place>) -> Refusals {
        let object = match self.load_programs(Backend::Kprobe) {
            Ok(object) => object,
            Err(error) => return all_refused(places, &error),
        };
        let (mut refused, mut holds) = (Vec::new(), Vec::new());
        for place in places {
            match one_kprobe(&object, &place) {
                Ok(links) => {
                    holds.extend(links.into_iter().map(Hold::Link));
                    self.note_function(&place, Backend::Kprobe);
                }
                Err(error) => {
                    let reason = against_kprobe(&place, &error);
                    refused.push((place, reason));
                }
            }
        }
        self.keep(object, holds);
        refused
    }

    fn note_function(&mut self, place: &Place, backend: Backend) {
        let Target { name, symbol, note, module, .. } = &*place.target;
        let symbol = (symbol != name).then(|| symbol.clone());
        let hook = HookEntry { name: name.clone(), symbol, note: note.clone(), ..HookEntry::default() };
        self.note(backend, module.clone(), hook);
    }
}

/// Some kernels are built to refuse functions that ftrace cannot enter, and only return EINVAL.
fn against_kprobe(place: &Place, error: &anyhow::Error) -> HookError {
    let core = place.target.hook.as_ref().is_some_and(|hook| hook.core);
    if core && errno::of(error) == Some(libc::EINVAL) {
        return HookError::NoTraceEntry;
    }
    failed(error)
}

fn one_kprobe(object: &Object, place: &Place) -> Result<Vec<Link>> {
    let Target { symbol, address, .. } = &*place.target;
    let attach = |(name, flags): &(&str, u32)| {
        let program = find_program(object, name)?;
        tracepoint::attach_kprobe(&program, symbol, *address, *flags == RETURN, place.probe.into())
    };
    (Backend::Kprobe.row().programs)().iter().map(attach).collect()
}

/// A link for each program of the backend. Uses addresses where they are known: names of module functions are not
/// unique.
fn multi(object: &Object, backend: Backend, kind: u32, places: &[Place]) -> Result<Vec<OwnedFd>> {
    let cookies: Vec<u64> = places.iter().map(|place| place.probe.into()).collect();
    let addresses: Option<Vec<u64>> = places.iter().map(|place| place.target.address).collect();
    let names = places.iter().map(|place| CString::new(place.target.symbol.as_str()));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let mut options =
        bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() };
    let mut link = |(name, flags): &(&str, u32)| {
        options.__bindgen_anon_1.kprobe_multi = KprobeMulti {
            flags: *flags,
            cnt: places.len() as u32,
            syms: if addresses.is_none() { names.as_mut_ptr().cast() } else { std::ptr::null_mut() },
            addrs: addresses.as_ref().map_or(std::ptr::null(), |list| list.as_ptr().cast()),
            cookies: cookies.as_ptr(),
        };
        let program = find_program(object, name)?.as_fd().as_raw_fd();
        // SAFETY: a loaded program, and options whose lists live until the call returns.
        let fd = unsafe { bpf_link_create(program, 0, kind, &raw const options) };
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(-fd).into());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    (backend.row().programs)().iter().map(&mut link).collect()
}

fn all_refused(places: Vec<Place>, error: &anyhow::Error) -> Refusals {
    let why = failed(error);
    places.into_iter().map(|place| (place, why.clone())).collect()
}

/// Linux does not support such links: a shorter list will not help.
fn unsupported(error: &anyhow::Error) -> bool {
    matches!(errno::of(error), Some(libc::EOPNOTSUPP | libc::EPERM | libc::ENOSYS))
}
