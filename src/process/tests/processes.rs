//! Tests attaching to real processes, and reading them.

use super::super::attach::{AttachError, check};
use super::super::maps::{executable_files, find_exe, find_fd, open_mapped};
use super::super::proc;
use super::live::Folder;
use super::{eventually, root};
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::{Child, Command};

struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper(program: &std::path::Path) -> Kill {
    let child = Command::new(program).arg("60").env("OMPI_COMM_WORLD_RANK", "3").spawn().expect("a sleeper");
    let exe = fs::canonicalize(program).expect("its path");
    // Wait until exec and the loader's mappings are done.
    assert!(eventually(5, || {
        proc::exe_path(child.id()).is_ok_and(|e| e == exe)
            && executable_files(child.id()).is_ok_and(|f| f.len() >= 3)
    }));
    Kill(child)
}

#[test]
fn a_process_and_everything_that_is_none() {
    let child = sleeper("/bin/sleep".as_ref());
    let pid = child.0.id();
    let attached = check(pid).expect("attached");
    assert_eq!((attached.pid, attached.comm.as_str()), (pid, "sleep"));
    assert_eq!(attached.bits_32, Some(false));
    assert!(attached.note().is_none());
    assert!(!proc::pidfd_ended(attached.pidfd.as_raw_fd(), 0));
    assert_eq!(proc::job_of(pid).rank, Some(3));
    drop(child);
    assert!(proc::pidfd_ended(attached.pidfd.as_raw_fd(), 1000));
    assert!(matches!(check(pid), Err(AttachError::NoSuchProcess(p)) if p == pid));
    assert!(matches!(check(0), Err(AttachError::NoSuchProcess(0))));
    assert!(matches!(check(u32::MAX), Err(AttachError::NoSuchProcess(_))));
    let own = std::process::id();
    assert!(matches!(check(own), Err(AttachError::Ourselves(_))));
}

#[test]
fn kernel_threads_zombies_and_threads_are_kept_apart() {
    let kthread =
        proc::all_processes().into_iter().find(|pid| proc::stat(*pid).is_ok_and(|s| s.kernel_thread()));
    match kthread {
        Some(pid) => assert!(matches!(check(pid), Err(AttachError::KernelThread { .. }))),
        None => eprintln!("SKIPPED the kernel thread: none is visible in this PID namespace"),
    }

    let mut child = Command::new("true").spawn().expect("a child");
    let pid = child.id();
    assert!(eventually(5, || proc::stat(pid).is_ok_and(|s| s.ended())));
    assert!(matches!(check(pid), Err(AttachError::Zombie { .. })));
    child.wait().expect("reaped");

    let code = "import threading,time\nthreading.Thread(target=time.sleep,args=(60,)).start()";
    let Ok(child) = Command::new("python3").args(["-c", code]).spawn() else {
        return eprintln!("SKIPPED the thread: no python3");
    };
    let child = Kill(child);
    let pid = child.0.id();
    let thread = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut ids = tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse().ok());
        ids.find(|tid: &u32| *tid != pid)
    };
    assert!(eventually(10, || thread().is_some()));
    let tid = thread().expect("a thread");
    let error = check(tid).expect_err("a thread");
    assert!(error.to_string().contains(&format!("--pid {pid}")), "{error}");
}

#[test]
fn trees() {
    // Commands after the sleep prevent the shells from replacing themselves with it.
    let line = "sh -c 'sleep 60; true'; true";
    let child = Kill(Command::new("sh").args(["-c", line]).spawn().expect("sh"));
    let top = child.0.id();
    assert!(eventually(5, || proc::process_tree(top).len() == 3));
    let tree = proc::process_tree(top);
    assert_eq!(tree.first(), Some(&top));
    assert_eq!(proc::children_of(top), tree[1..2]);
    assert_eq!(proc::children_of(tree[1]), tree[2..3]);
    for pid in tree.into_iter().rev() {
        // SAFETY: plain integers; processes of this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

fn inode(path: &std::path::Path) -> u64 {
    fs::metadata(path).expect("metadata").ino()
}

#[test]
fn mapped_files_are_opened_even_deleted_and_replaced() {
    if !root("mapped_files_are_opened_even_deleted_and_replaced") {
        return;
    }
    let folder = Folder::new("maps");
    let program = folder.0.join("a sleep\nprogram");
    fs::copy("/bin/sleep", &program).expect("a copy");
    let child = sleeper(&program);
    let pid = child.0.id();
    let ino = inode(&program);
    let find = || {
        let mut files = executable_files(pid).expect("maps").into_iter();
        files.find(|m| m.inode == ino).expect("the program")
    };
    let mapping = find();
    assert_eq!((mapping.path.as_path(), mapping.deleted), (program.as_path(), false));
    let files = executable_files(pid).expect("maps");
    assert!(files.iter().any(|m| m.path.to_string_lossy().contains("libc")));

    // Find it by path alone, as on a machine that refuses map_files.
    let mut no_range = mapping.clone();
    (no_range.start, no_range.end) = (1, 2);
    let opened = open_mapped(pid, &no_range).expect("by path");
    assert_eq!(opened.metadata().expect("metadata").ino(), ino);

    // Replace it, as an upgrade does: the path then names another file.
    fs::copy("/bin/true", folder.0.join("new")).expect("a copy");
    fs::rename(folder.0.join("new"), &program).expect("replaced");
    let mapping = find();
    assert!(mapping.deleted);
    assert_eq!(mapping.path, program);
    let mut opened = open_mapped(pid, &mapping).expect("by mapping");
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes).expect("its bytes");
    assert!(bytes == fs::read("/bin/sleep").expect("sleep"));
    assert!(open_mapped(pid, &no_range).is_err(), "never another file");
    let exe = find_exe(pid).expect("its program").open().expect("its bytes");
    assert_eq!(exe.metadata().expect("metadata").ino(), ino);
}

#[test]
fn another_mount_namespace() {
    if !root("another_mount_namespace") {
        return;
    }
    let folder = Folder::new("mounts");
    let inside = folder.0.join("inside");
    fs::create_dir(&inside).expect("a folder");
    let line = format!(
        "mount -t tmpfs none {0} && cp /bin/sleep {0}/hidden && exec {0}/hidden 60",
        inside.display()
    );
    let child = Command::new("unshare").args(["-m", "sh", "-c", &line]).spawn();
    let Ok(child) = child.map(Kill) else {
        return eprintln!("SKIPPED another_mount_namespace: no unshare");
    };
    let pid = child.0.id();
    let found = || {
        let files = executable_files(pid).unwrap_or_default();
        files.into_iter().find(|m| m.path.ends_with("hidden"))
    };
    assert!(eventually(5, || found().is_some()));
    let mut mapping = found().expect("the hidden program");
    assert!(!mapping.path.exists(), "not seen from here");
    open_mapped(pid, &mapping).expect("by mapping");
    (mapping.start, mapping.end) = (1, 2);
    open_mapped(pid, &mapping).expect("through its root");
}

#[test]
fn descriptors_of_a_process() {
    let folder = Folder::new("fd");
    let path = folder.file("data", 0o644, "hello");
    let input = fs::File::open(&path).expect("open");
    let child = Command::new("sleep").arg("60").stdin(input).spawn();
    let child = Kill(child.expect("a sleeper"));
    let file = find_fd(child.0.id(), 0).expect("its input").open().expect("its bytes");
    assert_eq!(file.metadata().expect("metadata").ino(), inode(&path));
    assert!(find_fd(child.0.id(), 99).is_err());
    // gpurec does not open a device to find out what it is: opening one without a driver would even fail.
    let node = folder.0.join("device");
    let device = nix::sys::stat::makedev(511, 255);
    if nix::sys::stat::mknod(&node, nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, device)
        .is_ok()
    {
        fs::File::open(&node).expect_err("no driver");
        let held =
            fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&node).expect("its node");
        let error = find_fd(std::process::id(), held.as_raw_fd()).expect_err("a device");
        assert!(error.to_string().ends_with("is not a regular file"), "{error}");
    }
}
