//! What a test needs of this machine.
//! In: the machine.
//! Out: the test continues, or a reason is printed past the test harness's capture; with CI=true a missing thing is a
//! failure.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Once;

/// Prints that the test cannot run here, and returns false.
pub fn skip(why: &str) -> bool {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} was skipped under CI: {why}");
    // Not eprintln, which the harness swallows for tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
    false
}

pub fn root_and_bpf() -> bool {
    if !nix::unistd::geteuid().is_root() {
        return skip("it needs root: run it with sudo");
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return skip("this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)");
    }
    match create_map() {
        Ok(()) => true,
        Err(error) => skip(&format!("bpf() is refused here: {error}")),
    }
}

/// Makes the smallest call of bpf(). It asks Linux and not gpurec, whose failure is no reason to skip.
fn create_map() -> std::io::Result<()> {
    const BPF_MAP_CREATE: libc::c_long = 0;
    // map_type ARRAY, key and value of 4 bytes, one entry; the rest of Linux's union is zero.
    let mut attr = [0u32; 32];
    attr[..4].copy_from_slice(&[2, 4, 4, 1]);
    // SAFETY: the attribute is 128 bytes of our own, zero where unused.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

/// The folder of NVIDIA's real libraries.
pub fn nvidia() -> Option<PathBuf> {
    let set = std::env::var_os("GPUREC_NVIDIA_LIBS").map(PathBuf::from);
    match set {
        Some(folder) if folder.join("libcuda.so.1").exists() => Some(folder),
        Some(folder) => {
            skip(&format!("GPUREC_NVIDIA_LIBS={} holds no libcuda.so.1", folder.display()));
            None
        }
        None => {
            skip("it needs NVIDIA's libraries: scripts/nvidia-libs DEST, then GPUREC_NVIDIA_LIBS=DEST");
            None
        }
    }
}

struct Backend {
    name: &'static str,
    /// The first Linux that has it.
    since: (u32, u32),
    /// Links to a library; None: each function has links of its own.
    links: Option<u32>,
}

/// Best first. A test compares the names with those that gpurec takes.
const BACKENDS: [Backend; 3] = [
    Backend { name: "uprobe.session", since: (6, 13), links: Some(1) },
    Backend { name: "uprobe.multi", since: (6, 6), links: Some(2) },
    Backend { name: "uprobe", since: (0, 0), links: None },
];

fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn has(since: (u32, u32)) -> bool {
    let release = release();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= since
}

/// The backends that this machine's Linux has, best first. An older Linux is no failure, but the test prints it.
pub fn every_backend() -> Vec<&'static str> {
    let is_here = |backend: &Backend| {
        let has = has(backend.since);
        if !has {
            let _ = writeln!(std::io::stderr(), "NOT TRIED: {} on kernel {}", backend.name, release());
        }
        has
    };
    BACKENDS.into_iter().filter(is_here).map(|backend| backend.name).collect()
}

/// The backends that a test is repeated with: all that there are if the harness runs the tests that it usually ignores
/// too (scripts/test --full), else the best one, which is what a recording uses by itself.
pub fn backends() -> Vec<&'static str> {
    static SAID: Once = Once::new();
    let mut all = every_backend();
    if !std::env::args().any(|word| word == "--include-ignored" || word == "--ignored") {
        let left = all.split_off(1).join(", ");
        SAID.call_once(|| drop(writeln!(std::io::stderr(), "NOT REPEATED with {left}: scripts/test --full")));
    }
    all
}

/// Before Linux 6.6 each hook is attached by itself, which takes more descriptors, one more right and far more time.
pub fn single_uprobes_only() -> bool {
    !BACKENDS.iter().any(|backend| backend.links.is_some() && has(backend.since))
}

/// The links that a backend makes to a library; None: each function has links of its own.
pub fn links(name: &str) -> Option<u32> {
    BACKENDS.iter().find(|backend| backend.name == name)?.links
}

/// True for a backend that attaches each hook by itself: it takes long to remove many.
pub fn is_single(name: &str) -> bool {
    BACKENDS.iter().any(|backend| backend.name == name && backend.links.is_none())
}

#[test]
fn every_backend_is_tested() {
    let mut gpurec = std::process::Command::new(env!("CARGO_BIN_EXE_gpurec"));
    let refused = gpurec.args(["--backend", "none", "--", "true"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    let listed = said.lines().find_map(|line| line.split_once("one of ")).expect("the backends").1;
    assert!(listed.split(", ").eq(BACKENDS.iter().map(|backend| backend.name)), "{said}");
}

/// The backends that hook a thousand functions in a moment; single uprobes only where there is nothing else.
pub fn backends_for_many() -> Vec<&'static str> {
    let single = single_uprobes_only();
    backends().into_iter().filter(|backend| single || !is_single(backend)).collect()
}

/// Returns whether the shell finds a program of this name.
pub fn program(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|p| p.join(name).exists()))
}
