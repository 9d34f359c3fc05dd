//! Where an argument of a static probe is, from the text that the compiler wrote about it. In: `-8@-56(%rbp)`. Out: its
//! size, and a register, a constant, or a place in memory. Pure.
//!
//! The forms are those of assembly operands: of x86-64 `$5`, `%rdi`, `-8(%rbp,%rax,4)`; of AArch64 `5`, `x0`,
//! `[sp, 16]`, `[x1, x2, lsl 3]`. Forms with a symbol or a floating-point register are not read.

use super::Machine;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    pub signed: bool,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    Constant(i64),
    /// Its low bytes.
    Register(Register),
    Memory(Memory),
}

/// At `base` plus `index` shifted to the left plus `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub base: Option<Register>,
    pub index: Option<(Register, u8)>,
    pub offset: i64,
}

/// By its number in DWARF: of x86-64 rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8…; of AArch64 x0… and 31 for sp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register(pub u8);

impl Argument {
    pub(super) fn parse(machine: Machine, text: &str) -> Option<Argument> {
        let (size, place) = text.split_once('@')?;
        let (signed, size) = match size.strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, size),
        };
        let size = size.parse().ok().filter(|size| [1, 2, 4, 8].contains(size))?;
        let place = match machine {
            Machine::X86_64 => x86(place),
            Machine::Aarch64 => arm(place),
        };
        Some(Argument { size, signed, place: place? })
    }
}

fn x86(text: &str) -> Option<Place> {
    if let Some(constant) = text.strip_prefix('$') {
        return number(constant).map(Place::Constant);
    }
    if text.starts_with('%') {
        return x86_register(text).map(Place::Register);
    }
    let (offset, registers) = text.strip_suffix(')')?.split_once('(')?;
    let offset = if offset.is_empty() { 0 } else { number(offset)? };
    let mut words = registers.split(',').map(str::trim);
    let base = match words.next()? {
        "" => None,
        word => Some(x86_register(word)?),
    };
    let index = match words.next() {
        None => None,
        Some(word) => {
            let shift = match words.next() {
                None | Some("1" | "") => 0,
                Some("2") => 1,
                Some("4") => 2,
                Some("8") => 3,
                Some(_) => return None,
            };
            Some((x86_register(word)?, shift))
        }
    };
    let is_whole = words.next().is_none() && (base.is_some() || index.is_some());
    is_whole.then_some(Place::Memory(Memory { base, index, offset }))
}

/// The registers of all sizes. The second bytes of four of them (ah…) and rip are not read.
fn x86_register(text: &str) -> Option<Register> {
    const NAMES: [&[&str]; 8] = [
        &["rax", "eax", "ax", "al"],
        &["rdx", "edx", "dx", "dl"],
        &["rcx", "ecx", "cx", "cl"],
        &["rbx", "ebx", "bx", "bl"],
        &["rsi", "esi", "si", "sil"],
        &["rdi", "edi", "di", "dil"],
        &["rbp", "ebp", "bp", "bpl"],
        &["rsp", "esp", "sp", "spl"],
    ];
    let name = text.strip_prefix('%')?;
    if let Some(at) = NAMES.iter().position(|names| names.contains(&name)) {
        return u8::try_from(at).ok().map(Register);
    }
    let number = name.strip_prefix('r')?.trim_end_matches(['d', 'w', 'b']);
    let number = numbered(number, 8..=15)?;
    let suffix = name.len() - 1 - number.to_string().len();
    (suffix <= 1).then_some(Register(number))
}

fn arm(text: &str) -> Option<Place> {
    if let Some(inside) = text.strip_prefix('[') {
        let mut words = inside.strip_suffix(']')?.split(',').map(str::trim);
        let base = Some(arm_register(words.next()?)?);
        let (mut index, mut offset) = (None, 0);
        if let Some(word) = words.next() {
            match arm_register(word) {
                Some(register) => index = Some((register, shift(words.next())?)),
                None => offset = number(word.strip_prefix('#').unwrap_or(word))?,
            }
        }
        return words.next().is_none().then_some(Place::Memory(Memory { base, index, offset }));
    }
    match arm_register(text) {
        Some(register) => Some(Place::Register(register)),
        None => number(text.strip_prefix('#').unwrap_or(text)).map(Place::Constant),
    }
}

/// `lsl 3`. The index is a whole register: others would have to be extended first.
fn shift(text: Option<&str>) -> Option<u8> {
    let Some(text) = text else { return Some(0) };
    numbered(text.strip_prefix("lsl")?.trim().trim_start_matches('#'), 0..=4)
}

fn arm_register(text: &str) -> Option<Register> {
    match text {
        "sp" | "wsp" => Some(Register(31)),
        _ => numbered(text.strip_prefix(['x', 'w'])?, 0..=30).map(Register),
    }
}

fn numbered(text: &str, limits: std::ops::RangeInclusive<u8>) -> Option<u8> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && limits.contains(number))
}

fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok()?,
        _ => digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??,
    };
    // Constants of 64 bits may be written without a sign.
    let value = value as i64;
    Some(if negative { value.wrapping_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(machine: Machine, text: &str) -> Option<(u8, bool, Place)> {
        Argument::parse(machine, text).map(|it| (it.size, it.signed, it.place))
    }

    fn at(base: u8, index: Option<(u8, u8)>, offset: i64) -> Place {
        let index = index.map(|(register, shift)| (Register(register), shift));
        Place::Memory(Memory { base: Some(Register(base)), index, offset })
    }

    #[test]
    fn what_compilers_write_on_x86() {
        let register = |number| Place::Register(Register(number));
        for (text, found) in [
            ("-8@%rax", (8, true, register(0))),
            ("-1@%dl", (1, true, register(1))),
            ("8@%r14", (8, false, register(14))),
            ("4@%r9d", (4, false, register(9))),
            ("2@%r15w", (2, false, register(15))),
            ("1@%r8b", (1, false, register(8))),
            ("1@%bpl", (1, false, register(6))),
            ("-8@-56(%rbp)", (8, true, at(6, None, -56))),
            ("8@(%rsp)", (8, false, at(7, None, 0))),
            ("4@0x10(%rdi)", (4, false, at(5, None, 16))),
            ("8@8(%rax,%rdx)", (8, false, at(0, Some((1, 0)), 8))),
            ("-4@-4(%rbx,%rcx,4)", (4, true, at(3, Some((2, 2)), -4))),
            ("-4@$-5", (4, true, Place::Constant(-5))),
            ("8@$18446744073709551615", (8, false, Place::Constant(-1))),
        ] {
            assert_eq!(of(Machine::X86_64, text), Some(found), "{text}");
        }
        let scaled = Place::Memory(Memory { base: None, index: Some((Register(2), 3)), offset: 64 });
        assert_eq!(of(Machine::X86_64, "8@64(,%rcx,8)"), Some((8, false, scaled)));
    }

    #[test]
    fn what_compilers_write_on_arm() {
        for (text, found) in [
            ("-8@x0", (8, true, Place::Register(Register(0)))),
            ("4@w30", (4, false, Place::Register(Register(30)))),
            ("8@sp", (8, false, Place::Register(Register(31)))),
            ("-8@[sp, 8]", (8, true, at(31, None, 8))),
            ("8@[x29,-16]", (8, false, at(29, None, -16))),
            ("8@[x1]", (8, false, at(1, None, 0))),
            ("8@[x1, x2]", (8, false, at(1, Some((2, 0)), 0))),
            ("4@[x1, x2, lsl 2]", (4, false, at(1, Some((2, 2)), 0))),
            ("-4@5", (4, true, Place::Constant(5))),
            ("-4@-1", (4, true, Place::Constant(-1))),
        ] {
            assert_eq!(of(Machine::Aarch64, text), Some(found), "{text}");
        }
    }

    #[test]
    fn other_forms_are_not_guessed() {
        for text in [
            "",
            "8",
            "8@",
            "@%rax",
            "3@%rax",
            "-@%rax",
            "8f@%xmm0",
            "8@%xmm0",
            "8@%rip",
            "8@global(%rip)",
            "8@4(%rip)",
            "1@%ah",
            "8@%r7",
            "8@%r16",
            "8@%r",
            "8@%rd",
            "8@%r8dd",
            "8@%r+9",
            "8@(%rax",
            "8@()",
            "8@(,)",
            "8@1(2)",
            "8@(%rax,%rbx,3)",
            "8@(%rax,%rbx,4,5)",
            "8@$",
            "8@$x",
            "8@$+5",
            "8@$--5",
            "8@$0x+5",
            "8@$99999999999999999999",
            "8@rax",
            "8@\u{e4}(%rax)",
            "16@%rax",
            "8@*%rax",
        ] {
            assert_eq!(of(Machine::X86_64, text), None, "{text}");
        }
        for text in [
            "8@x31",
            "8@x",
            "8@[",
            "8@[]",
            "8@[x1",
            "8@[x1, 8, 9]",
            "8@[x1, x2, sxtw 3]",
            "8@[x1, x2, lsl 9]",
            "8@d0",
            "8@[x1]!",
            "8@[5]",
            "8@",
        ] {
            assert_eq!(of(Machine::Aarch64, text), None, "{text}");
        }
    }
}
