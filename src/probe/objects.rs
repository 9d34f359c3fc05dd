//! Opens, configures and loads the BPF objects. In: the options and the backend to try.
//! Out: loaded programs that share one set of maps. Not here: attaching them.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::libbpf_sys::{BPF_TRACE_UPROBE_MULTI, bpf_prog_get_info_by_fd, bpf_prog_info};
use libbpf_rs::{
    Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramAttachType, ProgramMut,
};

use super::rings::Making;
use crate::clock::{monotonic_ns, tick_ns};
use crate::errno::KernelRefused;
use crate::files::select::Stacks;
use crate::host::Backend;
use crate::host::types;
use crate::ring::{Layout, Ring};
use crate::wire;

const BASE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/base.bpf.o"));
const PROCESS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/process.bpf.o"));
const CUDA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cuda.bpf.o"));
const STACKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stacks.bpf.o"));
const BLOCK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/block.bpf.o"));
const BLOCK_STACKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/block_stacks.bpf.o"));
const DRIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/driver.bpf.o"));

/// The maps that only --budget needs.
const BUDGET: [&str; 2] = ["given_up", "spent"];

/// Number of records that one CPU can be building: one program runs, others were preempted.
const SCRATCHES_A_CPU: usize = 16;

/// Never the id of a user.
pub const ANY_USER: u32 = u32::MAX;

#[derive(Default)]
pub struct Settings {
    pub everyone: bool,
    pub follow: bool,
    /// Bytes of each CPU's ring: a power of two, at least a page.
    pub ring: usize,
    /// BPF watches hits for --budget.
    pub budget: bool,
    /// BPF pauses a process that fills a ring.
    pub lossless: bool,
    /// Pauses only processes of this user; [`ANY_USER`]: of all users.
    pub pause_user: u32,
    /// Which calls have a stack.
    pub stacks: Option<Stacks>,
    /// Stacks have native frames beyond the caller.
    pub native_frames: bool,
    /// Functions are hooked by a backend without sessions.
    pub no_sessions: bool,
}

/// The maps that all objects share, and the rings.
pub struct Base {
    maps: Object,
    making: Making,
    config: wire::Config,
}

impl Base {
    pub fn load(settings: &Settings, making: Making) -> Result<Base> {
        let (layout, cpus) = (making.layout, making.cpus);
        let config = wire::Config {
            everyone: settings.everyone.into(),
            follow: settings.follow.into(),
            // An eighth stays free for records that can no longer be declined (see emit.h).
            call_limit: (layout.far - layout.far / 8) as u64,
            // The space above is for records that arrive until all processes are stopped (see pause.h).
            pause_at: if settings.lossless { layout.far as u64 / 2 } else { 0 },
            near_size: layout.near as u64,
            far_size: layout.far as u64,
            far_at: layout.far_at() as u64,
            secret: layout.secret,
            probe: 0,
            scratches: (cpus * SCRATCHES_A_CPU).next_power_of_two() as u32,
            budget: settings.budget.into(),
            // With sessions few calls need this memory.
            early_frames: (settings.no_sessions || types().is_none_or(|types| !types.uprobe_session)).into(),
            recorder: std::process::id() as i32,
            pause_user: settings.pause_user,
            stacks: settings.stacks.is_some().into(),
            native: settings.native_frames.into(),
            tick_ns: tick_ns(),
        };
        let mut open = open(BASE, "base")?;
        let ring = settings.ring >> 10;
        let refused = || KernelRefused(format!("gpurec's maps, or its rings of {ring} KiB for each CPU"));
        let rings = making.map().with_context(refused)?;
        for mut map in open.maps_mut() {
            if map.name() == "rings" {
                map.reuse_fd(rings.as_fd())?;
            } else if (map.name() == "python_at" || map.name() == "rules") && settings.stacks.is_none() {
                map.set_max_entries(1)?;
            }
        }
        let maps = open.load().with_context(refused)?;
        Ok(Base { maps, making, config })
    }

    pub fn map(&self, name: &str) -> Result<Map<'_>> {
        find_map(&self.maps, name)
    }

    /// A descriptor of the map, for use without this.
    pub fn handle(&self, name: &str) -> Result<MapHandle> {
        Ok(MapHandle::try_from(&self.map(name)?)?)
    }

    /// Does BPF pause a process that fills a ring?
    pub fn is_lossless(&self) -> bool {
        self.config.pause_at > 0
    }

    /// Refreshes the recorder's pulse during work that may take long. Does not change whether processes may be stopped.
    pub fn still_here(&self) {
        let key = 0u32.to_ne_bytes();
        let Ok(map) = self.map("pulse") else { return };
        let last = map.lookup(&key, MapFlags::ANY).ok().flatten();
        if let Some(last) = last.and_then(|bytes| wire::read::<wire::Pulse>(&bytes)) {
            let pulse = wire::Pulse { alive_ns: monotonic_ns(), ..last };
            // If this fails, the guardian resumes stopped processes before gpurec has examined their files, and gpurec
            // reports it.
            let _ = map.update(&key, wire::bytes(&pulse), MapFlags::ANY);
        }
    }

    pub fn set_state(&self, state: wire::State) -> Result<()> {
        Ok(self.map("state")?.update(&0u32.to_ne_bytes(), wire::bytes(&state), MapFlags::ANY)?)
    }

    /// Are all processes recorded, and none stopped?
    pub fn is_for_everyone(&self) -> bool {
        self.config.everyone != 0
    }

    pub fn layout(&self) -> Layout {
        self.making.layout
    }

    /// The rings of all CPUs, for a single reader.
    pub fn rings(&self) -> Result<Vec<Ring>> {
        self.making.rings(self.map("rings")?.as_fd())
    }

    pub fn near_rings(&self) -> Result<Vec<Ring>> {
        self.making.near(self.map("rings")?.as_fd())
    }

    /// The programs that follow processes.
    pub fn load_process(&self) -> Result<Object> {
        let second = copies_at_system_calls() > 1;
        let open =
            self.open(PROCESS, "process", &self.config, None, |name| second || !name.ends_with("_1"))?;
        open.load().context(KernelRefused("gpurec's process programs".to_owned()))
    }

    /// The CUDA programs of one backend.
    pub fn load_cuda(&self, backend: Backend) -> Result<Object> {
        let row = backend.row();
        let wanted = (row.programs)();
        let bytes = if self.config.stacks == 0 { CUDA } else { STACKS };
        let mut open =
            self.open(bytes, "cuda", &self.config, None, |name| wanted.iter().any(|one| one.0 == name))?;
        self.size_maps(&mut open)?;
        for mut program in open.progs_mut() {
            // libbpf-rs does not know the type of sessions; their programs have it from their section.
            match row.bulk.map(ProgramAttachType::from) {
                None | Some(ProgramAttachType::Unknown) => {}
                Some(kind) => program.set_attach_type(kind),
            }
        }
        open.load().with_context(|| KernelRefused(format!("the {} programs", row.name)))
    }

    /// The program of PyTorch's blocks, which shares the maps of the CUDA programs.
    pub fn load_blocks(&self, cuda: &Object, backend: Backend) -> Result<Object> {
        let bytes = if self.config.stacks == 0 { BLOCK } else { BLOCK_STACKS };
        let mut open = self.open(bytes, "block", &self.config, Some(cuda), |_| true)?;
        for mut program in open.progs_mut().filter(|_| !backend.is_single()) {
            program.set_attach_type(ProgramAttachType::from(BPF_TRACE_UPROBE_MULTI));
            program.set_flags(libbpf_rs::libbpf_sys::BPF_F_SLEEPABLE);
        }
        open.load().context(KernelRefused("gpurec's program of PyTorch's blocks".to_owned()))
    }

    /// Loads some of the driver programs; with an empty list, only their maps. They reuse the maps of an object loaded
    /// before, so that there is one set of maps.
    pub fn load_driver(
        &self,
        programs: &[&str],
        before: Option<&Object>,
        only: Option<Only>,
    ) -> Result<Object> {
        let config = wire::Config { probe: only.map_or(0, |only| only.probe), ..self.config };
        let mut open = self.open(DRIVER, "driver", &config, before, |name| programs.contains(&name))?;
        if let Some(Only { function, .. }) = only {
            for mut program in open.progs_mut().filter(|program| program.autoload()) {
                program.set_attach_target(0, Some(function.to_owned()))?;
            }
        }
        open.load().with_context(|| KernelRefused(programs.join(", ")))
    }

    /// Opens an object whose wanted programs will be loaded. It gets the maps that an object before it has.
    fn open(
        &self,
        bytes: &[u8],
        name: &str,
        config: &wire::Config,
        before: Option<&Object>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<OpenObject> {
        let mut open = open(bytes, name)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                let mut value = map.initial_value().context("gpurec's .rodata is empty")?.to_vec();
                let config = wire::bytes(config);
                let begin = value.get_mut(..config.len()).context("gpurec's .rodata is too small")?;
                begin.copy_from_slice(config);
                map.set_initial_value(&value)?;
            } else if let Ok(shared) = self.map(&name) {
                map.reuse_fd(shared.as_fd())?;
            } else if let Some(Ok(known)) = before.map(|before| find_map(before, &name)) {
                map.reuse_fd(known.as_fd())?;
            }
        }
        for mut program in open.progs_mut() {
            let wanted = wanted(&program.name().to_string_lossy());
            program.set_autoload(wanted);
        }
        Ok(open)
    }

    fn size_maps(&self, open: &mut OpenObject) -> Result<()> {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "scratches" {
                map.set_max_entries(self.config.scratches)?;
            } else if self.config.budget == 0 && BUDGET.contains(&name.as_str()) {
                map.set_max_entries(1)?;
            }
        }
        Ok(())
    }
}

/// The function and the probe number of programs that serve a single function.
#[derive(Clone, Copy)]
pub struct Only<'a> {
    pub function: &'a str,
    pub probe: u32,
}

/// A thread can be preempted in a BPF program. Meanwhile Linux skips that program for every other thread that hits it
/// on the same CPU. When one copy is skipped, another runs; the copies see from the thread's state whether the hit was
/// already recorded.
const COPIES: usize = 3;

/// "mmap_enter_1" is a copy of "mmap_enter".
pub fn without_copy(program: &str) -> &str {
    let numbered = program.rsplit_once('_').filter(|(_, copy)| copy.parse::<u32>().is_ok());
    numbered.map_or(program, |(name, _)| name)
}

/// Number of copies to put at a system call's tracepoint: before Linux 7.1 nothing is preempted there. The programs that
/// follow processes exist twice (docs/decisions/0002-two-copies.md).
pub fn copies_at_system_calls() -> usize {
    if types().is_some_and(|types| types.faultable_tracepoints) { COPIES } else { 1 }
}

/// Number of copies to put at a function by fentry, whose programs can be preempted wherever Linux itself can. Only
/// debugfs shows which kind of preemption is in force; without it, a kernel that may be preemptible counts as such.
pub fn copies_at_functions() -> usize {
    let in_force = std::fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    let preempted = match in_force.split_once('(').and_then(|(_, rest)| rest.split_once(')')) {
        Some((kind, _)) => !matches!(kind, "none" | "voluntary"),
        None => nix::sys::utsname::uname()
            .map_or(true, |name| name.version().to_string_lossy().contains("PREEMPT")),
    };
    if preempted { COPIES } else { 1 }
}

fn open(bytes: &[u8], name: &str) -> Result<OpenObject> {
    let mut builder = ObjectBuilder::default();
    // A backend that Linux refuses is expected, and libbpf's messages about it would not help the user.
    libbpf_rs::set_print(None);
    builder.name(name).map_err(|e| anyhow!("{e:#}"))?;
    builder.open_memory(bytes).context("gpurec's own BPF object cannot be read")
}

pub fn find_map<'a>(object: &'a Object, name: &str) -> Result<Map<'a>> {
    object.maps().find(|map| map.name() == name).with_context(|| format!("no BPF map {name}"))
}

pub fn find_program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|p| p.name() == name).with_context(|| format!("no BPF program {name}"))
}

/// The loaded programs, by their names without the number of the copy, and what Linux knows about each.
pub fn programs<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
) -> impl Iterator<Item = (String, bpf_prog_info)> {
    let all = objects.into_iter().flat_map(|object| object.progs()).filter(|program| program.autoload());
    all.map(|program| {
        let mut info = bpf_prog_info::default();
        let mut size = size_of::<bpf_prog_info>() as u32;
        // If this fails, the counters stay 0.
        // SAFETY: info is as large as size says.
        unsafe { bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut size) };
        (without_copy(&program.name().to_string_lossy()).to_owned(), info)
    })
}
