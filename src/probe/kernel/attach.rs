//! Attaches everything that `--kernel` hooks: functions by the best backend for each, system calls on the driver's
//! files, interrupts, the scheduler, Xids, the user's own hooks.
//! In: the choice, the machine's symbols. Out: probes announced before they can be hit; what is attached, and by which
//! backend; what is not, and why. Hooks that wait for a module are tried again when it is loaded.
//! Not here: what a hit means; which threads are recorded (BPF decides that).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use libbpf_rs::{Link, MapCore, MapFlags, Object};

use super::config::bpf_hook;
use super::events::{self, Event};
use super::functions::failed;
use super::functions::{self, Place, program};
use super::{Backend, Choice, Planned, Scope, Symbols, Target, Wanted, plan};
use crate::host;
use crate::probe::missed::Missed;
use crate::probe::numbers;
use crate::probe::objects::{Base, Only, copies_at_system_calls, find_map};
use crate::probe::{Beneath, Probe, tracepoint};
use crate::wire;
use gpurec_nvidia::hooks::{self, Group, Hook, Role};
use gpurec_nvidia::{Family, Layouts, majors};
use gpurec_trace::HookError;
use gpurec_trace::{Hooked, Layer, Refused};

/// The modules whose loading and unloading matters.
const MODULES: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

/// An attached hook: dropping this detaches it.
pub enum Hold {
    Link(Link),
    Fd(OwnedFd),
}

pub struct Attached {
    pub name: String,
    pub backend: Backend,
    pub symbol: Option<String>,
    pub note: Option<String>,
    /// The module whose unloading removes the hook.
    pub module: Option<String>,
}

impl Attached {
    fn told(&self) -> Hooked {
        Hooked {
            name: self.name.clone(),
            backend: self.backend.name().to_owned(),
            how: self.backend.name().to_owned(),
            symbol: self.symbol.clone(),
            note: self.note.clone(),
        }
    }
}

pub struct Driver {
    base: Rc<Base>,
    choice: Choice,
    /// Loaded without programs: the maps that all other objects share.
    maps: Object,
    /// The objects in one inner list are copies at the same hooks.
    objects: Vec<Vec<Object>>,
    holds: Vec<Hold>,
    missed_before: Missed,
    pub attached: Vec<Attached>,
    pub refused: Vec<Refused>,
    numbers: wire::Driver,
    /// The modules that were loaded when functions were last hooked.
    modules: [bool; MODULES.len()],
    /// Flags for the table of majors, by family.
    by_function: BTreeMap<u32, u32>,
}

/// Gives probes their numbers, and announces them before they can be hit.
pub trait Announce {
    fn number(&mut self, name: &str, what: Beneath) -> Option<u32>;
    fn announce(&mut self);
}

impl Driver {
    pub fn start(base: Rc<Base>, choice: Choice, to: &mut dyn Announce) -> Result<Driver> {
        let maps = base.load_driver(&[], None, None)?;
        let mut driver = Driver {
            base,
            choice,
            maps,
            objects: Vec::new(),
            holds: Vec::new(),
            missed_before: Missed::default(),
            attached: Vec::new(),
            refused: Vec::new(),
            numbers: wire::Driver::default(),
            modules: modules(),
            by_function: BTreeMap::new(),
        };
        driver.set_shapes()?;
        driver.number_all(to);
        driver.xid();
        driver.functions(to)?;
        driver.events(to);
        driver.set_majors()?;
        to.announce();
        driver.set_numbers()?;
        driver.system_calls();
        driver.others();
        Ok(driver)
    }

    /// Checks whether a module was loaded or unloaded. Returns the change for the trace if so.
    pub fn refresh(&mut self, to: &mut dyn Announce) -> Result<Option<Change>> {
        let now = modules();
        if now == self.modules {
            return Ok(None);
        }
        let before = std::mem::replace(&mut self.modules, now);
        let pairs = || MODULES.iter().zip(before.iter().zip(&now));
        let came: Vec<&str> = pairs().filter(|(_, (b, n))| !**b && **n).map(|(name, _)| *name).collect();
        let went: Vec<&str> = pairs().filter(|(_, (b, n))| **b && !**n).map(|(name, _)| *name).collect();
        self.forget(&went);
        let had = self.attached.len();
        self.set_majors()?;
        if !came.is_empty() {
            self.set_shapes()?;
            self.xid();
            self.functions(to)?;
            self.set_numbers()?;
        }
        self.set_majors()?;
        Ok(Some(Change {
            modules: if came.is_empty() { went.join(", ") } else { came.join(", ") },
            came: !came.is_empty(),
            hooked: self.attached.len() - had,
            refused: self.refused.clone(),
        }))
    }

    /// Forgets the hooks in unloaded modules, which are gone. If a module comes back, its functions are hooked anew;
    /// until then tracepoints report the same events.
    fn forget(&mut self, went: &[&str]) {
        let gone = |one: &Attached| one.module.as_deref().is_some_and(|module| went.contains(&module));
        self.attached.retain(|one| !gone(one));
        for module in went {
            match *module {
                "nvidia" => {
                    self.by_function.remove(&(Family::Nvidia as u32));
                    self.numbers.by_function = 0;
                    self.attached.retain(|one| one.name != "xid");
                }
                "nvidia_uvm" => _ = self.by_function.remove(&(Family::Uvm as u32)),
                _ => {}
            }
        }
        // A failure keeps the old values; the next change tries again.
        let _ = self.set_numbers();
    }

    /// For the trace's header.
    pub fn layer(&self) -> Layer {
        let mut by_backend = BTreeMap::new();
        for one in &self.attached {
            *by_backend.entry(one.backend.name().to_owned()).or_insert(0) += 1;
        }
        let names: Vec<&str> = by_backend.keys().map(String::as_str).collect();
        Layer {
            backend: names.join("+"),
            attached: self.attached.len() as u64,
            refused: self.refused.clone(),
            hooks: self.attached.iter().map(Attached::told).collect(),
            by_backend,
        }
    }

    /// Hits that Linux skipped since `recording_begins`.
    pub fn missed(&self) -> Missed {
        self.all_missed().since(&self.missed_before)
    }

    /// Hits that were skipped before now, while hooking, do not count.
    pub fn recording_begins(&mut self) {
        self.missed_before = self.all_missed();
    }

    fn all_missed(&self) -> Missed {
        let mut missed = Missed::default();
        for copies in &self.objects {
            missed.add_programs(copies);
        }
        for hold in &self.holds {
            missed.add_link(match hold {
                Hold::Link(link) => link.as_fd().as_raw_fd(),
                Hold::Fd(fd) => fd.as_raw_fd(),
            });
        }
        missed
    }

    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().flatten()
    }

    pub fn take_holds(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.holds)
    }

    pub(super) fn load_more(&self, programs: &[&str], only: Option<Only>) -> Result<Object> {
        self.base.load_driver(programs, Some(&self.maps), only)
    }

    pub(super) fn keep(&mut self, object: Object, holds: impl IntoIterator<Item = Hold>) {
        self.holds.extend(holds);
        self.objects.push(vec![object]);
    }

    fn wants(&self, group: Group) -> bool {
        self.choice.wants(group)
    }

    fn refuse(&mut self, name: &str, why: HookError) {
        let refused = Refused::new(name, why.into());
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }

    fn set_shapes(&self) -> Result<()> {
        let shapes = find_map(&self.maps, "shapes")?;
        for shape in Layouts::of(host::driver_version().as_deref()).shapes() {
            let key = wire::IoctlKey { family: shape.family as u32, nr: shape.nr };
            let value = wire::IoctlShape {
                entry: shape.entry,
                exit: shape.exit,
                second_at: shape.second.map_or(0, |second| second.at),
                second_size: shape.second.map_or(0, |second| second.size),
                status: shape.status.unwrap_or(0),
                has_status: shape.status.is_some().into(),
                second_inline: shape.second.is_some_and(|second| second.inline).into(),
            };
            shapes.update(wire::bytes(&key), wire::bytes(&value), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn set_numbers(&self) -> Result<()> {
        let zero = 0u32.to_ne_bytes();
        Ok(find_map(&self.maps, "driver")?.update(&zero, wire::bytes(&self.numbers), MapFlags::ANY)?)
    }

    fn set_majors(&self) -> Result<()> {
        let table = find_map(&self.maps, "majors")?;
        let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
        let now = majors(&devices);
        let keys: Vec<Vec<u8>> = table.keys().collect();
        for key in keys.iter().filter(|key| !now.iter().any(|(major, _)| major.to_ne_bytes() == key[..])) {
            table.delete(key)?;
        }
        for (major, family) in now {
            let family = family as u32;
            let value = family | self.by_function.get(&family).copied().unwrap_or(0);
            table.update(&major.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn number_all(&mut self, to: &mut dyn Announce) {
        let (ioctls, scheduler, interrupts) =
            (self.wants(Group::Ioctl), self.wants(Group::Scheduler), self.wants(Group::Interrupt));
        let n = &mut self.numbers;
        let mut number = |wanted: bool, slot: &mut u32, name: &str, what: Beneath| {
            if wanted {
                *slot = to.number(name, what).unwrap_or(0);
            }
        };
        number(ioctls, &mut n.ioctl, "nvidia_ioctl", Beneath::Ioctl);
        number(ioctls, &mut n.uvm_ioctl, "nvidia_uvm_ioctl", Beneath::Ioctl);
        number(ioctls, &mut n.modeset_ioctl, "nvidia_modeset_ioctl", Beneath::Ioctl);
        number(ioctls, &mut n.other_ioctl, "nvidia_caps_ioctl", Beneath::Ioctl);
        number(ioctls, &mut n.open, "nvidia_open", Beneath::Open);
        number(ioctls, &mut n.close, "nvidia_close", Beneath::Close);
        number(ioctls, &mut n.mmap, "nvidia_mmap", Beneath::Mmap);
        number(ioctls, &mut n.poll, "nvidia_poll", Beneath::Poll);
        number(interrupts, &mut n.irq, "nvidia_irq", Beneath::Irq);
        number(scheduler, &mut n.off_cpu, "off_cpu", Beneath::OffCpu);
        number(true, &mut n.xid, "xid", Beneath::Xid);
    }

    fn functions(&mut self, to: &mut dyn Announce) -> Result<()> {
        if self.choice.backend == Some(Backend::Tracepoint) {
            return Ok(());
        }
        let wanted = self.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let own = wanted.iter().any(|one| matches!(one, Wanted::Named(_)));
        let scope = if own { Scope::Everything } else { Scope::Driver };
        let symbols = Symbols::gather(&host::Facts::gather(), scope);
        // Hooks that were refused for a missing module are tried anew.
        self.refused.retain(|refused| refused.name == "xid");
        let mut places = Vec::new();
        for planned in plan(&wanted, &symbols) {
            match planned {
                Planned::Take(target) if self.has(&target) => {}
                Planned::Take(target) if only_tracepoint(&target) => {
                    let place = Place::new(target.into(), 0);
                    self.refuse(&place.target.name, place.reason(self.choice.backend));
                }
                Planned::Take(target) => self.place(target, &mut places, to),
                Planned::Refused { name, reason } => self.refuse(&name, reason),
            }
        }
        to.announce();
        let placed: Vec<(u32, Arc<Target>)> = places.iter().map(|p| (p.probe, p.target.clone())).collect();
        let mut failed = Vec::new();
        for (place, reason) in functions::attach(self, places, self.choice.backend) {
            failed.push(place.probe);
            self.refuse(&place.target.name, reason);
        }
        for (probe, target) in placed {
            if let (Some(hook), false) = (&target.hook, failed.contains(&probe)) {
                self.stands_for(hook);
            }
        }
        Ok(())
    }

    fn has(&self, target: &Target) -> bool {
        let same = |one: &Attached| one.name == target.name && one.module == target.module;
        self.attached.iter().any(|one| same(one) && one.backend != Backend::Tracepoint)
    }

    /// The table's rows in the requested groups, and the user's own functions.
    fn wanted(&self) -> Vec<Wanted> {
        let version = host::driver_version();
        let rows = hooks::table(version.as_deref()).into_iter();
        let mut wanted: Vec<Wanted> = rows
            .filter(|hook| self.choice.takes(hook) && !self.told_otherwise(hook))
            .map(|hook| Wanted::Hook(Box::new(hook)))
            .collect();
        let own = self.choice.hooks.iter().filter(|name| !events::is_event(name));
        wanted.extend(own.map(|name| Wanted::Named(name.clone())));
        wanted
    }

    /// Another hook reports these: a system call reports waiting in poll, and from 575 on a tracepoint reports errors.
    fn told_otherwise(&self, hook: &Hook) -> bool {
        hook.line == "nvidia_poll" || (hook.role == Role::Xid && self.has_xid())
    }

    fn has_xid(&self) -> bool {
        self.attached.iter().any(|one| one.name == "xid")
    }

    fn place(&mut self, target: Box<Target>, places: &mut Vec<Place>, to: &mut dyn Announce) {
        let target: Arc<Target> = target.into();
        let line = target.hook.as_ref().map_or(target.name.as_str(), |hook| hook.line);
        let config = bpf_hook(&target);
        let Some(probe) = to.number(line, Beneath::Function(target.clone())) else {
            return self.refuse(&target.name, numbers::too_many());
        };
        let set = find_map(&self.maps, "hooks")
            .and_then(|map| Ok(map.update(&probe.to_ne_bytes(), wire::bytes(&config), MapFlags::ANY)?));
        match set {
            Ok(()) => places.push(Place::new(target, probe)),
            Err(error) => self.refuse(&target.name, failed(&error)),
        }
    }

    /// A hooked function makes the tracepoint that reports the same event superfluous.
    fn stands_for(&mut self, hook: &Hook) {
        let family = |module: &str| match module {
            "nvidia_uvm" => Family::Uvm as u32,
            _ => Family::Nvidia as u32,
        };
        match (hook.role, hook.line) {
            (Role::Ioctl, _) => {
                let special = hook.name.contains("tools") || hook.name.starts_with("nvkms");
                let bit = if special { wire::SPECIAL_BY_FUNCTION } else { wire::BY_FUNCTION };
                *self.by_function.entry(family(hook.module)).or_insert(0) |= bit;
            }
            (Role::File, _) if hook.module != "nvidia" => {}
            (Role::File, "nvidia_open") => self.numbers.by_function |= wire::OPEN_BY_FUNCTION,
            (Role::File, "nvidia_close") => self.numbers.by_function |= wire::CLOSE_BY_FUNCTION,
            (Role::File, "nvidia_mmap") => self.numbers.by_function |= wire::MMAP_BY_FUNCTION,
            _ if hook.name.starts_with("nvidia_isr") && hook.top_half => self.numbers.irq = 0,
            _ => {}
        }
    }

    fn events(&mut self, to: &mut dyn Announce) {
        let wanted: Vec<String> =
            self.choice.hooks.iter().filter(|name| events::is_event(name)).cloned().collect();
        for name in wanted {
            match events::find(&name) {
                Ok(found) => found.into_iter().for_each(|event| self.event(event, to)),
                Err(error) => self.refuse(&name, failed(&error)),
            }
        }
    }

    fn event(&mut self, event: Event, to: &mut dyn Announce) {
        let name = event.name.clone();
        // Interrupts and the driver's errors occur in any thread.
        let scope = match name.split(':').next() {
            Some("irq" | "nvidia" | "irq_vectors") => wire::EVERYBODY,
            _ => wire::TARGETS,
        };
        let config = wire::Hook {
            scope,
            context: event.size.min(wire::HOOK_PIECE.into()) as u16,
            ..wire::Hook::default()
        };
        let result = self.attach_event(event, &config, to);
        match result {
            Ok(()) => self.attached.push(Attached {
                name,
                backend: Backend::Tracepoint,
                symbol: None,
                note: None,
                module: None,
            }),
            Err(error) => self.refuse(&name, failed(&error)),
        }
    }

    fn attach_event(&mut self, event: Event, config: &wire::Hook, to: &mut dyn Announce) -> Result<()> {
        let (category, name) = event.name.split_once(':').ok_or_else(|| anyhow!("no category:event"))?;
        let id = tracepoint::id(category, name)?;
        let full = event.name.clone();
        let probe = to.number(&full, Beneath::Event(Arc::new(event))).ok_or_else(numbers::too_many)?;
        find_map(&self.maps, "hooks")?.update(&probe.to_ne_bytes(), wire::bytes(config), MapFlags::ANY)?;
        to.announce();
        let object = self.load_more(&["any_tracepoint"], None)?;
        let link = tracepoint::attach(&program(&object, "any_tracepoint")?, id, probe.into())?;
        self.keep(object, [Hold::Link(link)]);
        Ok(())
    }

    /// Attaches to the system calls on the driver's files: ioctls unless functions report them, waiting in poll always,
    /// the others where their functions could not be hooked.
    fn system_calls(&mut self) {
        if !self.wants(Group::Ioctl) {
            return;
        }
        let n = self.numbers;
        let mut calls = vec![
            ("nvidia_ioctl", "ioctl", "ioctl"),
            ("nvidia_poll", "poll", "poll"),
            ("nvidia_poll", "ppoll", "ppoll"),
        ];
        let optional = [
            (n.open, "nvidia_open", "openat", "open"),
            (n.close, "nvidia_close", "close", "close"),
            (n.mmap, "nvidia_mmap", "mmap", "mmap"),
        ];
        calls.extend(
            optional.iter().filter(|o| o.0 != 0).map(|(_, name, call, program)| (*name, *call, *program)),
        );
        for (name, call, base) in calls {
            match self.system_call(call, base) {
                Ok(()) if call == "ppoll" => {}
                Ok(()) => self.attached.push(Attached {
                    name: name.to_owned(),
                    backend: Backend::Tracepoint,
                    symbol: Some(format!("syscalls:sys_enter_{call}")),
                    note: None,
                    module: None,
                }),
                // Not every machine has poll: ppoll does the same.
                Err(_) if call == "poll" && cfg!(not(target_arch = "x86_64")) => {}
                Err(error) => self.refuse(name, failed(&error)),
            }
        }
    }

    fn system_call(&mut self, call: &str, base: &str) -> Result<()> {
        let (enter, exit) = (format!("syscall_{base}_enter"), format!("syscall_{base}_exit"));
        let ids = [
            tracepoint::id("syscalls", &format!("sys_enter_{call}"))?,
            tracepoint::id("syscalls", &format!("sys_exit_{call}"))?,
        ];
        let mut copies = Vec::new();
        for copy in 0..copies_at_system_calls() as u64 {
            let object = self.load_more(&[&enter, &exit], None)?;
            self.holds.push(Hold::Link(tracepoint::attach(&program(&object, &exit)?, ids[1], copy)?));
            self.holds.push(Hold::Link(tracepoint::attach(&program(&object, &enter)?, ids[0], copy)?));
            copies.push(object);
        }
        self.objects.push(copies);
        Ok(())
    }

    fn others(&mut self) {
        if self.numbers.irq != 0 {
            self.traced("nvidia_irq", "irq:irq_handler_entry", &["irq_entry", "irq_exit"]);
        }
        if self.numbers.off_cpu != 0 {
            self.traced("off_cpu", "sched:sched_switch", &["sched_switch"]);
        }
    }

    fn traced(&mut self, name: &str, symbol: &str, programs: &[&str]) {
        let attach = |driver: &mut Driver| -> Result<()> {
            let object = driver.load_more(programs, None)?;
            let links = programs
                .iter()
                .map(|name| {
                    Ok(Hold::Link(program(&object, name)?.attach_trace().map_err(|e| anyhow!("{e:#}"))?))
                })
                .collect::<Result<Vec<_>>>()?;
            driver.keep(object, links);
            Ok(())
        };
        match attach(self) {
            Ok(()) => self.attached.push(Attached {
                name: name.to_owned(),
                backend: Backend::Tracepoint,
                symbol: Some(symbol.to_owned()),
                note: None,
                module: None,
            }),
            Err(error) => self.refuse(name, failed(&error)),
        }
    }

    /// Attaches to the driver's own tracepoint, or reports that there is none.
    fn xid(&mut self) {
        if self.has_xid() {
            return;
        }
        self.refused.retain(|refused| refused.name != "xid");
        let attach = |driver: &mut Driver| -> Result<()> {
            let object = driver.load_more(&["xid"], None)?;
            let link = program(&object, "xid")?
                .attach_raw_tracepoint("nvidia_dev_xid")
                .map_err(|e| anyhow!("{e:#}"))?;
            driver.keep(object, [Hold::Link(link)]);
            Ok(())
        };
        let symbol = Some("nvidia:nvidia_dev_xid".to_owned());
        match attach(self) {
            Ok(()) => self.attached.push(Attached {
                name: "xid".to_owned(),
                backend: Backend::Tracepoint,
                symbol,
                note: None,
                module: None,
            }),
            Err(_) if !self.modules[0] => {
                self.refuse("xid", HookError::DriverNotLoaded);
            }
            Err(error) => self.refuse("xid", HookError::NoXid { error: format!("{error:#}") }),
        }
    }
}

/// A module was loaded or unloaded during the recording.
pub struct Change {
    pub modules: String,
    pub came: bool,
    pub hooked: usize,
    pub refused: Vec<Refused>,
}

fn modules() -> [bool; MODULES.len()] {
    MODULES.map(|name| Path::new("/sys/module").join(name).join("initstate").exists())
}

/// Only a tracepoint can report this function's event, and it is attached in any case.
fn only_tracepoint(target: &Target) -> bool {
    target.usable().all(|backend| backend == Backend::Tracepoint)
}

/// Gives out numbers in order, from a counter that it shares with other code.
pub struct Numbering<'a> {
    pub next: &'a Cell<u32>,
    pub waiting: Vec<Probe>,
    pub tell: &'a mut dyn FnMut(&[Probe]),
}

impl Announce for Numbering<'_> {
    fn number(&mut self, name: &str, what: Beneath) -> Option<u32> {
        let id = self.next.get();
        if id >= wire::MAX_PROBES {
            return None;
        }
        self.next.set(id + 1);
        self.waiting.push(Probe { id, name: name.to_owned(), signature: None, beneath: Some(what) });
        Some(id)
    }

    fn announce(&mut self) {
        if !self.waiting.is_empty() {
            (self.tell)(&std::mem::take(&mut self.waiting));
        }
    }
}
