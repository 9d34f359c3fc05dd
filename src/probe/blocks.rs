//! The hooks of PyTorch's allocator: at the static probes of its library. In: the probes of a file, as the file
//! describes them. Out: places to attach to, and what BPF reads at each; the program, which is loaded when the first such
//! file is. Whatever fails here is a reason for the probe, and never an end of the recording.
//! Not here: which library and which probes (files::allocator), attaching (attach.rs).

use std::collections::HashMap;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::attach::{Place, Programs};
use super::objects::{self, Base};
use super::{Probe, numbers};
use crate::errno;
use crate::files::allocator::{self, AllocatorProbe};
use crate::files::select::Stacks;
use crate::host::Backend;
use crate::wire;
use gpurec_elf::{Argument, ArgumentPlace, Register, StaticProbe, UnhookedFunction};
use gpurec_trace::{HookError, Op};

#[derive(Default)]
pub struct Blocks {
    program: Option<Result<Object, HookError>>,
    /// The forms that BPF knows, by their bytes: other files, and other copies of one, have the same.
    sites: HashMap<Vec<u8>, u16>,
}

/// What to hook in a file.
#[derive(Default)]
pub struct Hookable {
    /// Each once, though it may have several places.
    pub probes: Vec<Probe>,
    pub places: Vec<Place>,
    pub not_hooked: Vec<UnhookedFunction>,
}

impl Hookable {
    fn refuse(&mut self, name: &str, why: HookError) {
        self.not_hooked.push(UnhookedFunction::new(name, why, false));
    }

    /// The names of places, by their indexes.
    pub fn name(&self, place: usize) -> &str {
        let id = self.places.get(place).map(Place::probe);
        self.probes.iter().find(|probe| Some(probe.id) == id).map_or("?", |probe| &probe.name)
    }
}

impl Blocks {
    /// `number` gives a probe its number, by its name.
    pub fn prepare(
        &mut self,
        loading: &Loading,
        found: &[StaticProbe],
        stacks: Option<&Stacks>,
        number: &mut dyn FnMut(&str) -> Option<u32>,
    ) -> Hookable {
        let mut all = Hookable::default();
        for place in found {
            let name = place.full_name();
            let Some(probe) = allocator::find(&name) else { continue };
            // Two hooks at one place would record each block twice.
            if all.places.iter().any(|known| known.offset == place.site) {
                continue;
            }
            let Some(id) = number(&name) else {
                all.not_hooked.push(numbers::refusal(&name));
                continue;
            };
            match self.site(loading, probe, place) {
                Ok(site) => {
                    let stack = stacks.is_some_and(|stacks| stacks.wants(&name));
                    let stack = if stack { wire::WANTS_STACK } else { 0 };
                    let cookie = u64::from(id) | u64::from(site) << 32 | stack;
                    all.places.push(Place { offset: place.site, cookie, counter: place.counter });
                    if !all.probes.iter().any(|known| known.id == id) {
                        all.probes.push(Probe { id, name, signature: None, beneath: None });
                    }
                }
                Err(why) => all.refuse(&name, why),
            }
        }
        all
    }

    pub fn object(&self) -> Option<&Object> {
        self.program.as_ref()?.as_ref().ok()
    }

    pub fn programs(&self, backend: Backend) -> Option<Programs<'_>> {
        Some(Programs::of_blocks(self.object()?, backend))
    }

    /// The number of a place's form. Loads the program before the first.
    fn site(
        &mut self,
        loading: &Loading,
        probe: &AllocatorProbe,
        place: &StaticProbe,
    ) -> Result<u16, HookError> {
        let site = describe(probe, &place.arguments)?;
        let object = self.program.get_or_insert_with(|| loading.load()).as_ref().map_err(Clone::clone)?;
        let bytes = wire::bytes(&site).to_vec();
        if let Some(known) = self.sites.get(&bytes) {
            return Ok(*known);
        }
        let number = u16::try_from(self.sites.len()).ok().filter(|number| u32::from(*number) < wire::SITES);
        let number = number.ok_or_else(|| HookError::Failed {
            error: format!("gpurec knows {} forms of static probes at most", wire::SITES),
        })?;
        let update = || -> Result<()> {
            let table = objects::find_map(object, "sites")?;
            Ok(table.update(&u32::from(number).to_ne_bytes(), &bytes, MapFlags::ANY)?)
        };
        update().map_err(|error| HookError::Failed { error: errno::sentence(&error) })?;
        self.sites.insert(bytes, number);
        Ok(number)
    }
}

/// What loading the program needs.
pub struct Loading<'a> {
    pub base: &'a Base,
    pub cuda: &'a Object,
    pub backend: Backend,
}

impl Loading<'_> {
    fn load(&self) -> Result<Object, HookError> {
        // The process may be stopped meanwhile.
        self.base.still_here();
        let loaded =
            self.base.load_blocks(self.cuda, self.backend).context("it takes a BPF program of its own");
        loaded.map_err(|error| HookError::Failed { error: errno::sentence(&error) })
    }
}

/// What BPF reads at a place. An error if one of the arguments cannot be read: a line without its size would mislead.
fn describe(probe: &AllocatorProbe, found: &[Option<Argument>]) -> Result<wire::Site, HookError> {
    let operation = match probe.op {
        Op::Alloc => wire::ALLOC,
        Op::Free => wire::FREE,
    };
    let mut site = wire::Site { operation: operation.into(), ..wire::Site::default() };
    for ((slot, name), at) in site.arguments.iter_mut().zip(probe.arguments).zip(0..) {
        let argument = found.get(at).and_then(Option::as_ref);
        *slot = argument.and_then(as_bpf_reads).ok_or(HookError::NoArgument { name })?;
    }
    Ok(site)
}

fn as_bpf_reads(argument: &Argument) -> Option<wire::Argument> {
    let mut read = wire::Argument {
        size: argument.size,
        is_signed: argument.signed.into(),
        base: wire::NO_REGISTER,
        index: wire::NO_REGISTER,
        ..wire::Argument::default()
    };
    match argument.place {
        ArgumentPlace::Constant(value) => (read.kind, read.value) = (wire::ARGUMENT_CONSTANT, value),
        ArgumentPlace::Register(register) => {
            (read.kind, read.base) = (wire::ARGUMENT_REGISTER, saved(register)?);
        }
        ArgumentPlace::Memory(memory) => {
            (read.kind, read.value) = (wire::ARGUMENT_MEMORY, memory.offset);
            if let Some(base) = memory.base {
                read.base = saved(base)?;
            }
            if let Some((index, shift)) = memory.index {
                (read.index, read.shift) = (saved(index)?, shift);
            }
        }
    }
    Some(read)
}

/// Where Linux saves a register: its offset in `struct pt_regs`.
fn saved(register: Register) -> Option<u16> {
    // In the order of DWARF's numbers.
    const X86: [u16; 16] = [80, 96, 88, 40, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0];
    let number = register.0;
    match cfg!(target_arch = "x86_64") {
        true => X86.get(usize::from(number)).copied(),
        false => (number <= 31).then_some(u16::from(number) * 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_elf::Memory;

    fn argument(size: u8, signed: bool, place: ArgumentPlace) -> Option<Argument> {
        Some(Argument { size, signed, place })
    }

    #[test]
    fn each_argument_is_described() {
        let register = |number| ArgumentPlace::Register(Register(number));
        let memory = Memory { base: Some(Register(6)), index: None, offset: -56 };
        let scaled = Memory { base: None, index: Some((Register(2), 3)), offset: 8 };
        let found = [
            argument(8, true, register(0)),
            argument(1, true, ArgumentPlace::Constant(-1)),
            argument(8, false, ArgumentPlace::Memory(memory)),
            argument(8, true, ArgumentPlace::Memory(scaled)),
        ];
        let site = describe(allocator::find("pytorch:malloc").unwrap(), &found).unwrap();
        assert_eq!(site.operation, u32::from(wire::ALLOC));
        let all = site.arguments.map(|a| (a.kind, a.size, a.is_signed, a.shift, a.index, a.value));
        let none = wire::NO_REGISTER;
        assert_eq!(all[0], (wire::ARGUMENT_REGISTER, 8, 1, 0, none, 0));
        assert_eq!(all[1], (wire::ARGUMENT_CONSTANT, 1, 1, 0, none, -1));
        assert_eq!(all[2], (wire::ARGUMENT_MEMORY, 8, 0, 0, none, -56));
        assert_eq!(all[3], (wire::ARGUMENT_MEMORY, 8, 1, 3, saved(Register(2)).unwrap(), 8));
        assert_eq!(site.arguments.map(|a| a.base == none), [false, true, false, true]);
    }

    #[test]
    fn an_argument_that_cannot_be_read_is_a_reason() {
        let malloc = allocator::find("pytorch:malloc").unwrap();
        let pointer = argument(8, true, ArgumentPlace::Register(Register(5)));
        let refused = |found: &[Option<Argument>]| describe(malloc, found).unwrap_err();
        assert_eq!(refused(&[]), HookError::NoArgument { name: "pointer" });
        assert_eq!(refused(&[pointer, None, pointer, pointer]), HookError::NoArgument { name: "device" });
        assert_eq!(refused(&[pointer, pointer]), HookError::NoArgument { name: "size" });
        let far = argument(8, true, ArgumentPlace::Register(Register(99)));
        assert_eq!(refused(&[far]), HookError::NoArgument { name: "pointer" });
        let free = describe(allocator::find("pytorch:free").unwrap(), &[pointer]).unwrap();
        assert_eq!(free.operation, u32::from(wire::FREE));
        assert_eq!(free.arguments.map(|a| a.kind), [wire::ARGUMENT_REGISTER, 0, 0, 0]);
    }

    /// By Linux's own header.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn registers_are_where_linux_saves_them() {
        use std::mem::offset_of;
        let user = [
            offset_of!(libc::user_regs_struct, rax),
            offset_of!(libc::user_regs_struct, rdx),
            offset_of!(libc::user_regs_struct, rcx),
            offset_of!(libc::user_regs_struct, rbx),
            offset_of!(libc::user_regs_struct, rsi),
            offset_of!(libc::user_regs_struct, rdi),
            offset_of!(libc::user_regs_struct, rbp),
            offset_of!(libc::user_regs_struct, rsp),
            offset_of!(libc::user_regs_struct, r8),
            offset_of!(libc::user_regs_struct, r9),
            offset_of!(libc::user_regs_struct, r10),
            offset_of!(libc::user_regs_struct, r11),
            offset_of!(libc::user_regs_struct, r12),
            offset_of!(libc::user_regs_struct, r13),
            offset_of!(libc::user_regs_struct, r14),
            offset_of!(libc::user_regs_struct, r15),
        ];
        for (number, offset) in (0..).zip(user) {
            assert_eq!(saved(Register(number)).map(usize::from), Some(offset), "{number}");
        }
        assert_eq!(saved(Register(16)), None);
    }
}
