//! Errors of system calls. In: errors, also those that libbpf-rs has reduced to a text. Out: the number of the error,
//! and sentences with a remedy. Not here: which error is a reason for a trace to be incomplete (gpurec_trace's reasons).

use std::fmt;

use crate::ui;

/// The kernel's own ENOTSUPP, which has no name in a libc.
pub const ENOTSUPP: i32 = 524;

/// Marks an error as a refusal by the kernel: `.context(KernelRefused("its maps".into()))`.
#[derive(Debug)]
pub struct KernelRefused(pub String);

impl fmt::Display for KernelRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel refused {}", self.0)
    }
}

/// libbpf-rs keeps only the text of many errors, which ends in their number.
pub fn of(error: &anyhow::Error) -> Option<i32> {
    let number = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
    number.or_else(|| ui::os_error(&format!("{error:#}")))
}

/// The error in words, with a remedy if there is one.
pub fn sentence(error: &anyhow::Error) -> String {
    ui::with_remedy(format!("{error:#}"), error.is::<KernelRefused>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_number_of_an_error_is_found_behind_its_contexts() {
        let io = anyhow::Error::from(std::io::Error::from_raw_os_error(libc::EMFILE)).context("cannot hook");
        assert_eq!(of(&io), Some(libc::EMFILE));
        assert_eq!(of(&anyhow!("failed to attach: Unknown error 524 (os error 524)")), Some(ENOTSUPP));
        assert_eq!(of(&anyhow!("function 524 is not there")), None);
    }

    #[test]
    fn a_refusal_by_the_kernel_names_what_a_container_forbids() {
        let denied = || anyhow::Error::from(std::io::Error::from_raw_os_error(libc::EPERM));
        assert!(sentence(&denied().context(KernelRefused("a".to_owned()))).ends_with(" --privileged"));
        assert!(sentence(&denied().context("cannot open a")).ends_with("(os error 1)"));
    }
}
