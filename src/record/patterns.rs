//! Checks that what the user named exists. In: --only, --skip and --lib; later the files that were examined. Out: an
//! error before anything starts, for a pattern that fits no function; a message at the end, for a --lib of which
//! nothing was recorded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use glob::Pattern;

use crate::files::select::{ApiChoice, LibRule, Selection};
use crate::files::{Wants, allocator};
use crate::host;
use crate::process::identity::Identity;
use crate::process::maps;
use crate::process::rights;
use gpurec_analysis::Usage;
use gpurec_analysis::{did_you_mean, nearest};
use gpurec_cuda::{self as cuda, Api};
use gpurec_elf::Image;
use gpurec_trace::Incomplete;

/// Each pattern of --only and --skip must fit a known function: of the table, of a CUDA library in the usual places,
/// or of --lib.
pub fn check(selection: &Selection, user: &Identity) -> Result<()> {
    let skipped = selection.skip.iter().map(|pattern| ("--skip", pattern));
    // A function that --api excludes cannot be recorded, but a --skip of it is harmless.
    let wanted = |option: &str, name: &str| option == "--skip" || is_of(selection.api, name);
    let all = selection.only.iter().map(|pattern| ("--only", pattern)).chain(skipped);
    let unknown: Vec<_> = all
        .filter(|(option, pattern)| {
            !cuda::function_names().any(|name| wanted(option, name) && cuda::fits(pattern, name))
                && !block_names(selection).any(|name| cuda::fits(pattern, name))
                && !selection.libs.iter().any(|rule| may_have(rule, pattern))
        })
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let exported =
        rights::as_caller(user, || exports(selection)).context("cannot look for CUDA libraries")?;
    for (option, pattern) in unknown {
        let is_recorded = |name: &str| cuda::api(name) == Api::Other || wanted(option, name);
        let fits = |name: &String| is_recorded(name) && cuda::fits(pattern, name);
        if !exported.iter().any(fits) {
            bail!(Usage(no_function(option, pattern, &exported, selection.api)));
        }
    }
    Ok(())
}

/// The static probes of PyTorch's allocator are chosen by their names too.
fn block_names(selection: &Selection) -> impl Iterator<Item = &'static str> {
    allocator::names().filter(|_| selection.wants_blocks())
}

fn is_of(choice: ApiChoice, name: &str) -> bool {
    match choice {
        ApiChoice::All => true,
        ApiChoice::Driver => cuda::api(name) == Api::Driver,
        ApiChoice::Runtime => cuda::api(name) == Api::Runtime,
    }
}

/// True for a file that only the program finds, later: gpurec knows of its functions only the rule's own pattern.
fn may_have(rule: &LibRule, pattern: &Pattern) -> bool {
    rule.is_bare_name() && rule.wants(pattern.as_str())
}

/// The functions of the CUDA libraries in the usual places, and those that --lib names by their paths.
fn exports(selection: &Selection) -> BTreeSet<String> {
    let named = selection.libs.iter().filter(|rule| !rule.is_bare_name()).map(|rule| rule.path().to_owned());
    let all = Selection { libs: selection.libs.clone(), ..Selection::default() };
    let functions = |path: PathBuf| -> Vec<String> {
        let file = maps::find(&path).and_then(|found| found.open()).ok();
        let image = file.and_then(|file| all.examine(&file, &path).ok().flatten());
        image.map(names).unwrap_or_default()
    };
    host::cuda_libraries().into_iter().chain(named).flat_map(functions).collect()
}

fn names(image: Image) -> Vec<String> {
    let refused = image.not_hooked.into_iter().filter(|one| one.is_code).map(|one| one.name);
    let hooked = image.functions.into_iter().flat_map(|f| f.aliases.into_iter().chain([f.name]));
    hooked.chain(refused).collect()
}

fn no_function(option: &str, pattern: &Pattern, exported: &BTreeSet<String>, api: ApiChoice) -> String {
    let is_elsewhere = cuda::function_names().any(|name| cuda::fits(pattern, name));
    if is_elsewhere && option == "--only" {
        return format!(
            "{option} {pattern} matches only functions that --api leaves out; drop one of the two"
        );
    }
    let mut known: Vec<&str> = cuda::function_names().collect();
    known.extend(exported.iter().map(String::as_str));
    let near = nearest(pattern.as_str(), known.into_iter().filter(|name| is_of(api, name)));
    let remedy = match near.is_empty() {
        true => "; `gpurec probes` lists the functions".to_owned(),
        false => did_you_mean(&near),
    };
    format!("{option} {pattern} matches no function of CUDA or of --lib{remedy}")
}

/// What became of each --lib.
#[derive(Default)]
pub struct Libs(Vec<(LibRule, Fate)>);

enum Fate {
    NotLoaded,
    /// The first file that fits the rule has none of its functions.
    NoFunction(PathBuf),
    /// Something of it was hooked, or another message reports why not.
    Reported,
}

impl Libs {
    pub fn of(selection: &Selection) -> Libs {
        Libs(selection.libs.iter().map(|rule| (rule.clone(), Fate::NotLoaded)).collect())
    }

    /// Notes the functions of a file that was examined.
    pub fn add(&mut self, wants: &Wants) {
        let soname = wants.image.soname.as_deref();
        for (rule, fate) in
            self.0.iter_mut().filter(|(rule, _)| rule.fits(Some(wants.key), &wants.path, soname))
        {
            if rule.wants_any_of(&wants.image) {
                *fate = Fate::Reported;
            } else if let Fate::NotLoaded = fate {
                *fate = Fate::NoFunction(wants.path.clone());
            }
        }
    }

    /// Notes a file that could not be examined or hooked, which another message reports. None: it may have been any
    /// file.
    pub fn add_refused(&mut self, path: Option<&Path>) {
        let may_be = |rule: &LibRule| path.is_none_or(|path| rule.fits(None, path, None));
        for (_, fate) in self.0.iter_mut().filter(|(rule, _)| may_be(rule)) {
            *fate = Fate::Reported;
        }
    }

    /// Messages for the end of the recording, one for each --lib of which nothing was recorded.
    pub fn missed(&self) -> impl Iterator<Item = Incomplete> {
        self.0.iter().filter_map(|(rule, fate)| {
            let text = rule.text().to_owned();
            match fate {
                Fate::Reported => None,
                Fate::NoFunction(path) => {
                    Some(Incomplete::LibWithoutFunction { lib: text, path: path.display().to_string() })
                }
                Fate::NotLoaded if rule.is_bare_name() => Some(Incomplete::LibNameNotLoaded { lib: text }),
                Fate::NotLoaded => Some(Incomplete::LibNotLoaded { lib: text }),
            }
        })
    }
}
