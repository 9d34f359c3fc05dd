//! Turns symbols into functions. In: the wanted symbols. Out: one function for each place in the code, with all its
//! names and its probe site; a reason for each symbol that is not such a place. No two functions share a site.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use goblin::elf::Sym;
use goblin::elf::section_header::SHN_ABS;
use goblin::elf::sym::{STT_COMMON, STT_FUNC, STT_GNU_IFUNC, STT_OBJECT, STT_TLS};

use super::layout::{Layout, Machine};
use super::site::{self, Site};
use super::symbols::Candidate;
use super::{FileError, Function, UnhookedFunction, unhookable};
use gpurec_trace::HookError;

/// A longer function gets its probe at its entry, and so do all functions once this much code of a file has been
/// searched.
const LONGEST_BODY: u64 = 256 << 10;
const MOST_CODE: u64 = 64 << 20;
/// The most bytes searched of a function without a size.
const SHORT_BODY: u64 = 4 << 10;

struct Place {
    names: Vec<String>,
    address: u64,
    size: u64,
    /// Bytes of code from here to the end in the file.
    left: u64,
}

pub fn functions(
    layout: &Layout,
    candidates: Vec<Candidate>,
) -> Result<(Vec<Function>, Vec<UnhookedFunction>), FileError> {
    let (places, mut not_hooked) = places(layout, candidates);
    let mut functions = Vec::with_capacity(places.len());
    let mut budget = MOST_CODE;
    for (&entry, place) in &places {
        if let Some(why) = place.names.iter().find_map(|name| unhookable::reason(name)) {
            let why = HookError::Unsafe { why };
            not_hooked.extend(place.names.iter().map(|name| UnhookedFunction::new(name, why.clone(), true)));
            continue;
        }
        match best_site(layout, &places, entry, place, &mut budget)? {
            Ok(site) => functions.push(function(place, entry, site)),
            Err(why) => {
                not_hooked
                    .extend(place.names.iter().map(|name| UnhookedFunction::new(name, why.clone(), true)));
            }
        }
    }
    not_hooked.sort_by(|a, b| a.name.cmp(&b.name));
    not_hooked.dedup();
    Ok((functions, not_hooked))
}

/// Places by file offset: two addresses may map the same bytes, and a probe belongs to bytes.
fn places(layout: &Layout, candidates: Vec<Candidate>) -> (BTreeMap<u64, Place>, Vec<UnhookedFunction>) {
    let mut places: BTreeMap<u64, Place> = BTreeMap::new();
    let mut not_hooked = Vec::new();
    for Candidate { name, symbol } in candidates {
        match place(layout, &symbol) {
            Err(why) => {
                let is_code = is_code(&name, &symbol, &why);
                not_hooked.push(UnhookedFunction::new(&name, why, is_code));
            }
            Ok((entry, left)) => {
                let fresh = || Place { names: Vec::new(), address: symbol.st_value, size: 0, left };
                let place = places.entry(entry).or_insert_with(fresh);
                place.size = place.size.max(symbol.st_size);
                place.names.push(name);
            }
        }
    }
    for place in places.values_mut() {
        place.names.sort_by(|a, b| rank(a).cmp(&rank(b)));
        place.names.dedup();
    }
    (places, not_hooked)
}

/// Sorts the best name first: public before internal, short before long.
fn rank(name: &str) -> (bool, usize, &str) {
    (name.starts_with('_'), name.len(), name)
}

fn place(layout: &Layout, symbol: &Sym) -> Result<(u64, u64), HookError> {
    match symbol.st_type() {
        STT_FUNC => {}
        STT_OBJECT | STT_TLS | STT_COMMON => return Err(HookError::Data),
        STT_GNU_IFUNC => return Err(HookError::Indirect),
        _ if layout.locate(symbol.st_value, true).is_some() => return Err(HookError::Unmarked),
        _ => return Err(HookError::NotFunction),
    }
    if symbol.st_shndx as u32 == SHN_ABS {
        return Err(HookError::AbsoluteAddress);
    }
    if symbol.st_value == 0 {
        return Err(HookError::ZeroAddress);
    }
    layout.locate_code(symbol.st_value)
}

/// Names by which linkers mark the begin and the end of code.
const MARKS: [&str; 4] = ["etext", "_etext", "__etext", "__executable_start"];

/// Whether calls may be missing if this symbol has no probe.
fn is_code(name: &str, symbol: &Sym, why: &HookError) -> bool {
    let is_typed = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
    is_typed || (*why == HookError::Unmarked && !MARKS.contains(&name))
}

fn best_site(
    layout: &Layout,
    places: &BTreeMap<u64, Place>,
    entry: u64,
    place: &Place,
    budget: &mut u64,
) -> Result<Result<Site, HookError>, FileError> {
    let window = layout.file.exact(entry, place.left.min(site::WINDOW), "code")?;
    if layout.machine == Machine::Aarch64 {
        return Ok(site::aarch64(&window, place.address));
    }
    let at_entry = site::entry(&window, place.address);
    let Some(size) = searched(place, *budget) else { return Ok(at_entry) };
    *budget -= size;
    let body = layout.file.exact(entry, size, "code")?;
    let jumps = site::jumps(&body, place.address, place.size == 0);
    if jumps.to_entry {
        return Ok(at_entry.and(Err(HookError::LoopAtEntry)));
    }
    if at_entry.as_ref().is_ok_and(|site| site.emulated) {
        return Ok(at_entry);
    }
    let Some(further) = site::further(&window, place.address).filter(|site| site.after_entry < place.size)
    else {
        return Ok(at_entry);
    };
    let end = entry + further.after_entry;
    let others_between = places.range((Excluded(entry), Included(end))).next().is_some();
    Ok(if others_between || jumps.reach(further.after_entry) { at_entry } else { Ok(further) })
}

/// The number of bytes to search for jumps: the function, or what follows the entry of a function without a size.
fn searched(place: &Place, budget: u64) -> Option<u64> {
    let size = if place.size == 0 { SHORT_BODY.min(place.left) } else { place.size };
    (size <= LONGEST_BODY.min(place.left).min(budget)).then_some(size)
}

fn function(place: &Place, entry: u64, site: Site) -> Function {
    let mut names = place.names.iter().cloned();
    Function {
        name: names.next().unwrap_or_default(),
        aliases: names.collect(),
        entry,
        site: entry + site.after_entry,
        emulated: site.emulated,
        instruction: site.instruction,
    }
}
