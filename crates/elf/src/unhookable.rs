//! Functions that must not be hooked, by name. In: a name. Out: the reason, if the function is one of them.
//!
//! While a hook waits for a call's return, the stack holds another return address. These functions return more than
//! once, return on another stack, or read return addresses: with a hook, the program would be killed or continue in a
//! wrong place.

/// A family: the ends of its names, without leading underscores, and what the functions do.
const FAMILIES: [(&[&str], &str); 4] = [
    (
        &["setjmp", "sigsetjmp", "longjmp", "siglongjmp", "longjmp_chk"],
        "it returns twice, or to another call: a hook at its return would end the program",
    ),
    (
        &[
            "getcontext",
            "setcontext",
            "swapcontext",
            "makecontext",
            // From Boost.
            "jump_fcontext",
            "ontop_fcontext",
            "make_fcontext",
        ],
        "it changes stacks: a hook at its return would end the program",
    ),
    (&["vfork"], "it returns twice on one stack: a hook at its return would end the program"),
    (&["cxa_throw", "cxa_rethrow"], THROWS),
];

const UNWINDER: &str = "_Unwind_";
const THROWS: &str = "exceptions look for their handler by return addresses: a hook would end the program";

pub fn reason(name: &str) -> Option<&'static str> {
    // The name may end in a version: vfork@@GLIBC_2.2.5.
    let name = name.split('@').next().unwrap_or(name);
    if name.starts_with(UNWINDER) {
        return Some("it looks for callers by return addresses: a hook would end the program");
    }
    // std::__throw_out_of_range and the like: _ZSt, the length of the name, the name.
    let standard =
        name.strip_prefix("_ZSt").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    if standard.is_some_and(|rest| rest.starts_with("__throw_")) {
        return Some(THROWS);
    }
    let plain = name.trim_start_matches('_').trim_start_matches("libc_").trim_start_matches("GI_");
    let of = |(names, _): &&(&[&str], &str)| names.contains(&plain);
    FAMILIES.iter().find(of).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn families_are_known_by_all_their_names() {
        for name in [
            "setjmp",
            "_setjmp",
            "__sigsetjmp",
            "siglongjmp",
            "__libc_siglongjmp",
            "__longjmp_chk",
            "swapcontext",
            "jump_fcontext",
            "__vfork",
            "__libc_vfork",
            "_Unwind_Resume",
            "__cxa_throw",
            "_ZSt20__throw_out_of_rangePKc",
        ] {
            assert!(reason(name).is_some(), "{name}");
        }
        for name in [
            "fork",
            "cuLaunchKernel",
            "jmp",
            "cudaGetLastError",
            "context",
            "__cxa_atexit",
            "throw",
            "_ZSt4cout",
        ] {
            assert_eq!(reason(name), None, "{name}");
        }
    }
}
