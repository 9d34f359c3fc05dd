//! Selects the functions that the user wants in each file. In: --only, --skip, --api, --lib. Out: for a file, the
//! functions to hook in it. Reads the file, attaches nothing.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use glob::Pattern;

use super::{FileId, allocator};
use crate::gpu::tap;
use crate::process::identity::invoking_user;
use crate::process::rights::as_caller;
use gpurec_cuda::{self as cuda, Api, FunctionTraits};
use gpurec_elf::{self as elf, Image, Kind, StaticProbes, UnhookedFunction, Want};
use gpurec_trace::HookError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiChoice {
    #[default]
    All,
    Driver,
    Runtime,
}

/// `--lib PATH[:GLOB]`.
#[derive(Clone, Debug)]
pub struct LibRule {
    /// The rule as the user gave it.
    text: String,
    /// A bare name matches a file with that name or SONAME, wherever the target finds it.
    path: PathBuf,
    identity: Option<(u64, u64)>,
    functions: Pattern,
}

/// Which functions' calls have a stack (--stacks).
#[derive(Clone, Debug, PartialEq)]
pub enum Stacks {
    /// Those that do or start work, or wait for it.
    Work,
    All,
    Matching(Vec<Pattern>),
}

impl Stacks {
    pub fn wants(&self, function: &str) -> bool {
        match self {
            Stacks::Work => FunctionTraits::of(function).is_work() || allocator::find(function).is_some(),
            Stacks::All => true,
            Stacks::Matching(patterns) => patterns.iter().any(|pattern| cuda::fits(pattern, function)),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub only: Vec<Pattern>,
    pub skip: Vec<Pattern>,
    pub api: ApiChoice,
    pub libs: Vec<LibRule>,
    /// Calls have stacks, so interpreters matter too.
    pub stacks: bool,
    /// PyTorch's blocks are recorded, unless the patterns above exclude them.
    pub blocks: bool,
    pub tap: Tap,
}

/// Which functions of libcupti are hooked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tap {
    #[default]
    None,
    /// Those that show who holds CUPTI.
    Holders,
    /// Those that show records too.
    Records,
}

impl LibRule {
    pub fn parse(text: &str) -> Result<LibRule> {
        let (path, functions) = match text.rsplit_once(':') {
            // A file of that name takes precedence over a pattern.
            _ if text.contains('/') && seen_by_caller(Path::new(text)) => (text, "*"),
            Some((path, functions)) if !functions.contains('/') => (path, functions),
            _ => (text, "*"),
        };
        if path.is_empty() || functions.is_empty() {
            bail!("--lib {text:?}: give a file, or a file and a pattern: PATH:GLOB");
        }
        let functions = Pattern::new(functions)
            .with_context(|| format!("--lib {text}: {functions:?} is not a pattern (use *, ? and [a-z])"))?;
        let path = PathBuf::from(path);
        let mut identity = None;
        if path.components().count() > 1 {
            let meta = as_caller(&invoking_user(), || path.metadata())?.map_err(|error| {
                anyhow!(
                    "--lib {}: cannot open it ({error}); give the path of a file, or its name alone, which gpurec finds as the program does",
                    path.display()
                )
            })?;
            identity = Some((meta.dev(), meta.ino()));
        }
        Ok(LibRule { text: text.to_owned(), path, identity, functions })
    }

    /// True if the rule applies to a file. `key` is None if the file could not be examined.
    pub fn fits(&self, key: Option<FileId>, path: &Path, soname: Option<&str>) -> bool {
        match (self.identity, key) {
            (Some(identity), Some(key)) => key == identity,
            // The user may have given another path to it.
            (Some(_), None) => path.file_name() == self.path.file_name(),
            (None, _) => {
                let name = self.path.as_os_str();
                path.file_name() == Some(name) || soname.is_some_and(|s| name == s)
            }
        }
    }

    pub fn wants(&self, function: &str) -> bool {
        self.functions.matches(function)
    }

    pub fn wants_any_of(&self, image: &Image) -> bool {
        let mut hooked = image.functions.iter().flat_map(|f| std::iter::once(&f.name).chain(&f.aliases));
        let mut refused = image.not_hooked.iter().filter(|one| one.is_code).map(|one| &one.name);
        hooked.any(|name| self.wants(name)) || refused.any(|name| self.wants(name))
    }

    /// Also counts names that are not functions; they are listed as not hooked.
    fn names_any_of(&self, image: &Image) -> bool {
        self.wants_any_of(image) || image.not_hooked.iter().any(|one| self.wants(&one.name))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file is found by its name, wherever a program finds it.
    pub fn is_bare_name(&self) -> bool {
        self.identity.is_none()
    }
}

fn seen_by_caller(path: &Path) -> bool {
    as_caller(&invoking_user(), || path.exists()).unwrap_or(false)
}

impl Selection {
    pub fn has_libs(&self) -> bool {
        !self.libs.is_empty()
    }

    /// True if some CUDA functions are excluded from the recording.
    pub fn leaves_out(&self) -> bool {
        !self.only.is_empty() || !self.skip.is_empty() || self.api != ApiChoice::All
    }

    /// The files that --lib gives by path.
    pub fn lib_paths(&self) -> Vec<PathBuf> {
        self.libs.iter().map(|rule| rule.path.clone()).collect()
    }

    /// What to hook in the file; None if nothing of it is wanted. Returns an error only for a wanted file that cannot be
    /// read; a file that is not ELF gives None.
    pub fn examine(&self, file: &File, path: &Path) -> Result<Option<Image>, HookError> {
        let image = self.functions(file, path)?;
        Ok(match self.static_probes(file, path) {
            Some(found) => Some(with_static_probes(image, found)),
            None => image,
        })
    }

    fn functions(&self, file: &File, path: &Path) -> Result<Option<Image>, HookError> {
        let mut image = self.cuda_part(file, path)?;
        image = merge(image, self.nccl_part(file, path)?);
        if let Some(tapped) = self.tapped(file, path) {
            image = merge(image, Some(tapped));
        }
        if self.libs.is_empty() {
            return Ok(image);
        }
        let soname = elf::soname(file);
        let key = file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        for rule in self.libs.iter().filter(|rule| rule.fits(key, path, soname.as_deref())) {
            let read = |wants: &dyn Fn(&str) -> bool| {
                read_image(file, path, &Want::Matching(wants)).map_err(|error| HookError::Unreadable {
                    error: format!("--lib {}: {error}", path.display()),
                })
            };
            image = merge(image, read(&|name| rule.wants(name))?);
            if !image.as_ref().is_some_and(|image| rule.names_any_of(image)) {
                image = image.or(read(&|_| true)?.map(Image::without_functions));
                let nothing = UnhookedFunction::new(rule.functions.as_str(), HookError::NoSuchExport, false);
                image.iter_mut().for_each(|image| image.not_hooked.push(nothing.clone()));
            }
        }
        Ok(image)
    }

    /// The functions of CUPTI that are hooked, if this is its library. A library that cannot be read has no client.
    fn tapped(&self, file: &File, path: &Path) -> Option<Image> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if self.tap == Tap::None || !tap::is_library(&name) {
            return None;
        }
        let wants = |function: &str| tap::wants(function, self.tap == Tap::Records);
        let image = read_image(file, path, &Want::Matching(&wants)).ok()??;
        (!image.functions.is_empty()).then_some(image)
    }

    /// The static probes of PyTorch's allocator, if this is its library.
    fn static_probes(&self, file: &File, path: &Path) -> Option<StaticProbes> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !self.wants_blocks() || !allocator::is_library(&name) {
            return None;
        }
        let mut found = match elf::static_probes(file, allocator::PROVIDER) {
            Ok(found) => found?,
            Err(error) => {
                let why = || HookError::Unreadable { error: error.to_string() };
                let not_hooked = allocator::names().map(|name| UnhookedFunction::new(name, why(), false));
                StaticProbes { not_hooked: not_hooked.collect(), ..StaticProbes::default() }
            }
        };
        let wanted = |name: &String| allocator::find(name).is_some() && self.wants_any(std::iter::once(name));
        found.list.retain(|probe| wanted(&probe.full_name()));
        found.not_hooked.retain(|one| wanted(&one.name));
        (!found.list.is_empty() || !found.not_hooked.is_empty()).then_some(found)
    }

    /// --api chooses one library, and PyTorch's is another.
    pub fn wants_blocks(&self) -> bool {
        self.blocks && self.api == ApiChoice::All
    }

    fn cuda_part(&self, file: &File, path: &Path) -> Result<Option<Image>, HookError> {
        let mut image = match read_image(file, path, &Want::Cuda) {
            Ok(Some(image)) => image,
            Err(error) if looks_like_cuda(path) => {
                return Err(HookError::Unreadable { error: error.to_string() });
            }
            _ => return Ok(None),
        };
        let wanted = match image.kind {
            Kind::Driver => self.api != ApiChoice::Runtime,
            Kind::Runtime | Kind::StaticRuntime => self.api != ApiChoice::Driver,
            Kind::Nccl | Kind::Other | Kind::Allocator => false,
        };
        if !wanted {
            return Ok(None);
        }
        if image.functions.is_empty() && image.not_hooked.is_empty() {
            image.not_hooked.push(UnhookedFunction::new("*", HookError::NoCuda, false));
            return Ok(Some(image));
        }
        image.functions.retain(|f| self.wants_any(std::iter::once(&f.name).chain(&f.aliases)));
        image.not_hooked.retain(|f| self.wants_any(std::iter::once(&f.name)));
        Ok(Some(image))
    }

    /// The functions of NCCL, in its library or linked into another file. --api chooses one library, and NCCL is another.
    fn nccl_part(&self, file: &File, path: &Path) -> Result<Option<Image>, HookError> {
        if self.api != ApiChoice::All {
            return Ok(None);
        }
        let mut image = match read_image(file, path, &Want::Nccl(&cuda::is_nccl_name)) {
            Ok(Some(image)) => image,
            Err(error) if looks_like_nccl(path) => {
                return Err(HookError::Unreadable { error: error.to_string() });
            }
            _ => return Ok(None),
        };
        image.functions.retain(|f| self.wants_any(std::iter::once(&f.name).chain(&f.aliases)));
        image.not_hooked.retain(|f| self.wants_any(std::iter::once(&f.name)));
        Ok(Some(image).filter(|image| !image.is_empty() || !image.not_hooked.is_empty()))
    }

    /// --only and --skip apply to functions of CUDA and NCCL; --lib has its own pattern. A function with several names is
    /// one piece of code, so each of its names can select or exclude it.
    fn wants_any<'a>(&self, names: impl Iterator<Item = &'a String> + Clone) -> bool {
        let fits =
            |patterns: &[Pattern]| names.clone().any(|name| patterns.iter().any(|p| cuda::fits(p, name)));
        (self.only.is_empty() || fits(&self.only)) && !fits(&self.skip)
    }
}

/// Decides by the name alone.
pub fn looks_like_cuda(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libcuda.so") || name.starts_with("libcudart")
}

fn looks_like_nccl(path: &Path) -> bool {
    elf::kind_of(&path.file_name().unwrap_or_default().to_string_lossy()) == Kind::Nccl
}

fn with_static_probes(image: Option<Image>, found: StaticProbes) -> Image {
    let Some(mut image) = image else { return Image::of_static_probes(found) };
    image.not_hooked.extend(found.not_hooked);
    image.static_probes = found.list;
    image
}

/// For a file that is both CUDA and named by --lib: lists each function once.
fn merge(first: Option<Image>, second: Option<Image>) -> Option<Image> {
    let (mut first, second) = match (first, second) {
        (Some(first), Some(second)) => (first, second),
        (first, second) => return first.or(second),
    };
    let places = |f: &elf::Function| [("site", f.site), ("entry", f.entry)];
    let known: HashSet<(&str, u64)> = first.functions.iter().flat_map(places).collect();
    first
        .functions
        .extend(second.functions.into_iter().filter(|f| !places(f).iter().any(|at| known.contains(at))));
    let known: HashSet<String> = first.not_hooked.iter().map(|one| one.name.clone()).collect();
    let is_new = |one: &UnhookedFunction| cuda::api(&one.name) == Api::Other && !known.contains(&one.name);
    first.not_hooked.extend(second.not_hooked.into_iter().filter(is_new));
    Some(first)
}

pub fn read_image(file: &File, path: &Path, want: &Want) -> Result<Option<Image>, elf::FileError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    elf::read(file, &name, want, &cuda::is_runtime_name)
}
