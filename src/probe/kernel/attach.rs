//! Attaches everything that `--kernel` hooks: functions by the best backend for each, system calls on the driver's
//! files, interrupts, the scheduler, Xids, the user's own hooks.
//! In: the choice, the machine's symbols. Out: probes announced before they can be hit; what is attached, and by which
//! backend; what is not, and why. Hooks that wait for a module are tried again when it is loaded.
//! Not here: what a hit means; which threads are recorded (BPF decides that).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use libbpf_rs::MapCore;

use super::config::bpf_hook;
use super::driver::{AttachedHook, Driver, Hold, MODULES, Numbering, failed};
use super::events::{self, Event};
use super::functions::{self, Place};
use super::{Backend, Choice, HookRequest, PlannedHook, Scope, Symbols, Target, plan};
use crate::host;
use crate::probe::missed::Misses;
use crate::probe::numbers;
use crate::probe::objects::{Base, copies_at_system_calls, find_map, find_program};
use crate::probe::{Beneath, tracepoint};
use crate::wire;
use gpurec_nvidia::hooks::{self, Group, Hook, Role};
use gpurec_nvidia::{Family, Layouts, majors};
use gpurec_trace::{HookError, RefusedHook};

impl Driver {
    pub fn start(base: Rc<Base>, choice: Choice, to: &mut Numbering) -> Result<Driver> {
        let maps = base.load_driver(&[], None, None)?;
        let mut driver = Driver {
            base,
            choice,
            maps,
            objects: Vec::new(),
            holds: Vec::new(),
            missed_before: Misses::default(),
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
        if !driver.choice.xids_only {
            driver.events(to);
        }
        driver.set_majors()?;
        to.announce();
        driver.set_numbers()?;
        if !driver.choice.xids_only {
            driver.system_calls();
            driver.others();
        }
        Ok(driver)
    }

    /// Checks whether a module was loaded or unloaded. Returns the change for the trace if so.
    pub fn refresh(&mut self, to: &mut Numbering) -> Result<Option<Change>> {
        let now = modules();
        if now == self.modules {
            return Ok(None);
        }
        let before = std::mem::replace(&mut self.modules, now);
        let changed = |to: bool| -> Vec<&str> {
            let all = MODULES.iter().zip(before).zip(now);
            all.filter(|((_, b), n)| b != n && *n == to).map(|((name, _), _)| *name).collect()
        };
        let (came, went) = (changed(true), changed(false));
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
        let gone = |one: &AttachedHook| one.module.as_deref().is_some_and(|module| went.contains(&module));
        self.attached.retain(|one| !gone(one));
        for module in went {
            match *module {
                "nvidia" => {
                    self.by_function.remove(&(Family::Nvidia as u32));
                    self.numbers.by_function = 0;
                    self.attached.retain(|one| one.hook.name != "xid");
                }
                "nvidia_uvm" => _ = self.by_function.remove(&(Family::Uvm as u32)),
                _ => {}
            }
        }
        // A failure keeps the old values; the next change tries again.
        let _ = self.set_numbers();
    }

    fn set_shapes(&self) -> Result<()> {
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
            self.set("shapes", wire::bytes(&key), wire::bytes(&value))?;
        }
        Ok(())
    }

    fn set_numbers(&self) -> Result<()> {
        self.set("driver", &0u32.to_ne_bytes(), wire::bytes(&self.numbers))
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
            self.set("majors", &major.to_ne_bytes(), &value.to_ne_bytes())?;
        }
        Ok(())
    }

    fn number_all(&mut self, to: &mut Numbering) {
        let (ioctls, scheduler, interrupts) = (
            self.choice.wants(Group::Ioctl),
            self.choice.wants(Group::Scheduler),
            self.choice.wants(Group::Interrupt),
        );
        let n = &mut self.numbers;
        for (wanted, slot, name, what) in [
            (ioctls, &mut n.ioctl, "nvidia_ioctl", Beneath::Ioctl),
            (ioctls, &mut n.uvm_ioctl, "nvidia_uvm_ioctl", Beneath::Ioctl),
            (ioctls, &mut n.modeset_ioctl, "nvidia_modeset_ioctl", Beneath::Ioctl),
            (ioctls, &mut n.other_ioctl, "nvidia_caps_ioctl", Beneath::Ioctl),
            (ioctls, &mut n.open, "nvidia_open", Beneath::Open),
            (ioctls, &mut n.close, "nvidia_close", Beneath::Close),
            (ioctls, &mut n.mmap, "nvidia_mmap", Beneath::Mmap),
            (ioctls, &mut n.poll, "nvidia_poll", Beneath::Poll),
            (interrupts, &mut n.irq, "nvidia_irq", Beneath::Irq),
            (scheduler, &mut n.off_cpu, "off_cpu", Beneath::OffCpu),
            (true, &mut n.xid, "xid", Beneath::Xid),
        ] {
            if wanted {
                *slot = to.number(name, what).unwrap_or(0);
            }
        }
    }

    fn functions(&mut self, to: &mut Numbering) -> Result<()> {
        if self.choice.backend == Some(Backend::Tracepoint) {
            return Ok(());
        }
        let wanted = self.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let own = wanted.iter().any(|one| matches!(one, HookRequest::Named(_)));
        let scope = if own { Scope::Everything } else { Scope::Driver };
        let symbols = Symbols::gather(&host::Facts::gather(), scope);
        // Hooks that were refused for a missing module are tried anew.
        self.refused.retain(|refused| refused.name == "xid");
        let mut places = Vec::new();
        for planned in plan(&wanted, &symbols) {
            match planned {
                PlannedHook::Take(target) if self.has(&target) => {}
                PlannedHook::Take(target) if only_tracepoint(&target) => {
                    let place = Place::new(target.into(), 0);
                    self.refuse(&place.target.name, place.reason(self.choice.backend));
                }
                PlannedHook::Take(target) => self.place(target, &mut places, to),
                PlannedHook::Refused { name, reason } => self.refuse(&name, reason),
            }
        }
        to.announce();
        let only = self.choice.backend;
        let mut hooked: BTreeMap<u32, Arc<Target>> =
            places.iter().map(|place| (place.probe, place.target.clone())).collect();
        for place in functions::attach(self, places, only) {
            hooked.remove(&place.probe);
            self.refuse(&place.target.name, place.reason(only));
        }
        hooked.values().filter_map(|target| target.hook.as_ref()).for_each(|hook| self.stands_for(hook));
        Ok(())
    }

    fn has(&self, target: &Target) -> bool {
        let same = |one: &AttachedHook| one.hook.name == target.name && one.module == target.module;
        self.attached.iter().any(|one| same(one) && one.backend != Backend::Tracepoint)
    }

    /// The table's rows in the requested groups, and the user's own functions.
    fn wanted(&self) -> Vec<HookRequest> {
        let version = host::driver_version();
        let rows = hooks::table(version.as_deref()).into_iter();
        let mut wanted: Vec<HookRequest> = rows
            .filter(|hook| !self.choice.xids_only || hook.role == Role::Xid)
            .filter(|hook| self.choice.takes(hook) && !self.reported_otherwise(hook))
            .map(|hook| HookRequest::Hook(Box::new(hook)))
            .collect();
        let own = self.choice.hooks.iter().filter(|name| !events::is_event(name));
        wanted.extend(own.map(|name| HookRequest::Named(name.clone())));
        wanted
    }

    /// Another hook reports these: a system call reports waiting in poll, and from 575 on a tracepoint reports errors.
    fn reported_otherwise(&self, hook: &Hook) -> bool {
        hook.line == "nvidia_poll" || (hook.role == Role::Xid && self.has_xid())
    }

    pub fn sees_xids_only(&self) -> bool {
        self.choice.xids_only
    }

    /// If the driver's errors are not recorded: why.
    pub fn sees_no_xids(&self) -> Option<String> {
        let is_it = |name: &str| matches!(name, "xid" | "nv_report_error");
        if self.attached.iter().any(|one| is_it(&one.hook.name)) {
            return None;
        }
        let refused = self.refused.iter().filter(|refused| is_it(&refused.name));
        let reasons: Vec<&str> = refused.map(|refused| refused.reason.as_str()).collect();
        Some(if reasons.is_empty() {
            "the driver has no hook for Xids".to_owned()
        } else {
            reasons.join("; ")
        })
    }

    fn has_xid(&self) -> bool {
        self.attached.iter().any(|one| one.hook.name == "xid")
    }

    fn place(&mut self, target: Box<Target>, places: &mut Vec<Place>, to: &mut Numbering) {
        let target: Arc<Target> = target.into();
        let line = target.hook.as_ref().map_or(target.name.as_str(), |hook| hook.line);
        let config = bpf_hook(&target);
        let Some(probe) = to.number(line, Beneath::Function(target.clone())) else {
            return self.refuse(&target.name, numbers::too_many());
        };
        match self.set("hooks", &probe.to_ne_bytes(), wire::bytes(&config)) {
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

    fn events(&mut self, to: &mut Numbering) {
        let wanted: Vec<String> =
            self.choice.hooks.iter().filter(|name| events::is_event(name)).cloned().collect();
        for name in wanted {
            match events::find(&name) {
                Ok(found) => found.into_iter().for_each(|event| self.event(event, to)),
                Err(error) => self.refuse(&name, failed(&error)),
            }
        }
    }

    fn event(&mut self, event: Event, to: &mut Numbering) {
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
        let result = self.attach_event(event, &config, to).map_err(|error| failed(&error));
        self.report(&name, None, result);
    }

    fn attach_event(&mut self, event: Event, config: &wire::Hook, to: &mut Numbering) -> Result<()> {
        let (category, name) = event.name.split_once(':').ok_or_else(|| anyhow!("no category:event"))?;
        let id = tracepoint::id(category, name)?;
        let full = event.name.clone();
        let probe = to.number(&full, Beneath::Event(Arc::new(event))).ok_or_else(numbers::too_many)?;
        self.set("hooks", &probe.to_ne_bytes(), wire::bytes(config))?;
        to.announce();
        let object = self.load_more(&["any_tracepoint"], None)?;
        let link = tracepoint::attach(&find_program(&object, "any_tracepoint")?, id, probe.into())?;
        self.keep(object, [Hold::Link(link)]);
        Ok(())
    }

    /// Attaches to the system calls on the driver's files: ioctls unless functions report them, waiting in poll always,
    /// the others where their functions could not be hooked.
    fn system_calls(&mut self) {
        if !self.choice.wants(Group::Ioctl) {
            return;
        }
        let n = self.numbers;
        let calls = [
            (1, "nvidia_ioctl", "ioctl", "ioctl"),
            (1, "nvidia_poll", "poll", "poll"),
            (1, "nvidia_poll", "ppoll", "ppoll"),
            (n.open, "nvidia_open", "openat", "open"),
            (n.close, "nvidia_close", "close", "close"),
            (n.mmap, "nvidia_mmap", "mmap", "mmap"),
        ];
        for (_, name, call, base) in calls.into_iter().filter(|call| call.0 != 0) {
            match self.system_call(call, base) {
                Ok(()) if call == "ppoll" => {}
                // Not every machine has poll: ppoll does the same.
                Err(_) if call == "poll" && cfg!(not(target_arch = "x86_64")) => {}
                result => {
                    let result = result.map_err(|error| failed(&error));
                    self.report(name, Some(&format!("syscalls:sys_enter_{call}")), result);
                }
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
            for (name, id) in [(&exit, ids[1]), (&enter, ids[0])] {
                self.holds.push(Hold::Link(tracepoint::attach(&find_program(&object, name)?, id, copy)?));
            }
            copies.push(object);
        }
        self.objects.push(copies);
        Ok(())
    }

    fn others(&mut self) {
        let n = self.numbers;
        for (number, name, symbol, programs) in [
            (n.irq, "nvidia_irq", "irq:irq_handler_entry", &["irq_entry", "irq_exit"][..]),
            (n.off_cpu, "off_cpu", "sched:sched_switch", &["sched_switch"]),
        ] {
            if number != 0 {
                let result = self.traced(programs, None).map_err(|error| failed(&error));
                self.report(name, Some(symbol), result);
            }
        }
    }

    /// Attaches to the driver's own tracepoint, or reports that there is none.
    fn xid(&mut self) {
        if self.has_xid() {
            return;
        }
        self.refused.retain(|refused| refused.name != "xid");
        let result = self.attach_xid().map_err(|error| match self.modules[0] {
            false => HookError::DriverNotLoaded,
            true => HookError::NoXid { error: format!("{error:#}") },
        });
        self.report("xid", Some("nvidia:nvidia_dev_xid"), result);
    }

    fn attach_xid(&mut self) -> Result<()> {
        let object = self.load_more(&["xid"], None)?;
        let link = find_program(&object, "xid")?.attach_raw_tracepoint("nvidia_dev_xid");
        let link = link.map_err(|e| anyhow!("{e:#}"))?;
        self.keep(object, [Hold::Link(link)]);
        Ok(())
    }
}

/// A module was loaded or unloaded during the recording.
pub struct Change {
    pub modules: String,
    pub came: bool,
    pub hooked: usize,
    pub refused: Vec<RefusedHook>,
}

fn modules() -> [bool; MODULES.len()] {
    MODULES.map(|name| Path::new("/sys/module").join(name).join("initstate").exists())
}

/// Only a tracepoint can report this function's event, and it is attached in any case.
fn only_tracepoint(target: &Target) -> bool {
    target.usable().all(|backend| backend == Backend::Tracepoint)
}
