//! Metrics in the JSON of OTLP (opentelemetry-proto 1.x, ExportMetricsServiceRequest). In: points. Out: the body of an
//! export. JSON rather than protobuf: every receiver of OTLP/HTTP takes both, and this needs no generated code. Sums are
//! cumulative, since the start of the recording.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::families::{Extra, Family, Kind, Of, Points, Sink, Value};
use crate::serve::state::State;
use gpurec_analysis::usage::BOUNDS_NS;

/// AGGREGATION_TEMPORALITY_CUMULATIVE.
const CUMULATIVE: u32 = 2;

pub fn export(points: &Points, state: &State, host: &str) -> Vec<u8> {
    let processes = points.processes.iter().map(|labels| {
        let labels = labels.iter().map(|(name, value)| attribute(name, value));
        labels.collect()
    });
    let mut otlp = Otlp {
        start: nanos(state.start),
        now: nanos(state.now),
        processes: processes.collect(),
        metrics: Vec::new(),
    };
    points.write(&mut otlp);
    otlp.metrics.retain(|metric| !metric.points.is_empty());
    let metrics: Vec<Json> = otlp.metrics.into_iter().map(Metric::json).collect();
    let resource = [
        attribute("service.name", "gpurec"),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
        attribute("host.name", host),
    ];
    let scope = json!({"name": "gpurec", "version": env!("CARGO_PKG_VERSION")});
    let body = json!({"resourceMetrics": [{
        "resource": {"attributes": resource},
        "scopeMetrics": [{"scope": scope, "metrics": metrics}],
    }]});
    body.to_string().into_bytes()
}

fn attribute(name: &str, value: &str) -> Json {
    json!({"key": name, "value": {"stringValue": value}})
}

/// 64-bit numbers are texts in the JSON of protobuf.
fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

struct Otlp {
    start: String,
    now: String,
    /// The attributes of each process.
    processes: Vec<Vec<Json>>,
    metrics: Vec<Metric>,
}

struct Metric {
    family: &'static Family,
    points: Vec<Json>,
}

impl Sink for Otlp {
    fn family(&mut self, family: &'static Family) {
        self.metrics.push(Metric { family, points: Vec::new() });
    }

    fn point(&mut self, of: Of, labels: Extra, value: Value) {
        let mut attributes = of.and_then(|at| self.processes.get(at)).cloned().unwrap_or_default();
        attributes.extend(labels.iter().map(|(name, value)| attribute(name, value)));
        let mut point = json!({"attributes": attributes, "timeUnixNano": self.now});
        let Some(metric) = self.metrics.last_mut() else { return };
        if metric.family.kind != Kind::Gauge {
            point["startTimeUnixNano"] = json!(self.start);
        }
        match value {
            Value::Count(count) => point["asInt"] = json!(count.to_string()),
            Value::Nanos(ns) => point["asDouble"] = json!(seconds(ns)),
            Value::Real(value) => point["asDouble"] = json!(value),
            Value::Durations(durations) => {
                point["count"] = json!(durations.count().to_string());
                point["sum"] = json!(seconds(durations.sum_ns));
                point["bucketCounts"] =
                    durations.counts.iter().map(|count| json!(count.to_string())).collect();
                point["explicitBounds"] = BOUNDS_NS.iter().map(|ns| json!(seconds(*ns))).collect();
            }
        }
        metric.points.push(point);
    }
}

impl Metric {
    fn json(self) -> Json {
        let Family { name, kind, unit: (_, unit), help } = self.family;
        let points = self.points;
        let mut metric = json!({"name": name, "unit": unit, "description": help});
        match kind {
            Kind::Counter => {
                metric["sum"] =
                    json!({"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points});
            }
            Kind::Gauge => metric["gauge"] = json!({"dataPoints": points}),
            Kind::Histogram => {
                metric["histogram"] = json!({"aggregationTemporality": CUMULATIVE, "dataPoints": points});
            }
        }
        metric
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
