//! Requests to a worker that runs, and what is selected of PyTorch's library.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use glob::Pattern;

use super::{Ask, Files, Found, Side};
use crate::files::select::{ApiChoice, Selection};
use crate::process::identity;
use crate::stacks::native::tests::program::Program;
use crate::stacks::native::{self, Cut, Shortcut};
use gpurec_elf::Kind;

const PATIENCE: Duration = Duration::from_secs(20);

/// A worker is a fork with a limit of memory. The memory of tests that run beside this one must not count.
#[test]
fn a_worker_unwinds_a_stack_and_names_its_functions() {
    const ALONE: &str = "GPUREC_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return ask_a_worker();
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "files::tests::a_worker_unwinds_a_stack_and_names_its_functions"]);
    let done = alone.env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

fn ask_a_worker() {
    let program = Program::run("unwound.c", &["-O2", "-g"], &[]);
    let files = Files::start(&identity::invoking_user(), &Selection::default()).unwrap();
    let mut side = Side::new(Some(files));
    let pid = program.pid();
    let (mut first, mut followed) = (Vec::new(), 0);
    for snapshot in &program.snapshots {
        let stack = Box::new(snapshot.stack.clone());
        let Some(Found::Unwound(unwound)) =
            side.ask(&Ask::Unwind { pid, stack, mapped: Vec::new() }, PATIENCE)
        else {
            panic!("no answer");
        };
        let found: Vec<u64> = unwound.calls.iter().map(|call| call.address).collect();
        assert_eq!((&found, unwound.cut), (&snapshot.calls, None));
        let rule =
            |address| unwound.calls.iter().find(|call| call.address == address).map(|call| call.shortcut);
        // BPF follows none of the rules behind this one.
        let stop = unwound.calls.iter().position(|call| call.shortcut == Shortcut::Stop);
        let last = stop.unwrap_or(found.len() - 1);
        assert_eq!(native::follow(&snapshot.stack, rule), Some((found[1..=last].to_vec(), stop.is_some())));
        let unknown = |address| rule(address).filter(|_| address != found[1]);
        assert!(last == 0 || native::follow(&snapshot.stack, unknown).is_none());
        followed += last;
        if first.is_empty() {
            first = unwound.calls.into_iter().map(|call| call.frames).collect();
        }
    }
    assert!(followed > 10, "{followed}");
    let functions: Vec<_> = first[0].iter().map(|frame| frame.function.as_deref().unwrap()).collect();
    assert_eq!(functions, ["innermost", "inlined", "plain"]);
    assert_eq!(first[0].iter().map(|frame| frame.inlined).collect::<Vec<_>>(), [true, true, false]);
    let addresses = program.snapshots[0].calls.clone();
    let Some(Found::Frames(frames)) = side.ask(&Ask::Frames { pid, addresses, mapped: Vec::new() }, PATIENCE)
    else {
        panic!("no answer");
    };
    assert_eq!(frames, first);
    let Some(Found::Code(Some(mapped))) = side.ask(&Ask::Code { pid }, PATIENCE) else { panic!("no answer") };
    let all = mapped.iter().map(|one| (pid, *one)).collect();
    let Some(Found::Opened(opened)) = side.ask(&Ask::Mapped { all }, PATIENCE) else { panic!("no answer") };
    assert!(opened.len() == mapped.len() && !opened.contains(&false), "{opened:?}");
    // The code of a process that has ended is in the files that were opened before, if it is known where.
    let stack = Box::new(program.snapshots[0].stack.clone());
    let calls = program.snapshots[0].calls.clone();
    drop(program);
    let ask = Ask::Unwind { pid, stack: stack.clone(), mapped };
    let Some(Found::Unwound(unwound)) = side.ask(&ask, PATIENCE) else { panic!("no answer") };
    let found: Vec<u64> = unwound.calls.iter().map(|call| call.address).collect();
    assert_eq!((found, unwound.cut), (calls, None));
    assert_eq!(unwound.calls[0].frames, first[0]);
    let Some(Found::Unwound(unwound)) = side.ask(&Ask::Unwind { pid, stack, mapped: Vec::new() }, PATIENCE)
    else {
        panic!("no answer");
    };
    assert!(matches!(unwound.cut, Some(Cut::NotCode | Cut::NotOpened)), "{unwound:?}");
}

/// fixtures/programs/libc10_cuda.c under a name.
fn allocator(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gpurec-allocator-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/programs/libc10_cuda.c");
    let output = folder.join(name);
    let mut cc = Command::new("cc");
    let done = cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&output).arg(source).status();
    assert!(done.expect("cc is needed for this test").success());
    output
}

#[test]
fn the_static_probes_of_pytorchs_allocator_are_selected_by_their_names() {
    let patterns = |all: &[&str]| all.iter().map(|one| Pattern::new(one).unwrap()).collect();
    let found = |path: &PathBuf, selection: &Selection| -> Vec<String> {
        let image = selection.examine(&File::open(path).unwrap(), path).unwrap();
        assert!(image.as_ref().is_none_or(|image| image.kind == Kind::Allocator));
        image.into_iter().flat_map(|image| image.static_probes).map(|probe| probe.full_name()).collect()
    };
    let all = Selection { blocks: true, ..Selection::default() };
    let (own, other) = (allocator("libc10_cuda-0a1b.so"), allocator("libother.so"));
    assert_eq!(found(&own, &all), ["pytorch:malloc", "pytorch:free", "pytorch:free"]);
    assert!(found(&other, &all).is_empty(), "another library");
    let some = |only: &[&str], skip: &[&str]| Selection {
        only: patterns(only),
        skip: patterns(skip),
        blocks: true,
        ..Selection::default()
    };
    assert_eq!(found(&own, &some(&["pytorch:m*"], &[])), ["pytorch:malloc"]);
    assert_eq!(found(&own, &some(&[], &["pytorch:free"])), ["pytorch:malloc"]);
    assert!(found(&own, &some(&["cuMemAlloc"], &[])).is_empty());
    assert!(found(&own, &Selection { api: ApiChoice::Runtime, ..some(&[], &[]) }).is_empty());
    assert!(found(&own, &Selection::default()).is_empty(), "not wanted");
    std::fs::remove_dir_all(own.parent().unwrap()).unwrap();
}
