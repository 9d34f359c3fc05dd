//! The rules for Prometheus and the dashboard for Grafana, in packaging/.
//! In: the rules, the dashboard, docs/metrics.md, Debian's promtool.
//! Out: both name documented metrics only, and promtool accepts each query.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::metrics::has_prometheus;
use crate::room::live;
use crate::user::ran;

#[test]
fn the_rules_and_the_dashboard_name_documented_metrics() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");
    let rules = fs::read_to_string(format!("{root}/prometheus/gpurec.rules.yml")).unwrap();
    let dashboard = fs::read_to_string(format!("{root}/grafana/gpurec.json")).unwrap();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let board: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let of_panels: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let variables = board["templating"]["list"].as_array().unwrap();
    let mut queries = of_panels.clone();
    queries.extend(variables.iter().filter_map(|one| one["query"]["query"].as_str()));
    assert!(
        queries.len() > 15
            && panels.iter().all(|panel| panel["gridPos"]["w"].is_u64() && panel["title"].is_string())
    );
    queries.extend(rules.lines().filter(|line| line.trim_start().starts_with("expr:")));
    for query in queries {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        for word in words.filter(|word| word.starts_with("gpurec_")) {
            let name = word.trim_end_matches("_bucket").trim_end_matches("_sum");
            assert!(page.contains(&format!("| `{name}` |")), "{word} in {query}");
        }
    }
    if !has_prometheus() {
        return;
    }
    assert!(ran("promtool", &["check", "rules", &format!("{root}/prometheus/gpurec.rules.yml")]));
    live(|room| {
        // Each query of the dashboard as a rule, with values in place of Grafana's variables.
        let rule = |(at, query): (usize, &&str)| {
            let query = query.replace("$__rate_interval", "1m").replace("$__range", "1h");
            serde_json::json!({"record": format!("panel{at}"), "expr": query})
        };
        let rules: Vec<Value> = of_panels.iter().enumerate().map(rule).collect();
        let file = room.text("dashboard.rules.yml");
        // Each JSON text is YAML too.
        let groups = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
        fs::write(&file, groups.to_string()).unwrap();
        let checked = Command::new("promtool").args(["check", "rules", &file]).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    });
}
