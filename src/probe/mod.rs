//! The hooks. In: the user's selection, and files that a traced process has mapped.
//! Out: attached probes with their numbers, and one report on every requested function: hooked, or the reason why not.
//! Only this module talks to libbpf.
//! Not here: which process maps which file (target, record), what a record means (pipeline).

mod aside;
mod attach;
mod blocks;
pub mod calibrate;
mod capture;
pub mod control;
mod hooks;
pub mod kernel;
mod list;
mod loading;
mod loss;
mod missed;
mod numbers;
mod objects;
pub mod overhead_control;
pub mod pauses;
mod process;
mod rewritten;
pub mod rings;
mod shield;
mod stack_facts;
#[cfg(test)]
mod tests;
mod tracepoint;
mod verified;

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, MapFlags, Object};

use crate::errno;
use crate::files::select::Stacks;
use crate::files::{FileId, Wants};
use crate::gpu::tap;
use crate::host::Backend;
use crate::host::Plan;
use crate::process::fds;
use crate::ring::Ring;
use crate::wire;
use attach::{Place, Programs};
use blocks::{Blocks, Hookable, Loading};
use calibrate::SiteCosts;
use gpurec_cuda::raw;
use gpurec_cuda::{self as cuda, Signature};
use gpurec_elf::{self as elf, Image, Kind, UnhookedFunction};
use gpurec_trace::{HookError, Incomplete, Reason};
use hooks::Hooks;
use kernel::{Change, Choice, Driver, Numbering};
pub use list::list;
use loading::LoadedBackend;
pub use loss::LossCounters;
use missed::Misses;
use numbers::Numbers;
pub use objects::{ANY_USER, Base, Settings};
use overhead_control::OverheadControl;
use rewritten::ModifiedFiles;
use shield::Hook;
pub use stack_facts::{Pythons, RuleTable};
use verified::VerifierCounts;

/// A hooked function. BPF knows it by its number (see numbers.rs).
#[derive(Clone, Debug)]
pub struct Probe {
    pub id: u32,
    pub name: String,
    /// What gpurec knows about its parameters.
    pub signature: Option<&'static Signature>,
    /// Set for Linux-side probes (ioctl, irq, ...), which are not calls of a library.
    pub beneath: Option<Beneath>,
}

/// The event that a Linux-side probe stands for.
#[derive(Clone, Debug)]
pub enum Beneath {
    /// An ioctl on one of the driver's files.
    Ioctl,
    Open,
    Close,
    Mmap,
    Poll,
    Irq,
    OffCpu,
    Xid,
    Function(Arc<kernel::Target>),
    /// A tracepoint that the user named.
    Event(Arc<kernel::Event>),
}

/// A file that gpurec examined and reports.
#[derive(Clone, Debug)]
pub struct Library {
    pub path: PathBuf,
    pub build_id: Option<String>,
    /// Number of hooked functions.
    pub functions: usize,
    /// Number of hooked static probes of PyTorch's allocator.
    pub blocks: usize,
    pub not_hooked: Vec<UnhookedFunction>,
    /// Number of functions that were wanted but got no probe number.
    pub beyond: usize,
    /// Number of hooked functions that Linux must single-step.
    pub slow: usize,
    pub single_stepped: Vec<String>,
    /// Number of further functions that could not be hooked; `not_hooked` has them.
    pub refused: usize,
    pub took: Duration,
}

impl Library {
    fn tell_sites(&mut self, image: &Image) {
        let stepped = image.functions.iter().filter(|function| !function.emulated);
        self.single_stepped = stepped.map(|function| function.name.clone()).collect();
        self.slow = self.single_stepped.len();
    }
}

pub enum LookOutcome {
    Hooked(Library),
    /// The file has no wanted function, or was hooked before.
    Nothing,
    /// The file looked like a wanted one, but could not be read or hooked.
    Failed {
        path: PathBuf,
        reason: Reason,
    },
}

pub struct Probes {
    pub base: Rc<Base>,
    pub backend: Backend,
    /// Better backends that this machine does not have, and why.
    pub refused: Vec<(Backend, HookError)>,
    pub costs: SiteCosts,
    process: Object,
    cuda: Object,
    hooks: Hooks,
    blocks: Blocks,
    /// Hooked files that have only PyTorch's blocks.
    only_blocks: HashSet<FileId>,
    /// With --budget; it holds the links then, and `hooks` is empty.
    overhead: Option<OverheadControl>,
    /// The links of the process programs.
    process_links: Vec<Link>,
    numbers: Numbers,
    driver: Option<Driver>,
    missed_before: Misses,
    hooked: HashSet<FileId>,
    /// Files whose file system may make its callers wait.
    served: HashSet<FileId>,
    rewritten: ModifiedFiles,
    /// Which calls have a stack.
    stacks: Option<Stacks>,
}

impl Probe {
    /// What is captured of its calls.
    fn plan(&self) -> Option<&'static raw::Plan> {
        self.signature.map(|signature| &signature.plan).or_else(|| tap::plan(&self.name))
    }

    /// The place of its hook in a file.
    fn place(&self, offset: u64, stacks: Option<&Stacks>) -> Place {
        let cookie = capture::cookie(self.id, self.plan());
        let has_stack = stacks.is_some_and(|stacks| stacks.wants(&self.name));
        let cookie = if has_stack { cookie | wire::WANTS_STACK } else { cookie };
        Place { offset, cookie, counter: None }
    }
}

impl Probes {
    /// Loads the programs of the plan's best backend that works here; `force` allows only one.
    pub fn load(
        settings: &Settings,
        making: rings::Making,
        plan: &Plan,
        force: Option<Backend>,
    ) -> Result<Probes> {
        let base = Rc::new(Base::load(settings, making)?);
        let stacks = settings.stacks.clone();
        let (process, LoadedBackend { backend, refused, cuda, costs }) = loading::all(&base, plan, force)?;
        let overhead = settings
            .budget
            .then(|| OverheadControl::new(&base, &cuda, costs, stacks.is_some()))
            .transpose()?;
        Ok(Probes {
            base,
            backend,
            refused,
            costs,
            process,
            cuda,
            hooks: Hooks::default(),
            blocks: Blocks::default(),
            only_blocks: HashSet::new(),
            overhead,
            process_links: Vec::new(),
            numbers: Numbers::new(),
            driver: None,
            missed_before: Misses::default(),
            hooked: HashSet::new(),
            served: HashSet::new(),
            rewritten: ModifiedFiles::new(),
            stacks,
        })
    }

    /// Writes the capture of each probe into the table. BPF needs it before the probe's first hit.
    fn set_captures(&self, probes: &[Probe]) -> Result<()> {
        let table = objects::find_map(&self.cuda, "captures")?;
        for probe in probes {
            if let Some(capture) = probe.plan().and_then(capture::capture) {
                table.update(&probe.id.to_ne_bytes(), wire::bytes(&capture), MapFlags::ANY)?;
            }
        }
        Ok(())
    }

    /// From now on BPF follows targets, and stops them where they load a new file.
    pub fn follow_processes(&mut self) -> Result<()> {
        self.process_links = process::attach(&self.process)?;
        self.base.set_state(wire::State { phase: wire::RECORDING, kernel: 0, may_pause: 1 })
    }

    /// Attaches the Linux-side hooks. Probes are announced before they can be hit.
    pub fn hook_kernel(&mut self, choice: &Choice, tell: &mut dyn FnMut(&[Probe])) -> Result<()> {
        let mut numbering = Numbering { next: &self.numbers.next, waiting: Vec::new(), tell };
        self.driver = Some(Driver::start(self.base.clone(), choice.clone(), &mut numbering)?);
        Ok(())
    }

    /// Attaches or removes hooks if one of the driver's modules was loaded or unloaded. Returns what changed.
    pub fn refresh_kernel(&mut self, tell: &mut dyn FnMut(&[Probe])) -> Result<Option<Change>> {
        let Some(driver) = &mut self.driver else { return Ok(None) };
        driver.refresh(&mut Numbering { next: &self.numbers.next, waiting: Vec::new(), tell })
    }

    pub fn driver(&self) -> Option<&Driver> {
        self.driver.as_ref()
    }

    /// Hooks the wanted functions in a file that a process has mapped. Safe to call again with the same file. Calls
    /// `announce` with the library before its first probe can be hit.
    pub fn look(&mut self, wants: Wants, announce: &mut dyn FnMut(&Library, &[Probe])) -> LookOutcome {
        let start = Instant::now();
        self.base.still_here();
        let Wants { key, path, image, handle, stamp } = wants;
        let Some(handle) = handle else { return failed(&path, &fds::too_few().into()) };
        if self.hooked.contains(&key) {
            return LookOutcome::Nothing;
        }
        if let Some(stamp) = stamp {
            self.rewritten.watch(key, &handle, stamp);
        }
        self.hooked.insert(key);
        if image.kind == Kind::Allocator {
            self.only_blocks.insert(key);
        }
        if stamp.is_none() {
            self.served.insert(key);
        }
        let looked = match self.hook(key, &handle, &path, image, announce) {
            Ok(_) if self.rewritten.is(key) => failed(&path, &HookError::FileChanged.into()),
            Ok(library) => return LookOutcome::Hooked(Library { took: start.elapsed(), ..library }),
            Err(error) => failed(&path, &error),
        };
        // Nothing holds the file open any more, so another file may get its number.
        self.detach_now(key);
        looked
    }

    fn hook(
        &mut self,
        key: FileId,
        file: &File,
        path: &Path,
        mut image: Image,
        announce: &mut dyn FnMut(&Library, &[Probe]),
    ) -> Result<Library> {
        let wanted = image.functions.len();
        let probes = self.number(&mut image);
        let blocks = self.blocks_in(&mut image);
        let refused = image.not_hooked.iter().filter(|one| one.is_code).count();
        elf::few(&mut image.not_hooked);
        self.set_captures(&probes)?;
        let mut library = Library {
            path: path.to_owned(),
            build_id: image.build_id.clone(),
            slow: 0,
            single_stepped: Vec::new(),
            functions: probes.len(),
            blocks: blocks.probes.len(),
            beyond: wanted - probes.len(),
            refused,
            not_hooked: std::mem::take(&mut image.not_hooked),
            took: Duration::ZERO,
        };
        library.tell_sites(&image);
        announce(&library, &[probes.as_slice(), &blocks.probes].concat());
        if !probes.is_empty() {
            let places: Vec<Place> = image
                .functions
                .iter()
                .zip(&probes)
                .map(|(f, probe)| probe.place(f.site, self.stacks.as_ref()))
                .collect();
            let programs = Programs::of_calls(&self.cuda, self.backend);
            let hooks = self.overhead.as_mut().map_or(&mut self.hooks, |overhead| &mut overhead.hooks);
            let refused = hooks.attach(&self.base, &programs, key, file, &places)?;
            if let Some(overhead) = &mut self.overhead {
                overhead.add(&probes, &image);
            }
            leave_out(&refused, &mut library, &mut image);
        }
        self.hook_blocks(key, file, &blocks, &mut library);
        Ok(library)
    }

    /// The static probes of PyTorch's allocator in a file. Those that cannot be hooked move to `not_hooked`.
    fn blocks_in(&mut self, image: &mut Image) -> Hookable {
        let loading = Loading { base: &self.base, cuda: &self.cuda, backend: self.backend };
        let numbers = &mut self.numbers;
        let mut number = |name: &str| numbers.of(name, None);
        let mut blocks =
            self.blocks.prepare(&loading, &image.static_probes, self.stacks.as_ref(), &mut number);
        image.not_hooked.append(&mut blocks.not_hooked);
        blocks
    }

    /// A refused place is reported, and costs no call.
    fn hook_blocks(&mut self, key: FileId, file: &File, blocks: &Hookable, library: &mut Library) {
        let Some(programs) = self.blocks.programs(self.backend) else { return };
        if blocks.places.is_empty() {
            return;
        }
        let hooks = self.overhead.as_mut().map_or(&mut self.hooks, |overhead| &mut overhead.hooks);
        let refused: Vec<(usize, HookError)> =
            match hooks.attach(&self.base, &programs, key, file, &blocks.places) {
                Ok(refused) => refused.into_iter().map(|one| (one.index, one.why)).collect(),
                Err(error) => (0..blocks.places.len()).map(|index| (index, reason(&error))).collect(),
            };
        if let Some(overhead) = &mut self.overhead {
            overhead.add_static(&blocks.probes);
        }
        for (index, why) in &refused {
            library.not_hooked.push(UnhookedFunction::new(blocks.name(*index), why.clone(), false));
        }
        elf::few(&mut library.not_hooked);
        let has_place = |probe: &&Probe| {
            let mut places = blocks.places.iter().enumerate();
            places.any(|(index, place)| {
                place.probe() == probe.id && refused.iter().all(|(refused, _)| *refused != index)
            })
        };
        library.blocks = blocks.probes.iter().filter(has_place).count();
    }

    /// Makes a probe for each function. Functions that get no number move to `not_hooked`.
    fn number(&mut self, image: &mut Image) -> Vec<Probe> {
        let major = image.soname.as_deref().and_then(soname_major);
        let (numbers, not_hooked) = (&mut self.numbers, &mut image.not_hooked);
        let mut probes = Vec::with_capacity(image.functions.len());
        image.functions.retain(|function| {
            let (name, signature) = (function.name.clone(), cuda::signature(&function.name, major));
            match numbers.of(&name, signature) {
                Some(id) => probes.push(Probe { id, name, signature, beneath: None }),
                None => {
                    not_hooked.push(numbers::refusal(&name));
                    return false;
                }
            }
            true
        });
        probes
    }

    /// Deleted files with hooks that can be removed while others are attached. No process can load them by name any
    /// more. Single uprobes stay: Linux removes them one after the other, and attaches no new ones meanwhile.
    pub fn deleted(&self) -> Vec<FileId> {
        if self.backend.row().detach_ms.is_some() {
            return Vec::new();
        }
        let gone = |file: &File| file.metadata().is_ok_and(|meta| meta.nlink() == 0);
        // Files on a file server are skipped: asking for their metadata could block.
        let all = self.all_hooks().files().filter(|(key, _)| !self.served.contains(key));
        all.filter(|(_, file)| gone(file)).map(|(key, _)| key).collect()
    }

    pub fn has(&self, key: &FileId) -> bool {
        self.hooked.contains(key)
    }

    /// The file's hooks record PyTorch's blocks, and no call.
    pub fn has_only_blocks(&self, key: &FileId) -> bool {
        self.only_blocks.contains(key)
    }

    /// Number of functions that have hooks now.
    pub fn attached(&self) -> usize {
        self.all_hooks().functions()
    }

    fn all_hooks(&self) -> &Hooks {
        self.overhead.as_ref().map_or(&self.hooks, |overhead| &overhead.hooks)
    }

    /// Number of files that have hooks.
    pub fn files(&self) -> usize {
        self.hooked.len()
    }

    /// Removes the hooks of a file that no process has mapped. If a process maps it again, it counts as a new file.
    pub fn detach_file(&mut self, key: FileId) {
        attach::detach_aside(self.forget(key));
    }

    /// The same, but the hooks are gone when this returns.
    fn detach_now(&mut self, key: FileId) {
        attach::detach(self.forget(key));
    }

    fn forget(&mut self, key: FileId) -> Vec<Hook> {
        self.hooked.remove(&key);
        self.served.remove(&key);
        self.only_blocks.remove(&key);
        self.rewritten.forget(key);
        match &mut self.overhead {
            Some(overhead) => overhead.hooks.forget(key),
            None => self.hooks.forget(key),
        }
    }

    /// Readable when a file that has hooks was written to.
    pub fn rewritten_fd(&self) -> Option<BorrowedFd<'_>> {
        self.rewritten.fd()
    }

    /// Files that had hooks and were written to. Their hooks are removed: the next process that maps such a file causes
    /// a new examination.
    pub fn take_rewritten(&mut self) -> Vec<FileId> {
        let all = self.rewritten.all();
        all.iter().for_each(|key| self.detach_now(*key));
        all
    }

    /// The calls are hooked: from now on Linux-side events are recorded too.
    pub fn begin_kernel(&mut self) -> Result<()> {
        self.missed_before = Misses::at_mappings(&self.process);
        if let Some(driver) = &mut self.driver {
            driver.recording_begins();
        }
        self.base.set_state(wire::State { phase: wire::RECORDING, kernel: 1, may_pause: 1 })
    }

    /// Why Linux-side hits are missing, if any are. Uprobes have no such gaps.
    pub fn missed(&self) -> Option<Incomplete> {
        let mut missed = Misses::default();
        missed.add_programs([&self.process]);
        let driver = self.driver.as_ref().map(Driver::missed).unwrap_or_default();
        missed.since(&self.missed_before).and(driver).reason()
    }

    /// A sentence for the user: how many instructions the verifier processed for each program.
    pub fn verified(&self) -> Option<String> {
        let mut verified = VerifierCounts::default();
        verified.add_programs([&self.process, &self.cuda]);
        verified.add_programs(self.blocks.object());
        if let Some(driver) = &self.driver {
            verified.add_programs(driver.objects());
        }
        verified.sentence()
    }

    /// Records no new calls, but calls in progress may still return.
    pub fn returns_only(&mut self) -> Result<()> {
        self.set_phase(wire::RETURNS_ONLY)
    }

    /// From now on no hook records anything: the end of the recording, in every library at once.
    pub fn silence(&mut self) -> Result<()> {
        self.set_phase(wire::SILENT)
    }

    /// The end of the recording: no process is paused any more.
    fn set_phase(&self, phase: u32) -> Result<()> {
        self.base.set_state(wire::State { phase, kernel: 1, may_pause: 0 })
    }

    /// Removes every hook. After this no new record is produced. Returns the time that it took.
    pub fn detach(&mut self) -> Duration {
        let mut links = self.hooks.take_links();
        links.extend(self.overhead.iter_mut().flat_map(OverheadControl::take_links));
        let mut hooks: Vec<Box<dyn Send>> = links.into_iter().map(|hook| Box::new(hook) as _).collect();
        if let Some(driver) = &mut self.driver {
            hooks.extend(driver.take_holds().into_iter().map(|hold| Box::new(hold) as _));
        }
        Duration::from_secs_f64(attach::detach(hooks))
    }

    /// The links of the process programs, which have nothing left to do. The caller closes them when it has time:
    /// closing a tracepoint of a system call takes a tenth of a second.
    pub fn take_process_links(&mut self) -> Vec<OwnedFd> {
        let links = std::mem::take(&mut self.process_links);
        links.iter().filter_map(|link| link.as_fd().try_clone_to_owned().ok()).collect()
    }

    /// About how long detaching will take, if it is long enough for a warning: each single uprobe waits for a grace
    /// period of Linux.
    pub fn slow_stop(&self) -> Option<Duration> {
        self.backend.row().detach_ms.map(|ms| Duration::from_millis(ms * self.all_hooks().links() as u64))
    }

    /// Set with --budget.
    pub fn overhead(&mut self) -> Option<&mut OverheadControl> {
        self.overhead.as_mut()
    }

    /// Records a function again that --budget had given up.
    pub fn record_again(&mut self, probe: u32) -> Result<()> {
        let overhead = self.overhead.as_mut().context("there is no budget")?;
        let calls = Programs::of_calls(&self.cuda, self.backend);
        overhead.record_again(&calls, self.blocks.programs(self.backend).as_ref(), probe)
    }

    pub fn rings(&self) -> Result<Vec<Ring>> {
        self.base.rings()
    }
}

fn failed(path: &Path, error: &anyhow::Error) -> LookOutcome {
    LookOutcome::Failed { path: path.to_owned(), reason: reason(error).into() }
}

fn reason(error: &anyhow::Error) -> HookError {
    match error.downcast_ref::<HookError>() {
        Some(why) => why.clone(),
        None => HookError::Failed { error: errno::sentence(error) },
    }
}

/// Moves the functions whose hooks Linux refused to `not_hooked`.
fn leave_out(refused: &[attach::RefusedPlace], library: &mut Library, image: &mut Image) {
    for one in refused {
        let name = &image.functions[one.index].name;
        library.not_hooked.push(UnhookedFunction::new(name, one.why.clone(), true));
    }
    elf::few(&mut library.not_hooked);
    let mut index = 0..;
    image.functions.retain(|_| index.next().is_some_and(|i| refused.iter().all(|one| one.index != i)));
    library.refused += refused.len();
    library.functions = image.functions.len();
    library.tell_sites(image);
}

/// Finds by trying how hooking works on this machine.
pub fn trial(plan: &Plan) -> Result<Probes> {
    let settings = Settings { ring: 1 << 20, pause_user: ANY_USER, ..Settings::default() };
    Probes::load(&settings, rings::begin(settings.ring)?, plan, None)
}

/// The toolkit's major version: libcudart.so.13 → 13. Rows of the table differ between them.
fn soname_major(soname: &str) -> Option<u32> {
    soname.rsplit_once(".so.")?.1.split('.').next()?.parse().ok()
}
