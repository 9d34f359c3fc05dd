//! Hooks functions of Linux and nvidia.ko, each by the best backend that accepts it. In: targets with the backends that
//! may work. Out: links, the backend of each function, and the reasons for those that could not be hooked.
//! A refusal of one function says nothing about the others, unless the backend as a whole is refused.
//! Not here: which functions are wanted, what a hit means.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::libbpf_sys::{
    BPF_TRACE_KPROBE_MULTI, BPF_TRACE_KPROBE_SESSION, bpf_link_create, bpf_link_create_opts,
};
use libbpf_rs::{Link, Object, ProgramMut};

use super::attach::{Attached, Driver, Hold};
use super::{Backend, Target};
use crate::errno;
use crate::host::types;
use crate::probe::objects::{Only, copies_at_functions};
use crate::probe::tracepoint;
use gpurec_trace::HookError;

const RETURN: u32 = 1;

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
        let told: Vec<String> =
            reasons.iter().map(|(backends, why)| format!("{}: {why}", backends.join(", "))).collect();
        HookError::NoBackend { reasons: told.join("; ") }
    }
}

/// Tries the backends from the best down. Returns the functions that every backend refused, with the reasons.
pub fn attach(driver: &mut Driver, mut places: Vec<Place>, only: Option<Backend>) -> Vec<(Place, HookError)> {
    for backend in [Backend::Fentry, Backend::Session, Backend::Multi, Backend::Kprobe] {
        if only.is_some_and(|only| only != backend) {
            continue;
        }
        let may = |place: &Place| place.target.usable().any(|usable| usable == backend);
        let (now, mut later): (Vec<Place>, Vec<Place>) = places.into_iter().partition(may);
        if !now.is_empty() {
            let refused = match backend {
                Backend::Fentry => driver.fentry(now),
                Backend::Session | Backend::Multi => driver.bulk(backend, now),
                _ => driver.single(now),
            };
            for (mut place, reason) in refused {
                place.tried.push((backend, reason));
                later.push(place);
            }
        }
        places = later;
    }
    places
        .into_iter()
        .map(|place| {
            let reason = place.reason(only);
            (place, reason)
        })
        .collect()
}

impl Driver {
    fn fentry(&mut self, places: Vec<Place>) -> Vec<(Place, HookError)> {
        let mut refused = Vec::new();
        let mut dead: Option<HookError> = None;
        for place in places {
            if let Some(why) = &dead {
                refused.push((place, why.clone()));
                continue;
            }
            match self.one_fentry(&place) {
                Ok(()) => self.note(&place, Backend::Fentry),
                Err(error) => {
                    let why = match errno::of(&error) {
                        Some(errno::ENOTSUPP) => HookError::ManyArguments,
                        _ => failed(&error),
                    };
                    // gpurec lacks the permission: the others need not be tried.
                    let not_permitted = matches!(errno::of(&error), Some(libc::EPERM | libc::EACCES));
                    if self.count_of(Backend::Fentry) == 0 && not_permitted {
                        dead = Some(why.clone());
                    }
                    refused.push((place, why));
                }
            }
        }
        refused
    }

    fn one_fentry(&mut self, place: &Place) -> Result<()> {
        let function = place.target.symbol.as_str();
        // The exits first: then a function whose entry is seen already has its exit hooked.
        let programs: Vec<String> = ["function_fexit", "function_fentry"]
            .iter()
            .flat_map(|name| (0..copies_at_functions()).map(move |copy| format!("{name}_{copy}")))
            .collect();
        let names: Vec<&str> = programs.iter().map(String::as_str).collect();
        let object = self.load_more(&names, Some(Only { function, probe: place.probe }))?;
        let attach = |name: &&str| program(&object, name)?.attach_trace().map_err(|e| anyhow!("{e:#}"));
        let links = names.iter().map(attach).collect::<Result<Vec<Link>>>()?;
        self.keep(object, links.into_iter().map(Hold::Link));
        Ok(())
    }

    /// Attaches all in one link. If Linux refuses the list, halves are tried, down to the single function that it
    /// refuses.
    fn bulk(&mut self, backend: Backend, places: Vec<Place>) -> Vec<(Place, HookError)> {
        let programs: &[&str] = match backend {
            Backend::Session if types().is_some_and(|types| types.session_is_return_takes_context) => {
                &["session_ctx"]
            }
            Backend::Session => &["session"],
            _ => &["multi_entry", "multi_return"],
        };
        let object = match self.load_more(programs, None) {
            Ok(object) => object,
            Err(error) => return all_refused(places, &error),
        };
        let mut refused = Vec::new();
        let mut holds = Vec::new();
        self.halve(&object, backend, programs, places, &mut holds, &mut refused);
        self.keep(object, holds);
        refused
    }

    fn halve(
        &mut self,
        object: &Object,
        backend: Backend,
        programs: &[&str],
        places: Vec<Place>,
        holds: &mut Vec<Hold>,
        refused: &mut Vec<(Place, HookError)>,
    ) {
        match multi(object, backend, programs, &places) {
            Ok(links) => {
                holds.extend(links.into_iter().map(Hold::Fd));
                for place in &places {
                    self.note(place, backend);
                }
            }
            Err(error) if places.len() == 1 || unsupported(&error) => {
                refused.extend(all_refused(places, &error));
            }
            Err(_) => {
                let mut first = places;
                let second = first.split_off(first.len() / 2);
                self.halve(object, backend, programs, first, holds, refused);
                self.halve(object, backend, programs, second, holds, refused);
            }
        }
    }

    fn single(&mut self, places: Vec<Place>) -> Vec<(Place, HookError)> {
        let object = match self.load_more(&["single_entry", "single_return"], None) {
            Ok(object) => object,
            Err(error) => return all_refused(places, &error),
        };
        let mut refused = Vec::new();
        let mut holds = Vec::new();
        for place in places {
            match one_kprobe(&object, &place) {
                Ok(links) => {
                    holds.extend(links.map(Hold::Link));
                    self.note(&place, Backend::Kprobe);
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

    fn note(&mut self, place: &Place, backend: Backend) {
        self.attached.push(Attached {
            name: place.target.name.clone(),
            backend,
            symbol: (place.target.symbol != place.target.name).then(|| place.target.symbol.clone()),
            note: place.target.note.clone(),
            module: place.target.module.clone(),
        });
    }

    fn count_of(&self, backend: Backend) -> usize {
        self.attached.iter().filter(|one| one.backend == backend).count()
    }
}

pub fn failed(error: &anyhow::Error) -> HookError {
    HookError::Failed { error: format!("{error:#}") }
}

/// Some kernels are built to refuse functions that ftrace cannot enter, and only return EINVAL.
fn against_kprobe(place: &Place, error: &anyhow::Error) -> HookError {
    let core = place.target.hook.as_ref().is_some_and(|hook| hook.core);
    if core && errno::of(error) == Some(libc::EINVAL) {
        return HookError::NoTraceEntry;
    }
    failed(error)
}

fn one_kprobe(object: &Object, place: &Place) -> Result<[Link; 2]> {
    let Target { symbol, address, .. } = &*place.target;
    let attach = |name: &str, retprobe| {
        tracepoint::attach_kprobe(&program(object, name)?, symbol, *address, retprobe, place.probe.into())
    };
    let exit = attach("single_return", true)?;
    Ok([attach("single_entry", false)?, exit])
}

fn multi(object: &Object, backend: Backend, programs: &[&str], places: &[Place]) -> Result<Vec<OwnedFd>> {
    match programs {
        [entry, exit] => {
            let returns = multi_link(&program(object, exit)?, backend, RETURN, places)?;
            Ok(vec![multi_link(&program(object, entry)?, backend, 0, places)?, returns])
        }
        _ => {
            let name = programs.first().context("no program")?;
            Ok(vec![multi_link(&program(object, name)?, backend, 0, places)?])
        }
    }
}

/// Uses addresses where they are known: names of module functions are not unique.
fn multi_link(program: &ProgramMut, backend: Backend, flags: u32, places: &[Place]) -> Result<OwnedFd> {
    let cookies: Vec<u64> = places.iter().map(|place| place.probe.into()).collect();
    let addresses: Option<Vec<u64>> = places.iter().map(|place| place.target.address).collect();
    let names = places
        .iter()
        .map(|place| std::ffi::CString::new(place.target.symbol.as_str()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let mut options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        ..bpf_link_create_opts::default()
    };
    let kind = if backend == Backend::Session { BPF_TRACE_KPROBE_SESSION } else { BPF_TRACE_KPROBE_MULTI };
    let multi = libbpf_rs::libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
        flags,
        cnt: places.len() as u32,
        syms: if addresses.is_none() { names.as_mut_ptr().cast() } else { std::ptr::null_mut() },
        addrs: addresses.as_ref().map_or(std::ptr::null(), |list| list.as_ptr().cast()),
        cookies: cookies.as_ptr(),
    };
    options.__bindgen_anon_1.kprobe_multi = multi;
    // SAFETY: a loaded program, and options whose lists live until the call returns.
    let fd = unsafe { bpf_link_create(program.as_fd().as_raw_fd(), 0, kind, &raw const options) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd).into());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|p| p.name() == name).with_context(|| format!("no BPF program {name}"))
}

fn all_refused(places: Vec<Place>, error: &anyhow::Error) -> Vec<(Place, HookError)> {
    let why = failed(error);
    places.into_iter().map(|place| (place, why.clone())).collect()
}

/// Linux does not support such links: a shorter list will not help.
fn unsupported(error: &anyhow::Error) -> bool {
    matches!(errno::of(error), Some(libc::EOPNOTSUPP | libc::EPERM | libc::ENOSYS))
}
