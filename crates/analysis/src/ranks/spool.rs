//! The finished collectives, until all traces are read: who came last depends on clocks that are known only then. In:
//! arrivals. Out: the same, in the same order. The first ones stay in memory, the others go to an unnamed file. Not here:
//! what they mean.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use super::arrival::{Arrival, Before, CALLS, Key, What, Who};

const IN_MEMORY: usize = 16 << 20;
const NONE: i64 = i64::MIN;

#[derive(Default)]
pub struct Spool {
    bytes: Vec<u8>,
    file: Option<File>,
}

/// A file without a name, in the folder for temporary files, where others may make names too. They cannot take the name
/// before, because it is random, and cannot open the file while it has one.
fn unnamed() -> io::Result<File> {
    let path = std::env::temp_dir().join(random_name());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    // Windows removes no open file: there it stays.
    let _ = std::fs::remove_file(&path);
    Ok(file)
}

fn random_name() -> String {
    // The hasher has random keys, which differ for each.
    let random = || RandomState::new().build_hasher().finish();
    format!("gpurec-ranks-{:016x}{:016x}", random(), random())
}

impl Spool {
    pub fn push(&mut self, rows: &[Arrival]) -> io::Result<()> {
        put(&mut self.bytes, rows.len() as u64);
        rows.iter().for_each(|row| write_row(&mut self.bytes, row));
        if self.bytes.len() < IN_MEMORY {
            return Ok(());
        }
        if self.file.is_none() {
            self.file = Some(unnamed()?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(&self.bytes)?;
        }
        self.bytes.clear();
        Ok(())
    }

    /// Passes each collective to `take`.
    pub fn each(mut self, mut take: impl FnMut(&[Arrival])) -> io::Result<()> {
        let mut rows = Vec::new();
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(0))?;
            let mut file = BufReader::with_capacity(1 << 20, file);
            while read_rows(&mut file, &mut rows)? {
                take(&rows);
            }
        }
        let mut rest = self.bytes.as_slice();
        while read_rows(&mut rest, &mut rows)? {
            take(&rows);
        }
        Ok(())
    }
}

fn put(to: &mut Vec<u8>, value: u64) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn write_row(to: &mut Vec<u8>, row: &Arrival) {
    let Arrival { who, key, rank, nranks, what, before, .. } = row;
    put(to, pair(who.trace, who.pid));
    put(to, pair(key.comm, key.from));
    put(to, pair(key.to, *rank));
    put(to, key.seq);
    put(to, pair(nranks.unwrap_or(0), what.op));
    for ns in [Some(row.enqueued_ns), row.started_ns, row.ended_ns] {
        put(to, ns.unwrap_or(NONE) as u64);
    }
    before.calls.iter().for_each(|(name, ns)| {
        put(to, u64::from(*name));
        put(to, *ns);
    });
    put(to, before.own_ns);
    put(to, before.off_cpu_ns);
    put(to, u64::from(before.ioctl.0));
    put(to, before.ioctl.1);
    put(to, pair(before.site, u32::from(before.is_known)));
}

fn get(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn apart(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}

fn time(from: &mut impl Read) -> io::Result<Option<i64>> {
    Ok(Some(get(from)? as i64).filter(|ns| *ns != NONE))
}

/// False: there are no more.
fn read_rows(from: &mut impl Read, rows: &mut Vec<Arrival>) -> io::Result<bool> {
    rows.clear();
    let count = match get(from) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        count => count?,
    };
    for _ in 0..count {
        let (trace, pid) = apart(get(from)?);
        let (comm, sender) = apart(get(from)?);
        let (to, rank) = apart(get(from)?);
        let seq = get(from)?;
        let (nranks, op) = apart(get(from)?);
        let (enqueued_ns, started_ns, ended_ns) = (time(from)?.unwrap_or(0), time(from)?, time(from)?);
        let mut calls = [(0, 0); CALLS];
        for call in &mut calls {
            *call = (get(from)? as u32, get(from)?);
        }
        let (own_ns, off_cpu_ns) = (get(from)?, get(from)?);
        let ioctl = (get(from)? as u32, get(from)?);
        let (site, known) = apart(get(from)?);
        rows.push(Arrival {
            who: Who { trace, pid },
            key: Key { comm, from: sender, to, seq },
            rank,
            nranks: Some(nranks).filter(|count| *count > 0),
            what: What { op, ..What::default() },
            site: 0,
            enqueued_ns,
            started_ns,
            ended_ns,
            before: Before { is_known: known != 0, calls, own_ns, off_cpu_ns, ioctl, site },
        });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others may watch and fill the folder.
    #[cfg(unix)]
    #[test]
    fn the_file_is_this_users_alone_and_its_name_cannot_be_foreseen() {
        use std::os::unix::fs::MetadataExt;
        let about = unnamed().unwrap().metadata().unwrap();
        assert_eq!((about.mode() & 0o777, about.nlink()), (0o600, 0));
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| random_name()).collect();
        assert_eq!(names.len(), 1000);
        // No part but the prefix stays the same.
        let digits = |at: usize| names.iter().map(move |name| name.as_bytes()[at]);
        let prefix = "gpurec-ranks-".len();
        for at in prefix..prefix + 32 {
            assert!(digits(at).collect::<std::collections::BTreeSet<u8>>().len() > 8, "{at}");
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut spool = Spool::default();
        let row = |n: u64| Arrival {
            who: Who { trace: n as u32, pid: 7 },
            key: Key { comm: 1, from: u32::MAX, to: u32::MAX, seq: n },
            rank: 3,
            nranks: n.is_multiple_of(2).then_some(5),
            what: What { op: 4, ..What::default() },
            site: 0,
            enqueued_ns: -5,
            started_ns: n.is_multiple_of(3).then_some(1 << 60),
            ended_ns: None,
            before: Before {
                is_known: true,
                calls: [(9, 1 << 40); CALLS],
                own_ns: n,
                site: 2,
                ..Before::default()
            },
        };
        for n in 0..100_000 {
            spool.push(&[row(n), row(n + 1)]).unwrap();
        }
        assert!(spool.file.is_some());
        let mut next = 0;
        spool
            .each(|rows| {
                assert_eq!(format!("{rows:?}"), format!("{:?}", [row(next), row(next + 1)]));
                next += 1;
            })
            .unwrap();
        assert_eq!(next, 100_000);
    }
}
