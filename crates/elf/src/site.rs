//! Where in a function to place the probe. In: code and its address. Out: an instruction that is cheap to probe and at
//! which the arguments and the return address are still where the caller put them. Pure: no file is read here.
//!
//! Linux emulates a few instructions and single-steps all others, which costs several times more. It emulates
//! (arch/x86/kernel/uprobes.c, since 5.x): push of a register, relative jmp, jcc and call, and the one-byte nop.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, Register,
};

use gpurec_trace::HookError;
use gpurec_trace::bytes::hex;

/// How many bytes and how many instructions to search from the entry.
const REACH: u64 = 64;
const MOST_STEPS: usize = 8;
const LONGEST_INSTRUCTION: u64 = 15;
/// The most bytes that a caller needs to pass: an instruction may begin just within reach.
pub const WINDOW: u64 = REACH + LONGEST_INSTRUCTION;

/// Registers that a skipped instruction may write: no argument of a call (rax counts variadic ones), not the stack
/// pointer.
const FREE: [Register; 8] = {
    use Register::{R10, R11, R12, R13, R14, R15, RBP, RBX};
    [RBX, RBP, R10, R11, R12, R13, R14, R15]
};

/// Instructions that may run before the probe, with registers that are free. The list is short: a missing instruction
/// costs time, but one with a hidden effect would make the recording wrong.
const HARMLESS: [Mnemonic; 17] = {
    use Mnemonic::{
        Add, And, Cmp, Dec, Inc, Lea, Mov, Movsx, Movsxd, Movzx, Or, Sar, Shl, Shr, Sub, Test, Xor,
    };
    [Cmp, Test, Mov, Movzx, Movsx, Movsxd, Lea, Xor, And, Or, Add, Sub, Inc, Dec, Shl, Shr, Sar]
};

#[derive(Debug)]
pub struct Site {
    pub after_entry: u64,
    pub emulated: bool,
    pub instruction: String,
}

pub fn aarch64(code: &[u8], address: u64) -> Result<Site, HookError> {
    let word: &[u8; 4] = code.first_chunk().ok_or(HookError::NoCode)?;
    if !address.is_multiple_of(4) {
        return Err(HookError::Unaligned);
    }
    Ok(Site { after_entry: 0, emulated: false, instruction: hex(word) })
}

/// The entry itself, or why it cannot have a probe: one probe that Linux refuses makes it refuse all probes of the
/// file.
pub fn entry(code: &[u8], address: u64) -> Result<Site, HookError> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let first = decoder.decode();
    if first.is_invalid() {
        return Err(HookError::NoInstruction);
    }
    if is_refused(&first, code) {
        return Err(HookError::Unprobeable);
    }
    Ok(site(&first, address))
}

/// The first emulated instruction after the entry that only harmless instructions precede.
pub fn further(code: &[u8], address: u64) -> Option<Site> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    for _ in 0..=MOST_STEPS {
        if !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        if instruction.ip().wrapping_sub(address) >= REACH {
            return None;
        }
        if is_emulated(&instruction) {
            return Some(site(&instruction, address));
        }
        if !is_harmless(&instruction, &mut info) {
            return None;
        }
    }
    None
}

/// Where the direct branches of a function end.
#[derive(Debug, Default)]
pub struct Jumps {
    /// A jump that is no call ends at the entry: the entry is executed more than once in a call.
    pub to_entry: bool,
    /// The nearest target after the entry.
    nearest: Option<u64>,
    /// The code could not be decoded to its end.
    is_unknown: bool,
}

impl Jumps {
    /// Whether a branch may end after the entry and not after `site`.
    pub fn reach(&self, site: u64) -> bool {
        self.is_unknown || self.nearest.is_some_and(|nearest| nearest <= site)
    }

    fn add(&mut self, instruction: &Instruction, target: u64) {
        if target == 0 {
            self.to_entry |= instruction.flow_control() != FlowControl::Call;
        } else if self.nearest.is_none_or(|nearest| target < nearest) {
            self.nearest = Some(target);
        }
    }
}

/// Searches `body`, up to code that cannot be decoded. `ends`: the function may end before, at an instruction that does
/// not continue and that no branch passes over.
pub fn jumps(body: &[u8], address: u64, ends: bool) -> Jumps {
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut jumps = Jumps::default();
    let mut farthest = 0;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            jumps.is_unknown = true;
            break;
        }
        if is_direct_branch(&instruction) {
            let target = instruction.near_branch_target().wrapping_sub(address);
            jumps.add(&instruction, target);
            if instruction.flow_control() != FlowControl::Call && target < body.len() as u64 {
                farthest = farthest.max(target);
            }
        }
        if ends && is_last(&instruction) && decoder.ip().wrapping_sub(address) > farthest {
            break;
        }
    }
    jumps
}

/// No instruction follows this one.
fn is_last(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

fn is_direct_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::Call
            | FlowControl::XbeginXabortXend
    )
}

fn site(instruction: &Instruction, address: u64) -> Site {
    let mut text = String::new();
    GasFormatter::new().format(instruction, &mut text);
    Site {
        after_entry: instruction.ip().wrapping_sub(address),
        emulated: is_emulated(instruction),
        instruction: text,
    }
}

/// The length shows whether the instruction has a prefix, which Linux does not emulate or even refuses.
fn is_emulated(instruction: &Instruction) -> bool {
    let length = instruction.len();
    match instruction.code() {
        // 41 is the prefix of the upper eight registers.
        Code::Push_r64 if is_upper(instruction.op0_register()) => length == 2,
        Code::Push_r64 | Code::Nopd => length == 1,
        Code::Jmp_rel8_64 => length == 2,
        Code::Jmp_rel32_64 | Code::Call_rel32_64 => length == 5,
        _ if instruction.is_jcc_short() => length == 2,
        _ if instruction.is_jcc_near() => length == 6,
        _ => false,
    }
}

fn is_upper(register: Register) -> bool {
    (Register::R8..=Register::R15).contains(&register)
}

/// Whether the instruction may run before the probe without changing what the probe sees at the entry.
fn is_harmless(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    let plain = instruction.segment_prefix() == Register::None;
    !instruction.has_lock_prefix()
        && match instruction.mnemonic() {
            Mnemonic::Endbr64 | Mnemonic::Nop => true,
            other => HARMLESS.contains(&other) && plain && touches_only_free_things(instruction, info),
        }
}

fn touches_only_free_things(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    let used = info.info(instruction);
    let registers = used
        .used_registers()
        .iter()
        .all(|register| !writes(register.access()) || FREE.contains(&register.register().full_register()));
    // Data of the code itself is always mapped; any other address might not be.
    let memory = used.used_memory().iter().all(|memory| match memory.access() {
        OpAccess::None | OpAccess::NoMemAccess => true,
        OpAccess::Read => instruction.is_ip_rel_memory_operand(),
        _ => false,
    });
    registers && memory
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Opcodes that Linux's uprobes refuse, found by trying all on 6.18. Linux also checks them behind a VEX or EVEX
/// prefix, where they mean something else: it refuses `vmovdqa` (6f) like `outs`.
const REFUSED: [u8; 40] = [
    0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60, 0x61, 0x62, 0x6c, 0x6d, 0x6e,
    0x6f, 0x82, 0x9a, 0xcc, 0xcd, 0xce, 0xcf, 0xd4, 0xd5, 0xd6, 0xe4, 0xe5, 0xe6, 0xe7, 0xea, 0xec, 0xed,
    0xee, 0xef, 0xf1, 0xf4, 0xfa, 0xfb,
];

/// Whether Linux refuses a probe on `instruction`, which is at the start of `code`.
fn is_refused(instruction: &Instruction, code: &[u8]) -> bool {
    let bad_prefix = prefixes(code).any(|prefix| match prefix {
        0x26 | 0x2e | 0x36 | 0x3e | 0xf0 => true,
        0x66 => is_direct_branch(instruction),
        _ => false,
    });
    let loads_stack_segment =
        instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::SS;
    bad_prefix
        || loads_stack_segment
        || instruction.is_privileged()
        || opcode(code).is_some_and(|opcode| REFUSED.contains(&opcode))
}

fn prefixes(code: &[u8]) -> impl Iterator<Item = u8> {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    code.iter().copied().take_while(is_prefix)
}

/// The first byte of the opcode.
fn opcode(code: &[u8]) -> Option<u8> {
    let rest = code.get(prefixes(code).count()..)?;
    let after_prefix = match rest.first()? {
        0xc5 => 2,
        0xc4 => 3,
        0x62 => 4,
        0x40..=0x4f => 1,
        _ => 0,
    };
    rest.get(after_prefix).copied()
}
