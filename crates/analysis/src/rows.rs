//! Sums over the lines of `--kernel` by name: requests with their RM command or class, functions, interrupts,
//! tracepoints.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::driver_figures::{DriverFigures, RequestFigures};
use gpurec_trace::bounds::{BytesLeft, LONGEST_NAME};
use gpurec_trace::hash::Map;
use gpurec_trace::{Ioctl, KernelEnd, Value};

/// Limits on distinct rows, and on rows of each sort that the figures list.
const MOST: usize = 65_536;
const LISTED: usize = 500;

/// Bytes that an entry takes in addition to its text.
const EACH: usize = 64;

/// Limit on distinct statuses of one request.
const STATUSES: usize = 64;

/// Limit on bytes of names and statuses.
const NAMES: usize = 16 << 20;

const OTHERS: &str = "others";

/// The first byte of a row's key says which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Sort {
    #[default]
    Request = b'r',
    Function = b'f',
    Interrupt = b'i',
    Tracepoint = b't',
}

#[derive(Default)]
pub struct Row {
    pub sort: Sort,
    /// The name of the line.
    pub name: Box<str>,
    pub request: Box<str>,
    pub detail: Option<Box<str>>,
    pub unknown: bool,
    calls: u64,
    timed: u64,
    total_ns: u64,
    max_ns: u64,
    off_cpu_ns: u64,
    failed: u64,
    statuses: BTreeMap<Box<str>, u64>,
}

#[derive(Default)]
pub struct Rows {
    by_key: Map<Box<str>, usize>,
    rows: Vec<Row>,
    /// Room left for names and for statuses.
    left: BytesLeft<NAMES>,
    /// Buffer for lookups without an allocation.
    key: String,
}

impl Rows {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&Row> {
        self.rows.get(index)
    }

    pub fn named(&mut self, sort: Sort, name: &str) -> usize {
        self.key.clear();
        self.key.push(sort.into());
        self.key.push_str(name);
        self.index(sort, name, "", 0, false)
    }

    pub fn request(&mut self, name: &str, ioctl: &Ioctl) -> usize {
        self.key.clear();
        self.key.push(Sort::Request.into());
        self.key.push_str(name);
        self.key.push('\0');
        self.key.push_str(&ioctl.request);
        self.key.push('\0');
        let before = self.key.len();
        match ioctl.detail.get("command").or_else(|| ioctl.detail.get("class")) {
            Some(Value::Text(text)) => self.key.push_str(&text),
            Some(Value::Hex(number)) => _ = write!(self.key, "{number:#x}"),
            Some(Value::Number(number)) => _ = write!(self.key, "{number}"),
            _ => {}
        }
        self.index(Sort::Request, name, &ioctl.request, before, ioctl.unknown)
    }

    /// Returns the row of the key. The part of the key from `detail` on is the detail.
    fn index(&mut self, sort: Sort, name: &str, request: &str, detail: usize, unknown: bool) -> usize {
        if let Some(known) = self.by_key.get(self.key.as_str()) {
            return *known;
        }
        let bytes = 2 * self.key.len();
        let full = self.rows.len() >= MOST || self.key.len() > LONGEST_NAME || !self.left.take(bytes);
        let (mut name, mut request) = (name, request);
        let mut detail = self.key.get(detail..).filter(|text| detail > 0 && !text.is_empty()).map(Box::from);
        if full {
            // When the table is full, one more row of each sort collects the rest.
            self.key.clear();
            self.key.push(sort.into());
            self.key.push('\0');
            if let Some(known) = self.by_key.get(self.key.as_str()) {
                return *known;
            }
            (name, request, detail) = (OTHERS, OTHERS, None);
        }
        let index = self.rows.len();
        self.rows.push(Row {
            sort,
            name: name.into(),
            request: request.into(),
            detail,
            unknown: unknown && !full,
            ..Row::default()
        });
        self.by_key.insert(self.key.as_str().into(), index);
        index
    }

    pub fn began(&mut self, index: usize) {
        if let Some(row) = self.rows.get_mut(index) {
            row.calls += 1;
        }
    }

    pub fn took(&mut self, index: usize, ns: u64) {
        if let Some(row) = self.rows.get_mut(index) {
            row.timed += 1;
            row.total_ns = row.total_ns.saturating_add(ns);
            row.max_ns = row.max_ns.max(ns);
        }
    }

    /// Records an end. Returns whether the operation failed.
    pub fn ended(&mut self, index: usize, end: &KernelEnd, off_cpu_ns: u64) -> bool {
        if let Some(ns) = end.duration_ns {
            self.took(index, ns);
        }
        let Some(row) = self.rows.get_mut(index) else { return false };
        row.off_cpu_ns = row.off_cpu_ns.saturating_add(off_cpu_ns);
        let status = end.status.as_deref().filter(|status| *status != "NV_OK");
        let bad = status.is_some_and(|status| !status.starts_with("NV_WARN"));
        let failed = bad || end.error.is_some();
        row.failed += u64::from(failed);
        if let Some(said) = status.or(end.error.as_deref()) {
            if let Some(count) = row.statuses.get_mut(said) {
                *count += 1;
            } else if row.statuses.len() < STATUSES && self.left.take(EACH + said.len()) {
                row.statuses.insert(said.into(), 1);
            }
        }
        failed
    }

    pub fn requests(&self) -> (Vec<RequestFigures>, u64) {
        self.listed(Sort::Request, Row::request_figures)
    }

    pub fn of(&self, sort: Sort) -> (Vec<DriverFigures>, u64) {
        self.listed(sort, Row::figures)
    }

    /// By total time, largest first, and the number left out.
    fn listed<T>(&self, sort: Sort, figures: impl Fn(&Row) -> T) -> (Vec<T>, u64) {
        let mut all: Vec<&Row> = self.rows.iter().filter(|row| row.sort == sort).collect();
        all.sort_by_key(|&row| (Reverse((row.total_ns, row.calls)), &row.name, &row.request, &row.detail));
        let listed = all.iter().take(LISTED).map(|row| figures(row)).collect();
        (listed, all.len().saturating_sub(LISTED) as u64)
    }
}

impl Row {
    fn average(&self) -> u64 {
        // Rounds half a nanosecond up.
        self.total_ns.saturating_add(self.timed / 2).checked_div(self.timed).unwrap_or(0)
    }

    fn request_figures(&self) -> RequestFigures {
        RequestFigures {
            ioctl: self.name.to_string(),
            request: self.request.to_string(),
            detail: self.detail.as_deref().map(str::to_owned),
            unknown: self.unknown,
            calls: self.calls,
            total_ns: self.total_ns,
            avg_ns: self.average(),
            max_ns: self.max_ns,
            off_cpu_ns: self.off_cpu_ns,
            failed: self.failed,
            statuses: self.statuses.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
        }
    }

    fn figures(&self) -> DriverFigures {
        DriverFigures {
            name: self.name.to_string(),
            uvm: self.sort == Sort::Function && is_uvm(&self.name),
            calls: self.calls,
            total_ns: self.total_ns,
            avg_ns: self.average(),
            max_ns: self.max_ns,
            failed: self.failed,
        }
    }
}

/// Whether a function belongs to nvidia-uvm.ko, judged by the naming conventions of that module.
fn is_uvm(name: &str) -> bool {
    const BEGIN: [&str; 4] = ["uvm_", "block_copy_", "push_replay_on_", "access_counters_"];
    const CONTAIN: [&str; 3] = ["_faults_isr_", "_fault_b", "fault_buffer_entries"];
    BEGIN.iter().any(|begin| name.starts_with(begin)) || CONTAIN.iter().any(|part| name.contains(part))
}

impl From<Sort> for char {
    fn from(sort: Sort) -> char {
        char::from(sort as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_than_are_kept_apart_are_one_row() {
        let mut rows = Rows::default();
        for i in 0..MOST + 1000 {
            let row = rows.named(Sort::Function, &format!("f{i}"));
            rows.began(row);
            rows.took(row, if i < MOST { 1 } else { 5 });
        }
        let row = rows.named(Sort::Tracepoint, "a:b");
        rows.began(row);
        assert!(rows.rows.len() == MOST + 2 && rows.by_key.len() == MOST + 2);
        let (listed, more) = rows.of(Sort::Function);
        assert_eq!((listed[0].name.as_str(), listed[0].calls, listed[0].total_ns), (OTHERS, 1000, 5000));
        assert_eq!((listed.len(), more), (LISTED, (MOST + 1 - LISTED) as u64));
        assert_eq!(rows.of(Sort::Tracepoint).0[0].name, OTHERS);
    }

    #[test]
    fn functions_of_uvm_are_known_by_name() {
        for name in ["uvm_migrate", "service_fault_batch", "replayable_faults_isr_bottom_half"] {
            assert!(is_uvm(name), "{name}");
        }
        for name in ["nvidia_mmap", "rm_ioctl", "nvUvmInterfacePmaAllocPages", "kgmmuServiceMmuFault"] {
            assert!(!is_uvm(name), "{name}");
        }
    }
}
