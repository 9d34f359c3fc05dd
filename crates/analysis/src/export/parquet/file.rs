//! One part while it is written: a file with a hidden name, which is deleted unless it is published.
//!
//! In: row groups. Out: a whole Parquet file, on the disk for certain. Not here: its final name (folder.rs).

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::writer::SerializedFileWriter;

use super::chunk::{Format, Group};
use super::columns::Table;
use crate::dataset::{Folder, Hidden};
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

impl PartFile {
    /// `folder`: that of the table.
    pub fn create(folder: &Arc<Folder>, format: &Format) -> Result<PartFile> {
        let failed = || format!("{} cannot be written: give -o another folder", ui::name(folder.path()));
        let (file, hidden) = Hidden::create(folder).with_context(failed)?;
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
