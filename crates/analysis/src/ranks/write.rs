//! Writes the clocks of the hosts into a dataset, where the views of python/ find them. In: the clocks of a report. Out:
//! `DIR/clocks/part-0.parquet`, which replaces that of an earlier run and never looks whole before it is; remarks for the
//! user. Not here: what the clocks mean (clocks.rs).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::clocks::HostClock;
use crate::dataset::{Folder, Hidden};
use crate::ui;

/// As docs/fleet.md and python/src/gpurec/columns.json have them.
const COLUMNS: &str = "message gpurec {
    required binary host (STRING); required int64 offset_ns; required double drift_ppm;
    required int64 error_ns; required int64 at_ns;
}";

/// The clock of a host, as the dataset has it.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    host: String,
    offset_ns: i64,
    drift_ppm: f64,
    error_ns: i64,
    at_ns: i64,
}

/// The rows, and why there is none of some hosts: their times stay as they are.
fn rows(clocks: &[HostClock]) -> (Vec<Row>, Vec<String>) {
    let mut by_host: BTreeMap<&str, Vec<&HostClock>> = BTreeMap::new();
    for clock in clocks {
        by_host.entry(&clock.host).or_default().push(clock);
    }
    let (mut rows, mut said) = (Vec::new(), Vec::new());
    for (host, clocks) in by_host {
        match clocks[..] {
            [clock] => match clock.error_ns {
                Some(error_ns) => rows.push(Row {
                    host: host.to_owned(),
                    offset_ns: clock.offset_ns as i64,
                    drift_ppm: clock.drift_ppm,
                    error_ns: (error_ns.ceil() as i64).saturating_add_unsigned(clock.stepped_ns),
                    at_ns: clock.at_ns,
                }),
                None => said.push(format!("the clock of {host} is not known, so the dataset has no row for it")),
            },
            _ => said.push(format!(
                "the traces of {host} have {} clocks (it was started anew, or they have no clock line), so the dataset has no row for it",
                clocks.len()
            )),
        }
    }
    (rows, said)
}

pub fn write_clocks(folder: &Path, clocks: &[HostClock]) -> Result<Vec<String>> {
    let (rows, said) = rows(clocks);
    let failed = || {
        let shown = folder.join("clocks");
        format!("{} cannot be written: give --write-clocks another folder", ui::name(&shown))
    };
    let clocks = Folder::given(folder).and_then(|dataset| dataset.make(Path::new("clocks")));
    let clocks = Arc::new(clocks.with_context(failed)?);
    let (file, hidden) = Hidden::create(&clocks).with_context(failed)?;
    write(file, &rows).with_context(failed)?;
    fs::rename(hidden.path(), clocks.at("part-0.parquet")).with_context(failed)?;
    // A name is on the disk only when its folder is.
    clocks.sync().with_context(failed)?;
    Ok(said)
}

fn write(file: File, rows: &[Row]) -> Result<()> {
    let schema = Arc::new(parse_message_type(COLUMNS)?);
    let mut file = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::new()))?;
    let mut group = file.next_row_group()?;
    for index in 0.. {
        let Some(mut column) = group.next_column()? else { break };
        let numbers = |of: fn(&Row) -> i64| rows.iter().map(of).collect::<Vec<i64>>();
        let numbers = match index {
            0 => {
                let hosts: Vec<ByteArray> = rows.iter().map(|row| row.host.as_str().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&hosts, None, None)?;
                None
            }
            2 => {
                let drifts: Vec<f64> = rows.iter().map(|row| row.drift_ppm).collect();
                column.typed::<DoubleType>().write_batch(&drifts, None, None)?;
                None
            }
            1 => Some(numbers(|row| row.offset_ns)),
            3 => Some(numbers(|row| row.error_ns)),
            _ => Some(numbers(|row| row.at_ns)),
        };
        if let Some(numbers) = numbers {
            column.typed::<Int64Type>().write_batch(&numbers, None, None)?;
        }
        column.close()?;
    }
    group.close()?;
    file.append_key_value_metadata(KeyValue::new(
        "gpurec.version".to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    ));
    file.into_inner()?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::super::clocks::Origin;
    use super::*;

    fn clock(host: &str, offset_ns: f64, error_ns: Option<f64>) -> HostClock {
        HostClock {
            host: host.to_owned(),
            is_reference: false,
            offset_ns,
            drift_ppm: 12.5,
            at_ns: 1_790_000_000_000_000_000,
            error_ns,
            origin: Origin::Collectives,
            bounds: 1,
            stepped_ns: 10,
            said: Vec::new(),
        }
    }

    #[cfg(unix)]
    #[test]
    fn no_link_leads_the_clocks_elsewhere() {
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("gpurec-clocks-link-{}", std::process::id()));
        let (victim, dataset) = (folder.join("victim"), folder.join("dataset"));
        fs::create_dir_all(dataset.join("clocks")).unwrap();
        fs::write(&victim, "a letter").unwrap();
        let clocks = [clock("a", 1.0, Some(1.0))];
        // The names that it would use first.
        let hidden = format!(".part-{}", std::process::id());
        for name in [format!("{hidden}.tmp"), format!("{hidden}-0.tmp"), "part-0.parquet".to_owned()] {
            symlink(&victim, dataset.join("clocks").join(name)).unwrap();
        }
        write_clocks(&dataset, &clocks).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "a letter");
        assert!(!fs::symlink_metadata(dataset.join("clocks/part-0.parquet")).unwrap().is_symlink());
        fs::remove_dir_all(dataset.join("clocks")).unwrap();
        fs::create_dir(folder.join("elsewhere")).unwrap();
        symlink(folder.join("elsewhere"), dataset.join("clocks")).unwrap();
        let error = format!("{:#}", write_clocks(&dataset, &clocks).unwrap_err());
        assert!(error.contains("is a symbolic link"), "{error}");
        assert_eq!(fs::read_dir(folder.join("elsewhere")).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn clocks_are_written_once_for_each_host() {
        let folder = std::env::temp_dir().join(format!("gpurec-clocks-{}", std::process::id()));
        let first = write_clocks(&folder, &[clock("old", 1.0, Some(1.0))]).unwrap();
        assert!(first.is_empty());
        let clocks = [
            clock("a", -7.0, Some(2.5)),
            clock("twice", 1.0, Some(1.0)),
            clock("b", 9.0, None),
            clock("twice", 2.0, Some(1.0)),
        ];
        let said = write_clocks(&folder, &clocks).unwrap().join("\n");
        assert!(said.contains("b is not known") && said.contains("twice have 2 clocks"), "{said}");
        let names: Vec<_> =
            fs::read_dir(folder.join("clocks")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["part-0.parquet"]);
        let file =
            SerializedFileReader::new(File::open(folder.join("clocks/part-0.parquet")).unwrap()).unwrap();
        let rows: Vec<_> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.get_string(0).unwrap().as_str(), row.get_long(1).unwrap()), ("a", -7));
        assert_eq!((row.get_double(2).unwrap(), row.get_long(3).unwrap()), (12.5, 13));
        assert_eq!(row.get_long(4).unwrap(), 1_790_000_000_000_000_000);
        fs::remove_dir_all(folder).unwrap();
    }
}
