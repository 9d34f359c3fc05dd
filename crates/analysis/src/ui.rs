//! All output of the readers to standard error. In: sentences and names, possibly hostile. Out: sentences without
//! terminal control sequences.
//!
//! `eprintln!` panics if standard error is full or closed, so no other module writes to it.

use std::io::Write;
use std::path::Path;

pub use gpurec_trace::text::*;

/// A file name, safe to print.
pub fn name(file: &Path) -> String {
    clean(&file.display().to_string())
}

/// The number of an error whose text ends in it. The libraries in between reduce many errors to their text, so this
/// parses the text.
pub fn os_error(text: &str) -> Option<i32> {
    text.strip_suffix(')')?.rsplit_once(" (os error ")?.1.parse().ok()
}

/// Appends a remedy to an error that ends with an errno. `by_kernel`: the kernel refused something that BPF needs.
pub fn with_remedy(text: String, by_kernel: bool) -> String {
    match os_error(&text).and_then(|number| remedy(number, by_kernel)) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

fn remedy(errno: i32, by_kernel: bool) -> Option<&'static str> {
    Some(match errno {
        libc::EAGAIN => {
            "the limit on processes and threads is reached: raise it (ulimit -u, or pids.max of the cgroup)"
        }
        libc::EMFILE => "raise the limit on open files: ulimit -n 65536",
        libc::ENFILE => "raise the machine's limit on open files: sysctl fs.file-max",
        libc::ENOMEM => {
            "memory is full or limited (ulimit -v, memory.max of the cgroup): raise the limit, or try a smaller --ring"
        }
        // EPERM or EACCES on a file comes from the file's own permissions.
        libc::EPERM | libc::EACCES | libc::ENOSYS if by_kernel => {
            "in a container, its seccomp filter may forbid it: run gpurec on the host, or the container with --privileged"
        }
        _ => return None,
    })
}

/// Writes a sentence of gpurec to standard error.
pub fn say(sentence: &str) {
    text(&format!("gpurec: {sentence}\n"));
}

/// Writes what was odd in a file.
pub fn of_file(file: &Path, sentences: &[String]) {
    for sentence in sentences {
        say(&format!("{}: {}", name(file), clean(sentence)));
    }
}

/// Writes lines to standard error. Ignores errors: no other channel is left to report them on.
pub fn text(text: &str) {
    let _ = std::io::stderr().lock().write_all(clean_lines(text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_kernel_comes_with_a_remedy() {
        let reported = |text: &str| with_remedy(text.to_owned(), false);
        assert!(
            reported("fork: Resource temporarily unavailable (os error 11)")
                .starts_with("fork: Resource temporarily unavailable (os error 11); the limit on processes")
        );
        assert!(
            reported("a: Too many open files (os error 24)")
                .ends_with("; raise the limit on open files: ulimit -n 65536")
        );
        let refused = with_remedy("a: Permission denied (os error 13)".to_owned(), true);
        assert!(refused.ends_with(" --privileged"));
        for same in [
            "a: File exists (os error 17)",
            "cannot open a: Permission denied (os error 13)",
            "a (os error 24); do this",
            "a (os error x)",
            "(os error 24)",
            "",
        ] {
            assert_eq!(reported(same), same);
        }
    }
}
