//! `gpurec probes`: what would be hooked, where and how. In: libraries of this machine, of a process, or named by the
//! user. Out: one line per function on standard output. Attaches nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use glob::Pattern;

use crate::files::select::Selection;
use crate::host;
use crate::process::maps;
use crate::ui;
use gpurec_cuda as cuda;
use gpurec_elf::{Image, Kind};

pub fn list(glob: &Pattern, selection: &Selection, pid: Option<u32>) -> Result<u8> {
    let files = files(selection, pid)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut found = 0;
    for (path, file) in &files {
        match selection.examine(file, path) {
            Ok(Some(image)) => found += show(&mut out, path, &image, glob)?,
            Ok(None) => {}
            Err(reason) => ui::say(&format!("{}: {reason}", ui::name(path))),
        }
    }
    out.flush()?;
    if files.is_empty() {
        bail!(
            "no CUDA library in the usual places; name one with --lib PATH, or a process that uses one with --pid"
        );
    }
    if found == 0 {
        let names: Vec<String> = files.iter().map(|(path, _)| ui::name(path)).collect();
        bail!(
            "no function of {} matches {glob}; run `gpurec probes` without a pattern to list them all",
            names.join(", ")
        );
    }
    Ok(0)
}

fn files(selection: &Selection, pid: Option<u32>) -> Result<Vec<(PathBuf, File)>> {
    if let Some(pid) = pid {
        let mappings = maps::executable_files(pid).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => crate::process::attach::AttachError::NoSuchProcess(pid).into(),
            _ => anyhow!(
                "cannot read what process {pid} has mapped ({error}); run gpurec as root: sudo gpurec probes --pid {pid}"
            ),
        })?;
        let open = |m: &maps::Mapping| match maps::open_mapped(pid, m) {
            Ok(file) => Some((m.path.clone(), file)),
            Err(error) => {
                ui::say(&format!("{} is not listed: {error}", m.path.display()));
                None
            }
        };
        return Ok(mappings.iter().filter_map(open).collect());
    }
    let paths = if selection.has_libs() { selection.lib_paths() } else { host::cuda_libraries() };
    paths
        .into_iter()
        .map(|path| {
            let file = maps::find(&path)
                .and_then(|found| found.open())
                .with_context(|| format!("cannot open {} (give the path of a file)", path.display()))?;
            Ok((path, file))
        })
        .collect()
}

/// OFFSET is the probe's place in the file; +N is its distance from the function's entry.
fn show(out: &mut impl io::Write, path: &Path, image: &Image, glob: &Pattern) -> io::Result<usize> {
    let wanted = |name: &str| cuda::fits(glob, name);
    let functions: Vec<_> =
        image.functions.iter().filter(|f| wanted(&f.name) || f.aliases.iter().any(|a| wanted(a))).collect();
    let not_hooked: Vec<_> = image.not_hooked.iter().filter(|f| wanted(&f.name)).collect();
    let static_probes: Vec<_> =
        image.static_probes.iter().map(|probe| (probe.full_name(), probe.site)).collect();
    let static_probes: Vec<_> = static_probes.iter().filter(|(name, _)| wanted(name)).collect();
    if functions.is_empty() && not_hooked.is_empty() && static_probes.is_empty() {
        return Ok(0);
    }
    let build_id = image.build_id.as_deref().unwrap_or("none");
    let soname = image.soname.as_deref().unwrap_or("no SONAME");
    let mut text = format!("{} ({}, {soname}, build id {build_id})\n", path.display(), kind(image.kind));
    for f in &functions {
        let how = if f.emulated { "emulated" } else { "single-stepped" };
        let offset = f.site - f.entry;
        _ = write!(text, "  {:<48} {:#10x} +{offset:<3} {how:<14} {}", f.name, f.site, f.instruction);
        if !f.aliases.is_empty() {
            _ = write!(text, "  (also {})", f.aliases.join(", "));
        }
        text.push('\n');
    }
    for (name, site) in &static_probes {
        _ = writeln!(text, "  {name:<48} {site:#10x} +0   emulated       static probe");
    }
    for f in &not_hooked {
        _ = writeln!(text, "  {:<48} not hooked: {}", f.name, f.reason.text);
    }
    // The names come from the file and are not trusted.
    out.write_all(ui::clean_lines(&text).as_bytes())?;
    Ok(functions.len() + static_probes.len() + not_hooked.len())
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Driver => "CUDA driver library",
        Kind::Runtime => "CUDA runtime library",
        Kind::StaticRuntime => "CUDA runtime linked in",
        Kind::Nccl => "NCCL",
        Kind::Other => "other library",
        Kind::Allocator => "PyTorch's allocator",
    }
}
