//! The folder of a dataset: which file a part becomes.
//!
//! In: whole parts with hidden names. Out: `TABLE/job=J/host=H/rank=R/part-N.parquet`, of which none ever looks whole
//! before it is. Parts of the same trace that are there already are replaced, so that to export a trace again does not
//! double its rows. Not here: what is in the files.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::columns::Table;
use super::file::{Facts, TRACE_KEY, Written};
use crate::dataset::{self, Folder, Hidden};
use crate::ui;

/// The value of a partition key that is not known, as Hive, Spark and DuckDB have it.
const UNKNOWN: &str = "__HIVE_DEFAULT_PARTITION__";

/// A file with longer metadata is no part of gpurec's.
const MOST_METADATA: u32 = 64 << 20;

/// No file system has longer names than 255 bytes; the last escape may be three.
const LONGEST_KEY: usize = 250;

/// Gives the parts their names, in their order.
pub fn publish(dataset: &Path, facts: &Facts, parts: Vec<Written>) -> Result<()> {
    // Else two copies of one trace would not see each other.
    static ONE: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let jobs: BTreeSet<&String> = parts.iter().filter_map(|part| part.job.as_ref()).collect();
    let ranks: BTreeSet<u32> = parts.iter().filter_map(|part| part.rank).collect();
    // Rows without a rank belong to the only rank of the trace.
    let (only_job, only_rank) = (only(&jobs).map(|job| job.to_string()), only(&ranks).copied());
    // Paths in the dataset.
    let mut places: Vec<(PathBuf, Hidden)> = Vec::new();
    let mut partitions = BTreeSet::from([keys(None, facts, None)]);
    for Written { file, table, job, rank } in parts {
        let rank = rank.or(only_rank).map(|rank| rank.to_string());
        let keys = keys(job.or_else(|| only_job.clone()).as_deref(), facts, rank.as_deref());
        places.push((Path::new(table.name()).join(&keys), file));
        partitions.insert(keys);
    }
    let mut changed = BTreeSet::new();
    let root = Folder::given(dataset)?;
    remove_elsewhere(&root, facts.trace, &partitions, &places, &mut known)?;
    let mut replaced: Vec<(PathBuf, Vec<OsString>)> = Vec::new();
    for (place, hidden) in &places {
        let failed =
            || format!("{} cannot be written: give -o another folder", ui::name(&dataset.join(place)));
        let folder = root.make(place).with_context(failed)?;
        let old = match replaced.iter().position(|(done, _)| done == place) {
            Some(at) => at,
            None => {
                replaced.push((place.clone(), known.parts_of(&folder, facts.trace).with_context(failed)?));
                replaced.len() - 1
            }
        };
        let old = replaced.get_mut(old).and_then(|(_, old)| old.pop());
        match old {
            Some(old) => fs::rename(hidden.path(), folder.at(old)).with_context(failed)?,
            None => add(&folder, &hidden.path()).with_context(failed)?,
        }
        changed.extend(place.ancestors().map(Path::to_path_buf));
    }
    for (place, old) in replaced.iter().filter(|(_, old)| !old.is_empty()) {
        let folder = root.make(place)?;
        old.iter().try_for_each(|old| fs::remove_file(folder.at(old)))?;
    }
    // A name is on the disk only when its folder is.
    changed.iter().try_for_each(|place| root.make(place)?.sync()).map_err(Into::into)
}

/// The folders of a partition below that of a table.
fn keys(job: Option<&str>, facts: &Facts, rank: Option<&str>) -> PathBuf {
    [key("job", job), key("host", facts.host.as_deref()), key("rank", rank)].iter().collect()
}

/// Removes parts of the trace where this export puts none: an earlier one may not have known the rank yet, or have had rows
/// of more tables. It looks into these partitions alone. `meta` goes first, because a trace in it counts as exported.
fn remove_elsewhere(
    root: &Folder,
    trace: i64,
    partitions: &BTreeSet<PathBuf>,
    places: &[(PathBuf, Hidden)],
    known: &mut Known,
) -> Result<()> {
    let tables = Table::ALL.iter().filter(|table| **table != Table::Meta);
    for table in [Table::Meta].iter().chain(tables) {
        for place in partitions.iter().map(|keys| Path::new(table.name()).join(keys)) {
            if places.iter().any(|(other, _)| *other == place) {
                continue;
            }
            let Some(folder) = root.existing(&place)? else { continue };
            for old in known.parts_of(&folder, trace)? {
                fs::remove_file(folder.at(&old)).with_context(|| ui::name(&folder.path().join(&old)))?;
            }
        }
    }
    Ok(())
}

fn only<T: Ord>(values: &BTreeSet<T>) -> Option<&T> {
    values.first().filter(|_| values.len() == 1)
}

/// `key=value`, with the escapes of Hive. Long values that begin alike share a folder.
fn key(key: &str, value: Option<&str>) -> String {
    let mut text = format!("{key}=");
    let Some(value) = value else { return text + UNKNOWN };
    for byte in value.bytes() {
        if text.len() >= LONGEST_KEY {
            break;
        }
        match has_no_escape(byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn has_no_escape(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// True if the value of a key is without escapes.
pub fn is_plain(value: &str) -> bool {
    value.bytes().all(has_no_escape)
}

/// Which trace the parts are of that earlier traces of this export found. To read each part again for each trace would
/// take a time that grows with the square of their number.
#[derive(Default)]
struct Known(HashMap<Identity, Option<i64>>);

/// What no two files have, and no two contents of one file: device and number, length, and time of the last change.
type Identity = (u64, u64, u64, i64, i64);

/// Limit on the parts that are known.
const MOST_KNOWN: usize = 1 << 18;

impl Known {
    /// The parts of a trace in a folder, the last first.
    fn parts_of(&mut self, folder: &Folder, trace: i64) -> io::Result<Vec<OsString>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder.at("."))? {
            let name = entry?.file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == "parquet")
                && self.trace_of(&folder.at(&name)) == Some(trace)
            {
                found.push(name);
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    }

    fn trace_of(&mut self, path: &Path) -> Option<i64> {
        let Some(identity) = identity(&fs::symlink_metadata(path).ok()?) else { return trace_of(path) };
        if self.0.len() >= MOST_KNOWN {
            self.0.clear();
        }
        *self.0.entry(identity).or_insert_with(|| trace_of(path))
    }
}

#[cfg(unix)]
fn identity(about: &Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    Some((about.dev(), about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
}

/// On other systems each part is read each time.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<Identity> {
    None
}

/// None for what is no part: others may have put anything there.
fn trace_of(path: &Path) -> Option<i64> {
    let mut file = dataset::regular(path).ok()?;
    if length_of_metadata(&mut file).ok()? > MOST_METADATA {
        return None;
    }
    let reader = SerializedFileReader::new(file).ok()?;
    let pairs = reader.metadata().file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == TRACE_KEY)?.value.as_ref()?.parse().ok()
}

/// As the end of a Parquet file has it: the length, and four bytes that name the format.
fn length_of_metadata(file: &mut File) -> io::Result<u32> {
    let mut length = [0; 4];
    file.seek(SeekFrom::End(-8))?;
    file.read_exact(&mut length)?;
    Ok(u32::from_le_bytes(length))
}

/// The first free number. A link fails where the name exists, also if another process made it just now.
fn add(folder: &Folder, hidden: &Path) -> io::Result<()> {
    for number in 0_u64.. {
        let path = folder.at(format!("part-{number}.parquet"));
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        return match fs::hard_link(hidden, &path) {
            Ok(()) => fs::remove_file(hidden),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            // A file system without links.
            Err(_) => fs::rename(hidden, &path),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_keys_are_escaped() {
        assert_eq!(key("job", Some("a/b=c %é")), "job=a%2Fb%3Dc%20%25%C3%A9");
        assert_eq!(key("rank", None), "rank=__HIVE_DEFAULT_PARTITION__");
        assert_eq!(key("host", Some("..")), "host=..");
        assert_eq!(key("host", Some(&"/".repeat(5000))).len(), 251);
    }
}
