//! The rows of one trace by rank and table, on their way into files.
//!
//! In: rows, cell by cell, for the partition of a job and a rank. Out: a part for each partition and table, published
//! together when the trace has ended. Rows stay in memory until a window is full, then encoded until a row group is:
//! memory is bounded for any trace. Not here: what the cells mean (sink.rs), and the names of files (folder.rs).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::batch::Batch;
use super::chunk::{Format, Group};
use super::columns::Table;
use super::file::{Facts, PartFile, Written};
use super::folder::{is_plain, publish};
use crate::dataset::Folder;
use crate::ui;

/// Whole rows of a table before they are encoded, and bytes of their texts. So few rows stay in the processor's cache.
const WINDOW: usize = 1 << 13;
const WINDOW_BYTES: usize = 8 << 20;
/// Rows of a row group.
const GROUP: usize = 1 << 20;
/// Limits on all partitions and tables together: rows that are not encoded, bytes of row groups that are not written.
const MOST_ROWS: usize = 1 << 17;
const MOST_BYTES: usize = 96 << 20;
/// Limit on ranks of a trace: the partition of each has batches and an open file for each table. A node has fewer ranks.
/// The rows of further ranks go where those without a rank go.
pub const MOST_RANKS: usize = 64;
/// With more partitions than this, batches do not keep the memory of rows that are encoded.
const FEW_PARTITIONS: usize = 8;
/// The most bytes of a job's name, without and with characters to escape. The name of its folder has at most 255, and an
/// escape takes three.
const LONGEST_JOB: usize = 128;
const LONGEST_ESCAPED: usize = 80;

/// A row of a partition's table.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub partition: usize,
    pub row: usize,
}

#[derive(Default)]
struct Partition {
    job: Option<String>,
    rank: Option<u32>,
    parts: Vec<Option<Part>>,
}

struct Part {
    batch: Batch,
    group: Option<Group>,
    file: Option<PartFile>,
}

impl Part {
    fn new(table: Table) -> Part {
        Part { batch: Batch::new(table), group: None, file: None }
    }
}

/// A call that has begun.
#[derive(Clone, Copy)]
struct Call {
    place: Place,
    table: Table,
}

#[derive(Default)]
pub struct Parts {
    folder: PathBuf,
    /// The folder of each table that has a file.
    folders: Vec<Option<Arc<Folder>>>,
    formats: Vec<Format>,
    /// An empty batch of each table, which takes turns with those of the partitions.
    spares: Vec<Batch>,
    /// The first is for rows without a rank.
    partitions: Vec<Partition>,
    calls: Vec<Call>,
    free: Vec<u32>,
    /// Rows in batches.
    rows: usize,
    facts: Facts,
    error: Option<anyhow::Error>,
    /// Processes beyond `MOST_RANKS`.
    pub left_out: u64,
}

impl Parts {
    pub fn new(folder: PathBuf) -> Result<Parts> {
        let formats = Table::ALL.iter().map(|table| Format::new(*table)).collect::<Result<_, _>>()?;
        let spares = Table::ALL.iter().map(|table| Batch::new(*table)).collect();
        let folders = vec![None; Table::ALL.len()];
        let partitions = vec![Partition::default()];
        Ok(Parts { folder, folders, formats, spares, partitions, ..Parts::default() })
    }

    /// The first error since the last call.
    pub fn check(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    pub fn trace(&mut self, trace: i64, host: &str) {
        self.facts = Facts { trace, host: (!host.is_empty()).then(|| host.to_owned()), ..Facts::default() };
    }

    /// The partition of a process.
    pub fn partition(&mut self, job: Option<&str>, rank: Option<u32>) -> usize {
        let job = job.map(|job| {
            let most = if is_plain(job) { LONGEST_JOB } else { LONGEST_ESCAPED };
            gpurec_trace::bounds::short(job, most)
        });
        if let Some(known) = self.partitions.iter().position(|it| it.job == job && it.rank == rank) {
            return known;
        }
        if self.partitions.len() > MOST_RANKS {
            self.left_out += 1;
            return 0;
        }
        self.partitions.push(Partition { job, rank, parts: Vec::new() });
        self.partitions.len() - 1
    }

    #[inline(always)]
    pub fn batch(&mut self, partition: usize, table: Table) -> Option<&mut Batch> {
        self.partitions
            .get_mut(partition)?
            .parts
            .get_mut(table as usize)?
            .as_mut()
            .map(|part| &mut part.batch)
    }

    /// Adds a row that is whole at once.
    #[inline(always)]
    pub fn row(&mut self, partition: usize, table: Table) -> Place {
        let row = self.with_room(partition, table).map_or(0, Batch::row);
        Place { partition, row }
    }

    /// Adds the row of a call. Its number stays the same until the call ends; its place does not.
    #[inline(always)]
    pub fn open(&mut self, partition: usize, table: Table) -> (u32, Place) {
        let call = self.free.pop().unwrap_or(self.calls.len() as u32);
        let row = self.with_room(partition, table).map_or(0, |batch| batch.open(call));
        let place = Place { partition, row };
        match self.calls.get_mut(call as usize) {
            Some(known) => *known = Call { place, table },
            None => self.calls.push(Call { place, table }),
        }
        (call, place)
    }

    pub fn place(&self, call: u32) -> Option<Place> {
        self.calls.get(call as usize).map(|call| call.place)
    }

    pub fn table(&self, call: u32) -> Option<Table> {
        self.calls.get(call as usize).map(|call| call.table)
    }

    /// The number of a call whose row is whole may be given to another.
    pub fn end(&mut self, call: u32) {
        self.free.push(call);
    }

    /// The batch of a table with room for one more row.
    #[inline(always)]
    fn with_room(&mut self, partition: usize, table: Table) -> Option<&mut Batch> {
        self.rows += 1;
        let is_full = match self.batch(partition, table) {
            Some(batch) => batch.is_full(WINDOW) || batch.bytes >= WINDOW_BYTES,
            None => true,
        };
        if is_full || self.rows > MOST_ROWS {
            self.make_room(partition, table);
        }
        self.batch(partition, table)
    }

    #[cold]
    fn make_room(&mut self, partition: usize, table: Table) {
        if let Some(it) = self.partitions.get_mut(partition) {
            it.parts.resize_with(Table::ALL.len(), || None);
            if let Some(part) = it.parts.get_mut(table as usize) {
                part.get_or_insert_with(|| Part::new(table));
            }
        }
        let done = if self.rows > MOST_ROWS { self.encode_all() } else { self.encode(partition, table) };
        if let Err(error) = done {
            self.error.get_or_insert(error);
        }
    }

    fn encode_all(&mut self) -> Result<()> {
        for partition in 0..self.partitions.len() {
            for table in Table::ALL {
                self.encode(partition, *table)?;
            }
        }
        // What is left are rows of open calls.
        self.rows = 0;
        Ok(())
    }

    /// Encodes the whole rows of a batch. Writes row groups if one is full, or all take too much memory.
    fn encode(&mut self, partition: usize, table: Table) -> Result<()> {
        let Parts { partitions, formats, calls, spares, .. } = self;
        let are_few = partitions.len() <= FEW_PARTITIONS;
        let part = partitions.get_mut(partition).and_then(|it| it.parts.get_mut(table as usize));
        let (Some(Some(part)), Some(format)) = (part, formats.get(table as usize)) else { return Ok(()) };
        let Some(spare) = spares.get_mut(table as usize).filter(|_| part.batch.whole_rows() > 0) else {
            return Ok(());
        };
        let Part { batch, group, .. } = part;
        batch.move_open(spare, |call, row| {
            if let Some(call) = calls.get_mut(call as usize) {
                call.place.row = row;
            }
        });
        std::mem::swap(batch, spare);
        let group = group.get_or_insert_with(|| Group::new(table, format));
        group.add(spare)?;
        self.rows = self.rows.saturating_sub(spare.rows());
        match are_few {
            true => spare.clear(),
            false => *spare = Batch::new(table),
        }
        if group.rows >= GROUP {
            return self.write_group(partition, table);
        }
        let groups = self.partitions.iter().flat_map(|it| it.parts.iter().flatten());
        let bytes: usize = groups.filter_map(|part| part.group.as_ref()).map(Group::bytes).sum();
        if bytes > MOST_BYTES {
            for partition in 0..self.partitions.len() {
                for table in Table::ALL {
                    self.write_group(partition, *table)?;
                }
            }
        }
        Ok(())
    }

    fn write_group(&mut self, partition: usize, table: Table) -> Result<()> {
        let Parts { partitions, formats, folder, folders, .. } = self;
        let part = partitions.get_mut(partition).and_then(|it| it.parts.get_mut(table as usize));
        let (Some(Some(part)), Some(format)) = (part, formats.get(table as usize)) else { return Ok(()) };
        let Some(group) = part.group.take() else { return Ok(()) };
        let file = match &mut part.file {
            Some(file) => file,
            None => {
                let Some(of_table) = folders.get_mut(table as usize) else { return Ok(()) };
                let of_table = match of_table {
                    Some(known) => known,
                    None => of_table.insert(table_folder(folder, table)?),
                };
                part.file.insert(PartFile::create(of_table, format)?)
            }
        };
        file.write(group)
    }

    /// Writes what is left and publishes the parts, the table `meta` last.
    pub fn publish(mut self, complete: bool) -> Result<()> {
        self.check()?;
        self.encode_all()?;
        self.facts.complete = complete;
        let mut written = Vec::new();
        for table in Table::ALL {
            for partition in 0..self.partitions.len() {
                self.write_group(partition, *table)?;
                let Some(it) = self.partitions.get_mut(partition) else { continue };
                let part = it.parts.get_mut(*table as usize).and_then(Option::take);
                let Some(file) = part.and_then(|part| part.file) else { continue };
                let (job, rank) = (it.job.clone(), it.rank);
                written.push(Written { file: file.finish(&self.facts)?, table: *table, job, rank });
            }
        }
        publish(&self.folder, &self.facts, written)
    }
}

fn table_folder(dataset: &Path, table: Table) -> Result<Arc<Folder>> {
    let made = Folder::given(dataset).and_then(|dataset| dataset.make(Path::new(table.name())));
    let failed = || format!("{} cannot be written: give -o another folder", ui::name(dataset));
    made.map(Arc::new).with_context(failed)
}
