//! One part while it is written: a file with a hidden name, which is deleted unless it is published.
//!
//! In: row groups. Out: a whole Parquet file, on the disk for certain. Not here: its final name (folder.rs).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::writer::SerializedFileWriter;

use super::chunk::{Format, Group};
use super::columns::Table;
use crate::ui;

/// The version of the columns. Columns may be added under the same number.
pub const SCHEMA: u32 = 1;
/// What the metadata of each file say.
#[derive(Default)]
pub struct Facts {
    pub trace: i64,
    pub host: Option<String>,
    pub complete: bool,
}

/// The key of the trace to which a part belongs.
pub const TRACE_KEY: &str = "gpurec.trace";

impl Facts {
    pub fn pairs(&self) -> [(&'static str, String); 4] {
        [
            ("gpurec.schema", SCHEMA.to_string()),
            ("gpurec.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("gpurec.complete", self.complete.to_string()),
            (TRACE_KEY, self.trace.to_string()),
        ]
    }
}

/// A file that is deleted on drop.
pub struct Hidden(PathBuf);

impl Drop for Hidden {
    fn drop(&mut self) {
        // Once it is published, nothing has this name.
        let _ = fs::remove_file(&self.0);
    }
}

impl Hidden {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

pub struct PartFile {
    // The writer goes first, since an open file cannot be deleted everywhere.
    writer: SerializedFileWriter<File>,
    hidden: Hidden,
}

/// A whole part that is not published.
pub struct Written {
    pub file: Hidden,
    pub table: Table,
    pub job: Option<String>,
    pub rank: Option<u32>,
}

/// A file with a name that nothing else writes to: other threads, processes and machines may write into the folder too.
/// Engines do not read names that begin with a dot.
fn new_file(folder: &Path) -> io::Result<(File, Hidden)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!(".part-{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Permissions as for a trace.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, Hidden(path))),
        }
    }
}

impl PartFile {
    pub fn create(folder: &Path, table: Table, format: &Format) -> Result<PartFile> {
        let folder = folder.join(table.name());
        let failed = || format!("{} cannot be written: give -o another folder", ui::name(&folder));
        fs::create_dir_all(&folder).with_context(failed)?;
        let (file, hidden) = new_file(&folder).with_context(failed)?;
        let writer = SerializedFileWriter::new(file, format.schema.clone(), format.properties.clone())?;
        Ok(PartFile { writer, hidden })
    }

    pub fn write(&mut self, group: Group) -> Result<()> {
        let mut to = self.writer.next_row_group()?;
        for (bytes, closed) in group.finish()? {
            to.append_column(&bytes, closed)?;
        }
        to.close()?;
        Ok(())
    }

    pub fn finish(mut self, facts: &Facts) -> Result<Hidden> {
        for (key, value) in facts.pairs() {
            self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        self.writer.into_inner()?.sync_all()?;
        Ok(self.hidden)
    }
}
