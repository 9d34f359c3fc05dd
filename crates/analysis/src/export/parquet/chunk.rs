//! A row group of one table in memory: encodes and compresses the columns of batches, side by side.
//!
//! In: batches. Out: the column chunks of a row group, for file.rs. The crate's own writer of files takes one column
//! after the other, which needs all rows at once; here each column has a writer whose pages stay in memory, compressed.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::{ColumnCloseResult, ColumnWriter, get_column_writer};
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnPath, SchemaDescPtr, SchemaDescriptor, Type, TypePtr};
use zstd::bulk::Compressor;

use super::batch::{Batch, Cells};
use super::columns::{Column, Kind, Table};

/// Bytes of distinct values beyond which a column has no dictionary.
const DICTIONARY: usize = 1 << 20;
/// Bytes of a row in the pages of those.
const KEPT: usize = 16;
/// Longest text in statistics.
const STATISTICS: usize = 64;

/// The schema of a table, and how its columns are encoded.
#[derive(Clone)]
pub struct Format {
    pub schema: TypePtr,
    pub properties: WriterPropertiesPtr,
    columns: SchemaDescPtr,
}

impl Format {
    pub fn new(table: Table) -> Result<Format> {
        let fields = table.columns().map(field).collect::<Result<Vec<_>>>()?;
        let schema = Arc::new(Type::group_type_builder("gpurec").with_fields(fields).build()?);
        let mut properties = WriterProperties::builder()
            // Pages are compressed here (`Pages`): each of the crate's own writers would keep a context of a megabyte.
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_page_size_limit(DICTIONARY)
            .set_statistics_truncate_length(Some(STATISTICS))
            .set_column_index_truncate_length(Some(STATISTICS))
            .set_created_by(format!("gpurec {}", env!("CARGO_PKG_VERSION")));
        for column in table.columns() {
            let path = || ColumnPath::from(column.name);
            properties = properties.set_column_dictionary_enabled(path(), column.kind != Kind::Rising);
            match column.kind {
                Kind::Rising | Kind::Number => {
                    properties = properties.set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
                }
                // No query selects rows by a range of JSON texts, so they need no minimum and maximum; and they are most of the bytes.
                Kind::Text => {
                    properties = properties.set_column_statistics_enabled(path(), EnabledStatistics::None);
                }
                Kind::Name | Kind::Flag => {}
            }
        }
        let columns = Arc::new(SchemaDescriptor::new(schema.clone()));
        Ok(Format { schema, properties: Arc::new(properties.build()), columns })
    }
}

fn field(column: &Column) -> Result<TypePtr> {
    let (physical, logical) = match column.kind {
        Kind::Rising | Kind::Number => (Physical::INT64, None),
        Kind::Name | Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Flag => (Physical::BOOLEAN, None),
    };
    let repetition = if column.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
    Ok(Arc::new(
        Type::primitive_type_builder(column.name, physical)
            .with_logical_type(logical)
            .with_repetition(repetition)
            .build()?,
    ))
}

/// Takes the pages of a column, as a file would, and compresses them.
#[derive(Clone)]
struct Pages {
    written: Arc<Mutex<Option<TrackedWrite<Vec<u8>>>>>,
    level: i32,
}

/// zstd's own level for a column. JSON is fast to compress and large.
fn level(kind: Kind) -> i32 {
    if kind == Kind::Text { 1 } else { 3 }
}

/// All columns of a thread share a context.
fn compressed(bytes: &[u8], level: i32) -> Result<Bytes> {
    thread_local!(static CONTEXT: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) });
    CONTEXT.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => context.insert(Compressor::new(level)?),
        };
        context.set_compression_level(level)?;
        Ok(context.compress(bytes)?.into())
    })
}

impl PageWriter for Pages {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let size = page.uncompressed_size();
        let mut page = page.compressed_page().clone();
        if let Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } = &mut page {
            *buf = compressed(buf, self.level)?;
        }
        let page = CompressedPage::new(page, size);
        let mut to = self.written.lock().map_err(|_| gone())?;
        let to = to.get_or_insert_with(|| TrackedWrite::new(Vec::new()));
        SerializedPageWriter::new(to).write_page(page)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Pages {
    fn bytes(&self) -> Result<Bytes> {
        let written = self.written.lock().map_err(|_| gone())?.take();
        Ok(written.map(TrackedWrite::into_inner).transpose()?.unwrap_or_default().into())
    }

    fn length(&self) -> usize {
        self.written.lock().map_or(0, |pages| pages.as_ref().map_or(0, TrackedWrite::bytes_written))
    }
}

fn gone() -> ParquetError {
    ParquetError::General("a thread that wrote pages has failed".to_owned())
}

/// The values that are not null.
fn only_known(values: &[i64], levels: &[i16], known: &mut Vec<i64>) {
    known.clear();
    known.resize(values.len(), 0);
    let mut count = 0;
    // Without a branch, which a processor could not foresee.
    for (value, level) in values.iter().zip(levels) {
        if let Some(place) = known.get_mut(count) {
            *place = *value;
        }
        count += usize::from(*level == 1);
    }
    known.truncate(count);
}

pub struct Group {
    columns: Vec<(ColumnWriter<'static>, Pages)>,
    kinds: Vec<(Kind, bool)>,
    pub rows: usize,
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    /// The levels of a column without a value.
    nulls: Vec<i16>,
}

impl Group {
    pub fn new(table: Table, format: &Format) -> Group {
        let columns = format.columns.columns().iter().zip(table.columns()).map(|(column, of)| {
            let pages = Pages { written: Arc::default(), level: level(of.kind) };
            let to = Box::new(pages.clone());
            (get_column_writer(column.clone(), format.properties.clone(), to), pages)
        });
        let kinds = table.columns().map(|column| (column.kind, column.required)).collect();
        Group {
            columns: columns.collect(),
            kinds,
            rows: 0,
            numbers: Vec::new(),
            texts: Vec::new(),
            nulls: Vec::new(),
        }
    }

    /// Encodes the rows of a batch, whose columns all have the same length, or no value.
    pub fn add(&mut self, batch: &mut Batch) -> Result<()> {
        let Group { columns, kinds, rows, numbers, texts, nulls } = self;
        *rows += batch.rows();
        nulls.resize(batch.rows(), 0);
        for (((writer, _), (_, required)), cells) in columns.iter_mut().zip(kinds).zip(&mut batch.columns) {
            match (writer, cells) {
                (ColumnWriter::Int64ColumnWriter(writer), Cells::Numbers { values, levels }) => {
                    if *required {
                        writer.write_batch(values, None, None)?;
                        continue;
                    }
                    let known = if levels.iter().all(|level| *level == 1) {
                        &*values
                    } else {
                        only_known(values, levels, numbers);
                        &*numbers
                    };
                    let levels = if levels.is_empty() { &*nulls } else { &*levels };
                    writer.write_batch(known, Some(levels), None)?;
                }
                (ColumnWriter::ByteArrayColumnWriter(writer), Cells::Texts { bytes, places, levels, .. }) => {
                    let next = Vec::with_capacity(bytes.len());
                    let all = ByteArray::from(std::mem::replace(bytes, next));
                    texts.clear();
                    let known = places.iter().zip(levels.iter()).filter(|(_, level)| **level == 1);
                    texts
                        .extend(known.map(|((from, to), _)| all.slice(*from as usize, (to - from) as usize)));
                    writer.write_batch(texts, Some(if levels.is_empty() { nulls } else { levels }), None)?;
                }
                (ColumnWriter::BoolColumnWriter(writer), Cells::Flags(flags)) => {
                    writer.write_batch(flags, None, None)?;
                }
                _ => return Err(ParquetError::General("a column has values of another type".to_owned())),
            }
        }
        texts.clear();
        Ok(())
    }

    /// About how many bytes it holds: its pages, and what columns with a dictionary keep until the end.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|(_, pages)| pages.length()).sum::<usize>() + self.rows * KEPT
    }

    /// The chunks of all columns, in order.
    pub fn finish(self) -> Result<Vec<(Bytes, ColumnCloseResult)>> {
        let close = |(writer, pages): (ColumnWriter<'static>, Pages)| {
            let mut closed = writer.close()?;
            let zstd = Compression::ZSTD(ZstdLevel::try_new(pages.level)?);
            closed.metadata = closed.metadata.into_builder().set_compression(zstd).build()?;
            Ok((pages.bytes()?, closed))
        };
        self.columns.into_iter().map(close).collect()
    }
}
