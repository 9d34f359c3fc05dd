//! Metrics as text: OpenMetrics 1.0, or the older format of Prometheus, which `promtool` and users read. In: points.
//! Out: text. The two differ in the names of counters, the lines with units, the bounds of buckets, and the end.

use std::fmt::Write as _;

use super::families::{Extra, Family, Kind, Of, Points, Sink, Value};
use super::labels::Labels;
use gpurec_analysis::usage::{BOUNDS_NS, Durations};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// A client that does not accept OpenMetrics gets the older format.
    pub fn accepted(accept: &str) -> Format {
        let wanted =
            |kind: &str| kind.trim().to_ascii_lowercase().starts_with("application/openmetrics-text");
        if accept.split(',').any(wanted) { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// The label of a bucket; the last one has no bound.
    fn bound(self, bound: Option<u64>) -> String {
        let mut text = "le=\"".to_owned();
        match bound {
            Some(ns) => {
                seconds(&mut text, ns);
                // OpenMetrics wants a bound as the text of a floating-point number, such as 1.0.
                if self == Format::OpenMetrics && ns.is_multiple_of(1_000_000_000) {
                    text.push_str(".0");
                }
            }
            None => text.push_str("+Inf"),
        }
        text.push_str("\"} ");
        text
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

pub fn write(points: &Points, format: Format) -> String {
    let processes: Vec<String> = points.processes.iter().map(pairs).collect();
    let bounds = BOUNDS_NS.iter().copied().map(Some).chain([None]).map(|bound| format.bound(bound)).collect();
    let mut text = Text { format, processes, bounds, out: String::new(), name: "", kind: Kind::Gauge };
    points.write(&mut text);
    if format == Format::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

struct Text {
    format: Format,
    /// The labels of each process, as they are written.
    processes: Vec<String>,
    /// The ends of the lines of buckets, up to the value.
    bounds: Vec<String>,
    out: String,
    /// Of the family.
    name: &'static str,
    kind: Kind,
}

impl Sink for Text {
    fn family(&mut self, family: &'static Family) {
        (self.name, self.kind) = (family.name, family.kind);
        let is_counter = family.kind == Kind::Counter;
        let total = if is_counter && self.format == Format::Prometheus { "_total" } else { "" };
        let (name, help) = (family.name, family.help);
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP {name}{total} {help}\n# TYPE {name}{total} {kind}");
        let (unit, _) = family.unit;
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn point(&mut self, of: Of, labels: Extra, value: Value) {
        if let Value::Durations(durations) = value {
            return self.histogram(of, labels, durations);
        }
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        self.head(suffix, of, labels);
        self.value(value);
    }
}

impl Text {
    /// Most lines are those of buckets, so the parts that they share are made once.
    fn histogram(&mut self, of: Of, labels: Extra, durations: &Durations) {
        let at = self.out.len();
        self.head("_bucket", of, labels);
        // The bound follows the other labels, of which there is at least the role.
        let head = self.out.split_off(at);
        let head = head.strip_suffix("} ").unwrap_or(&head);
        let mut count = 0;
        for (calls, bound) in durations.counts.iter().zip(&self.bounds) {
            count += calls;
            for part in [head, ",", bound] {
                self.out.push_str(part);
            }
            let _ = writeln!(self.out, "{count}");
        }
        self.head("_count", of, labels);
        self.value(Value::Count(count));
        self.head("_sum", of, labels);
        self.value(Value::Nanos(durations.sum_ns));
    }

    fn head(&mut self, suffix: &str, of: Of, labels: Extra) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let process = of.and_then(|at| self.processes.get(at)).map_or("", String::as_str);
        if process.is_empty() && labels.is_empty() {
            return self.out.push(' ');
        }
        self.out.push('{');
        self.out.push_str(process);
        for (at, (name, value)) in labels.iter().enumerate() {
            if at > 0 || !process.is_empty() {
                self.out.push(',');
            }
            pair(&mut self.out, name, value);
        }
        self.out.push_str("} ");
    }

    fn value(&mut self, value: Value) {
        let _ = match value {
            Value::Count(count) => write!(self.out, "{count}"),
            Value::Nanos(ns) => {
                seconds(&mut self.out, ns);
                Ok(())
            }
            Value::Real(value) => write!(self.out, "{value}"),
            Value::Durations(_) => Ok(()),
        };
        self.out.push('\n');
    }
}

/// Exact: a floating-point number would round.
fn seconds(to: &mut String, ns: u64) {
    let _ = write!(to, "{}", ns / 1_000_000_000);
    let rest = ns % 1_000_000_000;
    if rest > 0 {
        let _ = write!(to, ".{rest:09}");
        to.truncate(to.trim_end_matches('0').len());
    }
}

fn pairs(labels: &Labels) -> String {
    let mut text = String::new();
    for (at, (name, value)) in labels.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        pair(&mut text, name, value);
    }
    text
}

fn pair(to: &mut String, name: &str, value: &str) {
    to.push_str(name);
    to.push_str("=\"");
    if !value.contains(['\\', '"', '\n']) {
        to.push_str(value);
        return to.push('"');
    }
    for c in value.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '"' => to.push_str("\\\""),
            '\n' => to.push_str("\\n"),
            c => to.push(c),
        }
    }
    to.push('"');
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (ns, expected) in [
            (0, "0"),
            (1, "0.000000001"),
            (1_000, "0.000001"),
            (300_000_000, "0.3"),
            (100_000_000_000, "100"),
            (12_345_678_900, "12.3456789"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            let mut text = String::new();
            seconds(&mut text, ns);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let labels = vec![("comm", "a\\b\"c\nd é".to_owned()), ("pid", "1".to_owned())];
        assert_eq!(pairs(&labels), "comm=\"a\\\\b\\\"c\\nd é\",pid=\"1\"");
    }

    #[test]
    fn the_format_is_one_that_the_client_accepts() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for other in ["", "*/*", "text/plain", "text/html, application/json"] {
            assert_eq!(Format::accepted(other), Format::Prometheus, "{other}");
        }
    }
}
